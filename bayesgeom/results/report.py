"""Reports: frozen, typed results whose fields are estimates.

A report is a dataclass. A number with an interval or with baselines is one field, annotated once:

    kl_bits: Annotated[Estimate, Quantity("layer", unit="bits", better="lower", label="KL(exact ‖ model)")]

Other numbers, such as masks and indices, are arrays with jaxtyping annotations. Tables, files, shape checks and xarray
follow from the annotations. An axis `thing` whose entries have names is labelled by the field `things`.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from jaxtyping import AbstractArray

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import directory_aside, is_remains
from bayesgeom.results import storage
from bayesgeom.results.cells import interval_cell, number_cell
from bayesgeom.results.estimate import TOO_FEW, Baseline, Estimate, Quantity
from bayesgeom.results.storage import ARRAYS, JSON, decoded, encoded, estimate_parts, quantity_of

if TYPE_CHECKING:
    import xarray as xr
    from plotly.graph_objects import Figure

_COLUMN_OF_AXIS = {"layer": "layer", "head": "head", "kv_head": "head", "position": "position"}
_COMPANIONS = ("_lo", "_hi", "_null")
PROGRESS = "progress.safetensors"  # of a battery that was stopped
PARTS = "parts"  # the folder of results per snapshot of an analysis that was stopped
METRICS, HTML = "metrics.parquet", "report.html"
_OURS = {JSON, ARRAYS, METRICS, HTML, PROGRESS, PARTS, ".DS_Store"}  # the last: macOS leaves it in every folder seen


@final
@dataclass(frozen=True, kw_only=True)
class Headline:
    """One number as tables print it, with its 95 % interval and its hardest baseline.

    `verdict` says whether the interval lies beyond every baseline: "yes", "no", "undecided", or "" without baselines.
    """

    metric: str
    label: str
    value: float
    unit: str = ""
    lo: float = math.nan
    hi: float = math.nan
    null: float = math.nan
    null_label: str = ""
    no_interval: str = ""
    verdict: str = ""

    def __str__(self) -> str:
        value, interval, null = headline_cells(self)
        why = f" [no interval: {self.no_interval}]" if self.no_interval else f" [{interval}]" if interval else ""
        return f"{self.label} {value}{why}{f'; null {null}' if null else ''}"


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """One row of the tidy table."""

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
    baseline_name: str
    n: int


class Report(ABC):
    """What a probe found. Concrete reports are frozen, keyword-only dataclasses.

    `name` is the probe's, `title` heads its section, and `about` tells a reader who has not read the papers what was
    measured, what to look for, and what the null is. `n` is the number of sequences behind the numbers, or of whatever
    else `counts` names.
    """

    name: ClassVar[str]
    counts: ClassVar[str] = "sequence"
    title: ClassVar[str]
    about: ClassVar[str]
    n: int

    def __post_init__(self) -> None:
        """Check that axes of one name have one length.

        Raises:
            ValueError: If they do not, or if an estimate has another number of axes than its annotation says.
        """
        storage.check_axes(type(self), vars(self), f"{type(self).__name__}")

    @abstractmethod
    def headlines(self) -> Sequence[Headline]:
        """The numbers to read first, most important first."""

    @abstractmethod
    def figure(self) -> "Figure":
        """A plotly figure drawn from the stored numbers alone, nulls included."""

    def conclusion(self) -> str:
        """The verdict in a sentence, which pages show first; "" for a report that states none."""
        return ""

    @final
    def line(self, metric: str, at: tuple[int, ...] = (), label: str = "") -> Headline:
        """Return one entry of an estimate as a headline.

        Args:
            metric: Name of a field that is an estimate.
            at: Index of the entry along every axis; nothing for a scalar.
            label: What tables call it; by default the label of its quantity.
        """
        quantity, own = self.quantities()[metric], self._estimate(metric)[at]
        (low, high), hardest = own.ends, own.hardest_baseline(quantity.better)
        return Headline(
            metric=metric, label=label or quantity.label, value=float(own.value), unit=quantity.unit, lo=float(low),
            hi=float(high), null=math.nan if hardest is None else float(hardest.value),
            null_label=_others(own, hardest), no_interval=(own.why_not or TOO_FEW) if bool(own.is_withheld) else "",
            verdict=str(own.clears(quantity.better)) if own.baselines and quantity.better else "",
        )  # fmt: skip

    @final
    def clears(self, metric: str) -> np.ndarray:
        """Say for every entry of an estimate whether its interval lies beyond all baselines (`Estimate.clears`)."""
        return self._estimate(metric).clears(self.quantities()[metric].better)

    @final
    def scalar(self, metric: str, label: str, *, unit: str = "", null_label: str = "chance") -> Headline:
        """The headline of one scalar field, with the interval and null that are stored for it."""
        lo, hi = self._intervals.get(metric, (math.nan, math.nan))
        null = self._nulls.get(metric, math.nan)
        value = float(vars(self)[metric])
        return Headline(
            metric=metric, label=label, value=value, unit=unit, lo=lo, hi=hi, null=null, null_label=null_label,
            no_interval=self._why_not(metric, value, lo),
        )  # fmt: skip

    @final
    def entry(
        self, metric: str, at: tuple[int, ...], label: str, *, unit: str = "", null_label: str = "chance"
    ) -> Headline:
        """The headline of one entry of an array field, with its companions' entries there."""
        axes, values = self.axes()[metric], vars(self)[metric]
        lo, hi, null = (float(self._companion(metric + suffix, axes, values.shape)[at]) for suffix in _COMPANIONS)
        return Headline(
            metric=metric, label=label, value=float(values[at]), unit=unit, lo=lo, hi=hi, null=null,
            null_label=null_label, no_interval=self._why_not(metric, float(values[at]), lo),
        )  # fmt: skip

    @final
    def _why_not(self, metric: str, value: float, lo: float) -> str:
        """Why an estimate that should have an interval has none; "" where it has one, or is no estimate."""
        is_estimate = metric in self._intervals or f"{metric}_lo" in self.axes()
        if not is_estimate or math.isnan(value) or not math.isnan(lo):
            return ""
        reasons: Mapping[str, str] = vars(self).get("no_interval", {})
        return reasons.get(metric, TOO_FEW)

    @final
    @property
    def _intervals(self) -> Mapping[str, tuple[float, float]]:
        found: Mapping[str, tuple[float, float]] = vars(self).get("intervals", {})
        return found

    @final
    @property
    def _nulls(self) -> Mapping[str, float]:
        found: Mapping[str, float] = vars(self).get("nulls", {})
        return found

    @final
    def _estimate(self, metric: str) -> Estimate:
        found: Estimate = vars(self)[metric]
        return found

    @final
    @classmethod
    def quantities(cls) -> dict[str, Quantity]:
        """Return the fields that are estimates, and what each is."""
        assert is_dataclass(cls), "a report is a dataclass"
        found = {field.name: quantity_of(field.type) for field in fields(cls)}
        return {name: quantity for name, quantity in found.items() if quantity is not None}

    @final
    @classmethod
    def axes(cls) -> dict[str, tuple[str, ...]]:
        """Return the axes of every array and every estimate with axes, in order, as its annotation says."""
        assert is_dataclass(cls), "a report is a dataclass"
        found = {f.name: tuple(f.type.dim_str.split()) for f in fields(cls) if _is_array(f.type)}
        return found | {name: own.dims for name, own in cls.quantities().items() if own.dims}

    @final
    def records(self) -> list[Record]:
        """Every scalar, and every array over layers, heads, positions and labelled axes, as tidy rows."""
        rows = [self._scalar_record(name) for name, value in vars(self).items() if isinstance(value, float)]
        quantities = self.quantities()
        for metric, quantity in quantities.items():
            if self._is_labelled(quantity.dims):
                rows.extend(self._estimate_records(metric, quantity))
        for metric, axes in self.axes().items():
            if metric not in quantities and not metric.endswith(_COMPANIONS) and self._is_labelled(axes):
                rows.extend(self._array_records(metric, axes))
        return rows

    @final
    def to_xarray(self) -> "xr.Dataset":
        """Return all estimates and arrays as a labelled dataset.

        Variable `x` has companions `x_low` and `x_high` where it has an interval, and `x_baseline` along an axis
        `x_baselines` that names its baselines. Attributes say unit, label and which direction is better.

        Raises:
            InvalidArgument: If xarray is not installed.
        """
        from bayesgeom.results.labelled import dataset

        return dataset(self)

    @final
    def _is_labelled(self, axes: Sequence[str]) -> bool:
        """Whether every axis is a column of the tidy table, or has names for its entries."""
        return all(axis in _COLUMN_OF_AXIS or f"{axis}s" in vars(self) for axis in axes)

    @final
    def _estimate_records(self, metric: str, quantity: Quantity) -> Iterator[Record]:
        whole = self._estimate(metric)
        for index in itertools.product(*map(range, whole.value.shape)):
            own = whole[index]
            (low, high), hardest = own.ends, own.hardest_baseline(quantity.better)
            yield Record(
                probe=self.name, metric=metric, unit=quantity.unit, **self._place(quantity.dims, index),
                value=float(own.value), low=float(low), high=float(high),
                baseline=math.nan if hardest is None else float(hardest.value),
                baseline_name="" if hardest is None else hardest.name, n=own.n or self.n,
            )  # fmt: skip

    @final
    def _place(self, axes: Sequence[str], index: Sequence[int]) -> dict[str, Any]:
        """Return where an entry is: layer, head and position, counted from 0, and the names along all other axes."""
        place = dict(zip(axes, index, strict=True))
        labels = [vars(self)[f"{axis}s"][i] for axis, i in place.items() if axis not in _COLUMN_OF_AXIS]
        columns = {_COLUMN_OF_AXIS[axis]: i for axis, i in place.items() if axis in _COLUMN_OF_AXIS}
        return {
            "variant": " / ".join(labels) or None, "layer": columns.get("layer"), "head": columns.get("head"),
            "position": columns.get("position"),
        }  # fmt: skip

    @final
    def save(self, path: str | PathLike[str]) -> None:
        """Write this report alone into a directory; `Report.load` of its class reads it back.

        Raises:
            OutputFault: the directory cannot be written, or holds something else than a report.
        """
        check_holds_report_alone(Path(path))
        with directory_aside(Path(path)) as aside:
            write_parts(aside, {self.name: self}, {})

    @final
    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The report that `save` wrote. **Raises** `OutputFault` when the directory holds none of this kind."""
        report = read_parts(Path(path), {cls.name: cls})[0].get(cls.name)
        if not isinstance(report, cls):
            raise OutputFault(f"{path} holds no report named {cls.name!r}.")
        return report

    @final
    def parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return all fields as files hold them: JSON values by field, and arrays by field or part of an estimate."""
        scalars, arrays = dict[str, Any](), dict[str, np.ndarray]()
        quantities, axes = self.quantities(), self.axes()
        for own in fields(self):  # type: ignore[arg-type]
            value = vars(self)[own.name]
            if own.name in quantities:
                scalars[own.name], of_estimate = estimate_parts(own.name, value)
                arrays |= of_estimate
            elif own.name in axes:
                arrays[own.name] = np.ascontiguousarray(value)
            else:
                scalars[own.name] = encoded(value)
        return scalars, arrays

    @final
    def scalars(self) -> dict[str, Any]:
        """Return the JSON part of `parts`."""
        return self.parts()[0]

    @final
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of `parts`."""
        return self.parts()[1]

    @final
    @classmethod
    def from_parts(cls, scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the report with these parts; the inverse of `scalars` and `arrays`."""
        values = {name: decoded(value) for name, value in scalars.items()}
        return cls(**storage.fields_of(cls, values, arrays, cls.__name__))

    @final
    def _scalar_record(self, metric: str) -> Record:
        lo, hi = self._intervals.get(metric, (math.nan, math.nan))
        return Record(
            probe=self.name, metric=metric, unit="", variant=None, layer=None, head=None, position=None,
            value=vars(self)[metric], low=lo, high=hi, baseline=self._nulls.get(metric, math.nan), baseline_name="",
            n=self.n,
        )  # fmt: skip

    @final
    def _array_records(self, metric: str, axes: tuple[str, ...]) -> Iterator[Record]:
        values = vars(self)[metric]
        lo, hi, null = (self._companion(metric + suffix, axes, values.shape) for suffix in _COMPANIONS)
        for index in itertools.product(*map(range, values.shape)):
            yield Record(
                probe=self.name, metric=metric, unit="", **self._place(axes, index), value=float(values[index]),
                low=float(lo[index]), high=float(hi[index]), baseline=float(null[index]), baseline_name="", n=self.n,
            )  # fmt: skip

    @final
    def _companion(self, name: str, axes: tuple[str, ...], shape: tuple[int, ...]) -> np.ndarray:
        if name not in self.axes():
            return np.full(shape, np.nan)
        own = self.axes()[name]
        spread = tuple(slice(None) if axis in own else None for axis in axes)
        return np.broadcast_to(vars(self)[name][spread], shape)


def headline_cells(line: Headline) -> tuple[str, str, str]:
    """Value, interval and null of a headline, as every table prints them."""
    interval = ("–" if line.no_interval else "") if math.isnan(line.lo) else interval_cell(line.lo, line.hi)
    null = "" if math.isnan(line.null) else f"{round(line.null, 4) + 0.0:.4f} ({line.null_label})"  # no -0.0000
    return number_cell(line.value, line.unit), interval, null


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines whose columns are aligned; nothing trails."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def write_parts(path: Path, reports: Mapping[str, Report], extra: Mapping[str, Any]) -> None:
    """Write reports, and whatever else JSON can hold, as `report.json` and `arrays.safetensors` into a folder."""
    storage.write(path, {key: report.parts() for key, report in reports.items()}, extra)


def read_parts(path: Path, kinds: Mapping[str, type[Report]]) -> tuple[dict[str, Report], dict[str, Any]]:
    """Return the reports of these kinds in a folder, and what else its JSON holds.

    Raises:
        OutputFault: The folder holds no whole report, one of no known kind, or one whose fields are not those of its
            kind.
    """
    parts, extra = storage.read(path)
    if unknown := parts.keys() - kinds.keys():
        raise OutputFault(f"{path} holds reports of unknown kinds: {', '.join(sorted(unknown))}. Upgrade bayesgeom.")
    reports: dict[str, Report] = {}
    for key, (scalars, arrays) in parts.items():
        where = f"{path}: report {key!r}"
        values = storage.fields_of(kinds[key], scalars, arrays, where)
        storage.check_fields(kinds[key], values, where)
        reports[key] = kinds[key](**values)
    return reports, extra


def check_holds_report_alone(path: Path) -> None:
    """Check that a directory, where there is one, holds nothing but a report, so that it may be replaced.

    Raises:
        OutputFault: it holds something else, or cannot be looked into.
    """
    try:
        entries = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    except OSError as error:
        raise OutputFault(f"cannot look into {path}: {error.strerror}.") from error
    if foreign := [name for name in entries if name not in _OURS and not is_remains(name, of=_OURS)]:
        named = ", ".join(foreign[:3])
        raise OutputFault(f"{path} holds something else than a report ({named}); name an empty or a new directory.")


def _others(own: Estimate, hardest: Baseline | None) -> str:
    """The name of the hardest baseline, with the range of its draws, then the others with their levels."""
    if hardest is None:
        return ""
    rest = [f"{each.name} {float(each.value):.3g}" for each in own.baselines if each is not hardest]
    ends = [float(end) for end in (hardest.low, hardest.high) if end is not None]
    spread = f", {ends[0]:.3g} to {ends[1]:.3g}" if len(ends) == 2 and hardest.kind != "baseline" else ""
    known = [line for line in rest if not line.endswith(" nan")]
    return "; ".join([hardest.name + spread, *known])


def _is_array(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)
