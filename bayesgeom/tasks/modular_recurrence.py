"""Modular recurrence: predict the next number of a sequence that is noise or follows an unknown linear rule.

Half of the sequences follow x_{t+1} = a·x_t + b mod p with a and b uniform, from a uniform start. The others are
independent and uniform. After k numbers the odds for a rule have been multiplied by (number of rules that fit) ·
p^(k−3), which is 1, 1, 1, then p, p², … as long as a rule fits. If no rule fits, the sequence is noise. The difficulty
axis is `n_hypotheses`: p² rules and the noise.

References:
    The follow-up of Agarwal, Dalal & Misra 2025 (arXiv:2512.22471) on the limits of their construction, in their public
    code: p = 17, length 16.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.trials import Relations, Trials
from bayesgeom.tasks.base import WindTunnel, check_parameters
from bayesgeom.tasks.limits import check_affordable

_CELL_BYTES = 36.0  # a position and a hypothesis: successors, whether it fits, beliefs


@final
@dataclass(frozen=True, kw_only=True)
class ModularRecurrence(WindTunnel):
    """`length` numbers below `modulus`; the label at each is the next one, and the last label is not shown.

    `belief` is over the noise, then over all rules (a, b) in the order of a·p + b.

    Args:
        modulus: Number of different numbers p.
        length: Numbers in a sequence; each is a scored position.
        rule_share: Share of sequences that follow a rule; the others are noise.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> tasks.ModularRecurrence(modulus=5, length=7).n_hypotheses  # 25 rules and the noise
        26
    """

    name: ClassVar[str] = "modular-recurrence"
    modulus: int = 17
    length: int = 16
    rule_share: float = 0.5

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.modulus < 2 or self.length < 1 or not 0 < self.rule_share < 1:
            raise InvalidArgument(
                f"a recurrence needs modulus ≥ 2, length ≥ 1 and 0 < rule_share < 1, got {self.modulus}, "
                f"{self.length}, {self.rule_share}."
            )
        cells = float(self.n_hypotheses) * self.length
        check_affordable(self, _CELL_BYTES * cells, n_steps=self.length, on=("modulus", "length"))

    @property
    def n_hypotheses(self) -> int:
        """Number of rules plus one for the noise."""
        return self.modulus**2 + 1

    @property
    def d_vocab(self) -> int:
        return self.modulus

    @property
    def n_pos(self) -> int:
        return self.length

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        kind = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
        return self.trials(self._numbers(kind < self.rule_share, self._below((n, 1), generator), generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs with the same start and kind, and another rule or other noise."""
        kind = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
        start = self._below((n, 1), generator)
        original, donor = (self.trials(self._numbers(kind < self.rule_share, start, generator)) for _ in range(2))
        return original, donor

    def trials(self, numbers: Int64[Tensor, "batch pos_and_one"]) -> Trials:
        """Build sequences from numbers; the last number is the label and not shown."""
        tokens, ids = numbers[:, :-1].contiguous(), torch.arange(self.modulus, device=numbers.device)
        belief = self._belief(tokens)
        return Trials(
            tokens=tokens,
            scored=torch.ones_like(tokens, dtype=torch.bool),
            answers=ids,
            predictive=self._next_number(tokens, belief),
            belief=belief,
            labels=numbers[:, 1:].contiguous(),
            token_sets={"inputs": ids},
            relations=Relations(draw=_relations, of=tokens),
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `uniform`, and `prior_odds`: the rules that fit, at their prior odds against the noise."""
        rules = trials.belief[:, :, 1:]
        fits = rules > 0
        n_fitting = fits.sum(dim=2, keepdim=True)
        share = self.rule_share * (n_fitting > 0).double()
        unweighed = torch.cat([1 - share, share * fits / n_fitting.clamp_min(1)], dim=2)
        return {
            "uniform": torch.full_like(trials.predictive, 1 / self.modulus),
            "prior_odds": self._next_number(trials.tokens, unweighed),
        }

    def token_labels(self) -> Sequence[str]:
        return [str(i) for i in range(self.modulus)]

    def _below(self, shape: tuple[int, int], generator: torch.Generator) -> Int64[Tensor, "batch number"]:
        return torch.randint(self.modulus, shape, generator=generator, device=generator.device)

    def _numbers(
        self, is_rule: Bool[Tensor, " batch"], start: Int64[Tensor, "batch 1"], generator: torch.Generator
    ) -> Int64[Tensor, "batch pos_and_one"]:
        n = len(start)
        slope, offset = self._below((n, 2), generator).split(1, dim=1)
        noise = self._below((n, self.length), generator)
        numbers = [start]
        for step in range(self.length):
            follows = (slope * numbers[-1] + offset) % self.modulus
            numbers.append(torch.where(is_rule[:, None], follows, noise[:, step : step + 1]))
        return torch.cat(numbers, dim=1)

    def _successors(self, tokens: Int64[Tensor, "batch pos"]) -> Int64[Tensor, "batch pos rule"]:
        """Return the successor of each number under every rule."""
        rule = torch.arange(self.modulus**2, device=tokens.device)
        slope, offset = rule // self.modulus, rule % self.modulus
        return (slope * tokens[:, :, None] + offset) % self.modulus

    def _belief(self, tokens: Int64[Tensor, "batch pos"]) -> Float64[Tensor, "batch pos hypothesis"]:
        """Return the belief. Likelihoods are relative to that of a fitting rule, 1/p, against the noise's 1/p^k."""
        fits = torch.ones(*tokens.shape, self.modulus**2, dtype=torch.bool, device=tokens.device)
        fits[:, 1:] = (self._successors(tokens[:, :-1]) == tokens[:, 1:, None]).cummin(dim=1).values
        n_steps = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float64)
        # In long sequences the probability of noise underflows to 0, which is correct while a rule fits.
        noise = torch.where(fits.any(dim=2), (1 - self.rule_share) * float(self.modulus) ** -n_steps, 1.0)
        joint = torch.cat([noise[:, :, None], fits.double() * (self.rule_share / self.modulus**2)], dim=2)
        return joint / joint.sum(dim=2, keepdim=True)

    def _next_number(
        self, tokens: Int64[Tensor, "batch pos"], belief: Float64[Tensor, "batch pos hypothesis"]
    ) -> Float64[Tensor, "batch pos answer"]:
        predictive = (belief[:, :, :1] / self.modulus).repeat(1, 1, self.modulus)
        return predictive.scatter_add(2, self._successors(tokens), belief[:, :, 1:])


def _relations(tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
    """Mark earlier occurrences of this number, their successors, and the current, previous and earlier numbers."""
    n, n_pos = tokens.shape
    pos = torch.arange(n_pos, device=tokens.device)
    back = (pos[:, None] - pos[None, :]).expand(n, -1, -1)
    same = (tokens[:, :, None] == tokens[:, None, :]) & (back > 0)
    after_same = torch.cat([torch.zeros_like(same[:, :, :1]), same[:, :, :-1]], dim=2)
    return {
        "after_same_number": after_same,
        "same_number": same,
        "current_number": back == 0,
        "previous_number": back == 1,
        "earlier_number": back > 1,
    }
