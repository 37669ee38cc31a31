"""Planted numbers for a claim: each test of every case is put on one side of its threshold, or across it."""

import math
from typing import Literal

from examples.replication.claims.claim import Claim, Condition, Value, threshold

Side = Literal["holds", "fails", "across"]


def exact(value: float, baseline: float = 0.5) -> Value:
    """A number with an interval of no width."""
    return Value(value=value, lo=value, hi=value, baseline=baseline)


def planted(claim: Claim, side: Side, *, networks: set[str] | None = None) -> dict[str, Value]:
    """Numbers with which every test holds, or the first test of every case is failed, or is at its threshold.

    Only cases of these networks are failed; those of others hold.
    """
    numbers = {name: exact(1.0) for name in claim.numbers}
    for case in claim.cases:
        own = side if networks is None or case.network in networks else "holds"
        for test in case.tests:
            tests = [other for other in case.tests if other.number == test.number]
            if own == "holds" or test.number != case.tests[0].number:
                numbers[test.number] = _met(tests, numbers)
            elif test is case.tests[0]:
                numbers[test.number] = _missed(tests, numbers, own, is_point=claim.numbers[test.number].is_point)
    return numbers


def _missed(tests: list[Condition], numbers: dict[str, Value], side: Side, *, is_point: bool) -> Value:
    """A number beyond, or across, the strictest threshold on the side of its first test."""
    is_above = tests[0].side == "above"
    limits = [threshold(test, numbers) for test in tests if test.side == tests[0].side]
    low, high = (max if is_above else min)(limits)
    if side == "fails":
        return exact(low - 1.0 if is_above else high + 1.0)
    width = 0.0 if is_point else 1e-6
    return Value(value=low, lo=low - width, hi=high + width, baseline=0.5)


def _met(tests: list[Condition], numbers: dict[str, Value]) -> Value:
    limits = [(test.side, *threshold(test, numbers)) for test in tests]
    low = max((most for side, _, most in limits if side == "above"), default=-math.inf)
    high = min((least for side, least, _ in limits if side == "below"), default=math.inf)
    assert low < high, "no number meets all tests"
    if math.isinf(low) and math.isinf(high):
        return exact(0.0)
    if math.isinf(low) or math.isinf(high):
        return exact(high - 1.0 if math.isinf(low) else low + 1.0)
    return exact((low + high) / 2)
