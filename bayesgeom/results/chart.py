"""Charts of other packages: a further figure of a report, which its page shows below the report's own.

A chart is found in a file of `bayesgeom/charts/`, or by an entry point in the group `bayesgeom.charts`.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from bayesgeom.core.plugins import Contained, discover, is_foreign

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Chart(ABC):
    """A further figure of a report. Concrete charts are final and need no argument.

    `reports` lists the names of the reports that it can draw.
    """

    name: ClassVar[str]
    reports: ClassVar[tuple[str, ...]]

    @abstractmethod
    def draw(self, report: Any) -> "Figure":
        """Return a plotly figure drawn from the stored numbers of the report alone, baselines included."""


def further_figures(report: Any) -> dict[str, "Figure"]:
    """Return the figures of all charts that draw this report, by the name of the chart.

    A chart of another package that fails gives an empty figure whose title says why.
    """
    from plotly.graph_objects import Figure

    # mypy: an abstract class as a value is what discovery is about.
    kinds = discover("bayesgeom.charts", Chart)  # type: ignore[type-abstract]
    found = dict[str, Figure]()
    for name, kind in kinds.items():
        with Contained(is_foreign=is_foreign(kind)) as drawing:
            if report.name in kind.reports:
                found[name] = kind().draw(report)
        if drawing.fault:
            found[name] = Figure(layout={"title": {"text": f"Chart {name!r} cannot be drawn: {drawing.fault}"}})
    return found
