"""A diagnosis on disk: four files, equal values back, one tidy table, one page, and nothing half-written."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
from safetensors import SafetensorError

from bayesgeom.core.errors import OutputFault
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.report import page, storage
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.report.storage import parts_of
from bayesgeom.report.tables import Record, records_of
from bayesgeom.tasks.bijection import Bijection
from tests.reports import write_resealed

FILES = {"report.json", "arrays.safetensors", "metrics.parquet", "report.html"}
TASK = Bijection(n_values=11, n_pairs=5)
SIZES = TransformerConfig(d_vocab=22, n_ctx=9, n_layers=2, n_heads=3, d_model=21, d_mlp=13)


@pytest.fixture(scope="module")
def whole() -> Diagnosis:
    """Two probes on a tiny model, and one skipped."""
    model = HookedModel(SIZES.build(seed=0), name="tiny <b>", task=TASK)
    found = diagnose(model, probes=["calibration", "key_overlap"], n=31, n_untrained=1)
    return dataclasses.replace(
        found, skipped={**found.skipped, "recurrent": "reads site 'state' & <that> is not there"}
    )


def with_missing_numbers(found: Diagnosis) -> Diagnosis:
    """The same with NaN and infinities in scalars, ends, baselines and arrays."""
    report = found["calibration"]
    by_position = report.kl_bits_by_position.value.copy()  # type: ignore[attr-defined]
    by_position[2] = np.nan
    level = Baseline.of("chance", "none", -math.inf, low=math.nan, high=math.inf)
    changed = dataclasses.replace(
        report,
        total_variation=Estimate.of(math.inf, (math.nan, math.inf), baselines=[level]),
        kl_bits_by_position=Estimate.of(by_position),
        off_answer_prob_by_position=by_position,
    )  # type: ignore[type-var]
    return dataclasses.replace(found, reports={**found.reports, "calibration": changed})


def assert_equal(one: Diagnosis, other: Diagnosis) -> None:
    assert dict(one.skipped) == dict(other.skipped) and list(one) == list(other)
    assert one.provenance == other.provenance
    for name in one:
        assert type(one[name]) is type(other[name]) and one[name].n == other[name].n
        np.testing.assert_equal(parts_of(one[name])[0], parts_of(other[name])[0])
        for field, values in parts_of(one[name])[1].items():
            restored = parts_of(other[name])[1][field]
            assert restored.dtype == values.dtype
            np.testing.assert_array_equal(restored, values, err_msg=f"{name}.{field}")


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_diagnosis_comes_back_equal(whole: Diagnosis, tmp_path: Path) -> None:
    for found in (whole, with_missing_numbers(whole)):
        found.save(tmp_path / "deep" / "run")
        assert set(entries(tmp_path / "deep" / "run")) == FILES and entries(tmp_path / "deep") == ["run"]
        assert_equal(Diagnosis.load(tmp_path / "deep" / "run"), found)
        assert_equal(Diagnosis.load(str(tmp_path / "deep" / "run")), found)


def test_an_empty_diagnosis_is_one_too(whole: Diagnosis, tmp_path: Path) -> None:
    nothing = dataclasses.replace(whole, reports={})
    nothing.save(tmp_path / "run")
    assert_equal(Diagnosis.load(tmp_path / "run"), nothing)
    assert "skipped recurrent" in nothing.summary() and len(nothing.to_pandas()) == 0


def test_the_table_holds_every_record(whole: Diagnosis, tmp_path: Path) -> None:
    whole.save(tmp_path / "run")
    table = pd.read_parquet(tmp_path / "run" / "metrics.parquet")
    columns = {"model", "checkpoint", "task", *(field.name for field in dataclasses.fields(Record))} - {"places"}
    assert set(table.columns) >= {*columns, "layer", "head", "position", "source", "token_set", "variant"} and len(
        table
    ) == sum(len(records_of(report)) for report in whole.values())
    assert set(table["model"]) == {"transformer"} and set(table["checkpoint"]) == {"tiny <b>"}
    assert set(table["task"]) == {str(TASK)} and set(table["probe"]) == set(whole)
    for name, value in TASK.config().items():  # parameters are columns
        assert set(table[f"task.{name}"]) == {value}
    assert {str(table[column].dtype) for column in ("layer", "head", "position")} == {"Int64"}
    assert {str(table[column].dtype) for column in ("value", "low", "high", "baseline")} == {"float64"}
    calibration = table[table["probe"] == "calibration"]
    (kl,) = calibration[calibration["metric"] == "kl_bits"].itertuples()
    assert (kl.value, kl.n) == (float(whole["calibration"].kl_bits), 31)  # type: ignore[attr-defined]
    assert kl.low <= kl.value <= kl.high and kl.baseline_name == "uniform"
    profile = calibration[calibration["metric"] == "kl_bits_by_position"].sort_values("position")
    np.testing.assert_array_equal(profile["value"], whole["calibration"].kl_bits_by_position.value)  # type: ignore[attr-defined]
    assert profile["position"].tolist() == [1, 2, 3, 4, 5] and profile["layer"].isna().all()


def test_saving_does_not_delete_other_files(whole: Diagnosis, tmp_path: Path) -> None:
    whole.save(tmp_path / "run")
    (tmp_path / "run" / "notes.md").write_text("what I think of it")
    with pytest.raises(OutputFault, match=r"run holds .*notes\.md"):
        whole.save(tmp_path / "run")
    assert (tmp_path / "run" / "notes.md").read_text() == "what I think of it"


FAILURES = {
    "arrays": (safetensors.numpy, "save_file", SafetensorError("I/O error: No space left on device")),
    "page": (page, "page_of", OSError(28, "No space left on device")),
    "interrupted": (page, "page_of", KeyboardInterrupt()),
}


@pytest.mark.parametrize("standing", [False, True], ids=["fresh", "over a former one"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_save_leaves_nothing(
    failure: str, standing: bool, whole: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if standing:
        whole.save(tmp_path / "run")
    place, name, error = FAILURES[failure]

    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(place, name, fail)
    expected = KeyboardInterrupt if failure == "interrupted" else OutputFault
    with pytest.raises(expected, match=None if failure == "interrupted" else r"cannot write .*run.*No space left"):
        dataclasses.replace(whole, skipped={}).save(tmp_path / "run")
    assert entries(tmp_path) == (["run"] if standing else [])
    if standing:
        assert_equal(Diagnosis.load(tmp_path / "run"), whole)


def test_what_is_no_diagnosis_is_refused(whole: Diagnosis, tmp_path: Path) -> None:
    with pytest.raises(OutputFault, match=r"nowhere holds no readable report"):
        Diagnosis.load(tmp_path / "nowhere")
    whole.save(tmp_path / "of no task")
    data = json.loads((tmp_path / "of no task" / "report.json").read_text())
    del data["provenance"]
    write_resealed(tmp_path / "of no task", data)
    with pytest.raises(OutputFault, match=r"of no task does not say of what model and task"):
        Diagnosis.load(tmp_path / "of no task")
    whole.save(tmp_path / "run")
    data = json.loads((tmp_path / "run" / "report.json").read_text())
    write_resealed(tmp_path / "run", data | {"reports": data["reports"] | {"oracle": {}}})
    loaded = Diagnosis.load(tmp_path / "run")
    assert [*loaded] == [*whole] and loaded.skipped["oracle"].startswith("report of an unknown kind; install")


def test_a_report_of_a_diagnosis_can_be_saved_alone(whole: Diagnosis, tmp_path: Path) -> None:
    whole["calibration"].save(tmp_path / "alone")
    found = load_report(tmp_path / "alone")
    assert isinstance(found, CalibrationReport) and str(found) == str(whole["calibration"])
    assert found.provenance == whole.provenance
    assert_equal(Diagnosis.load(tmp_path / "alone"), Diagnosis.of(found))


@pytest.mark.parametrize("load", [load_report, Diagnosis.load])
def test_a_run_directory_is_read_once(
    load: Callable[[Path], Diagnosis], whole: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.save(tmp_path / "run")
    read, paths = storage.read, list[Path]()

    def counted(path: Path) -> object:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(storage, "read", counted)
    assert list(load(tmp_path / "run")) == list(whole)
    assert paths == [tmp_path / "run"]


def test_html_alone_is_one_file(whole: Diagnosis, tmp_path: Path) -> None:
    whole.to_html(tmp_path / "deep" / "page.html")
    whole.to_html(str(tmp_path / "page.html"))
    assert entries(tmp_path / "deep") == ["page.html"]
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFault, match=r"cannot make the folder"):
        whole.to_html(tmp_path / "file" / "page.html")


def test_files_are_utf8_whatever_the_locale(whole: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Path.write_text

    def as_on_an_old_locale(self: Path, data: str, encoding: str = "ascii", **named: str) -> int:
        return written(self, data, encoding, **named)

    monkeypatch.setattr(Path, "write_text", as_on_an_old_locale)
    whole.save(tmp_path / "run")
    whole.to_html(tmp_path / "page.html")
