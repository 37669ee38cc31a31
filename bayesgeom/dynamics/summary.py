"""The report from the measurements of every snapshot."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from bayesgeom.dynamics.measure import (
    BY_LAYER,
    SCALARS,
    SnapshotNumbers,
    interval_of,
    over_trainings,
    overlap_interval_of,
)
from bayesgeom.dynamics.report import DIRECTIONS, SHUFFLED, SUBSPACES, UNIFORM, DynamicsReport
from bayesgeom.dynamics.trainings import TrainingRun
from bayesgeom.report.estimate import Baseline, Estimate, Kind, with_ceiling, with_interval
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.stats.intervals import Scale

Stacked = Mapping[str, Float[np.ndarray, "run step row *layer"]]


def stacked(found: Sequence[Sequence[SnapshotNumbers]]) -> Stacked:
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


def _distance(rows: Float[np.ndarray, "run step row"], n: int, seed: int) -> Estimate:
    """Return the attention-pattern distance to the last snapshot, exactly 0 at that snapshot."""
    ends, found = interval_of(np.moveaxis(rows, 2, 0), seed=seed), rows[:, :, 0]
    is_itself = (np.arange(found.shape[1]) == found.shape[1] - 1) & (found == 0)
    low, high = (np.where(is_itself, 0.0, end) for end in ends)
    return Estimate.of(found, (low, high), n=n, reason=ends.code)
