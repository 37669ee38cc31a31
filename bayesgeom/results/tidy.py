"""The tidy table: one row per entry of every number in a report, and optionally one per baseline."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from bayesgeom.results.estimate import Baseline, Estimate, Quantity
from bayesgeom.results.storage import axes_of, quantities_of

if TYPE_CHECKING:
    import pandas as pd


ESTIMATE = "estimate"
_ENDS = ("value", "low", "high")
_COLUMN_OF_AXIS = {"layer": "layer", "head": "head", "kv_head": "head", "position": "position"}


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """One row. Layers, heads and positions count from 0; `variant` names the entry along all other axes.

    `baseline` is the value of the strongest baseline, `baseline_low` and `baseline_high` are the ends of its range if
    it has one, and `baseline_kind` is "baseline", "chance" or "permutation". `role` is "estimate". In rows of baselines
    it is the kind of the baseline, whose level is in `value`, `low` and `high`.
    """

    probe: str
    metric: str
    unit: str
    variant: str | None
    layer: int | None
    head: int | None
    position: int | None
    value: float
    low: float
    high: float
    baseline: float
    baseline_low: float
    baseline_high: float
    baseline_name: str
    baseline_kind: str
    role: str
    n: int


def records_of(report: Any, *, baselines: bool = False) -> list[Record]:
    """Return the rows of a report; fields with unnamed axes are left out.

    Args:
        report: Any `Report`.
        baselines: Whether to add a row per baseline after each entry.
    """
    held, declared = vars(report), quantities_of(type(report))
    rows = [_row(report, name, value=value) for name, value in held.items() if isinstance(value, float)]
    for metric, quantity in declared.items():
        if _is_labeled(held, quantity.dims):
            rows.extend(row for row in _of_estimate(report, metric, quantity) if baselines or row.role == ESTIMATE)
    for metric, axes in axes_of(type(report)).items():
        if metric not in declared and _is_labeled(held, axes):
            values = held[metric]
            rows.extend(
                _row(report, metric, value=float(values[index]), **_place(held, axes, index))
                for index in itertools.product(*map(range, values.shape))
            )
    return rows


def frame(records: Sequence[Record], provenance: Mapping[str, Any]) -> "pd.DataFrame":
    """Return rows as a table, with model, checkpoint and task as first columns if they are known."""
    import pandas as pd

    columns = [field.name for field in dataclasses.fields(Record)]
    table = pd.DataFrame([dataclasses.astuple(record) for record in records], columns=columns)
    table = table.astype({"layer": "Int64", "head": "Int64", "position": "Int64"})
    model = provenance.get("model", {})
    for at, (column, value) in enumerate(
        (
            ("model", model.get("architecture")),
            ("checkpoint", model.get("name")),
            ("task", provenance.get("task_label")),
        )
    ):
        table.insert(at, column, value)
    return table


def _is_labeled(held: Mapping[str, Any], axes: Sequence[str]) -> bool:
    """Return whether every axis is a column of the table, or has names for its entries."""
    return all(axis in _COLUMN_OF_AXIS or f"{axis}s" in held for axis in axes)


def _of_estimate(report: Any, metric: str, quantity: Quantity) -> Iterator[Record]:
    held = vars(report)
    whole: Estimate = held[metric]
    for index in np.ndindex(whole.value.shape):
        own = whole[index]
        (low, high), hardest = own.ends, own.hardest_baseline(quantity.better)
        at = {"unit": quantity.unit, "n": own.n or report.n, **_place(held, quantity.dims, index)}
        beside = {} if hardest is None else {f"baseline_{part}": level for part, level in _levels(hardest).items()}
        beside["baseline"] = beside.pop("baseline_value", math.nan)
        yield _row(report, metric, value=float(own.value), low=float(low), high=float(high), **at, **beside)
        for level in own.baselines:
            named = {"baseline_name": level.name, "role": level.kind}
            yield _row(report, metric, **at, **named, **{k: v for k, v in _levels(level).items() if k in _ENDS})


def _levels(own: Baseline) -> dict[str, Any]:
    """Return value, ends, name and kind of a scalar's baseline."""
    ends = (math.nan if end is None else float(end) for end in (own.value, own.low, own.high))
    return {**dict(zip(_ENDS, ends, strict=True)), "name": own.name, "kind": own.kind}


def _row(report: Any, metric: str, **known: Any) -> Record:
    blank: dict[str, Any] = {
        "unit": "",
        "variant": None,
        "layer": None,
        "head": None,
        "position": None,
        "low": math.nan,
        "high": math.nan,
        "baseline": math.nan,
        "baseline_low": math.nan,
        "baseline_high": math.nan,
        "baseline_name": "",
        "baseline_kind": "",
        "role": ESTIMATE,
        "n": report.n,
    }
    return Record(probe=report.name, metric=metric, **(blank | known))


def _place(held: Mapping[str, Any], axes: Sequence[str], index: Sequence[int]) -> dict[str, Any]:
    """Return layer, head and position of an entry, and its names along all other axes."""
    place = dict(zip(axes, index, strict=True))
    labels = [held[f"{axis}s"][i] for axis, i in place.items() if axis not in _COLUMN_OF_AXIS]
    columns = {_COLUMN_OF_AXIS[axis]: i for axis, i in place.items() if axis in _COLUMN_OF_AXIS}
    return {"variant": " / ".join(labels) or None, **columns}
