"""`intervene`: edit a subspace and report whether it is causal or inert. `fit_subspace`: the subspaces alone."""

from collections.abc import Sequence
from typing import Any, Unpack, overload

from bayesgeom.core import InvalidArgument, checked, phase
from bayesgeom.core.torch_state import with_gradients
from bayesgeom.interventions.design import Design, DoseOptions, JointOptions, LagOptions, SiteOptions
from bayesgeom.interventions.doses import dose_report
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.joint import JointIntervention
from bayesgeom.interventions.lags import lag_report
from bayesgeom.interventions.report import DoseReport, InterventionReport, JointInterventionReport, LagReport
from bayesgeom.interventions.summary import intervention_report
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, scored_task_of
from bayesgeom.subspaces.base import Fit, InterventionSite, Subspace
from bayesgeom.subspaces.fits import as_fit

SubspaceLike = str | Subspace | Fit


@overload
def intervene(
    model: ModelLike, task: TaskLike | None = None, subspace: SubspaceLike = "frame", **design: Unpack[LagOptions]
) -> LagReport: ...


@overload
def intervene(
    model: ModelLike, task: TaskLike | None = None, subspace: SubspaceLike = "frame", **design: Unpack[DoseOptions]
) -> DoseReport: ...


@overload
def intervene(
    model: ModelLike, task: TaskLike | None = None, subspace: SubspaceLike = "frame", **design: Unpack[SiteOptions]
) -> InterventionReport: ...


@overload
def intervene(
    model: ModelLike, task: TaskLike | None = None, subspace: SubspaceLike = "frame", **design: Unpack[JointOptions]
) -> JointInterventionReport: ...


@checked("model", "task", "subspace")
@with_gradients
def intervene(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: SubspaceLike = "frame",
    *,
    sites: InterventionSite | Sequence[InterventionSite] | None = None,
    n: int = 256,
    seed: int = 0,
    **design: Any,
) -> InterventionReport | JointInterventionReport | LagReport | DoseReport:
    """Edit one subspace, in each layer alone or in several at once, and report whether it is causal or inert.

    The subspace is fitted on sequences that are not scored. A swap gives every layer a verdict: see
    `InterventionReport`, and for a list of sites `JointInterventionReport`.

    Args:
        model: A model, its name or its directory.
        task: A task or its name; by default the task that the model was trained on.
        subspace: A name as on the command line ("frame", "leace:belief", "random:3"), one of `bayesgeom.subspaces`, or
            a `Subspace`. The default is the span of the hypothesis tokens' embeddings.
        sites: One site: each of its layers is edited alone; by default `resid_pre` of every layer. A list of sites at
            one hook point: each entry edits all its layers in the same pass, so that no layer recovers what is removed.
        n: Number of scored sequences, or of pairs for a swap.
        seed: Seed of the sequences, fits, controls and intervals.
        **design: `kind`, the kind of edit or a `Design` with donors and numbers of controls; `n_fit`, the number of
            sequences on which subspaces are fitted; `lags` or `doses`. "swap", the default: replace the component by
            that of another sequence; "remove": replace it by the task's mean; "keep": replace everything else by the
            mean; "rotate": rotate its coordinates at random, or negate a single one; "add": add one standard deviation
            to each coordinate. A list of sites accepts "remove", "keep" or "add". With `lags` a swap edits positions
            up to one, and is scored so many scored positions later: see `LagReport`. With `doses`, "add" adds these
            multiples of the first direction's standard deviation: see `DoseReport`.

    Returns:
        The effect of the edit in every layer, with controls and a verdict.

    Raises:
        InvalidArgument: Before anything runs: unknown kind, n < 1, a layer that does not exist, a basis of the wrong
            width, a rank above the width, paired donors for a task without pairs, or a lag beyond the sequence.
        UnknownName: There is no subspace of this name.
        MissingSite: The model lacks the site.

    References:
        Belrose et al. 2023, arXiv:2306.03819; Geiger et al. 2024, arXiv:2303.02536; Haufe et al. 2014, NeuroImage 87.

    Example:
        >>> import bayesgeom
        >>> few = bayesgeom.interventions.design.Design("remove", n_random=1, n_matched=1, n_control=2, n_untrained=0)
        >>> bayesgeom.intervene("mess3-small", subspace=bayesgeom.subspaces.random(2), kind=few, n_fit=16, n=8).n
        8
    """
    fit, given, subject = as_fit(subspace), Design.of(**design), model_for(model, task)
    chosen = scored_task_of(subject, task)
    if not isinstance(sites, Sequence):
        job = Intervention.of(subject, chosen, fit, design=given, place=sites or InterventionSite(), n=n, seed=seed)
        return lag_report(job) if given.lags else dose_report(job) if given.doses else intervention_report(job)
    if given.lags or given.doses:
        raise InvalidArgument("lags and doses take one site, not a list of sites.")
    if isinstance(design.get("kind"), Design):
        raise InvalidArgument(f"a list of sites takes kind='remove', 'keep' or 'add', got Design({given.kind!r}).")
    return JointIntervention.of(subject, chosen, fit, sites=sites, design=given, n=n, seed=seed).report()


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
    fit, subject = as_fit(subspace), model_for(model, task)
    place, chosen = sites or InterventionSite(), scored_task_of(subject, task)
    fitting = Intervention.of(subject, chosen, fit, design=Design("remove"), place=place, n=1, seed=seed)
    with phase(f"fitting {fit.label}"):
        return fit.fitted(fitting.sample(), fitting.layers)
