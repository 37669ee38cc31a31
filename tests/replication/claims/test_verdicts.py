"""Verdicts follow from intervals, and from nothing else."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from examples.replication.claims.claim import (
    Claim,
    Condition,
    Hold,
    Measurement,
    Value,
    Verdict,
    is_met,
    threshold,
    verdict,
)
from examples.replication.claims.loading import load
from examples.replication.claims.pages import PAGES
from tests.structure.source import ROOT


def value(x: float, lo: float = math.nan, hi: float = math.nan, baseline: float = math.nan) -> Value:
    return Value(value=x, lo=lo, hi=hi, baseline=baseline)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (value(0.3, 0.2, 0.4), "below"),
        (value(0.8, 0.6, 0.9), "above"),
        (value(0.6, 0.5, 0.7), ""),
        (value(0.6, 0.4, 0.7), ""),
        (value(0.4), ""),
        (value(0.6), ""),
        (value(math.nan), ""),
    ],
)
def test_the_whole_interval_decides(found: Value, expected: str) -> None:
    for side in ("below", "above"):
        limit = Condition(number="x", side=side, than=0.5)
        assert is_met(limit, {"x": found}) == (side == expected)


def test_the_opposite_is_the_other_side_of_the_same_threshold() -> None:
    below = Condition(number="x", side="below", than="y", times=3.0, is_disjoint=True)
    assert below.opposite == replace(below, side="above") and below.opposite.opposite == below


def test_a_missing_number_meets_nothing() -> None:
    limit = Condition(number="x", side="below", than="y")
    x, y = value(0.3, 0.2, 0.4), value(1.0)
    assert is_met(limit, {"x": x, "y": y})
    assert not any(is_met(own, found) for own in (limit, limit.opposite) for found in ({"x": x}, {"y": y}, {}))


def test_a_point_is_judged_by_its_value() -> None:
    limit = Condition(number="x", side="below", than=0.5)
    found = [value(0.4, 0.3, 0.7), value(0.6), value(math.nan)]
    assert [is_met(limit, {"x": x}, is_point=True) for x in found] == [True, False, False]
    assert [is_met(limit.opposite, {"x": x}, is_point=True) for x in found] == [False, True, False]


def test_thresholds_are_constants_numbers_or_baselines() -> None:
    numbers = {"x": value(1.0, baseline=7.0), "y": value(3.0, 2.0, 5.0)}
    assert threshold(Condition(number="x", side="below", than=2.0, times=5.0), numbers) == 10
    assert threshold(Condition(number="x", side="below", than="y", times=0.5), numbers) == 1.5
    assert threshold(Condition(number="x", side="below", than="baseline", times=0.01), numbers) == pytest.approx(0.07)


@pytest.mark.parametrize(("at", "expected"), [(1.5, "below"), (2.05, ""), (3.0, ""), (5.05, ""), (5.5, "above")])
def test_disjoint_intervals_have_the_other_wholly_on_one_side(at: float, expected: str) -> None:
    """Y1 was met by 0.0006 beyond another number's value, although the two intervals overlapped."""
    for side in ("below", "above"):
        limit = Condition(number="x", side=side, than="y", is_disjoint=True)
        assert is_met(limit, {"x": value(at, at - 0.1, at + 0.1), "y": value(3.0, 2.0, 5.0)}) == (side == expected)
        assert not is_met(limit, {"x": value(at, at - 0.1, at + 0.1), "y": value(3.0)}), "the other has no interval"


def claim_with(**changes: object) -> Claim:
    """B1 with one condition, contradicted on its other side."""
    below = Condition(number="kl", side="below", than=1.0)
    own = {"measured": None, "supported_if": (below,), "contradicted_if": ((below.opposite,),), **changes}
    return replace(load()["B1"], **own)  # type: ignore[arg-type]


GOOD, BAD, UNSURE = ({"kl": value(x, x - 0.2, x + 0.2)} for x in (0.5, 1.5, 1.1))


def test_the_verdict_of_one_test() -> None:
    claim = claim_with()
    assert verdict(claim, GOOD) == Verdict.SUPPORTED
    assert verdict(claim, BAD) == Verdict.CONTRADICTED
    assert verdict(claim, UNSURE) == Verdict.NOT_DECIDED
    assert verdict(claim) == Verdict.NOT_TESTED


def test_one_failed_test_contradicts_and_all_must_be_met() -> None:
    both = (Condition(number="kl", side="above", than=0.0), Condition(number="kl", side="below", than=1.0))
    claim = claim_with(supported_if=both, contradicted_if=tuple((own.opposite,) for own in both))
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
    """H1, Y1 and B5 once had holds against what their conditions gave.

    P1 has all numbers but that of its trials, and the conditions of H7 bound a mean where the claim is about variation.
    """
    for name in ("P1", "H7"):
        own = load()[name]
        assert verdict(replace(own, hold=None)) == Verdict.SUPPORTED and verdict(own) == Verdict.NOT_DECIDED
    for claim in load().values():
        if claim.hold is not None and claim.supported_if and claim.id not in ("P1", "H7"):
            assert verdict(replace(claim, hold=None)) in (claim.hold.verdict, Verdict.NOT_DECIDED), claim.id


def test_a_verdict_that_is_not_on_hold_follows_from_numbers() -> None:
    """Eight claims once had a verdict by hand, although their criteria name thresholds."""
    held = {claim.id for claim in load().values() if claim.hold is not None}
    assert held == {"C5", "C6", "H4", "H5", "H7", "H8", "J5", "L7", "P1", "Y2"}, "a hold states what no number can"
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    assert f"claims are on hold ({', '.join(sorted(held))})" in page
    assert all(claim.supported_if for claim in load().values() if claim.id not in ("C5", "C6"))


@pytest.mark.parametrize("name", ["H4", "H5", "P1", "Y2"])
def test_numbers_alone_decide_no_claim_whose_criterion_counts_learning_rate_trials(name: str) -> None:
    claim = replace(load()[name], seeds=2)
    enough = numbers_that_decide(claim, claim.supported_if)
    assert verdict(replace(claim, hold=None), enough) == Verdict.SUPPORTED
    assert "learning-rate" in claim.criterion and verdict(claim, enough) == Verdict.NOT_DECIDED
    assert claim.hold is not None and claim.hold.reason.startswith("No report counts learning-rate trials, and")


@pytest.mark.parametrize("wrong", ["lstm", "mlp"])
def test_h4_is_contradicted_only_by_every_training(wrong: str) -> None:
    """One training once sufficed, although the criterion asks for every one."""
    claim = replace(load()["H4"], seeds=2, hold=None)
    below, above = value(0.01, 0.009, 0.011), value(0.1, 0.09, 0.11)
    others = dict.fromkeys({"lstm", "lstm_seed1", "mlp", "mlp_seed1"} - {wrong, f"{wrong}_seed1"}, above)
    assert verdict(claim, others | {wrong: below, f"{wrong}_seed1": above}) == Verdict.NOT_DECIDED
    assert verdict(claim, others | {wrong: below, f"{wrong}_seed1": below}) == Verdict.CONTRADICTED
    assert verdict(claim, others | {wrong: above, f"{wrong}_seed1": above}) == Verdict.SUPPORTED


def numbers_that_decide(claim: Claim, group: Sequence[Condition]) -> dict[str, Value]:
    """The recorded numbers of a claim, changed so that every condition of the group is met, if that is possible."""
    assert claim.measured is not None
    found = {name: replace(x, lo=x.value, hi=x.value) for name, x in claim.measured.numbers.items()}
    for _ in range(3):
        for own in group:
            if own.than in claim.numbers:
                found.setdefault(str(own.than), value(0.5, 0.5, 0.5))
            x = found.setdefault(own.number, value(0.5, baseline=0.1))
            at = threshold(own, found)
            low, high = _bounds(group, own.number, found)
            moved = (low + high) / 2 if low < high else at
            found[own.number] = replace(x, value=moved, lo=moved, hi=moved)
    return found


def _bounds(group: Sequence[Condition], number: str, found: dict[str, Value]) -> tuple[float, float]:
    limits = [(own.side, threshold(own, found)) for own in group if own.number == number]
    high = min((at for side, at in limits if side == "below"), default=math.inf)
    low = max((at for side, at in limits if side == "above"), default=-math.inf)
    return (high - 1 if math.isinf(low) else low), (low + 1 if math.isinf(high) else high)


@pytest.mark.parametrize("claim_id", ["G1", "J1", "J3", "J6", "P2", "P3"])
def test_other_numbers_would_decide_a_claim_that_was_once_on_hold(claim_id: str) -> None:
    claim = load()[claim_id]
    assert verdict(claim) == Verdict.NOT_DECIDED
    enough = replace(claim, seeds=max(claim.seeds, claim.seeds_required))
    assert verdict(enough) == Verdict.NOT_DECIDED, "and not for the number of trainings alone"
    assert verdict(enough, numbers_that_decide(claim, claim.supported_if)) == Verdict.SUPPORTED
    for group in claim.contradicted_if:
        assert verdict(enough, numbers_that_decide(claim, group)) == Verdict.CONTRADICTED


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


def test_a_group_contradicts_only_as_a_whole_and_an_empty_list_never() -> None:
    above = [Condition(number="kl", side="above", than=than) for than in (1.0, 9.0)]
    assert verdict(claim_with(contradicted_if=(tuple(above),)), BAD) == Verdict.NOT_DECIDED
    assert verdict(claim_with(contradicted_if=(tuple(above), (above[0],))), BAD) == Verdict.CONTRADICTED
    assert verdict(claim_with(contradicted_if=()), BAD) == Verdict.NOT_DECIDED


def test_numbers_that_support_and_contradict_decide_nothing() -> None:
    below = Condition(number="kl", side="below", than=2.0)
    assert verdict(claim_with(contradicted_if=((below,),)), GOOD) == Verdict.NOT_DECIDED


@pytest.mark.parametrize("name", ["C4", "C7"])
def test_claims_on_several_trainings_can_be_contradicted_by_their_numbers(name: str) -> None:
    claim = load()[name]
    assert verdict(claim, {number: value(9.0, 8.0, 10.0) for number in claim.numbers}) == Verdict.CONTRADICTED
    one = {number: value(9.0, 8.0, 10.0) if "1" not in number[-1] else value(0.0, 0.0, 0.0) for number in claim.numbers}
    assert verdict(claim, one) == Verdict.NOT_DECIDED
