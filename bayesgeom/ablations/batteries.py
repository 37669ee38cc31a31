"""Batteries: the lists of ablations that people run. A battery is a list, so any list of your own is one too."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Literal

from bayesgeom.ablations.component import Ablation, Component
from bayesgeom.checks.arguments import checked
from bayesgeom.core.errors import InvalidArgument, unknown_name
from bayesgeom.models.base import Model

Battery = list[Ablation]


@checked()
def every_head(model: Model) -> Battery:
    """Each head alone."""
    return [Ablation((component,)) for component in _heads(model)]


@checked()
def every_attention(model: Model) -> Battery:
    """Each attention sublayer alone."""
    return [Ablation((Component(layer, "attention"),)) for layer in range(model.spec.n_layers)]


@checked()
def every_mlp(model: Model) -> Battery:
    """Each MLP alone."""
    return [Ablation((Component(layer, "mlp"),)) for layer in range(model.spec.n_layers)]


@checked()
def every_layer(model: Model) -> Battery:
    """Each block bypassed alone."""
    return [Ablation((Component(layer, "block"),)) for layer in range(model.spec.n_layers)]


@checked()
def every_pair_of_heads(model: Model, *, scope: Literal["layer", "model"] = "layer") -> Battery:
    """Every two heads of a layer, or of the whole model: redundancy shows where each alone is harmless."""
    pairs = combinations(_heads(model), 2)
    return [Ablation(pair) for pair in pairs if scope == "model" or pair[0].layer == pair[1].layer]


@checked()
def top_attention_off(model: Model, m: int) -> Battery:
    """Attention zeroed in the top m layers at once. **Raises** `InvalidArgument` unless 1 ≤ m ≤ layers."""
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
    """The first component, the first two, the first three, … of an order."""
    return [
        Ablation(tuple(order[:count]), name=f"first {count}: + {order[count - 1].label}")
        for count in range(1, len(order) + 1)
    ]


@checked()
def everything(model: Model) -> Battery:
    """Return the default battery: each head, attention, MLP and block alone, where the model has their sites."""
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
    """The battery of this name. **Raises** `UnknownName`, listing those that exist."""
    if name not in BATTERIES:
        raise unknown_name("battery", name, BATTERIES)
    return BATTERIES[name](model)


def _fits(ablation: Ablation, model: Model) -> bool:
    return all(edit.site in model.sites for edit in ablation.edits("zero"))


def _heads(model: Model) -> list[Component]:
    spec = model.spec
    return [Component(layer, "head", head) for layer in range(spec.n_layers) for head in range(spec.n_heads)]
