"""The report of key overlap: |cosine| between the keys of a token set, by layer and key head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.verdict import Verdict
from bayesgeom.probes._key_views import COLUMNS, WEIGHTS
from bayesgeom.report.estimate import UNTRAINED, Estimate, Quantity, Share, Signed, Unit
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, Level, headline_of
from bayesgeom.stats.intervals import MIN_DIFFERENT
from bayesgeom.stats.overlap import verdicts

RANDOM_W_K, RANDOM_DIRECTIONS = "random W_K", "random directions"
LEVELS = (RANDOM_W_K, RANDOM_DIRECTIONS, UNTRAINED)
ROUNDING = 1e-6  # of exact values: two keys without their mean are opposite, like two random directions


def is_of_weights(view: str) -> bool:
    """Return whether a view's keys are computed from the weights, so that their overlap is exact."""
    return view == COLUMNS or view.endswith(f" / {WEIGHTS}")


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class KeyOverlapReport(Report):
    """Attention selects a token by its key: with unrelated directions, a query can select one without the others.

    The number is the mean |cosine| between keys of different tokens: 0 is orthogonal, 1 is parallel. Every token set of
    the task is shown, inputs first, because the papers do not say which they used. Random directions do not score 0:
    their level depends on the width of the head. The same embeddings through random W_K show the effect of the
    embedding, and untrained networks that of the architecture. "Mean key removed" subtracts the part shared by all
    keys, which adds a constant to every score and does not change the softmax.

    A row beats its levels if every head lies below every known level, and does not if every head lies above the same
    one.

    Fields: |cosine| between distinct keys (0 orthogonal, 1 parallel), by view: a token set and the source of its keys.

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
    title: ClassVar[str] = "Key overlap: are keys orthogonal?"
    limit: ClassVar[str] = "at most 256 sequences are read"

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
        """Return the first measured layer of every view, raw and with the mean key removed."""
        views = range(len(self.views))
        plain = [self._headline("mean_overlap", view, is_centered=False) for view in views]
        return (*plain, *(self._headline("mean_centered_overlap", view, is_centered=True) for view in views))

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

    def verdict_of_heads(self, view: int, layer: int = 0, *, is_centered: bool = False) -> Verdict:
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

    def n_by_level(self, view: int, layer: int = 0, *, is_centered: bool = False) -> dict[str, tuple[int, int, int]]:
        """Return the numbers of heads below, at and above each known level, of one view and layer."""
        found = {name: self.verdict(name, is_centered=is_centered)[view, layer] for name in LEVELS}
        known = {name: heads for name, heads in found.items() if np.isfinite(heads).any()}
        return {
            name: (int((heads == -1).sum()), int((heads == 0).sum()), int((heads == 1).sum()))
            for name, heads in known.items()
        }

    def _range(self, name: str, *, is_centered: bool) -> tuple[Float[np.ndarray, "view layer kv_head"], ...]:
        """Return expectation, minimum and maximum of a level."""
        own = self.centered_overlap if is_centered else self.overlap
        unknown = np.full(own.value.shape, np.nan)
        found = next((level for level in own.baselines if level.name == name), None)
        parts = (None, None, None) if found is None else (found.value, found.low, found.high)
        return tuple(unknown if part is None else part for part in parts)

    def _headline(self, metric: str, view: int, *, is_centered: bool) -> Headline:
        layer = int(np.isfinite(self.mean_overlap.value).any(axis=0).argmax())  # not 0 if layer 0 has no keys
        label = f"|cos|, {self.views[view]}{', centered' * is_centered}, layer {layer}"
        found = headline_of(self, metric, (view, layer), label)
        if self.welch[view] > 0:
            found = replace(found, levels=(*found.levels, Level(name="Welch bound", value=float(self.welch[view]))))
        if not found.verdict or np.isnan(found.low):
            return found
        return replace(found, verdict=self.verdict_of_heads(view, layer, is_centered=is_centered))

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heads import add_heads, add_profile, with_baseline
        from bayesgeom.report.theme import SECOND, label_axes

        projected, chance = (self.level(name)[:, 0, 0] for name in (RANDOM_W_K, RANDOM_DIRECTIONS))
        titles = [with_baseline(t, level, "chance") for t, level in zip(self.views, chance, strict=True)]
        titles = [with_baseline(t, p, RANDOM_W_K).replace(") (", "; ") for t, p in zip(titles, projected, strict=True)]
        mean, heads = Panel.blank(f"{self.views[0]}, mean over heads"), [Panel.blank(title) for title in titles]
        raw, without_mean = self.mean_overlap[0], self.mean_centered_overlap[0]
        levels = {level.name: level.value for level in raw.baselines}
        add_profile(mean.figure, raw.value, name="mean |cosine|", band=raw.ends, baselines=levels)
        add_profile(mean.figure, without_mean.value, name="mean key removed", color=SECOND)
        label_axes(mean.figure, "layer", "mean |cosine| (1 is parallel)")
        mean.figure.update_yaxes(range=[0, 1])
        for panel, values, level in zip(heads, self.overlap.value, chance, strict=True):
            add_heads(panel.figure, values, unit="|cosine|", baseline=float(level), limits=(0.0, 1.0), head="key head")
        return mean, *heads
