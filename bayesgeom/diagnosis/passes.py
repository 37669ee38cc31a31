"""The passes of a diagnosis: first over the sequences whose activations are recorded, then over the others.

Probes read the activations of the first sequences only. So in a small model the other sequences run while probes are
measured: a forward pass consists of few long operations and needs Python's lock rarely, probes need it all the time.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, final

from bayesgeom.core.progress import bar
from bayesgeom.core.run import N_RECORDED, Run, Site, Trials, concatenate
from bayesgeom.core.torch_state import lock_of
from bayesgeom.diagnosis._run_scores import RunScores
from bayesgeom.diagnosis.measuring import LARGE
from bayesgeom.diagnosis.plan import Plan, sites_read
from bayesgeom.models.base import Model, Stream
from bayesgeom.models.captured.model import CapturedModel
from bayesgeom.models.served.model import ServedModel
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

_PART = 16  # sequences that a large model runs at once
_STEP = 64  # sequences of a step: when probes end, the other threads wait for the end of the step


@final
@dataclass(frozen=True, kw_only=True)
class Sequences:
    """The same sequences for the model and for the untrained networks."""

    task: WindTunnel
    seed: int
    device: str

    def blocks(self, n: int) -> Iterator[Trials]:
        """Draw the first `n` sequences.

        Args:
            n: Number of sequences.

        Raises:
            InvalidArgument: `n` is below 1; raised before anything is drawn.
        """
        return self.task.stream(n, seed=self.seed, device=self.device)


def _record(model: Model, plan: Plan, stream: Sequences) -> list[Site | Stream]:
    """What a pass records for the probes of a plan."""
    layers = {
        reduction: model.layers_of(reduction.site)
        for name in plan.streamed
        for reduction in plan.supported[name].needs.streamed
        if reduction.site in sites_read(model, plan.supported[name])
    }
    if not layers:
        return [*plan.sites]
    blocks = list(stream.blocks(plan.n_streamed))
    return [*plan.sites, Stream(layers=layers, trials=concatenate(blocks).rows(slice(0, plan.n_streamed)))]


@contextmanager
def passes(
    model: Model, sequences: Sequences, blocks: Iterator[Trials], plan: Plan, *, n: int, seed: int, budget: int
) -> Iterator["Passes"]:
    """Yield the passes over blocks of `n` sequences in all, and show their progress inside the block.

    `plan` says what is recorded, `budget` in how many bytes.
    """
    with bar(total=n, desc=model.spec.name, unit="seq", leave=False) as shown:

        def counted() -> Iterator[Trials]:
            for part in _in_passes(model, blocks):
                yield part
                shown.update(len(part))  # the next part is requested, so this one is done

        yield Passes(model, sequences, counted(), plan, seed=seed, budget=budget)


@final
class Passes:
    """The passes of one model: `first`, then `others` step by step, then `whole`."""

    def __init__(
        self,
        model: Model,
        sequences: Sequences,
        blocks: Iterator[Trials],
        plan: Plan,
        *,
        seed: int,
        budget: int,
    ) -> None:
        self._model, self._sequences, self._plan, self._budget = model, sequences, plan, budget
        self._seed = derived_seed(seed, Branch.RESAMPLING)
        self._is_whole = (
            model.spec.n_parameters >= LARGE or bool(plan.streamed) or isinstance(model, CapturedModel | ServedModel)
        )
        self._blocks, self._others = (blocks, iter(())) if self._is_whole else _split(blocks, N_RECORDED)
        self._scores: list[RunScores] = []

    def locked(self) -> AbstractContextManager[Any]:
        """Return the lock of the module if `others` runs it, to be taken before probes are measured meanwhile."""
        return nullcontext() if self._is_whole else lock_of(self._model.module)

    def first(self) -> Run:
        """Run the sequences whose activations are recorded; all if the model is large, on disk or on a server."""
        run = self._model.run_from_disk if isinstance(self._model, CapturedModel) else self._model.run
        return run(
            self._blocks,
            record=_record(self._model, self._plan, self._sequences),
            n_recorded=N_RECORDED,
            baseline_predictives=self._sequences.task.baseline_predictives,
            budget_bytes=self._budget,
            seed=self._seed,
        )

    def others(self) -> Iterator[None]:
        """Run the other sequences, a pass per step, and keep their scores."""
        for block in (part for whole in self._others for part in whole.batches(at_most=_STEP)):
            # Nothing is recorded; a run that keeps fewer of its sequences would be cut into two passes.
            found = self._model.run(
                [block], n_recorded=len(block), baseline_predictives=self._sequences.task.baseline_predictives
            )
            self._scores.append(RunScores.of(found))
            yield

    def whole(self, first: Run) -> Run:
        """Return the first run with the scores of all sequences that have run."""
        return RunScores.of(first).followed_by(self._scores).of_run(first) if self._scores else first


def _split(blocks: Iterator[Trials], n_first: int) -> tuple[Iterator[Trials], Iterator[Trials]]:
    """Return the first sequences and the others. The first ones must be read before the others."""
    rest = list[Trials]()

    def first() -> Iterator[Trials]:
        missing = n_first
        while missing > 0 and (block := next(blocks, None)) is not None:
            if len(block) > missing:
                rest.append(block.rows(slice(missing, None)))
            yield block.rows(slice(0, missing))
            missing -= len(block)

    def others() -> Iterator[Trials]:
        yield from rest
        yield from blocks

    return first(), others()


def _in_passes(model: Model, blocks: Iterator[Trials]) -> Iterator[Trials]:
    """Yield the blocks, for a large model in parts that take seconds, so that progress is visible."""
    for block in blocks:
        at_once = len(block) if model.spec.n_parameters < LARGE else _PART
        yield from block.batches(at_most=at_once)
