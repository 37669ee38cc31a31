"""Damaged reports: every change is refused by name, and nothing but our own errors comes out of a load.

A fast, seeded sample of what `benchmarks/faults.py` tries in full.
"""

import json
import random
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import bayesgeom
from bayesgeom.core.errors import OutputFault
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.report.diagnosis import Diagnosis, report_kinds
from bayesgeom.report.storage import JSON, axes_of
from tests.interventions.worlds import lively
from tests.pages import READINGS
from tests.reports import write_resealed

VALUES: tuple[Any, ...] = (None, True, -1, 3.5, "text", [], {}, [[1, 2], [3]], {"float": "none"}, 10**30)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    bayesgeom.diagnose(lively(), n=13, probes=("calibration", "attention_entropy"), n_untrained=1).save(path)
    return path


def copied(saved: Path, to: Path) -> Path:
    shutil.copytree(saved, to)
    return to


def test_structural_damage_is_refused_by_name_behind_a_right_hash(saved: Path, tmp_path: Path) -> None:
    path, draw = copied(saved, tmp_path / "run"), random.Random(7)
    text = (saved / JSON).read_text(encoding="utf-8")
    whole = Diagnosis.load(saved)
    n_refused = 0
    for _ in range(60):
        data = json.loads(text)
        damage(data, draw)
        write_resealed(path, data)
        try:
            found = Diagnosis.load(path)
        except OutputFault as error:
            n_refused += str(path) in str(error)
            continue
        # What may be changed without notice is what may hold anything: provenance, labels of the same kind.
        assert found.reports.keys() <= whole.reports.keys()
        assert found.summary() and found.to_pandas() is not None
    assert n_refused > 20


def damage(data: dict[str, Any], draw: random.Random) -> None:
    """Delete an entry somewhere in nested JSON values, or put another value there."""
    place: Any = data
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and draw.random() < 0.7:
            place = place[key]
            continue
        if draw.random() < 0.5:
            del place[key]
        else:
            place[key] = draw.choice(VALUES)
        return


@pytest.fixture(scope="module")
def alone(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "alone"
    Diagnosis.load(saved)["calibration"].save(path)
    return path


CHANGES: tuple[dict[str, Any], ...] = (
    {},  # no mapping at all
    {"arguments": None},
    {"model": 3},
    {"streamed": {"calibration": "all"}},
)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_provenance_of_another_form_is_refused(change: dict[str, Any], alone: Path, tmp_path: Path) -> None:
    path = copied(alone, tmp_path / "run")
    data = json.loads((path / JSON).read_text())
    write_resealed(path, {**data, "provenance": {**data["provenance"], **change} if change else [["a", 1]]})
    for load in (Diagnosis.load, bayesgeom.load_report, CalibrationReport.load):
        with pytest.raises(OutputFault, match="does not say of what model and task"):
            load(path)


DESCRIBED = [  # a committed report with tuples that describe the entries of an axis, and the number of such fields
    ("erasure_onwards", "interventions/hmm-s5/onwards-leace-entropy", 2),
    ("intervention", "interventions/bijection-v20/top_jacobian-16", 4),
    ("sweep", "sweep/recall-lstm", 2),
]


def described(kind: type) -> list[str]:
    return [own.name for own in fields(kind) if str(own.type).startswith("typing.Annotated[tuple[")]


@pytest.mark.parametrize(("name", "folder", "n_fields"), DESCRIBED, ids=[own[0] for own in DESCRIBED])
def test_a_description_less_or_more_than_entries_is_refused(
    name: str, folder: str, n_fields: int, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    Diagnosis.load(READINGS / folder).save(path)  # with every field of this version
    text = (path / JSON).read_text(encoding="utf-8")
    names = described(report_kinds()[name])
    assert len(names) == n_fields
    for field in names:
        whole = json.loads(text)["reports"][name][field]
        for changed in (whole[1:], [*whole, whole[0]], []):
            data = json.loads(text)
            data["reports"][name][field] = changed
            write_resealed(path, data)
            with pytest.raises(
                OutputFault, match=f"report '{name}': .* entries, and '{field}' describes {len(changed)}"
            ):
                Diagnosis.load(path)


FREE = {  # tuples of any length, which no code reads entry by entry with an axis
    "function.arrays",
    "function.shapes",
    "value_manifold.conditions",
}


def test_every_tuple_of_a_report_names_or_describes_the_entries_of_an_axis() -> None:
    found = set()
    for name, kind in report_kinds().items():
        axes = {axis for dims in axes_of(kind).values() for axis in dims}
        tuples = {own.name for own in fields(kind) if str(own.type).startswith("tuple[")}
        found |= {f"{name}.{own}" for own in tuples - {f"{axis}s" for axis in axes}}
        assert {own for field in described(kind) for own in along_of(kind, field).split()} <= axes, name
    assert found == FREE


def along_of(kind: type, field: str) -> str:
    """The axes whose entries a tuple describes."""
    axes: str = next(own.type.__metadata__[0] for own in fields(kind) if own.name == field)
    return axes
