"""Memory for recorded activations: a share of what is free, or what the caller allows; probes say what it cost them."""

import math
import os
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import PATTERN, K
from bayesgeom.diagnosis.plan import all_probes
from bayesgeom.models import base as budget
from bayesgeom.models.base import bytes_per_sequence
from bayesgeom.models.resolve import load
from tests.models.test_run import TASK, blocks, lively
from tests.test_cli import save

MIB = 2**20


@pytest.mark.parametrize(
    ("free_mib", "share_mib"), [(100, 256), (5000, 512), (8192, 1024), (8191, 512), (70_000, 8192)]
)
def test_the_default_is_a_power_of_two_within_an_eighth(
    free_mib: int, share_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "free_bytes", lambda device: free_mib * MIB)
    assert budget.recording_bytes("cpu") == share_mib * MIB


def test_a_container_leaves_less_than_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    7000 kB\n")
    monkeypatch.setattr(budget, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(budget, "_CGROUP", tmp_path)
    assert budget.free_bytes("cpu") == 7000 * 1024, "no limit is known"
    for most, free in (("max", 7000 * 1024), ("5000", 2000), ("100", 0)):
        (tmp_path / "memory.max").write_text(most + "\n")
        (tmp_path / "memory.current").write_text("3000\n")
        assert budget.free_bytes("cpu") == free


@pytest.mark.parametrize("bad", [0, math.nan])
def test_bad_sizes_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"memory_gib must be a positive number of GiB, got"):
        budget.check_memory_gib(bad)


def test_every_run_of_a_model_keeps_to_its_memory(tmp_path: Path) -> None:
    save(tmp_path / "tiny")
    task = load(tmp_path / "tiny").task
    assert task is not None
    whole = load(tmp_path / "tiny")
    each = bytes_per_sequence(
        whole.spec, {site: whole.layers_of(site) for site in (K, PATTERN)}, task.sample(1, seed=0)
    )
    model = load(tmp_path / "tiny", memory_gib=5 * each / 2**30)
    assert model.run([task.sample(11, seed=0)], record=(K, PATTERN), n_recorded=7).n_recorded == 5
    assert load(tmp_path / "tiny").run([task.sample(11, seed=0)], record=(K,), n_recorded=7).n_recorded == 7


def cost(model: Any, *names: str) -> int:
    """Bytes of one sequence of what these probes read."""
    known = all_probes()
    reads = {site for name in names for site in (*known[name].needs.sites, *known[name].needs.optional)}
    layers = {site: model.layers_of(site) for site in reads & model.sites if not site.is_static}
    return bytes_per_sequence(model.spec, layers, blocks(1)[0])


def test_probes_refuse_by_name_where_too_few_sequences_are_recorded() -> None:
    model = lively()
    model.memory_gib = 15 * cost(model, "value_manifold") / 2**30
    found = bayesgeom.diagnose(model, TASK, n=23, n_untrained=0)
    assert "calibration" in found and "value_manifold" not in found
    assert "reads activations of at least 16 sequences, which take" in found.skipped["value_manifold"]
    with pytest.raises(InvalidArgument, match=r"'value_manifold' reads .* Raise memory_gib of load \(--memory-gib\)"):
        bayesgeom.diagnose(model, TASK, n=23, n_untrained=0, probes="value_manifold")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="elsewhere freed memory is the allocator's own affair")
def test_freed_layers_of_a_network_go_back_to_the_system() -> None:
    torch.empty(7 * MIB)  # freeing 28 MB makes glibc keep smaller blocks
    layers = [torch.ones(MIB) for _ in range(64)]  # 4 MB each
    pinned = torch.ones(MIB)  # behind them, so that the end of the heap is in use
    del layers
    kept = resident_bytes()
    budget.return_freed_memory()
    assert kept - resident_bytes() > 200 * MIB
    assert pinned.sum() == MIB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
