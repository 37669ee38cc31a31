"""Reports: frozen, typed results whose fields are estimates.

A report is a dataclass. A number with an interval or with baselines is one field, annotated once:

    kl_bits: Annotated[Estimate, Quantity("layer", unit="bits", better="lower", label="KL(exact ‖ model)")]

Other numbers are arrays with a jaxtyping annotation and a unit: `Annotated[Int[np.ndarray, " run"], Unit("steps")]`.
Tables, files, shape checks and xarray datasets follow from the annotations. An axis `thing` whose entries have names is
labeled by the field or class variable `things`.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, final

import numpy as np

from bayesgeom.core.errors import InvalidArgument, OutputFault, checked
from bayesgeom.core.text import number_text
from bayesgeom.core.verdict import Reason
from bayesgeom.results import storage
from bayesgeom.results.estimate import Baseline, Better, Estimate, within
from bayesgeom.results.folder import ALONE, read_parts, write_page, write_run
from bayesgeom.results.headline import MEAN, MOST, Headline
from bayesgeom.results.page import display_in_notebook, notebook_html, page_of
from bayesgeom.results.storage import parts_of, quantities_of
from bayesgeom.results.tables import counted, shortened
from bayesgeom.results.terminal import summary
from bayesgeom.results.tidy import frame, records_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from plotly.graph_objects import Figure

R = TypeVar("R", bound="Report")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Report(ABC):
    """The result of a measurement. Concrete reports are frozen, keyword-only dataclasses.

    `name` is that of the probe or function, and `title` the heading of its section. `about` explains what was measured,
    how to read it, and what the baselines are, to a reader who does not know the papers. `rule` states how verdicts are
    reached; pages show it on request. `n` is the number of sequences measured, or of the units that `counts` names, and
    `limit` why it can be less than requested.
    `provenance` holds model, weights, task, arguments and versions; it is empty for a report made by hand.
    """

    name: ClassVar[str]
    counts: ClassVar[str] = "sequence"
    title: ClassVar[str]
    about: ClassVar[str]
    rule: ClassVar[str] = ""
    limit: ClassVar[str] = ""
    n: int
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Keep equality by value: that of dataclasses cannot compare arrays."""
        super().__init_subclass__(**arguments)
        for name in ("__eq__", "__hash__"):
            setattr(cls, name, vars(Report)[name])

    @final
    def __eq__(self, other: object) -> bool:
        """Return whether the other is a report of the same kind with the same values, apart from the provenance."""
        if type(self) is not type(other):
            return NotImplemented
        (scalars, arrays), (theirs, their_arrays) = parts_of(self), parts_of(other)
        if arrays.keys() != their_arrays.keys() or storage.hashed(scalars, {}) != storage.hashed(theirs, {}):
            return False
        return all(
            np.array_equal(own, their_arrays[name], equal_nan=own.dtype.kind == "f") for name, own in arrays.items()
        )

    @final
    def __hash__(self) -> int:
        return hash((self.name, self.n))

    def __post_init__(self) -> None:
        """Let intervals end at the range of their quantity; check that axes of one name have the same length.

        Raises:
            ValueError: They do not, or an estimate has another number of axes than its annotation.
        """
        storage.check_axes(type(self), storage.values_of(self), f"{type(self).__name__}")
        for name, quantity in quantities_of(type(self)).items():
            object.__setattr__(self, name, within(self.estimate(name), *quantity.range))

    @final
    def estimate(self, name: str) -> Estimate:
        """Return one of the report's estimates by the name of its field.

        Args:
            name: The name, such as "kl_bits".

        Returns:
            The estimate, with its interval and baselines.

        Raises:
            InvalidArgument: The report has no such field, or the field is no estimate.
        """
        declared = quantities_of(type(self))
        if name not in declared:
            raise InvalidArgument(
                f"{type(self).__name__} has no estimate {name!r}. Its estimates: {', '.join(declared) or 'none'}."
            )
        found: Estimate = storage.value_of(self, name)
        return found

    @abstractmethod
    def headlines(self) -> Sequence[Headline]:
        """Return the numbers to read first.

        Returns:
            One headline per number, most important first.
        """

    @abstractmethod
    def plot(self) -> "Figure":
        """Return a plotly figure of the stored numbers, including baselines."""

    def conclusion(self) -> str:
        """Return the verdict as a sentence, which pages and `print` show first; "" for a report without one."""
        return ""

    @final
    def summary(self, where: str = "") -> str:
        """Return a table of at most 24 lines of 100 columns for the terminal; `where` is as in `Diagnosis.summary`."""
        lines = self.headlines()
        sentences = [*filter(None, (self.conclusion(), *(line.finding for line in lines[:1])))][:1]
        details = [line.detail for line in lines if line.detail not in ("", *sentences)]
        sentences, title = [*too_few([self]), *sentences], f"{self._subject()}{self.title}"
        return summary(title, sentences, [("", line) for line in lines], details, where)

    @final
    def __str__(self) -> str:
        return self.summary()

    @final
    def __repr__(self) -> str:
        first = ((shortened(own.short_label or own.label, 60), own.value_text) for own in self.headlines()[:1])
        return f"{type(self).__name__}({''.join(f'{label} {value}, ' for label, value in first)}n={self.n:,})"

    @final
    def _repr_html_(self) -> str:
        return notebook_html(self.summary(), self.plot())

    @final
    def _ipython_display_(self) -> None:
        display_in_notebook(self.summary(), self.plot())

    @final
    def show(self) -> None:
        """Show the figure with plotly: in a notebook below the cell, otherwise in a browser."""
        self.plot().show()

    @final
    def to_pandas(self, metric: str | None = None, *, baselines: bool = False) -> "pd.DataFrame":
        """Return one tidy row per entry: model, checkpoint, task, a column per axis, and the columns of `Record`.

        Args:
            metric: Return the rows of this field alone; None for all.
            baselines: Whether to add a row per baseline, identified by `role` and `baseline_name`. Otherwise each entry
                has one row, which includes its strongest baseline.

        Returns:
            The table; fields whose axes have no names, such as point clouds, are left out.

        Raises:
            InvalidArgument: The report has no such field.
        """
        if metric is not None:
            storage.value_of(self, metric)  # which names the fields that there are
        return frame(records_of(self, baselines=baselines, metric=metric), self.provenance)

    @final
    def to_xarray(self) -> "xr.Dataset":
        """Return all estimates and arrays as a labeled dataset.

        Variable `x` has companions `x_low` and `x_high` if it has an interval. `x_baseline` has an axis `x_baselines`
        with the names of its baselines, and companions `x_baseline_low` and `x_baseline_high` if these have ranges.
        Attributes hold unit, label and which direction is better. Axes whose entries have no names have integer
        coordinates from 0, the indices of the arrays.

        Returns:
            The dataset, with one variable per field that is an estimate or an array.
        """
        from bayesgeom.results.labeled import dataset

        return dataset(self.name, self)

    @final
    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values: arrays are nested lists, NaN is None."""
        scalars, arrays = parts_of(self)
        lists = {name: _plain(array.tolist()) for name, array in arrays.items()}
        return {"report": self.name, **_plain(scalars), "arrays": lists, "provenance": dict(self.provenance)}

    @final
    @checked()
    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """Return the page as one self-contained document that opens offline; with a path, also write it there.

        Args:
            path: The file to write; None writes nothing.

        Returns:
            The HTML text.

        Raises:
            OutputFault: The file cannot be written.
        """
        text = page_of(self._subject().removesuffix(": ") or self.title, {self.name: self}, {}, self.provenance)
        return write_page(text, path)

    @final
    @checked()
    def save(self, path: str | PathLike[str]) -> None:
        """Write a run directory: `report.json`, `arrays.safetensors`, `metrics.parquet`, `report.html`; all or none.

        Args:
            path: The directory. A saved report that is there already is replaced.

        Raises:
            OutputFault: The directory cannot be written, or holds other files than a report.
        """
        extra = {"skipped": {}, "inapplicable": {}, "provenance": self.provenance, ALONE: True}
        write_run(Path(path), {self.name: self}, extra, self.to_pandas(), self.to_html)

    @final
    @classmethod
    @checked()
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the report that `save` wrote.

        Args:
            path: The directory.

        Returns:
            A report with equal values and the same provenance.

        Raises:
            OutputFault: The directory holds no report of this kind.
            InvalidArgument: This class is abstract.
        """
        if cls is Report:
            raise InvalidArgument(f"{cls.__name__} is abstract: use the class of the report, or `load_report`.")
        reports, extra, unknown = read_parts(Path(path), {cls.name: cls})
        if unknown or not reports:
            found = ", ".join((*unknown, *reports)) or "no report"
            raise OutputFault(f"{path} holds {found}, and not {cls.name} alone. `load_report` reads every kind.")
        return with_provenance(reports[cls.name], extra["provenance"])

    @final
    def _subject(self) -> str:
        """Return model and task with a colon; "" if they are unknown."""
        model, task = self.provenance.get("model", {}).get("name"), self.provenance.get("task_label")
        return f"{model} on {task}: " if model and task else ""


def too_few(reports: Iterable[Report]) -> list[str]:
    """Return a sentence if no report on sequences has enough of them for an interval; else nothing."""
    from bayesgeom.stats.intervals import MIN_DIFFERENT

    n = max((own.n for own in reports if own.counts == "sequence"), default=MIN_DIFFERENT + 1)
    return [f"only {counted(n, 'sequence')}: intervals and verdicts need over {MIN_DIFFERENT}"] * (n <= MIN_DIFFERENT)


def with_provenance(report: R, provenance: Mapping[str, Any]) -> R:
    """Return the same report with this provenance."""
    return replace(report, provenance=dict(provenance))


def headline_of(
    report: Report, metric: str, at: tuple[int, ...] = (), label: str = "", *, own: Estimate | None = None
) -> Headline:
    """Return one entry of an estimate as a headline.

    Args:
        report: The report.
        metric: Name of a field that is an estimate.
        at: Index of the entry along every axis; empty for a scalar.
        label: Label in tables. Default: the label of its quantity.
        own: The entry, where its interval differs from that in the field: see `Estimate.extreme`.
    """
    quantity = quantities_of(type(report))[metric]
    own = report.estimate(metric)[at] if own is None else within(own, *quantity.range)
    (low, high), hardest = own.ends, own.hardest_baseline(quantity.better)
    has_verdict, (bound, names) = hardest is not None and bool(quantity.better), _names(own, hardest, quantity.better)
    return Headline(
        metric=metric,
        label=label or quantity.label,
        value=float(own.value),
        unit=quantity.unit,
        low=float(low),
        high=float(high),
        baseline=math.nan if hardest is None else float(hardest.bar(quantity.better)),
        bound=bound,
        baseline_name=names,
        verdict=str(own.clears(quantity.better)) if has_verdict else "",
        reason=_reason(own, is_expected=has_verdict),
    )


def _reason(own: Estimate, *, is_expected: bool) -> Reason:
    """Return why a scalar has no interval, or that it is conservative; nothing for a missing value."""
    if np.isnan(own.value):
        return Reason.NONE
    return Reason.NOT_COMPUTED if is_expected and own.low is None else own.reason_at()


def ceiling_of(report: Report, metric: str, at: tuple[int, ...], label: str) -> Headline:
    """Return the ceiling of one entry of an estimate as a headline.

    Args:
        report: The report.
        metric: Name of a field that is an estimate with a ceiling.
        at: Index of the entry along every axis.
        label: Label in tables.
    """
    value = float(report.estimate(metric).ceiling[at])
    return Headline.computed(metric, label, value, quantities_of(type(report))[metric].unit)


def _names(own: Estimate, hardest: Baseline | None, better: Better) -> tuple[str, str]:
    """Return the strongest baseline's `Headline.bound` and name, then the others with levels, the stronger first."""
    if hardest is None:
        return "", ""
    others = [each for each in own.compared if each is not hardest and not math.isnan(float(each.value))]
    if better:
        others.sort(key=lambda each: float(each.bar(better)), reverse=better == "higher")
    bound, name = _printed(hardest, better)
    levels = [(_printed(each, better), number_text(float(each.bar(better)))) for each in others]
    return bound, "; ".join([name, *(f"{sign}{level} ({other})" for (sign, other), level in levels)])


def _printed(own: Baseline, better: Better) -> tuple[str, str]:
    """Return "≤ " or "≥ " if the level to exceed is the end of a range, and the name, with the mean of the range."""
    bar, mean = float(own.bar(better)), float(own.value)
    bound = {"higher": "≤ ", "lower": "≥ ", "": ""}[better] * (bar != mean or own.name.endswith(MOST))
    name = re.sub("_(?=[a-z0-9])", " ", own.name.removesuffix(MOST))  # window_1_uniform in words, but W_K as it is
    return bound, name + (bar != mean) * f"{MEAN}{number_text(mean)}"


def _plain(value: Any) -> Any:
    """Return nested lists and dictionaries, with None for values that JSON does not support."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case {"float": str()} if len(value) == 1:
            return None
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
