"""Watch a running training: events, responses and the last good state.

from bayesgeom.monitor import Monitor
watch = Monitor(module, task, every=100)

`Settings`, `Thresholds` and `Response` configure a monitor, `Event` is what it records, and `trainer_callback` makes a
callback for `transformers.Trainer`.
"""

from typing import TYPE_CHECKING

from bayesgeom.core.plugins import names_on_demand

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
__all__ = list(_HOMES)
__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
