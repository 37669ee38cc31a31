"""Edits: frozen values that change one activation of one layer. They compose as a set; order is the model's own.

An edit says where it acts and what it makes of the activation there. What it puts in place may come from a reference:
the task's mean at each position, or the same position of another trial.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.sites import Site, Z

Mode = str  # "zero", "mean", "resample", or the name of an `AblationMode`
MODES = ("zero", "mean", "resample", "nothing")
SubspaceKind = Literal["swap", "remove", "keep", "rotate", "add"]
SUBSPACE_KINDS = ("swap", "remove", "keep", "rotate", "add")
ORTHONORMAL = 1e-4
DUAL = 1e-3  # looser: an oblique projector that reads directions of small variance has large entries


@runtime_checkable
class Reference(Protocol):
    """Where replacements come from; both broadcast against the activation."""

    def mean(self, site: Site, layer: int) -> Shaped[Tensor, "..."]:
        """The task's mean activation at each position."""

    def donor(self, site: Site, layer: int) -> Shaped[Tensor, "..."]:
        """The unedited activation of the paired trial."""


class AblationMode(ABC):
    """Another replacement for an ablated activation. Concrete modes are frozen dataclasses that need no argument.

    `uses_donor` is true for a mode that reads `reference.donor`, the activation of another sequence.
    """

    name: ClassVar[str]
    uses_donor: ClassVar[bool] = False

    @abstractmethod
    def replacement(
        self, values: Shaped[Tensor, "..."], site: Site, layer: int, reference: Reference
    ) -> Shaped[Tensor, "..."]:
        """Return what goes in place of `values`; its shape broadcasts to theirs, which must not be changed."""


class Edit(ABC):
    """One change to one activation. Concrete edits are frozen dataclasses."""

    site: Site
    layer: int

    @property
    @abstractmethod
    def label(self) -> str:
        """What tables and plots call it."""

    @abstractmethod
    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        """The activation in place of `values`, which is left as it is."""


@final
@dataclass(frozen=True, kw_only=True)
class Replace(Edit):
    """Put zero, the mean or another trial's activation in place: of whole activations, or of some heads of `z`.

    The mode "nothing" puts the activation itself in place: the control that shows what replaying alone changes.
    """

    site: Site
    layer: int
    mode: Mode
    heads: tuple[int, ...] | None = None
    by: AblationMode | None = None  # the mode of this name, where it is none of the four

    def __post_init__(self) -> None:
        if self.by is None and self.mode not in MODES:
            raise InvalidArgument(f"mode must be one of {', '.join(MODES)}; got {self.mode!r}.")
        if self.heads is not None and self.site != Z:
            raise InvalidArgument(f"heads are ablated at their output z, not at {self.site.name!r}.")

    @property
    def uses_donor(self) -> bool:
        """Whether it reads the activation of another sequence."""
        return self.mode == "resample" if self.by is None else self.by.uses_donor

    @property
    def is_constant(self) -> bool:
        """Whether what goes in place is known not to depend on what is replaced."""
        return self.by is None and self.mode != "nothing"

    @property
    def label(self) -> str:
        place = (
            f"L{self.layer} {self.site.name}"
            if self.heads is None
            else "+".join(f"L{self.layer}H{h}" for h in self.heads)
        )
        return f"{self.mode} {place}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        substitute = self.substitute(values, reference).to(values)  # a mean is float32, whatever the model is
        if self.heads is None:
            return substitute
        edited = values.clone()
        for head in self.heads:
            edited[..., head, :] = substitute[..., head, :]
        return edited

    def substitute(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        """What goes in place of all of `values`, expanded to its shape."""
        if self.by is not None:
            return self.by.replacement(values, self.site, self.layer, reference).expand_as(values)
        match self.mode:
            case "zero":
                return values.new_zeros(()).expand_as(values)  # a fresh tensor of them would cost page faults
            case "mean":
                return reference.mean(self.site, self.layer).expand_as(values)
            case "resample":
                return reference.donor(self.site, self.layer).expand_as(values)
            case _:  # "nothing"
                return values


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class InSubspace(Edit):
    """Act on the component of an activation in a subspace, given by orthonormal columns B. With P = B Bᵀ:

    - "remove": x − P (x − mean), so that nothing in the subspace tells trials apart;
    - "keep": mean + P (x − mean), so that nothing outside it does;
    - "swap": x + P (donor − x);
    - "rotate": x + B (R − 1) Bᵀ x with `turn` R orthogonal, which keeps every norm;
    - "add": x + B s with `shift` s, in coordinates of the basis.

    With `dual` columns D, DᵀB = 1, the projector is oblique: P = B Dᵀ, as in LEACE.

    At z the heads' outputs are taken together, as one vector of heads × d_head.
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
        if self.kind not in SUBSPACE_KINDS:
            raise InvalidArgument(f"kind must be one of {', '.join(SUBSPACE_KINDS)}; got {self.kind!r}.")
        check_orthonormal(self.basis)
        if self.dual is not None:
            check_dual(self.basis, self.dual)
        if (self.kind == "rotate") != (self.turn is not None) or (self.kind == "add") != (self.shift is not None):
            raise InvalidArgument(f"`turn` goes with rotate and `shift` with add, and only there; got {self.kind!r}.")
        if self.turn is not None:
            check_orthonormal(self.turn)

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name} at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        flat = self._flat(values)
        if flat.shape[-1] != len(self.basis):
            raise InvalidArgument(
                f"{self.label}: the basis is {len(self.basis)} wide, the site {flat.shape[-1]}; they must agree."
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
        """One vector a position, in the basis's own precision: heads side by side where the site has them."""
        return (values.flatten(-2) if self.site.axes[-1] == Z.axes[-1] else values).to(self.basis)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AtPositions(Edit):
    """Apply an edit at the masked positions and leave the others as they are.

    `rows` are the scored positions: a last layer may be computed there alone.
    """

    edit: Edit
    mask: Bool[Tensor, " pos"]
    rows: Int64[Tensor, " query_pos"]
    site: Site
    layer: int

    @classmethod
    def of(cls, edit: Edit, mask: Bool[Tensor, " pos"], rows: Int64[Tensor, " query_pos"]) -> "AtPositions":
        """The edit, limited to these positions."""
        return cls(edit=edit, mask=mask, rows=rows, site=edit.site, layer=edit.layer)

    @property
    def label(self) -> str:
        return f"{self.edit.label} at {int(self.mask.sum())} positions"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        mask = self.mask if values.shape[1] == len(self.mask) else self.mask[self.rows]
        chosen = mask.reshape(-1, *(1,) * (values.ndim - 2)).to(values.device)
        return torch.where(chosen, self.edit.applied(values, reference), values)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Subtract(Edit):
    """Subtract a fixed tensor, such as the contribution of an earlier edit that reached this site unchanged."""

    site: Site
    layer: int
    amount: Float[Tensor, "batch pos d"]
    rows: Int64[Tensor, " query_pos"]

    @property
    def label(self) -> str:
        return f"subtract at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        amount = self.amount if values.shape[1] == self.amount.shape[1] else self.amount[:, self.rows]
        return values - amount.to(values)


def check_dual(basis: Float[Tensor, "d r"], dual: Float[Tensor, "d r"]) -> None:
    """**Raises** `InvalidArgument` unless the dual columns read the basis's own coordinates, DᵀB = 1, to 1e-3."""
    if dual.shape != basis.shape:
        raise InvalidArgument(
            f"the dual has shape {tuple(dual.shape)}, the basis {tuple(basis.shape)}; they must agree."
        )
    gram = dual.T.double() @ basis.double()
    error = float((gram - torch.eye(len(gram), dtype=torch.float64, device=gram.device)).abs().max())
    if not error <= DUAL:
        raise InvalidArgument(f"the dual does not read the basis: DᵀB is off the identity by {error:.1e}.")


def check_orthonormal(basis: Float[Tensor, "d r"]) -> None:
    """**Raises** `InvalidArgument` unless there is a column and the columns are orthonormal to 1e-4."""
    if basis.ndim != 2:
        raise InvalidArgument(f"a basis is a matrix with a column for each dimension, got shape {tuple(basis.shape)}.")
    d, r = basis.shape
    if not 1 <= r <= d:
        raise InvalidArgument(f"a basis in {d} dimensions has 1 … {d} orthonormal columns, got {r}.")
    gram = basis.T.double() @ basis.double()
    error = float((gram - torch.eye(r, dtype=torch.float64, device=gram.device)).abs().max())
    if not error <= ORTHONORMAL:
        raise InvalidArgument(
            f"the basis is not orthonormal: BᵀB is off the identity by {error:.1e}. Pass torch.linalg.qr(basis).Q."
        )
