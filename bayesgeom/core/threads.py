"""Threads: one at a time uses a module, and one at a time uses what torch keeps for the whole process.

Hooks, the training mode and the attention implementation belong to a module, not to a pass. Two passes at once would
record each other's activations, or leave the module in the other's mode. So whatever sets one of them holds the
module's lock, which every adapter of that module shares; the second thread waits.

The random state and the default dtype belong to the process. Whatever sets one to restore it holds `PROCESS_STATE`.
Where both are held, the module's lock is taken first.
"""

import threading
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

P = ParamSpec("P")
R = TypeVar("R")

PROCESS_STATE = threading.RLock()
_LOCKS: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()  # RLock is no class that could be named
_MAKING = threading.Lock()


def lock_of(module: nn.Module) -> Any:
    """Return the lock of a module: a context manager that the same thread may enter again.

    Example:
        >>> module = nn.Linear(2, 3)
        >>> with lock_of(module), lock_of(module):
        ...     lock_of(module) is lock_of(nn.Linear(2, 3))
        False
    """
    with _MAKING:
        return _LOCKS.setdefault(module, threading.RLock())


def alone(path: str = "module") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method hold the lock of a module while it runs.

    Args:
        path: Where the method's object holds the module: an attribute, or attributes joined by dots.
    """
    module_of = attrgetter(path)

    def decorated(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock_of(module_of(args[0])):
                return method(*args, **kwargs)

        return locked

    return decorated
