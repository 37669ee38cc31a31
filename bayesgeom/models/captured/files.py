"""Files of a capture: the manifest, and the shards of activations, one forward pass each.

A capture is a directory of `capture.json`, `static.safetensors` and `shard-00000.safetensors`, …. The manifest says
which model, task and sites, and the hash of every shard. It is written before the first shard and again, atomically,
after each one. The activations of a shard leave memory before the next one is computed.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from bayesgeom.core.errors import BayesGeomError, CheckpointFault, NonFinite, OutputFault, check_types, shown
from bayesgeom.core.files import apart, atomic_file, holds_others, is_file, read_json, remove_strays, write_arrays
from bayesgeom.core.run import ALL_SITES, ModelSpec, Site, Trials, concatenate, is_untrained
from bayesgeom.models.base import PASS_BYTES, Model, Stream, bytes_per_sequence
from bayesgeom.models.checkpoint_files import config_hash
from bayesgeom.stats.reduction import Reduction
from bayesgeom.tasks.base import WindTunnel

MANIFEST, STATIC = "capture.json", "static.safetensors"
SCHEMA = 3  # 3: a hash over the manifest itself
_HASH = "hash"
_MOST_SHARDS, _MOST_LAYERS = 10_000_000, 100_000


@final
@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a capture holds.

    Attributes:
        spec: The model, as `ModelSpec.to_dict` gives it.
        task: The task, as `WindTunnel.config` gives it.
        layers: Captured layers of each site that a pass records, by its name.
        static: Captured layers of each site that is read from the weights, by its name.
        dtype: Data type of the activations.
        n: Number of sequences.
        seed: Seed of the sequences.
        rows: Number of sequences in each shard but the last.
        untrained: Seeds of the captured untrained networks, each in a directory `untrained-INDEX`.
        foreign_hooks: Submodules whose forward hooks bayesgeom did not set.
        versions: Versions of the libraries.
        shards: SHA-256 of the finished files, by their names.
    """

    spec: Mapping[str, Any]
    task: Mapping[str, Any]
    layers: Mapping[str, Sequence[int]]
    static: Mapping[str, Sequence[int]]
    dtype: str
    n: int
    seed: int
    rows: int
    untrained: Sequence[int] = ()
    foreign_hooks: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    shards: Mapping[str, str] = field(default_factory=dict)

    @property
    def sites(self) -> dict[Site, tuple[int, ...]]:
        """Captured layers of each site that a pass records."""
        return {site_named(name): tuple(own) for name, own in self.layers.items()}

    @property
    def static_sites(self) -> dict[Site, tuple[int, ...]]:
        """Captured layers of each site that is read from the weights."""
        return {site_named(name): tuple(own) for name, own in self.static.items()}

    @property
    def model_spec(self) -> ModelSpec:
        """The spec of the captured model."""
        return ModelSpec(**self.spec)

    def slices(self) -> dict[str, slice]:
        """Return the sequences of each shard, by its name."""
        starts = range(0, self.n, self.rows)
        return {
            f"shard-{i:05d}.safetensors": slice(start, min(self.n, start + self.rows)) for i, start in enumerate(starts)
        }

    def slices_of(self, n: int) -> list[tuple[str, slice]]:
        """Return the shards that hold some of the first `n` sequences."""
        return [(name, at) for name, at in self.slices().items() if at.start < n]

    def with_shard(self, name: str, digest: str) -> "Manifest":
        """Return the manifest with one more finished file."""
        return replace(self, shards={**self.shards, name: digest})

    def write(self, folder: Path) -> None:
        """Write the manifest atomically.

        Raises:
            OutputFault: It cannot be written.
        """
        content = {"schema": SCHEMA, **asdict(self)}
        with atomic_file(folder / MANIFEST) as temporary:
            temporary.write_text(
                json.dumps({**content, _HASH: config_hash(content)}, indent=1) + "\n", encoding="utf-8"
            )

    def differences(self, other: "Manifest") -> str:
        """Return how a capture differs, apart from finished files and untrained networks; "" if it does not."""
        apart_from = {"shards": None, "untrained": None}
        mine, theirs = (json.loads(json.dumps(asdict(own) | apart_from)) for own in (self, other))
        return apart(mine, theirs)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a capture.

    Raises:
        CheckpointFault: There is none, or it is unreadable, incomplete, of another schema, or was edited.
    """
    path = folder / MANIFEST
    try:
        stored = read_json(path)
    except FileNotFoundError as error:
        raise CheckpointFault(
            f"{folder} holds no capture: {MANIFEST} is missing. Name a directory that bayesgeom capture wrote."
        ) from error
    schema = stored.get("schema") if isinstance(stored, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        is_newer = type(schema) is int and schema > SCHEMA
        remedy = "Upgrade bayesgeom" if is_newer else "Make it again with `bayesgeom capture MODEL --out NEW-DIRECTORY`"
        raise CheckpointFault(f"{path} has schema {shown(schema)}; this bayesgeom reads schema {SCHEMA}. {remedy}.")
    stated = stored.pop(_HASH, None)
    if stated != config_hash(stored):
        raise CheckpointFault(
            f"{path} was changed after it was written: it does not match its hash. The shards belong to the model, "
            f"the layers and the sequences that it stated. Restore it, or capture again."
        )
    del stored["schema"]
    try:
        found = Manifest(**stored)
        _check(found)
    except (TypeError, ValueError, KeyError, AttributeError, BayesGeomError) as error:
        raise CheckpointFault(f"{path} is not the manifest of a capture ({error}). Capture again.") from error
    return found


def _check(manifest: Manifest) -> None:
    """Raise an error that says why the values of a manifest cannot be those of a capture."""
    check_types(manifest)
    check_types(manifest.model_spec)
    n_layers, rows = manifest.model_spec.n_layers, manifest.rows
    if manifest.n < 1 or rows < 1 or manifest.n > rows * _MOST_SHARDS or not 1 <= n_layers <= _MOST_LAYERS:
        raise ValueError(f"n = {manifest.n}, rows = {rows} and n_layers = {n_layers} are not those of a capture")
    for site, layers in (manifest.sites | manifest.static_sites).items():
        if list(layers) != sorted(set(layers) & set(range(n_layers))):
            raise ValueError(f"site {site.name!r} has layers {list(layers)!s:.40} of {n_layers}")


def is_capture(folder: Path) -> bool:
    """Return whether a directory holds the manifest of a capture."""
    return is_file(folder / MANIFEST)


def site_named(name: str) -> Site:
    """Return the site of this name. Raises `KeyError` if there is none."""
    return {site.name: site for site in ALL_SITES}[name]


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_shard(folder: Path, manifest: Manifest, name: str) -> Path:
    """Check that a file of a capture is there and has its hash, and return its path.

    Raises:
        CheckpointFault: It is missing, or was damaged or changed after it was written.
    """
    path = folder / name
    if name not in manifest.shards or not path.is_file():
        n, whole = len(manifest.shards.keys() & manifest.slices().keys()), len(manifest.slices())
        raise CheckpointFault(
            f"{path} is missing: {n} of {whole} shards of this capture are finished. Run the same capture again; it "
            f"continues where it stopped."
        )
    try:
        found = hash_of(path)
    except OSError as error:
        raise CheckpointFault(f"{path} cannot be read: {error.strerror or error}.") from error
    if found != manifest.shards[name]:
        raise CheckpointFault(f"{path} is damaged: its hash is not that in {MANIFEST}. Delete it and capture again.")
    return path


def check_same(there: Manifest, requested: Manifest, folder: Path) -> None:
    """Check that a capture in a directory can be continued.

    Raises:
        OutputFault: It is another capture, or the weights of the model have no hash.
    """
    if difference := there.differences(requested):
        raise OutputFault(f"{folder} holds another capture ({difference}). Name another directory, or delete it.")
    spec = requested.model_spec
    if there.shards and not (spec.is_identified or is_untrained(spec)):  # an untrained network follows from its seed
        raise OutputFault(
            f"{folder} holds an unfinished capture, and the weights of {spec.name} have no hash, so it "
            f"could be another model's. Delete it first."
        )


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
    copies = {
        Reduction(site.name, site, partial(_converted, site, dtype), lambda _spec, _trials: 0): own
        for site, own in layers.items()
    }
    stream = Stream(layers=copies, trials=trials)
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
    remove_strays(folder)
    if is_capture(folder):
        there = read_manifest(folder)
        check_same(there, requested, folder)
        if list(there.untrained) != list(requested.untrained):
            there = replace(there, untrained=requested.untrained)
            there.write(folder)
        return there
    if folder.exists() and (not folder.is_dir() or holds_others(folder)):
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
