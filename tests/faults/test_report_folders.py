"""Folders of reports, damaged in every way that a file can be: what is loaded equals what was saved, or is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesgeom
from bayesgeom.core.errors import OutputFault
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import ARRAYS, HTML, JSON, METRICS, parts_of
from tests.faults.test_properties import FEW, MANY
from tests.interventions.worlds import lively

FILES = (JSON, ARRAYS, METRICS, HTML)
NAMES = (*FILES, "report (1).json", "REPORT.JSON", "notes.txt", ".former")
Damage = tuple[Any, ...]


def _into(path: Path, at: float, data: bytes, *, cut: int) -> None:
    """Put bytes into a file in place of `cut` of its own."""
    if path.is_file():
        whole = path.read_bytes()
        place = int(at * len(whole))
        path.write_bytes(whole[:place] + data + whole[place + cut :])


def _truncated(path: Path, at: float) -> None:
    if path.is_file():
        path.write_bytes(path.read_bytes()[: int(at * path.stat().st_size)])


def _removed(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _moved(path: Path, name: str) -> None:
    if path.exists() and path.name != name:
        _removed(path.parent / name)
        path.rename(path.parent / name)


def _copied(path: Path, name: str) -> None:
    if path.is_file() and path.name != name:
        _removed(path.parent / name)
        shutil.copyfile(path, path.parent / name)


def _swapped(path: Path, name: str) -> None:
    _moved(path, "between")
    _moved(path.parent / name, path.name)
    _moved(path.parent / "between", name)


def _folder(path: Path) -> None:
    _removed(path)
    path.mkdir()


def _linked_to_itself(path: Path) -> None:
    _removed(path)
    path.symlink_to(path.name)


ACTS: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "inserted": (lambda path, at, data: _into(path, at, data, cut=0), (st.floats(0, 1), st.binary(max_size=3))),
    "overwritten": (
        lambda path, at, data: _into(path, at, data, cut=len(data)),
        (st.floats(0, 1), st.binary(min_size=1, max_size=3)),
    ),
    "truncated": (_truncated, (st.floats(0, 1),)),
    "removed": (_removed, ()),
    "renamed": (_moved, (st.sampled_from(NAMES),)),
    "duplicated": (_copied, (st.sampled_from(NAMES),)),
    "swapped": (_swapped, (st.sampled_from(FILES),)),
    "made a folder": (_folder, ()),
    "linked to itself": (_linked_to_itself, ()),
}
DAMAGE = st.sampled_from(sorted(ACTS)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(FILES), *ACTS[name][1])
)


@pytest.fixture(scope="module")
def whole() -> Diagnosis:
    return bayesgeom.diagnose(lively(), n=5, probes=("calibration", "key_overlap"), n_untrained=0)


@pytest.fixture(scope="module")
def saved(whole: Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    whole.save(path)
    return path


def equal_or_refused(whole: Diagnosis, saved: Path, damages: list[Damage]) -> bool:
    """Whether the damaged copy is refused. Fails where it is loaded as something else, or ends in a foreign error."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "the-run"
        shutil.copytree(saved, path)
        for name, file, *more in damages:
            ACTS[name][0](path / file, *more)
        try:
            found = Diagnosis.load(path)
        except OutputFault as error:
            text = str(error)
            assert "the-run" in text and "\n" not in text, text
            return True
    assert list(found) == list(whole) and found.skipped == whole.skipped and found.provenance == whole.provenance
    for name in whole:
        np.testing.assert_equal(parts_of(found[name]), parts_of(whole[name]))
    return False


@pytest.mark.parametrize("name", ACTS)
def test_every_damage_of_the_arrays_is_refused(name: str, whole: Diagnosis, saved: Path) -> None:
    given_ = {"inserted": (0.5, b"x"), "overwritten": (0.9, b"\1\2\3"), "truncated": (0.9,), "renamed": ("notes.txt",)}
    more = given_.get(name, (METRICS,) if name == "swapped" else (ARRAYS,) if name == "duplicated" else ())
    assert equal_or_refused(whole, saved, [(name, ARRAYS, *more)]) != (name == "duplicated"), "a copy of itself is none"
    assert not equal_or_refused(whole, saved, [("removed", HTML), ("removed", METRICS)]), "made from the other two"


@settings(FEW, max_examples=30)
@given(damages=st.lists(DAMAGE, min_size=1, max_size=3))
def test_a_damaged_folder_is_equal_or_refused(whole: Diagnosis, saved: Path, damages: list[Damage]) -> None:
    equal_or_refused(whole, saved, damages)


@pytest.mark.exhaustive
@settings(MANY, max_examples=1500)
@given(damages=st.lists(DAMAGE, min_size=1, max_size=4))
def test_many_damaged_folders_are_equal_or_refused(whole: Diagnosis, saved: Path, damages: list[Damage]) -> None:
    equal_or_refused(whole, saved, damages)
