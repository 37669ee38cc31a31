"""Untrained copies: laid out as the model is, and none where it would not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import NoCopy
from bayesgeom.measurements.key_overlap import KeyOverlapReport
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.resolve import as_model, load
from bayesgeom.tasks.bijection import Bijection
from tests.models.huggingface.test_sites import text

PARTS = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.2", "model.norm", "model.rotary_emb")
ON_CPU: dict[str, Any] = dict.fromkeys((*PARTS, "lm_head"), "cpu")


def spread(path: Path, places: dict[str, Any], offload: Path) -> HFModel:
    import transformers

    hf = transformers.AutoModelForCausalLM.from_pretrained(path, device_map=places, offload_folder=offload)
    model = as_model(hf)
    assert isinstance(model, HFModel)
    return model


def test_copies_are_spread_as_the_model_is(
    folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several devices are not to be had here: what accelerate would be asked to do is looked at."""
    import transformers.integrations.accelerate  # noqa: F401  (before it could take the stand-in for the function)

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(accelerate, "dispatch_model", lambda module, device_map: asked.append(device_map) or module)
    model = load(folder("llama"))
    model.untrained_copy(0)
    assert asked == [], "one device needs no plan"
    places = ON_CPU | {"model.layers.1": 0, "model.layers.2": 1}
    model.module.hf_device_map = places  # type: ignore[assignment]
    copy = model.untrained_copy(0)
    assert asked == [places] and not copy.module.training
    assert torch.equal(copy.logits(text()), load(folder("llama")).untrained_copy(0).logits(text()))


def test_a_model_that_is_partly_on_disk_has_none_and_the_report_says_so(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = spread(folder("llama"), ON_CPU | {"model.layers.1": "disk"}, tmp_path / "offload")
    with pytest.raises(
        NoCopy, match=r"part of LlamaForCausalLM is on disk, and an untrained network would have to fit"
    ):
        model.untrained_copy(0)
    task = Bijection(n_values=7, n_pairs=5)
    found = bayesgeom.diagnose(model, task, n=5, n_untrained=2)
    whole = bayesgeom.diagnose(load(folder("llama")), task, n=5, n_untrained=0)
    assert "device_map that needs no disk" in found.skipped["initialization"] and set(found) == set(whole)
    assert "skipped initialization: part of LlamaForCausalLM is on disk" in " ".join(found.summary().split())
    overlaps = (report[KeyOverlapReport].overlap.value for report in (found, whole))
    torch.testing.assert_close(*overlaps, equal_nan=True)
