"""The logit lens of every family: that of the last layer is the model's own output."""

from typing import Any

import pytest
import torch

from bayesgeom.core import run as s
from bayesgeom.models.base import Model
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.unembedding import Unembedding, unembedding_of
from tests.families import _sizes, each
from tests.models.huggingface.test_sites import text
from tests.supported import FAMILIES, tiny


def unembedding_in(model: Model) -> Unembedding | None:
    return unembedding_of(model.module, model.logits, model.point, model.spec)


def attached(hf: Any) -> HFModel:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim == 1:  # norms and biases that matter
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return HFModel(hf.eval())


def assert_last_is_output(model: HFModel, tolerance: float = 1e-5) -> None:
    trials, unembedding, dtype = text(), unembedding_in(model), getattr(torch, model.spec.dtype)
    assert unembedding is not None and model.layers_of(s.LOGIT_LENS) == tuple(range(model.spec.n_layers))
    resid = model.run([trials], record=[s.RESID_POST], n_recorded=5).at(s.RESID_POST)[-1]
    with torch.no_grad():
        found, expected = unembedding.logits(resid.to(dtype)), model.logits(trials)
        torch.testing.assert_close(found, expected, atol=tolerance * float(expected.abs().max()), rtol=0)
        some = torch.tensor([5, 2, 89])
        answers = expected[..., some].double().log_softmax(-1)
        read = unembedding.log_answers(resid.to(dtype), some)
    torch.testing.assert_close(read, answers, atol=tolerance * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("name", each(FAMILIES))
def test_the_last_layer_is_the_output(name: str) -> None:
    assert_last_is_output(attached(tiny(name)))


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_in_bfloat16(name: str) -> None:
    assert_last_is_output(attached(tiny(name).to(torch.bfloat16)), tolerance=0.02)


_NARROW = {"num_hidden_layers": 3, "num_attention_heads": 6, "ffn_dim": 28, "word_embed_proj_dim": 20}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("granite", _sizes(logits_scaling=8.0, residual_multiplier=0.22)),
        ("cohere", _sizes(logit_scale=0.5)),
        ("opt", _NARROW | {"vocab_size": 97, "hidden_size": 60, "max_position_embeddings": 61}),
    ],
)
def test_scaled_logits_and_a_projection_after_the_norm(kind: str, sizes: dict[str, Any]) -> None:
    import transformers

    torch.manual_seed(0)
    model = attached(transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[kind](**sizes)))
    assert_last_is_output(model)
    unembedding = unembedding_in(model)
    assert unembedding is not None
    assert unembedding.scale == pytest.approx({"granite": 1 / 8, "cohere": 0.5, "opt": 1.0}[kind], rel=1e-5)
    assert len(unembedding.parts) == (2 if kind == "opt" else 1)


def test_a_soft_cap_is_used_where_no_logit_shows_it() -> None:
    hf = tiny("gemma2")
    with torch.no_grad():
        hf.get_output_embeddings().weight.mul_(1e-3)
    unembedding = unembedding_in(attached(hf))
    assert unembedding is not None and unembedding.soft_cap == hf.config.final_logit_softcapping
