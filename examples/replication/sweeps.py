"""Sweeps of small trainings into one table, `results/sweeps.csv`: pools of chains, capacity, depth, and mixtures.

Every network is small, sees new sequences in every step, and is trained on sampled targets with one thread.
A cell of a sweep is one training, and one job (`bayesgeom.executors`). Cells that the table has are skipped, and a
finished job is not run again, so an interrupted sweep continues.
"""

import csv
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, final, get_type_hints

import torch
import tyro
from jaxtyping import Float64
from torch import Tensor, nn

from bayesgeom.cli import Machines, On
from bayesgeom.core import InvalidArgument, Trials, unknown_name
from bayesgeom.executors import Job
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.scorecards.cell import named_scores
from bayesgeom.scorecards.worlds import NAMED
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.intervals import UNBOUNDED
from bayesgeom.tasks import AssociativeRecall, DirichletMarkov, Process, Product, WindTunnel
from bayesgeom.tasks.base import task_from_config
from bayesgeom.tasks.markov import MarkovProcess
from bayesgeom.training.environment import resolve_precision
from bayesgeom.training.loop import CHECK_EVERY, named_share, snapshot_steps
from bayesgeom.training.recipes import Recipe, recipe_from_dict
from bayesgeom.training.steps import Training
from examples.replication.capacity import capacity_matched, n_parameters

TABLE = Path(__file__).parent / "results" / "sweeps.csv"
POOLS, SYMBOLS, LENGTH = (4, 16, 64, 256, 1_024), 4, 64
PAIRS, BEYOND, KEYS = (2, 4, 8, 16), (24, 28), 32
LONGEST = 129  # tokens of 16 pairs and 16 queries
DEPTHS, LENGTHS = (1, 2, 3, 4), (8, 16, 32, 64)
MIXED = ("mess3:x=0.05,a=0.85", "rrxor")  # two processes in one context
COMPARED, RATES = ("transformer", "lstm", "mamba", "mamba2", "rwkv"), (2e-3, 4e-3)
MATRIX = 5.0  # Muon's rate over that of AdamW, which trains what is no matrix of a block
WIDTHS, N_HELD_OUT = (64, 128), 512  # width of the transformers of `pools` and `depth`, and of `capacity`
_HELD_OUT_SEED = 1_000_003
ONE_PROCESS = Machines(on="local:1")

Numbers = Iterator[tuple[str, str, Float64[Tensor, " batch"]]]  # where (default: the setting), quantity, values


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a sweep.

    `setting` is what the network was trained on, and `at` on what it was measured. Ends are those of a 95 % interval
    over sequences, NaN where there is none. `seconds` is the processor time of the training until then.
    """

    sweep: str
    architecture: str
    setting: str
    seed: int
    lr: float
    at: str = ""
    step: int = 0
    quantity: str = ""
    value: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    seconds: float = 0.0


Cell = tuple[Row, WindTunnel, dict[str, Any]]  # with its task and the sizes of its network


def sweep(
    name: Annotated[Literal["pools", "capacity", "depth", "mixed"], tyro.conf.Positional],
    /,
    *,
    minutes: float = 3.0,
    steps: int = 2_000,
    seeds: tuple[int, ...] = (0,),
    rates: int = 2,
    only: tuple[str, ...] = (),
    table: Path = TABLE,
    machines: On = ONE_PROCESS,
) -> None:
    """Train the cells of a sweep that the table lacks, measure them and append their rows. One thread each.

    Args:
        name: `pools`: chains from finite pools. `capacity`: recall of 2 to 16 pairs by five architectures. `depth`:
            transformers of 1 to 4 layers and equal parameters on 8 to 64 symbols of RRXOR. `mixed`: two
            processes in one context, and each alone.
        minutes: Most processor time of a cell's training steps.
        steps: Most steps of a cell; the learning rate falls to 0 over them.
        seeds: Seeds of the trainings.
        rates: How many of the two learning rates `capacity` tries.
        only: Sizes of pools, architectures, lengths, or "both", "first", "second", to train only these. Default: all.
        table: The table.
        machines: Where cells are trained.

    Raises:
        UnknownName: `only` has a name that is none of these.
        ExecutorFault: A job failed; the results of the others are kept, and no row is added.
    """
    known, jobs, allowed = {_key(row) for row in read(table)}, list[Job](), set[str]()
    for cell, task, sizes in (own for seed in seeds for own in _cells(name, seed, rates)):
        allowed |= (names := {cell.architecture if name == "capacity" else cell.setting.split()[-1]})
        if _key(cell) not in known and (not only or names & set(only)):
            budget = {"minutes": minutes, "steps": steps}
            arguments = {"cell": asdict(cell), "task": task.config(), "sizes": sizes, **budget}
            jobs.append(Job(name=" ".join(map(str, _key(cell))), function=cell_at, arguments=arguments))
    if unknown := sorted(set(only) - allowed):
        raise unknown_name(f"cell of {name}", unknown[0], sorted(allowed))
    with machines.executor() as batch:
        assert batch is not None, "an engine is named"
        append(table, [*itertools.chain.from_iterable(batch.results(jobs, desc="cells"))])


def cell_at(
    *, cell: Mapping[str, Any], task: Mapping[str, Any], sizes: Mapping[str, Any], minutes: float, steps: int
) -> list[Row]:
    """Do the job of one cell: train it, and return its rows."""
    own = Row(**cell)
    recipe = Recipe(
        name=own.sweep,
        task=task_from_config(task),
        sizes=sizes,
        optimizer="muon" if own.sweep == "capacity" else "adamw",
        lr=own.lr,
        matrix_lr=MATRIX * own.lr,
        steps=steps,
        seed=own.seed,
        float32_share=0.0,
        snapshots=12,
    )
    config = recipe.model_config()
    precision = resolve_precision("auto", "cpu")
    training = Training(recipe, config.build(seed=own.seed), precision=precision)
    measured = {"pools": _pools, "capacity": _capacity}.get(own.sweep, _whole)
    rows = [_sized(own, n_parameters(config))]
    for at, quantity, values in measured(training, 60 * minutes):
        done = replace(own, step=training.step, seconds=round(training.seconds, 1))
        rows.append(numbered(done, at or own.setting, quantity, values))
    return rows


def numbered(cell: Row, at: str, quantity: str, values: Float64[Tensor, " sequence"]) -> Row:
    """Return the row of a mean over sequences, with its interval."""
    bounds = (0.0, 1.0) if quantity.startswith("share") else UNBOUNDED
    lower, upper = map(float, mean_interval(values.numpy(), seed=0, bounds=bounds))
    return replace(cell, at=at, quantity=quantity, value=float(values.mean()), lower=lower, upper=upper)


def _sized(cell: Row, n: int) -> Row:
    return replace(cell, quantity="parameters", value=float(n))


def read(table: Path = TABLE) -> list[Row]:
    """Return the rows of the table; none if there is no table."""
    if not table.exists():
        return []
    kinds = get_type_hints(Row)
    with table.open(encoding="utf-8", newline="") as file:
        return [Row(**{name: kinds[name](text) for name, text in line.items()}) for line in csv.DictReader(file)]


def append(table: Path, rows: Sequence[Row]) -> None:
    """Append rows to the table, with a head if it is new."""
    is_new = not table.exists()
    with table.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [own.name for own in fields(Row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def _key(row: Row) -> tuple[str, str, str, int, float]:
    return row.sweep, row.architecture, row.setting, row.seed, row.lr


def _cells(name: str, seed: int, rates: int) -> Iterator[Cell]:
    """Yield the cells of a sweep."""

    def made(setting: str, task: WindTunnel, sizes: dict[str, Any], lr: float = 3e-3) -> Cell:
        architecture = str(sizes["architecture"])
        return Row(sweep=name, architecture=architecture, setting=setting, seed=seed, lr=lr), task, sizes

    if name == "pools":
        for pool in POOLS:
            chains = DirichletMarkov(n_symbols=SYMBOLS, length=LENGTH, pool=pool)
            yield made(f"pool {pool}", chains, _transformer(WIDTHS[0]))
    elif name == "capacity":
        longest, sizes = recall(max(PAIRS)), _transformer(WIDTHS[1])
        reference = Recipe(name=name, task=longest, sizes=sizes).model_config()
        for lr, architecture in itertools.product(RATES[:rates], COMPARED):
            matched = sizes if architecture == "transformer" else vars(capacity_matched(architecture, reference))
            yield made(f"{KEYS} keys, muon", longest, {**matched, "architecture": architecture}, lr)
    elif name == "mixed":
        for setting, process in _mixed_tasks().items():
            yield made(setting, process, _transformer(WIDTHS[0]))
    else:
        for length, depth in itertools.product(LENGTHS, DEPTHS):
            # Equal widths: the feed-forward layers have the parameters that the attention of more layers takes.
            equal = {"n_layers": depth, "d_mlp": (12 * WIDTHS[0]) // depth - 2 * WIDTHS[0]}
            setting = f"depth {depth} length {length}"
            yield made(setting, Process("rrxor", length=length), {**_transformer(WIDTHS[0]), **equal})


def _transformer(width: int) -> dict[str, Any]:
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": width, "d_mlp": 4 * width}
    return {"architecture": "transformer", "positions": "rotary", "tied": False, **sizes}


def _has_time(training: Training, seconds: float) -> bool:
    return not training.is_over and training.seconds <= seconds


def _pools(training: Training, seconds: float) -> Numbers:
    """Measure the distance to both observers at log-spaced steps, on chains of the pool and on new chains."""
    task, due = training.recipe.task, snapshot_steps(training.recipe)
    assert isinstance(task, DirichletMarkov)
    held_out = list[tuple[str, str, Trials, Float64[Tensor, "batch query_pos answer"]]]()
    for at, observers in (("pool", ("memorizing", "generalizing")), ("fresh", ("generalizing", "memorizing"))):
        data = replace(task, fresh=at == "fresh")
        trials = data.sample(N_HELD_OUT, seed=_HELD_OUT_SEED)
        other = data.baseline_predictives(trials)[observers[1]]
        held_out += [(at, observers[0], trials, trials.at_scored(trials.predictive)), (at, observers[1], trials, other)]
    while True:
        if training.step in due or not _has_time(training, seconds):
            for at, observer, trials, predictive in held_out:
                yield at, f"kl_to_{observer}", kl_bits(predictive, _answers(training.evaluated(), trials)).mean(1)
        if not _has_time(training, seconds):
            return
        training.advance()


def _capacity(training: Training, seconds: float) -> Numbers:
    """Train by a curriculum that doubles the pairs once enough stored values are named; then measure every number.

    A stage ends once the share is reached, or the time is over: later stages are then not reached.
    """
    for pairs in PAIRS:
        training.on(stage := recall(pairs))
        checked = stage.sample(N_HELD_OUT // 4, seed=_HELD_OUT_SEED + 1)
        while _has_time(training, seconds):
            if training.step % CHECK_EVERY == 0 and named_share(training.evaluated(), checked) >= NAMED:
                break
            training.advance()
        yield from _recalled(training.evaluated(), f"{pairs} pairs, trained to {pairs}", pairs)
        if not _has_time(training, seconds):
            break
    yield from _recalled_beyond(training.evaluated())


def _whole(training: Training, seconds: float) -> Numbers:
    """Train for the whole time; measure the KL to the exact observer, and that of each symbol of a pair."""
    while _has_time(training, seconds):
        training.advance()
    task = training.recipe.task
    held_out = task.sample(N_HELD_OUT, seed=_HELD_OUT_SEED)
    exact, answers = held_out.at_scored(held_out.predictive), _answers(training.evaluated(), held_out)
    yield "", "kl_bits", kl_bits(exact, answers).mean(1)
    if isinstance(task, Product):
        sizes = [factor.d_vocab for factor in task.factors]
        for own, other in (("first", -1), ("second", -2)):
            of_factor = exact.unflatten(-1, sizes).sum(other), answers.unflatten(-1, sizes).logsumexp(other)
            yield own, "kl_bits", kl_bits(*of_factor).mean(1)


def _mixed_tasks() -> dict[str, MarkovProcess]:
    """Return two processes in one context, as pairs of symbols, and each alone."""
    both = Product(MIXED[0], MIXED[1], length=LENGTH)
    return {"both": both, **dict(zip(("first", "second"), both.factors, strict=True))}


def capacity(checkpoint: Annotated[str, tyro.conf.Positional], /, *, table: Path = TABLE) -> None:
    """Measure the share of stored values that a trained network names, at each number of pairs, as `sweep capacity`.

    Args:
        checkpoint: A network on recall of 32 keys and values, such as binding-transformer.
        table: The table.

    Raises:
        InvalidArgument: The network is of another task.
    """
    found = load_checkpoint(checkpoints().get(checkpoint, Path(checkpoint)))
    recipe = recipe_from_dict(found.recipe)
    task, measured = recipe.task, recall(PAIRS[-1])
    if not isinstance(task, AssociativeRecall) or replace(task, n_pairs=1) != replace(measured, n_pairs=1):
        raise InvalidArgument(f"{checkpoint} was trained on {task}; this measures {measured}.")
    cell = Row(
        sweep="capacity",
        architecture=str(recipe.sizes["architecture"]),
        setting=f"{KEYS} keys, {recipe.name}",
        seed=recipe.seed,
        lr=recipe.lr,
        step=found.step,
    )
    rows = [numbered(cell, *number) for number in _recalled_beyond(found.module)]
    append(table, [_sized(cell, n_parameters(recipe.model_config())), *rows])


def _recalled_beyond(module: nn.Module) -> Numbers:
    for pairs in (*PAIRS, *BEYOND):
        yield from _recalled(module, f"{pairs} pairs", pairs)


def _recalled(module: nn.Module, at: str, pairs: int) -> Numbers:
    trials = recall(pairs).sample(N_HELD_OUT, seed=_HELD_OUT_SEED)
    kl, share = map(torch.from_numpy, named_scores(module, trials))
    yield at, "share_named", share
    yield at, "kl_bits", kl


def recall(pairs: int) -> AssociativeRecall:
    """Return the task with so many stored pairs, and as many queries as fit into the length at 16 pairs."""
    queries = min(8 if pairs < 4 else 16, (LONGEST - 4 * pairs - 1) // 4)
    return AssociativeRecall(n_pairs=pairs, n_keys=KEYS, n_values=KEYS, n_queries=queries)


@torch.no_grad()
def _answers(module: nn.Module, trials: Trials) -> Float64[Tensor, "batch query_pos answer"]:
    """Return the log-probabilities of the answers at the scored positions."""
    return trials.at_scored(module(trials.tokens))[:, :, trials.answers].double().log_softmax(-1)
