"""What ships in a wheel, and what is committed: no examples in the one, no derived files in the other."""

import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from bayesgeom.report.storage import ARRAYS, HTML, JSON, METRICS
from tests.pages import READINGS
from tests.structure.source import ROOT
from tests.structure.test_machine_paths import project_files

STORED_BYTES, WHEEL_BYTES = 6e6, 25e6
IS_CHECKOUT = (ROOT / ".git").exists() and bool(shutil.which("git"))
pytestmark = pytest.mark.skipif(not IS_CHECKOUT, reason="no git checkout")


def size(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def in_wheel(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that the build configuration includes in a wheel; the build's own library need not be installed."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    interface = SimpleNamespace(BuildHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(hook := importlib.util.module_from_spec(spec))
    included = [ROOT / name for name in build["targets"]["wheel"]["only-include"]]
    excluded = {path for pattern in build["exclude"] for path in ROOT.glob(pattern)}
    assert excluded and all(folder.is_dir() for folder in included)
    carried = hook.carried(ROOT / "checkpoints")
    assert {path.parent.name for path in carried} > {*hook.FLAGSHIPS}, "some are small"
    found = [path for path in project_files(ROOT) if any(path.is_relative_to(folder) for folder in included)]
    return [path for path in found if path not in excluded or path in carried]


def test_a_wheel_is_small_and_holds_no_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_wheel(monkeypatch)
    assert 1e7 < size(found) <= WHEEL_BYTES  # before compression
    assert not [path for path in found if "examples" in path.relative_to(ROOT).parts]


def test_committed_readings_hold_no_file_that_is_made_from_the_others() -> None:
    readings = [path for path in project_files(ROOT) if path.is_relative_to(READINGS)]
    assert any(path.name == JSON for path in readings)
    assert not [path for path in readings if path.name in (METRICS, HTML)], "to_pandas() and to_html() make them"
    assert size([path for path in readings if path.name in (JSON, ARRAYS)]) <= STORED_BYTES
