"""What a fit is: from sequences that are not scored to a subspace in each layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Self, final

from jaxtyping import Bool, Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.plugins import discover
from bayesgeom.core.run import Run
from bayesgeom.core.trials import Trials
from bayesgeom.models.base import Model
from bayesgeom.stats.information import entropy_bits
from bayesgeom.subspaces.quantity import BELIEF, Quantity, confounds
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.subspaces.subspace import Subspace
from bayesgeom.tasks.base import literal

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


class NamedFit(Fit, ABC):
    """A fit that the command line knows by its name, as NAME:value,value: a frozen dataclass, its fields in order.

    A file in this folder, or an entry point of another package in the group `bayesgeom.subspaces`, adds one.
    """

    name: ClassVar[str]

    @classmethod
    @final
    def form(cls) -> str:
        """Return how it is written: the name, then the fields."""
        listed = ",".join(own.name.upper() for own in _fields(cls))
        return f"{cls.name}:{listed}" if listed else cls.name

    @classmethod
    @final
    def of_text(cls, values: Sequence[str]) -> Self:
        """Return the fit with these values of its fields, in order.

        Raises:
            InvalidArgument: There are too few values or too many, or one is of the wrong type.
        """
        own = _fields(cls)
        given = dict(zip((field.name for field in own), map(literal, values), strict=False))
        wrong = [field.name for field in own if field.name in given and type(given[field.name]) is not field.type]
        if len(values) > len(own) or wrong:
            raise InvalidArgument(f"subspace {cls.name!r} is written {cls.form()}; got {','.join(values)!r}.")
        try:
            return cls(**given)
        except TypeError as error:
            raise InvalidArgument(f"subspace {cls.name!r} is written {cls.form()}: {error}.") from error


def _fields(kind: Any) -> "tuple[Field[Any], ...]":
    return fields(kind)


def named_fits() -> dict[str, type[NamedFit]]:
    """Return every fit that goes by a name of its own, those of other packages included."""
    # mypy: an abstract class as a value is what discovery is about.
    return discover("bayesgeom.subspaces", NamedFit)  # type: ignore[type-abstract]
