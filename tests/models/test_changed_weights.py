"""Weights that were changed in place: no measurement, resume or capture takes them for the former ones."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesgeom
from bayesgeom.core.errors import BayesGeomError, InvalidArgument
from bayesgeom.core.run import is_untrained
from bayesgeom.models.base import Model
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.resolve import as_model, load
from tests.families import _sizes
from tests.models.test_resolve import TASK, save
from tests.third_party.bayesgeom_example.gru import GRUConfig, GRUModel

SIZES = {"d_vocab": TASK.d_vocab, "n_ctx": TASK.n_pos, "n_layers": 2}


def built(architecture: str) -> Callable[[Path], Model]:
    return lambda _path: as_model(config_from_dict({"architecture": architecture, **SIZES}).build(seed=1))


def checkpoint(path: Path) -> Model:
    save(path / "tiny")
    return load(path / "tiny")


def of_huggingface(_path: Path) -> Model:
    import transformers

    torch.manual_seed(0)
    return as_model(transformers.LlamaForCausalLM(transformers.LlamaConfig(**_sizes() | {"vocab_size": TASK.d_vocab})))


def wrapped_checkpoint(path: Path) -> Model:
    from bayesgeom.models.checkpoint import save_checkpoint

    config = config_from_dict({"architecture": "llama", **SIZES, "d_model": 24, "n_heads": 4})
    recipe = {"name": "tiny", "task": TASK.config()}
    save_checkpoint(path / "tiny", config.build(seed=1), config, recipe=recipe, step=17, card="")
    return load(path / "tiny")


def of_ones_own(_path: Path) -> Model:
    net = config_from_dict({"architecture": "transformer", **SIZES}).build(seed=1)
    return bayesgeom.wrap(net, blocks="blocks", attn="attn", mlp="mlp")


MAKERS = {
    "transformer": built("transformer"),
    "checkpoint": checkpoint,
    "huggingface": of_huggingface,
    "wrapped": built("mamba2"),
    "one's own": of_ones_own,
    "wrapped checkpoint": wrapped_checkpoint,
}


def scaled(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data.mul_(1.5)


def replaced(module: nn.Module) -> None:
    part = next(own for own in module.modules() if "weight" in own._parameters)
    part.weight = nn.Parameter(part.weight.detach() * 3)


def doubled(module: nn.Module) -> None:
    module.double()


CHANGES = [scaled, replaced, doubled]


def measured(model: Model) -> tuple[float, dict[str, object]]:
    found = bayesgeom.diagnose(model, TASK, n=9, n_untrained=0, probes=["calibration"])
    return float(found["calibration"].kl_bits), dict(found.provenance["model"])


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_measurement_states_the_weights_that_it_measured(
    kind: str, change: Callable[[nn.Module], None], tmp_path: Path
) -> None:
    model = MAKERS[kind](tmp_path)
    assert as_model(model) is model, "unchanged weights need no new adapter"
    (kl, before), name = measured(model), model.spec.name
    change(model.module)
    new_kl, after = measured(model)
    assert after["weights_hash"] != before["weights_hash"] and after["name"] == name
    assert after["dtype"] == ("float64" if change is doubled else "float32")
    assert re.fullmatch("[0-9a-f]{16}", str(after["weights_hash"]))
    assert new_kl == pytest.approx(kl, abs=1e-5) if change is doubled else abs(new_kl - kl) > 1e-5
    again = as_model(model)
    assert (again.task, again.tokenizer, again.batch_size) == (model.task, model.tokenizer, model.batch_size)
    assert as_model(again) is again


@pytest.mark.parametrize("kind", ["transformer", "checkpoint", "huggingface", "wrapped checkpoint"])
def test_nothing_is_resumed_with_other_weights(kind: str, tmp_path: Path) -> None:
    model = MAKERS[kind](tmp_path)
    first = bayesgeom.ablate(model, TASK, "mlps", n=9, out=tmp_path / "battery", mode="zero")
    bayesgeom.capture(model, TASK, out=tmp_path / "capture", n=9, sites=["resid_post"])
    scaled(model.module)
    for call in (
        lambda: bayesgeom.ablate(model, TASK, "mlps", n=9, out=tmp_path / "battery", mode="zero"),
        lambda: bayesgeom.capture(model, TASK, out=tmp_path / "capture", n=9, sites=["resid_post"]),
    ):
        with pytest.raises(BayesGeomError, match=r"another (battery|capture)|of another"):
            call()
    fresh = bayesgeom.ablate(as_model(model), TASK, "mlps", n=9, mode="zero")
    assert not np.allclose(fresh.kl_increase_bits.value, first.kl_increase_bits.value, atol=1e-4)


def test_an_untrained_network_stays_one_until_it_is_trained() -> None:
    copy = MAKERS["transformer"](Path()).untrained_copy(3)
    assert as_model(copy) is copy and is_untrained(copy.spec)
    scaled(copy.module)
    assert as_model(copy).spec.is_identified


def test_parts_that_were_replaced_after_attaching_are_checked_again() -> None:
    model = MAKERS["transformer"](Path())
    attention = model.module.blocks[1].attn
    plain = attention.forward
    attention.forward = lambda x: plain(x) + 0.1
    assert model.withheld == {} and "identity W_O z" in as_model(model).withheld[next(iter(as_model(model).withheld))]


@pytest.mark.parametrize("is_measured_before", [True, False])
def test_the_weights_of_ones_own_model_may_not_change_unnoticed(*, is_measured_before: bool) -> None:
    module = GRUConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, d_model=8).build(seed=0)
    model = GRUModel(module, name=None, task=None, digest=None)
    assert not is_measured_before or as_model(model) is model
    scaled(module)
    with pytest.raises(InvalidArgument, match=r"gru .*GRUModel"):
        bayesgeom.diagnose(model, TASK, n=5)


def test_a_function_has_no_weights_by_which_work_could_be_resumed() -> None:
    net = config_from_dict({"architecture": "transformer", **SIZES}).build(seed=1)
    model = as_model(lambda tokens: net(tokens) + 0)
    assert not model.spec.is_identified and as_model(model) is model


@pytest.mark.parametrize("kind", ["transformer", "huggingface", "one's own"])
def test_inference_mode_and_frozen_weights_change_no_number(kind: str, tmp_path: Path) -> None:
    expected = measured(MAKERS[kind](tmp_path))[0]
    ablated = bayesgeom.ablate(MAKERS[kind](tmp_path), TASK, "mlps", n=9).kl_increase_bits.value
    model = MAKERS[kind](tmp_path)
    model.module.requires_grad_(requires_grad=False)
    with torch.inference_mode():
        made_here = MAKERS[kind](tmp_path)
        for own in (model, made_here):
            assert measured(own)[0] == pytest.approx(expected, abs=1e-6)
            found = bayesgeom.ablate(own, TASK, "mlps", n=9).kl_increase_bits.value
            np.testing.assert_allclose(found, ablated, atol=1e-6)
    assert measured(made_here)[0] == pytest.approx(expected, abs=1e-6), "weights made in inference mode"
    with torch.device("meta"):
        for measure in (bayesgeom.diagnose, bayesgeom.ablate):
            with pytest.raises(InvalidArgument, match="meta"):
                measure(model, TASK, n=9)
