"""Measure committed intervention reports again with the present code and rules.

Run from the root of the repository:

    python docs/readings/measure_interventions.py [--jobs 2] [MODEL/NAME …]

Each report below `interventions/` is made again by `bayesgeom intervene` with the arguments in its own provenance: by
default each report that `interventions/measured.toml` does not list, in processes of one thread each. A finished
report replaces the earlier one and is listed, so the script can be stopped and started again at any time. One line per
report gives the verdicts before and after, and the largest change of a layer's effect.

A name without a report makes a new one: a swap of a quantity in the residual stream, 64 pairs, seed 0. Examples are
`mess3-small/covariance-belief`, `sticky-small/leace-entropy-given-position+answer` and
`sticky-small/trained_swap-7-belief`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import numpy as np

from bayesgeom.claims.subspace_page import FOLDER, MEASURED
from bayesgeom.core.files import atomic_file
from bayesgeom.interventions.onwards_report import OnwardsReport
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.folder import HTML, METRICS
from bayesgeom.results.storage import JSON

READINGS = ROOT / FOLDER
HEAD = """# Reports that were measured after the last change of intervals and of variance-matched controls (22 November
# 2026). Every other report has the earlier intervals and controls, and the generated page says so.
"""
NAMES = re.compile(r"(covariance|leace)-([a-z]+)(?:-given-([a-z+]+))?|trained_swap-(\d+)-([a-z]+)")
LABELS = re.compile(r"(\S+) \((\w+)(?:, given (.*))?\)|trained swap \((\w+), rank (\d+)\)")
NEW = {"n": 64, "seed": 0, "kind": "swap", "site": "resid_pre", "controls": 20, "score_after": False, "layers": "all"}


def form(label: str) -> str:
    """Return a subspace as the command line writes it, from its label in a report."""
    if label == "frame (embedding)":
        return "frame"
    if jacobian := re.fullmatch(r"top-(\d+) Jacobian", label):
        return f"top_jacobian:{jacobian[1]}"
    found = LABELS.fullmatch(label)
    assert found, f"no form of {label!r} is known"
    if found[4]:
        return f"trained_swap:{found[5]},{found[4]}"
    return f"{found[1].lower()}:{found[2]}" + (f",given={found[3].replace(' and ', '+')}" if found[3] else "")


def form_of_name(name: str) -> str:
    """Return the subspace of a new report as the command line writes it; stop if its name has no known form."""
    found = NAMES.fullmatch(name.partition("/")[2])
    if not found:
        raise SystemExit(f"No report {name} below {FOLDER}, and its name is not that of a swap of a quantity.")
    if found[4]:
        return f"trained_swap:{found[4]},{found[5]}"
    return f"{found[1]}:{found[2]}" + (f",given={found[3]}" if found[3] else "")


def is_stored(name: str) -> bool:
    """Return whether there is a report of this name."""
    return (READINGS / name / JSON).exists()


def command(name: str) -> list[str]:
    """Return the command that makes the report of this name, again or for the first time."""
    if is_stored(name):
        stored = json.loads((READINGS / name / JSON).read_text(encoding="utf-8"))["provenance"]["arguments"]
    else:
        stored = {**NEW, "subspace": form_of_name(name)}
    counts = ("--n", str(stored["n"]), "--seed", str(stored["seed"]))
    asked = [sys.executable, "-m", "bayesgeom", "intervene", name.partition("/")[0], *counts]
    if "subspace" not in stored:  # erasure onwards names its quantity
        return [*asked, "--subspace", f"leace:{stored['quantity']}", "--onwards"]
    asked += ["--subspace", form(stored["subspace"]) if is_stored(name) else stored["subspace"]]
    asked += ["--kind", stored["kind"], "--site", stored["site"], "--controls", str(stored["controls"])]
    asked += ["--score-after"] if stored["score_after"] else []
    return asked + (["--layers", stored["layers"]] if stored["layers"] != "all" else [])


def only_report(name: str) -> InterventionReport | OnwardsReport:
    """Return the report of this name."""
    (report,) = Diagnosis.load(READINGS / name).values()
    assert isinstance(report, InterventionReport | OnwardsReport), f"{name}: {type(report).__name__}"
    return report


def effects(report: InterventionReport | OnwardsReport) -> np.ndarray:
    """Return the number per layer that decides the verdict."""
    if isinstance(report, OnwardsReport):
        return np.asarray(report.kl_increase_bits.value)
    return np.asarray(report.movement.value if report.is_swap else report.kl_increase_bits.value)[..., 0]


def measure(name: str) -> str:
    """Make one report again, and return a line on what changed."""
    before, started = only_report(name) if is_stored(name) else None, time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    asked = [*command(name), "--out", str(READINGS / name)]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        return f"FAILED {name}: {done.stderr.strip().splitlines()[-1:]}"
    for made in (HTML, METRICS):
        (READINGS / name / made).unlink(missing_ok=True)
    after = only_report(name)
    if before is None:
        return f"{name}: new: {after.verdict}; {time.monotonic() - started:.0f} s"
    old, new = effects(before), effects(after)
    change = float(np.nanmax(np.abs(new - old))) if old.shape == new.shape else float("nan")
    verdicts = before.verdict if before.verdict == after.verdict else f"{before.verdict}  ->  {after.verdict}"
    return f"{name}: {verdicts}; largest change {change:.2g}; {time.monotonic() - started:.0f} s"


def listed() -> list[str]:
    """Return the reports that were measured under the present rules."""
    return list(tomllib.loads((READINGS / MEASURED).read_text(encoding="utf-8"))["present"])


def enter(name: str) -> None:
    """Add a report to the list."""
    names = "".join(f'    "{each}",\n' for each in sorted({*listed(), name}))
    with atomic_file(READINGS / MEASURED) as aside:
        aside.write_text(f"{HEAD}present = [\n{names}]\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL/NAME", help="reports; by default those not listed")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    given = parser.parse_args()
    stored = sorted(str(path.parent.relative_to(READINGS)) for path in READINGS.glob(f"*/*/{JSON}"))
    for name in sorted({*given.names} - {*stored}):
        form_of_name(name)
    names = given.names or [name for name in stored if name not in listed()]
    with ThreadPoolExecutor(given.jobs) as pool:
        running = {pool.submit(measure, name): name for name in names}
        for number, future in enumerate(as_completed(running), start=1):
            line = future.result()
            if not line.startswith("FAILED"):
                enter(running[future])
            print(f"[{number}/{len(names)}] {line}", flush=True)


if __name__ == "__main__":
    main()
