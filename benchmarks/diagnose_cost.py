"""What a diagnosis costs, as ratios from one run on this machine.

    (a) time:   diagnose(n_untrained=0) against the plain forward passes of the same trials        1.7; at n = 512 3
    (b) memory: peak of diagnose(n_untrained=0) at ten times n against the peak at n               at most 1.15
    (c) whole:  `bayesgeom diagnose CHECKPOINT` with its defaults, in seconds and GB         under 30 s, 2 GB

(a) is of all default measurements. The second ratio, and (b), leave out what runs a fixed number of further sequences:
the evidence response, 64 for each age, and the data of the viewer.

In (a) the two sides alternate and the medians are compared, so that a busy machine slows both. (b) and (c) are
processes of their own, and their peaks are what the kernel says (ru_maxrss; Linux and macOS).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

import bayesgeom
from bayesgeom.core.run import N_RECORDED, Trials
from bayesgeom.diagnosis.plan import all_probes
from bayesgeom.models.base import Model

GB = 2**30
Clock = Callable[[], float]
CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
DIAGNOSE = (
    "import sys, bayesgeom; "
    "bayesgeom.diagnose(sys.argv[1], probes=sys.argv[3].split(), n=int(sys.argv[2]), n_untrained=0)"
)
IMPORT = "import bayesgeom; bayesgeom.load; bayesgeom.diagnose"
WATCH = """
import json, os, sys, time
start = time.perf_counter()
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execv(sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(child, 0)
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps({"seconds": time.perf_counter() - start, "peak_bytes": used.ru_maxrss * unit}))
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a process took."""

    seconds: float
    peak_bytes: int


def plain_passes(model: Model, blocks: list[Trials]) -> None:
    """The forward passes alone: no hooks, nothing reduced, nothing kept."""
    with torch.no_grad():
        for block in blocks:
            model.module(block.tokens)


def seconds(work: Callable[[], object], now: Clock) -> float:
    """Time of one call by this clock."""
    start = now()
    work()
    return now() - start


def usage(*command: str) -> Usage:
    """Run a process to its end and ask the kernel what it took.

    A process inherits the peak of the one that starts it, and this one is large by now: a small one stands between.
    """
    done = subprocess.run((sys.executable, "-S", "-c", WATCH, *command), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return Usage(**json.loads(done.stdout))


def verdict(value: float, limit: float) -> str:
    """Whether a number keeps its limit."""
    return f"{'ok' if value <= limit else 'OVER'}, at most {limit:g}"


def counted_probes(model: Model) -> list[str]:
    """What a diagnosis of this model measures by default, without what runs a fixed number of sequences again."""
    measured = bayesgeom.diagnose(model, n=16, n_untrained=0)
    return [name for name in measured if name not in ("evidence_response", "inside")]


def time_ratio(model: Model, n: int, rounds: int, now: Clock) -> None:
    """(a): both sides once to warm up, then in turn."""
    blocks = list(model.task.stream(n, seed=0))  # blocks of 128, as diagnose draws them
    probes = counted_probes(model)
    sides = {
        "forward": lambda: plain_passes(model, blocks),
        "drawing": lambda: list(model.task.stream(n, seed=0)),
        "diagnose": lambda: bayesgeom.diagnose(model, n=n, n_untrained=0),
        "without further sequences": lambda: bayesgeom.diagnose(model, probes=probes, n=n, n_untrained=0),
    }
    for work in sides.values():
        work()
    taken = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            taken[name].append(seconds(work, now))
    forward, drawing, whole, fewer = (statistics.median(taken[name]) for name in sides)
    pairs = [d / f for d, f in zip(taken["diagnose"], taken["forward"], strict=True)]
    print(f"(a) time, n = {n:,}, medians of {rounds} alternating rounds")
    print(f"    forward passes {forward:.3f} s   drawing {drawing:.3f} s   diagnose(n_untrained=0) {whole:.3f} s")
    limit = 1.7 if n >= 2_000 else 3.0
    print(f"    diagnose / forward              {whole / forward:.3f}   ({verdict(whole / forward, limit)})")
    print(f"    … round by round                {min(pairs):.3f} … {max(pairs):.3f}")
    print(f"    … without further sequences     {fewer / forward:.3f}")
    print(f"    diagnose / (drawing + forward)  {whole / (drawing + forward):.3f}")
    probe_costs(model, n, forward, now)


def probe_costs(model: Model, n: int, forward: float, now: Clock) -> None:
    """What the probes alone take of (a), each once, after the pass that serves them all."""
    probes = all_probes()
    sites = {site for probe in probes.values() for site in (*probe.needs.sites, *probe.needs.optional)}
    run = model.run(
        model.task.stream(n, seed=0),
        record=sorted((own for own in sites if model.layers_of(own)), key=lambda site: site.name),
        n_recorded=N_RECORDED,
        baseline_predictives=model.task.baseline_predictives,
    )
    measured = bayesgeom.diagnose(model, n=16, n_untrained=0)
    served = {name: probe for name, probe in probes.items() if name in measured}
    taken = {name: seconds(lambda probe=probe: probe.measure(run), now) for name, probe in served.items()}
    print(f"    probes alone / forward          {sum(taken.values()) / forward:.3f}")
    print("    … " + "   ".join(f"{name} {cost / forward:.3f}" for name, cost in taken.items()) + "\n")


def memory_ratio(checkpoint: str, n: int, rounds: int) -> None:
    """(b): the two sizes in turn."""
    python = sys.executable
    idle = usage(python, "-c", IMPORT).peak_bytes
    peaks = {size: [] for size in (n, 10 * n)}
    probes = " ".join(counted_probes(bayesgeom.load(checkpoint)))
    for _ in range(rounds):
        for size, found in peaks.items():
            found.append(usage(python, "-c", DIAGNOSE, checkpoint, str(size), probes).peak_bytes)
    small, large = (statistics.median(found) for found in peaks.values())
    print(f"(b) peak memory of diagnose(n_untrained=0), medians of {rounds} processes each")
    sizes = {"imports alone": idle, f"n = {n:,}": small, f"n = {10 * n:,}": large}
    print("    " + "   ".join(f"{label}: {size / GB:.2f} GB" for label, size in sizes.items()))
    print(f"    n = {10 * n:,} / n = {n:,}     {large / small:.3f}   ({verdict(large / small, 1.15)})")
    print(f"    … above the imports             {(large - idle) / (small - idle):.3f}\n")


def whole_command(checkpoint: str, rounds: int) -> None:
    """(c): with and without the report directory."""
    command = (sys.executable, "-m", "bayesgeom", "diagnose", checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        runs = {"": [], " --out DIR": []}
        for index in range(rounds):
            runs[""].append(usage(*command))
            runs[" --out DIR"].append(usage(*command, "--out", str(Path(folder) / str(index))))
    print(f"(c) bayesgeom diagnose {checkpoint}, defaults, medians of {rounds}, imports included")
    for option, found in runs.items():
        wall = statistics.median(run.seconds for run in found)
        peak = statistics.median(run.peak_bytes for run in found) / GB
        cost = f"{wall:6.1f} s ({verdict(wall, 30)})   {peak:.2f} GB ({verdict(peak, 2)})"
        print(f"    {option.strip() or '(no --out)':12} {cost}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", default="bijection-v20", help="name or directory")
    parser.add_argument("--n", type=int, default=2_000, help="sequences; (b) compares with ten times as many")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of (a); (b) and (c) take about half as many")
    parser.add_argument("--parts", nargs="+", choices=("a", "b", "c"), default=["a", "b", "c"])
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="of (a); cpu: on a machine with other work"
    )
    given = parser.parse_args()
    model = bayesgeom.load(given.checkpoint)
    print(f"{model.spec.name} on {model.task}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    few = max(1, (given.rounds + 1) // 2)
    if "a" in given.parts:
        time_ratio(model, given.n, given.rounds, CLOCKS[given.clock])
    if "b" in given.parts:
        memory_ratio(given.checkpoint, given.n, few)
    if "c" in given.parts:
        whole_command(given.checkpoint, few)


if __name__ == "__main__":
    main()
