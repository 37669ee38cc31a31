"""Language models in one GGUF file, the format of llama.cpp: found, described and dequantized.

transformers reads such a file with the optional package `gguf` and converts its blocks of 4 or 8 bits to ordinary
floating-point weights. The quantization error remains, so every result's provenance describes the format.

Reference: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import hashlib
import importlib.util
import re
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.models.huggingface.directory_checks import check_weights

SUFFIX = ".gguf"
_N_LAYERS, _LAYER = ".block_count", re.compile(r"blk\.(\d{1,9})\.", re.ASCII)
_PLAIN = ("F64", "F32", "F16", "BF16")


def gguf_in(path: Path) -> Path | None:
    """Find the GGUF file that a path names.

    Args:
        path: A file, or a directory that holds one GGUF file and no `config.json`.

    Returns:
        The file, or None if the path is something else or cannot be read.

    Raises:
        InvalidArgument: The directory contains several.
    """
    if path.is_file():
        return path if path.suffix == SUFFIX else None
    try:
        if not path.is_dir() or (path / "config.json").exists():
            return None
        found = sorted(path.glob(f"*{SUFFIX}"))
    except OSError:  # a directory without permission: what reads it next names the reason
        return None
    if len(found) > 1:
        raise InvalidArgument(
            f"{path} holds {len(found)} GGUF files ({', '.join(file.name for file in found[:4])}); name one of them."
        )
    return found[0] if found else None


def storage_of(file: Path) -> str:
    """Describe from the header of a GGUF file how its weights are stored, for provenance, without reading weights.

    Returns:
        The types and their bits: "dequantized from 4 bits (GGUF: Q4_1 in 2 tensors, F32 in 1; 5.42 bits a weight with
        scales)".

    Raises:
        CheckpointFault: It is not a complete GGUF file, or it declares another number of layers than it holds.
    """
    from gguf import GGML_QUANT_SIZES

    try:
        reader = _reader(file)
        declared = [int(own.parts[own.data[0]][0]) for key, own in reader.fields.items() if key.endswith(_N_LAYERS)]
    except (KeyError, ValueError, IndexError, OSError, OverflowError, RecursionError) as error:
        raise CheckpointFault(
            f"{file} is not a complete GGUF file that gguf {version('gguf')} can read ({error}). Copy or download it "
            f"again; if it is newer than the package: pip install -U gguf transformers."
        ) from error
    tensors = Counter(own.tensor_type for own in reader.tensors)
    weights = Counter[Any]()
    for own in reader.tensors:
        weights[own.tensor_type] += int(own.n_elements)
    if not weights.total():
        raise CheckpointFault(f"{file} contains no tensors. It is a vocabulary only; use the file of a complete model.")
    layers = [int(found[1]) for own in reader.tensors if (found := _LAYER.match(own.name))]
    if declared and declared[0] != (n_found := max(layers, default=-1) + 1):
        raise CheckpointFault(
            f"{file} declares {declared[0]:,} layers and holds tensors of {n_found:,}: it is not the file that was "
            f"converted. Copy or download it again."
        )
    most, *others = sorted(tensors, key=lambda kind: -weights[kind])
    stored = f"{most.name} in {tensors[most]} tensors"
    stored += "".join(f", {kind.name} in {tensors[kind]}" for kind in others)
    if most.name in _PLAIN:
        return f"read from GGUF ({stored})"
    sizes = {kind: GGML_QUANT_SIZES[kind] for kind in tensors}  # weights and bytes of a block
    each = sum(weights[kind] * 8 * n_bytes / n for kind, (n, n_bytes) in sizes.items()) / weights.total()
    bits = "".join(filter(str.isdigit, most.name.partition("_")[0]))
    return f"dequantized from {bits} bits (GGUF: {stored}; {each:.3g} bits a weight with scales)"


def _reader(file: Path) -> Any:
    """The reader of a file's header; it would go on for ever where a count leads beyond the end of the file."""
    from gguf import GGUFReader

    @final
    class Bounded(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, *options: Any, **named: Any) -> Any:
            if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it ends early")
            return super()._get(offset, dtype, count, *options, **named)

    return Bounded(file)


def digest_of(file: Path, dtype: torch.dtype) -> str:
    """Return 16 hex digits of a hash over the file and the dtype of its dequantized weights."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.sha256(f"gguf as {dtype}: ".encode())).hexdigest()[:16]


def dequantized(file: Path, *, dtype: torch.dtype, device_map: str | dict[str, Any] | None) -> tuple[Any, Any]:
    """Read a GGUF file with transformers.

    Args:
        file: The file.
        dtype: Type of the dequantized weights.
        device_map: As for `from_pretrained`.

    Returns:
        The model, with ordinary weights that can be saved, and its tokenizer or None.

    Raises:
        InvalidArgument: The package `gguf` is not installed, or it is not a causal language model.
        CheckpointFault: The file lacks weights of the model.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    options: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(file.parent, **options)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InvalidArgument(
            f"{file} is a {config.model_type}, which is not a causal language model. Pass a decoder such as Llama."
        )
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        file.parent,
        config=config,
        dtype=dtype,
        device_map=device_map,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # raised by `check_weights`, by name
        **options,
    )
    hf, found = loaded
    check_weights(hf, found, file, remedy="Copy or download the file again.")
    # The weights are dequantized. With these attributes transformers would refuse to save or copy the model.
    hf.hf_quantizer = None
    for marked in (hf.config, hf):
        vars(marked).pop("quantization_config", None)
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    except (OSError, ValueError):  # as elsewhere: token ids are enough
        tokenizer = None
    return hf, tokenizer


def require_gguf(file: Path) -> None:
    """Check that the optional package is installed.

    Raises:
        InvalidArgument: It is not.
    """
    if importlib.util.find_spec("gguf") is None:
        raise InvalidArgument(
            f"{file} is a GGUF file, and the package gguf that reads it is not installed: "
            f"pip install 'bayesgeom[gguf]'."
        )
