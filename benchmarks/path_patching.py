"""Path patching by replay of receivers against the loop over hooks that everyone writes. Ratios of one run.

    python benchmarks/path_patching.py --n 64 --every 24

Both sides remove the same edges of the same model on the same sequences, with the same means, and score KL.

- Loop: for each edge one pass of `module.run_with_hooks`, with the unedited pass and the means kept from before. Its
  hook replaces the one input that the edge leads to, computed for that head alone. It takes every `--every`-th edge.
- Engine: `bayesgeom.circuits.edges`, all edges: it computes the receivers of a layer together, and replays from there.

The ratio is of the processor time for each edge. Differences of KL increases are relative to the largest increase.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bayesgeom.ablations.engine import Exact, position_means
from bayesgeom.ablations.run import N_REFERENCE
from bayesgeom.circuits.edges import Edge, EdgeReplay, PathsRun
from bayesgeom.core.run import Trials
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.replay.hooked import PrefixReplay
from bayesgeom.models.resolve import load

TARGET = 5.0


def written(module: Transformer, edge: Edge, values: Mapping[str, Tensor]) -> Tensor:
    """What the sender of an edge writes, given activations by name."""
    sender, layer = edge[0], edge[0].layer
    if sender.kind == "embedding":
        return values["blocks.0.hook_resid_pre"]
    if sender.kind == "mlp":
        return values[f"blocks.{layer}.hook_mlp_out"]
    width = module.config.d_head
    columns = slice(sender.head * width, (sender.head + 1) * width)
    z = values[f"blocks.{layer}.attn.hook_z"][..., sender.head, :]
    return z @ module.get_parameter(f"blocks.{layer}.attn.W_O.weight")[:, columns].T


def hook_of(module: Transformer, edge: Edge, change: Tensor, cache: Mapping[str, Tensor]) -> tuple[str, Callable]:
    """The hook point of an edge's receiver, and the function that changes what arrives there."""
    receiver, layer, width, part = edge[1], edge[1].layer, module.config.d_head, module.get_submodule
    if receiver.input == "output":
        name, changed = f"blocks.{layer - 1}.hook_resid_post", cache[f"blocks.{layer - 1}.hook_resid_post"] + change
    elif receiver.input == "mlp":
        mid = cache[f"blocks.{layer}.hook_resid_mid"] + change
        name, changed = f"blocks.{layer}.hook_mlp_out", part(f"blocks.{layer}.mlp")(part(f"blocks.{layer}.ln2")(mid))
    else:
        rows = slice(receiver.head * width, (receiver.head + 1) * width)
        weight = module.get_parameter(f"blocks.{layer}.attn.W_{receiver.input.upper()}.weight")[rows]
        changed = part(f"blocks.{layer}.ln1")(cache[f"blocks.{layer}.hook_resid_pre"] + change) @ weight.T
        name = f"blocks.{layer}.attn.hook_{receiver.input}"

    def edit(own: Tensor, hook: object) -> Tensor:  # noqa: ARG001  (transformer-lens passes it by name)
        if receiver.head < 0:
            return changed
        own[:, :, receiver.head] = changed
        return own

    return name, edit


@torch.no_grad()
def loop(module: Transformer, trials: Trials, means: Mapping[str, Tensor], edges: Sequence[Edge]) -> np.ndarray:
    """KL increase of every edge, one pass each."""
    _, cache = module.run_with_cache(trials.tokens)
    exact, found = Exact.of(trials), []
    for edge in edges:
        change = written(module, edge, means) - written(module, edge, cache)
        hooks = [hook_of(module, edge, change, cache)]
        found.append(exact.scores(trials.at_scored(module.run_with_hooks(trials.tokens, fwd_hooks=hooks)))[0].mean())
    return np.array(found) - exact.scores(trials.at_scored(module(trials.tokens)))[0].mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bijection-v20")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--every", type=int, default=24, help="the loop takes one of so many edges")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load(given.model)
    module, task = model.module, model.task
    assert isinstance(module, Transformer) and task is not None
    run, replayer = PathsRun.of(model, task, None, None), model.replayer()
    assert isinstance(replayer, PrefixReplay)
    trials = task.sample(given.n, seed=1)
    means = position_means(replayer, task.stream(N_REFERENCE, seed=2), model.spec, run.writers.places(), N_REFERENCE)
    named = {
        f"blocks.{layer}.{'attn.' if site.name == 'z' else ''}hook_{site.name}": own
        for (site, layer), own in means.items()
    }
    some, engine = run.edges[:: given.every], EdgeReplay(writers=run.writers, replayer=replayer, means=means)
    for _ in range(given.rounds):
        began = time.process_time()
        by_loop = loop(module, trials, named, some)
        middle = time.process_time()
        kl, without = engine.kl_bits(trials, run.edges, lambda _done: None)
        ended = time.process_time()
        by_engine = (without.mean(axis=1) - kl.mean())[:: given.every]
        error = np.abs(by_engine - by_loop).max() / np.abs(by_loop).max()
        each = [1e3 * (middle - began) / len(some), 1e3 * (ended - middle) / len(run.edges)]
        print(
            f"{given.model}, {given.n} sequences, {len(run.edges):,} edges: loop {each[0]:.1f} ms an edge, engine "
            f"{each[1]:.1f} ms an edge: {each[0] / each[1]:.1f} times faster (target {TARGET:g}); "
            f"largest difference {error:.1e} of the largest effect"
        )


if __name__ == "__main__":
    main()
