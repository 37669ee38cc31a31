"""PEFT adapters whose config would fill the memory, change the base model or lacks tensors."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import CheckpointFault
from tests.models.huggingface.test_hostile_directories import llama
from tests.models.test_hostile_checkpoints import limits

__all__ = ["limits"]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"r": 10**9}, r"the adapter in .* does not fit LlamaForCausalLM: .*allocate"),
    "base changed at random": ({"init_lora_weights": "pissa_niter_9"}, "changes the base model by random draws"),
    "magnitudes of DoRA": ({"use_dora": True}, r"lacks 4 tensors: .*lora_magnitude_vector"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        base = llama()
        base.save_pretrained(folder / "base")
        adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"]))
    adapted.save_pretrained(folder / "adapter")
    return folder / "adapter"


def changed(whole: Path, folder: Path, **entries: Any) -> Path:
    """A copy of the adapter with other entries in its config."""
    folder.mkdir()
    data = json.loads((whole / CONFIG).read_text())
    own = {**data, "base_model_name_or_path": str(whole.parent / "base"), **entries}
    (folder / CONFIG).write_text(json.dumps(own))
    (folder / WEIGHTS).write_bytes((whole / WEIGHTS).read_bytes())
    return folder


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_adapters_are_refused_at_once(fault: str, whole: Path, tmp_path: Path) -> None:
    entries, message = HOSTILE[fault]
    with pytest.raises(CheckpointFault, match=message) as caught:
        bayesgeom.load(changed(whole, tmp_path / "a", **entries))
    str(caught.value).encode()  # it can be printed


def embedded(whole: Path, folder: Path, **entries: Any) -> Path:
    """The base model, and a changed adapter beside it."""
    changed(whole, folder, base_model_name_or_path=str(folder), **entries)
    for file in (whole.parent / "base").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_an_adapter_beside_its_base_model_is_loaded_with_it(whole: Path, tmp_path: Path) -> None:
    folder, tokens = embedded(whole, tmp_path / "a"), torch.arange(11)[None]
    found, expected = bayesgeom.load(folder), bayesgeom.load(changed(whole, tmp_path / "b"))
    with torch.no_grad():
        assert torch.equal(found.module(tokens).logits, expected.module(tokens).logits)


def test_an_adapter_beside_another_model_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = embedded(whole, tmp_path / "a")
    for base in ("owner/base", str(whole.parent / "base")):
        (folder / CONFIG).write_text(
            json.dumps(json.loads((folder / CONFIG).read_text()) | {"base_model_name_or_path": base})
        )
        with pytest.raises(CheckpointFault, match=r"holds a model, and an adapter of another one, '"):
            bayesgeom.load(folder)
