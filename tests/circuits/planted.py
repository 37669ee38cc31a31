"""An induction network by hand: a head that copies the key before each value, and one that finds it again."""

import math

import torch

from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.tasks.bijection import Bijection

V, PAIRS, N_HEADS = 5, 6, 2
TASK = Bijection(n_values=V, n_pairs=PAIRS, repeats=True)
N_IDS, N_POS, D_HEAD = 2 * V, TASK.n_pos, 19
CONFIG = TransformerConfig(
    d_vocab=N_IDS, n_ctx=N_POS, n_layers=2, n_heads=N_HEADS, d_model=N_HEADS * D_HEAD, d_mlp=3, tied=False
)
# Coordinates of the stream: tokens, positions, the key before a value, the value found, values seen, and a constant so
# large that norms only ever scale by the same factor.
PLACE = slice(N_IDS, N_IDS + N_POS)
BEFORE, FOUND, SEEN = (slice(PLACE.stop + V * i, PLACE.stop + V * (i + 1)) for i in range(3))
LOUD, LOUDNESS = 37, 100.0
SHARP = 40.0  # nats between what a head attends to and everything else
EDGES = {  # those that carry anything; all others are exactly without effect
    "embedding → L0H0 v",  # the key is copied to the position of its value
    "L0H0 → L1H0 k",  # where the second head looks for it
    "embedding → L1H0 q",
    "embedding → L1H0 v",
    "embedding → L1H1 v",  # values seen before are ruled out
    "L1H0 → output",
    "L1H1 → output",
}


def induction() -> HookedModel:
    """A network that answers exactly: L0H0 copies the previous token, L1H0 looks up a key, L1H1 rules values out."""
    module = Transformer(CONFIG)
    gain = math.sqrt(CONFIG.d_model) / LOUDNESS  # of every norm
    sharp = SHARP * math.sqrt(D_HEAD) / gain
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.endswith(".w"):
                parameter.zero_()
        module.embed.weight[:, :N_IDS] = torch.eye(N_IDS)
        module.embed.weight[:, LOUD] = LOUDNESS
        module.pos_embed.weight[:, PLACE] = torch.eye(N_POS)
        first, second = (module.get_submodule(f"blocks.{layer}.attn") for layer in range(2))
        first.W_Q.weight[:N_POS, PLACE] = sharp * torch.eye(N_POS)
        first.W_K.weight[1:N_POS, PLACE] = torch.eye(N_POS)[:-1] / gain  # a key says which position comes next
        first.W_V.weight[:V, :V] = torch.eye(V) / gain
        first.W_O.weight[BEFORE, :V] = torch.eye(V)
        second.W_Q.weight[:V, :V] = sharp * torch.eye(V)
        second.W_K.weight[:V, BEFORE] = torch.eye(V) / gain
        second.W_K.weight[:V, PLACE.start] = -1 / gain  # at position 0 the first head sees itself
        for head, coordinates in enumerate((FOUND, SEEN)):
            second.W_V.weight[head * D_HEAD : head * D_HEAD + V, V:N_IDS] = torch.eye(V) / gain
            second.W_O.weight[coordinates, head * D_HEAD : head * D_HEAD + V] = torch.eye(V)
        module.unembed.weight[V:, FOUND] = 400 / gain * torch.eye(V)
        module.unembed.weight[V:, SEEN] = -660 / gain * torch.eye(V)
    return HookedModel(module, name="induction", task=TASK)
