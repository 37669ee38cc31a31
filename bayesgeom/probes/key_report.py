"""The report of key overlap: |cosine| between the keys of a token set, by layer and key head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.report import Headline, Report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FIRST_LAYER = ("first_layer_overlap", "first_layer_overlap_centred", "first_layer_overlap_least")


@final
@dataclass(frozen=True, kw_only=True)
class KeyOverlapReport(Report):
    """|cosine| between distinct keys (0 orthogonal, 1 parallel), by view: a token set and where its keys were read.

    `_null` is random directions, `_initialisation` the mean over untrained copies (`_range`: least and most of them),
    `overlap_random_projection` the same embeddings through random W_K with the 95 % range over its draws.
    `first_layer_*` are of `views[0]`. Keys of activations are means over `n` sequences: `overlap_bias` is about how far
    that number alone moves the overlap, and intervals say how it would scatter over others of that number.
    """

    name: ClassVar[str] = "key_overlap"
    title: ClassVar[str] = "Key overlap: do keys form an orthogonal frame?"
    about: ClassVar[str] = (
        "Attention finds a token by its key. Where the keys of the hypotheses point in unrelated directions, a query "
        "can address one without touching the others: the papers call that a hypothesis frame. The number is the mean "
        "|cosine| between the keys of different tokens, 0 orthogonal and 1 parallel. Random directions do not score 0 "
        "but a level that the head's width sets (marked), and an untrained model of the same shape scores what its "
        "random embeddings and their shared offset give. Only keys below both were made orthogonal by training. “Mean "
        "key removed” takes out what all keys share: it raises cosines, yet adds the same to every score, and softmax "
        "ignores that."
    )

    views: tuple[str, ...]
    overlap: Float[np.ndarray, "view layer kv_head"]
    overlap_lo: Float[np.ndarray, "view layer kv_head"]
    overlap_hi: Float[np.ndarray, "view layer kv_head"]
    overlap_bias: Float[np.ndarray, "view layer kv_head"]
    overlap_null: Float[np.ndarray, " view"]
    overlap_max: Float[np.ndarray, "view layer kv_head"]
    overlap_max_null: Float[np.ndarray, " view"]
    overlap_centred: Float[np.ndarray, "view layer kv_head"]
    overlap_centred_lo: Float[np.ndarray, "view layer kv_head"]
    overlap_centred_hi: Float[np.ndarray, "view layer kv_head"]
    overlap_centred_null: Float[np.ndarray, " view"]
    overlap_centred_max: Float[np.ndarray, "view layer kv_head"]
    signed_mean: Float[np.ndarray, "view layer kv_head"]
    signed_mean_null: Float[np.ndarray, " view"]
    orthogonality: Float[np.ndarray, "view layer kv_head"]
    orthogonality_null: Float[np.ndarray, " view"]
    dimension_utilisation: Float[np.ndarray, "view layer kv_head"]
    dimension_utilisation_null: Float[np.ndarray, " view"]
    overlap_initialisation: Float[np.ndarray, "view layer kv_head"]
    overlap_centred_initialisation: Float[np.ndarray, "view layer kv_head"]
    overlap_random_projection: Float[np.ndarray, "view layer"]
    overlap_random_projection_lo: Float[np.ndarray, "view layer"]
    overlap_random_projection_hi: Float[np.ndarray, "view layer"]
    welch: Float[np.ndarray, " view"]
    n_vectors: Int[np.ndarray, " view"]
    n_unseen: Int[np.ndarray, " view"]
    first_layer_overlap: float
    first_layer_overlap_least: float
    first_layer_overlap_centred: float
    first_layer_initialisation: Mapping[str, float]
    first_layer_initialisation_range: Mapping[str, tuple[float, float]]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    @property
    def first_layer(self) -> Mapping[str, float]:
        """The overlaps of the first view's first layer, by name."""
        return {name: vars(self)[name] for name in FIRST_LAYER}

    def headlines(self) -> Sequence[Headline]:
        labels = {
            "first_layer_overlap": ("mean |cos|", "random directions"),
            "first_layer_overlap_centred": ("mean |cos|, mean key removed", "random directions, centred"),
            "first_layer_overlap_least": ("mean |cos|, least overlapping head", "random directions"),
        }
        rows = []
        for metric, (label, null_label) in labels.items():
            untrained = self.first_layer_initialisation[metric]
            beside = null_label
            if not np.isnan(untrained):
                low, high = self.first_layer_initialisation_range[metric]
                beside = f"initialisation {untrained:.3g}, copies {low:.3g} … {high:.3g}; {null_label}"
            rows.append(self.scalar(metric, f"layer 0, {self.views[0]}: {label}", null_label=beside))
        return rows

    def figure(self) -> "Figure":
        from bayesgeom.charts.heads import add_heads, add_profile, with_null
        from bayesgeom.charts.theme import SECOND, label_axes, panels, with_room_for_legend

        projected = self.overlap_random_projection.mean(axis=1)
        titles = [with_null(v, p, "random W_K") for v, p in zip(self.views, projected, strict=True)]
        titles = [with_null(t, null, "chance") for t, null in zip(titles, self.overlap_null, strict=True)]
        figure = panels(self.title, (f"{self.views[0]}, mean over heads", *titles))
        shown = ("overlap", "overlap_lo", "overlap_hi", "overlap_centred", "overlap_initialisation")
        raw, lo, hi, without_mean, untrained = (vars(self)[name][0].mean(axis=1) for name in shown)
        nulls = {"random directions": np.full_like(raw, self.overlap_null[0]), "initialisation": untrained}
        add_profile(figure, (1, 1), raw, name="mean |cosine|", band=(lo, hi), nulls=nulls)
        add_profile(figure, (1, 1), without_mean, name="mean key removed", color=SECOND)
        label_axes(figure, (1, 1), "layer", "mean |cosine| (1 is parallel)")
        figure.update_yaxes(range=[0, 1], row=1, col=1)
        for i, (values, null) in enumerate(zip(self.overlap, self.overlap_null, strict=True), start=1):
            panel = (i // 2 + 1, i % 2 + 1)
            add_heads(figure, panel, values, unit="|cosine|", null=float(null), limits=(0.0, 1.0), head="key head")
        return with_room_for_legend(figure)
