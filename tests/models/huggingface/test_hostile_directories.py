"""Hugging Face directories made to hang or to fill the memory are refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

import bayesgeom
from bayesgeom.core.errors import CheckpointFault
from tests.models.test_hostile_checkpoints import limits

__all__ = ["limits"]
HUGE = 10**9


def llama() -> transformers.PreTrainedModel:
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=12,
        intermediate_size=13,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=17,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> transformers.PreTrainedModel:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=31, n_embd=12, n_layer=2, n_head=3, n_positions=17)
    )


def asked(**sizes: object) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        data = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(data | sizes))

    return change


def nested(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text("[" * 100_000)


Made = Callable[[], transformers.PreTrainedModel]
HOSTILE: dict[str, tuple[Made, Callable[[Path], object], str]] = {
    "width": (llama, asked(hidden_size=3 * 10**7), "cannot be loaded: .*allocate"),
    "table of positions": (gpt2, asked(n_positions=HUGE), "cannot be loaded: .*allocate"),
    "a layer dropped": (
        llama,
        asked(num_hidden_layers=1),
        r"hold 9 tensors that LlamaForCausalLM has no place for",
    ),
    "nested tokenizer": (llama, nested("tokenizer_config.json"), "the tokenizer of .* cannot be used: Recursion"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_directories_are_refused_at_once(fault: str, tmp_path: Path) -> None:
    made, change, message = HOSTILE[fault]
    made().save_pretrained(tmp_path)
    change(tmp_path)
    with pytest.raises(CheckpointFault, match=message):
        bayesgeom.load(tmp_path)


@pytest.mark.parametrize("made", [llama, gpt2])
def test_sound_directories_load_through_links(made: Made, tmp_path: Path) -> None:
    made().save_pretrained(tmp_path / "blobs")
    (tmp_path / "model").mkdir()
    for file in (tmp_path / "blobs").iterdir():  # as the hub's cache lies
        (tmp_path / "model" / file.name).symlink_to(file)
    (tmp_path / "model" / "gone.json").symlink_to(tmp_path / "nowhere")
    assert bayesgeom.load(tmp_path / "model").spec.n_layers == 2
