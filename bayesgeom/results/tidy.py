"""The tidy table: one row per entry of every number in a report, and optionally one per baseline."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from bayesgeom.results.estimate import Baseline, Better, Estimate, Quantity
from bayesgeom.results.section import Reported
from bayesgeom.results.storage import axes_of, quantities_of, values_of

if TYPE_CHECKING:
    import pandas as pd


ESTIMATE = "estimate"
_ENDS = ("value", "low", "high")
COLUMN_OF_AXIS = {"layer": "layer", "head": "head", "kv_head": "head", "position": "position"}


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """One row. Layers, heads and positions are indices of arrays, from 0; `variant` names the entry along other axes.

    `baseline` is the value of the strongest baseline, `baseline_low` and `baseline_high` are the ends of its range if
    it has one, and `baseline_kind` is "baseline", "chance" or "permutation". `role` is "estimate". In rows of baselines
    it is the kind of the baseline, whose level is in `value`, `low` and `high`.
    """

    probe: str
    metric: str
    unit: str = ""
    variant: str | None = None
    layer: int | None = None
    head: int | None = None
    position: int | None = None
    value: float
    low: float = math.nan
    high: float = math.nan
    baseline: float = math.nan
    baseline_low: float = math.nan
    baseline_high: float = math.nan
    baseline_name: str = ""
    baseline_kind: str = ""
    role: str = ESTIMATE
    n: int


def records_of(report: Reported, *, baselines: bool = False, metric: str | None = None) -> list[Record]:
    """Return the rows of a report; fields with unnamed axes are left out.

    Args:
        report: The report.
        baselines: Whether to add a row per baseline after each entry.
        metric: Return the rows of this field alone; None for all.
    """
    values_by_field, declared = values_of(report), quantities_of(type(report))
    rows = [_row(report, name, value=value) for name, value in values_by_field.items() if isinstance(value, float)]
    for name, quantity in declared.items():
        if metric in (None, name) and _is_labeled(values_by_field, quantity.dims):
            rows.extend(_of_estimate(report, name, quantity, baselines=baselines))
    for name, axes in axes_of(type(report)).items():
        if metric in (None, name) and name not in declared and _is_labeled(values_by_field, axes):
            values = values_by_field[name]
            rows.extend(
                _row(report, name, value=float(values[index]), **_place(values_by_field, axes, index))
                for index in itertools.product(*map(range, values.shape))
            )
    return [row for row in rows if metric in (None, row.metric)]


def frame(records: Sequence[Record], provenance: Mapping[str, Any]) -> "pd.DataFrame":
    """Return rows as a table, with model, checkpoint and task as first columns if they are known."""
    import pandas as pd

    columns = [field.name for field in dataclasses.fields(Record)]
    table = pd.DataFrame([dataclasses.astuple(record) for record in records], columns=columns)
    table = table.astype({"layer": "Int64", "head": "Int64", "position": "Int64"})
    model = provenance.get("model", {})
    first = {"model": model.get("architecture"), "checkpoint": model.get("name"), "task": provenance.get("task_label")}
    for at, (column, value) in enumerate(first.items()):
        table.insert(at, column, value)
    return table


def _is_labeled(values_by_field: Mapping[str, Any], axes: Sequence[str]) -> bool:
    """Return whether every axis is a column of the table, or has names for its entries."""
    return all(axis in COLUMN_OF_AXIS or f"{axis}s" in values_by_field for axis in axes)


def _of_estimate(report: Reported, metric: str, quantity: Quantity, *, baselines: bool) -> Iterator[Record]:
    values_by_field = values_of(report)
    whole: Estimate = values_by_field[metric]
    (low, high), hardest = whole.ends, _hardest(whole, quantity.better)
    levels = [_levels(own, whole.value.shape) for own in whole.baselines]
    for index in np.ndindex(whole.value.shape):
        at = {"unit": quantity.unit, "n": whole.n or report.n, **_place(values_by_field, quantity.dims, index)}
        ends = {"value": float(whole.value[index]), "low": float(low[index]), "high": float(high[index])}
        baseline: dict[str, Any] = {}
        if (chosen := int(hardest[index])) >= 0:
            own, columns = whole.baselines[chosen], ("baseline", "baseline_low", "baseline_high")
            baseline = {"baseline_name": own.name, "baseline_kind": own.kind}
            baseline |= {column: float(end[index]) for column, end in zip(columns, levels[chosen], strict=True)}
        yield _row(report, metric, **at, **ends, **baseline)
        for own, ends_of in zip(whole.baselines, levels, strict=True) if baselines else ():
            known = dict(zip(_ENDS, (float(end[index]) for end in ends_of), strict=True))
            yield _row(report, metric, **at, **known, baseline_name=own.name, role=own.kind)


def _hardest(whole: Estimate, better: Better) -> np.ndarray:
    """Return the place of `Estimate.hardest_baseline` of every entry; -1 where no level is known."""
    found = np.full(whole.value.shape, -1)
    bars = np.full(whole.value.shape, -np.inf)
    sign = -1.0 if better == "lower" else 1.0
    for place, own in enumerate(whole.baselines):
        bar = sign * own.bar(better) if better else np.zeros(whole.value.shape)  # without a direction, the first known
        is_harder = (own.kind != "ceiling") & ~np.isnan(own.value) & ((found < 0) | (bar > bars))
        found, bars = np.where(is_harder, place, found), np.where(is_harder, bar, bars)
    return found


def _levels(own: Baseline, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Return value, low and high of a baseline; NaN where it has no range."""
    unknown = np.full(shape, np.nan)
    return own.value, unknown if own.low is None else own.low, unknown if own.high is None else own.high


def _row(report: Reported, metric: str, **known: Any) -> Record:
    return Record(probe=report.name, metric=metric, **({"n": report.n} | known))


def _place(values_by_field: Mapping[str, Any], axes: Sequence[str], index: Sequence[int]) -> dict[str, Any]:
    """Return layer, head and position of an entry, and its names along all other axes."""
    place = dict(zip(axes, index, strict=True))
    labels = [values_by_field[f"{axis}s"][i] for axis, i in place.items() if axis not in COLUMN_OF_AXIS]
    columns = {COLUMN_OF_AXIS[axis]: i for axis, i in place.items() if axis in COLUMN_OF_AXIS}
    return {"variant": " / ".join(labels) or None, **columns}
