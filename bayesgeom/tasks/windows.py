"""Tasks with latent dynamics, and the window observers that are their baselines.

A task has latent dynamics if its hidden state changes from step to step. Its exact observer must carry the belief
through the chain (belief transport). A predictor from the last few symbols carries no belief, yet it is nearly exact on
a chain that forgets fast. Every such task therefore has its window observers as baselines.
"""

from abc import abstractmethod
from itertools import islice
from typing import final

from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, unknown_name
from bayesgeom.core.trials import Trials
from bayesgeom.stats.memory import WIDEST_BASELINE, window_name, window_predictives
from bayesgeom.stats.observers import STARTS, Filter, WindowObservers
from bayesgeom.tasks.base import WindTunnel


class DynamicTask(WindTunnel):
    """A task whose hidden state changes at every step.

    Its sequences have `observers`. Its baselines include the stationary distribution and windows of 1 to 4 symbols.
    """

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
