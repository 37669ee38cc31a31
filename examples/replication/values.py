"""`value_readings`: the shares of the leading principal components of last-layer values, in each reasonable reading.

The papers state "84 to 90 %" of the variance and neither positions, nor sequences, nor the order of averaging. Pooled
points of all sequences spread in many directions; the mean over sequences at each position leaves little but position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.errors import checked
from bayesgeom.core.run import V
from bayesgeom.core.text import aligned_table, number_text
from bayesgeom.models.base import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.report.estimate import Estimate, Share, mean_estimate, smooth_estimate, stacked
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

COMPONENTS = ("PC1", "PC1 + PC2")
READINGS = ("pooled over sequences", "one sequence", "averaged over sequences first")


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ValueReadingsReport(Report):
    """Shares of variance of the leading components of last-layer value vectors, heads joined, at scored positions.

    - pooled over sequences: one analysis of the points of all sequences.
    - one sequence: an analysis of each sequence's own points, mean share.
    - averaged over sequences first: an analysis of the mean vector at each position.
    """

    name: ClassVar[str] = "value_readings"
    title: ClassVar[str] = "Principal components of last-layer values, by reading"
    about: ClassVar[str] = (
        "The share of variance of the first component depends on what the points are. Values are centered and not "
        "standardized. Sources that state none of this allow every row."
    )

    readings: tuple[str, ...]
    components: tuple[str, ...]
    share: Annotated[Estimate, Share("reading component", label="share of variance")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return [headline_of(self, "share", (at, 0), f"PC1, {name}") for at, name in enumerate(self.readings)]

    def panels(self) -> "Sequence[Panel]":
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.report.panels import Panel

        panels = [Panel.blank(component) for component in self.components]
        for at, panel in enumerate(panels):
            own = self.share[:, at]
            add_forest(panel.figure, self.readings, own.value, own.ends, unit="share of variance", levels={})
        return panels

    def table(self) -> str:
        """Return the shares of each reading."""
        rows: list[tuple[str, ...]] = [("reading", *self.components)]
        rows += [(name, *map(number_text, own)) for name, own in zip(self.readings, self.share.value, strict=True)]
        return "\n".join(aligned_table(rows))


@checked("model", "task")
@torch.no_grad()
def value_readings(
    model: ModelLike, task: TaskLike | None = None, *, n: int = 512, seed: int = 0
) -> ValueReadingsReport:
    """Measure the shares of PC1 and PC1 + PC2 of last-layer values in three readings.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.

    Returns:
        The shares, with intervals over sequences.

    Raises:
        MissingSite: The model has no values.

    Example:
        >>> value_readings("sticky-small", n=16).readings
        ('pooled over sequences', 'one sequence', 'averaged over sequences first')
    """
    subject = as_model(model)
    chosen = scored_task_of(subject, task)
    subject.require((V,), by="value readings")
    run = subject.run(chosen.stream(n, seed=seed, device=subject.spec.device), record=(V,), n_recorded=n)
    values = run.at(V)[-1].flatten(2)  # batch position (head d_head)
    positions = run.trials.scored_positions()[:n]
    points = values[torch.arange(len(values))[:, None], positions].double()
    report = ValueReadingsReport(readings=READINGS, components=COMPONENTS, share=_shares(points, seed=seed), n=n)
    return with_provenance(report, provenance(subject, chosen, {"n": n, "seed": seed}))


def _shares(points: Float64[Tensor, "batch pos d"], *, seed: int) -> Estimate:
    """Return the shares by reading and component; each has its own kind of interval."""
    weights = torch.from_numpy(jackknife_weights(len(points)))
    pooled = torch.stack([leading_shares(points.flatten(0, 1), w.repeat_interleave(points.shape[1])) for w in weights])
    means = torch.stack([leading_shares(torch.einsum("b, b p d -> p d", w, points)) for w in weights])
    own = torch.stack([leading_shares(each) for each in points])
    parts = (
        smooth_estimate(pooled.numpy(), seed=seed, n=len(points), scale="share"),
        mean_estimate(own.numpy(), seed=seed, bounds=(0.0, 1.0)),
        smooth_estimate(means.numpy(), seed=seed, n=len(points), scale="share"),
    )
    return stacked(parts)


def leading_shares(
    points: Float64[Tensor, "point d"], weights: Float64[Tensor, " point"] | None = None
) -> Float[Tensor, "2"]:
    """Return the shares of variance of PC1 and PC1 + PC2; `weights` are those of the points (default: equal).

    Example:
        >>> points = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> leading_shares(points.double()).round(decimals=6).tolist()
        [0.8, 1.0]
    """
    share = torch.full((len(points), 1), 1.0 / len(points)).to(points) if weights is None else weights[:, None]
    share = share / share.sum()
    centered = (points - (share * points).sum(dim=0)) * share.sqrt()
    gram = centered.mT @ centered if len(points) > points.shape[1] else centered @ centered.mT
    variances = torch.linalg.eigvalsh(gram).flip(-1)
    shares: Tensor = variances[:2].cumsum(0) / variances.sum()
    return shares
