"""PEFT adapters: models inside them, adapter directories, and checks of an adapter's config against its weights.

peft matches the patterns of a config against the name of every module, allocates matrices of its ranks and copies
layers as often as it says. A few bytes could therefore keep the processor busy for years or fill the memory.
"""

import importlib
import importlib.util
import math
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from bayesgeom.core import CheckpointFault, InvalidArgument, counted, is_encodable, is_file, read_json, shown
from bayesgeom.models.checkpoint import Shapes, tensor_shapes

_PATTERNS, _KEYED_BY_PATTERN = (
    ("target_modules", "exclude_modules", "layers_pattern"),
    ("rank_pattern", "alpha_pattern"),
)
_RANKS = ("r", "init_r", "target_r", "rank", "n_frequency", "num_vectors")
_COPIES = "layer_replication"
_REPEATED_GROUP, _REPEATS, _MOST_REPEATS = re.compile(r"\)\s*[*+{]"), re.compile(r"(?<!\\)[*+{]"), 6
_DRAWN = re.compile(r"pissa_niter_\d+")
_INDICES = "_topk_indices"  # of VB-LoRA, saved as integers
_LONGEST_NAME = 1_024  # characters of the base model's name


def check_adapter(stored: Mapping[str, Any], config: Path, weights: Path) -> None:
    """Check patterns, ranks and copies in the config of an adapter.

    Args:
        stored: The parsed config.
        config: Its file.
        weights: The file of the adapter's weights.

    Raises:
        CheckpointFault: The config could keep peft busy or fill the memory, or it draws weights at random.
    """
    shapes = tensor_shapes(weights, indices=_INDICES)
    for key, pattern in _patterns(stored):
        try:
            re.compile(pattern)
            is_sound = not _REPEATED_GROUP.search(pattern) and len(_REPEATS.findall(pattern)) <= _MOST_REPEATS
        except (re.error, RecursionError, OverflowError):
            is_sound = False
        if not is_sound:
            raise CheckpointFault(
                f"{config}: {key} has the pattern {shown(pattern)}, which is no regular expression, repeats a group, "
                f"or repeats over {_MOST_REPEATS} times. List the modules."
            )
    _check_sizes(stored, shapes, config)
    initial = stored.get("init_lora_weights")
    if isinstance(initial, str) and _DRAWN.fullmatch(initial):
        raise CheckpointFault(
            f"{config} sets init_lora_weights to {shown(initial)}: it changes the base model by random draws, "
            f"so they would differ from those in training. Merge the adapter with peft, and save the model."
        )


def _check_sizes(stored: Mapping[str, Any], shapes: Shapes, config: Path) -> None:
    longest = max((size for shape in shapes.values() if math.prod(shape) for size in shape), default=0)
    of_patterns = stored.get("rank_pattern")
    ranks = [(key, stored.get(key)) for key in _RANKS]
    ranks += [("rank_pattern", own) for own in of_patterns.values()] if isinstance(of_patterns, Mapping) else []
    for key, value in ranks:
        if type(value) is int and value > longest:
            raise CheckpointFault(
                f"{config} sets {key} to {value:,}; the longest axis of the weights is {longest:,}. Restore it."
            )
    spans = stored.get(_COPIES)
    bounds = [own for own in spans if isinstance(own, list) and len(own) == 2] if isinstance(spans, list) else []
    n_copies = sum(max(0, end - start) for start, end in bounds if type(start) is int and type(end) is int)
    if n_copies > len(shapes):
        raise CheckpointFault(
            f"{config} sets {_COPIES} to {n_copies:,} layers, but the adapter has {len(shapes):,} tensors. Restore it."
        )


def _patterns(stored: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The regular expressions of a config: texts, and keys of tables; names in a list are compared as they are."""
    yield from ((key, own) for key in _PATTERNS if isinstance(own := stored.get(key), str))
    for key in _KEYED_BY_PATTERN:
        table = stored.get(key)
        yield from ((key, own) for own in (table if isinstance(table, Mapping) else ()))


ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def unwrapped(model: Any) -> Any:
    """Return the Hugging Face model inside a PEFT model or a compiled module; other objects are returned unchanged.

    The active adapters of a PEFT model stay in place, so the model computes what the PEFT model computes.

    Raises:
        InvalidArgument: The adapter changes more than the weights, or the model was compiled in place.
    """
    if "torch._dynamo" in sys.modules:
        from torch._dynamo.eval_frame import OptimizedModule

        if isinstance(model, OptimizedModule):
            return unwrapped(model._orig_mod)  # noqa: SLF001  (torch has no public way to read it)
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
    if isinstance(model, nn.Module):
        compiled = (name for name, part in model.named_modules() if vars(part).get("_compiled_call_impl") is not None)
        if (name := next(compiled, None)) is not None:
            raise InvalidArgument(
                f"{name or type(model).__name__} was compiled in place, so hooks may do nothing. Pass the model before "
                f"it is compiled; torch.compile(model) leaves it as it is."
            )
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
    if not isinstance(base, str) or not 0 < len(base) <= _LONGEST_NAME or not is_encodable(base):
        raise CheckpointFault(
            f"{path / ADAPTER} names no base model, but {shown(base)}. Write its directory or hub name there as "
            f"base_model_name_or_path, or merge the adapter with peft's merge_and_unload and save the model."
        )
    if revision is not None and not isinstance(revision, str):
        raise CheckpointFault(f"{path / ADAPTER} names the revision {revision!r}; it must be text. Restore the file.")
    if not (path / ADAPTER_WEIGHTS).is_file():
        raise CheckpointFault(f"{path} holds no {ADAPTER_WEIGHTS}; adapters in pickles are not read. Save it again.")
    check_adapter(known, path / ADAPTER, path / ADAPTER_WEIGHTS)
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
                f"{path} holds a model, and an adapter of another one, {shown(base)}. Move {ADAPTER} and "
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
        own.replace(f".{name}", "") for own in peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    }
    # peft saves the magnitudes of DoRA without the ending of a weight.
    plain = [own.replace(f".{name}", "") for own in result.missing_keys]
    absent = [own for own in plain if own in saved or own.removesuffix(".weight") in saved]
    for tensors, fault in ((absent, "lacks"), (result.unexpected_keys, "holds, without a layer,")):
        if tensors:
            listed = ", ".join(sorted(tensors)[:4])
            raise ValueError(f"{ADAPTER_WEIGHTS} {fault} {counted(len(tensors), 'tensor')}: {listed}")
