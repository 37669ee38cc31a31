"""The environment of a run: recorded when it starts, and compared when it continues."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.training import environment, loop
from bayesgeom.training.environment import ENVIRONMENT, recorded_environment
from bayesgeom.training.loop import Pace, check_startable, train
from tests.training.test_loop import QUIET, TINY, assert_same_weights

HERE = environment.environment("cpu")
OTHERS = {
    "processor": "VSX",
    "n_threads": HERE["n_threads"] + 1,
    "torch_version": "1.0",
    "float32_precision": "tf32 (cuda)",
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its first state."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        _stop_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            train(TINY, out, pace=Pace(quiet=True, save_seconds=0.0))
    return out


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def _stop_after(patch: pytest.MonkeyPatch, n_steps: int) -> None:
    step, done = loop.training_step, list[float]()

    def stopping(*given: object) -> float:
        if len(done) == n_steps:
            raise KeyboardInterrupt
        done.append(step(*given))  # type: ignore[arg-type]
        return done[-1]

    patch.setattr(loop, "training_step", stopping)


def _rewrite(out: Path, **changes: object) -> None:
    (out / ENVIRONMENT).write_text(json.dumps(HERE | changes))


def test_a_run_records_where_it_starts(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorded_environment(stopped) == HERE
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert environment.environment("cpu") == HERE | {"processor": "AVX512", "n_threads": 7}


@pytest.mark.parametrize("name", ["processor", "float32_precision"])
def test_a_run_that_continues_elsewhere_warns_once_of_what_differs(name: str, run: Path) -> None:
    _rewrite(run, **{name: OTHERS[name]})
    expected = re.escape(f"run started ({name}: {OTHERS[name]}, now {HERE[name]}). The weights may differ")
    with pytest.warns(UserWarning, match=expected) as caught:
        train(TINY, run, resume=True, pace=QUIET)
    assert len(caught) == 1


def test_a_run_without_a_record_continues_as_before(run: Path, tmp_path: Path) -> None:
    (run / ENVIRONMENT).unlink()
    resumed = train(TINY, run, resume=True, pace=QUIET)
    assert_same_weights(resumed, train(TINY, tmp_path / "whole", pace=QUIET))
    assert recorded_environment(run) is None, "it is not known where it started"


def test_a_finished_run_or_one_without_a_state_has_nothing_to_warn_of(run: Path) -> None:
    (run / "state.safetensors").rename(run.parent / "kept")
    _rewrite(run, **OTHERS)
    train(TINY, run, resume=True, pace=QUIET)
    assert recorded_environment(run) == HERE, "it started over"
    _rewrite(run, device="cuda", **OTHERS)
    train(TINY, run, resume=True, pace=QUIET)


def test_another_kind_of_device_is_refused(run: Path) -> None:
    _rewrite(run, device="cuda")
    for start in (train, check_startable):
        with pytest.raises(InvalidArgument, match=r"was started on cuda and cannot continue on cpu.*--device cuda"):
            start(TINY, run, resume=True)


def test_a_stage_after_a_finished_one_continues_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = replace(TINY, name="second", after=TINY)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        _stop_after(patch, TINY.steps)
        train(staged, tmp_path, pace=QUIET)
    _rewrite(tmp_path / "before", n_threads=HERE["n_threads"] + 1)
    with pytest.warns(UserWarning, match=r"another environment than .*before started \(n_threads") as caught:
        train(staged, tmp_path, resume=True, pace=QUIET)
    assert len(caught) == 1


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"device": "cpu"})])
def test_a_damaged_record_is_named(text: str, run: Path) -> None:
    (run / ENVIRONMENT).write_text(text)
    with pytest.raises(CheckpointFault, match=r"environment\.json"):
        train(TINY, run, resume=True, pace=QUIET)


def test_products_in_another_precision_are_noticed(run: Path) -> None:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    former = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        with pytest.warns(UserWarning, match=r"float32_precision: , now bf16 \(cpu\)"):
            train(TINY, run, resume=True, pace=QUIET)
    finally:
        matmul.fp32_precision = former
