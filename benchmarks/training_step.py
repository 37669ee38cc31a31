"""What each trick of the training loop is worth on this machine, as ratios from one run.

A step is what `bayesgeom train` does: forward, cross-entropy, backward, clip, optimiser. Compared are

    attention:   eager against sdpa (torch's fused one)
    products:    bfloat16 autocast against float32
    allocator:   with against without `keep_freed_memory`

Steps of the four combinations alternate within a process. The allocator's setting cannot be taken back, so its two
sides are processes, which alternate as well. Drawing the batch is timed apart. A combination whose first step takes
longer than a second, as bfloat16 does without instructions for it, is not repeated: that step is its time.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

from bayesgeom.allocator import keep_freed_memory
from bayesgeom.models.transformer import Transformer, TransformerConfig
from bayesgeom.training.loop import GRADIENT_CLIP, loss_nats
from bayesgeom.training.optimisers import Optimisers
from bayesgeom.training.recipe import Recipe
from bayesgeom.training.recipes import recipe
from bayesgeom.trials import Trials

ATTENTIONS, PRODUCTS = ("eager", "sdpa"), ("bfloat16", "float32")
HOPELESS_SECONDS = 1.0


def step(chosen: Recipe, module: nn.Module, optimisers: Optimisers, trials: Trials, products: str) -> float:
    """Seconds of one optimiser step on these trials."""
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=products == "bfloat16"):
        logits = module(trials.tokens)
    loss_nats(chosen, logits.float(), trials).backward()
    nn.utils.clip_grad_norm_(module.parameters(), GRADIENT_CLIP)
    optimisers.step(0)
    return time.perf_counter() - start


def timings(chosen: Recipe, batch_size: int, rounds: int) -> dict[str, float]:
    """Median seconds of a step for each combination, and of drawing a batch, in this process."""
    config = chosen.model_config()
    assert isinstance(config, TransformerConfig)
    modules = {attention: Transformer(config, seed=0, attention=attention) for attention in ATTENTIONS}
    optimisers = {attention: Optimisers(chosen, module.train()) for attention, module in modules.items()}
    taken: dict[str, list[float]] = {}  # of what is not repeated
    repeated: dict[str, list[float]] = {}
    for index in range(rounds + 1):  # the first round warms up
        start = time.perf_counter()
        trials = chosen.task.sample(batch_size, seed=index)
        found = {"drawing": time.perf_counter() - start}
        for attention in ATTENTIONS:
            for products in PRODUCTS:
                name = f"{attention} {products}"
                if index and taken.get(name):
                    continue  # too slow to be repeated
                found[name] = step(chosen, modules[attention], optimisers[attention], trials, products)
        for name, value in found.items():
            print(f"  round {index} of {rounds}: {name} {1e3 * value:.0f} ms", file=sys.stderr, flush=True)
            if index:
                repeated.setdefault(name, []).append(value)
            elif value > HOPELESS_SECONDS:
                taken[name] = [value]
    return {name: statistics.median(values) for name, values in (repeated | taken).items()}


def both_allocators(arguments: list[str], processes: int) -> dict[str, dict[str, float]]:
    """Medians over alternating processes, by allocator setting."""
    found: dict[str, list[dict[str, float]]] = {"default": [], "kept": []}
    for _ in range(processes):
        for setting, runs in found.items():
            command = [sys.executable, __file__, *arguments, "--child", setting]
            print(f"allocator {setting}, process {len(runs) + 1} of {processes}", file=sys.stderr, flush=True)
            runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    return {setting: medians(runs) for setting, runs in found.items()}


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each entry."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def report(found: dict[str, dict[str, float]]) -> None:
    """Milliseconds, then the ratios: above 1, the first side is faster."""
    print(f"{'ms a step':22} {'default':>9} {'kept':>9}   kept is faster by")
    for name, before in found["default"].items():
        after = found["kept"][name]
        print(f"{name:22} {1e3 * before:9.1f} {1e3 * after:9.1f}   {before / after:.2f}")
    kept = found["kept"]
    print("\nwith freed memory kept:")
    for products in PRODUCTS:
        ratio = kept[f"sdpa {products}"] / kept[f"eager {products}"]
        print(f"  eager is faster than sdpa, {products:9} by {ratio:.2f}")
    for attention in ATTENTIONS:
        ratio = kept[f"{attention} float32"] / kept[f"{attention} bfloat16"]
        print(f"  bfloat16 is faster than float32, {attention:5} by {ratio:.2f}")
    slowest, loop = found["default"]["sdpa float32"], kept["eager bfloat16"]
    print(f"  all three together (what the loop does against none of it) by {slowest / loop:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="bijection-v20")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7, help="steps of each combination in a process")
    parser.add_argument("--processes", type=int, default=2, help="processes for each side of the allocator")
    parser.add_argument("--child", choices=("default", "kept"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        asked = given.child == "kept"
        if asked and not keep_freed_memory():
            print("this C library cannot be asked to keep freed memory", file=sys.stderr)
        print(json.dumps(timings(recipe(given.recipe), given.batch_size, given.rounds)))
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{given.recipe}, batch {given.batch_size}")
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    arguments = [given.recipe, "--batch-size", str(given.batch_size), "--rounds", str(given.rounds)]
    report(both_allocators(arguments, given.processes))


if __name__ == "__main__":
    main()
