"""What next-symbol prediction from a hidden Markov process is, whatever the process.

A process is given by labeled transition matrices T^(x), whose entry (i, j) is the probability to go from state i to
state j and to show symbol x on the way. The exact observer keeps a belief over states and pushes it through:

    b_t ∝ b_{t−1} T^(x_t),    P(x_{t+1} = x | x_0 … x_t) = b_t T^(x) 1.

Belief and predictive differ here: one is over hidden states, the other over symbols. Layout: the symbols, and at each
the next one is asked for; the last answer is not shown.

Reference: Shai et al. 2024, arXiv:2405.15943 (labeled matrices; beliefs as points of the simplex of states).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core.observers import Beliefs, Filter, full_support
from bayesgeom.core.trials import Relations, Trials
from bayesgeom.stats.chains import mixing_times, stationary
from bayesgeom.tasks.limits import check_affordable
from bayesgeom.tasks.windows import DynamicTask

_PRODUCT_SECONDS = 3e-9  # one product of a belief's entry with a matrix's, on one core


class MarkovProcess(DynamicTask):
    """A stationary generator of symbols, fixed for all sequences: what is hidden is its state."""

    @abstractmethod
    def labeled(self) -> Float64[Tensor, "symbol state state"]:
        """T^(x): rows of their sum over x add to one."""

    @abstractmethod
    def start(self) -> Float64[Tensor, " state"]:
        """The distribution of the state before the first symbol."""

    @property
    @final
    def mixing_time(self) -> float:
        """Steps in which the chain of hidden states forgets all but 1/e of its start: the task's difficulty."""
        return float(mixing_times(self.labeled().sum(dim=0)))

    @final
    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self.trials(self._symbols(n, generator))

    @final
    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Two independent paths: what is given, the process itself, is the same in all sequences."""
        original, donor = (self.trials(self._symbols(n, generator)) for _ in range(2))
        return original, donor

    @final
    def trials(self, symbols: Int64[Tensor, "batch pos_and_one"]) -> Trials:
        """The trials of given symbols; the last one is asked for and not shown."""
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
        """The filter of `filtered`; a prior is that of the state before the window's first symbol."""
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
        """`context_free` knows the position alone; `last_symbol` and `last_two` forget all that came earlier; windows.

        `last_symbol` and `last_two` know the position, and so where the chain is expected to be; windows do not.
        """
        labeled, start = self.labeled().to(trials.tokens.device), self.start().to(trials.tokens.device)
        step = labeled.sum(dim=0)
        before = [start]  # the state ahead of each symbol, none of them seen
        for _ in range(trials.tokens.shape[1]):
            before.append(before[-1] @ step)
        unseen = torch.stack(before).expand(len(trials), -1, -1)
        baselines = {"context_free": _shown_next(labeled, unseen[:, 1:])}
        for name, n_kept in (("last_symbol", 1), ("last_two", 2)):
            belief = unseen
            for back in reversed(range(n_kept)):
                # Where fewer symbols have been read, those are kept and nothing is forgotten.
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
        ways = labeled.movedim(0, 1).flatten(1)  # from each state: every symbol with every next state
        state = torch.multinomial(start.expand(n, -1), 1, generator=generator)[:, 0]
        symbols = []
        for _ in range(self.n_pos + 1):
            way = torch.multinomial(ways[state], 1, generator=generator)[:, 0]
            symbols.append(way // n_states)
            state = way % n_states
        return torch.stack(symbols, dim=1)


def check_process(task: MarkovProcess, *, n_states: int, on: Sequence[str]) -> None:
    """Check that one block of a process can be drawn. **Raises** `InvalidArgument` where it is too large.

    All ways from a state are laid out at every position: each symbol with each next state.
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
    """P(state after x_t | x_0 … x_t) for every t."""
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
    """One step of the observer at each position, from the belief before it."""
    ways = torch.einsum("bpi,xij->bpxj", belief, labeled)
    joint = ways.gather(2, symbols[:, :, None, None].expand(-1, -1, 1, ways.shape[3]))[:, :, 0]
    return joint / joint.sum(dim=-1, keepdim=True)


def _shown_next(
    labeled: Float64[Tensor, "symbol state state"], belief: Float64[Tensor, "batch pos state"]
) -> Float64[Tensor, "batch pos symbol"]:
    return torch.einsum("bpi,xi->bpx", belief, labeled.sum(dim=2))


def _relations(tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
    """The symbol just read, the one before it, and all that came earlier still."""
    n, n_pos = tokens.shape
    pos = torch.arange(n_pos, device=tokens.device)
    back = (pos[:, None] - pos[None, :]).expand(n, -1, -1)
    return {"current_symbol": back == 0, "previous_symbol": back == 1, "earlier_symbol": back > 1}
