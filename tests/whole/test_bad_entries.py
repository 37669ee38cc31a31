"""One bad checkpoint or plug-in is named, and everything else works."""

import importlib
import sys
from pathlib import Path

import pytest

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.diagnosis.plan import all_measurements
from tests.test_cli import QUICK, save


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    save(tmp_path / "checkpoints" / "tiny")
    return tmp_path


def test_a_bad_checkpoint_is_listed_with_its_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints"]) == 0
    sound = capsys.readouterr().out
    root = folder / "checkpoints"
    for name, text in {"a-torn": "{", "b-nested": "[" * 100_000, "c-newer": '{"schema": 99}'}.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(text)
    (root / "d-half").mkdir()
    (root / "d-half" / "model.safetensors").write_bytes((root / "tiny" / "model.safetensors").read_bytes())
    (root / "e-packed").mkdir()
    (root / "e-packed" / "formation.json").write_text('{"schema": 2')
    assert main(["checkpoints"]) == 0
    out = capsys.readouterr().out
    assert sound in out
    for name in (entry.name for entry in root.iterdir() if entry.name[1] == "-"):
        assert out.split(f"{name}\n")[1].splitlines()[0].startswith("  error"), name


PROBE = """
from dataclasses import dataclass
from bayesgeom.measurements.base import Needs, Probe
from bayesgeom.measurements.calibration import Calibration

@dataclass(frozen=True)
class Guest(Probe):
    name = "{name}"
    needs = Needs()
    def measure(self, run, untrained=()):
        return Calibration().measure(run)
    def controls(self):
        return iter(())
"""
BROKEN = {
    "import": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "absent": (None, "ModuleNotFoundError"),
    "number": ("Guest = 3", "it offers no Measurement"),
    "abstract": (PROBE.replace("def controls", "def other"), "leaves controls undefined"),
    "nameless": (PROBE.replace('name = "{name}"', ""), "has no attribute `name` of its own"),
    "twin": (PROBE.replace("{name}", "calibration"), "are named 'calibration'"),
    "needy": (PROBE.replace("Needs()", "3"), "needs"),
    "divides": (PROBE.replace("return Calibration", "1 / 0; return Calibration"), "ZeroDivisionError"),
    "returns": (PROBE.replace("return Calibration().measure(run)", "return 3"), "must return a Report, got int"),
    "control": (PROBE.replace("return iter(())", "return iter([3, 4])"), "AttributeError"),
}
ONLY_IN_THE_SELFTEST, ONLY_IN_A_DIAGNOSIS = {"control"}, {"divides", "returns"}


def install(site: Path, group: str, modules: dict[str, str | None]) -> None:
    """An installed package that offers `Guest` of each module; a module without a text is not there."""
    info = site / "guest-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    offered = "".join(f"{name} = guest_{name}:Guest\n" for name in modules)
    (info / "entry_points.txt").write_text(f"[{group}]\n{offered}")
    for name, text in modules.items():
        sys.modules.pop(f"guest_{name}", None)
        if text is not None:
            (site / f"guest_{name}.py").write_text(text.replace("{name}", name))
    importlib.invalidate_caches()


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(folder / "site")
    return folder / "site"


def test_broken_plug_ins_are_named_and_the_rest_is_measured(site: Path) -> None:
    install(site, "bayesgeom.probes", {name: text for name, (text, _) in BROKEN.items()})
    found = bayesgeom.diagnose("tiny", n=5, n_untrained=1)
    assert {"calibration", "key_overlap"} <= set(found) - set(BROKEN) == set(found) - ONLY_IN_THE_SELFTEST
    for name in BROKEN.keys() - ONLY_IN_THE_SELFTEST:
        assert f"{name!r} " in found.skipped[name] and BROKEN[name][1] in found.skipped[name], name
    assert all(f"\nskipped {name}: " in found.summary() for name in BROKEN.keys() - ONLY_IN_THE_SELFTEST)


def test_broken_plug_ins_fail_the_selftest_and_the_rest_is_tested(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "bayesgeom.probes", {name: text for name, (text, _) in BROKEN.items()})
    module = importlib.import_module("bayesgeom.selftest.run")
    few = {name: own for name, own in all_measurements().items() if name in (*BROKEN, "key_overlap")}
    monkeypatch.setattr(module, "all_measurements", lambda: few)
    monkeypatch.setattr(module, "intervention_controls", lambda: ())  # no plug-ins; their tests: tests/interventions
    verdicts = module.selftest()
    assert [own for own in verdicts if own.probe == "key_overlap" and own.passed]
    failed = {own.probe: own.control for own in verdicts if not own.passed}
    assert failed.keys() == BROKEN.keys() - ONLY_IN_A_DIAGNOSIS
    assert all(BROKEN[name][1] in why for name, why in failed.items())


def test_a_sound_plug_in_runs_and_a_broken_one_that_was_named_is_an_error(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "bayesgeom.probes", {"sound": PROBE, "divides": BROKEN["divides"][0]})
    found = bayesgeom.diagnose("tiny", n=5, n_untrained=0, probes=["sound"])
    assert list(found) == ["sound"] and "sound" not in found.skipped
    assert main(["diagnose", "tiny", "--n", "5", "--n-untrained", "0", "--probes", "divides"]) == 2
    output = capsys.readouterr().err
    assert output.startswith("bayesgeom: p") and "'divides'" in output and "ZeroDivisionError" in output
    assert output.count("\n") == 1


def test_a_broken_command_breaks_no_other(site: Path) -> None:
    install(site, "bayesgeom.commands", {"import": BROKEN["import"][0]})
    assert main(["diagnose", "tiny", *QUICK]) == 0
    with pytest.warns(UserWarning, match=r"plug-in 'import' \(guest_import:Guest\) cannot be used: RuntimeError: no"):
        assert main(["import"]) == 2
