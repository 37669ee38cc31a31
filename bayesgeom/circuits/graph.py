"""The report of `paths`: bits by edge, and the graph of the strongest edges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.circuits.effects import effects_of, headlines_of, ranked
from bayesgeom.circuits.writers import Receiver, Writer
from bayesgeom.report import (
    Baseline,
    Coordinate,
    Estimate,
    Headline,
    NonNegative,
    Panel,
    Quantity,
    Report,
    Unit,
    headline_of,
    mean_estimate,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

N_SHOWN = 16  # edges of the graph
RANDOM = "random directions"
N_LISTED = 12
_N_NUMBERED = 10  # edges of the graph with their bits
_MOST_WIDTH = 7.0  # pixels, of the strongest edge
_ROW = 54  # pixels, of a layer


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class PathsReport(Report):
    """An edge leads from one part of the network to one input of a later one, and is removed alone.

    What the sender writes is replaced by its mean over sequences at each position, only where this input reads it: q, k
    or v of a head, an MLP, or the output. All other parts in between keep what they had. What the receiver then writes
    reaches the later layers as usual. The number is the increase of KL(exact ‖ model) in bits; its baseline is 0. The
    chance level of the strongest edges turns what the input loses in random directions, with its length unchanged. An
    effect through several edges is counted in each of them, so the numbers do not add up.

    Fields: by `edges`, from `senders` to an input (`inputs`) of `receivers`, which are labeled L2H3 for head 3 of
    layer 2.

    The input of the output comes after the last layer. `sender_head` and `receiver_head` are −1 for a part that is no
    head, `sender_layer` for the embedding.
    """

    name: ClassVar[str] = "paths"
    title: ClassVar[str] = "Paths: which parts act on which?"

    edges: tuple[str, ...]
    senders: Annotated[tuple[str, ...], "edge", Coordinate()]
    receivers: Annotated[tuple[str, ...], "edge", Coordinate()]
    inputs: Annotated[tuple[str, ...], "edge", Coordinate()]
    sender_layer: Annotated[Int[np.ndarray, " edge"], Unit("1"), Coordinate()]
    sender_head: Annotated[Int[np.ndarray, " edge"], Unit("1"), Coordinate()]
    receiver_layer: Annotated[Int[np.ndarray, " edge"], Unit("1"), Coordinate()]
    receiver_head: Annotated[Int[np.ndarray, " edge"], Unit("1"), Coordinate()]
    n_layers: int
    n_heads: int
    kl_increase_bits: Annotated[
        Estimate, Quantity("edge", unit="bits", better="higher", label="KL increase without the edge")
    ]
    model_kl_bits: Annotated[Estimate, NonNegative(unit="bits", label="KL with every edge")]
    n: int

    @property
    def unchanged_kl_bits(self) -> Estimate:
        return self.model_kl_bits

    def headlines(self) -> Sequence[Headline]:
        """Return the largest effects and the model's own KL."""
        first, *others = headlines_of(self, self.edges, most=N_LISTED)
        return first, headline_of(self, "model_kl_bits"), *others

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.forest import add_forest

        shown = [at for at in ranked(self.kl_increase_bits)[:N_SHOWN] if self.kl_increase_bits.value[at] > 0]
        graph = Panel.blank(f"The {len(shown)} strongest of {len(self.edges):,} edges, layers upward", is_wide=True)
        self._draw(graph.figure, shown)
        forest, found = (
            Panel.blank("KL increase without each edge, largest first"),
            ranked(self.kl_increase_bits)[:N_LISTED],
        )
        own, labels = self.kl_increase_bits[found], [self.edges[at] for at in found]
        add_forest(forest.figure, labels, own.value, own.ends, unit="KL increase (bits)")
        return graph, forest

    def _draw(self, figure: "go.Figure", shown: Sequence[int]) -> None:
        """Draw edges as lines as wide as they are strong, colored by the input that they lead to."""
        import plotly.graph_objects as go

        from bayesgeom.core import number_text
        from bayesgeom.report import EXACT, PAPER, SERIES, label_axes

        places = _places([(self._at(at, 0), self._at(at, 1)) for at in shown])
        bits = self.kl_increase_bits.value
        colors = dict(zip(("q", "k", "v", "mlp", "output"), SERIES, strict=False))
        for kind in (own for own in colors if own in {self.inputs[at] for at in shown}):
            own = [at for at in shown if self.inputs[at] == kind]
            for at in own:
                (x0, y0), (x1, y1) = (places[self._at(at, end)] for end in (0, 1))
                width = max(1.0, _MOST_WIDTH * float(bits[at] / bits[shown[0]]) ** 0.5)
                style = {"color": colors[kind], "width": width}
                text = f"{self.edges[at]}: {number_text(float(bits[at]))} bits"
                line = go.Scatter(x=[x0, x1], y=[y0, y1], mode="lines", line=style, opacity=0.8, showlegend=False)
                figure.add_trace(line.update(hoverinfo="text", text=[text] * 2))
            ends = np.array([places[self._at(at, 1)] for at in own])
            marker = {"symbol": "triangle-up", "size": 13, "color": colors[kind]}
            named = kind if kind in ("mlp", "output") else f"to {kind}"
            figure.add_trace(
                go.Scatter(x=ends[:, 0], y=ends[:, 1], mode="markers", marker=marker, name=named, hoverinfo="skip")
            )
        for at in shown[:_N_NUMBERED]:
            (x0, y0), (x1, y1) = (places[self._at(at, end)] for end in (0, 1))
            figure.add_annotation(
                x=0.4 * x0 + 0.6 * x1,
                y=0.4 * y0 + 0.6 * y1,
                text=number_text(round(float(bits[at]), 2)),
                showarrow=False,
                font={"size": 10, "color": colors[self.inputs[at]]},
                bgcolor=PAPER,
            )
        xy = np.array(list(places.values()))
        figure.add_trace(
            go.Scatter(
                x=xy[:, 0],
                y=xy[:, 1],
                text=[name for name, *_ in places],
                mode="markers+text",
                textposition="bottom center",
                textfont={"size": 12, "color": EXACT},
                marker={"size": 7, "color": EXACT},
                hoverinfo="skip",
                showlegend=False,
            )
        )
        rows = range(-1, self.n_layers + 1)
        figure.update_xaxes(range=[-0.14, 1.14], visible=False)
        names = ["embedding", *map(str, range(self.n_layers)), "output"]
        figure.update_yaxes(range=[-1.6, self.n_layers + 0.4], tickvals=list(rows), ticktext=names)
        figure.layout.height = 92 + _ROW * (self.n_layers + 2)
        label_axes(figure, "", "layer")

    def _at(self, edge: int, end: int) -> tuple[str, float, int]:
        """Return label, height and order in its row of the sender (0) or the receiver (1) of an edge."""
        if end == 0:
            name, layer, head = self.senders[edge], self.sender_layer[edge], self.sender_head[edge]
        else:
            name, layer, head = self.receivers[edge], self.receiver_layer[edge], self.receiver_head[edge]
        is_mlp = head < 0 and 0 <= layer < self.n_layers
        return name, float(layer) + 0.5 * is_mlp, int(head)


def _places(
    edges: Sequence[tuple[tuple[str, float, int], ...]],
) -> Mapping[tuple[str, float, int], tuple[float, float]]:
    """Return x and y of every part: those of one height evenly spaced, in the order of heads."""
    parts = sorted({part for edge in edges for part in edge}, key=lambda own: (own[1], own[2], own[0]))
    found = dict[tuple[str, float, int], tuple[float, float]]()
    for part in parts:
        row = [own for own in parts if own[1] == part[1]]
        # Rows are shifted by turns, so that an edge does not pass through the parts of a row between its ends.
        shift = 0.06 * (-1) ** int(2 * part[1]) if len(row) < len(parts) else 0.0
        found[part] = ((row.index(part) + 0.5) / len(row) + shift, part[1])
    return found


def paths_report(
    edges: Sequence[tuple[Writer, Receiver]],
    lost: Float[np.ndarray, "sequence edge"],
    kl: Float[np.ndarray, " sequence"],
    *,
    chance: Float[np.ndarray, "draw edge"],
    shape: tuple[int, int],
    seed: int,
) -> PathsReport:
    """Return the report on the KL increase of every edge in every sequence."""
    senders, receivers = [sender for sender, _ in edges], [receiver for _, receiver in edges]
    effects = effects_of(lost, seed)
    level = Baseline.of("chance", RANDOM, chance.mean(axis=0), low=chance.min(axis=0), high=chance.max(axis=0))
    return PathsReport(
        edges=tuple(f"{sender.label} → {receiver.label}" for sender, receiver in edges),
        senders=tuple(own.label for own in senders),
        receivers=tuple(own.part for own in receivers),
        inputs=tuple(own.input for own in receivers),
        sender_layer=np.array([own.layer for own in senders]),
        sender_head=np.array([own.head for own in senders]),
        receiver_layer=np.array([own.layer for own in receivers]),
        receiver_head=np.array([own.head for own in receivers]),
        n_layers=shape[0],
        n_heads=shape[1],
        kl_increase_bits=replace(effects, baselines=(*effects.baselines, level)),
        model_kl_bits=mean_estimate(kl, seed=seed, bounds=(0.0, np.inf)),
        n=len(kl),
    )
