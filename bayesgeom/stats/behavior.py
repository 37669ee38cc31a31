"""Scoring of predictions against the exact posterior: from answer log-probabilities to `Behavior`, and confidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from scipy.optimize import brentq
from scipy.special import entr, rel_entr
from torch import Tensor

from bayesgeom.core import Behavior, Reason, Trials, WindowScores
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.information import NATS_PER_BIT, entropy_bits, kl_bits, total_variation
from bayesgeom.stats.intervals import UNIT_ROUNDING, Interval, no_interval
from bayesgeom.stats.windows import joined, window_scores

UNIFORM, POSITION = "uniform", "position alone"  # predictors that see no evidence
PRIOR = "prior"  # a task's own one, which reads what is given and the position
_AT_ONCE = 2**15  # logits reduced together, so that they stay in the processor's cache
MOST = 1_000.0  # the largest power of predictions; beyond it they are certain
_CERTAIN = 1 - 1e-9  # an exact probability that is 1 up to rounding
_LEAST_SPREAD = 1e-9  # of log q: predictions that no temperature changes have no confidence
_NOISE = 1e4 * UNIT_ROUNDING  # slopes are differences of logarithms: what they differ by within its rounding is none
_TEMPERED_AT_ONCE = 2**20  # probabilities
_SHARED = ("exact_entropy_bits", "off_answer_prob")  # not stored per baseline: the entropy is the same, the other 0


def behavior(
    trials: Trials,
    log_answers: Float64[Tensor, "batch query_pos answer"],
    off_answer_prob: Float64[Tensor, "batch query_pos"],
) -> Behavior:
    """Score answer probabilities against the exact predictive.

    Args:
        trials: The sequences.
        log_answers: Natural-log probabilities, normalized over the answers.
        off_answer_prob: Probability that the model assigns to other ids.
    """
    exact = trials.at_scored(trials.predictive)
    model = log_answers.exp()
    return Behavior(
        exact_entropy_bits=_array(entropy_bits(exact)),
        model_entropy_bits=_array(entropy_bits(model)),
        kl_bits=_array(kl_bits(exact, log_answers)),
        total_variation=_array(total_variation(exact, model)),
        off_answer_prob=_array(off_answer_prob),
        **_at_labels(trials, log_answers),
    )


def position_predictive(
    exact: Float64[np.ndarray, "sequence position answer"],
) -> Float64[np.ndarray, "sequence position answer"]:
    """Return the mean exact predictive at each position, by which a sequence is predicted.

    A sequence has half its weight in the mean that predicts it: with all of it the KL would be too small by as much as
    it is too large without it, and infinite where no other sequence has an answer.
    """
    return np.asarray((exact.sum(axis=0) - exact / 2) / (len(exact) - 0.5))


def position_kl_bits(exact: Float64[np.ndarray, "sequence position answer"]) -> Float64[np.ndarray, " sequence"]:
    """Return the KL of each sequence from `position_predictive`."""
    bits: Float64[np.ndarray, "sequence position answer"] = rel_entr(exact, position_predictive(exact)) / NATS_PER_BIT
    return np.asarray(bits.sum(axis=2).mean(axis=1))


def context_free_kl_bits(
    exact: Float64[np.ndarray, "sequence position answer"],
) -> dict[str, Float64[np.ndarray, " sequence"]]:
    """Return the KL of each sequence from predictors that see no evidence of it, by name: `UNIFORM` and `POSITION`.

    The second is the mean exact predictive at each position, as `position_kl_bits` computes it.
    """
    entropies = entr(exact).sum(axis=2).mean(axis=1) / NATS_PER_BIT
    flat = np.maximum(np.log2(exact.shape[2]) - entropies, 0.0)  # rounding
    return {UNIFORM: flat, POSITION: position_kl_bits(exact)}


def whole_entropy_bits(logits: Float[Tensor, "batch query_pos d_vocab"]) -> Float64[Tensor, "batch query_pos"]:
    """Return the entropy over the vocabulary, log Z − Σ p l, in bits.

    Exponentials are computed in the dtype of the logits, but at least in float32. The result is not finite if any logit
    is not finite.
    """
    entropies = []
    for rows in _rows(logits):
        wide = rows.float() if rows.dtype != torch.float64 else rows
        below = wide - wide.amax(-1, keepdim=True)
        weights = below.exp()
        total, mean = weights.sum(-1).double(), torch.linalg.vecdot(weights, below).double()
        entropies.append((total.log() - mean / total) / NATS_PER_BIT)
    return torch.cat(entropies).reshape(logits.shape[:2])


def are_finite(logits: Float[Tensor, "batch query_pos d_vocab"]) -> Bool[Tensor, " batch"]:
    """Return whether all logits of a sequence are finite."""
    return logits.sum(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).isfinite().all(-1)


def answer_log_probabilities(
    logits: Float[Tensor, "batch query_pos d_vocab"], trials: Trials
) -> tuple[Float64[Tensor, "batch query_pos answer"], Float64[Tensor, "batch query_pos"]]:
    """Return natural-log probabilities renormalized over the answers, in float64, and the off-answer probability."""
    return renormalized(token_log_probabilities(logits, trials.answer_ids))


def token_log_probabilities(
    logits: Float[Tensor, "batch query_pos d_vocab"], ids: Int64[Tensor, " token"]
) -> Float64[Tensor, "batch query_pos token"]:
    """Return the natural-log probabilities of some tokens."""
    total = torch.cat([rows.double().logsumexp(-1) for rows in _rows(logits)]).reshape(logits.shape[:2])
    return logits[..., ids].double() - total[..., None]


def renormalized(
    log_answers: Float64[Tensor, "batch query_pos answer"],
) -> tuple[Float64[Tensor, "batch query_pos answer"], Float64[Tensor, "batch query_pos"]]:
    """Return natural-log probabilities renormalized over the answers, and the probability off the answers."""
    inside = log_answers.logsumexp(-1, keepdim=True)
    return log_answers - inside, torch.expm1(inside[..., 0].clamp_max(0.0)).abs()


def _rows(logits: Float[Tensor, "batch query_pos d_vocab"]) -> Sequence[Float[Tensor, "row d_vocab"]]:
    """Positions of all sequences, a few at a time: float64 copies of a whole vocabulary are large."""
    rows: Sequence[Tensor] = logits.flatten(0, 1).split(max(1, _AT_ONCE // logits.shape[-1]))
    return rows


def predicted_behavior(trials: Trials, probabilities: Float64[Tensor, "batch query_pos answer"]) -> Behavior:
    """Return the behavior of a predictor with these answer probabilities and off-answer probability 0."""
    return behavior(trials, probabilities.log(), torch.zeros_like(probabilities[..., 0]))


@final
class BehaviorLog:
    """Collects the behavior of a model, of the exact predictive and of baseline predictors, block by block.

    Each number is stored once, in float32. Entropies of the exact predictive are shared by all predictors, and its KL
    to itself, which is 0, is not stored.
    """

    def __init__(self) -> None:
        self.n = 0
        self._blocks: list[Float32[np.ndarray, "sequence column position"]] = []
        self._columns: tuple[tuple[str, str], ...] = ()
        self._windows: list[WindowScores] = []

    def add(
        self,
        trials: Trials,
        log_answers: Float64[Tensor, "batch query_pos answer"],
        off_answer_prob: Float64[Tensor, "batch query_pos"],
        baselines: Mapping[str, Float64[Tensor, "batch query_pos answer"]],
    ) -> None:
        """Score the next block: predictions of the model and of the baselines at the scored positions.

        With baselines, window observers are scored too if the task has latent dynamics.
        """
        if baselines and (windows := window_scores(trials)) is not None:
            self._windows.append(windows)
        scores = vars(behavior(trials, log_answers, off_answer_prob))
        scored = {("model", field): values for field, values in scores.items()}
        exact = _at_labels(trials, trials.at_scored(trials.predictive).log())
        scored |= {("exact", field): values for field, values in exact.items()}
        for name, probabilities in baselines.items():
            scores = vars(predicted_behavior(trials, probabilities))
            scored |= {(f"baseline {name}", field): scores[field] for field in scores if field not in _SHARED}
        self._write(scored)

    def add_open_ended(self, entropy_bits: Float64[Tensor, "batch query_pos"]) -> None:
        """Add the next block of text without a known posterior: only the entropy over the vocabulary is known."""
        entropy = _array(entropy_bits)
        columns = (
            *(("model", field.name) for field in fields(Behavior)),
            ("exact", "answer_log2"),
            ("exact", "correct"),
        )
        self._write(dict.fromkeys(columns, np.full_like(entropy, np.nan)) | {("model", "model_entropy_bits"): entropy})

    def _write(self, scored: Mapping[tuple[str, str], Float[np.ndarray, "sequence position"]]) -> None:
        self._columns = tuple(scored)
        self._blocks.append(np.stack([*scored.values()], axis=1, dtype=np.float32, casting="same_kind"))
        self.n += len(self._blocks[-1])

    def finished(self) -> tuple[Behavior, Behavior, dict[str, Behavior]]:
        """Return the behavior of the model, of the exact predictive and of each baseline, over all blocks."""
        stored = dict(zip(self._columns, np.concatenate(self._blocks).swapaxes(0, 1), strict=True))
        of: dict[str, dict[str, Float[np.ndarray, "sequence position"]]] = {}
        for (predictor, field), values in stored.items():
            of.setdefault(predictor, {})[field] = values
        entropy = of["model"]["exact_entropy_bits"]
        none = np.broadcast_to(np.float32(0), entropy.shape)
        exact = Behavior(
            exact_entropy_bits=entropy,
            model_entropy_bits=entropy,
            kl_bits=none,
            total_variation=none,
            off_answer_prob=none,
            **of.pop("exact"),
        )
        model = Behavior(**of.pop("model"))
        baselines = {
            name.removeprefix("baseline "): Behavior(exact_entropy_bits=entropy, off_answer_prob=none, **scores)
            for name, scores in of.items()
        }
        return model, exact, baselines

    def windows(self) -> WindowScores | None:
        """Return the window observers' scores on all sequences; None if the task has no latent dynamics."""
        return joined(self._windows)


def _at_labels(
    trials: Trials, log_answers: Float64[Tensor, "batch query_pos answer"]
) -> dict[str, Float[np.ndarray, "sequence position"]]:
    """Log2 probability of the labels, and whether the most probable answer is the label."""
    drawn = trials.at_scored(trials.labels)[..., None]
    labels = (trials.answers == drawn).double().argmax(-1, keepdim=True)
    return {
        "answer_log2": _array(log_answers.gather(-1, labels)[..., 0] / NATS_PER_BIT),
        "correct": _array((log_answers.argmax(-1, keepdim=True) == labels)[..., 0].double()),
    }


def _array(values: Float[Tensor, "batch query_pos"]) -> Float[np.ndarray, "sequence position"]:
    return values.detach().cpu().numpy()


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
    """Return the confidence of predictions: 1/τ, where τ minimizes the mean of KL(p ‖ q^τ / Z).

    With the mean over answers under q^τ / Z written as E, its slope in τ is E[log q] − Σ p log q, and its curvature
    Var[log q]: the KL is convex, and the minimum unique. Answers with p = q = 0 have no part in it, so it is defined
    where some exact probabilities are 0 or 1; a regression of log-odds is not. The interval is that of τ, inverted: to
    first order, the minimum of a mean is a mean over sequences, of τ − slope / curvature. It covers 93 to 96 % with 24
    to 192 sequences.

    Args:
        exact: Exact probabilities p; each row adds to 1.
        log_model: Natural logarithm of the predicted probabilities q; −∞ where q = 0.
        seed: Seed of the resamples of sequences.

    Returns:
        Confidence, interval and gain. All are missing where q = 0 and p > 0, as the KL is infinite at every
        temperature, and where every p is 0 or 1, as of labels: their uncertainty is not known.

    Example:
        >>> exact = np.random.default_rng(0).dirichlet(np.ones(5), size=(64, 7))
        >>> sharp = 2 * np.log(exact)  # the exact probabilities at temperature 0.5, up to a factor
        >>> round(tempering(exact, sharp).confidence, 6)
        2.0

    References:
        Guo, Pleiss, Sun & Weinberger 2017, arXiv:1706.04599 (temperature scaling, there fitted to labels).
    """
    n = len(exact)
    is_certain = bool((exact.max(axis=-1) > _CERTAIN).all())
    if is_certain or ((exact > 0) & np.isneginf(log_model)).any() or np.isnan(log_model).any():
        return Tempering(confidence=np.nan, interval=no_interval((), n, Reason.MISSING), gain_bits=np.nan)

    def slope_at(tau: float) -> float:
        return float(_tempered(exact, log_model, tau)[1].mean())

    before, _, spread = _tempered(exact, log_model, 1.0)
    if spread.mean() < _LEAST_SPREAD:
        return Tempering(confidence=np.nan, interval=no_interval((), n, Reason.FLAT), gain_bits=0.0)
    if slope_at(MOST) <= 0:
        gain = float(np.mean(before - _tempered(exact, log_model, MOST)[0])) / NATS_PER_BIT
        return Tempering(confidence=0.0, interval=no_interval((), n, Reason.NOT_COMPUTED), gain_bits=gain)
    tau = 0.0
    if slope_at(0.0) < 0:
        most = next(power for power in (1.0, 4.0, 32.0, MOST) if slope_at(power) > 0)
        tau = float(brentq(slope_at, 0.0, most, xtol=1e-10))
        _, slope, curvature = _tempered(exact, log_model, tau)
        tau -= float(slope.mean() / curvature.mean())  # a step of Newton: exact up to rounding
    after, slope, curvature = _tempered(exact, log_model, tau)
    interval = mean_interval(tau - slope / curvature.mean(), seed=seed, noise=_NOISE)
    low, high = (np.asarray(_inverse(float(end))) for end in (interval.hi, interval.lo))
    gain = float(np.mean(before - after)) / NATS_PER_BIT
    return Tempering(confidence=_inverse(tau), interval=replace(interval, lo=low, hi=high), gain_bits=gain)


def _inverse(tau: float) -> float:
    return np.inf if tau <= 0 else 1 / tau  # NaN stays


def _tempered(
    exact: Float[np.ndarray, "sequence position answer"],
    log_model: Float[np.ndarray, "sequence position answer"],
    tau: float,
) -> tuple[Float64[np.ndarray, " sequence"], ...]:
    """Return by sequence the mean of −Σ p log(q^τ / Z) in nats, its slope and its curvature in τ."""
    batches, each = [], max(1, _TEMPERED_AT_ONCE // exact[0].size)
    for at in range(0, len(exact), each):
        p, log_q = (np.asarray(array[at : at + each], dtype=np.float64) for array in (exact, log_model))
        is_possible = np.isfinite(log_q)
        logs = np.where(is_possible, log_q, 0.0)
        powers = np.where(is_possible, tau * (logs - log_q.max(axis=-1, keepdims=True)), 0.0)
        weights = is_possible * np.exp(powers)
        total = weights.sum(axis=-1)
        weights /= total[..., None]
        mean = (weights * logs).sum(axis=-1)
        curvature = (weights * np.square(logs - mean[..., None])).sum(axis=-1)
        rows = (np.log(total) - (p * powers).sum(axis=-1), mean - (p * logs).sum(axis=-1), curvature)
        batches.append([row.mean(axis=1) for row in rows])
    return tuple(np.concatenate(pieces) for pieces in zip(*batches, strict=True))
