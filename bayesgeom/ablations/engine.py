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

from bayesgeom.behaviour import answer_log_probabilities, behaviour
from bayesgeom.edits import Replace
from bayesgeom.errors import NonFinite
from bayesgeom.models.replayer import Baseline, Replayer, Variant, entry
from bayesgeom.sites import Site
from bayesgeom.trials import Trials

METRICS = ("kl_bits", "entropy_error_bits", "correct")
TARGET_ROWS = 1_536  # positions × sequences × variants computed at once: what stays in the processor's cache
Means = dict[tuple[Site, int], Float[Tensor, "pos *rest"]]
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
    """Replacements for one tile: the task's means, and the tile's own trials each moved on by one."""

    means: Means
    baseline: Baseline

    def mean(self, site: Site, layer: int) -> Float[Tensor, "pos *rest"]:
        """The task's mean at each position."""
        return self.means[site, layer]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "batch pos *rest"]:
        """The trial before this one in the tile; the first takes the last's."""
        return self.baseline.held[site, layer].roll(1, dims=0)


def tiles(block: Trials) -> Iterator[Trials]:
    """A block cut into tiles whose activations stay in the processor's cache; none has a single sequence alone."""
    size = max(2, TARGET_ROWS // block.tokens.shape[1])
    for rows in torch.arange(len(block)).tensor_split(max(1, len(block) // size)):
        yield block.rows(slice(int(rows[0]), int(rows[-1]) + 1))


def score_tile(
    replayer: Replayer,
    trials: Trials,
    variants: Sequence[Variant],
    means: Means,
) -> TileScores:
    """Score every variant on one tile.

    Variants that enter at the same place run together, as many as the cache holds.
    """
    baseline = replayer.baseline(trials)
    reference = TileReference(means, baseline)
    together = max(1, TARGET_ROWS // trials.tokens.numel())
    scores: list[Float[np.ndarray, "metric sequence position"] | None] = [None] * len(variants)
    inert = np.zeros(len(variants), dtype=bool)
    order = sorted(range(len(variants)), key=lambda index: entry(variants[index]))
    for _, group in groupby(order, key=lambda index: entry(variants[index])):
        members = list(group)
        for start in range(0, len(members), together):
            chosen = members[start : start + together]
            batch = [variants[index] for index in chosen]
            logits = replayer.logits(baseline, batch, reference)
            for index, own in zip(chosen, logits, strict=True):
                scores[index] = scores_of(own, trials, variants[index])
            inert[chosen] = _inert(logits, replayer, baseline, batch, reference)
    return TileScores(
        baseline=scores_of(baseline.logits, trials),
        variants=np.stack([score for score in scores if score is not None]),
        inert=inert,
    )


def scores_of(
    logits: Float[Tensor, "batch query_pos d_vocab"], trials: Trials, variant: Variant = ()
) -> Float[np.ndarray, "metric sequence position"]:
    """KL, entropy error and correctness of these logits. **Raises** `NonFinite`, naming the edits."""
    if not bool(logits.isfinite().all()):
        what = " and ".join(edit.label for edit in variant) or "no edit"
        raise NonFinite(f"the logits are NaN or infinite under: {what}.")
    scored = behaviour(trials, *answer_log_probabilities(logits, trials))
    error = np.abs(scored.model_entropy_bits - scored.exact_entropy_bits)
    return np.stack([scored.kl_bits, error, scored.correct])


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


def _unchanged(variant: Variant) -> Variant:
    """A variant with the same entry that changes nothing."""
    first = entry(variant)
    site = next(edit.site for edit in variant if entry((edit,)) == first)
    return (Replace(site=site, layer=first[0], mode="nothing"),)
