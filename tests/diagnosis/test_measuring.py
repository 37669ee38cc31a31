"""Reports on some layers: NaN elsewhere, in values, ends and baselines alike."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import pytest
from jaxtyping import Float, Int

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.diagnosis.measuring import on_layers
from bayesgeom.report.estimate import Baseline, Estimate, Quantity
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel


@dataclass(frozen=True, kw_only=True, repr=False)
class _Silent(Report):
    """A report that neither says nor draws anything."""

    def headlines(self) -> list[Headline]:
        return []

    def panels(self) -> "list[Panel]":
        return []


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Layered(_Silent):
    name: ClassVar[str] = "layered"
    title: ClassVar[str] = "Layered"
    about: ClassVar[str] = ""
    kl_bits: Annotated[Estimate, Quantity("layer head", label="KL")]
    whole: Annotated[Estimate, Quantity(label="of all")]
    spread: Float[np.ndarray, "head layer"]
    n: int


def test_unmeasured_layers_are_nan_everywhere(rng: np.random.Generator) -> None:
    value = rng.normal(size=(2, 3))
    level = Baseline.of("chance", "level", value - 1, low=value - 2, high=None)
    own = Estimate.of(value, (value - 0.5, value + 0.5), n=7, baselines=[level])
    report = Layered(kl_bits=own, whole=Estimate.of(0.25), spread=rng.normal(size=(3, 2)), n=7)
    found = on_layers(report, (1, 4), 5)
    for wide, narrow in (
        (found.kl_bits.value, value),
        (found.kl_bits.ends[0], value - 0.5),
        (found.kl_bits.baselines[0].low, value - 2),
        (found.spread.T, report.spread.T),
    ):
        assert wide is not None and wide.shape == (5, 3) and np.isnan(wide[[0, 2, 3]]).all()
        assert np.array_equal(wide[[1, 4]], narrow)
    assert found.kl_bits.baselines[0].high is None and float(found.whole) == 0.25 and found.kl_bits.n == 7
    assert report.kl_bits.value.shape == (2, 3), "the report itself is unchanged"


def test_the_report_is_checked_again_and_keeps_its_provenance() -> None:
    report = Layered(
        kl_bits=Estimate.of(np.ones((2, 3))), whole=Estimate.of(1.0), spread=np.ones((3, 2)), n=7, provenance={"a": 1}
    )
    assert on_layers(report, (1, 4), 5).provenance == {"a": 1}
    object.__setattr__(report, "spread", np.ones((2, 2)))  # two heads, not three
    with pytest.raises(ValueError, match="head"):
        on_layers(report, (1, 4), 5)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Counted(_Silent):
    name: ClassVar[str] = "counted"
    title: ClassVar[str] = "Counted"
    about: ClassVar[str] = ""
    rows: Int[np.ndarray, " layer"]
    n: int


def test_integers_cannot_be_missing() -> None:
    with pytest.raises(InvalidArgument, match=r"Counted\.rows cannot be NaN in the layers that lack its site"):
        on_layers(Counted(rows=np.arange(2), n=1), (0, 2), 3)
