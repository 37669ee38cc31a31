"""Watch a running training: events, responses and the last good state.

from bayesgeom.monitor import Monitor
watch = Monitor(module, task, every=100)

`Settings`, `Thresholds` and `Response` configure a monitor, `Event` is what it records, and `trainer_callback` makes a
callback for `transformers.Trainer`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
