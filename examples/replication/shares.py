"""Does the share of the donor's difference that a swap exchanges explain how far it moves the answer?

A swap of a subspace that holds nearly all of what distinguishes donor and recipient moves the answer, whatever the
subspace means. `share_controls` compares a swap with swaps of random subspaces that hold the same share. If they move
the answer as far, the movement shows how much of the difference the subspace holds, and not what it means.
`swap_shares` reads both numbers from saved interventions of several networks and correlates them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import numpy as np
from einops import rearrange
from jaxtyping import Float, Float64, Int
from torch import Tensor

from bayesgeom.core.edits import Edit
from bayesgeom.core.errors import InvalidArgument, checked
from bayesgeom.core.text import aligned_table
from bayesgeom.core.torch_state import with_gradients
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import Score
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.matching import Matched, n_distinct
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.interventions.run import SubspaceLike
from bayesgeom.models.base import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, Share, Signed, Unit
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.storage import JSON
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import ratio_interval, seed_interval
from bayesgeom.stats.regression import spearman
from bayesgeom.subspaces.base import InterventionSite, Subspace
from bayesgeom.subspaces.fits import as_fit

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

EXPLANATIONS = ("share of the donor's difference", "share of the site's variance")
ALIKE = "share-matched subspaces"
EFFECTS = ("movement", "movement without the direct path")
PARTS = ("the subspace", "the controls", "of the subspace's own, in the controls")

LEAST_UNITS = 15  # from here on the interval holds the true correlation in 94 to 96 % of planted data sets
N_ALIKE = 256  # pairs from whose difference the controls are drawn


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ShareControlsReport(Report):
    """Movement of the model's own value by a swap of the subspace, and of subspaces with the same share.

    The baseline of `movement` is the mean over the controls, with the least and the greatest; NaN in layers where no
    subspace has the share. `share` is of the squared difference of donor and recipient; its last part is the share of
    the subspace's own difference that the controls hold on average: 0 if they are orthogonal to it.
    """

    name: ClassVar[str] = "share_controls"
    title: ClassVar[str] = "Swaps: the subspace, and others with the same share of the difference"
    about: ClassVar[str] = (
        "A swap gives the model the donor's component in one subspace. A subspace that holds nearly all of what "
        "distinguishes donor and recipient moves the answer, whatever it means. The controls are random subspaces that "
        "hold the same share of that difference. Where the difference outside the subspace is too small for them, they "
        "come from the whole site and hold a part of the subspace too, which makes it harder to exceed them."
    )

    subspace: str
    effects: tuple[str, ...]
    movement: Annotated[Estimate, Quantity("effect layer", better="higher", label="movement toward the donor's value")]
    parts: tuple[str, ...]
    share: Annotated[Estimate, Share("part layer", label="share of the difference")]
    drawn_by_layer: Annotated[tuple[str, ...], "layer"]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return [
            headline_of(self, "movement", (effect, layer), f"{name}, layer {layer}")
            for effect, name in enumerate(self.effects)
            for layer in map(int, np.flatnonzero(np.isfinite(self.movement.value[effect])))
        ]

    def panels(self) -> "Sequence[Panel]":
        from bayesgeom.charts.lines import add_estimate
        from bayesgeom.report.panels import Panel
        from bayesgeom.report.theme import label_axes

        panels = [Panel.blank(effect) for effect in self.effects]
        for at, panel in enumerate(panels):
            own = self.movement[at]
            levels = {ALIKE: own.baseline(ALIKE).value}
            add_estimate(panel.figure, range(len(own.value)), own, name=panel.title, baselines=levels)
            label_axes(panel.figure, "layer", f"{panel.title} (1: all of the way)")
        return panels

    def table(self) -> str:
        """Return movements, the range over the controls, and the shares of every edited layer."""
        rows = [("layer", "effect", "movement", "least control", "mean", "most", *self.parts, "controls from")]
        level = self.movement.baseline(ALIKE)
        assert level.low is not None and level.high is not None, "the range over the controls is stored"
        for layer in np.flatnonzero(np.isfinite(self.movement.value[0])):
            for effect, name in enumerate(self.effects):
                numbers = (part[effect, layer] for part in (self.movement.value, level.low, level.value, level.high))
                shares = (f"{own:.3f}" for own in self.share.value[:, layer])
                rows.append((str(layer), name, *(f"{x:.3f}" for x in numbers), *shares, self.drawn_by_layer[layer]))
        return "\n".join(aligned_table(rows))


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
        >>> share_controls("sticky-small", subspace="random:2", n=8).n
        8
    """
    subject, fit = as_model(model), as_fit(subspace)
    chosen = scored_task_of(subject, task)
    swap = Intervention.of(subject, chosen, fit, design=Design("swap"), place=InterventionSite(), n=n, seed=seed)
    sample = swap.sample()
    subspaces, _ = swap.fitted(sample)
    apart = swap.differences(subspaces, N_ALIKE)
    moments = {at: own.T @ own / len(own) for at, own in apart.items()}
    controls = {at: same_share_subspaces(swap, own, moments[at], at) for at, own in subspaces.items()}
    conditions = dict[int, list[Edit]]()
    for at, own in subspaces.items():
        edits, alike = swap.conditions(sample, at), controls[at].bases
        conditions[at] = [edits.ceiling(), edits.own(own), *edits.filling(alike, swap.design.n_matched)]
    totals = swap.scored(n, conditions, sample)
    shares = {at: own.variance_share(moments[at]) for at, own in subspaces.items()}
    of_each = totals.conditions[:, :, 1:, (Score.MOVED, Score.DISTANCE), 0]  # without the ceiling
    sums = rearrange(of_each, "unit row (effect own) sum -> sum unit row effect own", own=1 + swap.design.n_matched)
    report = share_controls_report(fit.label, sums, shares, controls, n_layers=subject.spec.n_layers, n=n, seed=seed)
    arguments = {"n": n, "seed": seed, "subspace": fit.label, "donors": swap.donors}
    return with_provenance(report, provenance(subject, chosen, arguments))


def same_share_subspaces(swap: Intervention, own: Subspace, moments: Float64[Tensor, "d d"], layer: int) -> Matched:
    """Return controls that all have the share: those of `swap.controls` without the whole complement as the last one.

    If the whole complement is the only control, it is returned; `is_matched` states whether it has the share.
    """
    found = swap.controls(own, moments, layer, swap.design.n_matched + 1)
    if len(found.bases) == 1:
        return found
    bases = found.bases[:-1]
    return replace(found, bases=bases, n_distinct=n_distinct(bases, moments))


def share_controls_report(
    label: str,
    sums: Float[np.ndarray, "sum unit row effect own"],
    shares: Mapping[int, float],
    controls: Mapping[int, Matched],
    *,
    n_layers: int,
    n: int,
    seed: int,
) -> ShareControlsReport:
    """Return the report from Σ moved and Σ distance of the subspace and its controls, layer by layer.

    The effect without the direct path is missing at sites without one.
    """
    rows, (moved, distance) = list(shares), sums
    value, low, high, mean, least, most = np.full((6, len(EFFECTS), n_layers), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        reached = moved.sum(axis=0) / distance.sum(axis=0)
    for effect in range(reached.shape[1]):
        value[effect, rows] = reached[:, effect, 0]
        low[effect, rows], high[effect, rows] = ratio_interval(
            moved[:, :, effect, 0], distance[:, :, effect, 0], seed=seed
        )
        for at, drawn in zip(rows, reached[:, effect, 1:], strict=True):
            if controls[at].is_matched:
                mean[effect, at], least[effect, at], most[effect, at] = drawn.mean(), drawn.min(), drawn.max()
    held = np.full((len(PARTS), n_layers), np.nan)
    for at, own in controls.items():
        held[:, at] = shares[at], own.share, own.own_share
    return ShareControlsReport(
        subspace=label,
        effects=EFFECTS,
        movement=Estimate.of(
            value, (low, high), n=n, baselines=[Baseline.of("chance", ALIKE, mean, low=least, high=most)]
        ),
        parts=PARTS,
        share=Estimate.of(held),
        drawn_by_layer=tuple(_drawn(controls[at]) if at in controls else "" for at in range(n_layers)),
        n=n,
    )


def _drawn(own: Matched) -> str:
    return f"{own.by}, rank {own.rank}, {own.n_distinct} distinct"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class SwapSharesReport(Report):
    """Rank correlations, over networks and layers, of what a swap exchanges and how far it moves the answer.

    Layers in which the swap is an identity by construction do not count. `rank_correlation` has Student's intervals
    over networks, from its arctanh with each network left out, because a network's layers are no independent swaps.
    """

    name: ClassVar[str] = "swap_shares"
    counts: ClassVar[str] = "network"
    title: ClassVar[str] = "Swaps: does the share of the difference explain the movement?"
    about: ClassVar[str] = (
        "Each dot is a swap of the subspace in one layer of one network. A subspace that holds nearly all of the "
        "difference of donor and recipient moves the answer, whatever it means. If the two numbers rank the swaps "
        "alike, a large movement does not show that the model uses this subspace more than others. A measurement "
        "against control subspaces that hold the same share of the difference would."
    )

    subspace: str
    swaps: tuple[str, ...]
    explanations: tuple[str, ...]
    effects: tuple[str, ...]
    held: Annotated[Estimate, Share("explanation swap", label="share that the subspace holds")]
    moved: Annotated[Float[np.ndarray, "effect swap"], Unit("1")]
    rank_correlation: Annotated[Estimate, Signed("explanation effect", better="higher", label="rank correlation")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return [
            headline_of(self, "rank_correlation", (i, j), f"rank correlation of {effect} and {explanation}")
            for i, explanation in enumerate(self.explanations)
            for j, effect in enumerate(self.effects)
        ]

    def panels(self) -> "Sequence[Panel]":
        from plotly.graph_objects import Scatter

        from bayesgeom.report.panels import Panel
        from bayesgeom.report.theme import MEASURED, label_axes

        panels = [Panel.blank(effect) for effect in self.effects]
        for panel, values in zip(panels, self.moved, strict=True):
            dots = Scatter(
                x=self.held.value[0],
                y=values,
                text=self.swaps,
                mode="markers",
                name="one layer of one network",
                marker={"color": MEASURED},
            )
            panel.figure.add_trace(dots)
            label_axes(panel.figure, f"{self.explanations[0]} (0 to 1)", f"{panel.title} (1: all of the way)")
        return panels

    def table(self) -> str:
        """Return every swap, the largest share of the difference first."""
        rows = [("network and layer", *self.explanations, *self.effects)]
        columns = np.concatenate([self.held.value, self.moved])
        rows += [(self.swaps[at], *(f"{own:.3f}" for own in columns[:, at])) for at in np.argsort(-self.held.value[0])]
        return "\n".join(aligned_table(rows))


@checked()
def swap_shares(folder: str | Path, subspace: str = "frame") -> SwapSharesReport:
    """Compare what swaps of a subspace exchange with how far they move the answer, over saved interventions.

    Args:
        folder: A folder with a folder for each network, which holds the saved interventions of `bayesgeom intervene`.
        subspace: Name of the intervention's folder in each of them.

    Returns:
        The rank correlations over all networks and layers, with intervals over networks.

    Raises:
        InvalidArgument: There are fewer than two saved swaps of this name.

    Example:
        >>> import bayesgeom, tempfile
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> from bayesgeom.interventions.design import Design
        >>> few = Design(n_random=2, n_matched=2, n_control=3, n_untrained=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for seed in (0, 1):
        ...         report = bayesgeom.intervene(config.build(seed=seed), task, "random:2", kind=few, n=8)
        ...         report.save(f"{folder}/{seed}/random-2")
        ...     swap_shares(folder, "random-2").n
        2
    """
    labels, owners, rows, names = list[str](), list[int](), list[tuple[float, ...]](), list[str]()
    sources = dict[str, Mapping[str, Any]]()
    for path in sorted(Path(folder).glob(f"*/{subspace}/{JSON}")):
        for report in Diagnosis.load(path.parent).values():
            if not isinstance(report, InterventionReport) or not report.is_swap:
                continue
            names.append(report.subspace)
            sources[path.parent.parent.name] = report.provenance
            for at in (layer for layer in report.layers if report.verdict_by_layer[layer] != Verdict.BY_CONSTRUCTION):
                held = 1 - report.outside_share.value[at], report.variance_share.value[at]
                rows.append((*held, report.movement.value[at, 0], report.indirect_movement.value[at, 0]))
                owners.append(len(names))
                labels.append(f"{path.parent.parent.name}, layer {at}")
    if len(set(owners)) < 2:
        raise InvalidArgument(
            f"{folder} holds swaps of {subspace!r} for {len(set(owners))} networks; at least 2 are needed, as "
            f"NETWORK/{subspace}. Save them with `bayesgeom intervene NETWORK --out …`."
        )
    found, of = np.array(rows).T, np.array(owners)
    report = SwapSharesReport(
        subspace=names[0],
        swaps=tuple(labels),
        explanations=EXPLANATIONS,
        effects=EFFECTS,
        held=Estimate.of(found[:2]),
        moved=found[2:],
        rank_correlation=_correlations(found[:2], found[2:], of),
        n=len(set(owners)),
    )
    several = {"name": f"{report.n} networks", "architecture": "several"}
    where = provenance(several, "their own tasks", {"folder": str(folder), "subspace": subspace})
    where["task"] = {name: own.get("task", {}) for name, own in sources.items()}
    where["weights"] = {name: own.get("model", {}).get("weights_hash", "") for name, own in sources.items()}
    return with_provenance(report, where)


def _correlations(
    held: Float[np.ndarray, "explanation swap"],
    moved: Float[np.ndarray, "effect swap"],
    owner: Int[np.ndarray, " swap"],
) -> Estimate:
    """Return the rank correlations with intervals over networks; `owner` numbers the network of each swap."""
    drawn = [(held, moved), *((held[:, owner != own], moved[:, owner != own]) for own in np.unique(owner))]
    replicates = np.array([[[spearman(x, y) for y in effects] for x in shares] for shares, effects in drawn])
    ends = jackknife_student(replicates)
    return Estimate.of(
        replicates[0], ends, resampled="networks", n=len(drawn) - 1, baselines=[_NOTHING], reason=Reason.FEW
    )


_NOTHING = Baseline.of("chance", "no relation", 0.0)


def jackknife_student(
    replicates: Float[np.ndarray, "replicate *rest"],
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Return Student's interval of a correlation from its value on all units, then without each one.

    NaN for fewer than `LEAST_UNITS`, and where a value is −1 or 1.

    References:
        Efron & Tibshirani 1993, chapter 11 (pseudo-values).
    """
    n = len(replicates) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.arctanh(replicates)
        pseudo = n * scaled[0] - (n - 1) * scaled[1:]
        low, high = seed_interval(pseudo)
        reach = (high - low) / 2
        known = np.where(np.isfinite(reach) & (n >= LEAST_UNITS), reach, np.nan)
        return np.asarray(np.tanh(scaled[0] - known)), np.asarray(np.tanh(scaled[0] + known))
