"""How routing and values move over training: gradients, and distances to where they end, snapshot by snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.trials import Trials
from bayesgeom.gradients.capture import LayerGradients, Targets
from bayesgeom.gradients.settling import SETTLED, lag, settling
from bayesgeom.gradients.tally import at_scored, layer_tally
from bayesgeom.results.report import Headline, Report, aligned
from bayesgeom.stats.bootstrap import Crossing, mean_interval
from bayesgeom.stats.information import jensen_shannon_bits

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_NORMS = ("routing_norm", "value_norm", "value_elasticity")
_PER_SEQUENCE = ("loss_nats", *_NORMS, "pattern_distance_bits", "value_distance", "correlation", "correlation_null")


@final
@dataclass(frozen=True, kw_only=True)
class Frame:
    """Where a snapshot's attention goes and what its values are, on fixed trials."""

    patterns: Float[Tensor, "layer batch head query_pos key_pos"]
    values: Float[Tensor, "layer batch kv_head pos d_head"]


@final
@dataclass(frozen=True, kw_only=True)
class Moment:
    """One snapshot: per-sequence numbers, mean over layers and heads, and distances by layer."""

    step: int
    per_sequence: Mapping[str, Float64[np.ndarray, " sequence"]]
    pattern_by_layer: Float64[np.ndarray, " layer"]
    values_by_layer: Float64[np.ndarray, " layer"]
    moved: tuple[float, float]  # since the snapshot before: patterns (bits), values (relative)


@final
@dataclass(frozen=True, kw_only=True)
class GradientMovementReport(Report):
    """One training run, one number per snapshot; intervals are over sequences, and say nothing of other runs.

    - `routing_norm`, `value_norm`, `value_elasticity`: as in the report on the gradient laws, mean over heads.
    - `pattern_distance_bits`: mean Jensen–Shannon divergence of attention rows, at scored positions, to the last
      snapshot. `value_distance`: ‖v − v_last‖ / ‖v_last‖. `pattern_moved_bits`, `value_moved`: the same to the snapshot
      before (NaN at the first).
    - `routing_settled_step`, `values_settled_step`: first snapshot from which on the distance is at most a tenth of the
      first's; NaN where only the last one's is, which is 0 whatever happened. `settled_ratio` is values over routing:
      above 1, routing settles first.
    """

    name: ClassVar[str] = "gradient_movement"
    title: ClassVar[str] = "Routing and values over training: which settles first?"
    about: ClassVar[str] = (
        "The gradient laws predict that attention settles early while values go on refining. Two sides of it: how "
        "large the gradients of scores and of values are at each snapshot, and how far patterns and values still are "
        "from where they end. Each distance is shown as a share of its first. The levels to compare with are 1, where "
        "training began, and a tenth, where a curve counts as settled that stays there from a snapshot before the "
        "last, which is at distance 0 whatever happened. This is one run: another seed may differ."
    )

    targets: Targets
    steps: tuple[str, ...]
    loss_nats: Float[np.ndarray, " step"]
    loss_nats_lo: Float[np.ndarray, " step"]
    loss_nats_hi: Float[np.ndarray, " step"]
    routing_norm: Float[np.ndarray, " step"]
    routing_norm_lo: Float[np.ndarray, " step"]
    routing_norm_hi: Float[np.ndarray, " step"]
    value_norm: Float[np.ndarray, " step"]
    value_norm_lo: Float[np.ndarray, " step"]
    value_norm_hi: Float[np.ndarray, " step"]
    value_elasticity: Float[np.ndarray, " step"]
    value_elasticity_lo: Float[np.ndarray, " step"]
    value_elasticity_hi: Float[np.ndarray, " step"]
    pattern_distance_bits: Float[np.ndarray, " step"]
    pattern_distance_bits_lo: Float[np.ndarray, " step"]
    pattern_distance_bits_hi: Float[np.ndarray, " step"]
    value_distance: Float[np.ndarray, " step"]
    value_distance_lo: Float[np.ndarray, " step"]
    value_distance_hi: Float[np.ndarray, " step"]
    correlation: Float[np.ndarray, " step"]
    correlation_lo: Float[np.ndarray, " step"]
    correlation_hi: Float[np.ndarray, " step"]
    correlation_null: Float[np.ndarray, " step"]
    pattern_moved_bits: Float[np.ndarray, " step"]
    value_moved: Float[np.ndarray, " step"]
    pattern_distance_bits_by_layer: Float[np.ndarray, "step layer"]
    value_distance_by_layer: Float[np.ndarray, "step layer"]
    routing_settled_step: float
    values_settled_step: float
    settled_ratio: float
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        routing, values = self._settled()
        found = lag(values, routing)
        ratio = f"{found.verdict} (spacing of snapshots allows {found.reach}): values' settled step over routing's"
        within = "within a tenth of their first distance"
        return (
            self.scalar("settled_ratio", ratio, null_label="together"),
            self.scalar("routing_settled_step", f"patterns {within}{self._censored(routing)}", unit="steps"),
            self.scalar("values_settled_step", f"values {within}{self._censored(values)}", unit="steps"),
        )

    def figure(self) -> "Figure":
        from bayesgeom.charts.curves import Curve, add_curves
        from bayesgeom.results.theme import panels, with_room_for_legend

        titles = (
            "Distance to the last snapshot, share of the first",
            "Gradient norms",
            "Movement since the snapshot before",
            "Attention with advantage, within rows",
        )
        figure, at = panels(self.title, titles, row_height=380), np.array([int(step) for step in self.steps])
        shares = [self._share(name, label) for name, label in _DISTANCES.items()]
        levels = [("settled: a tenth", SETTLED), ("start", 1.0)]
        add_curves(figure, (1, 1), at, [Curve(**c) for c in shares], unit="share", levels=levels, log_steps=True)
        norms = [Curve(**self._curve(name, label)) for name, label in _GRADIENTS.items()]
        add_curves(figure, (1, 2), at, norms, unit="nats (log)", log_steps=True)
        figure.update_yaxes(type="log", exponentformat="power", row=1, col=2)
        moved = {"patterns (bits)": self.pattern_moved_bits, "values (relative)": self.value_moved}
        add_curves(
            figure, (2, 1), at, [Curve(name=n, values=v) for n, v in moved.items()], unit="distance", log_steps=True
        )
        related = Curve(**self._curve("correlation", "correlation"))
        null = [("null: another sequence's advantage", self.correlation_null)]
        add_curves(figure, (2, 2), at, [related], unit="rank correlation", levels=null, log_steps=True)
        return with_room_for_legend(figure)

    def _settled(self) -> tuple[Crossing, ...]:
        steps = [int(step) for step in self.steps]
        return tuple(settling(steps, vars(self)[name]) for name in _DISTANCES)

    def _censored(self, found: Crossing) -> str:
        return f": not settled before the last snapshot, at step {self.steps[-1]}" if np.isnan(found.step) else ""

    def _curve(self, metric: str, label: str) -> dict[str, Any]:
        of = vars(self)
        return {"name": label, "values": of[metric], "band": (of[f"{metric}_lo"], of[f"{metric}_hi"])}

    def _share(self, metric: str, label: str) -> dict[str, Any]:
        curve, first = self._curve(metric, label), vars(self)[metric][0]
        return {
            "name": label, "values": curve["values"] / first, "band": tuple(end / first for end in curve["band"])
        }  # fmt: skip

    def table(self) -> str:
        """What the command line prints: one line per snapshot."""
        rows: list[tuple[str, ...]] = [
            ("step", "loss (nats)", "pattern distance (bits)", "value distance", "‖∂L/∂s‖", "‖∂L/∂v‖·‖v‖")
        ]
        columns = (self.loss_nats, self.pattern_distance_bits, self.value_distance)
        for i, step in enumerate(self.steps):
            gradients = (self.routing_norm, self.value_elasticity)
            rows.append((step, *(f"{c[i]:.4f}" for c in columns), *(f"{g[i]:.2e}" for g in gradients)))
        return "\n".join(aligned(rows))


_DISTANCES = {"pattern_distance_bits": "patterns", "value_distance": "values"}
_GRADIENTS = {
    "routing_norm": "routing: ∂L/∂s",
    "value_elasticity": "values: ‖∂L/∂v‖·‖v‖",
    "value_norm": "values: ‖∂L/∂v‖",
}


def frame_of(layers: Sequence[LayerGradients], trials: Trials) -> Frame:
    """Patterns at scored positions and values, in float32, on the CPU."""
    scored = [at_scored(layer.pattern, trials).float().cpu() for layer in layers]
    return Frame(patterns=torch.stack(scored), values=torch.stack([layer.values.float().cpu() for layer in layers]))


def joined(frames: Sequence[Frame]) -> Frame:
    """The frame of several tiles."""
    return Frame(
        patterns=torch.cat([frame.patterns for frame in frames], dim=1),
        values=torch.cat([frame.values for frame in frames], dim=1),
    )


def gradient_norms(layers: Sequence[LayerGradients], trials: Trials) -> dict[str, Float64[Tensor, " batch"]]:
    """Norms and correlation of a tile, mean over layers and heads."""
    tallies = [layer_tally(layer, trials) for layer in layers]
    names = (*_NORMS, "correlation", "correlation_null")
    return {name: torch.stack([vars(t)[name].mean(dim=1) for t in tallies]).mean(dim=0) for name in names}


def moment_of(
    step: int,
    measured: Mapping[str, Float64[np.ndarray, " sequence"]],
    now: Frame,
    last: Frame,
    before: Frame | None,
) -> Moment:
    """What a snapshot says, beside the last one's frame and the one before."""
    pattern, values = _distances(now, last)
    moved = (float("nan"), float("nan"))
    if before is not None:
        since = _distances(now, before)
        moved = (float(since[0].mean()), float(since[1].mean()))
    own = {"pattern_distance_bits": pattern.mean(dim=0).numpy(), "value_distance": values.mean(dim=0).numpy()}
    return Moment(
        step=step, per_sequence={**measured, **own}, moved=moved,
        pattern_by_layer=pattern.mean(dim=1).numpy(), values_by_layer=values.mean(dim=1).numpy(),
    )  # fmt: skip


def movement_report(moments: Sequence[Moment], *, targets: Targets, seed: int) -> GradientMovementReport:
    """Means over sequences with intervals, and when each distance settled at a tenth of its first."""
    n = len(moments[0].per_sequence["loss_nats"])
    found: dict[str, Any] = {}
    for name in _PER_SEQUENCE:
        values = np.stack([moment.per_sequence[name] for moment in moments])
        found[name] = values.mean(axis=1)
        if name != "correlation_null":
            found[f"{name}_lo"], found[f"{name}_hi"] = mean_interval(values.T, seed=seed)
    steps = [moment.step for moment in moments]
    routing, values_at = (settling(steps, found[name]) for name in _DISTANCES)
    ratio = lag(values_at, routing).ratio
    return GradientMovementReport(
        targets=targets,
        steps=tuple(str(step) for step in steps),
        **found,
        pattern_moved_bits=np.array([moment.moved[0] for moment in moments]),
        value_moved=np.array([moment.moved[1] for moment in moments]),
        pattern_distance_bits_by_layer=np.stack([moment.pattern_by_layer for moment in moments]),
        value_distance_by_layer=np.stack([moment.values_by_layer for moment in moments]),
        routing_settled_step=routing.step,
        values_settled_step=values_at.step,
        settled_ratio=ratio,
        intervals={},
        nulls={"settled_ratio": 1.0} if np.isfinite(ratio) else {},
        n=n,
    )


def _distances(a: Frame, b: Frame) -> tuple[Float64[Tensor, "layer batch"], Float64[Tensor, "layer batch"]]:
    """Divergence of patterns in bits, and relative distance of values, per layer and sequence."""
    patterns = torch.stack(
        [
            jensen_shannon_bits(p.double(), q.double()).mean(dim=(1, 2))
            for p, q in zip(a.patterns, b.patterns, strict=True)
        ]
    )
    apart, size = (reduce(x.double().square(), "l b kv p d -> l b", "sum") for x in (a.values - b.values, b.values))
    return patterns.clamp_min(0), (apart / size).sqrt()
