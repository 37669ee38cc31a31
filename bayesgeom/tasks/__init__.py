"""Tasks, one file each: wind tunnels with an exact posterior at every step, and text tasks for language models.

With an exact posterior:

    Bijection          a new permutation in each sequence; the last key has no value
    AssociativeRecall  a new one-to-one map: some pairs are stored, then queried
    HMM                a new hidden Markov model in each sequence
    StickyMarkov       one fixed ring; the belief is over its states
    Mess3, Process     a fixed generator of symbols with hidden states
    ModularRecurrence  numbers that follow a recurrence modulo a number

In words, for language models:

    LabeledEvidence    lines with labels and a last word
    InContext          one of the tasks above, in words
    Prompts            your own texts, or the shipped prompts

`WindTunnel` and `TextTask` are the base classes of new tasks. `help(bayesgeom.tasks.HMM)` describes one task.
"""

from typing import TYPE_CHECKING

from bayesgeom.core.plugins import names_on_demand

if TYPE_CHECKING:
    from bayesgeom.tasks.associative_recall import AssociativeRecall as AssociativeRecall
    from bayesgeom.tasks.base import TextTask as TextTask
    from bayesgeom.tasks.base import WindTunnel as WindTunnel
    from bayesgeom.tasks.bijection import Bijection as Bijection
    from bayesgeom.tasks.evidence import LabeledEvidence as LabeledEvidence
    from bayesgeom.tasks.hmm import HMM as HMM
    from bayesgeom.tasks.in_context import InContext as InContext
    from bayesgeom.tasks.modular_recurrence import ModularRecurrence as ModularRecurrence
    from bayesgeom.tasks.process import Mess3 as Mess3
    from bayesgeom.tasks.process import Process as Process
    from bayesgeom.tasks.prompts import Prompts as Prompts
    from bayesgeom.tasks.sticky_markov import StickyMarkov as StickyMarkov

_HOMES = {
    "WindTunnel": "base",
    "TextTask": "base",
    "Bijection": "bijection",
    "HMM": "hmm",
    "InContext": "in_context",
    "LabeledEvidence": "evidence",
    "Prompts": "prompts",
    "AssociativeRecall": "associative_recall",
    "Process": "process",
    "Mess3": "process",
    "StickyMarkov": "sticky_markov",
    "ModularRecurrence": "modular_recurrence",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
