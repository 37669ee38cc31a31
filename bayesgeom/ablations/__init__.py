"""Ablations: how much worse a model predicts without one of its components, measured against the exact posterior."""

from typing import TYPE_CHECKING

from bayesgeom.core.lazy import names_on_demand

if TYPE_CHECKING:
    from bayesgeom.ablations.batteries import cumulative as cumulative
    from bayesgeom.ablations.batteries import every_attention as every_attention
    from bayesgeom.ablations.batteries import every_head as every_head
    from bayesgeom.ablations.batteries import every_layer as every_layer
    from bayesgeom.ablations.batteries import every_mlp as every_mlp
    from bayesgeom.ablations.batteries import every_pair_of_heads as every_pair_of_heads
    from bayesgeom.ablations.batteries import everything as everything
    from bayesgeom.ablations.batteries import top_attention_off as top_attention_off
    from bayesgeom.ablations.component import Ablation as Ablation
    from bayesgeom.ablations.component import Component as Component
    from bayesgeom.ablations.run import attribution_preview as attribution_preview

_BATTERIES = (
    "cumulative",
    "every_attention",
    "every_head",
    "every_layer",
    "every_mlp",
    "every_pair_of_heads",
    "everything",
    "top_attention_off",
)
_HOMES = {
    **dict.fromkeys(_BATTERIES, "batteries"),
    "Ablation": "component",
    "Component": "component",
    "attribution_preview": "run",
}
__all__ = [*_HOMES]
__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
