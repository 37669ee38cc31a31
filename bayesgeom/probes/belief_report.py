"""The report of the belief read-out: what is stored, which numbers lead, and how they are drawn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.memory import WIDEST_BASELINE
from bayesgeom.results.cells import hardest_null
from bayesgeom.results.report import Headline, Report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from bayesgeom.charts.simplex import Simplex

_SHUFFLE, _NO_GUESS = "shuffle within position", "no hypothesis is ever the single best guess"
_LAYER, _COUNT, _CONFIDENCE = "layer", "number of clusters k, last layer", "confidence of the exact belief, last layer"
# Metric: what its panel asks, its axes, its null, and why it may be missing.
_PANELS = {
    "r2": ("Linear read-out of the belief", _LAYER, "held-out R² (1 is exact)", _SHUFFLE, ""),
    "total_variation": ("What is read, against the belief", _LAYER, "total variation (0 is exact)", "mean belief", ""),
    "balanced_accuracy": (
        "Surviving hypotheses",
        _LAYER,
        "balanced accuracy (½ is chance)",
        _SHUFFLE,
        "none is ruled out",
    ),
    "silhouette": ("Are there clusters?", _COUNT, "silhouette (−1 to 1)", "Gaussian cloud", ""),
    "rand_index": ("Are they the best guesses?", _COUNT, "adjusted Rand index (0 is chance)", _SHUFFLE, _NO_GUESS),
    "token_rand_index": ("Are they the last token?", _COUNT, "adjusted Rand index (0 is chance)", _SHUFFLE, ""),
    "nearest_centroid_accuracy": ("Nearest best guess", _CONFIDENCE, "accuracy", _SHUFFLE, _NO_GUESS),
}
READ = ("r2", "total_variation", "balanced_accuracy")
_OTHER_NULLS = {"initialisation": "initialisation", "random_subspace": "random subspaces of that rank"}
METRICS = tuple(_PANELS)


def _none() -> Float[np.ndarray, "window_start window"]:
    """Of a task without latent dynamics, and of reports that were saved before there were window observers."""
    return np.zeros((0, 0))


@final
@dataclass(frozen=True, kw_only=True)
class BeliefReadoutReport(Report):
    """What a linear map reads of the exact belief, by site and layer, and the clusters of the same vectors.

    `sites` are `resid_post`, and `state` where the model is recurrent and has one. `drawn_*` are held-out points, each
    a belief: as it is, as layer 0 and the last layer give it away, and as the last layer of a fresh copy does; linear
    predictions, neither clipped nor renormalised. There are none where hypotheses are too many to draw.

    Held out by sequence. `r2` is at most 1 and 0 for the mean belief; `total_variation` (0 to 1) compares the
    prediction, clipped at 0 and renormalised, with the belief; `balanced_accuracy` (½ at chance) is that of deciding
    which hypotheses survive, NaN where all do. `silhouette` (−1 to 1) and `rand_index` (0 at chance, 1 for one cluster
    per best guess) are of k-means on `n_clustered` points; `token_rand_index` compares the same clusters with the token
    just read. `rand_index` and `nearest_centroid_accuracy` leave out points without a single most probable hypothesis;
    `constant_accuracy` is that of always naming the commonest one.

    `*_null` is the shuffle within position, except for `total_variation` (the mean belief) and `silhouette` (a Gaussian
    cloud of the same covariance). `*_random_subspace` is the mean and 95 % range over subspaces of `subspace_rank`.

    On tasks whose hidden state moves, `window_r2` is the R² of the belief of an observer that sees only the last w
    symbols, taken as it is, and `window_map_r2` that of a linear map from it, fitted and scored as for the vectors.
    """

    name: ClassVar[str] = "belief_readout"
    title: ClassVar[str] = "Belief read-out: is the exact posterior written in the activations?"
    about: ClassVar[str] = (
        "A linear map is fitted from the model's vectors to the exact belief on half of the sequences and tested on "
        "the other half: R² is 1 when the belief can be read off exactly and 0 when the map does no better than the "
        "average belief. Being readable is not being used, and much is readable by accident, so compare with the grey "
        "lines: beliefs exchanged between sequences at the same position (what position alone explains), random "
        "subspaces with as many dimensions as there are hypotheses, and the same network before training. Where the "
        "hidden state moves, the belief of an observer of the last few symbols is a grey line too. 'Surviving' asks "
        "which hypotheses are still possible. The other panels ask whether the vectors fall into clusters, and "
        "whether these are the best guesses, the most probable hypotheses, or merely the token just read; k-means "
        "finds clusters in anything, hence the Gaussian cloud beside it. Any accurate model clusters by best guess to "
        "some degree: alone that proves little. First the beliefs themselves: a corner is certainty, and a colour is "
        "the same exact belief in every panel, so that a read-out is right where it puts each colour where the exact "
        "posterior does."
    )

    r2: Float[np.ndarray, "site layer"]
    r2_lo: Float[np.ndarray, "site layer"]
    r2_hi: Float[np.ndarray, "site layer"]
    r2_null: Float[np.ndarray, "site layer"]
    r2_initialisation: Float[np.ndarray, "site layer"]
    r2_random_subspace: Float[np.ndarray, "site layer"]
    r2_random_subspace_lo: Float[np.ndarray, "site layer"]
    r2_random_subspace_hi: Float[np.ndarray, "site layer"]
    total_variation: Float[np.ndarray, "site layer"]
    total_variation_lo: Float[np.ndarray, "site layer"]
    total_variation_hi: Float[np.ndarray, "site layer"]
    total_variation_null: Float[np.ndarray, "site layer"]
    total_variation_initialisation: Float[np.ndarray, "site layer"]
    balanced_accuracy: Float[np.ndarray, "site layer"]
    balanced_accuracy_lo: Float[np.ndarray, "site layer"]
    balanced_accuracy_hi: Float[np.ndarray, "site layer"]
    balanced_accuracy_null: Float[np.ndarray, "site layer"]
    balanced_accuracy_initialisation: Float[np.ndarray, "site layer"]
    balanced_accuracy_random_subspace: Float[np.ndarray, "site layer"]
    balanced_accuracy_random_subspace_lo: Float[np.ndarray, "site layer"]
    balanced_accuracy_random_subspace_hi: Float[np.ndarray, "site layer"]
    embedding_r2: float
    embedding_total_variation: float
    embedding_balanced_accuracy: float
    silhouette: Float[np.ndarray, "site layer cluster_count"]
    silhouette_lo: Float[np.ndarray, "site layer cluster_count"]
    silhouette_hi: Float[np.ndarray, "site layer cluster_count"]
    silhouette_null: Float[np.ndarray, "site layer cluster_count"]
    silhouette_initialisation: Float[np.ndarray, "site layer cluster_count"]
    rand_index: Float[np.ndarray, "site layer cluster_count"]
    rand_index_lo: Float[np.ndarray, "site layer cluster_count"]
    rand_index_hi: Float[np.ndarray, "site layer cluster_count"]
    rand_index_null: Float[np.ndarray, "site layer cluster_count"]
    rand_index_initialisation: Float[np.ndarray, "site layer cluster_count"]
    token_rand_index: Float[np.ndarray, "site layer cluster_count"]
    token_rand_index_lo: Float[np.ndarray, "site layer cluster_count"]
    token_rand_index_hi: Float[np.ndarray, "site layer cluster_count"]
    token_rand_index_null: Float[np.ndarray, "site layer cluster_count"]
    token_rand_index_initialisation: Float[np.ndarray, "site layer cluster_count"]
    nearest_centroid_accuracy: Float[np.ndarray, "site layer confidence"]
    nearest_centroid_accuracy_lo: Float[np.ndarray, "site layer confidence"]
    nearest_centroid_accuracy_hi: Float[np.ndarray, "site layer confidence"]
    nearest_centroid_accuracy_null: Float[np.ndarray, "site layer confidence"]
    nearest_centroid_accuracy_initialisation: Float[np.ndarray, "site layer confidence"]
    constant_accuracy: Float[np.ndarray, " confidence"]
    drawn_belief: Float[np.ndarray, "point hypothesis"]
    drawn_first: Float[np.ndarray, "site point hypothesis"]
    drawn_last: Float[np.ndarray, "site point hypothesis"]
    drawn_untrained: Float[np.ndarray, "site point hypothesis"]
    window_r2: Float[np.ndarray, "window_start window"] = field(default_factory=_none)
    window_r2_lo: Float[np.ndarray, "window_start window"] = field(default_factory=_none)
    window_r2_hi: Float[np.ndarray, "window_start window"] = field(default_factory=_none)
    window_map_r2: Float[np.ndarray, "window_start window"] = field(default_factory=_none)
    window_map_r2_lo: Float[np.ndarray, "window_start window"] = field(default_factory=_none)
    window_map_r2_hi: Float[np.ndarray, "window_start window"] = field(default_factory=_none)
    window_starts: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    sites: tuple[str, ...]
    cluster_counts: tuple[str, ...]
    confidences: tuple[str, ...]
    subspace_rank: int
    n_clustered: int
    n_held_out: int
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        best = int(np.argmax(np.nan_to_num(self.silhouette[0, -1], nan=-1.0)))
        lines = [
            self._last("r2", "R² of the belief, last layer"),
            self._last("total_variation", "total variation of the read belief (0 is exact), last layer"),
            self._last("balanced_accuracy", "which hypotheses survive, balanced accuracy, last layer"),
            self._last("silhouette", f"best silhouette (k = {self.cluster_counts[best]}), last layer", best),
            self._last("rand_index", "the same clusters against best guesses, adjusted Rand", best),
            self._last("token_rand_index", "the same clusters against the token just read, adjusted Rand", best),
        ]
        for row, site in enumerate(self.sites):
            if row > 0:
                lines.append(self._last("r2", f"R² of the belief in {site}, last layer", site=row))
            if (k := str(self.drawn_belief.shape[1])) in self.cluster_counts:
                label = f"one cluster per hypothesis (k = {k}) in {site}, last layer"
                at = self.cluster_counts.index(k)
                lines.append(self._last("silhouette", f"silhouette of {label}", at, site=row))
                lines.append(self._last("rand_index", f"adjusted Rand of {label}", at, site=row))
                lines.append(self._last("token_rand_index", f"adjusted Rand of {label}, token just read", at, site=row))
        return lines

    def figure(self) -> "Figure":
        from bayesgeom.charts.readout import Line, readout_figure

        ticks = {_LAYER: [str(layer) for layer in range(self.r2.shape[1])], _COUNT: self.cluster_counts}
        lines = []
        for row, site in enumerate(self.sites):
            for metric, (title, x, y, _, note) in _PANELS.items():
                drawn, nulls = self._drawn(metric, row), self._nulls(metric, row)
                has_embedding = metric in READ and row == 0
                lines.append(Line(
                    title=title if row == 0 else f"{title} ({site})", x=x, y=y, ticks=ticks.get(x, self.confidences),
                    values=drawn[metric], nulls=nulls, band=(drawn[f"{metric}_lo"], drawn[f"{metric}_hi"]),
                    before=float(vars(self)[f"embedding_{metric}"]) if has_embedding else math.nan, note=note,
                ))  # fmt: skip
        return readout_figure(self.title, lines, self._simplexes())

    def _simplexes(self) -> "list[Simplex]":
        """The beliefs as they are, as they are read, and as they are read before training; the same points in each."""
        from bayesgeom.charts.simplex import Simplex

        read = [("Exact belief", self.drawn_belief)]
        for row, (site, last, first) in enumerate(zip(self.sites, self.drawn_last, self.drawn_first, strict=True)):
            if row == 0:
                read = [*read, (f"Read from {site}, last layer (R² {self.r2[0, -1]:.3f})", last)]
                read = [*read, (f"Read from {site}, layer 0 (R² {self.r2[0, 0]:.3f})", first)]
            else:
                read = [*read, (f"Read from {site}, last layer (R² {self.r2[row, -1]:.3f})", last)]
            before = self.r2_initialisation[row, -1]
            read = [*read, (f"null: the same before training (R² {before:.3f})", self.drawn_untrained[row])]
        note = "no fresh copy was run"
        return [Simplex(title=title, placed=placed, belief=self.drawn_belief, note=note) for title, placed in read]

    def _drawn(self, metric: str, row: int) -> dict[str, Float[np.ndarray, " step"]]:
        """A metric and its companions: over the layers, or in the last layer over what else they depend on."""
        arrays = {name: array[row] for name, array in self.arrays().items() if name.startswith(metric)}
        return {name: array if array.ndim == 1 else array[-1] for name, array in arrays.items()}

    def _nulls(self, metric: str, row: int) -> dict[str, Float[np.ndarray, " step"]]:
        drawn = self._drawn(metric, row)
        labels = {"null": _PANELS[metric][3], **_OTHER_NULLS}
        nulls = {label: drawn[f"{metric}_{end}"] for end, label in labels.items() if f"{metric}_{end}" in drawn}
        if metric == "r2":
            nulls |= {name: np.full_like(drawn["r2"], level) for name, level in self._window_levels().items()}
        return nulls | ({"one constant answer": self.constant_accuracy} if "centroid" in metric else {})

    def _window_levels(self) -> dict[str, float]:
        """R² of the narrowest window observer and of the one of up to four symbols, the stronger start of each."""
        best = np.maximum(self.window_r2, self.window_map_r2).max(axis=0, initial=-np.inf)
        levels = {int(width): float(r2) for width, r2 in zip(self.windows, best, strict=True)}
        shown = {1, max((width for width in levels if width <= WIDEST_BASELINE), default=1)}
        named = {1: "belief after the current symbol alone"}
        return {named.get(w, f"belief after the last {w} symbols"): levels[w] for w in sorted(shown & levels.keys())}

    def _last(self, metric: str, label: str, column: int = -1, *, site: int = 0) -> Headline:
        levels = {name: float(level[column]) for name, level in self._nulls(metric, site).items()}
        null, said = hardest_null(levels, is_error=metric == "total_variation")
        at = (site, -1) if vars(self)[metric].ndim == 2 else (site, -1, column)
        return replace(self.entry(metric, at, label), null=null, null_label=said)
