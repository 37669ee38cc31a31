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
from functools import partial
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core import Reason, Verdict, number_text
from bayesgeom.core.text import aligned_table, percent_text
from bayesgeom.interventions.design import ARBITRARY, ERASED, MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST
from bayesgeom.interventions.verdicts import Judgment, Obstacle, against_movement, untrained_bound
from bayesgeom.report.estimate import R2, UNTRAINED, Better, Estimate, NonNegative, Quantity, Share, Unit, stacked
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, ceiling_of, headline_of

ORTHOGONAL, UNEDITED, LAST = "orthogonal random subspaces", "unedited model", "output of the last layer"
RANDOM_DIRECTIONS = "random directions"
_INCREASES = {"KL": "kl_increase_bits", "entropy error": "entropy_error_increase_bits"}  # of joint edits, by name
_WHOLE = 1 - 1e-6  # overlap of a subspace that lies in the span by definition, as the frame does
SHUFFLED = "shuffled values, 97.5 % quantile"
ENTROPIES = ("exact entropy", "exact entropy within positions", "model's own entropy")


def _effect(label: str) -> Quantity:
    return Quantity("layer band", unit="bits", better="higher", label=label)


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
            known = {
                name: column
                for name, column in columns.items()
                if any(_cell(column, at) != "–" for at in rows.values())
            }
            cells = [(name, *(_cell(column, at) for column in known.values())) for name, at in rows.items()]
            lines += ["", *aligned_table([("", *known), *cells])]
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
    0.1 of that of swapping the whole activation, whose interval must lie above zero. It also lies above the bound of
    untrained networks, m + t·s·√(1 + 1/k) of k of them (of three, m + 4.97 s), with the same fit. Where the site has a
    direct path to the output, untrained networks move the answer as far through it, and are compared without it: the
    movement without that path lies above zero, above that of every control without its own, and above that bound; of
    covariance and trained swaps, so does LEACE's (of the latter, LEACE's alone). With fewer than two untrained
    networks, it only "moves the answer". The quantity is decodable at the site (R² more than 0.01 above that of
    shuffled values). The verdict does not say that the model computes the quantity: a look-up table of categories is
    causal, too. So each causal layer states whether the movement survives with position and answer held fixed, and
    whether the rest of the strongest correlated code moves the value as well ("goes with the category code").

    The headline is of a layer that is chosen among those that were edited. Its interval allows for the choice, and so
    does its verdict (`among_layers`), which needs it above the random subspaces of all these layers;
    `verdict_by_layer` is of each layer alone.

    Inert (linearly, at this site and these positions): before removal, R² of a linear map is at least 0.1 above that
    of shuffled values; after it, at most 0.01 above. The upper end of the KL increase is at most 1 % of that of
    replacing the whole activation by its mean, and at most the median of 20 random erasures of the same rank.

    By construction: at most 1 % of the squared difference of donor and recipient lies outside the subspace, or outside
    the quantity's whole subspace where the edit swaps a part of it. Not identified: the quantity is a function of
    position. Undecided: everything else, and where both conditions hold.

    Fields, per layer and band of scored positions; NaN in layers that were not edited or have nothing to edit:

    - `movement`: toward the donor's value, for swaps only. `indirect_movement`: without the direct path to the
      output. `leace_movement`: over all positions, that of LEACE's swap without it, of covariance and trained swaps.
    - `answer_shift_bits` (of swaps), `kl_increase_bits` and `entropy_error_increase_bits`: changes from the unedited
      model, whose levels are `unedited_answer_shift_bits`, `unedited_kl_bits` and `unedited_entropy_error_bits`.
      `removal_kl_increase_bits`: when the subspace is removed. `indirect_answer_shift_bits` and
      `indirect_kl_increase_bits`: without the direct path.
    - The `ceiling` of an effect or of a movement is that of the whole activation, swapped or, for every other kind,
      replaced by its mean.
    - Of a trained swap, `movement` also has the level of the same training toward random labels: each token of the
      donor has the answers of a random position as its label, and the movement toward these labels is scored.
    - Baselines of an effect: mean and range over `random subspaces` of the same rank and over `variance-matched
      subspaces`; for the movement that is compared with it also `untrained networks`, over all positions: their mean
      and bounds. For an effect without the direct path: the largest effect of each family of subspaces without their
      direct paths.
    - `r2_before`, `r2_after`: held-out R² of the quantity from the whole site before and after removal, by a map fitted
      on separate sequences. `entropy_r2`, `belief_r2`: R² of both from the subspace's coordinates alone.
    - `variance_share`: share of the site's variance. `outside_share`: share of the squared difference of donor and
      recipient outside the subspace. `embedding_share`: share of the subspace inside the span of the hypothesis tokens'
      embeddings; NaN outside the residual stream; its baseline is mean and maximum of 1,000 random subspaces.
    - `against_causal`, `against_inert`: the first obstacle to either verdict, a code of
      `interventions.verdicts.Obstacle`. `controls_found`: number of distinct variance-matched subspaces.
    - `given_movement`: movement with the quantities in `given` held fixed, such as position and answer.
      `code_movement`: of what the strongest correlated code, `code`, has outside the subspace. Both are over all
      positions. `survival_by_layer`: a code of `interventions.verdicts.Survival` where the verdict is causal.
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
    leace_movement: Annotated[
        Estimate, Quantity("layer", better="higher", label="movement by LEACE without the direct path")
    ]
    answer_shift_bits: Annotated[Estimate, _effect("answer shift")]
    kl_increase_bits: Annotated[Estimate, _effect("KL increase")]
    entropy_error_increase_bits: Annotated[Estimate, _effect("entropy error increase")]
    removal_kl_increase_bits: Annotated[Estimate, _effect("KL increase on removal")]
    indirect_answer_shift_bits: Annotated[Estimate, _effect("answer shift without the direct path")]
    indirect_kl_increase_bits: Annotated[Estimate, _effect("KL increase without the direct path")]
    unedited_answer_shift_bits: Annotated[Float[np.ndarray, " band"], Unit("bits")]
    unedited_kl_bits: Annotated[Float[np.ndarray, " band"], Unit("bits")]
    unedited_entropy_error_bits: Annotated[Float[np.ndarray, " band"], Unit("bits")]
    r2_before: Annotated[Estimate, R2("layer", label="R² before removal")]
    r2_after: Annotated[Estimate, R2("layer", label="R² after removal")]
    entropy_r2: Annotated[Estimate, R2("layer", label="R² of entropy, from the coordinates alone")]
    belief_r2: Annotated[Estimate, R2("layer", label="R² of belief, from the coordinates alone")]
    rank: Annotated[Int[np.ndarray, " layer"], Unit("1")]
    variance_share: Annotated[Estimate, NonNegative("layer", label="share of the site's variance")]
    outside_share: Annotated[Estimate, NonNegative("layer", label="share of the difference outside the subspace")]
    embedding_share: Annotated[Estimate, NonNegative("layer", label="share inside the embeddings' span")]
    verdict_by_layer: Annotated[tuple[str, ...], "layer"]
    against_causal: Annotated[tuple[str, ...], "layer"]
    against_inert: Annotated[tuple[str, ...], "layer"]
    given: tuple[str, ...]
    given_movement: Annotated[Estimate, Quantity("layer", label="movement with a quantity held fixed")]
    code: str
    code_movement: Annotated[Estimate, Quantity("layer", label="movement by the code outside the subspace")]
    survival_by_layer: Annotated[tuple[str, ...], "layer"]
    controls_found: Annotated[Int[np.ndarray, " layer"], Unit("1")]
    n: int

    @property
    def is_swap(self) -> bool:
        """Whether movement and answer shift are defined."""
        return self.kind == "swap"

    @property
    def layers(self) -> list[int]:
        """The layers that were edited."""
        return [int(layer) for layer in np.flatnonzero(self.rank > 0)]

    @property
    def _judged(self) -> list[int]:
        """The layers with a verdict: those that were edited, and those in which there is nothing to edit."""
        return [layer for layer, verdict in enumerate(self.verdict_by_layer) if verdict]

    @property
    def share_of_ceiling(self) -> Float[np.ndarray, "layer band"]:
        """The effect as a share of the ceiling: movement for a swap, else the KL increase."""
        effect = self.movement if self.is_swap else self.kl_increase_bits
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(effect.ceiling > 0, effect.value / effect.ceiling, np.nan)

    def strongest(self) -> int:
        """Return the layer with the largest share of the ceiling's effect, over all positions.

        Layers that are "causal" among the edited ones come first, then those that move the answer; layers with the
        verdict "by construction" come last.
        It is a layer that was edited, if there is one, even where no ceiling is known.
        """
        edited = frozenset(self.layers)
        shares = np.nan_to_num(self.share_of_ceiling[:, 0], nan=-math.inf)
        order: dict[str, int] = {Verdict.CAUSAL: 2, Verdict.MOVES: 1, Verdict.BY_CONSTRUCTION: -1}
        ranks = [order.get(self.among_layers(layer).verdict, 0) for layer in range(len(shares))]

        def key(layer: int) -> tuple[bool, bool, int, float]:
            return layer in edited, bool(np.isfinite(shares[layer])), ranks[layer], float(shares[layer])

        return max(range(len(shares)), key=key)

    def among_layers(self, layer: int) -> Judgment:
        """Return the verdict on a layer that is chosen among those that were edited, with what stands against others.

        "Causal" must then hold of intervals that allow for the choice (`Estimate.extreme`), as the headline shows them,
        and of the random subspaces of all edited layers together.

        Args:
            layer: One of the model's layers.
        """
        judgment = Judgment(self.verdict_by_layer[layer], self.against_causal[layer], self.against_inert[layer])
        if judgment.verdict not in (Verdict.CAUSAL, Verdict.MOVES) or len(self.layers) == 1:
            return judgment
        effects = [self._chosen(name, layer) for name in ("movement", "indirect_movement", "leace_movement")]
        is_ignored = any(effect.is_withheld for effect in effects)
        obstacle = str(Reason.CHOICE_IGNORED) if is_ignored else next(against_movement(*effects), "")
        verdicts: dict[str, Verdict] = {"": Verdict.CAUSAL, Obstacle.UNCOMPARED: Verdict.MOVES}
        verdict = verdicts.get(obstacle, Verdict.UNDECIDED)
        return replace(judgment, verdict=verdict, against_causal=obstacle)

    def _chosen(self, metric: str, layer: int) -> Estimate:
        """Return an effect in one layer as the choice of that layer asks for.

        Its interval allows for the choice, and random subspaces have the largest effect in any of the layers.
        """
        whole = self.estimate(metric)
        effects = whole if whole.value.ndim == 1 else whole[:, 0]
        chosen = effects[layer : layer + 1].extreme("largest", count=len(self.layers))[1]
        levels = {level.name: level for level in chosen.baselines}
        for level in (level for level in effects.baselines if level.name.startswith(RANDOM)):
            most = np.nanmax(level.bar("higher")[self.layers])
            levels[level.name] = replace(levels[level.name], high=np.asarray(most))
        return replace(chosen, baselines=tuple(levels.values()))

    def headlines(self) -> Sequence[Headline]:
        """Return the effect in every layer with its verdict, the strongest layer first; then the others there."""
        at = self.strongest()
        where = f"layer {at}, {self.subspace}"
        lines = [self._judgment(layer) for layer in dict.fromkeys((at, *self._judged))]
        if self.is_swap:
            lines += [
                self._line("answer_shift_bits", at, f"answer shift, {where}"),
                ceiling_of(self, "answer_shift_bits", (at, 0), f"answer shift, ceiling, layer {at}"),
                self._line("kl_increase_bits", at, f"KL increase, {where}"),
                self._line("removal_kl_increase_bits", at, f"KL increase on removal, {where}", verdict=""),
            ]
        else:
            lines.append(ceiling_of(self, "kl_increase_bits", (at, 0), f"ceiling, layer {at}"))
        lines.append(headline_of(self, "r2_after", (at,), f"R² after removal, layer {at} ({self.quantity})"))
        metric, effect = (
            ("indirect_movement", "movement") if self.is_swap else ("indirect_kl_increase_bits", "KL increase")
        )
        lines += [self._line(metric, at, f"layer {at}: {effect} without the direct path") for at in self.layers]
        return [line for line in lines if line.verdict or not math.isnan(line.value)]

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
            case Verdict.CAUSAL | Verdict.MOVES:
                finding = Finding.CAUSAL if judgment.verdict == Verdict.CAUSAL else Finding.MOVES
            case _:
                finding = Finding.MOVEMENT_UNDECIDED if self.is_swap else Finding.EFFECT_UNDECIDED
                against = {Verdict.CAUSAL: judgment.against_causal, Verdict.INERT: judgment.against_inert}
        random = next((level for level in line.levels if level.name == RANDOM), None)
        later = self._chosen("indirect_movement" if np.isnan(self.leace_movement.value[at]) else "leace_movement", at)
        bound = untrained_bound(self._chosen("movement", at) if math.isnan(later.value) else later)
        return finding.of(
            against,
            layers=[layer for layer, other in enumerate(judgments) if other.verdict == judgment.verdict],
            layer=at,
            edit=self.kind,
            subspace=self.subspace,
            quantity=self.quantity,
            verdict=judgment.verdict,
            effect=Estimate.of(line.value, (line.low, line.high)),
            later=later,
            untrained=max(bound, 0.0),
            cost=float((self.removal_kl_increase_bits if self.is_swap else self.kl_increase_bits).value[at, 0]),
            **({"random_most" if random.bound else "random": random.value} if random else {}),
        )

    def _line(self, metric: str, layer: int, label: str, *, verdict: str | None = None) -> Headline:
        """Return an effect over all positions, without a verdict of its own if the swap in its layer is an identity."""
        is_identity = self.verdict_by_layer[layer] == Verdict.BY_CONSTRUCTION
        verdict = str(Verdict.BY_CONSTRUCTION) if is_identity else verdict
        return headline_of(self, metric, (layer, 0), label, verdict=verdict)

    def _judgment(self, layer: int) -> Headline:
        """Return the effect in one layer, with its verdict and what stands against another one."""
        metric, label = "kl_increase_bits", f"KL increase, layer {layer}, {self.subspace}"
        if self.is_swap:
            metric, label = "movement", f"layer {layer}: movement toward the donor's {self.quantity}"
        effect, count = self.estimate(metric)[layer, 0], 1
        judgment = Judgment(self.verdict_by_layer[layer], self.against_causal[layer], self.against_inert[layer])
        if layer == self.strongest() and len(self.layers) > 1:
            chosen, judgment = self._chosen(metric, layer), self.among_layers(layer)
            effect, count = (effect, 1) if chosen.is_withheld else (chosen, len(self.layers))
        verdict, why = judgment.verdict, "; ".join(filter(None, (judgment.against_causal, judgment.against_inert)))
        reasons: dict[str, str] = {Verdict.CAUSAL: self.survival_by_layer[layer], Verdict.INERT: ""}
        why = (reasons | {Verdict.MOVES: judgment.against_causal}).get(verdict, why)
        line = headline_of(self, metric, (layer, 0), label, own=effect, chosen_of=count, verdict=verdict)
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
        error = self.entropy_error_increase_bits
        by_error = profile_panel("Increase in entropy error", "increase (bits)", error, everywhere, is_folded=True)
        return increase, by_error, bands_panel("KL increase by position", kl, self.kl_increase_bits, self.bands)

    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        name, effect, indirect = "ΔKL", self.kl_increase_bits, self.indirect_kl_increase_bits
        if self.is_swap:
            name, effect, indirect = "movement", self.movement, self.indirect_movement
        removal, shift, overlap = self.removal_kl_increase_bits, self.answer_shift_bits, self.embedding_share
        is_inside = np.isnan(overlap.value).all() or (overlap.value[self.layers] >= _WHOLE).all()
        inside = {
            "in the embeddings' span": overlap.value,
            "random, mean": _mean(overlap, RANDOM),
            "max of 1,000": _most(overlap, RANDOM),
        }
        numbers = {
            "rank": self.rank,
            name: effect[:, 0],
            "ceiling": effect.ceiling[:, 0],
            "random, max": _most(effect, RANDOM)[:, 0],
            "matched, max": _most(effect, MATCHED)[:, 0],
            "untrained, bound": _most(effect, UNTRAINED)[:, 0],
            "random labels": _mean(effect, ARBITRARY)[:, 0],
            "without the direct path": indirect[:, 0],
            "controls, max": np.max([_most(indirect, each)[:, 0] for each in (RANDOM_MOST, MATCHED_MOST)], axis=0),
            "its untrained, bound": _most(indirect, UNTRAINED)[:, 0],
            "the same by LEACE": self.leace_movement,
            "LEACE's untrained, bound": _most(self.leace_movement, UNTRAINED),
            "answer shift": shift[:, 0],
            "its ceiling": shift.ceiling[:, 0],
            "Δ entropy error": self.entropy_error_increase_bits[:, 0],
            "variance": self.variance_share.value,
            "R² before": self.r2_before.value,
            "after": self.r2_after.value,
            "shuffled": _mean(self.r2_after, SHUFFLED),
            "ΔKL on removal": removal[:, 0],
            "of the whole": removal.ceiling[:, 0],
            "random, median": _mean(removal, ERASED)[:, 0],
            f"{' and '.join(self.given) or 'nothing'} held fixed": self.given_movement,
            f"{self.code or 'no'} code, outside": self.code_movement,
            **({} if is_inside else inside),
        }
        codes = {
            "verdict": self.verdict_by_layer,
            "against causal": self.against_causal,
            "against inert": self.against_inert,
            "with others held fixed": self.survival_by_layer,
            "matched controls": self.controls_found,
        }
        levels = {"KL, unedited": self.unedited_kl_bits, "answer shift, unedited": self.unedited_answer_shift_bits}
        return (
            ({f"{self.kind} {self.subspace} at {self.where}; n = {self.n}": 0}, levels),
            (_rows(self.layers), numbers),
            (_rows(self._judged), codes),
        )


def _rows(layers: Sequence[int]) -> Mapping[str, int]:
    return {f"layer {layer}": layer for layer in layers}


def _most(effect: Estimate, name: str, better: Better = "higher") -> Float[np.ndarray, "*axes"]:
    """Return the upper end of a baseline, or without a direction its value; NaN if there is none of that name."""
    bars = (level.bar(better) for level in effect.baselines if level.name == name)
    return next(bars, np.full(effect.value.shape, np.nan))


_mean = partial(_most, better="")


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

    - `unedited_kl_bits`, `unedited_entropy_error_bits`: KL to the exact posterior and entropy error of the unedited
      model.
    - `kl_increase_bits`, `entropy_error_increase_bits`: the increase over the unedited model on the same sequences.
      Baselines: mean and range over `n_random` random subspaces of that rank, and over as many that are orthogonal to
      the edited subspace. The `ceiling`: the same with the whole activation replaced by its mean in those layers.
    - `kl_beyond_random_bits`, `entropy_error_beyond_random_bits`: the paired difference to the mean over random
      subspaces.
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
    targets: tuple[str, ...]
    unedited_kl_bits: Annotated[Estimate, NonNegative(unit="bits", label="KL of the unedited model")]
    unedited_entropy_error_bits: Annotated[
        Estimate, NonNegative(unit="bits", label="entropy error of the unedited model")
    ]
    kl_increase_bits: Annotated[Estimate, Quantity("set", unit="bits", better="higher", label="increase of KL")]
    entropy_error_increase_bits: Annotated[
        Estimate, Quantity("set", unit="bits", better="higher", label="increase of entropy error")
    ]
    kl_beyond_random_bits: Annotated[Estimate, Quantity("set", unit="bits", label="KL beyond random subspaces")]
    entropy_error_beyond_random_bits: Annotated[
        Estimate, Quantity("set", unit="bits", label="entropy error beyond random subspaces")
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
            # An increase above that of random subspaces may still be none, so only the report's verdict counts.
            for metric, field in _INCREASES.items():
                verdict = self.verdicts[i] * (metric == "KL")
                rows.append(headline_of(self, field, (i,), f"increase of {metric}, {where}", verdict=verdict))
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
        from bayesgeom.report.theme import EXACT, SERIES, label_axes

        drawn, labels = list[Panel](), tuple(map(_layers, self.sets))
        for metric, field in _INCREASES.items():
            increase = self.estimate(field)
            if np.isnan(increase.value).all():  # a file of another version lacks it
                continue
            drawn.append(Panel.blank(f"Increase of {metric}"))
            levels = [increase.value, *increase.ends, *(level.value for level in increase.compared)]
            reach = 1.1 * float(np.nanmax(np.abs(levels))) + 1e-6
            # A ceiling far beyond would press all else into one point; the table names it.
            marks = {"ceiling: whole activation": np.where(increase.ceiling <= reach, increase.ceiling, np.nan)}
            marks |= {f"baseline: {level.name}": level.value for level in increase.compared}
            unit = f"increase of {metric} (bits)"
            add_forest(drawn[-1].figure, labels, increase.value, increase.ends, unit=unit, levels=marks)
        order, along = self.axis_correlation, Panel.blank("Order along the axis")
        layers, unedited = range(order.value.shape[1]), order.baseline(UNEDITED)[0, :, 0]
        random = order.baseline(RANDOM).value.mean(axis=0)[:, 0]
        add_baseline(along.figure, layers, random, name=f"baseline: {RANDOM}")
        add_line(along.figure, layers, unedited.value, name="unedited", band=unedited.ends, color=EXACT)
        for i, name in enumerate(self.sets):
            color = SERIES[i % len(SERIES)]
            add_line(along.figure, layers, order.value[i, :, 0], name=f"edited: {_layers(name)}", color=color)
        along.figure.update_yaxes(range=[0, 1.03])
        label_axes(along.figure, "layer", "|ρ| with the exact entropy")
        return *drawn, along

    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        increase = stacked([self.kl_increase_bits, self.entropy_error_increase_bits])
        sets, order = dict(enumerate(map(_layers, self.sets))), self.axis_correlation[:, -1]
        effects = {f"{name}, {metric}": (j, i) for i, name in sets.items() for j, metric in enumerate(_INCREASES)}
        orders = {f"{name}, {target}": (i, j) for i, name in sets.items() for j, target in enumerate(self.targets)}
        numbers = {
            "increase": increase,
            "random, mean": _mean(increase, RANDOM),
            "random, max": _most(increase, RANDOM),
            "orthogonal, mean": _mean(increase, ORTHOGONAL),
            "orthogonal, max": _most(increase, ORTHOGONAL),
            "ceiling": increase.ceiling,
            "beyond random": stacked([self.kl_beyond_random_bits, self.entropy_error_beyond_random_bits]),
        }
        correlations = {
            "|ρ|, last layer, edited": order,
            "unedited": _mean(order, UNEDITED),
            "random, mean": _mean(order, RANDOM),
            "random, max": _most(order, RANDOM),
        }
        levels = zip(_INCREASES, (self.unedited_kl_bits, self.unedited_entropy_error_bits), strict=True)
        unedited = {f"{metric}, unedited": level.value[np.newaxis] for metric, level in levels}
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
    - `r2_before`, `r2_after`: held-out R² of the quantity at scored positions; the largest over the erased layers.
    - `r2_excess`: the largest amount by which R² exceeds both the 97.5 % quantile of shuffled values and 0.
    """

    name: ClassVar[str] = "erasure_onwards"
    title: ClassVar[str] = "Erasure from a layer on: from where is it used?"

    site: str
    subspace: str
    quantity: str
    kl_increase_bits: Annotated[Estimate, Quantity("layer", unit="bits", better="higher", label="KL increase")]
    r2_before: Annotated[Estimate, R2("layer", label="R² of the quantity before erasure")]
    r2_after: Annotated[Estimate, R2("layer", label="R² of the quantity after erasure")]
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
            lines.append(headline_of(self, "r2_after", (at,), f"R² after erasure from layer {at}"))
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
        from bayesgeom.report.theme import EXACT, MEASURED, label_axes

        at, kl = self.layers, self.kl_increase_bits
        most = int(np.nan_to_num(kl.value, nan=-np.inf).argmax())
        title = change_text(f"Erasing it from layer {most} on", kl.value[most])
        read = Panel.blank("R² of the quantity, before and after", is_folded=True)
        cost = profile_panel(title, "KL increase (bits)", kl[:, np.newaxis], "erased", is_along=True)
        add_line(read.figure, at, self.r2_before.value[at], name="before, most over layers", color=EXACT)
        add_line(read.figure, at, self.r2_after.value[at], name="after, most over layers", color=MEASURED)
        label_axes(read.figure, "first erased layer", "held-out R²")
        label_axes(cost.figure, "first erased layer", "KL increase (bits)")
        ends = [at[0] - 0.5, at[-1] + 0.5] if at else None  # with one layer, its interval is a whisker
        for figure in (cost.figure, read.figure):
            figure.update_xaxes(tickmode="linear", tick0=0, dtick=-(-len(at) // 8), range=ends)
        return cost, read

    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        increase = self.kl_increase_bits
        columns = {
            "ΔKL": increase,
            "random, max": _most(increase, RANDOM_MOST),
            "matched, max": _most(increase, MATCHED_MOST),
            "ceiling": increase.ceiling,
            "R² before": self.r2_before.value,
            "after": self.r2_after.value,
            "excess": self.r2_excess,
            "controls matched": ["yes" if is_matched else "no" for is_matched in self.is_matched_by_layer],
            "verdict": self.verdict_by_layer,
        }
        own_kl = {"KL, unedited": self.unedited_kl_bits[np.newaxis]}
        title = f"erase {self.subspace} at {self.site}, all positions; n = {self.n}"
        return ({title: 0}, own_kl), ({f"from layer {at}": at for at in self.layers}, columns)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class LagReport(EditReport):
    """A component is swapped at positions up to one, t₀, and answers are scored some positions later.

    A swap that sets a state moves later answers toward the exact filter that continues from the donor's belief with
    the recipient's own symbols: movement 1. Answers of the exact filter of the recipient's symbols have movement 0, and
    so have those of the window observer, which starts after t₀.

    The first lag above 0 decides. Sets a state: there, the interval of the movement lies above zero, above at least 20
    random subspaces and at least 20 distinct ones with the same share of variance, above the bound of at least two
    untrained networks, and above a tenth of the swap of the whole activation. Writes the answer: at lag 0 it lies above
    zero, the random subspaces, the variance-matched ones where there are any, and that tenth, and at the first lag
    above 0 it lies below 0.1. Untrained networks also write answers. By construction: at most 1 % of the squared
    difference of donor and recipient lies outside the subspace, as where the tokens enter.

    Fields, per layer and lag; NaN in layers that were not edited, and where the two filters tell the continued one:

    - `lag_movement`: toward the continued filter. Its `ceiling` is the swap of the whole activation. Baselines: mean
      and range over random and over variance-matched subspaces (NaN in layers without any, absent without any at all),
      untrained networks with the same fit, and the same swap in the output of the last layer, which can only write the
      answer.
    - `forced_kl_bits`: KL(continued filter ‖ model) with the swap; its baseline is that of the unedited model.
    - `n_possible`: number of pairs, by lag, in which the donor's belief allows the recipient's later symbols; the
      others are left out.
    - `controls_found`: number of distinct subspaces with the same share of variance; 0 where there is none, −1 where
      the file was written by a version that did not store it.
    """

    name: ClassVar[str] = "lag"
    title: ClassVar[str] = "Lag: does the swap set a state, or write the answer?"

    subspace: str
    where: str
    lags: tuple[str, ...]
    lag_movement: Annotated[
        Estimate, Quantity("layer lag", better="higher", label="movement toward the continued filter")
    ]
    forced_kl_bits: Annotated[
        Estimate, NonNegative("layer lag", unit="bits", better="lower", label="KL(continued filter ‖ model)")
    ]
    n_possible: Annotated[Int[np.ndarray, " lag"], Unit("1")]
    verdict_by_layer: Annotated[tuple[str, ...], "layer"]
    controls_found: Annotated[Int[np.ndarray, " layer"], Unit("1")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        """Return the movement in every layer at the lag that decides, those first that set a state."""
        lags, unknown = [int(lag) for lag in self.lags], np.isnan(self.lag_movement.value).all(axis=0)
        i = min(range(len(lags)), key=lambda i: (unknown[i], lags[i] == 0, lags[i]))
        order = [Verdict.SETS, Verdict.WRITES, Verdict.UNDECIDED, Verdict.BY_CONSTRUCTION]
        layers = [at for verdict in order for at, own in enumerate(self.verdict_by_layer) if own == verdict]
        label = f"movement at lag {lags[i]}, {self.subspace}, layer"
        verdicts = self.verdict_by_layer
        return [headline_of(self, "lag_movement", (at, i), f"{label} {at}", verdict=verdicts[at]) for at in layers]

    def panels(self) -> Sequence[Panel]:
        return (
            _along("Movement toward the continued filter", "lag", self.lags, self.lag_movement, "share of the way"),
        )

    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        movement, kl, layers = self.lag_movement, self.forced_kl_bits, np.flatnonzero(self.verdict_by_layer)
        columns = {
            "movement": movement,
            "ceiling": movement.ceiling,
            "random, max": _most(movement, RANDOM),
            "matched, max": _most(movement, MATCHED),
            "untrained, bound": _most(movement, UNTRAINED),
            "last layer": _mean(movement, LAST),
            "KL, forced": kl,
            "unedited": _mean(kl, UNEDITED),
        }
        rows = {f"layer {at}, lag {lag}": (at, i) for at in layers for i, lag in enumerate(self.lags)}
        pairs = {f"pairs, lag {lag}": self.n_possible[i : i + 1] for i, lag in enumerate(self.lags)}
        title = f"swap {self.subspace} at {self.where}; n = {self.n}"
        controls = np.where(self.controls_found < 0, np.nan, self.controls_found)
        by_layer = {"matched controls": controls, "verdict": self.verdict_by_layer}
        return ({title: 0}, pairs), (rows, columns), (_rows(layers.tolist()), by_layer)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class DoseReport(EditReport):
    """Multiples of a direction, in its standard deviations, are added to an activation.

    The direction is the first of the subspace. The log-odds are those of the two answers whose exact probabilities
    increase and decrease most along it. If the direction shifts a prior, the log-odds move in a line with the dose, by
    more than with random directions of the same norm. In the last layer this follows from the softmax.

    Doses at which the log-odds are 24 bits or more on average are saturated: in float32 one of both probabilities is
    then 1. They do not count for the slope.

    Fields, per layer and dose; NaN in layers that were not edited:

    - `dose_log_odds_bits`, `dose_kl_increase_bits`: mean change of the log-odds, and of KL to the exact posterior.
    - `dose_slope_bits`, per layer: slope of the change of the log-odds, in bits for each standard deviation.
    - Baselines: mean and range over random directions of the same norm.
    - `answers_by_layer`: both answers. `saturated_by_layer`: the saturated doses.
    """

    name: ClassVar[str] = "dose"
    title: ClassVar[str] = "Dose: how do answers follow multiples of a direction?"

    subspace: str
    where: str
    doses: tuple[str, ...]
    dose_log_odds_bits: Annotated[Estimate, Quantity("layer dose", unit="bits", label="change of log-odds")]
    dose_kl_increase_bits: Annotated[Estimate, Quantity("layer dose", unit="bits", label="KL increase")]
    dose_slope_bits: Annotated[
        Estimate, Quantity("layer", unit="bits", better="higher", label="slope of log-odds, by standard deviation")
    ]
    answers_by_layer: Annotated[tuple[str, ...], "layer"]
    saturated_by_layer: Annotated[tuple[str, ...], "layer"]
    n: int

    def headlines(self) -> Sequence[Headline]:
        """Return the slope in every layer."""
        label, answers = f"bits by standard deviation of {self.subspace}, layer", self.answers_by_layer
        return [
            headline_of(self, "dose_slope_bits", (at,), f"{label} {at}: log-odds of {answers[at]}")
            for at in np.flatnonzero(answers).tolist()
        ]

    def panels(self) -> Sequence[Panel]:
        return (_along("Change of log-odds", "dose", self.doses, self.dose_log_odds_bits, "change of log-odds (bits)"),)

    def _tables(self) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        slopes, odds, kl = self.dose_slope_bits, self.dose_log_odds_bits, self.dose_kl_increase_bits
        layers = np.flatnonzero(self.answers_by_layer).tolist()
        rows = {f"layer {at}, dose {dose}": (at, i) for at in layers for i, dose in enumerate(self.doses)}
        by_layer = {
            f"slope (bits), {self.where}; n = {self.n}": slopes,
            "random, max": _most(slopes, RANDOM_DIRECTIONS),
            "answers": self.answers_by_layer,
            "saturated": [doses or "–" for doses in self.saturated_by_layer],
        }
        columns = {"Δ log-odds": odds, "random, max": _most(odds, RANDOM_DIRECTIONS), "ΔKL": kl}
        columns |= {"random, mean ΔKL": _mean(kl, RANDOM_DIRECTIONS)}
        return (_rows(layers), by_layer), (rows, columns)


def _along(title: str, axis: str, steps: Sequence[str], effect: Estimate, y: str) -> Panel:
    """Draw an effect along an axis, with its interval in every layer, and the largest of each baseline."""
    from bayesgeom.charts.lines import add_baseline, add_line
    from bayesgeom.report.theme import MEASURED, SERIES, label_axes

    panel, x = Panel.blank(f"{title}, by {axis}"), [float(step) for step in steps]
    layers = np.flatnonzero(np.isfinite(effect.value).any(axis=1))
    for level in effect.compared:
        add_baseline(panel.figure, x, level.bar("higher")[layers].max(axis=0), name=f"baseline: {level.name}")
    for at, color in zip(layers, (MEASURED, *SERIES), strict=False):
        add_line(panel.figure, x, effect.value[at], name=f"layer {at}", color=color, band=effect[at].ends)
    label_axes(panel.figure, axis, y)
    return panel
