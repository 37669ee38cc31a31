"""Recording: hooks that prove they fired, and storage that was sized before the first pass."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, final

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bayesgeom.core.errors import HookFault
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.sites import Site
from bayesgeom.core.trials import Trials

Point = Callable[[Site, int], nn.Module]
_SCORED_AXES = ("pos", "query_pos")


@final
class Recorder:
    """Forward hooks on every layer of the chosen sites, set on entry and removed, they alone, on exit.

    Each activation is cut to what its axes keep and copied into storage of its final size. After each pass every hook
    must have fired exactly once, with the shape that the site's axes and the model's spec say.
    """

    def __init__(self, spec: ModelSpec, point: Point, sites: Sequence[Site]) -> None:
        self.spec, self.sites = spec, tuple(sites)
        self._point = point
        self._handles: list[RemovableHandle] = []
        self._storage: dict[Site, Tensor] = {}
        self._fired: dict[tuple[Site, int], int] = {}
        self._room = self._filled = 0
        self._trials: Trials | None = None
        self._thread = threading.get_ident()  # a pass of another one is not ours to record

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def make_room(self, n_sequences: int) -> None:
        """Say how many sequences will be kept; storage is made at the first pass, when shapes are known."""
        self._room = n_sequences

    @contextlib.contextmanager
    def recording(self, trials: Trials, *, is_on: bool) -> Iterator[None]:
        """Record the pass inside the block, or see to it that no hook of ours is set.

        **Raises** `HookFault` when a hook did not fire exactly once.
        """
        if not is_on:
            self._remove()
            yield
            return
        if not self._handles:
            self._attach()
        self._trials = trials
        self._fired = dict.fromkeys(((site, layer) for site in self.sites for layer in range(self.spec.n_layers)), 0)
        yield
        for (site, layer), times in self._fired.items():
            if times != 1:
                raise HookFault(
                    f"site {site.name!r} of layer {layer} of {self.spec.name} fired {times} times in one pass."
                )
        self._filled += len(trials)

    def finished(self) -> dict[Site, Shaped[Tensor, "layer *axes"]]:
        """What was recorded, layers first."""
        return {site: stored[:, : self._filled] for site, stored in self._storage.items()}

    def _attach(self) -> None:
        for site in self.sites:
            for layer in range(self.spec.n_layers):
                self._handles.append(self._point(site, layer).register_forward_hook(self._hook(site, layer)))

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _hook(self, site: Site, layer: int) -> Callable[[nn.Module, object, Tensor], None]:
        def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            if threading.get_ident() != self._thread:
                return
            assert self._trials is not None, "hooks are only set while recording"
            self._fired[site, layer] += 1
            self._check_shape(site, layer, output)
            kept = cut_to_scored(site, output, self._trials)
            if site not in self._storage:
                shape = (self.spec.n_layers, self._room, *kept.shape[1:])
                self._storage[site] = torch.empty(shape, dtype=torch.float32, device=kept.device)
            if self._fired[site, layer] == 1:
                self._storage[site][layer, self._filled : self._filled + len(kept)] = kept

        return keep

    def _check_shape(self, site: Site, layer: int, output: Tensor) -> None:
        assert self._trials is not None, "hooks are only set while recording"
        n, n_pos = self._trials.tokens.shape
        known = {"batch": n, "pos": n_pos, "query_pos": n_pos, "key_pos": n_pos} | _widths(self.spec)
        expected = tuple(known.get(axis, -1) for axis in site.axes)
        fits = len(output.shape) == len(expected) and all(
            e in (-1, size) for e, size in zip(expected, output.shape, strict=True)
        )
        if not fits:
            raise HookFault(
                f"site {site.name!r} of layer {layer} of {self.spec.name} has shape {tuple(output.shape)}; its axes "
                f"{' '.join(site.axes)} say {expected}."
            )


def cut_to_scored(site: Site, values: Shaped[Tensor, "*axes"], trials: Trials) -> Shaped[Tensor, "*kept"]:
    """Keep the scored positions along a site's `pos` or `query_pos` axis, if it has one."""
    for axis in _SCORED_AXES:
        if axis in site.axes:
            at = site.axes.index(axis)
            return trials.at_scored(values.movedim(at, 1)).movedim(1, at)
    return values


def bytes_per_sequence(spec: ModelSpec, sites: Sequence[Site], trials: Trials) -> int:
    """What one recorded sequence takes, all layers and sites together, in float32."""
    n_pos = trials.tokens.shape[1]
    sizes = {"batch": 1, "pos": trials.n_scored, "query_pos": trials.n_scored, "key_pos": n_pos} | _widths(spec)
    # A width that the spec does not know counts as the residual stream's.
    return 4 * spec.n_layers * sum(math.prod(sizes.get(axis, spec.d_model) for axis in site.axes) for site in sites)


def bytes_of_pass(spec: ModelSpec, trials: Trials) -> int:
    """What one sequence of these takes while it is run, in float32: the widest layer's, patterns, and logits.

    Logits are made at every position that is scored in any of the sequences.
    """
    n_pos, n_asked = trials.tokens.shape[1], int(trials.scored.any(dim=0).sum())
    stream = n_pos * (4 * spec.d_model + 3 * spec.d_mlp + 4 * spec.d_state)
    return 4 * (stream + 2 * spec.n_heads * n_pos**2 + 2 * n_asked * spec.d_vocab)


def _widths(spec: ModelSpec) -> dict[str, int]:
    widths = {"head": spec.n_heads, "kv_head": spec.n_kv_heads, "d_head": spec.d_head, "d_model": spec.d_model}
    return widths | ({"d_state": spec.d_state} if spec.d_state else {})
