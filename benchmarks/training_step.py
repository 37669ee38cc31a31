"""What each trick of the training loop is worth on this machine, as ratios from one run.

A step is what `bayesgeom train` does: forward, cross-entropy, backward, clip, optimizer. Compared are

    attention:   eager against sdpa (torch's fused one)
    products:    bfloat16 autocast against float32
    allocator:   with against without `keep_freed_memory`

Steps of the four combinations alternate within a process. The allocator's setting cannot be taken back, so its two
sides are processes, which alternate as well. Drawing the batch is timed apart. On a processor that emulates bfloat16
a step in it takes 20 to 200 times as long as in float32: there it is left out, unless `--products` names it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from allocator import keep_freed_memory
from torch import nn

from bayesgeom.core.run import Trials
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.training.environment import is_bfloat16_fast
from bayesgeom.training.loop import GRADIENT_CLIP, loss_nats
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe, recipe

Clock = Callable[[], float]
CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
ATTENTIONS, PRODUCTS = ("eager", "sdpa"), ("bfloat16", "float32")


def step(chosen: Recipe, module: nn.Module, optimizers: Optimizers, trials: Trials, products: str, now: Clock) -> float:
    """Seconds of one optimizer step on these trials."""
    start = now()
    with torch.autocast("cpu", torch.bfloat16, enabled=products == "bfloat16"):
        logits = module(trials.tokens)
    loss_nats(chosen, logits.float(), trials).backward()
    nn.utils.clip_grad_norm_(module.parameters(), GRADIENT_CLIP)
    optimizers.step(0)
    return now() - start


def timings(
    chosen: Recipe, batch_size: int, rounds: int, kinds: Sequence[str], seconds: float, now: Clock
) -> dict[str, float]:
    """Median seconds of a step for each combination, and of drawing a batch, in this process.

    After so many seconds no further round begins, but there is one after the warm-up.
    """
    began = time.perf_counter()
    config = chosen.model_config()
    assert isinstance(config, TransformerConfig)
    modules = {attention: Transformer(config, seed=0, attention=attention) for attention in ATTENTIONS}
    optimizers = {attention: Optimizers(chosen, module.train()) for attention, module in modules.items()}
    taken: dict[str, list[float]] = {}
    for index in range(rounds + 1):  # the first round warms up
        if index > 1 and time.perf_counter() - began > seconds:
            break
        start = now()
        trials = chosen.task.sample(batch_size, seed=index)
        found = {"drawing": now() - start}
        for attention in ATTENTIONS:
            for products in kinds:
                name = f"{attention} {products}"
                found[name] = step(chosen, modules[attention], optimizers[attention], trials, products, now)
                print(f"  round {index} of {rounds}: {name} {1e3 * found[name]:.0f} ms", file=sys.stderr, flush=True)
        if index:
            for name, value in found.items():
                taken.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


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


def report(found: dict[str, dict[str, float]], kinds: Sequence[str]) -> None:
    """Milliseconds, then the ratios: above 1, the first side is faster."""
    print(f"{'ms a step':22} {'default':>9} {'kept':>9}   kept is faster by")
    for name, before in found["default"].items():
        after = found["kept"][name]
        print(f"{name:22} {1e3 * before:9.1f} {1e3 * after:9.1f}   {before / after:.2f}")
    kept = found["kept"]
    print("\nwith freed memory kept:")
    for products in kinds:
        ratio = kept[f"sdpa {products}"] / kept[f"eager {products}"]
        print(f"  eager is faster than sdpa, {products:9} by {ratio:.2f}")
    for attention in ATTENTIONS if set(PRODUCTS) <= set(kinds) else ():
        ratio = kept[f"{attention} float32"] / kept[f"{attention} bfloat16"]
        print(f"  bfloat16 is faster than float32, {attention:5} by {ratio:.2f}")
    slowest, loop = found["default"][f"sdpa {kinds[-1]}"], kept[f"eager {kinds[0]}"]
    print(f"  all together (what the loop does against none of it) by {slowest / loop:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="bijection-v20")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7, help="steps of each combination in a process")
    parser.add_argument("--processes", type=int, default=2, help="processes for each side of the allocator")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a process, after which no further round begins")
    parser.add_argument("--products", nargs="+", choices=PRODUCTS, help="default: those that are native here")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: on a machine with other work")
    parser.add_argument("--child", choices=("default", "kept"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        asked = given.child == "kept"
        if asked and not keep_freed_memory():
            print("this C library cannot be asked to keep freed memory", file=sys.stderr)
        now, chosen = CLOCKS[given.clock], recipe(given.recipe)
        found = timings(chosen, given.batch_size, given.rounds, given.products, given.seconds, now)
        print(json.dumps(found))
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{given.recipe}, batch {given.batch_size}")
    kinds = given.products or (PRODUCTS if is_bfloat16_fast("cpu") else PRODUCTS[1:])
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}, {given.clock} clock")
    print(f"products in {', '.join(kinds)}\n", flush=True)
    arguments = [given.recipe, "--batch-size", str(given.batch_size), "--rounds", str(given.rounds)]
    arguments += ["--seconds", str(given.seconds), "--clock", given.clock, "--products", *kinds]
    report(both_allocators(arguments, given.processes), kinds)


if __name__ == "__main__":
    main()
