"""The intervention report: does the model use what lies in a subspace?

    movement      Σ (y' − y)(y_donor − y) / Σ (y_donor − y)²      y: the model's own value of the quantity
    answer shift  KL(original's exact ‖ model) − KL(donor's exact ‖ model), bits, as a change from the unedited model

Movement is 1 where a swap gives the model the donor's value, 0 where it changes nothing. Every effect has its ceiling,
the same done to the whole activation, and its controls: random subspaces of the same rank, and subspaces with the same
share of variance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.interventions.design import MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST
from bayesgeom.interventions.verdicts import BY_CONSTRUCTION, RULE, USED, sentence
from bayesgeom.results.cells import interval_cell
from bayesgeom.results.estimate import Estimate, Quantity
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_CONTROLS = (RANDOM, MATCHED, RANDOM_MOST, MATCHED_MOST)
SHUFFLED = "shuffled values, 97.5 % quantile"
EFFECTS = ("answer shift", "KL increase", "entropy error increase", "KL increase on removal")
SHIFT, KL, ERROR, REMOVAL = range(4)  # entries of `ceiling_bits`
STAGES, TARGETS = ("before", "after"), ("entropy", "belief")
BEFORE, AFTER = range(2)  # entries of `r2`


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class InterventionReport(Report):
    """Effects per layer and band of scored positions; NaN in layers where nothing was done.

    - `movement`, `answer_shift_bits`: under a swap. `kl_increase_bits`, `entropy_error_increase_bits`: of the KL to the
      original's exact posterior and of the entropy error. `indirect_…`: without the direct path to the output.
    - Baselines of an effect: mean and range over `random subspaces` of the same rank and over `variance-matched
      subspaces`; of movement also `untrained networks`, over all positions, scaled to the ceiling here. Of an indirect
      effect: the most of each family of subspaces without their direct paths.
    - `removal_kl_bits`: KL increase where the subspace is removed (the same as `kl_increase_bits` of that kind).
    - `ceiling_movement`, `ceiling_bits`: the whole activation swapped or, for every other kind, replaced by its mean.
    - `r2`: held-out R² of the quantity from the whole site before and after removal, by a map fitted on sequences of
      its own. `coordinate_r2`: of entropy and belief from the subspace's coordinates alone.
    - `frame_overlap`: share of the subspace inside the span of the hypothesis tokens' embeddings; NaN away from the
      residual stream. Baseline: mean and largest over 1,000 random subspaces. An interval for `top_jacobian` only.
    - `outside_share`: share of the squared difference of donor and recipient outside the subspace.
    - `where`: site, positions and donors. `controls`, `matched_by`: how many controls there are, and their rank.
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
    subspace: str
    quantity: str
    where: str
    controls: str
    bands: tuple[str, ...]
    movement: Annotated[Estimate, Quantity("layer band", better="higher", label="movement towards the donor's value")]
    indirect_movement: Annotated[
        Estimate, Quantity("layer band", better="higher", label="movement without the direct path")
    ]
    ceiling_movement: Annotated[Estimate, Quantity("layer band", label="movement, ceiling")]
    answer_shift_bits: Annotated[Estimate, Quantity("layer band", unit="bits", better="higher", label="answer shift")]
    indirect_answer_shift_bits: Annotated[
        Estimate, Quantity("layer band", unit="bits", better="higher", label="answer shift without the direct path")
    ]
    unedited_answer_shift_bits: Float[np.ndarray, " band"]
    kl_increase_bits: Annotated[Estimate, Quantity("layer band", unit="bits", better="higher", label="KL increase")]
    indirect_kl_increase_bits: Annotated[
        Estimate, Quantity("layer band", unit="bits", better="higher", label="KL increase without the direct path")
    ]
    entropy_error_increase_bits: Annotated[
        Estimate, Quantity("layer band", unit="bits", better="higher", label="increase in entropy error")
    ]
    removal_kl_bits: Annotated[Estimate, Quantity("layer band", unit="bits", label="KL increase on removal")]
    effects: tuple[str, ...]
    ceiling_bits: Annotated[Estimate, Quantity("effect layer band", unit="bits", label="ceiling")]
    stages: tuple[str, ...]
    r2: Annotated[Estimate, Quantity("stage layer", label="R² of the quantity, before and after removal")]
    targets: tuple[str, ...]
    coordinate_r2: Annotated[Estimate, Quantity("target layer", better="higher", label="R² from the coordinates alone")]
    rank: Int[np.ndarray, " layer"]
    variance_share: Annotated[Estimate, Quantity("layer", label="share of the site's variance")]
    outside_share: Float[np.ndarray, " layer"]
    frame_overlap: Annotated[
        Estimate, Quantity("layer", better="higher", label="share inside the span of hypothesis embeddings")
    ]
    matched_by: tuple[str, ...]
    baseline_kl_bits: float
    verdict_by_layer: tuple[str, ...]
    reason_by_layer: tuple[str, ...]
    n: int

    @property
    def is_swap(self) -> bool:
        """Whether movement and answer shift are defined."""
        return self.kind == "swap"

    @property
    def layers(self) -> list[int]:
        """The layers in which something was done."""
        return [int(layer) for layer in np.flatnonzero(np.isfinite(self.kl_increase_bits.value[:, 0]))]

    @property
    def verdict(self) -> str:
        """The strongest verdict first, with its layers; then the others."""
        return sentence(self.subspace, {at: verdict for at, verdict in enumerate(self.verdict_by_layer) if verdict})

    @property
    def share_of_ceiling(self) -> Float[np.ndarray, "layer band"]:
        """The effect as a share of the whole activation's: movement under a swap, else the KL increase."""
        effect, ceiling = self.kl_increase_bits.value, self.ceiling_bits.value[KL]
        if self.is_swap:
            effect, ceiling = self.movement.value, self.ceiling_movement.value
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(ceiling > 0, effect / ceiling, np.nan)

    def strongest(self) -> int:
        """Return the layer with the largest share of the ceiling's effect, over all positions.

        Layers with the verdict "used" come first. One whose effect holds by construction is chosen only where there
        is no other.
        """
        shares = np.nan_to_num(self.share_of_ceiling[:, 0], nan=-math.inf)
        ranks = [(own == USED) - (own == BY_CONSTRUCTION) for own in self.verdict_by_layer]
        return max(range(len(shares)), key=lambda layer: (np.isfinite(shares[layer]), ranks[layer], shares[layer]))

    def conclusion(self) -> str:
        return self.verdict

    def headlines(self) -> Sequence[Headline]:
        at = self.strongest()
        where = f"layer {at}, {self.subspace}"
        increase = headline_of(self, "kl_increase_bits", (at, 0), f"KL increase, {where}")
        read = headline_of(self, "r2", (AFTER, at), f"R² of the {self.quantity} after removal, {where}")
        rulings = [self._ruling(layer) for layer in sorted(self.layers, key=lambda layer: layer != at)]
        if not self.is_swap:
            return *rulings, headline_of(self, "ceiling_bits", (KL, at, 0), f"ceiling, layer {at}"), read
        return (
            *rulings,
            headline_of(self, "answer_shift_bits", (at, 0), f"answer shift, {where}"),
            headline_of(self, "ceiling_bits", (SHIFT, at, 0), f"answer shift, ceiling, layer {at}"),
            increase,
            headline_of(self, "removal_kl_bits", (at, 0), f"KL increase on removal, {where}"),
            read,
        )

    def _ruling(self, layer: int) -> Headline:
        """The effect in one layer with the verdict on it, and the reason as its finding."""
        metric, what = "kl_increase_bits", "KL increase"
        if self.is_swap:
            metric, what = "movement", f"movement towards the donor's {self.quantity}"
        own = headline_of(self, metric, (layer, 0), f"{what}, layer {layer}, {self.subspace}")
        said = self.verdict_by_layer[layer]
        return replace(own, ruling=said, finding=f"Layer {layer}: {self.reason_by_layer[layer]}.")

    def plot(self) -> "Figure":
        from bayesgeom.interventions.drawing import Profile, intervention_figure

        ceilings = self.ceiling_bits.value[..., 0]
        increase = Profile(
            title="KL increase", y="increase in KL (bits)", effect=self.kl_increase_bits, ceiling=ceilings[KL]
        )
        chosen = [
            increase,
            Profile(
                title="Increase in entropy error",
                y="increase (bits)",
                effect=self.entropy_error_increase_bits,
                ceiling=ceilings[ERROR],
            ),
        ]
        if self.is_swap and np.isfinite(self.movement.value[:, 0]).any():
            title = f"Movement towards the donor's {self.quantity}"
            ceiling = self.ceiling_movement.value[:, 0]
            chosen = [Profile(title=title, y="share of the way", effect=self.movement, ceiling=ceiling), increase]
        return intervention_figure(f"{self.verdict}<br>{self.kind} {self.subspace} at {self.where}", chosen, self.bands)

    def table(self) -> str:
        """The verdict, then one row per layer over all scored positions, as the command line prints it."""
        title = f"{self.kind} {self.subspace} at {self.where}; n = {self.n}; controls: {self.controls}"
        level = f"model's own KL {self.baseline_kl_bits:.4g} bits"
        if self.is_swap and np.isfinite(self.unedited_answer_shift_bits[0]):
            level += f"; its own answer shift, unedited, {self.unedited_answer_shift_bits[0]:.3f} bits"
        reasons = [f"layer {at}: {self.verdict_by_layer[at]}: {self.reason_by_layer[at]}" for at in self.layers]
        holds = ("layer", "rank", "variance", "R² before", "after", "shuffled", "KL + on removal", "ceiling", "verdict")
        effects = aligned([self._head(), *map(self._effect, self.layers)])
        erased = aligned([holds, *map(self._erased, self.layers)])
        rest = [*self._overlaps(), "", *reasons, "", RULE]
        return "\n".join([self.verdict, "", title, level, *effects, "", *erased, "", *rest])

    def _overlaps(self) -> list[str]:
        """Overlap with the hypothesis tokens' embeddings, in the layers where it has an interval."""
        head = ("layer", "inside the span of hypothesis embeddings", "95 % interval", "random, mean", "most of 1,000")
        rows, (low, high) = list[tuple[str, ...]](), self.frame_overlap.ends
        for at in (at for at in self.layers if np.isfinite(low[at])):
            levels = (self.frame_overlap.value, _mean(self.frame_overlap, RANDOM), _most(self.frame_overlap, RANDOM))
            own, random, most = (f"{level[at]:.3f}" for level in levels)
            rows.append((str(at), own, interval_cell(low[at], high[at], ".3f"), random, most))
        return ["", *aligned([head, *rows])] if rows else []

    def _head(self) -> tuple[str, ...]:
        effect = ("movement",) if self.is_swap else ("KL +",)
        last = ("answer shift", "its ceiling") if self.is_swap else ("entropy error +",)
        return ("layer", *effect, "95 % interval", "ceiling", "random, most", "matched, most", "indirect", *last)

    def _effect(self, layer: int) -> tuple[str, ...]:
        own, indirect, ceiling = self.kl_increase_bits, self.indirect_kl_increase_bits, self.ceiling_bits[KL]
        last = [self.entropy_error_increase_bits]
        if self.is_swap:
            own, indirect, ceiling = self.movement, self.indirect_movement, self.ceiling_movement
            last = [self.answer_shift_bits, self.ceiling_bits[SHIFT]]
        levels = (ceiling.value, _most(own, RANDOM), _most(own, MATCHED), indirect.value)
        low, high = own.ends
        return (
            str(layer),
            f"{own.value[layer, 0]:.4g}",
            interval_cell(low[layer, 0], high[layer, 0], ".3g"),
            *(f"{level[layer, 0]:.4g}" for level in levels),
            *(f"{round(each.value[layer, 0], 3) + 0.0:.3f}" for each in last),  # no -0.000
        )

    def _erased(self, layer: int) -> tuple[str, ...]:
        reads = (*self.r2.value[:, layer], _mean(self.r2, SHUFFLED)[AFTER, layer])
        low, high = self.removal_kl_bits.ends
        return (
            str(layer),
            str(self.rank[layer]),
            f"{self.variance_share.value[layer]:.2%}",
            *(f"{r2:.3f}" for r2 in reads),
            f"{self.removal_kl_bits.value[layer, 0]:.4g} [{interval_cell(low[layer, 0], high[layer, 0], '.3g')}]",
            f"{self.ceiling_bits.value[REMOVAL, layer, 0]:.3g}",
            self.verdict_by_layer[layer],
        )


def largest_control(effect: Estimate) -> Float[np.ndarray, "*axes"]:
    """Return the most of all control subspaces, random and variance-matched; NaN where there are none."""
    found = [_most(effect, own.name) for own in effect.baselines if own.name in _CONTROLS]
    return np.max(found, axis=0) if found else np.full(effect.value.shape, np.nan)


def _mean(effect: Estimate, name: str) -> Float[np.ndarray, "*axes"]:
    """The value of a baseline; NaN where an estimate has none of that name, since it is known nowhere."""
    return next((own.value for own in effect.baselines if own.name == name), np.full(effect.value.shape, np.nan))


def _most(effect: Estimate, name: str) -> Float[np.ndarray, "*axes"]:
    """The upper end of a baseline; NaN where an estimate has none of that name."""
    return next(
        (own.bar("higher") for own in effect.baselines if own.name == name), np.full(effect.value.shape, np.nan)
    )
