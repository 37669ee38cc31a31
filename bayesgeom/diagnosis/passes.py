"""The passes of a diagnosis: first over the sequences whose activations are recorded, then over the others.

Probes read the activations of the first sequences only. So in a small model the other sequences run while probes are
measured: a forward pass consists of few long operations and needs Python's lock rarely, probes need it all the time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core import N_RECORDED, Ask, Behavior, Run, Site, Trials, concatenate, phase
from bayesgeom.core.torch_state import lock_of
from bayesgeom.diagnosis.plan import Plan, sites_read
from bayesgeom.measurements.base import Measurement
from bayesgeom.measurements.running import further_runs
from bayesgeom.models.base import LARGE, Model, Stream
from bayesgeom.stats.windows import joined
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

_PART = 16  # sequences that a large model runs at once
_STEP = 64  # sequences of a step: when probes end, the other threads wait for the end of the step


@contextmanager
def passes(model: Model, task: WindTunnel, plan: Plan, *, n: int, seed: int, budget: int) -> Iterator["ModelPasses"]:
    """Yield the passes over `n` sequences of a task, and show their progress inside the block.

    `plan` says what is recorded, `budget` in how many bytes.
    """
    with phase(model.spec.name, n, "sequence") as shown:

        def counted() -> Iterator[Trials]:
            for part in _in_passes(model, _sequences(model, task, n, seed)):
                yield part
                shown.update(len(part))  # the next part is requested, so this one is done

        # Storage for more sequences than there are would be memory that is filled in part.
        limits = {"n_recorded": min(n, N_RECORDED), "budget_bytes": budget}
        yield ModelPasses(model, task, counted(), plan, seed=seed, limits=limits)


@final
class ModelPasses:
    """The passes of one model: `first`, then `others` step by step, then `whole`."""

    def __init__(
        self,
        model: Model,
        task: WindTunnel,
        blocks: Iterator[Trials],
        plan: Plan,
        *,
        seed: int,
        limits: Mapping[str, int],
    ) -> None:
        self._model, self._task, self._plan, self._seed, self._limits = model, task, plan, seed, limits
        self._is_whole = model.spec.n_parameters >= LARGE or bool(plan.streamed) or Ask.RERUN not in model.asks
        self._blocks, self._others = (blocks, iter(())) if self._is_whole else _split(blocks, N_RECORDED)
        self._scores: list[dict[str, Any]] = []

    def locked(self) -> AbstractContextManager[Any]:
        """Return the lock of the module if `others` runs it, to be taken before probes are measured meanwhile."""
        return nullcontext() if self._is_whole else lock_of(self._model.module)

    def first(self) -> Run:
        """Run the sequences whose activations are recorded; all if the model is large, on disk or on a server."""
        return self._model.run(
            self._blocks,
            record=self._record(),
            baseline_predictives=self._task.baseline_predictives,
            **self._limits,
            seed=derived_seed(self._seed, Branch.RESAMPLING),
        )

    def _record(self) -> list[Site | Stream]:
        """What the first pass records for the probes of the plan."""
        plan = self._plan
        layers = {
            reduction: self._model.layers_of(reduction.site)
            for name in plan.streamed
            for reduction in plan.supported[name].needs.streamed
            if reduction.site in sites_read(self._model, plan.supported[name])
        }
        if not layers:
            return [*plan.sites]
        blocks = list(_sequences(self._model, self._task, plan.n_streamed, self._seed))
        return [*plan.sites, Stream(layers=layers, trials=concatenate(blocks).rows(slice(0, plan.n_streamed)))]

    def others(self) -> Iterator[None]:
        """Run the other sequences, a pass per step, and keep their scores."""
        for block in (part for whole in self._others for part in whole.batches(at_most=_STEP)):
            # Nothing is recorded; a run that keeps fewer of its sequences would be cut into two passes.
            run = self._model.run([block], n_recorded=len(block), baseline_predictives=self._task.baseline_predictives)
            self._scores.append(_scores(run))
            yield

    def further(self, measurement: Measurement[Any], first: Run) -> tuple[Run, ...]:
        """Run the further sequences of a measurement."""
        return further_runs(self._model, measurement, self._task, first, seed=self._seed)

    def whole(self, first: Run) -> Run:
        """Return the first run with the scores of all sequences that have run. Fields that share arrays still do."""
        if not self._scores:
            return first
        every, shared = [_scores(first), *self._scores], dict[tuple[int, ...], Float[np.ndarray, "sequence position"]]()

        def together(parts: Sequence[Behavior]) -> Behavior:
            columns = dict[str, Float[np.ndarray, "sequence position"]]()
            for name in vars(parts[0]):
                arrays = [vars(part)[name] for part in parts]
                key = tuple(map(id, arrays))
                columns[name] = shared[key] = shared[key] if key in shared else np.concatenate(arrays)
            return Behavior(**columns)

        return replace(
            first,
            behavior=together([run["behavior"] for run in every]),
            exact_behavior=together([run["exact_behavior"] for run in every]),
            baseline_behaviors={
                name: together([run["baseline_behaviors"][name] for run in every]) for name in first.baseline_behaviors
            },
            windows=joined([run["windows"] for run in every if run["windows"] is not None]),
        )


def _scores(run: Run) -> dict[str, Any]:
    """The scores of a run, without its sequences and activations."""
    return {name: vars(run)[name] for name in ("behavior", "exact_behavior", "baseline_behaviors", "windows")}


def _sequences(model: Model, task: WindTunnel, n: int, seed: int) -> Iterator[Trials]:
    """The first `n` sequences, the same for the model and for the untrained networks."""
    return task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)


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
