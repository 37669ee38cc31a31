"""Loading of Hugging Face models from a directory, the hub or a GGUF file: safetensors only, and no foreign code.

Nothing in a directory is executed unless the caller passes `trust_remote_code=True`, and pickles are never opened.
Missing weights are an error, while transformers would fill them with random numbers.

A GGUF file, the format of llama.cpp, holds a whole language model. transformers reads it with the optional package
`gguf` and converts its blocks of 4 or 8 bits to ordinary floating-point weights. The quantization error remains, so
every result's provenance describes the format.

Reference: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import contextlib
import hashlib
import importlib.util
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from safetensors import SafetensorError

from bayesgeom.core.errors import BayesGeomError, CheckpointFault, InvalidArgument
from bayesgeom.core.torch_state import PROCESS_STATE
from bayesgeom.models.checkpoint_files import CONFIG, SOURCE
from bayesgeom.models.huggingface.directory_checks import (
    check_config,
    check_files,
    check_loops,
    check_memory,
    check_weight_files,
    check_weights,
)
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.huggingface.peft_adapter import base_of, with_adapter
from bayesgeom.models.huggingface.weights import check_readable, quiet
from bayesgeom.tasks.base import task_from_config

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
        InvalidArgument: The directory contains several, or the optional package gguf is not installed.
    """
    try:
        is_model = path.is_file() or (path / CONFIG).exists()
        found = [path] * (path.suffix == SUFFIX) if is_model else sorted(path.glob(f"*{SUFFIX}"))
    except OSError:  # a directory without permission: what reads it next names the reason
        return None
    if len(found) > 1:
        raise InvalidArgument(
            f"{path} holds {len(found)} GGUF files ({', '.join(file.name for file in found[:4])}); name one of them."
        )
    if found and importlib.util.find_spec("gguf") is None:
        raise InvalidArgument(
            f"{found[0]} is a GGUF file, and the package gguf is not installed: pip install 'bayesgeom[gguf]'."
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
            f"{file} declares {declared[0]:,} layers and holds tensors of {n_found:,}. Copy or download it again."
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
        def _get(self, offset: Any, dtype: Any, count: Any = 1, *options: Any, **named: Any) -> Any:
            if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it ends early")
            return super()._get(offset, dtype, count, *options, **named)

    return Bounded(file)


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


FETCHING = ("revision", "token", "local_files_only")  # options of every file that is fetched
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_huggingface(
    source: str | Path,
    options: Mapping[str, Any] | None = None,
    *,
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
    adapter: Path | None = None,
) -> HFModel:
    """Load a causal language model from a directory or the hub.

    Args:
        source: Directory, or owner/name on the hub.
        options: Options of `from_pretrained`; None is left out. `dtype` is the checkpoint's own by default.
        device: Device of the model, unless `device_map` is given.
        trust_remote_code: Whether to run code from the repository.
        adapter: Directory of a PEFT adapter to put into the model.

    Raises:
        CheckpointFault: The hub cannot be reached, or safetensors are missing or do not fit.
        InvalidArgument: It is not a causal language model, or needs code from the repository.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    fetched = {name: own for name, own in given.items() if name in FETCHING}
    if Path(source).is_dir():
        check_files(Path(source))
    # transformers draws weights before it replaces them; this must not change the caller's random state.
    with PROCESS_STATE, quiet(), _translated(source), torch.random.fork_rng(devices=()):
        config = _config(source, fetched, trust_remote_code)
        hf = _model(source, config, given, trust_remote_code)
        tokenizer = _tokenizer(source, fetched | {"trust_remote_code": trust_remote_code})
        exported = config.to_dict().get(SOURCE)  # by bayesgeom, with its task
        described = exported.get("task") if isinstance(exported, dict) else None
        task = None if described is None else task_from_config(described)
        if adapter is not None:
            hf = with_adapter(hf, adapter)
    if not given.keys() & {"device_map", "quantization_config"}:  # both place the weights themselves
        hf = hf.to(device)
    with _translated(source):
        return HFModel(hf, name=(adapter or Path(source)).name or str(source), tokenizer=tokenizer, task=task)


def load_adapter(
    path: Path, options: Mapping[str, Any], *, device: str | torch.device = "cpu", trust_remote_code: bool = False
) -> HFModel:
    """Load the base model that a PEFT adapter names, with the adapter in place.

    Args:
        path: Directory of the adapter.
        options: Options for the base model, as of `load_huggingface`. `revision` is the adapter's own by default.
        device: Device of the model.
        trust_remote_code: Whether to run code from the base model's repository.

    Raises:
        CheckpointFault: The base model cannot be loaded, or the adapter does not fit it.
        InvalidArgument: The package peft is not installed, or it is no adapter of the weights.
    """
    base, revision = base_of(path)
    source = Path(base) if Path(base).is_dir() else base
    given = {name: value for name, value in options.items() if value is not None}
    chosen = given if revision is None else {"revision": revision, **given}
    return load_huggingface(source, chosen, device=device, trust_remote_code=trust_remote_code, adapter=path)


def load_gguf(
    file: Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    device_map: str | dict[str, Any] | None = None,
) -> HFModel:
    """Load the causal language model in a GGUF file, with its tokenizer; its weights are dequantized to `dtype`.

    Args:
        file: The file.
        dtype: Dtype of the dequantized weights. Default: float32.
        device: Device of the model, unless `device_map` is given.
        device_map: As for `from_pretrained`.

    Returns:
        The model. Its `spec.quantization` describes the quantized format.

    Raises:
        InvalidArgument: The package gguf is not installed, or this is not a causal language model.
        CheckpointFault: The file is corrupt, or of a kind that transformers cannot read.
    """
    stored = storage_of(file)
    chosen = torch.float32 if dtype in (None, "auto") else getattr(torch, dtype) if isinstance(dtype, str) else dtype
    unseen = contextlib.redirect_stderr(io.StringIO())  # the reader draws a progress bar that no option hides
    with PROCESS_STATE, quiet(), unseen, _translated(file.parent), torch.random.fork_rng(devices=()):
        hf, tokenizer = dequantized(file, dtype=chosen, device_map=device_map)
    if device_map is None:
        hf = hf.to(device)
    with file.open("rb") as opened:  # the hash is over the file and the dtype of its dequantized weights
        digest = hashlib.file_digest(opened, lambda: hashlib.sha256(f"gguf as {chosen}: ".encode())).hexdigest()[:16]
    model = HFModel(hf, name=file.stem, tokenizer=tokenizer, digest=digest)
    model.spec = replace(model.spec, quantization=stored)
    return model


def _config(source: str | Path, fetched: Mapping[str, Any], trust_remote_code: bool) -> Any:
    """The config, after checking that reading it runs no code."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig

    raw, _ = PreTrainedConfig.get_config_dict(source, **fetched)
    if not trust_remote_code:
        check_config(raw, source)
        check_readable(raw, source)
        if Path(source).is_dir():
            check_loops(raw, Path(source))
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING and not trust_remote_code:
        reason = "its config names own code" if "auto_map" in raw else f"transformers knows no type {kind!r}"
        raise InvalidArgument(
            f"{source} needs code that comes with it ({reason}). Read it, then, from Python, load it with "
            f"trust_remote_code=True."
        )
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **fetched)
    is_known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in raw.get("auto_map", {})
    if config.is_encoder_decoder or not is_known:
        raise InvalidArgument(
            f"{source} is a {kind}, which is not a causal language model. Pass a decoder such as GPT-2 or Llama."
        )
    return config


def _model(source: str | Path, config: Any, given: Mapping[str, Any], trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    check_weight_files(source, {name: own for name, own in given.items() if name in FETCHING})
    if Path(source).is_dir() and not trust_remote_code:
        check_memory(config, Path(source))
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source,
        config=config,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # raised by `check_weights`, by name
        trust_remote_code=trust_remote_code,
        **{"dtype": "auto", **given},
    )
    hf, found = loaded
    check_weights(hf, found, source, remedy=f"Restore the {CONFIG} that was saved with the weights.")
    return hf


def load_tokenizer(
    source: str | Path, options: Mapping[str, Any] | None = None, *, trust_remote_code: bool = False
) -> Any:
    """Load a tokenizer from a directory, a GGUF file or the hub.

    Args:
        source: Where it is.
        options: `token`, `revision` and `local_files_only`, as for `from_pretrained`.
        trust_remote_code: Whether to run code from the repository.

    Raises:
        CheckpointFault: There is none.
    """
    from transformers import AutoTokenizer

    file = gguf_in(Path(source))
    given = {name: value for name, value in (options or {}).items() if value is not None}
    fetched: dict[str, Any] = {"trust_remote_code": trust_remote_code, **given}
    if file is not None:
        source, fetched = file.parent, fetched | {"gguf_file": file.name}
    with quiet(), _translated(source):
        return AutoTokenizer.from_pretrained(source, **fetched)


def _tokenizer(source: str | Path, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    path = Path(source)
    if path.is_dir() and not any((path / name).is_file() for name in _TOKENIZER):
        return None
    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError):  # a tokenizer is optional: tasks that need one report it
        return None


@contextlib.contextmanager
def _translated(source: str | Path) -> Iterator[None]:
    """Convert exceptions of the libraries to bayesgeom errors of one sentence."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except BayesGeomError:
        raise
    except SafetensorError as error:
        raise CheckpointFault(f"safetensors in {source} are truncated or corrupt ({error}). Copy them.") from error
    except ImportError as error:
        raise InvalidArgument(f"{source} cannot be loaded like this: {_reason(error)}") from error
    except OSError as error:
        if Path(source).is_dir():
            raise CheckpointFault(f"{source} cannot be loaded: {_reason(error)}") from error
        raise CheckpointFault(
            f"{str(source)!r} is neither a checkpoint's name nor a directory, and it could not be loaded from the "
            f"Hugging Face hub: {_reason(error)} Check the name, or pass a saved directory."
        ) from error
    except (StrictDataclassError, ValueError, RuntimeError, TypeError, ArithmeticError) as error:
        raise CheckpointFault(f"{source} cannot be loaded: {_reason(error)}") from error
    except (AttributeError, LookupError, AssertionError) as error:  # a value of a kind that transformers never expects
        raise CheckpointFault(
            f"{source} cannot be loaded: transformers fails on a value in its JSON files ({_reason(error)}). Restore "
            f"its {CONFIG}."
        ) from error


def _reason(error: Exception) -> str:
    """The first line of an error's message. The first line of a `StrictDataclassError` names a function only."""
    first, *more = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join([first, *more]) if first.endswith(":") else first
