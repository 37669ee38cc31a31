"""One forward and one backward pass: what the gradient laws relate in every layer, and statistics of it.

Statistics are summed batch by batch, with one row per sequence. Correlations are computed within one query's row: rows
differ in the size of their gradients, and within a row the attention-weighted mean advantage is zero by construction.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayesgeom.core import BayesGeomError, InvalidArgument, Trials, at_scored
from bayesgeom.core import run as s
from bayesgeom.core.torch_state import PROCESS_STATE, Hook, default_dtype, hooked
from bayesgeom.gradients.attention_laws import (
    advantage,
    agreement,
    key_gradient,
    query_gradient,
    routing_gradient,
    value_gradient,
)
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.adapters.proof import PerHead, per_query_head
from bayesgeom.models.base import Model, visible
from bayesgeom.models.native.transformer import Transformer

Targets = Literal["sampled", "exact"]
SITES = (s.Q_ROT, s.K_ROT, s.V, s.Z)
Vectors = Float[Tensor, "batch head pos d_head"]
KeyVectors = Float[Tensor, "batch kv_head pos d_head"]
ValueVectors = Float[Tensor, "batch kv_head pos d_value"]
MixedVectors = Float[Tensor, "batch head pos d_value"]
OTHER = "another sequence's advantage"  # the baseline of every correlation
FEWEST = 3  # visible keys below which a row's correlation is meaningless
BIN_EDGES = tuple(float(k) for k in range(-7, 5))  # log2 of attention over uniform attention
N_BINS = len(BIN_EDGES) + 1
IDENTITIES = ("mixing", "scores", "values", "queries", "keys", "value matrix")
PER_SEQUENCE = ("correlation", "other_correlation", "routing_norm", "value_norm", "value_elasticity")
PerSequence = Float64[Tensor, "batch head"]


@final
@dataclass(frozen=True, kw_only=True)
class LayerGradients:
    """Activations of one layer's attention and the gradients of each sequence's own loss (nats).

    - `pattern` α and `agreement` b of every query head; `upstream` u = ∂L/∂c.
    - `slope`: derivative of the scores by scale · q·k, where a soft cap bends them; None: 1.
    - `by_*`: gradients from autograd, keys and values per key-value head. `by_score` and `by_value_matrix` are None if
      the model has no hook point for the scores, or no known value matrix.
    - `value_inputs`: the input of W_V.
    """

    queries: Vectors
    keys: KeyVectors
    values: ValueVectors
    mixed: MixedVectors
    pattern: PerHead
    agreement: PerHead
    upstream: MixedVectors
    slope: PerHead | None
    by_query: Vectors
    by_key: KeyVectors
    by_value: ValueVectors
    by_score: PerHead | None
    value_inputs: Float[Tensor, "batch pos d_model"] | None
    by_value_matrix: Float[Tensor, "kd d_model"] | None

    def of_query_heads(self, x: KeyVectors) -> Vectors:
        """Return keys or values, repeated for the query heads that share them."""
        return per_query_head(x, self.pattern.shape[1])

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
    return -(exact * log_predicted[..., trials.answer_ids]).sum(-1).mean(dim=1)


def captured(model: Model, trials: Trials, targets: Targets) -> tuple[Float[Tensor, " batch"], list[LayerGradients]]:
    """Return the loss of every sequence and the gradients of every layer; the model must be in float64."""
    stored: dict[tuple[str, int], Tensor] = {}
    hooks = [
        _keeping(stored, name, layer, part)
        for layer in range(model.spec.n_layers)
        for name, part in _points(model, layer)
    ]
    layers = range(model.spec.n_layers)
    matrices = {layer: part.weight for layer in layers if (part := _value_matrix(model, layer)) is not None}
    with _float64_of(model), torch.enable_grad():
        with hooked(model.module, hooks, by=model.spec.name):
            loss = loss_nats(model.logits(trials), trials, targets)
        wanted = [place for place in stored if place[0] not in ("pattern", "value_inputs")]
        inputs = [*(stored[place] for place in wanted), *matrices.values()]
        # Sequences are independent, so the gradient of the sum holds each sequence's. A quantized matrix has none.
        gradients = torch.autograd.grad(loss.sum(), inputs, allow_unused=True)
    by = dict(zip(wanted, gradients[: len(wanted)], strict=True))
    by_matrix = dict(zip(matrices, gradients[len(wanted) :], strict=True))
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
    pattern, scale = stored.get(("pattern", layer)), model.spec.score_scale
    scores, cap = q @ per_query_head(k, q.shape[1]).mT * scale, _softcap(model)
    if pattern is None:
        is_hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        pattern = scores.masked_fill(is_hidden, -torch.inf).softmax(dim=-1)
    return LayerGradients(
        queries=q,
        keys=k,
        values=v,
        mixed=z,
        pattern=pattern,
        upstream=u,
        slope=None if cap is None else 1 - (scores / cap).tanh().square(),
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
    if s.PATTERN in model.sites:
        yield "pattern", model.point(s.PATTERN, layer)
    if isinstance(model, HookedModel):
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

    A Hugging Face model computes eager attention, in which every layer's own mask, soft cap, bias and sinks enter the
    pattern, and `_Float64` keeps all of it in float64.

    Raises:
        InvalidArgument: It is neither a transformer of bayesgeom nor a Hugging Face model, or has no float64.
    """
    name, task, digest = model.spec.name, model.task, model.spec.weights_hash
    if isinstance(model, HookedModel):
        module = copy.deepcopy(model.module)
        assert isinstance(module, Transformer), "HookedModel wraps a Transformer"
        return HookedModel(module.double().requires_grad_(True).eval(), name=name, task=task, digest=digest)
    if type(model).__name__ != "HFModel":
        raise InvalidArgument(
            f"the gradient laws are checked on a copy in float64, which only transformers of bayesgeom and Hugging "
            f"Face models have; {name} is a {type(model).__name__}."
        )
    from transformers import PreTrainedModel

    from bayesgeom.models.huggingface.model import HFModel

    with _refused(name), _everything_float64():
        hf = copy.deepcopy(model.module)
        assert isinstance(hf, PreTrainedModel), "HFModel wraps a PreTrainedModel"
        wide: nn.Module = hf
        wide.double().requires_grad_(True).eval()
        hf.set_attn_implementation("eager")
        if hf.get_experts_implementation()[""]:
            hf.set_experts_implementation("eager")  # fused experts have no float64
        return HFModel(hf, name=name, tokenizer=model.tokenizer, task=task, digest=digest)


@final
class _Float64(TorchFunctionMode):
    """Wherever a model asks for float32, as in norms, rotations and the softmax of eager attention, it gets float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args = tuple(torch.float64 if argument is torch.float32 else argument for argument in args)
        named = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        call: Any = Tensor.double if func is Tensor.float else func
        return call(*args, **named)


@contextmanager
def _everything_float64() -> Iterator[None]:
    with PROCESS_STATE, default_dtype(torch.float64), _Float64():
        yield


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """Errors of libraries become one sentence: some kernels and formats of weights have no float64."""
    try:
        yield
    except BayesGeomError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise InvalidArgument(
            f"gradients of {name} need a pass in float64 with eager attention, which fails: {reason}."
        ) from error


@contextmanager
def _float64_of(model: Model) -> Iterator[None]:
    """Around a pass of what `in_float64` returned."""
    if isinstance(model, HookedModel):
        yield
        return
    with _refused(model.spec.name), _everything_float64():
        yield


def masks_of(model: Model, trials: Trials) -> tuple[Bool[Tensor, "from_pos key_pos"], ...]:
    """Return `bayesgeom.models.base.visible` of what `in_float64` returned."""
    with _float64_of(model):
        return visible(model, trials)


def _softcap(model: Model) -> float | None:
    if isinstance(model, HookedModel):
        return None
    config: Any = model.module.config
    cap: float | None = config.get_text_config(decoder=True).to_dict().get("attn_logit_softcapping")
    return cap


@final
@dataclass(frozen=True, kw_only=True)
class LayerTally:
    """One layer of one batch. `maps` are summed over sequences: advantage, then attention.

    `other_correlation` pairs each sequence's attention with another sequence's advantage at the same position.
    `binned` holds, per bin of attention, the sum of relative advantages and their number, then the same for another
    sequence's advantage.
    """

    correlation: PerSequence
    other_correlation: PerSequence
    routing_norm: PerSequence
    value_norm: Float64[Tensor, "batch kv_head"]
    value_elasticity: Float64[Tensor, "batch kv_head"]
    maps: Float64[Tensor, "2 head query_pos key_pos"]
    binned: Float64[Tensor, "4 head bin"]


def layer_tally(layer: LayerGradients, trials: Trials, mask: Bool[Tensor, "from_pos key_pos"]) -> LayerTally:
    """Return the statistics of a layer, for at least two sequences, so that each has another one as its baseline.

    `mask` is what its attention can see: see `bayesgeom.models.base.visible`. Norms are root mean squares over a
    sequence: ∂L/∂s over visible pairs, ‖∂L/∂v‖ over positions, and ‖∂L/∂v‖·‖v‖.
    """
    gain = advantage(layer.pattern, layer.agreement)
    routing, pulled = routing_gradient(layer.pattern, layer.agreement), layer.value_update()
    attention, saved = (at_scored(s.PATTERN, x, trials) for x in (layer.pattern, gain))
    visible = mask[trials.scored_positions()][:, None].expand_as(attention)
    by_length = pulled.norm(dim=-1)
    return LayerTally(
        correlation=_row_correlation(attention, saved, visible),
        other_correlation=_row_correlation(attention, saved.roll(1, dims=0), visible),
        routing_norm=(routing.square().sum((2, 3)) / mask.sum()).sqrt(),
        value_norm=by_length.square().mean(dim=2).sqrt(),
        value_elasticity=(by_length * layer.values.norm(dim=-1)).square().mean(dim=2).sqrt(),
        maps=torch.stack([x.sum(dim=0) for x in (saved, attention)]),
        binned=torch.cat([_binned(attention, x, visible) for x in (saved, saved.roll(1, dims=0))]),
    )


def together(batches: Sequence[LayerTally]) -> LayerTally:
    """Return the tally of several batches of one layer."""
    parts = {name: [vars(batch)[name] for batch in batches] for name in vars(batches[0])}
    sums = {name: torch.stack(parts.pop(name)).sum(dim=0) for name in ("maps", "binned")}
    return LayerTally(**{name: torch.cat(rows) for name, rows in parts.items()}, **sums)


def _row_correlation(x: PerHead, y: PerHead, visible: Bool[Tensor, "batch head query_pos key_pos"]) -> PerSequence:
    """Return Spearman within every scored row with enough visible keys, mean over rows; NaN without such a row."""
    a, b = (_centered_ranks(values, visible) for values in (x, y))
    rows = (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    return torch.where(visible.sum(-1) >= FEWEST, rows, torch.nan).nanmean(dim=-1)


def _centered_ranks(x: PerHead, visible: Bool[Tensor, "batch head query_pos key_pos"]) -> PerHead:
    """Return centered ranks among the visible keys of the row; 0 for hidden keys."""
    order = x.masked_fill(~visible, torch.inf).argsort(dim=-1).argsort(dim=-1).to(x)
    middle = (visible.sum(-1, keepdim=True) - 1) / 2
    return torch.where(visible, order - middle, 0.0)


def _binned(
    attention: PerHead, saved: PerHead, visible: Bool[Tensor, "batch head query_pos key_pos"]
) -> Float64[Tensor, "2 head bin"]:
    """Return sum and number of advantages, in units of the row's root mean square, by attention over uniform."""
    count = visible.sum(-1, keepdim=True)
    is_counted = visible & (count >= FEWEST)
    size = (saved.square().masked_fill(~visible, 0).sum(-1, keepdim=True) / count).sqrt()
    relative = torch.where(is_counted, saved / size, 0.0).nan_to_num()
    edges = torch.tensor(BIN_EDGES, dtype=attention.dtype, device=attention.device)
    bins = torch.bucketize((attention * count).clamp_min(1e-30).log2(), edges)
    n_heads, counted = attention.shape[1], relative[is_counted]
    places = (bins + N_BINS * torch.arange(n_heads, device=bins.device)[:, None, None])[is_counted]
    sizes = (counted, torch.ones_like(counted))
    sums = [torch.bincount(places, values, minlength=n_heads * N_BINS) for values in sizes]
    totals: Tensor = torch.stack(sums).unflatten(1, (n_heads, N_BINS))
    return totals


def identity_errors(layer: LayerGradients, score_scale: float) -> Float64[Tensor, "law 2"]:
    """Return the largest difference and the largest autograd entry per law; NaN if it cannot be tested.

    "mixing" is the premise, pattern · values = z; "scores" and "values" are the two laws; the others apply the chain
    rule to queries, keys and W_V.
    """
    by_score = routing_gradient(layer.pattern, layer.agreement)
    by_product = by_score if layer.slope is None else by_score * layer.slope
    keys = layer.of_query_heads(layer.keys)
    pairs: dict[str, tuple[Tensor, Tensor | None]] = {
        "mixing": (layer.pattern @ layer.of_query_heads(layer.values), layer.mixed),
        "scores": (by_score, layer.by_score),
        "values": (layer.value_update(), layer.by_value),
        "queries": (query_gradient(by_product, keys, score_scale), layer.by_query),
        "keys": (layer.of_kv_heads(key_gradient(by_product, layer.queries, score_scale)), layer.by_key),
        "value matrix": (_by_value_matrix(layer), layer.by_value_matrix),
    }
    return torch.stack([_error(*pairs[name]) for name in IDENTITIES])


def _by_value_matrix(layer: LayerGradients) -> Float[Tensor, "kd d_model"]:
    """Return ∂L/∂W_V = Σ_j (∂L/∂v_j) x_jᵀ, over all sequences."""
    if layer.value_inputs is None:
        return layer.values.new_zeros(1, 1)
    pulled = rearrange(layer.value_update(), "b kv p d -> b p (kv d)")
    return einsum(pulled, layer.value_inputs, "b p kd, b p m -> kd m")


def _error(law: Tensor, autograd: Tensor | None) -> Float64[Tensor, " 2"]:
    if autograd is None:
        return torch.full((2,), torch.nan, dtype=torch.float64)
    return torch.stack([(law - autograd).abs().max(), autograd.abs().max()]).double().cpu()
