"""`bayesgeom.train`: any network, to the same weights after a kill, with a monitor and snapshots."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import bayesgeom
from bayesgeom.core import CheckpointFault, InvalidArgument, NonFinite
from tests.scorecards.recurrence import Network, make


class Kill:
    """A monitor that raises after a step."""

    should_stop = False

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, step: int) -> None:
        if step == self.at:
            raise KeyboardInterrupt


def test_a_network_of_ones_own_learns() -> None:
    model = bayesgeom.train(make, "dice:length=8", steps=60, lr=1e-2)
    answer = bayesgeom.diagnose(model, "dice:length=8", n=128, n_untrained=0, probes=["calibration"]).answer
    assert answer is not None and float(answer.gap_closed) > 0.8


def test_a_killed_run_continues_to_the_same_weights(tmp_path: Path) -> None:
    settings = {"steps": 12, "batch_size": 4, "snapshots": 3}
    whole = bayesgeom.train(make, "dice:length=8", **settings, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        bayesgeom.train(make, "dice:length=8", **settings, out=tmp_path / "run", monitor=Kill(5))
    again = bayesgeom.train(make, "dice:length=8", **settings, out=tmp_path / "run")
    assert again.spec.weights_hash == whole.spec.weights_hash
    last = max((tmp_path / "run" / "snapshots").iterdir())
    assert last.name == "step-0000012"
    Network(2).load_state_dict(load_file(last / "model.safetensors"))


def test_a_monitor_sees_every_step_and_can_stop() -> None:
    net = Network(2, 8)
    watch = bayesgeom.monitor.Monitor(bayesgeom.wrap(net), "dice:length=8", every=2)
    bayesgeom.train(net, "dice:length=8", steps=5, batch_size=4, monitor=watch)
    watch.should_stop = True
    before = net.unembed.weight.clone()
    bayesgeom.train(net, "dice:length=8", steps=500, batch_size=4, monitor=watch)
    assert not torch.equal(net.unembed.weight, before)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="pass out="):
        bayesgeom.train(make, "dice", snapshots=2)
    with pytest.raises(InvalidArgument, match="must return a module"):
        bayesgeom.train(lambda d_vocab, n_ctx: 3, "dice")  # type: ignore[arg-type,return-value]
    with pytest.raises(NonFinite):
        bayesgeom.train(make, "dice:length=8", steps=9, lr=1e30)
    bayesgeom.train(make, "dice:length=8", steps=2, batch_size=4, out=tmp_path / "run")
    with pytest.raises(CheckpointFault, match="different recipe"):
        bayesgeom.train(make, "dice:length=8", steps=3, batch_size=4, out=tmp_path / "run")
