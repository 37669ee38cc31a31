"""The reports from the measurements of every snapshot."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bayesgeom.core.verdict import Reason
from bayesgeom.dynamics.measure import BY_LAYER, SCALARS, Measured
from bayesgeom.dynamics.order import FRAME, PRECISION, order_of
from bayesgeom.dynamics.report import DIRECTIONS, SHUFFLED, SUBSPACES, UNIFORM, DynamicsReport
from bayesgeom.dynamics.rows import interval_of, over_trainings, overlap_interval_of
from bayesgeom.dynamics.runs import TrainingRun
from bayesgeom.dynamics.settling import (
    dissociation,
    fall,
    frame_moment,
    measuring,
    precision_by_share,
    precision_moment,
)
from bayesgeom.dynamics.settling_report import RULES, SPACING, TOGETHER, SettlingReport
from bayesgeom.results.estimate import Baseline, Estimate, Kind, with_ceiling
from bayesgeom.results.estimators import with_interval
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.stats.intervals import Scale

Stacked = Mapping[str, Float[np.ndarray, "run step row *layer"]]


def stacked(found: Sequence[Sequence[Measured]]) -> Stacked:
    """Return the numbers of all trainings and snapshots under their names."""
    names = (*BY_LAYER, *SCALARS)
    return {name: np.stack([np.stack([own.numbers[name] for own in run]) for run in found]) for name in names}


def dynamics_report(
    runs: Sequence[TrainingRun], numbers: Stacked, counts: Mapping[str, int], *, n: int, seed: int
) -> DynamicsReport:
    """Return the report: every diagnostic over snapshots, with intervals and baselines.

    Args:
        runs: The trainings.
        numbers: What `stacked` returned.
        counts: For each number, of how many sequences it is.
        n: Number of all sequences.
        seed: Seed of the resamples.
    """

    def value(name: str) -> Float[np.ndarray, "run step *layer"]:
        return numbers[name][:, :, 0]

    def level(kind: Kind, name: str, of: Float[np.ndarray, "*axes"] | float) -> list[Baseline]:
        """Return a list with the baseline, empty if it is NaN."""
        found = Baseline.of(kind, name, of)
        return [found] if np.isfinite(found.value).any() else []

    def estimate(name: str, baselines: Sequence[Baseline] = (), scale: Scale = "plain") -> Estimate:
        ends = interval_of(np.moveaxis(numbers[name], 2, 0), seed=seed, scale=scale)
        return with_interval(value(name), ends, n=counts[name], baselines=baselines)

    uniform = level("baseline", UNIFORM, float(value("uniform_kl_bits")[0, 0]))
    directions = level("chance", DIRECTIONS, float(value("chance_key_overlap")[0, 0]))
    kl, rows = value("kl_bits"), np.moveaxis(numbers["key_overlap"], 2, 0)
    ends = overlap_interval_of(rows, value("key_overlap_kink"), seed=seed)
    return DynamicsReport(
        runs=tuple(run.name for run in runs),
        steps=tuple(str(step) for step in runs[0].steps),
        kl_bits=estimate("kl_bits", uniform),
        kl_bits_mean=over_trainings(kl.mean(axis=0), seed_interval(kl), n=len(runs), baselines=uniform),
        entropy_mae_bits=estimate("entropy_mae_bits"),
        pattern_distance_bits=_distance(
            numbers["pattern_distance_bits"].mean(axis=-1), counts["pattern_distance_bits"], seed
        ),
        pattern_distance_bits_by_layer=value("pattern_distance_bits"),
        key_overlap=with_interval(rows[0], ends, n=counts["key_overlap"], baselines=directions),
        pc1_share=estimate("pc1_share", scale="share"),
        curve_share=Estimate.of(
            value("curve_share"),
            n=counts["curve_share"],
            baselines=level("permutation", SHUFFLED, value("shuffled_curve_share")),
        ),
        belief_r2=estimate("belief_r2", level("chance", SUBSPACES, value("random_belief_r2"))),
        answer_shift_bits=with_ceiling(
            estimate("answer_shift_bits", level("chance", SUBSPACES, value("random_answer_shift_bits"))),
            value("whole_answer_shift_bits"),
        ),
        frame_ratio=Estimate.of(
            value("frame_ratio"), n=counts["frame_ratio"], baselines=level("chance", DIRECTIONS, 1.0)
        ),
        n=n,
    )


def settling_report(curves: DynamicsReport) -> SettlingReport:
    """Return the report on thresholds that are reached, curves that settle, their order, and falls."""
    steps = [int(step) for step in curves.steps]
    kl = curves.kl_bits.value
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
        **order_of(steps, curves.timed()).fields(),
        **_falls(curves, steps),
        n=curves.n,
    )


def _distance(rows: Float[np.ndarray, "run step row"], n: int, seed: int) -> Estimate:
    """Return the attention-pattern distance to the last snapshot, exactly 0 at that snapshot."""
    ends, found = interval_of(np.moveaxis(rows, 2, 0), seed=seed), rows[:, :, 0]
    is_itself = (np.arange(found.shape[1]) == found.shape[1] - 1) & (found == 0)
    low, high = (np.where(is_itself, 0.0, end) for end in ends)
    return Estimate.of(found, (low, high), n=n, reason=ends.code)


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
