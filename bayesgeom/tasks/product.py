"""Product: two independent processes whose symbols are paired into one token.

The labeled matrices are Kronecker products, T^(x, y) = T_a^(x) ⊗ T_b^(y), so the exact belief is the outer product of
the factors' beliefs: n_a n_b − 1 numbers, of which n_a + n_b − 2 (the two marginals) determine the others. A network
may represent the joint belief, or each factor's belief in a subspace of its own: the belief read-out tells them apart.

References:
    Shai et al. 2026, arXiv:2602.02385 (factored representations).
"""

import math
from dataclasses import dataclass, field, is_dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core import InvalidArgument
from bayesgeom.tasks.base import check_parameters, task_from_text
from bayesgeom.tasks.markov import MarkovProcess, check_length


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
        "Symbols of two independent processes, paired into one token; after each of {task.length} pairs the model "
        "predicts the next one."
    )
    a: MarkovProcess | str = field(default="mess3:x=0.05,a=0.85", kw_only=False)
    b: MarkovProcess | str = field(default="mess3:x=0.1,a=0.9", kw_only=False)
    length: int = 24

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

    @property
    def d_vocab(self) -> int:
        return math.prod(factor.d_vocab for factor in self.factors)

    @property
    def _n_states(self) -> int:
        return math.prod(len(factor.start()) for factor in self.factors)

    def labeled(self) -> Float64[Tensor, "symbol state state"]:
        a, b = (factor.labeled() for factor in self.factors)
        return torch.einsum("xij,ykl->xyikjl", a, b).reshape(self.d_vocab, self._n_states, self._n_states)

    def start(self) -> Float64[Tensor, " state"]:
        a, b = (factor.start() for factor in self.factors)
        return torch.kron(a, b)
