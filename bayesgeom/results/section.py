"""What pages and tables read of a report, and the section of the page that it becomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final, runtime_checkable

from bayesgeom.results.headline import Headline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@runtime_checkable
class Reported(Protocol):
    """The part of a `Report` that pages and tables read; they cannot import `Report`, which imports them."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    counts: ClassVar[str]
    rule: ClassVar[str]
    limit: ClassVar[str]

    @property
    def n(self) -> int:
        """Number of measured sequences, or of the units that `counts` names."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Model, task, arguments and versions; empty for a report made by hand."""

    def headlines(self) -> Sequence[Headline]:
        """Return the numbers to read first."""

    def plot(self) -> "Figure":
        """Return the figure of the stored numbers."""

    def conclusion(self) -> str:
        """Return the verdict as a sentence; "" without one."""


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """One report on the page; `verdict` is its conclusion in a sentence, and `rule` how it is reached.

    `fewer` states why `n` is less than requested; "" where it is not.
    """

    name: str
    title: str
    about: str
    headlines: Sequence[Headline]
    figure: "Figure"
    n: int
    counts: str = "sequence"
    verdict: str = ""
    rule: str = ""
    fewer: str = ""
    further: "Mapping[str, Figure]" = field(default_factory=dict)  # of charts, by name

    @property
    def short_title(self) -> str:
        """The title up to its colon."""
        return self.title.split(":", maxsplit=1)[0]
