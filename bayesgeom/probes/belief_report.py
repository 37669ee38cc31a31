"""The report of the belief read-out: stored fields, headlines and figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.text import number_text
from bayesgeom.results.estimate import AtMostOne, Baseline, Estimate, Share, Signed, Unit
from bayesgeom.results.estimators import UNTRAINED
from bayesgeom.results.findings import numbers
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.stats.extremes import remark_of
from bayesgeom.stats.memory import WIDEST_BASELINE

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from bayesgeom.charts.simplex import Simplex

SHUFFLE, SUBSPACES = "shuffle within position", "random subspaces of that rank"
MEAN_BELIEF, GAUSSIAN, CONSTANT = "mean belief", "Gaussian cloud", "one constant answer"
EMBEDDING = "embedding"
STAGES = ("layer 0", "last layer", "last layer of an untrained network")
_FIRST, _LAST, _UNTRAINED = range(3)
_NO_GUESS = "no hypothesis is ever the single best guess"
_LAYER, _COUNT, _CONFIDENCE = "layer", "number of clusters k, last layer", "confidence of the exact belief, last layer"
_SHOWN = 4  # panels of numbers that a page shows at once


@final
@dataclass(frozen=True, kw_only=True)
class _Panel:
    """A metric with the title and axes of its panel, and the note shown if it is missing."""

    metric: Estimate
    title: str
    x: str
    y: str
    note: str = ""


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BeliefReadoutReport(Report):
    """Linear read-out of the exact belief, by site and layer, and clusters of the same vectors.

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
    title: ClassVar[str] = "Belief read-out: is the exact posterior linearly decodable from the activations?"
    limit: ClassVar[str] = "at most 3,072 scored positions are read"
    about: ClassVar[str] = (
        "A linear map from the model's vectors to the exact belief is fitted on half of the sequences and tested on "
        "the other half. R² is 1 if the belief is decoded exactly, and 0 if the map is no better than the average "
        "belief. A decodable belief need not be used, and some decoding is possible by chance. Compare with the gray "
        "lines: beliefs exchanged between sequences at the same position (the effect of position alone), random "
        "subspaces with as many dimensions as there are hypotheses, and untrained networks. On tasks with latent "
        "dynamics, the belief of an observer of the last few symbols is also a gray line. 'Surviving hypotheses' are "
        "those still possible. The other panels show whether the vectors form clusters, and whether the clusters are "
        "the best guesses (the most probable hypotheses) or only the token just read. k-means finds clusters in any "
        "data, so compare with the Gaussian cloud. Any accurate model clusters by best guess to some degree. The first "
        "panels plot the beliefs. Up to six hypotheses are the corners of a polygon, and more are the rows of a heat "
        "map. The caption of the exact belief says how to read its panel, and a correct read-out looks the same."
    )

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
        (best,), clearest = self.silhouette[0, -1].extreme("largest")
        count, remark = self.cluster_counts[best], remark_of(float(clearest.ends[0]), len(self.cluster_counts))
        lines = [
            headline_of(self, "r2", (0, -1), "R² of the belief, last layer"),
            headline_of(self, "total_variation", (0, -1), "total variation of the read belief, last layer"),
            replace(
                headline_of(
                    self, "balanced_accuracy", (0, -1), "which hypotheses survive, balanced accuracy, last layer"
                ),
                short_label="balanced accuracy of which hypotheses survive, last layer",
            ),
            replace(
                headline_of(self, "silhouette", (0, -1, best), f"best silhouette, k = {count}{remark}", own=clearest),
                short_label=f"best silhouette (k = {count}), last layer{remark}",
            ),
            *(
                replace(
                    headline_of(self, metric, (0, -1, best), f"the same clusters against {other}, adjusted Rand"),
                    short_label=f"adjusted Rand index of these clusters (k = {count}) and {other}",
                )
                for metric, other in (("rand_index", "best guesses"), ("token_rand_index", "the token just read"))
            ),
        ]
        for row, site in enumerate(self.sites):
            if row > 0:
                lines.append(headline_of(self, "r2", (row, -1), f"R² of the belief in {site}, last layer"))
            if (k := str(self.drawn_belief.shape[1])) in self.cluster_counts:
                label = f"one cluster per hypothesis (k = {k}) in {site}, last layer"
                at = (row, -1, self.cluster_counts.index(k))
                lines.append(headline_of(self, "silhouette", at, f"silhouette of {label}"))
                lines.append(headline_of(self, "rand_index", at, f"adjusted Rand of {label}"))
                lines.append(headline_of(self, "token_rand_index", at, f"adjusted Rand of {label}, token just read"))
        return lines

    def plot(self) -> "Figure":
        from bayesgeom.charts.readout import Line, readout_figure
        from bayesgeom.results.captions import with_captions

        ticks = {_LAYER: [str(layer) for layer in range(self.r2.value.shape[1])], _COUNT: self.cluster_counts}
        lines = []
        for row, site in enumerate(self.sites):
            for panel in self._panels():
                own = panel.metric[row]
                drawn = own if own.value.ndim == 1 else own[-1]
                before = [float(level.value[0]) for level in drawn.baselines if level.name == EMBEDDING]
                lines.append(
                    Line(
                        title=panel.title if row == 0 else f"{panel.title} ({site})",
                        x=panel.x,
                        y=panel.y,
                        ticks=ticks.get(panel.x, self.confidences),
                        values=drawn.value,
                        band=drawn.ends,
                        note=panel.note,
                        baselines={level.name: level.value for level in drawn.baselines if level.name != EMBEDDING},
                        before=before[0] if before else math.nan,
                    )
                )
        simplexes = self._simplexes()
        figure = readout_figure(self.title, lines, [simplex for simplex, _ in simplexes])
        return with_captions(figure, [caption for _, caption in simplexes], n_shown=len(simplexes) + _SHOWN)

    def _panels(self) -> tuple[_Panel, ...]:
        rand = "adjusted Rand index (0 is chance)"
        return (
            _Panel(metric=self.r2, title="Linear read-out of the belief", x=_LAYER, y="held-out R² (1 is exact)"),
            _Panel(
                metric=self.total_variation,
                title="Distance of the read-out from the belief",
                x=_LAYER,
                y="total variation (0 is exact)",
            ),
            _Panel(
                metric=self.balanced_accuracy,
                title="Surviving hypotheses",
                x=_LAYER,
                y="balanced accuracy (½ is chance)",
                note="none is ruled out",
            ),
            _Panel(metric=self.silhouette, title="Are there clusters?", x=_COUNT, y="silhouette (−1 to 1)"),
            _Panel(metric=self.rand_index, title="Are they the best guesses?", x=_COUNT, y=rand, note=_NO_GUESS),
            _Panel(metric=self.token_rand_index, title="Are they the last token?", x=_COUNT, y=rand),
            _Panel(
                metric=self.nearest_centroid_accuracy,
                title="Nearest best guess",
                x=_CONFIDENCE,
                y="accuracy",
                note=_NO_GUESS,
            ),
        )

    def _simplexes(self) -> "list[tuple[Simplex, str]]":
        """Return simplexes of exact beliefs and of read-outs, also of an untrained network, with their captions."""
        from bayesgeom.charts.simplex import Simplex

        read = [("Exact belief", self.drawn_belief, _how_to_read(*self.drawn_belief.shape))]
        for row, site in enumerate(self.sites):
            drawn = self.drawn_readout[:, row]
            last, first = (
                numbers(headline_of(self, "r2", (row, at), f"R² of the belief, {which} layer"))
                for at, which in ((-1, "last"), (0, "first"))
            )
            read.append((f"Read from {site}, last layer", drawn[_LAST], last))
            if row == 0:
                read.append((f"Read from {site}, layer 0", drawn[_FIRST], first))
            before = [level.value[-1] for level in self.r2[row].baselines if level.name == UNTRAINED]
            fresh = "".join(f"R² of the belief, last layer, untrained network: {number_text(r2)}." for r2 in before)
            read.append(("Untrained network, last layer", drawn[_UNTRAINED], fresh))
        note = "no untrained network was run"
        return [
            (Simplex(title=title, placed=placed, belief=self.drawn_belief, note=note), caption)
            for title, placed, caption in read
        ]


def _how_to_read(n_points: int, n_hypotheses: int) -> str:
    """Return the caption of the exact beliefs: how many are drawn, and what place and color mean; "" without points."""
    from bayesgeom.charts.simplex import MAX_COLUMNS, MAX_CORNERS

    if n_points == 0:
        return ""
    if n_hypotheses <= MAX_CORNERS:
        drawn = f"Exact beliefs at {n_points:,} scored positions; the other panels show the same ones."
        return f"{drawn} A corner is certainty, and a color is the same exact belief in every panel."
    n_columns = -(-n_points // -(-n_points // MAX_COLUMNS))  # every k-th point
    drawn = f"Exact beliefs at {n_columns:,} of {n_points:,} scored positions, one column each"
    return f"{drawn}. The other panels show the same ones, with rows and columns in the same order."


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
