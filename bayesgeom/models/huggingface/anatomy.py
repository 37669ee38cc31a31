"""Anatomy: where the parts of a Hugging Face model are, found by what they compute rather than by a table of families.

One pass over a few tokens is watched inside the first block. The parts that write into the residual stream are those
two whose outputs, added to what entered the block, give what leaves it. The part that reads the middle of the block is
the one that is given exactly that; in a parallel block there is none. Names only say where to look first.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.sites import K, Site
from bayesgeom.models.huggingface.projection import Projection, Sizes, projections

T = TypeVar("T")
_OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense", "wo", "out")
_CLOSE = 1e-3  # of the largest entry: parts that are not the same differ by its size


@final
@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """Paths inside every block; None where there is no such part.

    - `writers`: the two parts whose outputs are added to the residual stream, attention's first.
    - `mid_reader`: the part that is given the residual stream between the two.
    - `output`: W_O, whose input is z. `is_plain_write`: nothing stands between it and the residual stream.
    - `dropout`: the part that the pattern passes, where attention goes past the attention interface.
    - `key_input`: the norm whose output enters W_K; "" where the bare residual stream does.
    - `norms`: norms of queries and keys, after the projection.
    """

    blocks: tuple[nn.Module, ...]
    sizes: Sizes
    attention: str | None = None
    writers: tuple[str, str] | None = None
    mid_reader: str | None = None
    output: str | None = None
    is_plain_write: bool = True
    dropout: str | None = None
    key_input: str | None = None
    projections: Mapping[Site, Projection]
    norms: Mapping[Site, str]

    def part(self, layer: int, path: str) -> nn.Module:
        """The module at this path of this layer's block."""
        return self.blocks[layer].get_submodule(path)


@final
@dataclass(frozen=True, kw_only=True)
class Seen:
    """First input and first output of a part that ran once."""

    given: Tensor | None
    gave: Tensor


def blocks_of(hf: nn.Module, n_layers: int) -> tuple[nn.Module, ...]:
    """The decoder's blocks: the outermost list of `n_layers` modules. **Raises** `InvalidArgument` without one."""
    lists = [(name, part) for name, part in hf.named_modules() if isinstance(part, nn.ModuleList)]
    fitting = sorted((name.count("."), name) for name, part in lists if len(part) == n_layers)
    if not fitting:
        raise InvalidArgument(
            f"{type(hf).__name__} has no list of {n_layers} blocks, as many as its config has layers; its layout "
            f"is not known here."
        )
    found = hf.get_submodule(fitting[0][1])
    assert isinstance(found, nn.ModuleList), "it was one above"
    return tuple(found)


def anatomy_of(
    blocks: tuple[nn.Module, ...], forward: Callable[[], object], sizes: Sizes, value: Callable[[], Tensor | None]
) -> Anatomy:
    """Watch one forward pass and say where everything is.

    `value` gives, after that pass, the first block's values as the attention interface was handed them, or None.
    """
    block = blocks[0]
    seen = _watched(block, forward)
    attention = attention_of(block)
    found: dict[str, Any] = {"attention": attention}
    if attention is not None:
        found["output"] = _output(block, attention, sizes)
        found["writers"], found["mid_reader"] = _writers(seen, attention, found["output"])
        writers, output = found["writers"], found["output"]
        if writers is not None and output in seen:
            found["is_plain_write"] = is_close(seen[writers[0]].gave, seen[output].gave)
        found["dropout"] = next(
            (
                p
                for p in seen
                if p.startswith(f"{attention}.")
                and seen[p].gave.ndim == 4
                and isinstance(block.get_submodule(p), nn.Dropout)
            ),
            None,
        )
    if found.get("output") is None:
        return Anatomy(blocks=blocks, sizes=sizes, projections={}, norms={}, **found)
    outputs = {path: part.gave for path, part in seen.items() if path.startswith(f"{attention}.")}
    projected = projections(outputs, str(attention), sizes, value())
    entering = _entering(seen, projected)
    return Anatomy(
        blocks=blocks,
        sizes=sizes,
        projections=projected,
        norms=dict(_norms(seen, projected)),
        key_input=entering,
        **found,
    )


def _watched(block: nn.Module, forward: Callable[[], object]) -> dict[str, Seen]:
    """Every part of the block that ran exactly once, in the order of their ends; the block itself is ""."""
    times: dict[str, int] = {}
    seen: dict[str, Seen] = {}

    def keeping(path: str) -> Callable[..., None]:
        def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
            given, gave = first_input(args, kwargs), first_tensor(output)
            times[path] = times.get(path, 0) + 1
            if gave is not None:
                seen[path] = Seen(given=given, gave=gave)

        return keep

    handles = [part.register_forward_hook(keeping(path), with_kwargs=True) for path, part in block.named_modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return {path: part for path, part in seen.items() if times[path] == 1}


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shaped[Tensor, "..."] | None:
    """The tensor that a part works on: its first argument, or `hidden_states`."""
    given = args[0] if args else kwargs.get("hidden_states")
    return given if isinstance(given, Tensor) else None


def first_tensor(output: object) -> Shaped[Tensor, "..."] | None:
    """A part's output, or the first of several."""
    gave = output[0] if isinstance(output, tuple) and output else output
    return gave if isinstance(gave, Tensor) else None


def is_close(a: Float[Tensor, "..."] | None, b: Float[Tensor, "..."] | None) -> bool:
    """Whether two activations hold the same numbers to their type's rounding, whatever their shapes."""
    return difference(a, b) <= 1


def difference(a: Float[Tensor, "..."] | None, b: Float[Tensor, "..."] | None) -> float:
    """Largest difference as a share of b's largest entry and of what rounding may make of it: 1 is barely close."""
    if a is None or b is None or a.numel() != b.numel():
        return math.inf
    tolerance = max(_CLOSE, *(8 * torch.finfo(x.dtype).eps for x in (a, b)))
    a, b = a.double().flatten(), b.to(a.device).double().flatten()
    return float((a - b).abs().max() / (tolerance * b.abs().max().clamp_min(1e-12)))


def attention_of(block: nn.Module) -> str | None:
    """The block's attention, by its class or its own name."""
    children = list(block.named_children())
    by_class = (name for name, part in children if "attention" in type(part).__name__.lower())
    by_name = (name for name, _ in children if "attn" in name.lower() and "norm" not in name.lower())
    return next(by_class, next(by_name, None))


def _output(block: nn.Module, attention: str, sizes: Sizes) -> str | None:
    known = {name for name, _ in block.get_submodule(attention).named_children()}
    return next((f"{attention}.{name}" for name in _OUTPUTS if name in known and sizes.n_heads), None)


def _writers(seen: Mapping[str, Seen], attention: str, output: str | None) -> tuple[tuple[str, str] | None, str | None]:
    """The two parts that write, and the one that reads in between.

    Of several that are close the closest: in bfloat16 what is small may be close to anything small.
    """
    if "" not in seen or seen[""].given is None:
        return None, None
    leaves = seen[""].gave
    entered = seen[""].given.to(leaves.device)  # the block may move what it is given
    wide = [path for path in seen if path and seen[path].gave.numel() == entered.numel()]
    inside = [path for path in wide if path.startswith(f"{attention}.")]
    others = sorted((path for path in wide if path not in inside and path != attention), key=lambda p: p.count("."))
    firsts = [path for path in (attention, output, *others) if path in wide]
    gave = {path: seen[path].gave.reshape(entered.shape).to(leaves.device) for path in wide}
    errors = {(a, m): difference(entered + gave[a] + gave[m], leaves) for a in firsts for m in others if m != a}
    writers = _least(errors)
    if writers is None:
        return None, None
    middle = entered + gave[writers[0]]
    readers = (path for path in seen if path and path not in inside and path != attention)
    return writers, _least({path: difference(seen[path].given, middle) for path in readers})


def _least(errors: Mapping[T, float]) -> T | None:
    """The first of those with the least error, if that is close."""
    close = {candidate: error for candidate, error in errors.items() if error <= 1}
    return min(close, key=close.__getitem__, default=None)


def _entering(seen: Mapping[str, Seen], projected: Mapping[Site, Projection]) -> str | None:
    """The part whose output enters the key projection: "" for the block's own input."""
    if K not in projected:
        return None
    given = seen[projected[K].path].given
    if is_close(given, seen[""].given):
        return ""
    return next(
        (path for path, part in seen.items() if path.count(".") == 0 and path and is_close(part.gave, given)), None
    )


def _norms(seen: Mapping[str, Seen], projected: Mapping[Site, Projection]) -> Iterator[tuple[Site, str]]:
    """Parts that are given exactly what a projection gave, heads apart or together."""
    for site, projection in projected.items():
        values = projection.take(seen[projection.path].gave)
        for path, part in seen.items():
            if path == projection.path or part.given is None or part.gave.numel() != values.numel():
                continue
            if any(is_close(part.given, turned) for turned in (values, values.transpose(1, 2))):
                yield site, path
                break
