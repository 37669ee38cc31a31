"""HMM: read the matrices of a hidden Markov model, then its symbols, and predict the hidden state.

Layout: a header, marker + S² transition entries (row-major), marker + S·O emission entries (row-major), separator; then
one (marker, symbol) pair per step. Entries are probabilities on a grid, each its own token. The exact filter uses these
rounded matrices, as the model does. The first symbol is emitted from the uniform initial state, with no transition
before it:

    α_0(s) ∝ E[s, o_0] / S,    α_t(s) ∝ E[s, o_t] Σ_r α_{t−1}(r) T[r, s].

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the task).
    Rabiner 1989 (the filter).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Relations, Trials
from bayesgeom.core.observers import Beliefs, Filter, exact_beliefs, full_support
from bayesgeom.core.run import with_renamed_answers
from bayesgeom.tasks.base import SymmetricTask, check_parameters, trials_at
from bayesgeom.tasks.markov import DynamicTask, mixing_times, redrawn, stationary_rows

_FINEST = 1e-12  # a finer grid has steps that float64 cannot distinguish
N_SPECIALS = 4  # transition marker, emission marker, separator, step marker


@final
@dataclass(frozen=True, kw_only=True)
class HMM(SymmetricTask, DynamicTask):
    """A new HMM in each sequence: Dirichlet(1) rows, raised to `floor`, renormalized, rounded to `grid`.

    With `stay`, each state stays with that probability at each step, and only the rest of its transition row is random.
    The published task has no `stay` and forgets its start within a step or two. A high `stay` makes a slow chain, on
    which carrying the belief differs from rereading the last symbols (`SLOW` is the shipped choice).

    Ids: probabilities `floor` … 1 in steps of `grid`, four special tokens, symbols, then the hidden states as answers.
    At the defaults: 96 + 4 + 5 input ids, 5 answer ids, a 53-token header, 93 tokens in all.

    Args:
        n_states: Number of hidden states S, at least 2.
        n_symbols: Number of symbols, at least 2.
        length: Symbols in a sequence; each is a scored position.
        floor: Smallest probability in a row, a multiple of `grid`.
        grid: Step of the probabilities; it must divide 1.
        stay: Probability to stay in a state; None draws it, as published.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.HMM(n_states=3, n_symbols=2, length=7).sample(2, seed=0)
        >>> trials.at_scored(trials.predictive).shape
        torch.Size([2, 7, 3])
    """

    name: ClassVar[str] = "hmm"
    sentence: ClassVar[str] = (
        "A new hidden Markov model in each sequence, written out with its probabilities; after each of "
        "{task.length} symbols the model predicts the hidden state."
    )
    n_states: int = 5
    n_symbols: int = 5
    length: int = 20
    floor: float = 0.05
    grid: float = 0.01
    stay: float | None = None

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.n_states < 2 or self.n_symbols < 2 or self.length < 1:
            raise InvalidArgument(f"an HMM needs n_states ≥ 2, n_symbols ≥ 2 and length ≥ 1, got {self}.")
        if not _FINEST < self.grid <= 0.5 or abs(round(1 / self.grid) * self.grid - 1) > 1e-9:
            raise InvalidArgument(f"grid must divide 1 into whole steps (0.01, 0.05, …), got {self.grid}.")
        if not 0 <= self.floor <= 1 or abs(self.floor / self.grid - self._floor_steps) > 1e-6:
            raise InvalidArgument(f"floor must be a whole number of grid steps ({self.grid}), got {self.floor}.")
        if self._floor_steps * max(self.n_states, self.n_symbols) > self._steps:
            raise InvalidArgument(
                f"a floor of {self.floor} on {max(self.n_states, self.n_symbols)} entries exceeds a sum of 1; lower it."
            )
        if self.stay is not None:
            self._check_stay(self.stay)

    def _check_stay(self, stay: float) -> None:
        steps = round(stay / self.grid) if 0 < stay < 1 else 0  # infinity has none
        if not (0 < stay < 1 and abs(stay / self.grid - steps) <= 1e-6 and steps >= self._floor_steps):
            raise InvalidArgument(
                f"stay must be None or a probability on the grid ({self.grid}), below 1 and not below "
                f"floor={self.floor}, the smallest that the header can represent; got {stay}."
            )
        if self._left_steps < self._floor_steps * (self.n_states - 1):
            most = 1 - self.floor * (self.n_states - 1)
            kept = 1 - self.floor * self.n_states  # the largest second eigenvalue that the floor allows
            longest = -1 / math.log(kept) if kept > 1e-9 else 0.0
            raise InvalidArgument(
                f"stay={stay} leaves {1 - stay:.3g} for {self.n_states - 1} transitions of at least floor={self.floor} "
                f"each, which is too little. With this floor and {self.n_states} states, stay is at most {most:.3g} "
                f"(mixing time {longest:.3g} steps); lower floor."
            )

    @property
    def _steps(self) -> int:
        return round(1 / self.grid)

    @property
    def _floor_steps(self) -> int:
        return round(self.floor / self.grid)

    @property
    def _left_steps(self) -> int:
        """Grid steps of a transition row that go to other states."""
        return self._steps - round((self.stay or 0) / self.grid)

    @property
    def _first_special(self) -> int:
        return self._steps - self._floor_steps + 1

    @property
    def _first_symbol(self) -> int:
        return self._first_special + N_SPECIALS

    @property
    def _first_answer(self) -> int:
        return self._first_symbol + self.n_symbols

    @property
    def _header_length(self) -> int:
        """Tokens before the first step marker."""
        return 3 + self.n_states * (self.n_states + self.n_symbols)

    @property
    def d_vocab(self) -> int:
        return self._first_answer + self.n_states

    @property
    def n_pos(self) -> int:
        return self._header_length + 2 * self.length

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        transition, emission = self._matrices(n, generator)
        return self.trials(transition, emission, *self._paths(transition, emission, generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs with the same matrices, and so the same header, and two independent paths."""
        matrices = self._matrices(n, generator)
        original, donor = (self.trials(*matrices, *self._paths(*matrices, generator)) for _ in range(2))
        return original, donor

    def trials(
        self,
        transition: Int64[Tensor, "batch state state"],
        emission: Int64[Tensor, "batch state symbol"],
        states: Int64[Tensor, "batch step"],
        symbols: Int64[Tensor, "batch step"],
    ) -> Trials:
        """Build sequences from matrices, in whole grid steps, and paths.

        Args:
            transition: Transition matrices, in whole steps of `grid`.
            emission: Emission matrices, in whole steps of `grid`.
            states: Hidden states, from 0.
            symbols: Symbols, from 0.
        """
        n, device = len(symbols), symbols.device
        special = torch.arange(N_SPECIALS, device=device).expand(n, -1) + self._first_special
        step_marker = special[:, 3:].expand(-1, symbols.shape[1])
        body = torch.stack([step_marker, symbols + self._first_symbol], dim=2).flatten(1)
        entries = [matrix.flatten(1) - self._floor_steps for matrix in (transition, emission)]
        tokens = torch.cat([special[:, :1], entries[0], special[:, 1:2], entries[1], special[:, 2:3], body], dim=1)
        observers = self.observers(tokens)
        return trials_at(
            slice(self._header_length + 1, None, 2),
            tokens,
            answers=torch.arange(self.n_states, device=device) + self._first_answer,
            predictive=exact_beliefs(observers.filter, *symbols.shape),
            labels=states + self._first_answer,
            token_sets={"inputs": torch.arange(self.n_symbols, device=device) + self._first_symbol},
            relations=Relations(draw=self._relations, of=symbols),
            observers=observers,
        )

    def filter_of(self, tokens: Int64[Tensor, "batch pos"]) -> Filter:
        """Return the filter from a uniform initial state; a window's first symbol has no transition before it."""
        transition, emission, symbols = self._read(tokens)
        likelihood = _likelihoods(emission, symbols)
        uniform = torch.full((self.n_states,), 1 / self.n_states, dtype=torch.float64, device=tokens.device)

        def weighed(belief: Beliefs, first: int) -> Beliefs:
            return belief * likelihood[:, first : first + belief.shape[1]]

        return Filter(
            priors={
                "initial": uniform[None],
                "uniform": uniform[None],
                "stationary": full_support(stationary_rows(transition, uniform)),
            },
            weighed=weighed,
            moved=lambda belief, first: weighed(belief @ transition, first),
            answers=lambda belief: belief,
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `uniform` over the states, `prior`, `likelihood_only`, and the window observers.

        `prior` reads the matrices and the position, and no symbol. `likelihood_only` is the posterior after the current
        symbol alone, from the uniform prior.
        """
        exact = trials.at_scored(trials.predictive)
        transition, emission, symbols = self._read(trials.tokens)
        likelihood = _likelihoods(emission, symbols)
        unread = [torch.full_like(exact[:, :1], 1 / self.n_states)]
        for _ in range(1, self.length):
            unread.append(unread[-1] @ transition)
        return {
            "uniform": torch.full_like(exact, 1 / self.n_states),
            "prior": torch.cat(unread, dim=1),
            "likelihood_only": likelihood / likelihood.sum(-1, keepdim=True),
            **self.window_baselines(trials),
        }

    def _read(
        self, tokens: Int64[Tensor, "batch pos"]
    ) -> tuple[
        Float64[Tensor, "batch state state"], Float64[Tensor, "batch state symbol"], Int64[Tensor, "batch step"]
    ]:
        """Return transitions, emissions and symbols, read from the tokens."""
        transition, emission = ((cells + self._floor_steps).double() / self._steps for cells in self._header(tokens))
        return transition, emission, tokens[:, self._header_length + 1 :: 2] - self._first_symbol

    def _header(
        self, tokens: Int64[Tensor, "batch pos"]
    ) -> tuple[Int64[Tensor, "batch state state"], Int64[Tensor, "batch state symbol"]]:
        """Return views of the header's transition and emission entries, as ids."""
        cells, first, rows = tokens[:, 1 : self._header_length - 1], self.n_states**2, (self.n_states, -1)
        return cells[:, :first].unflatten(1, rows), cells[:, first + 1 :].unflatten(1, rows)

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw some symbols again, given the matrices and the kept symbols."""
        transition, emission, symbols = self._read(trials.tokens)
        shows = emission.mT[:, :, None, :]  # by symbol and next state
        first = torch.eye(self.n_states, dtype=torch.float64, device=generator.device) * shows
        start = torch.ones(1, self.n_states, dtype=torch.float64, device=generator.device)
        ways = [first, *[transition[:, None] * shows] * (self.length - 1)]
        states, symbols = redrawn(ways, start, symbols, keep, generator)
        moves, emits = (cells + self._floor_steps for cells in self._header(trials.tokens))
        return self.trials(moves, emits, states, symbols)

    @property
    def n_names(self) -> int:
        return self.n_states

    def relabeled(self, trials: Trials, names: Int64[Tensor, "batch name"]) -> Trials:
        """Rename the hidden states, with the rows and columns of the transitions and the rows of the emissions."""
        called = names.argsort(dim=1)[:, :, None]  # the old state of each new row
        tokens = trials.tokens.clone()
        transition, emission = self._header(tokens)
        rows = transition.gather(1, called.expand_as(transition))
        transition.copy_(rows.gather(2, called.mT.expand_as(rows)))
        emission.copy_(emission.gather(1, called.expand_as(emission)))
        return with_renamed_answers(replace(trials, tokens=tokens, observers=self.observers(tokens)), names)

    def mixing_times(self, trials: Trials) -> Float64[Tensor, " batch"]:
        """Return the mixing time of each sequence's chain: steps until its dependence on the start falls to 1/e.

        Args:
            trials: Sequences of this task.
        """
        return mixing_times(self._read(trials.tokens)[0])

    def token_labels(self) -> Sequence[str]:
        probabilities = [f"{(i + self._floor_steps) * self.grid:.3g}" for i in range(self._first_special)]
        symbols = [f"o{i}" for i in range(self.n_symbols)]
        return [*probabilities, "T:", "E:", "|", "·", *symbols, *(f"s{i}" for i in range(self.n_states))]

    def _matrices(
        self, n: int, generator: torch.Generator
    ) -> tuple[Int64[Tensor, "batch state state"], Int64[Tensor, "batch state symbol"]]:
        if self.stay is None:
            transition = self._rows((n, self.n_states, self.n_states), self._steps, generator)
        else:  # `stay` on the diagonal
            moves = self._rows((n, self.n_states, self.n_states - 1), self._left_steps, generator)
            kept = self._steps - self._left_steps
            transition = torch.full((n, self.n_states, self.n_states), kept, device=generator.device)
            transition[:, ~torch.eye(self.n_states, dtype=torch.bool, device=generator.device)] = moves.flatten(1)
        return transition, self._rows((n, self.n_states, self.n_symbols), self._steps, generator)

    def _paths(
        self,
        transition: Int64[Tensor, "batch state state"],
        emission: Int64[Tensor, "batch state symbol"],
        generator: torch.Generator,
    ) -> tuple[Int64[Tensor, "batch step"], Int64[Tensor, "batch step"]]:
        """Draw hidden states and symbols; the first state is uniform, with no transition before it."""
        n, device = len(transition), generator.device
        state = torch.randint(self.n_states, (n,), generator=generator, device=device)
        row, states, symbols = torch.arange(n, device=device), [], []
        for step in range(self.length):
            if step > 0:
                state = torch.multinomial(transition[row, state].double(), 1, generator=generator)[:, 0]
            states.append(state)
            symbols.append(torch.multinomial(emission[row, state].double(), 1, generator=generator)[:, 0])
        return torch.stack(states, 1), torch.stack(symbols, 1)

    def _rows(
        self, shape: tuple[int, int, int], total: int, generator: torch.Generator
    ) -> Int64[Tensor, "batch row entry"]:
        """Draw rows of `total` grid steps each: Dirichlet(1), floored, renormalized, rounded, sum corrected."""
        weights = torch.empty(shape, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
        probabilities = (weights / weights.sum(-1, keepdim=True)).clamp_min(self._floor_steps / total)
        steps = (probabilities / probabilities.sum(-1, keepdim=True) * total).round().long()
        steps = steps.clamp_min(self._floor_steps)
        # Rounding leaves a surplus or deficit: take steps from the largest entry, or add them to the smallest.
        while bool((excess := steps.sum(-1) - total).any()):
            at = torch.where(excess > 0, steps.argmax(-1), steps.argmin(-1))
            steps.scatter_add_(-1, at[..., None], -excess.sign()[..., None])
        return steps

    def _relations(self, symbols: Int64[Tensor, "batch step"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark header cells of the current symbol's likelihoods, all transition cells, this symbol, earlier symbols."""
        n, length = symbols.shape
        none = torch.zeros(n, length, self._header_length + 2 * length, dtype=torch.bool, device=symbols.device)
        start, first_emission = self._header_length + 1, 2 + self.n_states**2
        emission, transition, current, earlier = none.clone(), none.clone(), none.clone(), none.clone()
        for state in range(self.n_states):
            emission.scatter_(2, (symbols + first_emission + state * self.n_symbols)[:, :, None], True)
        transition[:, :, 1 : 1 + self.n_states**2] = True
        current[:, :, start::2] = torch.eye(length, dtype=torch.bool, device=symbols.device)
        earlier[:, :, start::2] = torch.ones(length, length, dtype=torch.bool, device=symbols.device).tril(-1)
        return {
            "emission_of_symbol": emission,
            "transition_entries": transition,
            "current_symbol": current,
            "earlier_symbol": earlier,
        }


SLOW = HMM(n_states=3, n_symbols=3, length=64, floor=0.01, stay=0.96)


def _likelihoods(
    emission: Float64[Tensor, "batch state symbol"], symbols: Int64[Tensor, "batch step"]
) -> Float64[Tensor, "batch step state"]:
    """Return P(o_t | s) for every state."""
    return emission.transpose(1, 2).gather(1, symbols[:, :, None].expand(-1, -1, emission.shape[1]))
