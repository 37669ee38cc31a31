"""How many sequences are recorded: fixed once per analysis, part of the cache's key, and stated by the report."""

from pathlib import Path

import numpy as np
import pytest

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.dynamics import run as analysis
from bayesgeom.dynamics.measure import Bench
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.dynamics.run import _Analysis, training_dynamics
from bayesgeom.dynamics.trainings import runs_of
from bayesgeom.models import base as budget
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import parts_of
from tests.dynamics.trainings import TASK, a_run

N, STEPS = 41, (0, 30, 100)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return a_run(tmp_path / "run", steps=STEPS)


def leave_memory(patch: pytest.MonkeyPatch, n_bytes: int) -> None:
    patch.setattr(budget, "PASS_BYTES", n_bytes)
    patch.setattr(budget, "free_bytes", lambda device: 0)


def curves_of(found: Diagnosis) -> DynamicsReport:
    report = found["dynamics"]
    assert isinstance(report, DynamicsReport)
    return report


def test_snapshots_measured_with_more_memory_are_measured_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training_dynamics(run, n=N)
    next((run / "dynamics").iterdir()).unlink()
    leave_memory(monkeypatch, 60_000)
    again, alone = training_dynamics(run, n=N), training_dynamics(a_run(tmp_path / "alone", steps=STEPS), n=N)
    for name, values in parts_of(curves_of(alone))[1].items():
        np.testing.assert_array_equal(parts_of(curves_of(again))[1][name], values)
    assert len(list((run / "dynamics").iterdir())) == 2 + len(STEPS)


def test_memory_that_shrinks_meanwhile_changes_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = analysis.model_at

    def shrinking(path: Path, **options: str) -> object:
        leave_memory(monkeypatch, 6_000 if path.name.endswith("-0000000") else 60_000)
        return load(path, **options)

    monkeypatch.setattr(analysis, "model_at", shrinking)
    found = training_dynamics(run, n=N)
    assert found.provenance["n_recorded"] == curves_of(found).key_overlap.n == N
    assert found["manifold_film"].n == N


def test_the_report_states_of_how_many_sequences_each_number_is(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_memory(monkeypatch, 60_000)
    found = training_dynamics(run, n=N)
    report, n_recorded = curves_of(found), found.provenance["n_recorded"]
    assert report.n == report.kl_bits.n == report.answer_shift_bits.n == N and 2 < n_recorded < N
    read = (report.pattern_distance_bits, report.key_overlap, report.pc1_share, report.belief_r2, report.frame_ratio)
    assert {own.n for own in read} == {found["manifold_film"].n} == {n_recorded}
    assert f"sequences: {N} for KL and predictions, {n_recorded} for activations" in found.summary()


def test_numbers_that_are_limited_otherwise_state_that_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_scored = TASK.sample(1, seed=0).n_scored
    for module in ("dynamics.measure", "measurements.value_manifold", "measurements._beliefs"):
        monkeypatch.setattr(f"bayesgeom.{module}.MAX_POINTS", 17 * n_scored)
    monkeypatch.setattr("bayesgeom.dynamics.measure.MAX_PAIRS", 13)
    report = curves_of(training_dynamics(run, n=N))
    assert (report.pc1_share.n, report.belief_r2.n, report.answer_shift_bits.n, report.key_overlap.n) == (17, 17, 13, N)


def test_the_kind_of_device_is_part_of_the_key(run: Path) -> None:
    runs, bench = runs_of([run]), Bench(task=TASK, n=N, seed=0, n_recorded=N)
    keys = {
        device: _Analysis(runs=runs, bench=bench, device=device, probes=(), progress=None, batch=None).file(
            (0, 0, None)
        )
        for device in ("cpu", "cuda:0", "cuda:1")
    }
    assert keys["cpu"] != keys["cuda:0"] == keys["cuda:1"]


def test_sequences_too_long_to_record_are_refused_before_a_snapshot_is_loaded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_memory(monkeypatch, 6_000)
    monkeypatch.setattr(analysis, "model_at", None)
    with pytest.raises(InvalidArgument, match=r"fills the recording budget"):
        training_dynamics(run, n=N)
