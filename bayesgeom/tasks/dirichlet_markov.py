"""Dirichlet–Markov: predict the next symbol of a Markov chain whose transition matrix is new in each sequence.

Every row of the matrix is drawn from a symmetric Dirichlet distribution. The exact observer counts transitions:

    P(x_{t+1} = j | x_t = i) = (c_ij + α) / (Σ_j c_ij + α n_symbols).

With a finite `pool`, every sequence comes from one of K chains that were drawn once. The exact observer then weighs the
K chains by their likelihood: it memorizes where the other generalizes. Which of the two a network is near, and when in
training, is the question. Layout: the symbols, the first of which is uniform. The label at each symbol is the next one;
the last label is not shown.

References:
    Edelman et al. 2024, arXiv:2402.11004 (the task without a pool: unigram before bigram).
    Raventós et al. 2023, arXiv:2306.15063 (finite pools of tasks: memorizing and generalizing observers).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials
from bayesgeom.tasks.base import SymbolTask, check_concentration, check_parameters, checked_seed, steps_back

PLUG_IN = 0.01  # pseudo-count of the plug-in baseline, so that no transition is impossible
_LEAST = 1e-300  # a probability that rounds to 0, of a chain in the pool
_MOST_TRIES = 10_000  # of drawing symbols between kept ones
_Shown = Float64[Tensor, "batch pos symbol"]


@final
@dataclass(frozen=True, kw_only=True)
class DirichletMarkov(SymbolTask):
    """`length` symbols of a chain; with a pool, the belief is over its K chains, otherwise it is the predictive.

    Args:
        n_symbols: Number of symbols, which are the states.
        concentration: α of the Dirichlet distribution of every row.
        length: Symbols in a sequence; each is a scored position.
        pool: Number K of chains; 0 for a new chain in each sequence.
        pool_seed: Seed with which the chains of the pool are drawn.
        fresh: Whether sequences come from new chains, although there is a pool: the test of an observer that was
            trained on the pool. The exact observer is then that of new chains.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> tasks.DirichletMarkov(n_symbols=3, length=5, pool=16).sample(2, seed=0).belief.shape
        torch.Size([2, 5, 16])
    """

    name: ClassVar[str] = "dirichlet-markov"
    sentence: ClassVar[str] = (
        "Symbols of a Markov chain that is new in each sequence; after each of {task.length} symbols the model "
        "predicts the next one."
    )
    n_symbols: int = 4
    concentration: float = 0.5
    length: int = 64
    pool: int = 0
    pool_seed: int = 0
    fresh: bool = False

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.n_symbols < 2 or self.length < 1 or self.pool < 0:
            raise InvalidArgument(
                f"a Dirichlet–Markov task needs n_symbols ≥ 2, length ≥ 1 and pool ≥ 0 (0: a new chain in each "
                f"sequence), got {self.n_symbols}, {self.length} and {self.pool}."
            )
        check_concentration(self.concentration)
        if self.fresh and not self.pool:
            raise InvalidArgument("fresh=True draws chains that are not in the pool: it needs pool=K with K ≥ 1.")
        checked_seed(self.pool_seed)

    @property
    def d_vocab(self) -> int:
        return self.n_symbols

    @property
    def is_pooled(self) -> bool:
        """Whether sequences come from the chains of the pool."""
        return self.pool > 0 and not self.fresh

    def chains(self) -> Float64[Tensor, "chain symbol symbol"]:
        """Return the transition matrices of the pool; none without a pool."""
        return self._pool().clone()  # the pool is kept: an edit would change the exact posterior

    def observed(self, tokens: Int64[Tensor, "batch pos"]) -> tuple[Float64[Tensor, "batch pos hypothesis"], _Shown]:
        """Return belief and predictive after each symbol; without a pool they are the same."""
        if not self.is_pooled:
            shares = self._shares(tokens, self.concentration)
            return shares, shares
        belief = self._chain_belief(tokens)
        return belief, self._by_chains(tokens, belief)

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return predictors that count otherwise than the exact observer.

        - `uniform`: all symbols alike.
        - `unigram`: the shares of the symbols so far, with pseudo-counts of `concentration`.
        - `plug_in`: the shares of the transitions so far, with pseudo-counts of 0.01.
        - `add_one`: the same with pseudo-counts of 1, unless `concentration` is 1, where it is exact.
        - With a pool, the exact observer of the other kind: `generalizing`, which does not know the pool, or
          `memorizing` where sequences come from new chains.
        """
        tokens = trials.tokens
        counts = torch.nn.functional.one_hot(tokens, self.n_symbols).double().cumsum(dim=1) + self.concentration
        baselines = {
            "uniform": torch.full_like(counts, 1 / self.n_symbols),
            "unigram": counts / counts.sum(dim=2, keepdim=True),
            "plug_in": self._shares(tokens, PLUG_IN),
        }
        if self.is_pooled or self.concentration != 1.0:
            baselines["add_one"] = self._shares(tokens, 1.0)
        if self.is_pooled:
            baselines["generalizing"] = self._shares(tokens, self.concentration)
        elif self.pool:
            baselines["memorizing"] = self._by_chains(tokens, self._chain_belief(tokens))
        return baselines

    def token_labels(self) -> Sequence[str]:
        return [f"x{i}" for i in range(self.n_symbols)]

    def _pool(self) -> Float64[Tensor, "chain symbol symbol"]:
        return _drawn_pool(self.pool, self.n_symbols, self.concentration, self.pool_seed)

    def related(self, tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark the current symbol, what followed its earlier occurrences, and all earlier symbols."""
        back = steps_back(tokens)
        same = (tokens[:, :, None] == tokens[:, None, :]) & (back > 0)
        return {
            "after_same_symbol": torch.nn.functional.pad(same[:, :, :-1], (1, 0)),
            "same_symbol": same,
            "current_symbol": back == 0,
            "earlier_symbol": back > 0,
        }

    def _shares(self, tokens: Int64[Tensor, "batch pos"], prior: float) -> _Shown:
        """Return the shares of what followed the latest symbol, with pseudo-counts."""
        row = tokens[:, :, None, None].expand(-1, -1, 1, self.n_symbols)
        pairs = torch.nn.functional.one_hot(tokens[:, :-1] * self.n_symbols + tokens[:, 1:], self.n_symbols**2)
        counts = torch.nn.functional.pad(pairs.double().cumsum(dim=1), (0, 0, 1, 0))
        weights = counts.reshape(*tokens.shape, self.n_symbols, self.n_symbols).gather(2, row)[:, :, 0] + prior
        return weights / weights.sum(dim=2, keepdim=True)

    def _chain_belief(self, tokens: Int64[Tensor, "batch pos"]) -> Float64[Tensor, "batch pos chain"]:
        """Return the posterior over the chains of the pool."""
        steps = self._pool().to(tokens.device).log()[:, tokens[:, :-1], tokens[:, 1:]].movedim(0, 2)
        return torch.nn.functional.pad(steps.cumsum(dim=1), (0, 0, 1, 0)).softmax(dim=2)

    def _by_chains(self, tokens: Int64[Tensor, "batch pos"], belief: Float64[Tensor, "batch pos chain"]) -> _Shown:
        rows = self._pool().to(tokens.device).movedim(1, 0)  # by latest symbol: chain and next symbol
        every = torch.einsum("bpk,ikj->bpij", belief, rows)
        return every.gather(2, tokens[:, :, None, None].expand(-1, -1, 1, self.n_symbols))[:, :, 0]

    def redrawn(
        self, tokens: Int64[Tensor, "batch pos"], keep: Bool[Tensor, " pos"], generator: torch.Generator
    ) -> Int64[Tensor, "batch pos_and_one"]:
        """Draw symbols forward from the chain's posterior given all transitions between kept neighbors.

        Draws are repeated until the step into every kept symbol is the one that was kept. The time grows with the
        number of separate gaps.

        Raises:
            InvalidArgument: There are so many gaps that no draw fits.
        """
        symbols, kept = torch.nn.functional.pad(tokens, (0, 1)), torch.nn.functional.pad(keep, (0, 1))
        open_rows = torch.arange(len(tokens), device=tokens.device)
        for _ in range(_MOST_TRIES):
            drawn, fits = self._proposed(symbols[open_rows], kept, generator)
            symbols[open_rows[fits]] = drawn[fits]
            open_rows = open_rows[~fits]
            if not len(open_rows):
                return symbols
        raise InvalidArgument(
            f"no sequence with these kept symbols was found in {_MOST_TRIES:,} draws: keep symbols that are neighbors."
        )

    def _proposed(
        self, symbols: Int64[Tensor, "row step"], kept: Bool[Tensor, " step"], generator: torch.Generator
    ) -> tuple[Int64[Tensor, "row step"], Bool[Tensor, " row"]]:
        """Draw what is not kept, and whether each drawn step into a kept symbol gave that symbol."""
        n, row = len(symbols), torch.arange(len(symbols), device=symbols.device)
        weights = torch.full((n, self.n_symbols, self.n_symbols), self.concentration, dtype=torch.float64)
        weights = weights.to(symbols.device)
        known = (kept[:-1] & kept[1:]).nonzero()[:, 0].tolist()
        for step in known:
            weights[row, symbols[:, step], symbols[:, step + 1]] += 1.0
        chain = weights
        if self.is_pooled:  # one of the pool's chains for each sequence, given its counts plus α
            chains = self._pool().to(weights.device)
            logs = torch.einsum("rij,kij->rk", weights - self.concentration, chains.log())
            chain = chains[torch.multinomial(logs.softmax(dim=1), 1, generator=generator)[:, 0]]
        fits, drawn = torch.ones(n, dtype=torch.bool, device=symbols.device), symbols.clone()
        if not kept[0]:
            drawn[:, 0] = torch.randint(self.n_symbols, (n,), generator=generator, device=symbols.device)
        for step in range(symbols.shape[1] - 1):
            if kept[step] and kept[step + 1]:
                continue
            symbol = torch.multinomial(chain[row, drawn[:, step]], 1, generator=generator)[:, 0]
            weights[row, drawn[:, step], symbol] += 1.0
            if kept[step + 1]:
                fits &= symbol == symbols[:, step + 1]
            else:
                drawn[:, step + 1] = symbol
        return drawn, fits


@functools.cache
def _drawn_pool(n: int, n_symbols: int, concentration: float, seed: int) -> Float64[Tensor, "chain symbol symbol"]:
    rows = np.random.default_rng(seed).dirichlet(np.full(n_symbols, concentration), size=(n, n_symbols))
    positive = torch.from_numpy(rows).clamp_min(_LEAST)
    return positive / positive.sum(dim=2, keepdim=True)
