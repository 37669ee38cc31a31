"""Checks of a PEFT adapter's config against its weights, before peft reads it.

peft matches the patterns of a config against the name of every module, allocates matrices of its ranks and copies
layers as often as it says. A few bytes could therefore keep the processor busy for years or fill the memory.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bayesgeom.checks.text import is_encodable, shown
from bayesgeom.core.errors import CheckpointFault
from bayesgeom.models.declared import Shapes, tensor_shapes

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
        if reason := _fault(pattern):
            raise CheckpointFault(
                f"{config}: {key} has the pattern {shown(pattern)}, which {reason}. List the modules."
            )
    _check_sizes(stored, shapes, config)
    initial = stored.get("init_lora_weights")
    if isinstance(initial, str) and _DRAWN.fullmatch(initial):
        raise CheckpointFault(
            f"{config} sets init_lora_weights to {shown(initial)}: it changes the base model by random draws, "
            f"so they would differ from those in training. Merge the adapter with peft, and save the model."
        )


def is_readable_name(base: str) -> bool:
    """Return whether a text can be the directory or hub name of a base model."""
    return len(base) <= _LONGEST_NAME and is_encodable(base) and "\0" not in base


def _check_sizes(stored: Mapping[str, Any], shapes: Shapes, config: Path) -> None:
    longest = max((size for shape in shapes.values() if math.prod(shape) for size in shape), default=0)
    of_patterns = stored.get("rank_pattern")
    ranks = [(key, stored.get(key)) for key in _RANKS]
    ranks += [("rank_pattern", own) for own in of_patterns.values()] if isinstance(of_patterns, Mapping) else []
    for key, value in ranks:
        if type(value) is int and value > longest:
            raise CheckpointFault(
                f"{config} sets {key} to {value:,}, but no axis of the adapter's weights is longer than {longest:,}. "
                f"Restore the file."
            )
    spans = stored.get(_COPIES)
    bounds = [own for own in spans if isinstance(own, list) and len(own) == 2] if isinstance(spans, list) else []
    n_copies = sum(max(0, end - start) for start, end in bounds if type(start) is int and type(end) is int)
    if n_copies > len(shapes):
        raise CheckpointFault(
            f"{config} sets {_COPIES} to {n_copies:,} layers, but the adapter has {len(shapes):,} tensors. Restore the "
            f"file."
        )


def _patterns(stored: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The regular expressions of a config: texts, and keys of tables; names in a list are compared as they are."""
    yield from ((key, own) for key in _PATTERNS if isinstance(own := stored.get(key), str))
    for key in _KEYED_BY_PATTERN:
        table = stored.get(key)
        yield from ((key, own) for own in (table if isinstance(table, Mapping) else ()))


def _fault(pattern: str) -> str:
    """Why a regular expression is not used; "" if it is."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression ({error})"
    if _REPEATED_GROUP.search(pattern) or len(_REPEATS.findall(pattern)) > _MOST_REPEATS:
        return f"repeats a group or has more than {_MOST_REPEATS} repetitions, and could take years to match"
    return ""
