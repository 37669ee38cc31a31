"""What a Hugging Face config asks for, compared with the files beside it, before transformers builds anything.

A config of a few bytes can ask for a thousand million layers, or for tables that fill the memory before the first
weight is read. Files cannot lie like that: a safetensors file is as long as its header says.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from bayesgeom.core.errors import CheckpointFault
from bayesgeom.core.reading import check_regular, read_json
from bayesgeom.models.checkpoint import CONFIG
from bayesgeom.models.declared import Shapes, read_header

_LAYERS = {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers"}
_EXPERTS = {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}
_WIDTHS = {
    "vocab_size",
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "head_dim",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_key_value_heads",
    "state_size",
    "attention_hidden_size",
}
_OPENED_BY_OTHERS = ("tokenizer.json", "vocab.json", ".index.json")  # large, or read elsewhere
_QUANTIZED = "quantization_config"
_TIMES, _SMALL = 32, 2 * 2**30  # float32 of 1-bit weights; buffers of small models


def check_files(path: Path) -> None:
    """Check that a directory holds nothing that would never end to be read, and no JSON that overflows a parser.

    Raises:
        CheckpointFault: it holds a pipe, a device or a socket, or JSON that is damaged or nested too deep.
    """
    for entry in sorted(path.iterdir()):
        if entry.is_dir():
            continue
        try:
            check_regular(entry)
        except FileNotFoundError:  # a link to nothing
            continue
        if entry.name.endswith(".json") and not entry.name.endswith(_OPENED_BY_OTHERS):
            read_json(entry)


def check_sizes(raw: Mapping[str, Any], path: Path) -> None:
    """Check layers, experts and widths of a config against the tensors in the directory.

    Args:
        raw: The parsed `config.json`.
        path: The directory.

    Raises:
        CheckpointFault: the config asks for more than the files hold.
        SafetensorError: a file is not whole.
    """
    shapes = _shapes(path)
    if not shapes:
        return  # `check_weight_files` says what is there instead
    n_weights = sum(map(math.prod, shapes.values()))
    longest = max((size for shape in shapes.values() for size in shape), default=0)
    bounds = (
        (_LAYERS, len(shapes), "tensors"),
        (_EXPERTS, max(len(shapes), longest), "rows of a tensor at most"),
        (_WIDTHS, n_weights, "weights"),
    )
    for key, value in _numbers(raw):
        for keys, most, what in bounds:
            if key in keys and value > most:
                raise CheckpointFault(
                    f"{path / CONFIG} sets {key} to {value:,}, but the safetensors beside it hold {most:,} {what}: "
                    f"they do not belong together. Put the {CONFIG} there that they were saved with."
                )


def check_memory(config: Any, path: Path) -> None:
    """Check that the model of a config is not far larger than the files that are to fill it.

    It is laid out on torch's meta device: shapes alone, without memory for weights.

    Args:
        config: What transformers made of `config.json`.
        path: The directory.

    Raises:
        CheckpointFault: it needs more than 32 times the memory of the files, and more than 2 GB.
    """
    from transformers import AutoModelForCausalLM

    plain = deepcopy(config)
    vars(plain).pop(_QUANTIZED, None)
    needed = 0
    # What cannot be laid out is refused by transformers in its own words, a moment later and in the same place.
    with (
        contextlib.suppress(RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError),
        torch.device("meta"),
    ):
        model = AutoModelForCausalLM.from_config(plain)
        needed = sum(part.numel() * part.element_size() for part in (*model.parameters(), *model.buffers()))
    there = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if needed > _TIMES * there + _SMALL:
        raise CheckpointFault(
            f"{path / CONFIG} asks for a model of {needed / 1e9:,.1f} GB, but the safetensors beside it hold "
            f"{there / 1e9:,.3g} GB: they do not belong together. Put the {CONFIG} there that they were saved with."
        )


def _shapes(path: Path) -> Shapes:
    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(path.glob("*.safetensors")):
        shapes, _ = read_header(file)
        found |= shapes
    return found


def _numbers(raw: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The whole numbers of a config, and of its part on text where it has one."""
    for part in (raw, raw.get("text_config")):
        if isinstance(part, Mapping):
            yield from ((key, value) for key, value in part.items() if type(value) is int)
