"""Watch a running training: events, responses and the last good state.

from bayesgeom.monitor import Monitor
watch = Monitor(module, task, every=100)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayesgeom.monitor.rules import Event as Event
    from bayesgeom.monitor.rules import Thresholds as Thresholds
    from bayesgeom.monitor.watch import Monitor as Monitor
    from bayesgeom.monitor.watch import Response as Response
    from bayesgeom.monitor.watch import Settings as Settings
    from bayesgeom.monitor.watch import trainer_callback as trainer_callback

_HOMES = {
    "Event": "rules",
    "Monitor": "watch",
    "Response": "watch",
    "Settings": "watch",
    "Thresholds": "rules",
    "trainer_callback": "watch",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(__all__))}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
