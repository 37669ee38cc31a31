"""The same measurement by bayesgeom, hooks by hand, transformer-lens and nnsight, in one process, in turn.

    lens:     the answers' log-probabilities before every block, by the final norm and output matrix
    patching: resid_pre of every layer and position of a clean sequence, put into the run on a corrupted one
    paths:    the direct edges from two heads of layer 1 into the queries of all later heads, one at a time

    python -m benchmarks.side_by_side --shape llama

Every side returns the same numbers, and the largest difference from bayesgeom's is printed. Weights are random.
nnsight takes part where it is installed. `benchmarks/gpu.py` runs the same on a Llama of 7 billion parameters.
"""

import argparse
import contextlib
import copy
import importlib.metadata
import importlib.util
import io
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bayesgeom
from bayesgeom.core import LOGIT_LENS, Trials
from bayesgeom.models.base import Model
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import WindTunnel

OURS = "bayesgeom"
Sides = Mapping[str, Callable[[], Tensor]]


def llama(n_layers: int, d_model: int, n_heads: int, d_vocab: int, dtype: torch.dtype, device: str) -> Any:
    """A Llama with random weights, made on its device."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=d_vocab,
        hidden_size=d_model,
        intermediate_size=8 * d_model // 3 // 8 * 8,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        max_position_embeddings=512,
    )
    return _made(transformers.LlamaForCausalLM, config, dtype, device)


def gpt2(n_layers: int, d_model: int, n_heads: int, d_vocab: int, dtype: torch.dtype, device: str) -> Any:
    """A GPT-2 with random weights, made on its device."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=d_vocab,
        n_embd=d_model,
        n_layer=n_layers,
        n_head=n_heads,
        n_positions=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _made(transformers.GPT2LMHeadModel, config, dtype, device)


def _made(kind: Any, config: Any, dtype: torch.dtype, device: str) -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return kind(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


@dataclass(frozen=True)
class Setting:
    """One model as each library sees it, and the sequences. transformer-lens changes a model, so it has a copy."""

    hf: Any
    n_sequences: int
    n_pairs: int

    @cached_property
    def model(self) -> Model:
        return bayesgeom.as_model(self.hf)

    @cached_property
    def bridge(self) -> Any:
        from transformer_lens.model_bridge.sources import build_bridge_from_module

        own = copy.deepcopy(self.hf)
        own.set_attn_implementation("eager")
        name = type(own).__name__
        return build_bridge_from_module(own, name, hf_config=own.config, model_name=name, tokenizer=None)

    @cached_property
    def watched(self) -> Any:
        from nnsight import NNsight

        return NNsight(self.hf)

    @property
    def blocks(self) -> Any:
        return self.hf.model.layers if self.is_llama else self.hf.transformer.h

    @property
    def watched_blocks(self) -> Any:
        return self.watched.model.layers if self.is_llama else self.watched.transformer.h

    @property
    def is_llama(self) -> bool:
        return "Llama" in type(self.hf).__name__

    @property
    def norm(self) -> Any:
        return self.hf.model.norm if self.is_llama else self.hf.transformer.ln_f

    @cached_property
    def task(self) -> WindTunnel:
        return bayesgeom.tasks.Bijection(n_values=self.n_pairs + 1, n_pairs=self.n_pairs)

    @cached_property
    def pair(self) -> tuple[Trials, Trials]:
        """Sequences of a task, clean and corrupted, with as many tokens."""
        device = self.model.spec.device
        drawn = [next(self.task.stream(self.n_sequences, seed=seed, device=device)) for seed in (1, 2)]
        return drawn[0], drawn[1]

    @property
    def sides(self) -> tuple[str, ...]:
        known = {"nnsight": "nnsight", "transformer-lens": "transformer_lens"}
        return (OURS, "hooks by hand", *(own for own, module in known.items() if importlib.util.find_spec(module)))

    def chosen(self, **every: Callable[[], Tensor]) -> Sides:
        """The sides that are installed, in the order of `sides`."""
        named = zip((OURS, "hooks by hand", "transformer-lens", "nnsight"), every.values(), strict=True)
        return {name: work for name, work in named if name in self.sides}


@torch.no_grad()
def run_with(setting: Setting, tokens: Tensor, changes: Mapping[int, Callable[..., Any]]) -> Tensor:
    """The logits with pre-hooks on some blocks."""
    with contextlib.ExitStack() as stack:
        for layer, change in changes.items():
            hook = setting.blocks[layer].register_forward_pre_hook(change, with_kwargs=True)
            stack.callback(hook.remove)
        return setting.hf(input_ids=tokens, use_cache=False).logits


def residuals(setting: Setting, tokens: Tensor) -> list[Tensor]:
    """The input of every block."""
    found = list[Tensor]()

    def keep(_module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])

    run_with(setting, tokens, dict.fromkeys(range(len(setting.blocks)), keep))
    return found


def patched(clean: Tensor, position: int) -> Callable[..., Any]:
    """A pre-hook that puts one position of the clean residual stream into a block's input."""

    def change(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        resid = (args[0] if args else kwargs["hidden_states"]).clone()
        resid[:, position] = clean[:, position]
        return ((resid, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": resid})

    return change


def lens(setting: Setting) -> Sides:
    """The answers' log-probabilities, renormalized over them, by block and scored position."""
    trials, tokens = setting.pair[0], setting.pair[0].tokens

    def read(resid: list[Tensor]) -> Tensor:
        stacked = torch.stack([trials.at_scored(own) for own in resid])
        return setting.hf.lm_head(setting.norm(stacked))[..., trials.answers].double().log_softmax(-1)

    def ours() -> Tensor:
        return setting.model.run([trials], record=[LOGIT_LENS], n_recorded=len(trials)).at(LOGIT_LENS).double()

    @torch.no_grad()
    def by_hand() -> Tensor:
        return read(residuals(setting, tokens))

    def by_lens() -> Tensor:
        from transformer_lens.tools.analysis import logit_lens

        found = logit_lens(setting.bridge, tokens, positions=None, vocab=trials.answers).values[:-1]
        return torch.stack([trials.at_scored(own) for own in found]).double().log_softmax(-1)

    @torch.no_grad()
    def by_nnsight() -> Tensor:
        found = []
        with setting.watched.trace(input_ids=tokens, use_cache=False):
            for block in setting.watched_blocks:
                found.append(block.input.save())  # noqa: PERF401  (nnsight runs these lines as the model reaches them)
        return read(found)

    return setting.chosen(ours=ours, by_hand=by_hand, by_lens=by_lens, by_nnsight=by_nnsight)


def patching(setting: Setting) -> Sides:
    """The difference of two logits after the last token, by layer and position; each a run with one change."""
    clean, corrupted = (own.tokens[:1] for own in setting.pair)
    right, wrong = 0, 1
    n_layers, n_pos = len(setting.blocks), clean.shape[1]
    places = [(layer, position) for layer in range(n_layers) for position in range(n_pos)]

    def metric(logits: Tensor) -> Tensor:
        last = logits[:, -1].double()
        return (last[:, right] - last[:, wrong]).mean() / np.log(2)

    def ours() -> Tensor:
        given = (own[0].tolist() for own in (clean, corrupted))
        report = bayesgeom.patch(setting.model, *given, "resid_pre", answers=(right, wrong))
        return torch.from_numpy(report.patched_bits.value)

    def by_hand() -> Tensor:
        stored = residuals(setting, clean)
        each = [metric(run_with(setting, corrupted, {layer: patched(stored[layer], at)})) for layer, at in places]
        return torch.stack(each).reshape(n_layers, n_pos)

    @torch.no_grad()
    def by_lens() -> Tensor:
        from transformer_lens import patching

        _, cache = setting.bridge.run_with_cache(clean, names_filter=lambda name: name.endswith("hook_resid_pre"))
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar cannot be switched off
            return patching.get_act_patch_resid_pre(setting.bridge, corrupted, cache, metric)

    @torch.no_grad()
    def by_nnsight() -> Tensor:
        stored, found = residuals(setting, clean), list[Tensor]()
        for layer, at in places:
            with setting.watched.trace(input_ids=corrupted, use_cache=False):
                setting.watched_blocks[layer].input[:, at] = stored[layer][:, at]
                logits = setting.watched.output.logits.save()
            found.append(metric(logits))
        return torch.stack(found).reshape(n_layers, n_pos)

    return setting.chosen(ours=ours, by_hand=by_hand, by_lens=by_lens, by_nnsight=by_nnsight)


def paths(setting: Setting) -> Sides:
    """KL to the exact posterior with each edge from two heads of layer 1 into a later head's queries patched alone."""
    own = Edges(setting)
    return setting.chosen(
        ours=own.ours,
        by_hand=lambda: own.loop(own.hooked),
        by_lens=own.by_lens,
        by_nnsight=lambda: own.loop(own.traced),
    )


@dataclass(frozen=True)
class Edges:
    """The edges of `paths`, each measured by a pass of its own, except by bayesgeom."""

    setting: Setting
    source: int = 1
    n_sources: int = 2

    @property
    def later(self) -> range:
        return range(self.source + 1, len(self.setting.blocks))

    @property
    def n_heads(self) -> int:
        return self.setting.model.spec.n_heads

    def ours(self) -> Tensor:
        from bayesgeom.circuits.edges import EdgeReplay, PathsRun

        clean, corrupted = self.setting.pair
        senders = [f"L{self.source}H{head}" for head in range(self.n_sources)]
        receivers = [f"L{layer}H{head} q" for layer in self.later for head in range(self.n_heads)]
        run = PathsRun.of(self.setting.model, self.setting.task, senders, receivers)
        replayer: Any = self.setting.model.replayer()
        measuring = EdgeReplay(writers=run.writers, replayer=replayer, means=replayer.baseline(clean).stored)
        _, without = measuring.kl_bits(corrupted, run.edges, lambda _: None)
        at = {(sender.label, receiver.label): i for i, (sender, receiver) in enumerate(run.edges)}
        rows = [[without[at[sender, receiver]].mean() for receiver in receivers] for sender in senders]
        return torch.tensor(rows).reshape(self.n_sources, len(self.later), self.n_heads)

    @torch.no_grad()
    def by_lens(self) -> Tensor:
        from transformer_lens import patching

        bridge, (clean, corrupted), keep = self.setting.bridge, self.setting.pair, f"blocks.{self.source}.attn.hook_z"
        caches = [
            bridge.run_with_cache(own.tokens, names_filter=lambda name: name == keep)[1] for own in (clean, corrupted)
        ]
        sweep = partial(patching.get_act_patch_direct_path, bridge, corrupted.tokens, *caches, self.metric)
        each = [sweep(self.source, head, "q", verbose=False) for head in range(self.n_sources)]
        return torch.stack([own[self.source + 1 :] for own in each])

    @torch.no_grad()
    def loop(self, edited: Callable[[int, slice, Tensor], Tensor]) -> Tensor:
        """A pass for every edge, by a function of layer, columns of one head's queries, and their new values."""
        corrupted, d_head = self.setting.pair[1], self.setting.model.spec.d_head
        resid, found = residuals(self.setting, corrupted.tokens), list[Tensor]()
        for delta in self.written():
            for layer in self.later:
                changed = self.queries(layer, resid[layer] + delta)
                for head in range(self.n_heads):
                    columns = slice(head * d_head, (head + 1) * d_head)
                    found.append(self.metric(edited(layer, columns, changed[..., columns])))
        return torch.stack(found).reshape(self.n_sources, len(self.later), self.n_heads)

    def hooked(self, layer: int, columns: slice, values: Tensor) -> Tensor:
        def change(_module: Any, _args: Any, output: Tensor) -> Tensor:
            output = output.clone()
            output[..., columns] = values
            return output

        hook = self.projection(self.setting.blocks[layer]).register_forward_hook(change)
        logits = run_with(self.setting, self.setting.pair[1].tokens, {})
        hook.remove()
        return logits

    def traced(self, layer: int, columns: slice, values: Tensor) -> Tensor:
        watched, projection = self.setting.watched, self.projection(self.setting.watched_blocks[layer])
        with watched.trace(input_ids=self.setting.pair[1].tokens, use_cache=False):
            projection.output[..., columns] = values
            logits = watched.output.logits.save()
        return logits  # noqa: RET504  (the trace is over)

    def metric(self, logits: Tensor) -> Tensor:
        corrupted = self.setting.pair[1]
        log_answers, _ = answer_log_probabilities(corrupted.at_scored(logits), corrupted)
        return kl_bits(corrupted.at_scored(corrupted.predictive), log_answers).mean()

    def projection(self, block: Any) -> Any:
        """The matrix of the queries; GPT-2's gives them first, then keys and values."""
        return block.self_attn.q_proj if self.setting.is_llama else block.attn.c_attn

    def queries(self, layer: int, resid: Tensor) -> Tensor:
        block = self.setting.blocks[layer]
        norm = block.input_layernorm if self.setting.is_llama else block.ln_1
        return self.projection(block)(norm(resid))

    def written(self) -> Tensor:
        """What each of the heads writes more in the clean run than in the corrupted one."""
        block, found = self.setting.blocks[self.source], list[Tensor]()
        output = block.self_attn.o_proj if self.setting.is_llama else block.attn.c_proj
        hook = output.register_forward_pre_hook(lambda _, args: found.append(args[0].unflatten(-1, (self.n_heads, -1))))
        for trials in self.setting.pair:
            run_with(self.setting, trials.tokens, {})
        hook.remove()
        weight = (output.weight.T if self.setting.is_llama else output.weight).unflatten(0, (self.n_heads, -1))
        return torch.einsum("b p h d, h d m -> h b p m", found[0] - found[1], weight)[: self.n_sources]


class OverTimeError(Exception):
    """A side took longer than it may."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop what runs inside after so many seconds, between two operations."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OverTimeError

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def timed(work: Callable[[], Tensor], clock: Callable[[], float], device: str) -> tuple[float, Tensor]:
    """Seconds until the device has finished, and the numbers."""
    start = clock()
    found = work()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return clock() - start, found


def compared(
    part: str, sides: Sides, *, rounds: int, limit: float, clock: Callable[[], float], device: str
) -> list[str]:
    """Rows of the table for one part: a first round that does not count, then the sides in turn, medians.

    A side that takes longer than `limit` seconds in all, or that fails, gets a row that says so.
    """
    first, taken, faults = dict[str, Tensor](), dict[str, list[float]](), dict[str, str]()
    for index in range(rounds + 1):
        for name, work in sides.items():
            if name in faults:
                continue
            try:
                with at_most(limit / (rounds + 1)):
                    spent, found = timed(work, clock, device)
            except OverTimeError:
                faults[name] = f"over {limit / (rounds + 1):.3g} s"
            except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
                faults[name] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:80]}"
            else:
                first.setdefault(name, found.double().cpu())
                if index or not rounds:
                    taken.setdefault(name, []).append(spent)
    rows = list[str]()
    for name in sides:
        if name not in taken:
            rows.append(f"| {part} | {name} | {faults[name]} | | |")
            continue
        ours = taken.get(OURS)
        by_round = [a / b for a, b in zip(taken[name], ours, strict=False)] if ours else []
        ratio = f"{statistics.median(by_round):.2f} ({min(by_round):.2f} … {max(by_round):.2f})" if by_round else ""
        wrong = f"{_difference(first[name], first[OURS]):.0e}" if OURS in first and name != OURS else ""
        rows.append(f"| {part} | {name} | {statistics.median(taken[name]):.3g} | {ratio} | {wrong} |")
    return rows


def _difference(found: Tensor, ours: Tensor) -> float:
    return float((found - ours).abs().max() / ours.abs().max())


HEADER = ["| part | side | seconds | times bayesgeom's (by round) | difference, relative |", "|---|---|---|---|---|"]


def versions() -> str:
    """The versions of the sides that are installed; one that is missing is named."""
    found = list[str]()
    for name in ("torch", "transformers", "transformer-lens", "nnsight"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} is not installed")
    return ", ".join(found)


PARTS: Mapping[str, Callable[[Setting], Sides]] = {"lens": lens, "patching": patching, "paths": paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("gpt2", "llama"), action="append", help="default: both")
    parser.add_argument("--only", choices=[*PARTS], action="append", help="only these parts; default: all")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=3_600.0, help="seconds of a side in one part, all rounds")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    given = parser.parse_args()
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    print(f"{versions()}; {torch.get_num_threads()} threads, {given.clock} seconds", *HEADER, sep="\n", flush=True)
    for shape in given.shape or ("gpt2", "llama"):
        make = llama if shape == "llama" else gpt2
        setting = Setting(make(12, given.d_model, 8, 8_000, torch.float32, "cpu"), n_sequences=4, n_pairs=15)
        for part in given.only or PARTS:
            rows = compared(
                f"{part}, {shape}",
                PARTS[part](setting),
                rounds=given.rounds,
                limit=given.limit,
                clock=clock,
                device="cpu",
            )
            print(*rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
