"""Sweeps of small trainings into one table, `results/sweeps.csv`: pools of chains, capacity, depth, and mixtures.

Every network is small, sees new sequences in every step, and is trained on sampled targets in one process.
A cell of a sweep is one training. Cells that the table has are skipped, so an interrupted sweep continues.
"""

import csv
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal, final, get_type_hints

import numpy as np
import torch
import tyro
from jaxtyping import Float64
from torch import Tensor, nn

from bayesgeom.core import InvalidArgument, Trials, unknown_name
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.intervals import UNBOUNDED
from bayesgeom.tasks import AssociativeRecall, DirichletMarkov, Process, Product, WindTunnel
from bayesgeom.tasks.markov import MarkovProcess
from bayesgeom.training.environment import Precision, resolve_precision
from bayesgeom.training.loop import training_step
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe, recipe_from_dict
from examples.replication.capacity import capacity_matched, n_parameters

TABLE = Path(__file__).parent / "results" / "sweeps.csv"
POOLS, SYMBOLS, LENGTH = (4, 16, 64, 256, 1_024), 4, 64
PAIRS, BEYOND, KEYS, NAMED, EVERY = (2, 4, 8, 16), (24, 28), 32, 0.97, 50
LONGEST = 129  # tokens of 16 pairs and 16 queries
DEPTHS, LENGTHS = (1, 2, 3, 4), (8, 16, 32, 64)
MIXED = ("mess3:x=0.05,a=0.85", "rrxor")  # two processes in one context
COMPARED, RATES = ("transformer", "lstm", "mamba", "mamba2", "rwkv"), (2e-3, 4e-3)
MATRIX = 5.0  # Muon's rate over that of AdamW, which trains what is no matrix of a block
WIDTHS, N_HELD_OUT = (64, 128), 512  # width of the transformers of `pools` and `depth`, and of `capacity`
_LOG_SECONDS, _HELD_OUT_SEED = 2.0, 1_000_003


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


@final
@dataclass(kw_only=True)
class Training:
    """A network in training, with the clock of its budget and the rows of its cell."""

    cell: Row
    recipe: Recipe
    module: nn.Module
    minutes: float
    step: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.precision: Precision = resolve_precision("auto", self.recipe.model_config(), "cpu")
        self.optimizers = Optimizers(self.recipe, self.module, self.precision)
        self._logged = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the time or the steps are used up."""
        return self.seconds > 60 * self.minutes or self.step >= self.recipe.steps

    def advance(self) -> None:
        """Train one step; write a line at most every two seconds."""
        start = time.process_time()
        loss = training_step(self.recipe, self.module, self.optimizers, self.step, "cpu", self.precision)
        self.step += 1
        self.seconds += time.process_time() - start
        if self.seconds - self._logged > _LOG_SECONDS:
            self._logged = self.seconds
            cell = self.cell
            print(
                f"{cell.sweep} {cell.architecture} {cell.setting} seed {cell.seed} lr {cell.lr:g}: step {self.step:,} "
                f"of {self.recipe.steps:,}, {self.seconds:.0f} of {60 * self.minutes:.0f} s, loss {loss:.4f} nats",
                flush=True,
            )

    def add(self, at: str, quantity: str, per_sequence: Float64[Tensor, " batch"] | int) -> None:
        """Record the mean over sequences with its interval, or a number without one."""
        values = np.asarray(per_sequence, dtype=np.float64)
        bounds = (0.0, 1.0) if quantity.startswith("share") else UNBOUNDED
        lower, upper = map(float, mean_interval(values, seed=0, bounds=bounds)) if values.ndim else (math.nan, math.nan)
        self.rows.append(
            replace(
                self.cell,
                at=at,
                step=self.step,
                quantity=quantity,
                value=float(values.mean()),
                lower=lower,
                upper=upper,
                seconds=round(self.seconds, 1),
            )
        )


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
) -> None:
    """Train the cells of a sweep that the table lacks, measure them and append their rows. One thread.

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

    Raises:
        UnknownName: `only` has a name that is none of these.
    """
    allowed, made = {
        "pools": ([str(pool) for pool in POOLS], _pools),
        "capacity": ([*COMPARED], _capacity),
        "depth": ([str(n) for n in LENGTHS], _whole),
        "mixed": ([*_mixed_tasks()], _whole),
    }[name]
    for own in only:
        if own not in allowed:
            raise unknown_name(f"cell of {name}", own, allowed)
    torch.set_num_threads(1)
    known = {_key(row) for row in read(table)}
    for seed in seeds:
        for training in _trainings(name, seed, rates=rates, minutes=minutes, steps=steps):
            names = {training.cell.architecture, training.cell.setting.split()[-1]}
            if _key(training.cell) in known or (only and not names & set(only)):
                continue
            training.add("", "parameters", n_parameters(training.recipe.model_config()))
            made(training)
            append(table, training.rows)


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


def _trainings(name: str, seed: int, *, rates: int, minutes: float, steps: int) -> Iterator[Training]:
    """Yield the cells of a sweep at their start."""

    def made(setting: str, task: WindTunnel, sizes: dict[str, object], lr: float) -> Training:
        recipe = Recipe(
            name=name,
            task=task,
            sizes=sizes,
            optimizer="muon" if name == "capacity" else "adamw",
            lr=lr,
            matrix_lr=MATRIX * lr,
            steps=steps,
            seed=seed,
            float32_share=0.0,
        )
        cell = Row(sweep=name, architecture=str(sizes["architecture"]), setting=setting, seed=seed, lr=lr)
        module = recipe.model_config().build(seed=seed)
        return Training(cell=cell, recipe=recipe, module=module, minutes=minutes)

    if name == "pools":
        for pool in POOLS:
            chains = DirichletMarkov(n_symbols=SYMBOLS, length=LENGTH, pool=pool)
            yield made(f"pool {pool}", chains, _transformer(WIDTHS[0]), 3e-3)
    elif name == "capacity":
        longest, sizes = recall(max(PAIRS)), _transformer(WIDTHS[1])
        reference = Recipe(name=name, task=longest, sizes=sizes).model_config()
        for lr, architecture in itertools.product(RATES[:rates], COMPARED):
            matched = {} if architecture == "transformer" else vars(capacity_matched(architecture, reference))
            sizes_of = {**(matched or sizes), "architecture": architecture}
            yield made(f"{KEYS} keys, muon", longest, sizes_of, lr)
    elif name == "mixed":
        for setting, process in _mixed_tasks().items():
            yield made(setting, process, _transformer(WIDTHS[0]), 3e-3)
    else:
        for length in LENGTHS:
            filtering = Process("rrxor", length=length)
            for depth in DEPTHS:
                # Equal widths: the feed-forward layers have the parameters that the attention of more layers takes.
                sizes = {
                    **_transformer(WIDTHS[0]),
                    "n_layers": depth,
                    "d_mlp": (12 * WIDTHS[0]) // depth - 2 * WIDTHS[0],
                }
                yield made(f"depth {depth} length {length}", filtering, sizes, 3e-3)


def _transformer(width: int) -> dict[str, object]:
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": width, "d_mlp": 4 * width}
    return {"architecture": "transformer", "positions": "rotary", "tied": False, **sizes}


def _pools(training: Training) -> None:
    """Measure the distance to both observers at log-spaced steps, on chains of the pool and on new chains."""
    task = training.recipe.task
    assert isinstance(task, DirichletMarkov)
    due = {0, *np.geomspace(min(10, training.recipe.steps), training.recipe.steps, 12).round().astype(int).tolist()}
    held_out = list[tuple[str, str, Trials, Float64[Tensor, "batch query_pos answer"]]]()
    for at, observers in (("pool", ("memorizing", "generalizing")), ("fresh", ("generalizing", "memorizing"))):
        data = replace(task, fresh=at == "fresh")
        trials = data.sample(N_HELD_OUT, seed=_HELD_OUT_SEED)
        other = data.baseline_predictives(trials)[observers[1]]
        held_out += [(at, observers[0], trials, trials.at_scored(trials.predictive)), (at, observers[1], trials, other)]
    while True:
        if training.step in due or training.is_over:
            for at, observer, trials, predictive in held_out:
                training.add(at, f"kl_to_{observer}", kl_bits(predictive, _answers(training.module, trials)).mean(1))
        if training.is_over:
            return
        training.advance()


def _capacity(training: Training) -> None:
    """Train by a curriculum that doubles the pairs once enough stored values are named; then measure every number.

    A stage ends once the share is reached, or the time is over: later stages are then not reached.
    """
    for pairs in PAIRS:
        stage = recall(pairs)
        training.recipe = replace(training.recipe, task=stage)
        checked = stage.sample(N_HELD_OUT // 4, seed=_HELD_OUT_SEED + 1)
        while not training.is_over and (training.step % EVERY or named(training.module, checked).mean() < NAMED):
            training.advance()
        _measure(training, f"{pairs} pairs, trained to {pairs}", stage.sample(N_HELD_OUT, seed=_HELD_OUT_SEED))
        if training.is_over:
            break
    _measure_every(training)


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
    setting = f"{KEYS} keys, {recipe.name}"
    cell = Row(
        sweep="capacity",
        architecture=str(recipe.sizes["architecture"]),
        setting=setting,
        seed=recipe.seed,
        lr=recipe.lr,
    )
    training = Training(cell=cell, recipe=recipe, module=found.module, minutes=0.0, step=found.step)
    training.add("", "parameters", n_parameters(recipe.model_config()))
    _measure_every(training)
    append(table, training.rows)


def _measure_every(training: Training) -> None:
    for at in (*PAIRS, *BEYOND):
        _measure(training, f"{at} pairs", recall(at).sample(N_HELD_OUT, seed=_HELD_OUT_SEED))


def _whole(training: Training) -> None:
    """Train for the whole time; measure the KL to the exact observer, and that of each symbol of a pair."""
    while not training.is_over:
        training.advance()
    task = training.recipe.task
    held_out = task.sample(N_HELD_OUT, seed=_HELD_OUT_SEED)
    exact, answers = held_out.at_scored(held_out.predictive), _answers(training.module, held_out)
    training.add(training.cell.setting, "kl_bits", kl_bits(exact, answers).mean(1))
    if isinstance(task, Product):
        sizes = [factor.d_vocab for factor in task.factors]
        for own, other in (("first", -1), ("second", -2)):
            of_factor = exact.unflatten(-1, sizes).sum(other), answers.unflatten(-1, sizes).logsumexp(other)
            training.add(own, "kl_bits", kl_bits(*of_factor).mean(1))


def _mixed_tasks() -> dict[str, MarkovProcess]:
    """Return two processes in one context, as pairs of symbols, and each alone."""
    both = Product(MIXED[0], MIXED[1], length=LENGTH)
    return {"both": both, **dict(zip(("first", "second"), both.factors, strict=True))}


def _measure(training: Training, at: str, trials: Trials) -> None:
    exact = trials.at_scored(trials.predictive)
    training.add(at, "share_named", named(training.module, trials))
    training.add(at, "kl_bits", kl_bits(exact, _answers(training.module, trials)).mean(1))


def recall(pairs: int) -> AssociativeRecall:
    """Return the task with so many stored pairs, and as many queries as fit into the length at 16 pairs."""
    queries = min(8 if pairs < 4 else 16, (LONGEST - 4 * pairs - 1) // 4)
    return AssociativeRecall(n_pairs=pairs, n_keys=KEYS, n_values=KEYS, n_queries=queries)


@torch.no_grad()
def _answers(module: nn.Module, trials: Trials) -> Float64[Tensor, "batch query_pos answer"]:
    """Return the log-probabilities of the answers at the scored positions."""
    return trials.at_scored(module(trials.tokens))[:, :, trials.answers].double().log_softmax(-1)


def named(module: nn.Module, trials: Trials) -> Float64[Tensor, " batch"]:
    """Return the share of the stored values, among those asked for, that each sequence's answers name."""
    exact = trials.at_scored(trials.predictive)
    is_stored = exact.amax(-1) > 0.99
    is_right = (_answers(module, trials).argmax(-1) == exact.argmax(-1)) & is_stored
    has_stored = is_stored.any(1)
    return is_right.sum(1)[has_stored].double() / is_stored.sum(1)[has_stored]
