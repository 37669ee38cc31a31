"""The names that a probe of another package imports; `bayesgeom.measurements.base` defines them."""

from bayesgeom.measurements.base import (
    Control,
    Measurement,
    Needs,
    Probe,
    Subject,
    known,
    planted_chain,
    planted_masks,
    planted_run,
    planted_trials,
    with_untrained,
)

__all__ = [
    "Control",
    "Measurement",
    "Needs",
    "Probe",
    "Subject",
    "known",
    "planted_chain",
    "planted_masks",
    "planted_run",
    "planted_trials",
    "with_untrained",
]
