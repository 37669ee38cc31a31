"""Sites that are read from the weights, of every family, against the weights themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesgeom.core import run as s
from bayesgeom.models.resolve import load
from tests.families import ATTENTION, each
from tests.models.huggingface.test_sites import ATOL, plain, text

_NORMS: dict[str, Callable[[Any], Tensor]] = {  # the weight of the norm before attention, elsewhere `input_layernorm`
    "gpt2": lambda block: block.ln_1.weight,
    "gptj": lambda block: block.ln_1.weight,
    "opt": lambda block: block.self_attn_layer_norm.weight,
    "gemma2": lambda block: 1 + block.input_layernorm.weight,
    "gemma3": lambda block: 1 + block.input_layernorm.weight,
    "olmo2": lambda block: torch.ones(60),  # the bare stream enters
}


@pytest.mark.parametrize("name", each(ATTENTION))
def test_static_sites_are_the_weights_own(name: str, folder: Callable[[str], Path]) -> None:
    family, model, trials = ATTENTION[name], load(folder(name)), text()
    hf = plain(folder(name))
    run = model.run([trials], record=[site for site in model.sites if site.is_static], n_recorded=1)
    for layer, block in enumerate(hf.get_submodule(family.blocks)):
        attention = block.get_submodule(family.attention)
        with torch.no_grad():
            both = zip(
                family.split(attention, torch.eye(hf.config.hidden_size)[None]),
                family.split(attention, torch.zeros(1, 1, hf.config.hidden_size)),
                strict=True,
            )
            _, keys, values = ((made - offset)[0].permute(1, 2, 0) for made, offset in both)
        torch.testing.assert_close(run.at(s.W_K)[layer], keys, atol=ATOL, rtol=ATOL)
        torch.testing.assert_close(run.at(s.W_K_GRAM)[layer], keys @ keys.mT, atol=ATOL, rtol=ATOL)
        torch.testing.assert_close(run.at(s.W_V)[layer], values, atol=ATOL, rtol=ATOL)
        weight = _NORMS.get(name, lambda block: block.input_layernorm.weight)(block)
        torch.testing.assert_close(run.at(s.NORM_WEIGHT)[layer], weight.detach(), atol=ATOL, rtol=ATOL)
        if s.W_O in model.sites:
            output = attention.get_submodule(family.output).weight.detach()
            output = output if name == "gpt2" else output.T  # GPT-2's lies the other way round
            expected = output.reshape(model.spec.n_heads, family.d_head, -1)
            torch.testing.assert_close(run.at(s.W_O)[layer], expected, atol=ATOL, rtol=ATOL)
        if s.TOKEN_EMBEDDINGS in model.sites:
            embedding = hf.get_input_embeddings().weight.detach() * (60**0.5 if "gemma" in name else 1)
            expected = embedding[trials.token_ids()]
            torch.testing.assert_close(run.at(s.TOKEN_EMBEDDINGS)[layer], expected, atol=ATOL, rtol=ATOL)
        if s.TOKEN_KEYS in model.sites:
            with torch.no_grad():
                _, expected, _ = family.split(attention, run.at(s.TOKEN_INPUTS)[layer][None])
            torch.testing.assert_close(run.at(s.TOKEN_KEYS)[layer], expected[0], atol=ATOL, rtol=ATOL)


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "qwen2", "qwen3", "phi", "phi3", "gemma2", "gemma3", "olmo2", "gptj"]
)
def test_token_keys_are_the_keys_of_layer_0(name: str, folder: Callable[[str], Path]) -> None:
    """Where positions come in by rotation alone, a token's first key depends on the token alone."""
    model, trials = load(folder(name)), text()
    run = model.run([trials], record=(s.K, s.TOKEN_KEYS), n_recorded=5)
    for index, token in enumerate(trials.token_ids()):
        for key in run.at(s.K)[0][trials.tokens == token]:
            torch.testing.assert_close(key, run.at(s.TOKEN_KEYS)[0, index], atol=ATOL, rtol=ATOL)
