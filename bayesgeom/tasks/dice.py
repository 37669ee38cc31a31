"""Dice: rolls of one die of unknown bias, and a coin for two faces; predict the next roll.

The bias of each sequence is drawn from a symmetric Dirichlet distribution. After t rolls, of which c_i show face i,

    P(next = i | t rolls) = (c_i + α) / (t + α n_faces).

The rolls are exchangeable: their order carries no information, and the predictions of the exact observer are a
martingale. Layout: the rolls. The label at each roll is the next one; the last label is not shown.

References:
    Falck, Wang & Holmes 2024, arXiv:2406.00793 (a coin, to test whether predictions are a martingale).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials
from bayesgeom.tasks.base import (
    FORGETTING,
    ExchangeableTask,
    SymbolTask,
    check_concentration,
    check_parameters,
    discounted_sums,
)

PLUG_IN = 0.01  # pseudo-count, so that no face is impossible


@final
@dataclass(frozen=True, kw_only=True)
class Dice(SymbolTask, ExchangeableTask):
    """`length` rolls of a die whose bias is drawn from Dirichlet(concentration) in each sequence.

    The belief is the predictive: the posterior mean of the bias. The likelihood of a roll depends on the bias alone,
    so a filter that discounts old rolls is a count with weights.

    Args:
        n_faces: Faces, which are the symbols; 2 for a coin.
        concentration: α of the Dirichlet prior: 1 for uniform biases, less for more extreme ones.
        length: Rolls in a sequence; each is a scored position.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.Dice(n_faces=2, length=3).sample(1, seed=0)
        >>> trials.tokens.tolist(), trials.predictive[0, -1].tolist()  # (c + 1) / (3 + 2)
        ([[1, 0, 0]], [0.6, 0.4])
    """

    name: ClassVar[str] = "dice"
    sentence: ClassVar[str] = (
        "Rolls of one die with {task.n_faces} faces, whose bias is new in each sequence; after each roll the model "
        "predicts the next one."
    )
    n_faces: int = 2
    concentration: float = 1.0
    length: int = 24

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.n_faces < 2 or self.length < 1:
            raise InvalidArgument(f"dice need n_faces ≥ 2 and length ≥ 1, got {self.n_faces} and {self.length}.")
        check_concentration(self.concentration)

    @property
    def d_vocab(self) -> int:
        return self.n_faces

    def observed(
        self, tokens: Int64[Tensor, "batch pos"]
    ) -> tuple[Float64[Tensor, "batch pos face"], Float64[Tensor, "batch pos face"]]:
        """Return belief and predictive after each roll, which are the same."""
        predictive = self._predictive(self._counts(tokens))
        return predictive, predictive

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return four predictors that read the rolls otherwise than the exact observer, or not at all.

        - `uniform`: all faces alike.
        - `last_roll`: the exact observer that sees the last roll only.
        - `plug_in`: the shares of the faces so far, with pseudo-counts of 0.01; no prior.
        - `forgetting`: the exact observer that weights each roll by 0.8 to the power of its age.
        """
        latest = torch.nn.functional.one_hot(trials.tokens, self.n_faces).double()
        return {
            "uniform": torch.full_like(latest, 1 / self.n_faces),
            "last_roll": self._predictive(latest),
            "plug_in": self._predictive(self._counts(trials.tokens), PLUG_IN),
            "forgetting": self.discounted(trials, FORGETTING),
        }

    def redrawn(
        self, tokens: Int64[Tensor, "batch pos"], keep: Bool[Tensor, " pos"], generator: torch.Generator
    ) -> Int64[Tensor, "batch roll_and_one"]:
        """Roll some dice again, given the kept rolls."""
        drawn = [known := tokens[:, keep]]  # each is drawn from its predictive given those before it (the urn of Pólya)
        weights = torch.nn.functional.one_hot(known, self.n_faces).double().sum(dim=1) + self.concentration
        for _ in range(known.shape[1], self.length + 1):
            roll = torch.multinomial(weights, 1, generator=generator)
            weights = weights.scatter_add(1, roll, torch.ones_like(roll, dtype=torch.float64))
            drawn.append(roll)
        rolls = torch.empty_like(rolled := torch.cat(drawn, dim=1))
        rolls[:, :-1][:, keep] = tokens[:, keep]
        rolls[:, :-1][:, ~keep] = rolled[:, int(keep.sum()) : -1]
        rolls[:, -1] = rolled[:, -1]
        return rolls

    @property
    def is_exchangeable(self) -> bool:
        return True

    def reordered(self, trials: Trials, order: Int64[Tensor, "batch evidence"]) -> Trials:
        return self.trials(torch.cat([trials.tokens.gather(1, order), trials.labels[:, -1:]], dim=1))

    @property
    def n_continued(self) -> int:
        return self.length - 1

    def continued(self, trials: Trials, step: int) -> tuple[Trials, Int64[Tensor, "batch row"]]:
        """Return each sequence up to roll `step`, with every face as the next roll; both queries are the same."""
        n, rows = len(trials), self.n_faces + 2
        rolls = trials.tokens[:, None, : step + 2].repeat(1, rows, 1)
        rolls[:, 2:, step + 1] = torch.arange(self.n_faces, device=rolls.device)
        label = torch.zeros(n * rows, 1, dtype=torch.int64, device=rolls.device)
        read = torch.full((n, rows), step + 1, device=rolls.device)
        read[:, :2] = step
        return self.trials(torch.cat([rolls.flatten(0, 1), label], dim=1)), read

    def discounted(self, trials: Trials, discount: float) -> Float64[Tensor, "batch query_pos answer"]:
        rolls = torch.nn.functional.one_hot(trials.tokens, self.n_faces).double()
        return self._predictive(discounted_sums(rolls, discount))

    def related(self, tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark the rolls so far, and those of the same face as the latest."""
        n, n_pos = tokens.shape
        seen = torch.ones(n_pos, n_pos, dtype=torch.bool, device=tokens.device).tril().expand(n, -1, -1)
        return {"roll": seen.clone(), "same_face": seen & (tokens[:, :, None] == tokens[:, None, :])}

    def token_labels(self) -> list[str]:
        return [f"face {i + 1}" for i in range(self.n_faces)]

    def _counts(self, tokens: Int64[Tensor, "batch pos"]) -> Float64[Tensor, "batch pos face"]:
        return torch.nn.functional.one_hot(tokens, self.n_faces).double().cumsum(dim=1)

    def _predictive(
        self, counts: Float64[Tensor, "batch pos face"], prior: float | None = None
    ) -> Float64[Tensor, "batch pos face"]:
        weights = counts + (self.concentration if prior is None else prior)
        return weights / weights.sum(dim=-1, keepdim=True)
