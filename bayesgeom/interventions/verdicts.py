"""Verdicts on one site, layer and set of positions: the evidence, the rule, and what stands against a verdict."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import final

import numpy as np

from bayesgeom.core import Verdict
from bayesgeom.interventions._evidence import SLACK, Erasure
from bayesgeom.interventions.design import ARBITRARY, ERASED, LEAST_CONTROLS, MATCHED, RANDOM
from bayesgeom.report.estimate import UNTRAINED, WHOLE, Estimate

LEAST_SHARE = 0.1  # of the movement under a swap of the whole activation
CODE_SHARE = 0.5  # of the movement, from which on the code brings it about without the subspace
CEILING_SHARE = 0.01  # of the KL increase when the whole activation is replaced by its mean
IDENTITY = 0.01  # share of the squared difference outside the subspace up to which a swap replaces all that differs
LEAST_SEQUENCES = 16  # with fewer, intervals are unreliable
UNKNOWN = Estimate.of(math.nan)


class Obstacle(StrEnum):
    """What stands against a verdict on an intervention: against causal, against inert, or against evidence at all."""

    INSIDE = "all inside the subspace"
    """Donor and recipient hardly differ outside the subspace, so that the swap replaces all that differs."""
    INSIDE_WHOLE = "all inside the whole subspace"
    """Donor and recipient hardly differ outside the quantity's whole subspace, of which the edit swaps a part."""
    POSITION = "function of position"
    """The quantity never differs between sequences at the same position."""
    FEW_SEQUENCES = "too few sequences"
    """A verdict needs at least 16 sequences."""
    NOTHING_LEFT = "nothing left to edit"
    """Once the given quantities are held fixed, no direction of the subspace is left."""
    NOT_TOLD = "answers do not tell it"
    """The statistic does not follow from the exact answers, so the model's own value and its movement are not known."""
    BOTH = "causal and inert"
    """The conditions of both verdicts hold, which contradict each other."""
    ONLY_SWAP = "only a swap shows a cause"
    """Other kinds of edits cannot show that the content of a subspace moves the answer."""
    NOT_ABOVE_ZERO = "not above zero"
    """The interval of the movement includes zero or lies below it."""
    RANDOM_REACHES = "a random subspace reaches it"
    """A random subspace of the same rank reaches the lower end of the movement."""
    MATCHED_REACHES = "a matched subspace reaches it"
    """A subspace with the same share of variance reaches the lower end of the movement."""
    LABELS_REACH = "random labels reach it"
    """The same training toward random labels moves the model's value to them as far, whatever it has learned."""
    WHOLE_UNDEFINED = "whole activation may not move it"
    """The interval of the movement under a swap of the whole activation includes zero, or is not known."""
    SMALL = "below a tenth of the whole"
    """The movement is less than 0.1 of that under a swap of the whole activation."""
    DIRECT_PATH = "direct path alone"
    """There is no movement without the direct path to the output, so the site may only hold the answer."""
    RANDOM_LATER = "a random subspace reaches it later"
    """Without the direct path to the output, a random subspace reaches the movement."""
    MATCHED_LATER = "a matched subspace reaches it later"
    """Without the direct path to the output, a subspace with the same share of variance reaches the movement."""
    UNTRAINED = "untrained networks reach it"
    """The bound of untrained networks reaches the lower end of the movement."""
    UNTRAINED_LATER = "untrained networks reach it later"
    """Without the direct path to the output, the bound of untrained networks reaches the movement."""
    LEACE_LATER = "not shown by LEACE"
    """Covariance and trained swaps need LEACE's: without the direct path, it is 0, or untrained networks reach it."""
    UNCOMPARED = "not compared with untrained networks"
    """Nothing else stands against it, but two untrained networks are needed, with this subspace in each of them."""
    UNMATCHED = "no matched control"
    """No control subspace has the same share of variance."""
    FEW_RANDOM = "too few random controls"
    """A verdict needs at least 20 random subspaces that differ from one another."""
    FEW_MATCHED = "too few matched controls"
    """A verdict needs at least 20 subspaces with the same share of variance that differ from one another."""
    ONLY_REMOVAL = "only removal shows inertness"
    """Other kinds of edits cannot show that nothing depends on a subspace."""
    NOT_DECODABLE = "not decodable"
    """The quantity cannot be decoded at the site, so no linear function of it goes with the quantity."""
    READ_OUT = "read-out weights"
    """Decoder weights are only a read-out: the quantity may lie in other directions, and a swap may move others."""
    HARDLY_DECODABLE = "hardly decodable"
    """Before the removal, R² is less than 0.1 above that of shuffled values."""
    STILL_DECODABLE = "still decodable"
    """After the removal, R² is still more than 0.01 above that of shuffled values."""
    KL_OF_CEILING = "KL beyond the ceiling's"
    """The upper end of the KL increase exceeds 1 % of that of replacing the whole activation by its mean."""
    NO_ERASURES = "no random erasures"
    """The file was written by another version, which did not erase random subspaces."""
    KL_OF_RANDOM = "KL beyond random erasures"
    """The upper end of the KL increase exceeds the median of random erasures of the same rank."""


class Survival(StrEnum):
    """Whether a causal verdict survives with position, answer and the strongest correlated code held fixed."""

    SURVIVES = "survives"
    """The movement remains with position and answer held fixed, and the rest of the code does not bring it about."""
    OPEN = "code undecided"
    """The rest of the code moves the model's value, but its interval includes zero, or half of the movement."""
    GIVEN = "goes with position or answer"
    """With position and answer held fixed, nothing is left of the subspace, or of its movement."""
    CATEGORY = "goes with the category code"
    """The code of the exact posterior moves the model's value, too, with the subspace left in place."""
    CURRENT = "goes with the token code"
    """The code of the token moves the model's value, too, with the subspace left in place."""
    PREVIOUS = "goes with the previous code"
    """The code of the token before moves the model's value, too, with the subspace left in place."""


@final
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence for a verdict on one layer.

    Args:
        kind: kind of edit. Where there is a direct path, `indirect` and `by_leace` hold the level of untrained
            networks, else `movement` does.
        movement: of a swap, with `RANDOM`, `MATCHED` and, with the ends of its interval, the ceiling.
        indirect: the same without the direct path to the output, with the largest of random and of matched subspaces
            without theirs; NaN if the site has no direct path.
        by_leace: of covariance and trained swaps, the same of LEACE's swap of the quantity, without controls; else NaN.
        removal: KL increase on removal, with its ceiling and `ERASED`, the median of random erasures.
        is_matched: whether control subspaces with the same share of variance exist.
        n: number of sequences.
        n_random, n_matched: numbers of control subspaces that differ from one another.
        erasure: R² before and after removal.
        is_identified: whether the quantity varies between sequences at the same position.
        is_readout: whether the subspace consists of decoder weights.
        outside_share: share of donor − recipient outside the subspace; NaN without a difference.
        whole_outside: the same of the quantity's whole subspaces, of which the edit may swap a part.
        is_told: whether the quantity follows from the exact answers, so that the model's own value can be computed.
    """

    kind: str
    movement: Estimate
    indirect: Estimate
    removal: Estimate
    is_matched: bool
    n: int
    n_random: int
    n_matched: int
    erasure: Erasure
    is_identified: bool
    is_readout: bool
    outside_share: float
    whole_outside: Sequence[float] = ()
    by_leace: Estimate = UNKNOWN
    is_told: bool = True


@final
@dataclass(frozen=True)
class Judgment:
    """A verdict, with the first obstacle to "causal" and to "inert", or that to any evidence; "" without one.

    As in reports, the verdict is "" where nothing was edited.
    """

    verdict: str
    against_causal: str = ""
    against_inert: str = ""


def verdict_of(evidence: Evidence) -> Judgment:
    """Return the verdict by the rule that `InterventionReport` states."""
    if not evidence.is_identified:
        return Judgment(Verdict.NOT_IDENTIFIED, Obstacle.POSITION)
    if evidence.kind == "swap" and (identity := _identity(evidence)):
        return Judgment(Verdict.BY_CONSTRUCTION, identity)
    if evidence.n < LEAST_SEQUENCES:
        return Judgment(Verdict.UNDECIDED, Obstacle.FEW_SEQUENCES)
    causal, inert = next(_against_causal(evidence), ""), next(_against_inert(evidence), "")
    if causal in ("", Obstacle.UNCOMPARED) and not inert:
        return Judgment(Verdict.UNDECIDED, Obstacle.BOTH, Obstacle.BOTH)
    if inert and causal in ("", Obstacle.UNCOMPARED):
        return Judgment(Verdict.MOVES if causal else Verdict.CAUSAL, causal, inert)
    return Judgment(Verdict.UNDECIDED if inert else Verdict.INERT, causal, inert)


def _identity(evidence: Evidence) -> str:
    """Return why the swap is an identity and no evidence; "" if it is not.

    If swapping the quantity's whole subspace is an identity, swapping a part of it shows nothing either, for example
    with other quantities held fixed.
    """
    if evidence.outside_share <= IDENTITY:
        return Obstacle.INSIDE
    return Obstacle.INSIDE_WHOLE if any(share <= IDENTITY for share in evidence.whole_outside) else ""


def _against_causal(evidence: Evidence) -> Iterator[Obstacle]:
    if evidence.kind != "swap":
        yield Obstacle.ONLY_SWAP
        return
    if not evidence.is_told:
        yield Obstacle.NOT_TOLD
    if evidence.is_readout:
        yield Obstacle.READ_OUT
    if not evidence.erasure.has_quantity:
        yield Obstacle.NOT_DECODABLE
    if not evidence.is_matched:
        yield Obstacle.UNMATCHED
    if evidence.n_random < LEAST_CONTROLS:
        yield Obstacle.FEW_RANDOM
    if evidence.n_matched < LEAST_CONTROLS:
        yield Obstacle.FEW_MATCHED
    yield from against_movement(evidence.movement, evidence.indirect, evidence.by_leace)


def against_movement(movement: Estimate, indirect: Estimate, by_leace: Estimate) -> Iterator[Obstacle]:
    """Yield what stands against "causal" in a movement, and in those without the direct path (see `Evidence`).

    `UNCOMPARED` comes last.
    """
    whole = movement.baseline(WHOLE)
    direct = Obstacle.NOT_ABOVE_ZERO, Obstacle.RANDOM_REACHES, Obstacle.MATCHED_REACHES
    yield from _within_controls(movement, direct)
    if whole.low is None or not whole.low > 0:
        yield Obstacle.WHOLE_UNDEFINED
    if not movement.value >= LEAST_SHARE * whole.value:
        yield Obstacle.SMALL
    judged = {Obstacle.UNTRAINED: movement}
    if not math.isnan(indirect.value):
        judged = {Obstacle.UNTRAINED_LATER: indirect, Obstacle.LEACE_LATER: by_leace}
        later = Obstacle.DIRECT_PATH, Obstacle.RANDOM_LATER, Obstacle.MATCHED_LATER
        yield from _within_controls(indirect, later)
    levels = {code: untrained_bound(effect) for code, effect in judged.items() if not math.isnan(effect.value)}
    for code, level in levels.items():
        if not judged[code].ends[0] > np.fmax(level, 0.0):
            yield code
    if np.isnan([*levels.values()][-1:]).any():  # LEACE's, if there is one
        yield Obstacle.UNCOMPARED


def untrained_bound(effect: Estimate) -> float:
    """Return the upper bound of untrained networks; NaN where it is unknown."""
    level = next((level for level in effect.baselines if level.name == UNTRAINED), None)
    return math.nan if level is None or level.high is None else float(level.high)


def _within_controls(effect: Estimate, codes: tuple[Obstacle, ...]) -> Iterator[Obstacle]:
    """Yield the code of each level that the lower end of an effect does not exceed: 0, random and matched subspaces."""
    low, (zero, random, matched) = effect.ends[0], codes
    if not low > 0:
        yield zero
    for level in effect.compared:
        if level.name.startswith(RANDOM) and not low > level.bar("higher"):
            yield random
        if level.name == ARBITRARY and not low > level.value:
            yield Obstacle.LABELS_REACH
        if level.name.startswith(MATCHED) and not low > level.bar("higher"):
            yield matched


def _against_inert(evidence: Evidence) -> Iterator[Obstacle]:
    if evidence.kind not in ("swap", "remove"):
        yield Obstacle.ONLY_REMOVAL
    if evidence.is_readout:
        yield Obstacle.READ_OUT
    if not evidence.erasure.is_clearly_decodable:
        yield Obstacle.HARDLY_DECODABLE
    if not evidence.erasure.is_complete:
        yield Obstacle.STILL_DECODABLE
    yield from against_cheap(evidence.removal)


def against_cheap(increase: Estimate) -> list[Obstacle]:
    """Return why an erasure is not known to be free: its KL increase, with ceiling and `ERASED`, is too large."""
    high = increase.ends[1]
    if increase.value == 0 and high == 0:
        return []  # the logits are bit-identical
    random = next((level.value for level in increase.baselines if level.name == ERASED), np.asarray(np.nan))
    obstacles = [Obstacle.KL_OF_CEILING] if not high <= CEILING_SHARE * increase.ceiling else []
    obstacles += [Obstacle.NO_ERASURES] if np.isnan(random) else []
    return obstacles if np.isnan(random) or high <= random else [*obstacles, Obstacle.KL_OF_RANDOM]


def survival_of(movement: Estimate, given: Estimate | None, code: str, by_code: Estimate | None) -> Survival:
    """Return whether a causal verdict survives.

    Args:
        movement: of the subspace, with its controls and the ceiling.
        given: the same with position and answer held fixed, NaN if nothing is left; None if the fit can hold nothing.
        code: one of `bayesgeom.subspaces.quantity.CODES`.
        by_code: the movement when the rest of the code is swapped and the subspace is left in place; None without one.
    """
    if given is not None:
        codes = (Obstacle.NOT_ABOVE_ZERO, Obstacle.RANDOM_REACHES, Obstacle.MATCHED_REACHES)
        levels = replace(given, baselines=tuple(own for own in movement.baselines if not own.name.startswith(MATCHED)))
        is_less = not given.value >= LEAST_SHARE * movement.ceiling
        if is_less or next(_within_controls(levels, codes), None):
            return Survival.GIVEN
    if by_code is None or by_code.ends[1] < CODE_SHARE * movement.value:
        return Survival.SURVIVES
    is_shown = by_code.ends[0] > 0 and by_code.value >= CODE_SHARE * movement.value
    return Survival(f"goes with the {code} code") if is_shown else Survival.OPEN


def joint_verdict(value: float, beyond_lo: float, most: float) -> Verdict:
    """Return the verdict from an increase, the lower end beyond random directions, and their maximum."""
    if math.isnan(beyond_lo):
        return Verdict.UNDECIDED
    if beyond_lo > 0 and value > most:
        return Verdict.COSTS_MORE
    return Verdict.COSTS_NO_MORE if value <= most else Verdict.UNDECIDED


def onwards_verdict(increase: Estimate, *, excess: float, is_decodable: bool, is_identified: bool) -> Verdict:
    """Return the verdict from the KL increase of erasing from one layer on, with ceiling and `ERASED`."""
    if not is_identified:
        return Verdict.NOT_IDENTIFIED
    is_inert = is_decodable and excess <= SLACK and not against_cheap(increase)
    return Verdict.INERT if is_inert else Verdict.UNDECIDED
