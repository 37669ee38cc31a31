"""Jobs on an executor: efficiency from one worker to two, overhead per job, and the bookkeeping of 10,000 jobs.

    python -m benchmarks.scaling --on local --seconds 10 --jobs 4
    python -m benchmarks.scaling --bookkeeping 10000

- Efficiency: the wall time of `--jobs` jobs on one worker over twice that on two. A job computes matrix products for
  `--seconds` of processor time of its own thread, so a busy machine shows: `busy` runs the same work in two plain
  processes, without bayesgeom, and is what this machine allows at that moment. `--sleep` makes jobs that wait instead,
  so that only the engine is measured.
- Overhead: wall time per job of jobs that do nothing, the workers being started already.
- Bookkeeping: `Batch.results` with an executor that writes each result at once: making, hashing, submitting and reading
  back, on one driver. Memory is the peak beyond what was resident before.
"""

import argparse
import importlib
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from bayesgeom.core.parcels import write_parcel
from bayesgeom.executors import Batch, Executor, Job, connect

OPTIONS: dict[str, Callable[[int], tuple[str, dict[str, Any]]]] = {
    "local": lambda n: (f"local:{n}", {}),
    "ray": lambda n: ("ray://local", {"ray": {"num_cpus": n, "include_dashboard": False}}),
    "dask": lambda n: ("dask://local", {"dask": {"n_workers": n, "threads_per_worker": 1}}),
}
TARGET = 0.85


def computed(*, seconds: float, index: int, sleep: bool = False) -> float:
    """Spend processor time, or wait."""
    if sleep:
        time.sleep(seconds)
        return float(index)
    grid = np.random.default_rng(index).normal(size=(192, 192))
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        grid = np.tanh(grid @ grid / 192)
    return float(grid[0, 0])


def job(index: int, seconds: float, *, sleep: bool = False) -> Job:
    """One of the jobs."""
    arguments = {"seconds": seconds, "index": index, "sleep": sleep}
    function = importlib.import_module("benchmarks.scaling").computed  # which workers do not find in __main__
    return Job(name=f"job {index}", function=function, arguments=arguments)


def warmed(executor: Executor, folder: Path, n: int) -> None:
    """Start every worker and import what jobs import."""
    Batch(executor=executor, folder=folder / "warm").results(
        [job(10**6 + own, 0.5, sleep=True) for own in range(2 * n)]
    )


def wall(on: str, n: int, seconds: float, n_jobs: int, *, sleep: bool) -> tuple[float, float]:
    """Wall time of the jobs on `n` workers, and per job of jobs that do nothing."""
    name, options = OPTIONS[on](n)
    with connect(name, options) as executor, tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        warmed(executor, folder, n)
        start = time.perf_counter()
        jobs = [job(index, seconds, sleep=sleep) for index in range(n_jobs)]
        Batch(executor=executor, folder=folder / "jobs").results(jobs)
        taken = time.perf_counter() - start
        start = time.perf_counter()
        Batch(executor=executor, folder=folder / "nothing").results(
            [job(index, 0.0, sleep=True) for index in range(50)]
        )
        return taken, (time.perf_counter() - start) / 50


def busy(seconds: float, n_jobs: int) -> float:
    """What two plain processes reach on this machine now: wall time in one over twice that in two."""

    def taken(n: int) -> float:
        each = [
            multiprocessing.get_context("spawn").Process(target=several, args=(seconds, n_jobs // n)) for _ in range(n)
        ]
        start = time.perf_counter()
        for process in each:
            process.start()
        for process in each:
            process.join()
        return time.perf_counter() - start

    return taken(1) / (2 * taken(2))


def several(seconds: float, n: int) -> None:
    """So many jobs, one after another."""
    for index in range(n):
        computed(seconds=seconds, index=index)


class Instant:
    """Writes a result for each job as a worker would, at once."""

    def submit(self, fn: Callable[..., Any], /, text: str) -> "Future[str]":
        write_parcel(Path(json.loads(text)["file"]), 1.0)
        future: Future[str] = Future()
        future.set_result("")
        return future


def bookkeeping(n: int) -> str:
    """Time and memory of `n` jobs on one driver, when they are new and when they are done."""
    with tempfile.TemporaryDirectory() as held:
        batch = Batch(executor=Instant(), folder=Path(held))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times = []
        for _ in range(2):
            start = time.perf_counter()
            batch.results([job(index, 10.0) for index in range(n)])
            times.append(time.perf_counter() - start)
        mebibytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return (
        f"{n:,} jobs: {times[0]:.1f} s to submit, write and read ({1e3 * times[0] / n:.2f} ms each), {times[1]:.1f} s "
        f"when all are done, {mebibytes:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=OPTIONS, default="local")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--sleep", action="store_true")
    parser.add_argument("--bookkeeping", type=int, default=0)
    given = parser.parse_args()
    if given.bookkeeping:
        print(bookkeeping(given.bookkeeping))
        return
    walls = {n: wall(given.on, n, given.seconds, given.jobs, sleep=given.sleep) for n in (1, 2)}
    efficiency = walls[1][0] / (2 * walls[2][0])
    kind = "waiting" if given.sleep else "computing"
    print(
        f"{given.on}, {given.jobs} jobs {kind} {given.seconds:g} s: {walls[1][0]:.1f} s on 1, {walls[2][0]:.1f} s on 2"
    )
    print(f"efficiency {efficiency:.3f}, target {TARGET}; overhead {1e3 * walls[1][1]:.0f} ms a job on 1 worker")
    if not given.sleep:
        print(f"two plain processes on this machine now: efficiency {busy(given.seconds, given.jobs):.3f}")


if __name__ == "__main__":
    main()
