"""Ablation modes: how to replace an ablated activation. Other packages register modes by entry point."""

from bayesgeom.core.edits import AblationMode
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.plugins import discover

BUILT_IN = ("zero", "mean", "resample")


def mode_names() -> tuple[str, ...]:
    """Return the names of all modes: those built in, then those of other packages."""
    return (*BUILT_IN, *_added())


def mode_named(name: str) -> AblationMode | None:
    """Return the mode of this name, or None for a mode that is built in.

    Raises:
        InvalidArgument: There is no such mode; the error lists those that exist.
    """
    if name in BUILT_IN:
        return None
    if name not in (added := _added()):
        raise InvalidArgument(f"mode must be one of {', '.join((*BUILT_IN, *added))}; got {name!r}.")
    return added[name]()


def uses_donor(name: str) -> bool:
    """Return whether a mode reads the activations of other sequences, so that two sequences are needed.

    Raises:
        InvalidArgument: There is no such mode.
    """
    added = mode_named(name)
    return name == "resample" if added is None else added.uses_donor


def _added() -> dict[str, type[AblationMode]]:
    # mypy rejects an abstract class as a value, which discovery needs.
    return discover("bayesgeom.ablations", AblationMode)  # type: ignore[type-abstract]
