"""One forward and one backward pass: all activations and gradients that the gradient laws relate, in every layer."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials
from bayesgeom.core.torch_state import Hook, hooked
from bayesgeom.gradients.attention_laws import agreement, value_gradient
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.adapters.proof import per_query_head
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer

Targets = Literal["sampled", "exact"]
SITES = (s.Q_ROT, s.K_ROT, s.V, s.Z)
PerHead = Float[Tensor, "batch head query_pos key_pos"]
Vectors = Float[Tensor, "batch head pos d_head"]
KeyVectors = Float[Tensor, "batch kv_head pos d_head"]


@final
@dataclass(frozen=True, kw_only=True)
class LayerGradients:
    """Activations of one layer's attention and the gradients of each sequence's own loss (nats).

    - `pattern` α and `agreement` b of every query head; `upstream` u = ∂L/∂c.
    - `by_*`: gradients from autograd, keys and values per key-value head. `by_score` and `by_value_matrix` are None if
      the model has no hook point for the scores, or no known value matrix.
    - `value_inputs`: the input of W_V.
    """

    queries: Vectors
    keys: KeyVectors
    values: KeyVectors
    mixed: Vectors
    pattern: PerHead
    agreement: PerHead
    upstream: Vectors
    by_query: Vectors
    by_key: KeyVectors
    by_value: KeyVectors
    by_score: PerHead | None
    value_inputs: Float[Tensor, "batch pos d_model"] | None
    by_value_matrix: Float[Tensor, "kd d_model"] | None

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.pattern.shape[1]

    def of_query_heads(self, x: KeyVectors) -> Vectors:
        """Return keys or values, repeated for the query heads that share them."""
        return per_query_head(x, self.n_heads)

    def of_kv_heads(self, x: Vectors) -> KeyVectors:
        """Return a quantity of query heads, summed over the heads that share a key-value head."""
        return reduce(x, "b (kv group) p d -> b kv p d", "sum", kv=self.values.shape[1])

    def value_update(self) -> KeyVectors:
        """Return Σ_i α_ij u_i per key-value head: ∂L/∂v by the value law."""
        return self.of_kv_heads(value_gradient(self.pattern, self.upstream))


def loss_nats(
    logits: Float[Tensor, "batch query_pos d_vocab"], trials: Trials, targets: Targets
) -> Float[Tensor, " batch"]:
    """Return the training loss per sequence: cross-entropy over all ids, mean over scored positions."""
    log_predicted = logits.log_softmax(dim=-1)
    if targets == "sampled":
        labels = trials.at_scored(trials.labels)
        return -log_predicted.gather(-1, labels[..., None])[..., 0].mean(dim=1)
    exact = trials.at_scored(trials.predictive).to(log_predicted)
    return -(exact * log_predicted[..., trials.answers]).sum(-1).mean(dim=1)


def captured(model: Model, trials: Trials, targets: Targets) -> tuple[Float[Tensor, " batch"], list[LayerGradients]]:
    """Return the loss of every sequence and the gradients of every layer; the model must be in float64."""
    stored: dict[tuple[str, int], Tensor] = {}
    hooks = [
        _keeping(stored, name, layer, part)
        for layer in range(model.spec.n_layers)
        for name, part in _points(model, layer)
    ]
    with hooked(model.module, hooks, by=model.spec.name), torch.enable_grad():
        loss = loss_nats(model.logits(trials), trials, targets)
    layers = range(model.spec.n_layers)
    matrices = {layer: part.weight for layer in layers if (part := _value_matrix(model, layer)) is not None}
    wanted = [place for place in stored if place[0] not in ("pattern", "value_inputs")]
    # Sequences are independent, so the gradient of the sum holds each sequence's gradient.
    found = torch.autograd.grad(loss.sum(), [*(stored[place] for place in wanted), *matrices.values()])
    by = dict(zip(wanted, found[: len(wanted)], strict=True))
    by_matrix = dict(zip(matrices, found[len(wanted) :], strict=True))
    at = {place: value.detach() for place, value in stored.items()}
    return loss.detach(), [_layer(model, layer, at, by, by_matrix.get(layer)) for layer in layers]


def _layer(
    model: Model,
    layer: int,
    stored: dict[tuple[str, int], Tensor],
    by: dict[tuple[str, int], Tensor],
    by_matrix: Tensor | None,
) -> LayerGradients:
    q, k, v, z = (rearrange(stored[site.name, layer], "b p h d -> b h p d") for site in SITES)
    by_q, by_k, by_v, u = (rearrange(by[site.name, layer], "b p h d -> b h p d") for site in SITES)
    pattern = stored.get(("pattern", layer))
    if pattern is None:
        scores = q @ per_query_head(k, q.shape[1]).mT * model.spec.score_scale
        is_hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        pattern = scores.masked_fill(is_hidden, -torch.inf).softmax(dim=-1)
    return LayerGradients(
        queries=q,
        keys=k,
        values=v,
        mixed=z,
        pattern=pattern,
        upstream=u,
        agreement=agreement(u, per_query_head(v, q.shape[1])),
        by_query=by_q,
        by_key=by_k,
        by_value=by_v,
        by_score=by.get(("attn_scores", layer)),
        value_inputs=stored.get(("value_inputs", layer)),
        by_value_matrix=by_matrix,
    )


def _keeping(stored: dict[tuple[str, int], Tensor], name: str, layer: int, part: nn.Module) -> Hook:
    def keep(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        stored[name, layer] = inputs[0] if name == "value_inputs" else output

    return Hook(part=part, call=keep, label=f"{name!r} of layer {layer}")


def _points(model: Model, layer: int) -> Iterator[tuple[str, nn.Module]]:
    for site in SITES:
        yield site.name, model.point(site, layer)
    if isinstance(model, HookedModel):
        yield "pattern", model.point(s.PATTERN, layer)
        yield "attn_scores", model.module.get_submodule(f"blocks.{layer}.attn.hook_attn_scores")
    if (part := _value_matrix(model, layer)) is not None:
        yield "value_inputs", part


def _value_matrix(model: Model, layer: int) -> nn.Linear | None:
    """Return the linear module that computes only this layer's values, if it has a known name."""
    ends = (f".{layer}.attn.W_V", f".{layer}.self_attn.v_proj", f".{layer}.attention.v_proj")
    named = ((f".{name}", part) for name, part in model.module.named_modules())
    return next((part for name, part in named if name.endswith(ends) and isinstance(part, nn.Linear)), None)


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
        wide = module.double().requires_grad_(True).eval()
        return HookedModel(wide, name=model.spec.name, task=model.task, digest=model.spec.weights_hash)
    if type(model).__name__ == "HFModel":
        return _huggingface(model)
    raise InvalidArgument(
        f"the gradient laws are checked on a copy in float64, which is not supported for {model.spec.name} "
        f"({model.spec.architecture}): load it as a Hugging Face model instead."
    )


def _huggingface(model: Model) -> Model:
    from transformers import PreTrainedModel

    from bayesgeom.models.huggingface.model import HFModel

    hf = copy.deepcopy(model.module)
    assert isinstance(hf, PreTrainedModel), "HFModel wraps a PreTrainedModel"
    wide: nn.Module = hf
    wide.double().requires_grad_(True).eval()
    hf.set_attn_implementation("sdpa")
    return HFModel(hf, name=model.spec.name, tokenizer=model.tokenizer, task=model.task, digest=model.spec.weights_hash)
