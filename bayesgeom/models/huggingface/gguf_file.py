"""Language models in one GGUF file, the format of llama.cpp: found, described and dequantized.

transformers reads such a file with the optional package `gguf` and converts its blocks of 4 or 8 bits to ordinary
floating-point weights. The quantization error remains, so every result's provenance describes the format.

Reference: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import contextlib
import hashlib
import importlib.util
import io
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, final

import torch

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.text import shown
from bayesgeom.models.huggingface.directory_checks import check_weights

SUFFIX = ".gguf"
_MAGIC, _MOST_TENSORS, _MOST_AXES, _MOST_VALUES = b"GGUF", 1_000_000, 8, 100_000_000
_STRING, _ARRAY = 8, 9  # value types of the specification
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the others
_INTEGERS = {4: "I", 5: "i", 10: "Q", 11: "q"}
_N_LAYERS, _LAYER = ".block_count", re.compile(r"blk\.(\d{1,9})\.", re.ASCII)
_DEEPEST = 8  # arrays inside each other
_LONGEST_NAME = 65_535  # bytes of a key; names of tensors have at most 64
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


@final
@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Storage of the weights of a GGUF file: number of tensors and of weights, by the number of the GGML type."""

    tensors: Mapping[int, int]
    weights: Mapping[int, int]

    def described(self) -> str:
        """Return a description of the types and their bits, for provenance.

        Example:
            >>> Blocks(tensors={3: 2, 0: 1}, weights={3: 630, 0: 10}).described()
            'dequantized from 4 bits (GGUF: Q4_1 in 2 tensors, F32 in 1; 5.42 bits a weight with scales)'
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        kinds = {kind: GGMLQuantizationType(kind).name for kind in self.tensors}
        by_size = sorted(kinds, key=lambda kind: -self.weights[kind])
        stored = ", ".join(
            f"{kinds[kind]} in {self.tensors[kind]}{' tensors' if i == 0 else ''}" for i, kind in enumerate(by_size)
        )
        total = sum(
            self.weights[kind]
            * 8
            * GGML_QUANT_SIZES[GGMLQuantizationType(kind)][1]
            / GGML_QUANT_SIZES[GGMLQuantizationType(kind)][0]
            for kind in kinds
        )
        most = kinds[by_size[0]]
        if most in _PLAIN:
            return f"read from GGUF ({stored})"
        bits = "".join(filter(str.isdigit, most.partition("_")[0]))
        each = total / sum(self.weights.values())
        return f"dequantized from {bits} bits (GGUF: {stored}; {each:.3g} bits a weight with scales)"


def blocks_of(file: Path) -> Blocks:
    """Read from the header of a GGUF file how its weights are stored, without reading weights.

    Raises:
        CheckpointFault: It is not a complete GGUF file, or it declares another number of layers than it holds.
    """
    tensors, weights = Counter[int](), Counter[int]()
    try:
        with file.open("rb") as opened:
            reader = _Header(opened)
            n_tensors, n_values = reader.start()
            n_layers = _declared_layers(reader, n_values)
            names = list[str]()
            for _ in range(n_tensors):
                names.append(reader.text())
                shape = [reader.number("Q") for _ in range(reader.count("I", _MOST_AXES))]
                kind = _known_kind(reader.number("I"), names[-1], file)
                reader.number("Q")
                tensors[kind] += 1
                weights[kind] += prod(shape)
    except (struct.error, KeyError, ValueError, OSError) as error:
        raise CheckpointFault(f"{file} is not a complete GGUF file ({error}). Copy or download it again.") from error
    if not weights.total():
        raise CheckpointFault(f"{file} contains no tensors. It is a vocabulary only; use the file of a complete model.")
    n_found = max((int(found[1]) + 1 for name in names if (found := _LAYER.match(name))), default=0)
    if n_layers is not None and n_layers != n_found:
        raise CheckpointFault(
            f"{file} declares {n_layers:,} layers and holds tensors of {n_found:,}: it is not the file that was "
            f"converted. Copy or download it again."
        )
    return Blocks(tensors=tensors, weights=weights)


def _known_kind(kind: int, name: str, file: Path) -> int:
    """Return a quantization type that the installed gguf knows.

    Raises:
        CheckpointFault: It does not know this one: the file is newer, or damaged.
    """
    from gguf import GGMLQuantizationType

    if kind not in {own.value for own in GGMLQuantizationType}:
        newest = max(GGMLQuantizationType, key=lambda own: own.value)
        raise CheckpointFault(
            f"{file} stores {shown(name)} in quantization type {kind}, which gguf {version('gguf')} does not know (its "
            f"last is {newest.value}, {newest.name}): pip install -U gguf transformers, or use a file in another type."
        )
    return kind


def _declared_layers(reader: "_Header", n_values: int) -> int | None:
    """The number of layers among the key-value pairs, all of which are read; None if it is not there."""
    n_layers = None
    for _ in range(n_values):
        key, kind = reader.text(), reader.number("I")
        if key.endswith(_N_LAYERS) and kind in _INTEGERS:
            n_layers = reader.number(_INTEGERS[kind])
        else:
            reader.skip_value(kind)
    return n_layers


def digest_of(file: Path, dtype: torch.dtype) -> str:
    """Return 16 hex digits of a hash over the file and the dtype of its dequantized weights."""
    digest = hashlib.sha256(f"gguf as {dtype}: ".encode())
    with file.open("rb") as opened:
        while part := opened.read(2**22):
            digest.update(part)
    return digest.hexdigest()[:16]


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
    with contextlib.redirect_stderr(io.StringIO()):  # the reader draws a progress bar that no option hides
        return _read(file, dtype, device_map)


def _read(file: Path, dtype: torch.dtype, device_map: str | dict[str, Any] | None) -> tuple[Any, Any]:
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


@final
class _Header:
    """The header of a GGUF file, read front to back."""

    def __init__(self, opened: BufferedReader) -> None:
        self._opened, self._size = opened, opened.seek(0, io.SEEK_END)
        opened.seek(0)

    def start(self) -> tuple[int, int]:
        """Return the numbers of tensors and of key-value pairs."""
        if self._opened.read(4) != _MAGIC:
            raise ValueError("it does not begin with the letters GGUF")
        version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} of the format, where 2 and 3 are known")
        return self.count("Q", _MOST_TENSORS), self.count("Q", _MOST_TENSORS)

    def number(self, form: str) -> int:
        """Read the next little-endian integer."""
        value: int = struct.unpack(f"<{form}", self._opened.read(struct.calcsize(form)))[0]
        return value

    def count(self, form: str, most: int) -> int:
        """Read the next integer, a count of at most `most`."""
        value = self.number(form)
        if value > most:
            raise ValueError(f"a count of {value:,}, where at most {most:,} make sense")
        return value

    def text(self) -> str:
        """Read a name, which is short."""
        return self._opened.read(self.count("Q", _LONGEST_NAME)).decode(errors="replace")

    def skip_text(self) -> None:
        self._skip(self.number("Q"))

    def skip_value(self, kind: int, depth: int = 0) -> None:
        """Skip a value of this type; arrays of strings are skipped one by one."""
        if depth > _DEEPEST:
            raise ValueError(f"arrays are nested more than {_DEEPEST} deep")
        if kind == _STRING:
            self.skip_text()
        elif kind == _ARRAY:
            inner, n = self.number("I"), self.count("Q", _MOST_VALUES)
            if inner in _WIDTHS:
                self._skip(n * _WIDTHS[inner])
            else:
                for _ in range(n):
                    self.skip_value(inner, depth + 1)
        else:
            self._skip(_WIDTHS[kind])

    def _skip(self, n: int) -> None:
        if n > self._size - self._opened.tell():
            raise ValueError("it ends within its header")
        self._opened.seek(n, io.SEEK_CUR)
