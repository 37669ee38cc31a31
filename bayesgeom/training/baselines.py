"""Context-aware baselines of the comparison, which lack the ability that a row tests."""

from collections.abc import Mapping

from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.trials import Trials
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection, shown_before, uniform_on

Predictives = Mapping[str, Float64[Tensor, "batch query_pos answer"]]


def context_aware(task: WindTunnel, trials: Trials) -> Predictives:
    """Return the task's own baselines, and for a bijection whose keys never return `bag_of_values`.

    It is uniform on the values not shown yet, which is exact there: that row tests accumulation only, and `diagnose`
    does not compare with it. If keys return, the task's own `key_membership` is the strongest.

    Args:
        task: The task of the row.
        trials: Its sequences.

    Returns:
        Predictive distributions at the scored positions, by name.
    """
    known = dict(task.baseline_predictives(trials))
    if isinstance(task, Bijection) and not task.repeats:
        values = trials.at_scored(trials.labels) - task.n_values
        known["bag_of_values"] = uniform_on(~shown_before(values, task.n_values))
    return known
