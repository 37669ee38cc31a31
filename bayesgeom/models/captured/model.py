"""Captures: files of activations and predictions, and a model that reads them, on the captured sequences only.

A capture is a directory of `capture.json`, `static.safetensors` and `shard-00000.safetensors`, …. The manifest says
which model, task and sites, and the hash of every shard. It is written before the first shard and again, atomically,
after each one. The activations of a shard leave memory before the next one is computed.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, cast, final

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn

from bayesgeom.core import (
    ALL_SITES,
    LOGIT_LENS,
    PATTERN,
    BayesGeomError,
    CheckpointFault,
    InvalidArgument,
    ModelSpec,
    NoCopy,
    NonFinite,
    OutputFault,
    Site,
    TaskMismatch,
    Trials,
    check_types,
    concatenate,
)
from bayesgeom.core.errors import quoted
from bayesgeom.core.files import atomic_file, differences, holds_others, is_file, read_json, write_arrays
from bayesgeom.core.run import is_untrained, untrained_hash
from bayesgeom.models.base import (
    KERNELS,
    PASS_BYTES,
    BaselinePredictives,
    Model,
    Recorder,
    Replayer,
    Stream,
    bytes_per_sequence,
    visible,
)
from bayesgeom.models.checkpoint_files import config_hash
from bayesgeom.stats.behavior import BehaviorLog
from bayesgeom.stats.reduction import Reduction
from bayesgeom.tasks.base import WindTunnel, task_from_config

MANIFEST, STATIC = "capture.json", "static.safetensors"
MASKS = "masks"  # in the file of static sites: what the attention of each layer can see
SCHEMA = 4  # 3: a hash over the manifest itself; 4: masks of attention
_HASH = "hash"
_SITES = {site.name: site for site in (*ALL_SITES, LOGIT_LENS)}


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
        attention_kernels: The kernels of the model's attention (see `kernels_of`).
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
    attention_kernels: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    shards: Mapping[str, str] = field(default_factory=dict)

    @property
    def sites(self) -> dict[Site, tuple[int, ...]]:
        """Captured layers of each site that a pass records."""
        return {_SITES[name]: tuple(layers) for name, layers in self.layers.items()}

    @property
    def static_sites(self) -> dict[Site, tuple[int, ...]]:
        """Captured layers of each site that is read from the weights."""
        return {_SITES[name]: tuple(layers) for name, layers in self.static.items()}

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
        raise CheckpointFault(
            f"{path} has schema {quoted(schema)}; this bayesgeom reads schema {SCHEMA}. Capture again, or upgrade."
        )
    stated = stored.pop(_HASH, None)
    if stated != config_hash(stored):
        raise CheckpointFault(
            f"{path} was changed after it was written: it does not match its hash. Restore it, or capture again."
        )
    del stored["schema"]
    try:
        manifest = Manifest(**stored)
        check_types(manifest)
    except (TypeError, ValueError, KeyError, AttributeError, BayesGeomError) as error:
        raise CheckpointFault(f"{path} is not the manifest of a capture ({error}). Capture again.") from error
    return manifest


def is_capture(folder: Path) -> bool:
    """Return whether a directory holds the manifest of a capture."""
    return is_file(folder / MANIFEST)


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
            f"{path} is missing: {n} of {whole} shards are finished. Run the same capture again, which continues."
        )
    try:
        digest = hash_of(path)
    except OSError as error:
        raise CheckpointFault(f"{path} cannot be read: {error.strerror or error}.") from error
    if digest != manifest.shards[name]:
        raise CheckpointFault(f"{path} is damaged: its hash is not that in {MANIFEST}. Delete it and capture again.")
    return path


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
        Reduction(site.name, site, partial(_converted, site, dtype), lambda _spec, _trials: 0): site_layers
        for site, site_layers in layers.items()
    }
    stream = Stream(layers=copies, trials=trials)
    run = model.run([trials], record=[stream], budget_bytes=PASS_BYTES)  # passes like those of `diagnose`
    assert run.streamed is not None, "there is a stream"
    arrays = {name: array.cpu().contiguous() for name, array in run.streamed.reduced.items()}
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
        recorded = model.run([one], record=wanted).recorded if wanted else {}
        arrays = {site.name: values.cpu().contiguous() for site, values in recorded.items()}
        if PATTERN in manifest.sites:
            arrays[MASKS] = torch.stack(visible(model, one)).cpu()
        manifest = _written(arrays, STATIC, manifest, folder)
    slices = manifest.slices()
    shards = _shards(blocks, [rows.stop - rows.start for rows in slices.values()])
    for name, trials in zip(slices, shards, strict=True):
        if name in manifest.shards:
            check_shard(folder, manifest, name)
        else:
            arrays = captured(model, trials, manifest.sites, getattr(torch, manifest.dtype))
            manifest = _written(arrays, name, manifest, folder)
        yield len(trials)


def _converted(site: Site, dtype: torch.dtype, values: Tensor, _trials: Trials, _rows: slice, _mask: object) -> Tensor:
    converted = values.to(dtype)
    if converted.dtype == values.dtype:  # nothing was rounded; the checks below cost a fifth of a forward pass
        return converted
    if bool(converted.isinf().any()) and bool((converted.isinf() & values.isfinite()).any()):
        name = str(dtype).removeprefix("torch.")
        raise NonFinite(
            f"activations of site {site.name!r} reach {values[values.isfinite()].abs().max():.3g}, above the largest "
            f"{name} number, {torch.finfo(dtype).max:.3g}. Capture in bfloat16 or float32 in another directory."
        )
    return converted


def _begun(folder: Path, requested: Manifest) -> Manifest:
    """The manifest to continue from, written if there is none."""
    if not is_capture(folder):
        if folder.exists() and (not folder.is_dir() or holds_others(folder)):
            raise OutputFault(f"{folder} holds other files than a capture. Name an empty or a new directory.")
        requested.write(folder)
        return requested
    there, spec = read_manifest(folder), requested.model_spec
    apart_from = {"shards": None, "untrained": None}  # these may differ
    mine, theirs = (json.loads(json.dumps(asdict(manifest) | apart_from)) for manifest in (there, requested))
    if difference := differences(mine, theirs):
        raise OutputFault(f"{folder} holds another capture ({difference}). Name another directory, or delete it.")
    if there.shards and not (spec.is_identified or is_untrained(spec)):  # an untrained network follows from its seed
        raise OutputFault(
            f"{folder} holds an unfinished capture, perhaps of another model: {spec.name} has no hash. Delete it."
        )
    if list(there.untrained) != list(requested.untrained):
        there = replace(there, untrained=requested.untrained)
        there.write(folder)
    return there


def _written(arrays: Arrays, name: str, manifest: Manifest, folder: Path) -> Manifest:
    """Write a file, then the manifest with its hash."""
    with atomic_file(folder / name) as temporary:
        write_arrays(arrays, temporary, framework="pt")
        digest = hash_of(temporary)
    manifest = replace(manifest, shards={**manifest.shards, name: digest})
    manifest.write(folder)
    return manifest


def _shards(blocks: Iterator[Trials], sizes: Sequence[int]) -> Iterator[Trials]:
    """Cut blocks into shards of these numbers of sequences."""
    rest: Trials | None = None
    for size in sizes:
        parts, needed = list[Trials](), size
        while needed:
            block = next(blocks) if rest is None else rest
            parts.append(block.rows(slice(0, needed)))
            rest = block.rows(slice(needed, None)) if len(block) > needed else None
            needed -= len(parts[-1])
        yield concatenate(parts)


UNTRAINED = "untrained-{}"


@final
class CapturedModel(Model):
    """A model whose activations and predictions on some sequences were captured. It cannot run on other sequences.

    Args:
        folder: Directory of the capture.

    Raises:
        CheckpointFault: It holds no complete capture.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        self.spec, self.module = replace(self.manifest.model_spec, device="cpu"), nn.Module()  # files hold no device
        self.task: WindTunnel | None = task_from_config(self.manifest.task)
        every = tuple(range(self.spec.n_layers))
        self._layers = self.manifest.sites | self.manifest.static_sites
        self.partial_sites = {site: layers for site, layers in self._layers.items() if layers != every}
        self.asks = frozenset()
        missing = "not captured; capture it, too"
        self.withheld = dict.fromkeys((site for site in _SITES.values() if self._layers.get(site) != every), missing)

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset(self._layers).difference(self.partial_sites)

    def point(self, site: Site, layer: int) -> nn.Module:
        self._refuse()

    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        self._refuse()

    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        self._refuse()

    def replayer(self) -> Replayer:
        self._refuse()

    def untrained_copy(self, seed: int) -> "CapturedModel":
        if seed not in self.manifest.untrained:
            n = len(self.manifest.untrained)
            raise NoCopy(f"{self.folder} holds {n} untrained networks. Capture again with a larger n_untrained.")
        copy = CapturedModel(self.folder / UNTRAINED.format(list(self.manifest.untrained).index(seed)))
        if copy.spec.weights_hash != untrained_hash(seed) or copy.manifest.task != self.manifest.task:
            raise CheckpointFault(
                f"{copy.folder} holds {copy.spec.name}, not the untrained network of seed {seed}. Capture again."
            )
        return copy

    def sequences(self, task: WindTunnel, *, n: int, seed: int) -> tuple[int, int]:
        """Return number and seed of the sequences to read: at most all of them, and the seed of the capture.

        Args:
            task: The task to measure on.
            n: Number of sequences that was requested.
            seed: Seed that was requested; 0 for that of the capture.

        Raises:
            TaskMismatch: The model was captured on another task.
            InvalidArgument: Another seed than that of the capture was requested.
        """
        stored = self.manifest
        if difference := differences(json.loads(json.dumps(stored.task)), json.loads(json.dumps(task.config()))):
            raise TaskMismatch(
                f"{self.folder} was captured on {self.task}, and cannot be measured on another task ({difference}). "
                f"Capture that task, or omit the task."
            )
        if seed not in (0, stored.seed):
            raise InvalidArgument(
                f"{self.folder} was captured with seed {stored.seed}, got {seed}. Omit the seed, or capture again."
            )
        return min(n, stored.n), stored.seed

    def notes(self) -> dict[str, Any]:
        """Return the model on its device, foreign hooks, kernels and versions at the time of the capture."""
        stored = self.manifest
        capture = {"seed": stored.seed, "n": stored.n, "dtype": stored.dtype, "versions": dict(stored.versions)}
        lists = {"foreign_hooks": list(stored.foreign_hooks), KERNELS: list(stored.attention_kernels)}
        known = {key: names for key, names in lists.items() if names}
        return {"model": stored.model_spec.to_dict(), "capture": capture, **known}

    def _limits(self) -> str:
        return f"{self.folder} is a capture, which holds its own sequences only: pass the model itself."

    def _passed(
        self, blocks: Iterable[Trials], recorder: Recorder, log: BehaviorLog, baselines: BaselinePredictives | None
    ) -> tuple[Trials, Float[Tensor, "batch query_pos answer"]]:
        """Read the captured numbers, and return the sequences and their answer log-probabilities.

        Activations of one shard at a time are in memory. Raises `CheckpointFault` if a shard is missing or damaged, or
        the task now draws other sequences.
        """
        whole, answers = concatenate(list(blocks)), list[Tensor]()
        recorder.make_room(whole)
        recorder.masks = self._masks
        for file, at in ((file, at) for file, at in self.manifest.slices().items() if at.start < len(whole)):
            trials, path = whole.rows(at), check_shard(self.folder, self.manifest, file)
            answers.append(_scored(path, trials, log, baselines))
            for rows in recorder.parts(at.start, len(trials)):
                for site, layer, keep in recorder.due(trials.rows(rows)):
                    keep(_read(path, site.name, (self._layers[site].index(layer), rows)).float())
                recorder.advance(rows.stop - rows.start)
        return whole, torch.cat(answers)

    def _of_weights(self, site: Site, trials: Trials) -> Float[Tensor, "layer *axes"]:
        return self._static(site.name).float()

    @cached_property
    def _masks(self) -> tuple[Bool[Tensor, "from_pos key_pos"], ...]:
        """What the attention of each layer can see; empty without captured patterns."""
        return tuple(self._static(MASKS)) if PATTERN in self._layers else ()

    def _static(self, name: str) -> Shaped[Tensor, "layer *axes"]:
        return _read(self._checked, name)

    @cached_property
    def _checked(self) -> Path:
        """The file of what is the same in every sequence; its hash is checked once."""
        return check_shard(self.folder, self.manifest, STATIC)

    def _refuse(self) -> NoReturn:
        raise InvalidArgument(
            f"{self.folder} is a capture of {self.spec.name}, for diagnose only: load the model to run or edit it."
        )


def _scored(
    path: Path, trials: Trials, log: BehaviorLog, baseline_predictives: BaselinePredictives | None
) -> Float[Tensor, "batch query_pos answer"]:
    """Score the predictions of a shard, whose first sequences are these, and return the answer log-probabilities.

    Raises `CheckpointFault` if it was captured on other sequences.
    """
    first = slice(len(trials))
    if not torch.equal(_read(path, "tokens", first), trials.tokens.cpu()):
        raise CheckpointFault(f"{path} was captured on other sequences than {MANIFEST} describes. Capture again.")
    if not trials.has_posterior:
        entropy = _read(path, ENTROPY, first).double()
        log.add_open_ended(entropy)
        return entropy.new_zeros(*entropy.shape, 0)
    answers, off = (_read(path, name, first).double() for name in (LOG_ANSWERS, OFF_ANSWER))
    log.add(trials, answers, off, baseline_predictives(trials) if baseline_predictives else {})
    return answers


def _read(path: Path, name: str, at: Any = slice(None)) -> Tensor:
    """Read a part of a tensor in a file of a capture."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return cast(Tensor, file.get_slice(name)[at])
    except (OSError, SafetensorError) as error:
        raise CheckpointFault(f"{path} has no readable {name!r}: {error}. Capture again.") from error
