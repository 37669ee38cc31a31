"""The statistics of an audit, on arrays of probabilities: each is exact for the exact observer.

References:
    Chlon et al. 2025, arXiv:2507.11768 (regret; spread over orders; averaging over them).
    Falck, Wang & Holmes 2024, arXiv:2406.00793 (the martingale property).
    Zhang 2025, arXiv:2512.18489 (the discount of evidence).
    Wurgaft et al. 2025, arXiv:2506.17859 (predictions as a mixture of strategies).
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float64
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp, xlogy

from bayesgeom.core import Reason
from bayesgeom.report.estimate import Estimate, mean_estimate, smooth_estimate, with_interval
from bayesgeom.stats.bootstrap import jackknife_weights, mean_interval, ratio_interval
from bayesgeom.stats.information import NATS_PER_BIT

ALIKE_BITS = 0.01  # predictors closer than this in both directions are one for the mixture
MOST_DISCOUNT = 1.25  # above 1 old evidence weighs more than new
_GRID, _STEP = np.linspace(0.05, MOST_DISCOUNT, 13), 1e-3  # of discounts; of the derivatives at the nearest one
_SHARE, _UNUSED = 1e-6, 1e-5  # of the uniform distribution in each predictor; a weight that is none
_FLAT = 1e-9  # share of a product below which a determinant is rounding
_ROUNDING = 1e-7  # of sums of probabilities, and of bits, computed from float32 logits

Answers = Float64[np.ndarray, "*#batch answer"]


def kl_in_bits(p: Answers, log_q: Answers) -> Float64[np.ndarray, "..."]:
    """Return KL(p ‖ q) of probabilities and natural log-probabilities that broadcast; infinite where q = 0 < p."""
    cross = np.where(p > 0, p * np.where(p > 0, log_q, 0.0), 0.0)
    return np.asarray((xlogy(p, p) - cross).sum(axis=-1) / NATS_PER_BIT)


def log_odds_slope(
    exact: Float64[np.ndarray, "sequence position answer"],
    log_model: Float64[np.ndarray, "sequence position answer"],
    *,
    seed: int,
) -> Estimate:
    """Return the slope of the model's log-odds in the exact ones, fitted with an intercept: above 1 overconfident.

    Args:
        exact: Exact probabilities; of more than two answers there is no slope.
        log_model: Natural logarithm of the predicted ones.
        seed: Seed of the resamples of sequences.
    """
    if exact.shape[-1] != 2:
        return Estimate.of(np.nan, (np.nan, np.nan), reason=Reason.NOT_BINARY)
    with np.errstate(divide="ignore"):
        x, y = (pair[..., 0] - pair[..., 1] for pair in (np.log(exact), log_model))
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return Estimate.of(np.nan, (np.nan, np.nan), reason=Reason.MISSING)
    weights = jackknife_weights(len(x))
    mean_x, mean_y, xx, xy = (weights @ values.mean(axis=1) for values in (x, y, x * x, x * y))
    spread = xx - mean_x**2
    if spread[0] <= _FLAT:
        return Estimate.of(np.nan, (np.nan, np.nan), reason=Reason.FLAT)
    return smooth_estimate((xy - mean_x * mean_y) / spread, seed=seed, n=len(x))


def information_curve(
    exact_bits: Float64[np.ndarray, "sequence piece"],
    model_bits: Float64[np.ndarray, "sequence piece"],
    weights: Float64[np.ndarray, "sequence piece"],
    *,
    seed: int,
) -> tuple[Estimate, Estimate]:
    """Return slope and curvature of what pieces of evidence teach the model in what they teach the exact observer.

    The slope is Σ w x y / Σ w x², and the curvature the b of the fit y = a x + b x²: a negative one says that the model
    learns relatively less from pieces that tell more.

    Args:
        exact_bits: What each piece tells the exact observer, x.
        model_bits: What it tells the model, y.
        weights: Weight of each piece, w.
        seed: Seed of the resamples of sequences.

    Returns:
        The slope, 1 for the exact observer, and the curvature per bit, 0 for it. Both are missing, with the code
        `FLAT`, where no piece tells anything; the curvature also where all tell as much.

    Example:
        >>> bits = np.random.default_rng(0).gamma(1.0, size=(64, 7))
        >>> slope, curvature = information_curve(bits, 0.5 * bits - 0.02 * bits**2, np.ones_like(bits), seed=0)
        >>> float(slope) < 0.5, round(float(curvature), 6)
        (True, -0.02)
    """
    x, y, n = exact_bits, np.where(weights > 0, model_bits, 0.0), len(exact_bits)
    xx, xy = weights * x * x, weights * x * y
    if xx.sum() <= 0:
        missing = Estimate.of(np.nan, (np.nan, np.nan), reason=Reason.FLAT)
        return missing, missing
    interval = ratio_interval(xy.sum(axis=1), xx.sum(axis=1), seed=seed)
    slope = with_interval(xy.sum() / xx.sum(), interval, n=n)
    sums = np.stack([values.sum(axis=1) for values in (xx, xx * x, xx * x * x, xy, xy * x)])
    s2, s3, s4, t1, t2 = sums @ jackknife_weights(n).T
    determinant = s2 * s4 - s3**2
    if (determinant <= _FLAT * s2 * s4).any():
        return slope, Estimate.of(np.nan, (np.nan, np.nan), reason=Reason.FLAT)
    return slope, smooth_estimate((t2 * s2 - t1 * s3) / determinant, seed=seed, n=n)


def martingale_gaps(
    own: Float64[np.ndarray, "*batch answer"],
    before: Float64[np.ndarray, "*batch answer"],
    after: Float64[np.ndarray, "*batch answer answer"],
) -> tuple[Float64[np.ndarray, "*batch"], Float64[np.ndarray, "*batch"]]:
    """Return how far Σ_y p_t(y) p_{t+1}(· | y) is from p_t(·), exact over all next answers y.

    Args:
        own: Predictions of the next piece of evidence.
        before: Predictions of the query without it.
        after: Predictions of the query with each answer as that piece: the axis before the last one.

    Returns:
        The total variation, and the difference at the answer that was most probable before. A mean of the latter is
        what Falck et al. estimate from sampled answers; errors of opposite sign cancel in it.
    """
    difference = np.einsum("...y,...ya->...a", own, after) - before
    favorite = np.take_along_axis(difference, before.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    gaps = np.abs(difference).sum(axis=-1) / 2
    return np.where(gaps < _ROUNDING, 0.0, gaps), np.where(gaps < _ROUNDING, 0.0, favorite)


def order_statistics(
    exact: Float64[np.ndarray, "sequence answer"], log_model: Float64[np.ndarray, "order sequence answer"]
) -> tuple[Float64[np.ndarray, " sequence"], ...]:
    """Return how far answers depend on the order of the evidence, and the KL that averaging over orders removes.

    Args:
        exact: Exact probabilities, which do not depend on the order.
        log_model: Natural logarithm of the predictions under each order.

    Returns:
        The total variation between the answers under two orders: a mean over pairs, so that it does not depend on their
        number. The mean KL of the orders minus the KL of their mean, which is never negative. The standard deviation
        over orders of the probability of the exactly most probable answer.
    """
    model, n_orders = np.exp(log_model), len(log_model)
    apart = sum(np.abs(one - model).sum(axis=(0, 2)) / 2 for one in model) / (n_orders * (n_orders - 1))
    averaged = kl_in_bits(exact, logsumexp(log_model, axis=0) - np.log(n_orders))
    gain = kl_in_bits(exact[None], log_model).mean(axis=0) - averaged
    deviation = model[:, np.arange(len(exact)), exact.argmax(axis=1)].std(axis=0, ddof=1)
    return tuple(np.where(values < _ROUNDING, 0.0, values) for values in (np.asarray(apart), gain, deviation))


def nearest_discount(
    filtered: Callable[[float], Float64[np.ndarray, "sequence position answer"]],
    model: Float64[np.ndarray, "sequence position answer"],
    *,
    seed: int,
) -> tuple[Estimate, Estimate]:
    """Return the discount of the forgetting filter nearest to the model, and the KL from the model that it removes.

    The discount minimizes the mean of KL(model ‖ filter). Its interval is that of the minimum of a mean, to first
    order a mean over sequences, as in `bayesgeom.stats.behavior`; it covers 97 to 99 % with 32 and 96 sequences.

    Args:
        filtered: Returns the answer probabilities of the filter with a discount.
        model: Those of the model.
        seed: Seed of the resamples of sequences.

    Returns:
        The discount, 1 for the exact observer, and KL(model ‖ exact) − KL(model ‖ filter). Missing, with the code
        `FLAT`, where the discount changes nothing: evidence that rules hypotheses out does so at any weight.
    """
    missing, n = Estimate.of(np.nan, (np.nan, np.nan), reason=Reason.FLAT), len(model)
    if np.allclose(filtered(0.5), filtered(1.0), atol=1e-9):
        return missing, missing

    def kl(discount: float) -> Float64[np.ndarray, " sequence"]:
        with np.errstate(divide="ignore"):
            return np.asarray(kl_in_bits(model, np.log(filtered(discount))).mean(axis=1))

    on_grid = [float(kl(discount).mean()) for discount in _GRID]
    if not np.isfinite(on_grid).any():
        return missing, missing
    best = int(np.nanargmin(on_grid))
    ends = float(_GRID[max(best - 1, 0)]), float(_GRID[min(best + 1, len(_GRID) - 1)])
    nearest = float(minimize_scalar(lambda at: float(kl(at).mean()), bounds=ends, options={"xatol": 1e-7}).x)
    below, at, above = kl(nearest - _STEP), kl(nearest), kl(nearest + _STEP)
    slope, curvature = (above - below) / (2 * _STEP), (above - 2 * at + below).mean() / _STEP**2
    gain = mean_estimate(kl(1.0) - at, seed=seed)
    if best in (0, len(_GRID) - 1) or curvature <= 0:
        return Estimate.of(nearest, (np.nan, np.nan), n=n, reason=Reason.NOT_COMPUTED), gain
    interval = mean_interval(nearest - slope / curvature, seed=seed)
    return with_interval(nearest, interval, n=n), gain


def mixture(
    model: Float64[np.ndarray, "sequence position answer"],
    predictors: Mapping[str, Float64[np.ndarray, "sequence position answer"]],
    *,
    seed: int,
) -> tuple[Estimate, Float64[np.ndarray, " sequence"]]:
    """Return the weights of the mixture of predictors that minimizes KL(model ‖ mixture), and that KL by sequence.

    Intervals of the weights cover 93 to 96 % with 32 and 96 sequences of a coin.

    Args:
        model: Probabilities of the model.
        predictors: Those of each predictor, the most informative first. A millionth of the uniform distribution is
            mixed into each, so that no answer is impossible.
        seed: Seed of the resamples of sequences.

    Returns:
        Weights along the predictors, and the mean KL over positions in bits. A predictor within 0.01 bits of one named
        before it has no weight of its own, with the code `ALIKE`.
    """
    known = _distinct([*predictors.values()])
    n, used = len(model), [probs for probs, is_used in zip(predictors.values(), known, strict=True) if is_used]
    q, p = model.reshape(n, -1), np.stack([probs.reshape(n, -1) for probs in used])
    p = (1 - _SHARE) * p + _SHARE / model.shape[-1]
    weights, influence = _fitted(q, p)
    interval = mean_interval(weights + influence, seed=seed, bounds=(0.0, 1.0))
    value, low, high = (np.full(len(known), np.nan) for _ in range(3))
    code = np.full(len(known), int(Reason.ALIKE))
    value[known], low[known], high[known], code[known] = weights, interval.lo, interval.hi, interval.code
    mixed = np.log(np.einsum("k,knm->nm", weights, p)).reshape(model.shape)
    left = kl_in_bits(model, mixed).mean(axis=1)
    return Estimate.of(value, (low, high), n=n, reason=code), np.where(left < _ROUNDING, 0.0, left)


def _distinct(predictors: list[Float64[np.ndarray, "sequence position answer"]]) -> Bool[np.ndarray, " predictor"]:
    """Return which predictors are no closer than 0.01 bits, in one direction at least, to every one before."""
    with np.errstate(divide="ignore"):
        logs = [np.log(probs) for probs in predictors]
    kept: list[int] = []
    for at, (probs, log_own) in enumerate(zip(predictors, logs, strict=True)):
        apart = [max(kl_in_bits(probs, logs[k]).mean(), kl_in_bits(predictors[k], log_own).mean()) for k in kept]
        if all(distance >= ALIKE_BITS for distance in apart):
            kept.append(at)
    return np.isin(np.arange(len(predictors)), kept)


def _fitted(
    q: Float64[np.ndarray, "sequence entry"], p: Float64[np.ndarray, "predictor sequence entry"]
) -> tuple[Float64[np.ndarray, " predictor"], Float64[np.ndarray, "sequence predictor"]]:
    """Return the weights that minimize −Σ q log Σ w p, which is convex, and the influence of each sequence on them.

    To first order, the minimum of a mean is a mean over sequences. Weights at 0 stay there.
    """
    scale = q.sum()

    def ratios(weights: Float64[np.ndarray, " predictor"]) -> tuple[np.ndarray, np.ndarray]:
        mixed = np.einsum("k,knm->nm", weights, p)
        return mixed, q / mixed

    def cost(weights: Float64[np.ndarray, " predictor"]) -> tuple[float, np.ndarray]:
        mixed, ratio = ratios(weights)
        return -float((q * np.log(mixed)).sum()) / scale, -np.einsum("nm,knm->k", ratio, p) / scale

    start, bounds, options = np.full(len(p), 1 / len(p)), [(0.0, 1.0)] * len(p), {"ftol": 1e-13, "maxiter": 300}
    whole = {"type": "eq", "fun": lambda point: point.sum() - 1, "jac": np.ones_like}
    solution = minimize(cost, start, jac=True, method="SLSQP", bounds=bounds, constraints=whole, options=options)
    weights = np.where(solution.x < _UNUSED, 0.0, solution.x)
    weights, influence = weights / weights.sum(), np.zeros((len(q), len(p)))
    free = np.flatnonzero(weights)
    mixed, ratio = ratios(weights)
    slopes = np.einsum("nm,knm->nk", ratio, p[free]) * len(q) / scale
    curvature = np.einsum("nm,knm,lnm->kl", ratio / mixed, p[free], p[free]) / scale
    system = np.block([[curvature, np.ones((len(free), 1))], [np.ones((1, len(free))), np.zeros((1, 1))]])
    moves = np.linalg.pinv(system) @ np.vstack([(slopes - slopes.mean(axis=0)).T, np.zeros((1, len(q)))])
    influence[:, free] = moves[:-1].T
    return weights, influence
