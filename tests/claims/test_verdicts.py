"""Verdicts follow from intervals, and from nothing else."""

import math
from dataclasses import replace

import pytest

from bayesgeom.claims.claim import Claim, Condition, Hold, Measurement, Value, Verdict
from bayesgeom.claims.loading import load
from bayesgeom.claims.verdicts import outcome, threshold, verdict


def value(x: float, lo: float = math.nan, hi: float = math.nan, baseline: float = math.nan) -> Value:
    return Value(value=x, lo=lo, hi=hi, baseline=baseline)


@pytest.mark.parametrize(
    ("found", "side", "expected"),
    [
        (value(0.3, 0.2, 0.4), "below", "met"),
        (value(0.3, 0.2, 0.4), "above", "failed"),
        (value(0.6, 0.5, 0.7), "below", "open"),
        (value(0.6, 0.4, 0.7), "above", "open"),
        (value(0.8, 0.6, 0.9), "above", "met"),
        (value(0.8, 0.6, 0.9), "below", "failed"),
        (value(0.4), "below", "open"),
        (value(0.6), "below", "open"),
        (value(math.nan), "below", "open"),
        (value(0.5), "below", "open"),
    ],
)
def test_the_whole_interval_decides(found: Value, side: str, expected: str) -> None:
    limit = Condition(number="x", side=side, than=0.5)  # type: ignore[arg-type]
    assert outcome(limit, {"x": found}) == expected


@pytest.mark.parametrize(
    ("side", "times", "fails_times", "found"),
    [
        ("above", 1.0, 0.5, {0.3: "failed", 0.55: "open", 0.8: "open", 1.0: "open", 1.3: "met"}),
        ("below", 0.5, 1.0, {0.3: "met", 0.55: "open", 0.8: "open", 1.0: "open", 1.3: "failed"}),
    ],
)
def test_between_two_thresholds_a_condition_is_open(
    side: str, times: float, fails_times: float, found: dict[float, str]
) -> None:
    limit = Condition(number="x", side=side, than="y", times=times, fails_times=fails_times)  # type: ignore[arg-type]
    for at, expected in found.items():
        assert outcome(limit, {"x": value(at, at - 0.1, at + 0.1), "y": value(1.0)}) == expected, at
    assert outcome(limit, {"x": value(0.3)}) == outcome(limit, {"y": value(1.0)}) == outcome(limit, {}) == "open"


def test_a_point_is_judged_by_its_value() -> None:
    limit = Condition(number="x", side="below", than=0.5)
    found = [outcome(limit, {"x": x}, is_point=True) for x in (value(0.4, 0.3, 0.7), value(0.6), value(math.nan))]
    assert found == ["met", "failed", "open"]


def test_thresholds_are_constants_numbers_or_baselines() -> None:
    numbers = {"x": value(1.0, baseline=7.0), "y": value(3.0, 2.0, 5.0)}
    assert threshold(Condition(number="x", side="below", than=2.0, times=5.0), numbers) == 10
    assert threshold(Condition(number="x", side="below", than="y", times=0.5), numbers) == 1.5
    assert threshold(Condition(number="x", side="below", than="baseline", times=0.01), numbers) == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("side", "found"),
    [
        ("below", {1.5: "met", 2.05: "open", 3.0: "open", 5.05: "open", 5.5: "failed"}),
        ("above", {1.5: "failed", 2.05: "open", 3.0: "open", 5.05: "open", 5.5: "met"}),
    ],
)
def test_disjoint_intervals_have_the_other_wholly_on_one_side(side: str, found: dict[float, str]) -> None:
    """Y1 was met by 0.0006 beyond another number's value, although the two intervals overlapped."""
    limit = Condition(number="x", side=side, than="y", is_disjoint=True)  # type: ignore[arg-type]
    for at, expected in found.items():
        assert outcome(limit, {"x": value(at, at - 0.1, at + 0.1), "y": value(3.0, 2.0, 5.0)}) == expected, at
    assert outcome(limit, {"x": value(0.3, 0.2, 0.4), "y": value(3.0)}) == "open", "the other has no interval"


@pytest.mark.parametrize("level", [-0.002, 0.0, 0.002])
def test_a_condition_that_never_fails_is_met_or_open_at_every_sign(level: float) -> None:
    """A large factor in its place gave "failed" at a negative level, and NaN at 0."""
    limit = Condition(number="x", side="above", than="y", never_fails=True)
    for at, expected in ((level - 1, "open"), (level, "open"), (level + 1, "met")):
        assert outcome(limit, {"x": value(at, at - 0.1, at + 0.1), "y": value(level)}) == expected, at


def claim_with(**changes: object) -> Claim:
    base = replace(load()["B1"], hold=None, measured=None, conditions=(Condition(number="kl", side="below", than=1.0),))
    return replace(base, **changes)  # type: ignore[arg-type]


GOOD, BAD, UNSURE = ({"kl": value(x, x - 0.2, x + 0.2)} for x in (0.5, 1.5, 1.1))


def test_the_verdict_of_one_test() -> None:
    claim = claim_with()
    assert verdict(claim, GOOD) == Verdict.SUPPORTED
    assert verdict(claim, BAD) == Verdict.CONTRADICTED
    assert verdict(claim, UNSURE) == Verdict.NOT_DECIDED
    assert verdict(claim) == Verdict.NOT_TESTED


def test_one_failed_test_contradicts_and_all_must_be_met() -> None:
    above = Condition(number="kl", side="above", than=0.0)
    claim = claim_with(conditions=(above, Condition(number="kl", side="below", than=1.0)))
    assert verdict(claim, GOOD) == Verdict.SUPPORTED
    assert verdict(claim, BAD) == Verdict.CONTRADICTED
    assert verdict(claim, UNSURE) == Verdict.NOT_DECIDED


def test_fewer_trainings_than_required_decide_nothing() -> None:
    claim = claim_with(seeds=1, seeds_required=2)
    assert verdict(claim, GOOD) == verdict(claim, BAD) == Verdict.NOT_DECIDED
    assert verdict(replace(claim, seeds=2), BAD) == Verdict.CONTRADICTED


def test_a_hold_keeps_its_verdict_whatever_the_numbers() -> None:
    claim = claim_with(hold=Hold(verdict=Verdict.NOT_TESTABLE, reason="No dynamics."))
    assert verdict(claim, GOOD) == Verdict.NOT_TESTABLE


def test_no_hold_contradicts_the_conditions_of_its_claim() -> None:
    """H1, Y1 and B5 once had holds against what their conditions gave."""
    for claim in load().values():
        if claim.hold is not None and claim.conditions:
            assert verdict(replace(claim, hold=None)) in (claim.hold.verdict, Verdict.NOT_DECIDED), claim.id


def test_recorded_numbers_are_judged_unless_others_are_given() -> None:
    measured = Measurement(date="2026-01-01", machine="m", numbers=GOOD, origins={})
    claim = claim_with(measured=measured)
    assert verdict(claim) == Verdict.SUPPORTED
    assert verdict(claim, BAD) == Verdict.CONTRADICTED


def test_conditions_that_fail_together_contradict_only_if_all_fail() -> None:
    """C4: above at one position in every training; the same position, and not two different ones."""
    claim = load()["C4"]
    low, high, across = value(5e-5, 4e-5, 6e-5), value(2e-4, 1.5e-4, 3e-4), value(1e-4, 5e-5, 2e-4)

    def found(**others: Value) -> Verdict:
        return verdict(claim, dict.fromkeys(claim.numbers, low) | others)

    assert found() == Verdict.SUPPORTED
    assert found(at6=high, at6_seed1=high) == found(at6=across, at9=high, at9_seed1=high) == Verdict.CONTRADICTED
    assert found(at6=high) == found(at6=high, at7_seed1=high) == found(at6=across) == Verdict.NOT_DECIDED
    assert found(at6=high, at6_seed1=across) == Verdict.NOT_DECIDED


def test_a_label_that_is_a_number_makes_no_group_with_the_condition_of_that_index() -> None:
    alone = Condition(number="kl", side="below", than=1.0)
    together = [Condition(number="kl", side="below", than=than, fails_with="2") for than in (1.0, 9.0)]
    assert verdict(claim_with(conditions=(*together, alone)), BAD) == Verdict.CONTRADICTED
    assert verdict(claim_with(conditions=tuple(together)), BAD) == Verdict.NOT_DECIDED


@pytest.mark.parametrize("name", ["C4", "C7"])
def test_claims_on_several_trainings_can_be_contradicted_by_their_numbers(name: str) -> None:
    claim = load()[name]
    assert verdict(claim, {number: value(9.0, 8.0, 10.0) for number in claim.numbers}) == Verdict.CONTRADICTED
    one = {number: value(9.0, 8.0, 10.0) if "1" not in number[-1] else value(0.0, 0.0, 0.0) for number in claim.numbers}
    assert verdict(claim, one) == Verdict.NOT_DECIDED
