"""The engine: record the unedited pass once per batch of sequences, then replay each variant from its first edit.

Memory does not grow with n: sequences are drawn in batches, and the activations of a batch are freed before the next
one. Interventions run their conditions through `batches` and `edited_logits`, too. An ablation is scored against the
exact posterior; what does not depend on the logits is computed once per batch.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from bayesgeom.core import RESID_POST, ModelSpec, NonFinite, Reference, Replace, Site, Trials
from bayesgeom.core.torch_state import SiteLayer
from bayesgeom.models.base import INSIDE_MLP, STAGES, BaselinePass, Replayer, Variant, stage
from bayesgeom.stats.information import NATS_PER_BIT, entropy_bits

METRICS = ("kl_bits", "entropy_error_bits", "correct")

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
    """Replacement activations for one batch: the task's means, and the activations of another sequence."""

    means: Means
    baseline: BaselinePass
    # Of the sequence before the batch, or of the donor of each sequence; None: the last one precedes the first.
    before: BaselinePass | None = None

    def mean(self, site: Site, layer: int) -> Float[Tensor, "pos *rest"]:
        """Return the task's mean at each position."""
        return self.means[site, layer]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "batch pos *rest"]:
        """Return the activations of the sequence before each sequence, or of its donor (`donors_of`)."""
        values = self.baseline.stored[site, layer]
        if self.before is None:
            return values.roll(1, dims=0)
        other = self.before.stored[site, layer]
        if len(other) < len(values):
            return torch.cat([other, values[:-1]])
        is_read = self.before.trials.is_read().to(values.device)
        return torch.where(is_read.reshape(*is_read.shape, *[1] * (values.ndim - 2)), other, values)


@final
@dataclass(frozen=True, kw_only=True)
class Exact:
    """Exact predictive distribution, its entropy and the labels of one batch of sequences."""

    answers: Int64[Tensor, " answer"]
    predictive: Float64[Tensor, "batch query_pos answer"]
    entropy_bits: Float64[Tensor, "batch query_pos"]
    labels: Int64[Tensor, "batch query_pos"]  # an index into `answers`

    @classmethod
    def of(cls, trials: Trials) -> Self:
        """Return the exact values of a batch, computed once for all variants."""
        predictive = trials.at_scored(trials.predictive)
        drawn = trials.at_scored(trials.labels)[..., None]
        return cls(
            answers=trials.answer_ids,
            predictive=predictive,
            entropy_bits=entropy_bits(predictive),
            labels=(trials.answers == drawn).double().argmax(-1),
        )

    def scores(
        self, logits: Float[Tensor, "batch query_pos d_vocab"], variant: Variant = ()
    ) -> Float[np.ndarray, "metric sequence position"]:
        """Return KL, entropy error and correctness, in float64, of probabilities renormalized over the answers.

        Raises:
            NonFinite: A logit is NaN or infinite; the error names the edits.
        """
        if not all(math.isfinite(end) for end in logits.aminmax()):  # NaN is both least and largest
            what = " and ".join(edit.label for edit in variant) or "no edit"
            raise NonFinite(f"the logits are NaN or infinite under: {what}. Check the weights and the edit.")
        # A softmax over the answers is the softmax over all ids, renormalized; finite logits keep 0 log q = 0. Both
        # sums subtract the largest logit first, so the exponentials are computed once.
        wide = logits.index_select(-1, self.answers).double()
        largest, first = wide.max(dim=-1, keepdim=True)
        below = wide.sub_(largest)
        weights = below.exp()
        total = weights.sum(-1)
        log_total = total.log()
        kl = (log_total - torch.linalg.vecdot(self.predictive, below)) / NATS_PER_BIT - self.entropy_bits
        entropy = (log_total - torch.linalg.vecdot(weights, below) / total) / NATS_PER_BIT
        correct = (first[..., 0] == self.labels).double()
        return np.asarray(torch.stack([kl, (entropy - self.entropy_bits).abs(), correct]).cpu().numpy())


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


def edited_logits(
    replayer: Replayer, baseline: BaselinePass, variants: Sequence[Variant], reference: Reference
) -> Iterator[tuple[list[int], Float[Tensor, "variant batch query_pos d_vocab"]]]:
    """Yield the logits of all variants, after their indices: those with the same entry together, as the cache allows.

    The order of the variants may differ from the order in which they are given.
    """
    together = variants_at_once(baseline.trials, baseline.logits)
    order = sorted(range(len(variants)), key=lambda index: _places(variants[index]))
    for _, group in groupby(order, key=lambda index: _places(variants[index])):
        members = list(group)
        for start in range(0, len(members), together):
            chosen = members[start : start + together]
            yield chosen, replayer.logits(baseline, [variants[index] for index in chosen], reference)


def position_means(
    replayer: Replayer, blocks: Iterable[Trials], spec: ModelSpec, places: Collection[SiteLayer], n: int
) -> Means:
    """Return the mean activation over `n` sequences at each position of these sites and layers.

    Padding is left out. A position that no sequence reaches has the mean of the last one that some sequence reaches.
    """
    sums: dict[SiteLayer, Tensor] = {}
    if not places:
        return sums
    blocks, also = list(blocks), kept_on_request(site for site, _ in places)
    is_read = torch.cat([block.is_read() for block in blocks])
    is_padded = not torch.equal(is_read, is_read[:1].expand_as(is_read))
    counts: Tensor = is_read.sum(dim=0)
    for batch in (batch for block in blocks for batch in batches(block, spec)):
        stored = replayer.baseline(batch, also).stored
        for place in places:
            values = stored[place].to(torch.promote_types(stored[place].dtype, torch.float32))
            if is_padded:
                weights = (batch.is_read() / counts.clamp_min(1)).to(values)
                total = torch.einsum("b p, b p ... -> p ...", weights, values)
            else:
                total = values.sum(dim=0) / n
            sums[place] = sums.get(place, 0) + total
    known = torch.arange(len(counts)).clamp_max(int(counts.nonzero().max()))
    return {place: mean[known.to(mean.device)] if is_padded else mean for place, mean in sums.items()}


def batches_with_donors(block: Trials, spec: ModelSpec) -> Iterator[tuple[Trials, Trials]]:
    """Yield each batch with the sequence before it in the block, so that donors do not depend on the batch size.

    The last sequence of the block precedes its first. Where sequences differ in length, a batch comes with the donor of
    each sequence instead.
    """
    before, donors, start = block.rows(slice(-1, None)), donors_of(block.ends()), 0
    for batch in batches(block, spec):
        yield batch, before if donors is None else block.rows(donors[start : start + len(batch)])
        before, start = batch.rows(slice(-1, None)), start + len(batch)


def donors_of(ends: Int64[Tensor, " sequence"]) -> Int64[Tensor, " sequence"] | None:
    """Return the donor of each sequence, which must not be padding where the sequence is not.

    It is the nearest sequence before it, cyclically, that is at least as long; if there is none, the nearest of the
    longest others, and the sequence keeps its own activations where that has ended. None if all are equally long.

    Example:
        >>> donors_of(torch.tensor([5, 7, 5, 6])).tolist()
        [3, 3, 1, 1]
    """
    if bool((ends == ends[0]).all()):
        return None
    n, sizes, donors = len(ends), ends.tolist(), list[int]()
    for sequence in range(n):
        others = [(sequence - step) % n for step in range(1, n)]
        donors.append(max(others, key=lambda other: min(sizes[other], sizes[sequence])))  # the first of the largest
    return torch.tensor(donors, device=ends.device)


def references(
    replayer: Replayer, trials: Trials, before: Trials, variants: Sequence[Variant], means: Means
) -> BatchReference:
    """Run a batch once without ablation, and the sequence before it if a variant needs a donor."""
    edits = [edit for variant in variants for edit in variant]
    also = kept_on_request(edit.site for edit in edits)
    is_resampled = any(isinstance(edit, Replace) and edit.uses_donor for edit in edits)
    baseline = replayer.baseline(trials, also)
    return BatchReference(means, baseline, replayer.baseline(before, also) if is_resampled else None)


def kept_on_request(sites: Iterable[Site]) -> tuple[Site, ...]:
    """Return those of these sites that a baseline keeps only if they are named, each once."""
    return tuple(dict.fromkeys(site for site in sites if site in INSIDE_MLP))


def score_batch(
    replayer: Replayer, trials: Trials, before: Trials, variants: Sequence[Variant], means: Means
) -> BatchScores:
    """Score every variant on one batch; `before` is the sequence before it, the donor of its first sequence."""
    reference = references(replayer, trials, before, variants, means)
    baseline, exact = reference.baseline, Exact.of(trials)
    scores: list[Float[np.ndarray, "metric sequence position"] | None] = [None] * len(variants)
    inert = np.zeros(len(variants), dtype=bool)
    for chosen, logits in edited_logits(replayer, baseline, variants, reference):
        for index, edited in zip(chosen, logits, strict=True):
            scores[index] = exact.scores(edited, variants[index])
        near = np.array([float((edited - baseline.logits).abs().max()) <= _NEARLY for edited in logits])
        if near.any():  # whether a logit changed at all is compared with the same replay without an edit
            pairs = zip(chosen, near, strict=True)
            controls = [_unchanged(variants[index]) if is_near else variants[index] for index, is_near in pairs]
            same = (logits == replayer.logits(baseline, controls, reference)).flatten(1).all(dim=1)
            inert[chosen] = near & same.cpu().numpy()
    return BatchScores(
        baseline=exact.scores(baseline.logits),
        variants=np.stack([score for score in scores if score is not None]),
        inert=inert,
    )


def _places(variant: Variant) -> tuple[int, ...]:
    """Return the first edited layer and the stages edited there; variants that agree in them can share a replay.

    Edits of the layer's output after another edit do not count: they come after all that a replay can leave out. A
    replayer that edits a site without a stage, such as `v`, has no use for the order of stages.
    """
    first = min(edit.layer for edit in variant)
    stages = sorted(stage(edit.site) for edit in variant if edit.layer == first)
    return first, stages[0], *(number for number in stages if number < STAGES[RESID_POST])


def _unchanged(variant: Variant) -> Variant:
    """Return the edits of a variant's first layer, each replaced by one that changes nothing."""
    first = min(edit.layer for edit in variant)
    return tuple(
        replace(edit, mode="nothing", by=None)
        if isinstance(edit, Replace)
        else Replace(site=edit.site, layer=first, mode="nothing")
        for edit in variant
        if edit.layer == first
    )
