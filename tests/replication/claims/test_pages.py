"""The pages say what the claims say, and the claims say what the committed reports hold."""

import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.checkpoint_files import checkpoints, read_description
from examples.replication.claims.claim import Claim, Value, Verdict, deciding, verdict
from examples.replication.claims.loading import load
from examples.replication.claims.pages import (
    CLAIMS,
    END,
    INTERVENTIONS,
    PLOTS,
    PUBLISHED,
    START,
    WITH_PARTS,
    drawings,
    joined,
    page,
    refreshed,
    section,
    summary,
    table,
    threshold_text,
    write,
)
from examples.replication.claims.plots import plot, rows_of
from examples.replication.claims.reading import origin_of, provenance_of, values_of
from tests.structure.source import ROOT

MEASURED = [claim for claim in load().values() if claim.measured is not None]
STALE = "run `python -m examples.replication table --write-pages`"
MOST_WORDS, MOST_WORDS_PUBLISHED = 6_900, 388
SVG = "{http://www.w3.org/2000/svg}"


def changed(claim: Claim, **numbers: Value) -> Claim:
    """The claim with some recorded numbers replaced."""
    assert claim.measured is not None
    return replace(claim, measured=replace(claim.measured, numbers={**claim.measured.numbers, **numbers}))


def test_the_stored_pages_are_what_the_claims_generate() -> None:
    text = (ROOT / CLAIMS).read_text(encoding="utf-8")
    assert text == page(load()), STALE
    assert len(text.split()) <= MOST_WORDS
    interventions = (ROOT / INTERVENTIONS).read_text(encoding="utf-8")
    assert interventions.count(END) >= 2 and refreshed(interventions) == interventions, STALE


@pytest.mark.parametrize("name", PUBLISHED, ids=lambda name: name.stem)
def test_the_page_of_a_published_claim_is_short_and_current(name: Path) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text.count(END) == 1 and refreshed(text) == text, STALE
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= MOST_WORDS_PUBLISHED and "**Verdict**" in text


@pytest.mark.parametrize("claim", load().values(), ids=lambda claim: claim.id)
def test_a_claim_has_one_sentence_one_table_and_one_plot(claim: Claim) -> None:
    title, sentence, rows, image = section(claim).split("\n\n")
    assert title == f"### {claim.id}" and sentence.endswith(".") and f"**{verdict(claim)}**" in sentence
    assert all(line.startswith("|") and line.endswith("|") for line in rows.splitlines())
    assert len({line.replace("\\|", "").count("|") for line in rows.splitlines()}) == 1
    assert image == f"![{claim.id}](plots/{claim.id}.svg)"
    stored = (ROOT / PLOTS / f"{claim.id}.svg").read_text(encoding="utf-8")
    assert stored == plot(claim), STALE


def test_no_plot_is_left_of_a_claim_that_went() -> None:
    assert {path.stem for path in (ROOT / PLOTS).iterdir()} == {*load(), *drawings()}
    for name, drawn in drawings().items():
        assert (ROOT / PLOTS / f"{name}.svg").read_text(encoding="utf-8") == drawn, STALE


@pytest.mark.parametrize("claim", load().values(), ids=lambda claim: claim.id)
def test_a_plot_draws_every_row_with_its_verdict(claim: Claim) -> None:
    figure = ET.fromstring(plot(claim))
    texts = [own.text for own in figure.iter(f"{SVG}text")]
    shown = deciding(claim)
    known = [row for row in rows_of(claim) if not math.isnan(row.value)]
    assert len(list(figure.iter(f"{SVG}circle"))) == len(known)
    for own in Verdict:
        assert texts.count(str(own)) == sum(v == own for _, _, v in shown)
    for circle in figure.iter(f"{SVG}circle"):
        assert 300 < float(circle.attrib["cx"]) < 680


def test_a_dot_lies_on_the_side_of_its_threshold_that_its_verdict_says() -> None:
    claim = load()["A1"]
    figure = ET.fromstring(plot(claim))
    bars = [float(own.attrib["x"]) for own in figure.iter(f"{SVG}rect") if "x" in own.attrib]
    dots = [float(own.attrib["cx"]) for own in figure.iter(f"{SVG}circle")]
    for row, bar, dot in zip(rows_of(claim), bars, dots, strict=True):
        assert (dot > bar) == (row.verdict == Verdict.HOLDS)


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


def test_a_changed_number_changes_page_and_verdict() -> None:
    claims = dict(load())
    assert "[B1](#b1)" in next(line for line in summary(claims.values()).splitlines() if line.startswith("|holds|"))
    worse = {**claims, "B1": changed(claims["B1"], kl=Value(value=0.777, lo=0.776, hi=0.778, baseline=1.1))}
    assert "|0.777 [0.776, 0.778]|" in page(worse) != page(claims)
    assert "does not hold" in section(worse["B1"])


def test_a_threshold_shows_its_value_and_what_it_is_made_of() -> None:
    claims = load()
    for claim_id, expected in (
        ("H2", "< 0.025"),
        ("B1", "< 0.01107 (0.01 × uniform predictor)"),
        ("A1", "> 0.08914 (9 × unablated error)"),
        ("B5", "< 0.001792 (1/618 × the MLP's entropy error)"),
        ("J4", "> 0.9362 (the best of 20 random subspaces)"),
    ):
        claim = claims[claim_id]
        assert claim.measured is not None
        assert threshold_text(claim, claim.cases[0].tests[0], claim.measured.numbers) == expected
    nothing = replace(claims["B5"], measured=None)
    assert threshold_text(nothing, nothing.cases[0].tests[0], {}) == "< (1/618 × the MLP's entropy error)"


def test_rows_name_size_reading_and_what_the_interval_is_over() -> None:
    claims = load()
    assert "|`hmm-s5` (width 128, published 256)|" in table(claims["H2"])
    assert "|averaged over sequences first|" in table(claims["G3"]) and "|layer 1|" in table(claims["J2"])
    assert "; over trainings]" in table(claims["G8"]) and "; range over mixed samples]" in table(claims["L4"])
    unmeasured = table(replace(claims["C1"], measured=None))
    assert "|–|" in unmeasured and "no data" in unmeasured


def test_conditions_on_one_number_share_a_row() -> None:
    claim = load()["B2"]
    assert claim.measured is not None
    found = list(joined(claim, claim.measured.numbers))
    assert [(row[2], row[3]) for row in found] == [("> 1.8 and < 1.9", "does not hold"), ("> 1.8 and < 1.9", "holds")]


def test_layer_ablation_reaches_eight_to_nine_times_in_the_small_hmm_transformer() -> None:
    """The remark of A1 states numbers, which no placeholder keeps."""
    claim = load()["A1"]
    assert claim.measured is not None and "8 to 9 times, not 10" in claim.remark
    increase, error = (claim.measured.numbers[name] for name in ("hmm", "hmm_error"))
    assert 1 + increase.lo / error.value > 8 and 1 + increase.value / error.value < 9


def test_a_number_is_printed_with_its_interval_and_unit() -> None:
    assert Value(value=0.5, lo=0.25, hi=0.75, baseline=1.0).text("bits") == "0.5 [0.25, 0.75] bits"
    assert Value(value=0.5, lo=math.nan, hi=math.nan, baseline=1.0).text() == "0.5"


def test_pages_are_written_into_a_clone_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"holds no examples/replication/interventions\.md: name the root"):
        write(tmp_path)
    (tmp_path / INTERVENTIONS).parent.mkdir(parents=True)
    for name in WITH_PARTS:
        (tmp_path / name).write_text(f"# Page\n\n{START.format('fits')}\n{END}\n\nend\n", encoding="utf-8")
    assert len(write(tmp_path)) == 1 + len(WITH_PARTS) + len(load()) + len(drawings()) and write(tmp_path) == []
    assert (tmp_path / INTERVENTIONS).read_text(encoding="utf-8").endswith(f"{END}\n\nend\n")
    with pytest.raises(InvalidArgument, match="has no '<!-- end of generated text -->' after"):
        refreshed(START.format("fits"))
