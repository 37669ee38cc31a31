"""The ablation battery against the loop that everyone writes, and against its own floor. Ratios of one run.

    python benchmarks/ablation_battery.py --n 512 --rounds 3

The battery is the default one: every head, attention sublayer, MLP and block, each alone, mean ablation. Both sides
draw the same sequences, put the same means in place, and score KL, entropy error and correctness of every sequence.

- Loop: one ablation at a time by `module.run_with_hooks`, 64 sequences a batch, as many as in a batch of the engine. In
  a process of its own, as in a script: the engine asks the C library to keep freed memory, and in the same
  process the loop would be served by that as well (`--shared` shows by how much).
- Engine: `bayesgeom.ablate`, everything included: checks, means, the key overlap beside it, intervals.
- Floor: the floating-point operations of the matrix products that no replay can avoid, at the rate that this machine
  reaches on float32 products of the model's shapes with as many rows as the engine uses at once, measured just before
  and after every run of the engine. Products alone: norms, GELU, softmax, residual additions, scoring and whatever
  Python does are free in it. Attention counts at the same rate, though its products are far smaller.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bayesgeom.ablations.batteries import Ablation, Component
from bayesgeom.ablations.engine import Exact
from bayesgeom.ablations.run import N_REFERENCE, BatteryRun
from bayesgeom.core.run import Trials
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.models.resolve import load
from bayesgeom.tasks.base import derived_seed

BATCH = 64
Result = TypeVar("Result")
TARGET_SPEED, TARGET_FLOOR = 1.2, 3.5
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
POINTS = {"head": "attn.hook_z", "attention": "hook_attn_out", "mlp": "hook_mlp_out"}


# The loop.


def battery_run(model: HookedModel, n: int) -> BatteryRun:
    """The default battery on the model's own task."""
    assert model.task is not None
    return BatteryRun.of(model, model.task, "all", n=n, seed=0)


def plain_loop(model: HookedModel, job: BatteryRun) -> tuple[np.ndarray, np.ndarray]:
    """Damage in bits, per ablation and per ablation and position."""
    module = model.module
    assert isinstance(module, Transformer)
    means = reference_means(module, job)
    total = np.zeros((1 + len(job.battery), job.task.sample(1, seed=0).n_scored))
    with torch.no_grad():
        for block in job.task.stream(job.n, seed=derived_seed(job.seed, 0)):
            for start in range(0, len(block), BATCH):
                batch = block.rows(slice(start, start + BATCH))
                hooked = [
                    module.run_with_hooks(batch.tokens, fwd_hooks=hooks_of(a, means)) for a in (None, *job.battery)
                ]
                total += np.stack([score(logits, batch) for logits in hooked])
    by_position = total[1:] / job.n - total[0] / job.n
    return by_position.mean(axis=1), by_position


def score(logits: Tensor, batch: Trials) -> np.ndarray:
    """KL in bits summed over sequences; the other metrics are computed as the engine computes them."""
    return Exact.of(batch).scores(batch.at_scored(logits))[0].sum(axis=0)


def reference_means(module: Transformer, job: BatteryRun) -> dict[str, Tensor]:
    """Mean activation at every position, wherever the battery acts."""
    sums: dict[str, Tensor] = {}
    with torch.no_grad():
        for block in job.task.stream(N_REFERENCE, seed=derived_seed(job.seed, 3)):
            _, cache = module.run_with_cache(
                block.tokens, names_filter=lambda name: name.endswith(tuple(POINTS.values()))
            )
            for name, kept in cache.items():
                sums[name] = sums.get(name, 0) + kept.sum(dim=0) / N_REFERENCE
    return sums


def hooks_of(ablation: Ablation | None, means: dict[str, Tensor]) -> list[tuple[str, Callable[..., Tensor]]]:
    if ablation is None:
        return []
    (component,) = ablation.components
    prefix = f"blocks.{component.layer}."
    if component.kind == "block":
        return [(prefix + POINTS[kind], lambda kept, **_: torch.zeros_like(kept)) for kind in ("attention", "mlp")]
    name = prefix + POINTS[component.kind]

    def replace(kept: Tensor, **_: object) -> Tensor:
        if component.head is None:
            return means[name].expand_as(kept)
        kept = kept.clone()
        kept[:, :, component.head] = means[name][:, component.head]
        return kept

    return [(name, replace)]


# The floor.


def unavoidable_flops(config: TransformerConfig, battery: list[Ablation], n_pos: int, scored: list[int]) -> float:
    """Operations (a multiply-add is two) per sequence of the products that replay needs; one component an ablation.

    The last layer and the output are needed at scored rows alone, except its keys and values; a query meets the keys up
    to its own position. A bypassed block costs nothing itself. A head's edit changes the residual, and through it the
    MLP's first product, by products as wide as the head; the MLP's second is needed in full.
    """
    return sum(replayed(config, ablation.components[0], n_pos, scored) for ablation in battery)


def whole_pass_flops(config: TransformerConfig, n_pos: int, scored: list[int]) -> float:
    layers = sum(layer_flops(config, layer, n_pos, scored) for layer in range(config.n_layers))
    return layers + output_flops(config, scored)


def replayed(config: TransformerConfig, component: Component, n_pos: int, scored: list[int]) -> float:
    rows = len(scored) if component.layer == config.n_layers - 1 else n_pos
    own = {
        "head": 2 * config.d_head * (config.d_model + config.d_mlp) * rows + mlp_flops(config, rows) / 2,
        "attention": mlp_flops(config, rows),
        "mlp": 0.0,
        "block": 0.0,
    }[component.kind]
    later = range(component.layer + 1, config.n_layers)
    return own + sum(layer_flops(config, layer, n_pos, scored) for layer in later) + output_flops(config, scored)


def layer_flops(config: TransformerConfig, layer: int, n_pos: int, scored: list[int]) -> float:
    queries = scored if layer == config.n_layers - 1 else list(range(n_pos))
    d, rows = config.d_model, len(queries)
    projections = 2 * d * d * (2 * rows + 2 * n_pos)  # q and o; k and v
    attention = 4 * d * sum(query + 1 for query in queries)
    return projections + attention + mlp_flops(config, rows)


def mlp_flops(config: TransformerConfig, rows: int) -> float:
    return 4 * config.d_model * config.d_mlp * rows


def output_flops(config: TransformerConfig, scored: list[int]) -> float:
    return 2 * config.d_model * config.d_vocab * len(scored)


def measured_rate(config: TransformerConfig, rows: int, clock: Callable[[], float], *, repeats: int = 60) -> float:
    """Operations a second over the four products of a layer, as many rows as the engine computes at once."""
    d, wide = config.d_model, config.d_mlp
    shapes = [(d, 3 * d), (d, d), (d, wide), (wide, d)]
    operands = [(torch.randn(rows, a), torch.randn(a, b), torch.empty(rows, b)) for a, b in shapes]
    seconds = []
    for _ in range(repeats):
        start = clock()
        for x, weight, out in operands:
            torch.mm(x, weight, out=out)
        seconds.append(clock() - start)
    return sum(2 * rows * a * b for a, b in shapes) / statistics.median(seconds)


# The comparison.


class Loop:
    """Where the loop runs: in a process of its own that stays, or here."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.pool = None if arguments.shared else ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def run(self, n: int) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
        if self.pool is None:
            return timed_loop(self.arguments, n)
        return self.pool.submit(timed_loop, self.arguments, n).result()


def timed_loop(arguments: argparse.Namespace, n: int) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """The loop, timed where it runs."""
    torch.set_num_threads(arguments.threads)
    model = load(arguments.checkpoint)
    assert isinstance(model, HookedModel)
    job = battery_run(model, n)
    return timed(lambda: plain_loop(model, job), CLOCKS[arguments.clock])


def timed(run: Callable[[], Result], clock: Callable[[], float]) -> tuple[float, Result]:
    start = clock()
    result = run()
    return clock() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="bijection-v20")
    parser.add_argument("--n", type=int, default=512, help="sequences")
    parser.add_argument("--rounds", type=int, default=3, help="both sides run in turn, this often")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: this process alone, for a busy machine")
    parser.add_argument("--shared", action="store_true", help="the loop in the engine's process")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = CLOCKS[arguments.clock]
    model = load(arguments.checkpoint)
    assert isinstance(model, HookedModel)
    job = battery_run(model, arguments.n)
    battery_run(model, 2).exact()
    loop = Loop(arguments)
    loop.run(2)
    config, trials = model.module.config, job.task.sample(1, seed=0)
    scored = trials.scored_positions()[0].tolist()
    passes = (job.n + N_REFERENCE) * whole_pass_flops(config, job.task.n_pos, scored)
    flops = job.n * unavoidable_flops(config, job.battery, job.task.n_pos, scored) + passes
    rows = BATCH * job.task.n_pos
    engine_seconds, loop_seconds, rates, difference = [], [], [], 0.0
    for _ in range(arguments.rounds):
        before = measured_rate(config, rows, clock)
        seconds, report = timed(job.exact, clock)
        rates.append((before + measured_rate(config, rows, clock)) / 2)
        engine_seconds.append(seconds)
        seconds, (increase, by_position) = loop.run(job.n)
        loop_seconds.append(seconds)
        gaps = (report.kl_increase_bits.value - increase, report.kl_increase_bits_by_position - by_position)
        difference = max(difference, *(float(np.abs(gap).max()) for gap in gaps))
    floors = [flops / rate for rate in rates]
    fast, slow, floor = (statistics.median(values) for values in (engine_seconds, loop_seconds, floors))
    speeds = [loop / engine for loop, engine in zip(loop_seconds, engine_seconds, strict=True)]
    distances = [engine / least for engine, least in zip(engine_seconds, floors, strict=True)]
    print(f"{arguments.checkpoint}: {len(job.battery)} ablations, {job.n} sequences, {arguments.rounds} rounds")
    print(f"{arguments.threads} thread(s), {arguments.clock} time, medians; load {os.getloadavg()[0]:.1f}")
    print(f"  loop    {slow:8.2f} s   (rounds: {', '.join(f'{s:.2f}' for s in loop_seconds)})")
    print(f"  engine  {fast:8.2f} s   (rounds: {', '.join(f'{s:.2f}' for s in engine_seconds)})")
    print(f"  floor   {floor:8.2f} s   ({flops / 1e9:.0f} GFLOP; {flops / floor / 1e9:.0f} GFLOP/s at {rows} rows)")
    print(f"  loop / engine   {statistics.median(speeds):.2f}   target at least {TARGET_SPEED}")
    print(f"  engine / floor  {statistics.median(distances):.2f}   target at most {TARGET_FLOOR}")
    print(f"  largest difference of a KL increase, per ablation or position: {difference:.1e} bits")


if __name__ == "__main__":
    main()
