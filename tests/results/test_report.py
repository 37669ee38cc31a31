"""Reports: axes from annotations, tidy rows from fields, and files that give back equal values."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go
import pytest
from jaxtyping import Bool, Float, Int, Shaped

from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.results.report import Headline, Record, Report, headline_cells, read_parts
from bayesgeom.results.storage import SCHEMA
from tests.reports import write_resealed


@dataclass(frozen=True, kw_only=True)
class PlantedReport(Report):
    """One field of every kind that a report may hold."""

    name: ClassVar[str] = "planted"
    title: ClassVar[str] = "Planted"
    about: ClassVar[str] = "A report for tests."

    depth: float
    missing: float
    steps: int
    is_deep: bool
    remark: str | None
    levels: Mapping[str, float]
    sets: tuple[str, ...]
    nested: tuple[tuple[str, float], ...]
    overlap: Float[np.ndarray, "layer head"]
    overlap_lo: Float[np.ndarray, "layer head"]
    overlap_hi: Float[np.ndarray, "layer head"]
    overlap_null: Float[np.ndarray, " layer"]
    by_set: Float[np.ndarray, "set kv_head position"]
    by_set_null: Float[np.ndarray, " set"]
    count: Int[np.ndarray, " position"]
    is_seen: Bool[np.ndarray, " item"]
    cloud: Shaped[np.ndarray, "item coordinate"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return (
            self.scalar("depth", "depth", unit="bits", null_label="flat"),
            self.scalar("missing", "missing"),
        )

    def figure(self) -> go.Figure:
        return go.Figure()


def planted(rng: np.random.Generator) -> PlantedReport:
    overlap = rng.normal(size=(2, 3))
    overlap[1, 2] = np.nan
    return PlantedReport(
        depth=0.1 + 0.2, missing=math.nan, steps=17, is_deep=True, remark=None,
        levels={"uniform": 1.5, "none": math.nan, "all": -math.inf}, sets=("inputs", "hypotheses"),
        nested=(("a", math.inf), ("b", 2.0)), overlap=overlap, overlap_lo=overlap - 1, overlap_hi=overlap + 1,
        overlap_null=np.array([0.5, 0.25]), by_set=rng.normal(size=(2, 3, 5)), by_set_null=np.array([7.0, 11.0]),
        count=np.array([2, 3, 5, 7, 11]), is_seen=np.array([True, False, True, True, False, False, True]),
        cloud=rng.normal(size=(7, 13)), intervals={"depth": (0.25, 0.5)}, nulls={"depth": 1.25}, n=19,
    )  # fmt: skip


def assert_equal(one: object, other: object) -> None:
    """Equal types and values, NaN equal to NaN, all the way down."""
    assert type(one) is type(other)
    match one, other:
        case PlantedReport(), PlantedReport():
            assert_equal(vars(one), vars(other))
        case dict(), dict():
            assert one.keys() == other.keys()
            for key in one:
                assert_equal(one[key], other[key])
        case tuple(), tuple():
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                assert_equal(a, b)
        case np.ndarray(), np.ndarray():
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        case _:
            assert one == other or (one != one and other != other)


def rows_of(report: Report, metric: str) -> list[Record]:
    return [row for row in report.records() if row.metric == metric]


def test_annotations_state_the_axes() -> None:
    assert PlantedReport.axes() == {
        "overlap": ("layer", "head"), "overlap_lo": ("layer", "head"), "overlap_hi": ("layer", "head"),
        "overlap_null": ("layer",), "by_set": ("set", "kv_head", "position"), "by_set_null": ("set",),
        "count": ("position",), "is_seen": ("item",), "cloud": ("item", "coordinate"),
    }  # fmt: skip


def test_scalars_are_rows_with_their_interval_and_null(rng: np.random.Generator) -> None:
    (depth,) = rows_of(planted(rng), "depth")
    assert depth == Record(
        probe="planted", metric="depth", unit="", variant=None, layer=None, head=None, position=None, value=0.1 + 0.2,
        low=0.25, high=0.5, baseline=1.25, baseline_name="", n=19,
    )  # fmt: skip
    (missing,) = rows_of(planted(rng), "missing")
    assert all(map(math.isnan, (missing.value, missing.low, missing.high, missing.baseline)))


def test_arrays_are_rows_with_their_companions(rng: np.random.Generator) -> None:
    report = planted(rng)
    rows = rows_of(report, "overlap")
    assert [(row.layer, row.head) for row in rows] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for row in rows:
        at = (row.layer, row.head)
        np.testing.assert_equal(row.value, float(report.overlap[at]))
        np.testing.assert_equal((row.low, row.high), (float(report.overlap_lo[at]), float(report.overlap_hi[at])))
        assert row.baseline == (0.5, 0.25)[row.layer], "a null without heads holds for every head"
        assert (row.variant, row.position, row.n) == (None, None, 19)


def test_named_axes_are_the_variant(rng: np.random.Generator) -> None:
    report = planted(rng)
    rows = rows_of(report, "by_set")
    assert len(rows) == 2 * 3 * 5
    for row in rows:
        index = ("inputs", "hypotheses").index(str(row.variant))
        assert row.value == report.by_set[index, row.head, row.position] and row.layer is None
        assert row.baseline == (7.0, 11.0)[index] and math.isnan(row.low) and math.isnan(row.high)


def test_what_has_no_place_in_the_table_is_left_out(rng: np.random.Generator) -> None:
    metrics = {row.metric for row in planted(rng).records()}
    assert metrics == {"depth", "missing", "overlap", "by_set", "count"}, "no companions, text, or unnamed axes"
    assert [(row.position, row.value) for row in rows_of(planted(rng), "count")] == [
        (0, 2.0), (1, 3.0), (2, 5.0), (3, 7.0), (4, 11.0),
    ]  # fmt: skip


def test_a_saved_report_comes_back_equal(tmp_path: Path, rng: np.random.Generator) -> None:
    report = planted(rng)
    report.save(tmp_path / "deep" / "planted")
    assert_equal(PlantedReport.load(tmp_path / "deep" / "planted"), report)


def test_views_of_other_arrays_are_saved_as_they_look(tmp_path: Path, rng: np.random.Generator) -> None:
    report = replace(
        planted(rng), overlap=np.asfortranarray(rng.normal(size=(2, 3))), cloud=rng.normal(size=(13, 7)).T,
        overlap_lo=np.broadcast_to(np.arange(3.0), (2, 3)),
    )  # fmt: skip
    report.save(tmp_path / "planted")
    assert_equal(PlantedReport.load(tmp_path / "planted"), report)


def test_the_files_are_strict_json_and_safetensors(tmp_path: Path, rng: np.random.Generator) -> None:
    planted(rng).save(tmp_path / "planted")
    assert {path.name for path in (tmp_path / "planted").iterdir()} == {"report.json", "arrays.safetensors"}

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    held = json.loads((tmp_path / "planted" / "report.json").read_text(), parse_constant=refuse)
    assert held["schema"] == SCHEMA and len(held["hash"]) == 16


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
        held = json.loads((path / "report.json").read_text())
        change(held)
        write_resealed(path, held)

    return edit


def cut_short(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-7])


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no json": (lambda path: (path / "report.json").unlink(), r"planted holds no readable report \(report\.json and"),
    "no arrays": (lambda path: (path / "arrays.safetensors").unlink(), r"planted holds no readable report"),
    "half a json": (cut_short("report.json"), r"planted holds no readable report"),
    "half the arrays": (cut_short("arrays.safetensors"), r"planted holds no readable report"),
    "a list": (lambda path: (path / "report.json").write_text("[]"), r"planted holds no readable report"),
    "no schema": (
        change_json(lambda held: held.pop("schema")),
        r"planted holds no .*: report\.json has no schema number\.",
    ),
    "a text for a schema": (change_json(lambda held: held.update(schema="1")), r"report\.json has no schema number\."),
    "newer": (
        change_json(lambda held: held.update(schema=3, reports=7)),
        r"planted has schema 3; this bayesgeom reads up to 2\. Upgrade bayesgeom\.$",
    ),
    "older": (
        change_json(lambda held: held.update(schema=1)),
        r"planted has schema 1, without a hash; .* made it again",
    ),
    "edited": (
        lambda path: (path / "report.json").write_text((path / "report.json").read_text().replace("0.3", "0.4")),
        r"planted was changed after it was written",
    ),
    "a type": (
        change_json(lambda held: held["reports"]["planted"].update(depth="deep")),
        r"report 'planted': field 'depth' holds 'deep', which is not float",
    ),
    "names": (
        change_json(lambda held: held["reports"]["planted"].update(sets=["one"])),
        r"report 'planted': axis 'set' has \d+ entries and 1 names",
    ),
    "no table": (
        change_json(lambda held: held["reports"].update(planted=[])),
        r"report 'planted' is no table of fields",
    ),
    "no reports": (change_json(lambda held: held.pop("reports")), r"planted holds no readable report"),
    "a number": (change_json(lambda held: held.update(reports=3)), r"planted holds no readable report"),
    "another kind": (
        change_json(lambda held: held["reports"].update(oracle={})),
        r"planted holds reports of unknown kinds: oracle\. Upgrade",
    ),
    "a field less": (
        change_json(lambda held: held["reports"]["planted"].pop("depth")),
        r"report 'planted' lacks the fields depth: another version wrote it",
    ),
    "a field more": (
        change_json(lambda held: held["reports"]["planted"].update(width=1.0)),
        r"report 'planted' has unknown fields width: another version wrote it",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_report_is_refused(fault: str, tmp_path: Path, rng: np.random.Generator) -> None:
    planted(rng).save(tmp_path / "planted")
    change, message = FAULTS[fault]
    change(tmp_path / "planted")
    with pytest.raises(OutputFault, match=message):
        PlantedReport.load(tmp_path / "planted")


def test_a_directory_without_this_report_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    planted(rng).save(tmp_path / "planted")
    change_json(lambda held: held.update(reports={}))(tmp_path / "planted")
    with pytest.raises(OutputFault, match=r"planted holds no .*planted"):
        PlantedReport.load(tmp_path / "planted")
    with pytest.raises(OutputFault, match=r"nowhere holds no readable report"):
        read_parts(tmp_path / "nowhere", {})


def test_headlines_carry_what_is_stored_for_them(rng: np.random.Generator) -> None:
    first, second = planted(rng).headlines()
    assert first == Headline(
        metric="depth", label="depth", value=0.1 + 0.2, unit="bits", lo=0.25, hi=0.5, null=1.25, null_label="flat"
    )
    assert math.isnan(second.value) and math.isnan(second.lo) and math.isnan(second.null)
    assert str(planted(rng).headlines()[0]) == "depth 0.3 bits [0.25 … 0.5]; null 1.2500 (flat)"


def test_an_entry_carries_its_companions_entries(rng: np.random.Generator) -> None:
    report = planted(rng)
    value = float(report.overlap[-1, 0])
    assert report.entry("overlap", (-1, 0), "overlap", null_label="flat") == Headline(
        metric="overlap", label="overlap", value=value, lo=value - 1, hi=value + 1, null=0.25, null_label="flat"
    )
    line = report.entry("by_set", (1, 2, 4), "by set", unit="bits")
    assert (line.value, line.unit, line.null) == (report.by_set[1, 2, 4], "bits", 11.0)
    assert math.isnan(line.lo) and math.isnan(line.hi) and math.isnan(report.entry("count", (3,), "count").null)


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (Headline(metric="x", label="x", value=math.nan), ("–", "", "")),
        (Headline(metric="x", label="x", value=0.00012345, unit="bits"), ("0.0001234 bits", "", "")),
        (Headline(metric="x", label="x", value=1.0, lo=0.5, hi=1.5), ("1", "0.5 … 1.5", "")),
        (Headline(metric="x", label="x", value=1.0, null=-1e-7, null_label="flat"), ("1", "", "0.0000 (flat)")),
        (
            Headline(metric="x", label="x", value=0.0031, null=1.10731, null_label="uniform"),
            ("0.0031", "", "1.1073 (uniform)"),
        ),
    ],
)
def test_cells_leave_out_what_is_not_known(line: Headline, cells: tuple[str, str, str]) -> None:
    assert headline_cells(line) == cells
    value, interval, null = cells
    assert (
        str(line).startswith(f"x {value}")
        and ("[" in str(line)) == bool(interval)
        and ("; null" in str(line)) == bool(null)
    )
