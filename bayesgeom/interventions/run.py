"""`intervene`: act on a subspace and report whether the model uses it. `write_strength`: which heads write there."""

from bayesgeom.ablations.batteries import every_head
from bayesgeom.ablations.report import AblationReport
from bayesgeom.ablations.run import ablate
from bayesgeom.core.edits import SubspaceKind
from bayesgeom.core.sites import ATTN_OUT, W_O, Z
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.job import InterventionJob
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike
from bayesgeom.results.report import with_provenance
from bayesgeom.subspaces.base import Fit
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.subspaces.subspace import Subspace
from bayesgeom.subspaces.writes import WriteReport, write_report
from bayesgeom.tasks.base import derived_seed

N_WRITTEN = 128  # sequences that write strength is averaged over
_HELD, _DRAWS = 6, 7  # branches of the seed


def intervene(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: Subspace | Fit | None = None,
    *,
    kind: SubspaceKind | Design = "swap",
    at: InterventionSite | None = None,
    n: int = 256,
    seed: int = 0,
) -> InterventionReport:
    """Act on one subspace, in each layer of a place alone, and report whether the model uses what lies there.

    The subspace is fitted on sequences that are not scored. Under a swap every layer gets a verdict (see
    `interventions.verdicts.RULE`): used, not used, by construction, not identified or undecided.

    Args:
        model: a model, its name or its directory.
        task: a task or its name; by default the one that the model was trained on.
        subspace: one of `bayesgeom.subspaces`, or a `Subspace`; by default the frame of hypothesis embeddings.
        kind: what is done, or a `Design` with donors and numbers of controls. "swap": the component becomes that of
            another sequence; "remove": the task's mean; "keep": everything else becomes the mean; "rotate": its
            coordinates are turned at random, or negated where there is one; "add": each coordinate grows by one
            standard deviation. The mean is over all scored positions at those and over all others at the others.
        at: site, layers and positions; by default `resid_pre` of every layer.
        n: sequences, or pairs of them, that are scored.
        seed: of sequences, fits, controls and intervals.

    Returns:
        Effect of the edit in every layer, with controls and a verdict.

    Raises:
        InvalidArgument: before anything runs, for an unknown kind, n < 1, a layer that is not there, a basis of the
            wrong width or a rank beyond it, paired donors in a task without pairs.
        MissingSite: for a site that the model lacks.

    References:
        Belrose et al. 2023, arXiv:2306.03819; Geiger et al. 2024, arXiv:2303.02536; Haufe et al. 2014, NeuroImage 87.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> few = bayesgeom.Design("remove", n_random=1, n_matched=1, n_control=2, n_untrained=0, n_fit=16)
        >>> bayesgeom.intervene(module, task, bayesgeom.subspaces.random(2), kind=few, n=8).n
        8
    """
    job = InterventionJob.of(model, task, subspace, kind=kind, at=at, n=n, seed=seed)
    return with_provenance(
        job.run(), provenance(job.model, job.task, {"n": n, "seed": seed, "kind": job.kind, "subspace": job.fit.label})
    )


def write_strength(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: Subspace | Fit | None = None,
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
    job = InterventionJob.of(model, task, subspace, kind="remove", at=InterventionSite(ATTN_OUT), n=n, seed=seed)
    job.model.require((Z, W_O), by="write strength")
    effects = ablation or ablate(job.model, job.task, every_head(job.model), n=n, seed=seed)
    sample = job.sample()
    subspaces = job.fit.fitted(sample, range(job.model.spec.n_layers))
    run = job.model.run(job.task.stream(n, seed=derived_seed(seed, _HELD)), record=(Z,), n_recorded=min(n, N_WRITTEN))
    return write_report(job.model, run, subspaces, effects.kl_increase_bits_by_head, seed=derived_seed(seed, _DRAWS))


def fit_subspace(
    model: ModelLike, task: TaskLike | None, subspace: Fit, *, at: InterventionSite | None = None, seed: int = 0
) -> dict[int, Subspace]:
    """Fit the subspaces that `intervene` would act on with the same arguments.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        subspace: One of `bayesgeom.subspaces`, a `Subspace`, or its text as on the command line. Default: the key
            frame.
        at: Site and layers. Default: `resid_pre` of every layer.
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
    job = InterventionJob.of(model, task, subspace, kind="remove", at=at, n=1, seed=seed)
    return job.fit.fitted(job.sample(), job.layers)
