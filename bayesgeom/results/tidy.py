"""The tidy table: one row per entry of every number in a report, and optionally one per baseline.

Every axis of a quantity is a column. Layers, heads and positions are integers, the indices of arrays from 0. Any other
axis has the names of its entries, as integers if all of them are. Fields marked as a `Coordinate` of an axis are also
columns: rows of an ablation have layer and head of the ablated component.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from bayesgeom.core.verdict import Reason
from bayesgeom.results.estimate import Baseline, Better, Estimate, Quantity
from bayesgeom.results.section import Reported
from bayesgeom.results.storage import axes_of, coordinates_of, quantities_of, values_of

if TYPE_CHECKING:
    import pandas as pd


ESTIMATE = "estimate"
_ENDS = ("value", "low", "high")
INDICES = {"layer": "layer", "head": "head", "kv_head": "head", "position": "position"}  # axes and their columns
Place = int | str | None


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """One row. `places` names the entry: an index or a name by column, such as layer, head, site or ablation.

    `baseline` is the value of the strongest baseline, `baseline_low` and `baseline_high` are the ends of its range if
    it has one, and `baseline_kind` is "baseline", "chance" or "permutation". `role` is "estimate". In rows of baselines
    it is the kind of the baseline, whose level is in `value`, `low` and `high`. `reason` is the label of a code, why
    there is no interval; "" where there is one, or none is estimated.
    """

    probe: str
    metric: str
    unit: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)
    value: float
    low: float = math.nan
    high: float = math.nan
    reason: str = ""
    conservative: bool = False
    baseline: float = math.nan
    baseline_low: float = math.nan
    baseline_high: float = math.nan
    baseline_name: str = ""
    baseline_kind: str = ""
    role: str = ESTIMATE
    n: int

    def place(self, column: str) -> Place:
        """Return the index or the name of the entry along an axis; None if its quantity has no such axis."""
        return self.places.get(column)


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
    hidden = coordinates_of(type(report))
    for name, axes in axes_of(type(report)).items():
        is_number = name not in declared and name not in hidden
        if metric in (None, name) and is_number and _is_labeled(values_by_field, axes):
            values, places = values_by_field[name], _places(report, axes)
            rows.extend(
                _row(report, name, value=float(values[index]), places=places(index))
                for index in itertools.product(*map(range, values.shape))
            )
    return [row for row in rows if metric in (None, row.metric)]


def frame(records: Sequence[Record], provenance: Mapping[str, Any]) -> "pd.DataFrame":
    """Return rows as a table, with model, checkpoint and task as first columns if they are known."""
    import pandas as pd

    fixed = [each.name for each in dataclasses.fields(Record) if each.name != "places"]
    named = dict.fromkeys((*dict.fromkeys(INDICES.values()), *(column for row in records for column in row.places)))
    taken = {*fixed, "model", "checkpoint", "task"}
    at, renamed = fixed.index("unit") + 1, {name: f"{name}_axis" if name in taken else name for name in named}
    table = pd.DataFrame({name: [vars(record)[name] for record in records] for name in fixed[:at]})
    for name, column in renamed.items():
        values = [record.places.get(name) for record in records]
        is_whole = name in INDICES.values() or not any(isinstance(value, str) for value in values)
        table[column] = pd.array(values, dtype="Int64") if is_whole else pd.Series(values, dtype=object)
    for name in fixed[at:]:
        table[name] = [vars(record)[name] for record in records]
    model = provenance.get("model", {})
    first = {"model": model.get("architecture"), "checkpoint": model.get("name"), "task": provenance.get("task_label")}
    for place, (column, value) in enumerate(first.items()):
        table.insert(place, column, value)
    return table


def _is_labeled(values_by_field: Mapping[str, Any], axes: Sequence[str]) -> bool:
    """Return whether every axis is a column of the table, or has names for its entries."""
    return all(axis in INDICES or f"{axis}s" in values_by_field for axis in axes)


def _of_estimate(report: Reported, metric: str, quantity: Quantity, *, baselines: bool) -> Iterator[Record]:
    whole: Estimate = values_of(report)[metric]
    (low, high), hardest, places = whole.ends, _hardest(whole, quantity.better), _places(report, quantity.dims)
    levels = [_levels(own, whole.value.shape) for own in whole.baselines]
    for index in np.ndindex(whole.value.shape):
        at = {"unit": quantity.unit, "n": whole.n or report.n, "places": places(index)}
        ends = {"value": float(whole.value[index]), "low": float(low[index]), "high": float(high[index])}
        is_conservative = whole.reason_at(index) == Reason.CONSERVATIVE
        stated = {"conservative": is_conservative, "reason": "" if is_conservative else str(whole.reason_at(index))}
        baseline: dict[str, Any] = {}
        if (chosen := int(hardest[index])) >= 0:
            own, columns = whole.baselines[chosen], ("baseline", "baseline_low", "baseline_high")
            baseline = {"baseline_name": own.name, "baseline_kind": own.kind}
            baseline |= {column: float(end[index]) for column, end in zip(columns, levels[chosen], strict=True)}
        yield _row(report, metric, **at, **ends, **stated, **baseline)
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


def _places(report: Reported, axes: Sequence[str]) -> Callable[[Sequence[int]], dict[str, Place]]:
    """Return a function of an index along some axes: its columns, with indices, names and coordinates."""
    values_by_field, columns = values_of(report), list[tuple[int, str, Sequence[Place] | None]]()
    for at, axis in enumerate(axes):
        names = None if axis in INDICES else _as_integers(values_by_field[f"{axis}s"])
        columns.append((at, INDICES.get(axis, axis), names))
        along = [name for name, own in coordinates_of(type(report)).items() if own == axis]
        columns += [(at, _column(name, own := values_by_field[name]), _coordinate(own)) for name in along]
    return lambda index: {column: index[at] if names is None else names[index[at]] for at, column, names in columns}


def _column(name: str, values: object) -> str:
    return name.removesuffix("s") if isinstance(values, tuple) else name


def _coordinate(values: Any) -> Sequence[Place]:
    if isinstance(values, tuple):
        return values
    return [None if value < 0 else int(value) for value in values.tolist()]


def _as_integers(names: Sequence[str]) -> Sequence[Place]:
    """Return names as integers if all of them are written as integers, such as training steps."""
    return [int(name) for name in names] if all(re.fullmatch(r"0|[1-9]\d*", name) for name in names) else names
