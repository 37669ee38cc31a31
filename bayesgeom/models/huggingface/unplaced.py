"""Weights in a file that do not fit the model of its config.

transformers drops tensors without a place, and draws those that are missing or of another shape at random. In all three
cases the numbers are those of another model. Examples are a layer that the config does not declare and a bias that it
switches off.
"""

import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bayesgeom.core.errors import CheckpointFault
from bayesgeom.models.description import CONFIG
from bayesgeom.results.tables import counted

_INDEX = re.compile(r"\.\d+(?=\.|$)")
# Masks and tables of positions, which earlier versions of transformers saved and later ones compute.
_COMPUTED = re.compile(r"(^|\.)((attn|attention)\.(masked_)?bias|rotary_emb\..*|position_ids)$")
_SHOWN = 4


def check_weights(hf: Any, found: Mapping[str, Collection[Any]], source: str | Path, *, remedy: str) -> None:
    """Check that the weights of a loaded model are complete, of its shapes, and all used.

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
            f"{counted(len(wrong), 'tensor')}: {'; '.join(shapes)}. {remedy}"
        )
    if missing := sorted(found["missing_keys"]):
        raise CheckpointFault(
            f"the weights of {source} lack {counted(len(missing), 'tensor')} of {type(hf).__name__}: "
            f"{', '.join(missing[:_SHOWN])}. They would be random numbers; this is not a complete causal language "
            f"model."
        )
    check_placed(hf, found["unexpected_keys"], source)


def check_placed(hf: Any, unexpected: Collection[str], source: str | Path) -> None:
    """Check that no weights of the model itself were dropped, and warn of others, such as those of a second head.

    Args:
        hf: The model, as transformers built it from the config.
        unexpected: Names of the tensors of the files that are not in it.
        source: Directory, file or hub name, for the message.

    Raises:
        CheckpointFault: A dropped tensor is part of a layer or a module that the model has.
    """
    dropped = sorted(name for name in unexpected if not _COMPUTED.search(name))
    modules = {name for name, _ in hf.named_modules() if name}
    repeated = {_INDEX.sub(".N", name) for name in modules if _INDEX.search(name)}
    own = [name for name in dropped if any(_is_of(full, modules, repeated) for full in _spellings(name, hf))]
    if own:
        raise CheckpointFault(
            f"the weights of {source} hold {counted(len(own), 'tensor')} that {type(hf).__name__} has no place for "
            f"with this {CONFIG}: {', '.join(own[:_SHOWN])}. Without them it would be another model. Restore the "
            f"{CONFIG} that was saved with them."
        )
    if dropped:
        warnings.warn(
            f"the weights of {source} hold {counted(len(dropped), 'tensor')} outside of {type(hf).__name__}, not "
            f"used: {', '.join(dropped[:_SHOWN])}.",
            stacklevel=2,
        )


def _spellings(name: str, hf: Any) -> tuple[str, ...]:
    """The name, and the name with the prefix that files of models without a head lack."""
    return name, f"{hf.base_model_prefix}.{name}"


def _is_of(name: str, modules: Collection[str], repeated: Collection[str]) -> bool:
    """Whether a tensor is part of a module that the model has, or of one more in a list of modules that it has."""
    ends = [found.end() for found in _INDEX.finditer(name)]
    return name.rpartition(".")[0] in modules or any(_INDEX.sub(".N", name[:end]) in repeated for end in ends)
