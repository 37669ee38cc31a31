"""Sites: the named places in a model where a probe can look, and what the axes of each mean.

The word chosen for an axis decides what is kept of it: `pos` and `query_pos` keep scored positions only, `key_pos` and
`token` keep everything. Names are those of transformer-lens's hook points.
"""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Site:
    """A place in every layer, with the axes of one layer's activation there.

    A site without a `batch` axis is read from the weights alone and costs no pass.
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
Q_ROT = Site("q_rot", _QUERY)  # what the scores use
K = Site("k", _KEY)  # before rotation and norm
K_ROT = Site("k_rot", _KEY)  # what the scores use
V = Site("v", _KEY)
Z = Site("z", _QUERY)  # a head's output, before W_O
PATTERN = Site("pattern", ("batch", "head", "query_pos", "key_pos"))

TOKEN_EMBEDDINGS = Site("token_embeddings", ("token", "d_model"))  # a bare embedding, as it enters the first block
TOKEN_INPUTS = Site("token_inputs", ("token", "d_model"))  # the same, normed as it would enter W_K
TOKEN_KEYS = Site("token_keys", ("token", "kv_head", "d_head"))  # its key: W_K and bias applied
NORM_WEIGHT = Site("norm_weight", ("d_model",))  # by what the norm before attention multiplies; ones without a norm
W_K = Site("W_K", ("kv_head", "d_head", "d_model"))
W_K_GRAM = Site(
    "W_K_gram", ("kv_head", "d_head", "column")
)  # inner products of a head's columns of W_K: bounded in size
W_V = Site("W_V", ("kv_head", "d_head", "d_model"))
W_O = Site("W_O", ("head", "d_head", "d_model"))  # from z to what is added to the residual stream

ALL_SITES = (
    RESID_PRE,
    RESID_MID,
    RESID_POST,
    ATTN_OUT,
    MLP_OUT,
    STATE,
    Q,
    Q_ROT,
    K,
    K_ROT,
    V,
    Z,
    PATTERN,
    TOKEN_EMBEDDINGS,
    TOKEN_INPUTS,
    TOKEN_KEYS,
    NORM_WEIGHT,
    W_K,
    W_K_GRAM,
    W_V,
    W_O,
)
