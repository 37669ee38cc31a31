"""State of torch for a process or module: locks, hooks, threads, gradient mode, default device and precision.

There is one lock per module, and one for the state that torch keeps per process.

Hooks, the training mode and the attention implementation belong to a module, not to a pass. Two simultaneous passes
would record each other's activations, or leave the module in the wrong mode. So code that sets one of them holds the
module's lock, which all adapters of that module share. A second thread waits. Hooks are set together, counted, and
always removed again.

The random state and the default dtype belong to the process. Code that changes one of them temporarily holds
`PROCESS_STATE`. To hold both locks, take the module's lock first.

The number of threads of a matrix product also belongs to the process. Only `limited_threads` changes it, and
`side_by_side` holds a lock while it does.

A default device or a precision that the caller has set would change numbers. The first is refused, the second is
recorded in the provenance.
"""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import Any, Literal, ParamSpec, TypeVar, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

from bayesgeom.core.errors import HookFault, InvalidArgument
from bayesgeom.core.run import Site

P = ParamSpec("P")
R = TypeVar("R")

PROCESS_STATE = threading.RLock()
_LOCKS: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()  # Any: RLock is a function, not a class
_MAKING = threading.Lock()
_SIDE_BY_SIDE = threading.RLock()


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


def holding_lock(path: str = "module") -> Callable[[Callable[P, R]], Callable[P, R]]:
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


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create weights in this dtype inside the block; buffers of another dtype keep theirs. Hold `PROCESS_STATE`."""
    former = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(former)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside the block; every submodule is back in its former mode afterwards.

    Parts that `torch.compile` compiled run as they are written.
    """
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with _as_written(module):
            yield
    finally:
        for part in training:
            part.training = True


def _as_written(module: nn.Module) -> AbstractContextManager[object]:
    """Return a context in which parts that `torch.compile` compiled run as they are written."""
    return torch.compiler.set_stance("force_eager") if is_compiled(module) else nullcontext()


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module or a part of it is compiled by `torch.compile`."""
    return any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in module.modules())  # noqa: SLF001  (no public list)


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` compiled, or the module itself; warn that it is measured uncompiled."""
    if is_compiled(module):
        inner = module._modules.get("_orig_mod") or module  # noqa: SLF001  (nor this)
        warnings.warn(f"{type(inner).__name__} is compiled: it is measured as it is written.", stacklevel=3)
        return inner
    return module


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Set the number of threads of torch and of numpy's libraries inside the block; restore it afterwards."""
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(limits=threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def side_by_side(works: Sequence[Callable[[], R]]) -> Iterator[tuple[int, R]]:
    """Do many small pieces of work, as many at a time as torch has threads, each of them in one thread.

    Operations on small arrays gain nothing from a second thread, and lose where two libraries compete for the cores.
    Rounding does not depend on the number of threads. A second caller in another thread waits.

    Args:
        works: Functions that share no state that they change. They are started in this order.

    Yields:
        The place in `works` and the result of each one, about in the order in which they end. The first exception
        propagates, and what has not been started is left out.

    Example:
        >>> sorted(side_by_side([lambda: "a", lambda: "b"]))
        [(0, 'a'), (1, 'b')]
    """
    n_threads, is_differentiated = torch.get_num_threads(), torch.is_grad_enabled()

    def done(work: Callable[[], R]) -> R:
        with torch.set_grad_enabled(is_differentiated):  # a new thread would start with True
            return work()

    with _SIDE_BY_SIDE, limited_threads(1):  # blocks that overlap would restore each other's number
        if n_threads < 2 or not works:
            yield from ((place, work()) for place, work in enumerate(works))
            return
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="side-by-side")
        try:
            places = {pool.submit(done, work): place for place, work in enumerate(works)}
            for future in as_completed(places):
                yield places[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def check_default_device() -> None:
    """Check that torch creates tensors on the CPU unless a device is named.

    Raises:
        InvalidArgument: Another default device is set.

    Example:
        >>> with torch.device("meta"):
        ...     check_default_device()
        Traceback (most recent call last):
        bayesgeom.core.errors.InvalidArgument: torch's default device is meta: reset it with torch.set_default_device(None), or leave the block of torch.device, and pass device=… to load instead.
    """  # noqa: E501  (one message)
    device = torch.get_default_device()
    if device.type != "cpu":
        raise InvalidArgument(
            f"torch's default device is {device}: reset it with torch.set_default_device(None), or leave the block of "
            f"torch.device, and pass device=… to load instead."
        )


def reduced_precision() -> str:
    """Return the precision to which torch may reduce products of float32 matrices, by backend; "" if it may not.

    Example:
        >>> reduced_precision()
        ''
    """
    set_for = {
        "all": torch.backends.fp32_precision,  # type: ignore[attr-defined]  # torch does not annotate it
        "cuda": torch.backends.cuda.matmul.fp32_precision,
        "cpu": torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]  # nor this
    }
    return ", ".join(f"{value} ({name})" for name, value in set_for.items() if value not in ("none", "ieee"))


def with_gradients(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that computes gradients, so that it can be called under `no_grad` and `inference_mode`.

    Example:
        >>> @with_gradients
        ... def slope(x: float) -> float:
        ...     at = torch.tensor(x, requires_grad=True)
        ...     return float(torch.autograd.grad(at**2, [at])[0])
        >>> with torch.inference_mode():
        ...     slope(3.0)
        6.0
    """
    decorated: Callable[P, R] = torch.inference_mode(mode=False)(torch.enable_grad()(function))
    return decorated


def with_torch_defaults(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its numbers do not depend on modes of torch that the caller has set.

    Within it gradients are enabled, autocast is off and float32 is the default dtype. Another default device is refused
    (`check_default_device`). Where the default dtype is another one, `PROCESS_STATE` is held.

    Example:
        >>> @with_torch_defaults
        ... def kind() -> torch.dtype:
        ...     return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     kind()
        torch.float32
    """
    inner = with_gradients(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_default_device()
        with ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_dtype() != torch.float32:
                stack.enter_context(PROCESS_STATE)
                stack.enter_context(default_dtype(torch.float32))
            return inner(*args, **kwargs)

    return call


Kind = Literal["forward", "pre", "backward"]
SiteLayer = tuple[Site, int]
Change = Callable[[Tensor], Tensor | None]
EVERY_MODULE = "(every module of the process)"  # where hooks are that torch calls for all modules


@final
@dataclass(frozen=True, kw_only=True)
class Hook:
    """A function to call when a module runs.

    Attributes:
        part: The module.
        call: The function, with the arguments of PyTorch hooks: `(module, inputs, output)`, `(module, inputs)` or
            `(module, gradients in, out)`.
        label: Name of this hook in error messages.
        kind: "forward" and "backward" run after the module's pass, "pre" runs before its forward pass.
        with_kwargs: Whether `call` also receives keyword arguments; not for backward hooks.
        is_first: Whether it runs before the hooks that are already set.
    """

    part: nn.Module
    call: Callable[..., Any]
    label: str = "a hook"
    kind: Kind = "forward"
    with_kwargs: bool = False
    is_first: bool = False


@contextmanager
def hooked(owner: nn.Module, hooks: Iterable[Hook], *, by: str, times: int | None = 1) -> Iterator[Sequence[int]]:
    """Set hooks for the duration of a block, in which compiled parts run as they are written, hooks included.

    The block holds the lock of `owner`, so no other thread's pass through an adapter calls these hooks. A pass that
    another thread runs without the lock does not call them either. Backward hooks are called from any thread, because
    torch runs backward passes in its own threads.

    Args:
        owner: The whole model, whose lock is held.
        hooks: The hooks to set. They are always removed, also after an exception; other hooks stay.
        by: Name of the model in error messages.
        times: Number of times that each hook must fire within the block. None: any number.

    Yields:
        The number of times that each hook has fired so far, in the order of `hooks`.

    Raises:
        HookFault: The block ended without an exception, but a hook did not fire `times` times.

    Example:
        >>> part, seen = nn.Identity(), []
        >>> hook = Hook(part=part, call=lambda module, inputs, output: seen.append(output))
        >>> with hooked(part, [hook], by="demo") as fired:
        ...     _ = part(5)
        >>> seen, fired
        ([5], [1])
    """
    handles, fired, labels = list[RemovableHandle](), list[int](), list[str]()
    with lock_of(owner):
        try:
            for number, hook in enumerate(hooks):
                fired.append(0)
                labels.append(hook.label)
                call = _counted(hook, fired, number)
                if hook.kind == "backward":
                    handles.append(hook.part.register_full_backward_hook(call, prepend=hook.is_first))
                    continue
                part, is_pre = hook.part, hook.kind == "pre"
                register: Any = part.register_forward_pre_hook if is_pre else part.register_forward_hook
                handles.append(register(call, with_kwargs=hook.with_kwargs, prepend=hook.is_first))
            with _as_written(owner):
                yield fired
        finally:
            for handle in handles:
                handle.remove()
    for label, n in zip(labels, fired, strict=True):
        if times is not None and n != times:
            raise HookFault(
                f"{label} of {by} fired {n} times in one pass instead of {times}, so measurements and edits there are "
                f"invalid. Remove code that skips or repeats this part of the model."
            )


def has_global_hooks() -> bool:
    """Return whether there are forward hooks that torch calls for every module of the process."""
    return bool(modules._global_forward_hooks or modules._global_forward_pre_hooks)  # noqa: SLF001  (no public list)


def structure_of(module: nn.Module) -> int:
    """Return a number that changes when a part of a module, its class, or its own `forward` is replaced."""
    return hash(tuple((name, type(part), id(vars(part).get("forward"))) for name, part in module.named_modules()))


def site_hook(place: SiteLayer, part: nn.Module, change: Change) -> Hook:
    """Return a hook at one site and layer.

    Args:
        place: The site and the layer, for error messages.
        part: The module whose output is the activation there.
        change: A function of that activation. Its return value replaces the activation unless it is None.
    """
    site, layer = place

    def call(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor | None:
        return change(output)

    return Hook(part=part, call=call, label=f"site {site.name!r} of layer {layer}")


def store_activation(stored: dict[SiteLayer, Tensor], place: SiteLayer) -> Change:
    """Return a function for `site_hook` that stores the activation under its site and layer."""

    def keep(output: Tensor) -> None:
        stored[place] = output

    return keep


def store_leaf(stored: dict[SiteLayer, Tensor], place: SiteLayer) -> Change:
    """Return what `keeping` returns, for gradients with respect to the activation, also where no weight has one."""

    def keep(output: Tensor) -> Tensor | None:
        if output.requires_grad:
            stored[place] = output
            return None
        # Of a model with frozen weights, the graph starts here. A clone, because a leaf may not be modified in place.
        stored[place] = output.detach().requires_grad_().clone()
        return stored[place]

    return keep


def check_differentiable(module: nn.Module, name: str) -> None:
    """Check that gradients can pass through a module.

    Raises:
        InvalidArgument: Its weights were made in inference mode.

    Example:
        >>> with torch.inference_mode():
        ...     module = nn.Linear(2, 3)
        >>> check_differentiable(module, "demo")
        Traceback (most recent call last):
        bayesgeom.core.errors.InvalidArgument: the weights of demo were made under torch.inference_mode, so they have no gradients: make or load the model outside of it.
    """  # noqa: E501  (one message)
    if any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers())):
        raise InvalidArgument(
            f"the weights of {name} were made under torch.inference_mode, so they have no gradients: make or load the "
            f"model outside of it."
        )


def _counted(hook: Hook, fired: list[int], number: int) -> Callable[..., Any]:
    """The hook's function, which counts its calls and ignores forward passes of other threads."""
    thread = threading.get_ident()

    def call(*given: Any) -> Any:
        if hook.kind != "backward" and threading.get_ident() != thread:
            return None
        fired[number] += 1
        return hook.call(*given)

    return call
