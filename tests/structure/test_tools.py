"""The linter, the formatter and the type checker can complain, as configured; `make lint` runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.structure.source import ROOT

LINT = ("ruff", "check", "--no-fix", "--output-format=concise")
FORMAT = ("ruff", "format", "--check")
TYPES = ("mypy",)


def complaints(command: tuple[str, ...], *arguments: str) -> str:
    """What a tool of this environment says when it is not satisfied; empty when it is."""
    done = subprocess.run(
        [sys.executable, "-m", *command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "text", "complaint"),
    [
        (LINT, "import os\n", "F401"),
        (FORMAT, "x=1\n", "reformatted"),
        pytest.param(
            (*TYPES, "--cache-dir", os.devnull),
            "def f(x): return x\n",
            "no-untyped-def",
            # Without its cache the type checker reads all of torch: half a minute alone, far more on a busy machine.
            marks=(pytest.mark.exhaustive, pytest.mark.timeout(900)),
        ),
    ],
    ids=["lint", "format", "types"],
)
def test_tool_can_complain(command: tuple[str, ...], text: str, complaint: str, tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(text)
    assert complaint in complaints(command, "--config", str(ROOT / "pyproject.toml"), str(planted))
