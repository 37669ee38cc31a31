"""Errors position by position, and what they say of a break at the training length.

Everything is a function of per-sequence errors, so that sequences are resampled whole and intervals are paired.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int

from bayesgeom.core.memory import EffectiveMemory, effective_memory
from bayesgeom.core.run import Behaviour, Run
from bayesgeom.stats.bootstrap import mean_interval, ratio_interval

N_TREND = 5  # positions through which the trend before a break is drawn
_WORST = 1e6  # bits, in place of what is infinite
_PLACES = 4_096  # resampled at once, so that memory does not grow with the length


@final
@dataclass(frozen=True, kw_only=True)
class Errors:
    """One model's errors at ascending places: positions, or distances. `nulls` are means, by predictor.

    `memory` is the model's effective memory over the whole run, where the hidden state moves.
    """

    at: Int[np.ndarray, " position"]
    kl_bits: Float[np.ndarray, "sequence position"]
    entropy_error_bits: Float[np.ndarray, "sequence position"]
    null_kl_bits: Mapping[str, Float[np.ndarray, " position"]]
    null_entropy_error_bits: Mapping[str, Float[np.ndarray, " position"]]
    memory: EffectiveMemory | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number, its 95 % interval, and what it is without the effect."""

    value: float
    lo: float
    hi: float
    null: float = float("nan")


def errors_along(run: Run) -> Errors:
    """The errors of one run, position by position."""
    own = run.behaviour
    n_positions = own.kl_bits.shape[1]
    return Errors(
        at=np.arange(1, n_positions + 1),
        kl_bits=own.kl_bits.astype(np.float64),
        entropy_error_bits=_entropy_error(own),
        null_kl_bits={name: b.kl_bits.mean(axis=0, dtype=np.float64) for name, b in run.null_behaviours.items()},
        null_entropy_error_bits={name: _entropy_error(b).mean(axis=0) for name, b in run.null_behaviours.items()},
        memory=None if run.windows is None else effective_memory(run.windows, own.kl_bits, seed=run.seed),
    )


def errors_across(runs: Mapping[int, Run]) -> Errors:
    """The errors of one run per distance, each averaged over its positions."""
    lengths = sorted(runs)
    parts = [errors_along(runs[length]) for length in lengths]
    return Errors(
        at=np.array(lengths),
        kl_bits=np.stack([part.kl_bits.mean(axis=1) for part in parts], axis=1),
        entropy_error_bits=np.stack([part.entropy_error_bits.mean(axis=1) for part in parts], axis=1),
        null_kl_bits={name: np.array([p.null_kl_bits[name].mean() for p in parts]) for name in parts[0].null_kl_bits},
        null_entropy_error_bits={
            name: np.array([p.null_entropy_error_bits[name].mean() for p in parts]) for name in parts[0].null_kl_bits
        },
    )


def jump(
    errors: Float[np.ndarray, "sequence position"], at: Int[np.ndarray, " position"], trained: int, *, seed: int
) -> "Jump":
    """What is found at the first place beyond the training length, less what the trend before it predicts there.

    The trend is a straight line through the last five places within, or as many as there are, at least two. Its
    extrapolation is a weighted sum of errors, so the jump is a mean over sequences, and its interval a paired one. The
    null is the largest jump that such a line makes at any of the last places within, where nothing happens.
    """
    last = int((at <= trained).sum()) - 1
    unknown = Estimate(value=np.nan, lo=np.nan, hi=np.nan)
    if last < 1 or last + 1 >= len(at):
        return Jump(predicted=unknown, found=unknown, jump=unknown)
    predicted, found = errors @ _line(at, last + 1), errors[:, last + 1]
    earlier = [errors[:, place] - errors @ _line(at, place) for place in range(max(2, last - N_TREND + 1), last + 1)]
    null = max((abs(float(own.mean())) for own in earlier), default=float("nan"))
    return Jump(
        predicted=_mean(predicted, seed), found=_mean(found, seed), jump=_mean(found - predicted, seed, null)
    )  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Jump:
    """Beyond the training length by one place: predicted, found, and the difference."""

    predicted: Estimate
    found: Estimate
    jump: Estimate


def critical_length(
    errors: Float[np.ndarray, "sequence position"], at: Int[np.ndarray, " position"], threshold: float, *, seed: int
) -> Estimate:
    """The first place whose mean error exceeds the threshold; infinite where none does.

    The interval runs from the first place where the error may exceed it to the first where it certainly does, by the
    intervals of the means. A place whose mean has no interval may exceed it, and does not certainly.
    """
    mean, lo, hi = mean_along(errors, seed=seed)
    is_known = np.isfinite(lo)
    ends = (mean > threshold, ~is_known | (hi > threshold), is_known & (lo > threshold), is_known)
    return first_place(at, *ends)


def first_place(
    at: Int[np.ndarray, " position"],
    is_there: Bool[np.ndarray, " position"],
    may_be: Bool[np.ndarray, " position"],
    is_certain: Bool[np.ndarray, " position"],
    is_known: Bool[np.ndarray, " position"],
) -> Estimate:
    """The first place where something is there, with the first where it may be and where it certainly is.

    `is_known` says which places have an interval at all; without any there is no interval of the place either.
    """
    value, lo, hi = (float(at[own.argmax()]) if own.any() else np.inf for own in (is_there, may_be, is_certain))
    return Estimate(value=value, lo=lo, hi=hi) if is_known.any() else Estimate(value=value, lo=np.nan, hi=np.nan)


def extrapolation_ratio(
    errors: Float[np.ndarray, "sequence position"],
    at: Int[np.ndarray, " position"],
    trained: int,
    null: Float[np.ndarray, " position"],
    *,
    seed: int,
) -> Estimate:
    """Mean error beyond the training length over that within; the null is the ratio of the strongest shortcut."""
    beyond, within = errors[:, at > trained].mean(axis=1), errors[:, at <= trained].mean(axis=1)
    lo, hi = ratio_interval(beyond, within, seed=seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        value, chance = beyond.mean() / within.mean(), null[at > trained].mean() / null[at <= trained].mean()
    return Estimate(value=float(value), lo=float(lo), hi=float(hi), null=float(chance))


def whole_means(
    errors: Float[np.ndarray, "sequence position"],
    at: Int[np.ndarray, " position"],
    lengths: Sequence[int],
    *,
    is_prefix: bool,
    seed: int,
) -> tuple[Float[np.ndarray, " length"], Float[np.ndarray, " length"], Float[np.ndarray, " length"]]:
    """The mean over the whole sequence at each length, with its interval: what dilutes a break."""
    parts = [errors[:, at <= length].mean(axis=1) if is_prefix else errors[:, at == length][:, 0] for length in lengths]
    whole = np.stack(parts, axis=1)
    lo, hi = mean_interval(whole, seed=seed)
    return whole.mean(axis=0), lo, hi


def mean_along(
    errors: Float[np.ndarray, "sequence position"], *, seed: int
) -> tuple[Float[np.ndarray, " position"], Float[np.ndarray, " position"], Float[np.ndarray, " position"]]:
    """The mean at each place, with its interval."""
    bounds = [mean_interval(errors[:, some], seed=seed) for some in _some_places(errors.shape[1])]
    lo, hi = (np.concatenate(ends) for ends in zip(*bounds, strict=True))
    return errors.mean(axis=0), lo, hi


def strongest(nulls: Mapping[str, Float[np.ndarray, " position"]]) -> str:
    """The predictor with the least mean KL: the level to beat."""
    return min(nulls, key=lambda name: float(np.nan_to_num(nulls[name], nan=_WORST, posinf=_WORST).mean()))


def _some_places(n: int) -> Iterator[slice]:
    return (slice(start, start + _PLACES) for start in range(0, n, _PLACES))


def _mean(values: Float[np.ndarray, " sequence"], seed: int, null: float = float("nan")) -> Estimate:
    lo, hi = mean_interval(values, seed=seed)
    return Estimate(value=float(values.mean()), lo=float(lo), hi=float(hi), null=null)


def _line(at: Int[np.ndarray, " position"], target: int) -> Float[np.ndarray, " position"]:
    """Weights that extrapolate the least-squares line through the places before `target` to it."""
    chosen = slice(max(0, target - N_TREND), target)
    x = at[chosen] - at[chosen].mean()
    weights = np.zeros(len(at))
    weights[chosen] = 1 / len(x) + (at[target] - at[chosen].mean()) * x / (x**2).sum()
    return weights


def _entropy_error(behaviour: Behaviour) -> Float[np.ndarray, "sequence position"]:
    error: np.ndarray = np.abs(behaviour.model_entropy_bits.astype(np.float64) - behaviour.exact_entropy_bits)
    return error
