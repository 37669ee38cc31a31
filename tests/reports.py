"""Saved reports that tests edit: the hash is made again, so that what stands behind it is tested."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from bayesgeom.core.plugins import _entry_points
from bayesgeom.report.report import Report
from bayesgeom.report.storage import ARRAYS, HASH, JSON, hashed


def write_resealed(path: Path, data: dict[str, Any]) -> None:
    """Write the JSON values of a report with the hash that belongs to them and to the arrays beside them."""
    rest = {key: value for key, value in data.items() if key != HASH}
    (path / JSON).write_text(json.dumps({**rest, HASH: hashed(rest, load_file(path / ARRAYS))}))


def as_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget every class of report without an entry point, as a process that has not imported it."""
    monkeypatch.setattr(Report, "__subclasses__", list)
    _entry_points.cache_clear()
