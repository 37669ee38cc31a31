"""Processes: next-symbol prediction from any finite hidden Markov generator, and the literature's standard cases.

The difficulty axis is `mixing_time`, the steps until the hidden state's dependence on its start falls to 1/e.

References:
    Marzen & Crutchfield 2017, arXiv:1702.08565 (Mess3).
    Shai et al. 2024, arXiv:2405.15943 (beliefs form a fractal in the triangle, which a linear map finds in a
    transformer's residual stream; RRXOR and Z1R).
    Marzen & Crutchfield 2015, arXiv:1507.00672, figure 5a (golden mean).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import InvalidArgument, unknown_name
from bayesgeom.tasks.base import check_parameters
from bayesgeom.tasks.markov import MarkovProcess, check_process, stationary

Matrices = (
    str
    | Sequence[Sequence[Sequence[float]]]
    | Float[np.ndarray, "symbol state state"]
    | Float[Tensor, "symbol state state"]
)
_ROUNDING = 1e-6
# Symbol, state and next state of each transition; those that leave a state are equally likely.
_PRESETS: Mapping[str, tuple[tuple[int, int, int], ...]] = {
    # The start, a bit read (0 or 1), and the exclusive or of two bits (1 or 0), which is shown next.
    "rrxor": ((0, 0, 1), (1, 0, 2), (0, 1, 4), (1, 1, 3), (0, 2, 3), (1, 2, 4), (1, 3, 0), (0, 4, 0)),
    "golden-mean": ((0, 0, 0), (1, 0, 1), (0, 1, 0)),
    "z1r": ((0, 0, 1), (1, 1, 2), (0, 2, 0), (1, 2, 0)),
}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Process(MarkovProcess):
    """`length` symbols of a generator: entry `[x][i][j]` is the probability to go from i to j and emit x.

    Entries are at least 0 and sum to one over x and j for each i. The state before the first symbol has the
    distribution `initial`, or the stationary distribution if `initial` is empty. Arrays, tensors and lists are stored
    as nested tuples.

    Three processes of the literature have names, which are tasks on the command line, too: `rrxor` (two random bits,
    then their exclusive or; 36 beliefs; ⅔ bit per symbol), `golden-mean` (never two 1s in a row; ⅔ bit), and `z1r` (0,
    1, and a random bit; ⅓ bit).

    Args:
        transition_tensors: One matrix for each symbol, shape (symbol, state, state), or a name.
        initial: Distribution of the state before the first symbol; empty: the stationary one.
        length: Symbols in a sequence; each is a scored position.

    Raises:
        InvalidArgument: Entries are negative or not finite, rows do not sum to one, or shapes do not fit.
        UnknownName: No process has this name.

    Example:
        >>> from bayesgeom import tasks
        >>> coin = tasks.Process([[[0.9, 0.0], [0.0, 0.2]], [[0.1, 0.0], [0.0, 0.8]]], initial=[0.5, 0.5], length=3)
        >>> trials = coin.sample(2, seed=0)
        >>> trials.at_scored(trials.belief).shape
        torch.Size([2, 3, 2])
        >>> tasks.Process("rrxor", length=16)
        Process(rrxor, length=16)
    """

    name: ClassVar[str] = "process"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"transition_tensors": name} for name in _PRESETS}
    sentence: ClassVar[str] = (
        "Symbols of a process with hidden states; after each of {task.length} symbols the model predicts the next one."
    )
    transition_tensors: Matrices = field(kw_only=False)
    initial: Sequence[float] | Float[np.ndarray, " state"] | Float[Tensor, " state"] = ()
    length: int = 16

    def __post_init__(self) -> None:
        given = self.transition_tensors
        tensors = _preset(given) if isinstance(given, str) else _numbers("transition_tensors", given, n_axes=3)
        stored = tuple(tuple(map(tuple, matrix)) for matrix in tensors.tolist())
        object.__setattr__(self, "transition_tensors", stored)
        object.__setattr__(self, "initial", tuple(_numbers("initial", self.initial, n_axes=1).tolist()))
        check_parameters(self)
        n_symbols, n_states, n_next = tensors.shape
        if n_symbols == 0 or n_states == 0 or n_next != n_states:
            raise InvalidArgument(
                f"transition_tensors must hold one square matrix per symbol, got {n_symbols} of {n_states}×{n_next}."
            )
        check_process(self, n_states=n_states, on=("length",))
        rows, is_wrong = tensors.sum(axis=(0, 2)), ~(np.isfinite(tensors) & (tensors >= 0))
        if is_wrong.any():
            raise InvalidArgument(f"transition_tensors must be finite and at least 0, got {tensors[is_wrong][0]}.")
        worst = int(np.abs(rows - 1).argmax())
        if abs(rows[worst] - 1) > _ROUNDING:
            raise InvalidArgument(
                f"transition_tensors must sum to 1 over symbols and next states for each state; state {worst} sums to "
                f"{rows[worst]:.6g}. Entry [x][i][j] is P(emit x and go to j | in i)."
            )
        if self.initial:
            self._check_initial(len(rows))
        elif stationary(self.labeled().sum(dim=0)) is None:
            raise InvalidArgument(
                "this chain is reducible and has several stationary distributions: pass initial, one probability per "
                "state."
            )

    def __repr__(self) -> str:
        for name in () if self.initial else _PRESETS:
            if np.array_equal(_preset(name), self.transition_tensors):
                return f"Process({name}, length={self.length})"
        matrices = json.dumps([self.transition_tensors, self.initial])
        digest = hashlib.sha256(matrices.encode()).hexdigest()[:8]
        n_states = len(self.transition_tensors[0])
        return f"Process({n_states} states, {self.d_vocab} symbols, length={self.length}, matrices {digest})"

    @property
    def d_vocab(self) -> int:
        return len(self.transition_tensors)

    def labeled(self) -> Float64[Tensor, "symbol state state"]:
        return torch.tensor(self.transition_tensors, dtype=torch.float64)

    def start(self) -> Float64[Tensor, " state"]:
        if self.initial:
            return torch.tensor(self.initial, dtype=torch.float64)
        settled = stationary(self.labeled().sum(dim=0))
        assert settled is not None, "checked when the process was made"
        return settled

    def _check_initial(self, n_states: int) -> None:
        is_distribution = all(p >= 0 for p in self.initial) and abs(sum(self.initial) - 1) <= _ROUNDING
        if len(self.initial) != n_states or not is_distribution:
            raise InvalidArgument(
                f"initial must hold {n_states} probabilities that sum to 1, one per state, got {self.initial}."
            )


@final
@dataclass(frozen=True, kw_only=True)
class Mess3(MarkovProcess):
    """Three states and three symbols in a ring: a state stays with probability 1 − 2x and mostly emits its own symbol.

    T^(k)_{ij} = e_{jk} m_{ij} with m_{ii} = 1 − 2x, m_{ij} = x, and e_{jj} = a, e_{jk} = (1 − a)/2: the next state is
    observed with noise. The defaults are those of the reference's released code; its figures use x = 0.05, a = 0.85.
    The predictive is an invertible linear map of the belief. An exact predictor therefore determines the belief;
    whether the residual stream represents it linearly is what is measured.

    Args:
        x: Probability of each change of state, 0 … ½.
        a: Probability that a state emits its own symbol, 0 … 1.
        length: Symbols in a sequence; each is a scored position.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.Mess3(x=0.05, a=0.85, length=7).sample(2, seed=0)
        >>> trials.at_scored(trials.belief).shape
        torch.Size([2, 7, 3])
    """

    name: ClassVar[str] = "mess3"
    sentence: ClassVar[str] = (
        "Symbols of Mess3, a process with three hidden states; after each of {task.length} symbols the "
        "model predicts the next one."
    )
    x: float = 0.15
    a: float = 0.6
    length: int = 32

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (0 <= self.x <= 0.5 and 0 <= self.a <= 1):
            raise InvalidArgument(f"Mess3 needs 0 ≤ x ≤ ½ and 0 ≤ a ≤ 1, got x={self.x}, a={self.a}.")
        check_process(self, n_states=3, on=("length",))

    @property
    def d_vocab(self) -> int:
        return 3

    def labeled(self) -> Float64[Tensor, "symbol state state"]:
        same = torch.eye(3, dtype=torch.float64)
        moves = same * (1 - 2 * self.x) + (1 - same) * self.x
        shows = same * self.a + (1 - same) * (1 - self.a) / 2
        return torch.einsum("ij,jk->kij", moves, shows)

    def start(self) -> Float64[Tensor, " state"]:
        """Uniform, which is stationary for every x and a."""
        return torch.full((3,), 1 / 3, dtype=torch.float64)


def _preset(name: str) -> Float64[np.ndarray, "symbol state state"]:
    """Return the matrices of a process of the literature, by its name."""
    if name not in _PRESETS:
        raise unknown_name("process", name, _PRESETS)
    symbols, states, after = np.array(_PRESETS[name]).T
    found = np.zeros((symbols.max() + 1, states.max() + 1, states.max() + 1))
    found[symbols, states, after] = 1 / np.bincount(states)[states]
    return found


def _numbers(name: str, values: Any, *, n_axes: int) -> Float[np.ndarray, "..."]:
    """Return nested numbers as an array with `n_axes` axes; anything else raises `InvalidArgument`."""
    try:
        found = np.asarray(values.tolist() if isinstance(values, Tensor) else values, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(())
    if found.ndim != n_axes:
        raise InvalidArgument(
            f"{name} must be numbers nested {n_axes} deep in rows of one length, or an array or tensor with {n_axes} "
            f"axes; got another {type(values).__name__}."
        )
    return found
