"""Dynamics of a training whose weights are given by step, with a function that makes the module."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import bayesgeom
from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.dynamics import run as analysis
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.dynamics.run import training_dynamics
from bayesgeom.dynamics.trainings import Snapshots
from bayesgeom.models.resolve import load
from bayesgeom.training.formation import snapshot_paths
from tests.dynamics.trainings import STEPS, TASK, a_recipe, a_run

N = 16


class Net(nn.Module):
    """A module of a user, in which `wrap` finds the stream alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.core = nn.Embedding(TASK.d_vocab, 13), nn.GRU(13, 13, batch_first=True)
        self.unembed = nn.Linear(13, TASK.d_vocab)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.unembed(self.core(self.embed(ids))[0])
        return logits


def states(build: Callable[[], nn.Module] = Net) -> dict[int, Mapping[str, Tensor]]:
    torch.manual_seed(0)
    return {step: build().state_dict() for step in (300, 0, 20)}


def curves(own: Snapshots, **options: Any) -> DynamicsReport:
    report = training_dynamics(own, n=N, **options)["dynamics"]
    assert isinstance(report, DynamicsReport)
    return report


def test_numbers_are_those_of_the_checkpoints_with_these_weights(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    expected = training_dynamics(run, n=N)["dynamics"]
    weights: dict[int, Any] = {}
    for step, path in zip(STEPS, snapshot_paths(run), strict=True):
        weights[step] = load(path).module.state_dict()
    save_file(weights[10], tmp_path / "10.safetensors")
    weights[10] = tmp_path / "10.safetensors"
    found = curves(Snapshots(weights, lambda: a_recipe().model_config().build(seed=9), TASK))
    assert isinstance(expected, DynamicsReport) and found.steps == expected.steps == ("0", "10", "30", "100")
    for name in ("kl_bits", "key_overlap", "belief_r2", "pattern_distance_bits", "answer_shift_bits", "frame_ratio"):
        np.testing.assert_allclose(found.estimate(name).value, expected.estimate(name).value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("make", [Net, lambda: bayesgeom.wrap(Net(), blocks=lambda net: [net.core], name="mine")])
def test_a_module_of_a_user_is_followed_by_step(make: Callable[[], Any]) -> None:
    given = states()
    before = {step: {name: value.clone() for name, value in state.items()} for step, state in given.items()}
    found = training_dynamics(Snapshots(given, make, "bijection:n_values=5,n_pairs=4"), n=N, probes="posterior_lens")
    report = found["dynamics"]
    assert isinstance(report, DynamicsReport) and report.steps == ("0", "20", "300")
    assert found["posterior_lens"].estimate("kl_bits").value.shape[0] == 3
    net = Net()
    net.load_state_dict(given[20])
    run = bayesgeom.diagnose(net, TASK, n=N, n_untrained=0, probes="calibration")["calibration"]
    assert report.kl_bits.value[0, 1] == pytest.approx(run.estimate("kl_bits").value, rel=1e-6)
    assert np.isfinite(report.belief_r2.value).all() and np.isnan(report.key_overlap.value).all()
    assert len({*report.kl_bits.value[0]}) == 3
    assert all(torch.equal(value, before[step][name]) for step, own in given.items() for name, value in own.items())
    assert report.provenance["model"]["name"] == ("Net" if make is Net else "mine")


def test_a_stopped_analysis_goes_on_and_other_weights_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, measured = states(), list[int]()
    once = analysis.measured
    monkeypatch.setattr(analysis, "measured", lambda subject: (measured.append(1), once(subject))[1])
    own = Snapshots(given, Net, TASK)
    first = curves(own, out=tmp_path)
    assert len(measured) == 3
    again = curves(own, out=tmp_path)
    assert len(measured) == 3 and np.array_equal(first.kl_bits.value, again.kl_bits.value)
    curves(Snapshots({**given, 20: states()[20] | {"unembed.bias": torch.ones(TASK.d_vocab)}}, Net, TASK), out=tmp_path)
    assert len(measured) == 4  # the last snapshot, with which all are compared, is the same

    class Doubled(Net):
        def forward(self, ids: Tensor) -> Tensor:
            return 2 * super().forward(ids)

    Doubled.__name__ = Doubled.__qualname__ = Net.__qualname__
    doubled = curves(Snapshots(given, Doubled, TASK), out=tmp_path)
    assert len(measured) == 7, "another make of the same weights"
    assert not np.array_equal(first.kl_bits.value, doubled.kl_bits.value)
    last = curves(Snapshots(given, Net, TASK), out=tmp_path)
    assert len(measured) == 7 and np.array_equal(first.kl_bits.value, last.kl_bits.value)


def test_a_task_of_functions_is_measured_and_not_saved(tmp_path: Path) -> None:
    def draw(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, 2, size=(n, 8))

    def predict(tokens: np.ndarray) -> np.ndarray:
        return np.full((*tokens.shape, 2), 0.5)

    task = bayesgeom.tasks.from_functions(draw, predict, d_vocab=2, name="fair")
    assert np.isfinite(curves(Snapshots(states(), Net, task), out=tmp_path).kl_bits.value).all()
    assert not (tmp_path / "parts").exists() or not [*(tmp_path / "parts").glob("*.safetensors")]


def test_what_cannot_be_followed_is_named_in_a_sentence(tmp_path: Path) -> None:
    given, shared = states(), Net()
    (tmp_path / "weights.pt").write_bytes(b"PK")
    wide = {step: {**state, "embed.weight": torch.zeros(3, 3)} for step, state in given.items()}

    class Bag(Net):
        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.unembed(self.embed(ids).cumsum(1))
            return logits

    cases: list[tuple[Any, Any, Any, type[Exception], str]] = [
        ({0: given[0]}, Net, TASK, InvalidArgument, "at least 2 snapshots are needed .* got 1"),
        ({0: given[0], 1: given[0]}, Net, TASK, InvalidArgument, "the same weights: keep copies"),
        (given, lambda: shared, TASK, InvalidArgument, "same module each time"),
        (given, lambda: None, TASK, InvalidArgument, "must return a new module, got None"),
        (given, lambda: 1 / 0, TASK, ZeroDivisionError, "division"),
        (wide, Net, TASK, RuntimeError, "size mismatch"),
        (given, Bag, TASK, InvalidArgument, r"Bag has no blocks .*bayesgeom\.wrap\(net, blocks=…\)"),
        ({0: given[0], 1: tmp_path / "weights.pt"}, Net, TASK, CheckpointFault, r"step 1, is no \.safetensors file"),
        ({0: given[0], 1: tmp_path / "none"}, Net, TASK, CheckpointFault, "none, of step 1"),
        (given, Net, ["a text", "another"], InvalidArgument, "has no tokenizer"),
    ]
    for weights, make, task, kind, says in cases:
        with pytest.raises(kind, match=says) as refused:
            training_dynamics(Snapshots(weights, make, task), n=N)
        assert kind is RuntimeError or "\n" not in str(refused.value), says
    own = Snapshots(given, Net, TASK)
    with pytest.raises(InvalidArgument, match="measured alone"):
        training_dynamics(own, own, n=N)
    with pytest.raises(InvalidArgument, match="executor= runs what workers can load"):
        training_dynamics(own, n=N, executor=ThreadPoolExecutor(1))
