"""From what was measured of every snapshot to the report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bayesgeom.dynamics.measure import Measured
from bayesgeom.dynamics.order import FRAME, PRECISION, order_of
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.dynamics.rows import interval_of
from bayesgeom.dynamics.runs import TrainingRun
from bayesgeom.dynamics.settling import (
    Dissociation,
    dissociation,
    fall,
    frame_moment,
    precision_by_share,
    precision_moment,
)
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.stats.intervals import Scale

Stacked = Mapping[str, Float[np.ndarray, "run step row *layer"]]
_WITH_INTERVALS: Mapping[str, Scale] = {
    "kl_bits": "plain",
    "entropy_mae_bits": "plain",
    "key_overlap": "share",
    "pc1_share": "share",
    "belief_r2": "plain",
    "redirect_bits": "plain",
}
_MEANS = ("kl_bits", "entropy_mae_bits")
_PLAIN = {
    "curve_share": "curve_share",
    "curve_share_null": "curve_share_null",
    "belief_r2_null": "belief_r2_null",
    "redirect_null_bits": "redirect_bits_null",
    "redirect_ceiling_bits": "redirect_ceiling_bits",
    "frame_ratio": "frame_ratio",
}


def stacked(found: Sequence[Sequence[Measured]], names: Sequence[str]) -> Stacked:
    """Numbers of all trainings and snapshots under their names."""
    return {name: np.stack([np.stack([own.numbers[name] for own in run]) for run in found]) for name in names}


def dynamics_report(
    runs: Sequence[TrainingRun], found: Sequence[Sequence[Measured]], *, n: int, seed: int
) -> DynamicsReport:
    """Estimates, intervals, what settles when, and what falls again."""
    names = (*_WITH_INTERVALS, *_PLAIN, "pattern_distance_bits")
    numbers = stacked(found, names)
    steps = runs[0].steps
    distance = numbers["pattern_distance_bits"].mean(axis=-1)
    frames = [frame_moment(steps, own) for own in distance[:, :, 0]]
    kl = numbers["kl_bits"][:, :, 0]
    precisions, shares = ([moment(steps, own) for own in kl] for moment in (precision_moment, precision_by_share))
    by_rule, by_share = dissociation(precisions, frames), dissociation(shares, frames)
    words = {"first": FRAME, "second": PRECISION}
    curves = {
        "kl_bits": kl, "pattern_distance_bits": distance[:, :, 0], "key_overlap": numbers["key_overlap"][:, :, 0],
        "curve_share": numbers["curve_share"][:, :, 0],
    }  # fmt: skip
    return DynamicsReport(
        runs=tuple(run.name for run in runs),
        steps=tuple(str(step) for step in steps),
        **_estimates(numbers, seed),
        **_distance(distance, seed),
        pattern_distance_bits_by_layer=numbers["pattern_distance_bits"][:, :, 0],
        frame_step=np.array([moment.step for moment in frames]),
        precision_step=np.array([moment.step for moment in precisions]),
        precision_step_by_share=np.array([moment.step for moment in shares]),
        dissociation_by_run=by_rule.per_run,
        dissociation_by_run_least=by_rule.least,
        dissociation_by_run_most=by_rule.most,
        dissociation_by_share_by_run=by_share.per_run,
        dissociation=by_rule.mean,
        dissociation_by_share=by_share.mean,
        verdict=by_rule.verdict(**words),
        verdict_by_share=by_share.verdict(**words),
        **order_of(steps, curves).fields(),
        **_falls(numbers, steps, seed),
        key_overlap_chance=float(found[0][0].numbers["key_overlap_chance"][0]),
        kl_bits_uniform=float(found[0][0].numbers["uniform_kl_bits"][0]),
        missing=dict(found[0][0].missing),
        intervals={name: (d.lo, d.hi) for name, d in _named(by_rule, by_share)},
        nulls={name: 0.0 for name, _ in _named(by_rule, by_share)},
        n=n,
    )  # fmt: skip


def _named(by_rule: Dissociation, by_share: Dissociation) -> tuple[tuple[str, Dissociation], ...]:
    return ("dissociation", by_rule), ("dissociation_by_share", by_share)


def _estimates(numbers: Stacked, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, scale in _WITH_INTERVALS.items():
        lo, hi = interval_of(np.moveaxis(numbers[name], 2, 0), seed=seed, scale=scale)
        found |= {name: numbers[name][:, :, 0], f"{name}_lo": lo, f"{name}_hi": hi}
    for name in _MEANS:
        lo, hi = seed_interval(numbers[name][:, :, 0])
        mean = numbers[name][:, :, 0].mean(axis=0)
        found |= {f"{name}_mean": mean, f"{name}_mean_lo": lo, f"{name}_mean_hi": hi}
    return found | {field: numbers[name][:, :, 0] for name, field in _PLAIN.items()}


def _distance(rows: Float[np.ndarray, "run step row"], seed: int) -> dict[str, Any]:
    """Attention-pattern distance, which is exactly 0 at the last snapshot: it is the distance to that."""
    interval, found = interval_of(np.moveaxis(rows, 2, 0), seed=seed), rows[:, :, 0]
    is_itself = (np.arange(found.shape[1]) == found.shape[1] - 1) & (found == 0)
    lo, hi = (np.where(is_itself, 0.0, end) for end in interval)
    return {"pattern_distance_bits": found, "pattern_distance_bits_lo": lo, "pattern_distance_bits_hi": hi}


def _falls(numbers: Stacked, steps: Sequence[int], seed: int) -> dict[str, Any]:
    """The largest fall of every curve that is said to rise."""
    curves = {
        "PC1 share": numbers["pc1_share"],
        "curve share": numbers["curve_share"],
        "belief R²": numbers["belief_r2"],
    }
    for layer in range(numbers["redirect_bits"].shape[-1]):
        curves[f"redirect, layer {layer}"] = numbers["redirect_bits"][..., layer]
        curves[f"frame ratio, layer {layer}"] = numbers["frame_ratio"][..., layer]
    falls = {name: fall(np.moveaxis(values, 1, 2), seed=seed) for name, values in curves.items()}
    return {
        "curves": tuple(falls),
        "fall": np.array([own.size for own in falls.values()]),
        "fall_lo": np.array([own.lo for own in falls.values()]),
        "fall_hi": np.array([own.hi for own in falls.values()]),
        "fall_share": np.array([own.share for own in falls.values()]),
        "fall_start": np.array([float(steps[own.start]) for own in falls.values()]),
        "fall_end": np.array([float(steps[own.end]) for own in falls.values()]),
        "fall_verdicts": tuple(own.verdict for own in falls.values()),
    }
