"""Reading of captures: a model that runs from files, on the captured sequences only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, final

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, NoCopy
from bayesgeom.core.run import ALL_SITES, PATTERN, Run, Site, Trials, concatenate, untrained
from bayesgeom.models.base import BaselinePredictives, Model, Replayer, Stream, room_for
from bayesgeom.models.captured.files import (
    ENTROPY,
    LOG_ANSWERS,
    MANIFEST,
    MASKS,
    OFF_ANSWER,
    STATIC,
    check_shard,
    read_manifest,
)
from bayesgeom.stats.behavior import BehaviorLog
from bayesgeom.tasks.base import WindTunnel, task_from_config

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
        self.partial_sites = {site: own for site, own in self._layers.items() if own != every}
        missing = "not captured; capture it, too"
        self.withheld = dict.fromkeys((site for site in ALL_SITES if self._layers.get(site) != every), missing)

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
        found = CapturedModel(self.folder / UNTRAINED.format(list(self.manifest.untrained).index(seed)))
        if found.spec.weights_hash != untrained(seed) or found.manifest.task != self.manifest.task:
            raise CheckpointFault(
                f"{found.folder} holds a capture of {found.spec.name}, not of the untrained network of seed {seed}. "
                f"Capture again."
            )
        return found

    def run_from_disk(
        self,
        blocks: Iterable[Trials],
        *,
        record: Iterable[Site | Stream],
        n_recorded: int,
        baseline_predictives: BaselinePredictives,
        budget_bytes: int,
        seed: int,
    ) -> Run:
        """Return what `Model.run` returns, from the captured numbers. Activations of one shard at a time are in memory.

        Args:
            blocks: The first sequences of the capture.
            record: Sites to read, and statistics to compute from one shard at a time.
            n_recorded: Number of sequences whose activations are read; fewer if `budget_bytes` is not enough.
            baseline_predictives: Returns the predictives of the baselines, by name, for a batch.
            budget_bytes: Memory for activations and statistics together.
            seed: Seed of a probe's own resampling.

        Raises:
            CheckpointFault: A shard is missing or damaged, or the task now draws other sequences.
        """
        given, whole = tuple(record), concatenate(list(blocks))
        wanted = tuple(dict.fromkeys(own for own in given if isinstance(own, Site)))
        streamed = next((own for own in given if isinstance(own, Stream)), None)
        masks = self._masks() if PATTERN in self._layers else ()
        stream = _Streamed(streamed, self._layers, masks)
        rows = {site: self._layers[site] for site in wanted if not site.is_static}
        most = min(n_recorded, len(whole))
        room = room_for(self.spec, rows, whole, stream=streamed, most=most, budget_bytes=budget_bytes)
        log, recorded, answers = BehaviorLog(), dict[Site, Tensor](), list[Tensor]()
        for name, at in self.manifest.slices_of(len(whole)):
            trials = whole.rows(slice(at.start, min(at.stop, len(whole))))
            shard = _Shard(check_shard(self.folder, self.manifest, name), len(trials))
            shard.check_tokens(trials, self.folder)
            answers.append(shard.scored(log, trials, baseline_predictives))
            stream.add(shard, at)
            stop = min(at.stop, room)
            for site in rows if at.start < room else ():
                values = shard.of(site.name, stop - at.start)
                if site not in recorded:
                    recorded[site] = values.new_empty((len(values), room, *values.shape[2:]))
                recorded[site][:, at.start : stop] = values
        scored, exact, baselines = log.finished()
        run = Run(
            spec=self.spec,
            behavior=scored,
            exact_behavior=exact,
            baseline_behaviors=baselines,
            trials=whole.rows(slice(0, room)),
            log_answers=torch.cat(answers)[:room],
            recorded=recorded | self._read_static([site for site in wanted if site.is_static]),
            layers={site: self.partial_sites[site] for site in wanted if site in self.partial_sites},
            seed=seed,
            windows=log.windows(),
            masks=masks,
        )
        if streamed is None:
            return run
        seen, log_answers = whole.rows(slice(0, stream.n)), torch.cat(answers)[: stream.n]
        return run.with_statistics(stream.finished(), streamed.layers_by_name(), seen, log_answers)

    def _masks(self) -> tuple[Bool[Tensor, "from_pos key_pos"], ...]:
        shard = _Shard(check_shard(self.folder, self.manifest, STATIC), None)
        return tuple(shard.of(MASKS, None).bool())

    def _read_static(self, sites: Sequence[Site]) -> dict[Site, Shaped[Tensor, "layer *axes"]]:
        if not sites:
            return {}
        shard = _Shard(check_shard(self.folder, self.manifest, STATIC), None)
        return {site: shard.of(site.name, None) for site in sites}

    def _refuse(self) -> NoReturn:
        raise InvalidArgument(
            f"{self.folder} holds captured activations of {self.spec.name}, which cannot be run or edited. Only "
            f"diagnose reads a capture; load the model itself for anything else."
        )


@final
class _Streamed:
    """Statistics that are computed shard by shard."""

    def __init__(
        self,
        stream: Stream | None,
        layers: Mapping[Site, tuple[int, ...]],
        masks: Sequence[Bool[Tensor, "from_pos key_pos"]],
    ) -> None:
        self.n = 0 if stream is None else len(stream.trials)
        self._stream, self._layers, self._masks = stream, layers, masks
        self._found: dict[str, list[Tensor]] = {}

    def add(self, shard: "_Shard", at: slice) -> None:
        """Compute the statistics of a shard's sequences."""
        if self._stream is None or at.start >= self.n:
            return
        rows = slice(at.start, min(at.stop, self.n))
        for reduction, layers in self._stream.layers.items():
            values, own = shard.of(reduction.site.name, rows.stop - rows.start), self._layers[reduction.site]
            of_layer = [
                reduction.of(
                    values[own.index(layer)], self._stream.trials, rows, self._masks[layer] if self._masks else None
                )
                for layer in layers
            ]
            self._found.setdefault(reduction.name, []).append(torch.stack(of_layer))

    def finished(self) -> dict[str, Shaped[Tensor, "layer *reduced"]]:
        """Return the statistics of all sequences."""
        return {name: torch.cat(parts, dim=1) for name, parts in self._found.items()}


@final
class _Shard:
    """One file of a capture; `n` sequences of it are read."""

    def __init__(self, path: Path, n: int | None) -> None:
        self._path, self._n = path, n

    def of(self, name: str, n: int | None) -> Shaped[Tensor, "layer *axes"]:
        """Return a tensor in float32, of the first `n` sequences."""
        found = self._read(name, lambda part: part[:] if n is None else part[:, :n]).float()
        if found.ndim < 2 or (n is not None and found.shape[1] != n):
            raise self._unusable(name, found)
        return found

    def check_tokens(self, trials: Trials, folder: Path) -> None:
        """Raise `CheckpointFault` unless the shard was captured on these sequences."""
        if not torch.equal(self._read("tokens", lambda part: part[: self._n]), trials.tokens.cpu()):
            raise CheckpointFault(
                f"{self._path} was captured on other sequences than {folder / MANIFEST} describes: the task draws "
                f"others now. Capture again with this version of bayesgeom."
            )

    def scored(
        self, log: BehaviorLog, trials: Trials, baseline_predictives: BaselinePredictives
    ) -> Float[Tensor, "batch query_pos answer"]:
        """Score the captured predictions into the log, and return the answer log-probabilities."""
        if not trials.has_posterior:
            entropy = self._read(ENTROPY, lambda part: part[: self._n]).double()
            log.add_open_ended(entropy)
            return entropy.new_zeros(*entropy.shape, 0)
        answers, off = (self._read(name, lambda part: part[: self._n]).double() for name in (LOG_ANSWERS, OFF_ANSWER))
        form = tuple(trials.at_scored(trials.labels).shape[:2])
        for name, values, shape in ((LOG_ANSWERS, answers, (*form, len(trials.answers))), (OFF_ANSWER, off, form)):
            if values.shape != shape or bool(values.isnan().any()):
                raise self._unusable(name, values)
        log.add(trials, answers, off, baseline_predictives(trials))
        return answers

    def _unusable(self, name: str, found: Tensor) -> CheckpointFault:
        shape = tuple(found.shape)
        return CheckpointFault(f"{self._path}: {name!r}, of shape {shape}, is not what was captured. Capture again.")

    def _read(self, name: str, of: Any) -> Tensor:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path, framework="pt") as file:
                found: Tensor = of(file.get_slice(name))
                return found
        except (OSError, SafetensorError) as error:
            raise CheckpointFault(f"{self._path} has no readable {name!r}: {error}. Capture again.") from error
