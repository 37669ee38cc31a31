"""The report of key overlap: |cosine| between the keys of a token set, by layer and key head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.results.report import Headline, Report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LEVELS = ("random W_K", "random directions", "untrained")
WEIGHTS, COLUMNS = "weights", "columns"  # keys computed from the weights alone, by token set and over dimensions
NO_SAMPLING = "the value is exact, since keys from the weights involve no sampling of sequences"
_SAID = {-1.0: "below", 0.0: "at", 1.0: "above"}


@final
@dataclass(frozen=True, kw_only=True)
class KeyOverlapReport(Report):
    """|cosine| between distinct keys (0 orthogonal, 1 parallel), by view: a token set and where its keys were read.

    - `chance`, `chance_lo`, `chance_hi`: expectation and 95 % range of each of `levels` for a single head: the same
      embeddings through random W_K, as many random directions, and the heads of untrained networks (least and most).
      `centred_chance`: the same with the mean key removed.
    - `verdict`, `verdict_centred`: −1 below, 0 at, 1 above that level, by `geometry.cosine.verdicts`; NaN where the
      level is not known, or the overlap has no interval and is not that of weights, which are exact.
    - `overlap_mean`, `overlap_centred_mean`: mean over heads; `…_null` is the first known level.
    - `overlap_crossfit`: the overlap from two halves of the sequences, free of the noise in mean keys, which turns keys
      apart. Keys of activations are means over `n` sequences: `overlap_bias` is about how far that number alone moves
      the overlap. "Below" is said only where the cross-fitted overlap lies below too.
    """

    name: ClassVar[str] = "key_overlap"
    title: ClassVar[str] = "Key overlap: are the keys of different tokens orthogonal?"
    about: ClassVar[str] = (
        "Attention finds a token by its key. Where the keys of different tokens point in unrelated directions, a query "
        "can address one without the others. The number is the mean |cosine| between keys of different tokens, 0 "
        "orthogonal and 1 parallel. Every token set that the task names is shown, inputs first, since the papers do "
        "not say which they used. Random directions do not score 0: their level depends on the width of the head. "
        "The same embeddings through random W_K show what the embedding alone gives, and untrained networks what the "
        "architecture gives. Each head is reported as below, at or above each of these levels. “Mean key removed” "
        "subtracts what all keys share: that adds the same to every score, and softmax ignores it."
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
    overlap_crossfit: Float[np.ndarray, "view layer kv_head"]
    overlap_mean: Float[np.ndarray, "view layer"]
    overlap_mean_lo: Float[np.ndarray, "view layer"]
    overlap_mean_hi: Float[np.ndarray, "view layer"]
    overlap_mean_null: Float[np.ndarray, "view layer"]
    overlap_centred_mean: Float[np.ndarray, "view layer"]
    overlap_centred_mean_lo: Float[np.ndarray, "view layer"]
    overlap_centred_mean_hi: Float[np.ndarray, "view layer"]
    overlap_centred_mean_null: Float[np.ndarray, "view layer"]
    levels: tuple[str, ...]
    chance: Float[np.ndarray, "view level layer"]
    chance_lo: Float[np.ndarray, "view level layer"]
    chance_hi: Float[np.ndarray, "view level layer"]
    centred_chance: Float[np.ndarray, "view level layer"]
    centred_chance_lo: Float[np.ndarray, "view level layer"]
    centred_chance_hi: Float[np.ndarray, "view level layer"]
    verdict: Float[np.ndarray, "view level layer kv_head"]
    verdict_centred: Float[np.ndarray, "view level layer kv_head"]
    overlap_initialisation: Float[np.ndarray, "view layer kv_head"]
    overlap_centred_initialisation: Float[np.ndarray, "view layer kv_head"]
    welch: Float[np.ndarray, " view"]
    n_vectors: Int[np.ndarray, " view"]
    n_unseen: Int[np.ndarray, " view"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        """Layer 0 of every view, raw, then with the mean key removed; the label says how many heads lie where."""
        plain = [self._headline(view, "overlap_mean", self.verdict, self.chance, "") for view in range(len(self.views))]
        centred = [
            self._headline(
                view, "overlap_centred_mean", self.verdict_centred, self.centred_chance, ", mean key removed"
            )
            for view in range(len(self.views))
        ]
        return (*plain, *centred)

    def is_exact(self, view: int) -> bool:
        """Return whether the view's keys are computed from the weights, so that no interval over sequences exists."""
        return self.views[view] == COLUMNS or self.views[view].endswith(f" / {WEIGHTS}")

    def said(self, view: int, layer: int = 0, *, is_centred: bool = False) -> str:
        """Verdicts of one view and layer in words: for each known level, how many heads are below, at or above it."""
        if np.isfinite(self.overlap[view, layer]).all() and not self._has_ends(view, layer, is_centred=is_centred):
            return f"undecided: too few of {self.n} sequences differ, or a few carry the overlap, for an interval"
        found = (self.verdict_centred if is_centred else self.verdict)[view, :, layer]
        parts = []
        for level, heads in zip(self.levels, found, strict=True):
            counts = [f"{int((heads == sign).sum())} {word}" for sign, word in _SAID.items() if (heads == sign).any()]
            if counts:
                parts.append(f"{', '.join(counts)} {level}")
        return "; ".join(parts) or "no level known"

    def _has_ends(self, view: int, layer: int, *, is_centred: bool) -> bool:
        """Whether a head has an interval, or needs none because its keys are weights."""
        found = (self.verdict_centred if is_centred else self.verdict)[view, :, layer]
        known = np.isfinite(self.chance[view, :, layer])
        return bool(np.isfinite(found[known]).any()) or not known.any()

    def _headline(
        self,
        view: int,
        metric: str,
        verdict: Float[np.ndarray, "view level layer kv_head"],
        chance: Float[np.ndarray, "view level layer"],
        suffix: str,
    ) -> Headline:
        said = self.said(view, is_centred=verdict is self.verdict_centred)
        levels = [
            f"{name} {value:.3f}" for name, value in zip(self.levels, chance[view, :, 0], strict=True) if value == value
        ]
        beside = f"first of: {', '.join(levels)}"
        if self.welch[view] > 0:
            beside += f"; Welch bound of the largest |cos| {self.welch[view]:.3f}: 0 is impossible"
        label = f"layer 0, {self.views[view]}{suffix}, heads: {said}"
        found = self.entry(metric, (view, 0), label, null_label=beside)
        return replace(found, no_interval=NO_SAMPLING) if found.no_interval and self.is_exact(view) else found

    def figure(self) -> "Figure":
        from bayesgeom.charts.heads import add_heads, add_profile, with_null
        from bayesgeom.results.theme import SECOND, label_axes, panels, with_room_for_legend

        titles = [with_null(v, p, "random W_K") for v, p in zip(self.views, self.chance[:, 0, 0], strict=True)]
        titles = [with_null(t, null, "chance") for t, null in zip(titles, self.overlap_null, strict=True)]
        figure = panels(self.title, (f"{self.views[0]}, mean over heads", *titles))
        raw, without_mean = self.overlap_mean[0], self.overlap_centred_mean[0]
        band = (self.overlap_mean_lo[0], self.overlap_mean_hi[0])
        nulls = dict(zip(self.levels, self.chance[0], strict=True))
        add_profile(figure, (1, 1), raw, name="mean |cosine|", band=band, nulls=nulls)
        add_profile(figure, (1, 1), without_mean, name="mean key removed", color=SECOND)
        label_axes(figure, (1, 1), "layer", "mean |cosine| (1 is parallel)")
        figure.update_yaxes(range=[0, 1], row=1, col=1)
        for i, (values, null) in enumerate(zip(self.overlap, self.overlap_null, strict=True), start=1):
            panel = (i // 2 + 1, i % 2 + 1)
            add_heads(figure, panel, values, unit="|cosine|", null=float(null), limits=(0.0, 1.0), head="key head")
        return with_room_for_legend(figure)
