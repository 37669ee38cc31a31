"""Equivalent window: the width of the window observer that predicts as well as a model.

The model is compared with the window observers of `bayesgeom.core.observers`, using the better of the two starts at
each width. A predictor that uses only the last w symbols cannot beat the observer of width w, except by the error of
that observer's prior. So a model with an equivalent window above w uses more than w symbols. Below w it shows nothing:
the equivalent window is an accuracy in units of w, not a memory. The exact filter over 64 symbols of a slow chain,
mixed with 20 % of the uniform distribution, has an equivalent window of 7 symbols. `bayesgeom.evidence_response` tests
whether a model uses old evidence.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from bayesgeom.core import Trials, WindowScores
from bayesgeom.core.observers import STARTS, window_beliefs
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.information import NATS_PER_BIT
from bayesgeom.stats.intervals import MIN_DIFFERENT

WIDEST_BASELINE = 4  # symbols: of wider windows, only the one that decides is listed as a baseline
RESOLUTION_BITS = 1e-6  # a window observer this close to the posterior counts as the posterior
TRANSPORT_WINDOW = 10  # symbols
TRANSPORT_BITS = 0.02  # least KL of that window's observer on a task that can show transport
END_LEVEL = 0.035  # probability with which each end of the window may be wrong; both together cover 93 to 96.5 %
_WINDOWS = ("stationary", "likelihood_only", "last_symbol", "last_two", "last_roll")  # with names of their own
_EDGE = 0.2  # an end this close to 0, in distances from the mean to it, may change sign with the resamples: 5 errors
_SETS = 16  # sets of resamples behind such an end, so that its own error is a quarter of that of one set
_STOP_BITS = 1e-8  # wider windows are not computed
_ROUNDING_BITS = 1e-9


@final
@dataclass(frozen=True, kw_only=True)
class EquivalentWindow:
    """Comparison of a model with the window observers of its task; see `equivalent_window`.

    Attributes:
        kl_bits: Mean KL of every window observer.
        gain_bits: KL of the stronger window observer minus KL of the model, at each width.
        gain_ends: Both ends of the paired interval of `gain_bits`.
        gain_code: The number of the reason of each interval that is withheld.
        is_beaten: Whether the model beats the stronger window observer, at each width.
        symbols: The equivalent window: the smallest width whose observer the model does not beat; too large with
            probability 3.5 %. NaN (undecided) if the gain over that observer has no interval.
        most_symbols: The smallest width whose observer is at least as good with the same confidence, or NaN.
        transport_gap_bits: KL of the stationary observer of the last 10 symbols. 0 for shorter sequences.
    """

    kl_bits: Float64[np.ndarray, "start window"]
    gain_bits: Float64[np.ndarray, " window"]
    gain_ends: tuple[Float64[np.ndarray, " window"], Float64[np.ndarray, " window"]]
    gain_code: Int[np.ndarray, " window"]
    is_beaten: Bool[np.ndarray, " window"]
    symbols: float
    most_symbols: float
    transport_gap_bits: float

    @property
    def length(self) -> int:
        """Symbols in a sequence. A window of this width is the exact filter."""
        return int(self.kl_bits.shape[1]) - 1


def window_name(width: int, start: str) -> str:
    """Return the name of a window observer among a task's baselines: "window_3_stationary", "stationary".

    Example:
        >>> window_name(3, "stationary"), window_name(0, "stationary")
        ('window_3_stationary', 'stationary')
    """
    return f"window_{width}_{start}" if width else start


def is_window(name: str) -> bool:
    """Return whether a task's baseline of this name is an observer of the last symbols, or of none.

    Example:
        >>> [name for name in ("window_3_stationary", "last_two", "plug_in", "stationary") if is_window(name)]
        ['window_3_stationary', 'last_two', 'stationary']
    """
    return name.startswith("window_") or name in _WINDOWS


def deciding_window(kl_bits: Float64[np.ndarray, "start window"], symbols: float) -> int:
    """Return the width of the window observer with which a model's KL has to be compared.

    This is the narrowest one that the model does not beat. If it beats all of up to ten symbols, or if that is not
    decided, it is the observer of ten symbols, or the widest within that whose KL is at least 1e-6 bits.

    Args:
        kl_bits: KL of every window observer.
        symbols: The equivalent window, or NaN.

    Example:
        >>> kl_bits = np.array([[0.4, 0.1, 0.01, 1e-9, 0.0]] * 2)
        >>> deciding_window(kl_bits, 1.0), deciding_window(kl_bits, 4.0)
        (1, 2)
    """
    differ = np.logical_and.accumulate(kl_bits.min(axis=0) >= RESOLUTION_BITS)
    widest = min(TRANSPORT_WINDOW, max(int(differ.sum()) - 1, 0))
    return widest if math.isnan(symbols) else min(int(symbols), widest)


def wider_window(kl_bits: Float64[np.ndarray, "start window"], symbols: float) -> tuple[int, int] | None:
    """Return start and width of the window observer that joins a task's own baselines, or None if these include it.

    Every comparison of a model's mean error with window observers uses this function. A task's own baselines are
    windows of up to four symbols.

    Args:
        kl_bits: KL of every window observer.
        symbols: The equivalent window, or NaN.

    Example:
        >>> kl_bits = np.geomspace(1, 1e-3, 14)[None].repeat(2, axis=0)
        >>> wider_window(kl_bits, 3.0), wider_window(kl_bits, 6.0), wider_window(kl_bits, 12.0)
        (None, (0, 6), (0, 10))
    """
    width = deciding_window(kl_bits, symbols) if kl_bits.size else 0
    return (int(kl_bits[:, width].argmin()), width) if width > WIDEST_BASELINE else None


def windows_beyond_own(kl_bits: Float64[np.ndarray, "start window"]) -> tuple[tuple[int, int], ...]:
    """Return start and width of all window observers of up to ten symbols that are wider than a task's own baselines.

    At each width this is the stronger start. Observers closer than 1e-6 bits to the posterior are left out. Curves by
    position and reports on several models use all of them; single numbers use `wider_window`, which is one of them.

    Args:
        kl_bits: KL of every window observer.

    Example:
        >>> windows_beyond_own(np.array([[9, 5, 3, 2, 1, 0.5, 0.3], [8, 4, 3, 2, 1, 0.4, 0.0]]))
        ((1, 5),)
    """
    if not kl_bits.size:
        return ()
    widest = deciding_window(kl_bits, math.nan)
    return tuple((int(kl_bits[:, width].argmin()), width) for width in range(WIDEST_BASELINE + 1, widest + 1))


def window_predictives(trials: Trials, start: str) -> Iterator[Float64[Tensor, "batch query_pos answer"]]:
    """Yield the predictives of the window observers of width 0, 1, 2, … at the scored positions."""
    assert trials.observers is not None, "the task must have latent dynamics"
    observer = trials.observers.filter
    return (observer.answers(belief) for belief in window_beliefs(observer, trials.at_scored(trials.belief), start))


def window_scores(trials: Trials) -> WindowScores | None:
    """Score every window observer on these sequences; return None for a task without latent dynamics.

    Once the mean KL over these sequences is below 1e-8 bits, wider windows are skipped and their KL is set to 0.
    """
    if trials.observers is None:
        return None
    exact = trials.at_scored(trials.predictive)
    length = trials.n_scored
    negentropy = torch.xlogy(exact, exact).sum(dim=2)
    kl = torch.zeros(len(STARTS), length + 1, len(trials), dtype=torch.float64, device=exact.device)
    narrow = (len(STARTS), min(TRANSPORT_WINDOW, length) + 1, length)
    along, errors = (torch.zeros(narrow, dtype=torch.float64, device=exact.device) for _ in range(2))
    for start, name in enumerate(STARTS):
        for width, predicted in enumerate(window_predictives(trials, name)):
            short = slice(width, length)  # at earlier positions the window reaches the first symbol
            lost = negentropy[:, short] - torch.xlogy(exact[:, short], predicted[:, short]).sum(dim=2)
            kl[start, width] = lost.sum(dim=1) / (length * NATS_PER_BIT)
            if width <= TRANSPORT_WINDOW:
                along[start, width, short] = lost.mean(dim=0) / NATS_PER_BIT
                gap = negentropy[:, short] - torch.xlogy(predicted[:, short], predicted[:, short]).sum(dim=2)
                errors[start, width, short] = gap.abs().mean(dim=0) / NATS_PER_BIT
            if float(kl[start, width].mean()) < _STOP_BITS:
                break
    return WindowScores(
        kl_bits=kl.cpu().numpy(), kl_bits_by_position=along.cpu().numpy(), entropy_error_bits=errors.cpu().numpy()
    )


def joined(parts: Sequence[WindowScores]) -> WindowScores | None:
    """Return the scores of several blocks as one; None if there is no block."""
    if not parts:
        return None
    sizes = [part.kl_bits.shape[2] for part in parts]
    return WindowScores(
        kl_bits=np.concatenate([part.kl_bits for part in parts], axis=2),
        kl_bits_by_position=np.average([part.kl_bits_by_position for part in parts], axis=0, weights=sizes),
        entropy_error_bits=np.average([part.entropy_error_bits for part in parts], axis=0, weights=sizes),
    )


def equivalent_window(
    scores: WindowScores, kl_bits: Float[np.ndarray, "sequence position"], *, seed: int
) -> EquivalentWindow:
    """Compare a model with every window observer of its task.

    The equivalent window is the smallest w whose stronger observer the model does not beat. It beats an observer if the
    lower bound of the paired difference in mean KL, observer minus model, lies above 0. So the window observer of
    width w itself has equivalent window w: it beats w − 1 and ties with w. If the model beats every observer that is at
    least 1e-6 bits from the posterior, its equivalent window is the length of the sequence.

    The largest w whose observer is beaten (`is_beaten`) may be larger if a model fails at some width and beats a wider
    one. The first failure counts: predicting no better than w symbols is no evidence of more.

    Observers are tested in order of width, so each end of the interval is wrong in at most 3.5 % of samples. Where
    neighboring observers differ clearly, only the lower end can be wrong, and only if the model ties with one of them:
    the interval then covers 96.5 %. Where they nearly tie, both ends can be wrong, and it covers 93 % or more.

    With 1,000 resamples an end has an error of about 4 % of its distance from the mean, so an end near 0 would have the
    sign that the seed gives it. Such ends are means over 16 sets of resamples.

    Wide windows differ from the exact filter in few sequences. A gain in only a few sequences has no interval. It still
    counts if no sequence contradicts it and at least 8 show it (sign test: p = 0.004). Otherwise the window is NaN
    (undecided) from that width on.

    Args:
        scores: The window observers' KL on the same sequences.
        kl_bits: The model's KL.
        seed: Seed of the bootstrap.
    """
    means = scores.kl_bits.mean(axis=2)
    stronger = means.argmin(axis=0)
    observer = np.take_along_axis(scores.kl_bits, stronger[None, :, None], axis=0)[0]
    gain = observer.T - kl_bits.mean(axis=1, dtype=np.float64)[:, None]
    is_tied = np.abs(gain).max(axis=0) <= _ROUNDING_BITS  # tied in every sequence: no interval needed
    interval = mean_interval(gain, seed=seed)
    lo, hi = (np.where(is_tied, 0.0, end) for end in interval)
    bounds = (np.where(is_tied, 0.0, end) for end in _sure_ends(gain, seed=seed))
    # A missing end is replaced by the mean gain if all sequences agree which predictor is better.
    agree = (gain >= -_ROUNDING_BITS).all(axis=0) | (gain <= _ROUNDING_BITS).all(axis=0)
    is_sure = agree & ((np.abs(gain) > _ROUNDING_BITS).sum(axis=0) >= MIN_DIFFERENT)
    sure_lo, sure_hi = (np.where(np.isnan(end) & is_sure, gain.mean(axis=0), end) for end in bounds)
    is_distinct = means.min(axis=0) >= RESOLUTION_BITS
    is_known = len(gain) > 1
    return EquivalentWindow(
        kl_bits=means,
        gain_bits=gain.mean(axis=0),
        gain_ends=(lo, hi),
        gain_code=interval.code,
        is_beaten=is_distinct & (sure_lo > _ROUNDING_BITS),
        symbols=_first_without(sure_lo, is_distinct) if is_known else math.nan,
        most_symbols=_first_without(sure_hi, is_distinct) if is_known else math.nan,
        transport_gap_bits=float(means[STARTS.index("stationary"), TRANSPORT_WINDOW:][:1].sum()),
    )


def _sure_ends(gain: Float[np.ndarray, "sequence window"], *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of the mean gain at `END_LEVEL`, from more resamples where an end is close to 0."""
    mean, (lo, hi) = gain.mean(axis=0), mean_interval(gain, seed=seed, level=END_LEVEL)
    is_close = np.logical_or(*(np.abs(end) < _EDGE * np.abs(mean - end) for end in (lo, hi)))
    if not is_close.any():
        return lo, hi
    seeds = np.random.SeedSequence(seed).generate_state(_SETS, np.uint64)
    sets = [tuple(mean_interval(gain[:, is_close], seed=int(one), level=END_LEVEL)) for one in seeds]
    lo[is_close], hi[is_close] = np.mean(sets, axis=0)
    return lo, hi


def _first_without(end: Float[np.ndarray, " window"], is_distinct: Bool[np.ndarray, " window"]) -> float:
    """The first width at which this end of the gain is not above 0; NaN if that end is missing.

    The widest width if all observers that differ from the posterior are beaten.
    """
    differs = np.logical_and.accumulate(is_distinct)
    stands = differs & ~(end > _ROUNDING_BITS)
    if not stands.any():
        return float(len(end) - 1)
    at = int(stands.argmax())
    return math.nan if np.isnan(end[at]) else float(at)
