"""A criterion that changes after its measurement says so, with the date."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bayesgeom.claims.claim import Claim, Condition
from bayesgeom.claims.loading import load

DATED = re.compile(r"\d{1,2} November 2026")
CHANGED = re.compile(r"after the measurement|[Rr]ead strictly on|[Ss]tated on|[Cc]hanged on|[Uu]ntil \d")
MEASURED = [claim for claim in load().values() if claim.measured is not None]
# What decided each claim on 25 November 2026. After a change, say in the criterion what was changed, when and why.
_RECORDED = """
    B1=65e1dc0a B2=a5ea047d B3=57d38d9a B4=116fd2db B5=b9992209 H1=2c6c0b05 H2=873a1e02 H3=1afae5d5 H4=9fdd0d1d
    H5=055b7b00 H6=83ba791e H7=6fb6921f H8=b989a671 T1=dc502832 G1=24ed8ffb G2=cbc171ad G3=36f2fbfa G4=12dc9dd5
    G5=af421d49 G6=0aacb0c4 G7=f1089a96 G8=37204406 P4=6c581324 Y1=3f97f8b3 Y2=c2fb0c16 A1=a3456662 A2=2862da51
    A3=f9b030ba A4=6f85d221 A5=4569e582 P1=7f551bab P2=4f8e29e5 P3=42d08dc2 D1=0e0c03c4 D2=0e0c03c4 D3=2826a152
    J5=f946ffa1 L1=8f0c5158 L2=8e742b10 L3=a30c87c2 L4=7b6e283b L5=41d1a9ff L6=79eda43b L7=ad02dc61 L8=33a39da4
    J1=ab00871a J2=71d6ea36 J3=7aaecfa8 J4=110b8d7b J6=56081029
"""
RECORDED = dict(entry.split("=") for entry in _RECORDED.split())


def fingerprint(claim: Claim) -> str:
    """The first digits of a hash of what decides a claim: its conditions, and the places of their numbers."""
    names = sorted({own.number for own in claim.conditions} | {str(own.than) for own in claim.conditions})
    used = [claim.numbers[name] for name in names if name in claim.numbers]
    where = [(n.name, n.layer, n.head, n.position, n.reduce, n.baseline, n.end, n.is_point, n.if_perfect) for n in used]
    groups = [_plain(claim.supported_if), sorted(map(_plain, claim.contradicted_if))]
    return hashlib.sha256(repr((groups, claim.seeds_required, where)).encode()).hexdigest()[:8]


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


def test_other_conditions_or_other_places_have_another_fingerprint() -> None:
    claim = load()["L1"]
    (run,) = claim.recordable
    moved = {**run.numbers, "first": replace(run.numbers["first"], layer=1)}
    elsewhere = replace(claim, runs=[replace(run, numbers=moved)])
    least = tuple(replace(own, number="least") for own in claim.contradicted_if[0])
    seen = {fingerprint(own) for own in (claim, elsewhere, replace(claim, contradicted_if=(least,)))}
    assert len(seen) == 3 and fingerprint(replace(claim, finding="another text")) == fingerprint(claim)
    assert CHANGED.search(claim.criterion) and not CHANGED.search(load()["L3"].criterion)
