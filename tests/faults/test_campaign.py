"""A fast, seeded sample of the campaign of faults; `python -m benchmarks.faults` runs all of it."""

import re
from pathlib import Path

import jaxtyping
import pytest

from bayesgeom.core.errors import BayesGeomError
from benchmarks import fault_calls, faults
from benchmarks.faults import campaign

SHARES = {
    "checkpoint bytes": 0.004,
    "checkpoint structure": 0.004,
    "report bytes": 0.005,
    "report structure": 0.004,
    "calls": 0.02,
    "cli": 0.003,
    "huggingface": 0.002,
    "outputs": 0.04,
    "streams": 0.05,
    "kills": 0.03,
}
LONG = {"report structure"}  # its cases take seconds to make; test_saved_reports has the fast ones


@pytest.mark.parametrize(
    "group", [pytest.param(own, marks=pytest.mark.exhaustive if own in LONG else ()) for own in SHARES]
)
def test_nothing_in_a_sample_is_wrong(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests' shape checks refuse some values of a dataclass before the package does, or fail on an array of no axes.
    monkeypatch.setattr(faults, "BayesGeomError", (BayesGeomError, jaxtyping.TypeCheckError))
    found = campaign([group], tmp_path, share=SHARES[group])
    wrong = [own for own in found if own.kind == "wrong"]
    assert found and not [own for own in wrong if not re.search(r"TypeCheckError|<@beartype", own.detail)]
    assert group in ("streams", "kills") or any(own.kind == "refused" for own in found)


@pytest.mark.exhaustive
def test_every_sound_command_is_accepted(tmp_path: Path) -> None:
    """Three were refused until 22 November 2026, so that none of their options was tried."""
    for name, (line, _) in fault_calls.arguments(tmp_path).items():
        if name not in ("diagnose a report", "selftest", "train"):  # the first is to be refused
            fault_calls.ran(line, tmp_path)


@pytest.mark.exhaustive
def test_every_sound_call_is_accepted(tmp_path: Path) -> None:
    """Else a case would be refused for another reason than its odd value."""
    for function, given in fault_calls.sound(tmp_path).values():
        function(**given)
