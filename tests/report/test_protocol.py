"""What every result offers, report and diagnosis alike: text, a notebook cell, tables, datasets, pages and files."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from IPython.core.interactiveshell import InteractiveShell

from bayesgeom.core.errors import InvalidArgument, OutputFault, UnknownName
from bayesgeom.core.text import WIDTH
from bayesgeom.core.verdict import Reason
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.report import diagnosis as module
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.report.render import BRIEF, NOTES, ROWS, interval_cell, summary
from bayesgeom.report.report import with_provenance
from bayesgeom.report.tables import Headline, Level
from examples.replication import reports as _of_the_study  # noqa: F401  # its classes: committed reports load
from tests.pages import READINGS
from tests.report.planted import SOURCE, PlantedReport, assert_equal, planted
from tests.reports import as_in_another_process

LONG = ", of a label that\nnever ends" * 9


@pytest.fixture
def report(rng: np.random.Generator) -> PlantedReport:
    """A planted report that knows where it comes from."""
    return with_provenance(planted(rng), SOURCE)


@pytest.fixture
def diagnosis(report: PlantedReport) -> Diagnosis:
    """Two of them; a probe was skipped, and one does not apply."""
    reports = {"planted": report, "other": replace(report, tail=" (other)")}
    return Diagnosis(reports=reports, skipped={"em": "no <b>"}, provenance=SOURCE, inapplicable={"groups": "no texts"})


@pytest.fixture
def with_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted kind is among those that can be loaded."""
    monkeypatch.setattr(module, "report_kinds", lambda: {"planted": PlantedReport, "other": PlantedReport})


def strict(found: dict[str, Any]) -> Any:
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.parametrize("n_lines", [1, 15, 50])
def test_what_is_printed_fits_the_terminal(n_lines: int, report: PlantedReport) -> None:
    long = replace(report, n_lines=n_lines, tail=LONG)
    many = Diagnosis(
        reports={f"{index}{LONG}": long for index in range(n_lines)},
        skipped=dict.fromkeys(map(str, range(n_lines)), LONG),
        provenance={**SOURCE, "task_label": LONG},
        inapplicable={LONG: LONG},
    )
    for text in (str(long), str(many)):
        assert max(map(len, text.splitlines())) <= WIDTH == 100 and len(text.splitlines()) < 6 * ROWS
    assert ("more: see to_pandas()" in str(long)) == (2 * n_lines > ROWS), "what is left out is counted"
    assert ("more notes: see skipped" in str(many)) == (n_lines + 1 > NOTES)
    brief, one = many.summary("report.html").splitlines(), replace(report, n_lines=50).summary("report.html")
    head = next(at for at, line in enumerate(brief) if line.startswith("measured"))
    assert max(map(len, brief)) <= WIDTH and sum("0.25 … 0.5" in line for line in brief[head:]) == min(n_lines, BRIEF)
    assert one.endswith(f"… and {2 * 50 - BRIEF} more: see report.html"), "a single report has its first lines"


def test_with_a_page_a_few_numbers_and_what_was_skipped_remain() -> None:
    first, missing = (Headline(metric=name, label="kl", value=value) for name, value in (("a", 1.0), ("b", math.nan)))
    blocks = {"": [("lens", missing), ("lens", first), ("a", first), ("b", first)], "gate": [("z", first)] * 9}
    lines = summary("title", [], blocks, ["skipped x: too large"], "report.html").splitlines()
    assert [line.split()[:3] for line in lines[3:6]] == [["a:", "kl", "1"], ["b:", "kl", "1"], ["lens:", "kl", "–"]]
    assert lines[6:] == ["", "gate", "", lines[2], lines[-3], "… and 9 more: see report.html", "skipped x: too large"]
    full = {"": [(str(at), first) for at in range(BRIEF)], "gate": [("z", first)]}
    assert "gate" not in summary("title", [], full, [], "report.html"), "no line above a table without rows"
    level = Level(name="a name of a baseline that is long", value=0.5)
    label = "a label that has more letters than most others"
    cut = summary("title", [], {"": [("", replace(first, label=label, levels=(level,)))]}, [], "report.html")
    assert label in cut and "0.5 a name of a ba…" in cut, "names of baselines are cut first"


def test_a_report_prints_its_answer_and_its_headlines(report: PlantedReport) -> None:
    lines = str(report).splitlines()
    answer = "How deep 0.3 bits beats every baseline; the strongest is ≤ 0.21 (random, mean 0.2)."
    assert lines[:3] == ["tiny on Bijection(n=11): Planted: is it?", answer, ""]
    assert lines[3].split()[:2] == ["measured", "value"]
    assert " ".join(lines[4].split()) == "how deep 0.3 bits 0.25 … 0.5 ≤ 0.21 random yes"
    assert lines[5].split() == ["missing", *"––––"] and len(lines) == 6, "a dash in every cell without an entry"


def test_a_diagnosis_prints_what_was_skipped(diagnosis: Diagnosis) -> None:
    lines = str(diagnosis).splitlines()
    assert lines[0] == "tiny on Bijection(n=11)" and [line for line in lines if line in ("planted", "other")] == [
        "planted",
        "other",
    ]
    assert lines[-2:] == ["skipped em: no <b>", "not applicable to this task: groups"]


def test_names_in_code_are_short(report: PlantedReport, diagnosis: Diagnosis) -> None:
    assert repr(report) == "PlantedReport(how deep 0.3 bits, n=19)"
    assert repr(replace(report, n_lines=0)) == "PlantedReport(n=19)"
    assert repr(diagnosis) == "Diagnosis(tiny on Bijection(n=11): planted, other)"


def test_a_notebook_shows_table_and_figure(report: PlantedReport, diagnosis: Diagnosis) -> None:
    for found in (report, diagnosis):
        text = found._repr_html_()
        assert text.startswith("<pre>tiny on Bijection(n=11)") and text.count('class="plotly-graph-div"') == 1
        assert not re.search(r"<(script|link)[^>]*(src|href)=", text), "nothing is fetched"
    assert "no &lt;b&gt;" in diagnosis._repr_html_()


def test_ipython_displays_table_and_figure_without_a_network(
    report: PlantedReport, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure once loaded plotly from the network; with plotly in it, a saved notebook would grow by 5 MB."""
    shell, displayed = InteractiveShell.instance(), list[dict[str, Any]]()
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, **_: displayed.append(data))
    for found in (report, diagnosis):
        displayed.clear()
        assert shell.display_formatter.format(found) == ({}, {}), "it displays itself"
        table, figure = displayed
        assert table["text/plain"] == found.summary() and table["text/html"].startswith("<pre>tiny on Bijection(n=11)")
        drawn = figure.pop("application/vnd.plotly.v1+json")
        assert go.Figure(data=drawn["data"], layout=drawn["layout"]) == found.plot()
        assert list(figure) == ["text/plain"] and len(json.dumps(displayed)) < 20_000
    displayed.clear()
    shell.display_formatter.format(replace(diagnosis, reports={}))
    assert [list(own) for own in displayed] == [["text/html", "text/plain"]]


def test_a_diagnosis_without_reports_still_prints(diagnosis: Diagnosis) -> None:
    empty = replace(diagnosis, reports={})
    assert (
        empty._repr_html_().endswith("not applicable to this task: groups</pre>")
        and strict(empty.to_dict())["reports"] == {}
    )
    with pytest.raises(InvalidArgument, match="has no report to draw"):
        empty.plot()


def test_a_report_made_by_hand_needs_no_provenance(rng: np.random.Generator, tmp_path: Path) -> None:
    own = Diagnosis.of(planted(rng))
    assert repr(own) == "Diagnosis(Planted: is it?: planted)" and str(planted(rng)).startswith("Planted: is it?\n")
    assert planted(rng).provenance == {} and "<h1>Is it?</h1>" in own.to_html()


def test_a_report_as_a_dictionary_is_strict_json(report: PlantedReport) -> None:
    found = strict(report.to_dict())
    assert (found["report"], found["n"], found["provenance"]) == ("planted", 19, SOURCE)
    assert (found["depth"]["value"], found["depth"]["low"], found["missing"]["value"]) == (0.1 + 0.2, 0.25, None)
    assert [own["name"] for own in found["depth"]["baselines"]] == ["uniform", "random"]
    assert found["arrays"]["overlap.value"][1][2] is None and found["arrays"]["count"] == [2, 3, 5, 7, 11]
    assert found["arrays"]["overlap.0.value"] == [[0.5] * 3, [0.25] * 3], "of the first baseline"
    assert found["levels"] == {"uniform": 1.5, "none": None, "all": None}


def test_a_diagnosis_as_a_dictionary_holds_every_report(diagnosis: Diagnosis) -> None:
    found = strict(diagnosis.to_dict())
    assert found["reports"].keys() == {"planted", "other"} and found["provenance"] == SOURCE
    assert found["skipped"] == {"em": "no <b>", "groups": "no texts"}


def test_a_dataset_has_named_axes_units_ends_and_baselines(report: PlantedReport) -> None:
    found = report.to_xarray()
    assert found["overlap"].dims == found["overlap_low"].dims == found["overlap_high"].dims == ("layer", "head")
    np.testing.assert_array_equal(found["overlap_low"], report.overlap.value - 1)
    assert found["overlap_low"].attrs["resampled"] == "sequences" and "by_set_low" not in found
    level = found["overlap_baseline"]
    assert level.dims == ("overlap_baselines", "layer", "head") and level.attrs["kinds"] == "baseline, chance"
    np.testing.assert_array_equal(level.sel(overlap_baselines="flat"), [[0.5] * 3, [0.25] * 3])
    assert found["depth"].attrs == {"units": "bits", "long_name": "how deep", "better": "higher", "n": 23}
    assert found["by_item"].attrs["units"] == "1" and found["by_item"].attrs["long_name"] == "by_item"
    by_set = found["by_set"].sel(set="hypotheses")
    np.testing.assert_array_equal(by_set, report.by_set.value[1])
    assert found["count"].dims == ("position",) and found["position"].dtype.kind == "i"
    assert (found["count"].attrs, found["cloud"].attrs) == ({"units": "tokens"}, {"units": ""}), "stated, and not"
    assert "".join(found["coordinate"].values) == "abcdefghijklm", "named by the class"
    for axis in ("layer", "kv_head", "position", "item"):
        assert found[axis].values.tolist() == list(range(found.sizes[axis])), "indices of the arrays"
    assert (found.attrs["report"], found.attrs["n"], found.attrs["share"]) == ("planted", 19, 0.75)


def test_every_array_of_a_committed_report_has_a_unit_and_every_axis_coordinates() -> None:
    """Six scores had no names, and shares, steps and thresholds no unit."""
    seen = set[str]()
    for path in sorted(READINGS.rglob("report.json")):
        kinds = set(json.loads(path.read_text(encoding="utf-8"))["reports"])
        for name, own in () if kinds <= seen else Diagnosis.load(path.parent).items():
            seen.add(name)
            assert_labeled(own.to_xarray())
    assert {"calibration", "length"} <= seen


def assert_labeled(data: xr.Dataset) -> None:
    """Check that no axis lacks coordinates, and that a unit in a variable's name is its unit."""
    assert set(map(str, data.dims)) <= set(map(str, data.coords))
    for name, variable in data.data_vars.items():
        units, words = variable.attrs["units"], str(name).split("_")
        assert units, f"{data.attrs['report']}.{name}"
        assert all(unit not in words or units == unit for unit in ("bits", "nats")), f"{name}: {units}"


def test_a_diagnosis_is_a_tree_of_datasets(diagnosis: Diagnosis) -> None:
    tree = diagnosis.to_xarray()
    assert set(tree.children) == {"planted", "other"}
    assert tree["planted"].to_dataset().identical(diagnosis["planted"].to_xarray())


def test_a_table_names_model_and_task_where_they_are_known(report: PlantedReport, rng: np.random.Generator) -> None:
    front = ["model", "checkpoint", "task"]
    known, unknown = report.to_pandas(), planted(rng).to_pandas()
    assert list(known.columns[:3]) == list(unknown.columns[:3]) == front and len(known) == len(unknown)
    assert set(map(tuple, known[front].to_numpy())) == {("transformer", "tiny", "Bijection(n=11)")}
    assert unknown[front].isna().all(axis=None)
    assert {str(known[column].dtype) for column in ("layer", "head", "position")} == {"Int64"}


def test_provenance_is_added_to_a_copy(rng: np.random.Generator) -> None:
    own = planted(rng)
    found = with_provenance(own, SOURCE)
    assert own.provenance == {} and found.provenance == SOURCE and found is not own
    assert_equal(found, own)


@pytest.mark.usefixtures("with_planted")
def test_a_diagnosis_of_one_is_no_report_and_a_report_alone_is_a_diagnosis_of_one(
    report: PlantedReport, tmp_path: Path
) -> None:
    Diagnosis.of(report).save(tmp_path / "one")
    report.save(tmp_path / "alone")
    assert isinstance(load_report(tmp_path / "one"), Diagnosis)
    found = Diagnosis.load(tmp_path / "alone")
    assert found.provenance == SOURCE and list(found) == ["planted"]


@pytest.mark.usefixtures("with_planted")
def test_a_report_made_by_hand_is_loaded_as_it_is(rng: np.random.Generator, tmp_path: Path) -> None:
    planted(rng).save(tmp_path / "alone")
    found = load_report(tmp_path / "alone")
    assert isinstance(found, PlantedReport) and found.provenance == {}
    assert Diagnosis.load(tmp_path / "alone").provenance == {}


def test_a_report_is_looked_up_by_its_class(report: PlantedReport, diagnosis: Diagnosis) -> None:
    assert diagnosis[PlantedReport] is diagnosis["planted"] and diagnosis[PlantedReport].depth.n == 23
    with pytest.raises(UnknownName, match="no report in this diagnosis named 'calibration'"):
        diagnosis[CalibrationReport]
    with pytest.raises(InvalidArgument, match="report 'calibration' is a PlantedReport, not a CalibrationReport"):
        _ = replace(diagnosis, reports={"calibration": report})[CalibrationReport]


def test_a_report_that_this_process_defines_is_loaded_without_an_entry_point(
    report: PlantedReport, tmp_path: Path
) -> None:
    report.save(tmp_path / "alone")
    assert_equal(load_report(tmp_path / "alone"), report)
    Diagnosis(reports={"planted": report}, skipped={}, provenance=SOURCE).save(tmp_path / "run")
    assert_equal(Diagnosis.load(tmp_path / "run")[PlantedReport], report)


def test_a_kind_that_is_not_known_is_refused(
    report: PlantedReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.save(tmp_path / "run")
    as_in_another_process(monkeypatch)
    with pytest.raises(OutputFault, match=r"unknown kinds: planted\. Install the package that made them, import the"):
        load_report(tmp_path / "run")
    with pytest.raises(OutputFault, match=r"nowhere holds no readable report"):
        load_report(str(tmp_path / "nowhere"))


def test_each_row_has_its_verdict_interval_and_baseline() -> None:
    judged = Headline(metric="a", label="KL", value=0.5, verdict="undecided", reason=Reason.HEAVY_TAIL)
    level = Level(name="random subspaces", value=1.0, bound="≤ ", mean=0.9)
    ruled = Headline(metric="b", label="share", value=0.25, low=0.0, high=0.5, levels=(level,), verdict="causal")
    plain = Headline(metric="c", label="tokens", value=3.0)
    table = summary("title", ["so"], {"": [("", judged), ("", ruled), ("", plain)]}, (), "").splitlines()
    assert table[:2] == ["title", "so"]
    assert [" ".join(row.split()) for row in table[4:]] == [
        "KL 0.5 – (heavy tail) – undecided",
        "share 0.25 0 … 0.5 ≤ 1 random subspaces causal",
        "tokens 3 – – –",
    ]
    assert interval_cell(replace(ruled, reason=Reason.CONSERVATIVE)) == "≥ 0 … 0.5"
