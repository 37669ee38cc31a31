"""A diagnosis: all reports on one model and task, the skipped probes with reasons, and the provenance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final, overload

from bayesgeom.core import N_RECORDED, InvalidArgument, OutputFault, checked, unknown_name
from bayesgeom.core.errors import optional_package
from bayesgeom.core.plugins import discover
from bayesgeom.core.text import percent_text, shortened
from bayesgeom.report.answer import SERVED, Answer, answer_details, answer_of, answer_text, gate_text
from bayesgeom.report.joined import joined_kind
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.storage import ALONE, read_parts, write_page, write_run
from bayesgeom.report.tables import Headline, Viewed, chosen_intervals, frame, model_name, records_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from anywidget import AnyWidget
    from plotly.graph_objects import Figure

R = TypeVar("R", bound=Report)
HEADLINES_SHOWN = 2  # of each report, in the summary
LAYERS = "layers"  # key of the provenance: the measured layers of each report that does not have all
STREAMED = "streamed"  # key of the provenance: sequences of each report whose statistics the pass computed

_WITH_REPORTS = (
    "measurements",
    "ablations",
    "circuits",
    "interventions",
    "dynamics",
    "generalization",
    "gradients",
    "subspaces",
    "monitor",
)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis(Mapping[str, Report]):
    """Reports by probe name or by class: `diagnosis[CalibrationReport]` is typed as that report.

    Args:
        reports: Reports by the name of their probe.
        skipped: Reason for every probe that this model does not support.
        provenance: Model, weights, task, arguments and versions.
        inapplicable: Reason for every probe that needs another kind of task.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> diagnosis = bayesgeom.diagnose(module, task, n=8, n_untrained=0, probes=["calibration"])
        >>> list(diagnosis), diagnosis["calibration"].n
        (['calibration'], 8)
    """

    reports: Mapping[str, Report]
    skipped: Mapping[str, str]
    provenance: Mapping[str, Any]
    inapplicable: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Copy the provenance to every report."""
        if self.provenance:
            owned = {name: with_provenance(report, self.provenance) for name, report in self.reports.items()}
            object.__setattr__(self, "reports", owned)  # the constructor alone may, in a frozen class

    @classmethod
    def of(cls, report: Report) -> "Diagnosis":
        """Return a diagnosis with one report under its own name, with its provenance.

        Args:
            report: The report.

        Returns:
            The diagnosis.
        """
        return cls(reports={report.name: report}, skipped={}, provenance=report.provenance)

    @overload
    def __getitem__(self, name: str) -> Report: ...
    @overload
    def __getitem__(self, name: type[R]) -> R: ...

    def __getitem__(self, name: str | type[R]) -> Report | R:
        if not isinstance(name, str):
            report = self[name.name]
            if not isinstance(report, name):
                raise InvalidArgument(f"report {name.name!r} is a {type(report).__name__}, not a {name.__name__}.")
            return report
        # Not `left_out(self)`: a type-checked call would look entries up here, in an endless recursion.
        if reason := self.skipped.get(name) or self.inapplicable.get(name):
            raise unknown_name(f"report in this diagnosis (skipped: {reason})", name, self.reports)
        if name not in self.reports:
            raise unknown_name("report in this diagnosis", name, self.reports)
        return self.reports[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def __repr__(self) -> str:
        subject, names = self.title, model_name(self.provenance)
        subject = subject.replace(names, _few(names.split(", "), 2), 1)
        return f"Diagnosis({shortened(subject, 76)}: {_few(tuple(self.reports), 3)})"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from bayesgeom.report.render import notebook_html

        return notebook_html(self.summary(), self.plot() if self.reports else None)

    def _ipython_display_(self) -> None:
        from bayesgeom.report.render import display_in_notebook

        display_in_notebook(self.summary(), self.plot() if self.reports else None)

    @property
    def title(self) -> str:
        """Return model and task as a heading, or the measured quantity for reports without provenance."""
        if not self.provenance:
            return ", ".join(report.title for report in self.reports.values())
        return f"{model_name(self.provenance)} on {self.provenance['task_label']}"

    @property
    def answer(self) -> Answer | None:
        """The answer to the question of a diagnosis: do the predictions agree with the exact posterior?

        None if that was not measured: the task has no exact posterior, or calibration was not among the probes.
        """
        return answer_of(self.reports)

    def headlines(self) -> list[tuple[str, Headline]]:
        """Return the first headlines of every report, with its name, for the summary."""
        return [(name, line) for name, report in self.reports.items() for line in report.headlines()[:HEADLINES_SHOWN]]

    def summary(self, page: str = "") -> str:
        """Return a short table of 100 columns for the terminal, after the answer in one sentence.

        Where the predictions are no better than those of a context-free predictor, numbers on activations come last,
        below a line that says so.

        Args:
            page: The page that has the rest, such as "report.html": then only five numbers follow the answer, and what
                was skipped.
        """
        from bayesgeom.report.render import summary
        from bayesgeom.report.sentences import opening_of_all

        answer, blocks = self.answer, dict[str, list[tuple[str, Headline]]]()
        opening = opening_of_all(self.reports) if answer is None else [answer_text(answer), answer_details(answer)]
        notes = [*self._skipped_notes()] if page else [*self._notes()]
        for name, line in self.headlines():
            blocks.setdefault(gate_text(answer, self.reports[name]), []).append((name, line))
        return summary(self.title, opening, dict(sorted(blocks.items())), notes, page)

    def _notes(self) -> Iterator[str]:
        """Yield what limits the measurement, and what was not measured."""
        source, n = self.provenance, self.provenance.get("arguments", {}).get("n")
        if isinstance(n, int) and isinstance(stored := source.get("n_recorded"), int) and stored < n:
            why = "never more" if stored == N_RECORDED else "memory_gib allows no more"
            yield f"sequences: {n} for KL and predictions, {stored} for activations ({why})"
        if streamed := source.get(STREAMED):
            yield f"computed during the pass, from {max(streamed.values())} sequences: {', '.join(streamed)}"
        if replies := source.get(SERVED):
            share, largest = percent_text(replies["share"], 1), replies["largest_mass"]
            yield f"answers not listed by the server (top {replies['top']}): {share}, together at most {largest:.3g}"
        if precision := source.get("float32_matmul_precision"):
            yield f"float32 matrix products may be rounded: {precision}"
        if foreign := source.get("foreign_hooks"):
            yield f"foreign forward hooks: {', '.join(foreign)}"
        for name, own in (source.get(LAYERS) or {}).items():
            yield f"{name}: only layers {', '.join(map(str, own))}"
        yield from self._skipped_notes()
        if self.inapplicable:
            yield f"not applicable to this task: {', '.join(self.inapplicable)}"

    def _skipped_notes(self) -> Iterator[str]:
        for name, reason in self.skipped.items():
            yield f"skipped {name}: {reason}"

    def plot(self) -> "Figure":
        """Return the figure of the first report; `diagnosis[name].plot()` draws the others.

        Raises:
            InvalidArgument: There is no report.
        """
        if not self.reports:
            raise InvalidArgument("this diagnosis has no report to draw; `skipped` gives the reasons.")
        return next(iter(self.reports.values())).plot()

    def view(self, model: object = None) -> "AnyWidget":
        """Return the viewer as a widget for notebooks: posterior, predictions, attention and heads of a few sequences.

        Args:
            model: The diagnosed model, as for `diagnose`: it runs without all heads that are switched off. Default: one
                head at a time, as the diagnosis stores it.

        Raises:
            InvalidArgument: The diagnosis has no report "inside", the model is another one, or the package anywidget is
                not installed.
        """
        inside = self.reports.get("inside")
        if not isinstance(inside, Viewed):
            remedy = "Diagnose without probes=…, or with 'inside' among them, on a task with an exact posterior."
            raise InvalidArgument(f"this diagnosis has no report 'inside' to view. {remedy}")
        return inside.view(model)

    def to_pandas(self, metric: str | None = None, *, baselines: bool = False) -> "pd.DataFrame":
        """Return one tidy row per entry: model, checkpoint, task, a column per axis, and the columns of `Record`.

        Args:
            metric: Return the rows of this field alone, of every report that has it; None for all.
            baselines: Whether to add a row per baseline, identified by `role` and `baseline_name`.

        Returns:
            The rows of all reports, one report after another.
        """
        rows = [
            row for report in self.reports.values() for row in records_of(report, baselines=baselines, metric=metric)
        ]
        return frame(rows, self.provenance)

    def to_xarray(self) -> "xr.DataTree":
        """Return a labeled dataset per report, as a tree."""
        with optional_package("xarray", "to_xarray()"):
            import xarray as xr
        return xr.DataTree.from_dict({name: report.to_xarray() for name, report in self.reports.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return every report as JSON values, by name, with the skipped probes and the provenance."""
        reports = {name: report.to_dict() for name, report in self.reports.items()}
        return {"reports": reports, "skipped": left_out(self), "provenance": dict(self.provenance)}

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
        from bayesgeom.report.page import page_of

        text = page_of(self.title, self.reports, left_out(self), self.provenance)
        return write_page(text, path)

    @checked()
    def save(self, path: str | PathLike[str]) -> None:
        """Write the run directory: `report.json`, `arrays.safetensors`, `metrics.parquet`, `report.html`; all or none.

        Args:
            path: The directory. A saved report that is there already is replaced.

        Raises:
            OutputFault: It cannot be written, or the directory holds other files.
        """
        extra = {"skipped": self.skipped, "inapplicable": self.inapplicable, "provenance": self.provenance}
        extra |= {"chosen": {name: chosen_intervals(report) for name, report in self.reports.items()}}
        write_run(Path(path), self.reports, extra, self.to_pandas(), self.to_html)

    @classmethod
    @checked()
    def load(cls, path: str | PathLike[str]) -> "Diagnosis":
        """Return the diagnosis that `save` wrote, with equal values, or a single saved report as a diagnosis.

        A report of an unknown class, such as that of a plug-in that is neither installed nor imported, is left out and
        listed in `skipped`. Nothing is imported because a file names it.

        Args:
            path: The directory.

        Returns:
            The diagnosis.

        Raises:
            OutputFault: There is no diagnosis, it is corrupt, or all of its reports are of unknown kinds.
        """
        return _read(Path(path))[0]


def _few(names: Sequence[str], most: int) -> str:
    """Return names joined by commas: the first `most` and the number of the others."""
    return f"{', '.join(names[:most])}{f' + {len(names) - most} more' if len(names) > most else ''}"


def left_out(diagnosis: Diagnosis) -> dict[str, str]:
    """Return every probe without a report and the reason: `skipped` and `inapplicable` together."""
    return {**diagnosis.skipped, **diagnosis.inapplicable}


@checked()
def load_report(path: str | PathLike[str]) -> Report | Diagnosis:
    """Load a run directory: a single saved report, or a diagnosis.

    Args:
        path: Directory that `save` wrote.

    Returns:
        The report or the diagnosis.

    Raises:
        OutputFault: There is no complete report, it is corrupt, or it is of a kind unknown to this bayesgeom.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> import tempfile
        >>> report = bayesgeom.diagnose(module, task, n=8, n_untrained=0)["calibration"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.save(folder)
        ...     bayesgeom.load_report(folder).n
        8
    """
    diagnosis, alone = _read(Path(path))
    return alone or diagnosis


def _read(path: Path) -> tuple[Diagnosis, Report | None]:
    """Return the reports of a run directory, and the one that was saved alone, or with the viewer; None elsewhere."""
    own = {vars(kind)["name"]: kind for kind in Report.__subclasses__() if "name" in vars(kind)}  # without entry point
    reports, extra, unknown = read_parts(path, {**own, **report_kinds()}, joined_kind)
    if unknown and not reports:
        remedy = "Install the package that made them, import the module that defines them, or upgrade bayesgeom."
        raise OutputFault(f"{path} holds reports of unknown kinds: {', '.join(unknown)}. {remedy}")
    missing = dict.fromkeys(unknown, "report of an unknown kind; install or import what defines it")
    skipped, source, of_task = {**extra["skipped"], **missing}, extra["provenance"], extra.get("inapplicable", {})
    found = Diagnosis(reports=reports, skipped=skipped, provenance=source, inapplicable=of_task)
    shown = [report for report in found.values() if not isinstance(report, Viewed)]
    return found, shown[0] if extra.get(ALONE) is True and len(shown) == 1 else None


def report_kinds() -> dict[str, type[Report]]:
    """Return every class of report, by the name of its probe."""
    # mypy forbids an abstract class as a value, but discovery needs one.
    kinds = dict[str, type[Report]]()
    for folder in _WITH_REPORTS:
        group = "bayesgeom.probes" if folder == "measurements" else None  # the entry points of plug-ins
        kinds |= discover(f"bayesgeom.{folder}", Report, group=group)  # type: ignore[type-abstract]
    return kinds
