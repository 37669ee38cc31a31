"""A small RWKV-4 for wind tunnels: attention without queries, run as a recurrence, in Hugging Face format.

The module has the parts, weights and parameter names of a `transformers.RwkvForCausalLM`. Plain
`AutoModelForCausalLM.from_pretrained` loads its checkpoints, and it is attached like any Hugging Face model.

    wkv_t = (Σ_{i<t} e^{−(t−1−i)w + k_i} v_i + e^{u + k_t} v_t) / (Σ_{i<t} e^{−(t−1−i)w + k_i} + e^{u + k_t})

for every channel. A block is time mixing, W_o (σ(r) ∘ wkv), then channel mixing, σ(r') ∘ W_v max(k', 0)².

Notation of Peng et al. 2023 in the names of the parts: w is time_decay (its logarithm), u time_first, μ time_mix_…, and
R, K, V are receptance, key, value. Token shift mixes each input with the previous one by μ. There is no positional
encoding: the recurrence is ordered.

Reference: Peng et al. 2023, arXiv:2305.13048.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import ModelConfig
from bayesgeom.models.native.wrapped import Wrapped

if TYPE_CHECKING:
    import transformers

EPS = 1e-5


@final
@dataclass(frozen=True, kw_only=True)
class RWKVConfig(ModelConfig):
    """Sizes of an RWKV-4. `n_ctx` is the training length.

    Weights are float32, drawn as transformers does.
    """

    name: ClassVar[str] = "rwkv"
    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    d_model: int = 192
    d_mlp: int = 768

    def __post_init__(self) -> None:
        self.check_sizes("an RWKV")
        if min(self.n_layers, self.d_model) < 2:
            raise InvalidArgument(
                f"an RWKV is initialized with ramps over layers and channels and needs at least 2 of each, got {self}."
            )

    def _build(self, *, seed: int) -> Wrapped:
        import transformers

        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)  # transformers initializes from the global generator
            whole = transformers.RwkvForCausalLM(self._theirs())
        return Wrapped(self, whole)

    @classmethod
    def proportions(cls, d_model: int) -> Mapping[str, int]:
        """Return a channel mixing four times as wide."""
        return {"d_model": d_model, "d_mlp": 4 * d_model}

    def hf_config(self) -> Mapping[str, Any]:
        return {**self._theirs().to_diff_dict(), "architectures": ["RwkvForCausalLM"], "dtype": "float32"}

    def _theirs(self) -> "transformers.RwkvConfig":
        import transformers

        return transformers.RwkvConfig(
            vocab_size=self.d_vocab,
            context_length=self.n_ctx,
            hidden_size=self.d_model,
            attention_hidden_size=self.d_model,
            intermediate_size=self.d_mlp,
            num_hidden_layers=self.n_layers,
            layer_norm_epsilon=EPS,
            rescale_every=0,  # otherwise eval() halves weights in place every few layers
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
