"""The pass of a diagnosis over all its sequences, of which the first are recorded."""

from collections.abc import Iterator

from bayesgeom.core import N_RECORDED, Run, Site, Trials, concatenate, phase
from bayesgeom.diagnosis.plan import Plan, sites_read
from bayesgeom.models.base import LARGE, Model, Stream
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

_PART = 16  # sequences that a large model runs at once


def whole_run(model: Model, task: WindTunnel, plan: Plan, *, n: int, seed: int, budget: int) -> Run:
    """Run `n` sequences of a task; `plan` says what is recorded, `budget` in how many bytes."""
    with phase(model.spec.name, n, "sequence") as shown:

        def counted() -> Iterator[Trials]:
            for part in _in_passes(model, _sequences(model, task, n, seed)):
                yield part
                shown.update(len(part))  # the next part is requested, so this one is done

        return model.run(
            counted(),
            record=_record(model, task, plan, seed),
            baseline_predictives=task.baseline_predictives,
            n_recorded=min(n, N_RECORDED),  # storage for more sequences than there are would be filled in part
            budget_bytes=budget,
            seed=derived_seed(seed, Branch.RESAMPLING),
        )


def _record(model: Model, task: WindTunnel, plan: Plan, seed: int) -> list[Site | Stream]:
    """What the pass records for the probes of the plan."""
    layers = {
        reduction: model.layers_of(reduction.site)
        for name in plan.streamed
        for reduction in plan.supported[name].needs.streamed
        if reduction.site in sites_read(model, plan.supported[name])
    }
    if not layers:
        return [*plan.sites]
    blocks = list(_sequences(model, task, plan.n_streamed, seed))
    return [*plan.sites, Stream(layers=layers, trials=concatenate(blocks).rows(slice(0, plan.n_streamed)))]


def _sequences(model: Model, task: WindTunnel, n: int, seed: int) -> Iterator[Trials]:
    """The first `n` sequences, the same for the model and for the untrained networks."""
    return task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)


def _in_passes(model: Model, blocks: Iterator[Trials]) -> Iterator[Trials]:
    """Yield the blocks, for a large model in parts that take seconds, so that progress is visible."""
    for block in blocks:
        at_once = len(block) if model.spec.n_parameters < LARGE else _PART
        yield from block.batches(at_most=at_once)
