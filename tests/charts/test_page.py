"""The report page: findings first, light, escaped, and never fetching anything."""

import base64
import gzip
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom import load_report
from bayesgeom.charts.film import film_figure
from bayesgeom.charts.lines import add_line
from bayesgeom.core.text import number_text
from bayesgeom.core.verdict import Reason
from bayesgeom.report.render import asset
from bayesgeom.report.storage import values_of
from bayesgeom.report.tables import Headline
from bayesgeom.report.theme import label_axes
from tests.pages import READINGS
from tests.results.planted import PlantedReport, planted

VOID = {"meta", "br", "hr", "img", "link", "input"}
FETCHING = {"src", "srcset", "data", "poster", "action", "background", "cite", "formaction"}


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
            self.text.append(data)

    def row(self, label: str) -> list[str]:
        """The cells from one label on: value, interval, the baselines one by one, the verdict."""
        start = self.text.index(label)
        return self.text[start : start + 6]


def section(name: str, title: str, value: float = 0.25) -> Section:
    figure = panels(f"Figure of {title}", ("a",), n_columns=1)
    add_line(figure, (1, 1), [2, 3, 5], np.array([0.5, np.nan, 0.25]), name="measured </script><script>alert(1)")
    headlines = (
        Headline(
            metric="x",
            label=f"first of {name}",
            value=value,
            unit="bits",
            low=0.125,
            high=0.5,
            baseline=2.0,
            baseline_name="flat; <random> 0.01",
            verdict="undecided",
        ),
        Headline(metric="y", label=f"second of {name}", value=7.0),
        Headline(metric="z", label=f"third of {name}", value=float("nan")),
    )
    return Section(name=name, title=title, about="What <it> is & means.", headlines=headlines, figure=figure, n=17)


@pytest.fixture(scope="module")
def document() -> str:
    """Two planted sections, two skipped probes, and names that are out for trouble."""
    return page(
        "tiny <i>model</i> on a & b",
        [section("first_probe", "First: is it <so>?"), section("second_probe", "Second: is it?", 0.75)],
        skipped={"third_probe": "reads site 'state' & <script>alert(1)</script>", "fourth": "no time"},
        provenance={"model": {"name": "<u>tiny</u>"}, "seed": 3},
    )


def test_nothing_is_fetched(document: str) -> None:
    tags = Reader(document).tags
    for tag, attributes in tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img"}, tag
        assert not FETCHING & attributes.keys(), (tag, attributes)
        assert attributes.get("href", "#").startswith("#"), attributes
    styles = document[: document.index("</style>")]
    assert "@import" not in styles and "url(" not in styles
    assert [tag for tag, _ in tags].count("meta") >= 1 and "http-equiv" not in styles


def test_it_says_its_encoding_first(document: str) -> None:
    assert document.startswith("<!doctype html>") and document.index('<meta charset="utf-8">') < 200
    document.encode("utf-8")


def test_every_section_is_there_with_title_text_and_figure(document: str) -> None:
    read = Reader(document)
    text = "\n".join(read.text)
    for title in ("tiny <i>model</i> on a & b", "First: is it <so>?", "Second: is it?", "What <it> is & means."):
        assert title in text
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) and {"first_probe", "second_probe"} <= set(ids)
    links = [attributes["href"] for tag, attributes in read.tags if tag == "a"]
    assert {"#findings", "#first_probe", "#second_probe", "#not-measured", "#provenance"} == set(links)
    assert {link.removeprefix("#") for link in links if link} <= set(ids), "every link leads somewhere"
    assert set(figures_of(document)) == {"figure-first_probe-1", "figure-second_probe-1"}
    assert text.count("17 sequences.") == 2


def test_every_headline_is_shown_with_its_baselines_and_verdict(document: str) -> None:
    read = Reader(document)
    assert read.row("first of first_probe") == [
        "first of first_probe",
        "0.25 bits",
        "0.125 … 0.5",
        "2 (flat)",
        "<random> 0.01",
        "undecided",
    ]
    counts = {which: read.text.count(f"{which} of first_probe") for which in ("first", "second", "third")}
    assert counts == {"first": 1, "second": 1, "third": 1}, "the table of a section holds them all"
    assert read.row("third of second_probe")[1] == "–"


def test_each_baseline_has_a_line_and_each_verdict_its_color(document: str) -> None:
    assert document.count("<div>2 (flat)</div><div>&lt;random&gt; 0.01</div>") == 2
    assert document.count('data-label="beats all"><span class="chip open">undecided</span></td>') == 2
    assert Reader(document).text.count("beats all") == 2


def test_a_withheld_interval_is_a_dash_that_says_why() -> None:
    line = Headline(metric="x", label="x", value=0.5, reason=Reason.ONE_TRAINING)
    text = page("t", [replace(section("one", "One"), headlines=(line,))], skipped={}, provenance={})
    assert text.count('– <div class="why">one training</div></td>') == 1, "a title cannot be read on a phone"


def found_in(text: str) -> list[str]:
    """The findings that a page opens with."""
    inside = text.split('<ul class="findings"')[1].split("</ul>", maxsplit=1)[0]
    items = [
        " ".join(Reader(f"<p>{part.split('>', 1)[1].split('</li>')[0]}</p>").text) for part in inside.split("<li")[1:]
    ]
    return [re.sub(r"\s+", " ", item).strip() for item in items]


def test_the_page_opens_with_what_was_found() -> None:
    with_verdict = replace(section("one", "One: is it?"), verdict="It is <so>.")
    whole = page("t", [with_verdict, section("two", "Two")], skipped={}, provenance={})
    first, second, *rest = found_in(whole)
    assert first.startswith("One : It is <so>. First of one is 0.25 bits (95 % interval 0.125 … 0.5), not")
    assert second == (
        "undecided Two : First of two is 0.25 bits (95 % interval 0.125 … 0.5), "
        "not separated from the strongest baseline, 2 (flat)."
    )
    assert len(rest) == 1, "a number without a verdict is a finding only if there are fewer than three"
    assert whole.index("It is &lt;so&gt;.") < whole.index("<nav") < whole.index("<table")


def test_no_section_repeats_a_finding_of_the_opening_and_each_verdict_is_stated() -> None:
    sections = [replace(section(f"probe{i}", f"Probe {i}"), verdict=f"It is {i}.") for i in range(7)]
    many = page("t", sections, skipped={}, provenance={})
    assert [many.count(f"It is {i}.") for i in range(7)] == [1] * 7
    assert '<p class="finding">It is 6.</p>' in many.split('id="probe6"')[1], "an opening has six findings"


def test_a_page_has_three_to_six_findings() -> None:
    many = page("t", [section(f"probe{i}", f"Probe {i}") for i in range(7)], skipped={}, provenance={})
    assert len(found_in(many)) == 6 and len(set(found_in(many))) == 6


def test_a_page_opens_with_its_first_section_then_states_conclusions_and_what_is_decided() -> None:
    open_, error, kl, missing = (
        Headline(metric=name, label=name, value=value, verdict=verdict, baseline=2.0, baseline_name="flat")
        for name, value, verdict in (
            ("open", 1.5, "undecided"),
            ("error", 0.5, "yes"),
            ("KL", 0.25, "yes"),
            ("missing", math.nan, ""),
        )
    )
    ruled = replace(section("last", "Last"), headlines=(replace(open_, ruling="invariant"),), verdict="All the same.")
    rows = {"one": (open_,), "two": (error, kl), "three": (missing,)}
    sections = [*(replace(section(name, name), headlines=own) for name, own in rows.items()), ruled]
    found = found_in(page("t", sections, skipped={}, provenance={}))
    assert [text.split(" ")[0] for text in found] == ["undecided", "invariant", "beats"], "and none for what is missing"
    assert "Error is 0.5," in found[2] and "KL is 0.25," in found[2], "two numbers with one verdict are one finding"
    found = found_in(page("t", [sections[1], sections[0], sections[2], ruled], skipped={}, provenance={}))
    assert [text.split(" ")[0] for text in found] == ["beats", "invariant", "undecided"], "the first section leads"


def test_a_report_states_its_own_findings_and_verdicts() -> None:
    lines = (
        Headline(metric="x", label="shift", value=0.5, finding="Layer 2: it moves.", ruling="used"),
        Headline(metric="y", label="other", value=0.25, verdict="yes"),
    )
    text = page("t", [replace(section("one", "One"), headlines=lines)], skipped={}, provenance={})
    assert found_in(text) == ["used Layer 2: it moves.", "beats baselines Other is 0.25."], (
        "three, where there are three"
    )
    compared = replace(lines[0], low=0.25, high=1.0, baseline=2.0, baseline_name="flat", verdict="no")
    own = page("t", [replace(section("one", "One"), headlines=(compared,))], skipped={}, provenance={})
    assert found_in(own) == [
        "used Layer 2: it moves. Shift is 0.5 (95 % interval 0.25 … 1); the strongest baseline is 2 (flat)."
    ], "one verdict: the report's own"
    assert '<li class="good">' in text and '<th role="columnheader">verdict</th></tr>' in text


def test_a_verdict_without_a_number_is_a_finding_and_no_finding_is_empty() -> None:
    nothing = Headline(metric="x", label="stable step", value=math.nan, ruling="cannot say: one never settles")
    other = Headline(metric="y", label="steps", value=3.0)
    text = page("t", [replace(section("one", "One"), headlines=(nothing, other))], skipped={}, provenance={})
    assert found_in(text)[0] == "cannot say: one never settles Stable step has no value here."
    alone = replace(section("one", "One"), headlines=(replace(nothing, ruling=""),))
    assert found_in(page("t", [alone], skipped={}, provenance={})) == ["Stable step has no value here."]


def test_undecided_without_an_interval_says_so() -> None:
    line = Headline(metric="x", label="KL", value=0.25, baseline=2.0, baseline_name="flat", verdict="undecided")
    text = page("t", [replace(section("one", "One"), headlines=(line,))], skipped={}, provenance={})
    shown = "KL is 0.25; without an interval nothing is decided, and the strongest baseline is 2 (flat)."
    assert found_in(text) == [f"undecided {shown}"]
    known = numbers(replace(line, reason=Reason.FEW))
    assert known.startswith("KL is 0.25; without an interval (too few) nothing is decided,")


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        ("entropy error", "Entropy error is 0.25."),
        ("R² of the belief, last layer", "R² of the belief, last layer, is 0.25."),
        ("largest KL increase: L0 block (of 6)", "Largest KL increase, L0 block (of 6), is 0.25."),
        ("SGD 0.1: final loss", "Final loss (SGD 0.1) is 0.25."),
        ("off-answer probability", "Off-answer probability is 0.25."),
        ("held-out R² of the belief, last layer", "Held-out R² of the belief, last layer, is 0.25."),
        ("hmm-lstm, share closed", "hmm-lstm, share closed, is 0.25."),
        ("swap (belief, given position)", "Swap (belief, given position) is 0.25."),
    ],
)
def test_a_number_is_a_sentence_with_its_label_as_subject(label: str, sentence: str) -> None:
    """Pages opened with "KL increase on removal: 0.12 bits"."""
    assert numbers(Headline(metric="x", label=label, value=0.25)) == sentence
    assert numbers(Headline(metric="x", label="y", value=0.25, short_label=label)) == sentence


def test_findings_follow_their_place_and_the_table_does_not() -> None:
    lines = [
        Headline(metric="x", label=name, value=1.0, finding=f"It is {name}.", place=place, ruling=name)
        for name, place in (("undecided", 2), ("used", 0), ("not used", 1))
    ]
    text = page("t", [replace(section("one", "One"), headlines=lines)], skipped={}, provenance={})
    assert found_in(text) == ["used It is used.", "not used It is not used.", "undecided It is undecided."]
    rows = [text.index(f'<td role="cell">{line.label}</td>') for line in lines]
    assert rows == sorted(rows), "the table keeps the order of the lines"


def test_narrow_screens_stack_the_table_with_the_verdict_in_the_first_line(document: str) -> None:
    """At 400 pixels the verdict lay beyond the right edge, and nothing told that the table scrolls."""
    narrow = asset("page.css").decode().split("@media screen and (max-width: 700px)")[1].split("@media print")[0]
    assert "td { display: block; }" in narrow and "td.verdict { grid-area: 1 / 2;" in narrow
    assert 'content: "95 % interval: "' in narrow and "attr(data-label)" in narrow, "no header above"
    assert document.count('<td role="cell" class="verdict" data-label="beats all">') == 6


ROLES = {"table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "th": "columnheader", "td": "cell"}


def test_tables_of_a_saved_page_keep_their_roles_where_they_are_stacked(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Browsers drop the roles of table elements with another `display`, and of cells without one."""
    planted(rng).save(tmp_path / "run")
    tags = Reader((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).tags
    roles = [(tag, own.get("role")) for tag, own in tags if tag in ROLES]
    assert {tag for tag, _ in roles} == ROLES.keys() and all(ROLES[tag] == role for tag, role in roles)
    n_cells, n_headings = (sum(tag == name for tag, _ in roles) for name in ("td", "th"))
    assert n_cells % n_headings == 0, "each row has a cell under every heading"
    narrow = asset("page.css").decode().split("@media screen and (max-width: 700px)")[1].split("@media print")[0]
    assert "display: none" not in re.sub(r"td:empty::before {[^}]*}", "", narrow), "empty cells are counted"


def test_print_keeps_figures_whole_and_shows_rules_and_provenance() -> None:
    css, js = asset("page.css").decode(), asset("page.js").decode()
    printed = css.split("@media print")[1]
    most = int(re.findall(r"\.plot { max-height: (\d+)px", printed)[0])
    assert f"parseFloat(place.style.height), {most})" in js and most < 700, "drawn as high as its box, below an A4 page"
    assert "break-inside: avoid" in printed and "nav" not in printed.split("h2, h3")[0]
    assert 'querySelectorAll("details")' in js and "beforeprint" in js, "rules and provenance are opened"


def test_the_page_states_what_was_tested_before_the_findings() -> None:
    source = {"model": {"name": "tiny", "architecture": "lstm"}, "task_label": "HMM()"}
    text = page("t", [section("one", "One")], skipped={}, provenance=source)
    assert "Tested: tiny (lstm) on HMM(), 17 sequences." in text
    assert text.index("Tested: ") < text.index('class="findings"')


def test_a_snapshot_is_named_by_its_training() -> None:
    text = load_report(READINGS / "gradient-movement" / "hmm-s5").to_html()
    assert "Tested: hmm-s5 (transformer) on HMM(" in text and "Tested: step-" not in text


@pytest.mark.parametrize(("n", "counts", "text"), [(1, "sequence", "1 sequence."), (2_000, "seed", "2,000 seeds.")])
def test_a_section_says_what_it_counted(n: int, counts: str, text: str) -> None:
    whole = replace(section("one", "One"), n=n, counts=counts)
    assert f">{text}</p>" in page("", [whole], skipped={}, provenance={})


def test_what_was_skipped_is_escaped(document: str) -> None:
    text = "".join(Reader(document).text)
    assert "third_probe: reads site 'state' & <script>alert(1)</script>" in text and "fourth: no time" in text
    assert document.count("<script>alert(1)") == 0, "neither from a reason nor from a trace's name"


def test_without_skipped_probes_there_is_no_such_heading() -> None:
    whole = page("t", [section("one", "One")], skipped={}, provenance={})
    assert "Not measured" not in whole and "Not measured" in page("t", [], skipped={"a": "b"}, provenance={})


def test_provenance_can_be_read_back(document: str) -> None:
    read = Reader(document)
    (shown,) = [part for part in read.text if part.startswith("{")]
    assert json.loads(shown) == {"model": {"name": "<u>tiny</u>"}, "seed": 3}


def test_page_and_terminal_print_the_same_numbers(rng: np.random.Generator) -> None:
    report = replace(planted(rng), n_lines=3)
    read, printed = Reader(report.to_html()), str(report).splitlines()
    for line in report.headlines()[:2]:
        assert read.row(line.label)[1] == line.value_text
        assert number_text(line.value) in next(row for row in printed if row.startswith(line.label))
    assert read.row("how deep")[2:] == ["0.25 … 0.5", "≤ 0.21 (random, mean 0.2)", "0.125 (uniform)", "yes"]
    assert {report.title, report.about, "19 sequences."} <= set(read.text)


def test_the_rule_of_verdicts_is_folded() -> None:
    own = section("one", "One")
    whole = page("t", [replace(own, rule="Used: <1> & above.")], skipped={}, provenance={})
    assert "<summary>How the verdict is reached</summary><p>Used: &lt;1&gt; &amp; above.</p></details>" in whole
    assert "How the verdict" not in page("t", [own], skipped={}, provenance={})


class UndrawnReport(PlantedReport):
    """A plug-in's, whose figure is in another look, or cannot be drawn."""

    def plot(self) -> go.Figure:
        if self.is_deep:
            raise RuntimeError("no ink")
        return go.Figure(go.Scatter(y=[2, 3]), layout={"title": {"text": "its own look"}})


def test_a_plug_ins_figure_costs_no_page(rng: np.random.Generator) -> None:
    undrawn = UndrawnReport(**values_of(planted(rng)))
    assert "figure cannot be drawn: RuntimeError: no ink" in undrawn.to_html()
    assert "its own look" in replace(undrawn, is_deep=False).to_html()


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("First: is it?", ""),
        ("First: is it? — not identified", "not identified"),
        ("Other", "Other"),
        ("First: is it?<br><sub>a note</sub>", "a note"),
    ],
)
def test_a_figure_does_not_say_its_heading_again(title: str, shown: str) -> None:
    figure = panels(title, ("a",), n_columns=1)
    add_line(figure, (1, 1), [2, 3], np.array([0.5, 0.25]), name="measured")
    text = page("t", [replace(section("first", "First: is it?"), figure=figure)], skipped={}, provenance={})
    under = text.split('role="group" aria-label="First: is it?">')[1].split('<div id="figure-first"')[0].strip()
    assert under == (f'<p class="note">{shown}</p>' if shown else "")


def figures_of(document: str) -> dict[str, Any]:
    """What plotly.js is given to draw, by the place on the page."""
    packed = document.split('id="figures">')[1].split("</script>", maxsplit=1)[0]
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


def test_each_panel_is_a_plot_with_title_legend_and_text_for_the_blind() -> None:
    figure = panels("Whole", ("left", "right", "not drawn"))
    add_line(figure, (1, 1), [2, 3, 5], np.array([0.123456789, np.nan, 7.0]), name="model")
    add_line(figure, (1, 2), [2, 3], np.array([1.0, 2.0]), name="model")
    figure.data[-1].showlegend = False
    figure.add_trace(go.Scatter(x=[0], y=[0], mode="text", text=["too few<br>sequences"]), row=2, col=1)
    label_axes(figure, (1, 1), "layer", "KL (bits)")
    text = page("t", [replace(section("one", "One"), figure=figure)], skipped={}, provenance={})
    drawn = figures_of(text)
    assert list(drawn) == ["figure-one-1", "figure-one-2"]
    assert drawn["figure-one-1"]["data"][0]["y"] == [0.12346, None, 7]
    assert {"xaxis", "yaxis"} <= drawn["figure-one-2"]["layout"].keys() and "xaxis2" not in drawn["figure-one-2"][
        "layout"
    ]
    assert "xaxis" not in drawn["figure-one-2"]["data"][0], "the only axes that there are"
    assert 'role="img" aria-label="left. KL (bits) against layer. Shown: model"' in text
    assert text.count('<ul class="legend">') == 2 and "<h3>right</h3>" in text
    assert "Not drawn: not drawn (too few sequences)." in text


def test_a_film_stays_whole(rng: np.random.Generator) -> None:
    film = film_figure("Film", ("0", "9"), rng.random((2, 5, 2)), rng.random(5), colored_by="bits", axes=("x", "y"))
    drawn = figures_of(page("t", [replace(section("one", "One"), figure=film)], skipped={}, provenance={}))
    (own,) = drawn.values()
    assert [frame["name"] for frame in own["frames"]] == ["0", "9"] and own["layout"]["sliders"]


def test_a_page_weighs_at_most_a_megabyte_and_a_half(document: str) -> None:
    assert len(document.encode()) < 1.5e6
    heavy = go.Figure(go.Scatter3d(x=[1], y=[2], z=[3]))
    whole = page("t", [replace(section("one", "One"), figure=heavy)], skipped={}, provenance={})
    assert len(whole.encode()) > len(document.encode()), "a plug-in's figure in space needs all of plotly.js"


@pytest.mark.parametrize("reading", ["dynamics-bijection", "em-experiment", "claims/belief-readout-mess3-small"])
def test_pages_of_committed_readings_are_light_and_fetch_nothing(reading: str) -> None:
    text = load_report(READINGS / reading).to_html()
    assert len(text.encode()) < 1.0e6
    for tag, attributes in Reader(text).tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img"} and not FETCHING & attributes.keys(), tag
    assert "http" not in json.dumps(figures_of(text))


def test_small_screens_have_one_column_and_paper_no_cuts() -> None:
    css = asset("page.css").decode()
    narrow, paper = css.split("@media (max-width: 700px)")[1], css.split("@media print")[1]
    assert ".panels { grid-template-columns: minmax(0, 1fr); }" in narrow
    assert "break-inside: avoid" in paper and ".scroll { overflow-x: auto;" in css
    assert css.count("prefers-color-scheme: dark") == 1


def test_the_bundled_library_is_whole() -> None:
    text = gzip.decompress(asset("plotly-cartesian.min.js.gz")).decode()
    assert text.startswith("/**\n* plotly.js (cartesian - minified) v4.1.1") and "</script" not in text
    assert "Permission is hereby granted" in asset("plotly-cartesian.LICENSE").decode()
