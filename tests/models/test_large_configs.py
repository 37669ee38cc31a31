"""Configs whose weights no memory holds are refused before anything is built, whatever size is the large one."""

import time
from typing import Any

import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.plugins import find_plugin
from bayesgeom.models.config import ModelConfig, shapes_only

LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "vocabulary": ("transformer", {"d_vocab": 2**31}),
    "context": ("transformer", {"n_ctx": 2**31}),
    "depth": ("transformer", {"n_layers": 2**31, "top_attention_off": 2**30}),
    "width, beyond 64 bits": ("transformer", {"d_model": 2**40, "n_heads": 1}),
    "two sizes that are large together": ("lstm", {"d_vocab": 2**23, "d_model": 2**20}),
    "three sizes": ("transformer", {"d_model": 2**14, "d_mlp": 2**16, "n_layers": 2**10, "n_heads": 2**9}),
    "state": ("mamba", {"d_state": 2**31}),
    "another library's, whose least depth is 2": ("rwkv", {"d_mlp": 2**62}),
}


@pytest.mark.parametrize("case", LARGE)
def test_what_no_memory_holds_is_refused_before_it_is_built(case: str) -> None:
    architecture, sizes = LARGE[case]
    kind = find_plugin("bayesgeom.models.native", ModelConfig, architecture, group="bayesgeom.models")  # type: ignore[type-abstract]
    config, start = kind(**{"d_vocab": 5, "n_ctx": 7, **sizes}), time.monotonic()
    with pytest.raises(InvalidArgument, match=r"^\w+Config\(.* needs about .* GB of memory; this machine has .* GB\."):
        config.build(seed=0)
    assert time.monotonic() - start < 60


def test_the_weights_of_every_layer_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = bayesgeom.TransformerConfig(
        d_vocab=2**15, n_ctx=7, n_layers=5, n_heads=2, d_model=64, d_mlp=64, tied=False
    )
    with shapes_only():
        module = config.build(seed=0)
    n_bytes = sum(own.nbytes for own in (*module.parameters(), *module.buffers()))
    counted = list[float]()
    monkeypatch.setattr("bayesgeom.models.config.check_memory", lambda what, size, advice: counted.append(size))
    config.build(seed=0)
    assert counted == [n_bytes] and torch.get_default_device().type == "cpu"
