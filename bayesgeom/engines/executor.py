"""One executor for every batch of jobs: anything with `submit(fn, *args)` that returns a future.

A job names a function and holds names, paths, numbers and seeds: never a model. A worker computes it with a stated
number of threads and writes its result into a directory of its own, atomically. What is there already is not computed
again, so a batch that was stopped continues. The engine schedules, retries and moves files; nothing here does.
"""

import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from bayesgeom.core.errors import BayesGeomError, ExecutorFault, InvalidArgument
from bayesgeom.core.files import JOBS
from bayesgeom.core.progress import bar, kept_in
from bayesgeom.engines.parcels import read_parcel, write_parcel

RESULT = "result.safetensors"
_PACKAGES = ("bayesgeom", "torch", "numpy")  # what decides a number: the driver and its workers have the same


@runtime_checkable
class Future(Protocol):
    """What `submit` returns, as in `concurrent.futures`; both methods wait."""

    def result(self) -> Any:
        """What the job returned."""

    def exception(self) -> BaseException | None:
        """What the job raised; None where it raised nothing."""


@runtime_checkable
class Executor(Protocol):
    """What runs jobs: a pool of `concurrent.futures` or loky, Dask's `get_executor()`, submitit's `AutoExecutor`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Run `fn(*args)` somewhere, and return a future."""


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work: `function`, "module:name", is called with `arguments` by keyword.

    `arguments` hold what JSON can hold. `name` is for people, and need not be unique.
    """

    name: str
    function: str
    arguments: Mapping[str, Any]

    def folder(self, threads: int) -> str:
        """Name of the directory of its result: the same job, computed with as many threads, has the same one."""
        decides = f"{self.text()} {threads} {_versions()['bayesgeom']}"
        readable = re.sub(r"[^\w.-]+", "-", self.name)[:48].strip("-.")
        return f"{readable}-{hashlib.sha256(decides.encode()).hexdigest()[:16]}"

    def text(self) -> str:
        """What workers get. **Raises** `InvalidArgument` for an argument that is no name, path, number or list."""
        try:
            return json.dumps({"function": self.function, "arguments": dict(self.arguments)}, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"job {self.name!r} cannot be sent to a worker: {error}. A job holds names, paths, numbers and seeds."
            ) from error


@final
@dataclass(frozen=True, kw_only=True)
class Batch:
    """Where jobs run and where their results lie.

    Args:
        executor: Anything with `submit(fn, *args)` that returns a future.
        folder: Directory of results, on a file system that every worker sees.
        threads: Threads of each job. Results are the same bytes on processors of one type for the same number.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor(1) as pool:
        ...     Batch(executor=pool).threads
        1
    """

    executor: Executor
    folder: Path = JOBS
    threads: int = 1

    @classmethod
    def of(cls, executor: object) -> "Batch":
        """A batch as it is, or an executor with the default directory.

        Raises:
            InvalidArgument: It has no `submit`.
        """
        if isinstance(executor, Batch):
            return executor
        if isinstance(executor, type) or not isinstance(executor, Executor):
            raise InvalidArgument(
                f"executor has no submit(fn, *args), got {executor!r:.60}. Pass a pool of concurrent.futures or loky, "
                f"submitit.AutoExecutor, Dask's client.get_executor(), or bayesgeom.engine('local:2')."
            )
        return cls(executor=executor)

    def results(self, jobs: Sequence[Job], *, desc: str = "jobs") -> list[Any]:
        """Run the jobs whose results are not there, and return all results in the order of `jobs`.

        **Raises** as `run` does.
        """
        return [read_parcel(path) for path in self.run(jobs, desc=desc)]

    def run(self, jobs: Sequence[Job], *, desc: str = "jobs") -> list[Path]:
        """Run the jobs whose results are not there, and return the files of all results in the order of `jobs`.

        Every job is waited for before a failure is reported, so that a failed one costs itself alone.

        Raises:
            ExecutorFault: A job failed, or its worker died, or workers write where this process cannot read.
            InvalidArgument: An argument of a job cannot be sent to a worker.
        """
        folder = self.folder.expanduser().resolve()
        places = [folder / job.folder(self.threads) for job in jobs]
        texts = [self._text(job, place) for job, place in zip(jobs, places, strict=True)]
        waiting = {place: index for index, place in enumerate(places) if not (place / RESULT).is_file()}
        with kept_in(folder), bar(total=len(jobs), initial=len(jobs) - len(waiting), desc=desc, leave=False) as shown:
            futures = self._submitted([texts[index] for index in waiting.values()])
            faults: dict[int, str] = {}
            for index, future in zip(waiting.values(), futures, strict=True):
                if fault := _fault(future):
                    faults[index] = fault
                elif not (places[index] / RESULT).is_file():
                    faults[index] = "its worker wrote where this process cannot read; name a folder that both see"
                shown.update(1)
        if faults:
            raise _failed([job.name for job in jobs], faults, folder)
        return [place / RESULT for place in places]

    def _text(self, job: Job, place: Path) -> str:
        own = {**json.loads(job.text()), "name": job.name, "place": str(place), "threads": self.threads}
        return json.dumps({**own, "versions": dict(_versions())})

    def _submitted(self, texts: Sequence[str]) -> list[Any]:
        try:
            with _as_array(self.executor):
                return [self.executor.submit(perform, text) for text in texts]
        except (RuntimeError, OSError) as error:  # a pool that is broken or shut down, a cluster that is gone
            raise ExecutorFault(f"{type(self.executor).__name__} accepts no jobs: {_line(error)}.") from error


def path_of(function: Callable[..., Any]) -> str:
    """Return "module:name", by which a worker finds a function of a module."""
    return f"{function.__module__}:{function.__name__}"


def perform(text: str) -> str:
    """Do a job where it was sent, unless its result is there. Returns "" or why it failed, as any engine carries it."""
    job = json.loads(text)
    place = Path(job["place"])
    if (place / RESULT).is_file():
        return ""
    try:
        _check_versions(job["versions"])
        module, _, name = job["function"].partition(":")
        with limited(job["threads"]):
            value = vars(importlib.import_module(module))[name](**job["arguments"])
        write_parcel(place / RESULT, value)
    except BayesGeomError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Compute with so many threads, in torch and in numpy's libraries; as many as before afterwards."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(limits=threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _fault(future: Future) -> str:
    """Why a job failed, in one line; "" where it did not. Waits for it."""
    if (error := future.exception()) is not None:
        return f"{type(error).__name__}: {_line(error)}"
    return str(future.result())


def _failed(names: Sequence[str], faults: Mapping[int, str], folder: Path) -> ExecutorFault:
    index, reason = min(faults.items())
    others = (
        ""
        if len(faults) == 1
        else f", and {len(faults) - 1} more: " + ", ".join(names[other] for other in sorted(faults)[1:4])
    )
    rest = len(names) - len(faults)
    return ExecutorFault(
        f"{len(faults)} of {len(names)} jobs failed: {names[index]!r}: {reason.rstrip('.')}{others}. The results of "
        f"the other {rest} are in {folder}; repeat the same command to run what is missing."
    )


def _check_versions(driver: Mapping[str, str]) -> None:
    """**Raises** `ExecutorFault` unless this worker has the driver's versions."""
    own = _versions()
    if apart := [f"{name} {driver[name]} there, {own[name]} here" for name in driver if driver[name] != own.get(name)]:
        raise ExecutorFault(
            f"driver and worker differ: {'; '.join(apart)} (there is the driver, here the worker). Install the same."
        )


@cache
def _versions() -> Mapping[str, str]:
    """Versions here; read once, since each comes from a file."""
    found = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a copy of the source that is not installed
            found[name] = "unknown"
    return found


def _as_array(executor: object) -> AbstractContextManager[Any]:
    """Within it, submitit's executors collect jobs and submit them as one array; others submit at once."""
    submitit = sys.modules.get("submitit")
    batch: AbstractContextManager[Any] = (
        executor.batch() if submitit is not None and isinstance(executor, submitit.Executor) else nullcontext()
    )
    return batch


def _line(error: BaseException) -> str:
    """The last line of an error's text: engines put the worker's whole traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -|")]
    return lines[-1].rstrip(".") if lines else "no reason given"
