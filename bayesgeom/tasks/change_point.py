"""Change point: predict the next symbol of a source whose distribution is drawn anew at unknown times.

At each step the source changes with probability `hazard`; its distribution over symbols is then drawn again from a
symmetric Dirichlet distribution. The exact observer carries a belief over the run length r, the number of symbols since
the last change:

    b_t(r + 1) ∝ b_{t−1}(r) (1 − h) π_r(x_t),    b_t(1) ∝ h π_0(x_t),    π_r(x) = (α + c_r(x)) / (α n_symbols + r),

where c_r counts the symbols of the run, and predicts h π_0 + (1 − h) Σ_r b_t(r) π_r. Layout: the symbols. The label at
each symbol is the next one; the last label is not shown.

References:
    Adams & MacKay 2007, arXiv:0710.3742 (the recursion over run lengths).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials
from bayesgeom.stats.windows import WIDEST_BASELINE
from bayesgeom.tasks.base import SymbolTask, check_concentration, check_parameters, discounted_sums, steps_back

_Runs = Float64[Tensor, "batch pos run"]
_Shown = Float64[Tensor, "batch pos symbol"]


def _expected(belief: Float64[Tensor, "*batch run"]) -> Float64[Tensor, "*batch"]:
    return belief @ torch.arange(1, belief.shape[-1] + 1, dtype=belief.dtype, device=belief.device)


@final
@dataclass(frozen=True, kw_only=True)
class ChangePoint(SymbolTask):
    """`length` symbols; the belief is over the run length, from 1 to `length`; the predictive is over symbols.

    The statistic `run_length` is the expected run length.

    Args:
        n_symbols: Number of symbols.
        hazard: Probability of a change before each symbol but the first; 0 … 1, both excluded.
        concentration: α of the Dirichlet distribution of each run's source: the lower, the more it repeats a symbol.
        length: Symbols in a sequence; each is a scored position.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.ChangePoint(n_symbols=3, hazard=0.5, length=2).sample(1, seed=0)
        >>> trials.belief[0, 0].tolist()  # after one symbol, the run has one symbol
        [1.0, 0.0]
    """

    name: ClassVar[str] = "change-point"
    sentence: ClassVar[str] = (
        "Symbols of a source whose distribution changes at unknown times; after each of {task.length} symbols the "
        "model predicts the next one."
    )
    statistics: ClassVar[Mapping[str, Callable[[Tensor], Tensor]]] = {"run_length": _expected}
    n_symbols: int = 4
    hazard: float = 0.05
    concentration: float = 0.5
    length: int = 48

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.n_symbols < 2 or self.length < 1:
            raise InvalidArgument(
                f"a change point task needs n_symbols ≥ 2 and length ≥ 1, got {self.n_symbols} and {self.length}."
            )
        if not 0 < self.hazard < 1:
            raise InvalidArgument(f"a change point task needs 0 < hazard < 1, got {self.hazard}.")
        check_concentration(self.concentration)

    @property
    def d_vocab(self) -> int:
        return self.n_symbols

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return predictors that do not average over run lengths.

        - `uniform`: all symbols alike.
        - `window_1` … `window_4`: the exact observer of the last symbols alone.
        - `no_change`: the exact observer of a source that never changes.
        - `forgetting`: the same, with each symbol weighted by (1 − hazard) to the power of its age.
        - `likeliest_run`: the exact observer's most probable run length, taken for certain.
        """
        tokens = trials.tokens
        ones = self._indicators(tokens)
        run = trials.at_scored(trials.belief).argmax(dim=2) + 1
        before = torch.nn.functional.pad(ones.cumsum(dim=1), (0, 0, 1, 0))
        start = torch.arange(1, self.length + 1, device=tokens.device) - run
        counts = before[:, 1:] - before.gather(1, start[:, :, None].expand_as(ones))
        prior = 1 / self.n_symbols
        windows = range(1, min(WIDEST_BASELINE, self.length - 1) + 1)
        return {
            "uniform": torch.full_like(ones, prior),
            **{f"window_{w}": self.windowed(tokens, w) for w in windows},
            "no_change": self._shares(before[:, 1:]),
            "forgetting": self._shares(discounted_sums(ones, 1 - self.hazard)),
            "likeliest_run": self.hazard * prior + (1 - self.hazard) * self._shares(counts),
        }

    def token_labels(self) -> Sequence[str]:
        return [f"x{i}" for i in range(self.n_symbols)]

    def _indicators(self, tokens: Int64[Tensor, "batch pos"]) -> _Shown:
        return torch.nn.functional.one_hot(tokens, self.n_symbols).double()

    def _shares(self, counts: Float64[Tensor, "*batch symbol"]) -> Float64[Tensor, "*batch symbol"]:
        """Return π: the predictive of a source with these counts."""
        weights = counts + self.concentration
        return weights / weights.sum(dim=-1, keepdim=True)

    def observed(
        self, tokens: Int64[Tensor, "batch pos"], keep: Bool[Tensor, " pos"] | None = None
    ) -> tuple[_Runs, _Shown]:
        """Return belief and predictive after each symbol.

        Args:
            tokens: Symbols, counted from 0.
            keep: Which symbols are seen; the others are steps without evidence. None: all.
        """
        n, n_pos = tokens.shape
        kept, ones = [True] * n_pos if keep is None else keep.tolist(), self._indicators(tokens)
        ones = ones if keep is None else ones * keep[:, None]
        belief = torch.zeros(n, n_pos, n_pos, dtype=torch.float64, device=tokens.device)
        belief[:, 0, 0] = 1.0
        predictive = torch.empty_like(ones)
        counts = ones.new_zeros(n, n_pos, self.n_symbols)  # of the run of each length, with the latest symbol
        for step in range(n_pos):
            one = ones[:, step, None]
            if step:
                likely = (self._shares(counts[:, :step]) * one).sum(dim=2) if kept[step] else 1.0
                belief[:, step, 1 : step + 1] = (1 - self.hazard) * likely * belief[:, step - 1, :step]
                belief[:, step, 0] = self.hazard / self.n_symbols if kept[step] else self.hazard
                belief[:, step] /= belief[:, step].sum(dim=1, keepdim=True)
                counts[:, 1 : step + 1] = counts[:, :step] + one
            counts[:, :1] = one
            within = torch.einsum("br,brx->bx", belief[:, step, : step + 1], self._shares(counts[:, : step + 1]))
            predictive[:, step] = self.hazard / self.n_symbols + (1 - self.hazard) * within
        return belief, predictive

    def redrawn(
        self, tokens: Int64[Tensor, "batch pos"], keep: Bool[Tensor, " pos"], generator: torch.Generator
    ) -> Int64[Tensor, "batch pos_and_one"]:
        """Draw first the changes, then the symbols of each run."""
        n, n_steps = len(tokens), self.length + 1
        symbols, kept = torch.nn.functional.pad(tokens, (0, 1)), torch.nn.functional.pad(keep, (0, 1))
        belief, _ = self.observed(symbols, kept)
        run = torch.zeros(n, n_steps, dtype=torch.int64, device=tokens.device)  # number of the run, from the last
        left, number = torch.zeros_like(run[:, 0]), torch.full_like(run[:, 0], -1)
        for step in reversed(range(n_steps)):
            # Given that a run ends here, its length depends on what is kept up to here alone.
            length = torch.multinomial(belief[:, step, : step + 1], 1, generator=generator)[:, 0] + 1
            is_end = left == 0
            left, number = torch.where(is_end, length, left) - 1, number + is_end.long()
            run[:, step] = number
        row = torch.arange(n, device=tokens.device)
        weights = torch.full((n, n_steps, self.n_symbols), self.concentration, dtype=torch.float64, device=run.device)
        for step in kept.nonzero()[:, 0].tolist():
            weights[row, run[:, step], symbols[:, step]] += 1.0
        drawn = symbols.clone()
        for step in (~kept).nonzero()[:, 0].tolist():
            drawn[:, step] = torch.multinomial(weights[row, run[:, step]], 1, generator=generator)[:, 0]
            weights[row, run[:, step], drawn[:, step]] += 1.0
        return drawn

    def related(self, tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark the symbols of the most probable run, and those before it."""
        back = steps_back(tokens)
        is_run = back <= self.observed(tokens)[0].argmax(dim=2)[:, :, None]
        return {"likeliest_run": (back >= 0) & is_run, "earlier_run": ~is_run}
