"""Decide the order of a saved dynamics report again, from the curves that it stores; no training is needed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import read_safetensors
from bayesgeom.dynamics.order import order_of
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.results.diagnosis import Diagnosis, report_kinds
from bayesgeom.results.storage import ARRAYS, JSON


def decided_again(path: Path) -> Diagnosis:
    """Read a report of `bayesgeom dynamics`, of this version or an earlier one, and time its curves again.

    Args:
        path: Directory of the saved report.

    Returns:
        The diagnosis with the fields of `over_training.order`, everything else as it was saved.

    Raises:
        OutputFault: There is no readable dynamics report.
    """
    try:
        held = json.loads((path / JSON).read_text(encoding="utf-8"))
        arrays, _ = read_safetensors(path / ARRAYS, framework="numpy")
        scalars = held["reports"]
        own = _arrays_of(arrays, DynamicsReport.name)
        steps = [int(step) for step in scalars[DynamicsReport.name]["steps"]]
        fields = order_of(steps, own).fields()
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise OutputFault(f"{path} holds no readable report of `bayesgeom dynamics` ({error}).") from error
    axes = DynamicsReport.axes()
    scalars[DynamicsReport.name] |= {name: value for name, value in fields.items() if name not in axes}
    fresh = {name: value for name, value in fields.items() if name in axes}
    kinds = report_kinds()
    reports = {
        name: kinds[name].from_parts(
            values, {**_arrays_of(arrays, name), **(fresh if name == DynamicsReport.name else {})}
        )
        for name, values in scalars.items()
    }
    return Diagnosis(reports=reports, skipped=held["skipped"], provenance=held["provenance"])


def _arrays_of(arrays: Mapping[str, Any], report: str) -> dict[str, np.ndarray]:
    """One report's arrays, by field."""
    return {name.split("/", 1)[1]: values for name, values in arrays.items() if name.split("/", 1)[0] == report}
