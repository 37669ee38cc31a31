"""The reports of interventions: does the model use the content of a subspace?

    movement      Σ (y' − y)(y_donor − y) / Σ (y_donor − y)²      y: the model's own value of the quantity
    answer shift  KL(original's exact ‖ model) − KL(donor's exact ‖ model), bits, as a change from the unedited model

Movement is 1 if a swap gives the model the donor's value and 0 if it changes nothing. Every effect has a ceiling, the
same edit of the whole activation, and controls: random subspaces of the same rank, and others.

Reference: Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.5, 4.6 and 6.2 (cuts at one layer and at
five; "a privileged read-out, not a bottleneck").
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core import InvalidArgument, Reason, Verdict, fitted, number_text, percent_text
from bayesgeom.interventions.design import ERASED, MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST
from bayesgeom.interventions.verdicts import Judgment, against_movement
from bayesgeom.report import (
    R2,
    UNTRAINED,
    Estimate,
    Finding,
    Headline,
    NonNegative,
    Opening,
    Panel,
    Quantity,
    Report,
    Share,
    Unit,
    ceiling_of,
    headline_of,
)

ORTHOGONAL, UNEDITED = "orthogonal random subspaces", "unedited model"
_CONTROLS = (RANDOM, MATCHED, RANDOM_MOST, MATCHED_MOST)
_WHOLE = 1 - 1e-6  # overlap of a subspace that lies in the span by definition, as the frame does
SHUFFLED = "shuffled values, 97.5 % quantile"
EFFECTS = (
    "answer shift",
    "KL increase",
    "entropy error increase",
    "KL increase on removal",
    *(f"{own} without the direct path" for own in ("answer shift", "KL increase")),
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
METRICS = ("KL", "entropy error")
ENTROPIES = ("exact entropy", "exact entropy within positions", "model's own entropy")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class EditReport(Report, ABC):
    """The result of edits in several layers, or sets of layers, with one table of numbers and one of codes."""

    @abstractmethod
    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return tables: the index of each row by its name, and the columns that it indexes."""

    @final
    def table(self) -> str:
        """Return the numbers of every edit with 95 % intervals and controls, then the codes of its verdict."""
        lines = [self.title]
        for rows, columns in self._tables():
            known = {name: own for name, own in columns.items() if any(_cell(own, at) != "–" for at in rows.values())}
            cells = [(name, *(_cell(own, at) for own in known.values())) for name, at in rows.items()]
            lines += ["", *fitted([("", *known), *cells])]
        return "\n".join(lines)


def _cell(column: Any, at: Any) -> str:
    """Return an entry of an estimate with its interval, of an array, or of a sequence of texts."""
    if isinstance(column, Estimate):
        return column[at].text()
    return number_text(column[at]) if isinstance(column, np.ndarray) else str(column[at])


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class InterventionReport(EditReport):
    """One component of an activation is swapped with that of another sequence, or removed.

    If the component acts on the answer, a swap moves the model's own value of it toward the donor's
    (movement 0: not at all, 1: completely). The ceiling edits the whole activation. Controls are random subspaces of
    the same rank, and subspaces with the same share of variance.

    Causal: swapping a linear function of this site that goes with the quantity moves the model's own value toward the
    donor's. The 95 % interval of the movement of a swap lies above zero, above at least 20 random subspaces and above
    at least 20 variance-matched ones, of which no two have 99 % of their variance in common. The movement is at least
    0.1 of that of swapping the whole activation, whose interval must lie above zero. Where the site has a direct path
    to the output, the movement without that path lies above zero and above that of every control without its own. The
    quantity is decodable at the site (R² more than 0.01 above that of shuffled values). The verdict does not say that
    the model computes the quantity: a look-up table of categories is causal, too. So each causal layer states whether
    the movement survives with position and answer held fixed, and whether the rest of the strongest correlated code
    moves the value as well ("goes with the category code").

    The headline is of a layer that is chosen among those that were edited. Its interval allows for the choice, and so
    does its verdict (`among_layers`); `verdict_by_layer` is of each layer alone.

    Inert (linearly, at this site and these positions): before removal, R² of a linear map is at least 0.1 above that
    of shuffled values; after it, at most 0.01 above. The upper end of the KL increase is at most 1 % of that of
    replacing the whole activation by its mean, and at most the median of 20 random erasures of the same rank.

    By construction: donor and recipient differ only inside the subspace, or inside the quantity's whole subspace where
    the edit swaps a part of it; or untrained networks reach the ceiling as well. Not identified: the quantity is a
    function of position. Undecided: everything else, and where both conditions hold.

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
    - `against_causal`, `against_inert`: the first obstacle to either verdict, a code of
      `interventions.verdicts.Obstacle`. `controls_found`: number of distinct subspaces with the same share of variance.
    - `held_movement`: movement with position and answer held fixed, and of what the strongest correlated code has
      outside the subspace, over all positions. `survival_by_layer`: a code of `interventions.verdicts.Survival` where
      the verdict is causal.
    """

    name: ClassVar[str] = "intervention"
    title: ClassVar[str] = "Intervention: is this subspace causal, or inert?"

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
    r2: Annotated[Estimate, R2("source layer", label="R²")]
    rank: Annotated[Int[np.ndarray, " layer"], Unit("1")]
    parts: tuple[str, ...]
    share: Annotated[Estimate, NonNegative("part layer", label="share")]
    verdict_by_layer: Annotated[tuple[str, ...], "layer"]
    against_causal: Annotated[tuple[str, ...], "layer"]
    against_inert: Annotated[tuple[str, ...], "layer"]
    others: tuple[str, ...]
    held_movement: Annotated[Estimate, Quantity("other layer", label="movement with a quantity held fixed")]
    survival_by_layer: Annotated[tuple[str, ...], "layer"]
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
        own = self.change_bits[self.effects.index(name)]
        return replace(own, baselines=tuple(each for each in own.baselines if np.isfinite(each.value).any()))

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

        Layers that are "causal" among the edited ones come first; layers with the verdict "by construction" come last.
        It is a layer that was edited, if there is one, even where no ceiling is known.
        """
        edited = frozenset(self.layers)
        shares = np.nan_to_num(self.share_of_ceiling[:, 0], nan=-math.inf)
        verdicts = [self.among_layers(layer).verdict for layer in range(len(shares))]
        ranks = [(own == Verdict.CAUSAL) - (own == Verdict.BY_CONSTRUCTION) for own in verdicts]

        def key(layer: int) -> tuple[bool, bool, int, float]:
            return layer in edited, bool(np.isfinite(shares[layer])), int(ranks[layer]), float(shares[layer])

        return max(range(len(shares)), key=key)

    def among_layers(self, layer: int) -> Judgment:
        """Return the verdict on a layer that is chosen among those that were edited, with what stands against others.

        "Causal" must then hold of intervals that allow for the choice (`Estimate.extreme`), as the headline shows them.

        Args:
            layer: One of the model's layers.
        """
        own = Judgment(self.verdict_by_layer[layer], self.against_causal[layer], self.against_inert[layer])
        if own.verdict != Verdict.CAUSAL or len(self.layers) == 1:
            return own
        movement, indirect = (self._chosen(each[layer, 0]) for each in (self.movement, self.indirect_movement))
        is_ignored = movement.is_withheld or indirect.is_withheld
        obstacle = str(Reason.CHOICE_IGNORED) if is_ignored else next(against_movement(movement, indirect), "")
        return replace(own, verdict=Verdict.UNDECIDED, against_causal=obstacle) if obstacle else own

    def _chosen(self, own: Estimate) -> Estimate:
        """Return a scalar of one layer with an interval that allows for the choice of that layer."""
        return own[np.newaxis].extreme("largest", count=len(self.layers))[1]

    def headlines(self) -> Sequence[Headline]:
        """Return the effect in every layer with its verdict, the strongest layer first; then the others there."""
        at = self.strongest()
        where = f"layer {at}, {self.subspace}"
        lines = [self._judgment(layer) for layer in dict.fromkeys((at, *self._judged))]
        if self.is_swap:
            lines += [
                self._line("change_bits", (SHIFT, at, 0), f"answer shift, {where}"),
                ceiling_of(self, "change_bits", (SHIFT, at, 0), f"answer shift, ceiling, layer {at}"),
                self._line("change_bits", (KL, at, 0), f"KL increase, {where}"),
                self._line("change_bits", (REMOVAL, at, 0), f"KL increase on removal, {where}", verdict=""),
            ]
        else:
            lines.append(ceiling_of(self, "change_bits", (KL, at, 0), f"ceiling, layer {at}"))
        lines.append(headline_of(self, "r2", (AFTER, at), f"R² after removal, layer {at} ({self.quantity})"))
        for at in self.layers:
            label = f"layer {at}: {'movement' if self.is_swap else 'KL increase'} without the direct path"
            metric, place = ("indirect_movement", ()) if self.is_swap else ("change_bits", (INDIRECT_KL,))
            lines.append(self._line(metric, (*place, at, 0), label))
        return [own for own in lines if own.verdict or not math.isnan(own.value)]

    def answer(self) -> Opening | None:
        judgments, at = [self.among_layers(layer) for layer in range(len(self.verdict_by_layer))], self.strongest()
        judgment, line, against = judgments[at], self._judgment(at), dict[str, str]()
        match judgment.verdict:
            case Verdict.BY_CONSTRUCTION | Verdict.NOT_IDENTIFIED:
                finding, against = Finding.SHOWS_NOTHING, {Verdict.CAUSAL: judgment.against_causal}
            case _ if math.isnan(line.value):
                return None
            case Verdict.INERT:
                finding = Finding.INERT
            case Verdict.CAUSAL:
                finding = Finding.CAUSAL
            case _:
                finding = Finding.MOVEMENT_UNDECIDED if self.is_swap else Finding.EFFECT_UNDECIDED
                against = {Verdict.CAUSAL: judgment.against_causal, Verdict.INERT: judgment.against_inert}
        random = next((level for level in line.levels if level.name == RANDOM), None)
        return finding.of(
            against,
            layers=[layer for layer, other in enumerate(judgments) if other.verdict == judgment.verdict],
            layer=at,
            edit=self.kind,
            subspace=self.subspace,
            quantity=self.quantity,
            verdict=judgment.verdict,
            effect=line.value,
            cost=self.effect(EFFECTS[REMOVAL if self.is_swap else KL])[at, 0],
            **({"random_most" if random.bound else "random": random.value} if random else {}),
        )

    def _line(self, metric: str, at: tuple[int, ...], label: str, *, verdict: str | None = None) -> Headline:
        """Return an entry, without a verdict of its own if the swap in its layer is an identity."""
        is_identity = self.verdict_by_layer[at[-2]] == Verdict.BY_CONSTRUCTION
        return headline_of(self, metric, at, label, verdict=str(Verdict.BY_CONSTRUCTION) if is_identity else verdict)

    def _judgment(self, layer: int) -> Headline:
        """Return the effect in one layer, with its verdict and what stands against another one."""
        metric, label = "change_bits", f"KL increase, layer {layer}, {self.subspace}"
        at: tuple[int, ...] = KL, layer, 0
        if self.is_swap:
            metric, at, label = "movement", (layer, 0), f"layer {layer}: movement toward the donor's {self.quantity}"
        own, count = self.estimate(metric)[at], 1
        found = Judgment(self.verdict_by_layer[layer], self.against_causal[layer], self.against_inert[layer])
        if layer == self.strongest() and len(self.layers) > 1:
            chosen, found = self._chosen(own), self.among_layers(layer)
            own, count = (own, 1) if chosen.is_withheld else (chosen, len(self.layers))
        verdict, why = found.verdict, "; ".join(filter(None, (found.against_causal, found.against_inert)))
        why = {str(Verdict.CAUSAL): self.survival_by_layer[layer], str(Verdict.INERT): ""}.get(verdict, why)
        line = headline_of(self, metric, at, label, own=own, chosen_of=count, verdict=verdict)
        return replace(line, why=why)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import change_text
        from bayesgeom.interventions.drawing import bands_panel, profile_panel

        layer, everywhere = self.strongest(), f"{self.bands[0]} positions"
        kl = "KL increase (bits)"
        title = change_text(f"Editing layer {layer}", self.kl_increase_bits.value[layer, 0])
        increase = profile_panel(title, kl, self.kl_increase_bits, everywhere)
        if self.is_swap and np.isfinite(self.movement.value[:, 0]).any():
            moved = f"{percent_text(self.movement.value[layer, 0])} of the way to the donor's {self.quantity}"
            title, share = f"Layer {layer} moves the answer {moved}", "share of the way"
            movement = profile_panel(title, share, self.movement, everywhere, limits=(-1.5, 1.5))
            return movement, increase, bands_panel("Movement by position", share, self.movement, self.bands)
        error = self.effect(EFFECTS[ERROR])
        by_error = profile_panel("Increase in entropy error", "increase (bits)", error, everywhere, is_folded=True)
        return increase, by_error, bands_panel("KL increase by position", kl, self.kl_increase_bits, self.bands)

    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        name, own, indirect = "ΔKL", self.kl_increase_bits, self.effect(EFFECTS[INDIRECT_KL])
        if self.is_swap:
            name, own, indirect = "movement", self.movement, self.indirect_movement
        removal, shift, overlap = self.change_bits[REMOVAL], self.change_bits[SHIFT], self.share[INSIDE]
        is_inside = np.isnan(overlap.value).all() or (overlap.value[self.layers] >= _WHOLE).all()
        inside = {
            "in the embeddings' span": overlap.value,
            "random, mean": _mean(overlap, RANDOM),
            "max of 1,000": _most(overlap, RANDOM),
        }
        numbers = {
            "rank": self.rank,
            name: own[:, 0],
            "ceiling": own.ceiling[:, 0],
            "random, max": _most(own, RANDOM)[:, 0],
            "matched, max": _most(own, MATCHED)[:, 0],
            "untrained": _most(own, UNTRAINED)[:, 0],
            "without the direct path": indirect[:, 0],
            "controls, max": np.max([_most(indirect, each)[:, 0] for each in (RANDOM_MOST, MATCHED_MOST)], axis=0),
            "answer shift": shift[:, 0],
            "its ceiling": shift.ceiling[:, 0],
            "Δ entropy error": self.effect(EFFECTS[ERROR])[:, 0],
            "variance": self.share.value[VARIANCE],
            "R² before": self.r2.value[BEFORE],
            "after": self.r2.value[AFTER],
            "shuffled": _mean(self.r2, SHUFFLED)[AFTER],
            "ΔKL on removal": removal[:, 0],
            "of the whole": removal.ceiling[:, 0],
            "random, median": _mean(removal, ERASED)[:, 0],
            **{name: self.held_movement[i] for i, name in enumerate(self.others)},
            **({} if is_inside else inside),
        }
        codes = {
            "verdict": self.verdict_by_layer,
            "against causal": self.against_causal,
            "against inert": self.against_inert,
            "with others held fixed": self.survival_by_layer,
            "matched controls": self.controls_found,
        }
        levels = {"KL, unedited": self.unedited_bits[KL], "answer shift, unedited": self.unedited_bits[SHIFT]}
        return (
            ({f"{self.kind} {self.subspace} at {self.where}; n = {self.n}": 0}, levels),
            (_rows(self.layers), numbers),
            (_rows(self._judged), codes),
        )


def _rows(layers: Sequence[int]) -> Mapping[str, int]:
    return {f"layer {layer}": layer for layer in layers}


def _mean(effect: Estimate, name: str) -> Float[np.ndarray, "*axes"]:
    """Return the value of a baseline; NaN if the estimate has none of that name."""
    return next((own.value for own in effect.baselines if own.name == name), np.full(effect.value.shape, np.nan))


def _most(effect: Estimate, name: str) -> Float[np.ndarray, "*axes"]:
    """Return the upper end of a baseline; NaN if the estimate has none of that name."""
    found = (own.bar("higher") for own in effect.baselines if own.name == name)
    return next(found, np.full(effect.value.shape, np.nan))


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class JointInterventionReport(EditReport):
    """One direction, such as a decoder of uncertainty, is edited in several layers in the same pass.

    A later layer then cannot recover what an earlier edit removed. There are two questions. Do answers get worse, and
    by more than with random directions? Does the coordinate along the direction still follow uncertainty in later
    layers? If it does not, but the answers stay as good, then the direction was a read-out, not a bottleneck.

    An edit costs more than chance if the 95 % interval of the paired difference to random directions lies above zero
    and the cost exceeds that of every random direction. It costs no more than chance if it lies within their range.

    Fields, for every set of layers:

    - `unedited_bits`: KL to the exact posterior and entropy error of the unedited model.
    - `increase_bits`: the increase of both over the unedited model on the same sequences. Baselines: mean and range
      over `n_random` random subspaces of that rank, and over as many that are orthogonal to the edited subspace.
      Its `ceiling`: the same with the whole activation replaced by its mean in those layers.
    - `beyond_random_bits`: the paired difference to the mean over random subspaces.
    - `axis_correlation`: |Spearman| of entropy and the coordinate along a layer's axis, read before the edit of that
      layer; baselines: edits of random subspaces, and the unedited model. NaN for ranks above 1.
    """

    name: ClassVar[str] = "joint_intervention"
    title: ClassVar[str] = "Joint intervention: do several sites act together?"

    kind: str
    site: str
    subspace: str
    rank: int
    sets: tuple[str, ...]
    metrics: tuple[str, ...]
    targets: tuple[str, ...]
    unedited_bits: Annotated[Estimate, NonNegative("metric", unit="bits", label="unedited model")]
    increase_bits: Annotated[Estimate, Quantity("set metric", unit="bits", better="higher", label="increase")]
    beyond_random_bits: Annotated[
        Estimate, Quantity("set metric", unit="bits", label="increase beyond random subspaces")
    ]
    axis_correlation: Annotated[Estimate, Share("set layer target", label="|ρ| of the axis with entropy")]
    verdicts: Annotated[tuple[str, ...], "set"]
    n_random: int
    n_kept: int
    n: int

    def headlines(self) -> Sequence[Headline]:
        rows = list[Headline]()
        for i, name in enumerate(self.sets):
            where = f"{self.kind} {self.subspace}, {_layers(name)}"
            for j, metric in enumerate(self.metrics):
                # An increase above that of random subspaces may still be none, so only the report's verdict counts.
                verdict, label = self.verdicts[i] * (j == 0), f"increase of {metric}, {where}"
                rows.append(headline_of(self, "increase_bits", (i, j), label, verdict=verdict))
            label = f"|ρ| with exact entropy, last layer, {where}"
            rows.append(headline_of(self, "axis_correlation", (i, -1, 0), label))
        return rows

    def answer(self) -> Opening:
        line, layers = self.headlines()[0], self.sets[0].split("+")
        most = next((level.value for level in line.levels if level.bound), math.nan)
        names = {"verdict": line.verdict, "edit": self.kind, "subspace": self.subspace}
        return Finding.JOINT_EDIT.of(layers=layers, bits=line.value, random_most=most, **names)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.lines import add_baseline, add_line
        from bayesgeom.report import EXACT, SERIES, label_axes

        drawn = [Panel.blank(f"Increase of {metric}") for metric in self.metrics]
        for column, panel in enumerate(drawn):
            own, labels = self.increase_bits[:, column], tuple(map(_layers, self.sets))
            levels = [own.value, *own.ends, *(each.value for each in own.compared)]
            reach = 1.1 * float(np.nanmax(np.abs(levels))) + 1e-6
            unit = f"increase of {self.metrics[column]} (bits)"
            # A ceiling far beyond would press all else into one point; the table names it.
            marks = {"ceiling: whole activation": np.where(own.ceiling <= reach, own.ceiling, np.nan)}
            marks |= {f"baseline: {level.name}": level.value for level in own.compared}
            add_forest(panel.figure, labels, own.value, own.ends, unit=unit, levels=marks)
        order, along = self.axis_correlation, Panel.blank("Order along the axis")
        layers, unedited = range(order.value.shape[1]), order.baseline(UNEDITED)[0, :, 0]
        random = order.baseline(RANDOM).value.mean(axis=0)[:, 0]
        low, high = (
            np.full_like(unedited.value, np.nan) if own is None else own for own in (unedited.low, unedited.high)
        )
        add_baseline(along.figure, layers, random, name=f"baseline: {RANDOM}")
        add_line(along.figure, layers, unedited.value, name="unedited", band=(low, high), color=EXACT)
        for i, name in enumerate(self.sets):
            color = SERIES[i % len(SERIES)]
            add_line(along.figure, layers, order.value[i, :, 0], name=f"edited: {_layers(name)}", color=color)
        along.figure.update_yaxes(range=[0, 1.03])
        label_axes(along.figure, "layer", "|ρ| with the exact entropy")
        return *drawn, along

    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        increase, order = self.increase_bits, self.axis_correlation[:, -1]
        sets = dict(enumerate(map(_layers, self.sets)))
        effects = {f"{name}, {metric}": (i, j) for i, name in sets.items() for j, metric in enumerate(self.metrics)}
        orders = {f"{name}, {target}": (i, j) for i, name in sets.items() for j, target in enumerate(self.targets)}
        numbers = {
            "increase": increase,
            "random, mean": _mean(increase, RANDOM),
            "random, max": _most(increase, RANDOM),
            "orthogonal, mean": _mean(increase, ORTHOGONAL),
            "orthogonal, max": _most(increase, ORTHOGONAL),
            "ceiling": increase.ceiling,
            "beyond random": self.beyond_random_bits,
        }
        correlations = {
            "|ρ|, last layer, edited": order,
            "unedited": _mean(order, UNEDITED),
            "random, mean": _mean(order, RANDOM),
            "random, max": _most(order, RANDOM),
        }
        unedited = {f"{metric}, unedited": self.unedited_bits.value[j : j + 1] for j, metric in enumerate(self.metrics)}
        return (
            ({f"{self.kind} {self.subspace} at {self.site}, bits; n = {self.n}": 0}, unedited),
            (effects, numbers),
            (orders, correlations),
            ({name: i for i, name in sets.items()}, {"verdict": self.verdicts}),
        )


def _layers(name: str) -> str:
    """Return the name of a set of layers, such as "3" or "1+2", with its noun."""
    return f"layers {name}" if "+" in name else f"layer {name}"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class OnwardsReport(EditReport):
    """A quantity is erased from the residual stream in one layer and all later layers, at all positions.

    If no linear map can then decode the quantity and the answers stay as good, it is inert from that layer on.

    Inert (linearly) from a layer on requires three conditions. Before erasure, R² of a linear map in that layer is at
    least 0.1 above that of shuffled values. After erasure, it is at most 0.01 above in every layer from there on. The
    upper end of the KL increase is at most 1 % of that of replacing the whole activation by its mean, and at most the
    median of 20 random erasures of the same ranks. Removal alone never shows a cause.

    Fields, for every first layer, with all positions and later layers erased; NaN where not tried:

    - `kl_increase_bits` with a paired interval. Baselines: the largest KL increase of 20 random subspaces of the same
      ranks, with their range, and the largest of 20 subspaces with the same share of variance in every layer. Where
      `is_matched_by_layer` is false there are no such subspaces in some layer, and everything outside the erased
      subspace is erased there.
      Its `ceiling`: the whole activation replaced by its mean. `unedited_kl_bits`: the model's own KL.
    - `r2`: held-out R² of the quantity at scored positions, before and after; the largest over the erased layers.
    - `r2_excess`: the largest amount by which R² exceeds both the 97.5 % quantile of shuffled values and 0.
    """

    name: ClassVar[str] = "erasure_onwards"
    title: ClassVar[str] = "Erasure from a layer on: from where is it used?"

    site: str
    subspace: str
    quantity: str
    kl_increase_bits: Annotated[Estimate, Quantity("layer", unit="bits", better="higher", label="KL increase")]
    stages: tuple[str, ...]
    r2: Annotated[Estimate, R2("stage layer", label="R² of the quantity, before and after erasure")]
    r2_excess: Annotated[Float[np.ndarray, " layer"], Unit("1")]
    unedited_kl_bits: Annotated[Estimate, NonNegative(unit="bits", label="KL of the unedited model")]
    verdict_by_layer: Annotated[tuple[str, ...], "layer"]
    is_matched_by_layer: Annotated[tuple[bool, ...], "layer"]
    n: int

    @property
    def layers(self) -> list[int]:
        """The first layers that were tried."""
        return [int(layer) for layer in np.flatnonzero(np.isfinite(self.kl_increase_bits.value))]

    def headlines(self) -> Sequence[Headline]:
        """Return one line per first layer, the strongest verdict first, then the relative size and R²."""
        ranked, lines = self._ranked(), list[Headline]()
        for at in ranked:
            label, verdict = f"KL increase, {self.subspace} from layer {at} on", self.verdict_by_layer[at]
            lines.append(headline_of(self, "kl_increase_bits", (at,), label, verdict=verdict))
        increase = self.kl_increase_bits
        for at in (at for at in ranked[:1] if increase.ceiling[at] > 0):
            label = f"KL increase over the ceiling, layer {at}"
            relative = float(increase.value[at] / increase.ceiling[at])
            lines.append(Headline.computed("kl_increase_bits", label, relative))
        for at in sorted(self.layers, key=lambda at: float(self.r2_excess[at]))[-1:]:
            lines.append(headline_of(self, "r2", (1, at), f"R² after erasure from layer {at}"))
        return lines

    def answer(self) -> Opening | None:
        if not self.layers:
            return None
        layer, bits = self._ranked()[0], self.kl_increase_bits[self._ranked()[0]]
        verdict = self.verdict_by_layer[layer]
        finding = Finding.INERT_ONWARDS if verdict == Verdict.INERT else Finding.ERASED_ONWARDS
        return finding.of(verdict=verdict, layer=layer, quantity=self.quantity, bits=bits)

    def _ranked(self) -> list[int]:
        """Return the first layers that were tried, the strongest verdict first."""
        order = (Verdict.INERT, Verdict.UNDECIDED, Verdict.NOT_IDENTIFIED)
        return sorted(self.layers, key=lambda at: [self.verdict_by_layer[at] != verdict for verdict in order])

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import add_line, change_text
        from bayesgeom.interventions.drawing import profile_panel
        from bayesgeom.report import EXACT, MEASURED, label_axes

        at, kl = self.layers, self.kl_increase_bits
        most = int(np.nan_to_num(kl.value, nan=-np.inf).argmax())
        title = change_text(f"Erasing it from layer {most} on", kl.value[most])
        read = Panel.blank("R² of the quantity, before and after", is_folded=True)
        cost = profile_panel(title, "KL increase (bits)", kl[:, np.newaxis], "erased", is_along=True)
        for name, values, color in zip(self.stages, self.r2.value, (EXACT, MEASURED), strict=True):
            add_line(read.figure, at, values[at], name=f"{name}, most over layers", color=color)
        label_axes(read.figure, "first erased layer", "held-out R²")
        label_axes(cost.figure, "first erased layer", "KL increase (bits)")
        ends = [at[0] - 0.5, at[-1] + 0.5] if at else None  # with one layer, its interval is a whisker
        for own in (cost.figure, read.figure):
            own.update_xaxes(tickmode="linear", tick0=0, dtick=-(-len(at) // 8), range=ends)
        return cost, read

    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        increase = self.kl_increase_bits
        columns = {
            "ΔKL": increase,
            "random, max": _most(increase, RANDOM_MOST),
            "matched, max": _most(increase, MATCHED_MOST),
            "ceiling": increase.ceiling,
            "R² before": self.r2.value[0],
            "after": self.r2.value[1],
            "excess": self.r2_excess,
            "controls matched": ["yes" if own else "no" for own in self.is_matched_by_layer],
            "verdict": self.verdict_by_layer,
        }
        own_kl = {"KL, unedited": self.unedited_kl_bits[np.newaxis]}
        title = f"erase {self.subspace} at {self.site}, all positions; n = {self.n}"
        return ({title: 0}, own_kl), ({f"from layer {at}": at for at in self.layers}, columns)
