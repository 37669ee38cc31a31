"""Same seed, same numbers: whatever the default dtype is, and without moving the global random state."""

from collections.abc import Iterator

import pytest
import torch

import bayesgeom
from bayesgeom import tasks
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import config_from_dict

TASKS = (
    tasks.Bijection(n_values=5, n_pairs=3),
    tasks.HMM(n_states=3, n_symbols=2, length=7, floor=0.01, stay=0.9),
    tasks.AssociativeRecall(n_pairs=3, n_keys=5, n_values=5, n_queries=2),
    tasks.ModularRecurrence(modulus=5),
)
SIZES = (
    {"architecture": "transformer", "n_layers": 2, "n_heads": 3, "d_model": 15, "d_mlp": 11},
    {"architecture": "lstm", "n_layers": 2, "d_model": 7},
    {"architecture": "rwkv", "n_layers": 2, "d_model": 6, "d_mlp": 11},
)


@pytest.fixture
def doubles() -> Iterator[None]:
    """Float64 as torch's default, for one test."""
    former = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(former)


@pytest.fixture(scope="module")
def drawn() -> list[bayesgeom.core.run.Trials]:
    """What the tasks draw with float32 as torch's default."""
    return [task.sample(11, seed=3) for task in TASKS]


@pytest.mark.parametrize("index", range(len(TASKS)), ids=map(str, TASKS))
def test_draws_do_not_depend_on_the_default_dtype(drawn: list, doubles: None, index: int) -> None:
    again = TASKS[index].sample(11, seed=3)
    assert torch.equal(drawn[index].tokens, again.tokens)
    torch.testing.assert_close(drawn[index].predictive, again.predictive, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: sizes["architecture"])
def test_new_weights_neither_read_nor_move_the_global_random_state(sizes: dict, request: pytest.FixtureRequest) -> None:
    config = config_from_dict({**sizes, "d_vocab": 13, "n_ctx": 17})
    first = config.build(seed=5).state_dict()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    request.getfixturevalue("doubles")
    second = config.build(seed=5).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float64
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]), name


def test_loading_and_diagnosing_leave_the_global_random_state(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state()
    calibration = _calibration()
    assert torch.equal(before, torch.get_rng_state())
    request.getfixturevalue("doubles")
    assert _calibration() == calibration


def _calibration() -> dict[str, float]:
    report = bayesgeom.diagnose("mess3-small", n=7, seed=0, probes=["calibration"], n_untrained=1)["calibration"]
    return {"kl_bits": float(report.kl_bits), "entropy_mae_bits": float(report.entropy_mae_bits)}


def test_autocast_is_refused_and_foreign_hooks_are_recorded() -> None:
    model = bayesgeom.load("mess3-small")
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(InvalidArgument, match=r"autocast is on for cpu \(torch.bfloat16\).*mess3-small"):
            bayesgeom.diagnose(model, n=3, probes=["calibration"], n_untrained=0)
        with pytest.raises(InvalidArgument, match="autocast is on"):
            model.run([model.task.sample(3, seed=0)])
    handle = model.module.get_submodule("blocks.1.mlp").register_forward_hook(lambda _m, _i, output: 2 * output)
    diagnosis = bayesgeom.diagnose(model, n=3, probes=["calibration"], n_untrained=0)
    assert diagnosis.provenance["foreign_hooks"] == ["blocks.1.mlp"]
    assert "foreign forward hooks: blocks.1.mlp" in diagnosis.summary()
    hooked = bayesgeom.ablate(model, n=3, battery="mlps")
    calibration = bayesgeom.diagnose(model, n=3, probes=["calibration"], n_untrained=0)["calibration"]
    assert float(hooked.unablated_kl_bits.value) == pytest.approx(float(calibration.kl_bits.value), abs=1e-6)
    assert hooked.provenance["foreign_hooks"] == ["blocks.1.mlp"]
    handle.remove()
    assert "foreign_hooks" not in bayesgeom.diagnose(model, n=3, probes=["calibration"], n_untrained=0).provenance
