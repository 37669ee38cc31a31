"""What a fit is: from sequences that are not scored to a subspace in each layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Bool, Float64
from torch import Tensor

from bayesgeom.core.run import Run
from bayesgeom.core.trials import Trials
from bayesgeom.models.base import Model
from bayesgeom.stats.information import entropy_bits
from bayesgeom.subspaces.quantity import BELIEF, Quantity, confounds
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.subspaces.subspace import Subspace

DrawPairs = Callable[[int, int], tuple[Trials, Trials]]


@final
@dataclass(frozen=True, kw_only=True)
class About:
    """What a subspace is said to hold.

    Args:
        quantity: what the verdict is about.
        is_readout: whether it is made of read-out weights, which can never show that something is not used.
        at_scored: whether it is fitted at scored positions, and so acts there alone unless a place says otherwise.
    """

    quantity: Quantity = BELIEF
    is_readout: bool = False
    at_scored: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """Sequences to fit on, and the model's activations at a place there.

    `draw_pairs(n, seed)` draws recipients and donors that are neither fitted on nor scored, for fits that train; `mask`
    are the positions where the intervention will act, by default all.
    """

    model: Model
    run: Run
    place: InterventionSite
    seed: int
    draw_pairs: DrawPairs | None = None
    mask: Bool[Tensor, " pos"] | None = None

    def points(self, layer: int) -> Float64[Tensor, "point d"]:
        """Vectors at the scored positions, heads side by side at z and v."""
        return self.run.vectors(self.place.site, layer).flatten(0, 1).double()

    def values(self, quantity: Quantity) -> Float64[Tensor, "point component"]:
        """The quantity at each point."""
        return quantity.exact(self.run.trials).flatten(0, 1)

    def confounds(self, names: tuple[str, ...]) -> Float64[Tensor, "point column"]:
        """The named confounds at each point."""
        return confounds(self.run.trials, names).flatten(0, 1)

    def entropies(self) -> Float64[Tensor, " point"]:
        """Exact entropy at each point, bits."""
        return entropy_bits(self.run.trials.at_scored(self.run.trials.predictive)).flatten()

    def beliefs(self) -> Float64[Tensor, "point hypothesis"]:
        """Exact belief at each point."""
        return self.run.trials.at_scored(self.run.trials.belief).flatten(0, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a fit is requested: known before anything runs. `trials` is a sample of the task."""

    model: Model
    place: InterventionSite
    trials: Trials


class Fit(ABC):
    """A way to choose a subspace in each layer. Concrete fits are frozen dataclasses."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What tables and plots call it."""

    @property
    @abstractmethod
    def about(self) -> About:
        """What it is said to hold."""

    @abstractmethod
    def check(self, setting: Setting) -> None:
        """**Raises** `InvalidArgument` or `MissingSite` where this cannot be fitted there; nothing has run yet."""

    @abstractmethod
    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        """The subspace of each layer."""

    def without_groups(self, sample: Sample, layers: Sequence[int]) -> dict[int, list[Subspace]]:
        """The subspaces fitted without each group of its sequences in turn; none where a fit does not offer that."""
        return {}
