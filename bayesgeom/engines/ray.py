"""Ray as an executor: Ray itself has tasks and references but no `submit`."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, final


@final
class RayExecutor:
    """Submits to the Ray cluster that this process is connected to.

    Args:
        **options: Options of every task, as in `ray.remote`: num_cpus, num_gpus, max_retries, …
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._remote: dict[Callable[..., Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> "Future[Any]":
        """Run a function as a Ray task."""
        import ray

        if fn not in self._remote:  # a function is exported to the cluster once
            self._remote[fn] = ray.remote(**self._options)(fn) if self._options else ray.remote(fn)
        future: Future[Any] = self._remote[fn].remote(*args).future()
        return future
