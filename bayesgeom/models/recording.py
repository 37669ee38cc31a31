"""Recording of activations: the memory for them, checked hooks, and storage that is allocated once in its final size.

The memory is a given amount, or a share of the free memory. The number of recorded sequences affects results, so the
share is rounded down to a power of two, which rarely changes when other programs allocate or free memory. The number of
sequences is part of every report's provenance.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float32, Shaped
from torch import Tensor, nn

from bayesgeom.core.errors import HookFault, InvalidArgument
from bayesgeom.core.hooks import Change, hooked, site_hook
from bayesgeom.core.run import ModelSpec, at_scored
from bayesgeom.core.sites import Site, V, Z
from bayesgeom.core.trials import Trials
from bayesgeom.stats.reduction import Reduction

PASS_BYTES = 256 * 2**20  # memory of one forward pass on a CPU, where larger passes are not faster
SHARE = 8  # an eighth of the free memory, because probes make float64 copies
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def recording_bytes(device: str, memory_gib: float | None = None) -> int:
    """Return the bytes that recorded activations may take.

    Args:
        device: Device of the model and of its activations.
        memory_gib: The allowed memory in GiB. None: the largest power of two within an eighth of the free memory, and
            at least 256 MiB.

    Raises:
        InvalidArgument: `memory_gib` is not a positive number.

    Example:
        >>> recording_bytes("cpu", 0.5) == 2**29
        True
    """
    if memory_gib is None:
        return max(PASS_BYTES, 1 << int(math.log2(max(1, free_bytes(device) // SHARE))))
    check_memory_gib(memory_gib)
    return max(1, int(memory_gib * 2**30))


def check_memory_gib(memory_gib: object) -> None:
    """Check that this is None or a positive number of GiB.

    Raises:
        InvalidArgument: It is not.
    """
    if memory_gib is None:
        return
    if isinstance(memory_gib, bool) or not isinstance(memory_gib, int | float) or not 0 < memory_gib < math.inf:
        raise InvalidArgument(f"memory_gib must be a positive number of GiB, got {memory_gib!r}.")


def pass_bytes(device: str, budget: int) -> int:
    """Return the bytes that one forward pass may take, given the budget for recorded activations."""
    return min(budget, PASS_BYTES) if torch.device(device).type == "cpu" else max(1, budget // 4)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch could not allocate memory, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def free_bytes(device: str) -> int:
    """Return the free memory of a device in bytes; for a CPU the smaller of system's and container's."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    return int(min(_of_system(), _of_container()))


def _of_system() -> int:
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux: half of the physical memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _of_container() -> float:
    """Free memory of the control group; infinity if there is no limit."""
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return math.inf if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return math.inf


Point = Callable[[Site, int], nn.Module]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """Statistics to compute during the passes, with their layers, and the sequences, which are the run's first ones."""

    layers: Mapping[Reduction, Sequence[int]]
    trials: Trials

    def layers_by_name(self) -> dict[str, tuple[int, ...]]:
        """Return the layers of each statistic, by the name of its reduction."""
        return {reduction.name: tuple(own) for reduction, own in self.layers.items()}


@final
class Recorder:
    """Records the chosen layers of each site, pass by pass.

    Each activation is reduced to the positions that its axes keep, and copied into storage of the final size. In each
    pass every hook must fire exactly once, with the shape given by the site's axes and the model's spec.
    """

    def __init__(
        self,
        module: nn.Module,
        spec: ModelSpec,
        point: Point,
        layers: Mapping[Site, Sequence[int]],
        stream: "Stream | None" = None,
    ) -> None:
        self.spec, self.layers, self.stream = spec, layers, stream
        self._module, self._point = module, point
        self._storage: dict[Site | str, Tensor] = {}
        self._same = self._recorded_as_another()
        self.room = self._filled = self._reduced = 0

    @property
    def n_streamed(self) -> int:
        """Number of sequences whose statistics are computed during the pass."""
        return 0 if self.stream is None else len(self.stream.trials)

    def room_for(self, trials: Trials, *, most: int, budget_bytes: int) -> int:
        """Return of how many sequences, at most `most`, the activations fit into a budget (see `room_for`)."""
        return room_for(self.spec, self.layers, trials, stream=self.stream, most=most, budget_bytes=budget_bytes)

    def make_room(self, n_sequences: int) -> None:
        """Set the number of sequences to record. Storage is allocated at the first pass, when shapes are known."""
        self.room = n_sequences

    @contextlib.contextmanager
    def recording(self, trials: Trials) -> Iterator[None]:
        """Record the pass inside the block; set no hooks if there is room for none of its sequences.

        Raises:
            HookFault: A hook did not fire exactly once, or its activation has an unexpected shape.
            InvalidArgument: The sequences are not those of the stream.
        """
        is_stored, is_streamed = self._filled < self.room, self._reduced < self.n_streamed
        changes: dict[tuple[Site, int], list[Change]] = {}
        for site, layers in self.layers.items() if is_stored else ():
            for layer in layers if site not in self._same else ():
                changes.setdefault((site, layer), []).append(self._storing(site, layer, trials))
        if self.stream is not None and is_streamed:
            rows = slice(self._reduced, self._reduced + len(trials))
            if not torch.equal(self.stream.trials.tokens[rows], trials.tokens):
                raise InvalidArgument(
                    f"the stream's sequences {rows.start} … {rows.stop - 1} are not those of this run. A stream is of "
                    f"one run: make it from the run's first sequences, of the same task and seed."
                )
            for reduction, layers in self.stream.layers.items():
                for layer in layers:
                    call = self._reducing(reduction, layer, trials, rows)
                    changes.setdefault((reduction.site, layer), []).append(call)
        hooks = [site_hook(place, self._point(*place), _each(calls)) for place, calls in changes.items()]
        if not hooks:
            yield
        else:
            with hooked(self._module, hooks, by=self.spec.name):
                yield
        self._filled += len(trials) * is_stored
        self._reduced += len(trials) * is_streamed

    def finished(self) -> dict[Site, Shaped[Tensor, "layer *axes"]]:
        """Return the recorded activations by site; the first axis is that of its layers."""
        found = {site: own[:, : self._filled] for site, own in self._storage.items() if isinstance(site, Site)}
        return found | {site: found[other] for site, other in self._same.items() if other in found}

    def _recorded_as_another(self) -> dict[Site, Site]:
        """Return sites at the same modules as another site, such as rotated keys of a model that rotates nothing."""
        first: dict[tuple[object, ...], Site] = {}
        same: dict[Site, Site] = {}
        for site, layers in self.layers.items():
            place = (site.axes, *((layer, self._point(site, layer)) for layer in layers))
            if (other := first.setdefault(place, site)) != site:
                same[site] = other
        return same

    def reduced(self) -> dict[str, Shaped[Tensor, "layer *reduced"]]:
        """Return the statistics that were computed during the passes, by the name of their reduction."""
        return {name: own for name, own in self._storage.items() if isinstance(name, str)}

    def _reducing(self, reduction: Reduction, layer: int, trials: Trials, rows: slice) -> Change:
        assert self.stream is not None, "it is one of the stream's reductions"
        of_all, row, n_layers = self.stream.trials, self.stream.layers[reduction].index(layer), self.n_layers(reduction)

        def reduce(output: Tensor) -> None:
            self._check_shape(reduction.site, layer, output, trials)
            found = reduction.of(at_scored(reduction.site, output, trials).float(), of_all, rows)
            if reduction.name not in self._storage:
                shape = (n_layers, len(of_all), *found.shape[1:])
                self._storage[reduction.name] = torch.empty(shape, dtype=found.dtype, device=found.device)
            self._storage[reduction.name][row, rows] = found

        return reduce

    def n_layers(self, reduction: Reduction) -> int:
        """Return the number of layers in which a reduction is computed."""
        return 0 if self.stream is None else len(self.stream.layers[reduction])

    def _storing(self, site: Site, layer: int, trials: Trials) -> Change:
        row = self.layers[site].index(layer)

        def store(output: Tensor) -> None:
            self._check_shape(site, layer, output, trials)
            kept = at_scored(site, output, trials)
            if site not in self._storage:
                shape = (len(self.layers[site]), self.room, *kept.shape[1:])
                self._storage[site] = allocated(shape, kept.device)
            self._storage[site][row, self._filled : self._filled + len(kept)] = kept

        return store

    def _check_shape(self, site: Site, layer: int, output: Tensor, trials: Trials) -> None:
        n, n_pos = trials.tokens.shape
        known = {"batch": n, "pos": n_pos, "query_pos": n_pos, "key_pos": n_pos} | _widths(self.spec, site)
        expected = tuple(known.get(axis, -1) for axis in site.axes)
        fits = len(output.shape) == len(expected) and all(
            e in (-1, size) for e, size in zip(expected, output.shape, strict=True)
        )
        if not fits:
            raise HookFault(
                f"site {site.name!r} of layer {layer} of {self.spec.name} has shape {tuple(output.shape)}; its axes "
                f"{' '.join(site.axes)} require {expected}."
            )


def allocated(shape: Sequence[int], device: torch.device) -> Float32[Tensor, "..."]:
    """Return uninitialized storage.

    numpy requests large pages for large arrays, which makes the first write to storage on the CPU three times as fast.

    Example:
        >>> tuple(allocated((2, 3), torch.device("cpu")).shape)
        (2, 3)
    """
    if device.type != "cpu":
        return torch.empty(*shape, dtype=torch.float32, device=device)
    return torch.from_numpy(np.empty(tuple(shape), dtype=np.float32))


def bytes_per_sequence(
    spec: ModelSpec, layers: Mapping[Site, Sequence[int]] | Mapping[Reduction, Sequence[int]], trials: Trials
) -> int:
    """Return the bytes of one sequence, over all sites or reductions and their layers, in float32."""
    n_pos = trials.tokens.shape[1]
    positions = {"batch": 1, "pos": trials.n_scored, "query_pos": trials.n_scored, "key_pos": n_pos}

    def width(of: Site | Reduction) -> int:
        if isinstance(of, Site):
            # Use the width of the residual stream for an axis that the spec does not know.
            sizes = positions | _widths(spec, of)
            return math.prod(sizes.get(axis, spec.d_model) for axis in of.axes)
        return of.size(spec, trials)

    return 4 * sum(len(own) * width(of) for of, own in layers.items())


def room_for(
    spec: ModelSpec,
    layers: Mapping[Site, Sequence[int]],
    trials: Trials,
    *,
    stream: Stream | None,
    most: int,
    budget_bytes: int,
) -> int:
    """Return of how many sequences, at most `most`, the activations fit into what the statistics leave of a budget.

    It is at least one, except where statistics are computed and nothing is stored.
    """
    streamed = 0 if stream is None else len(stream.trials) * bytes_per_sequence(spec, stream.layers, trials)
    if each := bytes_per_sequence(spec, layers, trials):
        return max(1, min(most, (budget_bytes - streamed) // each))
    return max(most, int(stream is None))


def _each(calls: Sequence[Change]) -> Change:
    """Observe an activation by several functions."""

    def observe(output: Tensor) -> None:
        for call in calls:
            call(output)

    return observe


def bytes_of_pass(spec: ModelSpec, trials: Trials) -> int:
    """Return the bytes of one sequence's forward pass in float32: the widest layer, the patterns, and the logits.

    Logits are computed at every position that is scored in any of the sequences.
    """
    n_pos, n_queries = trials.tokens.shape[1], int(trials.scored.any(dim=0).sum())
    stream = n_pos * (4 * spec.d_model + 3 * spec.d_mlp + 4 * spec.d_state)
    return 4 * (stream + 2 * spec.n_heads * n_pos**2 + 2 * n_queries * spec.d_vocab)


def _widths(spec: ModelSpec, site: Site) -> dict[str, int]:
    d_head = spec.d_of_value if site in (V, Z) else spec.d_head
    widths = {"head": spec.n_heads, "kv_head": spec.n_kv_heads, "d_head": d_head, "d_model": spec.d_model}
    return widths | ({"d_state": spec.d_state} if spec.d_state else {})
