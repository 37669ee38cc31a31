"""What capturing costs beyond the forward pass, without and with writing, as ratios from one run on this machine.

    (a) captured: activations and reduced predictions of a shard, in memory, over the plain passes      at most 1.2
    (b) written:  `capture` to a temporary directory, over the plain passes             no limit, as disks differ
    (c) memory:   peak memory of `capture` on four times as many sequences                              at most 1.1

The model is a Llama with random weights. Its plain pass returns the logits of the scored positions only, as ours does.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import bayesgeom
from bayesgeom.core import run as s
from bayesgeom.models.captured import model as writing
from bayesgeom.models.captured.model import captured
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.tasks.bijection import Bijection

SITES = (s.RESID_POST, s.K, s.V)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def model_of(d_model: int, n_layers: int) -> HFModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=4_096,
        hidden_size=d_model,
        intermediate_size=3 * d_model,
        num_hidden_layers=n_layers,
        num_attention_heads=d_model // 64,
        num_key_value_heads=max(1, d_model // 128),
        max_position_embeddings=512,
    )
    return HFModel(transformers.LlamaForCausalLM(config).eval(), name="llama")


def seconds(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--n", type=int, default=16, help="sequences in a pass")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--n-layers", type=int, default=12)
    given = parser.parse_args()
    clock, model = CLOCKS[given.clock], model_of(given.d_model, given.n_layers)
    task = Bijection(n_values=64, n_pairs=63)  # 125 tokens
    trials = task.sample(given.n, seed=0)
    layers = {site: model.layers_of(site) for site in SITES}

    def plain() -> None:
        with torch.no_grad():
            model.module(trials.tokens, use_cache=False)

    plain(), captured(model, trials, layers, torch.float32)
    pairs = [
        (seconds(plain, clock), seconds(lambda: captured(model, trials, layers, torch.float32), clock))
        for _ in range(given.repeats)
    ]
    base, ours = (min(side) for side in zip(*pairs, strict=True))
    ratio = ours / base
    print(f"(a) plain pass {base:.2f} s, captured {ours:.2f} s: {ratio:.2f} (at most 1.2) {_said(ratio, 1.2)}")
    names = [site.name for site in SITES]
    writing.SHARD_BYTES = 2**24  # several shards even in the smaller capture
    with tempfile.TemporaryDirectory() as folder:
        spent = seconds(lambda: bayesgeom.capture(model, task, out=Path(folder) / "one", n=given.n, sites=names), clock)
        small = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        bayesgeom.capture(model, task, out=Path(folder) / "four", n=4 * given.n, sites=names)
        large = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        held = sum(file.stat().st_size for file in (Path(folder) / "four").iterdir())
    print(f"(b) written {spent:.2f} s: {spent / base:.2f}")
    peaks = f"{small / 1e6:.2f} GB and {large / 1e6:.2f} GB"
    print(f"(c) peak {peaks} for {held / 1e9:.2f} GB of files: {large / small:.2f}")


def _said(value: float, limit: float) -> str:
    return "ok" if value <= limit else "OVER THE LIMIT"


if __name__ == "__main__":
    main()
