"""The figure of an ablation report: a map of heads, and KL increases with intervals by kind and by position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.forest import add_forest
from bayesgeom.charts.heads import add_heads
from bayesgeom.charts.lines import LEAST_BITS, add_baseline, add_line
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.theme import SERIES, at_least, label_axes, name_once, panels, with_room_for_legend

_N_LINES = 5


@final
@dataclass(frozen=True, kw_only=True)
class Alike:
    """The largest of `n` KL increases of one kind, in bits, with their intervals, and by scored position.

    Each kind has its own axis, because a block costs ten times a sublayer and a sublayer ten times a head.
    """

    title: str
    n: int
    labels: Sequence[str]
    kl_increase_bits: Estimate
    by_position: Float[np.ndarray, "row position"]


def ablation_figure(
    title: str, groups: Sequence[Alike], by_head: Float[np.ndarray, "layer head"], *, heads_title: str
) -> go.Figure:
    """Draw the map of heads that were ablated alone, a forest for each group, and the first group by position."""
    maps = () if np.isnan(by_head).all() else (heads_title,)
    forests = (f"{_few(group, len(group.labels))}, largest first" for group in groups)
    titles = (*maps, *forests, f"{_few(groups[0], _N_LINES)}, along the sequence")
    figure = panels(title, titles, row_height=460)
    places = iter([(1 + index // 2, 1 + index % 2) for index in range(len(titles))])
    if maps:
        add_heads(figure, next(places), by_head, unit="KL increase (bits)", baseline=0.0)
    for group in groups:
        add_forest(
            figure,
            next(places),
            group.labels,
            group.kl_increase_bits.value,
            group.kl_increase_bits.ends,
            unit="KL increase (bits)",
            baseline=0.0,
        )
    _add_positions(figure, next(places), groups[0])
    name_once(figure)
    return with_room_for_legend(figure)


def _few(group: Alike, n: int) -> str:
    """Return the title of a panel that shows `n` of a group."""
    return group.title if group.n <= n else f"{group.title}, {n} of {group.n}"


def _add_positions(figure: go.Figure, panel: tuple[int, int], group: Alike) -> None:
    scored = range(1, group.by_position.shape[1] + 1)
    add_baseline(figure, panel, scored, 0.0, name="baseline: no effect")
    for label, increase, color in zip(group.labels[:_N_LINES], group.by_position, SERIES, strict=False):
        add_line(figure, panel, scored, increase, name=label, color=color)
    at_least(figure, panel, LEAST_BITS)
    label_axes(figure, panel, "scored position (1 is the first)", "KL increase (bits)")
