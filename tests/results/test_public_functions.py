"""Every public function that measures returns a result with the same face."""

import inspect
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

import bayesgeom
from bayesgeom.interventions.design import Design
from bayesgeom.results.diagnosis import Diagnosis, load_report
from bayesgeom.results.report import Report
from bayesgeom.subspaces.fits import random
from tests.interventions.worlds import TASK, lively

FEW = Design("remove", n_random=2, n_matched=2, n_control=3, n_untrained=0, n_fit=51)
FACE = (
    "summary",
    "headlines",
    "to_pandas",
    "to_xarray",
    "to_dict",
    "plot",
    "show",
    "to_html",
    "save",
    "load",
)
CALLS: dict[str, Callable[[], Report | Diagnosis]] = {
    "diagnose": lambda: bayesgeom.diagnose(lively(), n=5, n_untrained=0, probes=["calibration"]),
    "ablate": lambda: bayesgeom.ablate(lively(), n=5),
    "intervene": lambda: bayesgeom.intervene(lively(), subspace=random(2), kind=FEW, n=5),
    "relabeling_invariance": lambda: bayesgeom.relabeling_invariance(lively(), n=5),
    "gradient_laws": lambda: bayesgeom.gradient_laws(lively(), n=5),
    "sweep": lambda: bayesgeom.sweep(TASK, "n_pairs", [2, 3], n=5),
}


def measuring() -> set[str]:
    """Public functions whose annotation says that they return a report or a diagnosis."""
    found = set()
    for name in bayesgeom.__all__:
        own = getattr(bayesgeom, name)
        returned = typing.get_type_hints(own).get("return") if inspect.isfunction(own) else None
        if isinstance(returned, type) and issubclass(returned, Report | Diagnosis):
            found.add(name)
    return found


def test_measuring_functions_are_found() -> None:
    assert set(CALLS) <= measuring() and {"compare", "replicate", "length_generalization"} <= measuring()


@pytest.mark.parametrize("name", CALLS)
def test_a_result_has_the_common_face(name: str, tmp_path: Path) -> None:
    result = CALLS[name]()
    assert all(callable(getattr(result, part)) for part in FACE) and result.provenance["task_label"]
    lines = str(result).splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 100 and len(repr(result)) < 300
    assert result.provenance["arguments"]["n"] == 5 and len(result.to_pandas()) > 0
    result.save(str(tmp_path / "run"))
    again = load_report(tmp_path / "run")
    assert type(again) is type(result) and str(again) == str(result)
    assert again.provenance == result.provenance
