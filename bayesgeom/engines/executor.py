"""One executor for every batch of jobs: anything with `submit(fn, *args)` that returns a future.

A job names a function and holds names, paths, numbers and seeds: never a model. A worker computes it with a stated
number of threads and writes its result into a directory of its own, atomically. A result that exists is not computed
again, so a batch that was stopped continues. The engine schedules, retries and moves files; this module does not.
"""

import errno
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from bayesgeom.core.arguments import check_argument
from bayesgeom.core.errors import BayesGeomError, ExecutorFault, InvalidArgument, OutputFault
from bayesgeom.core.files import JOBS
from bayesgeom.core.progress import bar, progress_in
from bayesgeom.core.text import shown
from bayesgeom.engines.parcels import read_parcel, write_parcel

RESULT, _LOCK = "result.safetensors", ".lock"
_NO_LOCKS = (
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
)  # NFS without its lock manager, Lustre
_PACKAGES = ("bayesgeom", "torch", "numpy")  # they decide numbers: the driver and its workers need the same versions


@runtime_checkable
class Future(Protocol):
    """Result of `submit`, as in `concurrent.futures`; both methods wait."""

    def result(self) -> Any:
        """Return the value that the job returned."""

    def exception(self) -> BaseException | None:
        """Return the exception that the job raised, or None."""


@runtime_checkable
class Executor(Protocol):
    """Runs jobs: a pool of `concurrent.futures` or loky, Dask's `get_executor()`, submitit's `AutoExecutor`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Schedule `fn(*args)` and return a future."""


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work for a worker.

    Args:
        name: Name in messages; need not be unique.
        function: The function to call, as "module:name".
        arguments: Its keyword arguments, of types that JSON supports.
    """

    name: str
    function: str
    arguments: Mapping[str, Any]

    def folder(self, threads: int) -> str:
        """Return the name of the directory of its result, the same for equal jobs with equally many threads."""
        decides = f"{self.text()} {threads} {_versions()['bayesgeom']}"
        readable = re.sub(r"[^\w.-]+", "-", self.name)[:48].strip("-.")
        return f"{readable}-{hashlib.sha256(decides.encode()).hexdigest()[:16]}"

    def text(self) -> str:
        """Return the JSON text that workers receive.

        Raises:
            InvalidArgument: JSON does not support an argument.
        """
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
        folder: Directory of results, a path or text, on a file system that every worker sees.
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

    def __post_init__(self) -> None:
        check_executor(self.executor)
        check_argument("folder", self.folder, str | Path)
        check_argument("threads", self.threads, int)
        object.__setattr__(self, "folder", Path(self.folder))
        if self.threads < 1:
            raise InvalidArgument(f"threads must be at least 1, got {self.threads}.")

    @classmethod
    def of(cls, executor: object) -> "Batch":
        """Return a batch unchanged, and an executor as a batch with the default directory.

        Raises:
            InvalidArgument: It has no `submit`.
        """
        return executor if isinstance(executor, Batch) else cls(executor=check_executor(executor))

    def results(self, jobs: Sequence[Job], *, desc: str = "jobs") -> list[Any]:
        """Run the jobs without results and return all results in the order of `jobs`.

        Args:
            jobs: The jobs.
            desc: Name of the progress bar.

        Raises:
            ExecutorFault: As in `run`.
            InvalidArgument: As in `run`.
        """
        return [read_parcel(path) for path in self.run(jobs, desc=desc)]

    def run(self, jobs: Sequence[Job], *, desc: str = "jobs") -> list[Path]:
        """Run the jobs without results and return the files of all results in the order of `jobs`.

        Failures are reported after all jobs have ended, so that one failure does not cost the others' results.

        Args:
            jobs: The jobs.
            desc: Name of the progress bar.

        Raises:
            ExecutorFault: A job failed, or its worker died, or workers write where this process cannot read.
            InvalidArgument: An argument of a job cannot be sent to a worker.
        """
        folder = self.folder.expanduser().resolve()
        places = [folder / job.folder(self.threads) for job in jobs]
        texts = [self._text(job, place) for job, place in zip(jobs, places, strict=True)]
        waiting = {place: index for index, place in enumerate(places) if not (place / RESULT).is_file()}
        with (
            progress_in(folder),
            bar(total=len(jobs), initial=len(jobs) - len(waiting), desc=desc, leave=False) as shown,
        ):
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


def check_executor(executor: object) -> Executor:
    """Return an executor unchanged.

    Raises:
        InvalidArgument: It has no `submit`.
    """
    if isinstance(executor, type) or not isinstance(executor, Executor):
        raise InvalidArgument(
            f"executor has no submit(fn, *args), got {shown(executor)}. Pass a pool of concurrent.futures or loky, "
            f"submitit.AutoExecutor, Dask's client.get_executor(), or bayesgeom.engine('local:2')."
        )
    return executor


def path_of(function: Callable[..., Any]) -> str:
    """Return "module:name", by which a worker finds a function of a module."""
    return f"{function.__module__}:{function.__name__}"


def perform(text: str) -> str:
    """Do a job on a worker unless its result exists, after waiting for another worker that does the same job.

    Returns:
        "", or the reason of a failure: text, because some engines cannot transfer exceptions of this package.
    """
    job = json.loads(text)
    place = Path(job["place"])
    if (place / RESULT).is_file():
        return ""
    try:
        _check_versions(job["versions"])
        with _alone(place):
            if not (place / RESULT).is_file():
                write_parcel(place / RESULT, _value(job))
    except BayesGeomError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _value(job: Mapping[str, Any]) -> Any:
    """Call a job's function."""
    from bayesgeom.core.torch_state import limited

    module, _, name = job["function"].partition(":")
    with limited(job["threads"]):
        return vars(importlib.import_module(module))[name](**job["arguments"])


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Wait until no other worker does this job: after an interrupted command, its jobs may still run.

    The operating system releases the lock of a killed worker. Without such locks (Windows, some network file systems)
    both workers do the job, and write the same bytes.

    Raises:
        OutputFault: The job's directory cannot be written.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        file = (place / _LOCK).open("a")
    except OSError as error:
        raise OutputFault(f"cannot write {place / _LOCK}: {error.strerror or error}.") from error
    with file:
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise OutputFault(f"cannot lock {place / _LOCK}: {error.strerror or error}.") from error
        yield


def _fault(future: Future) -> str:
    """Wait for a job and return the reason of its failure in one line, or ""."""
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
    """Raise `ExecutorFault` unless this worker has the driver's versions."""
    own = _versions()
    if apart := [f"{name} {driver[name]} there, {own[name]} here" for name in driver if driver[name] != own.get(name)]:
        raise ExecutorFault(
            f"driver and worker differ: {'; '.join(apart)} (there is the driver, here the worker). Install the same."
        )


@cache
def _versions() -> Mapping[str, str]:
    """Return the versions of this process; cached, because each is read from a file."""
    found = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a copy of the source that is not installed
            found[name] = "unknown"
    return found


def _as_array(executor: object) -> AbstractContextManager[Any]:
    """Make submitit's executors submit all jobs of the block as one array; others submit each at once."""
    submitit = sys.modules.get("submitit")
    batch: AbstractContextManager[Any] = (
        executor.batch() if submitit is not None and isinstance(executor, submitit.Executor) else nullcontext()
    )
    return batch


def _line(error: BaseException) -> str:
    """Return the last line of an error's text, because engines put the worker's whole traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -|")]
    return lines[-1].rstrip(".") if lines else "no reason given"
