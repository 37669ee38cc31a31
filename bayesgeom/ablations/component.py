"""Components of a model, sets of them to ablate, and the edits that ablate them."""

from dataclasses import dataclass
from typing import Literal, final

from bayesgeom.ablations.modes import mode_named
from bayesgeom.core.edits import Edit, Mode, Replace
from bayesgeom.core.errors import InvalidArgument, check_types
from bayesgeom.core.run import ATTN_OUT, MLP_OUT, ModelSpec, Z

Kind = Literal["head", "attention", "mlp", "block"]
KINDS = ("head", "attention", "mlp", "block")


@final
@dataclass(frozen=True, order=True)
class Component:
    """A head, an attention sublayer, an MLP, or a whole block.

    Args:
        layer: Layer, counted from 0.
        kind: "head", "attention", "mlp" or "block".
        head: Number of the head, counted from 0; None for the other kinds.

    Raises:
        InvalidArgument: The kind does not exist, or only one of `kind` and `head` names a head.

    Example:
        >>> from bayesgeom import ablations
        >>> ablations.Component(2, "head", 3).label
        'L2H3'
    """

    layer: int
    kind: Kind
    head: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.kind not in KINDS or (self.kind == "head") != (self.head is not None):
            raise InvalidArgument(
                f"a component is a head with its number, or one of attention, mlp, block; got {self!r}."
            )

    @property
    def label(self) -> str:
        """The label in tables and plots: L2H3, L2 mlp."""
        return f"L{self.layer}H{self.head}" if self.kind == "head" else f"L{self.layer} {self.kind}"

    def check_in(self, spec: ModelSpec) -> None:
        """Check that a model has this component.

        Args:
            spec: Size of the model.

        Raises:
            InvalidArgument: The model has no such layer or head.
        """
        if not 0 <= self.layer < spec.n_layers:
            raise InvalidArgument(f"{self.label}: {spec.name} has layers 0 … {spec.n_layers - 1}.")
        if self.head is not None and not 0 <= self.head < spec.n_heads:
            raise InvalidArgument(f"{self.label}: {spec.name} has heads 0 … {spec.n_heads - 1} in a layer.")


@final
@dataclass(frozen=True)
class Ablation:
    """Components that are ablated together; `mode`, if given, overrides the mode of the battery.

    A block is always bypassed: its output is its input.

    Args:
        components: What is ablated, at least one component.
        mode: Mode of this ablation; None: that of the battery.
        name: Label in tables and plots; None: the components' labels.

    Raises:
        InvalidArgument: There is no component, or an argument has the wrong type.

    Example:
        >>> from bayesgeom import ablations
        >>> both = ablations.Component(0, "mlp"), ablations.Component(1, "head", 3)
        >>> ablations.Ablation(both).label
        'L0 mlp + L1H3'
    """

    components: tuple[Component, ...]
    mode: Mode | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if not self.components:
            raise InvalidArgument("an ablation needs at least one component (Component(0, 'attention')); got none.")

    @property
    def label(self) -> str:
        """The name, or the components' labels joined."""
        return self.name or " + ".join(component.label for component in self.components)

    def edits(self, mode: Mode) -> tuple[Edit, ...]:
        """Return the edits of this ablation; heads of one layer share one edit.

        Args:
            mode: Name of an ablation mode, used unless the ablation has its own.
        """
        chosen = self.mode or mode
        by = mode_named(chosen)
        heads: dict[int, list[int]] = {}
        edits: list[Edit] = []
        for component in sorted(set(self.components), key=lambda c: (c.layer, c.kind, c.head or 0)):
            match component.kind:
                case "head":
                    assert component.head is not None, "checked on construction"
                    heads.setdefault(component.layer, []).append(component.head)
                case "attention":
                    edits.append(Replace(site=ATTN_OUT, layer=component.layer, mode=chosen, by=by))
                case "mlp":
                    edits.append(Replace(site=MLP_OUT, layer=component.layer, mode=chosen, by=by))
                case "block":
                    edits += [Replace(site=site, layer=component.layer, mode="zero") for site in (ATTN_OUT, MLP_OUT)]
        edits += [Replace(site=Z, layer=at, mode=chosen, heads=tuple(own), by=by) for at, own in heads.items()]
        return tuple(sorted(edits, key=lambda edit: (edit.layer, edit.site != Z)))
