"""`intervene`: edit a subspace and report whether the model uses it. `write_strength`: which heads write there."""

from collections.abc import Sequence
from typing import overload

from einops import rearrange

from bayesgeom.ablations.report import AblationReport
from bayesgeom.ablations.run import BatteryRun
from bayesgeom.core.arguments import checked
from bayesgeom.core.edits import SubspaceKind
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.sites import ATTN_OUT, W_O, Z
from bayesgeom.core.torch_state import with_gradients
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import DISTANCE, MOVED
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.joint import JointIntervention
from bayesgeom.interventions.joint_report import JointInterventionReport
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.results.report import with_provenance
from bayesgeom.subspaces.base import Fit
from bayesgeom.subspaces.fits import as_fit
from bayesgeom.subspaces.share_controls import ShareControlsReport, share_controls_report
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.subspaces.subspace import Subspace
from bayesgeom.subspaces.writes import WriteReport, write_report
from bayesgeom.tasks.base import derived_seed

SubspaceLike = str | Subspace | Fit
N_WRITTEN = 128  # sequences over which write strength is averaged
_HELD_OUT, _DRAWS = 6, 7  # branches of the seed


@overload
def intervene(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: SubspaceLike = "frame",
    *,
    kind: SubspaceKind | Design = "swap",
    sites: InterventionSite | None = None,
    n: int = 256,
    seed: int = 0,
) -> InterventionReport: ...


@overload
def intervene(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: SubspaceLike = "frame",
    *,
    kind: SubspaceKind | Design = "swap",
    sites: Sequence[InterventionSite],
    n: int = 256,
    seed: int = 0,
) -> JointInterventionReport: ...


@checked("model", "task", "subspace")
@with_gradients
def intervene(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: SubspaceLike = "frame",
    *,
    kind: SubspaceKind | Design = "swap",
    sites: InterventionSite | Sequence[InterventionSite] | None = None,
    n: int = 256,
    seed: int = 0,
) -> InterventionReport | JointInterventionReport:
    """Edit one subspace, in each layer alone or in several at once, and report whether the model uses it.

    The subspace is fitted on sequences that are not scored. A swap gives every layer a verdict (see
    `interventions.verdicts.RULE`): used, not used, by construction, not identified or undecided. For a list of sites
    the report compares each entry with 20 random subspaces of the same rank and 20 that are orthogonal to the edited
    subspace. It also gives the correlation of the subspace's coordinate with entropy at the input of each layer.

    Args:
        model: A model, its name or its directory.
        task: A task or its name; by default the task that the model was trained on.
        subspace: A name as on the command line ("frame", "leace:belief", "random:3"), one of `bayesgeom.subspaces`, or
            a `Subspace`. The default is the span of the hypothesis tokens' embeddings.
        kind: Kind of edit, or a `Design` with donors and numbers of controls. "swap": replace the component by that of
            another sequence; "remove": replace it by the task's mean; "keep": replace everything else by the mean;
            "rotate": rotate its coordinates at random, or negate a single one; "add": add one standard deviation to
            each coordinate. Scored positions and other positions have separate means. A list of sites accepts
            "remove", "keep" or "add".
        sites: One site: each of its layers is edited alone; by default `resid_pre` of every layer. A list of sites at
            one hook point: each entry edits all its layers in the same pass, so that no layer can recover what another
            edit removed.
        n: Number of scored sequences, or of pairs for a swap.
        seed: Seed of the sequences, fits, controls and intervals.

    Returns:
        The effect of the edit in every layer, with controls and a verdict.

    Raises:
        InvalidArgument: Before anything runs: unknown kind, n < 1, a layer that does not exist, a basis of the wrong
            width, a rank above the width, or paired donors for a task without pairs.
        UnknownName: There is no subspace of this name.
        MissingSite: The model lacks the site.

    References:
        Belrose et al. 2023, arXiv:2306.03819; Geiger et al. 2024, arXiv:2303.02536; Haufe et al. 2014, NeuroImage 87.

    Example:
        >>> import bayesgeom
        >>> few = bayesgeom.Design("remove", n_random=1, n_matched=1, n_control=2, n_untrained=0, n_fit=16)
        >>> bayesgeom.intervene("mess3-small", subspace=bayesgeom.subspaces.random(2), kind=few, n=8).n
        8
    """
    subject, fit = as_model(model), as_fit(subspace)
    chosen = scored_task_of(subject, task)
    if sites is None or isinstance(sites, InterventionSite):
        place, design = sites or InterventionSite(), Design.of(kind)
        return Intervention.of(subject, chosen, fit, design=design, place=place, n=n, seed=seed).report()
    if isinstance(kind, Design):
        raise InvalidArgument(f"a list of sites takes kind='remove', 'keep' or 'add', got Design({kind.kind!r}).")
    return JointIntervention.of(subject, chosen, fit, sites=sites, kind=kind, n=n, seed=seed).report()


@checked("model", "task", "subspace")
@with_gradients
def write_strength(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: SubspaceLike = "frame",
    *,
    n: int = 256,
    seed: int = 0,
    ablation: AblationReport | None = None,
) -> WriteReport:
    """Measure how strongly each head writes into a subspace, ‖P W_O z‖, and compare with the effect of ablating it.

    The subspace is fitted at `attn_out` of each layer.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        subspace: One of `bayesgeom.subspaces`, a `Subspace`, or its text as on the command line. Default: the key
            frame.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.
        ablation: Report of a battery that ablates every head alone. Default: it is run on `n` sequences.

    Returns:
        Write strength and ablation effect of every head.

    Raises:
        InvalidArgument: As for `intervene`, or a head is missing from `ablation`.
        MissingSite: The model has no attention heads.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> bayesgeom.write_strength(module, task, n=8).name
        'write_strength'
    """
    subject, fit, place, design = as_model(model), as_fit(subspace), InterventionSite(ATTN_OUT), Design("remove")
    chosen = scored_task_of(subject, task)
    fitting = Intervention.of(subject, chosen, fit, design=design, place=place, n=n, seed=seed)
    subject.require((Z, W_O), by="write strength")
    effects = ablation or BatteryRun.of(subject, chosen, "heads", n=n, seed=seed).exact()
    subspaces = fit.fitted(fitting.sample(), range(subject.spec.n_layers))
    blocks = chosen.stream(n, seed=derived_seed(seed, _HELD_OUT), device=subject.spec.device)
    run = subject.run(blocks, record=(Z,), n_recorded=min(n, N_WRITTEN))
    report = write_report(subject, run, subspaces, effects.kl_increase_bits_by_head, seed=derived_seed(seed, _DRAWS))
    arguments = {"n": n, "seed": seed, "subspace": fit.label, "ablation": "given" if ablation else "of every head"}
    return with_provenance(report, provenance(subject, chosen, arguments))


@checked("model", "task", "subspace")
@with_gradients
def fit_subspace(
    model: ModelLike,
    task: TaskLike | None,
    subspace: SubspaceLike,
    *,
    sites: InterventionSite | None = None,
    seed: int = 0,
) -> dict[int, Subspace]:
    """Fit the subspaces that `intervene` would edit with the same arguments.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        subspace: One of `bayesgeom.subspaces`, a `Subspace`, or its text as on the command line. Default: the key
            frame.
        sites: Site and layers. Default: `resid_pre` of every layer.
        seed: Seed of the sequences and of the intervals.

    Returns:
        The subspace of each layer, by layer.

    Raises:
        InvalidArgument: The subspace cannot be fitted there.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> found = bayesgeom.fit_subspace(module, task, bayesgeom.subspaces.random(3))
        >>> found[0].rank
        3
    """
    subject, fit = as_model(model), as_fit(subspace)
    place, chosen = sites or InterventionSite(), scored_task_of(subject, task)
    fitting = Intervention.of(subject, chosen, fit, design=Design("remove"), place=place, n=1, seed=seed)
    return fit.fitted(fitting.sample(), fitting.layers)


@checked("model", "task", "subspace")
@with_gradients
def share_controls(
    model: ModelLike, task: TaskLike | None = None, subspace: SubspaceLike = "frame", *, n: int = 64, seed: int = 0
) -> ShareControlsReport:
    """Compare a swap with swaps of 20 random subspaces that hold the same share of the donors' difference.

    Args:
        model: As for `intervene`.
        task: As for `intervene`.
        subspace: As for `intervene`.
        n: Number of pairs.
        seed: Seed of pairs, controls and intervals.

    Returns:
        How far each moves the model's own value, in every layer of `resid_pre` alone.

    Raises:
        InvalidArgument: As for `intervene`.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.share_controls("sticky-small", subspace="random:2", n=8).n
        8
    """
    subject, fit, chosen = (own := as_model(model)), as_fit(subspace), scored_task_of(own, task)
    swap = Intervention.of(subject, chosen, fit, design=Design("swap"), place=InterventionSite(), n=n, seed=seed)
    totals, shares, controls = swap.against_share()
    of_each = totals.conditions[:, :, 1:, (MOVED, DISTANCE), 0]  # without the ceiling
    sums = rearrange(of_each, "unit row (effect own) sum -> sum unit row effect own", own=1 + swap.design.n_matched)
    report = share_controls_report(fit.label, sums, shares, controls, n_layers=subject.spec.n_layers, n=n, seed=seed)
    arguments = {"n": n, "seed": seed, "subspace": fit.label, "donors": swap.donors}
    return with_provenance(report, provenance(subject, chosen, arguments))
