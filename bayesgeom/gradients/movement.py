"""Movement of routing and values over training: gradients, and distances to the last snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import torch
from einops import reduce
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from bayesgeom.core.run import PATTERN, Trials, at_scored
from bayesgeom.core.text import number_text
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.dynamics.threshold_steps import NEARBY, ThresholdStep, stable, times_later
from bayesgeom.gradients.capture import LayerGradients, Targets
from bayesgeom.gradients.tally import OTHER, layer_tally
from bayesgeom.report.columns import fitted
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Signed, Unit, mean_estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.information import jensen_shannon_bits

if TYPE_CHECKING:
    from bayesgeom.charts.curves import Curve

TOGETHER = "both stable at the same step"
_WITHIN = "within a tenth of their first distance"


@final
@dataclass(frozen=True)
class Lag:
    """Ratio of the steps from which on values and routing are stable, with the bounds that snapshots allow.

    The ratio and unknown bounds are NaN if either is not stable before the last snapshot.
    """

    ratio: float
    least: float
    most: float

    @property
    def verdict(self) -> Verdict:
        """The verdict on which is stable later: open where the spacing of snapshots allows the same step."""
        if self.least > 1:
            return Verdict.VALUES_LATER
        return Verdict.ROUTING_LATER if self.most < 1 else Verdict.UNDECIDED


def lag(values: ThresholdStep, routing: ThresholdStep) -> Lag:
    """Return how much later the first is stable than the second."""
    return Lag(*times_later(values, routing))


@final
@dataclass(frozen=True, kw_only=True)
class Frame:
    """Attention patterns and values of a snapshot, on fixed trials."""

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
    moved: tuple[float, float]  # since the previous snapshot: patterns (bits), values (relative)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class GradientMovementReport(Report):
    """The gradient laws predict that attention is stable early while values continue to change.

    The panels show the gradient norms of scores and of values at each snapshot. They also show the distances of
    patterns and values from the last snapshot. Distances are shares of the first one, so they start at 1. A curve is
    stable when it stays below 0.1. The last snapshot has distance 0 by definition and does not count. This is one run:
    another seed may differ. The verdict is open where the spacing of snapshots allows the same step, or where one of
    the two is not stable before the last snapshot.

    Fields: gradients and distances at every snapshot of one training run; intervals are over sequences, not over runs.

    - `routing_norm`, `value_norm`, `value_elasticity`: as in the report on the gradient laws, mean over heads.
    - `pattern_distance_bits`: mean Jensen–Shannon divergence of attention rows, at scored positions, to the last
      snapshot. `value_distance`: ‖v − v_last‖ / ‖v_last‖. `pattern_moved_bits`, `value_moved`: the same to the previous
      snapshot (NaN at the first).
    - `routing_stable_step`, `values_stable_step`: first snapshot from which on the distance is at most a tenth of the
      first one; NaN if only the last snapshot qualifies, whose distance is always 0. `stable_ratio` is values over
      routing: above 1, routing is stable first.
    """

    name: ClassVar[str] = "gradient_movement"
    title: ClassVar[str] = "Routing and values over training"

    targets: Targets
    steps: tuple[str, ...]
    loss_nats: Annotated[Estimate, NonNegative("step", unit="nats", better="lower", label="loss")]
    routing_norm: Annotated[Estimate, NonNegative("step", unit="nats", label="routing: ∂L/∂s")]
    value_norm: Annotated[Estimate, NonNegative("step", unit="nats", label="values: ‖∂L/∂v‖")]
    value_elasticity: Annotated[Estimate, NonNegative("step", unit="nats", label="values: ‖∂L/∂v‖·‖v‖")]
    pattern_distance_bits: Annotated[Estimate, NonNegative("step", unit="bits", label="patterns")]
    value_distance: Annotated[Estimate, NonNegative("step", label="values")]
    correlation: Annotated[Estimate, Signed("step", better="higher", label="correlation of attention with advantage")]
    pattern_moved_bits: Annotated[Float[np.ndarray, " step"], Unit("bits")]
    value_moved: Annotated[Float[np.ndarray, " step"], Unit("1")]
    pattern_distance_bits_by_layer: Annotated[Float[np.ndarray, "step layer"], Unit("bits")]
    value_distance_by_layer: Annotated[Float[np.ndarray, "step layer"], Unit("1")]
    routing_stable_step: Annotated[Estimate, Quantity(unit="steps", label=f"patterns {_WITHIN}")]
    values_stable_step: Annotated[Estimate, Quantity(unit="steps", label=f"values {_WITHIN}")]
    stable_ratio: Annotated[Estimate, Quantity(label="stable step of values / of routing")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        routing, values = self._stable()
        found, last = lag(values, routing), len(self.steps) - 1
        return (
            replace(
                headline_of(self, "stable_ratio", verdict=str(found.verdict)),
                low=found.least,
                high=found.most,
                reason=Reason.CONSERVATIVE,
            ),
            headline_of(self, "routing_stable_step"),
            headline_of(self, "values_stable_step"),
            headline_of(self, "correlation", (last,), "correlation, last snapshot"),
        )

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.curves import Curve, add_curves
        from bayesgeom.report.theme import SERIES, log_axes

        titles = (
            "Distance to the last snapshot",
            "Gradient norms",
            "Movement of patterns",
            "Movement of values",
            "Attention with advantage, within rows",
        )
        drawn, at = [Panel.blank(title, height=380) for title in titles], np.array([int(step) for step in self.steps])
        apart, sizes, patterns, moved, related = (panel.figure for panel in drawn)
        shares = [_curve(own, name, own.value[0]) for name, own in self._distances()]
        levels = [("stable: a tenth", NEARBY), ("start", 1.0)]
        add_curves(apart, at, shares, unit="share", levels=levels, log_steps=True)
        norms = (
            _curve(self.routing_norm, "routing: ∂L/∂s", color=SERIES[2]),
            _curve(self.value_elasticity, "values: ‖∂L/∂v‖·‖v‖", color=SERIES[3]),
            _curve(self.value_norm, "values: ‖∂L/∂v‖", color=SERIES[4]),
        )
        add_curves(sizes, at, norms, unit="nats (log)", log_steps=True)
        log_axes(sizes)
        of_patterns = Curve(name="patterns", values=self.pattern_moved_bits, color=SERIES[0])
        add_curves(patterns, at, [of_patterns], unit="bits", log_steps=True)
        of_values = Curve(name="values", values=self.value_moved, color=SERIES[1])
        add_curves(moved, at, [of_values], unit="share of their norm", log_steps=True)
        other, curve = [(own.name, own.value) for own in self.correlation.baselines], _curve(self.correlation, "own")
        add_curves(related, at, [curve], unit="rank correlation", levels=other, log_steps=True)
        return drawn

    def _stable(self) -> tuple[ThresholdStep, ...]:
        steps = [int(step) for step in self.steps]
        return tuple(stable(steps, own.value) for _, own in self._distances())

    def _distances(self) -> tuple[tuple[str, Estimate], ...]:
        return ("patterns", self.pattern_distance_bits), ("values", self.value_distance)

    def table(self) -> str:
        """Return one line per snapshot."""
        rows: list[tuple[str, ...]] = [
            ("step", "loss (nats)", "pattern distance (bits)", "value distance", "‖∂L/∂s‖", "‖∂L/∂v‖·‖v‖")
        ]
        columns = (self.loss_nats, self.pattern_distance_bits, self.value_distance)
        gradients = (self.routing_norm, self.value_elasticity)
        for i, step in enumerate(self.steps):
            distances = (number_text(own.value[i]) for own in columns)
            rows.append((step, *distances, *(number_text(own.value[i]) for own in gradients)))
        return "\n".join(fitted(rows))


def _curve(own: Estimate, name: str, first: float = 1.0, color: str = "") -> "Curve":
    """Return a curve over snapshots with its band, divided by `first`."""
    from bayesgeom.charts.curves import Curve

    low, high = own.ends
    return Curve(name=name, values=own.value / first, band=(low / first, high / first), color=color)


def frame_of(layers: Sequence[LayerGradients], trials: Trials) -> Frame:
    """Return patterns at scored positions and values, in float32, on the CPU."""
    scored = [at_scored(PATTERN, layer.pattern, trials).float().cpu() for layer in layers]
    return Frame(patterns=torch.stack(scored), values=torch.stack([layer.values.float().cpu() for layer in layers]))


def joined(frames: Sequence[Frame]) -> Frame:
    """Return the frame of several batches."""
    return Frame(
        patterns=torch.cat([frame.patterns for frame in frames], dim=1),
        values=torch.cat([frame.values for frame in frames], dim=1),
    )


def gradient_norms(
    layers: Sequence[LayerGradients], trials: Trials, masks: Sequence[Bool[Tensor, "from_pos key_pos"]]
) -> dict[str, Float64[Tensor, " batch"]]:
    """Return norms and correlation of a batch, mean over layers and heads."""
    tallies = [layer_tally(layer, trials, mask) for layer, mask in zip(layers, masks, strict=True)]
    by_layer = {
        "routing_norm": [tally.routing_norm for tally in tallies],
        "value_norm": [tally.value_norm for tally in tallies],
        "value_elasticity": [tally.value_elasticity for tally in tallies],
        "correlation": [tally.correlation for tally in tallies],
        "other_correlation": [tally.other_correlation for tally in tallies],
    }
    return {name: torch.stack([own.mean(dim=1) for own in of]).mean(dim=0) for name, of in by_layer.items()}


def moment_of(
    step: int,
    measured: Mapping[str, Float64[np.ndarray, " sequence"]],
    now: Frame,
    last: Frame,
    before: Frame | None,
) -> Moment:
    """Return the numbers of a snapshot, compared with the last one and the previous one."""
    pattern, values = _distances(now, last)
    moved = (float("nan"), float("nan"))
    if before is not None:
        since = _distances(now, before)
        moved = (float(since[0].mean()), float(since[1].mean()))
    own = {"pattern_distance_bits": pattern.mean(dim=0).numpy(), "value_distance": values.mean(dim=0).numpy()}
    return Moment(
        step=step,
        per_sequence={**measured, **own},
        moved=moved,
        pattern_by_layer=pattern.mean(dim=1).numpy(),
        values_by_layer=values.mean(dim=1).numpy(),
    )


def movement_report(moments: Sequence[Moment], *, targets: Targets, seed: int) -> GradientMovementReport:
    """Return the report: means over sequences with intervals, and the step from which on each distance is stable."""
    n = len(moments[0].per_sequence["loss_nats"])

    def over_steps(name: str, *baselines: Baseline) -> Estimate:
        rows = np.stack([moment.per_sequence[name] for moment in moments], axis=1)
        return mean_estimate(rows, seed=seed, baselines=baselines)

    steps = [moment.step for moment in moments]
    patterns, values = over_steps("pattern_distance_bits"), over_steps("value_distance")
    routing_at, values_at = (stable(steps, own.value) for own in (patterns, values))
    ratio = lag(values_at, routing_at).ratio
    other = np.array([moment.per_sequence["other_correlation"].mean() for moment in moments])
    return GradientMovementReport(
        targets=targets,
        steps=tuple(str(step) for step in steps),
        loss_nats=over_steps("loss_nats"),
        routing_norm=over_steps("routing_norm"),
        value_norm=over_steps("value_norm"),
        value_elasticity=over_steps("value_elasticity"),
        pattern_distance_bits=patterns,
        value_distance=values,
        correlation=over_steps("correlation", Baseline.of("permutation", OTHER, other)),
        pattern_moved_bits=np.array([moment.moved[0] for moment in moments]),
        value_moved=np.array([moment.moved[1] for moment in moments]),
        pattern_distance_bits_by_layer=np.stack([moment.pattern_by_layer for moment in moments]),
        value_distance_by_layer=np.stack([moment.values_by_layer for moment in moments]),
        routing_stable_step=Estimate.of(routing_at.step, n=n),
        values_stable_step=Estimate.of(values_at.step, n=n),
        stable_ratio=Estimate.of(
            ratio, n=n, baselines=[Baseline.of("baseline", TOGETHER, 1.0)] if np.isfinite(ratio) else []
        ),
        n=n,
    )


def _distances(a: Frame, b: Frame) -> tuple[Float64[Tensor, "layer batch"], Float64[Tensor, "layer batch"]]:
    """Return the divergence of patterns in bits and the relative distance of values, per layer and sequence."""
    patterns = torch.stack(
        [
            jensen_shannon_bits(p.double(), q.double()).mean(dim=(1, 2))
            for p, q in zip(a.patterns, b.patterns, strict=True)
        ]
    )
    apart, size = (reduce(x.double().square(), "l b kv p d -> l b", "sum") for x in (a.values - b.values, b.values))
    return patterns.clamp_min(0), (apart / size).sqrt()
