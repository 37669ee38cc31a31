"""Belief read-out: can a linear map decode the exact belief from the activations?

A decodable belief need not be used, and vectors with many dimensions allow much decoding by chance. Each number is
therefore compared with a shuffle within position, random subspaces of the same rank, and untrained networks.

References:
    Shai et al. 2024, arXiv:2405.15943 (linear maps from residuals to beliefs; the simplex of Mess3).
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (clusters by hidden state).
    Shai et al. 2026, arXiv:2602.02385 (joint and factored representations of independent parts).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Annotated, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import RESID_POST, RESID_PRE, STATE, Run, Trials, Verdict
from bayesgeom.core.observers import STARTS, window_beliefs
from bayesgeom.measurements.base import (
    Control,
    Needs,
    Probe,
    known,
    planted_chain,
    planted_run,
    planted_trials,
    with_untrained,
)
from bayesgeom.report import (
    MEASURED,
    R2,
    Baseline,
    Estimate,
    Headline,
    Kind,
    NonNegative,
    Panel,
    Quantity,
    Report,
    Share,
    Signed,
    Unit,
    extreme_of,
    headline_of,
    label_axes,
    smooth_estimate,
    stacked,
    with_interval,
)
from bayesgeom.stats import (
    BELIEF,
    LABEL,
    WIDEST_BASELINE,
    BeliefTargets,
    Readout,
    Scale,
    adjusted_rand,
    belief_rows,
    belief_states,
    belief_targets,
    cluster_clouds,
    commonest,
    held_out_scores,
    in_bands,
    jackknife_weights,
    leading_coordinates,
    left_out_silhouettes,
    meetings,
    percentile_interval,
    r2_interval,
    random_subspaces,
    ratio_interval,
    read_out,
    resampled_agreement,
    ridge,
    shuffled_within_position,
    statistic_interval,
)

SHUFFLE, SUBSPACES = "shuffle within position", "random subspaces of that rank"
RANDOM_LABELS = "random labels by token"
MEAN_BELIEF, GAUSSIAN, CONSTANT = "mean belief", "Gaussian cloud", "one constant answer"
EMBEDDING = "embedding"
ANSWERS = "exact next-token distribution"
JOINT, FACTORED, RANDOM_PAIRS = (
    "random maps of the joint belief",
    "the factors' beliefs side by side",
    "two random subspaces",
)
LOG_ANSWERS = "exact next-token log probabilities"  # which are linear in what any accurate network unembeds
_CLIP_BITS = 10.0  # of log probabilities, which may be infinite
IDENTIFIED = 0.99  # an R² of that distribution from here on leaves nothing to read out
STAGES = ("layer 0", "last layer", "last layer of an untrained network")
_FIRST, _LAST, _UNTRAINED = range(3)
MAX_CORNERS = 24  # with more hypotheses, beliefs are not stored for a plot


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BeliefReadoutReport(Report):
    """A linear map from the vectors to the exact belief is fitted on half of the sequences, and tested on the others.

    R² is 1 if the belief is decoded exactly, and 0 if the map is no better than the average belief. A decodable belief
    need not be used, and some decoding is possible by chance. Compare with the gray lines: beliefs exchanged between
    sequences at the same position (the effect of position alone), random subspaces with as many dimensions as there are
    hypotheses, and untrained networks. Where the answers are not the hypotheses, the exact distribution of the next
    token is a gray line too: if it gives the belief through a linear map, any accurate network holds the belief, and
    the read-out is not identified. On tasks with latent dynamics, so is the belief of an observer of the last few
    symbols. "Surviving hypotheses" are those still possible. For labels of your own, another gray line is the same map
    to random labels, drawn for each token with the frequencies of yours: what the map learns from the token alone.
    Named statistics of the belief, such as its mean and log variance, are read one by one in the same way.

    The other panels show whether the vectors form clusters, and whether the clusters are the best guesses (the most
    probable hypotheses) or only the token just read. k-means finds clusters in any data, so compare with the Gaussian
    cloud. Any accurate model clusters by best guess to some degree. The first panels plot the beliefs. Up to six
    hypotheses are the corners of a polygon: a corner is certainty, and a color is the same exact belief in every panel.
    More are the rows of a heat map, one column per position, in the same order in every panel. A correct read-out looks
    like the exact belief.

    Fields: linear read-out of the exact belief, by site and layer, and clusters of the same vectors.

    `sites` are `resid_post`, and `state` for recurrent models. `drawn_belief` are exact beliefs at held-out points, and
    `drawn_readout` their linear predictions at each of the `stages`, neither clipped nor renormalized. Both are empty
    if there are too many hypotheses to plot. `reachable_belief` are the beliefs that sequences of a process can reach,
    up to 2,000, and `n_beliefs` how many there are in all; −1 if these are not all, or for other tasks. Beliefs of a
    generalized process may be negative: they are not plotted, and of their scores only `r2` is known.

    Scores are on held-out sequences. `r2` is at most 1, and 0 for the mean belief. `total_variation` (0 to 1) compares
    the prediction, clipped at 0 and renormalized, with the belief. `balanced_accuracy` (½ at chance) is for predicting
    which hypotheses are still possible, NaN if all are. `silhouette` (−1 to 1) and `rand_index` (0 at chance, 1 for one
    cluster per best guess) are of k-means on `n_clustered` points; `token_rand_index` compares the same clusters with
    the token just read. `rand_index` and `nearest_centroid_accuracy` leave out points with tied hypotheses.

    Random subspaces have `subspace_rank` dimensions and a 95 % range over draws. The Gaussian cloud has the covariance
    of the vectors. "One constant answer" always predicts the most common best guess.

    `next_token_r2` is the R² of a linear map from the exact predictive to the belief, fitted and scored as for the
    vectors; NaN where the predictive is the belief. On tasks with latent dynamics, `window_r2` is the R² of the belief
    of an observer that sees only the last w symbols, without a map, and `window_map_r2` that of a linear map from it,
    fitted and scored as for the vectors. The baselines of `r2` have three of them: see `window_levels`.

    On a product of two processes, the vectors may follow the joint belief or each factor's. Of their variance that the
    joint belief explains linearly, within positions, `factored_share` is what the factors' beliefs explain: 1 if they
    are held side by side. `belief_dimension` is the number of principal axes, interpolated, for 95 % of that variance.
    `factor_angle` is the smallest principal angle, in degrees, between the axes that each factor's belief explains
    (those with at least 1 % of its part). All are NaN on other tasks. Log probabilities of the next token are sums over
    the factors, so what an accurate network unembeds is side by side: their level is a baseline of all three.
    `statistic_r2` is the R² of a linear map to each of the task's `statistics`, with the baselines of `r2`, except for
    window observers, and with log probabilities of the next token, which an accurate network unembeds linearly; random
    subspaces have one dimension. `drawn_statistic` are exact values at some held-out points,
    and `read_statistic` their predictions from the last layer.
    """

    name: ClassVar[str] = "belief_readout"
    title: ClassVar[str] = "Belief read-out: is the posterior linear in the activations?"
    limit: ClassVar[str] = "at most 3,072 scored positions"

    r2: Annotated[Estimate, R2("site layer", better="higher", label="R² of the belief")]
    total_variation: Annotated[Estimate, Share("site layer", better="lower", label="total variation from the belief")]
    balanced_accuracy: Annotated[Estimate, Share("site layer", better="higher", label="surviving hypotheses")]
    silhouette: Annotated[Estimate, Signed("site layer cluster_count", better="higher", label="silhouette of clusters")]
    rand_index: Annotated[
        Estimate, Signed("site layer cluster_count", better="higher", label="adjusted Rand, best guess")
    ]
    token_rand_index: Annotated[
        Estimate, Signed("site layer cluster_count", better="higher", label="adjusted Rand, token")
    ]
    nearest_centroid_accuracy: Annotated[
        Estimate, Share("site layer confidence", better="higher", label="accuracy of the nearest best guess")
    ]
    next_token_r2: Annotated[Estimate, R2(better="higher", label="R² of a map from the exact next-token distribution")]
    window_r2: Annotated[Estimate, R2("window_start window", better="higher", label="R² of window observers")]
    window_map_r2: Annotated[Estimate, R2("window_start window", better="higher", label="R² of a map from them")]
    factored_share: Annotated[Estimate, Share("site layer", better="higher", label="explained by the factors")]
    belief_dimension: Annotated[Estimate, NonNegative("site layer", better="lower", label="dimension of the belief")]
    factor_angle: Annotated[
        Estimate,
        Quantity("site layer", unit="degrees", better="higher", label="angle between the factors", range=(0.0, 90.0)),
    ]
    statistic_r2: Annotated[Estimate, R2("statistic site layer", better="higher", label="R² of a statistic")]
    drawn_statistic: Annotated[Float[np.ndarray, "statistic held_point"], Unit("1")]
    read_statistic: Annotated[Float[np.ndarray, "statistic site held_point"], Unit("1")]
    drawn_belief: Annotated[Float[np.ndarray, "point hypothesis"], Unit("1")]
    drawn_readout: Annotated[Float[np.ndarray, "stage site point hypothesis"], Unit("1")]
    reachable_belief: Annotated[Float[np.ndarray, "reachable hypothesis"], Unit("1")]
    n_beliefs: int
    statistics: tuple[str, ...]
    sites: tuple[str, ...]
    cluster_counts: tuple[str, ...]
    confidences: tuple[str, ...]
    window_starts: tuple[str, ...]
    windows: tuple[str, ...]
    stages: tuple[str, ...]
    subspace_rank: int
    n_clustered: int
    n: int

    @property
    def identified(self) -> bool:
        """Whether the exact distribution of the next token leaves a part of the belief open."""
        return not float(self.next_token_r2) >= IDENTIFIED

    @property
    def n_held_out(self) -> int:
        """Number of held-out sequences, on which the maps are scored."""
        return self.n // 2

    def headlines(self) -> Sequence[Headline]:
        (best,), _ = self.silhouette[0, -1].extreme("largest")
        k, hypotheses = self.cluster_counts[best], str(self.drawn_belief.shape[1])
        survive = "surviving hypotheses, last layer"
        verdict = None if self.identified else str(Verdict.NOT_IDENTIFIED)
        lines = [
            headline_of(self, "r2", (0, -1), "R² of the belief, last layer", verdict=verdict),
            headline_of(self, "total_variation", (0, -1), "total variation, last layer", verdict=verdict),
            headline_of(self, "balanced_accuracy", (0, -1), survive, verdict=verdict),
            extreme_of(self, "silhouette", "largest", f"best silhouette, k = {k}, last layer", (0, -1)),
        ]
        if np.isfinite(self.factored_share.value).any():
            forced = float(self.factored_share.baseline(LOG_ANSWERS).value[0, -1]) >= IDENTIFIED
            verdict = str(Verdict.NOT_IDENTIFIED) if forced else None
            for metric, label in (
                ("factored_share", "share explained by the factors"),
                ("belief_dimension", "dimension of the belief"),
                ("factor_angle", "angle between the factors"),
            ):
                lines.append(headline_of(self, metric, (0, -1), f"{label}, last layer", verdict=verdict))
        answers = [own.value for own in self.statistic_r2.baselines if own.name in (ANSWERS, LOG_ANSWERS)]
        for at, name in enumerate(self.statistics):
            is_given = any(own[at, 0, -1] >= IDENTIFIED for own in answers)
            verdict = str(Verdict.NOT_IDENTIFIED) if is_given else None
            label = f"R² of the {name.replace('_', ' ')}, last layer"
            lines.insert(at, headline_of(self, "statistic_r2", (at, 0, -1), label, verdict=verdict))
        for metric, other in (("rand_index", "best guesses"), ("token_rand_index", "the token just read")):
            lines.append(headline_of(self, metric, (0, -1, best), f"adjusted Rand, k = {k}, against {other}"))
        for row, site in enumerate(self.sites):
            if row > 0:
                lines.append(headline_of(self, "r2", (row, -1), f"R² of the belief, {site}", verdict=verdict))
            if hypotheses in self.cluster_counts:
                where, at = f"k = {hypotheses} in {site}, last layer", self.cluster_counts.index(hypotheses)
                lines.append(headline_of(self, "silhouette", (row, -1, at), f"silhouette, {where}"))
                lines.append(headline_of(self, "rand_index", (row, -1, at), f"adjusted Rand, {where}"))
                label = f"adjusted Rand, last token, {where}"
                lines.append(headline_of(self, "token_rand_index", (row, -1, at), label))
        return lines

    def panels(self) -> Sequence[Panel]:
        layers, counts = [str(layer) for layer in range(self.r2.value.shape[1])], "number of clusters k, last layer"
        rand, confidence = "adjusted Rand index (0 is chance)", "confidence"
        survive, best = "Accuracy on surviving hypotheses", "Clusters and best guesses"
        shown = (
            (self.r2, "Belief by a linear map, R²", ("layer", "held-out R² (1 is exact)"), layers),
            (
                self.total_variation,
                "Belief by a linear map, distance",
                ("layer", "total variation (0 is exact)"),
                layers,
            ),
            (self.balanced_accuracy, survive, ("layer", "balanced accuracy (½ is chance)"), layers),
            (
                self.factored_share,
                "Explained by the factors' beliefs",
                ("layer", "share of the joint belief's"),
                layers,
            ),
            (self.belief_dimension, "Dimension of the belief", ("layer", "axes for 95 %"), layers),
            (self.factor_angle, "Angle between the factors", ("layer", "degrees (90 is orthogonal)"), layers),
            (self.silhouette, "Clusters, silhouette", (counts, "silhouette (−1 to 1)"), self.cluster_counts),
            (self.rand_index, best, (counts, rand), self.cluster_counts),
            (self.token_rand_index, "Clusters and last tokens", (counts, rand), self.cluster_counts),
            (self.nearest_centroid_accuracy, "Nearest best guess", (confidence, "accuracy"), self.confidences),
        )
        (best_k,), _ = self.silhouette[0, -1].extreme("largest")
        drawn = [
            *self._statistics(layers),
            *(self._simplexes() if len(self.drawn_belief) or not self.statistics else ()),
        ]
        for row, site in enumerate(self.sites):
            for at, (metric, title, axes, ticks) in enumerate(shown):
                own = metric[row]
                own = own if own.value.ndim == 1 else own[-1]
                if np.isfinite(own.value).any():
                    named = best_k if axes[0] == counts else int(np.flatnonzero(np.isfinite(own.value))[-1])
                    panel = _readout_panel(title, site * (row > 0), axes, ticks, own, at=named)
                    drawn.append(replace(panel, is_folded=at + row > 0))
        return drawn

    def _statistics(self, layers: Sequence[str]) -> Iterator[Panel]:
        """Yield each statistic as it is read in the last layer against its exact value, then its R² by layer."""
        from bayesgeom.charts.lines import add_reference, brief

        for (at, name), (row, site) in product(enumerate(self.statistics), enumerate(self.sites)):
            exact, read, own = self.drawn_statistic[at], self.read_statistic[at, row], self.statistic_r2[at, row]
            label = name.replace("_", " ")
            title = f"The {label} read from {site} in the last layer: R² {brief(own.value[-1])}"
            panel, ends = Panel.blank(title, is_folded=row > 0), np.array([exact.min(), exact.max()])
            add_reference(panel.figure, ends, ends, name="exact")
            marker = {"size": 4, "opacity": 0.6, "color": MEASURED}
            panel.figure.add_scatter(x=exact.round(4), y=read.round(4), mode="markers", name="read", marker=marker)
            label_axes(panel.figure, f"exact {label}", "read by a linear map")
            yield panel
            axes = ("layer", "held-out R² (1 is exact)")
            by_layer = _readout_panel(f"The {label} by a linear map, R²", site * (row > 0), axes, layers, own, at=-1)
            yield replace(by_layer, is_folded=row > 0)

    def _simplexes(self) -> Iterator[Panel]:
        """Yield simplexes of exact beliefs next to read-outs, then those of layer 0 and of an untrained network."""
        from bayesgeom.charts.lines import brief
        from bayesgeom.charts.simplex import MAX_CORNERS as POLYGON
        from bayesgeom.charts.simplex import add_simplexes

        for row, site in enumerate(self.sites):
            drawn, r2 = self.drawn_readout[:, row], self.r2.value[row]
            title, shown = f"The belief read from {site} in the last layer: R² {brief(r2[-1])}", self.reachable_belief
            n_shown = f"{'all ' * (self.n_beliefs > 0)}{len(shown):,}"
            note = f"Gray: {n_shown} reachable beliefs" if 0 < len(shown.T) <= POLYGON and len(shown) else ""
            panel = Panel.blank(title, is_folded=row > 0, note=note)
            pair = {"exact belief": self.drawn_belief, "read": drawn[_LAST]}
            add_simplexes(panel.figure, pair, self.drawn_belief, shown)
            yield panel
            panel = Panel.blank(f"The same without training, and from {site} in layer 0", is_folded=True)
            others = {"untrained, last layer": drawn[_UNTRAINED], f"layer 0, R² {brief(r2[0])}": drawn[_FIRST]}
            add_simplexes(panel.figure, others, self.drawn_belief)
            yield panel


def _readout_panel(
    title: str, site: str, axes: tuple[str, str], ticks: Sequence[str], own: Estimate, *, at: int
) -> Panel:
    """Draw an estimate along its only axis, which `ticks` name; the embedding is one step before the first.

    The title states the entry `at` this place.
    """
    from bayesgeom.charts.lines import brief, estimate_panel
    from bayesgeom.report import BASELINE

    where = f" with k = {ticks[at]}" if axes[0].startswith("number") else f" in {axes[0]} {ticks[at]}"
    where = where.replace("in confidence", "for confidence")
    named = f"{title}{f' ({site})' if site else ''}: {brief(own.value[at])}{where}"
    steps, levels = range(len(own.value)), [level for level in own.baselines if level.name != EMBEDDING]
    panel = estimate_panel(named, axes, steps, replace(own, baselines=tuple(levels)))
    start = [float(level.value[0]) for level in own.baselines if level.name == EMBEDDING]
    places, texts = list(steps), list(ticks)
    if start and np.isfinite(start[0]):
        marker = {"color": BASELINE, "symbol": "diamond", "size": 8}
        drawn = {"mode": "markers", "name": f"baseline: {EMBEDDING}", "marker": marker, "showlegend": False}
        panel.figure.add_scatter(x=[-1], y=start, **drawn)
        places, texts = [-1, *places], ["emb", *texts]
    every = -(-len(texts) // 9)
    panel.figure.update_xaxes(tickvals=places[::every], ticktext=texts[::every])
    return panel


def window_levels(window_r2: Estimate, window_map_r2: Estimate, windows: Sequence[str]) -> tuple[Baseline, ...]:
    """Return R² of window observers as baselines of `r2`: of one symbol, of up to four, and of the widest measured.

    Each has the better of its two starts, as it is or through a map, and that number's interval. The level to beat is
    therefore its upper end, as in claim Y1.

    Args:
        window_r2: R² of the observers' beliefs, by start and width.
        window_map_r2: R² of a linear map from them.
        windows: The widths.
    """
    measured = np.concatenate([np.stack([own.value, *own.ends]) for own in (window_r2, window_map_r2)], axis=1)
    widths = [int(width) for width in windows]
    shown = {1, max((width for width in widths if width <= WIDEST_BASELINE), default=1), max(widths, default=1)}
    found = []
    for at, width in enumerate(widths):
        if width in shown:
            value, low, high = measured[:, measured[0, :, at].argmax(), at]
            name = "belief after the current symbol alone" if width == 1 else f"belief after the last {width} symbols"
            found.append(Baseline.of("baseline", name, value, low=low, high=high))
    return tuple(found)


def cluster_scores(
    clouds: Float[Tensor, "cloud point d"],
    targets: BeliefTargets,
    tokens: Float[Tensor, "point shuffle token"],
    counts: Sequence[int],
    weights: Float64[np.ndarray, "replicate sequence"],
    *,
    n_clustered: int,
    seed: int,
) -> dict[str, tuple[Float64[np.ndarray, "replicate cloud count"], Float64[np.ndarray, "cloud count"]]]:
    """Run k-means on a sample of the points and score the clusters, which are fixed, under each row of weights.

    Args:
        clouds: The points of several clouds.
        targets: The beliefs, whose most probable hypotheses are compared with the clusters.
        tokens: The token just read, one-hot: the first draw is the true one, others are shuffled.
        counts: Numbers of clusters.
        weights: `jackknife_weights` of all sequences.
        n_clustered: Number of points to sample.
        seed: Seed of the sample and of k-means.

    Returns:
        By name, the scores and their chance level. `silhouette` measures separation; its level is a Gaussian cloud.
        `rand_index` and `token_rand_index` compare the clusters with the best guesses and with the token just read;
        their level is shuffled beliefs or tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(clouds.shape[1], generator=generator)[:n_clustered].sort().values
    found = cluster_clouds(clouds[:, chosen], counts, generator)
    owner, times = chosen // targets.n_positions, torch.from_numpy(weights / weights[:1])
    counted = weights[:, owner.numpy()]
    silhouettes = [
        left_out_silhouettes(found.distances, *own, counted) for own in zip(found.labels, counts, strict=True)
    ]
    scores = {"silhouette": (np.stack(silhouettes, axis=2), found.gaussian_scores.cpu().numpy())}
    for name, others in (("rand_index", targets.values[chosen, :, LABEL]), ("token_rand_index", tokens[chosen])):
        true = others[:, 0, others[:, 0].any(dim=0)]  # a hypothesis that is never the best guess has empty columns
        rows = torch.stack([resampled_agreement(own, true, owner, times) for own in found.labels], dim=2)
        scores[name] = (rows.numpy(), adjusted_rand(meetings(found.labels, others[:, 1:])).mean(dim=1).numpy())
    return scores


def guess_scores(
    readouts: Sequence[Sequence[Readout]],
    targets: BeliefTargets,
    bands: Sequence[tuple[float, float]],
    *,
    n: int,
    seed: int = 0,
) -> Estimate:
    """Return the accuracy of predicting the best guess by the nearest centroid, by site, layer and band of confidence.

    Its baselines are the accuracy after a shuffle, and that of always predicting the most common guess.
    """
    is_counted = in_bands(targets, bands)
    n_points = is_counted.sum(axis=2, dtype=np.float64)  # band, sequence, draw
    n_hits = np.array(
        [[(own.hits & is_counted).sum(axis=2, dtype=np.float64) for own in layers] for layers in readouts]
    )
    found = ratio_interval(
        np.moveaxis(n_hits[..., 0], 3, 0), n_points[:, :, 0].T[:, None, None], seed=seed, bounds=(0.0, 1.0)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = n_hits.sum(axis=3) / n_points.sum(axis=1)
    shuffled = Baseline.of("permutation", SHUFFLE, accuracy[..., 1:].mean(axis=-1))
    constant = Baseline.of("baseline", CONSTANT, commonest(targets, is_counted))
    return with_interval(accuracy[..., 0], found, n=n, baselines=known(shuffled, constant))


def linear_scores(
    readouts: Sequence[Sequence[Readout]], targets: BeliefTargets, *, n: int, seed: int = 0
) -> dict[str, Any]:
    """Return `r2`, `total_variation` and `balanced_accuracy` on held-out sequences, by site and layer.

    The maps are fixed: an interval of R² is for the R² of this map, not for the best linear map. Baselines are
    shuffled beliefs and random subspaces; that of total variation is the mean belief.
    """
    weights, n_draws = jackknife_weights(len(targets.held_out)), len(targets.means)
    scores = [[held_out_scores(own, targets, weights) for own in layers] for layers in readouts]
    distance = (targets.held_out[:, :, 0, BELIEF] - targets.means[0, BELIEF]).abs().double().sum(dim=-1) / 2
    distance = torch.full_like(distance, torch.nan) if targets.is_signed else distance
    maps = {
        "r2": np.array([[own.r2 for own in layers] for layers in readouts]),
        "balanced_accuracy": np.array([[own.balanced_accuracy for own in layers] for layers in readouts]),
    }
    levels = {"total_variation": [Baseline.of("baseline", MEAN_BELIEF, float(distance.mean()))]}
    for name, found in maps.items():
        within = np.moveaxis(found[..., n_draws:], 2, 0)
        low, high = percentile_interval(within)
        levels[name] = [
            Baseline.of("permutation", SHUFFLE, found[..., 1:n_draws].mean(axis=-1)),
            Baseline.of("chance", SUBSPACES, within.mean(axis=0), low=low, high=high),
        ]
    return {
        name: smooth_estimate(
            np.moveaxis(np.array([[own[name] for own in layers] for layers in scores]), 2, 0),
            seed=seed,
            n=n,
            baselines=known(*own_levels),
        )
        for name, own_levels in levels.items()
    }


MAX_POINTS, MAX_WIDTH, N_CLUSTERED, N_DRAWN, N_DOTS, COUNTS = 3_072, 192, 500, 1_000, 300, range(2, 9)
MOST_REACHABLE = 2_000  # beliefs of a process that are drawn
MIN_SEQUENCES = 16  # used however long they are
SHUFFLES, N_SUBSPACES = 5, 20
WIDTHS = (1, 2, 3, 4, 10)  # symbols of the window observers whose beliefs are compared
_BANDS = {"all": (0, 2), "below 0.5": (0, 0.5), "0.5–0.75": (0.5, 0.75), "0.75–0.9": (0.75, 0.9), "above 0.9": (0.9, 2)}


@final
@dataclass(frozen=True)
class BeliefReadout(Probe[BeliefReadoutReport]):
    """Fit on the first half of the sequences and score on the rest; at most `MAX_POINTS` points, or 16 sequences.

    A site wider than `MAX_WIDTH`, such as the state of a Mamba, is reduced to that many leading principal axes.
    Activations are stored: read-outs for several targets, penalties and shuffles use the same points.
    """

    name: ClassVar[str] = "belief_readout"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(RESID_PRE, STATE), posterior=True)
    relative_time: ClassVar[int] = 6

    def measure(self, run: Run, untrained: Sequence[BeliefReadoutReport] = ()) -> BeliefReadoutReport:
        trials = run.trials.rows(slice(0, max(MIN_SEQUENCES, MAX_POINTS // run.trials.n_scored)))
        signed, n = trials.is_signed, len(trials)
        beliefs = belief_rows(trials.at_scored(trials.belief).cpu(), is_signed=signed)
        targets = belief_targets(_shuffles(beliefs, run.seed), n_fit=-(-n // 2), is_signed=signed)
        sites = [site for site in (RESID_POST, STATE) if site in run.recorded]
        clouds = [_points(run.at(site)[:, :n].flatten(1, 2), targets, run.seed) for site in sites]
        rank = min(trials.belief.shape[-1], *(points.shape[-1] for points in clouds))
        found = [_read(points, targets, rank, run.seed) for points in clouds]
        windows, window_r2, window_map_r2 = _windows(trials, targets, run.seed)
        next_token_r2 = _next_token(trials, targets, run.seed)
        before = (
            _points(run.at(RESID_PRE)[:1, :n].flatten(1, 2), targets, run.seed) if RESID_PRE in run.recorded else None
        )
        levels = window_levels(window_r2, window_map_r2, windows)
        linear = _compared(found, targets, next_token_r2, levels, before=before, n=n, seed=run.seed)
        if trials.is_labeled:
            scores = [_of_random_labels(points, trials, beliefs, targets.n_fit, run.seed) for points in clouds]
            for name in ("r2", "balanced_accuracy"):
                random = Baseline.of("permutation", RANDOM_LABELS, np.stack([own[name] for own in scores]))
                linear[name] = replace(linear[name], baselines=(*linear[name].baselines, *known(random)))
        linear |= _factored(clouds, trials, run.seed)
        linear["statistic_r2"], drawn_statistic, read_statistic = _statistics(trials, clouds, before, run.seed)
        drawn_belief, drawn_readout = _drawn(found, targets, untrained, run.seed)
        reachable, n_beliefs = _reachable(trials)
        report = BeliefReadoutReport(
            **linear,
            **_clusters(clouds, targets, _tokens(trials, run.seed), n=n, seed=run.seed),
            nearest_centroid_accuracy=guess_scores(found, targets, [*_BANDS.values()], n=n, seed=run.seed),
            next_token_r2=next_token_r2,
            window_r2=window_r2,
            window_map_r2=window_map_r2,
            drawn_statistic=drawn_statistic,
            read_statistic=read_statistic,
            statistics=tuple(trials.statistics),
            drawn_belief=drawn_belief,
            drawn_readout=drawn_readout,
            reachable_belief=reachable,
            n_beliefs=n_beliefs,
            sites=tuple(site.name for site in sites),
            cluster_counts=tuple(map(str, COUNTS)),
            confidences=tuple(_BANDS),
            window_starts=STARTS if windows else (),
            windows=windows,
            stages=STAGES,
            subspace_rank=rank,
            n_clustered=min(N_CLUSTERED, len(targets.values)),
            n=n,
        )
        clusters = ("silhouette", "rand_index", "token_rand_index", "nearest_centroid_accuracy")
        return with_untrained(report, untrained, *linear, *clusters)

    def controls(self) -> Iterator[Control[BeliefReadoutReport]]:
        rng = np.random.default_rng(0)
        # At each point one hypothesis is excluded and one of the others is slightly more probable.
        weights = rng.uniform(0.6, 1.4, size=(83, 5, 3))
        weights[rng.permuted(np.tile(np.arange(3), (83, 5, 1)), axis=2) == 0] = 0
        belief = weights / weights.sum(axis=2, keepdims=True)
        trials = planted_trials(belief, rng.integers(7, size=(83, 11)))
        noise, place = rng.normal(size=(83, 5, 7)), np.tile(np.eye(5, 7), (83, 1, 1))
        written = belief @ rng.normal(size=(3, 7))
        guesses = 9 * np.eye(3, 7)[belief.argmax(axis=2)] + 0.1 * noise
        layers = torch.from_numpy(np.stack([noise, written, guesses, place + 0.01 * noise]))
        planted = planted_run(trials, {RESID_POST: layers})
        yield Control(label="noise, the belief, best guesses, position", run=planted, holds=_tells_layers_apart)
        before = planted_run(trials, {RESID_POST: layers[:1], RESID_PRE: layers[1:2]})
        yield Control(
            label="the belief is in the embedding only",
            run=before,
            holds=lambda r: (
                r.r2.baseline(EMBEDDING).value[0, 0] > 0.99 > 0.1 > r.r2.value[0, 0]
                and r.balanced_accuracy.baseline(EMBEDDING).value[0, 0] > 0.9
            ),
        )
        # The vectors hold no more than the answers, which give the whole belief.
        answers = belief @ np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.1, 0.7]])
        asked = replace(trials, predictive=torch.from_numpy(np.pad(answers, ((0, 0), (6, 0), (0, 0)))))
        yield Control(
            label="the exact answers give the belief, so that its read-out is not identified",
            run=planted_run(asked, {RESID_POST: torch.from_numpy(answers @ rng.normal(size=(3, 7)))[None]}),
            holds=lambda r: (
                not r.identified
                and r.r2.value[0, 0] > 0.99
                and r.headlines()[0].verdict == Verdict.NOT_IDENTIFIED
                and "yes" not in r.r2.clears("higher")
            ),
        )
        yield from _label_controls(rng)
        yield _statistic_control(trials, noise, rng)
        yield _product_control(rng)
        # A high R² without a carried belief: the vectors encode only the current symbol.
        chain = planted_chain(stay=0.9, seed=0)
        assert chain.observers is not None
        after = [*islice(window_beliefs(chain.observers.filter, chain.at_scored(chain.belief), "stationary"), 2)][1]
        yield Control(
            label="the belief after the current symbol is read as well as that observer's",
            run=planted_run(chain, {RESID_POST: (after @ after.new_tensor(rng.normal(size=(2, 7))))[None]}),
            holds=lambda r: (
                r.r2.value[0, 0] > 0.3
                and abs(r.r2.value[0, 0] - r.window_map_r2.value[1, 0]) < 0.01 < 0.05 < 1 - r.r2.value[0, 0]
            ),
        )


def _product_control(rng: np.random.Generator) -> Control[BeliefReadoutReport]:
    """Plant noise, two factors' beliefs side by side, the joint belief, and factors that share a direction."""
    a, b = (rng.dirichlet(np.ones(k), size=(83, 5)) for k in (3, 2))
    joint = (a[..., None] * b[..., None, :]).reshape(83, 5, 6)
    one, other = np.eye(11)[:3], np.eye(11)[5:7]
    noise = rng.normal(size=(4, 83, 5, 11)) * np.array([1, 0.01, 0.01, 0.01])[:, None, None, None]
    shared = a @ one + b @ (one[:2] - one[1:])
    layers = np.stack([0 * shared, a @ one + b @ other, joint @ rng.normal(size=(6, 11)), shared]) + noise
    pairs = replace(planted_trials(joint, rng.integers(7, size=(83, 5))), factor_sizes=(3, 2))
    return Control(
        label="noise, both factors' beliefs, the joint belief, and factors that share a direction",
        run=planted_run(pairs, {RESID_POST: torch.from_numpy(layers)}),
        holds=_tells_products_apart,
    )


def _tells_products_apart(report: BeliefReadoutReport) -> bool:
    _, factored, joint, shared = range(4)
    share, axes, degrees = (report.estimate(name).value[0] for name in _OF_PRODUCTS)
    random = report.factor_angle.baseline(RANDOM_PAIRS).value[0, factored]
    maps, logs = (report.factored_share.baseline(name).value[0, 0] for name in (JOINT, LOG_ANSWERS))
    return bool(
        min(share[[factored, shared]]) > 0.99 > 0.95 > share[joint]
        and maps < 0.9 < 0.99 < logs
        and report.belief_dimension.baseline(FACTORED).value[0, 0] < 3 < axes[joint]
        and max(axes[[factored, shared]]) < 3 < report.belief_dimension.baseline(JOINT).value[0, 0]
        and degrees[factored] > 88 > 80 > random > 20 > degrees[shared]
    )


def _label_controls(rng: np.random.Generator) -> Iterator[Control[BeliefReadoutReport]]:
    """Yield labels that follow from the token alone, which are read without error as random labels are, and others."""
    for label, width, is_selective in (("by token", 11, False), ("along a direction", 2, True)):
        sides = rng.permutation(np.arange(11) % 2) if not is_selective else np.arange(11) % 2
        tokens = rng.integers(11, size=(83, 5))
        code = np.eye(11) if width == 11 else np.stack([2.0 * sides - 1, rng.normal(size=11)], axis=1)
        named = planted_trials(np.eye(2)[sides[tokens]], tokens)
        yield Control(
            label=f"labels {label}, against random labels by token",
            run=planted_run(replace(named, is_labeled=True), {RESID_POST: torch.from_numpy(code[tokens])[None]}),
            holds=partial(_tells_labels_apart, is_selective=is_selective),
        )


def _statistic_control(
    trials: Trials, noise: Float64[np.ndarray, "sequence position d"], rng: np.random.Generator
) -> Control[BeliefReadoutReport]:
    """Return a first layer that holds the mean alone, and a second one that holds the log variance, too."""
    values = {name: rng.normal(size=(83, 5)) for name in ("mean", "log_variance")}
    codes = rng.normal(size=(2, 7))
    mean = values["mean"][:, :, None] * codes[0] + 0.01 * noise
    stated = {name: torch.from_numpy(np.pad(own, ((0, 0), (6, 0)))) for name, own in values.items()}
    return Control(
        label="the mean, then mean and log variance",
        run=planted_run(
            replace(trials, statistics=stated),
            {RESID_POST: torch.from_numpy(np.stack([mean, mean + values["log_variance"][:, :, None] * codes[1]]))},
        ),
        holds=lambda r: bool(
            min(*r.statistic_r2.value[0, 0], r.statistic_r2.value[1, 0, 1]) > 0.99
            and abs(r.statistic_r2.value[1, 0, 0]) < 0.1
        ),
    )


def _tells_labels_apart(report: BeliefReadoutReport, *, is_selective: bool) -> bool:
    control = report.r2.baseline(RANDOM_LABELS).value[0, 0]
    return bool(report.r2.value[0, 0] > 0.99 and (control < 0.5 if is_selective else control > 0.99))


def _tells_layers_apart(report: BeliefReadoutReport) -> bool:
    noise, written, guesses, place = range(4)
    at_three = report.cluster_counts.index("3")
    r2, distance, surviving = (own.value[0] for own in (report.r2, report.total_variation, report.balanced_accuracy))
    rand_index, silhouette = report.rand_index.value[0, :, at_three], report.silhouette.value[0, :, at_three]
    nearest = report.nearest_centroid_accuracy.value[0, :, 0]
    return bool(
        r2[written] > 0.99 > 0.1 > max(r2[[noise, place]])
        and distance[written] < 0.02 < 0.1 < distance[noise]
        and surviving[written] > 0.9
        and max(surviving[[noise, place]]) < 0.6
        and rand_index[guesses] > 0.99 > 0.1 > rand_index[place]
        and silhouette[guesses] > 0.9 > 0.5 > silhouette[noise]
        and nearest[guesses] > 0.99 > 0.6 > nearest[noise]
    )


def _shuffles(
    rows: Float64[Tensor, "sequence position *rest"], seed: int
) -> Float64[Tensor, "draw sequence position *rest"]:
    """Return the rows, then the rows shuffled within position."""
    rng = np.random.default_rng(seed)
    shuffled = (torch.from_numpy(shuffled_within_position(rows.numpy(), rng)) for _ in range(SHUFFLES))
    return torch.stack([rows, *shuffled])


def _of_random_labels(
    points: Float[Tensor, "layer point d"],
    trials: Trials,
    rows: Float64[Tensor, "sequence position kind hypothesis"],
    n_fit: int,
    seed: int,
) -> dict[str, Float64[np.ndarray, " layer"]]:
    """Return R² and accuracy by layer of maps to random labels, one for each token with the marginal of the true ones.

    NaN where every scored token is the same, and so has one label. Means over `SHUFFLES` draws of labels.
    """
    rng, flat = np.random.default_rng(seed), rows.flatten(0, 1)
    token = torch.unique(trials.at_scored(trials.tokens).cpu(), return_inverse=True)[1]
    drawn = [flat[rng.integers(len(flat), size=int(token.max()) + 1)][token] for _ in range(SHUFFLES)]
    targets = [
        belief_targets(own[None], n_fit=n_fit // rows.shape[1]) for own in drawn if bool((own != own[:1, :1]).any())
    ]
    found = np.full((2, len(points)), np.nan)
    if targets:
        no_bases = torch.zeros(0, points.shape[2], 1, dtype=torch.float64, device=points.device)
        for at, layer in enumerate(points):
            read = [read_out(layer, own, no_bases) for own in targets]
            found[:, at] = np.mean([(own.r2[0], own.balanced_accuracy[0]) for own in read], axis=0)
    return {"r2": found[0], "balanced_accuracy": found[1]}


def _tokens(trials: Trials, seed: int) -> Float[Tensor, "point shuffle token"]:
    """Return the token just read at every point, one-hot, true and shuffled within position."""
    read = trials.at_scored(trials.tokens).cpu()
    rows = torch.nn.functional.one_hot(torch.unique(read, return_inverse=True)[1]).double()
    return _shuffles(rows, seed).flatten(1, 2).transpose(0, 1)


def _points(
    vectors: Float[Tensor, "layer point d"], targets: BeliefTargets, seed: int
) -> Float[Tensor, "layer point axis"]:
    return torch.stack([leading_coordinates(points, MAX_WIDTH, n_fit=targets.n_fit, seed=seed) for points in vectors])


def _read(points: Float[Tensor, "layer point d"], targets: BeliefTargets, rank: int, seed: int) -> list[Readout]:
    """Read every layer, in full and in random subspaces."""
    bases = random_subspaces(points.shape[2], rank, draws=N_SUBSPACES, seed=seed).to(points.device)
    return [read_out(layer, targets, bases) for layer in points]


def _clusters(
    clouds: Sequence[Float[Tensor, "layer point _d"]],
    targets: BeliefTargets,
    tokens: Float[Tensor, "point shuffle token"],
    *,
    n: int,
    seed: int,
) -> dict[str, Any]:
    """Return the scores of the clusters at every site, with their chance levels."""
    sites = [
        cluster_scores(own, targets, tokens, COUNTS, jackknife_weights(n), n_clustered=N_CLUSTERED, seed=seed)
        for own in clouds
    ]
    found = {}
    for name in sites[0]:
        rows, levels = zip(*(site[name] for site in sites), strict=True)
        kind: tuple[Kind, str] = ("chance", GAUSSIAN) if name == "silhouette" else ("permutation", SHUFFLE)
        found[name] = smooth_estimate(
            np.stack(rows, axis=1), seed=seed, n=n, baselines=known(Baseline.of(*kind, np.stack(levels)))
        )
    return found


_AXES_SHARE, _LEAST_SHARE, _STRENGTH = 0.95, 0.01, 1e-6  # of `belief_dimension`, of `factor_angle`, of the penalty
_OF_PRODUCTS = {"factored_share": 1.0, "belief_dimension": math.inf, "factor_angle": 90.0}  # and the largest values


@final
@dataclass(frozen=True, kw_only=True)
class _Factored:
    """What a cloud has of the factors, for each row of weights, and the dimension of either factor's subspace."""

    scores: dict[str, Float64[np.ndarray, " replicate"]]
    ranks: tuple[int, int]


def _factored(clouds: Sequence[Float[Tensor, "layer point _d"]], trials: Trials, seed: int) -> dict[str, Any]:
    """Return the scores of `_OF_PRODUCTS` by site and layer; NaN without factors."""
    n, sizes = len(trials), trials.factor_sizes
    if not sizes:
        return dict.fromkeys(_OF_PRODUCTS, Estimate.of(np.full((len(clouds), len(clouds[0])), np.nan), n=n))
    joint, weights = trials.at_scored(trials.belief).cpu(), torch.from_numpy(jackknife_weights(n))
    both = joint.unflatten(2, sizes)
    beliefs = torch.cat([both.sum(dim=3), both.sum(dim=2), joint], dim=2)
    in_sequences = (cloud.cpu().double().unflatten(1, joint.shape[:2]) for cloud in clouds)
    found = [[_factored_in(points, beliefs, sizes, weights) for points in cloud] for cloud in in_sequences]
    levels = _product_levels(clouds, found, trials, beliefs, seed)
    scores = {}
    for name, most in _OF_PRODUCTS.items():
        rows = np.moveaxis(np.array([[own.scores[name] for own in layers] for layers in found]), 2, 0)
        # At an edge, fitted noise moves the number by more than its uncertainty: the interval is of its expectation.
        scale: Scale = "share" if math.isfinite(most) else "plain"
        unit = most if scale == "share" else 1.0
        inside = statistic_interval(rows / unit, seed=seed, scale=scale, is_corrected=False)
        inside = replace(inside, lo=unit * inside.lo, hi=unit * inside.hi)
        scores[name] = with_interval(rows[0], inside, n=n, baselines=known(*levels[name]))
    return scores


def _product_levels(
    clouds: Sequence[Float[Tensor, "layer point _d"]],
    found: Sequence[Sequence[_Factored]],
    trials: Trials,
    beliefs: Float64[Tensor, "sequence position belief"],
    seed: int,
) -> dict[str, list[Baseline]]:
    """Return the levels of `_OF_PRODUCTS`: random maps of the joint belief, random subspaces, and what unembeds.

    The log probabilities of a product are sums over its factors, and linear in what an accurate network unembeds.
    """
    joint, sizes = trials.at_scored(trials.belief).cpu(), trials.factor_sizes
    logs = trials.at_scored(trials.predictive).cpu().log2().clamp_min(-_CLIP_BITS)
    rng, even = np.random.default_rng(seed), torch.full((1, len(joint)), 1 / len(joint), dtype=torch.float64)
    mapped, degrees = [], []
    for cloud, layers in zip(clouds, found, strict=True):
        maps = torch.from_numpy(rng.normal(size=(N_SUBSPACES, joint.shape[2], cloud.shape[2])))
        mapped.append([_factored_in(joint @ one, beliefs, sizes, even).scores for one in maps])
        degrees.append([_random_degrees(cloud.shape[2], own.ranks, seed) for own in layers])
    levels = {}
    for name in ("factored_share", "belief_dimension"):
        drawn = np.array([[one[name] for one in draws] for draws in mapped])  # site, draw, and one set of weights
        low, high = percentile_interval(np.moveaxis(drawn, 1, 0))
        levels[name] = [Baseline.of("chance", JOINT, drawn.mean(axis=1), low=low, high=high)]
    side_by_side = _factored_in(beliefs[..., : sum(sizes)], beliefs, sizes, even).scores["belief_dimension"]
    levels["belief_dimension"].append(Baseline.of("ceiling", FACTORED, side_by_side[0]))
    random = np.array(degrees)
    low, high = percentile_interval(np.moveaxis(random, 2, 0))
    levels["factor_angle"] = [Baseline.of("chance", RANDOM_PAIRS, random.mean(axis=2), low=low, high=high)]
    for name, own in _factored_in(logs, beliefs, sizes, even).scores.items():
        levels[name].append(Baseline.of("baseline", LOG_ANSWERS, own[0]))
    return levels


def _factored_in(
    points: Float64[Tensor, "sequence position d"],
    beliefs: Float64[Tensor, "sequence position belief"],
    sizes: Sequence[int],
    weights: Float64[Tensor, "replicate sequence"],
) -> _Factored:
    """Regress the points on the factors' beliefs and on the joint belief, which follows them, within positions."""
    x, y = (own - own.mean(dim=0) for own in (points, beliefs))
    gram = torch.tensordot(weights, torch.einsum("spi,spj->sij", y, y), dims=1)
    cross = torch.tensordot(weights, torch.einsum("spi,spd->sid", y, x), dims=1)
    n_main = sum(sizes)
    main, joint = (
        ridge(gram[:, part, part], cross[:, part], strength=_STRENGTH)
        for part in (slice(0, n_main), slice(n_main, None))
    )
    # Of a least-squares fit, Σ‖x̂‖² = tr(Wᵀ Yᵀ X).
    share = (main * cross[:, :n_main]).sum(dim=(1, 2)) / (joint * cross[:, n_main:]).sum(dim=(1, 2))
    variances = torch.linalg.svdvals(_scaled(gram[:, n_main:, n_main:], joint)).square()
    shares = variances / variances.sum(dim=1, keepdim=True)
    missing = _AXES_SHARE - (shares.cumsum(dim=1) - shares)  # before each axis
    dimension = torch.where(shares > 0, missing / shares, 0.0).clamp(0, 1).sum(dim=1)
    a, b = (
        _axes(_scaled(gram[:, part, part], main[:, part])) for part in (slice(0, sizes[0]), slice(sizes[0], n_main))
    )
    ranks = a.shape[1], b.shape[1]
    cosine = torch.linalg.svdvals(a @ b.mT).amax(dim=1) if all(ranks) else torch.full_like(share, torch.nan)
    scores = {
        "factored_share": share.clamp(0, 1),
        "belief_dimension": torch.where(share.isfinite(), dimension, torch.nan),
        "factor_angle": cosine.clamp_max(1).acos().rad2deg(),
    }
    return _Factored(scores={name: own.numpy() for name, own in scores.items()}, ranks=ranks)


def _scaled(
    gram: Float64[Tensor, "replicate p p"], maps: Float64[Tensor, "replicate p d"]
) -> Float64[Tensor, "replicate p d"]:
    """Return rows with the second moments of the predictions of the map W: G^½ W."""
    sizes, axes = torch.linalg.eigh(gram)
    rows: Tensor = (axes * sizes.clamp_min(0).sqrt()[:, None]).mT @ maps
    return rows


def _axes(rows: Float64[Tensor, "replicate p d"]) -> Float64[Tensor, "replicate axis d"]:
    """Return the axes with at least 1 % of the rows' variance, as many in each replicate as in the first one."""
    _, sizes, axes = torch.linalg.svd(rows, full_matrices=False)
    rank = int((sizes[0].square() > _LEAST_SHARE * sizes[0].square().sum()).sum())
    kept: Tensor = axes[:, :rank]
    return kept


def _random_degrees(d: int, ranks: tuple[int, int], seed: int) -> Float64[np.ndarray, " draw"]:
    """Return the smallest principal angle, in degrees, between random subspaces of these dimensions."""
    if not all(ranks):
        return np.full(N_SUBSPACES, np.nan)
    a, b = (random_subspaces(d, rank, draws=N_SUBSPACES, seed=seed + at) for at, rank in enumerate(ranks))
    cosines = torch.linalg.svdvals(a.mT @ b)[:, 0].clamp_max(1)
    return np.asarray(cosines.acos().rad2deg().numpy())


def _compared(
    found: Sequence[Sequence[Readout]],
    targets: BeliefTargets,
    next_token_r2: Estimate,
    levels: Sequence[Baseline],
    *,
    before: Float[Tensor, "one point d"] | None,
    n: int,
    seed: int,
) -> dict[str, Any]:
    """Return `linear_scores` with further baselines: next-token distribution and others of R², and the embedding."""
    linear, (low, high) = linear_scores(found, targets, n=n, seed=seed), next_token_r2.ends
    further = {"r2": (Baseline.of("baseline", ANSWERS, next_token_r2.value, low=low, high=high), *levels)}
    if before is not None:
        (embedded,) = _read(before, targets, 1, seed)
        for name, score in held_out_scores(embedded, targets, np.ones((1, len(targets.held_out)))).items():
            level = np.full((len(found), len(found[0])), np.nan)  # the embedding is that of `resid_post` alone
            level[0] = score
            further[name] = (*further.get(name, ()), Baseline.of("baseline", EMBEDDING, level))
    for name, own_levels in further.items():
        own = linear[name]
        shown = (level.broadcast(own.value.shape) for level in known(*own_levels))
        linear[name] = replace(own, baselines=(*own.baselines, *shown))
    return linear


def _statistics(
    trials: Trials,
    clouds: Sequence[Float[Tensor, "layer point _d"]],
    before: Float[Tensor, "one point d"] | None,
    seed: int,
) -> tuple[Estimate, Float64[np.ndarray, "statistic held_point"], Float64[np.ndarray, "statistic site held_point"]]:
    """Return R² of each statistic, and exact and read values in the last layer at some held-out points."""
    n, n_layers, scores, exact, read = len(trials), len(clouds[0]), [], [], []
    for values in trials.statistics.values():
        rows = torch.zeros(n, trials.n_scored, 3, 1, dtype=torch.float64)  # no hypotheses: the other kinds are empty
        rows[:, :, BELIEF, 0] = trials.at_scored(values).cpu()
        targets = belief_targets(_shuffles(rows, seed), n_fit=-(-n // 2), is_signed=True)
        found = [_read(points, targets, 1, seed) for points in clouds]
        next_token, logs = (_next_token(trials, targets, seed, of_logs=of_logs) for of_logs in (False, True))
        low, high = logs.ends
        levels = (Baseline.of("baseline", LOG_ANSWERS, logs.value, low=low, high=high),)
        scores.append(_compared(found, targets, next_token, levels, before=before, n=n, seed=seed))
        truth = targets.held_out[:, :, 0, BELIEF].double().flatten().numpy()
        chosen = np.sort(np.random.default_rng(seed).permutation(len(truth))[:N_DOTS])
        exact.append(truth[chosen])
        read.append([layers[-1].predicted_belief.flatten()[chosen] for layers in found])
    if not scores:
        nothing = Estimate.of(np.zeros((0, len(clouds), n_layers)), n=n)
        return nothing, np.zeros((0, 0)), np.zeros((0, len(clouds), 0))
    return stacked([own["r2"] for own in scores]), np.stack(exact), np.array(read)


def _next_token(trials: Trials, targets: BeliefTargets, seed: int, *, of_logs: bool = False) -> Estimate:
    """Return the R² of a linear map from the exact predictive, or its log, to the targets; NaN if they are the same."""
    predictive, exact = trials.at_scored(trials.predictive).cpu(), targets.values[:, 0, BELIEF]
    if exact.shape[1] == predictive.shape[2] and torch.equal(predictive.flatten(0, 1).float(), exact):
        return Estimate.of(np.nan, (np.nan, np.nan), n=len(trials))
    predictive = predictive.log2().clamp_min(-_CLIP_BITS) if of_logs else predictive
    read = _read(predictive.flatten(0, 1)[None], targets, predictive.shape[-1], seed)
    found: Estimate = linear_scores([read], targets, n=len(trials), seed=seed)["r2"][0, 0]
    return replace(found, baselines=())


def _windows(trials: Trials, targets: BeliefTargets, seed: int) -> tuple[tuple[str, ...], Estimate, Estimate]:
    """Return widths of window observers, and R² of their beliefs as they are and of a linear map from them.

    Empty without latent dynamics.
    """
    widths, n = [width for width in WIDTHS if width < trials.n_scored], len(trials)
    if trials.observers is None or not widths:
        nothing = Estimate.of(np.zeros((0, 0)), (0.0, 0.0), n=n)
        return (), nothing, nothing
    exact, of = trials.at_scored(trials.belief), trials.observers.filter
    every = (window_beliefs(of, exact, start) for start in STARTS)
    beliefs = [torch.stack([own for width, own in enumerate(all_widths) if width in widths]) for all_widths in every]
    read = [_read(own.flatten(1, 2), targets, own.shape[-1], seed) for own in beliefs]
    mapped = linear_scores(read, targets, n=n, seed=seed)["r2"]
    held_out = torch.stack(beliefs)[:, :, n - len(targets.held_out) :].cpu().numpy()
    truth, mean = targets.held_out[:, :, 0, BELIEF].double().numpy(), targets.means[0, BELIEF].double().numpy()
    error, spread = ((held_out - truth) ** 2).sum(axis=(3, 4)), ((truth - mean) ** 2).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        ends = r2_interval(np.moveaxis(error, 2, 0), spread[:, None, None], seed=seed)
        plain = with_interval(1 - error.sum(axis=2) / spread.sum(), ends, n=n)
    return tuple(map(str, widths)), plain, replace(mapped, baselines=())


def _reachable(trials: Trials) -> tuple[Float64[np.ndarray, "reachable hypothesis"], int]:
    """Return the beliefs that the scored symbols can reach, and how many there are; none and −1 if not known."""
    n_hypotheses = trials.belief.shape[-1]
    ways = None if trials.observers is None or n_hypotheses > MAX_CORNERS else trials.observers.filter.labeled
    if trials.observers is None or ways is None or trials.is_signed:
        return np.zeros((0, n_hypotheses)), -1
    start = trials.observers.filter.priors["initial"][0]
    found = belief_states(ways, start, trials.n_scored, most=MOST_REACHABLE)
    return found.belief.numpy(), len(found) if found.is_closed else -1


def _drawn(
    found: Sequence[Sequence[Readout]],
    targets: BeliefTargets,
    untrained: Sequence[BeliefReadoutReport],
    seed: int,
) -> tuple[Float64[np.ndarray, "point hypothesis"], Float64[np.ndarray, "stage site point hypothesis"]]:
    """Return some held-out beliefs, and their read-outs at each of the stages.

    The last stage is the first untrained network, on the same sequences; NaN without one.
    """
    belief = targets.held_out[:, :, 0, BELIEF].flatten(0, 1).double().numpy()
    n_drawn = min(N_DRAWN, len(belief)) if belief.shape[1] <= MAX_CORNERS and not targets.is_signed else 0
    chosen = np.sort(np.random.default_rng(seed).permutation(len(belief))[:n_drawn])
    first, last = (
        np.stack([layers[which].predicted_belief.reshape(belief.shape)[chosen] for layers in found])
        for which in (0, -1)
    )
    before = untrained[0].drawn_readout[STAGES.index("last layer")] if untrained else np.full_like(last, np.nan)
    return belief[chosen], np.stack([first, last, before])
