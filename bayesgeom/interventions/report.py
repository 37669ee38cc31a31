"""The intervention report: does the model use what lies in a subspace?

    movement      Σ (y' − y)(y_donor − y) / Σ (y_donor − y)²      y: the model's own value of the quantity
    answer shift  KL(original's exact ‖ model) − KL(donor's exact ‖ model), bits (fields: `redirect_…`)

Movement is 1 where a swap gives the model the donor's value, 0 where it changes nothing. Every number has its ceiling,
the same done to the whole activation, and its controls: random subspaces of the same rank, and subspaces with the same
share of variance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.interventions.verdicts import RULE
from bayesgeom.results.cells import interval_cell
from bayesgeom.results.report import Headline, Report, aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_RANDOM = "random subspaces, mean"


@final
@dataclass(frozen=True, kw_only=True)
class InterventionReport(Report):
    """Per layer and band of scored positions; NaN in layers where nothing was done.

    - `movement` under a swap, `…_indirect` without the direct path (`…_indirect_most`, `…_indirect_matched_most`: the
      most of the random and of the matched subspaces without theirs), `movement_untrained` in untrained networks.
    - `redirect_bits` under a swap, `redirect_change_bits` its change from the unedited model.
    - `damage_bits`, `entropy_mae_increase_bits`: increase in KL to the original's exact posterior, in entropy error.
    - `removal_kl_bits`: KL increase where the subspace is removed (the same as `damage_bits` of that kind).
    - `…_ceiling`: the same for the whole activation: swapped, or, for every other kind, replaced by its mean.
    - `…_null`, `…_least`, `…_most`: mean and range over `n_random` random subspaces of the same rank, `…_matched…` over
      `n_matched` subspaces with the same share of variance; on the first `n_floor` pairs.
    - `r2_before`, `r2_after`: held-out R² of the quantity from the whole site before and after removal, by a map fitted
      on sequences of its own; `r2_permuted`: the 97.5 % level of shuffled values after removal.
    - `entropy_r2`, `belief_r2`: held-out R² of a linear map from the subspace's coordinates alone.
    - `frame_overlap`: share of the subspace inside the span of the hypothesis tokens' embeddings, with mean and largest
      over 1,000 random subspaces; NaN away from the residual stream. An interval for `top_jacobian` only.
    - `outside_share`: share of the squared difference of donor and recipient outside the subspace.
    """

    name: ClassVar[str] = "intervention"
    title: ClassVar[str] = "Intervention: does the model use what lies in the subspace?"
    about: ClassVar[str] = (
        "One component of an activation is swapped with that of another sequence or removed, and everything after it "
        "is computed again. If the model uses the quantity that lies there, a swap moves the model's own value of it "
        "towards the donor's (movement 0: not at all, 1: all the way). The ceiling is the whole activation. Controls "
        "are random subspaces of the same rank and subspaces with the same share of variance. That removal costs "
        "nothing shows something only if it is complete: the quantity can then no longer be decoded. " + RULE
    )

    kind: str
    site: str
    subspace: str
    quantity: str
    donors: str
    positions: str
    bands: tuple[str, ...]
    rank: Int[np.ndarray, " layer"]
    variance_share: Float[np.ndarray, " layer"]
    r2_before: Float[np.ndarray, " layer"]
    r2_after: Float[np.ndarray, " layer"]
    r2_permuted: Float[np.ndarray, " layer"]
    movement: Float[np.ndarray, "layer band"]
    movement_lo: Float[np.ndarray, "layer band"]
    movement_hi: Float[np.ndarray, "layer band"]
    movement_null: Float[np.ndarray, "layer band"]
    movement_least: Float[np.ndarray, "layer band"]
    movement_most: Float[np.ndarray, "layer band"]
    movement_matched: Float[np.ndarray, "layer band"]
    movement_matched_least: Float[np.ndarray, "layer band"]
    movement_matched_most: Float[np.ndarray, "layer band"]
    movement_ceiling: Float[np.ndarray, "layer band"]
    movement_indirect: Float[np.ndarray, "layer band"]
    movement_indirect_lo: Float[np.ndarray, "layer band"]
    movement_indirect_hi: Float[np.ndarray, "layer band"]
    movement_indirect_most: Float[np.ndarray, "layer band"]
    movement_indirect_matched_most: Float[np.ndarray, "layer band"]
    movement_untrained: Float[np.ndarray, " layer"]
    redirect_bits: Float[np.ndarray, "layer band"]
    redirect_bits_lo: Float[np.ndarray, "layer band"]
    redirect_bits_hi: Float[np.ndarray, "layer band"]
    redirect_bits_null: Float[np.ndarray, "layer band"]
    redirect_bits_least: Float[np.ndarray, "layer band"]
    redirect_bits_most: Float[np.ndarray, "layer band"]
    redirect_bits_ceiling: Float[np.ndarray, "layer band"]
    redirect_bits_unedited: Float[np.ndarray, " band"]
    redirect_change_bits: Float[np.ndarray, "layer band"]
    redirect_change_bits_lo: Float[np.ndarray, "layer band"]
    redirect_change_bits_hi: Float[np.ndarray, "layer band"]
    redirect_change_bits_matched: Float[np.ndarray, "layer band"]
    redirect_change_bits_matched_least: Float[np.ndarray, "layer band"]
    redirect_change_bits_matched_most: Float[np.ndarray, "layer band"]
    redirect_change_bits_indirect: Float[np.ndarray, "layer band"]
    redirect_change_bits_indirect_lo: Float[np.ndarray, "layer band"]
    redirect_change_bits_indirect_hi: Float[np.ndarray, "layer band"]
    redirect_change_bits_indirect_most: Float[np.ndarray, "layer band"]
    redirect_change_bits_indirect_matched_most: Float[np.ndarray, "layer band"]
    damage_bits: Float[np.ndarray, "layer band"]
    damage_bits_lo: Float[np.ndarray, "layer band"]
    damage_bits_hi: Float[np.ndarray, "layer band"]
    damage_bits_null: Float[np.ndarray, "layer band"]
    damage_bits_least: Float[np.ndarray, "layer band"]
    damage_bits_most: Float[np.ndarray, "layer band"]
    damage_bits_matched: Float[np.ndarray, "layer band"]
    damage_bits_matched_least: Float[np.ndarray, "layer band"]
    damage_bits_matched_most: Float[np.ndarray, "layer band"]
    damage_bits_ceiling: Float[np.ndarray, "layer band"]
    damage_bits_indirect: Float[np.ndarray, "layer band"]
    damage_bits_indirect_lo: Float[np.ndarray, "layer band"]
    damage_bits_indirect_hi: Float[np.ndarray, "layer band"]
    damage_bits_indirect_most: Float[np.ndarray, "layer band"]
    damage_bits_indirect_matched_most: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_lo: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_hi: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_null: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_least: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_most: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_matched: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_matched_least: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_matched_most: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_ceiling: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_indirect: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_indirect_lo: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_indirect_hi: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_indirect_most: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_indirect_matched_most: Float[np.ndarray, "layer band"]
    removal_kl_bits: Float[np.ndarray, "layer band"]
    removal_kl_bits_lo: Float[np.ndarray, "layer band"]
    removal_kl_bits_hi: Float[np.ndarray, "layer band"]
    removal_kl_bits_ceiling: Float[np.ndarray, "layer band"]
    share_of_ceiling: Float[np.ndarray, "layer band"]
    outside_share: Float[np.ndarray, " layer"]
    frame_overlap: Float[np.ndarray, " layer"]
    frame_overlap_lo: Float[np.ndarray, " layer"]
    frame_overlap_hi: Float[np.ndarray, " layer"]
    frame_overlap_null: Float[np.ndarray, " layer"]
    frame_overlap_most: Float[np.ndarray, " layer"]
    matched_share: Float[np.ndarray, " layer"]
    matched_rank: Int[np.ndarray, " layer"]
    matched_by: tuple[str, ...]
    entropy_r2: Float[np.ndarray, " layer"]
    entropy_r2_null: Float[np.ndarray, " layer"]
    belief_r2: Float[np.ndarray, " layer"]
    belief_r2_null: Float[np.ndarray, " layer"]
    baseline_kl_bits: float
    verdict: str
    verdict_rule: str
    verdict_by_layer: tuple[str, ...]
    reason_by_layer: tuple[str, ...]
    n_random: int
    n_matched: int
    n_floor: int
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    @property
    def is_swap(self) -> bool:
        """Whether movement and answer shift are defined."""
        return self.kind == "swap"

    @property
    def layers(self) -> list[int]:
        """The layers in which something was done."""
        return [int(layer) for layer in np.flatnonzero(np.isfinite(self.damage_bits[:, 0]))]

    def strongest(self) -> int:
        """The layer with the largest share of the ceiling's effect, over all positions."""
        return int(np.argmax(np.nan_to_num(self.share_of_ceiling[:, 0], nan=-math.inf)))

    def conclusion(self) -> str:
        return self.verdict

    def headlines(self) -> Sequence[Headline]:
        at = self.strongest()
        where = f"layer {at}, {self.subspace}"
        damage = self._line("damage_bits", f"KL increase, {where}", at)
        removal = self._line("removal_kl_bits", f"KL increase on removal, {where}", at, null=math.nan)
        read = Headline(
            metric="r2_after", label=f"R² of the {self.quantity} after removal, {where}",
            value=float(self.r2_after[at]), null=float(self.r2_before[at]), null_label="before",
        )  # fmt: skip
        if not self.is_swap:
            return damage, self._line("damage_bits_ceiling", f"ceiling, layer {at}", at), read
        movement = self._line("movement", f"movement towards the donor's {self.quantity}, {where}", at, unit="")
        shift = self._line("redirect_bits", f"answer shift, {where}", at)
        ceiling = self._line("redirect_bits_ceiling", f"answer shift, ceiling, layer {at}", at)
        return movement, shift, ceiling, damage, removal, read

    def figure(self) -> "Figure":
        from bayesgeom.interventions.drawing import Profile, intervention_figure

        def profile(metric: str, y: str, title: str, level: float = 0.0) -> Profile:
            held = vars(self)
            return Profile(
                title=title, y=y, values=held[metric], lo=held[f"{metric}_lo"], hi=held[f"{metric}_hi"],
                ceiling=held[f"{metric}_ceiling"][:, 0], floor=held[f"{metric}_null"][:, 0],
                floor_range=(held[f"{metric}_least"][:, 0], held[f"{metric}_most"][:, 0]),
                matched=None if metric == "redirect_bits" else held[f"{metric}_matched_most"][:, 0], unedited=level,
            )  # fmt: skip

        damage = profile("damage_bits", "increase in KL (bits)", "KL increase")
        if self.is_swap and np.isfinite(self.movement[:, 0]).any():
            first = profile("movement", "share of the way", f"Movement towards the donor's {self.quantity}")
            chosen = (first, damage)
        else:
            chosen = (damage, profile("entropy_mae_increase_bits", "increase (bits)", "Increase in entropy error"))
        title = f"{self.verdict}<br>{self.kind} {self.subspace} at {self.site}, {self.positions}"
        return intervention_figure(title, chosen, self.bands)

    def table(self) -> str:
        """The verdict, then one row per layer over all scored positions, as the command line prints it."""
        title = f"{self.kind} {self.subspace} at {self.site}, {self.positions}; donors: {self.donors}; n = {self.n}"
        level = f"model's own KL {self.baseline_kl_bits:.4g} bits"
        if self.is_swap and np.isfinite(self.redirect_bits_unedited[0]):
            level += f"; answer shift unedited {self.redirect_bits_unedited[0]:.3f} bits"
        reasons = [f"layer {at}: {self.verdict_by_layer[at]}: {self.reason_by_layer[at]}" for at in self.layers]
        holds = ("layer", "rank", "variance", "R² before", "after", "shuffled", "KL + on removal", "ceiling", "verdict")
        effects = aligned([self._head(), *map(self._effect, self.layers)])
        erased = aligned([holds, *map(self._erased, self.layers)])
        rest = [*self._overlaps(), "", *reasons, "", self.verdict_rule]
        return "\n".join([self.verdict, "", title, level, *effects, "", *erased, "", *rest])

    def _overlaps(self) -> list[str]:
        """Overlap with the hypothesis tokens' embeddings, in the layers where it has an interval."""
        head = ("layer", "inside the span of hypothesis embeddings", "95 % interval", "random, mean", "most of 1,000")
        rows = [
            (str(at), f"{self.frame_overlap[at]:.3f}",
             interval_cell(self.frame_overlap_lo[at], self.frame_overlap_hi[at], ".3f"),
             f"{self.frame_overlap_null[at]:.3f}", f"{self.frame_overlap_most[at]:.3f}")
            for at in self.layers if np.isfinite(self.frame_overlap_lo[at])
        ]  # fmt: skip
        return ["", *aligned([head, *rows])] if rows else []

    def _head(self) -> tuple[str, ...]:
        effect = ("movement",) if self.is_swap else ("KL +",)
        last = ("answer shift", "its ceiling") if self.is_swap else ("entropy error +",)
        return ("layer", *effect, "95 % interval", "ceiling", "random, most", "matched, most", "indirect", *last)

    def _effect(self, layer: int) -> tuple[str, ...]:
        held, metric = vars(self), "movement" if self.is_swap else "damage_bits"
        value, ceiling, most, matched, indirect = (
            f"{held[metric + end][layer, 0]:.4g}" for end in ("", "_ceiling", "_most", "_matched_most", "_indirect")
        )
        interval = interval_cell(held[metric + "_lo"][layer, 0], held[metric + "_hi"][layer, 0], ".3g")
        last = ("redirect_bits", "redirect_bits_ceiling") if self.is_swap else ("entropy_mae_increase_bits",)
        others = (f"{held[name][layer, 0]:.3f}" for name in last)
        return (str(layer), value, interval, ceiling, most, matched, indirect, *others)

    def _erased(self, layer: int) -> tuple[str, ...]:
        before, after, shuffled = (f"{vars(self)[f'r2_{end}'][layer]:.3f}" for end in ("before", "after", "permuted"))
        lo, hi = (float(vars(self)[f"removal_kl_bits_{end}"][layer, 0]) for end in ("lo", "hi"))
        return (
            str(layer), str(self.rank[layer]), f"{self.variance_share[layer]:.2%}", before, after, shuffled,
            f"{self.removal_kl_bits[layer, 0]:.4g} [{interval_cell(lo, hi, '.3g')}]",
            f"{self.removal_kl_bits_ceiling[layer, 0]:.3g}", self.verdict_by_layer[layer],
        )  # fmt: skip

    def _line(self, metric: str, label: str, layer: int, *, unit: str = "bits", null: float | None = None) -> Headline:
        value, lo, hi, level = (
            float(vars(self)[name][layer, 0]) if (name := metric + suffix) in vars(self) else math.nan
            for suffix in ("", "_lo", "_hi", "_null")
        )
        level = level if null is None else null
        return Headline(
            metric=metric, label=label, value=value, unit=unit, lo=lo, hi=hi, null=level, null_label=_RANDOM
        )
