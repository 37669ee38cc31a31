"""Parts of a module, found by what they compute in one pass: the stack of blocks, and what every block consists of.

Names decide nothing. Blocks are modules of one list that hand a stream to each other. The two parts that write are
those whose outputs add up to what the block adds to its stream. Attention is seen in torch's functions, and the parts
that give queries, keys and the heads' output by their numbers. What is found here is proved before it is a site.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, groupby, pairwise, product
from typing import Any, final

import torch
from torch import Tensor, nn

from bayesgeom.core import InvalidArgument, K, Q, Site
from bayesgeom.core.torch_state import Hook, hooked
from bayesgeom.models.adapters.attention import AttentionCall, AttentionWatch, HeadSizes, Projection, ProjectionLayout
from bayesgeom.models.adapters.proof import first_tensor, relative_error, rotation_claims, tolerance_of


class NoStack(InvalidArgument):
    """A module has several stacks of blocks, or none."""


@final
@dataclass(frozen=True, kw_only=True)
class BlockParts:
    """Names of the parts of a block in the whole module; empty where there is none.

    Attributes:
        blocks: The block twice, or two modules whose outputs are the stream before and after it.
        attn: The part whose output attention adds to the stream.
        mlp: The same of the MLP.
        norms: The norms after the two sums, in blocks that normalize the stream itself.
        out: The projection of the heads' outputs, and the norm that follows, if there is one.
        down: The last projection of the MLP, and the norm that follows, if there is one.
        projections: Projections to queries, keys and values.
        turned_norms: Norms of queries and keys before their rotation, and whether they join the heads.
        attention: The innermost part inside which attention ran.
        n_calls: How often it ran in the block.
        sizes: Its heads, here and below if it ran once; None otherwise.
        number: Which product in the block is that of queries and keys.
        scale: Factor of these products.
        is_fused: Whether the module forms no pattern.
        is_plain: Whether queries and keys enter their product as they are projected.
    """

    blocks: tuple[str, str]
    attn: str = ""
    mlp: str = ""
    norms: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    projections: Mapping[Site, Projection] = field(default_factory=dict)
    turned_norms: Mapping[Site, tuple[str, bool]] = field(default_factory=dict)
    attention: str = ""
    n_calls: int = 0
    sizes: HeadSizes | None = None
    number: int | None = None
    scale: float = 1.0
    is_fused: bool = False
    is_plain: bool = False


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PartCall:
    """First tensor that a part was given and first that it returned, by sequence and position, and when it ran.

    Attributes:
        part: The part.
        given: What it was given.
        gave: What it returned.
        began: Its place in the order in which parts begin and end, which hooks count.
        ended: The same, of its end.
        products: Number of products before it, and up to its end.
    """

    part: nn.Module
    given: Tensor | None
    gave: Tensor
    began: int
    ended: int
    products: tuple[int, int]


@final
class Observation:
    """One pass of a module: parts that ran once, by name, and its attention calls with the names of what was running.

    Where a part returns zeros, as a projection at initialization may, noise takes their place: zeros fit every sum.
    """

    def __init__(self, net: nn.Module, forward: Callable[[], object], shape: tuple[int, int], dtype: str) -> None:
        self.net, self.shape, self.tolerance = net, shape, tolerance_of(dtype)
        self.calls: dict[str, PartCall] = {}
        self.turned = set[str]()  # parts whose output has positions first
        self.attentions: list[tuple[AttentionCall, int, frozenset[str]]] = []
        clock, running, repeated = 0, list[tuple[str, int, int]](), set[str]()
        generator = torch.Generator().manual_seed(0)

        def heard(call: AttentionCall) -> None:
            self.attentions.append((call, clock, frozenset(name for name, _, _ in running)))

        def begin(name: str, *_: object) -> None:
            nonlocal clock
            clock += 1
            running.append((name, clock, watch.n_products))

        def end(name: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            nonlocal clock
            clock += 1
            (_, began, before), given = running.pop(), first_tensor((*args, *kwargs.values()))
            gave = first_tensor(output if isinstance(output, tuple | list) else (output,))
            if gave is None or name in self.calls:
                repeated.add(name)
                return None
            is_silent = gave is output and gave.is_floating_point() and not bool(gave.any())
            noise = torch.randn(gave.shape, generator=generator).to(gave) if is_silent else gave
            if self._is_turned(noise):
                self.turned.add(name)
            given, products = None if given is None else self._placed(given), (before, watch.n_products)
            self.calls[name] = PartCall(
                part=part, given=given, gave=self._placed(noise), began=began, ended=clock, products=products
            )
            return noise if is_silent else None

        watch = AttentionWatch(shape[0], heard=heard)
        hooks = [Hook(part=part, call=partial(begin, name), kind="pre") for name, part in net.named_modules()]
        hooks += [Hook(part=part, call=partial(end, name), with_kwargs=True) for name, part in net.named_modules()]
        with hooked(net, hooks, by=type(net).__name__, times=None), watch, torch.no_grad():
            forward()
        self.calls = {name: call for name, call in self.calls.items() if name not in repeated}

    def is_close(self, a: Tensor | None, b: Tensor | None, size: Tensor | None = None) -> bool:
        """Return whether two activations are equal up to rounding of numbers as large as those of `size`, or of b."""
        return self.error(a, b, size) <= self.tolerance

    def error(self, a: Tensor | None, b: Tensor | None, size: Tensor | None = None) -> float:
        """Return the largest difference, relative to the largest entry of `size`, or of b."""
        if a is None or b is None or not (a.is_floating_point() and b.is_floating_point()):
            return math.inf
        return relative_error(a, b, size)

    def _placed(self, x: Tensor) -> Tensor:
        """Return a copy with the sequence as the first axis, and the position as the second."""
        return (x.transpose(0, 1) if self._is_turned(x) else x).detach().clone()

    def _is_turned(self, x: Tensor) -> bool:
        return x.ndim == 3 and tuple(x.shape[:2]) == self.shape[::-1] != self.shape

    def n_positions(self) -> int | None:
        """Return the size of an embedding that was given the positions; None if there is none."""
        at, tables = torch.arange(self.shape[1]), list[int]()
        for part, ids in ((call.part, call.given) for call in self.calls.values()):
            if isinstance(part, nn.Embedding) and ids is not None and torch.equal(ids.cpu().reshape(-1), at):
                tables.append(part.num_embeddings)
        return min(tables, default=None)


Stack = tuple[str, ...]  # names of blocks, in their order


def stack_of(seen: Observation) -> Stack:
    """Return the blocks of a module: those that hold its attentions, else one list, else its recurrent core.

    Raises:
        NoStack: There are several stacks or none. The message lists the module lists.
    """
    name, lists = type(seen.net).__name__, (nn.ModuleList, nn.Sequential)

    def rank(stack: Stack) -> tuple[int, int, bool, int]:
        covered = sum(block in inside for block in stack for _, _, inside in seen.attentions)
        is_list = isinstance(seen.net.get_submodule(stack[0].rpartition(".")[0]), lists)
        return covered, len(stack), is_list, -stack[0].count(".")

    stacks = [stack for stack in _stacks(seen) if rank(stack)[0]]
    if not stacks:
        stacks = [stack for stack in _stacks(seen) if len(stack) > 1 or rank(stack)[2]]
        recurrent = [path for path, call in seen.calls.items() if isinstance(call.part, nn.RNNBase)]
        stacks += [(path,) for path in recurrent if not any(_is_nested(path, block) for block in sum(stacks, ()))]
    if not stacks:
        raise NoStack(
            f"no modules of {name} hand a stream of one width to each other, as blocks do. {lists_of(seen.net)} Name "
            f"them with blocks=…, or pass the module itself to bayesgeom.diagnose: it measures predictions alone."
        )
    best, *others = sorted(stacks, key=rank, reverse=True)
    if apart := [stack for stack in others if not any(_is_nested(a, b) for a, b in product(best, stack))]:
        each = ", ".join(f"{stack[0]} to {stack[-1]}" for stack in (best, *apart))
        raise NoStack(
            f"{name} has several stacks of blocks: {each}. {lists_of(seen.net)} Name one with blocks=…, or join them."
        )
    return best


def lists_of(net: nn.Module) -> str:
    """Return a sentence that names the module lists of a module."""
    lists = [
        f"{name or 'the module itself'} ({len(part)} {type(part[0]).__name__})"
        for name, part in net.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part)
    ]
    return f"Its module lists: {', '.join(lists)}." if lists else "It has no module lists."


def _stacks(seen: Observation) -> Iterator[Stack]:
    """Yield modules side by side that hand a stream to each other: a whole list, or neighbors of one class."""
    for parent, part in seen.net.named_modules():
        prefix = f"{parent}." if parent else ""
        children = [(f"{prefix}{name}", child) for name, child in part.named_children()]
        runs = [[*run] for _, run in groupby(children, key=lambda entry: type(entry[1]))]
        for run in [children] * isinstance(part, nn.ModuleList) + runs:
            names = tuple(name for name, _ in run)
            if names and all(name in seen.calls for name in names) and _is_stack([seen.calls[n] for n in names], seen):
                yield names


def _is_stack(calls: Sequence[PartCall], seen: Observation) -> bool:
    """Whether modules with weights keep the shape of their input, and each is given what the one before returned."""
    streams = [call.given for call in calls if call.given is not None and call.given.shape == call.gave.shape]
    is_stream = all(x.ndim == 3 and tuple(x.shape[:2]) == seen.shape for x in streams)
    has_weights = all(any(True for _ in call.part.parameters()) for call in calls)
    follow = (one.ended < other.began and seen.is_close(other.given, one.gave) for one, other in pairwise(calls))
    return len(streams) == len(calls) and is_stream and has_weights and all(follow)


def parts_of(block: tuple[str, str], seen: Observation) -> BlockParts:
    """Return the parts of one block."""
    first, last = (seen.calls.get(name) for name in block)
    parts = BlockParts(blocks=block)
    if first is None or last is None:
        return parts
    entered, began, before = first.given, first.began, first.products[0]
    if first is not last:
        entered, began, before = first.gave, first.ended, first.products[1]
    after = {name: call for name, call in seen.calls.items() if began < call.began and name not in block}
    inside = {name: call for name, call in after.items() if call.ended < last.ended}
    calls = [(call, at, running) for call, at, running in seen.attentions if began <= at < last.ended]
    if not calls or entered is None:
        return parts
    attention, at, running = calls[-1]
    parts = replace(parts, n_calls=len(calls), **_writers(entered, last.gave, inside, at, running, seen))
    parts = replace(parts, down=_down(parts, inside, at, seen))
    if len(calls) > 1:
        return parts
    before_it = {name: call for name, call in inside.items() if call.ended <= at}
    projections, norms, is_plain = _projections(attention, before_it, seen)
    is_torch = any(isinstance(seen.net.get_submodule(name), nn.MultiheadAttention) for name in running)
    return replace(
        parts,
        attention=max(running, key=lambda name: (name.count("."), name)),
        sizes=attention.sizes,
        number=attention.number - before,
        scale=attention.scale,
        is_fused=attention.is_fused,
        is_plain=is_plain or is_torch,
        out=_out(parts.attn, attention.z.flatten(2), inside, seen),
        projections={} if is_plain else projections,
        turned_norms=norms,
    )


def _writers(
    entered: Tensor, left: Tensor, inside: Mapping[str, PartCall], at: int, running: frozenset[str], seen: Observation
) -> dict[str, Any]:
    """Return the two parts that write, and the norms after the sums if the block normalizes its stream.

    Of parts with equal outputs, such as a projection and the dropout after it, the outermost counts, then the first.
    The part of attention is the one inside which it ran, or else the first that ended after it.
    """
    wide = [name for name, call in inside.items() if call.gave.shape == entered.shape and call.given is not None]
    wide.sort(key=lambda name: (name.count("."), inside[name].ended))
    gave, added = {name: inside[name].gave.double() for name in wide}, left.double() - entered.double()
    pairs = [pair for pair in combinations(wide, 2) if not _is_nested(*pair)]
    errors = [seen.error(gave[one] + gave[other], added, left) for one, other in pairs]
    if errors and min(errors) <= seen.tolerance:
        pair = pairs[errors.index(min(errors))]
        attn, mlp = sorted(pair, key=lambda name: (name not in running, inside[name].ended < at, inside[name].ended))
        return {"attn": attn, "mlp": mlp}
    for second in (name for name in wide if seen.is_close(gave[name], left.double())):
        for first, mlp in product(wide, wide):
            if seen.is_close(gave[first] + gave[mlp], inside[second].given):
                sums = (a for a in wide if a != first and seen.is_close(entered + inside[a].gave, inside[first].given))
                if attn := next(sums, ""):
                    return {"attn": attn, "mlp": mlp, "norms": (first, second)}
    return {}


def _is_nested(a: str, b: str) -> bool:
    return f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")


def _is_matrix(call: PartCall) -> bool:
    return any(parameter.ndim == 2 for parameter in call.part.parameters()) and not [*call.part.children()]


def chain_of(last: str, writer: str, seen: Observation) -> tuple[str, ...]:
    """Return a projection and, if there is one, the norm between it and what the writer adds; () if neither fits."""
    if not {last, writer} <= seen.calls.keys():
        return ()
    projection, written = seen.calls[last], seen.calls[writer]
    if seen.is_close(projection.gave, written.gave):
        return (last,)
    return (last, writer) if seen.is_close(written.given, projection.gave) else ()


def _out(writer: str, z: Tensor, inside: Mapping[str, PartCall], seen: Observation) -> tuple[str, ...]:
    """Return the projection of the heads' outputs, which `nn.MultiheadAttention` does not call as a module."""
    for name, call in inside.items():
        if _is_matrix(call) and seen.is_close(call.given, z) and (chain := chain_of(name, writer, seen)):
            return chain
    for name, part in seen.net.get_submodule(writer).named_modules() if writer else ():
        is_fitting = isinstance(part, nn.Linear) and part.in_features == z.shape[-1]
        if is_fitting and seen.is_close(part.forward(z), inside[writer].gave):
            return (f"{writer}.{name}",)
    return ()


def _down(parts: BlockParts, inside: Mapping[str, PartCall], at: int, seen: Observation) -> tuple[str, ...]:
    """Return the last projection of the MLP: a matrix after another one that is not of attention."""
    matrices = {name: call for name, call in inside.items() if _is_matrix(call) and not _is_nested(name, parts.attn)}
    of_mlp = {name: call for name, call in matrices.items() if call.began > at or _is_nested(name, parts.mlp)}
    for name, call in of_mlp.items():
        if any(other.ended < call.began for other in of_mlp.values()) and (chain := chain_of(name, parts.mlp, seen)):
            return chain
    return ()


def _projections(
    attention: AttentionCall, inside: Mapping[str, PartCall], seen: Observation
) -> tuple[dict[Site, Projection], dict[Site, tuple[str, bool]], bool]:
    """Return the projections to queries and keys, the norms that follow, and whether nothing follows."""
    projections, norms, plain = dict[Site, Projection](), dict[Site, tuple[str, bool]](), list[bool]()
    matrices = {name: call for name, call in inside.items() if _is_matrix(call) and call.gave.ndim == 3}
    for site, turned in ((Q, attention.q), (K, attention.k)):
        for path, take in _readings(site, matrices, attention.sizes):
            heads = take.take(matrices[path].gave)
            if heads.shape == turned.shape and _is_turned(heads, turned, site, seen):
                projections[site] = take
                plain.append(seen.is_close(heads, turned))
                break
            for name, call in inside.items():
                is_next = any(seen.is_close(form, heads) for form in _forms(call.given, heads))
                if is_next and any(_is_turned(form, turned, site, seen) for form in _forms(call.gave, turned)):
                    projections[site], norms[site] = take, (name, call.gave.ndim == 3)
    return projections, norms, plain == [True, True]


def _readings(site: Site, matrices: Mapping[str, PartCall], sizes: HeadSizes) -> Iterator[tuple[str, Projection]]:
    """Yield what may be the projection of a site: a whole output of a matrix, or its part of a fused one."""
    layouts: tuple[ProjectionLayout, ...] = ("own", "stacked", "grouped")
    whole = (sizes.n_heads if site == Q else sizes.n_kv_heads) * sizes.d_head
    fused = (sizes.n_heads + 2 * sizes.n_kv_heads) * sizes.d_head
    for (path, call), layout in product(matrices.items(), layouts):
        if call.gave.shape[-1] == (whole if layout == "own" else fused):
            yield path, Projection(path=path, site=site, layout=layout, sizes=sizes)


def _forms(x: Tensor | None, like: Tensor) -> list[Tensor]:
    """Return an activation with the axes of heads, which it may have in another order or joined."""
    if x is None or x.numel() != like.numel():
        return []
    forms = (x.reshape(like.shape),) if x.ndim == 3 else (x, x.transpose(1, 2))
    return [form for form in forms if form.shape == like.shape]


def _is_turned(x: Tensor, turned: Tensor, site: Site, seen: Observation) -> bool:
    """Whether these are equal up to a rotation."""
    return all(claim.error() <= seen.tolerance for claim in rotation_claims(x, turned, site))
