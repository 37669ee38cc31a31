"""Movement of routing and values over training: gradients, and distances to the last snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, final

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.run import PATTERN, Trials, at_scored
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.dynamics.report import NEARBY, stable, step_table, times_later
from bayesgeom.gradients.capture import OTHER, PER_SEQUENCE, LayerGradients, Targets, layer_tally
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Signed, Unit, mean_estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import quantities_of, units_of
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.information import jensen_shannon_bits

TOGETHER = "both stable at the same step"
_WITHIN = "within a tenth of their first distance"
Moment = Mapping[str, np.ndarray]  # the numbers of a snapshot, by sequence or by layer


@final
@dataclass(frozen=True, kw_only=True)
class Frame:
    """Attention patterns and values of a snapshot, on fixed trials."""

    patterns: Float[Tensor, "layer batch head query_pos key_pos"]
    values: Float[Tensor, "layer batch kv_head pos d_head"]


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
        steps = [int(step) for step in self.steps]
        routing, values = (stable(steps, own.value) for own in (self.pattern_distance_bits, self.value_distance))
        _, least, most = times_later(values, routing)
        verdict = Verdict.ROUTING_LATER if most < 1 else Verdict.UNDECIDED  # the spacing may allow the same step
        ratio = headline_of(self, "stable_ratio", verdict=str(Verdict.VALUES_LATER if least > 1 else verdict))
        return (
            replace(ratio, low=least, high=most, reason=Reason.CONSERVATIVE),
            headline_of(self, "routing_stable_step"),
            headline_of(self, "values_stable_step"),
            headline_of(self, "correlation", (len(self.steps) - 1,), "correlation, last snapshot"),
        )

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.curves import Curve, add_curves
        from bayesgeom.report.theme import SERIES, log_axes

        def curve(own: Estimate, name: str, first: float = 1.0, color: str = "") -> Curve:
            low, high = own.ends
            return Curve(name=name, values=own.value / first, band=(low / first, high / first), color=color)

        distances = ("patterns", self.pattern_distance_bits), ("values", self.value_distance)
        norms = (
            curve(self.routing_norm, "routing: ∂L/∂s", color=SERIES[2]),
            curve(self.value_elasticity, "values: ‖∂L/∂v‖·‖v‖", color=SERIES[3]),
            curve(self.value_norm, "values: ‖∂L/∂v‖", color=SERIES[4]),
        )
        patterns = Curve(name="patterns", values=self.pattern_moved_bits, color=SERIES[0])
        values = Curve(name="values", values=self.value_moved, color=SERIES[1])
        other = [(own.name, own.value) for own in self.correlation.baselines]
        shares = [curve(own, name, own.value[0]) for name, own in distances]
        drawings: Sequence[tuple[str, Sequence[Curve], str, Sequence[tuple[str, Any]]]] = (
            ("Distance to the last snapshot", shares, "share", [("stable: a tenth", NEARBY), ("start", 1.0)]),
            ("Gradient norms", norms, "nats (log)", ()),
            ("Movement of patterns", [patterns], "bits", ()),
            ("Movement of values", [values], "share of their norm", ()),
            ("Attention with advantage, within rows", [curve(self.correlation, "own")], "rank correlation", other),
        )
        drawn, at = [Panel.blank(title, height=380) for title, *_ in drawings], np.array([int(s) for s in self.steps])
        for panel, (_, curves, unit, levels) in zip(drawn, drawings, strict=True):
            add_curves(panel.figure, at, curves, unit=unit, levels=levels, log_steps=True)
        log_axes(drawn[1].figure)
        return drawn

    def table(self) -> str:
        """Return one line per snapshot."""
        columns = {
            "loss (nats)": self.loss_nats,
            "pattern distance (bits)": self.pattern_distance_bits,
            "value distance": self.value_distance,
            "‖∂L/∂s‖": self.routing_norm,
            "‖∂L/∂v‖·‖v‖": self.value_elasticity,
        }
        return "\n".join(step_table(self.steps, {name: own.value for name, own in columns.items()}))


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


def gradient_norms(layers: Sequence[LayerGradients], trials: Trials) -> dict[str, Float64[Tensor, " batch"]]:
    """Return norms and correlation of a batch, mean over layers and heads."""
    tallies = [vars(layer_tally(layer, trials)) for layer in layers]
    return {name: torch.stack([of[name].mean(dim=1) for of in tallies]).mean(dim=0) for name in PER_SEQUENCE}


def moment_of(
    measured: Mapping[str, Float64[np.ndarray, " sequence"]], now: Frame, last: Frame, before: Frame | None
) -> Moment:
    """Return the numbers of a snapshot, with its distances from the last one and from the previous one."""
    pattern, values = _distances(now, last)
    moved = (torch.tensor(torch.nan),) * 2 if before is None else _distances(now, before)
    return {
        **measured,
        "pattern_distance_bits": pattern.mean(dim=0).numpy(),
        "value_distance": values.mean(dim=0).numpy(),
        "pattern_distance_bits_by_layer": pattern.mean(dim=1).numpy(),
        "value_distance_by_layer": values.mean(dim=1).numpy(),
        "pattern_moved_bits": moved[0].mean().numpy(),
        "value_moved": moved[1].mean().numpy(),
    }


def movement_report(
    steps: Sequence[int], moments: Sequence[Moment], *, targets: Targets, seed: int
) -> GradientMovementReport:
    """Return the report: means over sequences with intervals, and the step from which on each distance is stable."""
    other = np.array([moment["other_correlation"].mean() for moment in moments])
    levels = {"correlation": [Baseline.of("permutation", OTHER, other)]}
    numbers: dict[str, Any] = {
        name: mean_estimate(
            np.stack([moment[name] for moment in moments], axis=1), seed=seed, baselines=levels.get(name, ())
        )
        for name, own in quantities_of(GradientMovementReport).items()
        if own.dims
    }
    numbers |= {name: np.stack([moment[name] for moment in moments]) for name in units_of(GradientMovementReport)}
    routing, values = (stable(steps, numbers[name].value) for name in ("pattern_distance_bits", "value_distance"))
    ratio, n = times_later(values, routing)[0], len(moments[0]["loss_nats"])
    together = [Baseline.of("baseline", TOGETHER, 1.0)] if np.isfinite(ratio) else []
    return GradientMovementReport(
        targets=targets,
        steps=tuple(map(str, steps)),
        routing_stable_step=Estimate.of(routing.step, n=n),
        values_stable_step=Estimate.of(values.step, n=n),
        stable_ratio=Estimate.of(ratio, n=n, baselines=together),
        n=n,
        **numbers,
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
