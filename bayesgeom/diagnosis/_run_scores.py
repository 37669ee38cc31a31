"""The scores of several passes as those of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.run import Behavior, Run, WindowScores
from bayesgeom.stats.memory import joined


@final
@dataclass(frozen=True, kw_only=True)
class RunScores:
    """The scores of a run, without its sequences and activations."""

    model: Behavior
    exact: Behavior
    baselines: Mapping[str, Behavior]
    windows: WindowScores | None

    @classmethod
    def of(cls, run: Run) -> "RunScores":
        """Return the scores of a run.

        Args:
            run: A finished pass.
        """
        baselines, windows = run.baseline_behaviors, run.windows
        return cls(model=run.behavior, exact=run.exact_behavior, baselines=baselines, windows=windows)

    def of_run(self, run: Run) -> Run:
        """Return a run with these scores in place of its own.

        Args:
            run: The run whose recorded sequences are the first of these.
        """
        return replace(
            run,
            behavior=self.model,
            exact_behavior=self.exact,
            baseline_behaviors=self.baselines,
            windows=self.windows,
        )

    def followed_by(self, others: Sequence["RunScores"]) -> "RunScores":
        """Return the scores of all sequences. Fields that share their arrays still do.

        Args:
            others: The scores of further sequences, by the same predictors.
        """
        every, shared = [self, *others], dict[tuple[int, ...], Float[np.ndarray, "sequence position"]]()

        def together(parts: Sequence[Behavior]) -> Behavior:
            columns = dict[str, Float[np.ndarray, "sequence position"]]()
            for name in vars(parts[0]):
                arrays = [vars(part)[name] for part in parts]
                key = tuple(map(id, arrays))
                columns[name] = shared[key] = shared[key] if key in shared else np.concatenate(arrays)
            return Behavior(**columns)

        return RunScores(
            model=together([own.model for own in every]),
            exact=together([own.exact for own in every]),
            baselines={name: together([own.baselines[name] for own in every]) for name in self.baselines},
            windows=joined([own.windows for own in every if own.windows is not None]),
        )
