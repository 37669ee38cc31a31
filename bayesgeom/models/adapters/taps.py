"""Taps: one small module per site and layer, through which an activation passes while somebody watches it.

A tap gives on what it is given. Whoever sets a forward hook on it sees the activation in the site's own shape, and what
the hook returns goes on through the model.
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
    """The identity, for hooks to sit on."""

    def forward(self, x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        return x

    @property
    def is_watched(self) -> bool:
        """Whether anybody's hook is set."""
        return bool(self._forward_hooks)


@final
class Taps:
    """The taps of a model, by site and layer."""

    def __init__(self, sites: Iterable[Site], n_layers: int) -> None:
        self.n_layers = n_layers
        self._taps = {site: [Tap() for _ in range(n_layers)] for site in sites}

    def at(self, site: Site, layer: int) -> Tap:
        """The tap of a site in a layer."""
        return self._taps[site][layer]

    def sites(self) -> frozenset[Site]:
        """Every site that has taps."""
        return frozenset(self._taps)

    def is_watched(self, layer: int, *sites: Site) -> bool:
        """Whether anybody watches one of these sites in this layer."""
        return any(site in self._taps and self._taps[site][layer].is_watched for site in sites)

    def through(self, site: Site, layer: int, x: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
        """`x` as it comes out of the tap; `x` itself where there is none, or nobody watches."""
        if not self.is_watched(layer, site):
            return x
        passed: Tensor = self._taps[site][layer](x)
        # An edit may give a mean, expanded: parts that take views of what they are given need it laid out.
        return passed if passed is x else passed.to(x.dtype).contiguous()


@final
class Passage:
    """What arrived at a tap and what left it, in one pass."""

    def __init__(self) -> None:
        self.arrived: list[Tensor] = []
        self.left: list[Tensor] = []


@torch.no_grad()
def perturbed_pass(
    owner: nn.Module,
    forward: Callable[[], object],
    point: Callable[[Site, int], nn.Module],
    sites: Iterable[Site],
    n_layers: int,
    *,
    amount: float,
) -> dict[tuple[Site, int], Passage]:
    """One pass in which every point adds noise to what it gives on: `amount` standard deviations, seeded.

    If what arrives further down is what the equations make of what *left* here, then the points are where they are said
    to be, and edits there take effect.
    """
    passages = {(site, layer): Passage() for site in sites for layer in range(n_layers)}
    generator = torch.Generator().manual_seed(0)

    def perturbing(passage: Passage) -> Change:
        def perturb(output: Tensor) -> Tensor:
            noise = torch.randn(output.shape, generator=generator).to(output)
            left = output + amount * output.float().std().to(output) * noise
            # Copies: a model may change what it is given in place (OLMo clips queries and keys like that).
            passage.arrived.append(output.clone())
            passage.left.append(left.clone())
            return left

        return perturb

    hooks = [site_hook(place, point(*place), perturbing(passage)) for place, passage in passages.items()]
    with hooked(owner, hooks, by="this model", times=None):  # the caller withholds what does not fire once
        forward()
    return passages


def per_query_head(x: Float[Tensor, "b kv p d"], n_heads: int) -> Float[Tensor, "b h p d"]:
    """Grouped keys or values, repeated for the query heads that share them."""
    return x if x.shape[1] == n_heads else repeat(x, "b kv p d -> b (kv group) p d", group=n_heads // x.shape[1])
