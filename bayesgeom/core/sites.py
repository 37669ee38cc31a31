"""Sites: the named hook points of a model, and the meaning of their axes.

The name of an axis decides which entries are recorded: scored positions only for `pos` and `query_pos`, all entries
for `key_pos` and `token`. The names are those of transformer-lens's hook points.
"""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Site:
    """A hook point that exists in every layer, with the axes of one layer's activation there.

    A site without a `batch` axis is read from the weights alone and needs no forward pass.
    """

    name: str
    axes: tuple[str, ...]

    @property
    def is_static(self) -> bool:
        """Whether the site is read from the weights alone."""
        return "batch" not in self.axes


_RESIDUAL = ("batch", "pos", "d_model")
_QUERY = ("batch", "pos", "head", "d_head")
_KEY = ("batch", "key_pos", "kv_head", "d_head")

RESID_PRE = Site("resid_pre", _RESIDUAL)
RESID_MID = Site("resid_mid", _RESIDUAL)
RESID_POST = Site("resid_post", _RESIDUAL)
ATTN_OUT = Site("attn_out", _RESIDUAL)
MLP_OUT = Site("mlp_out", _RESIDUAL)
STATE = Site("state", ("batch", "pos", "d_state"))

Q = Site("q", _QUERY)  # before rotation and norm
Q_ROT = Site("q_rot", _QUERY)  # used in the attention scores
K = Site("k", _KEY)  # before rotation and norm
K_ROT = Site("k_rot", _KEY)  # used in the attention scores
V = Site("v", _KEY)
Z = Site("z", _QUERY)  # a head's output, before W_O
PATTERN = Site("pattern", ("batch", "head", "query_pos", "key_pos"))

TOKEN_EMBEDDINGS = Site("token_embeddings", ("token", "d_model"))  # the embedding alone, as it enters the first block
TOKEN_INPUTS = Site("token_inputs", ("token", "d_model"))  # the same after the norm, as the input of W_K
TOKEN_KEYS = Site("token_keys", ("token", "kv_head", "d_head"))  # the keys: W_K and bias applied
NORM_WEIGHT = Site("norm_weight", ("d_model",))  # scale of the norm before attention; ones if there is no norm
W_K = Site("W_K", ("kv_head", "d_head", "d_model"))
W_K_GRAM = Site(
    "W_K_gram", ("kv_head", "d_head", "column")
)  # inner products of a head's columns of W_K; of bounded size
W_V = Site("W_V", ("kv_head", "d_head", "d_model"))
W_O = Site("W_O", ("head", "d_head", "d_model"))  # maps z to the update of the residual stream

ALL_SITES = tuple(site for site in tuple(globals().values()) if isinstance(site, Site))
N_RECORDED = 192  # sequences whose activations a diagnosis stores: enough for every interval, and independent of n
