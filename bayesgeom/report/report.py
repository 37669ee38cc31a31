"""Reports: frozen, typed results whose fields are estimates.

A report is a dataclass. A number with an interval or with baselines is one field, annotated once:

    kl_bits: Annotated[Estimate, Quantity("layer", unit="bits", better="lower", label="KL(exact ‖ model)")]

Other numbers are arrays with a jaxtyping annotation and a unit: `Annotated[Int[np.ndarray, " run"], Unit("steps")]`.
Tables, files, shape checks and xarray datasets follow from the annotations. An axis `thing` whose entries have names is
labeled by the field or class variable `things`.
"""

import inspect
import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

import numpy as np

from bayesgeom.core import InvalidArgument, OutputFault, checked
from bayesgeom.core.files import atomic_file
from bayesgeom.core.text import labeled_text, shortened
from bayesgeom.report import storage
from bayesgeom.report.estimate import Estimate, within
from bayesgeom.report.storage import ALONE, VIEWER, parts_of, quantities_of, read_parts, write_page, write_run
from bayesgeom.report.tables import Reported, chosen_intervals, frame, model_name, records_of, settings_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from plotly.graph_objects import Figure

    from bayesgeom.report.panels import Panel

R = TypeVar("R", bound="Report")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Report(Reported, ABC):
    """The result of a measurement. Concrete reports are frozen, keyword-only dataclasses.

    `name` is that of the probe or function, and `title` the heading of its section. `about`, what pages say of it, is
    the docstring up to the description of its fields: what was measured, how to read it, what the baselines are, and
    how verdicts are reached. `n` is the number of sequences measured, or of the units that `counts` names, and `limit`
    why it can be less than requested.
    `is_behavioral` says that it measures predictions, and not what is inside the model.
    `provenance` holds model, weights, task, arguments and versions; it is empty for a report made by hand.
    """

    n: int
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Keep equality by value: that of dataclasses cannot compare arrays."""
        super().__init_subclass__(**arguments)
        if "about" not in vars(cls):
            paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\nFields")[0].split("\n\n")
            cls.about = "\n\n".join(" ".join(own.split()).replace("`", "") for own in paragraphs)
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

    def no_better(self) -> Self:
        """Return the report of a model whose predictions use no evidence: it claims no use of any."""
        return self

    @final
    def plot(self) -> "Figure":
        """Return a plotly figure of all panels."""
        from bayesgeom.report.panels import figure_of

        return figure_of(f"{self._subject()}{self.title}", self.panels())

    @final
    def panel(self, name: str) -> "Panel":
        """Return one panel: its `figure` is plotly's, and its `title` says what is seen.

        Args:
            name: The field that it draws, such as "kl_bits", which also finds "kl_bits_by_position"; or its title, at
                least up to the colon.

        Returns:
            The first panel of this name.

        Raises:
            UnknownName: There is no such panel; the message lists those there are.
        """
        from bayesgeom.report.figures import panel_named

        return panel_named(name, self.panels(), storage.values_of(self))

    @final
    @checked()
    def figure(
        self, name: str, *, width: str | float = "column", format: str = "", path: str | PathLike[str] | None = None
    ) -> bytes:
        """Return one panel as an image for a paper; with a path, also write it there.

        Letters have 7 and 8 points in print, the legend is on top, and lines differ without colors. There is no title:
        `panel(name).title` is one for the caption.

        Args:
            name: The panel, as for `panel`.
            width: "column" (3.25 in), "text" (6.75 in), or a number of inches.
            format: "pdf", "svg" or "png" with 300 pixels an inch. Default: the ending of the path, else pdf.
            path: The file to write; None writes nothing.

        Returns:
            The contents of the file.

        Raises:
            UnknownName: There is no such panel.
            InvalidArgument: Width or format is none of these, or the extra `figures` or a browser is missing.
            OutputFault: The file cannot be written.
        """
        from bayesgeom.report import figures

        file = None if path is None else Path(path)
        inches, kind = figures.width_in_inches(width), figures.format_of(file, format)
        image = figures.image_of(figures.paper_figure(self.panel(name), inches), kind)
        if file is not None:
            with atomic_file(file) as temporary:
                temporary.write_bytes(image)
        return image

    @final
    def summary(self, page: str = "") -> str:
        """Return a table of at most 100 columns for the terminal; `page` is as in `Diagnosis.summary`."""
        from bayesgeom.report.render import summary
        from bayesgeom.report.sentences import opening_of

        lines = [("", line) for line in self.headlines()]
        settings = [own for own in (settings_of(self.provenance),) if own]
        return summary(f"{self._subject()}{self.title}", opening_of(self), {"": lines}, settings, page)

    @final
    def __str__(self) -> str:
        return self.summary()

    @final
    def __repr__(self) -> str:
        first = [labeled_text(shortened(own.label, 60), own.value_text) for own in self.headlines()[:1]]
        return f"{type(self).__name__}({', '.join([*first, f'n={self.n:,}'])})"

    @final
    def _repr_html_(self) -> str:
        from bayesgeom.report.render import notebook_html

        return notebook_html(self.summary(), self.plot())

    @final
    def _ipython_display_(self) -> None:
        from bayesgeom.report.render import display_in_notebook

        display_in_notebook(self.summary(), self.plot())

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
        from bayesgeom.report.tables import dataset

        return dataset(self.name, self)

    @final
    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values: arrays are nested lists, NaN is None.

        `chosen` lists the intervals of headlines that allow for the choice of an entry.
        """
        scalars, arrays = parts_of(self)
        lists = {name: _plain(array.tolist()) for name, array in arrays.items()}
        known = {"chosen": _plain(chosen_intervals(self)), "arrays": lists, "provenance": dict(self.provenance)}
        return {"report": self.name, **_plain(scalars), **known}

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
        return write_page(self._page({self.name: self}), path)

    def _page(self, reports: "Mapping[str, Report]") -> str:
        from bayesgeom.report.page import page_of

        return page_of(self._subject().removesuffix(": ") or self.title, reports, {}, self.provenance)

    @final
    @checked()
    def save(self, path: str | PathLike[str], viewer: "Report | None" = None) -> None:
        """Write a run directory: `report.json`, `arrays.safetensors`, `metrics.parquet`, `report.html`; all or none.

        Args:
            path: The directory. A saved report that is there already is replaced.
            viewer: The report "inside" of the same model, which the page then shows, too.

        Raises:
            OutputFault: The directory cannot be written, or holds other files than a report.
        """
        chosen = {self.name: chosen_intervals(self)}
        extra = {"skipped": {}, "inapplicable": {}, "provenance": self.provenance, "chosen": chosen, ALONE: True}
        reports = {own.name: own for own in (self, viewer) if own is not None}
        write_run(Path(path), reports, extra, self.to_pandas(), lambda: self._page(reports))

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
        if not reports or set(unknown) - {VIEWER}:
            found = ", ".join((*unknown, *reports)) or "no report"
            raise OutputFault(f"{path} holds {found}, and not {cls.name} alone. `load_report` reads every kind.")
        return with_provenance(reports[cls.name], extra["provenance"])

    @final
    def _subject(self) -> str:
        """Return model and task with a colon; "" if they are unknown."""
        model, task = model_name(self.provenance), self.provenance.get("task_label")
        return f"{model} on {task}: " if model and task else ""


def with_provenance(report: R, provenance: Mapping[str, Any]) -> R:
    """Return the same report with this provenance."""
    return replace(report, provenance=dict(provenance))


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
