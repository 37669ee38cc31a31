"""Sink map: the attention sink of every head, as a map of layers and heads."""

from typing import TYPE_CHECKING, ClassVar, final

from bayesgeom.report.panels import Chart

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from bayesgeom_example.attention_sink import AttentionSinkReport


@final
class SinkMap(Chart):
    """Attention on the first token minus uniform attention; zero, the baseline, is white."""

    name: ClassVar[str] = "sink_map"
    reports: ClassVar[tuple[str, ...]] = ("attention_sink",)

    def draw(self, report: "AttentionSinkReport") -> "Figure":
        from plotly.graph_objects import Figure, Heatmap

        excess = report.excess.value  # layer head
        layers, heads = (
            [f"{letter}{index}" for index in range(n)] for letter, n in zip("LH", excess.shape, strict=True)
        )
        bar = {"title": {"text": "attention − uniform (baseline: 0)"}}
        figure = Figure(Heatmap(z=excess, x=heads, y=layers, colorscale="RdBu", zmid=0.0, colorbar=bar))
        return figure.update_layout(title="Attention sink of every head", xaxis_title="head", yaxis_title="layer")
