"""Hooks on modules: set together, counted, and always removed again. The module's lock is held meanwhile."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, final

from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

from bayesgeom.core.errors import HookFault
from bayesgeom.core.sites import Site
from bayesgeom.core.torch_state import lock_of

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
    """Set hooks for the duration of a block.

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
                handles.append(_set(hook, _counted(hook, fired, number)))
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


def keeping(stored: dict[SiteLayer, Tensor], place: SiteLayer) -> Change:
    """Return a function for `site_hook` that stores the activation under its site and layer."""

    def keep(output: Tensor) -> None:
        stored[place] = output

    return keep


def _counted(hook: Hook, fired: list[int], number: int) -> Callable[..., Any]:
    """The hook's function, which counts its calls and ignores forward passes of other threads."""
    thread = threading.get_ident()

    def call(*given: Any) -> Any:
        if hook.kind != "backward" and threading.get_ident() != thread:
            return None
        fired[number] += 1
        return hook.call(*given)

    return call


def _set(hook: Hook, call: Callable[..., Any]) -> RemovableHandle:
    match hook.kind:
        case "forward":
            return hook.part.register_forward_hook(call, with_kwargs=hook.with_kwargs, prepend=hook.is_first)
        case "pre":
            return hook.part.register_forward_pre_hook(call, with_kwargs=hook.with_kwargs, prepend=hook.is_first)
        case "backward":
            return hook.part.register_full_backward_hook(call, prepend=hook.is_first)
