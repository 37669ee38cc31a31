"""From measured numbers to a verdict, by a claim's own criterion."""

import math
from collections.abc import Mapping
from typing import Literal

from bayesgeom.checks.arguments import checked
from bayesgeom.claims.claim import Claim, Condition, Value, Verdict

Outcome = Literal["met", "failed", "open"]


def outcome(condition: Condition, numbers: Mapping[str, Value], *, is_point: bool = False) -> Outcome:
    """Return whether a condition is met, failed or left open by the intervals.

    A missing number leaves the condition open, and so does a number without an interval unless it is judged as a point.
    If the threshold is itself a measured number, its value is used, or the near end of its interval with `is_disjoint`.

    Args:
        condition: The condition.
        numbers: The measured numbers by name.
        is_point: Whether the number is judged by its value alone.

    Returns:
        "met" if the whole interval lies on the required side, "failed" if it lies on the other, else "open".
    """
    needed = {condition.number} | ({condition.than} if isinstance(condition.than, str) else set()) - {"baseline"}
    if not needed <= numbers.keys():
        return "open"
    found = numbers[condition.number]
    low, high = (found.value, found.value) if is_point else (found.lo, found.hi)
    to_meet, to_fail = threshold(condition, numbers), threshold(condition, numbers, to_fail=True)
    if any(map(math.isnan, (low, high, to_meet, to_fail))):
        return "open"
    is_below = condition.side == "below"
    is_met, is_failed = (high < to_meet, low > to_fail) if is_below else (low > to_meet, high < to_fail)
    return "met" if is_met else "failed" if is_failed and not condition.never_fails else "open"


def threshold(condition: Condition, numbers: Mapping[str, Value], *, to_fail: bool = False) -> float:
    """Return the threshold of a condition; with `to_fail`, the threshold beyond which it fails."""
    times = condition.fails_times if to_fail and condition.fails_times is not None else condition.times
    if not isinstance(condition.than, str):
        return times * condition.than
    if condition.than == "baseline":
        return times * numbers[condition.number].baseline
    other = numbers[condition.than]
    if not condition.is_disjoint:
        return times * other.value
    return times * (other.lo if (condition.side == "below") != to_fail else other.hi)


@checked()
def verdict(claim: Claim, numbers: Mapping[str, Value] | None = None) -> Verdict:
    """Return the verdict on a claim.

    The claim is supported if every condition is met, and contradicted if one fails; of conditions that fail only
    together (`fails_with`), all have to fail. Otherwise, or with fewer trainings than the criterion requires, it is
    not decided. A claim on hold has the verdict that its hold states.

    Args:
        claim: The claim.
        numbers: Numbers to judge instead of the recorded ones, by name.

    Returns:
        The verdict: `NOT_TESTED` without numbers or conditions.

    Raises:
        KeyError: `numbers` lacks one that a condition names.

    Example:
        >>> import bayesgeom
        >>> str(verdict(bayesgeom.claims.find("C1")))
        'not tested'
    """
    if claim.hold is not None:
        return claim.hold.verdict
    judged = claim.measured.numbers if numbers is None and claim.measured is not None else numbers
    if judged is None or not claim.conditions:
        return Verdict.NOT_TESTED
    outcomes = [
        outcome(condition, judged, is_point=claim.numbers[condition.number].is_point) for condition in claim.conditions
    ]
    groups: dict[str | int, list[Outcome]] = {}
    for i, (own, found) in enumerate(zip(claim.conditions, outcomes, strict=True)):
        groups.setdefault(own.fails_with or i, []).append(found)
    is_failed = any(set(group) == {"failed"} for group in groups.values())
    if claim.seeds < claim.seeds_required or (set(outcomes) != {"met"} and not is_failed):
        return Verdict.NOT_DECIDED
    return Verdict.CONTRADICTED if is_failed else Verdict.SUPPORTED
