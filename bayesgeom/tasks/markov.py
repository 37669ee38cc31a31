"""Base class of next-symbol prediction from a hidden Markov process.

A process is given by labeled transition matrices T^(x), whose entry (i, j) is the probability to go from state i to
state j and to emit symbol x. The exact observer updates a belief over states:

    b_t ∝ b_{t−1} T^(x_t),    P(x_{t+1} = x | x_0 … x_t) = b_t T^(x) 1.

The belief is over hidden states, the predictive over symbols. Layout: the symbols. The label at each symbol is the next
one; the last label is not shown.

References:
    Shai et al. 2024, arXiv:2405.15943 (labeled matrices; beliefs as points of the simplex of states).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.checks.cost import check_affordable
from bayesgeom.core.trials import Relations, Trials
from bayesgeom.stats.chains import mixing_times, stationary
from bayesgeom.stats.observers import Beliefs, Filter, full_support
from bayesgeom.tasks.windows import DynamicTask

_PRODUCT_SECONDS = 3e-9  # one product of an entry of the belief and one of a matrix, on one core


class MarkovProcess(DynamicTask):
    """A stationary generator of symbols, the same for all sequences, with a hidden state."""

    @abstractmethod
    def labeled(self) -> Float64[Tensor, "symbol state state"]:
        """Return T^(x); the rows of its sum over x add to one."""

    @abstractmethod
    def start(self) -> Float64[Tensor, " state"]:
        """Return the distribution of the state before the first symbol."""

    @property
    @final
    def mixing_time(self) -> float:
        """Return the steps until the hidden chain's dependence on its start falls to 1/e: the task's difficulty."""
        return float(mixing_times(self.labeled().sum(dim=0)))

    @final
    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self.trials(self._symbols(n, generator))

    @final
    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs of independent paths; the process is the same in all sequences."""
        original, donor = (self.trials(self._symbols(n, generator)) for _ in range(2))
        return original, donor

    @final
    def trials(self, symbols: Int64[Tensor, "batch pos_and_one"]) -> Trials:
        """Build sequences from symbols; the last symbol is the label and not shown.

        Args:
            symbols: Symbols, from 0.
        """
        labeled, start = self.labeled().to(symbols.device), self.start().to(symbols.device)
        tokens, ids = symbols[:, :-1].contiguous(), torch.arange(len(labeled), device=symbols.device)
        belief = filtered(labeled, start, tokens)
        return Trials(
            tokens=tokens,
            scored=torch.ones_like(tokens, dtype=torch.bool),
            answers=ids,
            predictive=_shown_next(labeled, belief),
            belief=belief,
            labels=symbols[:, 1:].contiguous(),
            token_sets={"inputs": ids},
            relations=Relations(draw=_relations, of=tokens),
            observers=self.observers(tokens),
        )

    @final
    def filter_of(self, tokens: Int64[Tensor, "batch pos"]) -> Filter:
        """Return the filter of `filtered`; a prior is over the state before the window's first symbol."""
        labeled, start = self.labeled().to(tokens.device), self.start().to(tokens.device)
        settled = stationary(labeled.sum(dim=0))

        def moved(belief: Beliefs, first: int) -> Beliefs:
            return _updated(labeled, belief, tokens[:, first : first + belief.shape[1]])

        return Filter(
            priors={
                "uniform": torch.full_like(start, 1 / len(start))[None],
                "stationary": full_support(start if settled is None else settled)[None],
            },
            weighed=moved,
            moved=moved,
            answers=lambda belief: _shown_next(labeled, belief),
        )

    @final
    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `context_free`, `last_symbol`, `last_two` and the window observers.

        `context_free` uses the position only; `last_symbol` and `last_two` use the position and the last one or two
        symbols. Window observers do not use the position.
        """
        labeled, start = self.labeled().to(trials.tokens.device), self.start().to(trials.tokens.device)
        step = labeled.sum(dim=0)
        before = [start]  # distribution of the state before each symbol, with no symbol seen
        for _ in range(trials.tokens.shape[1]):
            before.append(before[-1] @ step)
        unseen = torch.stack(before).expand(len(trials), -1, -1)
        baselines = {"context_free": _shown_next(labeled, unseen[:, 1:])}
        for name, n_kept in (("last_symbol", 1), ("last_two", 2)):
            belief = unseen
            for back in reversed(range(n_kept)):
                # Early positions have fewer symbols and use all of them.
                seen = trials.tokens[:, : trials.tokens.shape[1] - back]
                moved = _updated(labeled, belief[:, : seen.shape[1]], seen)
                belief = torch.cat([unseen[:, :1], moved], dim=1)
            baselines[name] = _shown_next(labeled, belief[:, 1:])
        return baselines | self.window_baselines(trials)

    @final
    def token_labels(self) -> Sequence[str]:
        return [f"x{i}" for i in range(self.d_vocab)]

    def _symbols(self, n: int, generator: torch.Generator) -> Int64[Tensor, "batch pos_and_one"]:
        labeled, start = self.labeled().to(generator.device), self.start().to(generator.device)
        n_states = labeled.shape[1]
        ways = labeled.movedim(0, 1).flatten(1)  # per state: all combinations of symbol and next state
        state = torch.multinomial(start.expand(n, -1), 1, generator=generator)[:, 0]
        symbols = []
        for _ in range(self.n_pos + 1):
            way = torch.multinomial(ways[state], 1, generator=generator)[:, 0]
            symbols.append(way // n_states)
            state = way % n_states
        return torch.stack(symbols, dim=1)


def check_process(task: MarkovProcess, *, n_states: int, on: Sequence[str]) -> None:
    """Check that one block of a process can be drawn.

    The cost includes every combination of symbol and next state at each position.

    Raises:
        InvalidArgument: The block is too large.
    """
    ways = float(task.d_vocab) * n_states
    check_affordable(
        task,
        task.n_pos * (16 * ways + 96 * (task.d_vocab + n_states)),
        n_steps=task.n_pos,
        constant_bytes=24 * ways * n_states,
        sequence_seconds=_PRODUCT_SECONDS * task.n_pos * ways * n_states,
        on=on,
    )


def filtered(
    labeled: Float64[Tensor, "symbol state state"],
    start: Float64[Tensor, " state"],
    symbols: Int64[Tensor, "batch pos"],
) -> Float64[Tensor, "batch pos state"]:
    """Return P(state after x_t | x_0 … x_t) for every t."""
    belief, beliefs = start.expand(len(symbols), 1, -1), []
    for pos in range(symbols.shape[1]):
        belief = _updated(labeled, belief, symbols[:, pos : pos + 1])
        beliefs.append(belief)
    return torch.cat(beliefs, dim=1)


def _updated(
    labeled: Float64[Tensor, "symbol state state"],
    belief: Float64[Tensor, "batch pos state"],
    symbols: Int64[Tensor, "batch pos"],
) -> Float64[Tensor, "batch pos state"]:
    """Update the belief at each position by one symbol."""
    ways = torch.einsum("bpi,xij->bpxj", belief, labeled)
    joint = ways.gather(2, symbols[:, :, None, None].expand(-1, -1, 1, ways.shape[3]))[:, :, 0]
    return joint / joint.sum(dim=-1, keepdim=True)


def _shown_next(
    labeled: Float64[Tensor, "symbol state state"], belief: Float64[Tensor, "batch pos state"]
) -> Float64[Tensor, "batch pos symbol"]:
    return torch.einsum("bpi,xi->bpx", belief, labeled.sum(dim=2))


def _relations(tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
    """Mark the current symbol, the previous one, and all earlier ones."""
    n, n_pos = tokens.shape
    pos = torch.arange(n_pos, device=tokens.device)
    back = (pos[:, None] - pos[None, :]).expand(n, -1, -1)
    return {"current_symbol": back == 0, "previous_symbol": back == 1, "earlier_symbol": back > 1}
