"""The report of `paths`: bits by edge, and the graph of the strongest edges."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.circuits.effects import answer_of, effects_of, headlines_of, ranked
from bayesgeom.circuits.writers import Receiver, Writer
from bayesgeom.report.estimate import Baseline, Coordinate, Estimate, NonNegative, Quantity, Unit, mean_estimate
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

N_SHOWN = 16  # edges of the graph
RANDOM = "random directions"
N_LISTED = 12
_N_NUMBERED = 10  # edges of the graph with their bits
_MOST_WIDTH = 7.0  # pixels, of the strongest edge
_ROW = 58  # pixels, of a layer
_MLPS, _MIDDLE, _SHIFT = 0.95, 0.4, 0.03  # where MLPs, and embedding and output stand; by what rows are shifted
_PORTS = {"q": -0.02, "k": 0.0, "v": 0.02, "mlp": 0.0, "output": 0.0}  # where an input is at its part


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
        first, *others = headlines_of(self, self.edges, "strongest edge", most=N_LISTED)
        return first, headline_of(self, "model_kl_bits"), *others

    def answer(self) -> Opening:
        of = self.kl_increase_bits, self.model_kl_bits, self.edges
        return answer_of(*of, parts="edge", largest=Finding.STRONGEST_EDGE)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.forest import add_forest

        shown = [at for at in ranked(self.kl_increase_bits)[:N_SHOWN] if self.kl_increase_bits.value[at] > 0]
        graph = Panel.blank(f"The {len(shown)} strongest of {len(self.edges):,} edges, layers upward", is_wide=True)
        self._draw(graph.figure, shown)
        forest, strongest = (
            Panel.blank("KL increase without each edge, largest first"),
            ranked(self.kl_increase_bits)[:N_LISTED],
        )
        effects, labels = self.kl_increase_bits[strongest], [self.edges[at] for at in strongest]
        add_forest(forest.figure, labels, effects.value, effects.ends, unit="KL increase (bits)")
        return graph, forest

    def _draw(self, figure: "go.Figure", shown: Sequence[int]) -> None:
        """Draw edges as lines as wide as they are strong, in the color of the input that they lead to."""
        import plotly.graph_objects as go

        from bayesgeom.charts.lines import add_note, brief
        from bayesgeom.core import number_text
        from bayesgeom.report.theme import EXACT, PAPER, SERIES, label_axes

        if not shown:
            add_note(figure, "no edge raises KL")
            return
        bits, colors = self.kl_increase_bits.value, dict(zip(_PORTS, SERIES, strict=False))
        ends = [(self._sender(at), self._receiver(at)) for at in shown]
        places = _places({part for edge in ends for part in edge})
        lines = [
            (*places[a], places[b][0] + _PORTS[self.inputs[at]], places[b][1])
            for at, (a, b) in zip(shown, ends, strict=True)
        ]
        for at, (x0, y0, x1, y1) in zip(shown, lines, strict=True):
            width = max(1.0, _MOST_WIDTH * float(bits[at] / bits[shown[0]]) ** 0.5)
            style = {"color": colors[self.inputs[at]], "width": width}
            line = go.Scatter(x=[x0, x1], y=[y0, y1], mode="lines", line=style, opacity=0.85, showlegend=False)
            text = f"{self.edges[at]}: {number_text(float(bits[at]))} bits"
            figure.add_trace(line.update(hoverinfo="text", text=[text, text]))
        for kind in (input_kind for input_kind in colors if input_kind in {self.inputs[at] for at in shown}):
            heads = [line[2:] for at, line in zip(shown, lines, strict=True) if self.inputs[at] == kind]
            xy, marker = np.array(heads), {"symbol": "triangle-up", "size": 10, "color": colors[kind]}
            name = f"to {kind}"
            figure.add_trace(
                go.Scatter(x=xy[:, 0], y=xy[:, 1], mode="markers", marker=marker, name=name, hoverinfo="skip")
            )
        for at, (x0, y0, x1, y1) in list(zip(shown, lines, strict=True))[:_N_NUMBERED]:
            text, font = brief(bits[at]), {"size": 10, "color": colors[self.inputs[at]]}
            along = 0.55 + 10 * _PORTS[self.inputs[at]]  # edges to q and k of a head are side by side
            middle = {"x": (1 - along) * x0 + along * x1, "y": (1 - along) * y0 + along * y1}
            figure.add_annotation(**middle, text=text, showarrow=False, font=font, bgcolor=PAPER)
        figure.add_trace(
            go.Scatter(
                x=[x for x, _ in places.values()],
                y=[y for _, y in places.values()],
                text=[part.name for part in places],
                mode="markers+text",
                textposition="bottom center",
                textfont={"size": 11, "color": EXACT},
                marker={"size": 6, "color": EXACT},
                hoverinfo="skip",
                showlegend=False,
            )
        )
        figure.update_xaxes(range=[-0.08, 1.08], visible=False)
        names = ["", *map(str, range(self.n_layers)), ""]
        heights = [place.height for place in places]
        first, last = int(np.floor(min(heights))), int(np.ceil(max(heights)))
        rows = list(range(-1, self.n_layers + 1))
        figure.update_yaxes(range=[first - 0.5, last + 0.3], tickvals=rows, ticktext=names)
        figure.layout.height = 92 + _ROW * (last - first + 1)
        label_axes(figure, "", "layer")

    def _sender(self, edge: int) -> "_Part":
        layer, head = int(self.sender_layer[edge]), int(self.sender_head[edge])
        return _Part(self.senders[edge], layer + 0.5 * (head < 0 <= layer), head)

    def _receiver(self, edge: int) -> "_Part":
        layer, head = int(self.receiver_layer[edge]), int(self.receiver_head[edge])
        return _Part(self.receivers[edge], layer + 0.5 * (self.inputs[edge] == "mlp"), head)


@final
class _Part(NamedTuple):
    """A part in the graph, the height of its row, and its order in this row."""

    name: str
    height: float
    order: int


def _places(parts: Iterable[_Part]) -> Mapping[_Part, tuple[float, float]]:
    """Return x and y of every part: heads of a layer evenly spaced, and the MLPs to the right of them."""
    coordinates = dict[_Part, tuple[float, float]]()
    ordered = sorted(parts, key=lambda part: (part.height, part.order, part.name))
    for height, row in groupby(ordered, key=lambda part: part.height):
        members = list(row)
        for at, part in enumerate(members):
            is_inside = part.order >= 0
            # Rows are shifted by turns, so that an edge misses the parts of a row between its ends.
            shift = _SHIFT * (-1) ** int(height) if is_inside else 0.0
            x = 0.8 * (at + 0.5) / len(members) + shift if is_inside else _MLPS if height % 1 else _MIDDLE
            coordinates[part] = x, height
    return coordinates


def paths_report(
    edges: Sequence[tuple[Writer, Receiver]],
    lost: Float[np.ndarray, "sequence edge"],
    kl: Float[np.ndarray, " sequence"],
    *,
    context_free: Sequence[Baseline],
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
        senders=tuple(sender.label for sender in senders),
        receivers=tuple(receiver.part for receiver in receivers),
        inputs=tuple(receiver.input for receiver in receivers),
        sender_layer=np.array([sender.layer for sender in senders]),
        sender_head=np.array([sender.head for sender in senders]),
        receiver_layer=np.array([receiver.layer for receiver in receivers]),
        receiver_head=np.array([receiver.head for receiver in receivers]),
        n_layers=shape[0],
        n_heads=shape[1],
        kl_increase_bits=replace(effects, baselines=(*effects.baselines, level)),
        model_kl_bits=mean_estimate(kl, seed=seed, bounds=(0.0, np.inf), baselines=context_free),
        n=len(kl),
    )
