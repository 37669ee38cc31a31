"""Hugging Face models inside other objects: PEFT models, adapter directories, compiled modules."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.files import is_file
from bayesgeom.core.reading import read_json

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def unwrapped(model: Any) -> Any:
    """Return the Hugging Face model inside a PEFT model or a compiled module; other objects are returned unchanged.

    The active adapters of a PEFT model stay in place, so the model computes what the PEFT model computes.

    Raises:
        InvalidArgument: The adapter changes the prompt instead of the weights, or the model was compiled in place.
    """
    if "torch._dynamo" in sys.modules:
        from torch._dynamo.eval_frame import OptimizedModule

        if isinstance(model, OptimizedModule):
            return unwrapped(model._orig_mod)  # noqa: SLF001  (torch has no public way to read it)
    if (peft := sys.modules.get("peft")) is not None and isinstance(model, peft.PeftModel):
        if model.active_peft_config.is_prompt_learning:
            raise InvalidArgument(
                f"{type(model).__name__} has an adapter of kind {model.active_peft_config.peft_type}, which puts "
                f"learned vectors before the tokens; only adapters of the weights, such as LoRA, are supported."
            )
        return unwrapped(model.get_base_model())
    if isinstance(model, nn.Module):
        compiled = (name for name, part in model.named_modules() if vars(part).get("_compiled_call_impl") is not None)
        if (name := next(compiled, None)) is not None:
            raise InvalidArgument(
                f"{name or type(model).__name__} was compiled in place with compile(), and hooks inside compiled code "
                f"may do nothing. Pass the model before it is compiled; torch.compile(model) leaves it as it is."
            )
    return model


def is_adapter(path: Path) -> bool:
    """Return whether a directory holds a PEFT adapter without its base model."""
    return is_file(path / ADAPTER) and not is_file(path / "config.json")


def base_of(path: Path) -> str:
    """Return the directory or hub name of an adapter's base model.

    Raises:
        CheckpointFault: The adapter's config names none, or its weights are no safetensors file.
        InvalidArgument: The package peft is not installed.
    """
    held = read_json(path / ADAPTER)
    base = held.get("base_model_name_or_path") if isinstance(held, Mapping) else None
    if not isinstance(base, str) or not base:
        raise CheckpointFault(
            f"{path / ADAPTER} names no base model. Write its directory or hub name there as base_model_name_or_path, "
            f"or merge the adapter with peft's merge_and_unload and save the model."
        )
    if not (path / ADAPTER_WEIGHTS).is_file():
        raise CheckpointFault(f"{path} holds no {ADAPTER_WEIGHTS}; adapters in pickles are not read. Save it again.")
    if importlib.util.find_spec("peft") is None:
        raise InvalidArgument(f"{path} is a PEFT adapter: install peft (pip install peft) to load it.")
    return base


def with_adapter(hf: Any, path: Path) -> Any:
    """Return a Hugging Face model with the adapter of a directory in place.

    Raises:
        CheckpointFault: The adapter does not fit this model.
        InvalidArgument: It is no adapter of the weights.
    """
    peft: Any = importlib.import_module("peft")
    try:
        wrapped = peft.PeftModel.from_pretrained(hf, str(path), is_trainable=False, use_safetensors=True)
    except (ValueError, RuntimeError, KeyError, TypeError, OSError) as error:
        said = " ".join(str(error).split())
        raise CheckpointFault(f"the adapter in {path} does not fit {type(hf).__name__}: {said[:200]}.") from error
    return unwrapped(wrapped)
