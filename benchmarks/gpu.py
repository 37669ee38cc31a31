"""Capture, battery, lens and patching of a Llama with 7 billion random weights on one GPU, side by side.

    python -m benchmarks.gpu --out gpu.md

bayesgeom, hooks by hand, transformer-lens and nnsight return the same numbers, in turn, in bfloat16. The whole takes at
most `--minutes` (8): every part has its share of the time, and a side that exceeds it gets a row that says so. The
table is written row by row, so an interrupted run keeps what it has. Without a GPU the model is tiny and in float32.
"""

import argparse
import datetime as dt
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesgeom
from bayesgeom.ablations.batteries import battery
from bayesgeom.core import RESID_PRE, K, V
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import Branch, derived_seed
from benchmarks.side_by_side import HEADER, Setting, Sides, compared, lens, llama, patching, run_with, versions

SIZES: Mapping[str, Mapping[str, Any]] = {
    "7b": {"n_layers": 32, "d_model": 4_096, "n_heads": 32, "d_vocab": 32_000, "dtype": torch.bfloat16},
    "tiny": {"n_layers": 2, "d_model": 24, "n_heads": 2, "d_vocab": 53, "dtype": torch.float32},
}
SHAPES = {"7b": {"n_sequences": 16, "n_pairs": 31}, "tiny": {"n_sequences": 3, "n_pairs": 3}}


def capture(setting: Setting) -> Sides:
    """Keys, values and the residual stream of every layer; the stream at scored positions is compared."""
    trials = setting.pair[0]
    tokens, blocks = trials.tokens, setting.blocks

    def scored(resid: Sequence[Tensor]) -> Tensor:
        return torch.stack([trials.at_scored(own) for own in resid])

    def ours() -> Tensor:
        return setting.model.run([trials], record=[RESID_PRE, K, V], n_recorded=len(trials)).at(RESID_PRE)

    def by_hand() -> Tensor:
        found, others = list[Tensor](), list[Tensor]()

        def keep(_module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            found.append(args[0] if args else kwargs["hidden_states"])

        parts = [part for block in blocks for part in (block.self_attn.k_proj, block.self_attn.v_proj)]
        hooks = [part.register_forward_hook(lambda _module, _args, output: others.append(output)) for part in parts]
        run_with(setting, tokens, dict.fromkeys(range(len(blocks)), keep))
        for hook in hooks:
            hook.remove()
        return scored(found)

    @torch.no_grad()
    def by_lens() -> Tensor:
        ends = ("hook_resid_pre", "attn.hook_k", "attn.hook_v")
        _, cache = setting.bridge.run_with_cache(tokens, names_filter=lambda name: name.endswith(ends))
        return scored([cache[f"blocks.{layer}.hook_resid_pre"] for layer in range(len(blocks))])

    @torch.no_grad()
    def by_nnsight() -> Tensor:
        found, others = [], []
        with setting.watched.trace(input_ids=tokens, use_cache=False):
            for block in setting.watched_blocks:
                found.append(block.input.save())
                others.append(block.self_attn.k_proj.output.save())
                others.append(block.self_attn.v_proj.output.save())
        return scored(found)

    return setting.chosen(ours=ours, by_hand=by_hand, by_lens=by_lens, by_nnsight=by_nnsight)


def attention_battery(setting: Setting) -> Sides:
    """The KL increase without each attention sublayer, whose output is set to zero."""
    n, n_layers = setting.n_sequences, len(setting.blocks)
    seed, device = derived_seed(0, Branch.TRIALS), setting.model.spec.device
    trials = next(setting.task.stream(n, seed=seed, device=device))
    exact = trials.at_scored(trials.predictive)

    def kl(logits: Tensor) -> Tensor:
        return kl_bits(exact, answer_log_probabilities(trials.at_scored(logits), trials)[0]).mean()

    def increase(edited: Sequence[Tensor], plain: Tensor) -> Tensor:
        return torch.stack([kl(own) for own in edited]) - kl(plain)

    def ours() -> Tensor:
        chosen = battery("attention", setting.model)
        report = bayesgeom.ablate(setting.model, setting.task, chosen, mode="zero", n=n)
        return torch.from_numpy(report.kl_increase_bits.value).reshape(-1)

    def by_hand() -> Tensor:
        found = list[Tensor]()
        for block in setting.blocks:
            hook = block.self_attn.register_forward_hook(lambda _m, _a, out: (torch.zeros_like(out[0]), *out[1:]))
            found.append(run_with(setting, trials.tokens, {}))
            hook.remove()
        return increase(found, run_with(setting, trials.tokens, {}))

    @torch.no_grad()
    def by_lens() -> Tensor:
        names = [f"blocks.{layer}.hook_attn_out" for layer in range(n_layers)]
        found = [
            setting.bridge.run_with_hooks(
                trials.tokens, fwd_hooks=[(name, lambda values, **_: torch.zeros_like(values))]
            )
            for name in names
        ]
        return increase(found, setting.bridge(trials.tokens))

    @torch.no_grad()
    def by_nnsight() -> Tensor:
        found = list[Tensor]()
        for block in setting.watched_blocks:
            with setting.watched.trace(input_ids=trials.tokens, use_cache=False):
                block.self_attn.output[0][:] = 0
                logits = setting.watched.output.logits.save()
            found.append(logits)
        return increase(found, run_with(setting, trials.tokens, {}))

    return setting.chosen(ours=ours, by_hand=by_hand, by_lens=by_lens, by_nnsight=by_nnsight)


PARTS = {"capture": capture, "battery": attention_battery, "lens": lens, "patching": patching}


def main(arguments: Sequence[str] | None = None) -> None:
    start, is_gpu = time.monotonic(), torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[*SIZES], default="7b" if is_gpu else "tiny")
    parser.add_argument("--only", choices=[*PARTS], action="append", help="only these parts; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8.0, help="of the whole run")
    parser.add_argument("--out", type=Path, help="file to write the table to, row by row")
    given = parser.parse_args(arguments)
    device = "cuda" if is_gpu else "cpu"

    def tell(*lines: str) -> None:
        print(*lines, sep="\n", flush=True)
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)

    name = torch.cuda.get_device_name() if is_gpu else f"CPU, {torch.get_num_threads()} threads"
    tell(f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {name}, Llama {given.size}; {versions()}", "", *HEADER)
    setting = Setting(llama(**SIZES[given.size], device=device), **SHAPES[given.size])
    parts = given.only or [*PARTS]
    for index, part in enumerate(parts):
        left = 60 * given.minutes - (time.monotonic() - start)
        share = max(1.0, left / (len(parts) - index) / len(setting.sides))
        sides = PARTS[part](setting)
        tell(*compared(part, sides, rounds=given.rounds, limit=share, clock=time.perf_counter, device=device))
    peak = f"; peak {torch.cuda.max_memory_allocated() / 2**30:.3g} GiB of the GPU" if is_gpu else ""
    tell("", f"{time.monotonic() - start:.0f} s in all{peak}")


if __name__ == "__main__":
    main()
