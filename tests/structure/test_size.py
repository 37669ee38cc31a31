"""What ships in a wheel and in a source distribution, and what is committed: no caches, no derived files."""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from bayesgeom.report.storage import ARRAYS, HTML, JSON, METRICS
from tests.pages import READINGS
from tests.structure.source import ROOT
from tests.structure.test_machine_paths import project_files

STORED_BYTES, WHEEL_BYTES = 6e6, 25e6
COMPRESSED = 0.89  # of the weights 0.92 remains, of code and scripts a half
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
    assert 1e7 < COMPRESSED * size(found) <= WHEEL_BYTES
    assert not [path for path in found if "examples" in path.relative_to(ROOT).parts]


PLANTED = (
    ".hypothesis/x",
    "tests/.hypothesis/x",
    ".venv/x",
    "notes/x",
    "secrets.env",
    "dist/x",
    "tests/__pycache__/x",
    "runs/x",
)


def test_a_source_distribution_holds_what_is_committed_and_nothing_else_of_the_folder(tmp_path: Path) -> None:
    build = pytest.importorskip("hatchling.builders.sdist")
    root = tmp_path / "checkout"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    committed = [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]
    for path in committed:
        if path.suffix in (".py", ".toml", ".md") or len(path.parts) == 1:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, root / path)
    for name in PLANTED:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (archive,) = build.SdistBuilder(str(root)).build(directory=str(tmp_path))
    with tarfile.open(archive) as opened:
        contents = {Path(*Path(name).parts[1:]) for name in opened.getnames()}
    assert contents - {Path("PKG-INFO")} == {path for path in committed if (root / path).exists()}
    assert {path.parts[0] for path in contents} >= {
        "bayesgeom",
        "checkpoints",
        "tests",
        "README.md",
        "LICENSE",
        "Makefile",
    }


def test_committed_readings_hold_no_file_that_is_made_from_the_others() -> None:
    readings = [path for path in project_files(ROOT) if path.is_relative_to(READINGS)]
    assert any(path.name == JSON for path in readings)
    assert not [path for path in readings if path.name in (METRICS, HTML)], "to_pandas() and to_html() make them"
    assert size([path for path in readings if path.name in (JSON, ARRAYS)]) <= STORED_BYTES
