"""A user's file passes `mypy --strict` as the package's types are installed, and runs."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bayesgeom
from tests.structure.source import ROOT
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures
USER = ROOT / "tests/typed/user_code.py"
CACHE = ROOT / ".mypy_cache/user"


@pytest.mark.exhaustive
@pytest.mark.timeout(900)  # mypy reads torch once: a minute on an idle core
def test_a_users_file_is_typed(tmp_path: Path) -> None:
    """In an empty folder, without the project's settings. Errors inside the package do not count, as for a user."""
    wrong, text = tmp_path / "wrong.py", USER.read_text(encoding="utf-8")
    wrong.write_text(text.replace("n=16", 'n="16"').replace("sites=[site]", "sites=3"), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={CACHE}"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    checked = subprocess.run(
        [*command, str(USER), str(wrong)], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    found = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert [line for line in found if not line.startswith("wrong.py")] == [], checked.stdout + checked.stderr
    assert any("Argument" in line for line in found) and any("No overload variant" in line for line in found)


@pytest.mark.exhaustive
def test_a_users_file_runs(tiny_checkpoints: Path) -> None:
    user = importlib.import_module("tests.typed.user_code")
    model = bayesgeom.load("bijection-v20")
    assert user.measure(model) == user.measure(model)
    assert user.edit(model)[0] == "movement" and user.own_module().n == 16
