"""Product: two processes whose symbols are paired into one token, independent or not.

The labeled matrices are Kronecker products, T^(x, y) = T_a^(x) ⊗ T_b^(y), so the exact belief is the outer product of
the factors' beliefs: n_a n_b − 1 numbers, of which n_a + n_b − 2 (the two marginals) determine the others. A network
may represent the joint belief, or each factor's belief in a subspace of its own: the belief read-out tells them apart.

With a dependence ε, a pair is shown as it is with probability 1 − ε, else a uniformly random pair is shown instead:
T_ε^(z) = (1 − ε) T^(z) + ε / n Σ_z' T^(z') for n pairs. Whether a pair was replaced is told by both symbols together.
The states still move independently, but given the tokens they depend on each other, and no outer product of beliefs
about the factors is exact.

References:
    Shai et al. 2026, arXiv:2602.02385 (factored representations; ε is the noise channel on pairs in its released code).
"""

import math
from dataclasses import dataclass, field, is_dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials
from bayesgeom.tasks.base import check_parameters, task_from_text
from bayesgeom.tasks.markov import MarkovProcess, check_length, predictives_of


@final
@dataclass(frozen=True, kw_only=True)
class Product(MarkovProcess):
    """`length` pairs of symbols, one of each process; the token of the symbols x and y is x · b.d_vocab + y.

    The belief is over pairs of states, state i of `a` and j of `b` at i · n_b + j. A factor may itself be a product.

    Args:
        a: First process, or its name as on the command line: "rrxor", "mess3:x=0.05,a=0.85". Its own length is not
            used.
        b: Second process.
        length: Tokens in a sequence; each is a scored position.
        dependence: Probability ε that a uniformly random pair is shown instead of the factors' symbols, 0 … 1.

    Raises:
        InvalidArgument: A factor is no process, or a parameter has the wrong type or is out of range.

    Example:
        >>> from bayesgeom import tasks
        >>> task = tasks.Product(tasks.Mess3(x=0.05, a=0.85), "golden-mean", length=7)
        >>> task.d_vocab, task.sample(2, seed=0).belief.shape
        (6, torch.Size([2, 7, 6]))
    """

    name: ClassVar[str] = "product"
    sentence: ClassVar[str] = (
        "Symbols of two independent processes, paired into one token{task.noise}; after each of {task.length} pairs "
        "the model predicts the next one."
    )
    a: MarkovProcess | str = field(default="mess3:x=0.05,a=0.85", kw_only=False)
    b: MarkovProcess | str = field(default="mess3:x=0.1,a=0.9", kw_only=False)
    length: int = 24
    dependence: float = field(default=0.0, metadata={"left_out": True})

    def __post_init__(self) -> None:
        check_parameters(self)
        for name in ("a", "b"):
            given = vars(self)[name]
            factor = task_from_text(given) if isinstance(given, str) else given
            if not isinstance(factor, MarkovProcess):
                raise InvalidArgument(
                    f"{name} of a product must be a process, such as mess3, rrxor or sticky-markov, got {factor.name}."
                )
            assert is_dataclass(factor), "a task is a dataclass"
            object.__setattr__(self, name, replace(factor, length=max(1, self.length)))
        check_length(self)
        if not 0 <= self.dependence <= 1:
            raise InvalidArgument(
                f"dependence must be between 0 and 1, got {self.dependence}: a random pair, or that of the factors, "
                f"would be shown with a negative probability."
            )

    @property
    def noise(self) -> str:
        """Return what the task's sentence says of the dependence."""
        return f", or, with probability {self.dependence:g}, a random pair" if self.dependence else ""

    @property
    def d_vocab(self) -> int:
        return math.prod(factor.d_vocab for factor in self.factors)

    @property
    def _n_states(self) -> int:
        return math.prod(len(factor.start()) for factor in self.factors)

    def labeled(self) -> Float64[Tensor, "symbol state state"]:
        a, b = (factor.labeled() for factor in self.factors)
        pairs = torch.einsum("xij,ykl->xyikjl", a, b).reshape(self.d_vocab, self._n_states, self._n_states)
        return self._noisy(pairs)

    def start(self) -> Float64[Tensor, " state"]:
        a, b = (factor.start() for factor in self.factors)
        return torch.kron(a, b)

    def factor_baselines(
        self, trials: Trials, prior: Float64[Tensor, "batch query_pos answer"]
    ) -> dict[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `only_a` and `only_b`, and `factored` where the factors depend on each other.

        `only_a` predicts the first factor exactly and the second from the position. `factored` is the product of what
        the symbols of each factor alone predict of it: the exact observers of both, as if they were independent.

        Args:
            trials: Sequences of this task.
            prior: What the position alone predicts.
        """
        sizes = [factor.d_vocab for factor in self.factors]
        exact, unread = (joint.unflatten(2, sizes) for joint in (trials.at_scored(trials.predictive), prior))
        baselines = {
            "only_a": _paired(exact.sum(dim=3), unread.sum(dim=2)),
            "only_b": _paired(unread.sum(dim=3), exact.sum(dim=2)),
        }
        if self.dependence:
            symbols = (trials.tokens // sizes[1], trials.tokens % sizes[1])
            alone = (
                predictives_of(self._noisy(factor.labeled()).to(own.device), factor.start().to(own.device), own)
                for factor, own in zip(self.factors, symbols, strict=True)
            )
            baselines["factored"] = _paired(*alone)
        return baselines

    def _noisy(self, labeled: Float64[Tensor, "symbol state state"]) -> Float64[Tensor, "symbol state state"]:
        """Return the matrices whose symbol is replaced by a uniformly random one with probability `dependence`."""
        if not self.dependence:
            return labeled
        return (1 - self.dependence) * labeled + self.dependence * labeled.mean(dim=0)


def _paired(
    a: Float64[Tensor, "batch query_pos symbol"], b: Float64[Tensor, "batch query_pos other"]
) -> Float64[Tensor, "batch query_pos answer"]:
    return (a[..., :, None] * b[..., None, :]).flatten(2)
