"""Curves over positions: errors, the discontinuity at the training length, and the convergence of a posterior.

All functions on errors take those of single sequences, so whole sequences are resampled and intervals are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int

from bayesgeom.core import Reason, Run
from bayesgeom.core.batching import even_slices
from bayesgeom.core.observers import STARTS
from bayesgeom.report.estimate import Baseline, Estimate, mean_estimate, with_interval
from bayesgeom.stats.bootstrap import mean_interval, ratio_interval
from bayesgeom.stats.windows import EquivalentWindow, equivalent_window, window_name, windows_beyond_own

LARGEST_WITHIN = "largest within the training length"
LAST_SHARE = 0.25  # share of the positions, at the end, over which the floor of the entropy is averaged
N_TREND = 5  # positions to which the trend before the discontinuity is fitted
_WORST = 1e6  # bits, replaces infinite values
_PLACES = 4_096  # positions resampled at once, so that memory does not grow with the length


@final
@dataclass(frozen=True, kw_only=True)
class Errors:
    """One model's errors at ascending positions or distances (`at`); errors of predictors are means.

    `window` is the model's equivalent window over the whole run, if the task's hidden state moves. `wide` names the
    window observers of more symbols than the task's own baselines.
    """

    at: Int[np.ndarray, " position"]
    kl_bits: Float[np.ndarray, "sequence position"]
    entropy_error_bits: Float[np.ndarray, "sequence position"]
    predictor_kl_bits: Mapping[str, Float[np.ndarray, " position"]]
    predictor_entropy_error_bits: Mapping[str, Float[np.ndarray, " position"]]
    window: EquivalentWindow | None = None
    wide: tuple[str, ...] = ()


def errors_along(run: Run) -> Errors:
    """Return the errors of one run, position by position.

    Window observers that a task's own baselines lack, wider than four and up to ten symbols, are added: see
    `windows_beyond_own`.
    """
    behavior, windows = run.behavior, run.windows
    kl = {name: b.kl_bits.mean(axis=0, dtype=np.float64) for name, b in run.baseline_behaviors.items()}
    errors = {name: seen.entropy_error_bits.mean(axis=0) for name, seen in run.baseline_behaviors.items()}
    wide = list[str]()
    if windows is not None:
        for start, width in windows_beyond_own(windows.kl_bits.mean(axis=2)):
            wide.append(window_name(width, STARTS[start]))
            kl[wide[-1]] = windows.kl_bits_by_position[start, width]
            errors[wide[-1]] = windows.entropy_error_bits[start, width]
    return Errors(
        at=np.arange(1, behavior.kl_bits.shape[1] + 1),
        kl_bits=behavior.kl_bits.astype(np.float64),
        entropy_error_bits=behavior.entropy_error_bits,
        predictor_kl_bits=kl,
        predictor_entropy_error_bits=errors,
        window=None if windows is None else equivalent_window(windows, behavior.kl_bits, seed=run.seed),
        wide=tuple(wide),
    )


def errors_across(runs: Mapping[int, Run]) -> Errors:
    """Return the errors of one run per distance, each averaged over positions."""
    lengths = sorted(runs)
    parts = [errors_along(runs[length]) for length in lengths]

    def levels(field: str) -> dict[str, Float[np.ndarray, " position"]]:
        fields = [vars(part)[field] for part in parts]
        return {name: np.array([each[name].mean() for each in fields]) for name in fields[0]}

    return Errors(
        at=np.array(lengths),
        kl_bits=np.stack([part.kl_bits.mean(axis=1) for part in parts], axis=1),
        entropy_error_bits=np.stack([part.entropy_error_bits.mean(axis=1) for part in parts], axis=1),
        predictor_kl_bits=levels("predictor_kl_bits"),
        predictor_entropy_error_bits=levels("predictor_entropy_error_bits"),
    )


def discontinuity(
    errors: Float[np.ndarray, "sequence position"], at: Int[np.ndarray, " position"], trained: int, *, seed: int
) -> Estimate:
    """Return the discontinuity: the error at the first position beyond the training length minus its trend.

    The trend is a straight line fitted to the last five positions within the training length, or to all of them if
    there are fewer, at least two. Its extrapolation is a weighted sum of errors, so it is a mean over sequences with a
    paired interval. The baseline is the largest discontinuity of the same kind at the last positions within.
    """
    last = int((at <= trained).sum()) - 1
    if last < 1 or last + 1 >= len(at):
        return Estimate.of(np.nan, (np.nan, np.nan), baselines=(Baseline.of("baseline", LARGEST_WITHIN, np.nan),))
    earlier = [errors[:, place] - errors @ _line(at, place) for place in range(max(2, last - N_TREND + 1), last + 1)]
    largest = max((abs(float(residuals.mean())) for residuals in earlier), default=float("nan"))
    residuals = errors[:, last + 1] - errors @ _line(at, last + 1)
    return mean_estimate(residuals, seed=seed, baselines=(Baseline.of("baseline", LARGEST_WITHIN, largest),))


def critical_length(
    errors: Float[np.ndarray, "sequence position"], at: Int[np.ndarray, " position"], threshold: float, *, seed: int
) -> Estimate:
    """Return the first position whose mean error exceeds the threshold; infinite if none does. See `first_place`."""
    low, high = mean_along(errors, seed=seed).ends
    is_known, is_there = np.isfinite(low), errors.mean(axis=0) > threshold
    return first_place(at, is_there, ~is_known | (high > threshold), low > threshold, is_known, n=len(errors))


def first_place(
    at: Int[np.ndarray, " position"],
    is_there: Bool[np.ndarray, " position"],
    may_be: Bool[np.ndarray, " position"],
    is_certain: Bool[np.ndarray, " position"],
    is_known: Bool[np.ndarray, " position"],
    *,
    n: int,
) -> Estimate:
    """Return the first position where a condition holds; infinite if it holds nowhere.

    The interval runs from the first position where the condition may hold to the first where it certainly does, by the
    intervals of the means. It is conservative: it held the true position in 98 to 100 % of planted data sets
    (`benchmarks/interval_coverage.py`), because a position is a whole number.

    Args:
        at: The positions, ascending.
        is_there: Whether the condition holds at each position.
        may_be: Whether it may hold: also where the mean has no interval.
        is_certain: Whether it certainly holds.
        is_known: Whether the mean has an interval; without any, there is none of the position either.
        n: Number of sequences.
    """
    value, low, high = (float(at[mask.argmax()]) if mask.any() else np.inf for mask in (is_there, may_be, is_certain))
    if not is_known.any():
        return Estimate.of(value, (np.nan, np.nan), n=n, reason=Reason.FEW)
    return Estimate.of(value, (low, high), n=n, reason=Reason.CONSERVATIVE)


def extrapolation_ratio(
    errors: Float[np.ndarray, "sequence position"],
    at: Int[np.ndarray, " position"],
    trained: int,
    shortcut: Baseline,
    *,
    seed: int,
) -> Estimate:
    """Return the mean error beyond the training length over that within; the baseline is a shortcut's ratio."""
    beyond, within = errors[:, at > trained].mean(axis=1), errors[:, at <= trained].mean(axis=1)
    interval, others = ratio_interval(beyond, within, seed=seed, is_positive=True), shortcut.value
    with np.errstate(invalid="ignore", divide="ignore"):
        value, level = beyond.mean() / within.mean(), others[at > trained].mean() / others[at <= trained].mean()
    baseline = Baseline.of(shortcut.kind, shortcut.name, level)
    return with_interval(float(value), interval, n=len(errors), baselines=(baseline,))


def whole_means(
    errors: Float[np.ndarray, "sequence position"],
    at: Int[np.ndarray, " position"],
    lengths: Sequence[int],
    *,
    is_prefix: bool,
    seed: int,
) -> Estimate:
    """Return the mean over the whole sequence at each length, with its interval; it dilutes a discontinuity."""
    parts = [errors[:, at <= length].mean(axis=1) if is_prefix else errors[:, at == length][:, 0] for length in lengths]
    return mean_estimate(np.stack(parts, axis=1), seed=seed)


def mean_along(errors: Float[np.ndarray, "sequence position"], *, seed: int) -> Estimate:
    """Return the mean at each position, with its interval."""
    parts = [mean_interval(errors[:, some], seed=seed) for some in even_slices(errors.shape[1], at_most=_PLACES)]
    low, high, codes = (np.concatenate(ends) for ends in zip(*((p.lo, p.hi, p.code) for p in parts), strict=True))
    return Estimate.of(errors.mean(axis=0), (low, high), n=len(errors), reason=codes)


def strongest(predictors: Mapping[str, Float[np.ndarray, " position"]]) -> str:
    """Return the predictor with the lowest mean KL."""
    return min(predictors, key=lambda name: float(np.nan_to_num(predictors[name], nan=_WORST, posinf=_WORST).mean()))


def _line(at: Int[np.ndarray, " position"], target: int) -> Float[np.ndarray, " position"]:
    """Return the weights that extrapolate the least-squares line through the positions before `target`."""
    chosen = slice(max(0, target - N_TREND), target)
    x = at[chosen] - at[chosen].mean()
    weights = np.zeros(len(at))
    weights[chosen] = 1 / len(x) + (at[target] - at[chosen].mean()) * x / (x**2).sum()
    return weights


def floor_bits(entropies_bits: Float[np.ndarray, "sequence position"]) -> float:
    """Return the floor: mean entropy over the last quarter of the positions."""
    return float(entropies_bits[:, -_n_last(entropies_bits.shape[1]) :].mean())


def tokens_to_converge(
    entropies_bits: Float[np.ndarray, "sequence position"], threshold_bits: float, *, seed: int
) -> Estimate:
    """Return the first scored position, counted from 1, at which mean entropy is within the threshold of its floor.

    Infinite if there is no such position. The interval runs from the first position that may be as near to the first
    that certainly is, by the intervals of the mean differences from the floor: see `curves.first_place`.
    """
    n_positions, values = entropies_bits.shape[1], entropies_bits.astype(np.float64)
    mean = values.mean(axis=0)
    is_there = np.abs(mean - mean[-_n_last(n_positions) :].mean()) <= threshold_bits
    away = mean_along(values - values[:, -_n_last(n_positions) :].mean(axis=1, keepdims=True), seed=seed)
    low, high = away.ends
    may_be = is_there | np.isnan(low) | ((low <= threshold_bits) & (high >= -threshold_bits))
    is_certain = is_there & (low >= -threshold_bits) & (high <= threshold_bits)
    at = np.arange(1, n_positions + 1)
    return first_place(at, is_there, may_be, is_certain, np.isfinite(low), n=len(values))


def _n_last(n_positions: int) -> int:
    return max(1, round(LAST_SHARE * n_positions))
