"""Taps: one identity module per site and layer, through which an activation passes if it is hooked.

A tap returns its input. A forward hook on it receives the activation in the site's shape, and the hook's return value
replaces the activation in the model.
"""

from collections.abc import Callable, Iterable
from typing import final

import torch
from einops import repeat
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from bayesgeom.core.hooks import Change, hooked, site_hook
from bayesgeom.core.sites import Site


@final
class Tap(nn.Module):
    """An identity module that holds hooks."""

    def forward(self, x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        return x

    @property
    def is_watched(self) -> bool:
        """Whether a hook is set."""
        return bool(self._forward_hooks)


@final
class Taps:
    """The taps of a model, by site and layer."""

    def __init__(self, sites: Iterable[Site], n_layers: int) -> None:
        self.n_layers = n_layers
        self._taps = {site: [Tap() for _ in range(n_layers)] for site in sites}

    def at(self, site: Site, layer: int) -> Tap:
        """Return the tap of a site in a layer."""
        return self._taps[site][layer]

    def sites(self) -> frozenset[Site]:
        """Return the sites that have taps."""
        return frozenset(self._taps)

    def is_watched(self, layer: int, *sites: Site) -> bool:
        """Return whether a hook is set on one of these sites in this layer."""
        return any(site in self._taps and self._taps[site][layer].is_watched for site in sites)

    def through(self, site: Site, layer: int, x: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
        """Return `x` after its tap, or `x` itself if there is no tap or no hook."""
        if not self.is_watched(layer, site):
            return x
        passed: Tensor = self._taps[site][layer](x)
        # An edit may return an expanded mean; modules that take views of their input need it contiguous.
        return passed if passed is x else passed.to(x.dtype).contiguous()


@final
class Passage:
    """Inputs (`arrived`) and outputs (`left`) of a tap in one pass."""

    def __init__(self) -> None:
        self.arrived: list[Tensor] = []
        self.left: list[Tensor] = []


@torch.no_grad()
def perturbed_pass(
    owner: nn.Module,
    forward: Callable[[], object],
    point: Callable[[Site, int], nn.Module],
    places: Iterable[tuple[Site, int]],
    *,
    amount: float,
) -> dict[tuple[Site, int], Passage]:
    """Run one pass in which every hook point adds seeded noise to its activation, and record inputs and outputs.

    If the inputs of later points satisfy the model's equations given the *outputs* of earlier ones, then the points are
    where their names say, and edits there take effect.

    Args:
        owner: The whole model, whose lock is held.
        forward: Runs the pass.
        point: Returns the module of a site and layer.
        places: The sites and layers.
        amount: Standard deviation of the noise, relative to that of the activation.
    """
    passages = {place: Passage() for place in places}
    generator = torch.Generator().manual_seed(0)

    def perturbing(passage: Passage) -> Change:
        def perturb(output: Tensor) -> Tensor:
            noise = torch.randn(output.shape, generator=generator).to(output)
            left = output + amount * output.float().std().to(output) * noise
            # Copies: a model may modify its activations in place (OLMo clips queries and keys).
            passage.arrived.append(output.clone())
            passage.left.append(left.clone())
            return left

        return perturb

    hooks = [site_hook(place, point(*place), perturbing(passage)) for place, passage in passages.items()]
    with hooked(owner, hooks, by="this model", times=None):  # the caller withholds sites that do not fire once
        forward()
    return passages


def per_query_head(x: Float[Tensor, "b kv p d"], n_heads: int) -> Float[Tensor, "b h p d"]:
    """Return grouped keys or values, repeated for the query heads that share them."""
    return x if x.shape[1] == n_heads else repeat(x, "b kv p d -> b (kv group) p d", group=n_heads // x.shape[1])
