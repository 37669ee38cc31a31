"""A copy of a model in float64, in which an exact identity can be distinguished from an approximate one."""

import copy

from torch import nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer


def in_float64(model: Model) -> Model:
    """Return a copy of the model in float64 and evaluation mode, with gradients enabled.

    A Hugging Face model's eager attention always computes its softmax in float32, so the copy uses the fused kernel,
    which does not.

    Raises:
        InvalidArgument: The model is a transformer-lens model.
    """
    if isinstance(model, HookedModel):
        module = copy.deepcopy(model.module)
        assert isinstance(module, Transformer), "HookedModel wraps a Transformer"
        return HookedModel(_wide(module), name=model.spec.name, task=model.task, digest=model.spec.weights_hash)
    if type(model).__name__ == "HFModel":
        return _huggingface(model)
    raise InvalidArgument(
        f"the gradient laws are checked on a copy in float64, which is not supported for {model.spec.name} "
        f"({model.spec.architecture}): load it as a Hugging Face model instead."
    )


def _wide(module: Transformer) -> Transformer:
    return module.double().requires_grad_(True).eval()


def _huggingface(model: Model) -> Model:
    from transformers import PreTrainedModel

    from bayesgeom.models.huggingface.model import HFModel

    hf = copy.deepcopy(model.module)
    assert isinstance(hf, PreTrainedModel), "HFModel wraps a PreTrainedModel"
    wide: nn.Module = hf
    wide.double().requires_grad_(True).eval()
    hf.set_attn_implementation("sdpa")
    return HFModel(hf, name=model.spec.name, tokenizer=model.tokenizer, task=model.task, digest=model.spec.weights_hash)
