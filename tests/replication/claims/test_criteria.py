"""A criterion that changes after its measurement says so, with the date."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from bayesgeom.claims.claim import Claim, Condition, Hold, Number, Run, Verdict
from bayesgeom.claims.loading import load

DATED = re.compile(r"\d{1,2} November 2026")
CHANGED = re.compile(r"after the measurement|[Rr]ead strictly on|[Ss]tated on|[Cc]hanged on|[Uu]ntil \d")
# `no_interval` decides through its presence, `is_point`; the tolerance is that of `reproduce`.
TEXTS = ("label", "unit", "baseline_label", "no_interval", "tolerance")
MEASURED = [claim for claim in load().values() if claim.measured is not None]
# What decided each claim on 25 November 2026. After a change, say in the criterion what was changed, when and why.
_RECORDED = """
    B1=3dc5e471 B2=f049fed2 B3=e3b6975d B4=49b5c967 B5=f62141df H1=6f5cb6fe H2=60cf4498 H3=7403e283 H4=8a797d7f
    H5=552aba96 H6=9d867b02 H7=f0bc14c3 H8=219559e3 T1=bf0b3b6c G1=e73ec8ff G2=101572a6 G3=c8845540 G4=91aa5465
    G5=57a91e2b G6=ffbf4a53 G7=49241c1b G8=560816c6 P4=91c06c23 Y1=9d51921b Y2=158c3fad A1=b2f16565 A2=791e6fc5
    A3=3c2692c0 A4=706849cc A5=0eb10bfc P1=1b28ab72 P2=6011fe1b P3=439b27f2 D1=b0f25332 D2=081cf239 D3=3d060be9
    J5=4e70e6b9 L1=ea5e1b40 L2=af0db6b8 L3=019135cc L4=369d380f L5=67a98436 L6=f0acc83b L7=14797c20 L8=c5ec156d
    J1=d53a828b J2=1eb888e5 J3=e011cfeb J4=0140a9ce J6=329c8fd1
"""
RECORDED = dict(entry.split("=") for entry in _RECORDED.split())


def fingerprint(claim: Claim) -> str:
    """The first digits of a hash of what decides a claim: its conditions, the places of their numbers, and its hold."""
    names = {own.number for own in claim.conditions} | {str(own.than) for own in claim.conditions}
    where = sorted(_place(run, run.numbers[name]) for run in claim.runs for name in names & run.numbers.keys())
    groups = [_plain(claim.supported_if), sorted(map(_plain, claim.contradicted_if))]
    hold = "" if claim.hold is None else claim.hold.verdict.value
    return hashlib.sha256(repr((groups, claim.seeds_required, where, hold)).encode()).hexdigest()[:8]


def _place(run: Run, number: Number) -> str:
    """Everything about a number but its texts, and the command and the report that hold it."""
    own = asdict(number)
    return repr((run.command, run.report, number.is_point, [own[field] for field in own if field not in TEXTS]))


def _plain(group: Sequence[Condition]) -> list[tuple[str, ...]]:
    return sorted((own.number, own.side, str(own.than), str(own.times), str(own.is_disjoint)) for own in group)


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.id)
def test_what_decides_a_measured_claim_changes_only_with_a_word_on_it(claim: Claim) -> None:
    """L1 was once decided by another layer than before, and neither its text nor the page said so."""
    assert RECORDED.get(claim.id) == fingerprint(claim), (
        f"{claim.id}: what decides it is not what decided it before. Say so in its criterion, with the date and the "
        f"reason, set is_criterion_later, and enter {claim.id}={fingerprint(claim)} here."
    )


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.id)
def test_a_criterion_that_tells_of_a_change_has_its_date_and_is_marked(claim: Claim) -> None:
    if CHANGED.search(claim.criterion) or DATED.search(claim.criterion):
        assert DATED.search(claim.criterion), claim.id
        assert claim.is_criterion_later, claim.id


def test_other_conditions_have_another_fingerprint_and_other_texts_the_same() -> None:
    claim = load()["L1"]
    least = tuple(replace(own, number="least") for own in claim.contradicted_if[0])
    held = replace(claim, hold=Hold(verdict=Verdict.NOT_DECIDED, reason="A reason."))
    same = (replace(claim, finding="another text"), with_number(claim, label="another label", tolerance=0.5))
    seen = {fingerprint(own) for own in (claim, held, replace(claim, seeds_required=7))}
    assert len(seen | {fingerprint(replace(claim, contradicted_if=(least,)))}) == 4
    assert {fingerprint(own) for own in same} == {fingerprint(claim)}
    assert CHANGED.search(claim.criterion) and not CHANGED.search(load()["L3"].criterion)
    assert fingerprint(load()["D1"]) != fingerprint(load()["D2"]), "two identities with the same conditions"


@pytest.mark.parametrize(
    "changed",
    [
        {"probe": "pass_thresholds"},
        {"metric": "mean_centered_overlap"},
        {"variant": "inputs / weights"},
        {"variant_has": "inputs"},
        {"layer": 1},
        {"head": 2},
        {"position": 3},
        {"reduce": "max"},
        {"baseline": "untrained networks"},
        {"end": "high"},
        {"no_interval": "a point"},
        {"if_perfect": 2.0},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_number_from_another_place_has_another_fingerprint(changed: dict[str, Any]) -> None:
    """D1 and D2 had the same fingerprint once, which left out probe, metric, variant, command and report."""
    assert fingerprint(with_number(load()["L1"], **changed)) != fingerprint(load()["L1"])


@pytest.mark.parametrize("changed", [{"command": "bayesgeom diagnose other"}, {"report": "docs/readings/other"}])
def test_a_number_of_another_report_has_another_fingerprint(changed: dict[str, Any]) -> None:
    claim = load()["L1"]
    runs = [replace(run, **changed) if run.numbers else run for run in claim.runs]
    assert fingerprint(replace(claim, runs=runs)) != fingerprint(claim)


def with_number(claim: Claim, **changed: Any) -> Claim:
    """The claim with a changed number "first"."""
    (run,) = claim.recordable
    moved = {**run.numbers, "first": replace(run.numbers["first"], **changed)}
    return replace(claim, runs=[replace(run, numbers=moved)])
