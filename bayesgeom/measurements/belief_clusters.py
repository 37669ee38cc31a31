"""Belief clusters: do the activations form clusters, and are these the best guesses, the most probable hypotheses?

k-means finds clusters in any data, and a network tends to cluster by its input. Silhouettes are therefore compared with
those of a Gaussian cloud, and the clusters with the token just read.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (clusters by hidden state).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import RESID_POST, STATE, Run, Trials
from bayesgeom.measurements._beliefs import SHUFFLE, Clouds, clouds_of, shuffles, site_panels, targets_of
from bayesgeom.measurements.base import Control, Needs, Probe, known, planted_run, planted_trials, with_untrained
from bayesgeom.report.estimate import Baseline, Estimate, Kind, Share, Signed, smooth_estimate, with_interval
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, extreme_of, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights, ratio_interval
from bayesgeom.stats.clusters import adjusted_rand, cluster_clouds, left_out_silhouettes, meetings, resampled_agreement
from bayesgeom.stats.readout import LABEL, BeliefTargets, centroid_hits, commonest, in_bands

GAUSSIAN, CONSTANT = "Gaussian cloud", "one constant answer"
N_CLUSTERED, COUNTS = 500, range(2, 9)
_BANDS = {"all": (0, 2), "below 0.5": (0, 0.5), "0.5–0.75": (0.5, 0.75), "0.75–0.9": (0.75, 0.9), "above 0.9": (0.9, 2)}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BeliefClustersReport(Report):
    """Whether the vectors form clusters, and whether these are the best guesses or only the token just read.

    The best guess is the most probable hypothesis. k-means finds clusters in any data, so compare with the Gaussian
    cloud. Any accurate model clusters by best guess to some degree.

    Fields: clusters of the vectors at scored positions, by site and layer.

    `sites` are `resid_post`, and `state` for recurrent models. `silhouette` (−1 to 1) and `rand_index` (0 at chance, 1
    for one cluster per best guess) are of k-means on `n_clustered` points; `token_rand_index` compares the same
    clusters with the token just read. `nearest_centroid_accuracy` is how often the nearest mean vector at held-out
    points is that of the best guess, by the confidence. `rand_index` and `nearest_centroid_accuracy` leave out points
    with tied hypotheses. `n_hypotheses` is the number of hypotheses of the belief.

    The Gaussian cloud has the covariance of the vectors. "One constant answer" always predicts the most common best
    guess.
    """

    name: ClassVar[str] = "belief_clusters"
    title: ClassVar[str] = "Belief clusters: do activations cluster by best guess?"
    limit: ClassVar[str] = "at most 3,072 scored positions"

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
    sites: tuple[str, ...]
    cluster_counts: tuple[str, ...]
    confidences: tuple[str, ...]
    n_hypotheses: int
    n_clustered: int
    n: int

    def headlines(self) -> Sequence[Headline]:
        (best,), _ = self.silhouette[0, -1].extreme("largest")
        k, hypotheses = self.cluster_counts[best], str(self.n_hypotheses)
        lines = [extreme_of(self, "silhouette", "largest", f"best silhouette, k = {k}, last layer", (0, -1))]
        for metric, other in (("rand_index", "best guesses"), ("token_rand_index", "the token just read")):
            lines.append(headline_of(self, metric, (0, -1, best), f"adjusted Rand, k = {k}, against {other}"))
        for row, site in enumerate(self.sites if hypotheses in self.cluster_counts else ()):
            where, at = f"k = {hypotheses} in {site}, last layer", self.cluster_counts.index(hypotheses)
            lines.append(headline_of(self, "silhouette", (row, -1, at), f"silhouette, {where}"))
            lines.append(headline_of(self, "rand_index", (row, -1, at), f"adjusted Rand, {where}"))
            label = f"adjusted Rand, last token, {where}"
            lines.append(headline_of(self, "token_rand_index", (row, -1, at), label))
        return lines

    def panels(self) -> Sequence[Panel]:
        (best,), _ = self.silhouette[0, -1].extreme("largest")
        counts, rand = "number of clusters k, last layer", "adjusted Rand index (0 is chance)"
        nearest = self.nearest_centroid_accuracy
        shown = (
            (self.silhouette, "Clusters, silhouette", (counts, "silhouette (−1 to 1)"), self.cluster_counts),
            (self.rand_index, "Clusters and best guesses", (counts, rand), self.cluster_counts),
            (self.token_rand_index, "Clusters and last tokens", (counts, rand), self.cluster_counts),
            (nearest, "Nearest best guess", ("confidence", "accuracy"), self.confidences),
        )
        return site_panels(self.sites, shown, best)


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
    distances, splits, of_gaussian = cluster_clouds(clouds[:, chosen], counts, generator)
    owner, times = chosen // targets.n_positions, torch.from_numpy(weights / weights[:1])
    counted = weights[:, owner.numpy()]
    pairs = zip(splits, counts, strict=True)
    silhouettes = [left_out_silhouettes(distances, labels, k, counted) for labels, k in pairs]
    scores = {"silhouette": (np.stack(silhouettes, axis=2), of_gaussian)}
    for name, others in (("rand_index", targets.values[chosen, :, LABEL]), ("token_rand_index", tokens[chosen])):
        true = others[:, 0, others[:, 0].any(dim=0)]  # a hypothesis that is never the best guess has empty columns
        rows = torch.stack([resampled_agreement(labels, true, owner, times) for labels in splits], dim=2)
        scores[name] = (rows.numpy(), adjusted_rand(meetings(splits, others[:, 1:])).mean(dim=1).numpy())
    return scores


def guess_scores(
    clouds: Sequence[Float[Tensor, "layer point _d"]],
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
    hits = [[centroid_hits(layer, targets) for layer in points] for points in clouds]
    n_hits = np.array([[(is_hit & is_counted).sum(axis=2, dtype=np.float64) for is_hit in layers] for layers in hits])
    true_hits, of_points = np.moveaxis(n_hits[..., 0], 3, 0), n_points[:, :, 0].T[:, None, None]
    interval = ratio_interval(true_hits, of_points, seed=seed, bounds=(0.0, 1.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = n_hits.sum(axis=3) / n_points.sum(axis=1)
    shuffled = Baseline.of("permutation", SHUFFLE, accuracy[..., 1:].mean(axis=-1))
    constant = Baseline.of("baseline", CONSTANT, commonest(targets, is_counted))
    return with_interval(accuracy[..., 0], interval, n=n, baselines=known(shuffled, constant))


@final
@dataclass(frozen=True)
class BeliefClusters(Probe[BeliefClustersReport]):
    """Cluster up to `N_CLUSTERED` points by k-means for each k in `COUNTS`; centroids are of the first half."""

    name: ClassVar[str] = "belief_clusters"
    follows: ClassVar[str] = "belief_readout"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(STATE,), partial=(STATE,), posterior=True)
    relative_time: ClassVar[int] = 3

    def measure(self, run: Run, untrained: Sequence[BeliefClustersReport] = ()) -> BeliefClustersReport:
        clouds = clouds_of(run)
        targets, n = targets_of(clouds), len(clouds.trials)
        nearest = guess_scores(clouds.points, targets, [*_BANDS.values()], n=n, seed=run.seed)
        scores = _scores(clouds, targets) | {"nearest_centroid_accuracy": nearest}
        report = BeliefClustersReport(
            **scores,
            sites=clouds.sites,
            cluster_counts=tuple(map(str, COUNTS)),
            confidences=tuple(_BANDS),
            n_hypotheses=clouds.trials.belief.shape[-1],
            n_clustered=min(N_CLUSTERED, len(targets.values)),
            n=n,
        )
        return with_untrained(report, untrained, *scores)

    def controls(self) -> Iterator[Control[BeliefClustersReport]]:
        rng = np.random.default_rng(0)
        belief, tokens = rng.dirichlet(np.full(3, 0.5), size=(83, 5)), rng.integers(3, size=(83, 5))
        trials, noise = planted_trials(belief, tokens), rng.normal(size=(83, 5, 7))
        guesses, place = 9 * np.eye(3, 7)[belief.argmax(axis=2)], np.tile(np.eye(5, 7), (83, 1, 1))
        layers = np.stack([noise, guesses + 0.1 * noise, place + 0.01 * noise])
        yield Control(
            label="noise, best guesses, position",
            run=planted_run(trials, {RESID_POST: torch.from_numpy(layers)}),
            holds=_tells_layers_apart,
        )
        read = 9 * np.eye(3, 7)[tokens] + 0.1 * noise
        yield Control(
            label="clusters are the token just read, and not the best guess",
            run=planted_run(trials, {RESID_POST: torch.from_numpy(read)[None]}),
            holds=lambda r: bool(
                r.silhouette.value[0, 0].argmax() == r.cluster_counts.index("3")
                and r.token_rand_index.value[0, 0, r.cluster_counts.index("3")] > 0.99
                and abs(r.rand_index.value[0, 0, r.cluster_counts.index("3")]) < 0.1
            ),
        )


def _tells_layers_apart(report: BeliefClustersReport) -> bool:
    noise, guesses, place = range(3)
    at_three = report.cluster_counts.index("3")
    rand_index, silhouette = report.rand_index.value[0, :, at_three], report.silhouette.value[0, :, at_three]
    nearest = report.nearest_centroid_accuracy.value[0, :, 0]
    return bool(
        rand_index[guesses] > 0.99 > 0.1 > rand_index[place]
        and silhouette[guesses] > 0.9 > 0.5 > silhouette[noise]
        and nearest[guesses] > 0.99 > 0.6 > nearest[noise]
    )


def _tokens(trials: Trials, seed: int) -> Float[Tensor, "point shuffle token"]:
    """Return the token just read at every point, one-hot, true and shuffled within position."""
    tokens = trials.at_scored(trials.tokens).cpu()
    rows = torch.nn.functional.one_hot(torch.unique(tokens, return_inverse=True)[1]).double()
    return shuffles(rows, seed).flatten(1, 2).transpose(0, 1)


def _scores(clouds: Clouds, targets: BeliefTargets) -> dict[str, Any]:
    """Return the scores of the clusters at every site, with their chance levels."""
    tokens, n = _tokens(clouds.trials, clouds.seed), len(clouds.trials)
    weights = jackknife_weights(n)
    sites = [
        cluster_scores(points, targets, tokens, COUNTS, weights, n_clustered=N_CLUSTERED, seed=clouds.seed)
        for points in clouds.points
    ]
    scores = {}
    for name in sites[0]:
        rows, levels = zip(*(site[name] for site in sites), strict=True)
        kind: tuple[Kind, str] = ("chance", GAUSSIAN) if name == "silhouette" else ("permutation", SHUFFLE)
        level = known(Baseline.of(*kind, np.stack(levels)))
        scores[name] = smooth_estimate(np.stack(rows, axis=1), seed=clouds.seed, n=n, baselines=level)
    return scores
