"""Does the share of the donor's difference that a swap exchanges explain how far it moves the answer?

A swap of a subspace that holds nearly all of what distinguishes donor and recipient moves the answer, whatever the
subspace means. This is the simplest explanation of a large movement. Saved interventions store both numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.checks.arguments import checked
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.verdict import Reason
from bayesgeom.interventions.report import OUTSIDE, VARIANCE, InterventionReport
from bayesgeom.interventions.verdicts import BY_CONSTRUCTION
from bayesgeom.models.provenance import provenance
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Baseline, Estimate, Share, Signed, Unit
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of, with_provenance
from bayesgeom.results.storage import JSON
from bayesgeom.results.tables import aligned
from bayesgeom.stats.correlation import jackknife_student, spearman

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

EXPLANATIONS = ("share of the donor's difference", "share of the site's variance")
EFFECTS = ("movement", "movement without the direct path")


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

    def plot(self) -> "Figure":
        from plotly.graph_objects import Scatter

        from bayesgeom.results.theme import MEASURED, label_axes, panels

        figure = panels(self.title, self.effects)
        for column, (effect, values) in enumerate(zip(self.effects, self.moved, strict=True), start=1):
            dots = Scatter(
                x=self.held.value[0],
                y=values,
                text=self.swaps,
                mode="markers",
                name="one layer of one network",
                marker={"color": MEASURED},
                showlegend=column == 1,
            )
            figure.add_trace(dots, row=1, col=column)
            label_axes(figure, (1, column), f"{self.explanations[0]} (0 to 1)", f"{effect} (1: all of the way)")
        return figure

    def table(self) -> str:
        """Return every swap, the largest share of the difference first."""
        rows = [("network and layer", *self.explanations, *self.effects)]
        columns = np.concatenate([self.held.value, self.moved])
        rows += [(self.swaps[at], *(f"{own:.3f}" for own in columns[:, at])) for at in np.argsort(-self.held.value[0])]
        return "\n".join(aligned(rows))


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
        >>> few = bayesgeom.Design(n_random=2, n_matched=2, n_control=3, n_untrained=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for seed in (0, 1):
        ...         report = bayesgeom.intervene(config.build(seed=seed), task, "random:2", kind=few, n=8)
        ...         report.save(f"{folder}/{seed}/random-2")
        ...     bayesgeom.swap_shares(folder, "random-2").n
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
            for at in (layer for layer in report.layers if report.verdict_by_layer[layer] != BY_CONSTRUCTION):
                held = 1 - report.share.value[OUTSIDE, at], report.share.value[VARIANCE, at]
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
