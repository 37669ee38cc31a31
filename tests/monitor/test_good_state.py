"""The last good state: put back to the bit, weights and optimizer, from memory and from disk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.monitor.watch import FILE, GoodState, Monitor, Response, Settings
from bayesgeom.tasks.bijection import Bijection

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    part[2].weight = nn.Parameter(part[0].weight.detach().T.clone())
    return part


def step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    (module(x) - x.roll(1)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_training_goes_on_as_if_nothing_had_been(kind: str, on_disk: bool, tmp_path: Path) -> None:
    module = model()
    optimizer = OPTIMIZERS[kind](module.parameters())
    for seed in range(3):
        step(module, optimizer, seed)
    good = GoodState(module, optimizer, tmp_path if on_disk else None)
    good.keep(3)
    places = [p.data_ptr() for p in module.parameters()]
    step(module, optimizer, 3)
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    for seed in (9, 10):
        step(module, optimizer, seed)
    assert good.put_back() == 3
    step(module, optimizer, 3)
    for name, value in module.state_dict().items():
        assert torch.equal(value, expected[name])
    assert [p.data_ptr() for p in module.parameters()] == places  # in place: an optimizer holds these very tensors
    assert (tmp_path / FILE).exists() == on_disk


def test_weights_that_share_memory_can_be_saved_to_disk(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    module[1].weight = module[0].weight
    good = GoodState(module, None, tmp_path)
    good.keep(1)
    before = module[0].weight.detach().clone()
    with torch.no_grad():
        module[0].weight.zero_()
    good.put_back()
    assert torch.equal(module[0].weight, before) and module[1].weight is module[0].weight


def test_a_later_state_takes_the_place_of_an_earlier(tmp_path: Path) -> None:
    module = model()
    good = GoodState(module, None, tmp_path)
    good.keep(1)
    with torch.no_grad():
        module[0].weight.fill_(7)
    good.keep(2)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    with torch.no_grad():
        module[0].weight.zero_()
    assert good.put_back() == 2 and bool((module[0].weight == 7).all())


def test_nothing_saved_and_a_broken_file_are_errors(tmp_path: Path) -> None:
    good = GoodState(model(), None, tmp_path)
    with pytest.raises(InvalidArgument, match="nothing to restore"):
        good.put_back()
    good.keep(1)
    (tmp_path / FILE).write_bytes(b"half")
    with pytest.raises(CheckpointFault, match=r"cannot be read back: .* Restart from a checkpoint"):
        good.put_back()


def watching(module: nn.Module, **response: Any) -> Monitor:
    return Monitor(
        module,
        Bijection(n_values=5, n_pairs=3),
        every=1,
        settings=Settings(n=5, untrained=False),
        response=Response(action="roll_back", **response),
    )


def trained_by() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model and an optimizer that has taken a step."""
    module = TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=3, d_model=21, d_mlp=11).build(seed=0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    module(torch.zeros(2, 5, dtype=torch.long)).sum().backward()
    optimizer.step()
    return module, optimizer


def spoil(module: nn.Module) -> torch.Tensor:
    first = next(module.parameters())
    with torch.no_grad():
        first[0, 0] = torch.nan
    return first


def test_a_mask_of_infinities_is_no_fault_and_a_buffer_that_becomes_infinite_is() -> None:
    module, _ = trained_by()
    module.register_buffer("mask", torch.full((3,), -torch.inf))
    module.register_buffer("mean", torch.zeros(5))
    watch = watching(module)
    assert watch(1) == ()
    first = spoil(module)
    assert [event.kind for event in watch(2)] == ["not finite", "rolled back"] and bool(first.isfinite().all())
    assert watch(3) == ()
    module.get_buffer("mean")[1] = torch.inf
    assert [event.kind for event in watch(4)] == ["not finite", "rolled back"]
    assert module.get_buffer("mean").tolist() == [0] * 5


def test_an_optimizer_state_that_is_not_finite_is_an_event() -> None:
    module, optimizer = trained_by()
    watch = watching(module, optimizer=optimizer)
    assert watch(1) == ()
    moment = next(iter(optimizer.state.values()))["exp_avg_sq"]
    moment[0] = torch.inf  # every step of AdamW is 0 from here on
    events = watch(2)
    assert [(event.kind, event.metric) for event in events] == [
        ("not finite", "optimizer"),
        ("rolled back", "optimizer"),
    ]
    assert bool(next(iter(optimizer.state.values()))["exp_avg_sq"].isfinite().all())


def test_a_state_on_disk_that_another_monitor_wrote_is_refused(tmp_path: Path) -> None:
    one, other = trained_by()[0], trained_by()[0]
    watch = watching(one, folder=tmp_path)
    assert watch(1) == ()
    with torch.no_grad():
        next(other.parameters()).mul_(2)
    assert watching(other, folder=tmp_path)(1) == ()
    spoil(one)
    with pytest.raises(CheckpointFault, match="was changed after it was stored, or another monitor writes there"):
        watch(2)


def test_a_rollback_under_inference_mode_leaves_a_training_that_goes_on() -> None:
    module, optimizer = trained_by()
    watch = watching(module, optimizer=optimizer)
    with torch.inference_mode():
        assert watch(1) == ()
    spoil(module)
    with torch.inference_mode():
        assert [event.kind for event in watch(2)] == ["not finite", "rolled back"]
    optimizer.zero_grad()
    module(torch.zeros(2, 5, dtype=torch.long)).sum().backward()
    optimizer.step()
    assert all(bool(own.isfinite().all()) for own in module.parameters())
