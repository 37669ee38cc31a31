"""Loading of Hugging Face models from a directory, the hub or a GGUF file: safetensors only, and no foreign code.

Nothing in a directory is executed unless the caller passes `trust_remote_code=True`, and pickles are never opened.
Missing weights are an error, while transformers would fill them with random numbers.

A GGUF file, the format of llama.cpp, holds a whole language model. transformers reads it with the optional package
`gguf` and converts its blocks of 4 or 8 bits to ordinary floating-point weights. The quantization error remains, so
every result's provenance describes the format.

Reference: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

transformers opens every file that an index names, including pickles and paths outside the directory. It downloads and
runs an attention implementation that looks like a hub name. Both are refused. What else transformers or gguf refuse,
such as a size that no memory holds, is their own error, in one sentence.

transformers drops tensors without a place, and draws those that are missing or of another shape at random. In all three
cases the numbers are those of another model. Examples are a layer that the config does not declare and a bias that it
switches off.
"""

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError

from bayesgeom.core import BayesGeomError, CheckpointFault, InvalidArgument
from bayesgeom.core.errors import optional_package
from bayesgeom.core.files import read_json
from bayesgeom.core.plugins import Contained
from bayesgeom.core.text import count_text
from bayesgeom.core.torch_state import PROCESS_STATE
from bayesgeom.models.checkpoint_files import CONFIG, SOURCE
from bayesgeom.models.config import quiet
from bayesgeom.models.fetching import without_login
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.huggingface.peft_adapter import ADAPTER, base_of, check_embedded, with_adapter
from bayesgeom.models.huggingface.weights import check_readable
from bayesgeom.tasks.base import task_from_config

SUFFIX = ".gguf"
_N_LAYERS, _LAYER = ".block_count", re.compile(r"blk\.(\d{1,9})\.", re.ASCII)


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
        files = [path] * (path.suffix == SUFFIX) if is_model else sorted(path.glob(f"*{SUFFIX}"))
    except OSError:  # a directory without permission: what reads it next names the reason
        return None
    if len(files) > 1:
        raise InvalidArgument(
            f"{path} holds {len(files)} GGUF files ({', '.join(file.name for file in files[:4])}); name one of them."
        )
    if files:
        with optional_package("gguf", f"the GGUF file {files[0]}"):
            import gguf  # noqa: F401
    return files[0] if files else None


def checked_header(file: Path) -> Any:
    """Return gguf's reader of the header of a GGUF file; no weights are read.

    Raises:
        CheckpointFault: It is not a complete GGUF file, or it declares another number of layers than it holds.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        declared = [
            int(entry.parts[entry.data[0]][0]) for key, entry in reader.fields.items() if key.endswith(_N_LAYERS)
        ]
    except (KeyError, ValueError, IndexError, OSError, OverflowError, RecursionError) as error:
        raise CheckpointFault(
            f"{file} is not a complete GGUF file that gguf {version('gguf')} can read ({error}). Copy or download it "
            f"again; if it is newer than the package: pip install -U gguf transformers."
        ) from error
    if not sum(int(tensor.n_elements) for tensor in reader.tensors):
        raise CheckpointFault(f"{file} contains no tensors. It is a vocabulary only; use the file of a complete model.")
    layers = [int(match[1]) for tensor in reader.tensors if (match := _LAYER.match(tensor.name))]
    if declared != [n_found := max(layers, default=-1) + 1]:
        raise CheckpointFault(f"{file} declares layers {declared} and holds tensors of {n_found}. Copy it again.")
    return reader


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
        options: Options of `from_pretrained`. `dtype` is the checkpoint's own by default.
        device: Device of the model, unless `device_map` is given.
        trust_remote_code: Whether to run code from the repository.
        adapter: Directory of a PEFT adapter to put into the model.

    Raises:
        CheckpointFault: The hub cannot be reached, or safetensors are missing or do not fit.
        InvalidArgument: It is not a causal language model, or needs code from the repository.
    """
    given = dict(options or {})
    fetched = {name: value for name, value in given.items() if name in FETCHING}
    if Path(source).is_dir():
        check_embedded(Path(source))
    # transformers draws weights before it replaces them; this must not change the caller's random state.
    with PROCESS_STATE, quiet(), _translated(source), torch.random.fork_rng(devices=()):
        config = _config(source, fetched, trust_remote_code)
        check_weight_files(source, fetched)
        remedy = f"Restore the {CONFIG} that was saved with the weights."
        known = {"dtype": "auto", **given, "use_safetensors": True, "trust_remote_code": trust_remote_code}
        hf = _with_weights(source, config, source, remedy, known)
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
    chosen = options if revision is None else {"revision": revision, **options}
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
    from transformers import AutoConfig, GgufConfig

    reader = checked_header(file)
    named: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    with PROCESS_STATE, quiet(), _translated(file.parent), torch.random.fork_rng(devices=()):
        config = AutoConfig.from_pretrained(file.parent, **named)
        _check_causal(config, file)
        form = {"dtype": torch.float32 if dtype in (None, "auto") else dtype, "device_map": device_map}
        known = {**named, **form, "quantization_config": GgufConfig(dequantize=True)}
        hf = _with_weights(file.parent, config, file, "Copy or download the file again.", known)
        # The weights are dequantized. With these attributes transformers would refuse to save or copy the model.
        hf.hf_quantizer = None
        for marked in (hf.config, hf):
            vars(marked).pop("quantization_config", None)
        tokenizer = _tokenizer(file.parent, named)
    if device_map is None:
        hf = hf.to(device)
    model = HFModel(hf, name=file.stem, tokenizer=tokenizer)
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    stored = ", ".join(f"{kind} in {count} tensors" for kind, count in kinds.most_common())
    model.spec = replace(model.spec, quantization=f"read from GGUF ({stored})")
    return model


def _config(source: str | Path, fetched: Mapping[str, Any], trust_remote_code: bool) -> Any:
    """The config, after checking that reading it runs no code."""
    from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

    raw, _ = PreTrainedConfig.get_config_dict(source, **fetched)
    if not trust_remote_code:
        check_config(raw, source)
        check_readable(raw, source)
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING and not trust_remote_code:
        reason = "its config names own code" if "auto_map" in raw else f"transformers knows no type {kind!r}"
        raise InvalidArgument(
            f"{source} needs code that comes with it ({reason}). Read it, then, from Python, load it with "
            f"trust_remote_code=True."
        )
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **fetched)
    _check_causal(config, source, has_code="AutoModelForCausalLM" in raw.get("auto_map", {}))
    return config


def _check_causal(config: Any, source: str | Path, *, has_code: bool = False) -> None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if config.is_encoder_decoder or not (has_code or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING):
        raise InvalidArgument(
            f"{source} is a {config.model_type}, which is not a causal language model. Pass a decoder such as Llama."
        )


def _with_weights(source: str | Path, config: Any, shown: str | Path, remedy: str, options: Mapping[str, Any]) -> Any:
    """The model with its weights, after checking that they are complete; messages name `shown`."""
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source,
        config=config,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # raised by `check_weights`, by name
        **options,
    )
    hf, info = loaded
    check_weights(hf, info, shown, remedy=remedy)
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
    file = gguf_in(Path(source))
    fetched: dict[str, Any] = {"trust_remote_code": trust_remote_code, **(options or {})}
    if file is not None:
        source, fetched = file.parent, fetched | {"gguf_file": file.name}
    with quiet(), _translated(source):
        return _read_tokenizer(source, fetched)


def _tokenizer(source: str | Path, options: dict[str, Any]) -> Any:
    """The tokenizer that comes with a model; None, with a warning, where there are files that nothing here reads."""
    path = Path(source)
    if "gguf_file" not in options and path.is_dir() and not any((path / name).is_file() for name in _TOKENIZER):
        return None
    try:
        return _read_tokenizer(source, options)
    except (OSError, ValueError, ImportError) as error:  # a tokenizer is optional: tasks that need one report it
        if path.is_dir() and "gguf_file" not in options:
            warnings.warn(f"{source} is loaded without its tokenizer: {_reason(error)}", stacklevel=2)
        return None


def _read_tokenizer(source: str | Path, options: Mapping[str, Any]) -> Any:
    """Read a tokenizer with transformers, and encode and decode a text with it.

    Raises `CheckpointFault` for one that cannot be used, and what transformers raises without a `tokenizer.json`.
    """
    from transformers import AutoTokenizer

    file = Path(source) / "tokenizer.json"
    with Contained() as reading:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        tokenizer.decode(tokenizer.encode("a: 1", add_special_tokens=True))
        return tokenizer
    assert reading.error is not None, "it did not return"
    if isinstance(reading.error, (OSError, ValueError, ImportError)) and ("gguf_file" in options or not file.is_file()):
        raise reading.error
    raise CheckpointFault(f"the tokenizer of {source} cannot be used: {reading.fault}. Restore its files.")


# What transformers raises on values that it does not expect.
_OF_TRANSFORMERS = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, ValueError)


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
        known = "" if Path(source).is_dir() else "is neither a checkpoint's name nor a directory, and it "
        where = "" if Path(source).is_dir() else " from the Hugging Face hub"
        raise CheckpointFault(f"{str(source)!r} {known}could not be loaded{where}: {_reason(error)}") from error
    except (StrictDataclassError, TypeError, *_OF_TRANSFORMERS) as error:
        raise CheckpointFault(f"{source} cannot be loaded: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The first line of an error's message. The first line of a `StrictDataclassError` names a function only."""
    first, *more = str(error).strip().splitlines() or [type(error).__name__]
    return without_login(" ".join([first, *more]) if first.endswith(":") else first)  # of the hub's address


# transformers' own implementations, without flash attention: if not installed, it is downloaded from the hub.
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
_WEIGHTS, _WHOLE, _INDEX = ".safetensors", "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NAMES_A_FILE = "transformers_weights"  # a key of config.json that replaces the usual file names


def check_config(raw: Mapping[str, Any], source: str | Path) -> None:
    """Check the entries of a config that could make transformers run foreign code or read other files.

    Args:
        raw: The parsed `config.json`.
        source: Directory or hub name, for the message.

    Raises:
        InvalidArgument: An attention or experts implementation is not one of transformers' own, or the config names
            a weights file other than a safetensors file in the same directory.
    """
    for key, value in _implementations(raw):
        if value not in IMPLEMENTATIONS:
            raise InvalidArgument(
                f"the config of {source} sets {key} to {value!r}, which transformers may fetch from the hub and run. "
                f"Allowed are {', '.join(IMPLEMENTATIONS)}. Remove it, or read that code and trust_remote_code=True."
            )
    named = raw.get(_NAMES_A_FILE)
    if named is not None and not (_is_bare(named) or named == _INDEX):
        raise InvalidArgument(
            f"the config of {source} sets {_NAMES_A_FILE} to {named!r}, no *{_WEIGHTS} file beside it. Remove this."
        )


def check_weight_files(source: str | Path, options: Mapping[str, Any] | None = None) -> None:
    """Check that all weights are safetensors files inside the directory, or in the hub repository.

    Args:
        source: Directory or hub name.
        options: Revision, token and `local_files_only` of a hub name.

    Raises:
        CheckpointFault: There are no safetensors, an index names another kind of file or a file elsewhere, or a
            repository holds an adapter, too.
    """
    path = Path(source)
    if not path.is_dir():
        if (index := _hub_file(str(source), _INDEX, options or {})) is not None:
            _check_index(index, None)
        if _hub_file(str(source), ADAPTER, options or {}) is not None:
            raise CheckpointFault(
                f"{source} holds a model and an adapter ({ADAPTER}). Download the adapter to a directory, and load "
                f"that."
            )
        return
    if not any(path.glob(f"*{_WEIGHTS}")):
        pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        there = (
            f"there is {', '.join(pickles[:3])}, and opening a pickle can run any code" if pickles else "it has none"
        )
        raise CheckpointFault(
            f"{path} contains no safetensors ({there}). If you trust it, load it with transformers once and "
            f"save it to another directory with save_pretrained."
        )
    for index in sorted(path.glob("*.index.json")):
        if _WEIGHTS in index.name:  # with use_safetensors transformers reads no other index
            _check_index(index, path)
    if (path / _INDEX).is_file() and (path / _WHOLE).is_file():
        raise CheckpointFault(f"{path} holds {_WHOLE} and {_INDEX}, which may differ. Remove the one that is stale.")


def _check_index(index: Path, folder: Path | None) -> None:
    """Check the file names of one index; with `folder`, also that the files are there."""
    stored = read_json(index)
    weight_map = stored.get("weight_map") if isinstance(stored, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointFault(f"{index} has no weight_map from tensor names to files. Save the model again.")
    for name in dict.fromkeys(map(str, weight_map.values())):
        if not _is_bare(name):
            raise CheckpointFault(
                f"{index} names {name!r} as a file of weights, but only *{_WEIGHTS} files beside it are read: others "
                f"could run code or belong to other models. Save the model again with save_pretrained."
            )
        if folder is not None and not (folder / name).is_file():
            raise CheckpointFault(f"{index} names {name!r}, which is not in {folder}. Copy all parts of the model.")


def _hub_file(name: str, file: str, options: Mapping[str, Any]) -> Path | None:
    """A file of a hub repository, if it has one and the hub can be reached."""
    from transformers.utils.hub import cached_file

    file_path = cached_file(
        name,
        file,
        **options,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return None if file_path is None else Path(file_path)


def _is_bare(name: object) -> bool:
    """Whether a name is that of a safetensors file without a folder."""
    if not isinstance(name, str) or name.startswith(".") or not name.endswith(_WEIGHTS):
        return False
    return PurePosixPath(name).name == name and "\\" not in name


def _implementations(stored: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every attention or experts implementation that a config names, nested configs included."""
    if not isinstance(stored, Mapping):
        return
    for key, value in stored.items():
        if key.lstrip("_").removesuffix("_internal") in ("attn_implementation", "experts_implementation"):
            nested = value.items() if isinstance(value, Mapping) else [("", value)]
            yield from ((f"{at}{key}{'.' * bool(part)}{part}", choice) for part, choice in nested if choice is not None)
        elif isinstance(value, Mapping):
            yield from _implementations(value, f"{at}{key}.")


_NUMBER = re.compile(r"\.\d+(?=\.|$)")
# Masks and tables of positions, which earlier versions of transformers saved and later ones compute.
_COMPUTED = re.compile(r"(^|\.)((attn|attention)\.(masked_)?bias|rotary_emb\..*|position_ids)$")
_SHOWN = 4


def check_weights(hf: Any, found: Mapping[str, Collection[Any]], source: str | Path, *, remedy: str) -> None:
    """Check that the weights of a loaded model are complete, of its shapes, and all used.

    Tensors outside of the model, such as those of a second head, lead to a warning.

    Args:
        hf: The model, as transformers built it from the config.
        found: What `from_pretrained` returned with `output_loading_info=True`.
        source: Directory, file or hub name, for the message.
        remedy: What to do about tensors of other shapes, for the message.

    Raises:
        CheckpointFault: A tensor has another shape or is missing, or a dropped one is part of the model.
    """
    if wrong := sorted(found["mismatched_keys"]):
        shapes = (f"{name} is {tuple(there)}, not {tuple(required)}" for name, there, required in wrong[:_SHOWN])
        raise CheckpointFault(
            f"the weights of {source} do not have the shapes that its config requires in "
            f"{count_text(len(wrong), 'tensor')}: {'; '.join(shapes)}. {remedy}"
        )
    if missing := sorted(found["missing_keys"]):
        raise CheckpointFault(
            f"the weights of {source} lack {count_text(len(missing), 'tensor')} of {type(hf).__name__}: "
            f"{', '.join(missing[:_SHOWN])}. They would be random numbers: load a complete causal language model."
        )
    dropped = sorted(name for name in found["unexpected_keys"] if not _COMPUTED.search(name))
    modules = {name for name, _ in hf.named_modules() if name}
    repeated = {_NUMBER.sub(".N", name) for name in modules if _NUMBER.search(name)}
    # Names in files of models without a head lack a prefix.
    spelled = {name: (name, f"{hf.base_model_prefix}.{name}") for name in dropped}

    def is_part(name: str) -> bool:
        """Whether a tensor is part of a module that the model has, or of one more in a list of modules that it has."""
        ends = [match.end() for match in _NUMBER.finditer(name)]
        return name.rpartition(".")[0] in modules or any(_NUMBER.sub(".N", name[:end]) in repeated for end in ends)

    parts = [name for name, full in spelled.items() if any(map(is_part, full))]
    if parts:
        raise CheckpointFault(
            f"the weights of {source} hold {count_text(len(parts), 'tensor')} that {type(hf).__name__} has no place "
            f"for with this {CONFIG}: {', '.join(parts[:_SHOWN])}. Restore the {CONFIG} that was saved with them."
        )
    if dropped:
        warnings.warn(
            f"the weights of {source} hold {count_text(len(dropped), 'tensor')} outside of {type(hf).__name__}, not "
            f"used: {', '.join(dropped[:_SHOWN])}.",
            stacklevel=2,
        )
