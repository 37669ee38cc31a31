"""Verdicts on one site, layer and set of positions: the rule, the evidence, and the reason of each verdict."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from bayesgeom.core.text import percent_text, with_minus
from bayesgeom.interventions._evidence import FLOOR, SLACK, Erasure
from bayesgeom.interventions.design import LEAST_CONTROLS
from bayesgeom.interventions.matching import SAME

USED, NOT_USED, UNDECIDED = "used", "not used", "undecided"
NOT_IDENTIFIED, BY_CONSTRUCTION = "not identified", "by construction"
VERDICTS = (USED, BY_CONSTRUCTION, NOT_USED, UNDECIDED, NOT_IDENTIFIED)
OWN_KL_SHARE, CEILING_SHARE = 0.5, 0.01  # margins of "not used"
IDENTITY = 1e-6  # share of the squared difference outside the subspace below which there is none
_DISUSE = "disuse not shown: "
_UNMATCHED = "no control subspace has the same share of variance"
LEAST_SEQUENCES = 16  # with fewer, intervals are unreliable
SAME_AS_UNTRAINED = 0.99  # of the ceiling, reached by trained and untrained networks alike
RULE = (
    "Used: A swap moves the model's own value toward the donor's. The 95 % interval of that movement (and, for a "
    "belief or log-odds, of the answer shift) lies above zero and above every control. Controls are random subspaces "
    f"of the same rank and subspaces with the same share of variance, at least {LEAST_CONTROLS} each. No two have "
    f"{percent_text(SAME)} of their variance in common. Untrained networks reach less of the ceiling, and ablating the "
    f"whole activation costs more than {OWN_KL_SHARE:g} of the model's own KL. Where the site has a direct path to the "
    "output, the movement without that path lies above zero and above that of every control subspace without its own. "
    "A subspace of a quantity must also meet two conditions: the quantity is decodable at the site, and erasing it "
    "there by LEACE costs more than the margin below.\nNot used (linearly, at this site and these positions): Before "
    f"removal, R² of a linear map is at least {FLOOR:g} above that of shuffled values. After removal, it is at most "
    f"{SLACK:g} above. In addition, the interval of the KL increase lies within ±{OWN_KL_SHARE:g} of the model's own "
    f"KL and within ±{percent_text(CEILING_SHARE)} of the ceiling.\nBy construction: donor and recipient differ only "
    "inside the subspace, or inside the quantity's whole subspace where the edit swaps a part of it.\nNot identified: "
    "the quantity is a function of position.\nUndecided: everything else, a layer in which nothing is left to edit "
    f"once the given quantities are held fixed, or fewer than {LEAST_SEQUENCES} sequences."
)


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


def verdict_of(evidence: Evidence) -> tuple[str, str]:
    """Return one of `VERDICTS` by `RULE`, and the reason."""
    if not evidence.is_identified:
        return NOT_IDENTIFIED, "the quantity is a function of position"
    if evidence.kind == "swap" and (identity := _identity(evidence)):
        return BY_CONSTRUCTION, identity
    if evidence.n < LEAST_SEQUENCES:
        return UNDECIDED, f"{evidence.n} sequences; a verdict needs at least {LEAST_SEQUENCES}"
    use, disuse = _against_use(evidence), _against_disuse(evidence)
    if not use:
        return USED, "the value moves toward the donor's, more than with any control"
    if not disuse:
        return NOT_USED, "the quantity is erased without a KL increase"
    return UNDECIDED, f"use not shown: {use[0]}; disuse not shown: {disuse[0]}"


def _identity(evidence: Evidence) -> str:
    """Return why the swap is an identity and no evidence; "" if it is not.

    If swapping the quantity's whole subspace is an identity, swapping a part of it shows nothing either, for example
    with other quantities held fixed.
    """
    if evidence.reach.is_whole_difference:
        return "donor and recipient differ only inside the subspace"
    if evidence.reach.is_same_as_untrained:
        return "untrained networks reach the ceiling, too"
    if any(own.is_whole_difference for own in evidence.whole):
        return "donor and recipient differ only inside the quantity's whole subspace"
    if any(own.is_same_as_untrained for own in evidence.whole):
        return "with the quantity's whole subspace, untrained networks reach the ceiling, too"
    return ""


def hardly_decodable(before: float) -> str:
    """Return the reason why a quantity with this R² before removal cannot be "not used"."""
    return f"hardly decodable here (R² {before:.3f} before removal, and verdicts need {FLOOR:g} above shuffled values)"


def sentence(subspace: str, verdicts: Mapping[int, str]) -> str:
    """Return every verdict with its layers, the strongest first."""
    groups = {verdict: [at for at, own in verdicts.items() if own == verdict] for verdict in VERDICTS}
    texts = [f"{verdict} in {listed(layers)}" for verdict, layers in groups.items() if layers]
    return f"{'; '.join(texts)}: {subspace}"


def listed(layers: Sequence[int]) -> str:
    """Return layers in words.

    Example:
        >>> listed([2]), listed([0, 3])
        ('layer 2', 'layers 0, 3')
    """
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


def explained(layers: Sequence[int], verdict: str, reasons: Sequence[str]) -> str:
    """Return one sentence on layers with the same verdict and the same reason against use; numbers are left to tables.

    Example:
        >>> explained([2, 3], "undecided", ["use not shown: too small; disuse not shown: still there (R² 0.2)"] * 2)
        'Layers 2, 3: "used" is not shown (too small), nor is "not used" (still there).'
        >>> explained([0], "by construction", ["donor and recipient are the same (controls: 19)"])
        'Layer 0: donor and recipient are the same.'
    """
    where = listed(layers).capitalize()
    use, disuse = against(reasons[0]), dict.fromkeys(against(own, _DISUSE) for own in reasons)
    if verdict != UNDECIDED or not use:
        return f"{where}: {_without_numbers(reasons[0])}."
    use = use.replace(_UNMATCHED, f"{_UNMATCHED}; figures and tables show the whole complement instead")
    return f'{where}: "{USED}" is not shown ({use}), nor is "{NOT_USED}" ({"; or ".join(filter(None, disuse))}).'


def against(reason: str, start: str = "use not shown: ") -> str:
    """Return the part of an undecided layer's reason that follows `start`, without numbers; "" if it has none.

    Example:
        >>> against("use not shown: too small; disuse not shown: nothing to remove (R² 0.006) (controls: 19)")
        'too small'
    """
    parts = [part for part in _without_numbers(reason).split("; ") if part.startswith(start)]
    return parts[0].removeprefix(start) if parts else ""


def _without_numbers(reason: str) -> str:
    """Return the reason without what stands in brackets."""
    return re.sub(r" \((?:[^()]|\([^()]*\))*\)", "", reason)


def _against_use(evidence: Evidence) -> list[str]:
    if evidence.kind != "swap":
        return ["only a swap can show use"]
    found = []
    for name, (effect, random, matched) in evidence.effects.items():
        if not effect.lo > 0:
            found.append(f"the {name} is not above zero")
        elif not effect.lo > random:
            found.append(f"a random subspace reaches the {name}")
        elif evidence.is_matched and not effect.lo > matched:
            found.append(f"a variance-matched subspace reaches the {name}")
    if evidence.reach.untrained_share >= evidence.least_share_of_ceiling:
        found.append("untrained networks reach as much of the ceiling")
    return found + _against_site(evidence)


def _against_site(evidence: Evidence) -> list[str]:
    """Return the reasons why an effect, however large, is no evidence of use."""
    found = []
    if evidence.erasing is not None and evidence.erasure is not None and not evidence.erasure.has_quantity:
        found.append(f"the quantity is not decodable here (R² {evidence.erasure.before:.3f})")
    if evidence.removal_ceiling <= OWN_KL_SHARE * evidence.own_kl:
        found.append("ablating the whole activation costs less than half of the own KL, so this site matters little")
    if evidence.erasing is not None and not evidence.erasing.lo > _margin(evidence):
        found.append("erasing the quantity has no cost here, so the subspace affects the answer in another way")
    if evidence.indirect is not None:
        found += against_later_use(*evidence.indirect, is_matched=evidence.is_matched)
    if not evidence.is_matched:
        found.append(_UNMATCHED)
    for number, kind in ((evidence.n_random, "random"), (evidence.n_matched, "variance-matched")):
        if number < LEAST_CONTROLS:
            found.append(f"{number} distinct {kind} control{'s' * (number != 1)}, {LEAST_CONTROLS} needed")
    return found


def against_later_use(indirect: Effect, random: float, matched: float, *, is_matched: bool) -> list[str]:
    """Return the reasons against use by later blocks; a direct path shows only that the site holds the answer."""
    if not indirect.lo > 0:
        return ["there is no movement without the direct path to the output, so the site may only hold the answer"]
    if not indirect.lo > random:
        return ["without the direct path a random subspace reaches the movement"]
    if is_matched and not indirect.lo > matched:
        return ["without the direct path a variance-matched subspace reaches the movement"]
    return []


def _margin(evidence: Evidence) -> float:
    """Return the KL increase up to which an erased quantity counts as not used."""
    return min(OWN_KL_SHARE * evidence.own_kl, CEILING_SHARE * evidence.removal_ceiling)


def _against_disuse(evidence: Evidence) -> list[str]:
    if evidence.kind not in ("swap", "remove"):
        return ["only removal can show that something is not used"]
    if evidence.is_readout:
        return ["decoder weights are only a read-out"]
    if evidence.erasure is not None and not evidence.erasure.has_quantity:
        return [f"there is nothing to remove (R² {with_minus(f'{evidence.erasure.before:.3f}')})"]
    if evidence.erasure is not None and not evidence.erasure.is_clearly_decodable:
        return [hardly_decodable(evidence.erasure.before)]
    if evidence.erasure is None or not evidence.erasure.is_complete:
        after = math.nan if evidence.erasure is None else evidence.erasure.after
        return [f"still decodable after removal (R² {after:.3f})"]
    if evidence.removal == Effect(0.0, 0.0, 0.0):
        return []  # the logits are bit-identical
    if not evidence.removal.lies_within(OWN_KL_SHARE * evidence.own_kl):
        return [f"KL increase beyond half of the model's own KL ({evidence.own_kl:.2g} bits)"]
    if not evidence.removal.lies_within(CEILING_SHARE * evidence.removal_ceiling):
        return ["KL increase beyond 1 % of the ceiling"]
    return []
