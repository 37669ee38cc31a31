"""The example package, installed for one test: its files on the path, and its pyproject's entry points with them."""

import importlib
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = "bayesgeom_example"


def entry_points() -> dict[str, dict[str, str]]:
    """Entry points by group, as pyproject.toml declares them."""
    declared = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))
    groups: dict[str, dict[str, str]] = declared["project"]["entry-points"]
    return groups


def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package on the path with the metadata that an installer would write, until the test ends."""
    info = site / f"{PACKAGE}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bayesgeom-example\nVersion: 0.1.0\n")
    lines = [
        line
        for group, offered in entry_points().items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in offered.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
