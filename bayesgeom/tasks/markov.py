"""Markov chains, tasks with latent dynamics and their window observers, and the base class of hidden Markov processes.

A task has latent dynamics if its hidden state changes from step to step. Its exact observer must carry the belief
through the chain (belief transport). A predictor from the last few symbols carries no belief, yet it is nearly exact on
a chain that forgets fast. Every such task therefore has its window observers as baselines.

A process is given by labeled transition matrices T^(x), whose entry (i, j) is the probability to go from state i to
state j and to emit symbol x. The exact observer updates a belief over states:

    b_t ∝ b_{t−1} T^(x_t),    P(x_{t+1} = x | x_0 … x_t) = b_t T^(x) 1.

The belief is over hidden states, the predictive over symbols. Layout: the symbols. The label at each symbol is the next
one; the last label is not shown.

References:
    Levin & Peres 2017, Markov Chains and Mixing Times, chapters 1 and 12.
    Shai et al. 2024, arXiv:2405.15943 (labeled matrices; beliefs as points of the simplex of states).
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials, checked, unknown_name
from bayesgeom.core.observers import STARTS, Beliefs, Filter, WindowObservers, exact_beliefs, full_support
from bayesgeom.stats.mixed_states import IMPOSSIBLE, BeliefStates, belief_states
from bayesgeom.stats.windows import WIDEST_BASELINE, window_name, window_predictives
from bayesgeom.tasks.base import EvidenceTask, next_symbol_trials, steps_back

_TOLERANCE = 1e-9


def stationary(transition: Float64[Tensor, "state state"]) -> Float64[Tensor, " state"] | None:
    """Return the stationary distribution of a chain; None if it is reducible and has several.

    A transition matrix with negative entries is that of a generalized process: its fixed vector that sums to 1.
    """
    if bool((transition < 0).any()):
        _, sizes, rows = torch.linalg.svd(transition.mT - torch.eye(len(transition)).to(transition))
        is_single = len(sizes) == 1 or (sizes[-2] > _TOLERANCE and abs(float(rows[-1].sum())) > _TOLERANCE)
        return rows[-1] / rows[-1].sum() if is_single else None
    reaches = (transition > 0) | torch.eye(len(transition), dtype=torch.bool, device=transition.device)
    for _ in range(len(transition).bit_length()):
        reaches = (reaches.double() @ reaches.double()) > 0
    comes_back = (~reaches | reaches.mT).all(dim=1)  # every reachable state leads back
    inside = comes_back.nonzero()[:, 0]
    if not bool(reaches[inside[0], inside].all()):
        return None
    distribution = torch.zeros(len(transition), dtype=torch.float64, device=transition.device)
    distribution[inside] = _settled(transition[inside][:, inside][None])[0]
    return distribution


def stationary_rows(
    transition: Float64[Tensor, "batch state state"], otherwise: Float64[Tensor, " state"]
) -> Float64[Tensor, "batch state"]:
    """Return the stationary distribution of each chain, and `otherwise` for a chain that has several."""
    is_positive = (transition > 0).flatten(1).all(dim=1)
    distributions = torch.empty(transition.shape[:2], dtype=torch.float64, device=transition.device)
    distributions[is_positive] = _settled(transition[is_positive])
    for row in (~is_positive).nonzero()[:, 0].tolist():
        distribution = stationary(transition[row])
        distributions[row] = otherwise if distribution is None else distribution
    return distributions


def _settled(transition: Float64[Tensor, "batch state state"]) -> Float64[Tensor, "batch state"]:
    """Return the stationary distribution of chains in which every state leads to every other.

    States are eliminated one by one, and their probabilities follow by back substitution. No differences are taken, and
    the result is bitwise reproducible, which linear solvers do not guarantee.

    References:
        Grassmann, Taksar & Heyman 1985.
    """
    among = transition.clone()
    for last in range(among.shape[1] - 1, 0, -1):
        among[:, :last, last] /= among[:, last, :last].sum(dim=1, keepdim=True)
        among[:, :last, :last] += among[:, :last, last, None] * among[:, last, None, :last]
    weights = torch.ones(among.shape[:2], dtype=torch.float64, device=among.device)
    for state in range(1, among.shape[1]):
        weights[:, state] = (weights[:, :state] * among[:, :state, state]).sum(dim=1)
    return weights / weights.sum(dim=1, keepdim=True)


def mixing_times(transition: Float64[Tensor, "*batch state state"]) -> Float64[Tensor, "*batch"]:
    """Return the steps until the dependence on the start falls to 1/e: −1 / ln |λ₂|, λ₂ the second largest eigenvalue.

    0 for a chain that forgets in one step; infinite for one that never forgets (periodic or reducible).
    """
    sizes = torch.linalg.eigvals(transition.cpu()).abs().sort(dim=-1, descending=True).values
    second = sizes[..., 1] if sizes.shape[-1] > 1 else torch.zeros_like(sizes[..., 0])
    times = torch.where(second > _TOLERANCE, -1 / second.clamp(_TOLERANCE, 1 - _TOLERANCE).log(), 0.0)
    return torch.where(second < 1 - _TOLERANCE, times, math.inf).to(transition.device)


class DynamicTask(EvidenceTask):
    """A task whose hidden state changes at every step.

    Its sequences have `observers`. Its baselines include the stationary distribution and windows of 1 to 4 symbols.
    """

    length: int

    @property
    @final
    def n_evidence(self) -> int:
        return self.length

    @abstractmethod
    def filter_of(self, tokens: Int64[Tensor, "batch pos"]) -> Filter:
        """Return the exact filter of these sequences, which can start at any step.

        Args:
            tokens: Tokens of sequences of this task.
        """

    @final
    def observers(self, tokens: Int64[Tensor, "batch pos"]) -> WindowObservers:
        """Return the window observers of these sequences, computed on first use.

        Args:
            tokens: Tokens of sequences of this task.
        """
        return WindowObservers(draw=self.filter_of, of=tokens)

    @final
    def window_predictives(
        self, trials: Trials, w: int, start: str = "stationary"
    ) -> Float64[Tensor, "batch query_pos answer"]:
        """Return the predictive of an exact filter that sees only the last `w` symbols.

        Args:
            trials: Sequences of this task.
            w: Width of the window. 0 gives the prior; the number of scored positions gives the exact filter.
            start: The prior over hidden states: "uniform", or "stationary" for the stationary distribution of each
                sequence's chain. A chain with several stationary distributions uses the task's initial one.

        Raises:
            InvalidArgument: `w` is not between 0 and the number of scored positions.
            UnknownName: `start` is neither "uniform" nor "stationary".

        Example:
            >>> from bayesgeom.tasks.process import Mess3
            >>> task = Mess3(length=5)
            >>> task.window_predictives(task.sample(7, seed=0), 2).shape
            torch.Size([7, 5, 3])
        """
        if start not in STARTS:
            raise unknown_name("start of a window", start, STARTS)
        if not 0 <= w <= trials.n_scored:
            raise InvalidArgument(f"w must be between 0 and {trials.n_scored}, the number of symbols, got {w}.")
        return next(islice(window_predictives(trials, start), w, None))

    @final
    def window_baselines(self, trials: Trials) -> dict[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return the predictives of the stationary distribution and of windows of 1 to 4 symbols, by name.

        Windows as long as the sequence are exact and therefore left out.

        Args:
            trials: Sequences of this task.
        """
        widest = min(WIDEST_BASELINE, trials.n_scored - 1)
        by_start = {start: [*islice(window_predictives(trials, start), widest + 1)] for start in STARTS}
        named = {window_name(w, start): by_start[start][w] for w in range(1, widest + 1) for start in reversed(STARTS)}
        return {"stationary": by_start["stationary"][0]} | named


_MOST_BELIEFS = 50_000  # a second of work


class MarkovProcess(DynamicTask):
    """A stationary generator of `length` symbols, the same for all sequences, with a hidden state."""

    @abstractmethod
    def labeled(self) -> Float64[Tensor, "symbol state state"]:
        """Return T^(x); the rows of its sum over x add to one."""

    @abstractmethod
    def start(self) -> Float64[Tensor, " state"]:
        """Return the distribution of the state before the first symbol."""

    @property
    @final
    def factors(self) -> tuple["MarkovProcess", ...]:
        """Return the processes whose symbols and states are paired in this one; empty for other ones."""
        return tuple(value for value in vars(self).values() if isinstance(value, MarkovProcess))

    @property
    @final
    def is_generalized(self) -> bool:
        """Whether entries of a matrix or of the start are negative; the belief then is a real vector that sums to 1."""
        return bool((self.labeled() < 0).any() | (self.start() < 0).any())

    @property
    @final
    def n_pos(self) -> int:
        return self.length

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
        return self.draw(n, generator), self.draw(n, generator)

    @final
    def trials(self, symbols: Int64[Tensor, "batch pos_and_one"]) -> Trials:
        """Build sequences from symbols; the last symbol is the label and not shown.

        Args:
            symbols: Symbols, from 0.
        """
        tokens = symbols[:, :-1].contiguous()
        observers = self.observers(tokens)
        belief = exact_beliefs(observers.filter, *tokens.shape)
        return next_symbol_trials(
            tokens,
            symbols[:, -1],
            self.d_vocab,
            predictive=_shown_next(self.labeled().to(symbols.device), belief),
            belief=belief,
            related=_relations,
            observers=observers,
            is_signed=self.is_generalized,
            factor_sizes=tuple(len(factor.start()) for factor in self.factors),
        )

    @final
    def filter_of(self, tokens: Int64[Tensor, "batch pos"]) -> Filter:
        """Return the filter whose prior is over the state before the window's first symbol."""
        labeled, start = self.labeled().to(tokens.device), self.start().to(tokens.device)
        settled = stationary(labeled.sum(dim=0))
        uniform, prior = torch.full_like(start, 1 / len(start)), full_support(start if settled is None else settled)
        if self.is_generalized:  # equal entries need not be a state, and entries of 0 rule nothing out
            mean = _unread(labeled, start, self.length).mean(dim=0)  # with a share of it, what is shown is possible
            uniform = prior = (1 - _TOLERANCE) * (start if settled is None else settled) + _TOLERANCE * mean

        def moved(belief: Beliefs, first: int) -> Beliefs:
            return _updated(labeled, belief, tokens[:, first : first + belief.shape[1]])

        return Filter(
            priors={
                "initial": start[None],
                "uniform": uniform[None],
                "stationary": prior[None],
            },
            weighed=moved,
            moved=moved,
            answers=lambda belief: _shown_next(labeled, belief),
            labeled=labeled,
        )

    @final
    @checked("self")
    def belief_states(self, depth: int) -> BeliefStates:
        """Return the mixed-state presentation: the beliefs that sequences reach, their probabilities and transitions.

        It answers how many beliefs an exact observer needs: `len` of it if `is_closed`, else more than `depth` symbols
        reach. Beliefs whose entries differ by at most 1e-9 are one.

        Args:
            depth: Number of symbols to follow from the start, at least 1.

        Raises:
            InvalidArgument: depth is no integer, is below 1, or reaches more than 50,000 beliefs.

        Example:
            >>> from bayesgeom import tasks
            >>> golden = tasks.Process([[[0.5, 0.0], [1.0, 0.0]], [[0.0, 0.5], [0.0, 0.0]]])  # never two 1s in a row
            >>> golden.belief_states(depth=8)
            BeliefStates(3 beliefs, all, reached after 1 symbols)
        """
        if depth < 1:
            raise InvalidArgument(f"depth, the number of symbols to follow, must be at least 1, got {depth}.")
        states = belief_states(self.labeled(), self.start(), depth, most=_MOST_BELIEFS)
        if states.depth < depth:
            raise InvalidArgument(
                f"{depth} symbols of {self.name} reach more than {_MOST_BELIEFS:,} beliefs, the limit. Use depth ≤ "
                f"{states.depth}, which reaches {len(states):,}."
            )
        return states

    @final
    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `prior`, `last_symbol`, `last_two` and the window observers.

        `prior` uses the position only; `last_symbol` and `last_two` use the position and the last one or two
        symbols. Window observers do not use the position. A product also has its `factor_baselines`.
        """
        labeled, start = self.labeled().to(trials.tokens.device), self.start().to(trials.tokens.device)
        unseen = _unread(labeled, start, trials.tokens.shape[1]).expand(len(trials), -1, -1)
        baselines = {"prior": _shown_next(labeled, unseen[:, 1:])}
        for name, n_kept in (("last_symbol", 1), ("last_two", 2)):
            belief = unseen
            for back in reversed(range(n_kept)):
                # Early positions have fewer symbols and use all of them.
                seen = trials.tokens[:, : trials.tokens.shape[1] - back]
                moved = _updated(labeled, belief[:, : seen.shape[1]], seen)
                belief = torch.cat([unseen[:, :1], moved], dim=1)
            baselines[name] = _shown_next(labeled, belief[:, 1:])
        return baselines | self.factor_baselines(trials, baselines["prior"]) | self.window_baselines(trials)

    def factor_baselines(
        self, trials: Trials, prior: Float64[Tensor, "batch query_pos answer"]
    ) -> dict[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return the baselines that predict a product's factors apart, by name; none for other processes.

        Args:
            trials: Sequences of this task.
            prior: What the position alone predicts.
        """
        return {}

    @final
    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw some symbols again, given the kept ones."""
        labeled, start = self.labeled().to(generator.device), self.start().to(generator.device)
        symbols = torch.nn.functional.pad(trials.tokens, (0, 1))  # the label
        kept = torch.nn.functional.pad(keep, (0, 1))
        if self.is_generalized:
            return self.trials(_redrawn_without_states(labeled, start, symbols, kept, generator))
        ways = [labeled[None]] * symbols.shape[1]
        return self.trials(redrawn(ways, start[None], symbols, kept, generator)[1])

    @final
    def token_labels(self) -> Sequence[str]:
        if self.factors:
            return ["".join(pair) for pair in product(*(factor.token_labels() for factor in self.factors))]
        return [f"x{i}" for i in range(self.d_vocab)]

    def _symbols(self, n: int, generator: torch.Generator) -> Int64[Tensor, "batch pos_and_one"]:
        labeled, start = self.labeled().to(generator.device), self.start().to(generator.device)
        if self.is_generalized:
            none = torch.zeros(n, self.n_pos + 1, dtype=torch.int64, device=generator.device)
            return _redrawn_without_states(labeled, start, none, none[0] > 0, generator)
        n_states = labeled.shape[1]
        ways = labeled.movedim(0, 1).flatten(1)  # per state: all combinations of symbol and next state
        state = torch.multinomial(start.expand(n, -1), 1, generator=generator)[:, 0]
        symbols = []
        for _ in range(self.n_pos + 1):
            way = torch.multinomial(ways[state], 1, generator=generator)[:, 0]
            symbols.append(way // n_states)
            state = way % n_states
        return torch.stack(symbols, dim=1)


def redrawn(
    ways: Sequence[Float64[Tensor, "#batch symbol state state"]],
    start: Float64[Tensor, "#batch state"],
    symbols: Int64[Tensor, "batch step"],
    keep: Bool[Tensor, " step"],
    generator: torch.Generator,
) -> tuple[Int64[Tensor, "batch step"], Int64[Tensor, "batch step"]]:
    """Draw hidden states and symbols given some of the symbols: exact messages backward, then sampling forward.

    Args:
        ways: At each step, the probability of each symbol and next state, by state: T^(x).
        start: Distribution of the state before the first step.
        symbols: Symbols, of which those that are kept are read.
        keep: Steps whose symbols stay.
        generator: Source of the random numbers.

    Returns:
        The state after each step, and the symbols.
    """
    n, row = len(symbols), torch.arange(len(symbols), device=symbols.device)
    later = [torch.ones(n, start.shape[-1], dtype=torch.float64, device=symbols.device)]
    for step in reversed(range(len(ways))):
        moves = ways[step].expand(n, -1, -1, -1)
        moves = moves[row, symbols[:, step]] if keep[step] else moves.sum(dim=1)
        message = torch.einsum("bij,bj->bi", moves, later[-1])
        later.append(message / message.amax(dim=1, keepdim=True))
    later.reverse()  # the likelihood of the kept symbols from each step on, by the state before it
    state = torch.multinomial(start * later[0], 1, generator=generator)[:, 0]
    states, drawn = [], []
    for step, way in enumerate(ways):
        weights = way.expand(n, -1, -1, -1)[row, :, state] * later[step + 1][:, None, :]
        if keep[step]:
            weights = weights * torch.nn.functional.one_hot(symbols[:, step], weights.shape[1])[:, :, None]
        chosen = torch.multinomial(weights.flatten(1), 1, generator=generator)[:, 0]
        state = chosen % start.shape[-1]
        states.append(state)
        drawn.append(chosen // start.shape[-1])
    return torch.stack(states, dim=1), torch.stack(drawn, dim=1)


def _redrawn_without_states(
    labeled: Float64[Tensor, "symbol state state"],
    start: Float64[Tensor, " state"],
    symbols: Int64[Tensor, "batch step"],
    keep: Bool[Tensor, " step"],
    generator: torch.Generator,
) -> Int64[Tensor, "batch step"]:
    """Draw symbols given those that are kept, as in `redrawn`, by the beliefs alone: states have no probabilities."""
    later = [torch.ones(len(symbols), len(start), dtype=torch.float64, device=symbols.device)]
    for step in reversed(range(len(keep))):
        moves = labeled[symbols[:, step]] if keep[step] else labeled.sum(dim=0).expand(len(symbols), -1, -1)
        message = torch.einsum("bij,bj->bi", moves, later[-1])
        later.append(message / message.abs().amax(dim=1, keepdim=True))
    later.reverse()
    belief, drawn = start.expand(len(symbols), -1), symbols.clone()
    for step in range(len(keep)):
        ways = torch.einsum("bi,xij->bxj", belief, labeled)
        if not keep[step]:
            weights = torch.einsum("bxj,bj->bx", ways, later[step + 1])
            weights = weights / weights.sum(dim=1, keepdim=True)
            if bool((weights < -_TOLERANCE).any()):
                raise negative_probability(drawn[:, :step], weights)
            weights = torch.where(weights < IMPOSSIBLE, 0.0, weights)
            drawn[:, step] = torch.multinomial(weights, 1, generator=generator)[:, 0]
        joint = ways[torch.arange(len(drawn), device=drawn.device), drawn[:, step]]
        belief = joint / joint.sum(dim=1, keepdim=True)
    return drawn


def negative_probability(
    shown: Int64[Tensor, "batch step"], weights: Float64[Tensor, "batch symbol"]
) -> InvalidArgument:
    """Return the error that names the sequence whose last symbol has the most negative probability.

    Args:
        shown: Symbols so far.
        weights: Probability of each next symbol.
    """
    row, symbol = divmod(int(weights.argmin()), weights.shape[1])
    return InvalidArgument(
        f"these matrices give no probabilities: after the symbols before it, the last symbol of "
        f"{' '.join(map(str, [*shown[row].tolist(), symbol]))} has the probability {float(weights.min()):.3g}. A "
        f"generalized process needs probabilities of at least 0 for every sequence."
    )


def _unread(
    labeled: Float64[Tensor, "symbol state state"], start: Float64[Tensor, " state"], length: int
) -> Float64[Tensor, "step state"]:
    """Return the distribution of the state before each of `length` symbols and after the last, with no symbol seen."""
    states = [start]
    for _ in range(length):
        states.append(states[-1] @ labeled.sum(dim=0))
    return torch.stack(states)


def check_length(task: MarkovProcess) -> None:
    """Check the length of a process.

    Raises:
        InvalidArgument: It has no symbols.
    """
    if task.length < 1:
        raise InvalidArgument(f"length, the number of symbols, must be at least 1, got {task.length}.")


def predictives_of(
    labeled: Float64[Tensor, "symbol state state"],
    start: Float64[Tensor, " state"],
    symbols: Int64[Tensor, "batch pos"],
) -> Float64[Tensor, "batch pos symbol"]:
    """Return what an exact observer of a process predicts after each symbol.

    Args:
        labeled: The labeled matrices of the process.
        start: Distribution of the state before the first symbol.
        symbols: Symbols of the process.
    """
    beliefs = [start.expand(len(symbols), 1, -1)]
    for at in range(symbols.shape[1]):
        beliefs.append(_updated(labeled, beliefs[-1], symbols[:, at : at + 1]))
    return _shown_next(labeled, torch.cat(beliefs[1:], dim=1))


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
    shown = torch.einsum("bpi,xi->bpx", belief, labeled.sum(dim=2))
    if bool((labeled < 0).any()) or bool((belief < 0).any()):  # where terms cancel, 0 comes out as rounding error
        shown = torch.where(shown.abs() < IMPOSSIBLE, 0.0, shown)
    return shown


def _relations(tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
    """Mark the current symbol, the previous one, and all earlier ones."""
    back = steps_back(tokens)
    return {"current_symbol": back == 0, "previous_symbol": back == 1, "earlier_symbol": back > 1}
