"""The model interface: sites, a spec, and one `run` with the same guarantees for every architecture.

Activations are recorded through checked hooks, into storage that is allocated once in its final size. The memory for
them is a given amount, or a share of the free memory. The number of recorded sequences affects results, so the share is
rounded down to a power of two, which rarely changes when other programs allocate or free memory. The number of
sequences is part of every report's provenance, the origin of its numbers.
"""

import contextlib
import ctypes
import importlib.metadata
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64, Shaped
from torch import Tensor, nn

from bayesgeom.core import (
    ALL_SITES,
    LOGIT_LENS,
    PATTERN,
    Q_ROT,
    RESID_POST,
    RESID_PRE,
    W_K,
    W_K_GRAM,
    W_O,
    Ask,
    Edit,
    HookFault,
    InvalidArgument,
    MissingSite,
    ModelSpec,
    NonFinite,
    Reference,
    Run,
    Site,
    TaskMismatch,
    Tokenizer,
    Trials,
    at_scored,
    concatenate,
)
from bayesgeom.core.torch_state import (
    EVERY_MODULE,
    Change,
    Hook,
    SiteLayer,
    check_default_device,
    evaluating,
    has_global_hooks,
    holding_lock,
    hooked,
    reduced_precision,
    site_hook,
)
from bayesgeom.models.checkpoint_files import versions
from bayesgeom.models.unembedding import Unembedding, unembedding_of
from bayesgeom.stats.behavior import (
    BehaviorLog,
    answer_log_probabilities,
    are_finite,
    renormalized,
    token_log_probabilities,
    whole_entropy_bits,
)
from bayesgeom.stats.reduction import Reduction
from bayesgeom.tasks.base import Branch, WindTunnel, at_most, derived_seed

# The order of the sites at which a replay can start. A baseline keeps those inside the MLP on request only.
_STAGES = sorted((site.stage, site.name, site) for site in ALL_SITES if site.stage is not None)
STAGES: Mapping[Site, int] = {site: stage for stage, _, site in _STAGES if not site.is_inside_mlp}
INSIDE_MLP: Mapping[Site, int] = {site: stage for stage, _, site in _STAGES if site.is_inside_mlp}
Variant = Sequence[Edit]
LARGE = 50_000_000  # a model with more parameters is worth all threads in each operation
KERNELS = "attention_kernels"  # key of the provenance


@final
@dataclass(frozen=True, kw_only=True)
class BaselinePass:
    """The result of one unedited pass: activations by site and layer at all positions, and logits at scored rows."""

    trials: Trials
    stored: Mapping[tuple[Site, int], Float[Tensor, "batch pos *rest"]]
    logits: Float[Tensor, "batch query_pos d_vocab"]


@runtime_checkable
class Replayer(Protocol):
    """Computes a baseline pass of a model, and logits under variants of it."""

    def baseline(self, trials: Trials, also: Sequence[Site] = ()) -> BaselinePass:
        """Run one unedited pass and keep its activations: those of `STAGES`, and of the sites in `also`."""

    def logits(
        self, baseline: BaselinePass, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """Return the logits at the scored rows under each variant. All variants must have the same `entry`."""


def entry(variant: Variant) -> tuple[int, int]:
    """Return the layer and stage at which a variant first differs from the baseline."""
    return min((edit.layer, stage(edit.site)) for edit in variant)


def stage(site: Site) -> int:
    """Return where in its layer a site comes; a site without a stage, such as `v`, counts as the first."""
    return STAGES.get(site, INSIDE_MLP.get(site, 0))


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


def check_memory_gib(memory_gib: float | None) -> None:
    """Check that this is None or a positive number of GiB.

    Raises:
        InvalidArgument: It is not.
    """
    if memory_gib is not None and not 0 < memory_gib < math.inf:
        raise InvalidArgument(f"memory_gib must be a positive number of GiB, got {memory_gib!r}.")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch could not allocate memory, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def return_freed_memory() -> None:
    """Return the memory of freed tensors to the system, where the C library is glibc; elsewhere do nothing.

    glibc keeps freed blocks below 32 MB for later ones. Without this call, most of a network's memory is kept when the
    network is freed, and little of it fits what is allocated next.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library; on Windows it has no name
        ctypes.CDLL(None).malloc_trim(0)


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


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """Statistics to compute during the passes, with their layers, and the sequences, which are the run's first ones."""

    layers: Mapping[Reduction, Sequence[int]]
    trials: Trials

    def layers_by_name(self) -> dict[str, tuple[int, ...]]:
        """Return the layers of each statistic, by the name of its reduction."""
        return {reduction.name: tuple(layers) for reduction, layers in self.layers.items()}


@final
class Recorder:
    """Records the chosen layers of each site, pass by pass.

    Each activation is reduced to the positions that its axes keep, and copied into storage of the final size. In each
    pass every hook must fire exactly once, with the shape given by the site's axes and the model's spec.
    """

    def __init__(
        self, model: "Model", wanted: Sequence[Site], stream: Stream | None, n_recorded: int, budget_bytes: int
    ) -> None:
        self.model, self.stream, self._most, self.budget_bytes = model, stream, n_recorded, budget_bytes
        places = ((site, model.layers_of(site)) for site in wanted if not site.is_static)
        self.layers: Mapping[Site, Sequence[int]] = dict(places)
        read = {*wanted, *(reduction.site for reduction in (stream.layers if stream is not None else ()))}
        is_computed = LOGIT_LENS in read - model.sites - model.partial_sites.keys()
        self._unembedding = model.unembedding() if is_computed else None
        self.masks: tuple[Bool[Tensor, "from_pos key_pos"], ...] = ()
        self._storage: dict[Site | str, Tensor] = {}
        self.room = self._filled = self._reduced = 0

    @property
    def n_streamed(self) -> int:
        """Number of sequences whose statistics are computed during the pass."""
        return 0 if self.stream is None else len(self.stream.trials)

    @contextlib.contextmanager
    def recording(self, trials: Trials) -> Iterator[None]:
        """Record the pass inside the block; set no hooks if there is room for none of its sequences.

        Raises:
            HookFault: A hook did not fire exactly once, or its activation has an unexpected shape.
            InvalidArgument: The sequences are not those of the stream.
        """
        hooks = list[Hook]()
        for site, layer, keep in self.due(trials):
            change = partial(self._hear, site, layer, trials, keep)
            hooks.append(site_hook((site, layer), self.model.point(_read_at(site), layer), change))
        with hooked(self.model.module, hooks, by=self.model.spec.name) if hooks else contextlib.nullcontext():
            yield
        self.advance(len(trials))

    def due(self, trials: Trials) -> Iterator[tuple[Site, int, Callable[[Tensor], None]]]:
        """Yield which activations of the next sequences are wanted, each with the function that it is given to.

        Raises:
            InvalidArgument: The sequences are not those of the stream.
        """
        for site, layers in self.layers.items() if self._filled < self.room else ():
            yield from ((site, layer, partial(self._store, site, layer)) for layer in layers)
        if self.stream is not None and self._reduced < self.n_streamed:
            rows = slice(self._reduced, self._reduced + len(trials))
            if not torch.equal(self.stream.trials.tokens[rows], trials.tokens):
                raise InvalidArgument(
                    f"the stream's sequences {rows.start} … {rows.stop - 1} are not those of this run. A stream is of "
                    f"one run: make it from the run's first sequences, of the same task and seed."
                )
            for reduction, layers in self.stream.layers.items():
                yield from ((reduction.site, layer, partial(self._reduce, reduction, layer, rows)) for layer in layers)

    def make_room(self, block: Trials) -> None:
        """Find how many sequences like these fit into what the statistics leave of the memory.

        It is at least one, except where statistics are computed and nothing is stored.
        """
        spec, rest, stream = self.model.spec, self.budget_bytes, self.stream
        rest -= 0 if stream is None else len(stream.trials) * bytes_per_sequence(spec, stream.layers, block)
        each = bytes_per_sequence(spec, self.layers, block)
        self.room = max(1, min(self._most, rest // each)) if each else max(self._most, int(stream is None))

    def advance(self, n: int) -> None:
        """Count the sequences whose activations were given."""
        self._filled, self._reduced = min(self._filled + n, self.room), min(self._reduced + n, self.n_streamed)

    def parts(self, start: int, n: int) -> list[slice]:
        """Return the parts of the n sequences from number `start` on: they part where the storage or the stream ends.

        So what follows these runs without hooks.
        """
        ends = sorted({0, n, self.room - start, self.n_streamed - start})
        return [slice(*pair) for pair in pairwise(end for end in ends if 0 <= end <= n)]

    def finished(self) -> dict[Site, Shaped[Tensor, "layer *axes"]]:
        """Return the recorded activations by site; the first axis is that of its layers."""
        return {site: buffer[:, : self._filled] for site, buffer in self._storage.items() if isinstance(site, Site)}

    def reduced(self) -> dict[str, Shaped[Tensor, "layer *reduced"]]:
        """Return the statistics that were computed during the passes, by the name of their reduction."""
        return {name: buffer for name, buffer in self._storage.items() if isinstance(name, str)}

    def _reduce(self, reduction: Reduction, layer: int, rows: slice, seen: Tensor) -> None:
        assert self.stream is not None, "it is one of the stream's reductions"
        of_all, layers, mask = (
            self.stream.trials,
            self.stream.layers[reduction],
            self.masks[layer] if self.masks else None,
        )
        values = reduction.of(seen.float(), of_all, rows, mask)
        if reduction.name not in self._storage:
            shape = (len(layers), len(of_all), *values.shape[1:])
            self._storage[reduction.name] = torch.empty(shape, dtype=values.dtype, device=values.device)
        self._storage[reduction.name][layers.index(layer), rows] = values

    def _store(self, site: Site, layer: int, seen: Tensor) -> None:
        layers, rows = self.layers[site], slice(self._filled, self._filled + len(seen))
        if site not in self._storage:
            self._storage[site] = allocated((len(layers), self.room, *seen.shape[1:]), seen.device)
        self._storage[site][layers.index(layer), rows] = seen

    def _hear(self, site: Site, layer: int, trials: Trials, keep: Callable[[Tensor], None], output: Tensor) -> None:
        keep(self._seen(site, layer, output, trials))

    def _seen(self, site: Site, layer: int, output: Tensor, trials: Trials) -> Shaped[Tensor, "*axes"]:
        """Return what is recorded of the activation at the point of a site."""
        self._check_shape(_read_at(site), layer, output, trials)
        kept: Tensor = at_scored(_read_at(site), output, trials)
        if site != LOGIT_LENS:
            return kept
        assert self._unembedding is not None, "it is given with this site"
        return self._unembedding.log_answers(kept, trials.answer_ids)

    def _check_shape(self, site: Site, layer: int, output: Tensor, trials: Trials) -> None:
        n, n_pos = trials.tokens.shape
        known = {"batch": n, "pos": n_pos, "query_pos": n_pos, "key_pos": n_pos} | self.model.spec.sizes_at(site)
        expected = tuple(known.get(axis, -1) for axis in site.axes)
        fits = len(output.shape) == len(expected) and all(
            e in (-1, size) for e, size in zip(expected, output.shape, strict=True)
        )
        if not fits:
            raise HookFault(
                f"site {site.name!r} of layer {layer} of {self.model.spec.name} has shape {tuple(output.shape)}; its "
                f"axes {' '.join(site.axes)} require {expected}."
            )


def _read_at(site: Site) -> Site:
    """Return the site whose activation is hooked for this one."""
    return RESID_PRE if site == LOGIT_LENS else site


def allocated(shape: Sequence[int], device: torch.device) -> Float32[Tensor, "..."]:
    """Return uninitialized storage.

    numpy requests large pages for large arrays, which makes the first write to storage on the CPU three times as fast.
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
    positions["answer"] = len(trials.answers)

    def width(of: Site | Reduction) -> int:
        if isinstance(of, Site):
            # Use the width of the residual stream for an axis that the spec does not know.
            sizes = positions | spec.sizes_at(of)
            return math.prod(sizes.get(axis, spec.d_model) for axis in of.axes)
        return of.size(spec, trials)

    return 4 * sum(len(own) * width(of) for of, own in layers.items())


def bytes_of_pass(spec: ModelSpec, trials: Trials) -> int:
    """Return the bytes of one sequence's forward pass in float32: the widest layer, the patterns, and the logits.

    Logits are computed at every position that is scored in any of the sequences.
    """
    n_pos, n_queries = trials.tokens.shape[1], int(trials.scored.any(dim=0).sum())
    stream = n_pos * (4 * spec.d_model + 3 * spec.d_mlp + 4 * spec.d_state)
    return 4 * (stream + 2 * spec.n_heads * n_pos**2 + 2 * n_queries * spec.d_vocab)


BaselinePredictives = Callable[[Trials], Mapping[str, Float64[Tensor, "batch query_pos answer"]]]


@final
class Withheld(dict[Site, str]):
    """Why sites are not available, by site; printed with a line for each reason."""

    def __str__(self) -> str:
        sites = dict[str, list[str]]()
        for site, why in self.items():
            sites.setdefault(why, []).append(site.name)
        return "\n".join(f"{', '.join(names)}: {why}" for why, names in sites.items()) or "{}"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class HeadOutput:
    """How the heads of a layer write into the residual stream: W_O, then the norm of their sum and a factor, if any."""

    matrix: Float[Tensor, "head d_head d_model"]
    norm: nn.Module | None = None
    factor: float = 1.0


class Model(ABC):
    """A sequence model behind one interface. Adapters locate the hook points; `run` does everything else."""

    spec: ModelSpec
    module: nn.Module
    task: WindTunnel | None
    tokenizer: Tokenizer | None = None  # required by text tasks
    withheld: Mapping[Site, str]
    asks: frozenset[Ask] = frozenset(Ask)  # what it can do beyond the first run of a diagnosis
    partial_sites: Mapping[Site, tuple[int, ...]] = MappingProxyType({})  # in some layers only; also in `withheld`
    batch_size: int | None = None  # most sequences in a pass; None: according to the memory of a pass
    memory_gib: float | None = None  # for recorded activations; None is a share of the free memory
    attention_kernel: Callable[[], str] | None = None  # gives the name of the implementation of attention, if known
    # Gives each sequence, by its number of tokens, what must be equal in one pass: how the model rotates keys.
    rotation: Callable[[Int64[Tensor, " batch"]], Int64[Tensor, "batch rotation"]] | None = None
    _found_unembedding: tuple[Unembedding | None, ...] = ()  # empty until it is sought

    @property
    @abstractmethod
    def sites(self) -> frozenset[Site]:
        """The sites of every layer whose identity checks passed when the model was attached.

        `partial_sites` gives the layers of sites that only some layers have, `withheld` why a site is not in `sites`.
        """

    @abstractmethod
    def point(self, site: Site, layer: int) -> nn.Module:
        """Return the submodule whose output is this site's activation in this layer."""

    @abstractmethod
    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        """Return a site of one layer that is read from the weights, for these token ids."""

    @abstractmethod
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        """Run one forward pass and return the logits at the scored positions."""

    @abstractmethod
    def untrained_copy(self, seed: int) -> "Model":
        """Return an untrained network of the same architecture."""

    def permuted_copy(self, seed: int) -> "Model | None":
        """Return a network with permuted weights where it is unknown how `untrained_copy` should draw them, else None.

        Only its predictions are those of an untrained network.
        """
        return None

    @abstractmethod
    def replayer(self) -> Replayer:
        """Return the engine of ablations: it replays from the edited activation on, or runs whole passes."""

    def sequences(self, task: WindTunnel, *, n: int, seed: int) -> tuple[int, int]:
        """Return number and seed of the sequences to measure: at most as many as the task, or the recording, has."""
        return at_most(task, n), seed

    def notes(self) -> dict[str, Any]:
        """Return what the provenance of a diagnosis says of this model besides what it says of every model."""
        return {}

    def _runs_beginnings_once(self) -> bool:
        """Return whether `logits` computes tokens that several sequences begin with once."""
        return False

    def begin(self) -> None:  # noqa: B027  # most models have nothing to prepare
        """Prepare for a new diagnosis: a server counts its replies anew."""

    def _limits(self) -> str:
        """Return why the model cannot do what is not in `asks`, and what to do."""
        return "Pass another model."

    def _passed(
        self, blocks: Iterable[Trials], recorder: Recorder, log: BehaviorLog, baselines: BaselinePredictives | None
    ) -> tuple[Trials, Float64[Tensor, "batch query_pos answer"]]:
        """Run the model, score every pass into the log, and return the kept sequences and answer log-probabilities."""
        with evaluating(self.module), torch.no_grad():
            return self._pass_over(self._cut(blocks, recorder), recorder, log, baselines)

    def _of_weights(self, site: Site, trials: Trials) -> Float[Tensor, "layer *axes"]:
        """Return a static site, for the token ids of these sequences."""
        tokens, parts = trials.token_ids(), list[Tensor]()
        with torch.no_grad():
            for layer in self.layers_of(site):  # only one layer's W_K is in memory: its products are computed here
                values = self.static(W_K if site == W_K_GRAM else site, tokens, layer)
                if site == W_K_GRAM:
                    values = torch.stack([columns @ columns.T for columns in map(Tensor.double, values)]).float()
                parts.append(values)
        return torch.stack(parts)

    @final
    def require_asks(self, asks: Iterable[Ask], by: str) -> None:
        """Check that the model can do what a measurement asks for.

        Raises:
            InvalidArgument: It cannot.
        """
        for ask in asks:
            if ask not in self.asks:
                raise InvalidArgument(f"{by} requires {ask.value}. {self._limits()}")

    @final
    def __repr__(self) -> str:
        spec = self.spec
        heads = f"{spec.n_heads} heads, " if spec.n_heads else ""
        task = f" on {self.task.name}" if self.task is not None else ""
        sizes = f"{spec.n_layers} layers, {heads}d_model {spec.d_model}, {_short(spec.n_parameters)} parameters"
        return f"{type(self).__name__}({spec.name}{task}, {sizes})"

    @final
    def require(self, sites: Iterable[Site], by: str, layers: Iterable[int] | None = None) -> None:
        """Check that every site is available.

        Args:
            sites: The required sites.
            by: What requires them, for the error message.
            layers: The layers in which they are required. Default: all.

        Raises:
            MissingSite: A site is not available. The message gives the reason and the available sites.
        """
        chosen = None if layers is None else frozenset(layers)
        for site in sites:
            is_partly = chosen is not None and bool(chosen) and chosen <= frozenset(self.layers_of(site))
            if site not in self.sites and not is_partly and not (site == LOGIT_LENS and self.layers_of(site)):
                available = ", ".join(sorted(s.name for s in self.sites)) or "(none)"
                why = self._without_lens() if site == LOGIT_LENS else self.withheld.get(site, "")
                reason = f" ({why})" if why else ""
                raise MissingSite(
                    f"{by} requires site {site.name!r}, which {self.spec.name} does not provide{reason}. "
                    f"Available sites: {available}."
                )

    @final
    def layers_of(self, *sites: Site) -> tuple[int, ...]:
        """Return the layers that have all of these sites."""
        every = range(self.spec.n_layers)

        def has(site: Site) -> bool:
            return site in self.sites or (site == LOGIT_LENS and not self._without_lens())

        layers = [frozenset(every if has(site) else self.partial_sites.get(site, ())) for site in sites]
        return tuple(sorted(frozenset(every).intersection(*layers)))

    @final
    def _without_lens(self) -> str:
        """Return why there is no logit lens; "" if there is one."""
        if LOGIT_LENS in self.withheld:
            return self.withheld[LOGIT_LENS]
        if missing := [site for site in (RESID_PRE, RESID_POST) if site not in self.sites]:
            why = self.withheld.get(missing[0], "")
            return f"it is read from {missing[0].name}, which is missing{': ' if why else ''}{why}"
        if self.unembedding():
            return ""
        return "no path from resid_post of the last layer to its logits was found"

    @final
    @torch.no_grad()
    def output_of(self, layer: int) -> "HeadOutput | None":
        """Return what makes the attention output of the heads' outputs z; None if only their sum is known."""
        return self._head_output(layer)

    def _head_output(self, layer: int) -> "HeadOutput | None":
        """Return what `output_of` returns: here, by the site W_O."""
        if layer not in self.layers_of(W_O):
            return None
        return HeadOutput(matrix=self.static(W_O, torch.zeros(0, dtype=torch.int64, device=self.spec.device), layer))

    @final
    @holding_lock()
    def unembedding(self) -> Unembedding | None:
        """Return what the model does after its last block. None: no path was found that gives its logits.

        It is sought once, in a pass on a few tokens.
        """
        if not self._found_unembedding:
            self._found_unembedding = (unembedding_of(self.module, self.logits, self.point, self.spec),)
        return self._found_unembedding[0]

    @final
    def check_surroundings(self) -> None:
        """Check that nothing is set for the whole process that would change the numbers.

        Raises:
            InvalidArgument: `torch.autocast` is on for this model's device, or torch's default device is not the CPU.
        """
        check_default_device()
        kind = torch.device(self.spec.device).type
        if torch.is_autocast_enabled(kind):
            raise InvalidArgument(
                f"torch.autocast is on for {kind} ({torch.get_autocast_dtype(kind)}) and would change the numbers of "
                f"{self.spec.name}: measure outside of it, or load the model in the dtype that you want to measure."
            )

    @final
    @holding_lock()
    def foreign_hooks(self) -> tuple[str, ...]:
        """Return the names of submodules with forward hooks that bayesgeom did not set; during a pass, its own as well.

        Hooks of others may edit activations, so every report's provenance lists them. Hooks that torch calls for every
        module of the process are named first, as `EVERY_MODULE`.
        """
        reasons = [
            name or "(whole model)"
            for name, part in self.module.named_modules()
            if part._forward_hooks or part._forward_pre_hooks
        ]
        return (*([EVERY_MODULE] if has_global_hooks() else []), *reasons)

    @final
    @holding_lock()
    def run(
        self,
        blocks: Iterable[Trials],
        *,
        record: Iterable[Site | Stream] = (),
        n_recorded: int = 0,
        baseline_predictives: BaselinePredictives | None = None,
        budget_bytes: int | None = None,
        seed: int = 0,
    ) -> Run:
        """Run the model once over batches of sequences: score all, and record sites of the first `n_recorded`.

        The module runs in evaluation mode, without gradients; modes and hooks are restored. Other threads wait for it.

        Args:
            blocks: Batches of sequences. A batch that needs too much memory is run in parts.
            record: Sites to record, each in the layers that have it; a `Stream` is computed during the passes.
            n_recorded: Number of sequences whose activations are recorded; fewer if `budget_bytes` is not enough.
            baseline_predictives: Returns the predictives of the baselines, by name, for a batch.
            budget_bytes: Memory for activations and statistics together. None: according to the model's `memory_gib`.
            seed: Seed of a probe's own resampling.

        Raises:
            MissingSite: A site is not available.
            TaskMismatch: The sequences do not fit the model.
            NonFinite: Logits are NaN or infinite.
            HookFault: A site did not fire exactly once per pass.
            InvalidArgument: Autocast is on, or there are no sequences.
        """
        if Ask.RERUN in self.asks:  # else nothing is computed here
            self.check_surroundings()
        given = tuple(dict.fromkeys(record))
        budget = recording_bytes(self.spec.device, self.memory_gib) if budget_bytes is None else budget_bytes
        wanted = [entry for entry in given if isinstance(entry, Site)]
        stream = next((entry for entry in given if isinstance(entry, Stream)), None)
        self.require([site for site in wanted if site not in self.partial_sites], by="this run")
        recorder, log = Recorder(self, wanted, stream, n_recorded, budget), BehaviorLog()
        kept = self._passed(blocks, recorder, log, baseline_predictives)
        static = {site: self._of_weights(site, kept[0]) for site in wanted if site.is_static}
        return self._finished(recorder, log, kept, recorder.finished() | static, seed)

    @final
    def _finished(
        self, recorder: Recorder, log: BehaviorLog, kept: tuple[Trials, Tensor], recorded: dict[Site, Tensor], seed: int
    ) -> Run:
        (trials, log_answers), (scored, exact, baselines) = kept, log.finished()
        n_kept = recorder.room or recorder.n_streamed  # a run has at least one sequence
        run = Run(
            spec=self.spec,
            behavior=scored,
            exact_behavior=exact,
            baseline_behaviors=baselines,
            trials=trials.rows(slice(0, n_kept)),
            log_answers=log_answers[:n_kept],
            recorded=recorded,
            layers={site: self.partial_sites[site] for site in recorded if site in self.partial_sites},
            seed=seed,
            windows=log.windows(),
            masks=recorder.masks,
        )
        if (stream := recorder.stream) is None:
            return run
        reduced, n = recorder.reduced(), recorder.n_streamed
        return run.with_statistics(reduced, stream.layers_by_name(), trials.rows(slice(0, n)), log_answers[:n])

    @final
    def check_fits(self, trials: Trials) -> None:
        """Check that the ids and the length of these sequences fit the model.

        Raises:
            TaskMismatch: They do not.
        """
        n_pos, d_vocab, n_ctx = trials.tokens.shape[1], self.spec.d_vocab, self.spec.n_ctx
        if n_ctx is not None and n_pos > n_ctx:
            raise TaskMismatch(
                f"the task's sequences have {n_pos} tokens; {self.spec.name} has positions for {n_ctx}. Use shorter "
                f"sequences: a smaller length or n_pairs in task=… (--task), or leave it out for the model's own task."
            )
        ids = torch.cat([trials.tokens.flatten(), trials.answers[:0] if trials.spellings else trials.answers])
        if int(ids.min()) < 0 or int(ids.max()) >= d_vocab:
            raise TaskMismatch(
                f"the task uses ids {int(ids.min())} … {int(ids.max())}; {self.spec.name} has {d_vocab} ids, 0 … "
                f"{d_vocab - 1}. Use the task that the model was trained on."
            )

    @final
    def _cut(self, blocks: Iterable[Trials], recorder: Recorder) -> Iterator[tuple[Trials, bool]]:
        """Yield the sequences of each pass, and whether they are kept."""
        is_cpu = torch.device(self.spec.device).type == "cpu"
        start, budget = 0, recorder.budget_bytes
        most = min(budget, PASS_BYTES) if is_cpu else max(1, budget // 4)
        for block in blocks:
            self.check_fits(block)
            if not start:
                recorder.make_room(block)
                streamed = () if recorder.stream is None else recorder.stream.layers
                is_reduced = PATTERN in {reduction.site for reduction in streamed}
                if is_reduced or (PATTERN in recorder.layers and recorder.room):
                    recorder.masks = visible(self, block)
            for rows in recorder.parts(start, len(block)):
                cut = block.rows(rows) if rows.stop - rows.start < len(block) else block
                at_once = max(1, min(most // bytes_of_pass(self.spec, cut), self.batch_size or len(cut)))
                for part in (own for batch in cut.batches(at_most=at_once) for own in self._rotated_alike(batch)):
                    yield part, start + rows.start < max(recorder.room, recorder.n_streamed)
            start += len(block)

    @final
    def _rotated_alike(self, trials: Trials) -> Iterator[Trials]:
        """Cut a batch before each sequence whose keys are rotated otherwise than those before it."""
        if self.rotation is None:
            yield trials
            return
        kinds = self.rotation(trials.ends())
        changes = (kinds[1:] != kinds[:-1]).any(dim=1).nonzero()[:, 0] + 1
        for first, last in pairwise([0, *changes.tolist(), len(trials)]):
            yield trials.rows(slice(first, last))

    @final
    def _in_memory(
        self, passes: Iterable[tuple[Trials, bool]], recorder: Recorder
    ) -> Iterator[tuple[Trials, bool, Float[Tensor, "batch query_pos d_vocab"]]]:
        """Yield the logits of every pass. A pass that exceeds the memory is halved, with a warning."""
        most: int | None = None
        for whole, is_kept in passes:
            waiting = list(whole.batches(at_most=most)) if most else [whole]
            while waiting:
                trials = waiting.pop(0)
                try:
                    with recorder.recording(trials):
                        logits = self.logits(trials)
                except RuntimeError as error:
                    if not is_out_of_memory(error) or len(trials) == 1:
                        raise
                    most = -(-len(trials) // 2)
                    warnings.warn(
                        f"{self.spec.name} ran out of memory with {len(trials)} sequences in a pass and continues with "
                        f"{most}. Set batch_size to avoid the attempt.",
                        stacklevel=2,
                    )
                    waiting = [*trials.batches(at_most=most), *waiting]
                    continue
                yield trials, is_kept, logits
                del logits

    @final
    def _spelled(
        self, logits: Float[Tensor, "batch query_pos d_vocab"], trials: Trials
    ) -> Float64[Tensor, "batch query_pos answer"]:
        """Return the log-probability of each answer: of all its spellings, each the sum over its tokens."""
        nodes = sorted({ids[:length] for each in trials.spellings for ids in each for length in range(1, len(ids) + 1)})
        starts = sorted({ids[:-1] for ids in nodes}, key=len)

        def steps(after: Tensor, start: tuple[int, ...]) -> Tensor:
            last = [ids[-1] for ids in nodes if ids[:-1] == start]
            return token_log_probabilities(after, torch.tensor(last, device=logits.device))

        after, given = {start: [steps(logits, start)] if not start else [] for start in starts}, starts[1:]
        for group in trials.batches(at_most=max(1, len(trials) // len(given))) if given else ():
            forced = group.followed_by(given)  # the tokens before the next one are given: teacher forcing
            self.check_fits(forced)
            most = len(forced) if self._runs_beginnings_once() else len(trials)
            parts = (part for batch in forced.batches(at_most=most) for part in self._rotated_alike(batch))
            found = torch.cat([self.logits(part) for part in parts]).unflatten(0, (len(group), -1, len(given)))
            for at, start in enumerate(given):
                after[start].append(steps(found[:, :, at, 0], start))
        log_prob: dict[tuple[int, ...], Tensor] = {(): logits.new_zeros(logits.shape[:2], dtype=torch.float64)}
        for start in starts:
            each = torch.cat(after[start]).unbind(-1)
            further = (ids for ids in nodes if ids[:-1] == start)
            log_prob |= {ids: log_prob[start] + step for ids, step in zip(further, each, strict=True)}
        return torch.stack(
            [torch.stack([log_prob[ids] for ids in each]).logsumexp(0) for each in trials.spellings], dim=-1
        )

    @final
    def _pass_over(
        self,
        passes: Iterable[tuple[Trials, bool]],
        recorder: Recorder,
        log: BehaviorLog,
        baseline_predictives: BaselinePredictives | None,
    ) -> tuple[Trials, Float64[Tensor, "batch query_pos answer"]]:
        """Run every pass, score it into the log, and return the kept sequences and their answer log-probabilities."""
        kept, n_bad = list[tuple[Trials, Tensor]](), 0
        for trials, is_kept, logits in self._in_memory(passes, recorder):
            if trials.has_posterior:
                is_sound = are_finite(logits)
                log_answers, off_answer_prob = (
                    renormalized(self._spelled(logits, trials))
                    if trials.spellings
                    else answer_log_probabilities(logits, trials)
                )
                log.add(
                    trials, log_answers, off_answer_prob, baseline_predictives(trials) if baseline_predictives else {}
                )
            else:
                entropy = whole_entropy_bits(logits)
                is_sound = entropy.isfinite().all(-1)  # finite only if every logit is
                log_answers = entropy.new_zeros(*entropy.shape, 0)
                log.add_open_ended(entropy)
            del logits  # before the next pass allocates its own
            n_bad += int((~is_sound).sum())
            if is_kept:
                kept.append((trials, log_answers))
        if not log.n:
            raise InvalidArgument("a run needs at least one block of trials; the stream was empty.")
        if n_bad:
            raise NonFinite(
                f"{self.spec.name} returned NaN or infinite logits in {n_bad} of {log.n} sequences. Check its weights "
                f"and edits."
            )
        return concatenate([trials for trials, _ in kept]), torch.cat([answers for _, answers in kept])


def run_on(model: Model, task: WindTunnel, *, n: int, seed: int, **options: Any) -> Run:
    """Run a model on the first `n` sequences of a task, with the seeds of every measurement.

    Args:
        model: The model.
        task: Its task.
        n: Number of sequences.
        seed: Seed of sequences and intervals.
        **options: Further arguments of `Model.run`.
    """
    blocks = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)
    resampling = derived_seed(seed, Branch.RESAMPLING)
    return model.run(blocks, **{"baseline_predictives": task.baseline_predictives, "seed": resampling, **options})


class Reattachable(Model):
    """A model whose module can change in place. `as_model` then attaches it again, with the hash of its weights.

    `structure` is that of the module when it was attached: see `structure_of`.
    """

    structure: int

    @abstractmethod
    def digest(self) -> str:
        """Return the hash of the weights as they are now."""

    @abstractmethod
    def attached_again(self, digest: str) -> Model:
        """Return a new adapter of the module as it is now; `digest` is the hash of its weights."""


def _short(count: int) -> str:
    """Return a large count with three digits: 2,677,248 is "2.68M"."""
    size, unit = next(
        (scale for scale in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if count >= 0.9995 * scale[0]), (1.0, "")
    )
    return f"{count / size:.3g}{unit}"


def hooked_sites(model: Model, hooks: Mapping[SiteLayer, Change]) -> AbstractContextManager[Sequence[int]]:
    """Set one hook at each of these sites and layers, for one forward pass within the block.

    Args:
        model: The model, whose lock is held.
        hooks: By site and layer: a function of the activation there. Its return value replaces the activation unless it
            is None.

    Raises:
        HookFault: A hook did not fire exactly once.
    """
    site_hooks = [site_hook(place, model.point(*place), change) for place, change in hooks.items()]
    return hooked(model.module, site_hooks, by=model.spec.name)


def kernels_of(model: Model, sites: Iterable[Site] = (), *, also_without: bool = False) -> list[str]:
    """Return the attention kernels of a measurement; empty if the model does not have several.

    Patterns exist in "eager" attention only, so passes that record them use it. Kernels round differently.

    Args:
        model: The model.
        sites: Sites that the passes record.
        also_without: Whether other passes record nothing.
    """
    if model.attention_kernel is None:
        return []
    plain, is_eager = model.attention_kernel(), PATTERN in sites
    return list(dict.fromkeys(["eager"] * is_eager + [plain] * (also_without or not is_eager)))


@holding_lock()
@torch.no_grad()
def visible(model: "Model", trials: Trials) -> tuple[Bool[Tensor, "from_pos key_pos"], ...]:
    """Return which positions the attention of each layer lets every position see, read in a pass of one sequence.

    Nothing is assumed of the mask: causal, a sliding window, chunks. Where queries are zero, a score is what mask
    and positional bias add, so a weight is 0 only where a key is hidden. A mask depends on positions alone, because
    padding is on the right. A layer whose pattern is not available gets the causal mask.

    Args:
        model: The model.
        trials: Sequences of the length in question; the first one is run.

    Returns:
        The mask of each layer, true where a key is seen. Layers with the same mask share a tensor.
    """
    one = trials.rows(slice(0, 1))
    n_pos = one.tokens.shape[1]
    kinds = [torch.ones(n_pos, n_pos, dtype=torch.bool, device=one.tokens.device).tril()]
    masks = dict[int, Tensor]()

    def read(layer: int, pattern: Float[Tensor, "batch head query_pos key_pos"]) -> None:
        visible = (pattern != 0).any(dim=1)[0].to(kinds[0].device)
        masks[layer] = next((kind for kind in kinds if torch.equal(kind, visible)), visible)
        kinds.append(masks[layer])

    hooks: dict[SiteLayer, Change] = {(Q_ROT, layer): torch.zeros_like for layer in model.layers_of(Q_ROT, PATTERN)}
    hooks |= {(PATTERN, layer): partial(read, layer) for layer in model.layers_of(PATTERN)}
    if hooks:
        with evaluating(model.module), hooked_sites(model, hooks):
            model.logits(one)
    return tuple(masks.get(layer, kinds[0]) for layer in range(model.spec.n_layers))


def provenance(
    model: Model | ModelSpec | Mapping[str, Any], task: WindTunnel | str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the origin of a result: model, weights, task, arguments and versions.

    There is no time stamp, so the same seed gives the same file. `foreign_hooks` lists submodules whose forward hooks
    bayesgeom did not set, if there are any: they may have edited activations. `float32_matmul_precision` is there where
    torch was allowed to round products of float32 matrices: other numbers follow from it. `attention_kernels` names the
    implementations of attention, which round differently, where the model has several.

    Args:
        model: The model. For several models, a mapping with their name and architecture.
        task: The task. For several tasks, their common name.
        arguments: Arguments of the measurement.
    """
    foreign = model.foreign_hooks() if isinstance(model, Model) else ()
    kernels = kernels_of(model) if isinstance(model, Model) else []
    spec = model.spec if isinstance(model, Model) else model
    return {
        "model": spec.to_dict() if isinstance(spec, ModelSpec) else dict(spec),
        **({"foreign_hooks": list(foreign)} if foreign else {}),
        **({KERNELS: kernels} if kernels else {}),
        **({"float32_matmul_precision": precision} if (precision := reduced_precision()) else {}),
        **({} if isinstance(task, str) else {"task": task.config(), "task_in_words": task.in_words()}),
        "task_label": str(task),
        "arguments": dict(arguments),
        "versions": {"bayesgeom": own_version(), **versions()},
        "threads": torch.get_num_threads(),
    }


def numerics(model: Model | None = None) -> dict[str, str]:
    """Return what the numbers of saved progress depend on besides the inputs of the measurement.

    These are the versions of the libraries, the precision that is set for the whole process, and hooks of others.

    Args:
        model: The model whose hooks are listed.
    """
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return {
        "bayesgeom": own_version(),
        **versions(),
        "float32_precision": reduced_precision(),
        "cudnn_tf32": str(torch.backends.cudnn.allow_tf32),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "autocast": ", ".join(f"{kind} {torch.get_autocast_dtype(kind)}" for kind in kinds),
        **({} if model is None else {"foreign_hooks": ", ".join(model.foreign_hooks())}),
    }


def own_version() -> str:
    """Return the version of the installed bayesgeom, or "unknown" if it is not installed."""
    try:
        return importlib.metadata.version("bayesgeom")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
