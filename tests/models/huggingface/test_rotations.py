"""Rotations that depend on the longest sequence of a pass: each sequence is measured as if it were alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

import bayesgeom
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials
from bayesgeom.models.huggingface.model import HFModel
from tests.models.huggingface.test_sites import text

SWITCH, SIZES = 16, {"vocab_size": 97, "hidden_size": 60, "intermediate_size": 28, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3, "pad_token_id": 0}


def phi3(kind: str = "Phi3", **sizes: Any) -> Any:
    factors = {"short_factor": [1.0] * 5, "long_factor": [1.0, 2.0, 5.0, 9.0, 17.0]}
    if kind == "Phimoe":
        sizes |= {"num_local_experts": 2, "num_experts_per_tok": 2}
        factors |= {"short_mscale": 1.1, "long_mscale": 1.3}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": SWITCH, **factors}
    config = getattr(transformers, f"{kind}Config")(
        **SIZES, **HEADS, **sizes, max_position_embeddings=64, rope_scaling=rope
    )
    config.original_max_position_embeddings = SWITCH
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def dynamic(kind: str = "Llama") -> Any:
    rope: Any = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
    sizes = {**SIZES, **HEADS, "max_position_embeddings": SWITCH}
    if kind == "Gemma3":
        sizes |= {"head_dim": 10, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
        return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes, rope_parameters=rope))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, rope_parameters=rope))


MADE: dict[str, Callable[[], Any]] = {
    "longrope": phi3,
    "longrope of a mixture": lambda: phi3("Phimoe"),
    "dynamic": dynamic,
    "dynamic by kind of layer": lambda: dynamic("Gemma3"),
}


def lively(made: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    hf = made().eval()
    with torch.no_grad():
        for own in hf.parameters():
            if own.ndim > 1:
                own.copy_(torch.randn(own.shape) * 1.2 / own.shape[-1] ** 0.5)
    return hf


def texts(lengths: Sequence[int]) -> Trials:
    """Sequences of these lengths, padded to the longest, with their last five positions scored."""
    whole = text(len(lengths), n_pos=max(lengths))
    positions = torch.arange(max(lengths))
    ends = torch.tensor(lengths)[:, None]
    is_scored = (positions < ends) & (positions >= ends - 5)
    even = torch.full((*is_scored.shape, 3), 1 / 3, dtype=torch.float64)
    answers, labels = torch.tensor([2, 3, 5]), torch.where(is_scored, 2, -100)
    return replace(whole, scored=is_scored, labels=labels, answers=answers, predictive=even, belief=even)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("lengths", [(9, 30, 12, 22, 11), (16, 17, 15)])
def test_each_sequence_is_measured_as_if_alone(name: str, lengths: tuple[int, ...]) -> None:
    trials, model = texts(lengths), HFModel(lively(MADE[name]))
    found = model.run([trials], record=[bayesgeom.core.run.PATTERN], n_recorded=len(lengths))
    for row, length in enumerate(lengths):
        alone = HFModel(lively(MADE[name]))
        with torch.no_grad():
            expected = alone.module(trials.tokens[row : row + 1, :length]).logits[:, -5:].double()
        answers = expected[..., trials.answers].log_softmax(-1)
        torch.testing.assert_close(found.log_answers[row : row + 1], answers, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MADE)
def test_a_pass_that_needs_two_rotations_is_refused(name: str) -> None:
    model = HFModel(lively(MADE[name]))
    with pytest.raises(InvalidArgument, match="9 to 30 tokens"):
        model.logits(texts((9, 30)))


def test_models_whose_rotation_is_fixed_are_not_cut() -> None:
    assert HFModel(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS))).rotation is None
