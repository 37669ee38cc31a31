"""A stacked LSTM in residual form: torch's own cell, one `nn.LSTM` a layer, transformer-lens's names for the stream.

    resid_post = resid_pre + h          h = LSTM(LayerNorm(resid_pre))

In this form, and not as a bare stack, for two reasons. `resid_pre` and `resid_post` mean what they mean elsewhere, a
sum of what the layers wrote, so that the same probe asks the same question; and deep stacks train. Without the sum a
layer's input would be the hidden state of the layer below, and there would be no stream to look at.

`hook_state` is h_t, the hidden state, at every position. It is what the layer writes, and what it hands to its own next
step, along with the cell c_t, which torch's LSTM gives at the last position alone: c is carried too, and not seen here.
h_t = o_t ∘ tanh(c_t), so what the output gate closes off is in c_t only. An edit of `hook_state` changes what is
written at that position and not what is carried on: the recurrence has run by then.

Glossary, names of Hochreiter & Schmidhuber 1997 and Gers et al. 2000 to torch's: i, f, o the gates, g the candidate,
c = f ∘ c_{−1} + i ∘ g the cell, h = o ∘ tanh(c). `weight_ih_l0` and `weight_hh_l0` hold the rows of i, f, g, o.

References: Hochreiter & Schmidhuber 1997; Gers et al. 2000 (forget gate). No positions: the recurrence has an order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from bayesgeom.checks.arguments import check_types
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import ModelConfig
from bayesgeom.models.native.stack import ResidualStack

EPS = 1e-5
FORGET_BIAS = 1.0  # Jozefowicz et al. 2015: a forget gate that starts half closed forgets before it can learn


@final
@dataclass(frozen=True, kw_only=True)
class LSTMConfig(ModelConfig):
    """Shape of an LSTM. `n_ctx` is the length that it is trained on; it runs on any."""

    name: ClassVar[str] = "lstm"
    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    d_model: int = 192
    tied: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        if min(self.d_vocab, self.n_ctx, self.n_layers, self.d_model) < 1:
            raise InvalidArgument(f"every size of an LSTM is at least 1, got {self}.")

    def _build(self, *, seed: int) -> "LSTM":
        return LSTM(self, seed=seed)

    @classmethod
    def proportions(cls, d_model: int) -> Mapping[str, int]:
        """All else follows from the width."""
        return {"d_model": d_model}


@final
class LSTM(ResidualStack):
    """Tokens in, logits over all ids out. Weights are float32, drawn from the given seed."""

    config: LSTMConfig

    def __init__(self, config: LSTMConfig, *, seed: int = 0) -> None:
        blocks = (LSTMBlock(config) for _ in range(config.n_layers))
        super().__init__(config, blocks, nn.LayerNorm(config.d_model, eps=EPS), seed=seed)

    def _initialize_block(self, block: nn.Module, generator: torch.Generator) -> None:
        assert isinstance(block, LSTMBlock)
        width = block.lstm.hidden_size
        for name, parameter in block.lstm.named_parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=generator)  # torch's own bound
            if name == "bias_ih_l0":
                parameter[width : 2 * width] = FORGET_BIAS


@final
class LSTMBlock(nn.Module):
    """resid_pre → + h of the LSTM on its norm → resid_post."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(config.d_model, eps=EPS)
        self.lstm = nn.LSTM(config.d_model, config.d_model, batch_first=True)
        self.hook_resid_pre, self.hook_state, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        resid = self.hook_resid_pre(resid)
        state = self.hook_state(self.lstm(self.ln(resid))[0])
        post: Tensor = self.hook_resid_post(resid + state)
        return post
