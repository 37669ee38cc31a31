"""Batteries: named lists of ablations. A battery is a plain list, so you can pass your own."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Literal

from bayesgeom.ablations.component import Ablation, Component
from bayesgeom.core.errors import InvalidArgument, checked, unknown_name
from bayesgeom.core.run import ATTN_OUT, MLP_OUT, Site, Z
from bayesgeom.models.base import Model

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
    return [own for kind in kinds for own in kind(model) if _fits(own, model)]


BATTERIES: Mapping[str, Callable[[Model], Battery]] = {
    "all": everything,
    "heads": every_head,
    "attention": every_attention,
    "mlps": every_mlp,
    "layers": every_layer,
    "pairs": every_pair_of_heads,
}


def battery(name: str, model: Model) -> Battery:
    """Return the battery of this name.

    Raises:
        UnknownName: There is no such battery; the error lists those that exist.
        MissingSite: The model has none of its components.
    """
    if name not in BATTERIES:
        raise unknown_name("battery", name, BATTERIES)
    found = BATTERIES[name](model)
    if not found:
        by = "every ablation of the default battery" if name == "all" else f"battery {name!r}"
        model.require((Z,) if name in ("heads", "pairs") else (ATTN_OUT, MLP_OUT), by=by)
    return found


def _fits(ablation: Ablation, model: Model) -> bool:
    return all(edit.layer in model.layers_of(edit.site) for edit in ablation.edits("zero"))


def _heads(model: Model) -> list[Component]:
    return [Component(layer, "head", head) for layer in _layers(model, Z) for head in range(model.spec.n_heads)]


def _layers(model: Model, site: Site) -> Sequence[int]:
    """The layers that have a site; all layers if none has it, so that the ablation is refused with the reason."""
    return model.layers_of(site) or range(model.spec.n_layers)
