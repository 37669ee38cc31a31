"""What the first users missed: the version, sizes on the command line, prompts in memory, a tokenizer by hand."""

import re
from pathlib import Path

import pytest
import torch

import bayesgeom
from bayesgeom.cli import _assignments, main
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.generalization.longer_tasks import length_field_of, with_room_for
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.recipes import Recipe, recipe
from tests.tasks.tokenizers import pair_tokenizer, word_tokenizer
from tests.test_cli import folder

__all__ = ["folder"]  # a fixture


def test_sizes_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--set", "n_layers=1", "--set", "n_values=7", "--set", "batch_size=3"]
    assert main(["train", "tiny-recipe", *given]) == 0
    model = bayesgeom.load("runs/train/tiny-recipe-n_layers1-n_values7-batch_size3/checkpoint")
    assert model.spec.n_layers == 1 and model.task == Bijection(n_values=7, n_pairs=3)
    assert model.spec.name == "tiny-recipe-n_layers1-n_values7-batch_size3"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("n_layer=2", r"recipe 'tiny-recipe' has no parameter 'n_layer'. It has: .*n_layers.*n_values"),
        ("n_layers", r"--set takes KEY=VALUE, each key once.*got 'n_layers'"),
        ("n_values=2", r"3 distinct keys requested of 2"),
    ],
)
def test_unknown_or_impossible_sizes_are_refused(given: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny-recipe", "--set", *given.split()]) == 2
    assert re.search(text, capsys.readouterr().err)
    assert not Path("runs").exists()


def test_every_stage_takes_the_sizes() -> None:
    stage: Recipe | None = recipe("bijection-v20").resized({"n_layers": 2, "n_values": 8, "n_pairs": 7})
    count = 0
    while stage is not None:
        assert stage.name.endswith("-n_layers2-n_values8-n_pairs7") and stage.sizes["n_layers"] == 2
        assert stage.task == Bijection(n_values=8, n_pairs=7)
        stage, count = stage.after, count + 1
    assert count == 4 and recipe("bijection-v20").resized({}) is recipe("bijection-v20")
    with pytest.raises(InvalidArgument, match=r"starts from the trained weights"):
        recipe("bijection-v20-refined").resized({"n_layers": 2})


def hf(vocabulary: int = 257) -> object:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 12, "intermediate_size": 14, "num_hidden_layers": 2, "num_attention_heads": 3}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_key_value_heads=3, **sizes)).eval()


def test_a_model_takes_its_tokenizer_and_texts_in_memory() -> None:
    tokenizer, prompts = word_tokenizer(), ["apple river stone", "river apple", "stone river apple river"]
    model = bayesgeom.as_model(hf(), tokenizer)  # type: ignore[arg-type]
    assert isinstance(model, HFModel) and model.tokenizer is tokenizer
    diagnosis = bayesgeom.diagnose(model, prompts, n=3, n_untrained=0)
    assert diagnosis.provenance["task_label"].startswith("3 prompts") and "calibration" in diagnosis.inapplicable
    assert "value_manifold" in diagnosis or "value_manifold" in diagnosis.skipped
    with pytest.raises(InvalidArgument, match="already has a tokenizer"):
        bayesgeom.as_model(model, pair_tokenizer())
    assert bayesgeom.as_model(model, tokenizer) is model
    loaded = bayesgeom.as_model("tiny", tokenizer)
    assert loaded.tokenizer is tokenizer
    with pytest.raises(InvalidArgument, match="a list of prompts; got"):
        bayesgeom.diagnose("tiny", [])


@pytest.mark.parametrize("kind", ["transformer", "model", "checkpoint"])
def test_a_tokenizer_is_attached_to_a_copy(kind: str) -> None:
    """Of bayesgeom's own modules too; the caller's model stays without one."""
    checkpoint = load_checkpoint(checkpoints()["tiny"])
    plain = bayesgeom.as_model(checkpoint)
    given = {"transformer": checkpoint.module, "model": plain, "checkpoint": checkpoint}[kind]
    tokenizer = word_tokenizer()
    model = bayesgeom.as_model(given, tokenizer)
    assert model.tokenizer is tokenizer and model.module is plain.module and plain.tokenizer is None
    assert model.spec.weights_hash == plain.spec.weights_hash
    trials = checkpoint.task.sample(3, seed=0)
    assert torch.equal(model.logits(trials), plain.logits(trials))


@pytest.mark.parametrize(
    ("task", "n_ctx", "kept"),
    [
        (Bijection(n_values=20, n_pairs=9, repeats=True), 61, (9, 14, 22)),
        (Bijection(n_values=20, n_pairs=9), None, (9, 14)),
    ],
)
def test_default_lengths_are_those_with_room(task: Bijection, n_ctx: int | None, kept: tuple[int, ...]) -> None:
    config = bayesgeom.TransformerConfig(d_vocab=40, n_ctx=n_ctx or 999, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
    spec = bayesgeom.as_model(config.build(seed=0)).spec
    assert with_room_for([spec], task, length_field_of(task), 9, (9, 14, 22, 45)) == kept


def test_an_option_is_not_set_as_a_parameter_of_the_recipe() -> None:
    with pytest.raises(InvalidArgument, match="steps is an option of its own: use --steps 30 instead of --set"):
        _assignments(["steps=30"])
