"""Numbers of shipped checkpoints stay what they were, whatever moves in the code."""

import json
import platform

import pytest
import torch

from tests.numbers.cases import CASES, EXPECTED, numbers_of

pytestmark = pytest.mark.slow

RECORDED = json.loads(EXPECTED.read_text(encoding="utf-8"))
HERE = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"
EXACT, CLOSE = (1e-9, 1e-12), (1e-4, 3e-5)  # relative and absolute, on the processor of the recording and on others


@pytest.mark.parametrize("case", CASES)
def test_numbers_hold(case: str) -> None:
    expected, n = RECORDED["numbers"][case], RECORDED["n"][case]
    relative, absolute = EXACT if RECORDED["machine"] == HERE else CLOSE
    # Products of float32 matrices round by where the matrices lie in memory: up to 1e-11 bits of a path's effect.
    absolute = max(absolute, 1e-10) if case == "circuits" else absolute
    found = numbers_of(CASES[case]())
    assert expected.keys() <= found.keys(), sorted(expected.keys() - found.keys())
    for name, value in expected.items():
        ties = 1 / n if "accuracy" in name and relative == CLOSE[0] else 0.0  # one sequence
        assert found[name] == pytest.approx(value, rel=relative, abs=absolute + ties), name
