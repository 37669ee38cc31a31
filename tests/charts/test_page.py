"""The report page: whole, escaped, and never fetching anything."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom.charts.lines import add_line
from bayesgeom.core.numbers import number_text
from bayesgeom.results.headline import Headline
from bayesgeom.results.page import Section, _without_title, page
from bayesgeom.results.theme import panels
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
        n_leading=2,
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
    assert set(links) == {"#first_probe", "#second_probe"}, "the summary leads to the sections"
    assert document.count('class="plotly-graph-div"') == 2 and document.count("Plotly.newPlot(") >= 2
    assert text.count("17 sequences.") == 2


def test_every_headline_stands_beside_its_baselines_and_its_verdict(document: str) -> None:
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
    assert counts == {"first": 2, "second": 2, "third": 1}, "two lead the page, all are in their section"
    assert read.row("third of second_probe")[1] == "–"


def test_each_baseline_has_a_line_and_each_verdict_its_color(document: str) -> None:
    assert document.count("<div>2 (flat)</div><div>&lt;random&gt; 0.01</div>") == 4, "twice of either section"
    assert document.count('<td class="beats undecided">undecided</td>') == 4
    assert Reader(document).text.count("beats all") == 3, "in the summary and in either section"
    assert "td.undecided {" in document and "td.yes {" in document and "td.no {" in document


def test_a_withheld_interval_is_a_dash_that_says_why() -> None:
    line = Headline(metric="x", label="x", value=0.5, no_interval='"one" sequence')
    text = page("t", [replace(section("one", "One"), headlines=(line,))], n_leading=1, skipped={}, provenance={})
    assert text.count('title="&#34;one&#34; sequence">–</td>') == 2


def test_verdicts_stand_first_and_lead_to_their_section(document: str) -> None:
    told = replace(section("one", "One: is it?"), verdict="It is <so>.")
    whole = page("t", [told, section("two", "Two")], n_leading=1, skipped={}, provenance={})
    assert whole.count('<p><a href="#one">One</a>: <b>It is &lt;so&gt;.</b></p>') == 1
    assert whole.index("It is &lt;so&gt;.") < whole.index("<table>") and whole.count("It is &lt;so&gt;.") == 2
    assert 'class="verdicts"' not in document


@pytest.mark.parametrize(("n", "counts", "said"), [(1, "sequence", "1 sequence."), (2_000, "seed", "2,000 seeds.")])
def test_a_section_says_what_it_counted(n: int, counts: str, said: str) -> None:
    whole = replace(section("one", "One"), n=n, counts=counts)
    assert f">{said}</p>" in page("", [whole], n_leading=1, skipped={}, provenance={})


def test_what_was_skipped_is_escaped(document: str) -> None:
    text = "".join(Reader(document).text)
    assert "third_probe: reads site 'state' & <script>alert(1)</script>" in text and "fourth: no time" in text
    assert document.count("<script>alert(1)") == 0, "neither from a reason nor from a trace's name"


def test_without_skipped_probes_there_is_no_such_heading() -> None:
    whole = page("t", [section("one", "One")], n_leading=1, skipped={}, provenance={})
    assert "Not measured" not in whole and "Not measured" in page(
        "t", [], n_leading=1, skipped={"a": "b"}, provenance={}
    )


def test_provenance_can_be_read_back(document: str) -> None:
    read = Reader(document)
    (held,) = [part for part in read.text if part.startswith("{")]
    assert json.loads(held) == {"model": {"name": "<u>tiny</u>"}, "seed": 3}


def test_page_and_terminal_print_the_same_numbers(rng: np.random.Generator) -> None:
    report = replace(planted(rng), n_lines=3)
    read, printed = Reader(report.to_html()), str(report).splitlines()
    for line in report.headlines()[:2]:
        assert read.row(line.label)[1] == line.value_text
        assert number_text(line.value) in next(row for row in printed if row.startswith(line.label))
    assert read.row("how deep")[2:] == ["0.25 … 0.5", "0.2 (random, 0.1 to 0.21)", "uniform 0.125", "yes"]
    assert {report.title, report.about, "19 sequences."} <= set(read.text)


class UndrawnReport(PlantedReport):
    """A plug-in's, whose figure is in another look, or cannot be drawn."""

    def plot(self) -> go.Figure:
        if self.is_deep:
            raise RuntimeError("no ink")
        return go.Figure(go.Scatter(y=[2, 3]), layout={"title": {"text": "its own look"}})


def test_a_plug_ins_figure_costs_no_page(rng: np.random.Generator) -> None:
    undrawn = UndrawnReport(**vars(planted(rng)))
    assert "figure cannot be drawn: RuntimeError: no ink" in undrawn.to_html()
    assert "its own look" in replace(undrawn, is_deep=False).to_html()


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("First: is it?", ""),
        ("First: is it? — not identified", "not identified"),
        ("Other", "Other"),
        ("First: is it?<br><sub>a note</sub>", "<sub>a note</sub>"),
    ],
)
def test_a_figure_does_not_say_its_heading_again(title: str, shown: str) -> None:
    figure = panels(title, ("a",), n_columns=1)
    add_line(figure, (1, 1), [2, 3], np.array([0.5, 0.25]), name="measured")
    whole = Section(name="first", title="First: is it?", about="", headlines=(), figure=figure, n=17)
    drawn = _without_title(whole)
    assert drawn.layout.title.text == shown and figure.layout.title.text == title
    saved = figure.layout.margin.t - drawn.layout.margin.t
    assert (saved > 0) == (shown == "")
    panel = drawn.layout.height - drawn.layout.margin.t - drawn.layout.margin.b
    assert panel == figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
