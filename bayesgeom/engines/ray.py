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
        self._options, self._remote = options, list[Any]()

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> "Future[Any]":
        """Run a function as a Ray task."""
        import ray

        if not self._remote:  # exported to the cluster once; Ray itself takes no built-in functions
            self._remote.append(ray.remote(**self._options)(_called) if self._options else ray.remote(_called))
        future: Future[Any] = self._remote[0].remote(fn, *args).future()
        return future


def _called(fn: Callable[..., Any], *args: Any) -> Any:
    """Do the task on a worker."""
    return fn(*args)
