"""The engine: record the unablated pass once per block of sequences, then replay each variant from its first edit.

Memory does not grow with n. Sequences are drawn in batches, and the activations of a block are freed before the next
one. Results are stored for at most `MAX_UNITS` units, each a run of consecutive sequences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bayesgeom.ablations.scoring import Exact
from bayesgeom.core.edits import Replace
from bayesgeom.core.run import ModelSpec, Site, Trials
from bayesgeom.models.base import STAGES, BaselinePass, Replayer, Variant, entry

TARGET_ROWS = 2_400  # positions × sequences × variants computed at once: what stays in the processor's cache
BATCH_BYTES = 2**30  # activations and logits of a batch; smaller batches make the matrix products of large models slow
Means = dict[tuple[Site, int], Float[Tensor, "pos *rest"]]
_COPIES = 4  # copies of a batch's logits: unablated, one variant, and two to compare them
_NEARLY = 1e-4  # only logits closer than this are tested for bit-identity


@final
@dataclass(frozen=True, kw_only=True)
class BatchScores:
    """Scores of one batch of sequences: without ablation (`baseline`) and with every variant."""

    baseline: Float[np.ndarray, "metric sequence position"]
    variants: Float[np.ndarray, "variant metric sequence position"]
    inert: Bool[np.ndarray, " variant"]


@final
@dataclass(frozen=True)
class BatchReference:
    """Replacement activations for one batch: the task's means, and the activations of the previous sequence."""

    means: Means
    baseline: BaselinePass
    before: BaselinePass | None = None  # of the sequence before the batch; None: the last one precedes the first

    def mean(self, site: Site, layer: int) -> Float[Tensor, "pos *rest"]:
        """Return the task's mean at each position."""
        return self.means[site, layer]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "batch pos *rest"]:
        """Return the activations of the sequence before each sequence."""
        own = self.baseline.stored[site, layer]
        return own.roll(1, dims=0) if self.before is None else torch.cat([self.before.stored[site, layer], own[:-1]])


def batches(block: Trials, spec: ModelSpec) -> Iterator[Trials]:
    """Cut a block into batches of at least two sequences whose activations fit the processor's cache.

    The recorded activations of a batch and its logits stay within `BATCH_BYTES`.
    """
    n_pos, n_scored = block.tokens.shape[1], int(block.scored.any(dim=0).sum())
    kept = spec.n_layers * n_pos * (5 * spec.d_model + spec.n_heads * spec.d_head)
    each = 4 * (kept + _COPIES * n_scored * spec.d_vocab)
    size = max(2, min(TARGET_ROWS // n_pos, BATCH_BYTES // (2 * each)))  # a batch may hold nearly twice as many
    return block.batches(at_least=size)


def variants_at_once(trials: Trials, logits: Float[Tensor, "batch query_pos d_vocab"]) -> int:
    """Return how many variants of a batch are replayed together, so that the cache and `BATCH_BYTES` hold them.

    `logits` are those without ablation.
    """
    in_budget = BATCH_BYTES // (_COPIES * 4 * logits.numel())
    return max(1, min(TARGET_ROWS // trials.tokens.numel(), in_budget))


def batches_with_donors(block: Trials, spec: ModelSpec) -> Iterator[tuple[Trials, Trials]]:
    """Yield each batch with the sequence before it in the block, so that donors do not depend on the batch size.

    The last sequence of the block precedes its first.
    """
    before = block.rows(slice(-1, None))
    for batch in batches(block, spec):
        yield batch, before
        before = batch.rows(slice(-1, None))


def references(
    replayer: Replayer, trials: Trials, before: Trials, variants: Sequence[Variant], means: Means
) -> BatchReference:
    """Run a batch once without ablation, and the sequence before it if a variant needs a donor."""
    is_resampled = any(isinstance(edit, Replace) and edit.uses_donor for variant in variants for edit in variant)
    return BatchReference(means, replayer.baseline(trials), replayer.baseline(before) if is_resampled else None)


def score_batch(
    replayer: Replayer, trials: Trials, before: Trials, variants: Sequence[Variant], means: Means
) -> BatchScores:
    """Score every variant on one batch; `before` is the sequence before it, the donor of its first sequence.

    Variants with the same entry point run together, as many as the cache holds.
    """
    reference = references(replayer, trials, before, variants, means)
    baseline, exact = reference.baseline, Exact.of(trials)
    together = variants_at_once(trials, baseline.logits)
    scores: list[Float[np.ndarray, "metric sequence position"] | None] = [None] * len(variants)
    inert = np.zeros(len(variants), dtype=bool)
    order = sorted(range(len(variants)), key=lambda index: _places(variants[index]))
    for _, group in groupby(order, key=lambda index: _places(variants[index])):
        members = list(group)
        for start in range(0, len(members), together):
            chosen = members[start : start + together]
            at_once = [variants[index] for index in chosen]
            logits = replayer.logits(baseline, at_once, reference)
            for index, own in zip(chosen, logits, strict=True):
                scores[index] = exact.scores(own, variants[index])
            inert[chosen] = _inert(logits, replayer, baseline, at_once, reference)
    return BatchScores(
        baseline=exact.scores(baseline.logits),
        variants=np.stack([score for score in scores if score is not None]),
        inert=inert,
    )


def _inert(
    logits: Float[Tensor, "variant batch query_pos d_vocab"],
    replayer: Replayer,
    baseline: BaselinePass,
    variants: Sequence[Variant],
    reference: BatchReference,
) -> Bool[np.ndarray, " variant"]:
    """Return which variants leave the logits bit-identical, compared with a replay that changes nothing.

    The replay has the same entry and batch size: the last bit of a matrix product can depend on the batch size.
    """
    near = [float((own - baseline.logits).abs().max()) <= _NEARLY for own in logits]
    if not any(near):
        return np.zeros(len(variants), dtype=bool)
    controls = [_unchanged(variant) if is_near else variant for variant, is_near in zip(variants, near, strict=True)]
    same = (logits == replayer.logits(baseline, controls, reference)).flatten(1).all(dim=1)
    inert: np.ndarray = np.array(near) & same.cpu().numpy()
    return inert


def _places(variant: Variant) -> tuple[int, ...]:
    """Return the entry and the stages edited in that layer; variants that agree in them can share a replay."""
    layer, stage = entry(variant)
    return (layer, stage, *sorted(STAGES[edit.site] for edit in variant if edit.layer == layer))


def _unchanged(variant: Variant) -> Variant:
    """Return the edits of a variant's first layer, each replaced by one that changes nothing."""
    layer, _ = entry(variant)
    return tuple(
        Replace(site=edit.site, layer=layer, mode="nothing", heads=edit.heads if isinstance(edit, Replace) else None)
        for edit in variant
        if edit.layer == layer
    )
