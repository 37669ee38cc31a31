"""Components of a model, ablations, which are sets of them, and batteries: named lists of ablations.

A battery is a plain list, so you can pass your own. A mode says how an ablated activation is replaced; other packages
register modes by entry point.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, final

from bayesgeom.core import (
    ATTN_OUT,
    EXPERT_WEIGHTS,
    MLP_OUT,
    MLP_POST,
    AblationMode,
    Edit,
    InvalidArgument,
    Mode,
    ModelSpec,
    Replace,
    Site,
    Z,
    check_types,
    checked,
    unknown_name,
)
from bayesgeom.core.edits import UNITS
from bayesgeom.core.plugins import discover
from bayesgeom.models.base import Model, stage

Kind = Literal["head", "attention", "mlp", "block", "neuron", "expert"]
BUILT_IN = ("zero", "mean", "resample")
_SITES: Mapping[Kind, tuple[Site, ...]] = {  # of whole components
    "attention": (ATTN_OUT,),
    "mlp": (MLP_OUT,),
    "block": (ATTN_OUT, MLP_OUT),
}
_UNITS: Mapping[Kind, Site] = {"neuron": MLP_POST, "expert": EXPERT_WEIGHTS}
_PARTS: Mapping[Kind, Site] = {"head": Z, **_UNITS}  # parts of one layer share an edit


@final
@dataclass(frozen=True, order=True)
class Component:
    """A head, an attention sublayer, an MLP, a whole block, a neuron, or an expert of a mixture of experts.

    A neuron is a hidden unit of an MLP (site `mlp_post`). Of an expert, the weight of its output is ablated (site
    `expert_weights`): with the mode zero, its output is removed, and the weights of the others stay as they are.

    Args:
        layer: Layer, counted from 0.
        kind: "head", "attention", "mlp", "block", "neuron" or "expert".
        head: Number of the head, counted from 0; None for the other kinds.
        unit: Number of the neuron or expert, counted from 0; None for the other kinds.

    Raises:
        InvalidArgument: The kind does not exist, or `head` and `unit` do not fit it.

    Example:
        >>> from bayesgeom import ablations
        >>> ablations.Component(2, "head", 3).label, ablations.Component(2, "neuron", unit=17).label
        ('L2H3', 'L2N17')
    """

    layer: int
    kind: Kind
    head: int | None = None
    unit: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if (self.kind == "head") != (self.head is not None) or (self.kind in _UNITS) != (self.unit is not None):
            raise InvalidArgument(
                f"a component is a head with its number, a neuron or expert with its unit, or one of attention, mlp, "
                f"block; got {self!r}."
            )

    @property
    def label(self) -> str:
        """The label in tables and plots: L2H3, L2 mlp, L2N17."""
        if self.kind in _UNITS:
            return f"L{self.layer}{UNITS[_UNITS[self.kind]]}{self.unit}"
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
        n_units = {"neuron": spec.d_mlp, "expert": spec.n_experts}.get(self.kind, 0)
        if n_units and self.unit is not None and not 0 <= self.unit < n_units:
            raise InvalidArgument(f"{self.label}: {spec.name} has {self.kind}s 0 … {n_units - 1} in a layer.")


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
        """Return the edits of this ablation; heads of one layer share one edit, and so do units.

        Args:
            mode: Name of an ablation mode, used unless the ablation has its own.
        """
        chosen = self.mode or mode
        by, parts, edits = mode_named(chosen), dict[tuple[int, Site], list[int]](), list[Edit]()
        for component in sorted(set(self.components), key=lambda c: (c.layer, c.kind, c.head or 0, c.unit or 0)):
            number = component.unit if component.head is None else component.head
            if number is not None:
                parts.setdefault((component.layer, _PARTS[component.kind]), []).append(number)
            for site in _SITES.get(component.kind, ()):
                replaced = {"mode": "zero"} if component.kind == "block" else {"mode": chosen, "by": by}
                edits.append(Replace(site=site, layer=component.layer, **replaced))
        for (layer, site), numbers in parts.items():
            which = {"heads" if site == Z else "units": tuple(numbers)}
            edits.append(Replace(site=site, layer=layer, mode=chosen, by=by, **which))
        return tuple(sorted(edits, key=lambda edit: (edit.layer, stage(edit.site))))


def mode_named(name: str) -> AblationMode | None:
    """Return the mode of this name, or None for a mode that is built in.

    Raises:
        InvalidArgument: There is no such mode; the error lists those that exist.
    """
    if name in BUILT_IN:
        return None
    # mypy rejects an abstract class as a value, which discovery needs.
    added = discover("bayesgeom.ablations", AblationMode)  # type: ignore[type-abstract]
    if name not in added:
        *names, last = (*BUILT_IN, *added)
        raise InvalidArgument(f"mode must be {', '.join(names)} or {last}, got {name!r}.")
    return added[name]()


Battery = list[Ablation]


@checked()
def every_head(model: Model) -> Battery:
    """Return one ablation per head, in the layers that have heads.

    Args:
        model: The model, as `bayesgeom.load` or `bayesgeom.as_model` returns it.

    Returns:
        Ablations, in the order of layers. They are a plain list: join lists, or leave some out.

    Raises:
        InvalidArgument: `model` is no model of this package; use `bayesgeom.as_model`.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> model = bayesgeom.load("sticky-small")
        >>> len(ablations.every_head(model))  # 3 layers of 4 heads
        12
    """
    return [Ablation((component,)) for component in _heads(model)]


@checked()
def every_attention(model: Model) -> Battery:
    """Return one ablation per attention sublayer.

    Args:
        model: The model, as `bayesgeom.load` or `bayesgeom.as_model` returns it.

    Returns:
        Ablations, in the order of layers. They are a plain list: join lists, or leave some out.

    Raises:
        InvalidArgument: `model` is no model of this package; use `bayesgeom.as_model`.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> model = bayesgeom.load("sticky-small")
        >>> [own.label for own in ablations.every_attention(model)]
        ['L0 attention', 'L1 attention', 'L2 attention']
    """
    return [Ablation((Component(layer, "attention"),)) for layer in _layers(model, ATTN_OUT)]


@checked()
def every_mlp(model: Model) -> Battery:
    """Return one ablation per MLP.

    Args:
        model: The model, as `bayesgeom.load` or `bayesgeom.as_model` returns it.

    Returns:
        Ablations, in the order of layers. They are a plain list: join lists, or leave some out.

    Raises:
        InvalidArgument: `model` is no model of this package; use `bayesgeom.as_model`.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> model = bayesgeom.load("sticky-small")
        >>> [own.label for own in ablations.every_mlp(model)]
        ['L0 mlp', 'L1 mlp', 'L2 mlp']
    """
    return [Ablation((Component(layer, "mlp"),)) for layer in _layers(model, MLP_OUT)]


@checked()
def every_neuron(model: Model, layer: int | None = None) -> Battery:
    """Return one ablation per neuron: hidden unit of an MLP.

    Args:
        model: The model, as `bayesgeom.load` or `bayesgeom.as_model` returns it.
        layer: The layer; None: all layers that have the site `mlp_post`.

    Returns:
        Ablations, in the order of layers. They are a plain list: join lists, or leave some out.

    Raises:
        InvalidArgument: The layer does not exist, or `model` is no model of this package; use `bayesgeom.as_model`.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> model = bayesgeom.load("sticky-small")
        >>> len(ablations.every_neuron(model, layer=1)) == model.spec.d_mlp
        True
    """
    layers = _layers(model, MLP_POST) if layer is None else (layer,)
    for at in layers:
        Component(at, "mlp").check_in(model.spec)
    return [Ablation((Component(at, "neuron", unit=unit),)) for at in layers for unit in range(model.spec.d_mlp)]


@checked()
def every_expert(model: Model) -> Battery:
    """Return one ablation per expert, in the layers that are mixtures of experts with a known layout.

    Args:
        model: The model, as `bayesgeom.load` or `bayesgeom.as_model` returns it.

    Returns:
        Ablations, in the order of layers; empty if there are no experts. They are a plain list.

    Raises:
        InvalidArgument: `model` is no model of this package; use `bayesgeom.as_model`.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> ablations.every_expert(bayesgeom.load("sticky-small"))
        []
    """
    layers, n_experts = model.layers_of(EXPERT_WEIGHTS), model.spec.n_experts
    return [Ablation((Component(at, "expert", unit=unit),)) for at in layers for unit in range(n_experts)]


@checked()
def every_layer(model: Model) -> Battery:
    """Return one ablation per block, which bypasses the block.

    Args:
        model: The model, as `bayesgeom.load` or `bayesgeom.as_model` returns it.

    Returns:
        Ablations, in the order of layers. They are a plain list: join lists, or leave some out.

    Raises:
        InvalidArgument: `model` is no model of this package; use `bayesgeom.as_model`.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> model = bayesgeom.load("sticky-small")
        >>> [own.label for own in ablations.every_layer(model)]
        ['L0 block', 'L1 block', 'L2 block']
    """
    return [Ablation((Component(layer, "block"),)) for layer in range(model.spec.n_layers)]


@checked()
def every_pair_of_heads(model: Model, *, scope: Literal["layer", "model"] = "layer") -> Battery:
    """Return one ablation per pair of heads: redundant heads have an effect together and none alone.

    Args:
        model: The model.
        scope: "layer" pairs heads of the same layer; "model" pairs heads of the whole model.

    Returns:
        Ablations, in the order of layers. They are a plain list: join lists, or leave some out.

    Raises:
        InvalidArgument: `scope` is neither of the two.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> model = bayesgeom.load("sticky-small")
        >>> len(ablations.every_pair_of_heads(model))  # 6 pairs in each of 3 layers
        18
    """
    pairs = combinations(_heads(model), 2)
    return [Ablation(pair) for pair in pairs if scope == "model" or pair[0].layer == pair[1].layer]


@checked()
def top_attention_off(model: Model, m: int) -> Battery:
    """Return one ablation that zeroes attention in the top m layers.

    Args:
        model: The model, as `bayesgeom.load` or `bayesgeom.as_model` returns it.
        m: Number of layers, counted from the last.

    Returns:
        One ablation in mode zero, whatever the mode of the battery.

    Raises:
        InvalidArgument: m is not between 1 and the number of layers.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> model = bayesgeom.load("sticky-small")
        >>> [own.label for own in ablations.top_attention_off(model, 2)]
        ['attention off, top 2']
    """
    n_layers = model.spec.n_layers
    if not 1 <= m <= n_layers:
        raise InvalidArgument(
            f"attention off in the top {m} layers of {model.spec.name}, which has {n_layers}: use 1 … {n_layers}."
        )
    layers = range(n_layers - m, n_layers)
    return [
        Ablation(tuple(Component(layer, "attention") for layer in layers), mode="zero", name=f"attention off, top {m}")
    ]


@checked()
def cumulative(order: Sequence[Component]) -> Battery:
    """Return ablations of the first component, the first two, the first three and so on, in the given order.

    Args:
        order: Components, the first to be ablated first.

    Returns:
        One ablation for each length of the list.

    Raises:
        InvalidArgument: An entry is no `Component`.

    Example:
        >>> from bayesgeom import ablations
        >>> order = [ablations.Component(0, "mlp"), ablations.Component(1, "head", 3)]
        >>> [own.label for own in ablations.cumulative(order)]
        ['first 1: + L0 mlp', 'first 2: + L1H3']
    """
    return [
        Ablation(tuple(order[:count]), name=f"first {count}: + {order[count - 1].label}")
        for count in range(1, len(order) + 1)
    ]


@checked()
def everything(model: Model) -> Battery:
    """Return the default battery: one ablation per head, attention sublayer, MLP and block whose sites exist.

    Args:
        model: The model, as `bayesgeom.load` or `bayesgeom.as_model` returns it.

    Returns:
        Ablations, in the order of layers. They are a plain list: join lists, or leave some out.

    Raises:
        InvalidArgument: `model` is no model of this package; use `bayesgeom.as_model`.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> model = bayesgeom.load("sticky-small")
        >>> len(ablations.everything(model))  # 12 heads, 3 attention sublayers, 3 MLPs, 3 blocks
        21
    """
    kinds = (every_head, every_attention, every_mlp, every_layer)
    return [
        ablation
        for kind in kinds
        for ablation in kind(model)
        if all(edit.layer in model.layers_of(edit.site) for edit in ablation.edits("zero"))
    ]


# Of "neurons", `ablate` takes the strongest, as estimated on its task.
BATTERIES: Mapping[str, Callable[[Model], Battery]] = {
    "all": everything,
    "heads": every_head,
    "attention": every_attention,
    "mlps": every_mlp,
    "layers": every_layer,
    "pairs": every_pair_of_heads,
    "neurons": every_neuron,
    "experts": every_expert,
}


def check_battery(name: object, mode: str = "mean") -> None:
    """Check the names of a battery and of its mode, which needs no model.

    Raises:
        UnknownName: There is no such battery; the error lists those that exist.
        InvalidArgument: There is no such mode.
    """
    if isinstance(name, str) and name not in BATTERIES:
        raise unknown_name("battery", name, BATTERIES)
    mode_named(mode)


def battery(name: str, model: Model) -> Battery:
    """Return the battery of this name.

    Raises:
        UnknownName: There is no such battery; the error lists those that exist.
        MissingSite: The model has none of its components.
    """
    check_battery(name)
    ablations = BATTERIES[name](model)
    if not ablations:
        needed = {"heads": (Z,), "pairs": (Z,), "experts": (EXPERT_WEIGHTS,)}
        model.require(needed.get(name, (ATTN_OUT, MLP_OUT)), by=f"battery {name!r}")
    return ablations


def _heads(model: Model) -> list[Component]:
    return [Component(layer, "head", head) for layer in _layers(model, Z) for head in range(model.spec.n_heads)]


def _layers(model: Model, site: Site) -> Sequence[int]:
    """The layers that have a site; all layers if none has it, so that the ablation is refused with the reason."""
    return model.layers_of(site) or range(model.spec.n_layers)
