"""Results as rows: headlines, the tidy table, and a labeled dataset.

Every axis of a quantity is a column of the tidy table. Layers and heads are integers from 0, as in arrays; positions
count from 1, as on pages. Any other axis has the names of its entries, as integers if all of them are. Fields marked as
a `Coordinate` of an axis are also columns: rows of an ablation have layer and head of the ablated component.
"""

import dataclasses
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, final, runtime_checkable

import numpy as np

from bayesgeom.core import InvalidArgument, Reason, Verdict, number_text
from bayesgeom.core.errors import optional_package
from bayesgeom.core.text import interval_text, labeled_text, measured_text
from bayesgeom.report.estimate import UNTRAINED, Baseline, Better, Estimate, Quantity, within
from bayesgeom.report.storage import axes_of, coordinates_of, quantities_of, units_of, values_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from anywidget import AnyWidget

    from bayesgeom.report.findings import Opening
    from bayesgeom.report.panels import Panel

ESTIMATE = "estimate"
BARE_SHARE = 0.1  # of the way from the strongest baseline to the best value: a smaller margin is "barely"
MOST = ", most"  # at the end of a baseline's name if only the largest of its draws is stored
_ENDS = ("value", "low", "high")
INDICES = {"layer": "layer", "head": "head", "kv_head": "head", "position": "position"}  # axes and their columns
Place = int | str | None
Chosen = Mapping[tuple[str, tuple[int, ...]], Mapping[str, Any]]  # intervals by field and index


class Reported(ABC):
    """The part of a `Report` that pages and tables read; they cannot import `Report`, which imports them."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    counts: ClassVar[str] = "sequence"
    limit: ClassVar[str] = ""
    is_behavioral: ClassVar[bool] = False
    n: int
    provenance: Mapping[str, Any]

    @abstractmethod
    def headlines(self) -> "Sequence[Headline]":
        """Return the numbers to read first.

        Returns:
            One headline per number, most important first.
        """

    @abstractmethod
    def panels(self) -> "Sequence[Panel]":
        """Return the plots of the stored numbers, including baselines."""

    @property
    def unchanged_kl_bits(self) -> Estimate | None:
        """KL of the model without any change, next to that of context-free predictors; None if it is not stored."""
        return None

    def headline(self) -> "Headline | None":
        """Return the number that answers the question: the first with a verdict or a reason, else the first."""
        lines = self.headlines()
        return next((line for line in lines if line.verdict or line.why), lines[0] if lines else None)

    def answer(self) -> "Opening | None":
        """Return what the report says, as a code with its numbers; None: its first number with a verdict says it."""
        return None


@final
@dataclass(frozen=True, kw_only=True)
class FirstView:
    """What the viewer shows first: the tokens up to a position, and exact and model probability of each answer."""

    tokens: tuple[str, ...]
    answers: Mapping[str, tuple[float, float]]


@runtime_checkable
class Viewed(Protocol):
    """A report that the viewer shows: `InsideReport`, of a layer above."""

    def payload(self) -> bytes:
        """Return the data of the viewer."""

    def first_view(self) -> FirstView:
        """Return what the viewer shows first."""

    def view(self, model: Any = None) -> "AnyWidget":
        """Return the viewer as a widget for notebooks."""


@final
@dataclass(frozen=True, kw_only=True)
class Level:
    """A baseline of one number: the level to exceed, and the mean of its range where this is the far end of one."""

    name: str
    value: float
    bound: str = ""  # "≤ " or "≥ " before the end of a range, such as the largest of several draws
    mean: float = math.nan

    def __str__(self) -> str:
        mean = "" if math.isnan(self.mean) else f", mean {number_text(self.mean)}"
        return f"{self.bound}{number_text(self.value)} ({self.name}{mean})"


@final
@dataclass(frozen=True, kw_only=True)
class Headline:
    """One number with its 95 % interval and its baselines.

    Args:
        metric: Field of the report, or property that computes it from others.
        label: Label in tables.
        value: The number.
        unit: Its unit, "" for none.
        low: Lower end of the interval, NaN without one.
        high: Upper end.
        reason: Why the interval is withheld, or that it is conservative.
        levels: Its baselines, the strongest first.
        verdict: Whether the interval lies beyond every baseline, or a verdict of the report; "" without one.
        why: The code of the reason for the verdict; "" without one.
        chosen_of: Number of entries among which this one was chosen; its interval then allows for the choice.
        at: Index of the entry along every axis of the field; empty for a scalar.
    """

    metric: str
    label: str
    value: float
    unit: str = ""
    low: float = math.nan
    high: float = math.nan
    reason: Reason = Reason.NONE
    levels: tuple[Level, ...] = ()
    verdict: str = ""
    why: str = ""
    chosen_of: int = 1
    at: tuple[int, ...] = ()

    @classmethod
    def computed(cls, metric: str, label: str, value: float, unit: str = "", *, verdict: str = "") -> Self:
        """Return a number that a report computes from its fields; it has no interval and no baseline."""
        return cls(metric=metric, label=label, value=value, unit=unit, verdict=verdict)

    def __str__(self) -> str:
        interval = f"no interval: {self.no_interval}" if self.no_interval else self.interval
        number = labeled_text(self.label, self.value_text)
        parts = (f"{number}{f' [{interval}]' if interval else ''}", *self.baselines)
        return "; ".join((*parts, *([f"verdict: {self.verdict}"] if self.verdict else [])))

    @property
    def value_text(self) -> str:
        """The number with its unit; a dash if it is missing."""
        return measured_text(self.value, self.unit)

    @property
    def interval(self) -> str:
        """Both ends; "" without an interval."""
        return "" if math.isnan(self.low) else interval_text(self.low, self.high)

    @property
    def no_interval(self) -> str:
        """The label of the reason why there is no interval; "" where there is one, or none is to be expected."""
        return self.reason.label if math.isnan(self.low) and self.reason != Reason.CONSERVATIVE else ""

    @property
    def baseline(self) -> float:
        """The level of the strongest baseline; NaN without one."""
        return self.levels[0].value if self.levels else math.nan

    @property
    def baseline_name(self) -> str:
        """The name of the strongest baseline; "" without one."""
        return self.levels[0].name if self.levels else ""

    @property
    def baselines(self) -> list[str]:
        """Level and name of each baseline, the strongest first."""
        return [str(level) for level in self.levels]


def model_name(provenance: Mapping[str, Any]) -> str:
    """Return the name of the model; of a snapshot of a training, that of the training; "" if it is unknown."""
    model = provenance.get("model")
    name = str(model.get("name") or "") if isinstance(model, Mapping) else ""
    return str(provenance.get("recipe", {}).get("name", name)) if name.startswith("step-") else name


def settings_of(provenance: Mapping[str, Any]) -> str:
    """Return the arguments that name something, such as "kind=swap, site=resid_pre"; "" without any."""
    arguments = provenance.get("arguments", {})
    return ", ".join(f"{name}={value}" for name, value in arguments.items() if isinstance(value, str))


def headline_of(
    report: Reported,
    metric: str,
    at: tuple[int, ...] = (),
    label: str = "",
    *,
    own: Estimate | None = None,
    chosen_of: int = 1,
    verdict: str | None = None,
) -> Headline:
    """Return one entry of an estimate as a headline.

    Args:
        report: The report.
        metric: Name of a field that is an estimate.
        at: Index of the entry along every axis; empty for a scalar.
        label: Label in tables. Default: the label of its quantity.
        own: The entry, where its interval differs from that in the field: see `Estimate.extreme`.
        chosen_of: Number of entries among which it was chosen.
        verdict: A verdict of the report. Default: whether the interval lies beyond every baseline. A single untrained
            network decides nothing about activations.
    """
    quantity = quantities_of(type(report))[metric]
    whole: Estimate = values_of(report)[metric]
    own = whole[at] if own is None else within(own, *quantity.range)
    (low, high), levels = own.ends, levels_of(own, quantity.better)
    has_verdict, why = bool(levels and quantity.better), ""
    reason = Reason.NOT_COMPUTED if has_verdict and own.low is None else own.reason_at()
    if verdict is None:
        verdict = _verdict(own, quantity, levels) if has_verdict else ""
        if verdict and not report.is_behavioral and _rests_on_one(own, quantity.better):
            verdict, why = str(Verdict.UNDECIDED), str(Reason.ONE_UNTRAINED)
    return Headline(
        metric=metric,
        label=label or quantity.label,
        value=float(own.value),
        unit=quantity.unit,
        low=float(low),
        high=float(high),
        reason=Reason.NONE if np.isnan(own.value) else reason,
        levels=levels,
        verdict=verdict,
        why=why,
        chosen_of=1 if np.isnan(low) else chosen_of,
        at=tuple(int(index) % size for index, size in zip(at, whole.value.shape, strict=True)),
    )


def _verdict(own: Estimate, quantity: Quantity, levels: Sequence[Level]) -> str:
    """Return whether the interval of a scalar lies beyond every baseline, and "barely" where that is by little."""
    found = str(own.clears(quantity.better))
    best = quantity.range[quantity.better == "higher"]
    margin, room = abs(float(own.value) - levels[0].value), abs(best - levels[0].value)
    is_little = math.isfinite(best) and margin < BARE_SHARE * room
    return str(Verdict.BARELY) if found == Verdict.YES and is_little else found


def _rests_on_one(own: Estimate, better: Better) -> bool:
    """Return whether a scalar is decided, and a single untrained network has a part in it."""
    others = tuple(each for each in own.compared if each.name != UNTRAINED or each.low is not None)
    if len(others) == len(own.compared) or own.clears(better) == Verdict.UNDECIDED:
        return False
    return bool(dataclasses.replace(own, baselines=others).clears(better) != Verdict.NO)


def extreme_of(report: Reported, metric: str, which: Any, label: str, at: tuple[Any, ...] = ()) -> Headline:
    """Return the largest (smallest) entry of an estimate, with an interval that allows for the choice.

    Args:
        report: The report.
        metric: Name of a field that is an estimate.
        which: "largest" or "smallest".
        label: Label in tables, with the place in the place of braces: "L2H4", or the index along a single other axis.
        at: Indices along the first axes; the entry is chosen along the others.
    """
    whole: Estimate = values_of(report)[metric]
    place, own = whole[at].extreme(which)
    dims = quantities_of(type(report))[metric].dims[len(at) :]
    letters = {"layer": "L", "head": "H", "kv_head": "K"}
    named = "".join(f"{letters.get(dim, '')}{index}" for dim, index in zip(dims, place, strict=True))
    count = int((~np.isnan(whole[at].value)).sum())
    return headline_of(report, metric, (*at, *place), label.format(named), own=own, chosen_of=count)


def headline_of_largest(
    report: Reported,
    metric: str,
    at: tuple[int, ...],
    label: str,
    chosen: Estimate,
    *,
    whole: Estimate | None = None,
    verdict: str | None = None,
) -> Headline:
    """Return the headline of a largest entry, with an interval that allows for its choice where there is one.

    Args:
        report: The report.
        metric: Name of a field that is an estimate.
        at: Index of the entry.
        label: Label in tables.
        chosen: The entry, as `Estimate.extreme` returns it.
        whole: All entries. Default: the field.
        verdict: As in `headline_of`.
    """
    whole = values_of(report)[metric] if whole is None else whole
    if chosen.reason_at() in (Reason.MANY, Reason.HIDDEN) and not whole[at].is_withheld:
        line = headline_of(report, metric, at, label, own=whole[at], verdict="")
        return dataclasses.replace(line, why=str(Reason.CHOICE_IGNORED))
    count = int(np.isfinite(whole.value).sum())
    return headline_of(report, metric, at, label, own=chosen, chosen_of=count, verdict=verdict)


def chosen_intervals(report: Reported) -> list[dict[str, Any]]:
    """Return the intervals of headlines that allow for the choice of an entry, with field, index and number of entries.

    The field holds the interval of every entry alone, which is narrower.
    """
    lines = (own for own in report.headlines() if own.chosen_of > 1)
    return [
        {"metric": own.metric, "at": own.at, "chosen_low": own.low, "chosen_high": own.high, "chosen_of": own.chosen_of}
        for own in lines
    ]


def ceiling_of(report: Reported, metric: str, at: tuple[int, ...], label: str) -> Headline:
    """Return the ceiling of one entry of an estimate as a headline."""
    whole: Estimate = values_of(report)[metric]
    return Headline.computed(metric, label, float(whole.ceiling[at]), quantities_of(type(report))[metric].unit)


def levels_of(own: Estimate, better: Better) -> tuple[Level, ...]:
    """Return the known baselines of a scalar, the strongest first; without a direction in the given order."""
    known = [each for each in own.compared if not math.isnan(float(each.value))]
    if better:
        known.sort(key=lambda each: float(each.bar(better)), reverse=better == "higher")
    return tuple(_level(each, better) for each in known)


def _level(own: Baseline, better: Better) -> Level:
    """Return a baseline with the level to exceed; window_1_uniform in words, but W_K as it is."""
    bar, mean = float(own.bar(better)), float(own.value)
    is_end = bar != mean or own.name.endswith(MOST)
    bound = {"higher": "≤ ", "lower": "≥ ", "": ""}[better] * is_end
    name = re.sub("_(?=[a-z0-9])", " ", own.name.removesuffix(MOST))
    return Level(name=name, value=bar, bound=bound, mean=mean if bar != mean else math.nan)


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """One row. `places` names the entry: an index or a name by column, such as layer, head, site or ablation.

    `baseline` is the value of the strongest baseline, `baseline_low` and `baseline_high` are the ends of its range if
    it has one, and `baseline_kind` is "baseline", "chance" or "permutation". `role` is "estimate". In rows of baselines
    it is the kind of the baseline, whose level is in `value`, `low` and `high`. `reason` is the label of a code, why
    there is no interval; "" where there is one, or none is estimated. `chosen_low` and `chosen_high` are the interval
    that a headline shows of an entry that it chose among `chosen_of` entries, such as the largest of all heads.
    """

    probe: str
    metric: str
    unit: str = ""
    places: Mapping[str, Place] = dataclasses.field(default_factory=dict)
    value: float
    low: float = math.nan
    high: float = math.nan
    reason: str = ""
    conservative: bool = False
    chosen_low: float = math.nan
    chosen_high: float = math.nan
    chosen_of: int = 1
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
    chosen = {(own["metric"], own["at"]): own for own in chosen_intervals(report)}
    for name, quantity in declared.items():
        if metric in (None, name) and _is_labeled(values_by_field, quantity.dims):
            rows.extend(_of_estimate(report, name, quantity, chosen, baselines=baselines))
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
    table["position"] += 1  # arrays count from 0, and what people read from 1
    for name in fixed[at:]:
        table[name] = [vars(record)[name] for record in records]
    model = provenance.get("model", {})
    first = {"model": model.get("architecture"), "checkpoint": model.get("name"), "task": provenance.get("task_label")}
    parameters = pd.json_normalize({"task": provenance.get("task", {})}).to_dict("records")
    first |= {name: own for name, own in parameters[0].items() if isinstance(own, str | int | float | None)}
    for place, (column, value) in enumerate(first.items()):
        table.insert(place, column, value)
    return table


def _is_labeled(values_by_field: Mapping[str, Any], axes: Sequence[str]) -> bool:
    """Return whether every axis is a column of the table, or has names for its entries."""
    return all(axis in INDICES or f"{axis}s" in values_by_field for axis in axes)


def _of_estimate(
    report: Reported, metric: str, quantity: Quantity, chosen: Chosen, *, baselines: bool
) -> Iterator[Record]:
    whole: Estimate = values_of(report)[metric]
    (low, high), hardest, places = whole.ends, _hardest(whole, quantity.better), _places(report, quantity.dims)
    levels = [(own.value, *own.ends) for own in whole.baselines]
    for index in np.ndindex(whole.value.shape):
        at = {"unit": quantity.unit, "n": whole.n or report.n, "places": places(index)}
        ends = {"value": float(whole.value[index]), "low": float(low[index]), "high": float(high[index])}
        is_conservative = whole.reason_at(index) == Reason.CONSERVATIVE
        stated = {"conservative": is_conservative, "reason": "" if is_conservative else str(whole.reason_at(index))}
        stated |= {name: own for name, own in chosen.get((metric, index), {}).items() if name.startswith("chosen")}
        baseline: dict[str, Any] = {}
        if (level := int(hardest[index])) >= 0:
            own, columns = whole.baselines[level], ("baseline", "baseline_low", "baseline_high")
            baseline = {"baseline_name": own.name, "baseline_kind": own.kind}
            baseline |= {column: float(end[index]) for column, end in zip(columns, levels[level], strict=True)}
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


def dataset(name: str, report: object) -> "xr.Dataset":
    """Return the estimates and arrays of a report (see `Report.to_xarray`)."""
    with optional_package("xarray", "to_xarray()"):
        import xarray as xr
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    declared, axes, values_by_field = quantities_of(type(report)), axes_of(type(report)), values_of(report)
    for field, quantity in declared.items():
        own, levels = _variables(field, values_by_field[field], quantity)
        variables |= own
        coordinates |= levels
    units = units_of(type(report)).items()
    variables |= {field: (axes[field], values_by_field[field], {"units": unit}) for field, unit in units}
    used, named = {dim for dims in axes.values() for dim in dims}, {**vars(type(report)), **values_by_field}
    coordinates |= {dim: list(named[f"{dim}s"]) for dim in used if isinstance(named.get(f"{dim}s"), tuple)}
    if clash := sorted(used & variables.keys()):
        raise InvalidArgument(
            f"{type(report).__name__} has an axis and a field of the same name: {', '.join(clash)}. Rename one."
        )
    plain = {field: value for field, value in values_by_field.items() if isinstance(value, str | int | float)}
    whole = xr.Dataset(variables, coords=coordinates, attrs={"report": name, **plain})
    counted = {str(dim): np.arange(size) for dim, size in whole.sizes.items() if dim not in coordinates}
    return whole.assign_coords(counted)


def _variables(name: str, estimate: Estimate, quantity: Quantity) -> tuple[dict[str, Any], dict[str, Any]]:
    attributes = {"units": quantity.unit or "1", "long_name": quantity.label or name, "better": quantity.better}
    found: dict[str, Any] = {name: (quantity.dims, estimate.value, {**attributes, "n": estimate.n})}
    if estimate.low is not None and estimate.high is not None:
        over = {**attributes, "resampled": estimate.resampled}
        found[f"{name}_low"] = (quantity.dims, estimate.low, over)
        found[f"{name}_high"] = (quantity.dims, estimate.high, over)
    if not estimate.baselines:
        return found, {}
    axis = f"{name}_baselines"
    levels = np.stack([own.value for own in estimate.baselines])
    kinds = ", ".join(own.kind for own in estimate.baselines)
    found[f"{name}_baseline"] = ((axis, *quantity.dims), levels, {**attributes, "kinds": kinds})
    for at, end in enumerate(("low", "high")):
        if any(vars(own)[end] is not None for own in estimate.baselines):
            ends = np.stack([own.ends[at] for own in estimate.baselines])
            found[f"{name}_baseline_{end}"] = ((axis, *quantity.dims), ends, attributes)
    return found, {axis: [own.name for own in estimate.baselines]}
