"""A copy of a model in float64, in which an exact identity can be told from one that nearly holds."""

import copy

from torch import nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer


def in_float64(model: Model) -> Model:
    """The same weights in float64, gradients wanted, in evaluation mode; the model itself is left alone.

    A Hugging Face model's eager attention takes its softmax in float32 whatever the weights are, so the copy uses the
    fused kernel, which does not. **Raises** `InvalidArgument` for a model of transformer-lens.
    """
    if isinstance(model, HookedModel):
        module = copy.deepcopy(model.module)
        assert isinstance(module, Transformer), "that is what this adapter is of"
        return HookedModel(_wide(module), name=model.spec.name, task=model.task, digest=model.spec.weights_hash)
    if type(model).__name__ == "HFModel":
        return _huggingface(model)
    raise InvalidArgument(
        f"the gradient laws are checked on a copy in float64, which cannot be made of {model.spec.name} "
        f"({model.spec.architecture}): load it as a Hugging Face model instead."
    )


def _wide(module: Transformer) -> Transformer:
    return module.double().requires_grad_(True).eval()


def _huggingface(model: Model) -> Model:
    from transformers import PreTrainedModel

    from bayesgeom.models.huggingface.model import HFModel

    hf = copy.deepcopy(model.module)
    assert isinstance(hf, PreTrainedModel), "that is what this adapter is of"
    wide: nn.Module = hf
    wide.double().requires_grad_(True).eval()
    hf.set_attn_implementation("sdpa")
    return HFModel(hf, name=model.spec.name, tokenizer=model.tokenizer, task=model.task, digest=model.spec.weights_hash)
