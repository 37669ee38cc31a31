"""One cell of the comparison: a recipe, and how the model that it made scores against the exact posterior."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.errors import unknown_name
from bayesgeom.models.base import Model
from bayesgeom.tasks.base import WindTunnel, derived_seed
from bayesgeom.training.compared import ARCHITECTURES, TASKS, compared
from bayesgeom.training.recipe import Recipe
from bayesgeom.trials import Trials

N_REFERENCE = 1_024  # sequences behind the best context-free predictor
KNOWN_BITS = 1e-6  # an answer is known where the exact posterior is this certain
_TRIALS, _REFERENCE = 0, 1  # branches of the seed


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """A task and an architecture, trained once. `is_check`: with another seed and twice the budget."""

    task: str
    architecture: str
    recipe: Recipe
    is_check: bool

    @property
    def name(self) -> str:
        """Of the checkpoint."""
        return self.recipe.name


@final
@dataclass(frozen=True, kw_only=True)
class CellScores:
    """What one cell's model is worth, per sequence, averaged over scored positions.

    `context_free_kl_bits` is that of the best predictor which reads nothing: the exact predictive averaged over
    sequences, position by position. `known` is the share of positions whose answer the posterior knows, and
    `known_correct` the share where it is known and the model's most probable answer is it.
    """

    kl_bits: Float[np.ndarray, " sequence"]
    context_free_kl_bits: Float[np.ndarray, " sequence"]
    entropy_error_bits: Float[np.ndarray, " sequence"]
    context_free_entropy_error_bits: Float[np.ndarray, " sequence"]
    known: Float[np.ndarray, " sequence"]
    known_correct: Float[np.ndarray, " sequence"]
    n_parameters: int
    weights_hash: str


def cell(task: str, architecture: str, *, seed: int = 0, is_check: bool = False) -> Cell:
    """The cell of this row and column. Seed 0 is the committed recipe's own; others are counted from it.

    **Raises** `UnknownName` for a task or architecture that is not compared.
    """
    for what, name, known in (("compared task", task, TASKS), ("compared architecture", architecture, ARCHITECTURES)):
        if name not in known:
            raise unknown_name(what, name, known)
    recipe = compared()[f"{task}-{architecture}"].reseeded(seed)
    return Cell(
        task=task, architecture=architecture, recipe=recipe.lengthened(2) if is_check else recipe, is_check=is_check
    )  # fmt: skip


def score(model: Model, task: WindTunnel, *, n: int, seed: int) -> CellScores:
    """Score a model on `n` fresh sequences: the same ones for every model of a row."""
    marginal = context_free(task, seed=seed)

    def nulls(trials: Trials) -> dict[str, Float64[Tensor, "batch query_pos answer"]]:
        return {"context-free": marginal.to(trials.predictive.device).expand(len(trials), -1, -1)}

    stream = task.stream(n, seed=derived_seed(seed, _TRIALS), device=model.spec.device)
    run = model.run(stream, null_predictives=nulls, seed=seed)
    own, free = run.behaviour, run.null_behaviours["context-free"]
    known = own.exact_entropy_bits < KNOWN_BITS
    return CellScores(
        kl_bits=_mean(own.kl_bits),
        context_free_kl_bits=_mean(free.kl_bits),
        entropy_error_bits=_mean(np.abs(own.model_entropy_bits - own.exact_entropy_bits)),
        context_free_entropy_error_bits=_mean(np.abs(free.model_entropy_bits - own.exact_entropy_bits)),
        known=_mean(known),
        known_correct=_mean(known * own.correct),
        n_parameters=model.spec.n_parameters,
        weights_hash=model.spec.weights_hash,
    )


def context_free(task: WindTunnel, *, seed: int) -> Float64[Tensor, "query_pos answer"]:
    """The predictive averaged over sequences: the least mean KL that a predictor which reads nothing can have."""
    total, n = torch.zeros(1, dtype=torch.float64), 0
    for block in task.stream(N_REFERENCE, seed=derived_seed(seed, _REFERENCE)):
        total, n = total + block.at_scored(block.predictive).sum(dim=0), n + len(block)
    return total / n


def _mean(values: np.ndarray) -> Float[np.ndarray, " sequence"]:
    mean: np.ndarray = values.mean(axis=1, dtype=np.float64)
    return mean
