"""Processes: next-symbol prediction from any finite hidden Markov generator, and the literature's standard cases.

A generalized process has matrices with negative entries, whose products nevertheless give probabilities; so does a
quantum system that is measured at every step. The belief is then a real vector that sums to 1.

The difficulty axis is `mixing_time`, the steps until the hidden state's dependence on its start falls to 1/e.

References:
    Marzen & Crutchfield 2017, arXiv:1702.08565 (Mess3).
    Shai et al. 2024, arXiv:2405.15943 (beliefs form a fractal in the triangle, which a linear map finds in a
    transformer's residual stream; RRXOR and Z1R).
    Marzen & Crutchfield 2015, arXiv:1507.00672, figure 5a (golden mean).
    Riechers, Elliott & Shai 2025, arXiv:2507.07432 (generalized and quantum processes; appendix D: the Bloch walk).
    github.com/Astera-org/simplexity, generative_processes/transition_matrices.py (its processes, by their names).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Complex128, Float, Float64
from torch import Tensor

from bayesgeom.core import InvalidArgument, unknown_name
from bayesgeom.core.errors import quoted
from bayesgeom.stats.mixed_states import IMPOSSIBLE
from bayesgeom.tasks.base import check_parameters
from bayesgeom.tasks.markov import MarkovProcess, check_length, negative_probability, stationary

Matrices = (
    str
    | Sequence[Sequence[Sequence[float]]]
    | Float[np.ndarray, "symbol state state"]
    | Float[Tensor, "symbol state state"]
)
_ROUNDING = 1e-6
# Symbol, state and next state of each transition; those that leave a state are equally likely.
_EQUALLY_LIKELY: Mapping[str, tuple[tuple[int, int, int], ...]] = {
    # The start, a bit read (0 or 1), and the exclusive or of two bits (1 or 0), which is shown next.
    "rrxor": ((0, 0, 1), (1, 0, 2), (0, 1, 4), (1, 1, 3), (0, 2, 3), (1, 2, 4), (1, 3, 0), (0, 4, 0)),
    "golden-mean": ((0, 0, 0), (1, 0, 1), (0, 1, 0)),
    "z1r": ((0, 0, 1), (1, 1, 2), (0, 2, 0), (1, 2, 0)),
    "coin": ((0, 0, 0), (1, 0, 0)),
    "even": ((0, 0, 0), (1, 0, 1), (1, 1, 0)),
    "matching-parens": ((0, 0, 1), (0, 1, 2), (1, 1, 0), (0, 2, 3), (1, 2, 1), (1, 3, 2)),  # 0 opens, at most 3 deep
    "sns": ((0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 0)),
}
_SAME: Mapping[str, str] = {"no-consecutive-ones": "golden-mean", "zero-one-random": "z1r"}
_QUANTUM: Mapping[str, float] = {"bloch-walk": 51.0, "tom-quantum": 1.0}  # β², with α = 1
_GENERALIZED = (*_QUANTUM, "fanizza", "post-quantum")
_NAMES = (*_EQUALLY_LIKELY, *_SAME, "days-of-week", "leaky-rrxor", "mr-name", *_GENERALIZED)
_MOST_PREFIXES, _MOST_PRODUCTS = 20_000, 1e8  # that are followed in search of a negative probability: half a second


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Process(MarkovProcess):
    """`length` symbols of a generator: entry `[x][i][j]` is the probability to go from i to j and emit x.

    Entries are at least 0 and sum to one over x and j for each i. The state before the first symbol has the
    distribution `initial`, or the stationary distribution if `initial` is empty. Arrays, tensors and lists are stored
    as nested tuples.

    Processes of the literature have names, which are tasks on the command line, too: `rrxor` (two random bits, then
    their exclusive or; 36 beliefs; ⅔ bit per symbol), `golden-mean` (never two 1s in a row; ⅔ bit), `z1r` (0, 1, and a
    random bit; ⅓ bit), and the quantum process `bloch-walk`. The processes of simplexity have theirs, with the
    parameters of its tests: `coin`, `days-of-week`, `even`, `leaky-rrxor`, `matching-parens`, `mr-name`, `sns`,
    `no-consecutive-ones` (which is `golden-mean`), `zero-one-random` (which is `z1r`), and the generalized `fanizza`,
    `post-quantum` and `tom-quantum`.

    With `generalized`, entries may be negative, if every sequence still has a probability of at least 0. This is
    checked for as many first symbols as there are 20,000 sequences of, and of later ones as they
    are drawn. See also `from_kraus`.

    Args:
        transition_tensors: One matrix for each symbol, shape (symbol, state, state), or a name.
        initial: Distribution of the state before the first symbol; empty: the stationary one.
        length: Symbols in a sequence; each is a scored position.
        generalized: Whether entries may be negative.

    Raises:
        InvalidArgument: Entries are negative or not finite, rows do not sum to one, shapes do not fit, or a sequence
            has a negative probability; the message names it.
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
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"transition_tensors": name} for name in _NAMES}
    sentence: ClassVar[str] = (
        "Symbols of a process with hidden states; after each of {task.length} symbols the model predicts the next one."
    )
    transition_tensors: Matrices = field(kw_only=False)
    initial: Sequence[float] | Float[np.ndarray, " state"] | Float[Tensor, " state"] = ()
    length: int = 16
    generalized: bool = False

    @classmethod
    def from_kraus(cls, operators: Any, *, initial: Any = None, length: int = 16) -> "Process":
        """Return the process of a quantum system that is measured at every step: ρ → Σ_k K ρ K† with probability tr.

        The belief holds the coordinates of the density matrix, ρ = Σ_i b_i F_i, where F are the d² pure states |j⟩, and
        for j < k (|j⟩ + |k⟩)/√2 and (|j⟩ + i|k⟩)/√2: real numbers that sum to 1.

        Args:
            operators: Kraus operators of each symbol, complex, of shape (symbol, d, d) or (symbol, operator, d, d).
            initial: Density matrix before the first symbol, of shape (d, d); None: the stationary one.
            length: Symbols in a sequence.

        Raises:
            InvalidArgument: The shapes do not fit, Σ K†K is not the identity, or `initial` is no density matrix.

        Example:
            >>> import numpy as np
            >>> from bayesgeom import tasks
            >>> weak = np.sqrt([[[0.9, 0.0], [0.0, 0.2]], [[0.1, 0.0], [0.0, 0.8]]])  # a weak measurement, then a turn
            >>> turn = np.array([[0.8, -0.6], [0.6, 0.8]])
            >>> tasks.Process.from_kraus(turn @ weak, length=3).sample(2, seed=0).belief.shape
            torch.Size([2, 3, 4])
        """
        tensors, states = _of_kraus(operators)
        start = () if initial is None else _density_coordinates(initial, states)
        return cls(tensors, initial=start, length=length, generalized=True)

    def __post_init__(self) -> None:
        given = self.transition_tensors
        tensors = _preset(given) if isinstance(given, str) else _numbers("transition_tensors", given, n_axes=3)
        stored = tuple(tuple(map(tuple, matrix)) for matrix in tensors.tolist())
        object.__setattr__(self, "transition_tensors", stored)
        object.__setattr__(self, "initial", tuple(_numbers("initial", self.initial, n_axes=1).tolist()))
        if isinstance(given, str) and given in _GENERALIZED:
            object.__setattr__(self, "generalized", True)
        check_parameters(self)
        n_symbols, n_states, n_next = tensors.shape
        if n_symbols == 0 or n_states == 0 or n_next != n_states:
            raise InvalidArgument(
                f"transition_tensors must hold one square matrix per symbol, got {n_symbols} of {n_states}×{n_next}."
            )
        check_length(self)
        is_wrong = ~(np.isfinite(tensors) & (self.generalized | (tensors >= 0)))
        if is_wrong.any():
            raise InvalidArgument(
                f"transition_tensors must be finite and at least 0, got {tensors[is_wrong][0]}; with generalized=True, "
                f"entries may be negative where probabilities are not."
            )
        rows = tensors.sum(axis=(0, 2))
        worst = int(np.abs(rows - 1).argmax())
        if abs(rows[worst] - 1) > _ROUNDING:
            raise InvalidArgument(
                f"transition_tensors must sum to 1 over symbols and next states for each state; state {worst} sums to "
                f"{rows[worst]:.6g}. Entry [x][i][j] is P(emit x and go to j | in i)."
            )
        if self.initial:
            is_allowed = self.generalized or all(p >= 0 for p in self.initial)
            if len(self.initial) != n_states or not is_allowed or not abs(sum(self.initial) - 1) <= _ROUNDING:
                raise InvalidArgument(
                    f"initial must hold {n_states} probabilities that sum to 1, one per state, got {self.initial}."
                )
        elif stationary(self.labeled().sum(dim=0)) is None:
            raise InvalidArgument(
                "this chain is reducible and has several stationary distributions: pass initial, one probability per "
                "state."
            )
        if self.is_generalized:
            self._check_prefixes()

    def _check_prefixes(self) -> None:
        """Raise `InvalidArgument` if a sequence has a negative probability, after following sequences from the start.

        Beliefs are normalized after each symbol, so that a probability is that of the symbol given those before it.
        """
        ways = self.labeled()
        n_symbols, n_states, _ = ways.shape
        beliefs, prefixes = self.start()[None], torch.zeros(1, 0, dtype=torch.int64)
        for _ in range(self.length + 1):
            n_next = len(beliefs) * n_symbols
            if len(prefixes[0]) and (n_next > _MOST_PREFIXES or n_next * n_states**2 > _MOST_PRODUCTS):
                return
            joint = torch.einsum("ni,xij->nxj", beliefs, ways)
            share = joint.sum(dim=2)
            if float(share.min()) < -IMPOSSIBLE:
                raise negative_probability(prefixes, share)
            row, symbol = (share > IMPOSSIBLE).nonzero(as_tuple=True)
            beliefs = joint[row, symbol] / share[row, symbol, None]
            prefixes = torch.cat([prefixes[row], symbol[:, None]], dim=1)

    def __repr__(self) -> str:
        for name in () if self.initial else _NAMES:
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


@final
@dataclass(frozen=True, kw_only=True)
class Mess3(MarkovProcess):
    """Three states and three symbols in a ring: a state stays with probability 1 − 2x and mostly emits its own symbol.

    T^(k)_{ij} = e_{jk} m_{ij} with m_{ii} = 1 − 2x, m_{ij} = x, and e_{jj} = a, e_{jk} = (1 − a)/2: the next state is
    observed with noise. The defaults are those of the reference's figures. Its released code uses x = 0.15, a = 0.6,
    where answers without evidence are only 0.014 bits from exact (see `bayesgeom.check_task`).
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
    x: float = 0.05
    a: float = 0.85
    length: int = 32

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (0 <= self.x <= 0.5 and 0 <= self.a <= 1):
            raise InvalidArgument(f"Mess3 needs 0 ≤ x ≤ ½ and 0 ≤ a ≤ 1, got x={self.x}, a={self.a}.")
        check_length(self)

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
    if name not in _NAMES:
        raise unknown_name("process", name, _NAMES)
    name = _SAME.get(name, name)
    if name in _EQUALLY_LIKELY:
        symbols, states, after = np.array(_EQUALLY_LIKELY[name]).T
        matrices = np.zeros((symbols.max() + 1, states.max() + 1, states.max() + 1))
        matrices[symbols, states, after] = 1 / np.bincount(states)[states]
        return matrices
    if name in _QUANTUM:
        return _qubit_walk(_QUANTUM[name])
    if name == "leaky-rrxor":  # every symbol and next state with probability 0.1 / 10 in addition
        return 0.9 * _preset("rrxor") + 0.1 / 10
    made = {"days-of-week": _days_of_week, "mr-name": _mr_name, "fanizza": _fanizza, "post-quantum": _post_quantum}
    return made[name]()


def _qubit_walk(beta_squared: float) -> Float64[np.ndarray, "symbol state state"]:
    """Return a qubit measured along one of two axes at random, with the strength that α = 1 and β give."""
    beta, norm = beta_squared**0.5, (2 * (1 + beta_squared)) ** 0.5
    even, odd = (1 + beta) / norm, (1 - beta) / norm
    along = np.array([[[even, 0], [0, odd]], [[odd, 0], [0, even]]]) / 2**0.5
    turn = np.array([[1, 1], [1, -1]]) / 2**0.5
    return _of_kraus(np.concatenate([along, turn @ along @ turn]))[0]


def _days_of_week() -> Float64[np.ndarray, "symbol state state"]:
    """Return days: each step names any day, mostly the next, or says tomorrow, yesterday, weekend or weekday."""
    weights, day = np.zeros((11, 7, 7)), np.arange(7)
    weights[day, :, day] = 1
    weights[(day + 1) % 7, day, (day + 1) % 7] = 5
    weights[7, day, (day + 1) % 7] = weights[8, day, (day - 1) % 7] = 1
    weights[9, :, 5:], weights[10, :, :5] = 1 / 2, 1 / 5
    return weights / 15


def _mr_name() -> Float64[np.ndarray, "symbol state state"]:
    """Return the chain of Mr., two other words and a name, which follows Mr.; the state is what is shown."""
    chain = np.array([[0, 0, 0, 1], [0.25, 0.35, 0.4, 0], [0.25, 0.4, 0.35, 0], [0, 0.5, 0.5, 0]])
    return np.asarray(np.einsum("ij,jx->xij", chain, np.eye(4)))


def _fanizza() -> Float64[np.ndarray, "symbol state state"]:
    """Return a rotation by α = 2000 that decays by λ = 0.49 per step, until symbol 0 resets it."""
    scale, angle = 0.49, 2000.0
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    after = np.array([1, 1 - scale, 1 - cos + sin, 1 - cos - sin])
    a, b = after[2:] / (1 - 2 * cos + scale**2)
    reset = np.array([1 - (2 / (1 - scale) - a - b) / 4, 1 / (2 * (1 - scale)), -a / 4, -b / 4])
    turn = np.zeros((4, 4))
    turn[1, 1], turn[2:, 2:] = scale, [[cos, -sin], [sin, cos]]
    return np.stack([np.outer(after, reset), turn])


def _post_quantum() -> Float64[np.ndarray, "symbol state state"]:
    """Return the process of log α = 1 and β = ½ with states scaled so that rows sum to one."""
    grown = [[[np.exp(log), 0, 0], [0, 1, 0], [0, log, 1]] for log in (1.0, np.log(0.5))]
    matrices = np.array([np.outer([1, 1, 0], [1, -1, -1]), *grown])
    values, vectors = np.linalg.eig(matrices.sum(axis=0))
    top = int(values.real.argmax())
    after = vectors[:, top].real
    return np.asarray(matrices * after / after[:, None] / values[top].real)


def _of_kraus(
    operators: Any,
) -> tuple[Float64[np.ndarray, "symbol state state"], Complex128[np.ndarray, "state d d"]]:
    """Return the labeled matrices of Kraus operators, and the pure states whose weights are the belief."""
    kraus = _complex("operators", operators)
    kraus = kraus[:, None] if kraus.ndim == 3 else kraus
    if kraus.ndim != 4 or kraus.shape[2] != kraus.shape[3] or not kraus.size:
        raise InvalidArgument(
            f"operators must have the shape (symbol, d, d) or (symbol, operator, d, d), got {np.shape(operators)}."
        )
    d = kraus.shape[2]
    total = np.einsum("xkji,xkjl->il", kraus.conj(), kraus)
    if not (worst := np.abs(total - np.eye(d)).max()) <= _ROUNDING:
        raise InvalidArgument(
            f"the operators of a measurement satisfy Σ K†K = 1 over all symbols; an entry here is off by {worst:.3g}."
        )
    basis = np.eye(d, dtype=np.complex128)
    pairs = [(basis[j] + phase * basis[k]) / 2**0.5 for k in range(d) for j in range(k) for phase in (1, 1j)]
    vectors = np.array([*basis, *pairs])
    states = np.einsum("si,sj->sij", vectors, vectors.conj())
    moved = np.einsum("xkij,sjl,xkml->xsim", kraus, states, kraus.conj())
    matrices = np.stack([_coordinates(images, states) for images in moved])
    matrices[np.abs(matrices) < IMPOSSIBLE] = 0.0
    return matrices, states


def _coordinates(
    matrices: Complex128[np.ndarray, "n d d"], states: Complex128[np.ndarray, "state d d"]
) -> Float64[np.ndarray, "n state"]:
    """Return the weights b of Hermitian matrices Σ b_i F_i; they sum to the trace."""
    return np.asarray(np.linalg.solve(states.reshape(len(states), -1).T, matrices.reshape(len(matrices), -1).T).T.real)


def _density_coordinates(initial: Any, states: Complex128[np.ndarray, "state d d"]) -> Float64[np.ndarray, " state"]:
    """Return the belief of a density matrix; anything else raises `InvalidArgument`."""
    density = _complex("initial", initial)
    if (
        density.shape != states.shape[1:]
        or np.abs(density - density.conj().T).max() > _ROUNDING
        or np.linalg.eigvalsh(density).min() < -_ROUNDING
        or abs(np.trace(density) - 1) > _ROUNDING
    ):
        raise InvalidArgument(
            f"initial must be a density matrix of shape {states.shape[1:]}: Hermitian, without negative eigenvalues, "
            f"of trace 1."
        )
    return np.asarray(_coordinates(density[None], states)[0])


def _complex(name: str, values: Any) -> Complex128[np.ndarray, "..."]:
    """Return numbers as a complex array; anything else raises `InvalidArgument`."""
    try:
        array = np.asarray(values.tolist() if isinstance(values, Tensor) else values, dtype=np.complex128)
    except (TypeError, ValueError):
        array = np.full((), np.nan)
    if not np.isfinite(array).all():
        raise InvalidArgument(f"{name} must be an array of finite, possibly complex numbers, got {quoted(values)}.")
    return array


def _numbers(name: str, values: Any, *, n_axes: int) -> Float[np.ndarray, "..."]:
    """Return nested numbers as an array with `n_axes` axes; anything else raises `InvalidArgument`."""
    try:
        array = np.asarray(values.tolist() if isinstance(values, Tensor) else values, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(())
    if array.ndim != n_axes:
        raise InvalidArgument(
            f"{name} must be numbers nested {n_axes} deep in rows of one length, or an array or tensor with {n_axes} "
            f"axes; got another {type(values).__name__}."
        )
    return array
