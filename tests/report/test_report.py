"""Reports: axes from annotations, tidy rows from fields, and files that give back equal values."""

import dataclasses
import json
import math
import shutil
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.core.files import decoded_json
from bayesgeom.core.verdict import Reason
from bayesgeom.report.diagnosis import report_kinds
from bayesgeom.report.estimate import Baseline, Better, Estimate, Quantity, codes_of, of_untrained
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.storage import (
    SCHEMA,
    axes_of,
    completed,
    estimate_of,
    estimate_parts,
    quantities_of,
    units_of,
)
from bayesgeom.report.tables import Headline, Level, Record, _of_estimate, headline_of, records_of
from tests.report.planted import SOURCE, PlantedReport, assert_equal, planted
from tests.reports import write_resealed

every_report = pytest.mark.parametrize("name", sorted(report_kinds()))
FILES = {"report.json", "arrays.safetensors", "metrics.parquet", "report.html"}


def rows_of(report: Report, metric: str) -> list[Record]:
    return [row for row in records_of(report) if row.metric == metric]


def test_annotations_state_the_axes_and_the_quantities() -> None:
    assert axes_of(PlantedReport) == {
        "overlap": ("layer", "head"),
        "by_set": ("set", "kv_head", "position"),
        "by_item": ("item",),
        "whole": (),
        "count": ("position",),
        "is_seen": ("item",),
        "cloud": ("item", "coordinate"),
    }
    found = quantities_of(PlantedReport)
    assert list(found) == ["depth", "missing", "overlap", "by_set", "by_item"]
    assert found["depth"] == Quantity(unit="bits", better="higher", label="how deep")


DISAGREEING: dict[str, tuple[dict[str, Any], str]] = {
    "estimate and array": ({"count": np.zeros(7, dtype=int)}, "'count' has 7 entries along 'position', others have 5"),
    "two arrays": ({"is_seen": np.zeros(5, dtype=bool)}, "'is_seen' has 5 entries along 'item', others have 7"),
    "names": ({"sets": ("one",)}, "'set' has 2 entries, and 'sets' describes 1"),
    "an axis less": ({"overlap": Estimate.of(np.zeros(2))}, r"'overlap' has shape \(2,\), its axes are \(layer head\)"),
    "no scalar": ({"depth": Estimate.of(np.zeros(2))}, r"'depth' has shape \(2,\), its axes are \(\)"),
}


@pytest.mark.parametrize("case", DISAGREEING)
def test_axes_that_disagree_are_refused_when_a_report_is_made(case: str, rng: np.random.Generator) -> None:
    change, message = DISAGREEING[case]
    with pytest.raises(ValueError, match=f"^PlantedReport: {message}"):
        replace(planted(rng), **change)


def test_scalars_are_rows_with_their_interval_and_hardest_baseline(rng: np.random.Generator) -> None:
    (depth,), (missing,), (share,) = (rows_of(planted(rng), metric) for metric in ("depth", "missing", "share"))
    assert depth == Record(
        probe="planted",
        metric="depth",
        unit="bits",
        value=0.1 + 0.2,
        low=0.25,
        high=0.5,
        baseline=0.2,
        baseline_low=0.1,
        baseline_high=0.21,
        baseline_name="random",
        baseline_kind="chance",
        role="estimate",
        n=23,
    )
    assert all(map(math.isnan, (missing.value, missing.low, missing.high, missing.baseline))) and missing.n == 19
    assert (share.value, share.unit, share.baseline_name, share.n) == (0.75, "", "", 19)


def test_entries_are_rows_with_their_own_baseline(rng: np.random.Generator) -> None:
    own = planted(rng).overlap
    rows = rows_of(planted(np.random.default_rng(0)), "overlap")
    assert [(row.places["layer"], row.places["head"]) for row in rows] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    for row in rows[:-1]:
        value = own.value[row.places["layer"], row.places["head"]]
        assert (row.value, row.low, row.high) == (value, value - 1, value + 1)
        assert (row.baseline, row.baseline_name) == (value - 2, "random"), "its range reaches furthest"
        assert (row.place("position"), row.n) == (None, 19)
    assert math.isnan(rows[-1].value)
    assert (rows[-1].baseline, rows[-1].baseline_name) == (0.25, "flat"), "the other one is not known here"


@pytest.mark.parametrize("better", ["higher", "lower", ""])
def test_rows_hold_the_strongest_baseline_of_their_entry(better: Better, rng: np.random.Generator) -> None:
    """The whole table at once, against one entry after another."""

    def some(share: float) -> np.ndarray:
        return np.where(rng.random((2, 3, 5)) < share, rng.normal(size=(2, 3, 5)).round(), np.nan)

    levels = [Baseline.of("chance", f"level {i}", some(0.6), low=some(0.6), high=some(0.6)) for i in range(3)]
    value = Estimate.of(
        some(0.8), (some(0.8), some(0.8)), baselines=[Baseline.of("baseline", "flat", some(0.6)), *levels]
    )
    rows = _of_estimate(
        replace(planted(rng), by_set=value),
        "by_set",
        Quantity("set kv_head position", better=better),
        {},
        baselines=False,
    )
    seen = set[str]()
    for index, row in zip(np.ndindex(2, 3, 5), rows, strict=True):
        own, hardest = value[index], value[index].hardest_baseline(better)
        ends = (np.nan,) * 3 if hardest is None else (hardest.value, hardest.low, hardest.high)
        expected = [own.value, *own.ends, *(np.nan if end is None else end for end in ends)]
        found = [row.value, row.low, row.high, row.baseline, row.baseline_low, row.baseline_high]
        np.testing.assert_array_equal(np.array(found), np.array(expected, dtype=float))
        assert (row.baseline_name, row.baseline_kind) == (("", "") if hardest is None else (hardest.name, hardest.kind))
        seen.add(row.baseline_name)
    assert len(seen) == 5, "each of the levels, and none, is met"


def test_every_baseline_has_a_row_on_request(rng: np.random.Generator) -> None:
    report = planted(rng)
    rows = records_of(report, baselines=True)
    estimates = [dataclasses.astuple(row) for row in rows if row.role == "estimate"]
    alone = [dataclasses.astuple(row) for row in records_of(report)]
    np.testing.assert_equal(estimates, alone)  # NaN equals NaN
    named = [(row.role, row.baseline_name, row.value) for row in rows if row.metric == "depth"]
    assert named == [("estimate", "random", 0.1 + 0.2), ("baseline", "uniform", 0.125), ("chance", "random", 0.2)]
    (least, most) = next((row.low, row.high) for row in rows if row.metric == "depth" and row.role == "chance")
    assert (least, most) == (0.1, 0.21)
    table = report.to_pandas(baselines=True)
    counts = table[table["metric"] == "overlap"].groupby("role").size().to_dict()
    assert counts == {"estimate": 6, "baseline": 6, "chance": 6} and len(report.to_pandas()) == len(records_of(report))


@every_report
def test_a_report_holds_no_dictionary_and_no_dataclass(name: str) -> None:
    """Variants are an axis with labels, and what other fields determine is a property; nothing is a dictionary."""
    own = [field for field in dataclasses.fields(report_kinds()[name]) if field.name != "provenance"]
    nested = [field.name for field in own if dataclasses.is_dataclass(field.type)]
    tables = [field.name for field in own if typing.get_origin(field.type) in (dict, Mapping)]
    assert not nested and not tables, "no number is held in a dictionary or in a dataclass of its own"


@every_report
def test_every_array_of_a_report_states_its_unit(name: str) -> None:
    assert "" not in (units := units_of(report_kinds()[name])).values(), units


def test_what_has_no_place_in_the_table_is_left_out(rng: np.random.Generator) -> None:
    metrics = {row.metric for row in records_of(planted(rng))}
    assert metrics == {"depth", "missing", "overlap", "by_set", "share", "count", "whole"}, "no text or unnamed axes"
    counts = [(row.place("position"), row.value) for row in rows_of(planted(rng), "count")]
    assert counts == [(0, 2.0), (1, 3.0), (2, 5.0), (3, 7.0), (4, 11.0)]


def test_a_headline_is_an_entry_with_its_baselines(rng: np.random.Generator) -> None:
    first, second = planted(rng).headlines()
    assert first == Headline(
        metric="depth",
        label="how deep",
        value=0.1 + 0.2,
        unit="bits",
        low=0.25,
        high=0.5,
        levels=(Level(name="random", value=0.21, bound="≤ ", mean=0.2), Level(name="uniform", value=0.125)),
        verdict="yes",
    )
    assert str(first) == ("how deep 0.3 bits [0.25 … 0.5]; ≤ 0.21 (random, mean 0.2); 0.125 (uniform); verdict: yes")
    assert str(second) == "missing –" and second.verdict == "" and math.isnan(second.baseline)


def test_names_of_baselines_are_printed_in_words(rng: np.random.Generator) -> None:
    """Tasks name predictors as identifiers; a symbol such as W_K keeps its underscore."""
    names = ("window_1_uniform", "bag_of_values", "random W_K")
    levels = [Baseline.of("baseline", name, -float(own)) for own, name in enumerate(names)]
    line = headline_of(replace(planted(rng), depth=Estimate.of(0.5, baselines=levels)), "depth")
    assert line.baselines == ["0 (window 1 uniform)", "−1 (bag of values)", "−2 (random W_K)"]


@pytest.mark.parametrize(
    ("ends", "untrained", "uniform", "verdict"),
    [
        ((0.5, 0.7), [0.3], 0.2, "undecided"),
        ((0.5, 0.7), [0.29, 0.3, 0.31], 0.2, "yes"),
        ((0.2, 0.25), [0.3], 0.1, "undecided"),
        ((0.2, 0.25), [0.3], 0.4, "no"),  # the uniform predictor decides
        ((0.25, 0.35), [0.3], 0.2, "undecided"),  # with and without it: another reason
    ],
)
def test_one_untrained_network_decides_nothing_about_activations(
    ends: tuple[float, float],
    untrained: list[float],
    uniform: float,
    verdict: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = (Baseline.of("baseline", "uniform", uniform), *of_untrained(untrained))
    report = replace(planted(rng), depth=Estimate.of(sum(ends) / 2, ends, baselines=levels, n=17))
    alone, is_decided = str(report.depth.clears("higher")), len(untrained) > 1 or verdict == "no" or ends[1] == 0.35
    line = headline_of(report, "depth")
    assert (line.verdict, line.why) == (verdict, "" if is_decided else Reason.ONE_UNTRAINED.label)
    monkeypatch.setattr(PlantedReport, "is_behavioral", True)
    assert headline_of(report, "depth").verdict == alone, "predictors are the level of a behavior"


def test_a_headline_of_an_entry_is_taken_at_its_index(rng: np.random.Generator) -> None:
    report = planted(rng)
    value = float(report.overlap.value[-1, 0])
    line = headline_of(report, "overlap", (-1, 0))
    assert (line.label, line.value, line.low, line.high) == ("overlap", value, value - 1, value + 1)
    assert line.baseline == value - 3 and line.baselines[1] == "0.25 (flat)", "the least of its range decides"
    line = headline_of(report, "by_set", (1, 2, 4), "by one set")
    assert (line.label, line.value, line.unit) == ("by one set", report.by_set.value[1, 2, 4], "nats")
    assert (line.baseline, line.baseline_name, line.verdict) == (11.0, "shuffled", "undecided") and math.isnan(line.low)


@pytest.mark.parametrize("reason", [Reason.ONE_TRAINING, None])
def test_a_withheld_interval_says_why(reason: Reason | None, rng: np.random.Generator) -> None:
    level = Baseline.of("baseline", "flat", 0.0)
    depth = Estimate.of(1.0, (math.nan, math.nan), baselines=[level], reason=reason)
    line = replace(planted(rng), depth=depth).headlines()[0]
    assert line.reason == (reason or Reason.NOT_COMPUTED) and (line.interval, line.verdict) == ("", "undecided")
    assert f"[no interval: {line.reason.label}]" in str(line)


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (Headline(metric="x", label="x", value=math.nan), ("–", "", "")),
        (Headline(metric="x", label="x", value=0.00012345, unit="bits"), ("0.0001234 bits", "", "")),
        (Headline(metric="x", label="x", value=1.0, low=-0.5, high=1.5), ("1", "−0.5 … 1.5", "")),
        (
            Headline(metric="x", label="x", value=1.0, levels=(Level(name="flat", value=-1e-7),)),
            ("1", "", "−1e−7 (flat)"),
        ),
    ],
)
def test_cells_leave_out_what_is_not_known(line: Headline, cells: tuple[str, str, str]) -> None:
    assert (line.value_text, line.interval, "; ".join(line.baselines)) == cells
    value, interval, baseline = cells
    assert str(line).startswith(f"x {value}") and "verdict" not in str(line)
    assert (f"[{interval}]" in str(line)) == bool(interval) and (f"; {baseline}" in str(line)) == bool(baseline)


def test_a_saved_report_comes_back_bit_for_bit(tmp_path: Path, rng: np.random.Generator) -> None:
    report = with_provenance(planted(rng), SOURCE)
    report.save(tmp_path / "deep" / "planted")
    loaded = PlantedReport.load(tmp_path / "deep" / "planted")
    assert_equal(loaded, report)
    assert loaded.provenance == SOURCE and str(loaded) == str(report) and loaded.plot() == report.plot()


def test_views_of_other_arrays_are_saved_as_they_look(tmp_path: Path, rng: np.random.Generator) -> None:
    values = np.asfortranarray(rng.normal(size=(2, 3)))
    ends = np.broadcast_to(np.arange(3.0), (2, 3))
    report = replace(
        planted(rng), overlap=Estimate(value=values, low=ends, high=ends), cloud=rng.normal(size=(13, 7)).T
    )
    report.save(tmp_path / "planted")
    assert_equal(PlantedReport.load(tmp_path / "planted"), report)


def test_the_files_are_strict_json_and_safetensors(tmp_path: Path, rng: np.random.Generator) -> None:
    planted(rng).save(tmp_path / "planted")
    assert {path.name for path in (tmp_path / "planted").iterdir()} == FILES

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    data = json.loads((tmp_path / "planted" / "report.json").read_text(), parse_constant=refuse)
    assert data["schema"] == SCHEMA and len(data["hash"]) == 16


@pytest.mark.parametrize("levels", [{"float": 1.0}, {"float": 1.0, "int": 2.0}, {"float": math.nan}])
def test_a_mapping_may_have_any_keys(levels: dict[str, float], tmp_path: Path, rng: np.random.Generator) -> None:
    report = replace(planted(rng), levels=levels, nested=(("float", math.nan),))
    report.save(tmp_path / "planted")
    assert_equal(PlantedReport.load(tmp_path / "planted"), report)


def test_a_field_that_json_cannot_hold_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    broken = replace(planted(rng), remark={1, 2})
    with pytest.raises(InvalidArgument, match=r"a report field cannot hold a set: use numbers, text, arrays"):
        broken.save(tmp_path / "planted")
    assert list(tmp_path.iterdir()) == []


def change_json(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        data = json.loads((path / "report.json").read_text())
        change(data)
        write_resealed(path, data)

    return edit


def cut_short(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-7])


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no json": (lambda path: (path / "report.json").unlink(), r"planted holds no readable report \(report\.json and"),
    "no arrays": (lambda path: (path / "arrays.safetensors").unlink(), r"planted holds no readable report"),
    "no schema": (
        change_json(lambda data: data.pop("schema")),
        r"planted was written by another version",
    ),
    "newer": (
        change_json(lambda data: data.update(schema=SCHEMA + 1, reports=7)),
        rf"planted was written by another version: this bayesgeom reads schema {SCHEMA}\.",
    ),
    "older": (
        change_json(lambda data: data.update(schema=2)),
        r"planted was written by another version: this bayesgeom reads schema 4\. Make it again\.$",
    ),
    "edited": (
        lambda path: (path / "report.json").write_text((path / "report.json").read_text().replace("0.3", "0.4")),
        r"planted was changed after it was written",
    ),
    "a type": (
        change_json(lambda data: data["reports"]["planted"].update(share="deep")),
        r"report 'planted': field 'share' holds 'deep', which does not fit",
    ),
    "no estimate": (
        change_json(lambda data: data["reports"]["planted"].update(depth=0.5)),
        r"report 'planted': field 'depth' holds no estimate",
    ),
    "names": (
        change_json(lambda data: data["reports"]["planted"].update(sets=["one"])),
        r"report 'planted': 'set' has 2 entries, and 'sets' describes 1",
    ),
    "another kind": (
        change_json(lambda data: data["reports"].update(oracle={})),
        r"planted holds oracle, planted, and not planted alone\. `load_report` reads",
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that was saved once, to be copied and damaged."""
    path = tmp_path_factory.mktemp("saved") / "planted"
    planted(np.random.default_rng(0)).save(path)
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_report_is_refused(fault: str, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "planted")
    change, message = FAULTS[fault]
    change(tmp_path / "planted")
    with pytest.raises(OutputFault, match=message):
        PlantedReport.load(tmp_path / "planted")


def test_a_report_of_another_version_loads(tmp_path: Path, rng: np.random.Generator) -> None:
    """Fields that it lacks are missing values, and fields that it has in addition are left out."""
    report = planted(rng)
    report.save(tmp_path / "run")

    def change(data: dict[str, Any]) -> None:
        own = data["reports"]["planted"]
        own.update(width=1.0)
        for name in ("depth", "share", "steps", "is_deep", "levels"):
            own.pop(name)

    change_json(change)(tmp_path / "run")
    found = PlantedReport.load(tmp_path / "run")
    assert math.isnan(float(found.depth)) and found.depth.reason_at() == Reason.NOT_STORED
    assert math.isnan(found.share) and (found.steps, found.is_deep, dict(found.levels)) == (-1, False, {})
    assert found == replace(report, depth=found.depth, share=found.share, steps=-1, is_deep=False, levels={})
    found.save(tmp_path / "again")
    assert PlantedReport.load(tmp_path / "again") == found
    (row,) = found.to_pandas("depth").itertuples()
    assert row.reason == "not stored" and math.isnan(row.value)


def test_an_array_that_is_not_stored_has_the_length_of_its_axes(rng: np.random.Generator) -> None:
    values = {name: own for name, own in vars(planted(rng)).items() if name != "provenance"}
    for name in ("overlap", "is_seen", "count", "sets", "cloud"):
        values.pop(name)
    found = completed(PlantedReport, values)
    assert found["is_seen"].shape == (7,) and not found["is_seen"].any() and found["sets"] == ("", "")
    assert found["count"].tolist() == [-1] * 5 and np.isnan(found["cloud"]).all() and len(found["cloud"]) == 7
    assert (codes_of(found["overlap"]) == Reason.NOT_STORED).all()


def test_a_field_with_another_number_of_axes_is_one_that_the_file_lacks(rng: np.random.Generator) -> None:
    values = {name: own for name, own in vars(planted(rng)).items() if name != "provenance"}
    found = completed(PlantedReport, values | {"overlap": values["overlap"][0]})
    assert (codes_of(found["overlap"]) == Reason.NOT_STORED).all() and found["overlap"].value.ndim == 2


def test_a_reason_that_is_not_stored_is_that_code() -> None:
    data, arrays = estimate_parts("x", Estimate.of([0.5, 0.25], ([0.25, math.nan], [0.75, math.nan]), n=96))
    data.pop("reason")
    assert codes_of(estimate_of("x", decoded_json(data), arrays, "here")).tolist() == [Reason.NONE, Reason.NOT_STORED]


def test_reports_are_equal_by_value(rng: np.random.Generator) -> None:
    report = planted(rng)
    assert report == with_provenance(report, SOURCE)
    assert report == replace(report) and report != replace(report, share=0.5) and report != 3
    assert report != replace(report, cloud=report.cloud + 1e-12) and len({report, replace(report)}) == 1


def test_a_report_is_loaded_by_its_own_class_alone(tmp_path: Path, rng: np.random.Generator) -> None:
    from bayesgeom.measurements.calibration import CalibrationReport

    planted(rng).save(tmp_path / "run")
    with pytest.raises(
        OutputFault, match=r"run holds planted, and not calibration alone\. `load_report` reads every kind"
    ):
        CalibrationReport.load(tmp_path / "run")
    with pytest.raises(InvalidArgument, match=r"Report is abstract"):
        Report.load(tmp_path / "run")


COMPANIONS = (
    "_lo",
    "_hi",
    "_low",
    "_high",
    "_null",
    "_least",
    "_most",
    "_matched",
    "_floor",
    "_ceiling",
    "_initialization",
    "_untrained",
    "_permuted",
    "_shuffled",
    "_baseline",
    "_indirect",
    "_passes",
    "_p",
    "_unedited",
    "_published",
)
PREFIXES = ("ceiling_", "baseline_", "chance_", "untrained_", "random_", "null_", "permuted_", "shuffled_")


@every_report
def test_no_field_is_a_companion_of_another(name: str) -> None:
    """Ends of intervals, baselines and ceilings belong into the estimate of the number itself."""
    kind: Any = report_kinds()[name]
    assert not companions([field.name for field in dataclasses.fields(kind)])


def companions(fields: list[str]) -> list[str]:
    return [name for name in fields if name.endswith(COMPANIONS) or name.startswith(PREFIXES)]


def test_companions_are_found() -> None:
    planted_fields = ["kl_bits", "kl_bits_lo", "ceiling_bits", "untrained_passes", "spearman_p", "baseline_kl_bits"]
    assert companions(planted_fields) == planted_fields[1:]


def test_an_estimate_is_read_by_name(rng: np.random.Generator) -> None:
    report = planted(rng)
    assert report.estimate("overlap") is report.overlap
    for name in ("kl_bits", "n", "provenance", "__class__"):
        with pytest.raises(InvalidArgument, match=rf"PlantedReport has no estimate '{name}'. Its estimates: depth, "):
            report.estimate(name)
