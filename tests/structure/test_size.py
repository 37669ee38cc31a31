"""What ships in a wheel, and what is committed: no examples in the one, no derived files in the other."""

import shutil
import tomllib
from pathlib import Path

import pytest

from bayesgeom.report.storage import ARRAYS, HTML, JSON, METRICS
from tests.pages import READINGS
from tests.structure.source import ROOT
from tests.structure.test_machine_paths import project_files

STORED_BYTES = 6e6
IS_CHECKOUT = (ROOT / ".git").exists() and bool(shutil.which("git"))
pytestmark = pytest.mark.skipif(not IS_CHECKOUT, reason="no git checkout")


def size(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def in_wheel(paths: list[Path]) -> list[Path]:
    """The files that the build configuration includes in a wheel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    included, excluded = ([ROOT / name for name in wheel[key]] for key in ("only-include", "exclude"))
    assert all(folder.is_dir() for folder in (*included, *excluded))
    return [
        path
        for path in paths
        if any(path.is_relative_to(folder) for folder in included)
        and not any(path.is_relative_to(folder) for folder in excluded)
    ]


def test_examples_are_not_in_the_wheel() -> None:
    assert not [path for path in in_wheel(project_files(ROOT)) if "examples" in path.relative_to(ROOT).parts]


def test_committed_readings_hold_no_file_that_is_made_from_the_others() -> None:
    readings = [path for path in project_files(ROOT) if path.is_relative_to(READINGS)]
    assert any(path.name == JSON for path in readings)
    assert not [path for path in readings if path.name in (METRICS, HTML)], "to_pandas() and to_html() make them"
    assert size([path for path in readings if path.name in (JSON, ARRAYS)]) <= STORED_BYTES
