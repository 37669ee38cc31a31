"""Anatomy: locates the parts of a Hugging Face model by what they compute, without a table of families.

One pass over a few tokens is recorded inside the first block of every kind. The two parts that write into the residual
stream are those whose outputs, added to the block's input, give its output. The part that reads resid_mid is the one
with exactly that input; a parallel block has none. Module names only determine the order of the search. Queries, keys
and values are outputs of linear parts, separate or fused in one of a few layouts.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from bayesgeom.core import InvalidArgument, K, Q, Site, V
from bayesgeom.core.torch_state import Hook, hooked
from bayesgeom.models.adapters.attention import N_SHARDS, AttentionCall, HeadSizes, Projection, ProjectionLayout
from bayesgeom.models.adapters.proof import factor_between, first_input, first_output, relative_error, tolerance_of
from bayesgeom.models.huggingface.recurrences import recurrence_of

_SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("wq", "wk", "wv"))
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "Wqkv", "qkv")


def projections(
    outputs: Mapping[str, Tensor], attention: str, sizes: HeadSizes, value: Float[Tensor, "batch pos kv_head d"] | None
) -> dict[Site, Projection]:
    """Locate the projections of q, k and v.

    Args:
        outputs: Outputs of the parts inside attention, by path.
        attention: Path of the attention.
        sizes: Heads and their width.
        value: The block's values, if known, to distinguish layouts.
    """
    for names in _SEPARATE:
        paths = [f"{attention}.{name}" for name in names]
        if all(path in outputs for path in paths):
            widths = (sizes.n_heads, sizes.n_kv_heads, sizes.n_kv_heads)
            return {
                site: Projection(path=path, site=site, layout="own", sizes=sizes)
                for site, path, heads in zip((Q, K, V), paths, widths, strict=True)
                if outputs[path].shape[-1] == heads * sizes.d_head and not sizes.d_value
            }
    width = (sizes.n_heads + 2 * sizes.n_kv_heads) * sizes.d_head
    paths = [f"{attention}.{name}" for name in _FUSED]
    path = next((path for path in paths if path in outputs and outputs[path].shape[-1] == width), None)
    if path is None:
        return {}
    layouts: tuple[ProjectionLayout, ...] = ("grouped", "stacked", "sharded")
    for layout in layouts:
        if layout == "sharded" and (sizes.n_heads % N_SHARDS or sizes.n_kv_heads != sizes.n_heads):
            continue
        projections = {site: Projection(path=path, site=site, layout=layout, sizes=sizes) for site in (Q, K, V)}
        if value is None or bool((projections[V].take(outputs[path]) - value).abs().max() < 1e-6):
            return projections
    return {}


T = TypeVar("T")
_OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense", "wo", "out")


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """Paths of parts inside one block; None if there is no such part.

    Attributes:
        attention: The attention module.
        writers: The two parts whose outputs are added to the residual stream, attention first.
        write_scale: Factor of both updates (1 in most families).
        mid_reader: The part whose input is the residual stream between the two updates.
        output: W_O, whose input is z.
        is_plain_write: Whether the output of W_O is added to the residual stream directly.
        is_gated: Whether a gate or a norm stands between the heads' outputs z and W_O.
        dropout: The dropout of the pattern, for models without the attention interface.
        key_input: The norm whose output enters W_K; "" for the residual stream itself.
        projections: Projections of queries, keys and values.
        norms: Norms of queries and keys after the projection.
        down: The output matrix of a plain MLP, whose input is `mlp_post`.
        d_mlp: Number of its hidden units; 0 without `down`.
        is_down_normed: Whether a norm stands between that matrix and the residual stream.
        experts: The part that is called with the chosen experts of every token and their weights.
        router: The part that computes a logit for every expert, if there is such a part.
        n_experts: Number of experts; 0 without `experts`.
        recurrence: The part that computes a known recurrence.
        late_norms: Norms of rotated queries and keys (Llama 4, Hunyuan): their path, and which of its calls it is.
    """

    attention: str | None = None
    writers: tuple[str, str] | None = None
    write_scale: float = 1.0
    mid_reader: str | None = None
    output: str | None = None
    is_plain_write: bool = True
    is_gated: bool = False
    dropout: str | None = None
    key_input: str | None = None
    projections: Mapping[Site, Projection] = field(default_factory=dict)
    norms: Mapping[Site, str] = field(default_factory=dict)
    late_norms: Mapping[Site, tuple[str, int]] = field(default_factory=dict)
    down: str | None = None
    d_mlp: int = 0
    is_down_normed: bool = False
    experts: str | None = None
    router: str | None = None
    n_experts: int = 0
    recurrence: str | None = None

    @property
    def is_patched(self) -> bool:
        """Whether the attention changes what W_O returns, as a replaced `forward` may."""
        return self.writers is not None and self.writers[0] == self.attention and not self.is_plain_write


@final
@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """The blocks and the paths of their parts, which are the same in every block of a kind."""

    blocks: tuple[nn.Module, ...]
    sizes: HeadSizes
    parts: tuple[Parts, ...]

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def part(self, layer: int, path: str) -> nn.Module:
        """Return the module at this path of this layer's block."""
        return self.blocks[layer].get_submodule(path)


@final
@dataclass(frozen=True, kw_only=True)
class Seen:
    """First input and first output of a part that ran once, and whether it was called with a choice of experts."""

    given: Tensor | None
    gave: Tensor
    is_routed: bool = False


def blocks_of(hf: nn.Module, n_layers: int) -> tuple[nn.Module, ...]:
    """Return the decoder's blocks: the outermost list of `n_layers` modules.

    Raises:
        InvalidArgument: There is no such list.
    """
    lists = [(name, part) for name, part in hf.named_modules() if isinstance(part, nn.ModuleList)]
    fitting = sorted((name.count("."), name) for name, part in lists if len(part) == n_layers)
    if not fitting:
        raise InvalidArgument(
            f"{type(hf).__name__} has no list of {n_layers} blocks, as its config states: it is not supported."
        )
    module = hf.get_submodule(fitting[0][1])
    assert isinstance(module, nn.ModuleList), "it was one above"
    return tuple(module)


def anatomy_of(
    blocks: tuple[nn.Module, ...],
    forward: Callable[[], object],
    sizes: Callable[[], HeadSizes],
    handed: Callable[[int], AttentionCall | None],
) -> Anatomy:
    """Record one forward pass and locate the parts.

    Blocks of one kind have the same parts with weights of the same shapes; only the first of each kind is recorded.

    Args:
        blocks: The blocks.
        forward: Runs the pass.
        sizes: Returns, after the pass, heads and widths.
        handed: Returns, after the pass, what a layer passed to its attention function, or None if that is not known.
    """
    kinds = [
        tuple(
            (path, type(part), *(parameter.shape for parameter in part.parameters(recurse=False)))
            for path, part in of_block
        )
        for of_block in (block.named_modules() for block in blocks)
    ]
    first = {kind: kinds.index(kind) for kind in kinds}
    with contextlib.ExitStack() as stack, torch.no_grad():
        seen = {layer: stack.enter_context(_watching(blocks[layer])) for layer in first.values()}
        forward()
    heads = sizes()
    by_layer = {
        layer: replace(_parts_of(blocks[layer], calls, heads, handed(layer)), recurrence=recurrence_of(blocks[layer]))
        for layer, calls in seen.items()
    }
    return Anatomy(blocks=blocks, sizes=heads, parts=tuple(by_layer[first[kind]] for kind in kinds))


def _parts_of(block: nn.Module, calls: "Watched", sizes: HeadSizes, handed: AttentionCall | None) -> Parts:
    attention = attention_of(block)
    # Parts that ran exactly once and returned a tensor, in order of completion.
    seen = {path: records[0] for path, records in calls.items() if len(records) == 1 and records[0] is not None}
    if attention is None:
        return Parts()
    parts: dict[str, Any] = {"attention": attention, "output": _output(block, attention, sizes, seen)}
    writers, scale, parts["mid_reader"] = _writers(seen, attention, parts["output"])
    parts["writers"], parts["write_scale"], output = writers, scale, parts["output"]
    if writers is not None:
        parts |= _mlp_parts(block, seen, attention, writers[1])
    if writers is not None and output in seen:
        parts["is_plain_write"] = is_close(seen[writers[0]].gave, seen[output].gave)
    if output is None:
        return Parts(**parts)
    if handed is not None and output in seen:
        parts["is_gated"] = not is_close(seen[output].given, handed.z)
    value = None if handed is None else handed.v
    inside = [path for path in seen if path.startswith(f"{attention}.")]
    dropouts = (p for p in inside if seen[p].gave.ndim == 4 and isinstance(block.get_submodule(p), nn.Dropout))
    projected = projections({path: seen[path].gave for path in inside}, attention, sizes, value)
    return Parts(
        dropout=next(dropouts, None),
        projections=projected,
        norms=dict(_norms(seen, projected)),
        late_norms=dict(_late_norms(calls, seen, projected)),
        key_input=_entering(seen, projected),
        **parts,
    )


Watched = dict[str, list[Seen | None]]


@contextlib.contextmanager
def _watching(block: nn.Module) -> Iterator[Watched]:
    """Record input and output of every part of the block inside the `with` block; "" is the block itself."""
    seen: Watched = {}

    def keeping(path: str) -> Callable[..., None]:
        def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
            given, gave = first_input(args, kwargs), first_output(output)
            record: Seen | None = None
            if isinstance(gave, Tensor):  # copies: Falcon adds the attention output to the MLP's output in place
                is_routed = routing_of(args, kwargs) is not None
                record = Seen(given=None if given is None else given.clone(), gave=gave.clone(), is_routed=is_routed)
            seen.setdefault(path, []).append(record)

        return keep

    hooks = [Hook(part=part, call=keeping(path), with_kwargs=True) for path, part in block.named_modules()]
    with hooked(block, hooks, by="this model", times=None):
        yield seen


def is_close(a: Shaped[Tensor, "..."] | None, b: Shaped[Tensor, "..."] | None) -> bool:
    """Return whether two activations have the same numbers up to rounding, ignoring their shapes; ids have not."""
    return difference(a, b) <= 1


def difference(
    a: Shaped[Tensor, "..."] | None, b: Shaped[Tensor, "..."] | None, of: Shaped[Tensor, "..."] | None = None
) -> float:
    """Return the `relative_error` divided by its tolerance, which is that of proofs: at most 1 is close."""
    if a is None or b is None or a.numel() != b.numel() or not a.numel():
        return math.inf
    if not (a.is_floating_point() and b.is_floating_point()):
        return math.inf
    tolerance = max(tolerance_of(str(x.dtype).removeprefix("torch.")) for x in (a, b))
    return relative_error(a.flatten(), b.flatten(), of) / tolerance


def attention_of(block: nn.Module) -> str | None:
    """Return the path of the block's attention, found by class name or module name."""
    children = list(block.named_children())
    by_class = (name for name, part in children if "attention" in type(part).__name__.lower())
    by_name = (name for name, _ in children if "attn" in name.lower() and "norm" not in name.lower())
    path = next(by_class, next(by_name, None))
    while path is not None and len(inner := list(block.get_submodule(path).named_children())) == 1:
        path = f"{path}.{inner[0][0]}"  # GPT-Neo wraps its attention
    return path


def _output(block: nn.Module, attention: str, sizes: HeadSizes, seen: Mapping[str, Seen]) -> str | None:
    """The path of W_O: the part with a known name whose input can be split into heads."""
    known = {name for name, _ in block.get_submodule(attention).named_children()}
    path = next((f"{attention}.{name}" for name in _OUTPUTS if name in known and sizes.n_heads), None)
    given = seen[path].given if path is not None and path in seen else None
    return path if given is None or given.shape[-1] % sizes.n_heads == 0 else None


def _writers(
    seen: Mapping[str, Seen], attention: str, output: str | None
) -> tuple[tuple[str, str] | None, float, str | None]:
    """The two parts that write, the factor of their updates, and the part that reads in between.

    The closest candidates are chosen: in bfloat16, small activations may be close to any small sum.
    """
    if "" not in seen or seen[""].given is None:
        return None, 1.0, None
    leaves = seen[""].gave
    entered = seen[""].given.to(leaves.device)  # the block may move its input to another device
    wide = [path for path in seen if path and seen[path].gave.numel() == entered.numel()]
    inside = [path for path in wide if path.startswith(f"{attention}.")]
    others = sorted((path for path in wide if path not in inside and path != attention), key=lambda p: p.count("."))
    firsts = [path for path in (attention, output, *others) if path in wide]
    gave = {path: seen[path].gave.reshape(entered.shape).to(leaves.device) for path in wide}
    # A dropout that passes the attention's output on is no MLP: the order of a sum would be left to rounding.
    passed_on = {path for path in others if attention in gave and is_close(gave[path], gave[attention])}
    seconds = [path for path in others if path not in passed_on]
    pairs = [(a, m) for a in firsts for m in seconds if a != m and not f"{a}.".startswith(f"{m}.")]
    pairs = [(a, m) for a, m in pairs if not f"{m}.".startswith(f"{a}.")]  # neither is a part of the other

    def error(pair: tuple[str, str], scale: float) -> float:
        branches = [scale * gave[path] for path in pair]
        return difference(entered + sum(branches), leaves, min(branches, key=lambda x: float(x.abs().max())))

    writers, scale = _least({pair: error(pair, 1.0) for pair in pairs}), 1.0
    if writers is None:
        # The factor that brings the sum closest to what was written.
        scales = {(a, m): factor_between(leaves - entered, gave[a] + gave[m]) for a, m in pairs}
        writers = _least({pair: error(pair, scales[pair]) for pair in pairs})
        if writers is None:
            return None, 1.0, None
        scale = scales[writers]
    readers = (path for path in seen if path and path not in inside and path != attention)
    branch = scale * gave[writers[0]]
    return writers, scale, _least({path: difference(seen[path].given, entered + branch, branch) for path in readers})


def _mlp_parts(block: nn.Module, seen: Mapping[str, Seen], attention: str, writer: str) -> dict[str, Any]:
    """The output matrix of a plain MLP whose output this part writes; or the experts of a mixture, and their router."""
    for path in (path for path, call in seen.items() if call.is_routed and path and not path.startswith(attention)):
        for stacked in (parameter for parameter in block.get_submodule(path).parameters() if parameter.ndim == 3):
            n_experts = len(stacked)
            return {"experts": path, "n_experts": n_experts, "router": _router(block, seen, n_experts)}
    for is_normed, target in ((False, seen[writer].gave), (True, seen[writer].given)):
        alike = [path for path, call in seen.items() if path and is_close(call.gave, target)]
        # The outermost part that is affine: of an adapted matrix, the matrix with its adapter.
        for path in reversed(alike):
            given = seen[path].given
            if (
                given is not None
                and not is_close(given, seen[path].gave)
                and _is_affine(block.get_submodule(path), given)
            ):
                return {"down": path, "d_mlp": given.shape[-1], "is_down_normed": is_normed}
    return {}


def _router(block: nn.Module, seen: Mapping[str, Seen], n_experts: int) -> str | None:
    """The part whose output, or the first entry of it, is affine in its input and has an entry for every expert."""
    for path, call in seen.items():
        if call.given is not None and call.gave.is_floating_point() and call.gave.shape[-1] == n_experts:
            with contextlib.suppress(TypeError):  # it needs more than its input (MiniMax M2)
                if _is_affine(block.get_submodule(path), call.given):
                    return path
    return None


def _is_affine(part: nn.Module, x: Float[Tensor, "*batch d"]) -> bool:
    """Whether f(2x) − f(x) = f(x) − f(0), and f(x) ≠ f(0)."""
    zero, once, twice = (first_output(part(factor * x)) for factor in (0.0, 1.0, 2.0))
    first, second = (once.double() - zero.double()).to(zero), (twice.double() - once.double()).to(zero)
    return is_close(second, first) and not is_close(once, zero)  # to the rounding of the part's own dtype


def routing_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[[Tensor, Tensor], tuple[tuple[Any, ...], dict[str, Any]]], Tensor, Tensor] | None:
    """Return the chosen experts of every token and their weights, from the arguments of a part; None if it has none.

    They are a matrix of integers and one of numbers, of one shape with a row per token. The first entry of the result
    returns the arguments with others in their places.
    """
    named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor) and value.ndim == 2}
    whole = [name for name, tensor in tensors.items() if tensor.dtype in (torch.int64, torch.int32)]
    if len(whole) != 1:
        return None
    shape = tensors[whole[0]].shape
    numbers = [name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.shape == shape]
    if len(numbers) != 1 or not any(
        tensor.is_floating_point() and len(tensor) == shape[0] for tensor in tensors.values()
    ):
        return None

    def put(chosen: Tensor, weights: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        changed = {**named, whole[0]: chosen, numbers[0]: weights}
        return tuple(changed[at] for at in range(len(args))), {name: changed[name] for name in kwargs}

    return put, tensors[whole[0]], tensors[numbers[0]]


def _least(errors: Mapping[T, float]) -> T | None:
    """The first candidate with the least error, if it is close."""
    close = {candidate: error for candidate, error in errors.items() if error <= 1}
    return min(close, key=close.__getitem__, default=None)


def _entering(seen: Mapping[str, Seen], projected: Mapping[Site, Projection]) -> str | None:
    """The part whose output is the input of the key projection; "" for the block's input."""
    if K not in projected or "" not in seen:
        return None
    given = seen[projected[K].path].given
    if is_close(given, seen[""].given):
        return ""
    children = (path for path in seen if path and "." not in path)
    return next((path for path in children if is_close(seen[path].gave, given)), None)


def _norms(seen: Mapping[str, Seen], projected: Mapping[Site, Projection]) -> Iterator[tuple[Site, str]]:
    """Parts whose input is exactly a projection's output, with heads separate or concatenated."""
    for site, projection in projected.items():
        values = projection.take(seen[projection.path].gave)
        for path, part in seen.items():
            if path == projection.path or part.given is None or part.gave.numel() != values.numel():
                continue
            if any(is_close(part.given, turned) for turned in (values, values.transpose(1, 2))):
                yield site, path
                break


def _late_norms(
    calls: Watched, seen: Mapping[str, Seen], projected: Mapping[Site, Projection]
) -> Iterator[tuple[Site, tuple[str, int]]]:
    """Parts whose input is a rotated projection: as long at every position, and equal at the first one."""
    for site, projection in projected.items():
        values = projection.take(seen[projection.path].gave)
        for path, records in calls.items():
            inputs = [None if call is None or path == projection.path else call.given for call in records]
            at = next((i for i, given in enumerate(inputs) if turned_of(given, values) is not None), None)
            if at is not None and site != V:
                yield site, (path, at)
                break


def turned_of(
    given: Shaped[Tensor, "..."] | None, values: Float[Tensor, "batch pos head d"]
) -> Float[Tensor, "batch pos head d"] | None:
    """Return `given` with the axes of `values` if it is a rotation of these and not the same; else None."""
    if given is None or given.ndim != 4:
        return None
    lengths = values.norm(dim=-1)
    for turned in (given, given.transpose(1, 2)):
        is_alike = turned.shape == values.shape and is_close(turned[:, 0], values[:, 0])
        if is_alike and is_close(turned.norm(dim=-1), lengths) and not is_close(turned, values):
            return turned
    return None
