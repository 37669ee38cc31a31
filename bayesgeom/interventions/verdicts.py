"""Verdicts on one site, layer and set of positions: the evidence, the rule, and what stands against a verdict."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions._evidence import SLACK, Erasure
from bayesgeom.interventions.design import LEAST_CONTROLS

OWN_KL_SHARE, CEILING_SHARE = 0.5, 0.01  # margins of "not used"
IDENTITY = 1e-6  # share of the squared difference outside the subspace below which there is none
LEAST_SEQUENCES = 16  # with fewer, intervals are unreliable
SAME_AS_UNTRAINED = 0.99  # of the ceiling, reached by trained and untrained networks alike


class Obstacle(StrEnum):
    """What stands against a verdict on an intervention: against use, against disuse, or against evidence at all."""

    INSIDE = "all inside the subspace"
    """Donor and recipient differ only inside the subspace, so that the swap is an identity."""
    INSIDE_WHOLE = "all inside the whole subspace"
    """Donor and recipient differ only inside the quantity's whole subspace, of which the edit swaps a part."""
    UNTRAINED_CEILING = "untrained reach the ceiling"
    """Untrained networks reach the ceiling as well as this model, so that the swap shows nothing."""
    UNTRAINED_WHOLE = "untrained reach the ceiling, whole"
    """With the quantity's whole subspace, untrained networks reach the ceiling as well as this model."""
    POSITION = "function of position"
    """The quantity never differs between sequences at the same position."""
    FEW_SEQUENCES = "too few sequences"
    """A verdict needs at least 16 sequences."""
    NOTHING_LEFT = "nothing left to edit"
    """Once the given quantities are held fixed, no direction of the subspace is left."""
    ONLY_SWAP = "only a swap shows use"
    """Other kinds of edits cannot show that the content of a subspace is used."""
    NOT_ABOVE_ZERO = "not above zero"
    """The interval of the movement, or of the answer shift, includes zero or lies below it."""
    RANDOM_REACHES = "a random subspace reaches it"
    """A random subspace of the same rank reaches the lower end of the movement, or of the answer shift."""
    MATCHED_REACHES = "a matched subspace reaches it"
    """A subspace with the same share of variance reaches the lower end of the movement, or of the answer shift."""
    UNTRAINED_REACH = "untrained reach as much"
    """Untrained networks reach as large a share of the ceiling."""
    NOT_DECODABLE = "not decodable"
    """The quantity cannot be decoded at the site."""
    MATTERS_LITTLE = "the site matters little"
    """Ablating the whole activation costs less than half of the model's own KL."""
    NO_COST = "erasing costs nothing"
    """Erasing the quantity has no cost here, so the subspace affects the answer in another way."""
    DIRECT_PATH = "direct path alone"
    """There is no movement without the direct path to the output, so the site may only hold the answer."""
    RANDOM_LATER = "a random subspace reaches it later"
    """Without the direct path to the output, a random subspace reaches the movement."""
    MATCHED_LATER = "a matched subspace reaches it later"
    """Without the direct path to the output, a subspace with the same share of variance reaches the movement."""
    UNMATCHED = "no matched control"
    """No control subspace has the same share of variance."""
    FEW_RANDOM = "too few random controls"
    """A verdict needs at least 20 random subspaces that differ from one another."""
    FEW_MATCHED = "too few matched controls"
    """A verdict needs at least 20 subspaces with the same share of variance that differ from one another."""
    ONLY_REMOVAL = "only removal shows disuse"
    """Other kinds of edits cannot show that something is not used."""
    READ_OUT = "read-out weights"
    """Decoder weights are only a read-out: the quantity may be used in other directions."""
    NOTHING_TO_REMOVE = "nothing to remove"
    """The quantity cannot be decoded before the removal."""
    HARDLY_DECODABLE = "hardly decodable"
    """Before the removal, R² is less than 0.1 above that of shuffled values."""
    STILL_DECODABLE = "still decodable"
    """After the removal, R² is still more than 0.01 above that of shuffled values."""
    KL_BEYOND = "KL beyond the own"
    """The interval of the KL increase exceeds half of the model's own KL."""
    KL_OF_CEILING = "KL beyond the ceiling's"
    """The interval of the KL increase exceeds 1 % of the ceiling."""


@final
@dataclass(frozen=True)
class Effect:
    """An effect and the ends of its 95 % interval."""

    value: float
    lo: float
    hi: float

    def lies_within(self, reach: float) -> bool:
        """Return whether the whole interval lies within ±`reach`; False if an end is NaN."""
        return max(abs(self.lo), abs(self.hi)) <= reach


@final
@dataclass(frozen=True, kw_only=True)
class Reach:
    """What tells whether a swap is an identity in one layer.

    Args:
        outside_share: share of donor − recipient outside the subspace; NaN without a difference.
        share_of_ceiling, untrained_share: movement as a share of the ceiling, in this model and in untrained networks.
    """

    outside_share: float
    share_of_ceiling: float
    untrained_share: float

    @property
    def is_whole_difference(self) -> bool:
        """Whether donor and recipient differ only inside the subspace."""
        return self.outside_share <= IDENTITY

    @property
    def is_same_as_untrained(self) -> bool:
        """Whether this model and untrained networks both reach the ceiling."""
        return self.share_of_ceiling >= SAME_AS_UNTRAINED and self.untrained_share >= SAME_AS_UNTRAINED


@final
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence for a verdict on one layer.

    Args:
        kind: kind of edit.
        effects: by name, for a swap: the effect, and the largest of random and of matched subspaces.
        is_matched: whether control subspaces with the same share of variance exist.
        n: number of sequences.
        n_random, n_matched: numbers of control subspaces that differ from one another.
        erasure: R² before and after removal; None where the quantity never varies.
        removal: KL increase on removal, with its `removal_ceiling` and the model's `own_kl`.
        is_identified: whether the quantity varies between sequences at the same position.
        is_readout: whether the subspace consists of decoder weights.
        reach: what tells whether the swap is an identity.
        whole: the same of swaps of the quantity's whole subspace, of which the edit may swap a part.
        erasing: KL increase when LEACE erases the quantity; None for subspaces that do not claim to hold it.
        indirect: movement without the direct path to the output, and the largest of random and of matched subspaces
            without theirs; None if the site has no direct path.
        least_share_of_ceiling: lower end of the share of the ceiling; NaN if the movement has no interval.
    """

    kind: str
    effects: Mapping[str, tuple[Effect, float, float]]
    is_matched: bool
    n: int
    n_random: int
    n_matched: int
    erasure: Erasure | None
    removal: Effect
    removal_ceiling: float
    own_kl: float
    is_identified: bool
    is_readout: bool
    reach: Reach
    whole: Sequence[Reach] = ()
    least_share_of_ceiling: float = math.nan
    erasing: Effect | None = None
    indirect: tuple[Effect, float, float] | None = None


@final
@dataclass(frozen=True)
class Judgment:
    """A verdict, with the first obstacle to "used" and to "not used", or that to any evidence; "" without one."""

    verdict: Verdict
    against_use: str = ""
    against_disuse: str = ""


def verdict_of(evidence: Evidence) -> Judgment:
    """Return the verdict by the rule that `InterventionReport` states."""
    if not evidence.is_identified:
        return Judgment(Verdict.NOT_IDENTIFIED, Obstacle.POSITION)
    if evidence.kind == "swap" and (identity := _identity(evidence)):
        return Judgment(Verdict.BY_CONSTRUCTION, identity)
    if evidence.n < LEAST_SEQUENCES:
        return Judgment(Verdict.UNDECIDED, Obstacle.FEW_SEQUENCES)
    use, disuse = next(_against_use(evidence), ""), next(_against_disuse(evidence), "")
    verdict = Verdict.UNDECIDED if use and disuse else Verdict.NOT_USED if use else Verdict.USED
    return Judgment(verdict, use, disuse)


def _identity(evidence: Evidence) -> str:
    """Return why the swap is an identity and no evidence; "" if it is not.

    If swapping the quantity's whole subspace is an identity, swapping a part of it shows nothing either, for example
    with other quantities held fixed.
    """
    if evidence.reach.is_whole_difference:
        return Obstacle.INSIDE
    if evidence.reach.is_same_as_untrained:
        return Obstacle.UNTRAINED_CEILING
    if any(own.is_whole_difference for own in evidence.whole):
        return Obstacle.INSIDE_WHOLE
    return Obstacle.UNTRAINED_WHOLE if any(own.is_same_as_untrained for own in evidence.whole) else ""


def _against_use(evidence: Evidence) -> Iterator[Obstacle]:
    if evidence.kind != "swap":
        yield Obstacle.ONLY_SWAP
    for effect, random, matched in evidence.effects.values():
        if not effect.lo > 0:
            yield Obstacle.NOT_ABOVE_ZERO
        elif not effect.lo > random:
            yield Obstacle.RANDOM_REACHES
        elif evidence.is_matched and not effect.lo > matched:
            yield Obstacle.MATCHED_REACHES
    if evidence.reach.untrained_share >= evidence.least_share_of_ceiling:
        yield Obstacle.UNTRAINED_REACH
    yield from _against_site(evidence)
    if not evidence.is_matched:
        yield Obstacle.UNMATCHED
    if evidence.n_random < LEAST_CONTROLS:
        yield Obstacle.FEW_RANDOM
    if evidence.n_matched < LEAST_CONTROLS:
        yield Obstacle.FEW_MATCHED


def _against_site(evidence: Evidence) -> Iterator[Obstacle]:
    """Return the reasons why an effect, however large, is no evidence of use."""
    if evidence.erasing is not None and evidence.erasure is not None and not evidence.erasure.has_quantity:
        yield Obstacle.NOT_DECODABLE
    if evidence.removal_ceiling <= OWN_KL_SHARE * evidence.own_kl:
        yield Obstacle.MATTERS_LITTLE
    margin = min(OWN_KL_SHARE * evidence.own_kl, CEILING_SHARE * evidence.removal_ceiling)
    if evidence.erasing is not None and not evidence.erasing.lo > margin:
        yield Obstacle.NO_COST
    if evidence.indirect is not None:
        yield from against_later_use(*evidence.indirect, is_matched=evidence.is_matched)


def against_later_use(indirect: Effect, random: float, matched: float, *, is_matched: bool) -> list[Obstacle]:
    """Return the reasons against use by later blocks; a direct path shows only that the site holds the answer."""
    if not indirect.lo > 0:
        return [Obstacle.DIRECT_PATH]
    if not indirect.lo > random:
        return [Obstacle.RANDOM_LATER]
    return [Obstacle.MATCHED_LATER] if is_matched and not indirect.lo > matched else []


def _against_disuse(evidence: Evidence) -> Iterator[Obstacle]:
    if evidence.kind not in ("swap", "remove"):
        yield Obstacle.ONLY_REMOVAL
    if evidence.is_readout:
        yield Obstacle.READ_OUT
    if evidence.erasure is not None and not evidence.erasure.has_quantity:
        yield Obstacle.NOTHING_TO_REMOVE
    if evidence.erasure is not None and not evidence.erasure.is_clearly_decodable:
        yield Obstacle.HARDLY_DECODABLE
    if evidence.erasure is None or not evidence.erasure.is_complete:
        yield Obstacle.STILL_DECODABLE
    if evidence.removal == Effect(0.0, 0.0, 0.0):
        return  # the logits are bit-identical
    if not evidence.removal.lies_within(OWN_KL_SHARE * evidence.own_kl):
        yield Obstacle.KL_BEYOND
    if not evidence.removal.lies_within(CEILING_SHARE * evidence.removal_ceiling):
        yield Obstacle.KL_OF_CEILING


def joint_verdict(value: float, beyond_lo: float, most: float) -> Verdict:
    """Return the verdict from an increase, the lower end beyond random directions, and their maximum."""
    if math.isnan(beyond_lo):
        return Verdict.UNDECIDED
    if beyond_lo > 0 and value > most:
        return Verdict.COSTS_MORE
    return Verdict.COSTS_NO_MORE if value <= most else Verdict.UNDECIDED


def onwards_verdict(
    increase: tuple[float, float],
    ceiling: float,
    own_kl: float,
    *,
    excess: float,
    is_decodable: bool,
    is_identified: bool,
) -> Verdict:
    """Return the verdict from the ends of the interval of the KL increase."""
    if not is_identified:
        return Verdict.NOT_IDENTIFIED
    reach = max(abs(end) for end in increase)
    is_cheap = reach <= OWN_KL_SHARE * own_kl and reach <= CEILING_SHARE * ceiling
    return Verdict.NOT_USED if is_cheap and is_decodable and excess <= SLACK else Verdict.UNDECIDED
