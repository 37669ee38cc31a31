"""Charts of plug-ins: additional figures of a report, which its page shows below the report's own figure.

A chart is found in a file of `bayesgeom/charts/`, or by an entry point in the group `bayesgeom.charts`.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from bayesgeom.core.plugins import Contained, discover, is_foreign
from bayesgeom.results.section import Reported

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Chart(ABC):
    """An additional figure of a report. Concrete charts are final and have no required argument.

    `reports` lists the names of the reports that it can draw.
    """

    name: ClassVar[str]
    reports: ClassVar[tuple[str, ...]]

    @abstractmethod
    def draw(self, report: Any) -> "Figure":
        """Return a plotly figure of the report's stored numbers, including baselines."""


def further_figures(report: Reported) -> dict[str, "Figure"]:
    """Return the figures of all charts that draw this report, by the name of the chart.

    A chart that fails gives an empty figure whose title states the reason.
    """
    from plotly.graph_objects import Figure

    # mypy forbids an abstract class as a value, but discovery needs one.
    kinds = discover("bayesgeom.charts", Chart)  # type: ignore[type-abstract]
    found = dict[str, Figure]()
    for name, kind in kinds.items():
        with Contained(is_foreign=is_foreign(kind)) as drawing:
            if report.name in kind.reports:
                found[name] = kind().draw(report)
        if drawing.fault:
            found[name] = Figure(layout={"title": {"text": f"Chart {name!r} cannot be drawn: {drawing.fault}"}})
    return found
