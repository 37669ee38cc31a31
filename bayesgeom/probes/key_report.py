"""The report of key overlap: |cosine| between the keys of a token set, by layer and key head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.text import number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.probes._key_views import COLUMNS, WEIGHTS
from bayesgeom.results.estimate import Estimate, Quantity, Share, Signed, Unit
from bayesgeom.results.estimators import UNTRAINED
from bayesgeom.results.findings import numbers
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.stats.intervals import MIN_DIFFERENT
from bayesgeom.stats.overlap import verdicts

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

RANDOM_W_K, RANDOM_DIRECTIONS = "random W_K", "random directions"
LEVELS = (RANDOM_W_K, RANDOM_DIRECTIONS, UNTRAINED)
ROUNDING = 1e-6  # of exact values: two keys without their mean are opposite, like two random directions
HEADS_DIFFER = "some heads are within the range of a baseline, or heads are on both sides of one"
_RELATION = {-1.0: "below", 0.0: "at", 1.0: "above"}


def is_of_weights(view: str) -> bool:
    """Return whether a view's keys are computed from the weights, so that their overlap is exact."""
    return view == COLUMNS or view.endswith(f" / {WEIGHTS}")


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class KeyOverlapReport(Report):
    """|cosine| between distinct keys (0 orthogonal, 1 parallel), by view: a token set and the source of its keys.

    - `overlap` has up to three levels to compare with: the same embeddings through random W_K, as many random
      directions, and untrained networks. `low` and `high` of a level are the 95 % range of a single head; for untrained
      networks, the minimum and maximum over all heads. `centered_overlap` is the same with the mean key removed.
    - `mean_overlap` and `mean_centered_overlap` are means over heads.
    - `verdict` says which heads lie below, at and above a level, by `stats.overlap.verdicts`. The row's verdict
      follows from it: `verdict_of_heads`.
    - `cross_fitted_overlap` is the overlap from two halves of the sequences. Noise in mean keys lowers the plain
      overlap, but not this one. Keys of activations are means over `n` sequences; `overlap_bias` estimates the effect
      of finite n on the overlap. A verdict "below" requires that the cross-fitted overlap lies below too.
    - With more vectors than dimensions, `largest_overlap` is at least `welch`, the Welch bound.
    """

    name: ClassVar[str] = "key_overlap"
    title: ClassVar[str] = "Key overlap: are the keys of different tokens orthogonal?"
    limit: ClassVar[str] = "at most 256 sequences are read"
    about: ClassVar[str] = (
        "Attention selects a token by its key. If the keys of different tokens have unrelated directions, a query can "
        "select one token without the others. The number is the mean |cosine| between keys of different tokens: 0 is "
        "orthogonal, 1 is parallel. Every token set of the task is shown, inputs first, because the papers do not say "
        "which they used. Random directions do not score 0: their level depends on the width of the head. The same "
        "embeddings through random W_K show the effect of the embedding, and untrained networks that of the "
        "architecture. Each head is reported as below, at or above each of these levels. “Mean key removed” subtracts "
        "the part shared by all keys, which adds a constant to every score and does not change the softmax."
    )

    views: tuple[str, ...]
    overlap: Annotated[Estimate, Share("view layer kv_head", better="lower", label="mean |cos| between keys")]
    centered_overlap: Annotated[Estimate, Share("view layer kv_head", better="lower", label="mean |cos|, centered")]
    mean_overlap: Annotated[Estimate, Share("view layer", better="lower", label="mean |cos|, mean over heads")]
    mean_centered_overlap: Annotated[
        Estimate, Share("view layer", better="lower", label="mean |cos|, centered, over heads")
    ]
    largest_overlap: Annotated[Estimate, Share("view layer kv_head", better="lower", label="largest |cos|")]
    largest_centered_overlap: Annotated[
        Estimate, Share("view layer kv_head", better="lower", label="largest |cos|, centered")
    ]
    signed_mean: Annotated[Estimate, Signed("view layer kv_head", label="mean cosine between keys")]
    orthogonality: Annotated[Estimate, Quantity("view layer kv_head", better="higher", label="1 − RMS cosine")]
    dimension_utilization: Annotated[Estimate, Share("view layer kv_head", better="higher", label="dimensions in use")]
    cross_fitted_overlap: Annotated[Float[np.ndarray, "view layer kv_head"], Unit("1")]
    overlap_bias: Annotated[Float[np.ndarray, "view layer kv_head"], Unit("1")]
    welch: Annotated[Float[np.ndarray, " view"], Unit("1")]
    n_vectors: Annotated[Int[np.ndarray, " view"], Unit("1")]
    n_unseen: Annotated[Int[np.ndarray, " view"], Unit("1")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        """Return the first measured layer of every view, raw and with the mean key removed.

        The detail of the first one counts heads below, at and above each level; `in_words` counts them for any view.
        """
        views = range(len(self.views))
        plain = [self._headline("mean_overlap", view, is_centered=False) for view in views]
        plain[0] = replace(plain[0], detail=plain[0].finding)
        centered = [self._headline("mean_centered_overlap", view, is_centered=True) for view in views]
        return (*plain, *centered)

    def is_exact(self, view: int) -> bool:
        """Return whether the view's keys are computed from the weights, so that no interval over sequences exists."""
        return is_of_weights(self.views[view])

    def level(self, name: str, *, is_centered: bool = False) -> Float[np.ndarray, "view layer kv_head"]:
        """Return the expectation of a level by its name; NaN where the level is not known."""
        return self._range(name, is_centered=is_centered)[0]

    def verdict(self, name: str, *, is_centered: bool = False) -> Float[np.ndarray, "view layer kv_head"]:
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
        own = self.centered_overlap if is_centered else self.overlap
        is_exact = np.array([self.is_exact(view) for view in range(len(self.views))])[:, None, None]
        low, high = (np.where(is_exact, own.value, end) for end in own.ends)
        if not is_centered:
            high = np.where(np.isnan(high), high, np.fmax(high, self.cross_fitted_overlap))
        _, least, most = self._range(name, is_centered=is_centered)
        found = verdicts(low - ROUNDING, high + ROUNDING, least, most)
        if is_centered or self.n <= MIN_DIFFERENT:
            return found
        at_most = np.maximum(own.value + 2 * np.abs(self.overlap_bias), self.cross_fitted_overlap)
        return np.where(np.isnan(low) & (own.value < self.level(RANDOM_DIRECTIONS)) & (at_most < least), -1.0, found)

    def verdict_of_heads(self, view: int, layer: int = 0, *, is_centered: bool = False) -> str:
        """Return whether the keys overlap less than every level in every head: the verdict of a row.

        A mean over heads can lie beyond every level while heads lie on different sides of it, or within its range.
        Levels are ranges over draws of one head, so every head is compared.

        Args:
            view: The view.
            layer: The layer.
            is_centered: Whether the mean key is removed.

        Returns:
            "yes" if every head lies below every known level, "no" if every head lies above the same level, else
            "undecided". A head within the range of a level is like a random one. A head without an interval is not
            known to lie below.
        """
        levels = {name: self.level(name, is_centered=is_centered)[view, layer] for name in LEVELS}
        is_known = {name: np.isfinite(own).any() for name, own in levels.items()}
        known = [self.verdict(name, is_centered=is_centered)[view, layer] for name in LEVELS if is_known[name]]
        if known and all((heads == -1).all() for heads in known):
            return Verdict.YES
        return Verdict.NO if any((heads == 1).all() for heads in known) else Verdict.UNDECIDED

    def in_words(self, view: int, layer: int = 0, *, is_centered: bool = False) -> str:
        """Return the verdicts of one view and layer in words: heads below, at or above each known level."""
        found = {name: self.verdict(name, is_centered=is_centered)[view, layer] for name in LEVELS}
        is_known = {name: np.isfinite(self.level(name)[view, layer]).any() for name in LEVELS}
        has_ends = any(np.isfinite(found[name]).any() for name in LEVELS if is_known[name])
        if np.isfinite(self.overlap.value[view, layer]).all() and any(is_known.values()) and not has_ends:
            return "undecided without an interval"
        parts = []
        for name, heads in found.items():
            counts = [
                f"{int((heads == sign).sum())} {word}" for sign, word in _RELATION.items() if (heads == sign).any()
            ]
            if counts:
                parts.append(f"{', '.join(counts)} {name}")
        return "; ".join(parts) or "no level known"

    def _range(self, name: str, *, is_centered: bool) -> tuple[Float[np.ndarray, "view layer kv_head"], ...]:
        """Return expectation, minimum and maximum of a level."""
        own = self.centered_overlap if is_centered else self.overlap
        unknown = np.full(own.value.shape, np.nan)
        found = next((level for level in own.baselines if level.name == name), None)
        parts = (None, None, None) if found is None else (found.value, found.low, found.high)
        return tuple(unknown if part is None else part for part in parts)

    def _headline(self, metric: str, view: int, *, is_centered: bool) -> Headline:
        suffix, short = (", mean key removed", ", centered") if is_centered else ("", "")
        layer = int(np.isfinite(self.mean_overlap.value).any(axis=0).argmax())  # not 0 if layer 0 has no keys
        found = headline_of(self, metric, (view, layer), f"|cos|, {self.views[view]}{short}, layer {layer}")
        found = replace(
            found, finding=self._sentence(view, layer, is_centered=is_centered), short_label=f"mean |cos|{suffix}"
        )
        if self.welch[view] > 0:
            bound = f"Welch bound of the largest |cos| {number_text(self.welch[view])}: 0 is impossible"
            found = replace(found, baseline_name=f"{found.baseline_name}; {bound}")
        if found.verdict and (self.is_exact(view) or np.isfinite(found.low)):
            verdict = self.verdict_of_heads(view, layer, is_centered=is_centered)
            found = replace(found, verdict=verdict, caveat=HEADS_DIFFER if verdict == Verdict.UNDECIDED else "")
        return found

    def _sentence(self, view: int, layer: int, *, is_centered: bool) -> str:
        """Return how many heads lie below, at and above each level, as a sentence; "" where the value is unknown."""
        heads = self.in_words(view, layer, is_centered=is_centered)
        values = (self.centered_overlap if is_centered else self.overlap).value[view, layer]
        if not np.isfinite(values).any() or heads == "no level known":
            return ""
        keys = f"{self.views[view]}{', mean key removed' if is_centered else ''}"
        if heads.startswith("undecided"):
            return f"In layer {layer}, the key overlap ({keys}) is {heads}."
        found = [self._counted(name, self.verdict(name, is_centered=is_centered)[view, layer]) for name in LEVELS]
        return f"In layer {layer}, the key overlap ({keys}) is {'; '.join(filter(None, found))}."

    def _counted(self, name: str, heads: Float[np.ndarray, " kv_head"]) -> str:
        """Return in how many heads the overlap is below, at and above a level."""
        counts = [(word, int((heads == sign).sum())) for sign, word in _RELATION.items() if (heads == sign).any()]
        in_words = [f"{word} it in {count}" for word, count in counts]
        if counts:
            (word, count) = counts[0]
            in_words[0] = f"{word} {name} in {count} head{'s' * (count != 1)}"
        return ", ".join(in_words)

    def plot(self) -> "Figure":
        from bayesgeom.charts.heads import add_heads, add_profile, with_baseline
        from bayesgeom.results.captions import with_captions
        from bayesgeom.results.theme import SECOND, label_axes, panels, with_room_for_legend

        projected, chance = (self.level(name)[:, 0, 0] for name in (RANDOM_W_K, RANDOM_DIRECTIONS))
        titles = [with_baseline(t, level, "chance") for t, level in zip(self.views, chance, strict=True)]
        titles = [with_baseline(t, p, RANDOM_W_K).replace(") (", "; ") for t, p in zip(titles, projected, strict=True)]
        figure = panels(self.title, (f"{self.views[0]}, mean over heads", *titles))
        raw, without_mean = self.mean_overlap[0], self.mean_centered_overlap[0]
        levels = {level.name: level.value for level in raw.baselines}
        add_profile(figure, (1, 1), raw.value, name="mean |cosine|", band=raw.ends, baselines=levels)
        add_profile(figure, (1, 1), without_mean.value, name="mean key removed", color=SECOND)
        label_axes(figure, (1, 1), "layer", "mean |cosine| (1 is parallel)")
        figure.update_yaxes(range=[0, 1], row=1, col=1)
        for i, (values, level) in enumerate(zip(self.overlap.value, chance, strict=True), start=1):
            panel = (i // 2 + 1, i % 2 + 1)
            add_heads(figure, panel, values, unit="|cosine|", baseline=float(level), limits=(0.0, 1.0), head="key head")
        return with_captions(with_room_for_legend(figure), (numbers(self.headlines()[0]),))
