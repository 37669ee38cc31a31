"""The linter, the formatter and the type checker have nothing to say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.structure.source import ROOT, assert_none

# Without its cache the type checker reads all of torch: half a minute alone, far more on a busy machine.
pytestmark = pytest.mark.timeout(900)

LINT = ("ruff", "check", "--no-fix", "--output-format=concise")
FORMAT = ("ruff", "format", "--check")
TYPES = ("mypy",)


def complaints(command: tuple[str, ...], *arguments: str) -> str:
    """What a tool of this environment says when it is not satisfied; empty when it is."""
    done = subprocess.run(
        [sys.executable, "-m", *command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("command", [LINT, FORMAT, TYPES], ids=["lint", "format", "types"])
def test_tool_is_satisfied(command: tuple[str, ...]) -> None:
    assert_none(complaints(command).splitlines())


@pytest.mark.parametrize(
    ("command", "text", "complaint"),
    [
        (LINT, "import os\n", "F401"),
        (FORMAT, "x=1\n", "reformatted"),
        ((*TYPES, "--cache-dir", os.devnull), "def f(x): return x\n", "no-untyped-def"),
    ],
    ids=["lint", "format", "types"],
)
def test_tool_can_complain(command: tuple[str, ...], text: str, complaint: str, tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(text)
    assert complaint in complaints(command, "--config", str(ROOT / "pyproject.toml"), str(planted))
