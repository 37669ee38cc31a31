"""What a probe is: a pure function from a finished `Run` to a typed report, with controls that it must pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, final

import numpy as np

from bayesgeom.core.run import Run
from bayesgeom.core.sites import Site
from bayesgeom.results.estimate import Baseline
from bayesgeom.results.report import Report
from bayesgeom.tasks.planted import planted_chain, planted_run, planted_trials

__all__ = ["Control", "Needs", "Probe", "known", "planted_chain", "planted_run", "planted_trials"]  # all a probe needs

R = TypeVar("R", bound=Report)


@final
@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a probe reads: `sites` it cannot do without, and `optional` ones that it uses where the model has them.

    `posterior`: the exact posterior must be known. `groups`: sequences must be of several kinds.
    """

    sites: tuple[Site, ...] = ()
    optional: tuple[Site, ...] = ()
    posterior: bool = False
    groups: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Control(Generic[R]):
    """A planted run with a known answer. `untrained` are planted runs that stand for the untrained architecture."""

    label: str
    run: Run
    holds: Callable[[R], bool]
    untrained: tuple[Run, ...] = ()


class Probe(ABC, Generic[R]):
    """One diagnostic. Never touches a model: everything it reads was declared in `needs` and is in the run."""

    name: ClassVar[str]
    needs: ClassVar[Needs]

    @abstractmethod
    def measure(self, run: Run, untrained: Sequence[R] = ()) -> R:
        """The report on this run; `untrained` holds this probe's reports on untrained networks of the architecture.

        The baseline of untrained networks comes from those, so that only one run is ever in memory.
        """

    @abstractmethod
    def controls(self) -> Iterator[Control[R]]:
        """Planted runs holding only the declared sites, with what the report must say of each."""


def known(*levels: Baseline) -> tuple[Baseline, ...]:
    """Return the baselines whose level is known somewhere."""
    return tuple(level for level in levels if np.isfinite(level.value).any())
