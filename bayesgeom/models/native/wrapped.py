"""Small models in Hugging Face's format for wind tunnels: Llama, Mamba-2 and RWKV-4.

A module has the parts, weights and parameter names of a model of transformers. Plain
`AutoModelForCausalLM.from_pretrained` loads its checkpoints, and it is attached like any Hugging Face model.

Llama: rotary positions, grouped keys, RMSNorm and a gated MLP.

Mamba-2: a selective state space model with one decay A per head,

    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_tᵀ      y_t = C_t h_t + D x_t

Notation of Dao & Gu 2024 in the names used here: P (head dimension) is d_head, N is d_state, Q (chunk length) is
chunk_size; there are expand · d_model / d_head heads. Within a chunk the recurrence is computed as matrix products.

RWKV-4: attention without queries, run as a recurrence. For every channel,

    wkv_t = (Σ_{i<t} e^{−(t−1−i)w + k_i} v_i + e^{u + k_t} v_t) / (Σ_{i<t} e^{−(t−1−i)w + k_i} + e^{u + k_t})

A block is time mixing, W_o (σ(r) ∘ wkv), then channel mixing, σ(r') ∘ W_v max(k', 0)². Notation of Peng et al. 2023 in
the names of the parts: w is time_decay (its logarithm), u time_first, μ time_mix_…, and R, K, V are receptance, key,
value. Token shift mixes each input with the previous one by μ.

The recurrent models have no positional encoding: a recurrence is ordered.

References: Touvron et al. 2023 (Llama); Ainslie et al. 2023 (grouped keys); Shazeer 2020 (gated MLP); Dao & Gu 2024,
arXiv:2405.21060 (Mamba-2); Peng et al. 2023, arXiv:2305.13048 (RWKV-4).
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core import InvalidArgument
from bayesgeom.models.config import INIT_STD, ModelConfig, draw_weights, quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EPS = 1e-5


@final
class Wrapped(nn.Module):
    """Maps tokens to logits. `whole` is the Hugging Face model; both share every part, parameter and name."""

    def __init__(self, config: "WrappedConfig", whole: "PreTrainedModel") -> None:
        super().__init__()
        self.config = config
        self._whole = (whole,)  # in a tuple, so that it is not registered: its parts are, below
        for name, part in whole.named_children():
            self.add_module(name, part)

    @property
    def whole(self) -> "PreTrainedModel":
        """The Hugging Face model."""
        return self._whole[0]

    def rebuilt(self, seed: int) -> "PreTrainedModel":
        """Return an untrained Hugging Face model of the same config."""
        built = self.config.build(seed=seed)
        assert isinstance(built, Wrapped), "it is built from the same config"
        return built.whole

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        return cast(Tensor, self.whole(input_ids=tokens, use_cache=False).logits)


class WrappedConfig(ModelConfig):
    """Base class of configs of models in Hugging Face's format. Weights are float32."""

    hf_name: ClassVar[str]  # of its classes in transformers

    @final
    def _build(self, *, seed: int) -> Wrapped:
        import transformers

        with quiet(), torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)  # transformers initializes from the global generator
            whole = getattr(transformers, f"{self.hf_name}ForCausalLM")(self._theirs())
        with torch.no_grad():
            self._adjust(whole, seed)
        return Wrapped(self, whole)

    @final
    def hf_config(self) -> Mapping[str, Any]:
        """Return the entries of `config.json` that Hugging Face reads."""
        given = self._theirs().to_diff_dict()
        # Mamba-2: the default is no limit, but JSON has no infinity.
        entries = {key: value for key, value in given.items() if key != "time_step_limit"}
        return {**entries, "architectures": [f"{self.hf_name}ForCausalLM"], "dtype": "float32"}

    @final
    def _theirs(self) -> Any:
        """The config of transformers."""
        import transformers

        absent = dict.fromkeys(("bos_token_id", "eos_token_id"))
        with quiet():
            kind = getattr(transformers, f"{self.hf_name}Config")
        return kind(**absent, tie_word_embeddings=False, **self._entries())

    @abstractmethod
    def _entries(self) -> dict[str, Any]:
        """Sizes in the names of transformers."""

    @abstractmethod
    def _adjust(self, whole: "PreTrainedModel", seed: int) -> None:
        """Change the initial weights that transformers drew."""


@final
@dataclass(frozen=True, kw_only=True)
class LlamaConfig(WrappedConfig):
    """Sizes of a Llama. Each of the `n_kv_heads` keys and values is shared by n_heads / n_kv_heads query heads.

    Weights are drawn from N(0, 0.02²), with a smaller scale for output projections.
    """

    name: ClassVar[str] = "llama"
    hf_name: ClassVar[str] = "Llama"
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

    def _entries(self) -> dict[str, Any]:
        return {
            "vocab_size": self.d_vocab,
            "max_position_embeddings": self.n_ctx,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "hidden_size": self.d_model,
            "intermediate_size": self.d_mlp,
            "rms_norm_eps": EPS,
        }

    def _adjust(self, whole: "PreTrainedModel", seed: int) -> None:
        whole.set_attn_implementation("eager")  # the fused backward pass is several times slower on a CPU
        output_std = INIT_STD / math.sqrt(2 * self.n_layers)
        draw_weights(whole, seed, dict.fromkeys(("o_proj.weight", "down_proj.weight"), output_std))


@final
@dataclass(frozen=True, kw_only=True)
class Mamba2Config(WrappedConfig):
    """Sizes of a Mamba-2. `n_ctx` is the training length; the model runs at any length.

    Weights are drawn as transformers does. Output projections are divided by √n_layers.
    """

    name: ClassVar[str] = "mamba2"
    hf_name: ClassVar[str] = "Mamba2"
    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    d_model: int = 192
    d_head: int = 64
    d_state: int = 32
    d_conv: int = 4
    expand: int = 2
    chunk_size: int = 16

    def __post_init__(self) -> None:
        self.check_sizes("a Mamba-2")
        if self.expand * self.d_model % self.d_head:
            raise InvalidArgument(
                f"expand · d_model = {self.expand * self.d_model} must be a multiple of d_head = {self.d_head}."
            )

    def _entries(self) -> dict[str, Any]:
        return {
            "vocab_size": self.d_vocab,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.n_layers,
            "num_heads": self.expand * self.d_model // self.d_head,
            "head_dim": self.d_head,
            "state_size": self.d_state,
            "conv_kernel": self.d_conv,
            "expand": self.expand,
            "chunk_size": self.chunk_size,
            "n_groups": 1,
            "layer_norm_epsilon": EPS,
            "initializer_range": INIT_STD,
            "rescale_prenorm_residual": False,  # transformers 5.23 would also rescale a loaded checkpoint
            "residual_in_fp32": False,
            "pad_token_id": None,
        }

    def _adjust(self, whole: "PreTrainedModel", seed: int) -> None:
        for name, parameter in whole.named_parameters():
            if name.endswith("out_proj.weight"):
                parameter.div_(math.sqrt(self.n_layers))


@final
@dataclass(frozen=True, kw_only=True)
class RWKVConfig(WrappedConfig):
    """Sizes of an RWKV-4. `n_ctx` is the training length. Weights are drawn as transformers does."""

    name: ClassVar[str] = "rwkv"
    hf_name: ClassVar[str] = "Rwkv"
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

    def _entries(self) -> dict[str, Any]:
        return {
            "vocab_size": self.d_vocab,
            "context_length": self.n_ctx,
            "hidden_size": self.d_model,
            "attention_hidden_size": self.d_model,
            "intermediate_size": self.d_mlp,
            "num_hidden_layers": self.n_layers,
            "layer_norm_epsilon": EPS,
            "rescale_every": 0,  # otherwise eval() halves weights in place every few layers
        }

    def _adjust(self, whole: "PreTrainedModel", seed: int) -> None:
        """Keep them."""
