"""What watching a training run costs, as a share of its steps, from one run.

A step is what `bayesgeom train` does: draw a batch, forward, cross-entropy, backward, clip, optimizer. Steps and
measurements alternate; the monitor's share at its default interval is one measurement over `EVERY` steps. With a folder
for the last good state on disk, keeping it is measured as well, as if every measurement kept one.
"""

import argparse
import functools
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from allocator import keep_freed_memory
from torch import nn

from bayesgeom.models.resolve import of_module
from bayesgeom.monitor.watch import EVERY, GoodState, Monitor, Settings
from bayesgeom.training.loop import GRADIENT_CLIP, loss_nats
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe, recipe

LIMIT = 0.03
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def step(chosen: Recipe, module: nn.Module, optimizers: Optimizers, seed: int) -> None:
    """One optimizer step on a fresh batch, as training does it."""
    trials = chosen.task.sample(chosen.batch_size, seed=seed)
    with torch.autocast("cpu", torch.bfloat16):
        logits = module(trials.tokens)
    loss_nats(chosen, logits.float(), trials).backward()
    nn.utils.clip_grad_norm_(module.parameters(), GRADIENT_CLIP)
    optimizers.step(0)


def measure(chosen: Recipe, rounds: int, clock: Callable[[], float], folder: Path) -> dict[str, float]:
    """Median seconds of a step, of a measurement with and without its table, and of keeping a state."""
    module = chosen.model_config().build(seed=0).train()
    optimizers = Optimizers(chosen, module)
    model = of_module(module, name=chosen.name, task=chosen.task)
    plain = Monitor(model, every=1, settings=Settings(untrained=False))
    tabled = Monitor(model, every=1, settings=Settings(untrained=False, out=folder / "table"))
    states = {"keep in memory": GoodState(module, None, None), "keep on disk": GoodState(module, None, folder)}
    taken: dict[str, list[float]] = {}
    for index in range(rounds + 1):  # the first round warms up
        todo: dict[str, Callable[[], object]] = {
            "step": lambda: step(chosen, module, optimizers, index),  # noqa: B023  (called at once)
            "measurement": lambda: plain(index),  # noqa: B023
            "measurement, table written": lambda: tabled(index),  # noqa: B023
            **{name: functools.partial(state.keep, index) for name, state in states.items()},
        }
        for name, act in todo.items():
            start = clock()
            act()
            if index:
                taken.setdefault(name, []).append(clock() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["bijection-v20", "hmm-s5"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: on a machine with other work")
    given = parser.parse_args()
    keep_freed_memory()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}, {given.clock} clock\n")
    failed = []
    for name in given.recipes:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(recipe(name), given.rounds, CLOCKS[given.clock], Path(folder))
        print(f"{name}, batches of {recipe(name).batch_size}, default interval {EVERY}")
        for label, seconds in found.items():
            share = "" if label == "step" else f"   {seconds / found['step'] / EVERY:8.3%} of {EVERY} steps"
            print(f"  {label:28} {1e3 * seconds:8.1f} ms{share}")
        worst = (found["measurement, table written"] + found["keep on disk"]) / found["step"] / EVERY
        print(f"  all of it: {worst:.3%} (limit {LIMIT:.0%})\n")
        failed += [name] if worst > LIMIT else []
    if failed:
        raise SystemExit(f"watching costs more than {LIMIT:.0%} of the step time of {', '.join(failed)}")


if __name__ == "__main__":
    main()
