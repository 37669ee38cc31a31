"""The sequences of one task in the token ids of another.

An HMM with a higher floor has fewer probability tokens, and so other ids for the same symbols. Token labels are unique
in a task, so ids can be mapped by label to the vocabulary on which a model was trained.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import TaskMismatch
from bayesgeom.core.run import NO_LABEL, Trials
from bayesgeom.tasks.base import WindTunnel

_NAMED = 6  # missing tokens that an error lists


@final
@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Map between the ids of two tasks: `there` to the known ids, `back` from them; −1 where there is none."""

    there: Int64[Tensor, " id"]
    back: Int64[Tensor, " known"]

    @classmethod
    def between(cls, task: WindTunnel, known: WindTunnel) -> "Vocabulary":
        """Return the map from the ids of `task` to those of `known`.

        Raises:
            TaskMismatch: `known` lacks tokens of `task`.
        """
        own, places = task.token_labels(), {label: index for index, label in enumerate(known.token_labels())}
        if missing := [label for label in own if label not in places]:
            shown = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
            raise TaskMismatch(f"{task} uses tokens that {known} lacks: {shown}.")
        there = torch.tensor([places[label] for label in own])
        back = torch.full((len(places),), -1).scatter_(0, there, torch.arange(len(own)))
        return cls(there=there, back=back)

    def rendered(self, trials: Trials) -> Trials:
        """Return trials of the task in known ids."""
        return _mapped(trials, self.there)

    def read(self, trials: Trials) -> Trials:
        """Return trials in known ids in the ids of the task, the inverse of `rendered`."""
        return _mapped(trials, self.back)

    def baselines(
        self, task: WindTunnel
    ) -> Callable[[Trials], Mapping[str, Float64[Tensor, "batch query_pos answer"]]]:
        """Return the task's shortcut predictors, for trials in known ids."""
        return lambda trials: task.baseline_predictives(self.read(trials))


def _mapped(trials: Trials, to: Int64[Tensor, " id"]) -> Trials:
    to = to.to(trials.tokens.device)
    is_labeled = trials.labels != NO_LABEL
    return replace(
        trials,
        tokens=to[trials.tokens],
        answers=to[trials.answers],
        labels=torch.where(is_labeled, to[trials.labels * is_labeled], NO_LABEL),
        token_sets={name: to[members] for name, members in trials.token_sets.items()},
    )
