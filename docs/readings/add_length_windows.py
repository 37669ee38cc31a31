"""Add window observers to the baselines of the length report of the three-state networks.

Run once, from the root of the repository:

    python docs/readings/add_length_windows.py

The report `length-hmm` is older than window observers as baselines, and its networks are not shipped. Baselines need
no network: the same sequences are drawn again, which the stored levels of the uniform predictor and of the current
symbol confirm, and the window observers are scored on them. The effective memory stays unknown, because the report
holds no errors by sequence. Running the script again changes nothing.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from bayesgeom.core.files import atomic_directory
from bayesgeom.generalization.curves import strongest, wide_windows
from bayesgeom.generalization.length_report import LengthReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.folder import write_parts
from bayesgeom.results.storage import read
from bayesgeom.stats.behavior import BehaviorLog
from bayesgeom.stats.memory import TRANSPORT_WINDOW, WindowScores, transport_note
from bayesgeom.stats.observers import STARTS
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.tasks.hmm import HMM

REPORT = ROOT / "docs" / "readings" / "length-hmm"
Levels = dict[str, np.ndarray]


def levels(task: HMM, *, n: int, seed: int) -> tuple[Levels, Levels, WindowScores]:
    """Return KL and entropy error of every baseline by position, and the window observers' KL by sequence."""
    log = BehaviorLog()
    for block in task.stream(n, seed=derived_seed(seed, Branch.TRIALS)):
        exact = block.at_scored(block.predictive)
        log.add(block, exact.log(), torch.zeros_like(exact[..., 0]), task.baseline_predictives(block))
    found, windows = log.finished()[2], log.windows()
    assert windows is not None
    kl = {name: own.kl_bits.mean(axis=0, dtype=np.float64) for name, own in found.items()}
    gaps = {
        name: np.abs(own.model_entropy_bits.astype(np.float64) - own.exact_entropy_bits) for name, own in found.items()
    }
    wide = wide_windows(windows)
    entropy = {name: gap.mean(axis=0) for name, gap in gaps.items()}
    kl |= {name: own for name, (own, _) in wide.items()}
    return kl, entropy | {name: own for name, (_, own) in wide.items()}, windows


def converted(report: LengthReport, kl: Levels, entropy: Levels, windows: WindowScores) -> LengthReport:
    """Return the report with these baselines, the strongest first."""
    for old in report.error_bits.baselines:
        for error, own in enumerate((kl, entropy)):
            held = np.broadcast_to(old.value[error], (len(report.models), len(report.at)))
            np.testing.assert_allclose(held, np.broadcast_to(own[old.name], held.shape), rtol=1e-5, atol=1e-6)
    best = strongest(kl)
    names = (best, *(name for name in kl if name != best))
    both = [Baseline.of("baseline", name, np.stack([kl[name], entropy[name]])[:, None]) for name in names]
    within = report.at <= report.trained
    narrow = strongest({name: level for name, level in kl.items() if name not in wide_windows(windows)})
    ratio = Baseline.of("baseline", narrow, kl[narrow][~within].mean() / kl[narrow][within].mean())
    gap = float(windows.kl_bits.mean(axis=2)[STARTS.index("stationary"), TRANSPORT_WINDOW])
    return replace(
        report,
        error_bits=_against(report.error_bits, both),
        extrapolation_ratio=_against(report.extrapolation_ratio, [ratio]),
        transport=transport_note(gap),
    )


def _against(own: Estimate, baselines: list[Baseline]) -> Estimate:
    """Return the estimate with these baselines instead of its own."""
    return Estimate.of(own.value, own.ends, resampled=own.resampled, n=own.n, baselines=baselines, why_not=own.why_not)


def main() -> None:
    """Convert the report, and print each baseline's mean KL over the positions of every length."""
    found = Diagnosis.load(REPORT)
    own, arguments, about = found[LengthReport], found.provenance["arguments"], found.provenance["task"]
    sizes = {key: value for key, value in about.items() if key not in ("name", "length")}
    task = HMM(**sizes, length=int(own.lengths[-1]))
    kl, entropy, windows = levels(task, n=int(arguments["n"]), seed=int(arguments["seed"]))
    new = converted(own, kl, entropy, windows)
    with atomic_directory(REPORT) as aside:
        write_parts(aside, {**found, "length": new}, read(REPORT)[1])
    for name, level in kl.items():
        print(
            name,
            [f"{level[own.at <= int(length)].mean():.2g}" for length in own.lengths],
            f"{level[9]:.2g} {level[10]:.2g}",
        )
    for width in range(5, 11):
        print("width", width, windows.kl_bits.mean(axis=2)[:, width])
    print(new.transport)


if __name__ == "__main__":
    main()
