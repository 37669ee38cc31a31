"""One bad checkpoint or plug-in is named, and everything else works."""

import importlib
import json
import sys
import warnings
from pathlib import Path

import pytest

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.diagnosis import Diagnosis
from bayesgeom.errors import BayesGeomError
from bayesgeom.models.checkpoint import hashed
from bayesgeom.diagnose import all_probes
from bayesgeom.plugins import Broken, discovered
from bayesgeom.probes.base import Probe
from tests.test_cli import QUICK, save


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "shelf"))
    save(tmp_path / "shelf" / "tiny")
    return tmp_path


def test_a_bad_checkpoint_is_listed_with_its_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints"]) == 0
    sound = capsys.readouterr().out
    shelf = folder / "shelf"
    for name, text in {
        "a-torn": "{", "b-nested": "[" * 100_000, "c-digits": "1" * 5_000, "d-newer": '{"schema": 99}', "e-empty": "",
    }.items():  # fmt: skip
        (shelf / name).mkdir()
        (shelf / name / "config.json").write_text(text)
    whole = json.loads((shelf / "tiny" / "config.json").read_text())
    for name, change in {"f-scores": {"scores": [1]}, "g-null": {"scores": {"kl_bits": "low"}}}.items():
        (shelf / name).mkdir()
        (shelf / name / "config.json").write_text(json.dumps(hashed(whole | change)))
    (shelf / "h-half").mkdir()
    (shelf / "h-half" / "model.safetensors").write_bytes((shelf / "tiny" / "model.safetensors").read_bytes())
    (shelf / "i-packed").mkdir()
    (shelf / "i-packed" / "formation.json").write_text('{"schema": 2')
    (shelf / "j-packed").mkdir()
    packed = {"schema": 2, "model": {}, "task": {}, "recipe": {}, "snapshots": []}
    (shelf / "j-packed" / "formation.json").write_text(json.dumps(hashed(packed)))
    (shelf / "k-fifo").mkdir()
    (shelf / "notes.txt").write_text("no directory")
    assert main(["checkpoints"]) == 0
    out = capsys.readouterr().out
    assert sound in out
    for name in (entry.name for entry in shelf.iterdir() if entry.name[1] == "-" and entry.name != "k-fifo"):
        after = out.split(f"{name}\n")[1].splitlines()[0]
        assert after.startswith("  error   "), name
    assert "notes" not in out and "k-fifo" not in out
    assert "h-half holds no config.json" in out


PROBE = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
from bayesgeom.probes.base import Needs, Probe
from bayesgeom.probes.calibration import Calibration

@dataclass(frozen=True)
class Guest(Probe):
    name = "guest"
    needs = Needs()
    def measure(self, run, initialised=()):
        return Calibration().measure(run)
    def controls(self):
        return iter(())
"""
BROKEN = {
    "raises on import": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "ends the process": ("raise SystemExit(3)", "SystemExit: 3"),
    "is not there": (None, "ModuleNotFoundError"),
    "is another thing": ("Guest = 3", "offers no Probe"),
    "is no subclass": ("class Guest: name = 'guest'", "offers no Probe"),
    "is abstract": (PROBE.replace("def controls", "def other"), "leaves controls undefined"),
    "has no name": (PROBE.replace('name = "guest"', ""), "states no name of its own"),
    "has a name that is none": (PROBE.replace('"guest"', "3"), "states no name of its own"),
    "has a name in use": (PROBE.replace('"guest"', '"calibration"'), "is named 'calibration'"),
    "has no needs": (PROBE.replace("needs = Needs()", ""), "needs"),
    "needs something else": (PROBE.replace("Needs()", "3"), "needs"),
    "takes arguments": (PROBE.replace("    def measure", "    size: int\n    def measure"), "TypeError"),
    "raises in its measurement": (PROBE.replace("return Calibration", "1 / 0; return Calibration"), "ZeroDivision"),
    "returns something else": (PROBE.replace("return Calibration().measure(run)", "return 3"), "int"),
    "raises in its controls": (PROBE.replace("return iter(())", "return iter([3, 4])"), "AttributeError"),
}


@pytest.fixture
def guest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that offers `guest:Guest` as a probe; its source is yet to be written."""
    monkeypatch.syspath_prepend(folder / "site")
    monkeypatch.delitem(sys.modules, "guest", raising=False)
    info = folder / "site" / "guest-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bayesgeom.probes]\nguest = guest:Guest\n")
    importlib.invalidate_caches()
    return folder / "site" / "guest.py"


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plug_in_is_named_and_the_rest_runs(kind: str, guest: Path, folder: Path) -> None:
    text, reason = BROKEN[kind]
    if text is not None:
        guest.write_text(text)
    found = bayesgeom.diagnose("tiny", n=5, nulls=1)
    assert {"calibration", "key_overlap"} <= set(found)
    told = [why for name, why in found.skipped.items() if name.startswith("guest")]
    if kind == "raises in its controls":  # a diagnosis asks for none
        assert told == []
    else:
        assert len(told) == 1 and "guest" in told[0] and reason in told[0], told
        assert f"skipped guest: {told[0]}" in found.summary() and set(found) == set(found) - {"guest"}
    with warnings.catch_warnings(record=True):  # its reports might have been found in the same place
        warnings.simplefilter("always")
        found.save(folder / "run")
        assert set(Diagnosis.load(folder / "run")) == set(found)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plug_in_fails_the_selftest_and_the_rest_is_tested(
    kind: str, guest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, _ = BROKEN[kind]
    if text is not None:
        guest.write_text(text)
    module = importlib.import_module("bayesgeom.selftest")
    few = {name: own for name, own in all_probes().items() if name in ("guest", "key_overlap")}
    monkeypatch.setattr(module, "all_probes", lambda: few)
    verdicts = module.selftest()
    assert any(own.held for own in verdicts if own.probe == "key_overlap")
    bad = [own for own in verdicts if not own.held]
    measures = kind in ("raises in its measurement", "returns something else")  # it has no control that would show it
    assert measures or (bad and all(own.probe.startswith("guest") for own in bad))


def test_a_sound_plug_in_runs(guest: Path) -> None:
    guest.write_text(PROBE)
    found = bayesgeom.diagnose("tiny", n=5, nulls=0)
    assert "guest" in found and "guest" not in found.skipped


def test_a_broken_plug_in_that_was_named_is_an_error(guest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guest.write_text(BROKEN["raises in its measurement"][0] or "")
    assert main(["diagnose", "tiny", "--n", "5", "--nulls", "0", "--probes", "guest"]) == 2, "no traceback"
    assert "guest" in capsys.readouterr().err
    with pytest.raises(BayesGeomError, match="ZeroDivisionError"):
        bayesgeom.diagnose("tiny", n=5, nulls=0, probes=["guest"])


def test_a_broken_command_breaks_no_other(guest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = guest.parent / "guest-1.0.dist-info" / "entry_points.txt"
    info.write_text("[bayesgeom.commands]\nguest = guest:Guest\n")
    guest.write_text("raise RuntimeError('no licence')")
    with pytest.warns(UserWarning, match=r"plug-in 'guest' .*RuntimeError: no licence"):
        assert main(["diagnose", "tiny", *QUICK]) == 0


def test_what_is_broken_is_told_apart(guest: Path) -> None:
    guest.write_text("raise RuntimeError('no licence')")
    found, broken = discovered("bayesgeom.probes", Probe)  # type: ignore[type-abstract]  # as discovery does
    assert "calibration" in found
    assert broken == (
        Broken(name="guest", reason="plug-in 'guest' (guest:Guest) cannot be used: RuntimeError: no licence."),
    )
