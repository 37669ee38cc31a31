"""Edits: frozen values that change one activation of one layer.

Several edits form a set; they apply in the order in which the model computes the activations. An edit states where it
acts and how it changes the activation there. The replacement may come from a reference: the task's mean at each
position, or the same position of another sequence.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import EXPERT_WEIGHTS, MLP_POST, Site, Z

Mode = str  # "zero", "mean", "resample", or the name of an `AblationMode`
MODES = ("zero", "mean", "resample", "nothing")
SubspaceKind = Literal["swap", "remove", "keep", "rotate", "add"]
SUBSPACE_KINDS = ("swap", "remove", "keep", "rotate", "add")
UNITS = {MLP_POST: "N", EXPERT_WEIGHTS: "E"}  # sites whose units are edited alone, and their letters: L2N17, L2E3
ORTHONORMAL = 1e-4
DUAL = 1e-3  # looser: an oblique projector has large entries where it reads directions of small variance


@runtime_checkable
class Reference(Protocol):
    """The source of replacements. Both methods return tensors that broadcast against the activation."""

    def mean(self, site: Site, layer: int) -> Shaped[Tensor, "..."]:
        """Return the task's mean activation at each position."""

    def donor(self, site: Site, layer: int) -> Shaped[Tensor, "..."]:
        """Return the unedited activation of the paired sequence."""


class AblationMode(ABC):
    """A custom replacement for an ablated activation. Concrete modes are frozen dataclasses without required arguments.

    `uses_donor` is true if the mode reads `reference.donor`, the activation of another sequence.
    """

    name: ClassVar[str]
    uses_donor: ClassVar[bool] = False

    @abstractmethod
    def replacement(
        self, values: Shaped[Tensor, "..."], site: Site, layer: int, reference: Reference
    ) -> Shaped[Tensor, "..."]:
        """Return the replacement for `values`; it must broadcast to their shape. Do not modify `values`."""


class Edit(ABC):
    """One change to one activation. Concrete edits are frozen dataclasses."""

    site: Site
    layer: int

    @property
    @abstractmethod
    def label(self) -> str:
        """Name of the edit in tables and plots."""

    @abstractmethod
    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        """Return the activation that replaces `values`. `values` is not modified."""


@final
@dataclass(frozen=True, kw_only=True)
class Replace(Edit):
    """Replace whole activations, or a part of them, by zero, the mean or another sequence's activation.

    A part are some heads of `z`, `q`, `k` or `v`, or some units of `mlp_post` (neurons) or `expert_weights` (experts).
    An expert of weight 0 writes nothing; the weights of the others stay.

    The mode "nothing" keeps the activation: a control that shows what replaying alone changes.
    """

    site: Site
    layer: int
    mode: Mode
    heads: tuple[int, ...] | None = None
    units: tuple[int, ...] | None = None
    by: AblationMode | None = None  # the custom mode of this name; None for the four built-in ones

    def __post_init__(self) -> None:
        if self.by is None and self.mode not in MODES:
            raise InvalidArgument(f"mode must be one of {', '.join(MODES)}; got {self.mode!r}.")
        if self.heads is not None and self.site.axes[-1:] != Z.axes[-1:]:
            raise InvalidArgument(f"heads are edited at z, q, k or v, not at {self.site.name!r}, which has none.")
        if self.units is not None and self.site not in UNITS:
            raise InvalidArgument(
                f"units are those of {' or '.join(site.name for site in UNITS)}, not of {self.site.name}."
            )

    @property
    def uses_donor(self) -> bool:
        """Whether the edit reads the activation of another sequence."""
        return self.mode == "resample" if self.by is None else self.by.uses_donor

    @property
    def label(self) -> str:
        if self.heads is None and self.units is None:
            return f"{self.mode} L{self.layer} {self.site.name}"
        letter = "H" if self.heads is not None else UNITS[self.site]
        return f"{self.mode} {'+'.join(f'L{self.layer}{letter}{at}' for at in self.heads or self.units or ())}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        substitute = self.substitute(values, reference).to(values)  # a mean is float32, whatever the model is
        if self.heads is None and self.units is None:
            return substitute
        edited, places = values.clone(), list(self.heads or self.units or ())
        part = (..., places, slice(None)) if self.units is None else (..., places)
        edited[part] = substitute[part]
        return edited

    def substitute(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        """Return the replacement for all of `values`, expanded to its shape."""
        if self.by is not None:
            return self.by.replacement(values, self.site, self.layer, reference).expand_as(values)
        match self.mode:
            case "zero":
                return values.new_zeros(()).expand_as(values)  # a new full-size tensor would cost page faults
            case "mean":
                return reference.mean(self.site, self.layer).expand_as(values)
            case "resample":
                return reference.donor(self.site, self.layer).expand_as(values)
            case _:  # "nothing"
                return values


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class InSubspace(Edit):
    """Change the component of an activation in a subspace, given by orthonormal columns B. With P = B Bᵀ:

    - "remove": x − P (x − mean). The component in the subspace is then the same for all sequences.
    - "keep": mean + P (x − mean). The component outside the subspace is then the same for all sequences.
    - "swap": x + P (donor − x).
    - "rotate": x + B (R − 1) Bᵀ x with `turn` R orthogonal, which preserves every norm.
    - "add": x + B s with `shift` s, in coordinates of the basis.

    With `dual` columns D, DᵀB = 1, the projector is oblique: P = B Dᵀ, as in LEACE.

    At site z the heads' outputs are concatenated into one vector of size heads × d_head.
    """

    site: Site
    layer: int
    kind: SubspaceKind
    basis: Float[Tensor, "d r"]
    turn: Float[Tensor, "r r"] | None = None
    shift: Float[Tensor, " r"] | None = None
    dual: Float[Tensor, "d r"] | None = None
    name: str = "subspace"

    def __post_init__(self) -> None:
        check_orthonormal(self.basis)
        if self.dual is not None:
            check_dual(self.basis, self.dual)
        if (self.kind == "rotate") != (self.turn is not None) or (self.kind == "add") != (self.shift is not None):
            raise InvalidArgument(
                f"`turn` is required for 'rotate' and `shift` for 'add', and neither is allowed for other kinds; "
                f"got {self.kind!r}."
            )
        if self.turn is not None:
            check_orthonormal(self.turn)

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name} at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        flat = self._flat(values)
        if flat.shape[-1] != len(self.basis):
            raise InvalidArgument(
                f"{self.label}: the basis has {len(self.basis)} dimensions, the site {flat.shape[-1]}; they must agree."
            )
        return self._edited(flat, reference).reshape(values.shape).to(values)

    def _edited(self, flat: Float[Tensor, "batch pos d"], reference: Reference) -> Float[Tensor, "batch pos d"]:
        match self.kind:
            case "remove":
                return flat - self._within(flat - self._flat(reference.mean(self.site, self.layer)))
            case "keep":
                mean = self._flat(reference.mean(self.site, self.layer))
                return mean + self._within(flat - mean)
            case "swap":
                return flat + self._within(self._flat(reference.donor(self.site, self.layer)) - flat)
            case "rotate":
                assert self.turn is not None, "checked on construction"
                coordinates = flat @ self._reads
                return flat + (coordinates @ self.turn.T - coordinates) @ self.basis.T
            case "add":
                assert self.shift is not None, "checked on construction"
                return flat + self.basis @ self.shift

    def _within(self, flat: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        return flat @ self._reads @ self.basis.T

    @property
    def _reads(self) -> Float[Tensor, "d r"]:
        """Columns that read the coordinates."""
        return self.basis if self.dual is None else self.dual

    def _flat(self, values: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """One vector per position, in the basis's dtype; heads are concatenated."""
        return (values.flatten(-2) if self.site.axes[-1] == Z.axes[-1] else values).to(self.basis)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AtPositions(Edit):
    """Apply an edit at the masked positions only, which may differ between sequences."""

    edit: Edit
    mask: Bool[Tensor, "*batch pos"]
    site: Site
    layer: int

    @classmethod
    def of(cls, edit: Edit, mask: Bool[Tensor, "*batch pos"]) -> "AtPositions":
        """Return the edit, limited to these positions."""
        return cls(edit=edit, mask=mask, site=edit.site, layer=edit.layer)

    @property
    def label(self) -> str:
        return f"{self.edit.label} at {int(self.mask.sum())} positions"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        chosen = self.mask.reshape(*self.mask.shape, *(1,) * (values.ndim - 2)).to(values.device)
        return torch.where(chosen, self.edit.applied(values, reference), values)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Subtract(Edit):
    """Subtract a fixed tensor, such as the contribution of an earlier edit that reached this site unchanged."""

    site: Site
    layer: int
    amount: Float[Tensor, "batch pos d"]

    @property
    def label(self) -> str:
        return f"subtract at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        return values - self.amount.to(values)


def check_dual(basis: Float[Tensor, "d r"], dual: Float[Tensor, "d r"]) -> None:
    """Check that the dual columns read the coordinates of the basis: DᵀB = 1 to 1e-3.

    Raises:
        InvalidArgument: The shapes differ, or DᵀB differs from the identity by more.
    """
    if dual.shape != basis.shape:
        raise InvalidArgument(
            f"the dual has shape {tuple(dual.shape)}, the basis {tuple(basis.shape)}; they must agree."
        )
    if not (error := _off_identity(dual, basis)) <= DUAL:
        raise InvalidArgument(f"the dual does not match the basis: DᵀB differs from the identity by {error:.1e}.")


def check_orthonormal(basis: Float[Tensor, "d r"]) -> None:
    """Check that there is at least one column and that the columns are orthonormal to 1e-4.

    Raises:
        InvalidArgument: There is no column, there are more columns than dimensions, or they are not orthonormal.
    """
    if basis.ndim != 2:
        raise InvalidArgument(f"a basis is a matrix with a column for each dimension, got shape {tuple(basis.shape)}.")
    d, r = basis.shape
    if not 1 <= r <= d:
        raise InvalidArgument(f"a basis in {d} dimensions must have 1 to {d} orthonormal columns, got {r}.")
    if not (error := _off_identity(basis, basis)) <= ORTHONORMAL:
        raise InvalidArgument(
            f"the basis is not orthonormal: BᵀB differs from the identity by {error:.1e}. "
            f"Pass torch.linalg.qr(basis).Q."
        )


def _off_identity(one: Float[Tensor, "d r"], other: Float[Tensor, "d r"]) -> float:
    """The largest entry of |XᵀY − 1|."""
    gram = one.T.double() @ other.double()
    return float((gram - torch.eye(len(gram), dtype=torch.float64, device=gram.device)).abs().max())
