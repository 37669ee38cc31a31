"""Does the key frame settle before the precision, and does a curve fall again? Read from the curves of a training.

Fixed thresholds, which a curve may leave again:

    frame_step       first snapshot whose pattern distance is at most 10 % of the first one's
    precision_step   first snapshot whose KL is at most twice the last one's
    dissociation     log2(precision_step / frame_step)

The two are not comparable: a tenth of the start against twice the end. So precision is also measured by the frame's
rule: the first snapshot at which a tenth of the distance between first and last KL remains.

The order has one rule: a curve has settled at the first snapshot from which on at most a tenth of the distance between
first and last value remains. KL is measured on three scales, because KL, √KL and log KL cover nine tenths of their
distance at different steps of the same training. An order that depends on scale or measure is "not decided".

The swap of the key frame at layer 0 is not a frame measure: if donor and recipient differ only inside the frame, it
exchanges the whole activation, and so follows the answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float, Int

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.text import aligned_table, count_text, interval_text, number_text, percent_text
from bayesgeom.core.verdict import Reason
from bayesgeom.dynamics.report import (
    NEARBY,
    NEVER,
    DynamicsReport,
    Steps,
    ThresholdStep,
    over_trainings,
    times_later,
)
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, Unit
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import seed_interval

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

NEAR, THERE = 2.0, 0.1
MIN_SEEDS = 3
NO_INTERVAL = f"cannot decide: fewer than {MIN_SEEDS} trainings"  # the verdict on a fall
NO_FALL = "no fall in the trainings that choose its steps"  # a verdict


def reached(steps: Steps, holds: Bool[np.ndarray, " step"]) -> ThresholdStep:
    """Return the first snapshot at which a condition holds; `NEVER` if it never holds, or holds from the start.

    Example:
        >>> reached((0, 10, 20, 40), np.array([False, False, True, False]))
        ThresholdStep(step=20.0, before=10.0)
    """
    found = np.flatnonzero(holds)
    if len(found) == 0 or found[0] == 0:
        return NEVER
    return ThresholdStep(float(steps[found[0]]), float(max(steps[found[0] - 1], 1)))


def settled(steps: Steps, curve: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return the first snapshot from which on at most a tenth of the distance from first to last value remains.

    Args:
        steps: Training step of every snapshot.
        curve: A number at every snapshot.

    Returns:
        The snapshot; `NEVER` for a curve that ends at its first value, or was not measured.

    Example:
        >>> settled((0, 10, 20, 40, 80), np.array([1.0, 0.05, 0.5, 0.08, 0.0]))
        ThresholdStep(step=40.0, before=20.0)
    """
    left = np.abs(curve - curve[-1])
    if not left[0] > 0 or not np.isfinite(left).all():
        return NEVER
    outside: Int[np.ndarray, " far"] = np.flatnonzero(left > NEARBY * left[0])
    at = int(outside[-1])
    return ThresholdStep(step=float(steps[at + 1]), before=float(max(steps[at], 1)))


def frame_moment(steps: Steps, distance: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return when the attention distance first falls to a tenth of its first value; NaN if it starts at 0."""
    return reached(steps, distance <= NEARBY * distance[0]) if distance[0] > 0 else NEVER


def precision_moment(steps: Steps, kl_bits: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return when the error first falls to twice its last value; NaN if it was never larger."""
    return reached(steps, kl_bits <= NEAR * kl_bits[-1])


def precision_by_share(steps: Steps, kl_bits: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return when a tenth of the error's decrease first remains (the frame's rule); NaN without a decrease."""
    way = kl_bits - kl_bits[-1]
    return reached(steps, way <= NEARBY * way[0]) if way[0] > 0 else NEVER


@final
@dataclass(frozen=True, kw_only=True)
class Dissociation:
    """log2 of the ratio of two steps per training, with bounds from the spacing of snapshots.

    `lo` and `hi` are Student's interval over trainings, widened by those bounds.
    """

    per_run: Float[np.ndarray, " run"]
    least: Float[np.ndarray, " run"]
    most: Float[np.ndarray, " run"]
    mean: float
    lo: float
    hi: float

    def verdict(self, *, first: str, second: str) -> str:
        """Return which of the two is first, or "cannot decide" with the reason."""
        known, trainings = np.isfinite(self.per_run), count_text(len(self.per_run), "training")
        if not known.all():
            return f"cannot decide: in {int((~known).sum())} of {trainings} one of the two has no moment"
        if len(known) < MIN_SEEDS:
            return f"cannot decide: {trainings}, and at least {MIN_SEEDS} are needed"
        if self.lo > 0:
            return f"{first} is first, by a factor of {2**self.mean:.3g}"
        if self.hi < 0:
            return f"{second} is first, by a factor of {2**-self.mean:.3g}"
        return "cannot decide: the interval holds 0"


def dissociation(later: Sequence[ThresholdStep], earlier: Sequence[ThresholdStep]) -> Dissociation:
    """Return the log2 ratio of two steps, one entry per training."""
    ratios = [times_later(own, other) for own, other in zip(later, earlier, strict=True)]
    per_run, least, most = np.log2(ratios).T
    lo, hi = seed_interval(least)[0], seed_interval(most)[1]
    return Dissociation(per_run=per_run, least=least, most=most, mean=float(per_run.mean()), lo=float(lo), hi=float(hi))


@final
@dataclass(frozen=True, kw_only=True)
class Fall:
    """The largest fall of a curve after a maximum: its steps, size, and the preceding rise."""

    start: int
    end: int
    size: float
    lo: float
    hi: float
    rise: float
    is_divided: bool = False  # whether other trainings chose the steps

    @property
    def share(self) -> float:
        """The fall as a share of the rise from first snapshot to maximum; NaN for a curve that never rises."""
        return self.size / self.rise if self.rise > 0 else float("nan")

    @property
    def verdict(self) -> str:
        """The verdict: there, not there, or why it cannot be decided."""
        if not self.rise > 0:
            return "no rise" if self.rise <= 0 else "not measured"
        if not np.isfinite([self.lo, self.hi]).all():
            return NO_FALL if self.is_divided and self.start == self.end else NO_INTERVAL
        if self.lo >= THERE * self.rise:
            return "there"
        return "not there" if self.hi < THERE * self.rise else "cannot decide"


FALL_RULE = (
    f"A fall is there if its 95 % interval lies above {percent_text(THERE)} of the curve's rise, and not "
    f"there if it lies below. The first half of the trainings chooses its steps, the others measure it between them, "
    f"on the same sequences. With fewer than {MIN_SEEDS} trainings there is no interval."
)


def largest_fall(curve: Float[np.ndarray, " step"]) -> tuple[int, int]:
    """Return start and end of the largest fall; they are equal if the curve never falls."""
    drop = np.maximum.accumulate(curve) - curve
    end = int(np.argmax(drop))
    return int(np.argmax(curve[: end + 1])), end


def fall(curves: Float[np.ndarray, "run step"]) -> Fall:
    """Return the largest fall: between the steps at which the first half of the trainings falls most, in the others.

    The interval is Student's over these others. Steps that are chosen on what is measured give intervals that cover
    too seldom on planted curves: 69 to 82 % over the sequences of one training, 89 to 94 % over trainings if each is
    measured between steps chosen on all others (`benchmarks/interval_coverage.py --rows "largest fall"`). With too few
    trainings to divide, all of them choose and measure, and there is no interval.
    """
    unknown, mean = float("nan"), curves.mean(axis=0)
    if not np.isfinite(mean).all():
        return Fall(start=0, end=0, size=unknown, lo=unknown, hi=unknown, rise=unknown)
    measured = measuring(curves)
    is_divided = len(measured) < len(curves)
    start, end = largest_fall(curves[: -len(measured)].mean(axis=0) if is_divided else mean)
    falls = measured[:, start] - measured[:, end]
    lo, hi = map(float, seed_interval(falls)) if is_divided and start < end else (unknown, unknown)
    rise, size = float(mean.max() - mean[0]), float(falls.mean())
    return Fall(start=start, end=end, size=size, lo=lo, hi=hi, rise=rise, is_divided=is_divided)


def measuring(curves: Float[np.ndarray, "run *rest"]) -> Float[np.ndarray, "measured *rest"]:
    """Return the trainings that measure a fall: all but the first half, or all if they are too few to divide."""
    return curves[len(curves) // 2 :] if len(curves) >= MIN_SEEDS else curves


FRAME, PRECISION = "the frame", "precision"
MIN_MEASURES = 2
SCALES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "KL": lambda kl_bits: kl_bits,
    "√KL": np.sqrt,
    "log KL": np.log,
}
ORDER_RULE = (
    f"The order needs {MIN_SEEDS} trainings or more. It is decided if it is the same on the scales {', '.join(SCALES)} "
    f"and for at least {MIN_MEASURES} frame measures, with intervals that exclude 0. Otherwise it is not decided."
)


@final
@dataclass(frozen=True, kw_only=True)
class Order:
    """Settling steps of each scale of KL and each frame measure, per training, and their comparison."""

    frame_measures: tuple[str, ...]
    precision_steps: Float[np.ndarray, "run scale"]
    frame_steps: Float[np.ndarray, "run frame_measure"]
    pairs: tuple[tuple[Dissociation, ...], ...]  # by scale, then by measure

    @property
    def verdicts(self) -> tuple[tuple[str, ...], ...]:
        """The verdict of each pair alone."""
        return tuple(tuple(own.verdict(first=FRAME, second=PRECISION) for own in row) for row in self.pairs)

    @property
    def verdict(self) -> str:
        """The verdict on which settles first on all scales and measures, or "not decided" with the reason."""
        n_runs, n_measures = len(self.precision_steps), len(self.frame_measures)
        if n_measures < MIN_MEASURES:
            return f"not decided: {count_text(n_measures, 'frame measure')}, and at least {MIN_MEASURES} are needed"
        if n_runs < MIN_SEEDS:
            return f"not decided: {count_text(n_runs, 'training')}, and at least {MIN_SEEDS} are needed"
        found = {
            (scale, measure): outcome
            for scale, row in zip(SCALES, self.verdicts, strict=True)
            for measure, outcome in zip(self.frame_measures, row, strict=True)
        }
        first = {who: [at for at, outcome in found.items() if outcome.startswith(f"{who} is first")] for who in _BOTH}
        for who in _BOTH:
            if len(first[who]) == len(found):
                return f"{who} is first on all scales and measures"
        counts = f"the frame first in {len(first[FRAME])}, precision first in {len(first[PRECISION])}"
        reason = "the order changes with the scale or the measure" if all(first.values()) else "some pairs are open"
        return f"not decided: {reason} ({counts} of {len(found)} pairs)"

    def fields(self) -> dict[str, Any]:
        """Return the fields of the report on what settles first: the order of the steps from `settled`."""
        shape = (len(SCALES), len(self.frame_measures))

        def table(values: list[list[float]]) -> Float[np.ndarray, "scale frame_measure"]:
            return np.array(values, dtype=float).reshape(shape)

        ends = (
            table([[own.lo for own in row] for row in self.pairs]),
            table([[own.hi for own in row] for row in self.pairs]),
        )
        return {
            "scales": tuple(SCALES),
            "frame_measures": self.frame_measures,
            "precision_step_by_scale": self.precision_steps,
            "frame_step_by_measure": self.frame_steps,
            "dissociation_by_scale": over_trainings(
                table([[own.mean for own in row] for row in self.pairs]),
                ends,
                n=len(self.precision_steps),
            ),
            "order_by_scale": tuple(outcome for row in self.verdicts for outcome in row),
            "order": self.verdict,
        }


_BOTH = (FRAME, PRECISION)


def order_of(steps: Steps, curves: Mapping[str, np.ndarray]) -> Order:
    """Compute when every scale and frame measure settles in some trainings.

    Args:
        steps: Training step of every snapshot, the same in all trainings.
        curves: `kl_bits`, `pattern_distance_bits`, `curve_share` by run and step, `key_overlap` by run, step and layer,
            as a dynamics report stores them; NaN where an architecture lacks one.

    Returns:
        Settling steps, log2 ratios with intervals, and the verdict.
    """
    kl = np.maximum(curves["kl_bits"], np.finfo(float).tiny)
    measures = {
        "attention patterns": curves["pattern_distance_bits"],
        "key overlap, layer 0": curves["key_overlap"][..., 0],
        "manifold curve fit": curves["curve_share"],
    }
    measures = {name: own for name, own in measures.items() if np.isfinite(own).all()}
    precise = [[settled(steps, own) for own in scale(kl)] for scale in SCALES.values()]
    framed = [[settled(steps, own) for own in values] for values in measures.values()]
    return Order(
        frame_measures=tuple(measures),
        precision_steps=_steps_of(precise, len(kl)),
        frame_steps=_steps_of(framed, len(kl)),
        pairs=tuple(tuple(dissociation(later, earlier) for earlier in framed) for later in precise),
    )


def _steps_of(moments: Sequence[Sequence[ThresholdStep]], n_runs: int) -> Float[np.ndarray, "run what"]:
    return np.array([[own.step for own in row] for row in moments], dtype=float).reshape(len(moments), n_runs).T


RULES = ("stated thresholds", "nine tenths of the way")
TOGETHER = "both at the same step"  # a log2 ratio of 0
SPACING = "spacing of snapshots"  # source of the bounds of one training's log2 ratio
_RATIO = "log2(precision step / frame step)"
_OPEN = "not decided"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class SettlingReport(Report):
    """When frame and precision reach thresholds and settle in each training, their order, and the falls of every curve.

    - `frame_step`, `precision_step`: when each reaches its threshold (`dynamics.settling`); precision by the stated
      threshold and by the frame's rule. `dissociation`: log2 of their ratio, mean over trainings with Student's
      interval, widened by the spacing of snapshots. `dissociation_by_run`: the ratio in each training, with the bounds
      from the spacing. `verdicts`: the verdict by each rule alone.
    - `order`: the verdict on all scales and frame measures (`dynamics.order`). `precision_step_by_scale` and
      `frame_step_by_measure`: when each settled. `dissociation_by_scale`: log2 of their ratio, mean over trainings.
      `order_by_scale`: the verdict of each pair alone, scale by scale.
    - `fall`: largest fall of each curve after a maximum, between two `fall_steps`; `fall_share`: as a share of the
      curve's rise.
    """

    name: ClassVar[str] = "settling"
    ends: ClassVar[tuple[str, ...]] = ("start", "end")
    title: ClassVar[str] = "Does the frame settle before the precision?"
    about: ClassVar[str] = (
        "The claim is that the key frame (attention patterns, layer-0 keys) settles long before the answers are "
        "precise. The order depends on the scale of the error: KL, √KL and log KL cover nine tenths of their decrease "
        "at different steps. So all three scales are compared with every frame measure. "
        f"The stated thresholds, patterns within {percent_text(NEARBY)} of their first distance and KL at most "
        f"{NEAR:g} times the last one, are reported, too; they are not equally strict. A log2 ratio of 0 means that "
        f"both are at the same step.\n\n{ORDER_RULE} {FALL_RULE}"
    )

    runs: tuple[str, ...]
    rules: tuple[str, ...]
    frame_step: Annotated[Float[np.ndarray, " run"], Unit("steps")]
    precision_step: Annotated[Float[np.ndarray, "rule run"], Unit("steps")]
    dissociation_by_run: Annotated[Estimate, Quantity("rule run", label=_RATIO)]
    dissociation: Annotated[Estimate, Quantity("rule", label=f"{_RATIO}, mean over trainings")]
    verdicts: Annotated[tuple[str, ...], "rule"]
    scales: tuple[str, ...]
    frame_measures: tuple[str, ...]
    precision_step_by_scale: Annotated[Float[np.ndarray, "run scale"], Unit("steps")]
    frame_step_by_measure: Annotated[Float[np.ndarray, "run frame_measure"], Unit("steps")]
    dissociation_by_scale: Annotated[Estimate, Quantity("scale frame_measure", label=f"{_RATIO}, mean over trainings")]
    order_by_scale: Annotated[tuple[str, ...], "scale frame_measure"]
    order: str
    curves: tuple[str, ...]
    fall: Annotated[Estimate, Quantity("curve", label="largest fall after a maximum")]
    fall_share: Annotated[Float[np.ndarray, " curve"], Unit("1")]
    fall_steps: Annotated[Float[np.ndarray, "end curve"], Unit("steps")]
    fall_verdicts: Annotated[tuple[str, ...], "curve"]
    n: int

    def headlines(self) -> Sequence[Headline]:
        falls = (
            replace(
                headline_of(self, "fall", at=(at,), label=f"{name}, largest fall{self._fall_text(at)}"),
                verdict=self.fall_verdicts[at],
            )
            for at, name in enumerate(self.curves)
            if np.isfinite(self.fall.value[at])
        )
        first = headline_of(self, "dissociation", at=(0,), label=f"{_RATIO}, at the stated thresholds")
        return (
            replace(first, verdict=_OPEN if self.order.startswith(_OPEN) else "decided"),
            headline_of(
                self, "dissociation", at=(1,), label=f"{_RATIO}, by nine tenths of the way on the scale KL alone"
            ),
            *falls,
        )

    def panels(self) -> "Sequence[Panel]":
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.lines import add_note
        from bayesgeom.report.panels import Panel

        pairs = [f"{scale} / {measure}" for scale in self.scales for measure in self.frame_measures]
        falls, unit = self._fall_shares(), "fall (share of the curve's rise)"
        drawn = (
            (pairs, self.dissociation_by_scale, self.order_by_scale, _RATIO, 0.0, self.order),
            (self.curves, falls, self.fall_verdicts, unit, THERE, "no curve was measured"),
        )
        titles = ("How much later precision settles, by scale", "Largest fall of every curve")
        n_rows = max(1, len(pairs), len(self.curves))
        panels = [Panel.blank(title, height=max(340, 160 + 22 * n_rows)) for title in titles]
        for panel, (names, own, verdicts, axis, level, otherwise) in zip(panels, drawn, strict=True):
            values, ends = own.value.ravel(), (own.ends[0].ravel(), own.ends[1].ravel())
            if np.isfinite(values).any():
                rows = zip(names, values, verdicts, strict=True)
                labels = [name if np.isfinite(value) else f"{name} ({why})" for name, value, why in rows]
                add_forest(panel.figure, labels, values, ends, unit=axis, levels=level)
            else:
                add_note(panel.figure, otherwise)
        return panels

    def table(self) -> str:
        """Return the steps at the stated thresholds in each training, then every scale and frame measure."""
        moments: list[tuple[str, ...]] = [
            ("training", "frame step", "precision step", "by the frame's rule", "log2 ratio", "spacing allows")
        ]
        for run, name in enumerate(self.runs):
            steps = (self.frame_step[run], *self.precision_step[:, run])
            own = self.dissociation_by_run[0, run]
            low, high = map(float, own.ends)
            moments.append(
                (
                    name,
                    *(f"{step:g}" for step in steps),
                    number_text(float(own)),
                    interval_text(low, high),
                )
            )
        return "\n".join([*aligned_table(moments), "", *self._orders()])

    def _orders(self) -> list[str]:
        """Return every scale with every frame measure, and the verdict on all of them.

        A verdict that all pairs share, as for too few trainings, is stated once.
        """
        rows: list[tuple[str, ...]] = [
            ("scale", "settled at step", "frame measure", "settled at step", "log2 ratio", "")
        ]
        is_shared = len(set(self.order_by_scale)) == 1 < len(self.order_by_scale)
        for at, verdict in enumerate(self.order_by_scale):
            one, other = divmod(at, len(self.frame_measures))
            own = self.dissociation_by_scale[one, other]
            moments = _steps(self.precision_step_by_scale[:, one]), _steps(self.frame_step_by_measure[:, other])
            rows.append(
                (
                    self.scales[one],
                    moments[0],
                    self.frame_measures[other],
                    moments[1],
                    own.text(),
                    verdict * (not is_shared),
                )
            )
        return [*aligned_table(rows), f"frame or precision first: {self.order}"]

    def _fall_shares(self) -> Estimate:
        """Return the falls as shares of their curve's rise, in which curves of all units can be compared."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = np.where(self.fall_share != 0, self.fall.value / self.fall_share, np.nan)
            ends = tuple(np.where(end == 0, 0.0, end / rise) for end in self.fall.ends)
        return replace(self.fall, value=self.fall_share, low=ends[0], high=ends[1])

    def _fall_text(self, at: int) -> str:
        """Return between which steps a curve falls and by how much, for a label; "" without a fall."""
        first, last = self.fall_steps[:, at]
        where = f" (from step {first:,.0f} to {last:,.0f}, {percent_text(self.fall_share[at])} of its rise)"
        return where if self.fall_share[at] > 0 else ""


def _steps(of: Float[np.ndarray, " run"]) -> str:
    """Return the common step of all trainings, or the range of steps."""
    return f"{of.min():g}" if of.min() == of.max() else f"{of.min():g} … {of.max():g}"


def settling_report(curves: DynamicsReport) -> SettlingReport:
    """Return the report on thresholds that are reached, curves that settle, their order, and falls."""
    steps = [int(step) for step in curves.steps]
    kl = curves.kl_bits.value
    timed = {
        "kl_bits": kl,
        "pattern_distance_bits": curves.pattern_distance_bits.value,
        "key_overlap": curves.key_overlap.value,
        "curve_share": curves.curve_share.value,
    }
    frames = [frame_moment(steps, own) for own in curves.pattern_distance_bits.value]
    precisions = [[moment(steps, own) for own in kl] for moment in (precision_moment, precision_by_share)]
    by_rule = [dissociation(later, frames) for later in precisions]
    return SettlingReport(
        runs=curves.runs,
        rules=RULES,
        frame_step=np.array([moment.step for moment in frames]),
        precision_step=np.array([[moment.step for moment in row] for row in precisions]),
        dissociation_by_run=Estimate.of(
            np.stack([own.per_run for own in by_rule]),
            (np.stack([own.least for own in by_rule]), np.stack([own.most for own in by_rule])),
            resampled=SPACING,
        ),
        dissociation=over_trainings(
            [own.mean for own in by_rule],
            ([own.lo for own in by_rule], [own.hi for own in by_rule]),
            n=len(curves.runs),
            baselines=[Baseline.of("baseline", TOGETHER, 0.0)],
        ),
        verdicts=tuple(own.verdict(first=FRAME, second=PRECISION) for own in by_rule),
        **order_of(steps, timed).fields(),
        **_falls(curves, steps),
        n=curves.n,
    )


def _falls(curves: DynamicsReport, steps: Sequence[int]) -> dict[str, Any]:
    """Return the largest fall of every curve that is claimed to rise."""
    rising = {
        "PC1 share": curves.pc1_share.value,
        "curve share": curves.curve_share.value,
        "belief R²": curves.belief_r2.value,
    }
    for layer in range(curves.answer_shift_bits.value.shape[-1]):
        rising[f"answer shift, layer {layer}"] = curves.answer_shift_bits.value[..., layer]
        rising[f"frame ratio, layer {layer}"] = curves.frame_ratio.value[..., layer]
    falls = {name: fall(values) for name, values in rising.items()}
    n_runs, n_measuring = len(curves.runs), len(measuring(curves.kl_bits.value))
    return {
        "curves": tuple(falls),
        "fall": Estimate.of(
            [own.size for own in falls.values()],
            ([own.lo for own in falls.values()], [own.hi for own in falls.values()]),
            resampled="trainings",
            n=n_measuring,
            reason=Reason.SAME_TRAININGS if n_runs == n_measuring else Reason.NO_FALL,
        ),
        "fall_share": np.array([own.share for own in falls.values()]),
        "fall_steps": np.array(
            [[steps[own.start] for own in falls.values()], [steps[own.end] for own in falls.values()]], dtype=np.float64
        ),
        "fall_verdicts": tuple(own.verdict for own in falls.values()),
    }


def decided_again(path: Path) -> Diagnosis:
    """Read a saved report of `bayesgeom dynamics`, or of this module, and compute its report `settling`.

    Args:
        path: Directory of the saved report.

    Returns:
        The diagnosis with a new report `settling`; everything else is unchanged.

    Raises:
        OutputFault: The directory holds no readable dynamics report.
    """
    diagnosis = Diagnosis.load(path)
    if DynamicsReport.name not in diagnosis:
        raise OutputFault(f"{path} holds no report of `bayesgeom dynamics`; it holds {', '.join(diagnosis)}.")
    return with_settling(diagnosis)


def with_settling(diagnosis: Diagnosis) -> Diagnosis:
    """Return what `training_dynamics` found with the report `settling` after its curves."""
    curves = diagnosis[DynamicsReport]
    others = {name: own for name, own in diagnosis.items() if name not in (curves.name, SettlingReport.name)}
    reports = {curves.name: curves, SettlingReport.name: settling_report(curves), **others}
    skipped = {name: why for name, why in diagnosis.skipped.items() if name != SettlingReport.name}
    return replace(diagnosis, reports=reports, skipped=skipped)
