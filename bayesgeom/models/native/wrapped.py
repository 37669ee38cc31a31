"""The common part of architectures in Hugging Face's format: a module with the parts and names of one of its models."""

from typing import TYPE_CHECKING, final

from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.models.config import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@final
class Wrapped(nn.Module):
    """Maps tokens to logits. `whole` is the Hugging Face model; both share every part, parameter and name."""

    def __init__(self, config: ModelConfig, whole: "PreTrainedModel") -> None:
        super().__init__()
        self.config = config
        self._whole = (whole,)  # in a tuple, so that it is not registered: its parts are, below
        for name, part in whole.named_children():
            self.add_module(name, part)

    @property
    def whole(self) -> "PreTrainedModel":
        """The Hugging Face model."""
        return self._whole[0]

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        logits: Tensor = self.whole(input_ids=tokens, use_cache=False).logits
        return logits
