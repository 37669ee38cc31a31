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
    every_neuron         one ablation per hidden unit of an MLP
    strongest_neurons    the neurons with the largest estimated KL increase
    every_expert         one ablation per expert of a mixture of experts
    top_attention_off    no attention in the top m layers
    cumulative           the first component, the first two, and so on

`Ablation` and `Component` make your own battery. `attribution_preview` estimates all effects from one backward pass.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
