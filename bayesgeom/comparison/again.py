"""Recompute the verdicts of a saved comparison by the current rules, from its tasks but without its models."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bayesgeom.comparison.cell import Cell, cell
from bayesgeom.comparison.report import CONTEXT_FREE, ComparisonReport, stated, task_baselines, verdict_on
from bayesgeom.core.errors import OutputFault
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.report import with_provenance
from bayesgeom.training.scores import levels


def restated(path: Path) -> Diagnosis:
    """Read a saved comparison and recompute its terms, baselines and verdicts by the current rules.

    Scores and effective memory do not change. Baselines are scored on the same sequences.

    Args:
        path: Directory of the saved report.

    Raises:
        OutputFault: The directory holds no readable comparison.
    """
    diagnosis = Diagnosis.load(path)
    old = diagnosis.reports.get(ComparisonReport.name)
    if not isinstance(old, ComparisonReport):
        raise OutputFault(f"{path} holds no report of `bayesgeom compare`; it holds {', '.join(diagnosis)}.")
    arguments = diagnosis.provenance["arguments"]
    rows = zip(old.task_of, old.architecture_of, old.checkpoints, old.is_check, strict=True)
    cells = [_cell(*row) for row in rows]
    tasks = {own.task: own.recipe.task for own in cells}
    n, seed = int(arguments["n"]), int(arguments["seed"])
    by_task = {name: levels(task, n=n, seed=seed) for name, task in tasks.items()}
    found = [by_task[own.task] for own in cells]
    terms = zip(cells, old.share_closed.value, old.memory_symbols.value, found, strict=True)
    verdicts = [
        verdict_on(own.task, float(share), float(symbols), known.window_gap_bits)
        for own, share, symbols, known in terms
    ]
    against = [known.against(float(symbols)) for known, symbols in zip(found, old.memory_symbols.value, strict=True)]
    baselines = task_baselines(old.kl_bits.baseline(CONTEXT_FREE).value, against)
    report = replace(
        old,
        **stated(cells, verdicts, old.size_of[0].tolist()),
        kl_bits=Estimate.of(old.kl_bits.value, old.kl_bits.ends, n=old.kl_bits.n, baselines=baselines),
        window_gap_bits=np.array([known.window_gap_bits for known in found]),
    )
    return Diagnosis.of(with_provenance(report, diagnosis.provenance))


def _cell(task: str, architecture: str, checkpoint: str, is_check: bool) -> Cell:
    """Return the cell of a row; its seed is read from the checkpoint's name."""
    _, has_seed, after = checkpoint.partition("-seed")
    return cell(task, architecture, seed=int(after.split("-")[0]) if has_seed else 0, is_check=is_check)
