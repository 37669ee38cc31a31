"""Reports: frozen, typed results that carry their axes, their nulls and their intervals.

A report is a dataclass whose jaxtyping annotations are the only statement of its axes: tables, files and shape checks
are derived from them. Conventions that every report follows:

- array `x` may have companions `x_lo`, `x_hi`, `x_null`, with the same axes or a subset of them;
- a scalar `x` has its interval in `intervals["x"]` and its null in `nulls["x"]`, where it has them;
- where an estimate has no interval, both ends are NaN, and a field `no_interval` may hold the reason by metric;
- an axis `thing` whose entries have names is labelled by the field `things`.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from jaxtyping import AbstractArray

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import directory_aside, is_remains
from bayesgeom.results import storage
from bayesgeom.results.cells import interval_cell, number_cell
from bayesgeom.results.storage import ARRAYS, JSON, decoded, encoded

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLUMN_OF_AXIS = {"layer": "layer", "head": "head", "kv_head": "head", "position": "position"}
_COMPANIONS = ("_lo", "_hi", "_null")
NO_INTERVAL = "too few sequences, or too few that differ, for one that covers"
PROGRESS = "progress.safetensors"  # of a battery that was stopped
PARTS = "parts"  # the folder of results per snapshot of an analysis that was stopped
METRICS, HTML = "metrics.parquet", "report.html"
_OURS = {JSON, ARRAYS, METRICS, HTML, PROGRESS, PARTS, ".DS_Store"}  # the last: macOS leaves it in every folder seen


@final
@dataclass(frozen=True, kw_only=True)
class Headline:
    """One number as tables print it: its 95 % interval where it is an estimate, its level without the structure."""

    metric: str
    label: str
    value: float
    unit: str = ""
    lo: float = math.nan
    hi: float = math.nan
    null: float = math.nan
    null_label: str = ""
    no_interval: str = ""

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
    variant: str | None
    layer: int | None
    head: int | None
    position: int | None
    value: float
    lo: float
    hi: float
    null: float
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
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

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
    def scalar(self, metric: str, label: str, *, unit: str = "", null_label: str = "chance") -> Headline:
        """The headline of one scalar field, with the interval and null that are stored for it."""
        lo, hi = self.intervals.get(metric, (math.nan, math.nan))
        null = self.nulls.get(metric, math.nan)
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
        is_estimate = metric in self.intervals or f"{metric}_lo" in self.axes()
        if not is_estimate or math.isnan(value) or not math.isnan(lo):
            return ""
        reasons: Mapping[str, str] = vars(self).get("no_interval", {})
        return reasons.get(metric, NO_INTERVAL)

    @final
    @classmethod
    def axes(cls) -> dict[str, tuple[str, ...]]:
        """The axes of every array field, in order, as its annotation says."""
        assert is_dataclass(cls), "a report is a dataclass"
        return {f.name: tuple(f.type.dim_str.split()) for f in fields(cls) if _is_array(f.type)}

    @final
    def records(self) -> list[Record]:
        """Every scalar, and every array over layers, heads, positions and labelled axes, as tidy rows."""
        rows = [self._scalar_record(name) for name, value in vars(self).items() if isinstance(value, float)]
        for metric, axes in self.axes().items():
            if not metric.endswith(_COMPANIONS) and all(a in _COLUMN_OF_AXIS or f"{a}s" in vars(self) for a in axes):
                rows.extend(self._array_records(metric, axes))
        return rows

    @final
    def save(self, path: Path) -> None:
        """Write this report alone into a directory; `Report.load` of its class reads it back.

        Raises:
            OutputFault: the directory cannot be written, or holds something else than a report.
        """
        check_holds_report_alone(path)
        with directory_aside(path) as aside:
            write_parts(aside, {self.name: self}, {})

    @final
    @classmethod
    def load(cls, path: Path) -> Self:
        """The report that `save` wrote. **Raises** `OutputFault` when the directory holds none of this kind."""
        report = read_parts(path, {cls.name: cls})[0].get(cls.name)
        if not isinstance(report, cls):
            raise OutputFault(f"{path} holds no report named {cls.name!r}.")
        return report

    @final
    def scalars(self) -> dict[str, Any]:
        """Every field that is no array, as JSON can hold it."""
        return {f.name: encoded(vars(self)[f.name]) for f in fields(self) if f.name not in self.axes()}  # type: ignore[arg-type]

    @final
    def arrays(self) -> dict[str, np.ndarray]:
        """Every array field, contiguous."""
        return {name: np.ascontiguousarray(vars(self)[name]) for name in self.axes()}

    @final
    @classmethod
    def from_parts(cls, scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """The report with these fields; the inverse of `scalars` and `arrays`."""
        return cls(**{name: decoded(value) for name, value in scalars.items()}, **arrays)

    @final
    def _scalar_record(self, metric: str) -> Record:
        lo, hi = self.intervals.get(metric, (math.nan, math.nan))
        return Record(
            probe=self.name, metric=metric, variant=None, layer=None, head=None, position=None,
            value=vars(self)[metric], lo=lo, hi=hi, null=self.nulls.get(metric, math.nan), n=self.n,
        )  # fmt: skip

    @final
    def _array_records(self, metric: str, axes: tuple[str, ...]) -> Iterator[Record]:
        values = vars(self)[metric]
        lo, hi, null = (self._companion(metric + suffix, axes, values.shape) for suffix in _COMPANIONS)
        for index in itertools.product(*map(range, values.shape)):
            place = dict(zip(axes, index, strict=True))
            labels = [vars(self)[f"{axis}s"][i] for axis, i in place.items() if axis not in _COLUMN_OF_AXIS]
            columns = {_COLUMN_OF_AXIS[axis]: i for axis, i in place.items() if axis in _COLUMN_OF_AXIS}
            yield Record(
                probe=self.name, metric=metric, variant=" / ".join(labels) or None, layer=columns.get("layer"),
                head=columns.get("head"), position=columns.get("position"), value=float(values[index]),
                lo=float(lo[index]), hi=float(hi[index]), null=float(null[index]), n=self.n,
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
    storage.write(path, {key: (report.scalars(), report.arrays()) for key, report in reports.items()}, extra)


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
        storage.check_fields(kinds[key], {**scalars, **arrays}, f"{path}: report {key!r}")
        reports[key] = kinds[key](**scalars, **arrays)
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


def _is_array(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)
