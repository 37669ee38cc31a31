"""What is computed of one layer: statistics of attention and advantage, and the deviation of each law from autograd.

Statistics are summed batch by batch, with one row per sequence. Correlations are computed within one query's row: rows
differ in the size of their gradients, and within a row the attention-weighted mean advantage is zero by construction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from bayesgeom.core.run import PATTERN, Trials, at_scored
from bayesgeom.gradients.attention_laws import advantage, key_gradient, query_gradient, routing_gradient
from bayesgeom.gradients.capture import LayerGradients

OTHER = "another sequence's advantage"  # the baseline of every correlation
FEWEST = 3  # visible keys below which a row's correlation is meaningless
BIN_EDGES = tuple(float(k) for k in range(-7, 5))  # log2 of attention over uniform attention
N_BINS = len(BIN_EDGES) + 1
IDENTITIES = ("mixing", "scores", "values", "queries", "keys", "value matrix")
PerSequence = Float64[Tensor, "batch head"]
AtScored = Float[Tensor, "batch head query_pos key_pos"]


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

    `mask` is what its attention can see: see `Model.visible`. Norms are root mean squares over a sequence: ∂L/∂s over
    visible pairs, ‖∂L/∂v‖ over positions, and ‖∂L/∂v‖·‖v‖.
    """
    gain = advantage(layer.pattern, layer.agreement)
    routing, pulled = routing_gradient(layer.pattern, layer.agreement), layer.value_update()
    visible = mask[trials.scored_positions()][:, None]
    attention, saved = (at_scored(PATTERN, x, trials) for x in (layer.pattern, gain))
    n_pairs = mask.sum()
    by_length = pulled.norm(dim=-1)
    return LayerTally(
        correlation=_row_correlation(attention, saved, visible),
        other_correlation=_row_correlation(attention, saved.roll(1, dims=0), visible),
        routing_norm=(routing.square().sum((2, 3)) / n_pairs).sqrt(),
        value_norm=by_length.square().mean(dim=2).sqrt(),
        value_elasticity=(by_length * layer.values.norm(dim=-1)).square().mean(dim=2).sqrt(),
        maps=torch.stack([x.sum(dim=0) for x in (saved, attention)]),
        binned=torch.cat([_binned(attention, s, visible) for s in (saved, saved.roll(1, dims=0))]),
    )


def together(batches: Sequence[LayerTally]) -> LayerTally:
    """Return the tally of several batches of one layer."""
    parts = {name: [vars(batch)[name] for batch in batches] for name in vars(batches[0])}
    sums = {name: torch.stack(parts.pop(name)).sum(dim=0) for name in ("maps", "binned")}
    return LayerTally(**{name: torch.cat(own) for name, own in parts.items()}, **sums)


def _row_correlation(x: AtScored, y: AtScored, visible: Bool[Tensor, "batch 1 query_pos key_pos"]) -> PerSequence:
    """Return Spearman within every scored row with enough visible keys, mean over rows; NaN without such a row."""
    a, b = (_centered_ranks(values, visible) for values in (x, y))
    rows = (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    is_enough = (visible.sum(-1) >= FEWEST).expand_as(rows)
    return torch.where(is_enough, rows, torch.nan).nanmean(dim=-1)


def _centered_ranks(x: AtScored, visible: Bool[Tensor, "batch 1 query_pos key_pos"]) -> AtScored:
    """Return centered ranks among the visible keys of the row; 0 for hidden keys."""
    order = x.masked_fill(~visible, torch.inf).argsort(dim=-1).argsort(dim=-1).to(x)
    middle = (visible.sum(-1, keepdim=True) - 1) / 2
    return torch.where(visible, order - middle, 0.0)


def _binned(
    attention: AtScored, saved: AtScored, visible: Bool[Tensor, "batch 1 query_pos key_pos"]
) -> Float64[Tensor, "2 head bin"]:
    """Return sum and number of advantages, in units of the row's root mean square, by attention over uniform."""
    count = visible.sum(-1, keepdim=True)
    is_counted = visible & (count >= FEWEST)
    size = (saved.square().masked_fill(~visible, 0).sum(-1, keepdim=True) / count).sqrt()
    relative = torch.where(is_counted, saved / size, 0.0).nan_to_num()
    edges = torch.tensor(BIN_EDGES, dtype=attention.dtype, device=attention.device)
    bins = torch.bucketize((attention * count).clamp_min(1e-30).log2(), edges)
    found = attention.new_zeros(2, attention.shape[1], N_BINS)
    for head in range(attention.shape[1]):
        here = is_counted[:, 0]
        where = bins[:, head][here]
        found[0, head].index_add_(0, where, relative[:, head][here])
        found[1, head].index_add_(0, where, torch.ones_like(relative[:, head][here]))
    return found


def identity_errors(layer: LayerGradients, score_scale: float) -> Float64[Tensor, "law 2"]:
    """Return the largest difference and the largest autograd entry per law; NaN if it cannot be tested.

    "mixing" is the premise, pattern · values = z; "scores" and "values" are the two laws; the others apply the chain
    rule to queries, keys and W_V.
    """
    by_score = routing_gradient(layer.pattern, layer.agreement)
    keys = layer.of_query_heads(layer.keys)
    pairs: dict[str, tuple[Tensor, Tensor | None]] = {
        "mixing": (layer.pattern @ layer.of_query_heads(layer.values), layer.mixed),
        "scores": (by_score, layer.by_score),
        "values": (layer.value_update(), layer.by_value),
        "queries": (query_gradient(by_score, keys, score_scale), layer.by_query),
        "keys": (layer.of_kv_heads(key_gradient(by_score, layer.queries, score_scale)), layer.by_key),
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
