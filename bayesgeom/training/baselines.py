"""Context-aware baselines of the comparison, which lack the ability that a row tests."""

from collections.abc import Mapping

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.trials import Trials
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection

Predictives = Mapping[str, Float64[Tensor, "batch query_pos answer"]]


def context_aware(task: WindTunnel, trials: Trials) -> Predictives:
    """Return the task's own baselines and, for bijections, one that knows which values were shown.

    - `bag_of_values`, if keys never return: uniform on the values not shown yet. It is exact there, because that row
      tests accumulation only. If keys return, this predictor is the uniform one and is omitted.
    - `key_membership`, if keys return: also knows whether the key was shown, but not with which value.

    Args:
        task: The task of the row.
        trials: Its sequences.

    Returns:
        Predictive distributions at the scored positions, by name.
    """
    known = dict(task.baseline_predictives(trials))
    if not isinstance(task, Bijection):
        return known
    keys = trials.at_scored(trials.tokens)
    values = trials.at_scored(trials.labels) - task.n_values
    shown = _before(values, task.n_values)
    if not task.repeats:
        known["bag_of_values"] = _uniform_on(~shown)
        return known
    returns = _before(keys, task.n_values).gather(2, keys[..., None])
    known["key_membership"] = torch.where(returns, _uniform_on(shown), _uniform_on(~shown))
    return known


def _before(ids: Tensor, n: int) -> Tensor:
    """Whether each of n ids occurred at an earlier scored position: batch, query_pos, id."""
    seen = torch.nn.functional.one_hot(ids, n).cumsum(dim=1) > 0
    return torch.cat([torch.zeros_like(seen[:, :1]), seen[:, :-1]], dim=1)


def _uniform_on(members: Tensor) -> Float64[Tensor, "batch query_pos answer"]:
    """Uniform on a set, or on everything if the set is empty."""
    own = torch.where(members.any(-1, keepdim=True), members, True).double()
    return own / own.sum(-1, keepdim=True)
