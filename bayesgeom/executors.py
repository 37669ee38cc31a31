"""Jobs on an executor, which is anything with `submit(fn, *args)`: a pool, submitit, a cluster of Ray or Dask.

A job is a line of JSON: the path of a function, and names, paths, numbers and seeds; a model is sent by its name. Its
worker writes the result into a directory of its own, atomically. What is there is not computed again, so that an
interrupted command continues.
"""

import contextlib
import hashlib
import importlib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, Protocol, final, runtime_checkable

from bayesgeom.core import (
    BayesGeomError,
    CheckpointFault,
    ExecutorFault,
    InvalidArgument,
    ModelSpec,
    check_argument,
    checked,
    phase,
)
from bayesgeom.core.errors import optional_package, quoted
from bayesgeom.core.files import JOBS
from bayesgeom.core.parcels import read_parcel, write_parcel
from bayesgeom.core.plugins import Contained
from bayesgeom.core.progress import progress_in
from bayesgeom.core.torch_state import limited_threads
from bayesgeom.models.base import Model, numerics
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.models.resolve import ModelLike
from bayesgeom.tasks.base import WindTunnel, task_from_config

RESULT = "result.safetensors"


@runtime_checkable
class Executor(Protocol):
    """Runs jobs: a pool of `concurrent.futures` or loky, Dask's `get_executor()`, submitit's `AutoExecutor`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Schedule `fn(*args)` and return a future."""


@runtime_checkable
class _Future(Protocol):
    """What the futures of all engines have."""

    def exception(self) -> BaseException | None: ...

    def result(self) -> Any: ...


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """A call of a module's function, with keyword arguments of types that JSON supports."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class Batch:
    """An executor, the folder of the jobs' results, which every worker sees, and the threads of each job."""

    executor: Executor
    folder: Path = JOBS
    threads: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.executor, type) or not isinstance(self.executor, Executor):
            raise InvalidArgument(
                f"executor has no submit(fn, *args), got {quoted(self.executor)}. Pass a pool of concurrent.futures or "
                f"loky, submitit.AutoExecutor, Dask's client.get_executor(), or bayesgeom.executors.connect('local:2')."
            )
        check_argument("folder", self.folder, str | Path)
        check_argument("threads", self.threads, int)
        if self.threads < 1:
            raise InvalidArgument(f"threads must be at least 1, got {self.threads}.")
        object.__setattr__(self, "folder", Path(self.folder))

    @classmethod
    def of(cls, executor: Any) -> "Batch":
        """Return a batch unchanged, and an executor as a batch with the default folder."""
        return executor if isinstance(executor, Batch) else cls(executor=executor)

    def results(
        self, jobs: Sequence[Job], *, desc: str = "jobs", is_final: Callable[[Any], bool] | None = None
    ) -> list[Any]:
        """Run the jobs that have no final result, and return the results of all in their order.

        Args:
            jobs: The jobs.
            desc: What they are called in the progress bar.
            is_final: Whether the result of an earlier call is kept, else it is removed first. Default: all are kept.

        Raises:
            ExecutorFault: Jobs failed, or their workers died; the others have ended.
            InvalidArgument: An argument of a job cannot be sent to a worker.
        """
        folder = self.folder.expanduser().resolve()
        sent = [self._sent(job, folder) for job in jobs]
        if is_final is not None:
            for file in (file for file, _ in sent if file.is_file() and not is_final(read_parcel(file))):
                file.unlink(missing_ok=True)
        waiting = [(job.name, *files) for job, files in zip(jobs, sent, strict=True) if not files[0].is_file()]
        n_done, faults = len(jobs) - len(waiting), list[str]()
        with progress_in(folder, saved=f"*/{RESULT}"), phase(desc, len(jobs), "job", done=n_done) as progress:
            futures = self._submitted([text for *_, text in waiting])
            for (name, file, _), future in zip(waiting, futures, strict=True):
                if fault := _fault(future, file):
                    faults.append(f"{name!r}: {fault.rstrip('.')}")
                progress.update(1)
        if faults:
            raise ExecutorFault(
                f"{len(faults)} of {len(jobs)} jobs failed: {faults[0]}. The results of the other "
                f"{len(jobs) - len(faults)} are in {folder}; repeat the same command to run what is missing."
            )
        return [read_parcel(file) for file, _ in sent]

    def _sent(self, job: Job, folder: Path) -> tuple[Path, str]:
        """Return the file of a job's result, the same for equal jobs, and the text that its worker receives."""
        path = f"{job.function.__module__}:{job.function.__name__}"
        call = {"function": path, "arguments": dict(job.arguments), "threads": self.threads}
        try:
            decides = json.dumps([call, here := numerics()], sort_keys=True)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"job {job.name!r} cannot be sent to a worker: {error}.") from error
        readable = re.sub(r"[^\w.-]+", "-", job.name)[:48].strip("-.")
        file = folder / f"{readable}-{hashlib.sha256(decides.encode()).hexdigest()[:16]}" / RESULT
        return file, json.dumps({**call, "file": str(file), "numerics": here})

    def _submitted(self, texts: Sequence[str]) -> list[Any]:
        executor: Any = self.executor
        futures = list[Any]()
        submitit = sys.modules.get("submitit")
        is_array = submitit is not None and isinstance(executor, submitit.Executor)
        try:
            with executor.batch() if is_array else contextlib.nullcontext():
                for text in texts:
                    with Contained() as submitting:
                        futures.append(executor.submit(perform, text))
                    if submitting.error is not None:
                        futures.append(refused := Future[str]())
                        refused.set_exception(submitting.error)
        except (RuntimeError, OSError) as error:  # submitit submits an array where its block ends
            raise ExecutorFault(f"{type(executor).__name__} accepts no jobs: {_last_line(error)}.") from error
        return futures


def perform(text: str) -> str:
    """Do a job unless its result exists, and return "" or why it failed: some engines cannot send our exceptions.

    A second worker with the same job waits for the first, or writes the same bytes where files have no locks.
    """
    job = json.loads(text)
    if (file := Path(job["file"])).is_file():
        return ""
    try:
        there, here = job.get("numerics", {}), numerics()  # a driver of an earlier version sends none
        if differing := [
            f"{name} {there.get(name)} there, {value} here" for name, value in here.items() if there.get(name) != value
        ]:
            raise ExecutorFault(f"driver and worker differ: {'; '.join(differing)}. Install and set the same.")
        file.parent.mkdir(parents=True, exist_ok=True)
        with (file.parent / ".lock").open("a") as lock, limited_threads(job["threads"]):
            with contextlib.suppress(ImportError, OSError):
                importlib.import_module("fcntl").flock(lock, 2)  # exclusive
            if not file.is_file():
                module, _, name = job["function"].partition(":")
                write_parcel(file, vars(importlib.import_module(module))[name](**job["arguments"]))
    except (BayesGeomError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _fault(future: object, file: Path) -> str:
    """Wait for a job, and return why it failed; "" if its result is in the file."""
    if not isinstance(future, _Future):
        return f"submit returned {quoted(future)} instead of a future"
    error, returned = None, None
    with Contained() as waiting:  # a cancelled future raises
        error = future.exception()
        returned = future.result() if error is None else None
    if (error := error or waiting.error) is not None:
        return ": ".join(dict.fromkeys((type(error).__name__, _last_line(error))))  # some have no text
    if isinstance(returned, str) and returned:
        return returned
    return (
        "" if file.is_file() else "its worker wrote no result that this process can read; name a folder that both see"
    )


def _last_line(error: BaseException) -> str:
    """Return the last line of an error: engines put the worker's whole traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -|")]
    return lines[-1].rstrip(".") if lines else type(error).__name__


@checked()
@contextlib.contextmanager
def connect(name: str, options: str | Path | Mapping[str, Any] | None = None) -> Iterator[Executor]:
    """Connect to an engine for the length of a block, and pass what it yields as `executor=`.

    Args:
        name: "local:N", N processes; "slurm", by submitit; "ray://ADDRESS" or "dask://HOST:PORT"; "ray://auto", the
            cluster of this machine; "ray://local" or "dask://local", one that ends with the block; "ray", either.
        options: Tables by engine, or a TOML file with them: `slurm` as `submitit.AutoExecutor.update_parameters` takes
            them, `folder` and `cluster`; `ray` as `ray.init`, and in it `task` as `ray.remote`; `dask` as
            `distributed.Client`.

    Raises:
        InvalidArgument: There is no such engine, it is not installed, or an option is not one of its own.
        ExecutorFault: The engine cannot be reached.

    Example:
        >>> with connect("local:1") as executor:
        ...     executor.submit(abs, -3).result()
        3
    """
    kind, _, address = name.replace("://", ":").partition(":")
    if not re.fullmatch(r"local:[1-9]\d{0,4}|slurm|ray|(ray|dask)://.+", name):
        raise InvalidArgument(
            f"there is no engine {name!r}. There are: local:N, slurm, ray, ray://ADDRESS, ray://auto, ray://local, "
            f"dask://HOST:PORT or dask://local."
        )
    settings = dict(_tables(options).get(kind, {}))
    with contextlib.ExitStack() as stack:
        with optional_package(kind, kind):
            try:
                executor = _opened(kind, address, settings, stack)
            except (TypeError, NameError) as error:
                raise InvalidArgument(f"options of {kind}: {str(error).rstrip('.')}.") from error
            except (OSError, RuntimeError, ValueError) as error:
                raise ExecutorFault(f"engine {name} cannot be reached: {_last_line(error)}.") from error
        yield executor


def _opened(kind: str, address: str, options: dict[str, Any], stack: contextlib.ExitStack) -> Any:
    if kind == "local":
        return stack.enter_context(_processes(int(address)))
    if kind == "slurm":
        import submitit

        folder, cluster = options.pop("folder", "runs/slurm"), options.pop("cluster", "slurm")
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**options)
        return executor
    if kind == "ray":
        import ray

        call = ray.remote(**{"num_cpus": 1, **options.pop("task", {})})(lambda fn, *args: fn(*args))
        where = {"": None, "auto": "auto", "local": "local"}.get(address, f"ray://{address}")
        ray.init(**{"log_to_driver": False, "address": where, **options})
        stack.callback(ray.shutdown)
        return SimpleNamespace(submit=lambda fn, *args: call.remote(fn, *args).future())
    import distributed

    cluster = {} if address == "local" else {"address": f"tcp://{address}", "timeout": "20s"}
    return stack.enter_context(distributed.Client(**{**cluster, **options})).get_executor()


@contextlib.contextmanager
def _processes(n: int) -> Iterator[Executor]:
    """Yield an executor of `n` processes; a process that is killed loses its own job alone, and is replaced."""
    context = get_context("spawn")  # a fork with torch's threads hangs
    pools: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()

    def run(fn: Callable[..., Any], *args: Any) -> Any:
        pool = pools.get()
        try:
            return pool.submit(fn, *args).result()
        except BrokenProcessPool:
            pool = ProcessPoolExecutor(1, mp_context=context)
            raise
        finally:
            pools.put(pool)

    for _ in range(n):
        pools.put(ProcessPoolExecutor(1, mp_context=context))
    threads = ThreadPoolExecutor(n)
    try:
        yield SimpleNamespace(submit=lambda fn, *args: threads.submit(run, fn, *args))
    finally:
        threads.shutdown(cancel_futures=True)
        for _ in range(n):
            pools.get().shutdown()


def _tables(options: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(options, str | Path):
        try:
            options = tomllib.loads(Path(options).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{options} cannot be read: {error}. Name a TOML file with tables.") from error
    for name, table in (options or {}).items():
        if name not in ("slurm", "ray", "dask") or not isinstance(table, Mapping):
            raise InvalidArgument(f"options must be in a table [slurm], [ray] or [dask], got {name}.")
    return options or {}


def name_of(model: ModelLike) -> str:
    """Return the name or absolute path by which a worker loads a model."""
    if not isinstance(model, str | Path):
        raise InvalidArgument(f"executor= needs a model that workers can load, got {quoted(model)}: pass its name.")
    path = Path(model)
    is_name = isinstance(model, str) and (model in checkpoints() or not path.exists())
    return str(model) if is_name else str(path.expanduser().resolve())


def job_arguments(name: str, spec: ModelSpec, task: WindTunnel, **others: Any) -> dict[str, Any]:
    """Return the arguments of a job on one model, of which `name_of` gave the name, and one task."""
    task_from_config(task.config())  # as the worker does, to fail before any work is done
    return {"model": name, "weights": spec.weights_hash, "device": spec.device, "task": task.config(), **others}


def check_same(model: Model, weights: str) -> Model:
    """Return a worker's model if it has the weights that the driver saw."""
    if not model.spec.is_identified or model.spec.weights_hash != weights:
        raise CheckpointFault(
            f"{model.spec.name} has weights {model.spec.weights_hash or 'with no hash'} on this worker, and {weights} "
            f"where the job was made: copy the same files, or name a directory that both see."
        )
    return model
