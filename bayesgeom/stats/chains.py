"""Markov chains: stationary distributions and mixing times.

References:
    Levin & Peres 2017, Markov Chains and Mixing Times, chapters 1 and 12.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

_TOLERANCE = 1e-9


def stationary(transition: Float64[Tensor, "state state"]) -> Float64[Tensor, " state"] | None:
    """Return the stationary distribution of a chain; None if it is reducible and has several.

    States are eliminated one by one, and their probabilities follow by back substitution. No differences are taken, and
    the result is bitwise reproducible, which linear solvers do not guarantee.

    References:
        Grassmann, Taksar & Heyman 1985.
    """
    reaches = (transition > 0) | torch.eye(len(transition), dtype=torch.bool, device=transition.device)
    for _ in range(len(transition).bit_length()):
        reaches = (reaches.double() @ reaches.double()) > 0
    comes_back = (~reaches | reaches.mT).all(dim=1)  # every reachable state leads back
    inside = comes_back.nonzero()[:, 0]
    if not bool(reaches[inside[0], inside].all()):
        return None
    among = transition[inside][:, inside].clone()
    for last in range(len(inside) - 1, 0, -1):
        among[:last, last] /= among[last, :last].sum()
        among[:last, :last] += among[:last, last : last + 1] * among[last, :last]
    weights = torch.ones(len(inside), dtype=torch.float64, device=transition.device)
    for state in range(1, len(inside)):
        weights[state] = (weights[:state] * among[:state, state]).sum()
    found = torch.zeros(len(transition), dtype=torch.float64, device=transition.device)
    found[inside] = weights / weights.sum()
    return found


def stationary_rows(
    transition: Float64[Tensor, "batch state state"], otherwise: Float64[Tensor, " state"]
) -> Float64[Tensor, "batch state"]:
    """Return the stationary distribution of each chain, and `otherwise` for a chain that has several.

    Chains with only positive entries are solved together, by the elimination of `stationary`.
    """
    is_positive = (transition > 0).flatten(1).all(dim=1)
    found = torch.empty(transition.shape[:2], dtype=torch.float64, device=transition.device)
    among = transition[is_positive].clone()
    for last in range(among.shape[1] - 1, 0, -1):
        among[:, :last, last] /= among[:, last, :last].sum(dim=1, keepdim=True)
        among[:, :last, :last] += among[:, :last, last, None] * among[:, last, None, :last]
    weights = torch.ones(among.shape[:2], dtype=torch.float64, device=transition.device)
    for state in range(1, among.shape[1]):
        weights[:, state] = (weights[:, :state] * among[:, :state, state]).sum(dim=1)
    found[is_positive] = weights / weights.sum(dim=1, keepdim=True)
    for row in (~is_positive).nonzero()[:, 0].tolist():
        own = stationary(transition[row])
        found[row] = otherwise if own is None else own
    return found


def mixing_times(transition: Float64[Tensor, "*batch state state"]) -> Float64[Tensor, "*batch"]:
    """Return the steps until the dependence on the start falls to 1/e: −1 / ln |λ₂|, λ₂ the second largest eigenvalue.

    0 for a chain that forgets in one step; infinite for one that never forgets (periodic or reducible).
    """
    sizes = torch.linalg.eigvals(transition.cpu()).abs().sort(dim=-1, descending=True).values
    second = sizes[..., 1] if sizes.shape[-1] > 1 else torch.zeros_like(sizes[..., 0])
    times = torch.where(second > _TOLERANCE, -1 / second.clamp(_TOLERANCE, 1 - _TOLERANCE).log(), 0.0)
    return torch.where(second < 1 - _TOLERANCE, times, math.inf).to(transition.device)
