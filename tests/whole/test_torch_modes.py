"""Modes of torch around a call: the same numbers as without, or one sentence before work begins."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.torch_state import default_dtype
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import load
from bayesgeom.monitor import Monitor, Settings
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.report import Report
from bayesgeom.report.storage import parts_of
from bayesgeom.training.loop import Pace, train
from tests.dynamics.trainings import a_recipe, a_run

RECIPE = a_recipe(steps=7, batch_size=5, warmup=2, snapshots=2)
SNAPSHOT = Path("snapshots") / "step-0000100"


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "meta": lambda: torch.device("meta"),
}


def numbers(of: Report | Diagnosis) -> np.ndarray:
    reports = [of] if isinstance(of, Report) else list(of.values())
    return np.concatenate([own.ravel().astype(float) for report in reports for own in parts_of(report)[1].values()])


def watched(model: Model) -> Report:
    monitor = Monitor(model.module, model.task, every=1, settings=Settings(n=8))
    monitor(1)
    return monitor.report()


def weights(out: Path) -> np.ndarray:
    for precision in ("bfloat16", "float32"):
        module = train(RECIPE, out / precision, precision=precision, pace=Pace(quiet=True))
    return np.concatenate([own.detach().numpy().ravel() for own in module.parameters()])


def reran(run: Path) -> Diagnosis:
    for file in (run / "dynamics").glob("*"):
        file.unlink()
    return bayesgeom.training_dynamics(run, n=8)


CALLS: dict[str, Callable[[Path, Model, Path], np.ndarray]] = {
    "training_dynamics": lambda run, _, out: numbers(reran(run)),
    "gradient_movement": lambda run, _, out: numbers(bayesgeom.gradient_movement(run, n=3)),
    "gradient_laws": lambda _, model, out: numbers(bayesgeom.gradient_laws(model, n=3)),
    "Monitor": lambda _, model, out: numbers(watched(model)),
    "train": lambda _, model, out: weights(out),
}
REFUSED = {("gradient_laws", "autocast"): "torch.autocast is on"} | {
    (call, "meta"): "torch's default device is meta" for call in CALLS
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_run(tmp_path_factory.mktemp("modes") / "run", steps=(0, 100))


@pytest.fixture(scope="module")
def plain(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The numbers without any mode."""
    return {name: call(run, load(run / SNAPSHOT), tmp_path_factory.mktemp("plain")) for name, call in CALLS.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", CALLS)
def test_numbers_are_those_without_a_mode(
    call: str, mode: str, run: Path, plain: dict[str, np.ndarray], tmp_path: Path
) -> None:
    model = load(run / SNAPSHOT)
    if (call, mode) in REFUSED:
        with pytest.raises(InvalidArgument, match=REFUSED[call, mode]), MODES[mode]():
            CALLS[call](run, model, tmp_path)
        assert not [*tmp_path.iterdir()], "nothing was begun"
        return
    with MODES[mode]():
        found = CALLS[call](run, model, tmp_path)
    np.testing.assert_array_equal(found, plain[call])


@pytest.mark.parametrize("call", ["gradient_laws", "Monitor"])
def test_numbers_of_a_frozen_model_are_its_numbers(
    call: str, run: Path, plain: dict[str, np.ndarray], tmp_path: Path
) -> None:
    model = load(run / SNAPSHOT)
    model.module.requires_grad_(False)
    np.testing.assert_array_equal(CALLS[call](run, model, tmp_path), plain[call])
    assert not any(own.requires_grad for own in model.module.parameters())
