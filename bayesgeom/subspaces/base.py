"""Fits: from sequences that are not scored to a subspace in each layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Self, final

from jaxtyping import Bool, Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.plugins import discover
from bayesgeom.core.run import Run, Trials
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
    """What a subspace represents.

    Args:
        quantity: the quantity that the verdict concerns.
        is_readout: whether it consists of read-out weights, which can never show that a quantity is not used.
        at_scored: whether it is fitted at scored positions; then only these are edited, unless the site sets others.
    """

    quantity: Quantity = BELIEF
    is_readout: bool = False
    at_scored: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """Sequences to fit on, and the model's activations at an intervention site.

    `draw_pairs(n, seed)` draws recipients and donors for fits that train; they are used neither for fitting nor for
    scoring. `mask` marks the positions that the intervention will edit; by default all.
    """

    model: Model
    run: Run
    place: InterventionSite
    seed: int
    draw_pairs: DrawPairs | None = None
    mask: Bool[Tensor, " pos"] | None = None

    def points(self, layer: int) -> Float64[Tensor, "point d"]:
        """Return vectors at the scored positions, with the heads concatenated for z and v."""
        site = self.place.site
        own = self.run.layers.get(site)  # if only some layers have the site, these alone were recorded
        return self.run.vectors(site, layer if own is None else own.index(layer)).flatten(0, 1).double()

    def values(self, quantity: Quantity) -> Float64[Tensor, "point component"]:
        """Return the quantity at each point."""
        return quantity.exact(self.run.trials).flatten(0, 1)

    def confounds(self, names: tuple[str, ...]) -> Float64[Tensor, "point column"]:
        """Return the named confounds at each point."""
        return confounds(self.run.trials, names).flatten(0, 1)

    def entropies(self) -> Float64[Tensor, " point"]:
        """Return the exact entropy at each point, in bits."""
        return entropy_bits(self.run.trials.at_scored(self.run.trials.predictive)).flatten()

    def beliefs(self) -> Float64[Tensor, "point hypothesis"]:
        """Return the exact belief at each point."""
        return self.run.trials.at_scored(self.run.trials.belief).flatten(0, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """The model, site and a sample of the task for which a fit is requested, known before anything runs."""

    model: Model
    place: InterventionSite
    trials: Trials


class Fit(ABC):
    """A way to choose a subspace in each layer. Concrete fits are frozen dataclasses."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Label in tables and plots."""

    @property
    @abstractmethod
    def about(self) -> About:
        """What the subspace represents."""

    @abstractmethod
    def check(self, setting: Setting) -> None:
        """Check that the subspace can be fitted, before anything runs.

        Raises:
            InvalidArgument: The subspace cannot be fitted in this setting.
            MissingSite: The model lacks a site.
        """

    @abstractmethod
    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        """Return the subspace of each layer."""


class NamedFit(Fit, ABC):
    """A fit that the command line writes as NAME:value,value; a frozen dataclass whose fields are the values.

    Add one as a file in this folder, or as an entry point of another package in the group `bayesgeom.subspaces`.
    """

    name: ClassVar[str]

    @classmethod
    @final
    def form(cls) -> str:
        """Return the form on the command line: the name, then the fields."""
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
    """Return every `NamedFit` by name, including those of other packages."""
    # mypy rejects an abstract class as a value, which discovery needs.
    return discover("bayesgeom.subspaces", NamedFit)  # type: ignore[type-abstract]
