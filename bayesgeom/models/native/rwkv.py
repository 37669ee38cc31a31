"""A small RWKV-4 trained on a wind tunnel: attention without queries, run as a recurrence, Hugging Face's own.

The module *is* a `transformers.RwkvForCausalLM`, weights, names and all. A checkpoint of it is read by plain
`AutoModelForCausalLM.from_pretrained` as it lies, and attached like any Hugging Face model.

    wkv_t = (Σ_{i<t} e^{−(t−1−i)w + k_i} v_i + e^{u + k_t} v_t) / (Σ_{i<t} e^{−(t−1−i)w + k_i} + e^{u + k_t})

for every channel; a block is time mixing, W_o (σ(r) ∘ wkv), then channel mixing, σ(r') ∘ W_v max(k', 0)².

Glossary, names of Peng et al. 2023 to the parts': w time_decay (as its logarithm), u time_first, μ time_mix_…, R, K, V
receptance, key, value. Token shift mixes each input with the one before it by μ.

Reference: Peng et al. 2023, arXiv:2305.13048. No positions: the recurrence has an order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.checks.arguments import check_types
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import ModelConfig

if TYPE_CHECKING:
    import transformers

EPS = 1e-5


@final
@dataclass(frozen=True, kw_only=True)
class RWKVConfig(ModelConfig):
    """Shape of an RWKV-4. `n_ctx` is the length that it is trained on."""

    name: ClassVar[str] = "rwkv"
    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    d_model: int = 192
    d_mlp: int = 768

    def __post_init__(self) -> None:
        check_types(self)
        if min(self.d_vocab, self.n_ctx, self.d_mlp) < 1:
            raise InvalidArgument(f"every size of an RWKV is at least 1, got {self}.")
        if min(self.n_layers, self.d_model) < 2:
            raise InvalidArgument(
                f"an RWKV starts from ramps over layers and channels: 2 of each at least, got {self}."
            )

    def _build(self, *, seed: int) -> "RWKV":
        return RWKV(self, seed=seed)

    @classmethod
    def proportions(cls, d_model: int) -> Mapping[str, int]:
        """Channel mixing four times as wide."""
        return {"d_model": d_model, "d_mlp": 4 * d_model}

    def hf_config(self) -> Mapping[str, Any]:
        return {**_hf_config(self).to_diff_dict(), "architectures": ["RwkvForCausalLM"], "dtype": "float32"}


@final
class RWKV(nn.Module):
    """Tokens in, logits out; `whole` is the Hugging Face model, whose parts and parameter names this module has.

    Weights are float32 and drawn as transformers draws them, from this seed.
    """

    def __init__(self, config: RWKVConfig, *, seed: int = 0) -> None:
        import transformers

        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)  # transformers initializes from the global generator alone
            whole = transformers.RwkvForCausalLM(_hf_config(config))
        self._whole = (whole,)  # in a tuple: its parts are registered below, under its own names
        self.rwkv, self.head = whole.rwkv, whole.head

    @property
    def whole(self) -> "transformers.RwkvForCausalLM":
        """The Hugging Face model; it shares every parameter."""
        return self._whole[0]

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        logits: Tensor = self.whole(input_ids=tokens, use_cache=False).logits
        return logits


def _hf_config(config: RWKVConfig) -> "transformers.RwkvConfig":
    import transformers

    return transformers.RwkvConfig(
        vocab_size=config.d_vocab,
        context_length=config.n_ctx,
        hidden_size=config.d_model,
        attention_hidden_size=config.d_model,
        intermediate_size=config.d_mlp,
        num_hidden_layers=config.n_layers,
        layer_norm_epsilon=EPS,
        rescale_every=0,  # else weights are halved in place every few layers when it is set to evaluation
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
