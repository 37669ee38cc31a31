"""The report of the belief read-out: stored fields, headlines and figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.report.estimate import AtMostOne, Baseline, Estimate, Share, Signed, Unit
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, extreme_of, headline_of
from bayesgeom.stats.windows import WIDEST_BASELINE

SHUFFLE, SUBSPACES = "shuffle within position", "random subspaces of that rank"
MEAN_BELIEF, GAUSSIAN, CONSTANT = "mean belief", "Gaussian cloud", "one constant answer"
EMBEDDING = "embedding"
STAGES = ("layer 0", "last layer", "last layer of an untrained network")
_FIRST, _LAST, _UNTRAINED = range(3)
_SHOWN = 4  # panels of numbers that a page shows at once


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BeliefReadoutReport(Report):
    """A linear map from the vectors to the exact belief is fitted on half of the sequences, and tested on the others.

    R² is 1 if the belief is decoded exactly, and 0 if the map is no better than the average belief. A decodable belief
    need not be used, and some decoding is possible by chance. Compare with the gray lines: beliefs exchanged between
    sequences at the same position (the effect of position alone), random subspaces with as many dimensions as there are
    hypotheses, and untrained networks. On tasks with latent dynamics, the belief of an observer of the last few symbols
    is also a gray line. "Surviving hypotheses" are those still possible.

    The other panels show whether the vectors form clusters, and whether the clusters are the best guesses (the most
    probable hypotheses) or only the token just read. k-means finds clusters in any data, so compare with the Gaussian
    cloud. Any accurate model clusters by best guess to some degree. The first panels plot the beliefs. Up to six
    hypotheses are the corners of a polygon: a corner is certainty, and a color is the same exact belief in every panel.
    More are the rows of a heat map, one column per position, in the same order in every panel. A correct read-out looks
    like the exact belief.

    Fields: linear read-out of the exact belief, by site and layer, and clusters of the same vectors.

    `sites` are `resid_post`, and `state` for recurrent models. `drawn_belief` are exact beliefs at held-out points, and
    `drawn_readout` their linear predictions at each of the `stages`, neither clipped nor renormalized. Both are empty
    if there are too many hypotheses to plot.

    Scores are on held-out sequences. `r2` is at most 1, and 0 for the mean belief. `total_variation` (0 to 1) compares
    the prediction, clipped at 0 and renormalized, with the belief. `balanced_accuracy` (½ at chance) is for predicting
    which hypotheses are still possible, NaN if all are. `silhouette` (−1 to 1) and `rand_index` (0 at chance, 1 for one
    cluster per best guess) are of k-means on `n_clustered` points; `token_rand_index` compares the same clusters with
    the token just read. `rand_index` and `nearest_centroid_accuracy` leave out points with tied hypotheses.

    Random subspaces have `subspace_rank` dimensions and a 95 % range over draws. The Gaussian cloud has the covariance
    of the vectors. "One constant answer" always predicts the most common best guess.

    On tasks with latent dynamics, `window_r2` is the R² of the belief of an observer that sees only the last w symbols,
    without a map, and `window_map_r2` that of a linear map from it, fitted and scored as for the vectors. The baselines
    of `r2` have three of them: see `window_levels`.
    """

    name: ClassVar[str] = "belief_readout"
    title: ClassVar[str] = "Belief read-out"
    limit: ClassVar[str] = "at most 3,072 scored positions"

    r2: Annotated[Estimate, AtMostOne("site layer", better="higher", label="R² of the belief")]
    total_variation: Annotated[Estimate, Share("site layer", better="lower", label="total variation from the belief")]
    balanced_accuracy: Annotated[Estimate, Share("site layer", better="higher", label="surviving hypotheses")]
    silhouette: Annotated[Estimate, Signed("site layer cluster_count", better="higher", label="silhouette of clusters")]
    rand_index: Annotated[
        Estimate, AtMostOne("site layer cluster_count", better="higher", label="adjusted Rand, best guess")
    ]
    token_rand_index: Annotated[
        Estimate, AtMostOne("site layer cluster_count", better="higher", label="adjusted Rand, token")
    ]
    nearest_centroid_accuracy: Annotated[
        Estimate, Share("site layer confidence", better="higher", label="accuracy of the nearest best guess")
    ]
    window_r2: Annotated[Estimate, AtMostOne("window_start window", better="higher", label="R² of window observers")]
    window_map_r2: Annotated[Estimate, AtMostOne("window_start window", better="higher", label="R² of a map from them")]
    drawn_belief: Annotated[Float[np.ndarray, "point hypothesis"], Unit("1")]
    drawn_readout: Annotated[Float[np.ndarray, "stage site point hypothesis"], Unit("1")]
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
    def n_held_out(self) -> int:
        """Number of held-out sequences, on which the maps are scored."""
        return self.n // 2

    def headlines(self) -> Sequence[Headline]:
        (best,), _ = self.silhouette[0, -1].extreme("largest")
        k, hypotheses = self.cluster_counts[best], str(self.drawn_belief.shape[1])
        survive = "surviving hypotheses, last layer"
        lines = [
            headline_of(self, "r2", (0, -1), "R² of the belief, last layer"),
            headline_of(self, "total_variation", (0, -1), "total variation, last layer"),
            headline_of(self, "balanced_accuracy", (0, -1), survive),
            extreme_of(self, "silhouette", "largest", f"best silhouette, k = {k}, last layer", (0, -1)),
        ]
        for metric, other in (("rand_index", "best guesses"), ("token_rand_index", "the token just read")):
            lines.append(headline_of(self, metric, (0, -1, best), f"adjusted Rand, k = {k}, against {other}"))
        for row, site in enumerate(self.sites):
            if row > 0:
                lines.append(headline_of(self, "r2", (row, -1), f"R² of the belief, {site}"))
            if hypotheses in self.cluster_counts:
                where, at = f"k = {hypotheses} in {site}, last layer", self.cluster_counts.index(hypotheses)
                lines.append(headline_of(self, "silhouette", (row, -1, at), f"silhouette, {where}"))
                lines.append(headline_of(self, "rand_index", (row, -1, at), f"adjusted Rand, {where}"))
                label = f"adjusted Rand, last token, {where}"
                lines.append(headline_of(self, "token_rand_index", (row, -1, at), label))
        return lines

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.readout import readout_panel
        from bayesgeom.report.theme import DASHES

        layers, counts = [str(layer) for layer in range(self.r2.value.shape[1])], "number of clusters k, last layer"
        rand, confidence = "adjusted Rand index (0 is chance)", "confidence of the exact belief"
        shown = (
            (self.r2, "Linear read-out", ("layer", "held-out R² (1 is exact)"), layers),
            (self.total_variation, "Distance of the read-out", ("layer", "total variation (0 is exact)"), layers),
            (self.balanced_accuracy, "Surviving hypotheses", ("layer", "balanced accuracy (½ is chance)"), layers),
            (self.silhouette, "Are there clusters?", (counts, "silhouette (−1 to 1)"), self.cluster_counts),
            (self.rand_index, "Are they the best guesses?", (counts, rand), self.cluster_counts),
            (self.token_rand_index, "Are they the last token?", (counts, rand), self.cluster_counts),
            (self.nearest_centroid_accuracy, "Nearest best guess", (confidence, "accuracy"), self.confidences),
        )
        levels = [level.name for metric, *_ in shown for level in metric.baselines]
        names = dict.fromkeys(name for name in levels if name != EMBEDDING)  # a point, and no line
        dashes = {name: DASHES[at % len(DASHES)] for at, name in enumerate(names)}
        drawn = list(self._simplexes())
        for row, site in enumerate(self.sites):
            for at, (metric, title, axes, ticks) in enumerate(shown):
                own = metric[row]
                own = own if own.value.ndim == 1 else own[-1]
                named = title if row == 0 else f"{title} ({site})"
                panel = readout_panel(named, axes, ticks, own, dashes, before=EMBEDDING)
                drawn.append(replace(panel, is_folded=at >= _SHOWN or row > 0))
        return drawn

    def _simplexes(self) -> Iterator[Panel]:
        """Yield simplexes of exact beliefs and of read-outs, also of an untrained network."""
        from bayesgeom.charts.readout import add_simplex

        read = [("Exact belief", self.drawn_belief)]
        for row, site in enumerate(self.sites):
            drawn = self.drawn_readout[:, row]
            read += [(f"Read from {site}, last layer", drawn[_LAST])]
            read += [(f"Read from {site}, layer 0", drawn[_FIRST])] * (row == 0)
            read += [("Untrained network, last layer", drawn[_UNTRAINED])]
        for title, placed in read:
            panel = Panel.blank(title, height=360)
            add_simplex(panel.figure, placed, self.drawn_belief)
            yield panel


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
