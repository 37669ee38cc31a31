"""Weights in a file that have no place in the model of its config.

transformers drops such tensors. If they belong to the model, its numbers are wrong. Examples are a layer that the
config does not declare and a bias that it switches off.
"""

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bayesgeom.core.errors import CheckpointFault
from bayesgeom.models.description import CONFIG
from bayesgeom.results.tables import counted

_INDEX = re.compile(r"\.\d+(?=\.|$)")
# Masks and tables of positions, which earlier versions of transformers saved and later ones compute.
_COMPUTED = re.compile(r"(^|\.)((attn|attention)\.(masked_)?bias|rotary_emb\..*|position_ids)$")
_SHOWN = 4


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
