"""The intervention report: did the answer follow the subspace?

    redirect = KL(original's exact ‖ model) − KL(donor's exact ‖ model), bits

Under a swap that carries the answer over it rises from minus what the two posteriors differ by to plus that. Every
number stands between its ceiling, the same done to the whole activation, and its floor, random subspaces of that rank.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.cells import interval_cell
from bayesgeom.report import Headline, Report, aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

USED, INERT = 0.1, 0.01  # shares of the ceiling's effect
RULE = (
    f"The effect is the change of redirect under a swap, else the damage. Used: its 95 % interval lies above every "
    f"random subspace and it is at least {USED:.0%} of the ceiling's. Inert: its interval lies within {INERT:.0%} of "
    f"the ceiling's on either side of zero. Undecided: neither; a single pair has no interval."
)
DECODABLE = 0.9  # R² from which a subspace is said to hold what it gives away
_RANDOM = "random subspaces, mean"


@final
@dataclass(frozen=True, kw_only=True)
class InterventionReport(Report):
    """Per layer and band of scored positions, in bits; NaN in layers where nothing was done.

    - `redirect_bits` under a swap (NaN otherwise), `redirect_change_bits` its change from the unedited model.
    - `damage_bits`, `entropy_mae_increase_bits`: increase in KL to the original's exact posterior, in entropy error.
    - `…_ceiling`: the same for the whole activation: swapped, or, for every other kind, replaced by its mean.
    - `…_null`: mean over `n_random` random subspaces of the same rank, `…_least` and `…_most` their range, on
      `n_floor` of the sequences.
    - `entropy_r2`, `belief_r2`: held-out R² of a linear map from the subspace's coordinates at scored positions.
    """

    name: ClassVar[str] = "intervention"
    title: ClassVar[str] = "Intervention: does the answer follow the subspace?"
    about: ClassVar[str] = (
        "One part of an activation is exchanged, removed or turned, and everything after it computed again. Under a "
        "swap that part comes from another sequence with the same question and another answer: where it carries the "
        "answer, the model now gives the other sequence's, and redirect, in bits, turns from negative to positive. The "
        "ceiling is the whole activation; the grey floor is random subspaces with as many dimensions. What can be read "
        "out of a subspace need not be used: R² near 1 without an effect is called inert. " + RULE
    )

    kind: str
    site: str
    subspace: str
    bands: tuple[str, ...]
    rank: Int[np.ndarray, " layer"]
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
    damage_bits: Float[np.ndarray, "layer band"]
    damage_bits_lo: Float[np.ndarray, "layer band"]
    damage_bits_hi: Float[np.ndarray, "layer band"]
    damage_bits_null: Float[np.ndarray, "layer band"]
    damage_bits_least: Float[np.ndarray, "layer band"]
    damage_bits_most: Float[np.ndarray, "layer band"]
    damage_bits_ceiling: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_lo: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_hi: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_null: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_least: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_most: Float[np.ndarray, "layer band"]
    entropy_mae_increase_bits_ceiling: Float[np.ndarray, "layer band"]
    share_of_ceiling: Float[np.ndarray, "layer band"]
    entropy_r2: Float[np.ndarray, " layer"]
    entropy_r2_null: Float[np.ndarray, " layer"]
    belief_r2: Float[np.ndarray, " layer"]
    belief_r2_null: Float[np.ndarray, " layer"]
    baseline_kl_bits: float
    verdict: str
    verdict_rule: str
    verdict_by_layer: tuple[str, ...]
    n_random: int
    n_floor: int
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    @property
    def is_swap(self) -> bool:
        """Whether redirect is defined."""
        return self.kind == "swap"

    @property
    def layers(self) -> list[int]:
        """The layers in which something was done."""
        return [int(layer) for layer in np.flatnonzero(np.isfinite(self.damage_bits[:, 0]))]

    def strongest(self) -> int:
        """The layer with the largest share of the ceiling's effect, over all positions."""
        return int(np.argmax(np.nan_to_num(self.share_of_ceiling[:, 0], nan=-math.inf)))

    def headlines(self) -> Sequence[Headline]:
        at = self.strongest()
        where = f"layer {at}, {self.subspace}"
        redirect = self._line("redirect_bits", f"redirect, {where}", at)
        damage = self._line("damage_bits", f"damage, {where}", at)
        ceiling = self._line(
            "redirect_bits_ceiling" if self.is_swap else "damage_bits_ceiling", f"ceiling, layer {at}", at
        )
        read = tuple(
            Headline(
                metric=f"{what}_r2", label=f"R² of the {what}, {where}", value=float(vars(self)[f"{what}_r2"][at]),
                null=float(vars(self)[f"{what}_r2_null"][at]), null_label=_RANDOM,
            )
            for what in ("entropy", "belief")
        )  # fmt: skip
        return (redirect, ceiling, damage, *read) if self.is_swap else (damage, ceiling, *read)

    def figure(self) -> "Figure":
        from bayesgeom.interventions.drawing import Profile, intervention_figure

        def profile(metric: str, y: str, title: str) -> Profile:
            held = vars(self)
            return Profile(
                title=title, y=y, values=held[metric], lo=held[f"{metric}_lo"], hi=held[f"{metric}_hi"],
                ceiling=held[f"{metric}_ceiling"][:, 0], floor=held[f"{metric}_null"][:, 0],
                floor_range=(held[f"{metric}_least"][:, 0], held[f"{metric}_most"][:, 0]),
                unedited=float(self.redirect_bits_unedited[0]) if metric == "redirect_bits" else 0.0,
            )  # fmt: skip

        damage = profile("damage_bits", "increase in KL (bits)", "Damage to the original's answer")
        if self.is_swap:
            first = profile("redirect_bits", "redirect (bits)", "Redirect to the donor's answer")
            chosen = (first, damage)
        else:
            chosen = (damage, profile("entropy_mae_increase_bits", "increase (bits)", "Increase in entropy error"))
        return intervention_figure(f"{self.title} {self.kind} {self.subspace} at {self.site}", chosen, self.bands)

    def table(self) -> str:
        """One row per layer, over all scored positions, as the command line prints it; the verdict last."""
        head = ("layer", "rank", "redirect" if self.is_swap else "damage", "95 % interval", "ceiling", "random (range)")
        rows: list[tuple[str, ...]] = [self._row(layer) for layer in self.layers]
        rows.insert(0, (*head, "damage" if self.is_swap else "entropy error +", "R² entropy", "R² belief", "verdict"))
        unedited = f"; redirect unedited {self.redirect_bits_unedited[0]:.3f}" if self.is_swap else ""
        title = f"{self.kind} {self.subspace} at {self.site}, bits, n = {self.n}{unedited}"
        return "\n".join([title, *aligned(rows), self.verdict, self.verdict_rule])

    def _row(self, layer: int) -> tuple[str, ...]:
        metric, other = (
            ("redirect_bits", "damage_bits") if self.is_swap else ("damage_bits", "entropy_mae_increase_bits")
        )
        value, ceiling, mean, least, most = (
            f"{vars(self)[metric + suffix][layer, 0]:.4f}" for suffix in ("", "_ceiling", "_null", "_least", "_most")
        )
        lo, hi = (float(vars(self)[metric + suffix][layer, 0]) for suffix in ("_lo", "_hi"))
        return (
            str(layer), str(self.rank[layer]), value, interval_cell(lo, hi, ".4f"), ceiling,
            f"{mean} ({least} … {most})",
            f"{vars(self)[other][layer, 0]:+.4f}", f"{self.entropy_r2[layer]:.3f}", f"{self.belief_r2[layer]:.3f}",
            self.verdict_by_layer[layer],
        )  # fmt: skip

    def _line(self, metric: str, label: str, layer: int) -> Headline:
        value, lo, hi, null = (
            float(vars(self)[name][layer, 0]) if (name := metric + suffix) in vars(self) else math.nan
            for suffix in ("", "_lo", "_hi", "_null")
        )
        return Headline(
            metric=metric, label=label, value=value, unit="bits", lo=lo, hi=hi, null=null, null_label=_RANDOM
        )


def verdict_of(effect: tuple[float, float, float], ceiling: float, most_random: float) -> str:
    """One of used, inert and undecided, for an effect (value, lower end, upper end), by `RULE`."""
    value, lo, hi = effect
    if not ceiling > 0:
        return "undecided"
    if lo > most_random and value >= USED * ceiling:
        return "used"
    return "inert" if max(abs(lo), abs(hi)) <= INERT * ceiling else "undecided"


def overall_verdict(subspace: str, by_layer: Mapping[int, str], r2: Mapping[str, Mapping[int, float]]) -> str:
    """One sentence: where the subspace is used, or that it is not although something can be read from it."""
    used = [layer for layer, verdict in by_layer.items() if verdict == "used"]
    if used:
        return f"used: {subspace}, in layer {', '.join(map(str, used))}"
    if not all(verdict == "inert" for verdict in by_layer.values()):
        return f"undecided: {subspace}"
    read = [
        f"{what} is decodable (R² up to {max(of.values()):.2f})"
        for what, of in r2.items()
        if max(of.values()) >= DECODABLE
    ]
    return f"inert: {subspace}" + (f", although the {' and the '.join(read)}" if read else "")
