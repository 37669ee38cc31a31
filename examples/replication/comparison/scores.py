"""Scores of trained models against the exact posterior, and of baselines, on the same sequences."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials
from bayesgeom.measurements.calibration import wider_baselines
from bayesgeom.models.base import Model
from bayesgeom.stats.information import KNOWN_BITS
from bayesgeom.stats.windows import equivalent_window
from bayesgeom.tasks.base import Branch, WindTunnel, checked_seed, derived_seed
from bayesgeom.tasks.bijection import Bijection, shown_before, uniform_on

N_SCORED = 2_000
N_REFERENCE = 1_024  # sequences behind the best context-free predictor
_REFERENCE = 1  # branch of the seed
CONTEXT_FREE = "context-free"
_AVERAGE, _UNIFORM = f"{CONTEXT_FREE}: average predictive", f"{CONTEXT_FREE}: uniform"


@final
@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of one model per sequence, averaged over scored positions.

    Attributes:
        context_free_kl_bits: KL of the best context-free predictor: the uniform one, or the exact predictive averaged
            over other sequences, by position, whichever has the lower mean KL. `context_free_…` fields are scores of
            this predictor.
        known: Share of positions whose answer is certain under the posterior.
        known_correct: Share of positions where it is certain and the most probable answer is correct.
        baseline_kl_bits: Mean KL of every baseline of the task, as for calibration; infinite for one that excludes the
            truth.
        baseline_known_correct: Mean of `known_correct` for every baseline of the task that is no window observer.
        memory_symbols: The equivalent window. NaN on tasks without latent dynamics.
        most_memory_symbols: The upper end of its interval.
        window_gap_bits: KL of the stationary observer of the last ten symbols. NaN on tasks without latent dynamics.
    """

    kl_bits: Float[np.ndarray, " sequence"]
    context_free_kl_bits: Float[np.ndarray, " sequence"]
    entropy_error_bits: Float[np.ndarray, " sequence"]
    context_free_entropy_error_bits: Float[np.ndarray, " sequence"]
    known: Float[np.ndarray, " sequence"]
    known_correct: Float[np.ndarray, " sequence"]
    context_free_known_correct: Float[np.ndarray, " sequence"]
    n_parameters: int
    weights_hash: str
    baseline_kl_bits: Mapping[str, float]
    baseline_known_correct: Mapping[str, float]
    memory_symbols: float = math.nan
    most_memory_symbols: float = math.nan
    window_gap_bits: float = math.nan


def score(model: Model, task: WindTunnel, *, n: int, seed: int) -> Scores:
    """Score a model on `n` new sequences, which are the same for every model of the task.

    The equivalent window is that of calibration with the same `n` and `seed`: of the same sequences and resamples.
    """
    candidates, resamples = context_free(task, seed=seed), derived_seed(seed, Branch.RESAMPLING)

    def baselines(trials: Trials) -> dict[str, Float64[Tensor, "batch query_pos answer"]]:
        return {**_expanded(candidates, trials), **context_aware(task, trials)}

    stream = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)
    run = model.run(stream, baseline_predictives=baselines, seed=resamples)
    own, others = run.behavior, dict(run.baseline_behaviors)
    free = min((others.pop(name) for name in candidates), key=lambda found: float(found.kl_bits.mean()))
    others = {CONTEXT_FREE: free, **others}
    known = own.exact_entropy_bits < KNOWN_BITS
    memory = None if run.windows is None else equivalent_window(run.windows, own.kl_bits, seed=run.seed)
    known_kl = {name: float(found.kl_bits.mean()) for name, found in others.items()}
    hits = {name: float((known * found.correct).mean()) for name, found in others.items()}
    symbols = math.nan if memory is None else memory.symbols
    return Scores(
        kl_bits=_mean(own.kl_bits),
        context_free_kl_bits=_mean(free.kl_bits),
        entropy_error_bits=_mean(np.abs(own.model_entropy_bits - own.exact_entropy_bits)),
        context_free_entropy_error_bits=_mean(np.abs(free.model_entropy_bits - own.exact_entropy_bits)),
        known=_mean(known),
        known_correct=_mean(known * own.correct),
        context_free_known_correct=_mean(known * free.correct),
        n_parameters=model.spec.n_parameters,
        weights_hash=model.spec.weights_hash,
        baseline_kl_bits=known_kl | {name: float(kl) for name, kl, _ in wider_baselines(run.windows, symbols)},
        baseline_known_correct=hits,
        memory_symbols=symbols,
        most_memory_symbols=math.nan if memory is None else memory.most_symbols,
        window_gap_bits=math.nan if memory is None else memory.transport_gap_bits,
    )


def context_free(task: WindTunnel, *, seed: int) -> dict[str, Float64[Tensor, "query_pos answer"]]:
    """Return the candidates for the best context-free predictor, by name.

    The predictive averaged over all sequences has the least mean KL. Its estimate from `N_REFERENCE` sequences is worse
    than the uniform predictor where the average is uniform. `score` uses the candidate with the lower KL.
    """
    total, n = torch.zeros(1, dtype=torch.float64), 0
    for block in task.stream(N_REFERENCE, seed=derived_seed(seed, _REFERENCE)):
        total, n = total + block.at_scored(block.predictive).sum(dim=0), n + len(block)
    average = total / n
    return {_AVERAGE: average, _UNIFORM: torch.full_like(average, 1 / average.shape[-1])}


def context_aware(task: WindTunnel, trials: Trials) -> dict[str, Float64[Tensor, "batch query_pos answer"]]:
    """Return the task's own baselines, and for a bijection whose keys never return `bag_of_values`.

    It is uniform on the values not shown yet, which is exact there: that row tests accumulation only, and `diagnose`
    does not compare with it. If keys return, the task's own `key_membership` is the strongest.
    """
    known = dict(task.baseline_predictives(trials))
    if isinstance(task, Bijection) and not task.repeats:
        values = trials.at_scored(trials.labels) - task.n_values
        known["bag_of_values"] = uniform_on(~shown_before(values, task.n_values))
    return known


def _expanded(
    candidates: Mapping[str, Float64[Tensor, "query_pos answer"]], trials: Trials
) -> dict[str, Float64[Tensor, "batch query_pos answer"]]:
    device = trials.predictive.device
    return {name: own.to(device).expand(len(trials), -1, -1) for name, own in candidates.items()}


def check_counts(*, seeds: object, n: object, seed: int) -> None:
    """Check the numbers of trainings and sequences, and the seed.

    Raises:
        InvalidArgument: One of them is invalid.
    """
    for name, value, least in (("seeds, the number of trainings,", seeds, 1), ("n", n, 2)):
        if not isinstance(value, Integral) or value < least:
            raise InvalidArgument(f"{name} must be an integer of at least {least}, got {value!r}.")
    checked_seed(seed)


def _mean(values: np.ndarray) -> Float[np.ndarray, " sequence"]:
    mean: np.ndarray = values.mean(axis=1, dtype=np.float64)
    return mean
