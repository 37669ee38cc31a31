"""Quantities that an intervention tests: posterior entropy, the belief, the log-odds of one hypothesis, a statistic.

Each has an exact value at every scored position, from the task's posterior, and the model's own value, from its
predictions. A model has no visible belief over hidden states; its answer distribution is used instead. A statistic is
computed from that distribution by the linear map that comes closest to it under the exact predictive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials, unknown_name
from bayesgeom.stats.information import KNOWN_BITS, NATS_PER_BIT, entropy_bits
from bayesgeom.stats.regression import ridge

OwnValue = Callable[
    [Float64[Tensor, "batch query_pos answer"]], Float64[Tensor, "batch query_pos component"]
]  # of natural-log answer probabilities
QuantityName = Literal["entropy", "belief", "log_odds", "statistic"]
FORMS = ("entropy", "belief", "log_odds:HYPOTHESIS", "statistic:NAME")
CLIP_BITS = 10.0  # log-odds and log probabilities of excluded hypotheses would be infinite
CODES = ("category", "token", "previous")  # the exact posterior, this token, the token before it
CONFOUNDS = ("position", "answer", "known", *CODES)
CODE_POINTS = 8  # least number of points for each value of a code
_RIDGE = 1e-6  # of the map to a statistic: its features are few
LEAST_READ = 0.8  # R² of the map to a statistic on held-out sequences, below which the answers do not tell it
_CONSTANT = 1e-9  # share of the variance below which a difference is rounding error


@final
@dataclass(frozen=True)
class PosteriorQuantity:
    """A quantity of the exact posterior.

    Attributes:
        name: Which quantity.
        hypothesis: An index into the belief, for log-odds only.
        statistic: The name of one of the task's statistics, for "statistic" only.
    """

    name: QuantityName
    hypothesis: int | None = None
    statistic: str = ""

    def __post_init__(self) -> None:
        if self.name not in get_args(QuantityName) or (self.name == "statistic") != bool(self.statistic):
            raise unknown_name("quantity", self.name, FORMS)
        if (self.name == "log_odds") != (self.hypothesis is not None):
            raise InvalidArgument(
                f"log_odds requires a hypothesis, as in log_odds:3; entropy and belief accept none; got {self}."
            )

    @classmethod
    def of(cls, text: "str | PosteriorQuantity") -> "PosteriorQuantity":
        """Return the quantity written as `entropy`, `belief`, `log_odds:3` or `statistic:mean`.

        Raises:
            UnknownName: There is no such quantity; the error lists the forms.
        """
        if isinstance(text, PosteriorQuantity):
            return text
        match text.split(":"):
            case ["entropy"]:
                return cls("entropy")
            case ["belief"]:
                return cls("belief")
            case ["log_odds", index] if index.isdecimal():
                return cls("log_odds", int(index))
            case ["statistic", statistic] if statistic:
                return cls("statistic", statistic=statistic)
        raise unknown_name("quantity", text, FORMS)

    @property
    def label(self) -> str:
        """Label in tables and sentences."""
        if self.name == "log_odds":
            return f"log-odds of hypothesis {self.hypothesis}"
        return self.statistic.replace("_", " ") if self.statistic else self.name

    def check(self, trials: Trials) -> None:
        """Check that the task has this hypothesis or statistic.

        Raises:
            InvalidArgument: The task has no such hypothesis, or its belief has no odds.
            UnknownName: The task has no such statistic; the error lists those that it has.
        """
        if self.statistic and self.statistic not in trials.statistics:
            raise unknown_name("statistic of this task", self.statistic, trials.statistics)
        n = trials.belief.shape[-1]
        if self.hypothesis is not None and trials.is_signed:
            raise InvalidArgument(
                f"log_odds:{self.hypothesis}: the belief of a generalized process may be negative and has no odds; use "
                f"belief or entropy."
            )
        if self.hypothesis is not None and not 0 <= self.hypothesis < n:
            raise InvalidArgument(f"log_odds:{self.hypothesis}: the task's belief has hypotheses 0 … {n - 1}.")

    def exact(self, trials: Trials) -> Float64[Tensor, "batch query_pos component"]:
        """Return the value under the exact posterior at each scored position."""
        if self.name == "entropy":
            return entropy_bits(trials.at_scored(trials.predictive))[..., None]
        if self.statistic:
            values: Tensor = trials.at_scored(trials.statistics[self.statistic])
            return values[..., None]
        belief = trials.at_scored(trials.belief)
        return belief if self.name == "belief" else _log_odds(belief[..., self._chosen])

    def is_whole(self, trials: Trials) -> bool:
        """Return whether a model's own value is its whole answer distribution.

        Args:
            trials: Sequences of the task.
        """
        return self.name == "belief" or (self.name == "log_odds" and not answers_are_hypotheses(trials))

    def own(self, trials: Trials) -> OwnValue:
        """Return the function from natural-log answer probabilities to the model's own value at each scored position.

        For the belief, and if the answers are not the hypotheses, it is the whole answer distribution.

        Args:
            trials: Sequences of the task, on which the map to a statistic is fitted.

        Raises:
            InvalidArgument: The exact predictive does not tell the statistic, so that answers do not either.
        """
        if self.is_whole(trials):
            return torch.exp
        if self.name == "entropy":
            return lambda log_answers: entropy_bits(log_answers.exp())[..., None]
        if self.name == "log_odds":
            return lambda log_answers: _log_odds(log_answers.exp()[..., self._chosen])
        if not self.is_told_by_answers(trials):
            raise InvalidArgument(
                f"statistic:{self.statistic}: the answers do not tell it: R² of the map from the exact predictive is "
                f"below {LEAST_READ} on held-out sequences. Use the belief, or the answer shift of a swap."
            )
        return self._mapped(trials)

    def is_told_by_answers(self, trials: Trials) -> bool:
        """Return whether a statistic follows from the exact predictive, on held-out sequences; other quantities do."""
        if self.name != "statistic":
            return True
        half = -(-len(trials) // 2)
        fitted, held_out = trials.rows(slice(0, half)), trials.rows(slice(half, len(trials)))
        exact = self.exact(held_out)
        error = exact - self._mapped(fitted)(held_out.at_scored(held_out.predictive).log())
        spread = (exact - exact.mean(dim=(0, 1))).square().sum()
        return bool(error.square().sum() <= (1 - LEAST_READ) * spread) and len(held_out) > 0

    def _mapped(self, trials: Trials) -> OwnValue:
        x, y = _features(trials.at_scored(trials.predictive).log()).flatten(0, 1), self.exact(trials).flatten(0, 1)
        center, mean = x.mean(dim=0), y.mean(dim=0)
        weights = ridge((x - center).mT @ (x - center), (x - center).mT @ (y - mean), strength=_RIDGE)
        offset = mean - center @ weights
        return lambda log_answers: _features(log_answers) @ weights.to(log_answers) + offset.to(log_answers)

    @property
    def _chosen(self) -> slice:
        assert self.hypothesis is not None, "checked on construction"
        return slice(self.hypothesis, self.hypothesis + 1)


ENTROPY, BELIEF = PosteriorQuantity("entropy"), PosteriorQuantity("belief")


def answers_are_hypotheses(trials: Trials) -> bool:
    """Return whether the belief equals the predictive distribution over the answers."""
    predictive, belief = (trials.at_scored(values) for values in (trials.predictive, trials.belief))
    return predictive.shape == belief.shape and bool((predictive - belief).abs().max() < 1e-9)


def is_function_of_position(values: Float64[Tensor, "batch query_pos component"]) -> bool:
    """Return whether all sequences have the same value at each position, up to rounding."""
    spread = (values - values.mean(dim=0)).square().sum()
    return bool(spread <= _CONSTANT * (values.square().sum() + 1e-30))


def confounds(trials: Trials, names: tuple[str, ...]) -> Float64[Tensor, "batch query_pos column"]:
    """Return the confounds of a quantity: dummies of the position or of a code, log probabilities of answers, "known".

    Log probabilities are clipped log2 probabilities minus their mean over the answers, because the mean is nearly the
    entropy. "known" is 1 where the exact posterior leaves a single answer, such as where a stored key returns, else 0.
    """
    n, p = len(trials), trials.n_scored
    columns = []
    for name in names:
        if name == "position":
            columns.append(torch.eye(p, dtype=torch.float64, device=trials.tokens.device).expand(n, p, p))
        elif name == "answer":
            exact = trials.at_scored(trials.predictive)
            bits = (exact.clamp_min(1e-300).log() / NATS_PER_BIT).clamp_min(-CLIP_BITS)
            columns.append(bits - bits.mean(dim=-1, keepdim=True))
        elif name in CODES:
            values = code_values(trials, name)
            if (int(values.max()) + 1) * CODE_POINTS > values.numel():
                raise InvalidArgument(
                    f"given={name} has {int(values.max()) + 1:,} values on {values.numel():,} points; at least "
                    f"{CODE_POINTS} points for each value are needed. Hold another quantity fixed."
                )
            columns.append(torch.nn.functional.one_hot(values, int(values.max()) + 1).double())
        elif name == "known":
            columns.append((entropy_bits(trials.at_scored(trials.predictive)) < KNOWN_BITS)[..., None].double())
        else:
            raise unknown_name("quantity to hold fixed", name, CONFOUNDS)
    return torch.cat(columns, dim=-1)


def code_values(trials: Trials, name: str) -> Int64[Tensor, "batch query_pos"]:
    """Return the value of a code at each scored position, numbered from 0 over these sequences.

    Args:
        trials: The sequences.
        name: "category": which exact posterior it is; "token": this token; "previous": the token before it.
    """
    codes: Tensor
    if name == "category":
        exact = trials.at_scored(trials.predictive).round(decimals=6)
        codes = torch.unique(exact.flatten(0, 1), dim=0, return_inverse=True)[1]
        codes = codes.unflatten(0, tuple(exact.shape[:2]))
        return codes
    shifted = trials.tokens if name == "token" else torch.nn.functional.pad(trials.tokens, (1, -1), value=-1)
    codes = torch.unique(trials.at_scored(shifted), return_inverse=True)[1]
    return codes


def strongest_code(trials: Trials, values: Float64[Tensor, "batch query_pos component"], *, most: int) -> str:
    """Return the code that explains most of the variance of a quantity, of several the one with fewest values.

    Codes with fewer than `CODE_POINTS` points a value, or with more than `most` values, are left out; "" if none is
    left.
    """
    best, chosen = (0.0, 0), ""
    y = (values - values.mean(dim=(0, 1))).flatten(0, 1)
    for name in CODES:
        code = code_values(trials, name).flatten()
        counts = torch.bincount(code)
        if not 2 <= len(counts) <= min(most, len(code) // CODE_POINTS):
            continue
        sums = torch.zeros(len(counts), y.shape[1], dtype=y.dtype, device=y.device).index_add_(0, code, y)
        share = float((sums.square() / counts[:, None]).sum() / y.square().sum())
        if (rank := (round(share, 6), -len(counts))) > best:
            best, chosen = rank, name
    return chosen


def _features(log_answers: Float64[Tensor, "*batch answer"]) -> Float64[Tensor, "*batch feature"]:
    """Return probabilities and clipped log2 probabilities, from natural logs."""
    return torch.cat([log_answers.exp(), (log_answers / NATS_PER_BIT).clamp_min(-CLIP_BITS)], dim=-1)


def _log_odds(p: Float64[Tensor, "*batch"]) -> Float64[Tensor, "*batch"]:
    odds = (p.clamp_min(1e-300).log() - (1 - p).clamp_min(1e-300).log()) / NATS_PER_BIT
    return odds.clamp(-CLIP_BITS, CLIP_BITS)
