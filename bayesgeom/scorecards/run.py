"""`scorecard`: train architectures on worlds at several rates, then with more seeds at the best, and score them."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from importlib import resources
from types import SimpleNamespace
from typing import Any

import numpy as np

from bayesgeom.core import InvalidArgument, checked, phase
from bayesgeom.executors import Batch, Executor, Job
from bayesgeom.scorecards.architectures import Architecture, architectures_of
from bayesgeom.scorecards.cell import DIVERGED, SCORED, Cell, Row, cell_at, measured
from bayesgeom.scorecards.report import Scorecard, card_of
from bayesgeom.scorecards.worlds import World, worlds_of

REFERENCE = "reference.parquet"
_MIDDLE, _STEP, _WIDEST = 2e-3, 0.5, 2.0  # of rates: the middle one, decades between two and between the outer ones


@checked()
def scorecard(
    make: Any,
    worlds: Any = "core",
    *,
    steps: int = 2_000,
    rates: int | Sequence[float] = 3,
    seeds: int = 3,
    batch_size: int = 64,
    beside: bool = True,
    executor: Executor | Batch | None = None,
) -> Scorecard:
    """Train architectures from scratch on worlds whose posterior is known, and measure what each learned to infer.

    Every cell has the same number of sequences. It is trained at every rate; the rate with the least KL on held-out
    sequences gets the other seeds, and other sequences score it. A cell whose network fails or diverges has a reason
    instead of numbers; one that failed is trained again by the next call. Finished cells are kept in the folder of the
    executor, or in runs/jobs, if the architecture can be found again by its text; a killed run then continues.

    Args:
        make: `make(d_vocab, n_ctx)`, which returns a module from ids to logits; "FILE.py:NAME" of such a function; a
            name such as "lstm"; a configuration of Hugging Face; or a list of these, or a dictionary by name.
        worlds: "core", "recall", "chains", "all", the name of one world, a task, a `World`, or a list of these.
        steps: Training steps of a cell.
        rates: Peak learning rates, or their number, log-spaced around 0.002 over at most two decades.
        seeds: Number of trainings at the best rate.
        batch_size: Sequences of a step.
        beside: Whether the report has the shipped rows of known architectures, too.
        executor: Where cells are trained, a job each (see `bayesgeom.executors`). Default: this process.

    Returns:
        What every architecture reached in every world.

    Raises:
        InvalidArgument: An argument is out of range, or `executor` is given and an architecture is only known here.
        UnknownName: There is no such architecture or world.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> card = bayesgeom.scorecard("lstm", "dice", steps=2, rates=1, seeds=1, batch_size=4)
        >>> card.own, card.worlds
        (('lstm',), ('dice',))
    """
    for name, number in (("steps", steps), ("seeds", seeds), ("batch_size", batch_size)):
        if number < 1:
            raise InvalidArgument(f"{name} must be at least 1, got {number}.")
    architectures, places = architectures_of(make), worlds_of(worlds)
    if len({own.name for own in architectures}) < len(architectures):
        raise InvalidArgument("two architectures have the same name: pass a dictionary with names of your own.")
    chosen = rates_of(rates)
    rows = _trained(architectures, places, chosen, seeds, executor, steps=steps, batch_size=batch_size)
    budget = {"steps": steps, "batch_size": batch_size, "rates": list(chosen), "seeds": seeds}
    reference = reference_rows(places) if beside else ()
    return card_of(rows, places, arguments={**budget, "n": SCORED, "seed": 0}, reference=reference)


def _trained(
    architectures: Sequence[Architecture],
    worlds: Sequence[World],
    rates: Sequence[float],
    seeds: int,
    executor: Executor | Batch | None,
    *,
    steps: int,
    batch_size: int,
) -> list[Row]:
    """Return the rows of all cells: one at each rate, then the other seeds at the best."""

    def cell(architecture: Architecture, world: World, rate: float, seed: int) -> Cell:
        budget = {"steps": max(1, round(steps * world.budget)), "batch_size": batch_size}
        return Cell(architecture=architecture, world=world, rate=rate, seed=seed, **budget)

    pairs = list(itertools.product(architectures, worlds))
    rows = run_cells([cell(*pair, rate, 0) for pair in pairs for rate in rates], executor)
    best = best_rates(rows)
    places = [(*pair, best[pair[0].name, pair[1].name]) for pair in pairs if (pair[0].name, pair[1].name) in best]
    return rows + run_cells([cell(*place, seed) for place in places for seed in range(1, seeds)], executor)


def reference_rows(worlds: Sequence[World]) -> list[Row]:
    """Return the shipped rows of these worlds, of networks that were trained as `docs/scorecard.md` says."""
    import pandas as pd

    known = {world.name for world in worlds if world in worlds_of("all") or world in worlds_of("chains")}
    table = pd.read_parquet(str(resources.files("bayesgeom.scorecards") / REFERENCE))
    table = table[table["world"].isin(known)]
    return [Row(**{field.name: row[field.name] for field in fields(Row)}) for row in table.to_dict("records")]


def rates_of(given: int | Sequence[float]) -> tuple[float, ...]:
    """Return the peak learning rates, in ascending order.

    Example:
        >>> [f"{rate:.2g}" for rate in rates_of(3)]
        ['0.00063', '0.002', '0.0063']
    """
    if isinstance(given, int):
        decades = min(_WIDEST, _STEP * (given - 1))
        factors = np.logspace(-decades / 2, decades / 2, max(0, given))
        found = [float(f"{rate:.3g}") for rate in _MIDDLE * factors]
    else:
        found = sorted(set(map(float, given)))
    if not found or not all(0 < rate < math.inf for rate in found):
        raise InvalidArgument(f"rates must be a number of at least 1, or positive learning rates; got {given!r}.")
    return tuple(found)


def best_rates(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return the rate with the least KL on held-out sequences at the end, by architecture and world."""
    last = dict[tuple[str, str], dict[float, tuple[int, float]]]()
    failed = {(row.architecture, row.world, row.rate) for row in rows if row.quantity == "failed"}
    for row in rows:
        place = row.architecture, row.world
        if row.quantity == "validation_kl_bits" and row.seed == 0 and (*place, row.rate) not in failed:
            ends = last.setdefault(place, {})
            ends[row.rate] = max(ends.get(row.rate, (-1, 0.0)), (row.step, row.value))
    return {place: min(ends, key=lambda rate: ends[rate][1]) for place, ends in last.items()}


def run_cells(cells: Sequence[Cell], executor: Executor | Batch | None) -> list[Row]:
    """Return the rows of all cells, in their order."""
    if not cells:
        return []
    own = [cell.architecture.name for cell in cells if not cell.architecture.text]
    if own and executor is not None:
        raise InvalidArgument(
            f"a worker cannot find {own[0]}, which exists in this process only: pass FILE.py:NAME, or no executor."
        )
    if own:
        rows = list[Row]()
        with phase("cells", len(cells), "cell") as shown:
            for cell in cells:
                rows += measured(cell)
                shown.update(1)
        return rows
    jobs = [Job(name=cell.name, function=cell_at, arguments=cell.arguments()) for cell in cells]
    batch = Batch.of(SimpleNamespace(submit=_later) if executor is None else executor)
    return list(itertools.chain.from_iterable(batch.results(jobs, desc="cells", is_final=_is_finished)))


def _is_finished(rows: Sequence[Row]) -> bool:
    """Return whether the cell did not fail, or diverged, as it would again: other faults may be mended by then."""
    return all(row.quantity != "failed" or row.setting.startswith(DIVERGED) for row in rows)


def _later(fn: Callable[..., Any], *args: Any) -> SimpleNamespace:
    """Return a future that calls `fn(*args)` in this process when its result is asked for."""
    return SimpleNamespace(exception=lambda: None, result=partial(fn, *args))
