"""The figure of the gradient laws: correlation per head with its baseline, and advantage by attention, by layer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.heads import add_heads, add_note
from bayesgeom.charts.lines import add_baseline, add_line
from bayesgeom.gradients.tally import OTHER
from bayesgeom.results.captions import with_captions
from bayesgeom.results.theme import label_axes, log_axes, panels, series, with_room_for_legend

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LAYERS_SHOWN = 2  # pages fold the panels of other layers
_FEWEST_PAIRS = 20  # minimum number of pairs in a bin for a meaningful mean


@final
@dataclass(frozen=True, kw_only=True)
class HeadMap:
    """One number per layer and head."""

    title: str
    values: Float[np.ndarray, "layer head"]
    head: Literal["head", "key head"] = "head"
    is_norm: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Binned:
    """Mean relative advantage, binned by attention relative to uniform attention, own and of another sequence.

    `edges` are log2 of attention over uniform attention; `pairs` is the number of pairs of positions in each bin.
    """

    edges: Float[np.ndarray, " edge"]
    values: Float[np.ndarray, "layer head bin"]
    other: Float[np.ndarray, "layer head bin"]
    pairs: Float[np.ndarray, "layer head bin"]


def gradients_figure(title: str, maps: tuple[HeadMap, ...], binned: Binned) -> "Figure":
    """Draw maps over heads, two per row, then one panel per layer: a line per head, the baselines in gray."""
    layers = range(len(binned.values))
    titles = (*(of.title for of in maps), *(f"Layer {layer}: advantage against attention" for layer in layers))
    figure = panels(title, titles, row_height=330)
    for index, of in enumerate(maps):
        panel = (index // 2 + 1, index % 2 + 1)
        if of.is_norm:
            _add_norms(figure, panel, of)
        else:
            add_heads(figure, panel, of.values, unit="rank correlation", baseline=0.0, limits=(-1.0, 1.0), head=of.head)
    for layer in layers:
        place = len(maps) + layer
        _add_layer(figure, (place // 2 + 1, place % 2 + 1), binned, layer)
    return with_captions(with_room_for_legend(figure), (), n_shown=len(maps) + _LAYERS_SHOWN)


def _add_norms(figure: "Figure", panel: tuple[int, int], of: HeadMap) -> None:
    """Add norms on a log scale; zero norms are blank."""
    logs = np.log10(np.where(of.values > 0, of.values, np.nan))
    known = np.isfinite(logs).any()
    limits = (float(np.nanmin(logs)) - 0.01, float(np.nanmax(logs)) + 0.01) if known else None
    add_heads(figure, panel, logs, unit="log10 nats", baseline=float("nan"), limits=limits, head=of.head)


def _add_layer(figure: "Figure", panel: tuple[int, int], binned: Binned, layer: int) -> None:
    """Add one panel; bins with few pairs are omitted."""
    x = 2.0 ** np.concatenate([binned.edges - 0.5, binned.edges[-1:] + 0.5])
    is_enough = binned.pairs[layer] >= _FEWEST_PAIRS
    if not is_enough.any():
        add_note(figure, panel, "too few pairs of positions to draw")
        return
    named, other = {trace.name for trace in figure.data if trace.showlegend}, f"{OTHER} (in the line's color)"
    add_baseline(figure, panel, x[:1], np.full(1, np.nan), name=other)  # for the legend alone
    figure.data[-1].showlegend = other not in named
    for head, (values, count) in enumerate(zip(binned.other[layer], is_enough, strict=True)):
        add_baseline(figure, panel, x, np.where(count, values, np.nan), name=other, color=series(head)["color"])
        figure.data[-1].update(showlegend=False, line_width=1)
    for head, (values, count) in enumerate(zip(binned.values[layer], is_enough, strict=True)):
        name = f"head {head}"
        add_line(figure, panel, x, np.where(count, values, np.nan), name=name, **series(head))
        figure.data[-1].showlegend = name not in named
    log_axes(figure, panel, "x")
    label_axes(figure, panel, "attention / uniform attention", "advantage (row's rms)")
