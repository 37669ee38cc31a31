"""Executors of this process, and the jobs that tests send."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from bayesgeom.core.errors import InvalidArgument


@final
class AtOnce:
    """Runs what is submitted, at once; `n` counts."""

    def __init__(self) -> None:
        self.n = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> "Future[Any]":
        self.n += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args))
        return future


@final
class Backward:
    """Runs each `n` jobs in the reverse of the order of submission, when all of them are there."""

    def __init__(self, n: int) -> None:
        self.n, self._waiting = n, list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]]()

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._waiting.append((future, fn, args))
        if len(self._waiting) == self.n:
            for own, function, given in reversed(self._waiting):
                own.set_result(function(*given))
            self._waiting.clear()
        return future


def arange(*, n: int, fault: str | None = None) -> np.ndarray:
    """The job of most tests."""
    if fault is not None:
        raise InvalidArgument(f"{fault}.")
    return np.arange(n)


def threads() -> int:
    return torch.get_num_threads()


def killed_once(*, n: int, mark: str) -> np.ndarray:
    """Kills its own process the first time, as the kernel does where memory is short."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return np.arange(n)


def slept(*, seconds: float, index: int) -> float:
    time.sleep(seconds)
    return seconds + index


def marked(*, mark: str, seconds: float) -> float:
    """Counts how often it runs, by strokes in a file."""
    with Path(mark).open("a", encoding="utf-8") as file:
        file.write("|")
    time.sleep(seconds)
    return 1.0
