"""Make the readings of SmolLM2-135M-Instruct (4-bit, dequantized), each by its command; the model is loaded once.

    make real-model
    python docs/readings/smollm2.py                    # every reading that is not there yet
    python docs/readings/smollm2.py evidence prompts   # these
    python docs/readings/smollm2.py --show             # the headlines of those that are there

A stopped script goes on with the next reading that is missing; batteries go on within. The readings named control-…
are of shipped wind-tunnel models after a round trip of all matrices through blocks of 4 bits, as in a GGUF file.
"""

import functools
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import torch

import bayesgeom
from bayesgeom.cli import parsed
from bayesgeom.models import resolve
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.folder import HTML

PLACE, PREFIX, MODEL = ROOT / "docs" / "readings", "smollm2-", "models/smollm2"
EVIDENCE = "calibration attention_entropy qk_alignment belief_readout key_overlap value_manifold:standardized"
PROMPTS = "key_overlap pass_thresholds attention_entropy value_manifold:standardized domain_separation"
IN_CONTEXT = "bijection-in-context:n_values=10,n_pairs=9"
RECALL = "bijection-in-context:n_values=10,n_pairs=15,repeats=true"
ALONE = "--n 96 --n-untrained 0 --seed 0"
FEWER = "--n 48 --n-untrained 0 --seed 0"
COMMANDS = {
    "evidence": f"diagnose {{m}} --task evidence --probes {EVIDENCE} --n 96 --n-untrained 1 --seed 0",
    "prompts": f"diagnose {{m}} --task prompts --probes {PROMPTS} --n 160 --n-untrained 1 --seed 0",
    "evidence-256": "diagnose {m} --task evidence --probes calibration --n 256 --n-untrained 0 --seed 0",
    "evidence-chat": f"diagnose {{m}} --task evidence:style=chat --probes calibration {ALONE}",
    "evidence-instruct": f"diagnose {{m}} --task evidence:style=instruct --probes calibration {ALONE}",
    "bijection-in-context": f"diagnose {{m}} --task {IN_CONTEXT} --probes calibration attention_entropy {FEWER}",
    "recall-in-context": f"diagnose {{m}} --task {RECALL} --probes calibration attention_entropy qk_alignment {FEWER}",
    "hmm-in-context": f"diagnose {{m}} --task hmm-in-context --probes calibration attention_entropy {FEWER}",
    "onwards-entropy": "intervene {m} --task evidence --subspace leace:entropy --onwards --layers 20 --n 48 --seed 0",
    **{
        f"evidence-{control}": f"diagnose {{m}} --task evidence:control={control} "
        f"--probes calibration value_manifold:standardized {FEWER}"
        for control in ("none", "filler", "masked", "shuffled")
    },
    "ablation-attention": "ablate {m} --task evidence --battery attention --mode zero --n 24 --seed 0",
    **{
        f"swap-{fit}-{quantity}": f"intervene {{m}} --task evidence --subspace {fit}:{quantity} --layers 20 "
        "--n 24 --n-fit 256 --n-untrained 0 --seed 0"
        for fit, quantity in (("leace", "belief"), ("covariance", "belief"), ("leace", "entropy"))
    },
    "bijection-in-context-chat": f"diagnose {{m}} --task {IN_CONTEXT},chat=true --probes calibration {FEWER}",
    "hmm-in-context-chat": f"diagnose {{m}} --task hmm-in-context:chat=true --probes calibration {FEWER}",
    "evidence-latent": f"diagnose {{m}} --task evidence:query=latent --probes calibration {ALONE}",
    "ablation-heads": "ablate {m} --task evidence --battery heads --mode zero --n 12 --seed 0",
}
TUNNELS, KINDS = ("bijection-v20", "bijection-v20-repeats", "hmm-s5"), ("float32", "Q4_0", "Q4_1")


def made_by_command(name: str, out: Path) -> None:
    """Run the command of a reading, as it is typed."""
    command = COMMANDS[name].format(m=MODEL)
    print(f"bayesgeom {command} --out {out.relative_to(ROOT)}", flush=True)
    parsed([*shlex.split(command), "--out", str(out)])()


def made_by_round_trip(name: str, kind: str, out: Path) -> None:
    """Diagnose a wind-tunnel model whose matrices went through 4 bits and back, as a GGUF file stores them."""
    import numpy as np
    from gguf import GGMLQuantizationType, quants

    model = bayesgeom.load(name)
    if kind != "float32":
        stored, changed = GGMLQuantizationType[kind], 0
        for weights in model.module.state_dict().values():
            if weights.ndim >= 2 and weights.shape[-1] % 32 == 0:
                rows = weights.flatten(0, -2).float().cpu().numpy()
                back = quants.dequantize(quants.quantize(rows, stored), stored)
                weights.copy_(torch.from_numpy(np.array(back)).reshape(weights.shape))
                changed += weights.numel()
        share = changed / model.spec.n_parameters
        note = f"dequantized from 4 bits ({kind} and back, {share:.0%} of the parameters)"
        model.spec = replace(model.spec, quantization=note)
    bayesgeom.diagnose(model, probes="calibration", n=512, seed=0, n_untrained=0).save(out)


def readings() -> dict[str, Callable[[Path], None]]:
    """Every reading by its name, those that decide most first."""
    commands: dict[str, Callable[[Path], None]] = {name: functools.partial(made_by_command, name) for name in COMMANDS}
    controls: dict[str, Callable[[Path], None]] = {
        f"control-{tunnel}-{kind.lower()}": functools.partial(made_by_round_trip, tunnel, kind)
        for tunnel in TUNNELS
        for kind in KINDS
    }
    first = {name: commands.pop(name) for name in list(commands)[: list(commands).index("onwards-entropy")]}
    return {**first, **controls, **commands}


def show() -> None:
    """Print the headlines of the readings that are there."""
    for name in readings():
        folder = PLACE / f"{PREFIX}{name}"
        if folder.is_dir():
            print(f"\n## {folder.name}")
            for probe, line in Diagnosis.load(folder).headlines():
                print(f"{probe}: {line}")


def main() -> None:
    known, asked = readings(), sys.argv[1:]
    if asked == ["--show"]:
        show()
        return
    if unknown := [name for name in asked if name not in known]:
        raise SystemExit(f"unknown readings: {', '.join(unknown)}. There are: {', '.join(known)}.")
    if not (ROOT / MODEL).exists():
        raise SystemExit(f"{MODEL} is not there: run `make real-model`.")
    resolve.load = functools.cache(resolve.load)  # twenty commands, one model
    for name in asked or known:
        out = PLACE / f"{PREFIX}{name}"
        if (out / "report.json").exists() and not asked:
            continue
        start = time.process_time()
        known[name](out)
        (out / HTML).unlink(missing_ok=True)  # the repository keeps numbers; the page can be made from them
        print(f"{name}: {time.process_time() - start:.0f} s of processor time\n", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # on a busy machine two take longer than one
    main()
