"""Measurements whose numbers a change of structure must keep, and the numbers that are recorded of them.

Record them again, in a commit that says why they changed, with `python -m tests.numbers.cases`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import bayesgeom
from bayesgeom.report.storage import quantities_of

EXPECTED = Path(__file__).parent / "expected.json"
PER_ESTIMATE = 4  # recorded entries of one estimate: spread evenly over those with a value
OF_THE_STUDY = {"pass_thresholds"}


def _diagnosed(checkpoint: str) -> Callable[[], Mapping[str, Any]]:
    return lambda: bayesgeom.diagnose(checkpoint, n=96, n_untrained=1)


def _ablated(checkpoint: str, battery: str, mode: str) -> Callable[[], Mapping[str, Any]]:
    return lambda: {"ablation": bayesgeom.ablate(checkpoint, battery=battery, mode=mode, n=64)}


def _swapped() -> Mapping[str, Any]:
    from bayesgeom.interventions.design import Design

    design = Design("swap", n_random=3, n_matched=3, n_control=8, n_untrained=1, n_fit=128)
    return {"intervention": bayesgeom.intervene("bijection-transformer", subspace="frame", kind=design, n=48)}


def _answered(checkpoint: str) -> Callable[[], Mapping[str, Any]]:
    """The predictions alone: agreement with the exact posterior, evidence response, audit."""
    return lambda: {
        "evidence_response": bayesgeom.evidence_response(checkpoint, n=48),
        "evidence_response single": bayesgeom.evidence_response(checkpoint, ages=[1, 3], single=True, n=32),
        "audit": bayesgeom.audit(checkpoint, n=48),
    }


def _circuits() -> Mapping[str, Any]:
    model = bayesgeom.load("bijection-v20-repeats")
    clean, corrupted = model.task.sample_pair(6, seed=0)
    return {
        "contributions": bayesgeom.contributions(model, n=32),
        "paths": bayesgeom.paths("mess3-small", n=32),
        "patch": bayesgeom.patch(model, clean, corrupted, "z"),
    }


def _trained() -> Mapping[str, Any]:
    return {**bayesgeom.training_dynamics("bijection-formation", n=16)}


def _watched() -> Mapping[str, Any]:
    from bayesgeom.monitor import Monitor, Settings

    model = bayesgeom.load("mess3-small")
    watch = Monitor(model.module, model.task, every=1, settings=Settings(n=8, seed=0))
    for step in range(3):
        watch(step)
    return {"monitor": watch.report()}


def _lenses() -> Mapping[str, Any]:
    return {**bayesgeom.diagnose("mess3-small", n=64, n_untrained=1, probes=["fitted_lens", "posterior_lens"])}


DIAGNOSED = ("bijection-v20-repeats", "bijection-v20-llama", "hmm-s5", "mess3-small", "bijection-lstm", "recall-mamba")
NEW_TASKS = (
    "binding-transformer",
    "causal-graph-lstm",
    "change-point-transformer",
    "dice-lstm",
    "dirichlet-markov-lstm",
    "linear-gaussian-lstm",
    "linear-regression-transformer",
    "product-lstm",
)
CASES: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    **{f"diagnose {name}": _diagnosed(name) for name in (*DIAGNOSED, "repeats-mlp")},
    "ablate repeats-transformer": _ablated("repeats-transformer", "all", "mean"),
    "ablate mess3-small": _ablated("mess3-small", "heads", "resample"),
    "ablate bijection-v20-llama": _ablated("bijection-v20-llama", "heads", "zero"),
    "swap bijection-transformer": _swapped,
    **{f"diagnose {name}": _diagnosed(name) for name in NEW_TASKS},
    **{f"answer {name}": _answered(name) for name in ("dice-transformer", "sticky-small")},
    "lenses mess3-small": _lenses,
    "circuits": _circuits,
    "dynamics bijection-formation": _trained,
    "monitor mess3-small": _watched,
    "length hmm-lstm": lambda: {"length": bayesgeom.length_generalization("hmm-lstm", lengths=[20, 30], n=32)},
}


def numbers_of(reports: Mapping[str, Any], most: int | None = None) -> dict[str, float]:
    """Return entries of every estimate, at most so many of one, and the baselines of estimates without axes."""
    numbers: dict[str, float] = {}
    for name, report in reports.items():
        if name in OF_THE_STUDY:
            continue
        for field in quantities_of(type(report)):
            value = report.estimate(field)
            flat = value.value.reshape(-1)
            known = np.flatnonzero(np.isfinite(flat))
            if most is not None and len(known):
                known = known[np.unique(np.linspace(0, len(known), most + 2).astype(int)[1:-1])]
            numbers |= {f"{name}.{field}[{index}]": float(flat[index]) for index in known}
            if not flat.ndim or len(flat) == 1:
                levels = {f"{name}.{field} of {own.name}": float(own.value.reshape(-1)[0]) for own in value.baselines}
                numbers |= {key: level for key, level in levels.items() if np.isfinite(level)}
    return numbers


def main() -> None:
    """Record the numbers of all cases."""
    import platform

    import torch

    numbers = {case: numbers_of(measure(), PER_ESTIMATE) for case, measure in CASES.items()}
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"
    sizes = {case: 96 if case.startswith("diagnose") else 32 for case in CASES}
    recorded = {"machine": machine, "n": sizes, "numbers": numbers}
    EXPECTED.write_text(json.dumps(recorded, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
