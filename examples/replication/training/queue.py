"""The training queue: an ordered list of trainings with estimated times, and its progress in a folder of runs.

Run one training at a time, in this order; continue a stopped one with `--resume`. One command trains all stages of a
recipe.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, final

from filelock import FileLock, Timeout

from bayesgeom.core.errors import CheckpointFault
from bayesgeom.core.files import RUNS
from bayesgeom.core.text import aligned_table
from bayesgeom.models.checkpoint_files import CONFIG, FINISHED, checkpoints, read_description
from bayesgeom.training.loop import BEFORE, RECIPE, check_run
from bayesgeom.training.publish import as_duration
from bayesgeom.training.recipes import Recipe
from bayesgeom.training.state import LOCK, LOG, read_log
from examples.replication.capacity import n_parameters
from examples.replication.training.construction import constructed
from examples.replication.training.recipes import network_of, recipe, sweep

State = Literal["finished", "shipped", "reported", "running", "stopped", "waiting", "another recipe"]
DONE: tuple[State, ...] = ("finished", "shipped", "reported")
# Finished trainings whose weights do not ship: KL in bits, from `examples/replication/results/trainings.csv` or,
# for the sweep of learning rates, from the card `examples/replication/results/rates/NAME.md`.
REPORTED: Mapping[str, float] = {
    "bijection-transformer-untied-seed1": 0.002297,
    "bijection-transformer-seed1": 0.001947,
    "bijection-transformer-seed2": 0.002046,
    "bijection-lstm-seed1": 0.003997,
    "bijection-lstm-seed2": 0.005289,
    "bijection-mamba-seed1": 0.0009271,
    "bijection-mamba2": 0.001795,
    "bijection-rwkv": 0.001985,
    "bijection-mlp-seed1": 1.107,
    "bijection-mlp-seed2": 1.107,
    "repeats-transformer-seed1": 0.001875,
    "repeats-mamba-seed1": 0.001303,
    "repeats-lstm-seed1": 0.009545,
    "repeats-mlp-seed1": 1.848,
    "slow-hmm-transformer-seed1": 0.007822,
    "slow-hmm-lstm-seed1": 0.5575,
    "slow-hmm-mlp-prefix": 0.4709,
    "hmm-lstm-seed1": 0.01063,
    "hmm-mlp": 0.4098,
    "repeats-transformer-seed2": 0.00188,
    "repeats-lstm-seed2": 0.003325,
    "repeats-mlp-seed2": 1.848,
    "recall-transformer-seed2": 0.002362,
    "recall-lstm-seed2": 1.85,
    "recall-mlp-seed2": 3.23,
    "recall-transformer-seed1": 0.003117,
    "recall-mamba-seed1": 0.002745,
    "recall-lstm-seed1": 0.6846,
    "recall-mlp-seed1": 3.23,
    "recall-mamba2": 0.002207,
    "recall-rwkv": 0.007651,
    "recall-64-transformer-quarter-lr0.3": 5.946,
    "recall-64-lstm-quarter-lr1": 6.057,
    "recall-64-mamba2-quarter-lr3": 4.771,
    "recall-16-transformer-quarter-lr0.3": 3.793,
    "recall-16-transformer": 3.811,
    "recall-16-lstm": 3.375,
    "hmm-sampled-lstm": 0.1978,
    "hmm-sampled-transformer": 0.009001,
    "recall-lstm-quarter-lr0.3": 3.07,
    "recall-lstm-quarter-lr1": 3.06,
    "recall-lstm-quarter-lr3": 3.06,
    "recall-mamba-quarter-lr0.3": 3.059,
    "recall-mamba-quarter-lr1": 3.06,
    "recall-mlp-quarter-lr0.3": 3.238,
    "recall-mlp-quarter-lr1": 3.238,
    "recall-mlp-quarter-lr3": 3.238,
    "recall-transformer-quarter-lr0.3": 0.02698,
    "recall-transformer-quarter-lr1": 1.791,
    "recall-transformer-quarter-lr3": 2.77,
    "recall-mamba-quarter-lr3": 2.09,
    "recall-mamba2-quarter-lr0.3": 1.239,
    "recall-mamba2-quarter-lr1": 0.01086,
    "recall-mamba2-quarter-lr3": 0.006355,
    "recall-rwkv-quarter-lr0.3": 3.059,
    "recall-rwkv-quarter-lr1": 1.384,
    "recall-rwkv-quarter-lr3": 1.68,
    "recall-mlp-prefix-quarter-lr0.3": 3.07,
    "recall-mlp-prefix-quarter-lr1": 3.069,
    "recall-mlp-prefix-quarter-lr3": 3.068,
}

# Numbers of parameters, so that the status needs no network. A recipe at another learning rate (`…-quarter-lr3`) has
# the network of the one that it is named after.
PARAMETERS: Mapping[str, int] = {
    "bijection-lstm": 601_728,
    "bijection-mamba": 606_220,
    "bijection-mamba2": 602_340,
    "bijection-mlp": 606_424,
    "bijection-rwkv": 604_422,
    "bijection-transformer": 602_496,
    "bijection-transformer-untied": 607_616,
    "bijection-v20-refined": 2_677_248,
    "bijection-v20-refined-sampled": 2_677_248,
    "bijection-v20-untied": 2_684_928,
    "hmm-lstm": 1_817_640,
    "hmm-mamba": 1_831_508,
    "hmm-mlp": 1_811_160,
    "hmm-s5": 1_820_160,
    "hmm-sampled-lstm": 1_817_640,
    "hmm-sampled-transformer": 1_820_160,
    "recall-16-lstm": 602_032,
    "recall-16-mamba2": 600_932,
    "recall-16-transformer": 602_112,
    "recall-64-lstm": 661_232,
    "recall-64-mamba2": 653_852,
    "recall-64-transformer": 659_456,
    "recall-lstm": 602_112,
    "recall-mamba": 606_560,
    "recall-mamba2": 603_036,
    "recall-mlp": 610_504,
    "recall-mlp-prefix": 604_464,
    "recall-rwkv": 604_914,
    "recall-transformer": 606_336,
    "recurrence": 336_768,
    "recurrence-first5": 336_768,
    "recurrence-first5-labels1": 336_768,
    "recurrence-first5-labels25": 336_768,
    "recurrence-first5-labels5": 336_768,
    "recurrence-held-out": 336_768,
    "recurrence-opaque": 339_360,
    "repeats-lstm": 601_728,
    "repeats-mamba": 606_220,
    "repeats-mlp": 606_424,
    "repeats-transformer": 602_496,
    "slow-hmm-lstm": 1_238_760,
    "slow-hmm-mamba": 1_234_684,
    "slow-hmm-mlp-prefix": 1_228_144,
    "slow-hmm-transformer": 1_234_048,
}
# Floating-point operations per second of a training step with 6e5 parameters, on two cores without AVX-512 in float32.
# Fitted to the processor time of steps of the queue's trainings; larger networks use a processor better.
_RATES = {
    "transformer": 4.1e10,
    "llama": 4.1e10,
    "lstm": 6.6e10,
    "mlp": 6.2e10,
    "mamba": 2.9e10,
    "mamba2": 1.7e10,
    "rwkv": 1.7e10,
}
_SLOWEST, _RATED_PARAMETERS, _GROWTH = 1.7e10, 6e5, 0.25
_GROWTHS = {"mamba": 0.45}  # architectures whose rate grows faster with size
SHORT_SECONDS = 15 * 60
# Recipes that took less than that with native bfloat16 products, on one core (`comparison.md`, "What it costs").
SHORT = tuple(f"{task}-{own}" for task in ("bijection", "repeats", "recall") for own in ("transformer", "lstm", "mlp"))


def typical_seconds(chosen: Recipe, size: int | None = None) -> float:
    """Return the typical training time in seconds on two cores without AVX-512 in float32, including earlier stages.

    Nothing is timed: the estimate counts six operations per parameter and token, at the architecture's rate. It is
    within a factor of 1.4 of the times measured for the training queue.

    Args:
        chosen: The recipe.
        size: Number of parameters. None: the network is built on no device and counted.

    Example:
        >>> as_duration(typical_seconds(recipe("bijection-lstm")))
        '12 min 57 s'
    """
    if size is None:
        size = n_parameters(chosen.model_config())
    architecture = str(chosen.sizes.get("architecture"))
    rate = _RATES.get(architecture, _SLOWEST) * (size / _RATED_PARAMETERS) ** _GROWTHS.get(architecture, _GROWTH)
    return float(6 * size * n_tokens(chosen) / rate)


def n_tokens(chosen: Recipe, steps: int | None = None) -> int:
    """Return the number of tokens in the first `steps` steps of a training, counted from its first stage, or in all.

    Example:
        >>> n_tokens(recipe("bijection-lstm"), 10)
        23680
    """
    sizes = (stage.batch_size_at(step) * stage.task.n_pos for stage in chosen.stages() for step in range(stage.steps))
    return sum(itertools.islice(sizes, steps))


@final
@dataclass(frozen=True, kw_only=True)
class Queued:
    """One training of the queue."""

    recipe: str
    seed: int = 0

    @cached_property
    def minutes(self) -> float:
        """Estimated minutes on two cores without AVX-512 in float32."""
        return typical_seconds(self.reseeded, PARAMETERS.get(network_of(self.recipe))) / 60

    @property
    def reseeded(self) -> Recipe:
        """The recipe with this entry's seed; its name is the run's directory."""
        return recipe(self.recipe).reseeded(self.seed)

    @property
    def command(self) -> str:
        """Command that runs this training."""
        return f"python -m examples.replication train {self.recipe}" + (f" --seed {self.seed}" if self.seed else "")


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of one training of the queue in a folder of runs."""

    queued: Queued
    state: State
    steps_done: int
    steps: int
    kl_bits: float = math.nan  # KL of the finished checkpoint

    @property
    def minutes_left(self) -> float:
        """Estimated remaining minutes; a step takes as long as it has tokens."""
        if self.state in DONE:
            return 0.0
        chosen, done = self.queued.reseeded, self.steps_done
        return self.queued.minutes * (1 - n_tokens(chosen, done) / n_tokens(chosen) if done else 1)


def queue() -> tuple[Queued, ...]:
    """Return the trainings in order.

    Example:
        >>> queue()[0].command
        'python -m examples.replication train slow-hmm-transformer'
    """
    return tuple(Queued(recipe=name, seed=seed) for name, seed in _entries())


def progress(runs: Path = RUNS, entries: Sequence[Queued] | None = None) -> list[Progress]:
    """Return the state of each training: finished, shipped, reported, running, stopped, waiting or another recipe.

    Reported trainings are finished and scored, but their weights do not ship; `train` makes them again.
    Shipped and reported ones count as such also while their finished run is in the folder; others are finished. A run
    is running if a process holds its lock. It is of another recipe if it was started with other options, such as
    `--steps`, or if its recipe cannot be read: `train` refuses to continue it.

    Args:
        runs: The folder in which trainings are saved.
        entries: Trainings to look for; by default the queue.

    Returns:
        One entry per training, in the queue's order.
    """
    shipped = checkpoints()
    return [_progress(own, runs, shipped) for own in (queue() if entries is None else entries)]


def status_table(found: Sequence[Progress]) -> str:
    """Return a table with one line per training, then the remaining time and the next training."""
    rows: list[tuple[str, ...]] = [("training", "state", "steps", "time left", "KL (bits)")]
    for own in found:
        steps = f"{own.steps_done:,} of {own.steps:,}"
        kl = "" if math.isnan(own.kl_bits) else f"{own.kl_bits:.4g}"
        rows.append(
            (
                own.queued.reseeded.name,
                own.state,
                steps,
                as_duration(60 * own.minutes_left) if own.minutes_left else "",
                kl,
            )
        )
    waiting = [own for own in found if own.state in ("stopped", "waiting")]
    time = as_duration(60 * sum(own.minutes_left for own in found))
    resumed = " --resume" if waiting and waiting[0].state == "stopped" else ""
    next_one = f"next: {waiting[0].queued.command}{resumed}" if waiting else "nothing is waiting"
    n_done = sum(own.state in DONE for own in found)
    below = f"{n_done} of {len(found)} finished; about {time} left on two cores in float32"
    others = [own.queued.reseeded.name for own in found if own.state == "another recipe"]
    told = [f"another recipe: move these runs away to train the queue's: {', '.join(others)}"] if others else []
    return "\n".join([*aligned_table(rows), "", *told, below, next_one])


def _progress(own: Queued, runs: Path, shipped: Mapping[str, Path]) -> Progress:
    chosen = own.reseeded
    folder, steps = runs / chosen.name, sum(stage.steps for stage in chosen.stages())

    def done(state: State, kl_bits: float) -> Progress:
        return Progress(queued=own, state=state, steps_done=steps, steps=steps, kl_bits=kl_bits)

    is_begun, is_finished = (folder / RECIPE).exists(), (folder / FINISHED / CONFIG).exists()
    is_other = not _is_run_of(chosen, folder)
    if chosen.name in shipped:
        return done("shipped", _kl_bits(shipped[chosen.name]))
    if chosen.name in REPORTED and (is_finished or is_other or not is_begun):
        return done("reported", REPORTED[chosen.name])
    if is_other:
        return Progress(queued=own, state="another recipe", steps_done=0, steps=steps)
    if is_finished:
        return done("finished", _kl_bits(folder / FINISHED))
    if not is_begun:
        return Progress(queued=own, state="waiting", steps_done=0, steps=steps)
    state: State = "running" if _is_locked(folder) else "stopped"
    return Progress(queued=own, state=state, steps_done=_steps_done(chosen, folder), steps=steps)


def _is_locked(out: Path) -> bool:
    """Return whether a process trains in the directory. The lock is taken for a moment to find out."""
    if not (out / LOCK).exists():
        return False
    try:
        with FileLock(out / LOCK).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # another user's folder, for example
        return False


def _kl_bits(checkpoint: Path) -> float:
    return float(read_description(checkpoint).get("scores", {}).get("kl_bits", math.nan))


def _is_run_of(chosen: Recipe, folder: Path) -> bool:
    """Whether the run in the folder, if there is one, can be continued with this recipe."""
    try:
        check_run(chosen, folder)
    except CheckpointFault:
        return False
    return True


def _steps_done(chosen: Recipe, folder: Path) -> int:
    """Logged steps of this stage and the earlier ones; earlier stages are finished if a later one has a log."""
    if lines := read_log(folder / LOG):
        return int(lines[-1]["step"]) + sum(stage.steps for stage in chosen.stages() if stage is not chosen)
    return 0 if chosen.after is None else _steps_done(chosen.after, folder / BEFORE)


_Entry = tuple[str, int]  # recipe, seed
_SLOW = tuple(f"slow-hmm-{own}" for own in ("transformer", "lstm", "mamba", "mlp-prefix"))
_LONGER = (  # two seeds
    *(f"{task}-mamba" for task in ("bijection", "repeats", "recall")),
    *(f"hmm-{own}" for own in ("transformer", "lstm", "mamba", "mlp")),
    *_SLOW,
)
# A quarter of the budget, at the rates that the sweep found best with 8 pairs; for the LSTM it found none.
_AT_SWEPT_RATES = tuple(
    f"recall-{pairs}-{own}-quarter-lr{multiple}"
    for pairs in (64, 16)
    for own, multiple in (("transformer", "0.3"), ("mamba2", "3"), ("lstm", "1"))
)
_ONCE = (
    "hmm-mlp",  # equals the uniform predictor
    *(f"recall-{pairs}-{own}" for pairs in (16, 64) for own in ("transformer", "mamba2", "lstm")),
    *_AT_SWEPT_RATES,
    "slow-hmm-mamba-lr3",  # the one cell without a verdict whose architecture has a better rate
    "hmm-sampled-transformer",
    "hmm-sampled-lstm",
    "bijection-v20-untied",
    "bijection-v20-refined",
    "bijection-v20-refined-sampled",
    *(f"{task}-{own}" for task in ("bijection", "recall") for own in ("mamba2", "rwkv")),
)


def _entries() -> Iterator[_Entry]:
    """Slow chains, untied models, further seeds, the sweep, recipes that are trained once, then modular recurrences."""
    yield from ((name, 0) for name in _SLOW)
    yield from (("bijection-transformer-untied", seed) for seed in (0, 1))
    yield from ((name, seed) for name in SHORT for seed in (1, 2))
    yield from ((_named(name), 1) for name in _LONGER)
    yield from ((name, 0) for name in sweep())
    yield from ((name, 0) for name in _ONCE)
    yield from ((name, seed) for name in constructed() for seed in (0, 1))


def _named(name: str) -> str:
    return "hmm-s5" if name == "hmm-transformer" else name
