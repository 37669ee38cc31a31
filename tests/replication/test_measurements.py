"""The subcommands: each prints its report, saves it, and refuses a directory that holds something else first."""

import doctest
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from bayesgeom.core.errors import OutputFault
from bayesgeom.report.diagnosis import Diagnosis, load_report
from examples.replication import measurements, reports

MODULES = ("settling", "values", "writes", "em.report")
CALLS: dict[str, Callable[[Path], None]] = {
    "em_experiment": lambda out: measurements.em(seeds=2, steps=2, length=21, out=out),
    "write_strength": lambda out: measurements.write_strength("mess3-small", subspace="random:2", n=8, out=out),
    "value_readings": lambda out: measurements.value_readings("mess3-small", n=16, out=out),
    "pass_thresholds": lambda out: measurements.pass_thresholds("mess3-small", n=16, n_untrained=1, out=out),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CALLS)
def test_a_report_is_printed_and_saved(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    CALLS[name](out)
    saved = load_report(out)
    assert not isinstance(saved, Diagnosis)
    assert saved.name == name and type(saved).__name__ in reports.__all__
    assert saved.headlines()[0].value_text in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(OutputFault, match="holds something else"):
        CALLS[name](tmp_path / "other")


@pytest.mark.exhaustive
@pytest.mark.parametrize("module", MODULES)
def test_the_examples_are_right(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"examples.replication.{module}"))
    assert found.attempted and not found.failed
