"""Base class of probes: a pure function from a finished `Run` to a typed report, with controls that it must pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, final

import numpy as np

from bayesgeom.core.run import Run, Site
from bayesgeom.probes._planted import planted_chain, planted_run, planted_trials
from bayesgeom.report.estimate import Baseline
from bayesgeom.report.report import Report
from bayesgeom.stats.reduction import Reduction

__all__ = [
    "Control",
    "Needs",
    "Probe",
    "known",
    "planted_chain",
    "planted_run",
    "planted_trials",
]  # for authors of probes

R = TypeVar("R", bound=Report)


@final
@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a probe: `sites` that it requires, and `optional` ones that it uses if the model has them.

    `posterior`: the exact posterior must be known. `groups`: sequences must be of several kinds. `streamed`: statistics
    that replace the activations if these do not fit into memory; a probe without any needs stored activations.
    """

    sites: tuple[Site, ...] = ()
    optional: tuple[Site, ...] = ()
    posterior: bool = False
    groups: bool = False
    streamed: tuple[Reduction, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Control(Generic[R]):
    """A planted run with a known answer. `untrained` are planted runs that stand for the untrained architecture."""

    label: str
    run: Run
    holds: Callable[[R], bool]
    untrained: tuple[Run, ...] = ()


class Probe(ABC, Generic[R]):
    """One diagnostic. It never accesses a model: all its inputs are declared in `needs` and are in the run."""

    name: ClassVar[str]
    needs: ClassVar[Needs]
    relative_time: ClassVar[int] = 1  # about, and relative to other probes: `diagnose` begins with the longest

    @abstractmethod
    def measure(self, run: Run, untrained: Sequence[R] = ()) -> R:
        """Return the report on this run.

        `untrained` holds this probe's reports on untrained networks of the same architecture, as a baseline. Only one
        run is in memory at a time.
        """

    @abstractmethod
    def controls(self) -> Iterator[Control[R]]:
        """Yield planted runs with only the declared sites, each with a check of its report."""


def known(*levels: Baseline) -> tuple[Baseline, ...]:
    """Return the baselines with at least one known level."""
    return tuple(level for level in levels if np.isfinite(level.value).any())
