"""PEFT adapters: models inside them, and directories that hold an adapter without its base model."""

import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesgeom.core import CheckpointFault, InvalidArgument
from bayesgeom.core.errors import quoted
from bayesgeom.core.files import is_file, read_json
from bayesgeom.core.text import count_text

_DRAWN = re.compile(r"pissa_niter_\d+")
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def unwrapped(model: Any) -> Any:
    """Return the Hugging Face model inside a PEFT model; other objects are returned unchanged.

    The active adapters of a PEFT model stay in place, so the model computes what the PEFT model computes.

    Raises:
        InvalidArgument: The adapter changes more than the weights.
    """
    if (peft := sys.modules.get("peft")) is not None and isinstance(model, peft.PeftModel):
        config = model.active_peft_config
        effects = {  # what the model inside, called without PEFT, does not do
            "prepends learned vectors": config.is_prompt_learning,
            "adds prompts to the attention": config.is_adaption_prompt,
            "acts after invocation tokens only": vars(config).get("alora_invocation_tokens"),
        }
        if effect := next((effect for effect, is_there in effects.items() if is_there), ""):
            raise InvalidArgument(
                f"an adapter of kind {config.peft_type} {effect}: only those of the weights (LoRA …) are supported."
            )
        return unwrapped(model.get_base_model())
    return model


def is_adapter(path: Path) -> bool:
    """Return whether a directory holds a PEFT adapter without its base model."""
    return is_file(path / ADAPTER) and not is_file(path / "config.json")


def base_of(path: Path) -> tuple[str, str | None]:
    """Return the directory or hub name of an adapter's base model, and the revision that the adapter names, if any.

    Raises:
        CheckpointFault: The adapter's config names no base model, or a revision that is no text, does not fit the
            adapter's weights, or these are no safetensors file.
        InvalidArgument: The package peft is not installed.
    """
    stored = read_json(path / ADAPTER)
    known = stored if isinstance(stored, Mapping) else {}
    base, revision = known.get("base_model_name_or_path"), known.get("revision")
    if not isinstance(base, str) or not base:
        raise CheckpointFault(
            f"{path / ADAPTER} names no base model, but {quoted(base)}. Write its directory or hub name there as "
            f"base_model_name_or_path, or merge the adapter with peft's merge_and_unload and save the model."
        )
    if not (path / ADAPTER_WEIGHTS).is_file():
        raise CheckpointFault(f"{path} holds no {ADAPTER_WEIGHTS}; adapters in pickles are not read. Save it again.")
    initial = known.get("init_lora_weights")
    if isinstance(initial, str) and _DRAWN.fullmatch(initial):
        raise CheckpointFault(
            f"{path / ADAPTER} sets init_lora_weights to {quoted(initial)}: it changes the base model by random draws, "
            f"so they would differ from those in training. Merge the adapter with peft, and save the model."
        )
    if importlib.util.find_spec("peft") is None:
        raise InvalidArgument(f"{path} is a PEFT adapter: install peft (pip install peft) to load it.")
    return base, revision or None


def check_embedded(path: Path) -> None:
    """Check the adapter in a directory that holds a model, too: transformers puts it into that model.

    Raises:
        CheckpointFault: It names another base model, or `base_of` refuses it.
    """
    if is_file(path / ADAPTER):
        base, _ = base_of(path)
        if not (Path(base).is_dir() and Path(base).samefile(path)):
            raise CheckpointFault(
                f"{path} holds a model, and an adapter of another one, {quoted(base)}. Move {ADAPTER} and "
                f"{ADAPTER_WEIGHTS} to a directory of their own, and load that."
            )


def with_adapter(hf: Any, path: Path) -> Any:
    """Return a Hugging Face model with the adapter of a directory in place.

    Raises:
        CheckpointFault: The adapter does not fit this model.
        InvalidArgument: It is no adapter of the weights.
    """
    peft: Any = importlib.import_module("peft")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found missing adapter keys")  # raised below, by name
            wrapped = peft.PeftModel.from_pretrained(hf, str(path), is_trainable=False, use_safetensors=True)
        adapter = unwrapped(wrapped)
        _check_complete(peft, wrapped, path)
    except (ValueError, RuntimeError, LookupError, TypeError, AttributeError, ArithmeticError, OSError) as error:
        raise CheckpointFault(
            f"the adapter in {path} does not fit {type(hf).__name__}: {' '.join(str(error).split())[:200]}. Load it "
            f"with the base model that it was trained on."
        ) from error
    return adapter


def _check_complete(peft: Any, wrapped: Any, path: Path) -> None:
    """Raise `ValueError` if the adapter's file lacks tensors, or holds some that have no place in the model.

    PEFT itself puts the file in place a second time, because it knows the names that earlier versions wrote. A tensor
    that several layers share is saved once; what PEFT would not save is not absent.
    """
    name = wrapped.active_adapter
    weights = peft.load_peft_weights(str(path), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that accelerate offloads: there is nothing to copy them to
        result = peft.set_peft_model_state_dict(wrapped, weights, adapter_name=name)
    saved = {
        entry.replace(f".{name}", "") for entry in peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    }
    # peft saves the magnitudes of DoRA without the ending of a weight.
    plain = [entry.replace(f".{name}", "") for entry in result.missing_keys]
    absent = [entry for entry in plain if entry in saved or entry.removesuffix(".weight") in saved]
    for tensors, fault in ((absent, "lacks"), (result.unexpected_keys, "holds, without a layer,")):
        if tensors:
            listed = ", ".join(sorted(tensors)[:4])
            raise ValueError(f"{ADAPTER_WEIGHTS} {fault} {count_text(len(tensors), 'tensor')}: {listed}")
