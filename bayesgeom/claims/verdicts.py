"""From measured numbers to a verdict, by a claim's own criterion."""

from collections.abc import Mapping

from bayesgeom.claims.claim import Claim, Condition, Value, Verdict
from bayesgeom.core.arguments import checked


def is_met(condition: Condition, numbers: Mapping[str, Value], *, is_point: bool = False) -> bool:
    """Return whether the whole interval of the condition's number lies on the required side of its threshold.

    A missing number meets nothing, and neither does a number without an interval unless it is judged as a point. If the
    threshold is itself a measured number, its value is used, or the near end of its interval with `is_disjoint`.

    Args:
        condition: The condition.
        numbers: The measured numbers by name.
        is_point: Whether the number is judged by its value alone.
    """
    needed = {condition.number} | ({condition.than} if isinstance(condition.than, str) else set()) - {"baseline"}
    if not needed <= numbers.keys():
        return False
    found, limit = numbers[condition.number], threshold(condition, numbers)
    if condition.side == "below":
        return (found.value if is_point else found.hi) < limit
    return (found.value if is_point else found.lo) > limit


def threshold(condition: Condition, numbers: Mapping[str, Value]) -> float:
    """Return the threshold of a condition."""
    if not isinstance(condition.than, str):
        return condition.times * condition.than
    if condition.than == "baseline":
        return condition.times * numbers[condition.number].baseline
    other = numbers[condition.than]
    if not condition.is_disjoint:
        return condition.times * other.value
    return condition.times * (other.lo if condition.side == "below" else other.hi)


@checked()
def verdict(claim: Claim, numbers: Mapping[str, Value] | None = None) -> Verdict:
    """Return the verdict on a claim.

    The claim is supported if all conditions in `supported_if` are met, and contradicted if all of one group in
    `contradicted_if` are. If neither or both hold, or with fewer trainings than the criterion requires, it is not
    decided. A claim on hold has the verdict that its hold states.

    Args:
        claim: The claim.
        numbers: Numbers to judge instead of the recorded ones, by name.

    Returns:
        The verdict: `NOT_TESTED` without numbers or conditions.

    Raises:
        InvalidArgument: An argument has another type than stated.

    Example:
        >>> import bayesgeom
        >>> str(verdict(bayesgeom.claims.find("C1")))
        'not tested'
    """
    if claim.hold is not None:
        return claim.hold.verdict
    judged = claim.measured.numbers if numbers is None and claim.measured is not None else numbers
    if judged is None or not claim.supported_if:
        return Verdict.NOT_TESTED
    met = {own for own in claim.conditions if is_met(own, judged, is_point=claim.numbers[own.number].is_point)}
    is_supported = met.issuperset(claim.supported_if)
    is_contradicted = any(met.issuperset(group) for group in claim.contradicted_if)
    if claim.seeds < claim.seeds_required or is_supported == is_contradicted:
        return Verdict.NOT_DECIDED
    return Verdict.SUPPORTED if is_supported else Verdict.CONTRADICTED
