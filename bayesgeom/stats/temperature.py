"""Confidence of predictions: the one temperature that brings them closest to the exact ones, and what it gains.

Confidence is 1/τ, where τ minimizes the mean of KL(p ‖ q^τ / Z) over sequences and scored positions, for exact
probabilities p and predictions q. With the mean over answers under q^τ / Z written as E_τ, its slope and curvature are

    d/dτ = E_τ[log q] − Σ p log q,        d²/dτ² = Var_τ[log q] ≥ 0.

The KL is convex in τ, so the minimum is unique. Answers with p = q = 0 have no part in it, so it is defined where exact
probabilities are 0 or 1; a regression of log-odds is not. The interval is that of τ: the minimum of a mean is, to first
order, a mean over sequences of τ − slope / curvature, and its bootstrap-t interval is inverted.

References:
    Guo, Pleiss, Sun & Weinberger 2017, arXiv:1706.04599 (temperature scaling, there fitted to labels).
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float, Float64
from scipy.optimize import brentq

from bayesgeom.core import Reason
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.information import NATS_PER_BIT
from bayesgeom.stats.intervals import Interval, no_interval

MOST = 1_000.0  # the largest τ; beyond it predictions are certain
_LEAST_SPREAD = 1e-9  # of log q: predictions that no temperature changes have no confidence
_TERMS = 1e4  # slopes are differences of logarithms: what they differ by within its rounding is none
_AT_ONCE = 2**20  # probabilities processed together, so that memory stays small


@final
@dataclass(frozen=True, kw_only=True)
class Tempering:
    """The temperature that brings predictions closest to the exact ones.

    Args:
        confidence: 1/τ: above 1 overconfident, below 1 underconfident. Infinite if the uniform distribution is closer
            than the predictions at any temperature; 0 if certainty is; NaN if no temperature changes the predictions.
        interval: Its 95 % interval over sequences.
        gain_bits: Mean KL that this temperature removes, in bits.
    """

    confidence: float
    interval: Interval
    gain_bits: float


def tempering(
    exact: Float[np.ndarray, "sequence position answer"],
    log_model: Float[np.ndarray, "sequence position answer"],
    *,
    seed: int = 0,
) -> Tempering:
    """Return the confidence of predictions, from the exact and the predicted probabilities of the answers.

    Args:
        exact: Exact probabilities p; each row adds to 1.
        log_model: Natural logarithm of the predicted probabilities q; −∞ where q = 0.
        seed: Seed of the resamples of sequences.

    Returns:
        Confidence, interval and gain. All are missing where q = 0 and p > 0: the KL is infinite at every temperature.

    Example:
        >>> exact = np.random.default_rng(0).dirichlet(np.ones(5), size=(64, 7))
        >>> sharp = 2 * np.log(exact)  # the exact probabilities at temperature 0.5, up to a factor
        >>> round(tempering(exact, sharp).confidence, 6)
        2.0
    """
    n = len(exact)
    if ((exact > 0) & np.isneginf(log_model)).any() or np.isnan(log_model).any():
        return Tempering(confidence=np.nan, interval=no_interval((), n, Reason.MISSING), gain_bits=np.nan)
    parts = _Parts(exact, log_model)
    if np.mean(parts.at(1.0)[2]) < _LEAST_SPREAD:
        return Tempering(confidence=np.nan, interval=no_interval((), n, Reason.FLAT), gain_bits=0.0)
    if parts.slope(0.0) >= 0:
        tau = 0.0
    elif parts.slope(MOST) <= 0:
        gain = float(np.mean(parts.at(1.0)[0] - parts.at(MOST)[0])) / NATS_PER_BIT
        return Tempering(confidence=0.0, interval=no_interval((), n, Reason.NOT_COMPUTED), gain_bits=gain)
    else:
        most = next(power for power in (1.0, 4.0, 32.0, MOST) if parts.slope(power) > 0)
        tau = float(brentq(parts.slope, 0.0, most, xtol=1e-10))
        _, slope, curvature = parts.at(tau)
        tau -= float(slope.mean() / curvature.mean())  # a step of Newton: exact up to rounding
    kl, slope, curvature = parts.at(tau)
    found = mean_interval(tau - slope / curvature.mean(), seed=seed, terms=_TERMS)
    low, high = (np.asarray(_inverse(float(end))) for end in (found.hi, found.lo))
    return Tempering(
        confidence=_inverse(tau),
        interval=replace(found, lo=low, hi=high),
        gain_bits=float(np.mean(parts.at(1.0)[0] - kl)) / NATS_PER_BIT,
    )


def _inverse(tau: float) -> float:
    return np.inf if tau <= 0 else 1 / tau  # NaN stays


@final
class _Parts:
    """Exact and predicted probabilities of sequences, a few sequences at a time."""

    def __init__(
        self,
        exact: Float[np.ndarray, "sequence position answer"],
        log_model: Float[np.ndarray, "sequence position answer"],
    ) -> None:
        each = max(1, _AT_ONCE // max(1, exact[0].size))
        self._parts = [(exact[at : at + each], log_model[at : at + each]) for at in range(0, len(exact), each)]

    def slope(self, tau: float) -> float:
        """Return the mean slope at τ."""
        return float(self.at(tau)[1].mean())

    def at(self, tau: float) -> tuple[Float64[np.ndarray, " sequence"], ...]:
        """Return by sequence the cross-entropy Σ −p log(q^τ / Z) in nats, its slope and its curvature in τ."""
        found = [_at(np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64), tau) for p, q in self._parts]
        return tuple(np.concatenate(own) for own in zip(*found, strict=True))


def _at(
    exact: Float64[np.ndarray, "sequence position answer"],
    log_model: Float64[np.ndarray, "sequence position answer"],
    tau: float,
) -> tuple[Float64[np.ndarray, " sequence"], ...]:
    possible = np.isfinite(log_model)
    logs = np.where(possible, log_model, 0.0)
    below = tau * (logs - log_model.max(axis=-1, keepdims=True))
    weights = np.where(possible, np.exp(np.where(possible, below, 0.0)), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= total
    mean = (weights * logs).sum(axis=-1)
    slope = mean - (exact * logs).sum(axis=-1)
    curvature = (weights * np.square(logs - mean[..., None])).sum(axis=-1)
    cross = np.log(total[..., 0]) - (exact * below).sum(axis=-1)
    return cross.mean(axis=1), slope.mean(axis=1), curvature.mean(axis=1)
