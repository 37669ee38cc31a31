"""A section of the report page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from bayesgeom.results.headline import Headline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


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
