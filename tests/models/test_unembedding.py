"""The logit lens: what a model does after its last block, applied to the residual stream before each layer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesgeom
from bayesgeom import tasks
from bayesgeom.core import run as s
from bayesgeom.core.errors import MissingSite
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.resolve import as_model
from tests.families import saved
from tests.models.huggingface.test_sites import text
from tests.models.huggingface.test_unembedding import unembedding_in
from tests.models.test_lens import bridge

TASK = tasks.Bijection(n_values=7, n_pairs=3)


def transformer(**kinds: Any) -> Transformer:
    config = bayesgeom.TransformerConfig(
        d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=3, n_heads=1, d_model=22, d_mlp=13, **kinds
    )
    module = config.build(seed=0)
    assert isinstance(module, Transformer)
    with torch.no_grad():  # a norm that matters
        module.ln_final.w.copy_(torch.linspace(-2, 3, 22))
    return module


@pytest.mark.parametrize("kinds", [{}, {"tied": False}, {"norm": "layernorm"}])
def test_the_lens_is_the_models_own_end_at_every_layer(kinds: dict[str, Any]) -> None:
    module, trials = transformer(**kinds), TASK.sample(5, seed=1)
    run = as_model(module).run([trials], record=[s.LOGIT_LENS, s.RESID_PRE], n_recorded=5)
    with torch.no_grad():
        expected = module.logits(run.at(s.RESID_PRE))[..., trials.answers].log_softmax(-1)
        naive = (run.at(s.RESID_PRE) @ module.get_parameter("embed.weight").T)[..., trials.answers].log_softmax(-1)
    torch.testing.assert_close(run.at(s.LOGIT_LENS), expected, atol=1e-6, rtol=1e-5)
    assert (naive - expected).abs().max() > 0.01  # without the final norm


def test_a_network_whose_middle_layer_carries_its_answer_is_read_there() -> None:
    module, trials = transformer(), TASK.sample(5, seed=1)
    with torch.no_grad():
        for name in ("attn.W_O.weight", "mlp.W_out.weight", "mlp.W_out.bias"):
            module.blocks[2].get_parameter(name).zero_()  # the last block adds nothing
    run = as_model(module).run([trials], record=[s.LOGIT_LENS], n_recorded=5)
    *before, last = run.at(s.LOGIT_LENS).double()
    torch.testing.assert_close(last, run.log_answers.double(), atol=1e-5, rtol=1e-5)
    assert all((own - run.log_answers).abs().max() > 1e-3 for own in before)


def encoder(*, is_batch_first: bool, is_pre_norm: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 28, batch_first=is_batch_first, norm_first=is_pre_norm)
    norm = nn.LayerNorm(16) if is_pre_norm else None
    return nn.ModuleDict(
        {"embed": nn.Embedding(97, 16), "of": nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False)}
    ).eval()


def read(net: Any, ids: Tensor) -> Tensor:
    is_first = net["of"].layers[0].self_attn.batch_first
    x = net["embed"](ids) if is_first else net["embed"](ids).transpose(0, 1)
    x = net["of"](x, mask=nn.Transformer.generate_square_subsequent_mask(ids.shape[1]), is_causal=True)
    logits: Tensor = (x if is_first else x.transpose(0, 1)) @ net["embed"].weight.T
    return logits


def assert_last_is_output(model: Model) -> None:
    trials = text()
    resid = model.run([trials], record=[s.RESID_POST], n_recorded=5).at(s.RESID_POST)[-1]
    unembedding = unembedding_in(model)
    assert unembedding is not None
    with torch.no_grad():
        torch.testing.assert_close(unembedding.logits(resid), model.logits(trials), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_batch_first", [True, False])
@pytest.mark.parametrize("is_pre_norm", [True, False])
def test_wrapped_modules(is_batch_first: bool, is_pre_norm: bool) -> None:
    torch.manual_seed(0)
    net = encoder(is_batch_first=is_batch_first, is_pre_norm=is_pre_norm)
    model = bayesgeom.wrap(net, blocks="of.layers", forward=read, name="encoder")
    assert_last_is_output(model)
    unembedding = unembedding_in(model)
    assert unembedding is not None and len(unembedding.parts) == is_pre_norm


def test_a_bridge(tmp_path: Path) -> None:
    assert_last_is_output(as_model(bridge(saved("llama", tmp_path / "llama"))))


def _mixing(net: Any, ids: Tensor) -> Tensor:
    logits: Tensor = net[2](net[1](net[0](ids))[0]).cumsum(dim=1)
    return logits


def _functional(net: Any, ids: Tensor) -> Tensor:
    logits: Tensor = 3 * net[2](2 * net[1](net[0](ids))[0])
    return logits


def recurrent(forward: Callable[[Any, Tensor], Tensor]) -> Model:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(97, 11), nn.GRU(11, 11, batch_first=True), nn.Linear(11, 97))
    return bayesgeom.wrap(net, blocks=lambda net: [net[1]], forward=forward, name="gru")


def test_factors_before_and_after_the_output_matrix() -> None:
    model = recurrent(_functional)
    assert_last_is_output(model)
    unembedding = unembedding_in(model)
    assert unembedding is not None and unembedding.factors == pytest.approx((2.0,))
    assert unembedding.scale == pytest.approx(3.0)


def _normalized(net: Any, ids: Tensor) -> Tensor:
    return _functional(net, ids).log_softmax(-1)


def _normalized_by_a_module(net: Any, ids: Tensor) -> Tensor:
    logits: Tensor = nn.LogSoftmax(-1)(_functional(net, ids))
    return logits


@pytest.mark.parametrize("forward", [_normalized, _normalized_by_a_module])
def test_a_network_that_returns_log_probabilities_has_the_lens_of_its_logits(forward: Any) -> None:
    model, plain = recurrent(forward), recurrent(_functional)
    unembedding = unembedding_in(model)
    assert unembedding is not None and unembedding.scale == pytest.approx(3.0) and unembedding.output is None
    one, other = (each.run([TASK.sample(5, seed=0)], record=[s.LOGIT_LENS], n_recorded=5) for each in (model, plain))
    torch.testing.assert_close(one.at(s.LOGIT_LENS), other.at(s.LOGIT_LENS), atol=1e-5, rtol=1e-5)


def test_logits_that_are_no_function_of_the_residual_there_have_no_lens() -> None:
    model = recurrent(_mixing)
    assert unembedding_in(model) is None and model.layers_of(s.LOGIT_LENS) == ()
    with pytest.raises(MissingSite, match=r"'logit_lens', which gru does not provide \(no path from resid_post"):
        model.run([text()], record=[s.LOGIT_LENS])


def test_a_function_has_no_lens() -> None:
    model = as_model(lambda ids: torch.zeros(*ids.shape, 97))
    with pytest.raises(MissingSite, match=r"read from resid_pre, which is missing: a function has no parts"):
        model.require([s.LOGIT_LENS], by="this test")


def test_hooks_of_others_on_the_final_norm_fire_once_a_pass() -> None:
    module, fired = transformer(), list[int]()
    model = as_model(module)
    assert model.layers_of(s.LOGIT_LENS) == (0, 1, 2)
    module.ln_final.register_forward_hook(lambda *_: fired.append(1))
    model.run([TASK.sample(2, seed=0)], record=[s.LOGIT_LENS], n_recorded=2)
    assert len(fired) == 1


def test_a_capture_keeps_the_lens(tmp_path: Path) -> None:
    bayesgeom.capture("mess3-small", out=tmp_path / "with", n=3, sites=["logit_lens"])
    found, own = as_model(tmp_path / "with"), as_model("mess3-small")
    assert found.layers_of(s.LOGIT_LENS) == own.layers_of(s.LOGIT_LENS)
    bayesgeom.capture("mess3-small", out=tmp_path / "without", n=3, sites=["resid_pre"])
    with pytest.raises(MissingSite, match=r"'logit_lens', which mess3-small does not provide \(not captured"):
        as_model(tmp_path / "without").require([s.LOGIT_LENS], by="this test")
