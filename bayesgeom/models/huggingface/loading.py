"""Loading of Hugging Face models from a directory or the hub: safetensors only, and no code from the repository.

Nothing in a directory is executed unless the caller passes `trust_remote_code=True`, and pickles are never opened.
Missing weights are an error, while transformers would fill them with random numbers.
"""

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from bayesgeom.core.errors import BayesGeomError, CheckpointFault, InvalidArgument
from bayesgeom.core.torch_state import PROCESS_STATE
from bayesgeom.models.checkpoint_files import CONFIG, SOURCE
from bayesgeom.models.huggingface.directory_checks import (
    check_config,
    check_files,
    check_memory,
    check_sizes,
    check_weight_files,
    check_weights,
)
from bayesgeom.models.huggingface.gguf_file import dequantized, digest_of, gguf_in, require_gguf, storage_of
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.huggingface.peft_adapter import base_of, with_adapter
from bayesgeom.models.huggingface.weights import check_readable, quiet
from bayesgeom.tasks.base import task_from_config

FETCHING = ("revision", "token", "local_files_only")  # options of every file that is fetched
PLACEMENT = ("device_map", "max_memory", "quantization_config", "attn_implementation")  # of the model alone
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
        options: `dtype` and the options in `FETCHING` and `PLACEMENT`, as for `from_pretrained`. `dtype` is the
            checkpoint's own by default.
        device: Device of the model, unless `device_map` is given.
        trust_remote_code: Whether to run code from the repository.
        adapter: Directory of a PEFT adapter to put into the model.

    Raises:
        CheckpointFault: The hub cannot be reached, or safetensors are missing or do not fit.
        InvalidArgument: It is not a causal language model, or needs code from the repository.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    fetched: dict[str, Any] = {"revision": None, "trust_remote_code": trust_remote_code}
    fetched |= {name: given[name] for name in FETCHING if name in given}
    placed = {name: given[name] for name in (*PLACEMENT, "dtype") if name in given}
    # transformers draws weights before it replaces them; this must not change the caller's random state.
    if Path(source).is_dir():
        check_files(Path(source))
    with PROCESS_STATE, quiet(), _translated(source), torch.random.fork_rng(devices=()):
        config = _config(source, fetched)
        hf = _model(source, config, fetched, placed)
        tokenizer = _tokenizer(source, fetched)
        exported = config.to_dict().get(SOURCE)  # by bayesgeom, with its task
        described = exported.get("task") if isinstance(exported, dict) else None
        task = None if described is None else task_from_config(described)
        if adapter is not None:
            hf = with_adapter(hf, adapter)
    if not placed.keys() & {"device_map", "quantization_config"}:  # both place the weights themselves
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
    require_gguf(file)
    stored = storage_of(file)
    chosen = torch.float32 if dtype in (None, "auto") else getattr(torch, dtype) if isinstance(dtype, str) else dtype
    unseen = contextlib.redirect_stderr(io.StringIO())  # the reader draws a progress bar that no option hides
    with PROCESS_STATE, quiet(), unseen, _translated(file.parent), torch.random.fork_rng(devices=()):
        hf, tokenizer = dequantized(file, dtype=chosen, device_map=device_map)
    if device_map is None:
        hf = hf.to(device)
    model = HFModel(hf, name=file.stem, tokenizer=tokenizer, digest=digest_of(file, chosen))
    model.spec = replace(model.spec, quantization=stored)
    return model


def _config(source: str | Path, options: dict[str, Any]) -> Any:
    """The config, after checking that reading it runs no code."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig

    fetched = {name: value for name, value in options.items() if name != "trust_remote_code"}
    raw, _ = PreTrainedConfig.get_config_dict(source, **fetched)
    if not options["trust_remote_code"]:
        check_config(raw, source)
        check_readable(raw, source)
        if Path(source).is_dir():
            check_sizes(raw, Path(source))
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING and not options["trust_remote_code"]:
        reason = "its config names own code" if "auto_map" in raw else f"transformers knows no type {kind!r}"
        raise InvalidArgument(
            f"{source} cannot be built without code that comes with it ({reason}). The command line runs no such "
            f"code; from Python, read it, then bayesgeom.load(…, trust_remote_code=True)."
        )
    config = AutoConfig.from_pretrained(source, **options)
    is_known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in raw.get("auto_map", {})
    if config.is_encoder_decoder or not is_known:
        raise InvalidArgument(
            f"{source} is a {kind}, which is not a causal language model. Pass a decoder such as GPT-2, Pythia or "
            f"Llama."
        )
    return config


def _model(
    source: str | Path,
    config: Any,
    options: dict[str, Any],
    placed: dict[str, Any],
) -> Any:
    from transformers import AutoModelForCausalLM

    check_weight_files(source, {name: value for name, value in options.items() if name != "trust_remote_code"})
    if Path(source).is_dir() and not options["trust_remote_code"]:
        check_memory(config, Path(source))
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source,
        config=config,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # raised by `check_weights`, by name
        **{"dtype": "auto", **placed, **options},
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
        require_gguf(file)
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
        raise CheckpointFault(
            f"the safetensors in {source} are truncated or corrupt ({error}). Copy them again."
        ) from error
    except json.JSONDecodeError as error:
        raise CheckpointFault(f"{source}: {CONFIG} cannot be read as JSON: {error}. Restore it.") from error
    except ImportError as error:
        raise InvalidArgument(f"{source} cannot be loaded like this: {_first_line(error)}") from error
    except OSError as error:
        if Path(source).is_dir():
            raise CheckpointFault(f"{source} cannot be loaded: {_first_line(error)}") from error
        raise CheckpointFault(
            f"{str(source)!r} is neither a checkpoint's name nor a directory, and it could not be loaded from the "
            f"Hugging Face hub: {_first_line(error)} Check the name, or pass a saved directory."
        ) from error
    except StrictDataclassError as error:  # its first line names a function
        raise CheckpointFault(f"{source} cannot be loaded: {' '.join(str(error).split())}") from error
    except (ValueError, RuntimeError, TypeError, ArithmeticError) as error:
        raise CheckpointFault(f"{source} cannot be loaded: {_first_line(error)}") from error
    except (AttributeError, LookupError, AssertionError) as error:  # a value of a kind that transformers never expects
        raise CheckpointFault(
            f"{source} cannot be loaded: transformers fails on a value in its JSON files ({type(error).__name__}: "
            f"{_first_line(error)}). Put the {CONFIG} there that the weights were saved with."
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
