from .rules import Event as Event
from .rules import Thresholds as Thresholds
from .watch import Monitor as Monitor
from .watch import Response as Response
from .watch import Settings as Settings
from .watch import trainer_callback as trainer_callback
