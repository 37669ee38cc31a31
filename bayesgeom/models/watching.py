"""Hooks at a model's sites: `core.hooks` for sites and layers instead of modules."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from bayesgeom.core.hooks import Change, SiteLayer, hooked, site_hook
from bayesgeom.models.base import Model


def hooked_sites(model: Model, hooks: Mapping[SiteLayer, Change]) -> AbstractContextManager[Sequence[int]]:
    """Set one hook at each of these sites and layers, for one forward pass within the block.

    Args:
        model: The model, whose lock is held.
        hooks: By site and layer: a function of the activation there. Its return value replaces the activation unless it
            is None.

    Raises:
        HookFault: A hook did not fire exactly once.
    """
    own = [site_hook(place, model.point(*place), change) for place, change in hooks.items()]
    return hooked(model.module, own, by=model.spec.name)
