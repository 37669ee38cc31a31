"""What watching and ablating a Hugging Face model costs, compared with other ways to do it, as ratios from one run.

    (a) recording: keys, values, patterns and the residual stream after every block, of a Llama with 12 layers and 32
                   heads, random weights and eager attention, over its plain forward pass            at most 1.2,
                   and at most what hooks written by hand take
    (b) battery:   each of its 384 heads set to zero, by `bayesgeom.ablate` and by a loop of hooks that scores
                   whole passes, on sequences of 64 tokens                             the loop takes at least 2 times

nnsight and transformer-lens record the same activations in the same run if they are installed. transformer-lens wraps
the model in other modules, so its ratio is to its own plain pass. Sides alternate; medians are compared.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diagnose_cost import seconds
from huggingface_cost import alternating, llama
from torch import Tensor
from torch.utils.hooks import RemovableHandle

import bayesgeom
from bayesgeom.ablations.batteries import battery
from bayesgeom.core import run as s
from bayesgeom.core.run import Trials
from bayesgeom.models.captured.model import captured
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.tasks.bijection import Bijection

N_LAYERS, N_HEADS, N_TOKENS = 12, 32, 64
SITES = (s.K, s.V, s.PATTERN, s.RESID_POST)
WATCHED, LOOPED = 1.2, 2.0


def eager_llama(d_model: int) -> Any:
    hf = llama(
        vocab_size=4_096,
        hidden_size=d_model,
        intermediate_size=3 * d_model,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_HEADS,
    )
    hf.set_attn_implementation("eager")
    return hf


def plain(hf: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return hf(input_ids=tokens, use_cache=False).logits


def by_hand(hf: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Record the activations with hooks as one writes them for one model."""
    found: dict[str, Tensor] = {}

    def keep(name: str, index: int | None = None) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            found[name] = (output if index is None else output[index]).detach().clone()

        return hook

    handles = list[RemovableHandle]()
    for layer, block in enumerate(hf.model.layers):
        handles.append(block.self_attn.k_proj.register_forward_hook(keep(f"k{layer}")))
        handles.append(block.self_attn.v_proj.register_forward_hook(keep(f"v{layer}")))
        handles.append(block.self_attn.register_forward_hook(keep(f"pattern{layer}", 1)))
        handles.append(block.register_forward_hook(keep(f"resid{layer}")))
    try:
        plain(hf, tokens)
    finally:
        for handle in handles:
            handle.remove()
    return found


def by_nnsight(hf: Any) -> Callable[[Tensor], object]:
    from nnsight import NNsight

    watched = NNsight(hf)

    def record(tokens: Tensor) -> object:
        found = []
        with torch.no_grad(), watched.trace(input_ids=tokens, use_cache=False):
            for layer in range(N_LAYERS):
                block = watched.model.layers[layer]
                found.append(block.self_attn.k_proj.output.save())
                found.append(block.self_attn.v_proj.output.save())
                found.append(block.self_attn.output[1].save())
                found.append(block.output.save())
        return found

    return record


def by_lens(d_model: int) -> tuple[Callable[[Tensor], object], Callable[[Tensor], object]]:
    """Return the plain pass of a bridge, and one that keeps a cache."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    hf = eager_llama(d_model)
    bridge = build_bridge_from_module(hf, type(hf).__name__, hf_config=hf.config, model_name="llama", tokenizer=None)
    ends = ("attn.hook_k", "attn.hook_v", "attn.hook_pattern", "hook_resid_post", "hook_out")

    def record(tokens: Tensor) -> object:
        with torch.no_grad():
            return bridge.run_with_cache(tokens, names_filter=lambda name: name.endswith(ends))

    def bare(tokens: Tensor) -> object:
        with torch.no_grad():
            return bridge(tokens)

    return bare, record


def recording(rounds: int, d_model: int, n: int) -> None:
    hf = eager_llama(d_model)
    model = HFModel(hf, name="llama")
    trials = Bijection(n_values=40, n_pairs=32).sample(n, seed=0)  # 63 tokens
    layers = {site: model.layers_of(site) for site in SITES}
    sides: dict[str, Callable[[], object]] = {
        "plain pass": lambda: plain(hf, trials.tokens),
        "bayesgeom": lambda: captured(model, trials, layers, torch.float32),
        "hooks by hand": lambda: by_hand(hf, trials.tokens),
    }
    floor = dict.fromkeys(sides, "plain pass")
    if importlib.util.find_spec("nnsight"):
        record = by_nnsight(hf)
        sides["nnsight"] = lambda: record(trials.tokens)
        floor["nnsight"] = "plain pass"
    bare, cached = by_lens(d_model)
    sides |= {
        "transformer-lens, plain pass": lambda: bare(trials.tokens),
        "transformer-lens, run_with_cache": lambda: cached(trials.tokens),
    }
    floor |= dict.fromkeys(("transformer-lens, plain pass", "transformer-lens, run_with_cache"))
    floor["transformer-lens, run_with_cache"] = "transformer-lens, plain pass"
    taken = alternating(sides, rounds)
    sites = ", ".join(site.name for site in SITES)
    print(f"(a) {sites} of {N_LAYERS} layers, d_model {d_model}, {N_HEADS} heads, {n}×63 tokens, {rounds} rounds")
    ratios = {}
    for name, spent in taken.items():
        base = taken[floor[name]] if floor[name] else spent
        rows = [own / other for own, other in zip(spent, base, strict=True)]
        ratios[name] = statistics.median(spent) / statistics.median(base)
        spread = f"   round by round {min(rows):.3f} … {max(rows):.3f}" if base is not spent else ""
        print(f"    {name:34} {statistics.median(spent):.3f} s   ratio {ratios[name]:.3f}{spread}")
    print(f"    at most {WATCHED} plain passes: {_kept(ratios['bayesgeom'] <= WATCHED)}")
    print(f"    at most the hooks by hand: {_kept(ratios['bayesgeom'] <= ratios['hooks by hand'])}")


@contextmanager
def without(hf: Any, layer: int, head: int, d_head: int) -> Iterator[None]:
    def hook(_module: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        z = inputs[0].clone()
        z[..., head * d_head : (head + 1) * d_head] = 0
        return (z,)

    handle = hf.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def kl_bits(logits: Tensor, trials: Trials) -> Tensor:
    """Score a pass as a loop does: the mean KL to the exact predictive over scored positions."""
    log_q = logits[:, :, trials.answers].double().log_softmax(-1)
    p = trials.predictive
    kl = torch.special.xlogy(p, p).sum(-1) - (p * log_q).sum(-1)
    return kl[trials.scored].mean()


def loop(hf: Any, trials: Trials, d_head: int) -> list[Tensor]:
    found = []
    for layer in range(N_LAYERS):
        for head in range(N_HEADS):
            with without(hf, layer, head, d_head):
                found.append(kl_bits(plain(hf, trials.tokens), trials))
    return found


def batteries(rounds: int, d_model: int, n: int) -> None:
    hf = eager_llama(d_model)
    model, task = HFModel(hf, name="llama"), Bijection(n_values=40, n_pairs=32)
    trials = task.sample(n, seed=0)
    sides = {
        "bayesgeom.ablate": lambda: bayesgeom.ablate(model, task, "heads", mode="zero", n=n),
        "loop of hooks": lambda: loop(hf, trials, d_model // N_HEADS),
    }
    bayesgeom.ablate(model, task, battery("heads", model)[:2], mode="zero", n=n)
    plain(hf, trials.tokens)
    taken = [[seconds(work, time.perf_counter) for work in sides.values()] for _ in range(rounds)]
    ours, theirs = map(statistics.median, zip(*taken, strict=True))
    print(f"(b) {N_LAYERS * N_HEADS} heads set to zero, d_model {d_model}, {n}×63 tokens, {rounds} rounds")
    print(f"    bayesgeom.ablate {ours:.1f} s, loop of hooks {theirs:.1f} s: the loop takes {theirs / ours:.2f} times")
    print(f"    at least {LOOPED:g} times: {_kept(theirs / ours >= LOOPED)}")


def _kept(is_kept: bool) -> str:
    return "ok" if is_kept else "OVER THE LIMIT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=8, help="sequences of (a)")
    parser.add_argument("--n-battery", type=int, default=2, help="sequences of (b)")
    parser.add_argument("--rounds-battery", type=int, default=1)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--only", choices=("a", "b"))
    given = parser.parse_args()
    names = [name for name in ("nnsight", "transformer-lens") if importlib.util.find_spec(name.replace("-", "_"))]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", *names))
    print(f"{versions}; {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    if given.only != "b":
        recording(given.rounds, given.d_model, given.n)
    if given.only != "a":
        batteries(given.rounds_battery, given.d_model, given.n_battery)


if __name__ == "__main__":
    main()
