"""Wind tunnels: tasks whose exact posterior is known at every step; text tasks for language models. One file each."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayesgeom.tasks.base import TextTask as TextTask
    from bayesgeom.tasks.base import WindTunnel as WindTunnel
    from bayesgeom.tasks.bijection import Bijection as Bijection
    from bayesgeom.tasks.evidence import LabelledEvidence as LabelledEvidence
    from bayesgeom.tasks.hmm import HMM as HMM
    from bayesgeom.tasks.in_context import InContext as InContext
    from bayesgeom.tasks.prompts import Prompts as Prompts

_HOMES = {
    "WindTunnel": "base", "TextTask": "base", "Bijection": "bijection", "HMM": "hmm", "InContext": "in_context",
    "LabelledEvidence": "evidence", "Prompts": "prompts",
}  # fmt: skip
__all__ = ["HMM", "Bijection", "InContext", "LabelledEvidence", "Prompts", "TextTask", "WindTunnel"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
