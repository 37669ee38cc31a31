"""Tasks with latent dynamics, and the window observers that are their baselines.

A task has latent dynamics if what is hidden moves from step to step. Its exact observer must push the belief through
the chain, which is belief transport. A predictor of the last few symbols carries nothing, yet on a chain that forgets
fast it is nearly exact. So every such task offers its window observers as baselines.
"""

from abc import abstractmethod
from itertools import islice
from typing import final

from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, unknown_name
from bayesgeom.core.memory import WIDEST_BASELINE, window_name, window_predictives
from bayesgeom.core.observers import STARTS, Filter, WindowObservers
from bayesgeom.core.trials import Trials
from bayesgeom.tasks.base import WindTunnel


class DynamicTask(WindTunnel):
    """A task whose hidden state moves at every step.

    Its trials carry `observers`, and its baselines hold the stationary distribution and the windows of 1 to 4 symbols.
    """

    @abstractmethod
    def filter_of(self, tokens: Int64[Tensor, "batch pos"]) -> Filter:
        """Return the exact filter of these sequences, in steps that can begin anywhere."""

    @final
    def observers(self, tokens: Int64[Tensor, "batch pos"]) -> WindowObservers:
        """Return the window observers of these sequences, which are made when first read."""
        return WindowObservers(draw=self.filter_of, of=tokens)

    @final
    def window_predictives(
        self, trials: Trials, w: int, start: str = "stationary"
    ) -> Float64[Tensor, "batch query_pos answer"]:
        """Return what the exact filter says that sees only the last `w` symbols.

        Args:
            trials: Sequences of this task.
            w: Width of the window. 0 is the prior alone; the number of scored positions is the exact filter.
            start: The prior over hidden states: "uniform", or "stationary" for that of each sequence's own chain.
                A chain with several stationary distributions gets the one that the task starts from.

        Raises:
            InvalidArgument: For a width outside 0 … the number of scored positions.
            UnknownName: For another start.

        Example:
            >>> from bayesgeom.tasks.process import Mess3
            >>> task = Mess3(length=5)
            >>> task.window_predictives(task.sample(7, seed=0), 2).shape
            torch.Size([7, 5, 3])
        """
        if start not in STARTS:
            raise unknown_name("start of a window", start, STARTS)
        if not 0 <= w <= trials.n_scored:
            raise InvalidArgument(f"w must be between 0 and {trials.n_scored}, the symbols of a sequence, got {w}.")
        return next(islice(window_predictives(trials, start), w, None))

    @final
    def window_baselines(self, trials: Trials) -> dict[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return the stationary distribution's predictive, and those of the windows of 1 to 4 symbols, by name.

        Windows as long as the sequence are exact, and left out.
        """
        widest = min(WIDEST_BASELINE, trials.n_scored - 1)
        by_start = {start: [*islice(window_predictives(trials, start), widest + 1)] for start in STARTS}
        named = {window_name(w, start): by_start[start][w] for w in range(1, widest + 1) for start in reversed(STARTS)}
        return {"stationary": by_start["stationary"][0]} | named
