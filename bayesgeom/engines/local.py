"""Worker processes of this machine, one job each at a time; a killed process loses only its own job and is replaced."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self, final

from bayesgeom.core.errors import InvalidArgument


@final
class LocalExecutor:
    """Run jobs in `n` worker processes; unlike in a `ProcessPoolExecutor`, a killed worker does not fail other jobs.

    Args:
        n: Number of processes.

    Raises:
        InvalidArgument: n is below 1.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise InvalidArgument(f"local:N requires at least 1 process, such as local:2, got {n}.")
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="job")
        self._place = threading.local()
        self._pools: list[ProcessPoolExecutor] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> "Future[Any]":
        """Run a function of a module in the next free process."""
        return self._threads.submit(self._run, fn, args)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for pool in self._pools:
            pool.shutdown()

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        stored = vars(self._place)
        if "pool" not in stored:  # spawned: a fork of a process with torch's threads may hang
            stored["pool"] = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            self._pools.append(stored["pool"])
        try:
            return stored["pool"].submit(fn, *args).result()
        except BrokenProcessPool:
            del stored["pool"]
            raise
