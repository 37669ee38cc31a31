"""Recording of activations: checked hooks, and storage that is allocated once in its final size."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from bayesgeom.core.errors import HookFault
from bayesgeom.core.hooks import Change, hooked, site_hook
from bayesgeom.core.run import ModelSpec, at_scored
from bayesgeom.core.sites import Site
from bayesgeom.core.trials import Trials

Point = Callable[[Site, int], nn.Module]


@final
class Recorder:
    """Records every layer of the chosen sites, pass by pass.

    Each activation is reduced to the positions that its axes keep, and copied into storage of the final size. In each
    pass every hook must fire exactly once, with the shape given by the site's axes and the model's spec.
    """

    def __init__(self, module: nn.Module, spec: ModelSpec, point: Point, sites: Sequence[Site]) -> None:
        self.spec, self.sites = spec, tuple(sites)
        self._module, self._point = module, point
        self._storage: dict[Site, Tensor] = {}
        self._room = self._filled = 0

    def make_room(self, n_sequences: int) -> None:
        """Set the number of sequences to record. Storage is allocated at the first pass, when shapes are known."""
        self._room = n_sequences

    @contextlib.contextmanager
    def recording(self, trials: Trials, *, is_on: bool) -> Iterator[None]:
        """Record the pass inside the block; set no hooks if `is_on` is false.

        Raises:
            HookFault: A hook did not fire exactly once, or its activation has an unexpected shape.
        """
        if not is_on:
            yield
            return
        places = [(site, layer) for site in self.sites for layer in range(self.spec.n_layers)]
        hooks = [site_hook(place, self._point(*place), self._storing(*place, trials)) for place in places]
        with hooked(self._module, hooks, by=self.spec.name):
            yield
        self._filled += len(trials)

    def finished(self) -> dict[Site, Shaped[Tensor, "layer *axes"]]:
        """Return the recorded activations by site, with the layer as the first axis."""
        return {site: stored[:, : self._filled] for site, stored in self._storage.items()}

    def _storing(self, site: Site, layer: int, trials: Trials) -> Change:
        def store(output: Tensor) -> None:
            self._check_shape(site, layer, output, trials)
            kept = at_scored(site, output, trials)
            if site not in self._storage:
                shape = (self.spec.n_layers, self._room, *kept.shape[1:])
                self._storage[site] = torch.empty(shape, dtype=torch.float32, device=kept.device)
            self._storage[site][layer, self._filled : self._filled + len(kept)] = kept

        return store

    def _check_shape(self, site: Site, layer: int, output: Tensor, trials: Trials) -> None:
        n, n_pos = trials.tokens.shape
        known = {"batch": n, "pos": n_pos, "query_pos": n_pos, "key_pos": n_pos} | _widths(self.spec)
        expected = tuple(known.get(axis, -1) for axis in site.axes)
        fits = len(output.shape) == len(expected) and all(
            e in (-1, size) for e, size in zip(expected, output.shape, strict=True)
        )
        if not fits:
            raise HookFault(
                f"site {site.name!r} of layer {layer} of {self.spec.name} has shape {tuple(output.shape)}; its axes "
                f"{' '.join(site.axes)} require {expected}."
            )


def bytes_per_sequence(spec: ModelSpec, sites: Sequence[Site], trials: Trials) -> int:
    """Return the bytes of one recorded sequence, over all layers and sites, in float32."""
    n_pos = trials.tokens.shape[1]
    sizes = {"batch": 1, "pos": trials.n_scored, "query_pos": trials.n_scored, "key_pos": n_pos} | _widths(spec)
    # Use the width of the residual stream for an axis that the spec does not know.
    return 4 * spec.n_layers * sum(math.prod(sizes.get(axis, spec.d_model) for axis in site.axes) for site in sites)


def bytes_of_pass(spec: ModelSpec, trials: Trials) -> int:
    """Return the bytes of one sequence's forward pass in float32: the widest layer, the patterns, and the logits.

    Logits are computed at every position that is scored in any of the sequences.
    """
    n_pos, n_asked = trials.tokens.shape[1], int(trials.scored.any(dim=0).sum())
    stream = n_pos * (4 * spec.d_model + 3 * spec.d_mlp + 4 * spec.d_state)
    return 4 * (stream + 2 * spec.n_heads * n_pos**2 + 2 * n_asked * spec.d_vocab)


def _widths(spec: ModelSpec) -> dict[str, int]:
    widths = {"head": spec.n_heads, "kv_head": spec.n_kv_heads, "d_head": spec.d_head, "d_model": spec.d_model}
    return widths | ({"d_state": spec.d_state} if spec.d_state else {})
