"""Key overlap: how far the keys of a named token set are from orthogonal, per layer and key head.

A shared offset alone increases cosines, so every overlap is given raw and with the mean key removed. Keys come from
activations (mean recorded key per token), from weights (normed embedding through W_K), and as columns of W_K. Each head
is compared with three levels: the same embeddings through random W_K, random directions, and untrained networks.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (orthogonal keys); their Paper III (columns).
    Welch 1974.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from bayesgeom.core import K_ROT, TOKEN_INPUTS, TOKEN_KEYS, W_K_GRAM, K, Reason, Run, Verdict
from bayesgeom.measurements.base import Control, Needs, Probe, known, planted_run, planted_trials
from bayesgeom.report.estimate import (
    UNTRAINED,
    Baseline,
    Estimate,
    Kind,
    Quantity,
    Share,
    Signed,
    Unit,
    of_untrained,
    with_interval,
)
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, Level, headline_of
from bayesgeom.stats.bootstrap import jackknife_bias, jackknife_weights, percentile_interval, random_halves
from bayesgeom.stats.intervals import MIN_DIFFERENT, Interval
from bayesgeom.stats.overlap import (
    coordinates_of,
    cross_fitted_overlap,
    frame_chances,
    frame_statistics,
    mean_overlap_interval,
    overlap_rows,
    projected_overlaps,
    random_overlaps,
    squared_lengths,
    verdicts,
    welch_bound,
)
from bayesgeom.stats.reduction import KEY_SUMS, ROTATED_KEY_SUMS, Reduction, TokenSums, in_parts, token_occurrences

ACTIVATION, ROTATED, WEIGHTS = "activation", "activation rotated", "weights"  # what keys are read from
COLUMNS, NO_TOKENS = "columns", "no tokens named"  # in the place of a token set; the first: the columns of W_K
N_SPLITS = 8  # random halvings of the sequences, for cross-fitting
_ORDER = {"inputs": 0, "hypotheses": 1}
_LAYERS, _HEADS = "token_set variant layer", "token_set variant layer kv_head"  # axes of the report
Heads = Float[np.ndarray, "token_set variant layer kv_head"]
Pair = tuple[int, int]  # a token set and a variant, by index


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """The vectors of a token set in one variant; overlap by row of weights, raw and centered; inputs of W_K; width.

    `rows` and `kink` are those of `overlap_rows`. `noise` is the share of sampling noise in the mean squared length of
    the vectors, raw and centered.
    """

    token_set: str
    variant: str
    vectors: Float[Tensor, "layer kv_head item d"]
    rows: Float[np.ndarray, "row 2 layer kv_head"]
    crossfit: Float[np.ndarray, "layer kv_head"]
    kink: Float[np.ndarray, "2 layer kv_head"]
    noise: Float[np.ndarray, "2 layer kv_head"]
    n_unseen: int = 0
    inputs: Float[Tensor, "known_layer named_item d_model"] | None = None  # for the first layers only
    width: int | None = None  # if the vectors are given in coordinates of their span


def key_views(run: Run, weights: Float[np.ndarray, "row batch"]) -> list[View]:
    """Return every token set in every recorded variant, inputs first, then the columns of W_K. Never empty."""
    ids, sets = run.trials.token_ids(), run.trials.token_sets
    members = {name: torch.searchsorted(ids, sets[name]) for name in sorted(sets, key=lambda x: (_ORDER.get(x, 2), x))}
    unknown = np.full((len(weights), 2, run.spec.n_layers, run.spec.n_kv_heads), np.nan)
    no_sample = {"rows": unknown, "kink": unknown[0], "noise": unknown[0], "crossfit": unknown[0, 0]}
    inputs = run.recorded.get(TOKEN_INPUTS)
    of = {name: None if inputs is None else inputs[:, at] for name, at in members.items()}
    variants = [_from_activations(run, KEY_SUMS, members, of, ACTIVATION, weights)]
    if ROTATED_KEY_SUMS.is_in(run) and _is_rotated(run, weights.shape[1]):
        variants.append(_from_activations(run, ROTATED_KEY_SUMS, members, of, ROTATED, weights))
    if TOKEN_KEYS in run.recorded:
        keys, exact = run.at(TOKEN_KEYS).movedim(2, 1), partial(View, variant=WEIGHTS, **no_sample)
        alone = {name: exact(token_set=name, vectors=keys[:, :, at], inputs=of[name]) for name, at in members.items()}
        variants.append(alone)
    views = [by_set[name] for name in members for by_set in variants]
    if W_K_GRAM in run.recorded:
        columns, width = coordinates_of(run.at(W_K_GRAM)), run.spec.d_model
        views.append(View(token_set=COLUMNS, variant=WEIGHTS, vectors=columns, **no_sample, width=width))
    nothing = torch.full((run.spec.n_layers, run.spec.n_kv_heads, 1, run.spec.d_head), torch.nan)
    return views or [View(token_set=NO_TOKENS, variant=ACTIVATION, vectors=nothing, **no_sample)]


def _is_rotated(run: Run, n: int) -> bool:
    """Return whether rotated keys differ from keys; a model without rotation has the same."""
    if {K, K_ROT} <= run.recorded.keys():  # compare them without computing the sums
        return not torch.equal(*(run.at(site)[:, :n] for site in (K, K_ROT)))
    pairs = ([sums.at(run, layer, n) for sums in (KEY_SUMS, ROTATED_KEY_SUMS)] for layer in range(run.spec.n_layers))
    return any(not torch.equal(*pair) for pair in pairs)


def _from_activations(
    run: Run,
    keys: Reduction,
    members: Mapping[str, Int[Tensor, " item"]],
    inputs: Mapping[str, Float[Tensor, "layer _ d_model"] | None],
    variant: str,
    weights: Float[np.ndarray, "row batch"],
) -> dict[str, View]:
    """Return the view of mean keys per token: overlap under each row of weights, and between random halves."""
    n = weights.shape[1]
    counts = token_occurrences(run.trials.rows(slice(0, n))).sum(dim=2)
    halves = random_halves(n, N_SPLITS, seed=run.seed)
    kept = {name: at[(counts > 0).any(dim=0)[at]] for name, at in members.items()}
    by_layer = {name: list[tuple[Any, ...]]() for name in members}
    for layer in range(run.spec.n_layers):
        of_tokens = TokenSums(sums=keys.at(run, layer, n), counts=counts)
        means = of_tokens.means(np.full((1, n), 1 / n))[0]
        one, other = (of_tokens.means(half).transpose(1, 2) for half in halves)
        parts = in_parts(weights, means.numel())
        drawn: list[Callable[[], Tensor]] = [partial(of_tokens.means, part) for part in parts]
        if len(parts) == 1:  # once for all token sets
            drawn = [cache(drawn[0])]
        for name, at in kept.items():
            vectors, frames = means[at].transpose(0, 1), partial(_frames, drawn, at)
            between = cross_fitted_overlap(one[:, :, at], other[:, :, at]).nanmean(dim=0).double().cpu().numpy()
            spread = torch.stack([squared_lengths(part - vectors).sum(dim=1) for part in frames()]).sum(dim=0).cpu()
            noise = ((n - 1) / n * spread / squared_lengths(vectors).cpu()).numpy()
            rows, kink = overlap_rows(frames)
            by_layer[name].append((vectors, rows, between, kink, noise))
    views = {}
    for name, layers in by_layer.items():
        (frames_of, rows_of, crossfit_of, kink_of, noise_of), bare = zip(*layers, strict=True), inputs[name]
        views[name] = View(
            token_set=name,
            variant=variant,
            vectors=torch.stack(frames_of),
            rows=np.stack(rows_of, axis=2),
            crossfit=np.stack(crossfit_of),
            kink=np.stack(kink_of, axis=1),
            noise=np.stack(noise_of, axis=1),
            n_unseen=len(members[name]) - len(kept[name]),
            inputs=None if bare is None else bare[:1],  # keys of deeper layers are not computed from embeddings
        )
    return views


def _frames(
    drawn: Sequence[Callable[[], Tensor]], at: Int[Tensor, " item"]
) -> Iterator[Float[Tensor, "part kv_head item d"]]:
    """Yield the mean keys of some tokens under each row of weights, in parts."""
    for means in drawn:
        yield means()[:, at].transpose(1, 2).contiguous()


RANDOM_W_K, RANDOM_DIRECTIONS = "random W_K", "random directions"
LEVELS = (RANDOM_W_K, RANDOM_DIRECTIONS, UNTRAINED)
_KINDS: tuple[Kind, ...] = ("chance", "chance", "baseline")
ROUNDING = 1e-6  # of an exact overlap: with two keys without their mean, or if no sequence changes it by more


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class KeyOverlapReport(Report):
    """Attention selects a token by its key: with unrelated directions, a query can select one without the others.

    The number is the mean |cosine| between keys of different tokens: 0 is orthogonal, 1 is parallel. Every token set of
    the task is shown, inputs first. Random directions do not score 0: their level depends on the width of the head. The
    same embeddings through random W_K show the effect of the embedding, and untrained networks that of the
    architecture. "Mean key removed" subtracts the part shared by all keys, which adds a constant to every score and
    does not change the softmax.

    A row beats its levels if every head lies below every known level, and does not if every head lies above the same
    one.

    Fields: |cosine| between distinct keys (0 orthogonal, 1 parallel), by token set and variant, which is what the keys
    are read from: activations, rotated ones where they differ, or the weights alone. The token set "columns" stands for
    the columns of W_K, which are in the weights alone. Where a set has no such keys, numbers are NaN and counts 0.

    - `overlap` has up to three levels to compare with: the same embeddings through random W_K, as many random
      directions, and untrained networks. `low` and `high` of a level are the 95 % range of a single head; for untrained
      networks, the bounds of one more head, from the spread over all heads. `centered_overlap` is the same with the
      mean key removed.
    - `mean_overlap` and `mean_centered_overlap` are means over heads.
    - `verdict` says which heads lie below, at and above a level, by `stats.overlap.verdicts`. The row's verdict
      follows from it: `verdict_of_heads`.
    - `cross_fitted_overlap` is the overlap from two halves of the sequences. Noise in mean keys lowers the plain
      overlap, but not this one. Keys of activations are means over `n` sequences; `overlap_bias` estimates the effect
      of finite n on the overlap. A verdict "below" requires that the cross-fitted overlap lies below too.
    - With more vectors than dimensions, `largest_overlap` is at least `welch`, the Welch bound.
    """

    name: ClassVar[str] = "key_overlap"
    title: ClassVar[str] = "Key overlap: are keys orthogonal?"
    limit: ClassVar[str] = "at most 256 sequences are read"

    token_sets: tuple[str, ...]
    variants: tuple[str, ...]
    overlap: Annotated[Estimate, Share(_HEADS, better="lower", label="mean |cos| between keys")]
    centered_overlap: Annotated[Estimate, Share(_HEADS, better="lower", label="mean |cos|, centered")]
    mean_overlap: Annotated[Estimate, Share(_LAYERS, better="lower", label="mean |cos|, mean over heads")]
    mean_centered_overlap: Annotated[Estimate, Share(_LAYERS, better="lower", label="mean |cos|, centered, over heads")]
    largest_overlap: Annotated[Estimate, Share(_HEADS, better="lower", label="largest |cos|")]
    largest_centered_overlap: Annotated[Estimate, Share(_HEADS, better="lower", label="largest |cos|, centered")]
    signed_mean: Annotated[Estimate, Signed(_HEADS, label="mean cosine between keys")]
    orthogonality: Annotated[Estimate, Quantity(_HEADS, better="higher", label="1 − RMS cosine")]
    dimension_utilization: Annotated[Estimate, Share(_HEADS, better="higher", label="dimensions in use")]
    cross_fitted_overlap: Annotated[Heads, Unit("1")]
    overlap_bias: Annotated[Heads, Unit("1")]
    welch: Annotated[Float[np.ndarray, "token_set variant"], Unit("1")]
    n_vectors: Annotated[Int[np.ndarray, "token_set variant"], Unit("1")]
    n_unseen: Annotated[Int[np.ndarray, "token_set variant"], Unit("1")]
    n: int

    @property
    def measured(self) -> list[Pair]:
        """The token set and the variant, by index, of all keys that were measured."""
        return [(int(row), int(column)) for row, column in np.argwhere(self.n_vectors + self.n_unseen > 0)]

    def headlines(self) -> Sequence[Headline]:
        """Return the first measured layer of every token set and variant, raw and with the mean key removed."""
        plain = [self._headline("mean_overlap", at, is_centered=False) for at in self.measured]
        return (*plain, *(self._headline("mean_centered_overlap", at, is_centered=True) for at in self.measured))

    def level(self, name: str, *, is_centered: bool = False) -> Heads:
        """Return the expectation of a level by its name; NaN where the level is not known."""
        return self._range(name, is_centered=is_centered)[0]

    def verdict(self, name: str, *, is_centered: bool = False) -> Heads:
        """Compare every head with a level.

        Args:
            name: One of `LEVELS`.
            is_centered: Whether the mean key is removed.

        Returns:
            −1 for heads whose interval lies below the range of the level, 1 above, 0 where they intersect. NaN where
            the level is unknown, or where an overlap of activations has no interval. −1 also requires that the
            cross-fitted overlap lies below, because noise in mean keys lowers the overlap. A raw overlap without an
            interval, smaller than that of random directions, is −1 if it lies below with twice its bias added.
        """
        overlap = self.centered_overlap if is_centered else self.overlap
        is_exact = np.array([variant == WEIGHTS for variant in self.variants])[:, None, None]
        low, high = (np.where(is_exact, overlap.value, end) for end in overlap.ends)
        if not is_centered:
            high = np.where(np.isnan(high), high, np.fmax(high, self.cross_fitted_overlap))
        _, least, most = self._range(name, is_centered=is_centered)
        signs = verdicts(low - ROUNDING, high + ROUNDING, least, most)
        if is_centered or self.n <= MIN_DIFFERENT:
            return signs
        at_most = np.maximum(overlap.value + 2 * np.abs(self.overlap_bias), self.cross_fitted_overlap)
        is_below = np.isnan(low) & (overlap.value < self.level(RANDOM_DIRECTIONS)) & (at_most < least)
        return np.where(is_below, -1.0, signs)

    def verdict_of_heads(self, at: Pair, layer: int = 0, *, is_centered: bool = False) -> Verdict:
        """Return whether the keys overlap less than every level in every head: the verdict of a row.

        A mean over heads can lie beyond every level while heads lie on different sides of it, or within its range.
        Levels are ranges over draws of one head, so every head is compared.

        Args:
            at: The token set and the variant, as in `measured`.
            layer: The layer.
            is_centered: Whether the mean key is removed.

        Returns:
            "yes" if every head lies below every known level, "no" if every head lies above the same level, else
            "undecided". A head within the range of a level is like a random one. A head without an interval is not
            known to lie below.
        """
        known = [
            self.verdict(name, is_centered=is_centered)[*at, layer]
            for name in LEVELS
            if np.isfinite(self.level(name, is_centered=is_centered)[*at, layer]).any()
        ]
        if known and all((heads == -1).all() for heads in known):
            return Verdict.YES
        return Verdict.NO if any((heads == 1).all() for heads in known) else Verdict.UNDECIDED

    def n_by_level(self, at: Pair, layer: int = 0, *, is_centered: bool = False) -> dict[str, tuple[int, int, int]]:
        """Return the numbers of heads below, at and above each known level, of one token set, variant and layer."""
        signs = {name: self.verdict(name, is_centered=is_centered)[*at, layer] for name in LEVELS}
        known = {name: heads for name, heads in signs.items() if np.isfinite(heads).any()}
        return {
            name: (int((heads == -1).sum()), int((heads == 0).sum()), int((heads == 1).sum()))
            for name, heads in known.items()
        }

    def _range(self, name: str, *, is_centered: bool) -> tuple[Heads, ...]:
        """Return expectation, minimum and maximum of a level."""
        overlap = self.centered_overlap if is_centered else self.overlap
        named = [(level.value, level.low, level.high) for level in overlap.baselines if level.name == name]
        unknown = np.full(overlap.value.shape, np.nan)
        return tuple(unknown if part is None else part for part in (*named, (None, None, None))[0])

    def _headline(self, metric: str, at: Pair, *, is_centered: bool) -> Headline:
        layer = int(np.isfinite(self.mean_overlap.value).any(axis=(0, 1)).argmax())  # not 0 if layer 0 has no keys
        tokens, variant = self.token_sets[at[0]], self.variants[at[1]]  # each has keys, and so a number, of its own
        whose = "columns of W_K" if tokens == COLUMNS else f"keys of {tokens} ({variant})"
        line = headline_of(self, metric, (*at, layer), f"{whose}: |cos|{', centered' * is_centered}, layer {layer}")
        if self.welch[at] > 0:
            line = replace(line, levels=(*line.levels, Level(name="Welch bound", value=float(self.welch[at]))))
        if not line.verdict or np.isnan(line.low):
            return line
        return replace(line, verdict=self.verdict_of_heads(at, layer, is_centered=is_centered), why="")

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.charts.lines import add_estimate, add_line, brief, times_text, with_baseline
        from bayesgeom.report.theme import SECOND, label_axes

        if not self.measured:
            return ()
        projected, chance = (self.level(name)[..., 0, 0] for name in (RANDOM_W_K, RANDOM_DIRECTIONS))
        raw, without_mean = self.mean_overlap[0, 0], self.mean_centered_overlap[0, 0]
        layers, first = range(len(raw.value)), int(np.isfinite(raw.value).argmax())
        times = times_text(float(raw.value[first]), float(chance[0, 0]), RANDOM_DIRECTIONS)
        mean = Panel.blank(f"Keys of layer {first}: mean |cos| {brief(raw.value[first])}, {times}")
        add_line(mean.figure, layers, without_mean.value, name="mean key removed", color=SECOND)
        add_estimate(mean.figure, layers, raw, name="keys as they are")
        label_axes(mean.figure, "layer", "mean |cosine| (1 is parallel)")
        mean.figure.update_yaxes(rangemode="tozero")
        drawn = [mean]
        for at in self.measured:
            tokens, variant = self.token_sets[at[0]], self.variants[at[1]]
            whose = tokens if tokens == COLUMNS else f"{tokens} / {variant}"
            title = with_baseline(f"|cos| between keys, {whose}", chance[at], "chance")
            title = with_baseline(title, projected[at], RANDOM_W_K).replace(") (", "; ")
            drawn.append(Panel.blank(title, is_folded=len(drawn) > 1))
            axes, values = ("key head", "layer"), self.overlap.value[at]
            add_heat(drawn[-1].figure, values, unit="|cosine|", baseline=float(chance[at]), axes=axes)
        return drawn


MAX_SEQUENCES, N_PROJECTIONS = 256, 40
MAX_RANDOM = 2**26  # random numbers for the level of random directions
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
        placed, (token_sets, variants) = partial(_placed, views), _axes(views)
        sizes = [(v.vectors.shape[2], v.width or v.vectors.shape[3]) for v in views]
        statistics = [frame_statistics(view.vectors.double()) for view in views]
        rows = np.moveaxis(placed([view.rows for view in views]), 2, 0)
        kink, noise = placed([view.kink for view in views]), placed([view.noise for view in views])
        drawn = [_levels(view, size, untrained, run.seed) for view, size in zip(views, sizes, strict=True)]
        levels = np.moveaxis(placed(drawn), (2, 3, 4), (0, 1, 2))
        is_exact = placed([view.variant == WEIGHTS for view in views], missing=True)[..., None]

        def values(name: str) -> Heads:
            return placed([numbers[name].cpu().numpy() for numbers in statistics])

        def alone(name: str) -> Estimate:
            chance = placed([frame_chances(*size).get(name, np.nan) for size in sizes])[..., None, None]
            return Estimate.of(values(name), baselines=known(Baseline.of("chance", RANDOM_DIRECTIONS, chance)), n=n)

        def with_levels(name: str, i: int) -> tuple[Estimate, Estimate]:
            """Return the estimate per head and its mean over heads; raw (0) or centered (1)."""
            overlap, named = values(name), [*zip(_KINDS, LEVELS, levels[:, :, i], strict=True)]
            heads = known(*(Baseline.of(kind, level, x[0], low=x[1], high=x[2]) for kind, level, x in named))
            # The range of one head is not that of a mean over heads.
            means = known(*(Baseline.of(kind, level, x[0].mean(axis=-1)) for kind, level, x in named))
            sample = rows[:, :, :, i], kink[:, :, i], noise[:, :, i]
            by_head = _bounds(overlap, sample, run.seed, is_exact[..., None])
            mean, of_mean = overlap.mean(axis=-1), tuple(part.mean(axis=-1) for part in sample)
            by_layer = with_interval(mean, _bounds(mean, of_mean, run.seed, is_exact), n=n, baselines=means)
            return with_interval(overlap, by_head, n=n, baselines=heads), by_layer

        overlap, mean_overlap = with_levels("overlap", 0)
        centered_overlap, mean_centered_overlap = with_levels("overlap_centered", 1)
        return KeyOverlapReport(
            token_sets=token_sets,
            variants=variants,
            overlap=overlap,
            centered_overlap=centered_overlap,
            mean_overlap=mean_overlap,
            mean_centered_overlap=mean_centered_overlap,
            largest_overlap=alone("overlap_max"),
            largest_centered_overlap=alone("overlap_centered_max"),
            signed_mean=alone("signed_mean"),
            orthogonality=alone("orthogonality"),
            dimension_utilization=alone("dimension_utilization"),
            cross_fitted_overlap=placed([view.crossfit for view in views]),
            overlap_bias=jackknife_bias(rows[:, :, :, 0]) + kink[:, :, 0],
            welch=placed([welch_bound(*size) for size in sizes]),
            n_vectors=placed([size[0] for size in sizes], missing=0),
            n_unseen=placed([view.n_unseen for view in views], missing=0),
            n=n,
        )

    def controls(self) -> Iterator[Control[KeyOverlapReport]]:
        frames = torch.stack([torch.eye(7)[:5], torch.ones(5, 7), torch.eye(7)[:5] + 3.0])
        yield Control(label="basis, one line, basis with an offset", run=_planted(frames), holds=_tells_frames_apart)
        spread = torch.randn(2, 61, 11, generator=torch.Generator().manual_seed(0))
        yield Control(label="random directions", run=_planted(spread), holds=_is_at_chance)
        yield Control(
            label="parallel keys under noise as long as they are",
            run=_noisy(),
            holds=lambda r: r.overlap.value[0, 0, 0, 0] < 0.92 < 0.97 < r.cross_fitted_overlap[0, 0, 0, 0],
        )


def _axes(views: Sequence[View]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the token sets and the variants of views."""
    return tuple(dict.fromkeys(v.token_set for v in views)), tuple(dict.fromkeys(v.variant for v in views))


def _placed(
    views: Sequence[View], values: Sequence[Any], missing: float = np.nan
) -> Shaped[np.ndarray, "token_set variant *rest"]:
    """Return the numbers of views along the axes of token sets and variants."""
    (token_sets, variants), of_views = _axes(views), np.array(values)
    numbers = np.full((len(token_sets), len(variants), *of_views.shape[1:]), missing, of_views.dtype)
    at = [[token_sets.index(v.token_set) for v in views], [variants.index(v.variant) for v in views]]
    numbers[tuple(at)] = of_views
    return numbers


def _bounds(
    values: Float[np.ndarray, "*rest"],
    sample: tuple[np.ndarray, ...],
    seed: int,
    is_exact: Bool[np.ndarray, "*#rest"],
) -> Interval:
    """Return the interval of the overlap, corrected for bias; the overlap itself if it is exact, as that of weights.

    `sample` are `rows`, `kink` and `noise`, as those of a `View`.
    It is withheld where a bias is larger than the uncertainty, and where sampling noise is a large part of the mean
    keys: no correction of first order suffices there.
    """
    rows, kink, noise = sample
    interval = mean_overlap_interval(rows, kink, seed=seed)
    is_same = is_exact | ((np.abs(rows - rows[0]).max(axis=0) < ROUNDING) & (len(rows) > 2))
    is_inside = (interval.lo < values) & (values < interval.hi)  # rows have the activations' precision, values double
    code = np.where(np.isfinite(interval.lo) & ~is_inside, int(Reason.BIASED), interval.code)
    code = np.where(noise > MAX_NOISE, int(Reason.NOISE), code)
    ends = (np.where(code == Reason.NONE, end, np.nan) for end in (interval.lo, interval.hi))
    lo, hi = (np.where(is_same, values, end) for end in ends)
    return replace(interval, lo=lo, hi=hi, code=np.where(is_same, int(Reason.NONE), code))


def _levels(
    view: View, size: tuple[int, int], copies: Sequence[KeyOverlapReport], seed: int
) -> Float[np.ndarray, "level 3 2 layer kv_head"]:
    """Return expectation and 95 % range of one head's overlap at each of `LEVELS`, raw and centered; NaN if unknown.

    The range of untrained networks is the bounds of one more head (`of_untrained`).
    """

    def ranged(drawn: Float[np.ndarray, "draw *rest"]) -> Float[np.ndarray, "3 *rest"]:
        return np.stack([drawn.mean(axis=0), *percentile_interval(drawn)])

    levels = np.full((len(LEVELS), 3, 2, *view.vectors.shape[:2]), np.nan)
    if view.inputs is not None:
        d = view.vectors.shape[-1]
        projected = projected_overlaps(view.inputs, d, n=N_PROJECTIONS, seed=seed).double().cpu().numpy()
        levels[0, :, :, : projected.shape[2]] = ranged(projected)[..., None]
    draws = int(np.clip(MAX_RANDOM // max(1, size[0] * size[1]), 40, 400))
    levels[1] = ranged(random_overlaps(*size, draws=draws, seed=0))[..., None, None]
    alike = [copy for copy in copies if view.token_set in copy.token_sets and view.variant in copy.variants]
    if alike:
        at = alike[0].token_sets.index(view.token_set), alike[0].variants.index(view.variant)
        heads = np.array([[copy.overlap.value[at], copy.centered_overlap.value[at]] for copy in alike])
        (level,) = of_untrained([head for copy in heads for head in np.moveaxis(copy, -1, 0)])
        levels[2, 0] = heads.mean(axis=0)
        levels[2, 1:] = np.stack([level.value if end is None else end for end in (level.low, level.high)])[..., None]
    return levels


def _planted(frames: Float[Tensor, "layer item d"]) -> Run:
    """Plant one sequence with each token once; the keys of each layer are its frame, in one head."""
    n_items = frames.shape[1]
    trials = planted_trials(np.ones((1, 1, 1)), np.arange(n_items)[None], token_sets={"hypotheses": range(n_items)})
    return planted_run(trials, {K: frames[:, None, :, None, :]})


def _tells_frames_apart(report: KeyOverlapReport) -> bool:
    basis, line, offset = report.overlap.value[0, 0, :, 0]
    simplex = report.centered_overlap.value[0, 0, [0, 2], 0]
    return bool(basis < 1e-6 and line > 1 - 1e-6 and offset > 0.9 and np.allclose(simplex, 1 / 4, atol=1e-5))


def _is_at_chance(report: KeyOverlapReport) -> bool:
    estimates = (report.overlap, report.centered_overlap, report.orthogonality)
    return all(np.allclose(each.value, each.baseline(RANDOM_DIRECTIONS).value, atol=0.02) for each in estimates)


def _noisy() -> Run:
    """Plant parallel keys with independent noise of the same length, in eight sequences: plain means diverge."""
    n, n_items = 8, 31
    generator = torch.Generator().manual_seed(1)
    trials = planted_trials(
        np.ones((n, 1, 1)), np.tile(np.arange(n_items), (n, 1)), token_sets={"inputs": range(n_items)}
    )
    return planted_run(trials, {K: 1 + torch.randn(1, n, n_items, 1, 17, generator=generator)})
