"""A small Mamba-2 for wind tunnels: a selective state space model with one decay per head, in Hugging Face format.

The module has the parts, weights and parameter names of a `transformers.Mamba2ForCausalLM`. Plain
`AutoModelForCausalLM.from_pretrained` loads its checkpoints, and it is attached like any Hugging Face model.

    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_tᵀ      y_t = C_t h_t + D x_t      for each head, A one number

Notation of Dao & Gu 2024 in the names used here: P (head dimension) is d_head, N is d_state, Q (chunk length) is
chunk_size; there are expand · d_model / d_head heads. Within a chunk the recurrence is computed as matrix products.
There is no positional encoding: the recurrence is ordered.

Reference: Dao & Gu 2024, arXiv:2405.21060.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import ModelConfig
from bayesgeom.models.native.wrapped import Wrapped

if TYPE_CHECKING:
    import transformers

INIT_STD = 0.02
EPS = 1e-5


@final
@dataclass(frozen=True, kw_only=True)
class Mamba2Config(ModelConfig):
    """Sizes of a Mamba-2. `n_ctx` is the training length; the model runs at any length.

    Weights are float32, drawn as transformers does. Output projections are divided by √n_layers.
    """

    name: ClassVar[str] = "mamba2"
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

    def _build(self, *, seed: int) -> Wrapped:
        import transformers

        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)  # transformers initializes from the global generator
            whole = transformers.Mamba2ForCausalLM(self._theirs())
        with torch.no_grad():
            for name, parameter in whole.named_parameters():
                if name.endswith("out_proj.weight"):
                    parameter.div_(math.sqrt(self.n_layers))
        return Wrapped(self, whole)

    @classmethod
    def proportions(cls, d_model: int) -> Mapping[str, int]:
        """Return four heads, or two if the width is odd."""
        return {"d_model": d_model, "d_head": d_model // 2 if d_model % 2 == 0 else d_model}

    def hf_config(self) -> Mapping[str, Any]:
        ours = self._theirs().to_diff_dict()
        del ours["time_step_limit"]  # the default is no limit, but JSON has no infinity
        return {**ours, "architectures": ["Mamba2ForCausalLM"], "dtype": "float32"}

    def _theirs(self) -> "transformers.Mamba2Config":
        import transformers

        return transformers.Mamba2Config(
            vocab_size=self.d_vocab,
            hidden_size=self.d_model,
            num_hidden_layers=self.n_layers,
            num_heads=self.expand * self.d_model // self.d_head,
            head_dim=self.d_head,
            state_size=self.d_state,
            conv_kernel=self.d_conv,
            expand=self.expand,
            chunk_size=self.chunk_size,
            n_groups=1,
            layer_norm_epsilon=EPS,
            initializer_range=INIT_STD,
            rescale_prenorm_residual=False,  # transformers 5.23 would also rescale the weights of a loaded checkpoint
            residual_in_fp32=False,
            tie_word_embeddings=False,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
