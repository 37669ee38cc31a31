"""Restate a saved comparison, of this version or an earlier one: its models are not needed, its tasks are."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from bayesgeom.comparison.cell import Cell, cell
from bayesgeom.comparison.report import ComparisonReport, stated, verdict_on
from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import read_safetensors
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.storage import ARRAYS, JSON
from bayesgeom.training.scores import Levels, levels


def restated(path: Path) -> Diagnosis:
    """Read a saved comparison and state its terms, baselines and verdicts by the present rules.

    Scores stay as they were measured. Baselines are scored on the same sequences. The effective memory needs the model:
    where an earlier version did not store it, it stays unknown.

    Args:
        path: Directory of the saved report.

    Raises:
        OutputFault: There is no readable comparison.
    """
    try:
        held = json.loads((path / JSON).read_text(encoding="utf-8"))
        tensors, _ = read_safetensors(path / ARRAYS, framework="numpy")
        scalars = held["reports"][ComparisonReport.name]
        arguments = held["provenance"]["arguments"]
        rows = zip(*(scalars[name] for name in ("task_of", "architecture_of", "checkpoints", "is_check")), strict=True)
        cells = [_cell(*row) for row in rows]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise OutputFault(f"{path} holds no readable report of `bayesgeom compare` ({error}).") from error
    arrays = {name.split("/", 1)[1]: values for name, values in tensors.items()}
    n, seed = int(arguments["n"]), int(arguments["seed"])
    by_task = {own.task: levels(own.recipe.task, n=n, seed=seed) for own in {own.task: own for own in cells}.values()}
    found = [by_task[own.task] for own in cells]
    memory = arrays.get("memory_symbols", np.full(len(cells), math.nan))
    verdicts = [
        verdict_on(own.task, float(share), float(symbols), known.window_gap_bits)
        for own, share, symbols, known in zip(cells, arrays["share_closed"], memory, found, strict=True)
    ]
    fields = {
        **stated(cells, verdicts),
        **_strongest(found),
        "memory_symbols": memory,
        "memory_symbols_hi": arrays.get("memory_symbols_hi", np.full(len(cells), math.nan)),
    }
    axes = ComparisonReport.axes()
    report = ComparisonReport.from_parts(
        {**scalars, **{name: value for name, value in fields.items() if name not in axes}},
        {**arrays, **{name: value for name, value in fields.items() if name in axes}},
    )
    return Diagnosis.of(report, held["provenance"])


def _cell(task: str, architecture: str, checkpoint: str, is_check: bool) -> Cell:
    """The cell of a row, its seed read from the checkpoint's name."""
    _, has_seed, after = checkpoint.partition("-seed")
    return cell(task, architecture, seed=int(after.split("-")[0]) if has_seed else 0, is_check=is_check)


def _strongest(found: list[Levels]) -> dict[str, Any]:
    strongest = [min(own.kl_bits.items(), key=lambda entry: entry[1]) for own in found]
    return {
        "strongest_baselines": tuple(name for name, _ in strongest),
        "strongest_baseline_kl_bits": np.array([level for _, level in strongest]),
        "window_gap_bits": np.array([own.window_gap_bits for own in found]),
    }
