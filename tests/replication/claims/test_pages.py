"""The pages say what the claims say, and the claims say what the committed reports hold."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import number_text
from bayesgeom.models.checkpoint_files import checkpoints, read_description
from examples.replication.claims.claim import Claim, Value, Verdict, reason, verdict
from examples.replication.claims.loading import load
from examples.replication.claims.pages import END, PAGES, START, details, refreshed, summary, write
from examples.replication.claims.reading import origin_of, provenance_of, values_of
from tests.structure.source import ROOT

MEASURED = [claim for claim in load().values() if claim.measured is not None]


@pytest.mark.parametrize("name", PAGES)
def test_the_stored_page_is_what_the_claims_generate(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert page.count(END) >= 2
    assert refreshed(page, load()) == page, "run `python -m examples.replication table --write-pages`"


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.id)
def test_recorded_numbers_are_those_of_the_committed_reports(claim: Claim) -> None:
    assert claim.measured is not None
    found: dict[str, Value] = {}
    for run in claim.recordable:
        found |= values_of(run, ROOT / str(run.report))
        assert claim.measured.origins[run.name] == origin_of(ROOT / str(run.report))
    assert found.keys() == claim.measured.numbers.keys()
    for name, value in found.items():
        recorded, fields = claim.measured.numbers[name], ("value", "lo", "hi", "baseline")
        np.testing.assert_array_equal(*([getattr(own, field) for field in fields] for own in (value, recorded)))
        assert value.over == recorded.over


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.id)
def test_a_recorded_interval_holds_its_number(claim: Claim) -> None:
    assert claim.measured is not None
    for name, own in claim.measured.numbers.items():
        ends = [end for end in (own.lo, own.hi) if not math.isnan(end)]
        assert all((own.value - end) * side >= 0 for end, side in zip(ends, (1, -1), strict=False)), name
        assert len(ends) in (0, 2), name


def test_measurements_are_of_the_shipped_weights() -> None:
    shipped = {name: read_description(path)["weights_hash"] for name, path in checkpoints().items()}
    seen = 0
    for claim in MEASURED:
        assert claim.measured is not None
        for origin in claim.measured.origins.values():
            if origin.model in shipped:
                assert origin.weights_hash == shipped[origin.model], claim.id
                seen += 1
    for path in (ROOT / "examples/replication/results/claims").glob("comparison-*"):
        weights = provenance_of(path)["weights"]
        assert {name: shipped[name] for name in weights if name in shipped}.items() <= weights.items(), path.name
        seen += len(weights.keys() & shipped.keys())
    assert seen > 20


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.id)
def test_a_command_states_the_sequences_and_the_seed_of_its_report(claim: Claim) -> None:
    assert claim.measured is not None
    for run in claim.runs:
        if run.name in claim.measured.origins and " --n " in run.command:
            origin = claim.measured.origins[run.name]
            assert f"--n {origin.n} " in f"{run.command} " and f"--seed {origin.seed} " in f"{run.command} "


def test_a_changed_number_changes_the_page() -> None:
    claims = dict(load())
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    measured = claims["B1"].measured
    assert measured is not None
    other = {**measured.numbers, "kl": replace(measured.numbers["kl"], value=0.00777)}
    changed = {**claims, "B1": replace(claims["B1"], measured=replace(measured, numbers=other))}
    assert "KL 0.00777 [" in refreshed(page, changed) != refreshed(page, claims)


def test_a_reason_holds_the_measured_number() -> None:
    """A reason once said 17 symbols and the number next to it 16."""
    claim = load()["P3"]
    assert claim.measured is not None and "{slow_memory}" in claim.why_open
    value = claim.measured.numbers["slow_memory"]
    assert f"an equivalent window of {value.text('symbols')}, and a second" in reason(claim)
    other = replace(claim.measured, numbers={**claim.measured.numbers, "slow_memory": replace(value, value=5.0)})
    assert "an equivalent window of 5 [" in reason(replace(claim, measured=other))
    assert reason(replace(claim, measured=None)) == "", "without numbers it is not tested"
    assert reason(load()["B1"]) == "" and "{" not in "".join(map(reason, load().values()))


def test_a_text_on_an_open_claim_goes_with_its_verdict() -> None:
    claim = load()["P3"]
    decided = replace(claim, supported_if=claim.supported_if[2:], seeds=2)
    assert (
        verdict(decided) == Verdict.SUPPORTED and reason(decided) == "" and "Why there is no" not in details([decided])
    )
    for own in load().values():
        assert not own.why_open or verdict(own) == Verdict.NOT_DECIDED, f"{own.id}: delete its why_open"


def test_every_claim_is_in_the_summary_and_every_row_has_a_reason() -> None:
    table = summary(load().values())
    for claim in load().values():
        assert f"[{claim.id}](#{claim.id.lower()})" in table
        if verdict(claim) in (Verdict.NOT_DECIDED, Verdict.NOT_TESTABLE, Verdict.NOT_TESTED):
            is_explained = reason(claim) or claim.seeds < claim.seeds_required or claim.measured is not None
            assert is_explained or "its checkpoints are not trained. Make '" in details([claim])


def test_rows_state_their_numbers_baselines_and_trainings() -> None:
    """The row of P3 once lacked the recall that its reason rests on, and the second training behind it."""
    claim = load()["P3"]
    assert claim.measured is not None and claim.unrecorded == ["published", "published_seed1"]
    (row,) = (line for line in summary([claim]).splitlines() if line.startswith("| [P3]"))
    assert row.endswith("| 3 (`bijection`, `recall`), 2 (`slow-hmm`); 2 required |")
    for name in ("recall", "recall_seed1", "recall_kl", "recall_kl_seed1", "slow_memory", "slow_kl"):
        value = claim.measured.numbers[name]
        assert value.text(claim.numbers[name].unit) in row
        assert math.isnan(value.baseline) == (name == "slow_memory")
    shown = details([claim])
    assert "\n- Trainings: 3 (`bijection`, `recall`), 2 (`slow-hmm`); 2 required.\n" in shown
    assert "| 1 of 2 |" in summary([load()["H4"]]) and "| 5 |" in summary([load()["D3"]])


def test_a_number_of_the_summary_has_an_interval_or_says_that_it_has_none() -> None:
    for claim in (each for each in load().values() if each.measured is not None):
        (row,) = (line for line in summary([claim]).splitlines() if line.startswith(f"| [{claim.id}]"))
        for name in claim.shown:
            value, number = claim.measured.numbers[name], claim.numbers[name]
            assert value.value != value.value or not math.isnan(value.lo) or "(no interval" in row, (claim.id, name)
            assert not number.no_interval or f"(no interval: {number.no_interval})" in row, (claim.id, name)


def test_tables_say_what_an_interval_is_over_unless_these_are_sequences() -> None:
    """Intervals over trainings, and ranges over exchanged domains, once looked like those over sequences."""
    for claim_id, name, scope in (
        ("D3", "ratio_qk", "over seeds"),
        ("G8", "kl", "over trainings"),
        ("J5", "kl", "over trainings"),
        ("L4", "code", "range over mixed samples"),
    ):
        claim = load()[claim_id]
        assert claim.measured is not None
        own = claim.measured.numbers[name]
        assert own.scope == scope and own.text().endswith(f"{number_text(own.hi)}; {scope}]")
        assert f"… {number_text(own.hi)} ({scope}) |" in details([claim])
    assert Value(value=1.0, lo=0.5, hi=2.0, baseline=math.nan).text() == "1 [0.5, 2]"


def test_claims_without_a_verdict_state_their_numbers_or_that_there_are_none() -> None:
    """Each claim that was measured has a recorded number; those without one say so, or are not tested."""
    for claim in load().values():
        if claim.measured is None:
            assert verdict(claim) == Verdict.NOT_TESTED or "no recorded number" in reason(claim), claim.id
        else:
            assert claim.shown and "–" not in reason(claim), claim.id


def test_a_number_is_printed_with_its_interval_and_unit() -> None:
    assert Value(value=0.5, lo=0.25, hi=0.75, baseline=1.0).text("bits") == "0.5 [0.25, 0.75] bits"
    assert Value(value=0.5, lo=math.nan, hi=math.nan, baseline=1.0).text() == "0.5"


def test_pages_are_written_into_a_clone_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"holds no examples/replication/claims\.md: name the root of a clone"):
        write(tmp_path)
    for name in PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# Page\n\n{START.format('summary')}\n{END}\n\nend\n", encoding="utf-8")
    assert len(write(tmp_path)) == 2 and write(tmp_path) == []
    assert (tmp_path / PAGES[0]).read_text(encoding="utf-8").endswith(f"{END}\n\nend\n")
    with pytest.raises(InvalidArgument, match="has no '<!-- end of generated text -->' after"):
        refreshed(START.format("summary"), load())
