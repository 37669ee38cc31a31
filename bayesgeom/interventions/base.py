"""What a fit is: from trials that are not scored to a subspace in each layer."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Float64
from torch import Tensor

from bayesgeom.activations import Run
from bayesgeom.information import entropy_bits
from bayesgeom.interventions.place import Place
from bayesgeom.interventions.subspace import Subspace
from bayesgeom.models.base import Model
from bayesgeom.trials import Trials


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """Trials to fit on, and what the model left at a place there."""

    model: Model
    run: Run
    place: Place
    seed: int

    def points(self, layer: int) -> Float64[Tensor, "point d"]:
        """Vectors at the scored positions, heads side by side at z and v."""
        values = self.run.at(self.place.site)[layer]
        if "key_pos" in self.place.site.axes:  # recorded at every position
            values = self.run.trials.at_scored(values)
        return values.reshape(values.shape[0] * values.shape[1], -1).double()

    def entropies(self) -> Float64[Tensor, " point"]:
        """Exact entropy at each point, bits."""
        return entropy_bits(self.run.trials.at_scored(self.run.trials.predictive)).flatten()

    def beliefs(self) -> Float64[Tensor, "point hypothesis"]:
        """Exact belief at each point."""
        return self.run.trials.at_scored(self.run.trials.belief).flatten(0, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a fit is asked for: known before anything runs. `trials` is a sample of the task."""

    model: Model
    place: Place
    trials: Trials


class Fit(ABC):
    """A way to choose a subspace in each layer. Concrete fits are frozen dataclasses."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What tables and plots call it."""

    @abstractmethod
    def check(self, setting: Setting) -> None:
        """**Raises** `InvalidArgument` or `MissingSite` where this cannot be fitted there; nothing has run yet."""

    @abstractmethod
    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        """The subspace of each layer."""
