"""Key overlap: how far the keys of a named token set are from orthogonal, per layer and key head.

A shared offset alone increases cosines, so every overlap is given raw and with the mean key removed. Keys come from
activations (mean recorded key per token), from weights (normed embedding through W_K), and as columns of W_K. Each head
is compared with three levels: the same embeddings through random W_K, random directions, and untrained networks.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (orthogonal keys); their Paper III (columns).
    Welch 1974.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bayesgeom.core.run import K_ROT, TOKEN_INPUTS, TOKEN_KEYS, W_K_GRAM, K, Run
from bayesgeom.core.verdict import Reason
from bayesgeom.probes._key_views import View, key_views
from bayesgeom.probes.base import Control, Needs, Probe, known, planted_run, planted_trials
from bayesgeom.probes.key_report import (
    LEVELS,
    RANDOM_DIRECTIONS,
    RANDOM_W_K,
    KeyOverlapReport,
    is_of_weights,
)
from bayesgeom.report.estimate import UNTRAINED, Baseline, Estimate, with_interval
from bayesgeom.stats.bootstrap import (
    jackknife_bias,
    jackknife_weights,
    percentile_interval,
)
from bayesgeom.stats.intervals import Interval
from bayesgeom.stats.overlap import (
    frame_chances,
    frame_statistics,
    mean_overlap_interval,
    projected_overlaps,
    random_overlaps,
    welch_bound,
)
from bayesgeom.stats.reduction import KEY_SUMS, ROTATED_KEY_SUMS

MAX_SEQUENCES, N_PROJECTIONS = 256, 40
MAX_RANDOM = 2**26  # random numbers for the level of random directions
ROUNDING = 1e-6  # an overlap is exact if leaving out any one sequence changes it by less
MAX_NOISE = 0.1  # share of sampling noise in the squared length of mean keys above which intervals cover too seldom


@final
@dataclass(frozen=True)
class KeyOverlap(Probe[KeyOverlapReport]):
    """Measure mean keys over the recorded sequences; tokens that do not occur are left out and counted."""

    name: ClassVar[str] = "key_overlap"
    needs: ClassVar[Needs] = Needs(
        sites=(K,), optional=(K_ROT, TOKEN_KEYS, TOKEN_INPUTS, W_K_GRAM), streamed=(KEY_SUMS, ROTATED_KEY_SUMS)
    )
    relative_time: ClassVar[int] = 4

    def measure(self, run: Run, untrained: Sequence[KeyOverlapReport] = ()) -> KeyOverlapReport:
        n = min(run.n_recorded, MAX_SEQUENCES)
        views = key_views(run, jackknife_weights(n))
        sizes = [(v.vectors.shape[2], v.width or v.vectors.shape[3]) for v in views]
        statistics = [frame_statistics(view.vectors.double()) for view in views]
        rows = np.stack([view.rows for view in views], axis=2)
        is_exact = np.array([is_of_weights(view.name) for view in views])
        kink, noise = (np.stack(own, axis=1) for own in zip(*((v.kink, v.noise) for v in views), strict=True))
        levels = np.stack([_levels(view, size, untrained, run.seed) for view, size in zip(views, sizes, strict=True)])

        def values(name: str) -> Float[np.ndarray, "view layer kv_head"]:
            return np.stack([found[name].cpu().numpy() for found in statistics])

        def alone(name: str, *, has_chance: bool = True) -> Estimate:
            chance = np.array([frame_chances(*size)[name] for size in sizes]) if has_chance else np.full(1, np.nan)
            return Estimate.of(
                values(name), baselines=known(Baseline.of("chance", RANDOM_DIRECTIONS, chance[:, None, None])), n=n
            )

        def with_levels(values: Float[np.ndarray, "view layer kv_head"], i: int) -> tuple[Estimate, Estimate]:
            """Return the estimate per head and its mean over heads; raw (0) or centered (1)."""
            levels_of_untrained = _untrained(views, untrained)[i]
            heads = _of_heads(levels[:, i], levels_of_untrained)
            found = _bounds(values, rows[:, i], kink[i], noise[i], run.seed, is_exact[:, None, None])
            by_head = with_interval(values, found, n=n, baselines=heads)
            mean = values.mean(axis=-1)
            of_rows, of_kink, of_noise = (own.mean(axis=-1) for own in (rows[:, i], kink[i], noise[i]))
            found = _bounds(mean, of_rows, of_kink, of_noise, run.seed, is_exact[:, None])
            return by_head, with_interval(mean, found, n=n, baselines=_of_means(levels[:, i]))

        overlap, mean_overlap = with_levels(values("overlap"), 0)
        centered_overlap, mean_centered_overlap = with_levels(values("overlap_centered"), 1)
        return KeyOverlapReport(
            views=tuple(view.name for view in views),
            overlap=overlap,
            centered_overlap=centered_overlap,
            mean_overlap=mean_overlap,
            mean_centered_overlap=mean_centered_overlap,
            largest_overlap=alone("overlap_max"),
            largest_centered_overlap=alone("overlap_centered_max", has_chance=False),
            signed_mean=alone("signed_mean"),
            orthogonality=alone("orthogonality"),
            dimension_utilization=alone("dimension_utilization"),
            cross_fitted_overlap=np.stack([view.crossfit for view in views]),
            overlap_bias=jackknife_bias(rows[:, 0]) + kink[0],
            welch=np.array([welch_bound(*size) for size in sizes]),
            n_vectors=np.array([size[0] for size in sizes], dtype=np.int64),
            n_unseen=np.array([view.n_unseen for view in views], dtype=np.int64),
            n=n,
        )

    def controls(self) -> Iterator[Control[KeyOverlapReport]]:
        frames = torch.stack([torch.eye(7)[:5], torch.ones(5, 7), torch.eye(7)[:5] + 3.0])
        yield Control(label="basis, one line, basis with an offset", run=_planted(frames), holds=_tells_frames_apart)
        spread = torch.randn(2, 61, 11, generator=torch.Generator().manual_seed(0))
        yield Control(label="random directions", run=_planted(spread), holds=_is_at_chance)
        yield Control(label="parallel keys under noise as long as they are", run=_noisy(), holds=_sees_through_noise)


def overlap_by_view(run: Run) -> dict[str, Float[np.ndarray, "layer kv_head"]]:
    """Return the overlap of each view, by its name, without intervals."""
    alike = jackknife_weights(min(run.n_recorded, MAX_SEQUENCES))[:1]
    views = key_views(run, alike)
    return {view.name: frame_statistics(view.vectors.double())["overlap"].cpu().numpy() for view in views}


def _bounds(
    values: Float[np.ndarray, "*rest"],
    rows: Float[np.ndarray, "row *rest"],
    kink: Float[np.ndarray, "*rest"],
    noise: Float[np.ndarray, "*rest"],
    seed: int,
    is_exact: Bool[np.ndarray, "*#rest"],
) -> Interval:
    """Return the interval of the overlap, corrected for bias; the overlap itself if it is exact, as that of weights.

    It is withheld where a bias is larger than the uncertainty, and where sampling noise is a large part of the mean
    keys: no correction of first order suffices there.
    """
    found = mean_overlap_interval(rows, kink, seed=seed)
    is_same = is_exact | ((np.abs(rows - rows[0]).max(axis=0) < ROUNDING) & (len(rows) > 2))
    is_inside = (found.lo < values) & (values < found.hi)  # rows are in the activations' precision, values in double
    code = np.where(np.isfinite(found.lo) & ~is_inside, int(Reason.BIASED), found.code)
    code = np.where(noise > MAX_NOISE, int(Reason.NOISE), code)
    lo, hi = (np.where(is_same, values, np.where(code == Reason.NONE, end, np.nan)) for end in (found.lo, found.hi))
    return replace(found, lo=lo, hi=hi, code=np.where(is_same, int(Reason.NONE), code))


def _levels(
    view: View, size: tuple[int, int], copies: Sequence[KeyOverlapReport], seed: int
) -> Float[np.ndarray, "2 3 level layer"]:
    """Return expectation and 95 % range of one head's overlap at each of `LEVELS`, raw and centered."""
    n_layers = len(view.vectors)
    draws = int(np.clip(MAX_RANDOM // max(1, size[0] * size[1]), 40, 400))
    directions = random_overlaps(*size, draws=draws, seed=0)[..., None].repeat(n_layers, axis=2)
    projected = np.full((1, 2, n_layers), np.nan)
    if view.inputs is not None:
        d = view.vectors.shape[-1]
        drawn = projected_overlaps(view.inputs, d, n=N_PROJECTIONS, seed=seed).double().cpu().numpy()
        projected = np.pad(drawn, ((0, 0), (0, 0), (0, n_layers - drawn.shape[2])), constant_values=np.nan)
    heads = [_of_view(copy, view.name) for copy in copies if view.name in copy.views]
    untrained = np.concatenate(heads, axis=2) if heads else np.full((2, n_layers, 1), np.nan)
    ranges = [np.stack([level.mean(axis=0), *percentile_interval(level)]) for level in (projected, directions)]
    ranges.append(np.stack([untrained.mean(axis=2), untrained.min(axis=2), untrained.max(axis=2)]))
    return np.stack(ranges).transpose(2, 1, 0, 3)


def _of_view(report: KeyOverlapReport, view: str) -> Float[np.ndarray, "2 layer kv_head"]:
    """Return the overlap of one view, raw and centered."""
    at = report.views.index(view)
    return np.stack([report.overlap.value[at], report.centered_overlap.value[at]])


def _untrained(views: Sequence[View], copies: Sequence[KeyOverlapReport]) -> Float[np.ndarray, "2 view layer kv_head"]:
    """Return the mean over untrained networks, raw and centered, by view; NaN without any."""
    means = []
    for view in views:
        found = [_of_view(copy, view.name) for copy in copies if view.name in copy.views]
        means.append(np.mean(found, axis=0) if found else np.full((2, *view.vectors.shape[:2]), np.nan))
    return np.stack(means, axis=1)


def _of_heads(
    levels: Float[np.ndarray, "view 3 level layer"], untrained: Float[np.ndarray, "view layer kv_head"]
) -> tuple[Baseline, ...]:
    """Return the levels of a head, with the range of a single head."""
    projected, directions, trained_not = (levels[:, :, i, :, None] for i in range(len(LEVELS)))
    return known(
        Baseline.of("chance", RANDOM_W_K, projected[:, 0], low=projected[:, 1], high=projected[:, 2]),
        Baseline.of("chance", RANDOM_DIRECTIONS, directions[:, 0], low=directions[:, 1], high=directions[:, 2]),
        Baseline.of("baseline", UNTRAINED, untrained, low=trained_not[:, 1], high=trained_not[:, 2]),
    )


def _of_means(levels: Float[np.ndarray, "view 3 level layer"]) -> tuple[Baseline, ...]:
    """Return the levels of a mean over heads, without ranges: those of a single head do not apply."""
    projected, directions, untrained = (levels[:, 0, i] for i in range(len(LEVELS)))
    return known(
        Baseline.of("chance", RANDOM_W_K, projected),
        Baseline.of("chance", RANDOM_DIRECTIONS, directions),
        Baseline.of("baseline", UNTRAINED, untrained),
    )


def _planted(frames: Float[Tensor, "layer item d"]) -> Run:
    """Plant one sequence with each token once; the keys of each layer are its frame, in one head."""
    n_items = frames.shape[1]
    trials = planted_trials(np.ones((1, 1, 1)), np.arange(n_items)[None], token_sets={"hypotheses": range(n_items)})
    return planted_run(trials, {K: frames[:, None, :, None, :]})


def _tells_frames_apart(report: KeyOverlapReport) -> bool:
    basis, line, offset = report.overlap.value[0, :, 0]
    simplex = report.centered_overlap.value[0, [0, 2], 0]
    return bool(basis < 1e-6 and line > 1 - 1e-6 and offset > 0.9 and np.allclose(simplex, 1 / 4, atol=1e-5))


def _is_at_chance(report: KeyOverlapReport) -> bool:
    found = (report.overlap, report.centered_overlap, report.orthogonality)
    return all(np.allclose(own.value, own.baseline(RANDOM_DIRECTIONS).value, atol=0.02) for own in found)


def _noisy() -> Run:
    """Plant parallel keys with independent noise of the same length, in eight sequences: plain means diverge."""
    n, n_items = 8, 31
    generator = torch.Generator().manual_seed(1)
    trials = planted_trials(
        np.ones((n, 1, 1)), np.tile(np.arange(n_items), (n, 1)), token_sets={"inputs": range(n_items)}
    )
    return planted_run(trials, {K: 1 + torch.randn(1, n, n_items, 1, 17, generator=generator)})


def _sees_through_noise(report: KeyOverlapReport) -> bool:
    return bool(report.overlap.value[0, 0, 0] < 0.92 < 0.97 < report.cross_fitted_overlap[0, 0, 0])
