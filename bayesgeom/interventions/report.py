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
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import interval_text, number_text, percent_text, with_minus
from bayesgeom.interventions.design import MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST
from bayesgeom.interventions.verdicts import BY_CONSTRUCTION, RULE, UNDECIDED, USED, against, explained, sentence
from bayesgeom.results.estimate import AtMostOne, Estimate, NonNegative, Quantity, Unit
from bayesgeom.results.estimators import UNTRAINED
from bayesgeom.results.findings import numbers
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, ceiling_of, headline_of
from bayesgeom.results.tables import aligned
from bayesgeom.stats.extremes import remark_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_CONTROLS = (RANDOM, MATCHED, RANDOM_MOST, MATCHED_MOST)
_ALONE = ", of this layer alone"
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
NOT_FIXED = "Position and answer were not held fixed; only leace and covariance can do so (given=position+answer)"
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
    """Effects per layer and band of scored positions; NaN in layers that were not edited or have nothing to edit.

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
      the residual stream; its baseline is mean and maximum of 1,000 random subspaces, and it has no interval.
    - `where`: site, positions, donors, and the number of control subspaces. `reason_by_layer` also states how controls
      with the same share of variance were drawn.
    """

    name: ClassVar[str] = "intervention"
    title: ClassVar[str] = "Intervention: does the model use the content of the subspace?"
    about: ClassVar[str] = (
        "One component of an activation is swapped with that of another sequence or removed. If the model uses the "
        "quantity in that component, a swap moves the model's own value of it toward the donor's (movement 0: not at "
        "all, 1: completely). The ceiling edits the whole activation. Controls are random subspaces of the same rank "
        "and subspaces with the same share of variance."
    )
    rule: ClassVar[str] = RULE

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
    reason_by_layer: Annotated[tuple[str, ...], "layer"]
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
    def verdict(self) -> str:
        """The strongest verdict first, with its layers; then the others."""
        return sentence(self.subspace, {at: verdict for at, verdict in enumerate(self.verdict_by_layer) if verdict})

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
        ranks = [(own == USED) - (own == BY_CONSTRUCTION) for own in self.verdict_by_layer]
        return max(range(len(shares)), key=lambda layer: (np.isfinite(shares[layer]), ranks[layer], shares[layer]))

    def conclusion(self) -> str:
        return ". ".join(self._conclusions())

    def _conclusions(self) -> list[str]:
        is_open = USED in self.verdict_by_layer and ", given " not in self.subspace
        first = f"Verdicts on {self.subspace} are: {self.verdict.removesuffix(f': {self.subspace}')}"
        return [text for text in (first, self._size(), NOT_FIXED * is_open) if text]

    def _size(self) -> str:
        """Return how far a swap moves the model's own value in the layer chosen for it; "" without an interval."""
        at = self.strongest()
        moved, verdict = self.movement.value[at, 0], self.verdict_by_layer[at]
        own, remark = _chosen(self.movement[at, 0], len(self.layers))
        low, high = own.ends
        if not self.is_swap or math.isnan(moved) or math.isnan(low) or verdict not in (USED, UNDECIDED):
            return ""
        choice = ", which allows for the choice of the layer" if remark else _ALONE * (len(self.layers) > 1)
        interval = f" (95 % interval {_percent(float(low))} … {_percent(float(high))}{choice})"
        levels = {own.name: float(own.bar("higher")[at, 0]) for own in self.movement.compared}
        known = {name: level for name, level in levels.items() if not math.isnan(level)}
        first = max(known, key=known.__getitem__, default="")
        chosen = dict.fromkeys((first, RANDOM))  # the strongest, and what chance reaches
        against = "".join(f"; {name} {_at_most(known[name])}" for name in chosen if name in known)
        moves = f"In layer {at}, swapping it moves the model's {self.quantity} {_percent(moved)}"
        return f"{moves} of the way to the donor's{interval}{against}"

    def headlines(self) -> Sequence[Headline]:
        at = self.strongest()
        where = f"layer {at}, {self.subspace}"
        read = headline_of(self, "r2", (AFTER, at), f"R² after removal, layer {at} ({self.quantity})")
        first, *others = self._rulings(at)
        first = replace(first, detail=f"{self.kind} {self.subspace} at {self.where}; n = {self.n}")
        if not self.is_swap:
            ceiling = ceiling_of(self, "change_bits", (KL, at, 0), f"ceiling, layer {at}")
            return first, *others, ceiling, read, *self._without_direct_path()
        return (
            first,
            self._explaining(headline_of(self, "change_bits", (SHIFT, at, 0), f"answer shift, {where}"), at),
            *others,
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
        caveat = "untrained networks are not measured without the direct path" * self.is_swap
        lines = [(at, headline_of(self, metric, (*row, at, 0), f"indirect, layer {at}: {label}")) for at in self.layers]
        return [replace(self._identity(own, at), caveat=caveat) for at, own in lines if not math.isnan(own.value)]

    def _identity(self, line: Headline, layer: int) -> Headline:
        """Return the line without a verdict of its own if the swap in its layer is an identity."""
        is_identity = self.verdict_by_layer[layer] == BY_CONSTRUCTION
        return replace(line, verdict="", ruling=BY_CONSTRUCTION) if is_identity else line

    def _rulings(self, strongest: int) -> list[Headline]:
        """Return the headline of every layer; layers with the same verdict and reason state it once.

        The first line carries the verdict on all layers, so the reason of its group, if not "used", stands at another.
        """
        others = [
            max(rest, key=lambda layer: np.nan_to_num(self.share_of_ceiling[layer, 0], nan=-math.inf))
            for group in self._groups()
            if self.verdict_by_layer[group[0]] != USED and (rest := [layer for layer in group if layer != strongest])
        ]
        lines = {layer: self._ruling(layer) for layer in (strongest, *self._judged)}
        return [own if at in (strongest, *others) else replace(own, finding="") for at, own in lines.items()]

    def _groups(self) -> list[list[int]]:
        """Return layers with the same verdict and the same reason against use."""
        groups: dict[tuple[str, str], list[int]] = {}
        for layer in self._judged:
            reason = with_minus(self.reason_by_layer[layer])
            key = against(reason) or reason if self.verdict_by_layer[layer] == UNDECIDED else ""
            groups.setdefault((self.verdict_by_layer[layer], key), []).append(layer)
        return list(groups.values())

    def _explaining(self, line: Headline, layer: int) -> Headline:
        """Return the line with the reason of a layer's verdict if no other layer has the same, and it says more."""
        if self.verdict_by_layer[layer] == USED or [layer] not in self._groups() or math.isnan(line.value):
            return self._identity(line, layer)
        return replace(line, ruling=self.verdict_by_layer[layer], finding=self._explained(layer))

    def _explained(self, layer: int) -> str:
        group = next(own for own in self._groups() if layer in own)
        return explained(group, self.verdict_by_layer[layer], [with_minus(self.reason_by_layer[at]) for at in group])

    def _ruling(self, layer: int) -> Headline:
        """Return the headline of one layer: its effect, verdict and reason."""
        label, metric, row = f"KL increase, layer {layer}, {self.subspace}", "change_bits", [KL]
        if self.is_swap:
            label = f"layer {layer}: movement toward the donor's {self.quantity}"
            metric, row = "movement", []
        at = (*row, layer, 0)
        own, remark = _chosen(self.estimate(metric)[at], len(self.layers) if layer == self.strongest() else 1)
        line = headline_of(self, metric, at, label + remark, own=own)
        return replace(line, ruling=self.verdict_by_layer[layer], finding=self._explained(layer))

    def plot(self) -> "Figure":
        from bayesgeom.interventions.drawing import Profile, intervention_figure
        from bayesgeom.results.captions import with_captions

        def panel(title: str, y: str, effect: Estimate, metric: str, row: tuple[int, ...] = ()) -> tuple[Profile, str]:
            at = self.strongest()
            caption = self._number_text(metric, (*row, at, 0), f"{title}, layer {at}, {self.subspace}")
            caption += " Each interval is of one layer alone." * (len(self.layers) > 1)
            return Profile(title=title, y=y, effect=effect, ceiling=effect.ceiling[:, 0]), caption

        kl, error = self.kl_increase_bits, self.effect(EFFECTS[ERROR])
        increase = panel("KL increase", "increase in KL(exact ‖ model), bits", kl, "change_bits", (KL,))
        chosen = [increase, panel("Increase in entropy error", "increase (bits)", error, "change_bits", (ERROR,))]
        if self.is_swap and np.isfinite(self.movement.value[:, 0]).any():
            title = f"Movement toward the donor's {self.quantity}"
            chosen = [panel(title, "share of the way", self.movement, "movement"), increase]
        profiles, captions = zip(*chosen, strict=True)
        title = f"{self._conclusions()[0]}<br>{self.kind} {self.subspace} at {self.where}"
        return with_captions(intervention_figure(title, profiles, self.bands), captions)

    def _number_text(self, metric: str, at: tuple[int, ...], label: str) -> str:
        """Return a number with interval and strongest baseline, which alone do not decide the verdict of its layer."""
        return numbers(replace(headline_of(self, metric, at, label), ruling=self.verdict))

    def table(self) -> str:
        """Return the verdict, then one row per layer over all scored positions."""
        title = f"{self.kind} {self.subspace} at {self.where}; n = {self.n}"
        level = f"model's own KL {number_text(self.unedited_kl_bits)} bits"
        if self.is_swap and np.isfinite(unedited := self.unedited_bits[SHIFT, 0]):
            level += f"; its own answer shift, unedited, {number_text(unedited)} bits"
        of = self.verdict_by_layer
        reasons = [f"layer {at}: {of[at]}: {with_minus(self.reason_by_layer[at])}" for at in self._judged]
        holds = ("layer", "rank", "variance", "R² before", "after", "shuffled", "ΔKL on removal", "ceiling", "verdict")
        erased = aligned([holds, *map(self._erased, self.layers)])
        above, below = (*self._conclusions(), "", title, level), (*self._overlaps(), "", *reasons, "", RULE)
        return "\n".join([*above, *self._effects(), "", *erased, *below])

    def _overlaps(self) -> list[str]:
        """Return the overlap with the hypothesis tokens' embeddings; claims about J-space rest on the Jacobian's."""
        head = ("layer", "inside the span of hypothesis embeddings", "random, mean", "max of 1,000")
        overlap = self.share[INSIDE]
        levels = (overlap.value, _mean(overlap, RANDOM), _most(overlap, RANDOM))
        outside = (at for at in self.layers if overlap.value[at] < _WHOLE)
        rows = [(str(at), *(number_text(level[at]) for level in levels)) for at in outside]
        return ["", *aligned([head, *rows])] if rows else []

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
        return aligned([("layer", name, "95 % interval", *levels), *rows])

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


def _chosen(own: Estimate, count: int) -> tuple[Estimate, str]:
    """Return an entry chosen of `count` with an interval that allows for the choice, if there is one, and a remark."""
    found = own[np.newaxis].extreme("largest", count=count)[1]
    return (own, "") if found.is_withheld else (found, remark_of(float(found.ends[0]), count))


def _percent(share: float) -> str:
    """Return a share in percent, as a reader takes it in; the table has all digits."""
    digits = int(abs(share) < 0.0995)  # not 0.1, which gives "10.0 %"
    return percent_text(round(share, 2 + digits) + 0.0, digits)  # + 0.0: no "−0.0 %"


def _at_most(share: float) -> str:
    """Return an upper end in percent."""
    return f"at most {_percent(share)}" if share >= 0.001 else "below 0.1 %"


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
