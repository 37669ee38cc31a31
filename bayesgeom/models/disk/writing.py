"""Writing of captures: one forward pass per shard, whose activations leave memory before the next one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from bayesgeom.core.errors import NonFinite, OutputFault
from bayesgeom.core.files import atomic_file, write_arrays
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.sites import Site
from bayesgeom.core.trials import Trials, concatenate
from bayesgeom.models.base import Model
from bayesgeom.models.budget import PASS_BYTES
from bayesgeom.models.disk.manifest import (
    STATIC,
    Manifest,
    check_same,
    check_shard,
    hash_of,
    is_capture,
    read_manifest,
)
from bayesgeom.models.recorder import Stream, bytes_per_sequence
from bayesgeom.stats.reduction import Reduction
from bayesgeom.tasks.base import WindTunnel

SHARD_BYTES = 128 * 2**20  # activations of one shard in float32; a shard never exceeds a block of the task
LOG_ANSWERS, OFF_ANSWER, ENTROPY = "log_answers", "off_answer_prob", "entropy_bits"
Arrays = dict[str, Tensor]


def rows_per_shard(spec: ModelSpec, layers: Mapping[Site, tuple[int, ...]], one: Trials, *, most: int) -> int:
    """Return the number of sequences in a shard. It depends on sizes only, so a resumed capture has the same shards."""
    return max(1, min(most, SHARD_BYTES // max(1, bytes_per_sequence(spec, layers, one))))


def captured(model: Model, trials: Trials, layers: Mapping[Site, tuple[int, ...]], dtype: torch.dtype) -> Arrays:
    """Run the model once and return activations and reduced predictions, by their names in a shard.

    Args:
        model: The model.
        trials: The sequences of the shard.
        layers: Layers of each site.
        dtype: Data type of the activations.

    Returns:
        `SITE` with the layer as the first axis, `tokens`, `log_answers` and `off_answer_prob`; without answers,
        `entropy_bits`.
    """
    stream = Stream(layers={_copy_of(site, dtype): own for site, own in layers.items()}, trials=trials)
    run = model.run([trials], record=[stream], budget_bytes=PASS_BYTES)  # passes like those of `diagnose`
    assert run.streamed is not None, "there is a stream"
    arrays = {name: own.cpu().contiguous() for name, own in run.streamed.reduced.items()}
    arrays["tokens"] = trials.tokens.cpu().contiguous()
    if not trials.has_posterior:
        return arrays | {ENTROPY: torch.from_numpy(run.behavior.model_entropy_bits.copy())}
    off = torch.from_numpy(run.behavior.off_answer_prob.copy())
    return arrays | {LOG_ANSWERS: run.streamed.log_answers.cpu().contiguous(), OFF_ANSWER: off}


def write(model: Model, task: WindTunnel, blocks: Iterator[Trials], manifest: Manifest, folder: Path) -> Iterator[int]:
    """Write a capture, shard by shard; finished shards with their hash are kept. Yields the sequences of each shard.

    Raises:
        OutputFault: The directory holds another capture or other files, or cannot be written.
        NonFinite: An activation is larger than the largest number of the data type.
        CheckpointFault: A finished shard is damaged.
    """
    manifest = _begun(folder, manifest)
    if STATIC not in manifest.shards:
        one = task.sample(1, seed=0, device=model.spec.device)
        wanted = list(manifest.static_sites)
        found = model.run([one], record=wanted).recorded if wanted else {}
        arrays = {site.name: values.cpu().contiguous() for site, values in found.items()}
        manifest = _written(arrays, STATIC, manifest, folder)
    dtype, cut = getattr(torch, manifest.dtype), Cutter(blocks)
    for name, rows in manifest.slices().items():
        n = rows.stop - rows.start
        trials = cut.next(n)
        if name in manifest.shards:
            check_shard(folder, manifest, name)
        else:
            manifest = _written(captured(model, trials, manifest.sites, dtype), name, manifest, folder)
        yield n


def _copy_of(site: Site, dtype: torch.dtype) -> Reduction:
    return Reduction(site.name, site, partial(_converted, site, dtype), lambda _spec, _trials: 0)


def _converted(site: Site, dtype: torch.dtype, values: Tensor, _trials: Trials, _rows: slice) -> Tensor:
    found = values.to(dtype)
    if found.dtype == values.dtype:  # nothing was rounded; the checks below cost a fifth of a forward pass
        return found
    if bool(found.isinf().any()) and bool((found.isinf() & values.isfinite()).any()):
        name = str(dtype).removeprefix("torch.")
        raise NonFinite(
            f"activations of site {site.name!r} reach {values[values.isfinite()].abs().max():.3g}, above the largest "
            f"{name} number, {torch.finfo(dtype).max:.3g}. Capture in bfloat16 or float32 in another directory."
        )
    return found


def _begun(folder: Path, requested: Manifest) -> Manifest:
    """The manifest to continue from, written if there is none."""
    if is_capture(folder):
        there = read_manifest(folder)
        check_same(there, requested, folder)
        if list(there.untrained) != list(requested.untrained):
            there = replace(there, untrained=requested.untrained)
            there.write(folder)
        return there
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputFault(f"{folder} holds other files than a capture. Name an empty or a new directory.")
    requested.write(folder)
    return requested


def _written(arrays: Arrays, name: str, manifest: Manifest, folder: Path) -> Manifest:
    """Write a file, then the manifest with its hash."""
    with atomic_file(folder / name) as temporary:
        write_arrays(arrays, temporary, framework="pt")
        digest = hash_of(temporary)
    manifest = manifest.with_shard(name, digest)
    manifest.write(folder)
    return manifest


@final
class Cutter:
    """Cuts blocks into shards."""

    def __init__(self, blocks: Iterator[Trials]) -> None:
        self._blocks: Any = blocks
        self._rest: Trials | None = None

    def next(self, n: int) -> Trials:
        """Return the next `n` sequences."""
        parts, needed = list[Trials](), n
        while needed:
            block = next(self._blocks) if self._rest is None else self._rest
            parts.append(block.rows(slice(0, needed)))
            self._rest = block.rows(slice(needed, None)) if len(block) > needed else None
            needed -= len(parts[-1])
        return parts[0] if len(parts) == 1 else concatenate(parts)
