"""Swaps of a subspace against swaps of random subspaces that hold the same share of the difference.

The controls are random subspaces that hold the same share of what distinguishes donor and recipient. If they move the
answer as far as the subspace, its movement shows how much of the difference it holds, and not what it means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.results.estimate import Baseline, Estimate, Quantity, Share
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned
from bayesgeom.stats.bootstrap import ratio_interval
from bayesgeom.subspaces.matching import Matched

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

ALIKE = "share-matched subspaces"
EFFECTS = ("movement", "movement without the direct path")
PARTS = ("the subspace", "the controls", "of the subspace's own, in the controls")


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
            replace(
                headline_of(self, "movement", (effect, layer), f"{name}, layer {layer}"),
                short_label=f"{name} in layer {layer} by a swap of {self.subspace}",
            )
            for effect, name in enumerate(self.effects)
            for layer in map(int, np.flatnonzero(np.isfinite(self.movement.value[effect])))
        ]

    def plot(self) -> "Figure":
        from bayesgeom.charts.heads import add_profile
        from bayesgeom.results.theme import label_axes, panels

        figure = panels(self.title, self.effects)
        for column, effect in enumerate(self.effects, start=1):
            own = self.movement[column - 1]
            levels = {ALIKE: own.baseline(ALIKE).value}
            add_profile(figure, (1, column), own.value, name=effect, band=own.ends, baselines=levels)
            label_axes(figure, (1, column), "layer", f"{effect} (1: all of the way)")
        return figure

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
        return "\n".join(aligned(rows))


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
