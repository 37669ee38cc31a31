"""A report with one field of every kind, for tests of what all reports do."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from bayesgeom.core.verdict import Reason
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, Unit
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import values_of
from bayesgeom.report.tables import Headline, headline_of

SOURCE = {"model": {"name": "tiny", "architecture": "transformer"}, "task_label": "Bijection(n=11)", "seed": 3}


@dataclass(frozen=True, kw_only=True, repr=False)
class PlantedReport(Report):
    """A report for tests.

    Fields: one of every kind that a report may hold; `n_lines` copies of its headlines, each with `tail` appended.
    """

    name: ClassVar[str] = "planted"
    title: ClassVar[str] = "Planted: is it?"
    coordinates: ClassVar[tuple[str, ...]] = tuple("abcdefghijklm")

    depth: Annotated[Estimate, Quantity(unit="bits", better="higher", label="how deep")]
    missing: Annotated[Estimate, Quantity(label="missing")]
    overlap: Annotated[Estimate, Quantity("layer head", better="lower", label="overlap")]
    by_set: Annotated[Estimate, Quantity("set kv_head position", unit="nats", better="higher", label="by set")]
    by_item: Annotated[Estimate, Quantity("item")]
    share: float
    steps: int
    is_deep: bool
    remark: str | None
    levels: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    sets: tuple[str, ...]
    nested: tuple[tuple[str, float], ...]
    whole: Float[np.ndarray, ""]
    count: Annotated[Int[np.ndarray, " position"], Unit("tokens")]
    is_seen: Bool[np.ndarray, " item"]
    cloud: Shaped[np.ndarray, "item coordinate"]
    n: int
    n_lines: int = 1
    tail: str = ""

    def headlines(self) -> Sequence[Headline]:
        lines = (headline_of(self, "depth", label=f"how deep{self.tail}"), headline_of(self, "missing"))
        return lines * self.n_lines

    def panels(self) -> Sequence[Panel]:
        panel = Panel.blank("overlap")
        panel.figure.add_scatter(y=self.overlap.value[:, 0], name="measured")
        return (panel,)


def planted(rng: np.random.Generator) -> PlantedReport:
    """Values that differ, with NaN, infinities and every kind of baseline among them."""
    overlap = rng.normal(size=(2, 3))
    overlap[1, 2] = np.nan
    flat = Baseline.of("baseline", "flat", np.array([[0.5], [0.25]]))
    random = Baseline.of("chance", "random", overlap - 2, low=overlap - 3, high=np.full((2, 3), np.nan))
    shuffled = Baseline.of("permutation", "shuffled", np.array([7.0, 11.0])[:, None, None])
    depth = Estimate.of(
        0.1 + 0.2,
        (0.25, 0.5),
        n=23,
        baselines=[Baseline.of("baseline", "uniform", 0.125), Baseline.of("chance", "random", 0.2, low=0.1, high=0.21)],
    )
    return PlantedReport(
        depth=depth,
        missing=Estimate.of(math.nan),
        overlap=Estimate.of(overlap, (overlap - 1, overlap + 1), baselines=[flat, random], reason=Reason.FEW_DIFFER),
        by_set=Estimate.of(rng.normal(size=(2, 3, 5)), baselines=[shuffled]),
        by_item=Estimate.of(rng.normal(size=7)),
        share=0.75,
        steps=17,
        is_deep=True,
        remark=None,
        levels={"uniform": 1.5, "none": math.nan, "all": -math.inf},
        intervals={"depth": (0.25, 0.5)},
        sets=("inputs", "hypotheses"),
        nested=(("a", math.inf), ("b", 2.0)),
        whole=np.array(-0.0),
        count=np.array([2, 3, 5, 7, 11]),
        is_seen=np.array([True, False, True, True, False, False, True]),
        cloud=rng.normal(size=(7, 13)),
        n=19,
    )


def assert_equal(one: object, other: object) -> None:
    """Equal types and values bit for bit, NaN equal to NaN, all the way down; provenance is left out."""
    assert type(one) is type(other)
    match one, other:
        case PlantedReport() | Estimate() | Baseline(), _:
            own, others = ({k: v for k, v in values_of(each).items() if k != "provenance"} for each in (one, other))
            assert_equal(own, others)
        case dict(), dict():
            assert one.keys() == other.keys()
            for key in one:
                assert_equal(one[key], other[key])
        case tuple(), tuple():
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                assert_equal(a, b)
        case np.ndarray(), np.ndarray():
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        case _:
            assert one == other or (one != one and other != other)
