"""The model interface: sites, a spec, and one `run` with the same guarantees for every architecture."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from bayesgeom.core.errors import InvalidArgument, MissingSite, NonFinite, TaskMismatch
from bayesgeom.core.hooks import EVERY_MODULE, Change, SiteLayer, has_global_hooks, hooked, site_hook
from bayesgeom.core.run import ModelSpec, Run
from bayesgeom.core.sites import W_K, W_K_GRAM, Site
from bayesgeom.core.tokenizer import Tokenizer
from bayesgeom.core.torch_state import alone, check_default_device, evaluating
from bayesgeom.core.trials import Trials, concatenate
from bayesgeom.models.recording import (
    PASS_BYTES,
    Recorder,
    Stream,
    bytes_of_pass,
    is_out_of_memory,
    pass_bytes,
    recording_bytes,
)
from bayesgeom.models.replay.replayer import Replayer
from bayesgeom.stats.behavior import BehaviorLog, answer_log_probabilities, are_finite, whole_entropy_bits
from bayesgeom.tasks.base import WindTunnel

BUDGET_BYTES = PASS_BYTES
BaselinePredictives = Callable[[Trials], Mapping[str, Float64[Tensor, "batch query_pos answer"]]]


class Model(ABC):
    """A sequence model behind one interface. Adapters locate the hook points; `run` does everything else."""

    spec: ModelSpec
    module: nn.Module
    task: WindTunnel | None
    tokenizer: Tokenizer | None = None  # required by text tasks
    withheld: Mapping[Site, str]
    partial_sites: Mapping[Site, tuple[int, ...]] = MappingProxyType({})  # in some layers only; also in `withheld`
    batch_size: int | None = None  # most sequences in a pass; None: according to the memory of a pass
    memory_gib: float | None = None  # for recorded activations; None is a share of the free memory

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

    @abstractmethod
    def replayer(self) -> Replayer:
        """Return the engine of ablations: it replays from the edited activation on, or runs whole passes."""

    @final
    def __repr__(self) -> str:
        own = self.spec
        heads = f"{own.n_heads} heads, " if own.n_heads else ""
        task = f" on {self.task.name}" if self.task is not None else ""
        sizes = f"{own.n_layers} layers, {heads}d_model {own.d_model}, {_short(own.n_parameters)} parameters"
        return f"{type(self).__name__}({own.name}{task}, {sizes})"

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
            if site not in self.sites and not is_partly:
                available = ", ".join(sorted(s.name for s in self.sites)) or "(none)"
                reason = f" ({self.withheld[site]})" if site in self.withheld else ""
                raise MissingSite(
                    f"{by} requires site {site.name!r}, which {self.spec.name} does not provide{reason}. "
                    f"Available sites: {available}."
                )

    @final
    def layers_of(self, *sites: Site) -> tuple[int, ...]:
        """Return the layers that have all of these sites."""
        every = range(self.spec.n_layers)
        own = [frozenset(every if site in self.sites else self.partial_sites.get(site, ())) for site in sites]
        return tuple(sorted(frozenset(every).intersection(*own)))

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
    @alone()
    def foreign_hooks(self) -> tuple[str, ...]:
        """Return the names of submodules with forward hooks that bayesgeom did not set; during a pass, its own as well.

        Hooks of others may edit activations, so every report's provenance lists them. Hooks that torch calls for every
        module of the process are named first, as `EVERY_MODULE`.
        """
        found = [
            name or "(whole model)"
            for name, part in self.module.named_modules()
            if part._forward_hooks or part._forward_pre_hooks
        ]
        return (*([EVERY_MODULE] if has_global_hooks() else []), *found)

    @final
    @alone()
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

        The module runs in evaluation mode and without gradients. Afterwards, also after an exception, its former modes
        are restored and only the hooks set here are removed. Another thread that uses the same module waits.

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
        self.check_surroundings()
        wanted, stream = _split(record)
        budget = recording_bytes(self.spec.device, self.memory_gib) if budget_bytes is None else budget_bytes
        layers = {site: self.partial_sites[site] for site in wanted if site in self.partial_sites}
        self.require([site for site in wanted if site not in layers], by="this run")
        places = {site: self.layers_of(site) for site in wanted if not site.is_static}
        recorder, log = Recorder(self.module, self.spec, self.point, places, stream), BehaviorLog()
        with evaluating(self.module), torch.no_grad():
            passes = self._cut(blocks, recorder, n_recorded, budget)
            trials, log_answers = self._pass_over(passes, recorder, log, baseline_predictives)
        static = {site: self._static(site, trials) for site in wanted if site.is_static}
        scored, exact, baselines = log.finished()
        n_kept = recorder.room or recorder.n_streamed  # a run has at least one sequence
        run = Run(
            spec=self.spec,
            behavior=scored,
            exact_behavior=exact,
            baseline_behaviors=baselines,
            trials=trials.rows(slice(0, n_kept)),
            log_answers=log_answers[:n_kept],
            recorded=recorder.finished() | static,
            layers=layers,
            seed=seed,
            windows=log.windows(),
        )
        if stream is None:
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
        ids = torch.cat([trials.tokens.flatten(), trials.answers])
        if int(ids.min()) < 0 or int(ids.max()) >= d_vocab:
            raise TaskMismatch(
                f"the task uses ids {int(ids.min())} … {int(ids.max())}; {self.spec.name} has {d_vocab} ids, 0 … "
                f"{d_vocab - 1}. Use the task that the model was trained on."
            )

    @final
    def _static(self, site: Site, trials: Trials) -> Float[Tensor, "layer *axes"]:
        tokens = trials.token_ids()
        with torch.no_grad():
            return torch.stack([self._static_of(site, tokens, layer) for layer in self.layers_of(site)])

    @final
    def _static_of(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        """The static site of one layer. Products of W_K are computed here, so only one layer's W_K is in memory."""
        if site != W_K_GRAM:
            return self.static(site, tokens, layer)
        exact = (columns.double() for columns in self.static(W_K, tokens, layer))
        return torch.stack([columns @ columns.T for columns in exact]).float()

    @final
    def _cut(
        self, blocks: Iterable[Trials], recorder: Recorder, n_recorded: int, budget_bytes: int
    ) -> Iterator[tuple[Trials, bool]]:
        """Yield the sequences of each pass, and whether they are kept."""
        start, most = 0, pass_bytes(self.spec.device, budget_bytes)
        for block in blocks:
            self.check_fits(block)
            if not start:
                recorder.make_room(recorder.room_for(block, most=n_recorded, budget_bytes=budget_bytes))
            # Split a block at the end of the storage, so that the rest of it runs without hooks.
            ends = sorted({0, *(end - start for end in (recorder.room, recorder.n_streamed)), len(block)})
            for first, last in pairwise(end for end in ends if 0 <= end <= len(block)):
                cut = block.rows(slice(first, last)) if last - first < len(block) else block
                at_once = max(1, min(most // bytes_of_pass(self.spec, cut), self.batch_size or len(cut)))
                for part in cut.batches(at_most=at_once):
                    yield part, start + first < max(recorder.room, recorder.n_streamed)
            start += len(block)

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
    def _pass_over(
        self,
        passes: Iterable[tuple[Trials, bool]],
        recorder: Recorder,
        log: BehaviorLog,
        baseline_predictives: BaselinePredictives | None,
    ) -> tuple[Trials, Float64[Tensor, "batch query_pos answer"]]:
        """Run every pass, score it into the log, and return the kept sequences and their answer log-probabilities."""
        kept, n_bad = list[_Stored](), 0
        for trials, is_kept, logits in self._in_memory(passes, recorder):
            if trials.has_posterior:
                is_sound = are_finite(logits)
                log_answers, off_answer_prob = answer_log_probabilities(logits, trials)
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
                kept.append(_Stored(trials=trials, log_answers=log_answers))
        if not log.n:
            raise InvalidArgument("a run needs at least one block of trials; the stream was empty.")
        if n_bad:
            raise NonFinite(
                f"{self.spec.name} returned NaN or infinite logits in {n_bad} of {log.n} sequences. Check its weights "
                f"and edits."
            )
        return concatenate([part.trials for part in kept]), torch.cat([part.log_answers for part in kept])


@final
@dataclass(frozen=True, kw_only=True)
class _Stored:
    """The sequences of one recorded pass and their answer log-probabilities."""

    trials: Trials
    log_answers: Float64[Tensor, "batch query_pos answer"]


def _split(record: Iterable[Site | Stream]) -> tuple[tuple[Site, ...], Stream | None]:
    """Return the sites to record, and the statistics to compute during the passes."""
    given = tuple(dict.fromkeys(record))
    stream = next((own for own in given if isinstance(own, Stream)), None)
    return tuple(own for own in given if isinstance(own, Site)), stream


def _short(count: int) -> str:
    """Return a large count with three digits: 2,677,248 is "2.68M"."""
    size, unit = next((own for own in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if count >= 0.9995 * own[0]), (1.0, ""))
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
    own = [site_hook(place, model.point(*place), change) for place, change in hooks.items()]
    return hooked(model.module, own, by=model.spec.name)
