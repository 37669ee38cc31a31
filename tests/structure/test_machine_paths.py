"""No file of the project knows the machine that it was written on."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.source import ROOT, assert_none

# An absolute path into somebody's home or workspace, not the tail of a URL or of a relative path.
MACHINE_PATH = re.compile(r"(?<![\w.~:/$}-])(?:/(?:work|root)/[\w.]|/(?:home|Users)/[\w.-]+/|[A-Z]:\\Users\\)")


def machine_paths(name: str, text: str) -> Iterator[str]:
    """Each line that holds an absolute path into a home or workspace."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in MACHINE_PATH.finditer(line):
            yield f"{name}:{number}: {line[match.start() : match.start() + 40]}"


def project_files(root: Path) -> list[Path]:
    """What git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [root / name for name in listed.split("\0") if name and (root / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="no git checkout")
def test_no_file_holds_a_machine_path() -> None:
    found = []
    for path in project_files(ROOT):
        content = path.read_bytes()
        if b"\0" not in content[:4096]:
            found += machine_paths(str(path.relative_to(ROOT)), content.decode("utf-8", errors="replace"))
    assert_none(found)


@pytest.mark.parametrize("parts", [("work", "main"), ("home", "ada", "x")])
def test_a_machine_path_is_found(parts: tuple[str, ...]) -> None:
    assert len(list(machine_paths("f", "path = '/" + "/".join(parts) + "'"))) == 1
    assert not list(machine_paths("f", "https://example.org/" + "/".join(parts)))
