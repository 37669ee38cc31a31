"""The intervention report: does the model use the content of a subspace?

    movement      Σ (y' − y)(y_donor − y) / Σ (y_donor − y)²      y: the model's own value of the quantity
    answer shift  KL(original's exact ‖ model) − KL(donor's exact ‖ model), bits, as a change from the unedited model

Movement is 1 if a swap gives the model the donor's value and 0 if it changes nothing. Every effect has a ceiling, the
same edit of the whole activation, and controls: random subspaces of the same rank, and subspaces with the same share
of variance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import fitted, interval_text, number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions.design import MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST
from bayesgeom.report.estimate import UNTRAINED, AtMostOne, Estimate, NonNegative, Quantity, Unit
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, ceiling_of, headline_of

_CONTROLS = (RANDOM, MATCHED, RANDOM_MOST, MATCHED_MOST)
_WHOLE = 1 - 1e-6  # overlap of a subspace that lies in the span by definition, as the frame does
SHUFFLED = "shuffled values, 97.5 % quantile"
EFFECTS = (
    "answer shift",
    "KL increase",
    "entropy error increase",
    "KL increase on removal",
    "answer shift without the direct path",
    "KL increase without the direct path",
)
SHIFT, KL, ERROR, REMOVAL, INDIRECT_SHIFT, INDIRECT_KL = range(6)  # entries of `effects`
STAGES, TARGETS = ("before", "after"), ("entropy", "belief")
SOURCES = (
    "quantity, before removal",
    "quantity, after removal",
    *(f"{target}, from the coordinates alone" for target in TARGETS),
)
BEFORE, AFTER = range(2)  # entries of `r2`; then those of `TARGETS`
PARTS = (
    "of the site's variance",
    "of the donor's difference, outside the subspace",
    "of the subspace, inside the span of hypothesis embeddings",
)
VARIANCE, OUTSIDE, INSIDE = range(3)  # entries of `share`


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class InterventionReport(Report):
    """One component of an activation is swapped with that of another sequence, or removed.

    If the model uses the quantity in that component, a swap moves the model's own value of it toward the donor's
    (movement 0: not at all, 1: completely). The ceiling edits the whole activation. Controls are random subspaces of
    the same rank, and subspaces with the same share of variance.

    Used: the 95 % interval of the movement of a swap (and, for a belief or log-odds, of the answer shift) lies above
    zero and above every control. There are at least 20 random and 20 variance-matched ones, of which no two have 99 %
    of their variance in common. Untrained networks reach less of the ceiling, and ablating the whole activation costs
    more than half of the model's own KL. Where the site has a direct path to the output, the movement without that path
    lies above zero and above that of every control without its own. A subspace of a quantity must meet two more
    conditions: the quantity is decodable at the site, and erasing it by LEACE costs more than the margin below.

    Not used (linearly, at this site and these positions): before removal, R² of a linear map is at least 0.1 above that
    of shuffled values; after it, at most 0.01 above. The interval of the KL increase lies within half of the model's
    own KL and within 1 % of the ceiling.

    By construction: donor and recipient differ only inside the subspace, or inside the quantity's whole subspace where
    the edit swaps a part of it. Not identified: the quantity is a function of position. Undecided: everything else.
    Only leace and covariance can hold position and answer fixed (given=position+answer).

    Fields, per layer and band of scored positions; NaN in layers that were not edited or have nothing to edit:

    - `movement`: toward the donor's value, for swaps only. `indirect_movement`: without the direct path to the
      output.
    - `change_bits`: the changes from the unedited model that `effects` lists. `effect(name)` returns one of them. The
      answer shift is defined for swaps only. "On removal" means that the subspace is removed.
    - The `ceiling` of an effect or of a movement is that of the whole activation, swapped or, for every other kind,
      replaced by its mean.
    - `unedited_bits`: the reference level of each change: the unedited model's answer shift and KL.
    - Baselines of an effect: mean and range over `random subspaces` of the same rank and over `variance-matched
      subspaces`; for movement also `untrained networks`, over all positions, scaled to this model's ceiling. For an
      effect without the direct path: the largest effect of each family of subspaces without their direct paths.
    - `r2`: held-out R² of the quantity from the whole site before and after removal, by a map fitted on separate
      sequences; then R² of entropy and belief from the subspace's coordinates alone.
    - `share`: share of the site's variance; share of the squared difference of donor and recipient outside the
      subspace; and share of the subspace inside the span of the hypothesis tokens' embeddings. The last is NaN outside
      the residual stream; its baseline is mean and maximum of 1,000 random subspaces.
    - `against_use`, `against_disuse`: the first obstacle to the verdicts "used" and "not used", a code of
      `interventions.verdicts.Obstacle`. `controls_found`: number of distinct subspaces with the same share of variance.
    """

    name: ClassVar[str] = "intervention"
    title: ClassVar[str] = "Intervention: is the subspace used?"

    kind: str
    subspace: str
    quantity: str
    where: str
    bands: tuple[str, ...]
    movement: Annotated[Estimate, Quantity("layer band", better="higher", label="movement toward the donor's value")]
    indirect_movement: Annotated[
        Estimate, Quantity("layer band", better="higher", label="movement without the direct path")
    ]
    effects: tuple[str, ...]
    change_bits: Annotated[Estimate, Quantity("effect layer band", unit="bits", better="higher", label="effect")]
    unedited_bits: Annotated[Float[np.ndarray, "effect band"], Unit("bits")]
    sources: tuple[str, ...]
    r2: Annotated[Estimate, AtMostOne("source layer", label="R²")]
    rank: Annotated[Int[np.ndarray, " layer"], Unit("1")]
    parts: tuple[str, ...]
    share: Annotated[Estimate, NonNegative("part layer", label="share")]
    verdict_by_layer: Annotated[tuple[str, ...], "layer"]
    against_use: Annotated[tuple[str, ...], "layer"]
    against_disuse: Annotated[tuple[str, ...], "layer"]
    controls_found: Annotated[Int[np.ndarray, " layer"], Unit("1")]
    n: int

    def effect(self, name: str) -> Estimate:
        """Return one of the changes in bits, per layer and band, with its baselines.

        Args:
            name: One of `effects`, such as "answer shift".

        Raises:
            InvalidArgument: There is no effect of that name.
        """
        if name not in self.effects:
            raise InvalidArgument(f"no effect is named {name!r}; available: {', '.join(self.effects)}.")
        return _known(self.change_bits[self.effects.index(name)])

    @property
    def kl_increase_bits(self) -> Estimate:
        """The increase in KL to the original's exact posterior."""
        return self.effect(EFFECTS[KL])

    @property
    def unedited_kl_bits(self) -> float:
        """The unedited model's own KL, over all positions."""
        return float(self.unedited_bits[KL, 0])

    @property
    def is_swap(self) -> bool:
        """Whether movement and answer shift are defined."""
        return self.kind == "swap"

    @property
    def layers(self) -> list[int]:
        """The layers that were edited."""
        return [int(layer) for layer in np.flatnonzero(np.isfinite(self.change_bits.value[KL, :, 0]))]

    @property
    def _judged(self) -> list[int]:
        """The layers with a verdict: those that were edited, and those in which there is nothing to edit."""
        return [layer for layer, verdict in enumerate(self.verdict_by_layer) if verdict]

    @property
    def share_of_ceiling(self) -> Float[np.ndarray, "layer band"]:
        """The effect as a share of the ceiling: movement for a swap, else the KL increase."""
        own = self.movement if self.is_swap else self.kl_increase_bits
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(own.ceiling > 0, own.value / own.ceiling, np.nan)

    def strongest(self) -> int:
        """Return the layer with the largest share of the ceiling's effect, over all positions.

        Layers with the verdict "used" come first; layers with the verdict "by construction" come last.
        """
        shares = np.nan_to_num(self.share_of_ceiling[:, 0], nan=-math.inf)
        ranks = [(own == Verdict.USED) - (own == Verdict.BY_CONSTRUCTION) for own in self.verdict_by_layer]
        return max(range(len(shares)), key=lambda layer: (np.isfinite(shares[layer]), ranks[layer], shares[layer]))

    def headlines(self) -> Sequence[Headline]:
        """Return the effect in every layer with its verdict, the strongest layer first; then the others there."""
        at = self.strongest()
        lines = [self._judgment(layer) for layer in dict.fromkeys((at, *self._judged))]
        read = headline_of(self, "r2", (AFTER, at), f"R² after removal, layer {at} ({self.quantity})")
        if not self.is_swap:
            ceiling = ceiling_of(self, "change_bits", (KL, at, 0), f"ceiling, layer {at}")
            return *lines, ceiling, read, *self._without_direct_path()
        where = f"layer {at}, {self.subspace}"
        return (
            *lines,
            self._identity(headline_of(self, "change_bits", (SHIFT, at, 0), f"answer shift, {where}"), at),
            ceiling_of(self, "change_bits", (SHIFT, at, 0), f"answer shift, ceiling, layer {at}"),
            self._identity(headline_of(self, "change_bits", (KL, at, 0), f"KL increase, {where}"), at),
            headline_of(self, "change_bits", (REMOVAL, at, 0), f"KL increase on removal, {where}"),
            read,
            *self._without_direct_path(),
        )

    def _without_direct_path(self) -> list[Headline]:
        """Return the effect without the direct path to the output, in every layer of a site that has one."""
        label = f"{'movement' if self.is_swap else 'KL increase'} without the direct path"
        metric, row = ("indirect_movement", ()) if self.is_swap else ("change_bits", (INDIRECT_KL,))
        lines = [(at, headline_of(self, metric, (*row, at, 0), f"layer {at}: {label}")) for at in self.layers]
        return [self._identity(own, at) for at, own in lines if not math.isnan(own.value)]

    def _identity(self, line: Headline, layer: int) -> Headline:
        """Return the line without a verdict of its own if the swap in its layer is an identity."""
        is_identity = self.verdict_by_layer[layer] == Verdict.BY_CONSTRUCTION
        return replace(line, verdict=self.verdict_by_layer[layer]) if is_identity else line

    def _judgment(self, layer: int) -> Headline:
        """Return the effect in one layer, with its verdict and what stands against another one."""
        metric, row, label = "change_bits", [KL], f"KL increase, layer {layer}, {self.subspace}"
        if self.is_swap:
            metric, row, label = "movement", [], f"layer {layer}: movement toward the donor's {self.quantity}"
        at, count = (*row, layer, 0), len(self.layers) if layer == self.strongest() else 1
        own = self.estimate(metric)[at]
        chosen = own[np.newaxis].extreme("largest", count=count)[1]
        verdict, why = self.verdict_by_layer[layer], self.against_use[layer]
        why = f"{why}; {self.against_disuse[layer]}" if self.against_disuse[layer] and why else why
        if chosen.is_withheld or count < 2:
            return replace(headline_of(self, metric, at, label, own=own, verdict=verdict), why=why)
        return replace(headline_of(self, metric, at, label, own=chosen, chosen_of=count, verdict=verdict), why=why)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.interventions.drawing import profile_panel

        kl = "increase in KL(exact ‖ model), bits"
        increase = profile_panel("KL increase", kl, self.kl_increase_bits, self.bands)
        if self.is_swap and np.isfinite(self.movement.value[:, 0]).any():
            title = f"Movement toward the donor's {self.quantity}"
            return profile_panel(title, "share of the way", self.movement, self.bands), increase
        error = self.effect(EFFECTS[ERROR])
        return increase, profile_panel("Increase in entropy error", "increase (bits)", error, self.bands)

    def table(self) -> str:
        """Return one row per layer over all scored positions, then what stands against each verdict."""
        level = f"model's own KL {number_text(self.unedited_kl_bits)} bits"
        if self.is_swap and np.isfinite(unedited := self.unedited_bits[SHIFT, 0]):
            level += f"; its own answer shift, unedited, {number_text(unedited)} bits"
        holds = ("layer", "rank", "variance", "R² before", "after", "shuffled", "ΔKL on removal", "ceiling", "verdict")
        erased = fitted([holds, *map(self._erased, self.layers)])
        codes = [("layer", "verdict", "against use", "against disuse", "matched controls")]
        codes += [
            (
                str(at),
                self.verdict_by_layer[at],
                self.against_use[at],
                self.against_disuse[at],
                str(self.controls_found[at]),
            )
            for at in self._judged
        ]
        title = f"{self.kind} {self.subspace} at {self.where}; n = {self.n}"
        below = (*self._overlaps(), "", *fitted(codes))
        return "\n".join([title, level, *self._effects(), "", *erased, *below])

    def _overlaps(self) -> list[str]:
        """Return the overlap with the hypothesis tokens' embeddings; claims about J-space rest on the Jacobian's."""
        head = ("layer", "inside the span of hypothesis embeddings", "random, mean", "max of 1,000")
        overlap = self.share[INSIDE]
        levels = (overlap.value, _mean(overlap, RANDOM), _most(overlap, RANDOM))
        outside = (at for at in self.layers if overlap.value[at] < _WHOLE)
        rows = [(str(at), *(number_text(level[at]) for level in levels)) for at in outside]
        return ["", *fitted([head, *rows])] if rows else []

    def _effects(self) -> list[str]:
        """Return two tables: the effect with its ceiling and controls; that without the direct path, and the others."""
        own, indirect = self.kl_increase_bits, self.effect(EFFECTS[INDIRECT_KL])
        others = {"Δ entropy error": self.effect(EFFECTS[ERROR]).value}
        if self.is_swap:
            own, indirect, shift = self.movement, self.indirect_movement, self.effect(EFFECTS[SHIFT])
            others = {"answer shift": shift.value, "its ceiling": shift.ceiling}
        levels = {"ceiling": own.ceiling, "random, max": _most(own, RANDOM), "matched, max": _most(own, MATCHED)}
        levels |= {"untrained": _most(own, UNTRAINED)} if self.is_swap else {}
        return [
            *self._table("movement" if self.is_swap else "ΔKL", own, levels),
            "",
            *self._table("without the direct path", indirect, {"controls, max": largest_control(indirect), **others}),
        ]

    def _table(self, name: str, effect: Estimate, levels: Mapping[str, Float[np.ndarray, "layer band"]]) -> list[str]:
        """Return an effect with its interval, and levels, per layer over all scored positions."""
        low, high = effect.ends
        rows = [
            (
                str(layer),
                number_text(effect.value[layer, 0]),
                interval_text(low[layer, 0], high[layer, 0]),
                *(number_text(level[layer, 0]) for level in levels.values()),
            )
            for layer in self.layers
        ]
        return fitted([("layer", name, "95 % interval", *levels), *rows])

    def _erased(self, layer: int) -> tuple[str, ...]:
        reads = (*self.r2.value[[BEFORE, AFTER], layer], _mean(self.r2, SHUFFLED)[AFTER, layer])
        removal = self.change_bits[REMOVAL, layer, 0]
        return (
            str(layer),
            str(self.rank[layer]),
            f"{100 * self.share.value[VARIANCE, layer]:.2f} %",
            *map(number_text, reads),
            removal.text(),
            number_text(removal.ceiling),
            self.verdict_by_layer[layer],
        )


def largest_control(effect: Estimate) -> Float[np.ndarray, "*axes"]:
    """Return the largest effect of all control subspaces, random and variance-matched; NaN without controls."""
    found = [_most(effect, own.name) for own in effect.baselines if own.name in _CONTROLS]
    return np.max(found, axis=0) if found else np.full(effect.value.shape, np.nan)


def _known(effect: Estimate) -> Estimate:
    """Return the estimate without baselines that are NaN everywhere."""
    return replace(effect, baselines=tuple(own for own in effect.baselines if np.isfinite(own.value).any()))


def _mean(effect: Estimate, name: str) -> Float[np.ndarray, "*axes"]:
    """Return the value of a baseline; NaN if the estimate has none of that name."""
    return next((own.value for own in effect.baselines if own.name == name), np.full(effect.value.shape, np.nan))


def _most(effect: Estimate, name: str) -> Float[np.ndarray, "*axes"]:
    """Return the upper end of a baseline; NaN if the estimate has none of that name."""
    found = (own.bar("higher") for own in effect.baselines if own.name == name)
    return next(found, np.full(effect.value.shape, np.nan))
