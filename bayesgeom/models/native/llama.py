"""A small Llama for wind tunnels: a model with known ground truth in Hugging Face format.

The module has the parts, weights and parameter names of a `transformers.LlamaForCausalLM`: rotary positions, grouped
keys, RMSNorm and a gated MLP. Plain `AutoModelForCausalLM.from_pretrained` loads its checkpoints.

References: Touvron et al. 2023; Ainslie et al. 2023 (grouped keys); Shazeer 2020 (gated MLP).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import ModelConfig
from bayesgeom.models.native.wrapped import Wrapped

if TYPE_CHECKING:
    import transformers

INIT_STD = 0.02
EPS = 1e-5


@final
@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Sizes of a Llama. Each of the `n_kv_heads` keys and values is shared by n_heads / n_kv_heads query heads.

    Weights are float32, drawn from N(0, 0.02²), with a smaller scale for output projections.
    """

    name: ClassVar[str] = "llama"
    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    n_heads: int = 6
    n_kv_heads: int = 2
    d_model: int = 192
    d_mlp: int = 512

    def __post_init__(self) -> None:
        self.check_sizes("a Llama")
        if self.d_model % self.n_heads or self.n_heads % self.n_kv_heads:
            raise InvalidArgument(
                f"d_model = {self.d_model} must be a multiple of n_heads = {self.n_heads}, and n_heads of n_kv_heads = "
                f"{self.n_kv_heads}."
            )
        if self.d_model // self.n_heads % 2:
            raise InvalidArgument(
                f"rotary positions rotate pairs of coordinates: d_head = {self.d_model // self.n_heads} must be even."
            )

    def _build(self, *, seed: int) -> Wrapped:
        import transformers

        whole = transformers.LlamaForCausalLM(self._theirs())
        whole.set_attn_implementation("eager")  # the fused backward pass is several times slower on a CPU
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in whole.named_parameters():
            if parameter.ndim < 2:
                continue  # norms start at one
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = INIT_STD / math.sqrt(2 * self.n_layers) if into_residual else INIT_STD
            nn.init.normal_(parameter, std=std, generator=generator)
        return Wrapped(self, whole)

    @classmethod
    def proportions(cls, d_model: int) -> Mapping[str, int]:
        """Return heads of about 32 coordinates, two query heads per key, and a gated MLP 8/3 as wide."""
        pairs = [n for n in range(1, d_model // 2 + 1) if d_model % (2 * n) == 0 and d_model // n % 2 == 0]
        n_heads = min(pairs, key=lambda n: abs(math.log(d_model / n / 32))) if pairs else 1
        return {
            "d_model": d_model,
            "n_heads": n_heads,
            "n_kv_heads": n_heads // 2 or 1,
            "d_mlp": round(8 * d_model / 3),
        }

    def hf_config(self) -> Mapping[str, Any]:
        return {**self._theirs().to_diff_dict(), "architectures": ["LlamaForCausalLM"], "dtype": "float32"}

    def _theirs(self) -> "transformers.LlamaConfig":
        import transformers

        return transformers.LlamaConfig(
            vocab_size=self.d_vocab,
            max_position_embeddings=self.n_ctx,
            num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads,
            num_key_value_heads=self.n_kv_heads,
            hidden_size=self.d_model,
            intermediate_size=self.d_mlp,
            rms_norm_eps=EPS,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
