"""Wind tunnels: tasks whose exact posterior is known at every step, one file each."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayesgeom.tasks.base import WindTunnel as WindTunnel
    from bayesgeom.tasks.bijection import Bijection as Bijection
    from bayesgeom.tasks.hmm import HMM as HMM

_HOMES = {"WindTunnel": "base", "Bijection": "bijection", "HMM": "hmm"}
__all__ = ["HMM", "Bijection", "WindTunnel"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
