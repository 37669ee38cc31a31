"""A diagnosis: every report on one model and task, what was skipped and why, and where the numbers come from."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from bayesgeom.core.errors import OutputFault, unknown_name
from bayesgeom.core.files import check_directory, directory_aside, file_aside
from bayesgeom.core.plugins import Contained, discover, is_foreign
from bayesgeom.results.page import Section, page
from bayesgeom.results.report import (
    HTML,
    METRICS,
    Headline,
    Record,
    Report,
    aligned,
    check_holds_report_alone,
    headline_cells,
    read_parts,
    write_parts,
)
from bayesgeom.results.storage import fits

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

_WITH_REPORTS = (
    "probes", "ablations", "interventions", "comparison", "dynamics", "generalization", "gradients", "experiments.em",
    "subspaces", "training.monitor",
)  # fmt: skip
HEADLINES_SHOWN = 2


@final
@dataclass(frozen=True, kw_only=True)
class Diagnosis(Mapping[str, Report]):
    """Reports by probe name. `skipped` gives the reason for every probe that this model could not serve.

    `inapplicable` does so for those that ask for another kind of task: of groups of texts, or of an exact posterior.
    """

    reports: Mapping[str, Report]
    skipped: Mapping[str, str]
    provenance: Mapping[str, Any]
    inapplicable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, report: Report, provenance: Mapping[str, Any]) -> "Diagnosis":
        """One report, under its own name."""
        return cls(reports={report.name: report}, skipped={}, provenance=provenance)

    def __getitem__(self, name: str) -> Report:
        if reason := self.left_out.get(name):
            raise unknown_name(f"report in this diagnosis (skipped: {reason})", name, self.reports)
        if name not in self.reports:
            raise unknown_name("report in this diagnosis", name, self.reports)
        return self.reports[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    @property
    def title(self) -> str:
        """Model and task, as tables and pages are headed."""
        return f"{self.provenance['model']['name']} on {self.provenance['task_label']}"

    @property
    def left_out(self) -> dict[str, str]:
        """Every probe without a report, and why: `skipped` and `inapplicable` together."""
        return {**self.skipped, **self.inapplicable}

    def headlines(self) -> list[tuple[str, Headline]]:
        """The first headlines of every report, with the probe's name: what the summary and the page show."""
        return [(name, line) for name, report in self.reports.items() for line in report.headlines()[:HEADLINES_SHOWN]]

    def summary(self) -> str:
        """A table for the terminal: number, interval and null of each headline; then what was skipped."""
        rows = [("probe", "measured", "value", "95 % interval", "null")]
        rows += [(name, line.label, *headline_cells(line)) for name, line in self.headlines()]
        lines = aligned(rows)
        rule = "  ".join("─" * max(map(len, column)) for column in zip(*rows, strict=True))
        skipped = [
            f"no interval, {n}, {own.label}: {own.no_interval}" for n, own in self.headlines() if own.no_interval
        ]
        skipped += [f"skipped {name}: {reason}" for name, reason in self.skipped.items()]
        if foreign := self.provenance.get("foreign_hooks"):
            skipped.append(
                f"forward hooks that bayesgeom did not set may have edited activations: {', '.join(foreign)}"
            )
        if self.inapplicable:
            skipped.append(f"not for this task: {', '.join(self.inapplicable)}")
        return "\n".join([self.title, "", lines[0], rule, *lines[1:], *([""] if skipped else []), *skipped])

    def to_pandas(self) -> "pd.DataFrame":
        """The tidy table: model, checkpoint, task, then the columns of `Record`."""
        import pandas as pd

        columns = [field.name for field in dataclasses.fields(Record)]
        rows = [dataclasses.astuple(record) for report in self.reports.values() for record in report.records()]
        table = pd.DataFrame(rows, columns=columns)
        table = table.astype({"layer": "Int64", "head": "Int64", "position": "Int64"})
        model = self.provenance["model"]
        table.insert(0, "model", model["architecture"])
        table.insert(1, "checkpoint", model["name"])
        table.insert(2, "task", self.provenance["task_label"])
        return table

    def save(self, path: str | Path) -> None:
        """Write the run directory: `report.json`, `arrays.safetensors`, `metrics.parquet`, `report.html`; all or none.

        **Raises** `OutputFault` where it cannot be written, or where another kind of directory stands in the way.
        """
        target = Path(path)
        check_target(target)
        with directory_aside(target) as aside:
            extra = {"skipped": self.skipped, "inapplicable": self.inapplicable, "provenance": self.provenance}
            write_parts(aside, self.reports, extra)
            self.to_pandas().to_parquet(aside / METRICS)
            (aside / HTML).write_text(self._page(), encoding="utf-8", errors="replace")

    @classmethod
    def load(cls, path: str | Path) -> "Diagnosis":
        """The diagnosis that `save` wrote, with equal values. **Raises** `OutputFault` where there is none."""
        reports, extra = read_parts(Path(path), report_kinds())
        if not {"skipped", "provenance"} <= extra.keys():
            raise OutputFault(f"{path} holds a report alone, no whole diagnosis: load it with its own class.")
        of_task = extra.get("inapplicable", {})  # reports that were written before these were told apart
        source = extra["provenance"]
        if not fits(source, Mapping[str, Any]) or not fits(source.get("model"), Mapping[str, Any]):
            raise OutputFault(f"{path} does not say of what model and task its reports are: run it again.")
        named = (source["model"].get("name"), source["model"].get("architecture"), source.get("task_label"))
        if not fits(named, tuple[str, str, str]):
            raise OutputFault(f"{path} does not say of what model and task its reports are: run it again.")
        if not fits((extra["skipped"], of_task), tuple[Mapping[str, str], ...]):
            raise OutputFault(f"{path} lists what was skipped in an unknown form: run it again.")
        return cls(reports=reports, skipped=extra["skipped"], provenance=source, inapplicable=of_task)

    def html(self, path: str | Path) -> None:
        """Write the page alone: self-contained, opens offline."""
        with file_aside(Path(path)) as aside:
            aside.write_text(self._page(), encoding="utf-8", errors="replace")

    def _page(self) -> str:
        sections = [
            Section(
                name=name, title=report.title, about=report.about, headlines=report.headlines(), figure=_figure(report),
                n=report.n, counts=report.counts, verdict=report.conclusion(),
            )
            for name, report in self.reports.items()
        ]  # fmt: skip
        provenance = dict(self.provenance)
        return page(self.title, sections, n_leading=HEADLINES_SHOWN, skipped=self.left_out, provenance=provenance)


def _figure(report: Report) -> "Figure":
    """The figure of a report; of a plug-in's that cannot be drawn, an empty one that says why."""
    with Contained(is_foreign=is_foreign(type(report))) as drawing:
        return report.figure()
    from plotly.graph_objects import Figure

    return Figure(layout={"title": {"text": f"This plug-in's figure cannot be drawn: {drawing.fault}"}})


def report_kinds() -> dict[str, type[Report]]:
    """Every class of report, by the name of its probe."""
    # mypy: an abstract class as a value is what discovery is about.
    found = [discover(f"bayesgeom.{folder}", Report) for folder in _WITH_REPORTS]  # type: ignore[type-abstract]
    return {name: kind for kinds in found for name, kind in kinds.items()}


def check_target(path: Path) -> None:
    """**Raises** `OutputFault` unless a run directory can be written here; asked before any work is done."""
    check_holds_report_alone(path)
    check_directory(path)
