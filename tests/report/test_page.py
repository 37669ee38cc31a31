"""The page of results: escaped, light, offline, with answers, contents, intervals, baselines and verdict colors."""

import base64
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from bayesgeom import load_report
from bayesgeom.charts.lines import add_band, add_line, add_reference
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.measurements.base import planted_run, planted_trials
from bayesgeom.measurements.calibration import Calibration, CalibrationReport
from bayesgeom.report.answer import N_COPIES
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.report.page import LETTER, NARROWEST, _asset, _placed, compact, page_of
from bayesgeom.report.panels import Panel
from bayesgeom.report.storage import values_of
from bayesgeom.report.tables import Headline, Level
from bayesgeom.report.theme import MEASURED, label_axes
from tests.pages import READINGS
from tests.report.planted import PlantedReport, planted

VOID = {"meta", "br", "hr", "img", "link", "input"}
FETCHING = {"src", "srcset", "data", "poster", "action", "background", "cite", "formaction"}
SOURCE = {"model": {"name": "<u>tiny</u>", "architecture": "lstm"}, "task_label": "HMM()", "seed": 3}
LINES = (
    Headline(
        metric="x",
        label="first <b>",
        value=0.25,
        unit="bits",
        low=0.125,
        high=0.5,
        levels=(Level(name="flat", value=2.0), Level(name="<random>", value=0.01, bound="≤ ", mean=0.005)),
        verdict="undecided",
    ),
    Headline(metric="y", label="second", value=7.0, low=6.0, high=9.0, reason=Reason.CONSERVATIVE, verdict="causal"),
    Headline(metric="z", label="third", value=0.5, reason=Reason.HEAVY_TAIL),
)


class Reader(HTMLParser):
    """Every tag with its attributes, the text outside scripts and styles, and whether tags close in order."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(document)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes out of order"

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open) and data.strip():
            self.text.append(data.strip())

    def row(self, label: str) -> list[str]:
        """The cells of a table from one label on."""
        start = self.text.index(label, self.text.index("95 % interval"))
        return self.text[start : start + 6]


class LoudReport(PlantedReport):
    """A plug-in's report with names that are out for trouble, and a figure that may fail; without steps it is empty."""

    def headlines(self) -> Sequence[Headline]:
        return LINES if self.steps else [Headline(metric="x", label="x", value=np.nan, verdict="not identified")]

    def panels(self) -> Sequence[Panel]:
        if self.is_deep:
            raise RuntimeError("no ink")
        wide, text = Panel.blank("left <i>", note="Of -3 <numbers>.", height=100), Panel.blank("folded", is_folded=True)
        add_reference(wide.figure, [1, 2], np.ones(2), name="exact")
        add_band(wide.figure, [1, 2], np.zeros(2), np.ones(2), name="95 % interval")
        wide.figure.data[-1].showlegend = True
        add_line(wide.figure, [2, 3], np.array([0.123456789, np.nan]), name="m </script><script>alert(1)")
        label_axes(wide.figure, "layer", "|correlation| or share of variance (0 to 1; below −1 cut off)")
        text.figure.add_trace(go.Scatter(x=[0], y=[0], mode="text", text=["none"]))
        return (wide, text) if self.steps else (text,)


def loud(rng: np.random.Generator, *, is_deep: bool = False) -> LoudReport:
    return replace(LoudReport(**values_of(planted(rng))), is_deep=is_deep)


@pytest.fixture
def document(rng: np.random.Generator) -> str:
    """Two reports and two that are missing."""
    missing = {"third": "reads site 'state' & <script>alert(1)</script>", "fourth": "no time"}
    return page_of("a & <b>", {"first": loud(rng), "planted": planted(rng)}, missing, SOURCE)


def figures_of(document: str) -> dict[str, Any]:
    """What plotly.js is given to draw, by the place on the page."""
    packed = document.split('id="figures">')[1].split("</script>", maxsplit=1)[0]
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


def assert_offline(document: str) -> None:
    for tag, attributes in Reader(document).tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img"}, tag
        assert not FETCHING & attributes.keys() and attributes.get("href", "#").startswith("#"), (tag, attributes)
    styles = document[: document.index("</style>")]
    assert "@import" not in styles and "url(" not in styles and "http-equiv" not in styles
    assert "http" not in json.dumps(figures_of(document))


def test_nothing_is_fetched_and_all_names_are_escaped(document: str) -> None:
    assert_offline(document)
    assert document.startswith("<!doctype html>") and document.index('<meta charset="utf-8">') < 200
    assert document.count("<script>alert(1)") == 0 and "<u>tiny" not in document
    text = "\n".join(Reader(document).text)
    assert "a & <b>" in text and "reads site 'state' & <script>alert(1)</script>" in text and "Of −3 <numbers>." in text


def test_contents_lead_to_every_section(document: str) -> None:
    tags = Reader(document).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    links = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert len(ids) == len(set(ids))
    assert set(links) == {"#first", "#planted", "#not-measured", "#provenance"}
    assert {str(link).removeprefix("#") for link in links} <= set(ids)
    folded = [own["id"] for tag, own in tags if tag == "details" and own.get("class") == "section"]
    assert folded == ["first", "planted", "not-measured", "provenance"]


def test_tiles_hold_the_numbers_of_the_tables(document: str) -> None:
    tiles = document.split('id="tiles"')[1].split("</section>", maxsplit=1)[0]
    assert tiles.count('<a class="tile"') == 2 and "<b>0.25 bits</b>" in tiles and "0.125 … 0.5" in tiles
    assert "flat 2" in tiles
    assert '<td role="cell" class="value">0.25 bits</td>' in document


def test_tables_hold_intervals_baselines_and_verdicts_in_color(document: str) -> None:
    read = Reader(document)
    assert read.row("first <b>")[1:] == [
        "0.25 bits",
        "0.125 … 0.5",
        "2 (flat)",
        "≤ 0.01 (<random>, mean 0.005)",
        "undecided",
    ]
    assert read.row("second")[1:3] == ["7", "≥ 6 … 9"] and read.row("third")[1:3] == ["0.5", "– (heavy tail)"]
    assert '<span class="chip open">undecided' in document and '<span class="chip good">causal' in document
    assert read.text.count("19 sequences.") == 2


def test_panels_are_plots_with_title_note_and_legend(document: str) -> None:
    drawn = figures_of(document)
    assert set(drawn) == {"first-1", "first-2", "planted-1"}
    own = drawn["first-1"]
    assert own["data"][-1]["y"] == [0.12346, None] and "title" not in own["layout"]
    assert len(own["layout"]["yaxis"]["title"]["text"].split("<br>")) == 3, "long titles have several lines"
    assert document.index("Further panels: folded") > document.index('id="first-1"')
    legend = document.split('id="first-1"')[1].split("</ul>", maxsplit=1)[0]
    assert legend.count("<button") == 3 and "stroke-width:7;stroke-opacity:0.3" in legend
    assert f"fill:var(--c{MEASURED[1:]}" in legend and "rgba" not in legend, "dark pages replace the color"


def test_a_plug_ins_figure_costs_no_page(rng: np.random.Generator) -> None:
    assert "figure cannot be drawn: RuntimeError: no ink" in loud(rng, is_deep=True).to_html()


def test_a_single_report_names_what_was_tested(rng: np.random.Generator) -> None:
    text = replace(planted(rng), provenance={**SOURCE, "model": {"name": "tiny", "architecture": "lstm"}}).to_html()
    assert "tiny (lstm) on HMM(), 19 sequences" in text and "Not measured" not in text
    snapshot = load_report(READINGS / "gradient-movement" / "hmm-s5").to_html()
    assert "hmm-s5 (transformer) on HMM(" in snapshot and "step-" not in snapshot.split("<main")[0]


@pytest.mark.parametrize("reading", ["dynamics-bijection", "formation", "claims/belief-readout-mess3-small"])
def test_pages_of_committed_readings_are_light_and_offline(reading: str) -> None:
    text = load_report(READINGS / reading).to_html()
    assert len(text.encode()) < 1.2e6
    assert_offline(text)


def test_films_keep_their_frames() -> None:
    drawn = figures_of(load_report(READINGS / "formation").to_html())
    assert any(len(own.get("frames", ())) > 3 and own["layout"]["sliders"] for own in drawn.values())


ROLES = {"table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}
SCOPES = {"columnheader": "col", "rowheader": "row"}  # roles of "th"


def test_tables_keep_their_roles_where_they_are_stacked(tmp_path: Path, rng: np.random.Generator) -> None:
    """Browsers drop the roles of table elements with another `display`, and of cells without one."""
    planted(rng).save(tmp_path / "run")
    tags = Reader((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).tags
    roles = [(tag, own.get("role")) for tag, own in tags if tag in ROLES]
    assert {tag for tag, _ in roles} == ROLES.keys() and all(ROLES[tag] == role for tag, role in roles)
    headings = [own for tag, own in tags if tag == "th"]
    assert all(own["scope"] == SCOPES[str(own["role"])] for own in headings)
    n_columns, n_rows = (sum(own["scope"] == scope for own in headings) for scope in ("col", "row"))
    n_tables = sum(tag == "table" for tag, _ in tags)
    assert n_tables == sum(tag == "caption" for tag, _ in tags), "each table has a caption"
    n_cells = sum(tag == "td" for tag, _ in roles)
    assert n_cells + n_rows == n_columns // n_tables * n_rows, "each row has a cell under every heading"


def test_numbers_are_compact_and_json() -> None:
    found = compact({"a": np.array([0.123456789, np.inf, 2.0]), "b": None, "c": (True, "x")})
    assert json.loads(json.dumps(found)) == {"a": [0.12346, None, 2], "c": [True, "x"]}


def test_the_bundled_library_is_whole() -> None:
    text = gzip.decompress(_asset("plotly-cartesian.min.js.gz")).decode()
    assert text.startswith("/**\n* plotly.js (cartesian - minified) v4.1.1") and "</script" not in text
    assert "Permission is hereby granted" in _asset("plotly-cartesian.LICENSE").decode()


@pytest.mark.parametrize("is_behavioral", [True, False])
def test_a_tile_of_no_test_makes_no_claim(
    is_behavioral: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlantedReport, "is_behavioral", is_behavioral)
    level = Baseline.of("chance", "flat", 0.5)
    report = replace(planted(rng), depth=Estimate.of(0.25, (0.125, 0.375), n=17, baselines=[level]))
    assert report.headlines()[0].verdict == Verdict.NO
    text = page_of("both", {"planted": report, "calibration": calibration(rng, is_informed=True)}, {}, SOURCE)
    tiles = text.split('id="tiles"')[1].split("</section>", maxsplit=1)[0]
    assert ("no claim" in tiles) != is_behavioral and ("does not beat" in tiles) == is_behavioral


def test_a_verdict_has_the_tone_of_its_code() -> None:
    assert {Verdict.CAUSAL.tone, Verdict.MATCHES.tone} == {"good"} and {Verdict.YES.tone, Verdict.NO.tone} == {"open"}


def calibration(rng: np.random.Generator, *, is_informed: bool) -> CalibrationReport:
    """That of a predictor which is nearly exact, or is as sharp and knows nothing."""
    exact = rng.dirichlet(np.full(5, 0.5), size=(67, 3))
    model = 0.99 * exact + 0.002 if is_informed else np.roll(exact, 1, axis=0)
    trials = planted_trials(exact, rng.integers(7, size=(67, 3)))
    report = Calibration().measure(planted_run(trials, {}, model=torch.from_numpy(model)))
    return replace(report, gap_closed_by_copies=np.zeros(N_COPIES))


@pytest.mark.parametrize("is_informed", [True, False])
def test_what_explains_no_inference_is_gray_under_one_line(is_informed: bool, rng: np.random.Generator) -> None:
    reports = {"planted": planted(rng), "calibration": calibration(rng, is_informed=is_informed)}
    text = page_of("both", reports, {}, SOURCE)
    kinds = {
        own["id"]: own.get("class") for tag, own in Reader(text).tags if tag in ("details", "section") and "id" in own
    }
    assert kinds["answer"] == ("good" if is_informed else "bad")
    assert kinds["planted"] == ("section" if is_informed else "section gray") and kinds["calibration"] == "section"
    assert text.count('id="gate"') == (not is_informed) and text.count('<a class="tile"') == 1 + is_informed
    assert text.index('id="calibration"') < text.index('id="planted"')
    if not is_informed:
        assert text.index('id="calibration"') < text.index('id="gate"') < text.index('id="planted"')


def test_a_gauge_holds_the_exact_level_the_model_and_every_baseline(rng: np.random.Generator) -> None:
    report = calibration(rng, is_informed=False)
    text = report.to_html()
    gauge = text.split('class="gauge"')[1].split("</section>")[0]
    assert f"this model {report.kl_bits.text()} bits" in gauge and "exact 0" in gauge and "uniform" in gauge
    assert gauge.count('class="whisker"') == gauge.count('class="model"') == 1


@pytest.mark.parametrize("seed", range(20))
def test_labels_of_a_gauge_never_touch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = {
        f"level {'x' * int(rng.integers(1, 20))} {at}": float(rng.choice([0.0, 0.99, 1.0, rng.random()]))
        for at in range(4)
    }
    marks = _placed("this model 0.0009", (float(rng.random()), 0.0, 1.0), levels)
    for width in (NARROWEST, 900.0):
        for at, one in enumerate(marks):
            for other in marks[:at]:
                ends = sorted((own.place / 100 * (width - LETTER * len(own.label)), own.label) for own in (one, other))
                (left, label), (right, _) = ends
                assert one.lane != other.lane or left + LETTER * len(label) <= right


def test_a_page_opens_with_the_tasks_own_words(rng: np.random.Generator) -> None:
    words = {"question": "Does {model} <b>count</b>?", "sentence": "Counts.", "is_cut": True}
    words |= {"example": ("one", "two"), "answers": {"three": (0.9, 0.7), "four": (0.1, 0.3), "five": (0.0, 0.0)}}
    reports = {"calibration": calibration(rng, is_informed=True), "b": planted(rng)}
    text = page_of("t", reports, {}, {**SOURCE, "task_in_words": words})
    read = Reader(text)
    assert "Does <u>tiny</u> <b>count</b>?" in read.text and "Counts." in read.text
    assert '<span class="token query">two</span>' in text and "five" not in read.text
    example = text.split('class="token query"')[1].split("</p>")[0]
    assert re.findall(r"<b>(\w+)|(0\.\d+)", example) == [
        ("three", ""),
        ("", "0.90"),
        ("", "0.70"),
        ("four", ""),
        ("", "0.10"),
        ("", "0.30"),
    ]


def test_sections_without_a_number_are_not_measured(rng: np.random.Generator) -> None:
    text = page_of("t", {"a": planted(rng), "nothing": replace(loud(rng), steps=0)}, {}, SOURCE)
    assert 'id="nothing"' not in text and "not identified" in text.split('id="not-measured"')[1].split("</details>")[0]
