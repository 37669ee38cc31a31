"""The script for a GPU, run at a tiny size on this machine, and its bounds."""

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import gpu
from benchmarks.side_by_side import OURS, compared


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.exhaustive
def test_every_side_returns_the_same_numbers(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    gpu.main(["--size", "tiny", "--rounds", "1", "--minutes", "2", "--out", str(out)])
    rows = [
        cells(line) for line in out.read_text().splitlines() if line.startswith(tuple(f"| {p} " for p in gpu.PARTS))
    ]
    assert {row[0] for row in rows} == gpu.PARTS.keys()
    for part in gpu.PARTS:
        sides = {row[1]: row for row in rows if row[0] == part}
        assert {OURS, "hooks by hand", "transformer-lens"} <= sides.keys()
        assert all(float(row[2]) > 0 for row in sides.values())
        assert all(float(row[4]) < 1e-4 for name, row in sides.items() if name != OURS)


def test_a_side_that_is_slow_or_fails_has_a_row_and_the_others_go_on() -> None:
    def slow() -> Tensor:
        for _ in range(10_000):
            time.sleep(0.01)
        return torch.ones(1)

    def failing() -> Tensor:
        raise NotImplementedError("no fork\nhere")

    sides = {OURS: lambda: torch.tensor([2.0]), "slow": slow, "failing": failing, "other": lambda: torch.tensor([3.0])}
    rows = compared("part", sides, rounds=1, limit=0.4, clock=time.perf_counter, device="cpu")
    by_name = {cells(row)[1]: cells(row) for row in rows}
    assert by_name["slow"][2] == "over 0.2 s"
    assert by_name["failing"][2] == "failed: NotImplementedError: no fork here"
    assert by_name["other"][4] == "5e-01" and float(by_name["other"][2]) >= 0
