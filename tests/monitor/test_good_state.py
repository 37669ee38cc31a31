"""The last good state: put back to the bit, weights and optimizer, from memory and from disk."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, OutputFault
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.monitor import watch as watch_module
from bayesgeom.monitor.watch import FILE, GoodState, Monitor, Response, Settings
from bayesgeom.tasks.bijection import Bijection


@final
class Nested(torch.optim.Optimizer):
    """Keeps state as SOAP, Shampoo and Prodigy do: nested, with text and None, of no parameter, and in its group."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1, "d": 1.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor]) -> None:  # type: ignore[override]  # requires the closure
        with torch.enable_grad():
            closure()
        self.state["n_steps"] = self.state.get("n_steps", 0) + 1
        self.param_groups[0]["d"] *= 1.25
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                factors = [torch.zeros(n, n, dtype=torch.float64) for n in parameter.shape]
                state.update(factors=factors, shape=parameter.shape, phase="warm-up", scale=None)
                state["powers"] = {"of two": (torch.ones(()), 0), 3: [torch.ones(2, dtype=torch.int64)]}
            for axis, factor in enumerate(state["factors"]):
                rows = parameter.grad.double().movedim(axis, 0).reshape(state["shape"][axis], -1)
                factor.addmm_(rows, rows.T)
            value, n = state["powers"]["of two"]
            state["powers"]["of two"] = (value * 2, n + 1)
            state["powers"][3][0].mul_(3)
            trace = float(sum(factor.trace() for factor in state["factors"]))
            scale = 1.0 if state["phase"] == "warm-up" else state["scale"] * n / self.state["n_steps"]
            state.update(phase="steady", scale=trace**-0.5)
            rate = self.param_groups[0]["lr"] * self.param_groups[0]["d"] * scale
            parameter.sub_(parameter.grad * rate * (1 + value / state["powers"][3][0][0]))


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS([own for own in p if own.is_contiguous()], lr=0.1, max_iter=3),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "nested": Nested,
}


def model() -> nn.Module:
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    part[2].weight = nn.Parameter(part[0].weight.detach().T.clone())
    return part


def step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed)).to(module[0].weight.dtype)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (module(x) - x.roll(1)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_training_goes_on_as_if_nothing_had_been(kind: str, on_disk: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    module = model().to(dtype)
    optimizer = OPTIMIZERS[kind](module.parameters())
    for seed in range(3):
        step(module, optimizer, seed)
    good = GoodState(module, optimizer, tmp_path if on_disk else None)
    good.keep(3)
    places = [p.data_ptr() for p in module.parameters()]
    step(module, optimizer, 3)
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    state = repr(optimizer.state_dict())  # types, dtypes and the order of keys too
    for seed in (9, 10):  # two rollbacks: training after the first must not change what is stored
        step(module, optimizer, seed)
        assert good.put_back() == 3
        step(module, optimizer, 3)
        for name, value in module.state_dict().items():
            assert torch.equal(value, expected[name])
        assert repr(optimizer.state_dict()) == state
    assert [p.data_ptr() for p in module.parameters()] == places  # in place: an optimizer holds these very tensors
    assert (tmp_path / FILE).exists() == on_disk


def test_learning_rates_follow_their_schedule_and_added_groups_stay() -> None:
    module, added = model(), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    step(module, optimizer, 0)
    good = GoodState(module, optimizer, None)
    good.keep(1)
    optimizer.add_param_group({"params": [added], "lr": 0.3})
    optimizer.param_groups[0].update(lr=0.05, weight_decay=0.0, betas=(0.5, 0.6), eps=1.0)
    good.put_back()
    first, second = optimizer.param_groups
    assert (first["lr"], first["weight_decay"], first["betas"], first["eps"]) == (0.05, 0.0, (0.5, 0.6), 1e-8)
    assert second["lr"] == 0.3 and second["params"][0] is added and added not in optimizer.state


@pytest.mark.parametrize("value", [object(), [{"of": {1, 2}}], torch.Generator()], ids=["object", "set", "generator"])
def test_state_that_cannot_be_restored_is_refused_when_it_would_be_stored(value: object) -> None:
    module, optimizer = trained_by()
    assert watching(module, optimizer=optimizer)(1) == ()
    next(iter(optimizer.state.values()))["projector"] = value
    with pytest.raises(InvalidArgument, match=r"the state of AdamW contains .*, and a rollback restores only tensors"):
        watching(module, optimizer=optimizer)(1)
    only_stops = Response(action="stop", optimizer=optimizer)
    settings = Settings(n=5, untrained=False)
    assert Monitor(module, Bijection(n_values=5, n_pairs=3), every=1, settings=settings, response=only_stops)(1) == ()


def test_a_state_that_could_not_be_written_leaves_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    good = GoodState(module, optimizer, tmp_path)
    good.keep(1)  # before the first step: the optimizer has no state yet
    before = module[0].weight.detach().clone()
    step(module, optimizer, 0)

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(watch_module, "write_arrays", full)
    with pytest.raises(OutputFault):
        good.keep(2)
    assert good.put_back() == 1
    assert torch.equal(module[0].weight, before) and not optimizer.state


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
