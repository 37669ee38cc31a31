"""The engine: one recorded baseline per tile of sequences, and each variant replayed only from where its edit acts.

Memory does not grow with n: sequences come as a stream, a tile's activations are freed before the next is drawn, and
per-sequence results are kept for at most `MAX_UNITS` units, each a run of consecutive sequences.
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
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.sites import Site
from bayesgeom.core.trials import Trials
from bayesgeom.models.replay.replayer import STAGES, Baseline, Replayer, Variant, entry

TARGET_ROWS = 2_400  # positions × sequences × variants computed at once: what stays in the processor's cache
TILE_BYTES = 2**30  # activations and logits of a tile; smaller tiles of a language model multiply too few rows at once
Means = dict[tuple[Site, int], Float[Tensor, "pos *rest"]]
_COPIES = 4  # of a tile's logits: the baseline's, a variant's, and what comparing them takes
_NEARLY = 1e-4  # logits closer than this are tried for bit-identity


@final
@dataclass(frozen=True, kw_only=True)
class TileScores:
    """What one tile of sequences gave: metric by metric, the baseline's and every variant's."""

    baseline: Float[np.ndarray, "metric sequence position"]
    variants: Float[np.ndarray, "variant metric sequence position"]
    inert: Bool[np.ndarray, " variant"]


@final
@dataclass(frozen=True)
class TileReference:
    """Replacements for one tile: the task's means, and for each trial the one before it."""

    means: Means
    baseline: Baseline
    before: Baseline | None = None  # of the one trial before the tile; without it, the tile's last is before its first

    def mean(self, site: Site, layer: int) -> Float[Tensor, "pos *rest"]:
        """The task's mean at each position."""
        return self.means[site, layer]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "batch pos *rest"]:
        """The activations of the trial before each."""
        own = self.baseline.held[site, layer]
        return own.roll(1, dims=0) if self.before is None else torch.cat([self.before.held[site, layer], own[:-1]])


def tiles(block: Trials, spec: ModelSpec) -> Iterator[Trials]:
    """A block cut into tiles whose activations stay in the processor's cache; none has a single sequence alone.

    What a baseline keeps of a tile, and the logits over a large vocabulary, stay within the byte budget.
    """
    n_pos, n_asked = block.tokens.shape[1], int(block.scored.any(dim=0).sum())
    kept = spec.n_layers * n_pos * (5 * spec.d_model + spec.n_heads * spec.d_head)
    each = 4 * (kept + _COPIES * n_asked * spec.d_vocab)
    size = max(2, min(TARGET_ROWS // n_pos, TILE_BYTES // (2 * each)))  # a tile may hold nearly twice as many
    return block.batches(at_least=size)


def variants_at_once(trials: Trials, logits: Float[Tensor, "batch query_pos d_vocab"]) -> int:
    """How many variants of a tile are replayed together: as many as the cache and, with their logits, the budget hold.

    `logits` are the baseline's.
    """
    in_budget = TILE_BYTES // (_COPIES * 4 * logits.numel())
    return max(1, min(TARGET_ROWS // trials.tokens.numel(), in_budget))


def tiles_with_donors(block: Trials, spec: ModelSpec) -> Iterator[tuple[Trials, Trials]]:
    """Each tile, and the trial before it in the block, where the last is before the first: donors know no tiles."""
    before = block.rows(slice(-1, None))
    for tile in tiles(block, spec):
        yield tile, before
        before = tile.rows(slice(-1, None))


def references(
    replayer: Replayer, trials: Trials, before: Trials, variants: Sequence[Variant], means: Means
) -> TileReference:
    """One pass over a tile, and over the trial before it where a variant puts it in place."""
    is_resampled = any(isinstance(edit, Replace) and edit.uses_donor for variant in variants for edit in variant)
    return TileReference(means, replayer.baseline(trials), replayer.baseline(before) if is_resampled else None)


def score_tile(
    replayer: Replayer, trials: Trials, before: Trials, variants: Sequence[Variant], means: Means
) -> TileScores:
    """Score every variant on one tile; `before` is the trial before it, from which the first is resampled.

    Variants that enter at the same places run together, as many as the cache holds.
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
            batch = [variants[index] for index in chosen]
            logits = replayer.logits(baseline, batch, reference)
            for index, own in zip(chosen, logits, strict=True):
                scores[index] = exact.scores(own, variants[index])
            inert[chosen] = _inert(logits, replayer, baseline, batch, reference)
    return TileScores(
        baseline=exact.scores(baseline.logits),
        variants=np.stack([score for score in scores if score is not None]),
        inert=inert,
    )


def _inert(
    logits: Float[Tensor, "variant batch query_pos d_vocab"],
    replayer: Replayer,
    baseline: Baseline,
    variants: Sequence[Variant],
    reference: TileReference,
) -> Bool[np.ndarray, " variant"]:
    """Which edits leave the logits bit-identical, against a replay from the same entry that changes nothing.

    The replay has the same variants beside it: the last bit of a product may depend on the size of the batch.
    """
    near = [float((own - baseline.logits).abs().max()) <= _NEARLY for own in logits]
    if not any(near):
        return np.zeros(len(variants), dtype=bool)
    controls = [_unchanged(variant) if is_near else variant for variant, is_near in zip(variants, near, strict=True)]
    same = (logits == replayer.logits(baseline, controls, reference)).flatten(1).all(dim=1)
    inert: np.ndarray = np.array(near) & same.cpu().numpy()
    return inert


def _places(variant: Variant) -> tuple[int, ...]:
    """Entry, and the stages edited in that layer: variants that agree in them are computed in the same way there."""
    layer, stage = entry(variant)
    return (layer, stage, *sorted(STAGES[edit.site] for edit in variant if edit.layer == layer))


def _unchanged(variant: Variant) -> Variant:
    """The edits of a variant's first layer, each changing nothing."""
    layer, _ = entry(variant)
    return tuple(
        Replace(site=edit.site, layer=layer, mode="nothing", heads=edit.heads if isinstance(edit, Replace) else None)
        for edit in variant
        if edit.layer == layer
    )
