"""Add the window observer that decides to the baselines of committed calibration reports.

Run once, from the root of the repository:

    python docs/readings/add_deciding_window.py

Until 22 November 2026 the baselines of KL and entropy error held window observers of up to four symbols. The KL of
wider ones is stored as `window_kl_bits`; their entropy error is computed here, on the same sequences, which need no
model. The one that decides (`bayesgeom.stats.memory.wider_window`) is now a baseline of both, so that "beats" is said
only of a model that beats it. Running the script again does nothing.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from bayesgeom.core.files import atomic_directory
from bayesgeom.probes.calibration import CalibrationReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.folder import write_parts
from bayesgeom.results.storage import JSON, read
from bayesgeom.stats.memory import WindowScores, joined, wider_window, window_name, window_scores
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.tasks.hmm import HMM


def converted(report: CalibrationReport, scores: WindowScores) -> CalibrationReport:
    """Return the report with the deciding observer among its baselines, after the narrower ones."""
    held = report.window_kl_bits.value
    np.testing.assert_allclose(
        scores.kl_bits.mean(axis=2), held, rtol=1e-9, atol=1e-9
    )  # the same sequences, in other blocks
    at = wider_window(held, float(report.effective_memory_symbols))
    assert at is not None
    name = window_name(at[1], report.window_starts[at[0]]).replace("_", " ")
    errors = scores.entropy_error_bits[at]
    return replace(
        report,
        kl_bits=_with(report.kl_bits, name, held[at]),
        entropy_mae_bits=_with(report.entropy_mae_bits, name, errors.mean()),
        entropy_mae_bits_by_position=_with(report.entropy_mae_bits_by_position, name, errors),
    )


def _with(own: Estimate, name: str, level: np.ndarray | np.float64) -> Estimate:
    """Return the estimate with one more baseline, unless it has it."""
    if any(each.name == name for each in own.baselines):
        return own
    last = max(at for at, each in enumerate(own.baselines) if each.name.startswith("window"))
    added = Baseline.of("baseline", name, level)
    return replace(own, baselines=(*own.baselines[: last + 1], added, *own.baselines[last + 1 :]))


def _lacks(report: CalibrationReport) -> bool:
    """Whether an observer decides that is not yet among the baselines."""
    at = wider_window(report.window_kl_bits.value, float(report.effective_memory_symbols)) if report.windows else None
    name = "" if at is None else window_name(at[1], report.window_starts[at[0]]).replace("_", " ")
    return bool(name) and all(each.name != name for each in report.entropy_mae_bits.baselines)


def _scored(diagnosis: Diagnosis) -> WindowScores:
    """Return the window observers' scores on the sequences of a diagnosis of an HMM."""
    task = HMM(**{key: value for key, value in diagnosis.provenance["task"].items() if key != "name"})
    arguments = diagnosis.provenance["arguments"]
    blocks = task.stream(int(arguments["n"]), seed=derived_seed(int(arguments["seed"]), Branch.TRIALS))
    scores = joined([own for block in blocks if (own := window_scores(block)) is not None])
    assert scores is not None
    return scores


def main() -> None:
    """Convert every committed calibration report of a task with latent dynamics, and print its new baseline."""
    for path in sorted((ROOT / "docs").glob(f"**/{JSON}")):
        folder, text = path.parent, path.read_text(encoding="utf-8")
        if '"calibration"' not in text or '"effective_memory_symbols"' not in text:
            continue
        found = Diagnosis.load(folder)
        own = found[CalibrationReport]
        if not _lacks(own):
            continue
        new = converted(own, _scored(found))
        with atomic_directory(folder) as aside:
            write_parts(aside, {**found, "calibration": new}, read(folder)[1])
        for estimate in (new.kl_bits, new.entropy_mae_bits):
            print(folder.relative_to(ROOT), estimate.baselines[-2:], estimate.clears("lower"))


if __name__ == "__main__":
    main()
