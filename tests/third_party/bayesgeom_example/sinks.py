"""`bayesgeom sinks`."""

from typing import TYPE_CHECKING

import bayesgeom
from bayesgeom.cli import Of, TaskOption

if TYPE_CHECKING:
    from bayesgeom import Diagnosis


def sinks(source: Of, task: TaskOption = None, n: int = 128, seed: int = 0) -> "Diagnosis":
    """Measure the attention sink of a checkpoint, with untrained networks as a baseline.

    Args:
        source: The checkpoint, with its options.
        task: Another task.
        n: Number of sequences.
        seed: Seed of the sequences.
    """
    return bayesgeom.diagnose(source.load(), task, probes=["attention_sink"], n=n, seed=seed)
