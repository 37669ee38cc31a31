"""What a subspace is, where it is edited, and how it is fitted from sequences that are not scored."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Literal, Self, final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from bayesgeom.core import RESID_PRE, InvalidArgument, ModelSpec, Run, Site, Trials, V, Z, check_types
from bayesgeom.core.edits import check_dual, check_orthonormal
from bayesgeom.core.plugins import discover
from bayesgeom.models.base import STAGES, Model
from bayesgeom.models.replay.carried import CARRIED, check_carries
from bayesgeom.subspaces.quantity import BELIEF, PosteriorQuantity, confounds
from bayesgeom.tasks.base import literal

DrawPairs = Callable[[int, int], tuple[Trials, Trials]]
RANK_TOLERANCE = 1e-6  # share of the largest singular value below which a direction is rounding error


@final
@dataclass(frozen=True)
class InterventionSite:
    """Hook point, layers and positions of an intervention.

    Args:
        site: the hook point.
        layers: layers to edit, one at a time; None means all.
        positions: "all" or "scored"; None means "scored" for subspaces that are fitted at scored positions (those of a
            quantity) and "all" for others.
        score_after: edit one scored position and score only later ones. This separates information that is passed on
            to later positions from information that is read out at once.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.InterventionSite(layers=(0, 2)).site.name
        'resid_pre'
    """

    site: Site = RESID_PRE
    layers: Sequence[int] | None = None
    positions: Literal["all", "scored"] | None = None
    score_after: bool = False

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def is_residual(self) -> bool:
        """Whether vectors at this site are in residual-stream coordinates."""
        return self.site not in (Z, V, CARRIED)

    def check_in(self, model: Model, *, editable: Collection[Site] = (*STAGES, CARRIED)) -> None:
        """Check site and layers.

        Args:
            model: The model to edit.
            editable: Sites that the intervention supports.

        Raises:
            MissingSite: The model lacks the site.
            InvalidArgument: The site cannot be edited, or a layer does not exist.
        """
        if self.site != CARRIED:
            model.require((self.site,), by="an intervention", layers=self.layers)
        if self.site not in editable:
            allowed = ", ".join(site.name for site in editable)
            raise InvalidArgument(f"an intervention can edit {allowed}; not {self.site.name!r}.")
        if self.site == CARRIED:
            check_carries(model)
            if not self.score_after:
                raise InvalidArgument(
                    "a carried state is edited after one position: use InterventionSite(CARRIED, score_after=True)."
                )
        n_layers = model.spec.n_layers
        chosen = self.layers_of(model.spec)
        if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= layer < n_layers for layer in chosen):
            raise InvalidArgument(
                f"layers {list(chosen)}: choose at least one of 0 … {n_layers - 1} of {model.spec.name}, each once."
            )

    def layers_of(self, spec: ModelSpec) -> tuple[int, ...]:
        """Return the chosen layers; all by default.

        Args:
            spec: Size of the model.
        """
        return tuple(range(spec.n_layers)) if self.layers is None else tuple(self.layers)

    def width_in(self, spec: ModelSpec) -> int:
        """Return the number of coordinates at one position, over all heads for z and v.

        Args:
            spec: Size of the model.
        """
        if self.is_residual:
            return spec.d_model
        if self.site == CARRIED:
            return 2 * spec.d_model
        return (spec.n_kv_heads if self.site == V else spec.n_heads) * spec.d_of_value


@final
@dataclass(frozen=True, eq=False)
class Subspace:
    """A named subspace, and the projector onto it: orthogonal, P = B Bᵀ, or with a `dual` oblique, P = B Dᵀ.

    Args:
        name: Label in tables and figures.
        basis: Orthonormal columns B, one per dimension of the subspace.
        dual: Columns D that read the coordinates, DᵀB = 1. Default: the basis itself.

    Raises:
        InvalidArgument: The columns of `basis` are not orthonormal, or DᵀB is not the identity.

    Example:
        >>> import bayesgeom, torch
        >>> bayesgeom.subspaces.Subspace("first two", torch.eye(5)[:, :2]).rank
        2
    """

    name: str
    basis: Float[Tensor, "d r"]
    dual: Float[Tensor, "d r"] | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_orthonormal(self.basis)
        if self.dual is not None:
            check_dual(self.basis, self.dual)

    @property
    def reads(self) -> Float[Tensor, "d r"]:
        """Columns that read the coordinates: the dual, or the basis itself."""
        return self.basis if self.dual is None else self.dual

    def projector(self) -> Float64[Tensor, "d d"]:
        """Return P, which acts on column vectors."""
        return self.basis.double() @ self.reads.double().T

    def variance_share(self, covariance: Float64[Tensor, "d d"]) -> float:
        """Return tr(P Σ Pᵀ) / tr Σ: the share of the site's variance that removal deletes.

        Args:
            covariance: Covariance of the vectors at the site.
        """
        reads = self.reads.to(covariance)
        return float((reads * (covariance @ reads)).sum() / covariance.diagonal().sum())

    @property
    def width(self) -> int:
        """Dimensions of the ambient space."""
        return len(self.basis)

    @property
    def rank(self) -> int:
        """Dimensions of the subspace."""
        return self.basis.shape[1]


def span(name: str, columns: Float[Tensor, "d n"]) -> Subspace:
    """Return the span of some vectors: left singular vectors with singular values above 1e-6 of the largest.

    Raises:
        InvalidArgument: All vectors are zero, or one is not finite.
    """
    if not bool(columns.isfinite().all()) or not bool(columns.any()):
        raise InvalidArgument(
            f"{name}: the vectors are all zero, or not finite, so they span no subspace here. Choose another layer."
        )
    left, singular, _ = torch.linalg.svd(columns.double(), full_matrices=False)
    signs = torch.where((left.T @ columns.double()).sum(dim=1) < 0, -1.0, 1.0)  # a single vector keeps its direction
    return Subspace(name, (left * signs)[:, singular > RANK_TOLERANCE * singular[0]])


@final
@dataclass(frozen=True, kw_only=True)
class About:
    """What a subspace represents.

    Args:
        quantity: the quantity that the verdict concerns.
        is_readout: whether it consists of read-out weights, which can show neither a cause nor inertness.
        at_scored: whether it is fitted at scored positions; then only these are edited, unless the site sets others.
    """

    quantity: PosteriorQuantity = BELIEF
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
    mask: Bool[Tensor, "*batch pos"] | None = None

    def points(self, layer: int) -> Float64[Tensor, "point d"]:
        """Return vectors at the scored positions, with the heads concatenated for z and v."""
        site = self.place.site
        recorded = self.run.layers.get(site)  # if only some layers have the site, these alone were recorded
        return self.run.vectors(site, layer if recorded is None else recorded.index(layer)).flatten(0, 1).double()

    def values(self, quantity: PosteriorQuantity) -> Float64[Tensor, "point component"]:
        """Return the quantity at each point."""
        return quantity.exact(self.run.trials).flatten(0, 1)

    def confounds(self, names: tuple[str, ...]) -> Float64[Tensor, "point column"]:
        """Return the named confounds at each point."""
        return confounds(self.run.trials, names).flatten(0, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """The model, site and a sample of the task for which a fit is requested, known before anything runs."""

    model: Model
    place: InterventionSite
    trials: Trials


def check_rank(rank: int, setting: Setting, *, name: str) -> None:
    """Check a rank, which the error calls `name`, against the width of the site.

    Raises:
        InvalidArgument: It is not between 1 and the width.
    """
    width, spec = setting.place.width_in(setting.model.spec), setting.model.spec
    if not 1 <= rank <= width:
        raise InvalidArgument(
            f"{name} = {rank}: {setting.place.site.name!r} of {spec.name} has {width} dimensions; use 1 … {width}."
        )


class Fit(ABC):
    """A way to choose a subspace in each layer. Concrete fits are frozen dataclasses."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Label in tables and plots."""

    @property
    def about(self) -> About:
        """What the subspace represents: the belief, unless the fit says otherwise."""
        return About()

    def check(self, setting: Setting) -> None:
        """Check that the subspace can be fitted, before anything runs: that the task has its quantity, at least.

        Raises:
            InvalidArgument: The subspace cannot be fitted in this setting.
            MissingSite: The model lacks a site.
        """
        self.about.quantity.check(setting.trials)

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
        listed = ",".join(field.name.upper() for field in _fields(cls))
        return f"{cls.name}:{listed}" if listed else cls.name

    @classmethod
    @final
    def of_text(cls, values: Sequence[str]) -> Self:
        """Return the fit with these values of its fields, in order.

        Raises:
            InvalidArgument: There are too few values or too many, or one is of the wrong type.
        """
        declared = _fields(cls)
        given = dict(zip((field.name for field in declared), map(literal, values), strict=False))
        wrong = [field.name for field in declared if field.name in given and type(given[field.name]) is not field.type]
        if len(values) > len(declared) or wrong:
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
