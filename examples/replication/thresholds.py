"""Pass thresholds of Paper III for language models, and their chance levels at the same sizes.

A model passes if the values of its last layer lie mostly along one or two directions, if the keys of at least half of
its layers are nearly orthogonal, and if attention narrows from first to last layer. A threshold is informative only if
Gaussian data of the same sizes and untrained networks fail it.

References:
    Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.2, 4.4 and 4.5.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from scipy.stats import binom, norm
from torch import Tensor

from bayesgeom.core.run import PATTERN, W_K_GRAM, K, Run, V
from bayesgeom.core.text import aligned_table, interval_text, number_text, percent_text
from bayesgeom.core.verdict import Reason
from bayesgeom.measurements.base import Control, Needs, Probe, known, planted_run, planted_trials
from bayesgeom.report.estimate import UNTRAINED, Baseline, Estimate, Quantity, Unit, of_untrained
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import (
    bootstrap_weights,
    jackknife_weights,
    linearized_draws,
    percentile_interval,
    statistic_interval,
)
from bayesgeom.stats.information import entropy_bits, row_entropy_bits
from bayesgeom.stats.intervals import Interval, Scale, jackknife_interval
from bayesgeom.stats.overlap import chance_overlap, coordinates_of, overlap, pairwise_cosine
from bayesgeom.stats.reduction import KEY_SUMS, LAST_VALUES, Reduction, TokenSums, in_parts, occurrences
from bayesgeom.stats.subspace import cloud_axes, standardized

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

SHARE, OVERLAP, LAYERS, REDUCTION = 0.3, 0.2, 0.5, 0.3  # the published thresholds
UNINFORMATIVE = 0.05  # a threshold that chance passes more often than this is uninformative
GAUSSIAN_DRAWS, MIN_DRAWN, MAX_SEQUENCES = 60, 9, 256
ABOVE_GAUSSIAN = 1.25  # a PC1 share below this multiple of that of Gaussian points has no interval
_ATTENTION_ROWS = 2_048  # drawn for the chance level of the fall
_ROUNDING = 1e-6  # a variance below this share of the power is rounding error
_CANCELLATION = 1e-13  # the same for float64: some hundred sums of squares are accurate to this share
CHANCE = "random data of the same sizes"
LAST_ENTROPY = Reduction(
    "mean attention entropy of the last scored query",
    PATTERN,
    lambda pattern, _t, _r, _m: row_entropy_bits(pattern[:, :, -1].double()).mean(dim=1),
    lambda _s, _t: 2,  # one float64
)
MEASURES = (
    "PC1 of values",
    "PC1 + PC2 of values",
    "layers with W_K columns apart",
    "layers with keys apart",
    "fall of attention entropy",
)
_COLUMNS, _KEYS, _OF_LAYERS = MEASURES[2], MEASURES[3], MEASURES[2:4]
_SCALES: tuple[Scale, ...] = ("share", "share", "plain", "plain", "plain")
_THRESHOLDS = (SHARE, SHARE, LAYERS, LAYERS, REDUCTION)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class PassThresholdsReport(Report):
    """The paper's measures, their thresholds, and which data pass; one entry per measure.

    - `PC1 of values`, `PC1 + PC2 of values`: share of the variance of the last layer's value vectors at the last
      scored position, heads concatenated, every coordinate standardized over the sequences. Passed above 0.3.
    - `layers with W_K columns apart`, `layers with keys apart`: share of layers whose mean |cosine| lies below 0.2, of
      the columns of a head's W_K, or of the mean recorded keys of tokens; averaged over heads. Passed from 0.5 on.
    - `fall of attention entropy`: 1 − last / first layer's, of the last scored query, averaged over heads. Passed above
      0.3.

    The chance level of `measured` is its expectation for random data of these `sizes`. `passed` is 1 if the value
    passes and else 0; its baselines are the probability that random data pass, and the share of untrained networks
    that do. Unrecorded measures are NaN.
    """

    name: ClassVar[str] = "pass_thresholds"
    title: ClassVar[str] = "Pass thresholds: does the model pass, and would chance?"
    limit: ClassVar[str] = "at most 256 sequences are read"
    about: ClassVar[str] = (
        "The papers attribute the geometry of Bayesian inference to a language model that passes three thresholds. One "
        "or two directions have more than 30 % of the variance of its last values. The mean |cosine| of its keys is "
        "below 0.20 in at least half of its layers. Attention entropy falls by more than 30 % from first to last "
        "layer. A threshold is informative only if data without structure fail it. Each is compared with Gaussian data "
        "of the same number and width, and with untrained networks. Random directions in more than sixteen dimensions "
        "are below 0.20, and a cloud of few points is always flat. A model that passes on PC1 passes on both."
    )

    measures: tuple[str, ...]
    measured: Annotated[Estimate, Quantity("measure", better="higher", label="measured")]
    threshold: Annotated[Float[np.ndarray, " measure"], Unit("1")]
    passed: Annotated[Estimate, Quantity("measure", label="passes the threshold: 1, else 0")]
    verdicts: Annotated[tuple[str, ...], "measure"]
    sizes: tuple[str, ...]
    column_overlap: Annotated[Float[np.ndarray, " layer"], Unit("1")]
    key_overlap: Annotated[Float[np.ndarray, " layer"], Unit("1")]
    final_entropy_bits: Annotated[Float[np.ndarray, " layer"], Unit("bits")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        order = (1, 3, 4, 2, 0)  # one of each kind first
        return list(map(self._headline, order))

    def panels(self) -> "Sequence[Panel]":
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.lines import add_baseline, add_line
        from bayesgeom.report.panels import Panel
        from bayesgeom.report.theme import EXACT, SECOND, label_axes

        titles = ("Measured, and the published threshold", "Mean |cosine| by layer", "Attention entropy by layer")
        measured, overlap, entropy = panels = [Panel.blank(title) for title in titles]
        marks = {"threshold": self.threshold}
        marks |= {f"baseline: {level.name}": level.value for level in self.measured.compared}
        own, unit, layers = self.measured, "measured (at most 1)", range(len(self.key_overlap))
        add_forest(measured.figure, self.measures, own.value, own.ends, unit=unit, levels=marks, limits=(-1.0, 1.02))
        add_baseline(overlap.figure, layers, OVERLAP, name="threshold", color=EXACT)
        add_line(overlap.figure, layers, self.key_overlap, name="keys")
        add_line(overlap.figure, layers, self.column_overlap, name="columns of W_K", color=SECOND)
        label_axes(overlap.figure, "layer", "mean |cosine|, heads averaged")
        add_line(entropy.figure, layers, self.final_entropy_bits, name="entropy of the last query")
        label_axes(entropy.figure, "layer", "attention entropy (bits)")
        return panels

    def table(self) -> str:
        """Return one row per measure, as the command line and a notebook print it."""
        rows: list[tuple[str, ...]] = [
            ("measure", "threshold", "value", "95 % interval", "chance", "passes", "untrained", "passes", "verdict")
        ]
        for i, (measure, verdict) in enumerate(zip(self.measures, self.verdicts, strict=True)):
            own = self.measured[i]
            levels = {level.name: float(level.value) for level in own.baselines}
            low, high = own.ends
            numbers = (
                number_text(self.threshold[i]),
                number_text(float(own)),
                interval_text(float(low), float(high)),
                number_text(levels[CHANCE]),
                percent_text(self._rate(CHANCE, i)),
                number_text(levels.get(UNTRAINED, np.nan)),
                percent_text(self._rate(UNTRAINED, i)),
            )
            rows.append((measure, *numbers, verdict))
        return "\n".join(aligned_table(rows))

    def _rate(self, name: str, i: int) -> float:
        """Return how often random data or untrained networks pass; NaN if there are none."""
        return next((float(own.value[i]) for own in self.passed.baselines if own.name == name), math.nan)

    def _headline(self, i: int) -> Headline:
        """Return one measure with its verdict, the published threshold, and how often baselines pass it."""
        subject = f"share of {self.measures[i]}" * (self.measures[i] in _OF_LAYERS) or self.measures[i]
        found = headline_of(self, "measured", (i,), f"{subject}, threshold {number_text(self.threshold[i])}")
        levels = [
            replace(own, name=own.name if np.isnan(rate) else f"{own.name}; {percent_text(rate)} pass")
            for own in found.levels
            for rate in (self._rate(own.name, i),)
        ]
        verdict, _, why = self.verdicts[i].partition(": ")
        verdict = "failed" if verdict.startswith("failed") else verdict  # its reason names who passes
        return replace(found, verdict=verdict, why=why, levels=tuple(levels))


@final
@dataclass(frozen=True)
class PassThresholds(Probe[PassThresholdsReport]):
    """Measure the first recorded sequences; a measure whose site the model lacks is NaN."""

    name: ClassVar[str] = "pass_thresholds"
    needs: ClassVar[Needs] = Needs(
        sites=(V,), optional=(K, W_K_GRAM, PATTERN), streamed=(LAST_VALUES, KEY_SUMS, LAST_ENTROPY)
    )

    def measure(self, run: Run, untrained: Sequence[PassThresholdsReport] = ()) -> PassThresholdsReport:
        n = min(run.n_recorded, MAX_SEQUENCES)
        weights = jackknife_weights(n)
        columns, keys, entropy = column_overlaps(run), key_overlaps(run, weights), last_entropies(run, weights)
        found = [*pc_shares(run, weights), share_apart(columns, OVERLAP), share_apart(keys, OVERLAP), fall(entropy)]
        measured = np.array([rows[0] for rows in found])
        intervals = [
            statistic_interval(rows, seed=run.seed, scale=scale) for rows, scale in zip(found, _SCALES, strict=True)
        ]
        low, high = _deciding(intervals, found, keys, run.seed)
        # Weights are not a sample; and a value that no sequence changes is decided, even if it is 0 or 1.
        is_exact = [
            measure == _COLUMNS or (len(of) > MIN_DRAWN and np.ptp(of) < 1e-9)
            for measure, of in zip(MEASURES, found, strict=True)
        ]
        copies = np.array([copy.measured.value for copy in untrained] or [np.full(len(MEASURES), np.nan)])
        by_copies = np.where(np.isnan(copies).any(axis=0), np.nan, _passes(copies).mean(axis=0))
        chance = [_chance(measure, run, n) for measure in MEASURES]
        expected, rates = np.array([c.expected for c in chance]), np.array([c.passes for c in chance])
        verdicts = [
            _verdict(value, value if sure else least, value if sure else most, threshold, others)
            for value, sure, least, most, threshold, others in zip(
                measured, is_exact, low, high, _THRESHOLDS, zip(rates, by_copies, strict=True), strict=True
            )
        ]
        # If PC1 cannot be distinguished from the next component, the sample's share is biased upward by an unknown
        # amount: it may fail a threshold, but has no interval.
        is_flat = (expected * ABOVE_GAUSSIAN >= measured) & np.isin(MEASURES, MEASURES[:2])
        reasons = _reasons(intervals, is_flat)
        low, high = (np.where(np.isin(MEASURES, list(reasons)), np.nan, end) for end in (low, high))
        reason = np.array([int(reasons.get(measure, Reason.NONE)) for measure in MEASURES])
        baselines = (
            Baseline.of("chance", CHANCE, expected),
            *of_untrained([copy.measured.value for copy in untrained]),
        )
        return PassThresholdsReport(
            measures=MEASURES,
            measured=Estimate.of(measured, (low, high), n=n, baselines=baselines, reason=reason),
            threshold=np.array(_THRESHOLDS),
            passed=passed_estimate(measured, rates, by_copies, n=n),
            verdicts=tuple(verdicts),
            sizes=tuple(c.sizes for c in chance),
            column_overlap=columns[0],
            key_overlap=keys[0],
            final_entropy_bits=entropy[0],
            n=n,
        )

    def controls(self) -> Iterator[Control[PassThresholdsReport]]:
        rng = np.random.default_rng(0)
        noise, line = rng.normal(size=(64, 24)), rng.normal(size=(64, 1)) * rng.normal(size=24)
        frame, wide, narrow = np.eye(24)[:5], np.full(7, 1 / 7), np.eye(7)[6]
        yield Control(
            label="noise in orthogonal keys, attention as wide at the end as before",
            run=_planted(values=(line, noise), keys=(frame, frame), pattern=(wide, wide)),
            holds=lambda r: r.verdicts[1] == "failed" and r.measured.value.round(3).tolist()[3:] == [1, 0],
        )
        yield Control(
            label="values on a line, parallel keys, attention that narrows to one position",
            run=_planted(values=(noise, line), keys=(frame * 0 + 1, frame * 0 + 1), pattern=(wide, narrow)),
            holds=lambda r: r.verdicts[0] == "passed" and r.measured.value.round(3).tolist()[3:] == [0, 1],
            untrained=(_planted(values=(noise, noise), keys=(frame, frame), pattern=(wide, wide)),),
        )


@final
@dataclass(frozen=True, kw_only=True)
class Chance:
    """Expected score of data without structure, how often they pass a threshold, and their sizes."""

    expected: float
    passes: float
    sizes: str


@cache
def gaussian_shares(n: int, d: int, *, rank: int, draws: int, seed: int) -> Float64[np.ndarray, "draw component"]:
    """Draw shares of variance in the first 1 … `rank` principal components of n standardized Gaussian points in R^d.

    For the first component about (1 + √(n/d))² / n, where n < d: fewer points have a larger share.
    """
    generator = torch.Generator().manual_seed(seed)
    found = np.empty((draws, rank))
    for draw in range(draws):
        cloud = standardized(torch.randn(n, d, generator=generator, dtype=torch.float32))
        gram = (cloud @ cloud.T if n < d else cloud.T @ cloud).double()
        variances = torch.linalg.eigvalsh(gram).flip(0)
        found[draw] = (variances.cumsum(0) / variances.sum())[:rank].numpy()
    return found


def overlap_below(n: int, d: int, *, frames: int, below: float) -> float:
    """Return the probability that the mean |cosine| of random directions is less than `below`.

    The mean is over the pairs of n directions in R^d and over `frames` sets of directions. Pairs are pairwise
    independent, with E|c| = `chance_overlap` and E c² = 1/d, so the mean is nearly normal.
    """
    mean, pairs = chance_overlap(d), n * (n - 1) / 2 * frames
    if pairs == 0:
        return math.nan
    spread = math.sqrt(max(1 / d - mean**2, 0) / pairs)
    return float(norm.cdf((below - mean) / spread)) if spread else float(mean < below)


def at_least(share: float, of: int, each: float) -> float:
    """Return the probability that at least this share of `of` independent events of probability `each` occurs."""
    return float(binom.sf(math.ceil(share * of) - 1, of, each))


def falls_by_more(visible: Sequence[int], *, rows: int, share: float, seed: int) -> float:
    """Return the probability that entropy falls by more than this share between two layers of standard Gaussian scores.

    `visible` are the numbers of positions that queries see, `rows` the number of attention rows averaged in a layer.
    Both layers have the same expectation. Their difference is nearly normal, with a spread estimated from some rows.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.choice(np.asarray(visible), size=_ATTENTION_ROWS)
    scores = torch.from_numpy(rng.normal(size=(_ATTENTION_ROWS, int(max(visible)))))
    hidden = torch.arange(scores.shape[1]) >= torch.from_numpy(lengths)[:, None]
    entropy: Tensor = entropy_bits(scores.masked_fill(hidden, -torch.inf).softmax(-1))
    mean, spread = float(entropy.mean()), float(entropy.std())
    if mean == 0:
        return math.nan
    return float(norm.sf(share * mean * math.sqrt(rows) / (math.sqrt(2) * spread))) if spread else 0.0


def pc_shares(run: Run, weights: Float64[np.ndarray, "row sequence"]) -> Float64[np.ndarray, "2 row"]:
    """Return the shares of PC1 and of PC1 + PC2, with axes refitted in each row."""
    n = weights.shape[1]
    points = LAST_VALUES.at(run, -1, n)
    _, axes = cloud_axes(standardized(points))
    shares = standardized_axis_shares(points.cpu().numpy(), axes[:, :2].cpu().numpy(), weights).T.cumsum(axis=0)
    return shares[[0, -1]]


def column_overlaps(run: Run) -> Float64[np.ndarray, "1 layer"]:
    """Return the mean |cosine| of the columns of W_K, averaged over heads."""
    if W_K_GRAM not in run.recorded:
        return np.full((1, run.spec.n_layers), np.nan)
    grams = run.at(W_K_GRAM)
    layers = [overlap(pairwise_cosine(coordinates_of(gram))).mean() for gram in grams]
    return torch.stack(layers)[None].cpu().numpy()


def key_overlaps(run: Run, weights: Float64[np.ndarray, "row sequence"]) -> Float64[np.ndarray, "row layer"]:
    """Return the mean |cosine| of the mean keys of tokens, averaged over heads, under each row of weights."""
    n, ids = weights.shape[1], compared_tokens(run)
    if not KEY_SUMS.is_in(run) or len(ids) < 2:
        return np.full((len(weights), run.spec.n_layers), np.nan)
    counts, layers = occurrences(run.trials.tokens[:n], ids).sum(dim=2), list[Tensor]()
    at = torch.searchsorted(run.trials.token_ids(), ids)
    for sums in (KEY_SUMS.at(run, layer, n)[:, at] for layer in range(run.spec.n_layers)):
        of_tokens = TokenSums(sums=sums, counts=counts)
        parts = (of_tokens.means(part) for part in in_parts(weights, sums[0].numel()))
        layers.append(torch.cat([overlap(pairwise_cosine(keys.transpose(1, 2))).mean(dim=1) for keys in parts]))
    return torch.stack(layers, dim=1).double().cpu().numpy()


def last_entropies(run: Run, weights: Float64[np.ndarray, "row sequence"]) -> Float64[np.ndarray, "row layer"]:
    """Return the attention entropy of the last scored query, averaged over heads.

    It is in bits, or the share of log2(visible positions) if layers see different positions.
    """
    if not LAST_ENTROPY.is_in(run):
        return np.full((len(weights), run.spec.n_layers), np.nan)
    n, layers = weights.shape[1], range(run.spec.n_layers)
    found = torch.stack([LAST_ENTROPY.at(run, layer, n) for layer in layers])
    counts = torch.stack([last_visible(run, layer)[:n] for layer in layers])
    if not torch.equal(counts, counts[:1].expand_as(counts)):
        found = found / counts.double().log2()
    return np.asarray(weights @ found.T.cpu().numpy())


def last_visible(run: Run, layer: int) -> Int64[Tensor, " sequence"]:
    """Return how many positions the last scored query sees in a layer."""
    return run.visible(layer)[:, -1].sum(dim=-1)


def compared_tokens(run: Run) -> Int64[Tensor, " token"]:
    """Return the tokens in the recorded sequences that are hypotheses, or in the first token set without these."""
    sets = run.trials.token_sets
    name = "hypotheses" if "hypotheses" in sets else next(iter(sorted(sets)), "")
    ids = sets.get(name, run.trials.tokens[0, :0])
    return ids[torch.isin(ids, run.trials.tokens[:MAX_SEQUENCES])]


def share_apart(overlaps: Float64[np.ndarray, "row layer"], below: float) -> Float64[np.ndarray, " row"]:
    """Return the share of layers with an overlap below a threshold."""
    return np.where(np.isnan(overlaps).any(axis=1), np.nan, (overlaps < below).mean(axis=1))


def fall(entropy: Float64[np.ndarray, "row layer"]) -> Float64[np.ndarray, " row"]:
    """Return 1 − last / first; NaN for a single layer, and if the first has zero entropy."""
    first, last = entropy[:, 0], entropy[:, -1]
    has_fall = (first > 0) & (entropy.shape[1] > 1)
    return np.where(has_fall, 1 - last / np.where(has_fall, first, 1), np.nan)


def _deciding(
    intervals: Sequence[Interval],
    found: Sequence[Float64[np.ndarray, " _"]],
    keys: Float64[np.ndarray, "row layer"],
    seed: int,
) -> Float64[np.ndarray, "2 measure"]:
    """Return the ends that decide the verdicts, NaN where there are none: those of the intervals, with two exceptions.

    A share of fitted axes is biased upward. If the bias is larger than the uncertainty, the share has no interval. Its
    upper end without a correction for bias is then too high, so a share fails if that end lies below the threshold.

    The share of layers below a threshold is discontinuous, so its ends are the range over first-order draws of all
    layers' overlaps. It is not reported as an interval, which would hold the true share in 98 to 100 % of data sets. An
    overlap that no sequence changes is the same in every draw.
    """
    ends = np.array([[float(interval.lo), float(interval.hi)] for interval in intervals]).T
    for i in (
        i for i, interval in enumerate(intervals) if interval.code == Reason.BIASED and MEASURES[i] in MEASURES[:2]
    ):
        weights = bootstrap_weights(len(found[i]) - 1, seed=seed)
        most = float(jackknife_interval(found[i], weights, scale=_SCALES[i], is_corrected=False).hi)
        ends[:, i] = 0 * most, most  # NaN if there is no end
    n = len(keys) - 1
    drawn = share_apart(linearized_draws(keys, seed=seed), OVERLAP) if n >= MIN_DRAWN else np.full(2, np.nan)
    ends[:, MEASURES.index(_KEYS)] = percentile_interval(drawn)
    ends[:, MEASURES.index(_COLUMNS)] = np.nan
    return ends


def _reasons(intervals: Sequence[Interval], is_flat: Bool[np.ndarray, " measure"]) -> dict[str, Reason]:
    """Return, by measure, why it has no interval."""
    own = {measure: interval.reason() for measure, interval in zip(MEASURES, intervals, strict=True)}
    flat = {measure: Reason.FLAT for measure, is_one in zip(MEASURES, is_flat, strict=True) if is_one}
    found = own | flat | {_KEYS: Reason.NOT_COMPUTED, _COLUMNS: Reason.NOT_COMPUTED}
    return {measure: reason for measure, reason in found.items() if reason}


def passed_estimate(
    measured: Float[np.ndarray, " measure"],
    by_chance: Float[np.ndarray, " measure"],
    by_untrained: Float[np.ndarray, " measure"],
    *,
    n: int,
) -> Estimate:
    """Return whether each measure passes its threshold: 1, 0, or NaN if it is unknown; rates of others as baselines."""
    own = np.where(np.isnan(measured), np.nan, _passes(measured))
    levels = known(Baseline.of("chance", CHANCE, by_chance), Baseline.of("baseline", UNTRAINED, by_untrained))
    return Estimate.of(own, n=n, baselines=levels)


def _passes(measured: Float[np.ndarray, "*copy measure"]) -> Bool[np.ndarray, "*copy measure"]:
    """Return which measures are above the threshold, or at it for shares of layers. NaN does not pass."""
    thresholds = np.array(_THRESHOLDS)
    return np.where(np.isin(MEASURES, _OF_LAYERS), measured >= thresholds, measured > thresholds)


def _chance(measure: str, run: Run, n: int) -> Chance:
    """Return the chance level: Gaussian data of the same sizes."""
    spec, n_tokens = run.spec, len(compared_tokens(run))
    if measure in _OF_LAYERS:
        vectors, d = (spec.d_head, spec.d_model) if measure == _COLUMNS else (n_tokens, spec.d_head)
        below = overlap_below(vectors, d, frames=spec.n_kv_heads, below=OVERLAP)
        passes = at_least(LAYERS, spec.n_layers, below)
        return Chance(expected=below, passes=passes, sizes=f"{vectors} directions in {d} dimensions")
    if measure == MEASURES[-1]:
        visible = last_visible(run, -1)[:n].tolist()
        passes = falls_by_more(visible, rows=n * spec.n_heads, share=REDUCTION, seed=run.seed)
        return Chance(expected=0.0, passes=passes, sizes=f"random scores over {max(visible)} positions")
    width = LAST_VALUES.at(run, 0, 1).numel()
    shares = gaussian_shares(n, width, rank=2, draws=GAUSSIAN_DRAWS, seed=run.seed)[:, MEASURES.index(measure)]
    sizes = f"{n} Gaussian points in {width} dimensions"
    return Chance(expected=float(shares.mean()), passes=float((shares > SHARE).mean()), sizes=sizes)


def _verdict(value: float, low: float, high: float, threshold: float, others: Sequence[float]) -> str:
    """Return passed, failed or undecided, and which baselines pass so often that a pass is uninformative."""
    if np.isnan(value):
        return "not measured"
    if np.isnan(low):
        return "undecided: no interval, as the sample is too small or too uneven"
    is_open = low <= threshold <= high and low < high
    outcome = "undecided" if is_open else "passed" if value >= threshold else "failed"
    names = [name for name, rate in zip(("chance", UNTRAINED), others, strict=True) if rate > UNINFORMATIVE]
    if not names:
        return outcome
    joined = " and ".join(names)
    return f"failed, unlike {joined}" if outcome == "failed" else f"{outcome}, uninformative: {joined} pass"


def _planted(
    *,
    values: Sequence[Float64[np.ndarray, "sequence d"]],
    keys: Sequence[Float64[np.ndarray, "token d"]],
    pattern: Sequence[Float64[np.ndarray, " key_pos"]],
) -> Run:
    """Plant two layers of one head: five tokens, then one of them and a scored position. Only the last value counts."""
    n = len(values[0])
    tokens = np.tile([0, 1, 2, 3, 4, 0, 1], (n, 1))
    trials = planted_trials(np.full((n, 1, 2), 0.5), tokens, token_sets={"hypotheses": range(5)})
    v = np.stack([np.repeat(layer[:, None, None], 7, axis=1) for layer in values])
    k = np.stack([np.tile(layer[tokens[0]][None, :, None], (n, 1, 1, 1)) for layer in keys])
    p = np.stack([np.tile(row, (n, 1, 1, 1)) for row in pattern])
    return planted_run(trials, {site: torch.from_numpy(x) for site, x in ((V, v), (K, k), (PATTERN, p))})


def standardized_axis_shares(
    points: Float[np.ndarray, "sequence d"],
    axes: Float[np.ndarray, "d axis"],
    weights: Float64[np.ndarray, "row sequence"],
    *,
    steps: int = 2,
) -> Float64[np.ndarray, "row axis"]:
    """Return the share of variance of standardized coordinates along each principal axis, under each row of weights.

    Coordinates are standardized and axes refitted in each row. If coordinates are standardized once, with all
    sequences, the jackknife overestimates the spread of the shares. Coordinates that do not vary are left out. NaN
    where none varies.
    """
    exact = points.astype(np.float64)
    exact -= exact.mean(axis=0)
    (n_rows, n_axes), d = (len(weights), axes.shape[1]), len(axes)
    means, power = weights @ exact, weights @ exact**2
    variance = power - means**2
    limit = np.maximum(_ROUNDING**2 * variance.max(axis=1, keepdims=True), _CANCELLATION * power)
    varies = variance > limit
    per_size = np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1)), 0)[:, :, None]

    def applied(basis: Float64[np.ndarray, "row d axis"]) -> Float64[np.ndarray, "row d axis"]:
        """Multiply each row's correlation matrix by its basis; all rows in two products."""
        scaled = per_size * basis
        along = (exact @ scaled.transpose(1, 0, 2).reshape(d, -1)).reshape(-1, n_rows, n_axes)
        product = (exact.T @ (along * weights.T[:, :, None]).reshape(len(exact), -1)).reshape(d, n_rows, n_axes)
        return np.asarray(per_size * (product.transpose(1, 0, 2) - means[:, :, None] * (means[:, None] @ scaled)))

    basis = varies[:, :, None] * axes.astype(np.float64)
    for _ in range(steps):
        basis = np.linalg.qr(applied(basis))[0]
    n_varying = varies.sum(axis=1, keepdims=True)
    return np.asarray((basis * applied(basis)).sum(axis=1) / np.where(n_varying > 0, n_varying, np.nan))
