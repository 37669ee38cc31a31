"""A stacked LSTM in residual form: one `nn.LSTM` per layer, with transformer-lens's names for the residual stream.

    resid_post = resid_pre + h          h = LSTM(LayerNorm(resid_pre))

The residual form has two advantages over a plain stack. `resid_pre` and `resid_post` are sums of the layers' updates as
in other architectures, so probes have the same meaning; and deep stacks train. In a plain stack, a layer's input would
be the hidden state of the previous layer, and there would be no residual stream.

`hook_state` is the hidden state h_t at every position: the layer's update of the stream. The layer passes h_t and the
cell c_t on to its next step. torch's LSTM returns c_t at the last position only, so c_t is not available here.
h_t = o_t ∘ tanh(c_t), so information behind a closed output gate is in c_t only. An edit of `hook_state` changes the
update at that position, but not the carried state, because the recurrence has already run.

Notation of Hochreiter & Schmidhuber 1997 and Gers et al. 2000 in torch's names: i, f, o are the gates, g the candidate,
c = f ∘ c_{−1} + i ∘ g the cell, h = o ∘ tanh(c). `weight_ih_l0` and `weight_hh_l0` hold the rows of i, f, g, o.

There is no positional encoding: the recurrence is ordered.

References: Hochreiter & Schmidhuber 1997; Gers et al. 2000 (forget gate).
"""

from dataclasses import dataclass
from typing import ClassVar, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from bayesgeom.models.config import ModelConfig
from bayesgeom.models.native.stack import ResidualStack

EPS = 1e-5
FORGET_BIAS = 1.0  # Jozefowicz et al. 2015: a forget gate that starts half closed loses information before it learns


@final
@dataclass(frozen=True, kw_only=True)
class LSTMConfig(ModelConfig):
    """Sizes of an LSTM. `n_ctx` is the training length; the model runs at any length."""

    name: ClassVar[str] = "lstm"
    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    d_model: int = 192
    tied: bool = True

    def __post_init__(self) -> None:
        self.check_sizes("an LSTM")

    def _build(self, *, seed: int) -> "LSTM":
        return LSTM(self, seed=seed)


@final
class LSTM(ResidualStack):
    """An LSTM that maps tokens to logits over all ids. Weights are float32, drawn from the given seed."""

    config: LSTMConfig

    def __init__(self, config: LSTMConfig, *, seed: int = 0) -> None:
        blocks = [LSTMBlock(config) for _ in range(config.n_layers)]
        super().__init__(config, blocks, nn.LayerNorm(config.d_model, eps=EPS), seed=seed)


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
        return cast(Tensor, self.hook_resid_post(resid + state))

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights of the LSTM."""
        width = self.lstm.hidden_size
        for name, parameter in self.lstm.named_parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=generator)  # torch's default bound
            if name == "bias_ih_l0":
                parameter[width : 2 * width] = FORGET_BIAS
