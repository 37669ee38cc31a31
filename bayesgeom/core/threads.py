"""Thread safety: one lock per module, and one lock for the state that torch keeps per process.

Hooks, the training mode and the attention implementation belong to a module, not to a pass. Two simultaneous passes
would record each other's activations, or leave the module in the wrong mode. So code that sets one of them holds the
module's lock, which all adapters of that module share. A second thread waits.

The random state and the default dtype belong to the process. Code that changes one of them temporarily holds
`PROCESS_STATE`. To hold both locks, take the module's lock first.
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
_LOCKS: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()  # Any: RLock is a function, not a class
_MAKING = threading.Lock()


def lock_of(module: nn.Module) -> Any:
    """Return the reentrant lock of a module, a context manager.

    Example:
        >>> module = nn.Linear(2, 3)
        >>> with lock_of(module), lock_of(module):
        ...     lock_of(module) is lock_of(nn.Linear(2, 3))
        False
    """
    with _MAKING:
        return _LOCKS.setdefault(module, threading.RLock())


def alone(path: str = "module") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a method so that it holds the lock of a module while it runs.

    Args:
        path: Attribute of the method's object that is the module, or several attributes joined by dots.
    """
    module_of = attrgetter(path)

    def decorated(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock_of(module_of(args[0])):
                return method(*args, **kwargs)

        return locked

    return decorated
