"""Ablations: how much worse a model predicts without one of its components, measured against the exact posterior.

    import bayesgeom
    from bayesgeom import ablations
    model = bayesgeom.load("bijection-v20")
    bayesgeom.ablate(model, battery=ablations.every_head(model))

Batteries:

    everything           every head, attention sublayer, MLP and block (the default)
    every_head           one ablation per head
    every_pair_of_heads  one ablation per pair of heads
    every_attention      one ablation per attention sublayer
    every_mlp            one ablation per MLP
    every_layer          one ablation per block
    top_attention_off    no attention in the top m layers
    cumulative           the first component, the first two, and so on

`Ablation` and `Component` make your own battery. `attribution_preview` estimates all effects from one backward pass.
"""

from typing import TYPE_CHECKING

from bayesgeom.core.plugins import names_on_demand

if TYPE_CHECKING:
    from bayesgeom.ablations.batteries import Ablation as Ablation
    from bayesgeom.ablations.batteries import Component as Component
    from bayesgeom.ablations.batteries import cumulative as cumulative
    from bayesgeom.ablations.batteries import every_attention as every_attention
    from bayesgeom.ablations.batteries import every_head as every_head
    from bayesgeom.ablations.batteries import every_layer as every_layer
    from bayesgeom.ablations.batteries import every_mlp as every_mlp
    from bayesgeom.ablations.batteries import every_pair_of_heads as every_pair_of_heads
    from bayesgeom.ablations.batteries import everything as everything
    from bayesgeom.ablations.batteries import top_attention_off as top_attention_off
    from bayesgeom.ablations.run import attribution_preview as attribution_preview

_BATTERIES = (
    "Ablation",
    "Component",
    "cumulative",
    "every_attention",
    "every_head",
    "every_layer",
    "every_mlp",
    "every_pair_of_heads",
    "everything",
    "top_attention_off",
)
_HOMES = dict.fromkeys(_BATTERIES, "batteries") | {"attribution_preview": "run"}
__all__ = list(_HOMES)
__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
