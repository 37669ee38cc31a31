"""The reports on gradients: do the laws hold and does attention follow its advantage, and what moves over training?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
import torch
from einops import reduce
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import Reason, Verdict, number_text
from bayesgeom.core.text import aligned_table
from bayesgeom.dynamics.report import NEARBY, stable, step_table, steps_panel, times_later
from bayesgeom.gradients.capture import (
    BIN_EDGES,
    IDENTITIES,
    OTHER,
    PER_SEQUENCE,
    LayerTally,
    Targets,
)
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Signed, Unit, mean_estimate
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import quantities_of, units_of
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.information import jensen_shannon_bits

_LAYERS_SHOWN = 2  # pages fold the panels of other layers
_FEWEST_PAIRS = 20  # minimum number of pairs in a bin for a meaningful mean
_ADVANTAGE = "Advantage of a key: how far more attention to it would lower the loss, against the row's mean."
TOGETHER = "both stable at the same step"
_WITHIN = "within a tenth of their first distance"
Moment = Mapping[str, np.ndarray]  # the numbers of a snapshot, by sequence or by layer


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class GradientReport(Report):
    """Gradient descent raises the score of a key if its advantage is positive: more attention to it lowers the loss.

    It moves each value along the gradients of the queries that attend to it. Both laws are exact; their largest
    deviation from automatic differentiation is reported. The correlation is positive for a head that attends to keys
    with high advantage. The baseline pairs its attention with another sequence's advantage at the same position, which
    shows what position alone explains. A trained head has little left to gain, so a correlation near zero does not
    indicate poor attention.

    Fields: gradients of each sequence's loss (nats, mean over scored positions) at every head's attention.

    - `identity_error`: largest difference between a law and autograd, relative to the layer's largest gradient of that
      kind; `identity_error_nats` is the difference itself. NaN if the model has no such hook point.
    - `correlation`: Spearman of attention with advantage within one query's row, mean over scored rows of at least
      three visible keys. The baseline pairs the attention with another sequence's advantage. Shuffled keys give 0.
    - `routing_norm`: root mean square of ∂L/∂s over visible pairs (nats per e-fold change of the odds). `value_norm`:
      that of ‖∂L/∂v‖ over positions. `value_elasticity`: that of ‖∂L/∂v‖·‖v‖ (nats per relative change of a value).
    - `advantage_by_attention`: mean advantage, in units of its row's root mean square, by `attention_bin`: log2 of
      attention over uniform attention, lower edges after the first.
    - `mean_advantage_nats`, `mean_attention`: mean maps at scored positions; the second is the responsibility matrix.
    """

    name: ClassVar[str] = "gradients"
    title: ClassVar[str] = "Gradient laws: does attention move as its gradients say?"

    targets: Targets
    laws: tuple[str, ...]
    identity_error: Annotated[Estimate, Quantity("law layer", label="laws against autograd, relative error")]
    identity_error_nats: Annotated[Estimate, Quantity("law layer", unit="nats", label="laws against autograd")]
    loss_nats: Annotated[Estimate, NonNegative(unit="nats", better="lower", label="loss")]
    mean_correlation: Annotated[
        Estimate, Signed(better="higher", label="correlation of attention with advantage, mean over heads")
    ]
    correlation: Annotated[
        Estimate, Signed("layer head", better="higher", label="correlation of attention with advantage")
    ]
    routing_norm: Annotated[Estimate, NonNegative("layer head", unit="nats", label="root mean square of ∂L/∂s")]
    value_norm: Annotated[Estimate, NonNegative("layer kv_head", unit="nats", label="root mean square of ‖∂L/∂v‖")]
    value_elasticity: Annotated[
        Estimate, NonNegative("layer kv_head", unit="nats", label="root mean square of ‖∂L/∂v‖·‖v‖")
    ]
    attention_bin: Annotated[Float[np.ndarray, " edge"], Unit("1")]
    advantage_by_attention: Annotated[
        Estimate, Quantity("layer head bin", label="advantage in units of its row's root mean square")
    ]
    pairs_by_attention: Annotated[Float[np.ndarray, "layer head bin"], Unit("1")]
    mean_advantage_nats: Annotated[Float[np.ndarray, "layer head query_pos key_pos"], Unit("nats")]
    mean_attention: Annotated[Float[np.ndarray, "layer head query_pos key_pos"], Unit("1")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        at, largest = self._most_above()
        most, count = f"correlation most above baseline: L{at[0]}H{at[1]}", self.correlation.value.size
        (worst, _), (worst_nats, _) = (
            error.extreme("largest") for error in (self.identity_error, self.identity_error_nats)
        )
        return (
            headline_of(self, "identity_error", at=worst, label="largest relative error against autograd"),
            headline_of(self, "mean_correlation"),
            headline_of(self, "correlation", at, most, own=largest, chosen_of=count),
            headline_of(self, "identity_error_nats", at=worst_nats, label="largest error against autograd"),
            headline_of(self, "loss_nats"),
        )

    def answer(self) -> Opening:
        error, correlation = np.nanmax(self.identity_error.value), self.mean_correlation
        level = correlation.compared[0].value if correlation.compared else math.nan
        return Finding.GRADIENT_LAWS.of(error=error, correlation=correlation, level=level)

    def _most_above(self) -> tuple[tuple[int, ...], Estimate]:
        """Return the head most above its baseline, with an interval that allows for the choice."""
        level = self.correlation.baseline(OTHER).value
        at, chosen = self.correlation.mapped(lambda x: x - level).extreme("largest")
        return at, chosen.mapped(lambda x: np.asarray(x + level[at]))

    def panels(self) -> Sequence[Panel]:
        other, binned = self.correlation.baseline(OTHER).value, self.advantage_by_attention
        values = "Values: rms of ‖∂L/∂v‖·‖v‖, log10"
        return (
            _heads_panel("Attention with advantage, within rows", self.correlation.value, note=_ADVANTAGE),
            _heads_panel("With another sequence's advantage (baseline)", other),
            _heads_panel("Routing: rms of ∂L/∂s, log10", self.routing_norm.value, is_norm=True),
            _heads_panel(values, self.value_elasticity.value, is_norm=True, head="key head"),
            *(
                _binned_panel(layer, self.attention_bin, *parts)
                for layer, parts in enumerate(
                    zip(binned.value, binned.baseline(OTHER).value, self.pairs_by_attention, strict=True)
                )
            ),
        )

    def table(self) -> str:
        """Return the errors of the laws, then every layer's heads."""
        worst = [
            f"{name}: {number_text(np.nanmax(row))}" if np.isfinite(row).any() else f"{name}: no such point"
            for name, row in zip(self.laws, self.identity_error.value, strict=True)
        ]
        rows: list[tuple[str, ...]] = [
            ("layer", "correlation by head (baseline)", "routing norm", "value norm", "value elasticity")
        ]
        measured, other = self.correlation.value, self.correlation.baseline(OTHER).value
        for layer in range(len(measured)):
            norms = (self.routing_norm, self.value_norm, self.value_elasticity)
            heads = "  ".join(
                f"{number_text(a)} ({number_text(b)})" for a, b in zip(measured[layer], other[layer], strict=True)
            )
            rows.append((str(layer), heads, *(number_text(norm.value[layer].mean()) for norm in norms)))
        return "\n".join([f"relative error against autograd: {', '.join(worst)}", "", *aligned_table(rows)])


def gradient_report(
    loss: Float[np.ndarray, " sequence"],
    tallies: Sequence[LayerTally],
    errors: Float[np.ndarray, "layer law 2"],
    *,
    targets: Targets,
    seed: int,
) -> GradientReport:
    """Return the report: means and intervals over sequences; `errors` are differences and their scales."""
    n = len(loss)
    of = {name: np.stack([vars(tally)[name].cpu().numpy() for tally in tallies], axis=1) for name in PER_SEQUENCE}
    binned, maps = (np.stack([vars(t)[name].cpu().numpy() for t in tallies], axis=1) for name in ("binned", "maps"))
    by_head, by_other = of["correlation"], of["other_correlation"]
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = (errors[..., 0] / errors[..., 1]).T
        mean, other_mean = np.where(binned[1::2] > 0, binned[::2] / binned[1::2], np.nan)

    def other(level: Float[np.ndarray, "*axes"] | float) -> tuple[Baseline, ...]:
        return (Baseline.of("permutation", OTHER, level),)

    return GradientReport(
        targets=targets,
        laws=IDENTITIES,
        identity_error=Estimate.of(relative, n=n),
        identity_error_nats=Estimate.of(errors[..., 0].T, n=n),
        loss_nats=mean_estimate(loss, seed=seed),
        mean_correlation=mean_estimate(
            by_head.reshape(n, -1).mean(axis=1), seed=seed, baselines=other(float(by_other.mean()))
        ),
        correlation=mean_estimate(by_head, seed=seed, baselines=other(by_other.mean(axis=0))),
        routing_norm=mean_estimate(of["routing_norm"], seed=seed),
        value_norm=mean_estimate(of["value_norm"], seed=seed),
        value_elasticity=mean_estimate(of["value_elasticity"], seed=seed),
        attention_bin=np.array(BIN_EDGES),
        advantage_by_attention=Estimate.of(mean, n=n, baselines=other(other_mean)),
        pairs_by_attention=binned[1],
        mean_advantage_nats=(maps[0] / n).astype(np.float32),
        mean_attention=(maps[1] / n).astype(np.float32),
        n=n,
    )


def _heads_panel(
    title: str,
    values: Float[np.ndarray, "layer head"],
    *,
    is_norm: bool = False,
    head: Literal["head", "key head"] = "head",
    note: str = "",
) -> Panel:
    """Draw a rank correlation per layer and head, or a norm on a log scale, where zero norms are blank."""
    from bayesgeom.charts.heat import add_heat

    panel = Panel.blank(title, is_folded=is_norm, note=note)
    if is_norm:
        logs = np.log10(np.where(values > 0, values, np.nan))
        add_heat(panel.figure, logs, unit="log10 nats", axes=(head, "layer"))
    else:
        add_heat(panel.figure, values, unit="rank correlation", baseline=0.0)
    return panel


def _binned_panel(
    layer: int,
    edges: Float[np.ndarray, " edge"],
    found: Float[np.ndarray, "head bin"],
    other: Float[np.ndarray, "head bin"],
    pairs: Float[np.ndarray, "head bin"],
) -> Panel:
    """Draw mean relative advantage by attention relative to uniform attention, of a layer: a line per head.

    Args:
        layer: The layer.
        edges: log2 of attention over uniform attention.
        found: The advantage in each bin.
        other: The same with another sequence's advantage.
        pairs: Number of pairs of positions in each bin; bins with few are omitted.
    """
    from bayesgeom.charts.lines import add_baseline, add_line, add_note
    from bayesgeom.report.theme import SERIES, label_axes, log_axes

    panel = Panel.blank(
        f"Layer {layer}: advantage against attention",
        note=f"Dashed, in the color of the head: {OTHER}.",
        is_folded=layer >= _LAYERS_SHOWN,
    )
    figure, x = panel.figure, 2.0 ** np.concatenate([edges - 0.5, edges[-1:] + 0.5])
    is_enough = pairs >= _FEWEST_PAIRS
    if not is_enough.any():
        add_note(figure, "too few pairs to draw")
        return panel
    for head, (values, count) in enumerate(zip(other, is_enough, strict=True)):
        name = f"head {head}, {OTHER}"
        add_baseline(figure, x, np.where(count, values, np.nan), name=name, color=SERIES[head % len(SERIES)])
    for head, (values, count) in enumerate(zip(found, is_enough, strict=True)):
        add_line(figure, x, np.where(count, values, np.nan), name=f"head {head}", color=SERIES[head % len(SERIES)])
    log_axes(figure, "x")
    label_axes(figure, "attention / uniform attention", "advantage (row's rms)")
    return panel


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
    title: ClassVar[str] = "Routing and values: which of them comes to rest first?"

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
        routing, values = (stable(steps, moved.value) for moved in (self.pattern_distance_bits, self.value_distance))
        _, least, most = times_later(values, routing)
        verdict = Verdict.ROUTING_LATER if most < 1 else Verdict.UNDECIDED  # the spacing may allow the same step
        ratio = headline_of(self, "stable_ratio", verdict=str(Verdict.VALUES_LATER if least > 1 else verdict))
        return (
            replace(ratio, low=least, high=most, reason=Reason.CONSERVATIVE),
            headline_of(self, "routing_stable_step"),
            headline_of(self, "values_stable_step"),
            headline_of(self, "correlation", (len(self.steps) - 1,), "correlation, last snapshot"),
        )

    def answer(self) -> Opening | None:
        ratio = self.headlines()[0]
        if math.isnan(ratio.value) and ratio.verdict == Verdict.UNDECIDED:
            return None
        steps = {"routing": self.routing_stable_step, "values": self.values_stable_step}
        return Finding.MOVEMENT.of(verdict=ratio.verdict, **steps)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.curves import Curve
        from bayesgeom.report.theme import SERIES

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
        other = [(baseline.name, baseline.value) for baseline in self.correlation.baselines]
        shares = [curve(distance, name, distance.value[0]) for name, distance in distances]
        stable = (("patterns", self.routing_stable_step), ("values", self.values_stable_step))
        settled = ", ".join(f"{number_text(step.value)} ({name})" for name, step in stable)
        levels, related = [("stable: a tenth", NEARBY), ("start", 1.0)], [curve(self.correlation, "own")]
        return (
            steps_panel(f"Stable from step {settled}", "distance to the last snapshot", self.steps, shares, levels),
            steps_panel("Gradient norms", "nats (log)", self.steps, norms, is_log=True),
            steps_panel("Movement of patterns", "bits", self.steps, [patterns]),
            steps_panel("Movement of values", "share of their norm", self.steps, [values]),
            steps_panel("Attention with advantage, within rows", "rank correlation", self.steps, related, other),
        )

    def table(self) -> str:
        """Return one line per snapshot."""
        columns = {
            "loss (nats)": self.loss_nats,
            "pattern distance (bits)": self.pattern_distance_bits,
            "value distance": self.value_distance,
            "‖∂L/∂s‖": self.routing_norm,
            "‖∂L/∂v‖·‖v‖": self.value_elasticity,
        }
        return "\n".join(step_table(self.steps, {name: estimate.value for name, estimate in columns.items()}))


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
        for name, quantity in quantities_of(GradientMovementReport).items()
        if quantity.dims
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
