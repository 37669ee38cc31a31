"""Configs and checkpoints: there and back bit for bit, and one sentence for each way of being wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bayesgeom.cli import main
from bayesgeom.core.errors import CheckpointFault, InvalidArgument, OutputFault
from bayesgeom.models.checkpoint import load_checkpoint, save_checkpoint, weights_hash
from bayesgeom.models.checkpoint_files import hashed
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.formation import seal

TASK = Bijection(n_values=5, n_pairs=3)
CONFIG = TransformerConfig(d_vocab=10, n_ctx=5, n_layers=2, n_heads=3, d_model=21, d_mlp=13)
RECIPE = {"name": "tiny", "task": TASK.config(), "seed": 7}
CARD = "# tiny\n\nweights {weights_hash}\n"
Weights = dict[str, Tensor]


def saved(path: Path, seed: int = 1) -> str:
    module = CONFIG.build(seed=seed)
    entries = {"scores": {"kl_bits": 0.25}}
    return save_checkpoint(path, module, CONFIG, recipe=RECIPE, step=17, card=CARD, entries=entries)


def change_config(path: Path, change: Callable[[dict[str, Any]], object], *, rehash: bool = True) -> None:
    """Edit the config; `rehash` stores its hash again, so that the hash is not what is found wrong."""
    description = json.loads((path / "config.json").read_text())
    change(description)
    if rehash:
        description = hashed(description)
    (path / "config.json").write_text(json.dumps(description))


def change_weights(path: Path, change: Callable[[Weights], object], *, rehash: bool) -> None:
    """Edit the tensors; `rehash` makes the config agree, so that the hash is not what is found wrong."""
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")
    if rehash:
        change_config(path, lambda description: description.update(weights_hash=weights_hash(weights)))


def fill_one(value: float) -> Callable[[Weights], object]:
    return lambda weights: weights["ln_final.w"][3:5].fill_(value)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_layers": 0}, r"every size of a transformer must be at least 1 .*n_layers=0"),
        ({"d_model": 31}, r"d_model = 31 must be a multiple of n_heads = 3"),
        ({"positions": "rotary"}, r"d_head = 7 must be even"),
        ({"n_head": 3}, r"architecture 'transformer' has no parameter 'n_head'. It has: .*n_heads"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        config_from_dict(CONFIG.to_dict() | sizes)


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    module = CONFIG.build(seed=1).train()
    digest = saved(tmp_path / "tiny")
    loaded = load_checkpoint(tmp_path / "tiny")
    assert loaded.config == CONFIG and loaded.task == TASK
    assert (loaded.name, loaded.step, loaded.recipe, loaded.weights_hash) == ("tiny", 17, RECIPE, digest)
    assert not loaded.module.training
    before, after = module.state_dict(), loaded.module.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    tokens = TASK.sample(3, seed=0).tokens
    with torch.no_grad():
        assert torch.equal(module.eval()(tokens), loaded.module(tokens))


def test_a_runs_finished_checkpoint_bears_the_runs_name(tmp_path: Path) -> None:
    for folder in ("one/checkpoint", "two"):
        saved(tmp_path / folder)
    names = [load_checkpoint(tmp_path / folder).name for folder in ("one/checkpoint", "two")]
    assert names == ["one", "two"]


def test_the_directory_says_what_it_is(tmp_path: Path) -> None:
    digest = saved(tmp_path / "tiny")
    assert {file.name for file in (tmp_path / "tiny").iterdir()} == {"model.safetensors", "config.json", "card.md"}
    assert (tmp_path / "tiny" / "card.md").read_text() == f"# tiny\n\nweights {digest}\n"
    description = json.loads((tmp_path / "tiny" / "config.json").read_text())
    assert (description["schema"], description["step"], description["scores"]) == (2, 17, {"kl_bits": 0.25})
    assert {"python", "torch", "transformer-lens", "numpy", "safetensors"} <= description["versions"].keys()


def test_the_hash_sees_every_name_shape_dtype_and_number() -> None:
    weights = {"a": torch.arange(6.0), "b": torch.zeros(3)}
    others = [
        {"b": weights["b"], "c": weights["a"]},
        weights | {"a": weights["a"].reshape(2, 3)},
        weights | {"a": weights["a"].to(torch.float16)},
        weights | {"a": weights["a"].nextafter(torch.tensor(9.0))},
        {"a": weights["a"]},
    ]
    assert weights_hash(dict(reversed(weights.items()))) == weights_hash(weights)
    assert weights_hash({name: tensor.expand(2, -1)[1] for name, tensor in weights.items()}) == weights_hash(weights)
    assert len({weights_hash(w) for w in (weights, *others)}) == 6


WEIGHT_FAULTS = {
    "missing": (
        lambda weights: weights.pop("blocks.1.mlp.W_in.bias"),
        r"model\.safetensors does not fit .*Missing key.*blocks\.1\.mlp\.W_in\.bias",
    ),
    "extra": (
        lambda weights: weights.update({"blocks.2.ln1.w": torch.ones(21)}),
        r"model\.safetensors does not fit .*Unexpected key.*blocks\.2\.ln1\.w",
    ),
    "shape": (
        lambda weights: weights.update({"pos_embed.weight": torch.ones(7, 21)}),
        r"size mismatch for pos_embed\.weight",
    ),
    "nan": (fill_one(float("nan")), r"ln_final\.w has 2 NaN or infinite weights"),
}


@pytest.mark.parametrize("fault", WEIGHT_FAULTS)
def test_wrong_weights_are_named(fault: str, tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    change, message = WEIGHT_FAULTS[fault]
    change_weights(tmp_path / "tiny", change, rehash=True)
    with pytest.raises(CheckpointFault, match=message):
        load_checkpoint(tmp_path / "tiny")


def test_edited_weights_no_longer_match_their_hash(tmp_path: Path) -> None:
    digest = saved(tmp_path / "tiny")
    change_weights(tmp_path / "tiny", fill_one(1.0 + 1e-6), rehash=False)
    with pytest.raises(CheckpointFault, match=rf"have hash \w{{16}}, their config says {digest}: one of the two"):
        load_checkpoint(tmp_path / "tiny")


CONFIG_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "newer": (lambda d: d.update(schema=3), r"has schema 3; this bayesgeom reads up to 2\. Upgrade"),
    "no schema": (lambda d: d.pop("schema"), r"not a bayesgeom config: it has no schema number"),
    "no model": (lambda d: (d.pop("model"), d.pop("step")), r"config\.json lacks model, step\."),
    "architecture": (
        lambda d: d["model"].update(architecture="oracle"),
        r"config\.json: there is no ModelConfig named 'oracle'\. There are: .*transformer",
    ),
    "size": (lambda d: d["model"].update(d_model=22), r"config\.json: d_model = 22 must be a multiple of n_heads = 3"),
    "task": (lambda d: d["task"].update(name="recal"), r"no WindTunnel named 'recal'\. There are: bijection, .*hmm"),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_wrong_configs_are_named(fault: str, tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    change, message = CONFIG_FAULTS[fault]
    change_config(tmp_path / "tiny", change)
    with pytest.raises(CheckpointFault, match=message):
        load_checkpoint(tmp_path / "tiny")


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "heads": lambda d: d["model"].update(n_heads=1),  # every shape still fits
    "task": lambda d: d["task"].update(n_pairs=2),
    "scores": lambda d: d["scores"].update(kl_bits=0.0),
    "more": lambda d: d.update(note="trust me"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_config_that_was_edited_does_not_load(edit: str, tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    change_config(tmp_path / "tiny", EDITS[edit], rehash=False)
    with pytest.raises(CheckpointFault, match=r"config\.json does not have its config_hash.*--seal"):
        load_checkpoint(tmp_path / "tiny")


def test_a_config_without_its_hash_does_not_load_until_it_is_sealed(tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    change_config(tmp_path / "tiny", lambda d: (d.pop("config_hash"), d.update(schema=1)), rehash=False)
    with pytest.raises(CheckpointFault, match=r"config\.json does not have its config_hash.*--seal"):
        load_checkpoint(tmp_path / "tiny")
    assert main(["checkpoints", "--seal", str(tmp_path / "tiny")]) == 0
    assert load_checkpoint(tmp_path / "tiny").step == 17
    change_weights(tmp_path / "tiny", fill_one(1.5), rehash=False)
    seal(tmp_path / "tiny")
    with pytest.raises(CheckpointFault, match="replaced or edited"):
        load_checkpoint(tmp_path / "tiny")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_missing_files_are_named(file: str, tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    (tmp_path / "tiny" / file).unlink()
    with pytest.raises(CheckpointFault, match=rf"tiny holds no {file}; a checkpoint is model\.safetensors and config"):
        load_checkpoint(tmp_path / "tiny")


@pytest.mark.parametrize("standing", [False, True], ids=["fresh", "over a former one"])
def test_a_failing_save_changes_nothing(standing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny"
    digest = saved(path, seed=1) if standing else ""

    def half_written(weights: Weights, file: Path, metadata: object = None) -> None:
        file.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device")  # what a full disk gives

    monkeypatch.setattr("safetensors.torch.save_file", half_written)
    with pytest.raises(OutputFault, match=r"cannot write .*tiny.*No space left"):
        saved(path, seed=2)
    assert [entry.name for entry in tmp_path.iterdir()] == (["tiny"] if standing else [])
    assert not standing or load_checkpoint(path).weights_hash == digest
