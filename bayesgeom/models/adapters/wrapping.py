"""`wrap`: any causal `nn.Module`, measured through hooks on parts that are found by what they compute, or named.

The module is not changed. Sites pass the same kind of proof as those of other models: in one pass noise is added at
every site, and the inputs of later sites must follow from the outputs of earlier ones. A site that fails, or that no
equation reaches, is withheld with the reason and what to declare.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from types import FunctionType, MethodType
from typing import Any, TypedDict, Unpack, cast, final

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from bayesgeom.core import (
    ALL_SITES,
    ATTN_OUT,
    K_ROT,
    MLP_OUT,
    MLP_POST,
    PATTERN,
    Q_ROT,
    RESID_POST,
    RESID_PRE,
    BayesGeomError,
    InvalidArgument,
    K,
    MissingSite,
    ModelSpec,
    NoCopy,
    NonFinite,
    Q,
    Site,
    Tokenizer,
    Trials,
    V,
    Z,
    checked,
    unknown_name,
)
from bayesgeom.core.errors import quoted
from bayesgeom.core.plugins import Contained
from bayesgeom.core.run import untrained_hash
from bayesgeom.core.text import aligned_table
from bayesgeom.core.torch_state import (
    PROCESS_STATE,
    Hook,
    evaluating,
    holding_lock,
    hooked,
    lock_of,
    structure_of,
    uncompiled,
)
from bayesgeom.models.adapters.attention import (
    AttentionCall,
    AttentionWatch,
    HeadSizes,
    Projection,
    ProjectionLayout,
    causal,
    pattern_of,
    weighted,
)
from bayesgeom.models.adapters.finding import (
    BlockParts,
    NoStack,
    Observation,
    chain_of,
    lists_of,
    parts_of,
    stack_of,
)
from bayesgeom.models.adapters.proof import (
    SUM,
    Claim,
    Functions,
    Passages,
    PerHead,
    Taps,
    attention_claims,
    input_hook,
    output_hook,
    perturbed_pass,
    sentinel_trials,
    tolerance_of,
)
from bayesgeom.models.adapters.untrained import initialized, is_owners, weights_differ
from bayesgeom.models.base import HeadOutput, Model, Reattachable, Replayer, Withheld, is_out_of_memory
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.replay.hooked import PlainLoop, PrefixReplay
from bayesgeom.models.unembedding import are_log_probabilities, matrix_of
from bayesgeom.tasks.base import torch_seed

Where = str | Callable[[Any], Any]  # a name within the owner, or a function of it
_HEADS = (Q, K, Q_ROT, K_ROT, V, Z, PATTERN)
_DECLARED = ("attn", "mlp", "q", "k", "v", "qkv", "out", "down")
_SLACK = 1e-3  # of a sum of probabilities, in half precision
_NEXT, _OUT, _PLAIN = "resid_post = next resid_pre", "out(z) = attn_out", "softmax(q·k / √d_head) · v = z"
_DOWN = "down(mlp_post) = mlp_out"
_LAST_OF = "the last projection of the"
_WITH = "what else its block has of attn=…, mlp=…, out=… and qkv=…, or q=…, k=… and v=…"
_HINTS = {
    _NEXT: ": something changes the stream between blocks",
    SUM: ": declare as attn and mlp what the block adds to its stream, and norms=… if it normalizes the sums",
    _OUT: f": out=… must be {_LAST_OF} heads before attn",
    _DOWN: f": down=… must be {_LAST_OF} MLP before mlp",
    _PLAIN: ": n_heads=… is wrong, queries or keys are rotated (rotary=…), normed or swapped, or it is not causal",
}
_TO_DECLARE: Mapping[Site, str] = {
    **dict.fromkeys((ATTN_OUT, MLP_OUT), "declare attn=… and mlp=…"),
    MLP_POST: f"declare down=…, {_LAST_OF} MLP",
    **dict.fromkeys(_HEADS, "declare n_heads=…, out=… and qkv=…, or q=…, k=… and v=…"),
}
_NOT_OFFERED = "no declaration of `wrap` gives it: write a subclass of Model (docs/extending.md, section A model)"
_OF_WEIGHTS = "`wrap` reads no weights: name a subspace that is fitted to activations, such as covariance:belief"
_AS_FORWARD = "Declare bayesgeom.wrap(net, forward=lambda net, ids: …), which returns them"
_AS_FUNCTION = "Return them as an array of torch, NumPy or JAX"
_NO_STACK = "no stack of blocks was found: bayesgeom.wrap(net, blocks=…) adds its stream, parts and heads"
_NOTHING = -1e4  # finite logarithm of a probability of 0: infinite logits mean a broken model


class Options(TypedDict, total=False):
    """Further declarations of `wrap`.

    Attributes:
        n_kv_heads: Number of key-value heads. Default: `n_heads`.
        qkv: One projection to queries, keys and values, in this order.
        q: The projection to queries, if there are three.
        k: The projection to keys.
        v: The projection to values.
        out: The projection of the heads' outputs.
        down: The last projection of the MLP, whose input are its hidden units.
        norms: The norms that follow the two sums, in blocks that normalize the stream itself (post-norm).
        rotary: Returns rotated queries and keys of both, with axes batch, position, head and width, where attention
            calls none of torch's functions.
        forward: A function of `net` and the ids that returns the logits at all positions. Default: `net(ids)`, or
            `net(ids, ids)` where that returns logits of other positions.
        n_ctx: Longest sequence in tokens. Default: the size of an embedding of positions, or any length.
        rebuild: Returns a new module of the same architecture, for untrained baselines. Default: its class with the
            same config, or a copy that is reset.
        tokenizer: Its tokenizer, for text tasks.
        name: Its name in reports. Default: that of its class.
    """

    n_kv_heads: int
    qkv: Where
    q: Where
    k: Where
    v: Where
    out: Where
    down: Where
    norms: tuple[Where, Where]
    rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    forward: Callable[[Any, Int64[Tensor, "batch pos"]], Any]
    n_ctx: int
    rebuild: Callable[[], nn.Module]
    tokenizer: Tokenizer
    name: str


@checked("net", "blocks")
def wrap(
    net: nn.Module,
    *,
    blocks: Where | Sequence[nn.Module] | None = None,
    attn: Where | None = None,
    mlp: Where | None = None,
    n_heads: int = 0,
    **options: Unpack[Options],
) -> "WrappedModel":
    """Return any causal module as a `Model`, whose verified sites every probe and ablation can use.

    Its blocks and their parts are found by what they compute in a pass; `print(model)` lists them. What is declared
    replaces what would be found. Parts are named within a block, "attn" or "attn.c_proj", or found by a function of it.
    The result's `withheld` states which sites are missing, and what to declare to get them.

    Args:
        net: Maps token ids (batch pos) to logits (batch pos d_vocab); a tuple or `.logits` is fine.
        blocks: The list of blocks: its name in `net`, or a function of `net`. Where no module is a whole block, a pair
            of modules stands for it, whose outputs are the residual stream before and after the block.
        attn: The part of a block whose output is added to the stream by attention: after a norm of its own, that norm.
        mlp: The same of the MLP.
        n_heads: Number of attention heads; 0 if they are found, or no part of a head is declared.
        **options: What `Options` lists: projections of heads, norms after the sums, how to compute logits, and more.

    Returns:
        The model. It shares the weights of `net`, which is not changed.

    Raises:
        InvalidArgument: There are several stacks of blocks or none, a part does not exist, heads do not divide the
            width, the module cannot be run on token ids, its output is no logits, it sees later tokens or other
            sequences, or `attn` and `mlp` are swapped.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Embedding(10, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 10))
        >>> def forward(net, ids):
        ...     return net[2](net[1](net[0](ids))[0])
        >>> print(wrap(net, forward=forward, name="gru"))
        WrappedModel(gru, 1 layers, d_model 8, 602 parameters)
        part  site                   by
        1     resid_pre, resid_post  a single block: it runs once
    """
    if not isinstance(net, nn.Module):
        advice = "pass an instance of it" if isinstance(net, type) else "diagnose takes functions and Models"
        raise InvalidArgument(f"wrap needs a torch module, got a {type(net).__name__}: {advice}.")
    for unknown in options.keys() - Options.__annotations__.keys():
        raise unknown_name("option of wrap", unknown, [*Options.__annotations__, "blocks", "attn", "mlp", "n_heads"])
    declared = {"blocks": blocks, "attn": attn, "mlp": mlp, "n_heads": n_heads or None, **options}
    known: dict[str, Any] = {name: value for name, value in declared.items() if value is not None}
    for name, least in (("n_heads", 1), ("n_kv_heads", 1), ("n_ctx", 2)):
        if known.get(name, least) < least:
            raise InvalidArgument(f"{name} must be an integer of at least {least}, got {known[name]}.")
    return WrappedModel(uncompiled(net), known)


def of_module_alone(net: nn.Module) -> "WrappedModel":
    """Return `wrap(net)`, or the model of its predictions alone where no single stack of blocks is found.

    Raises:
        InvalidArgument: As of `wrap`, but for blocks.
    """
    try:
        return wrap(net)
    except NoStack:
        return WrappedModel(net, {}, blocks=())


def from_callable(function: Callable[[Int64[Tensor, "batch pos"]], Any], tokenizer: Tokenizer | None = None) -> Model:
    """Return the `Model` of a function of token ids that returns logits: it has predictions and no sites.

    They may be log-probabilities, and an array of another library. It has the name of the module that it calls, if it
    refers to one.

    Raises:
        InvalidArgument: It cannot be called on token ids, its output is no logits, or it sees later tokens.
    """
    name = type(function).__name__
    if isinstance(function, FunctionType | MethodType):
        of = inspect.getclosurevars(function)
        bound = [function.__self__] if isinstance(function, MethodType) else []
        parts = (x for x in (*bound, *of.nonlocals.values(), *of.globals.values()) if isinstance(x, nn.Module))
        module = next((type(part).__name__ for part in parts), "")
        name = module or function.__name__.replace("<lambda>", "function")
    known = {"name": name} if tokenizer is None else {"name": name, "tokenizer": tokenizer}
    return WrappedModel(_FunctionModule(function), known, blocks=())


@final
class _FunctionModule(nn.Module):
    """A function as a module without weights."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Any:
        return self.function(tokens)


def _blocks(net: nn.Module, seen: Observation, known: Mapping[str, Any]) -> tuple[BlockParts, ...]:
    """Return the parts of every block: those that are declared, and those that are found."""
    names: dict[nn.Module, str] = {part: name for name, part in net.named_modules()}
    if set(known) & {"q", "k", "v", "qkv"} not in (set(), {"qkv"}, {"q", "k", "v"}):
        given = ", ".join(name for name in ("q", "k", "v", "qkv") if name in known)
        raise InvalidArgument(f"got {given}: declare either qkv=…, or all of q=…, k=… and v=….")

    def named(part: nn.Module, what: str) -> str:
        if part not in names:
            raise InvalidArgument(f"{what}=… must return a module of {type(net).__name__}, got another one.")
        return names[part]

    declared = _declared_blocks(net, known["blocks"]) if "blocks" in known else None
    pairs = [(net.get_submodule(name),) * 2 for name in stack_of(seen)] if declared is None else declared
    blocks = list[BlockParts]()
    for pair in pairs:
        ends = (named(pair[0], "blocks"), named(pair[1], "blocks"))
        if lost := [name for name in ends if name not in seen.calls]:
            raise InvalidArgument(
                f"{lost[0]} does not run once a pass, or returns no tensor: blocks=… must name a list of blocks. "
                f"{lists_of(net)}"
            )
        parts = {what: named(_part(pair, known[what], what), what) for what in _DECLARED if what in known}
        norms = tuple(named(_part(pair, where, "norms"), "norms") for where in known.get("norms", ()))
        blocks.append(_declared(parts_of(ends, seen), parts, norms, known, seen))
    sizes = {block.sizes for block in blocks}
    if len(sizes) > 1 or sizes == {None}:
        return tuple(replace(block, sizes=None, number=None, out=(), projections={}) for block in blocks)
    return tuple(blocks)


def _declared(
    block: BlockParts, parts: Mapping[str, str], norms: tuple[str, ...], known: Mapping[str, Any], seen: Observation
) -> BlockParts:
    """Return the parts of a block, with those that are declared in place of those that were found."""
    pair = [seen.calls[name].gave for name in (block.attn, parts.get("mlp", "")) if name and name in seen.calls]
    if len(pair) == 2 and seen.is_close(*pair):
        raise InvalidArgument(
            f"mlp=… of {type(seen.net).__name__} returns what attention adds to the stream in {block.blocks[0]}: are "
            f"attn=… and mlp=… swapped?"
        )
    attn, mlp = parts.get("attn", block.attn), parts.get("mlp", block.mlp)
    norms = norms or (block.norms if (attn, mlp) == (block.attn, block.mlp) else ())
    writers = [(name, writer) for name, writer in (("out", attn), ("down", mlp)) if name in parts]
    chains: dict[str, Any] = {name: chain_of(parts[name], of, seen) or (parts[name],) for name, of in writers}
    block = replace(block, attn=attn, mlp=mlp, norms=norms, **chains)
    projected = [(site, parts[name]) for site, name in ((Q, "q"), (K, "k"), (V, "v")) if name in parts]
    projected = projected or [(site, parts["qkv"]) for site in (Q, K, V) if "qkv" in parts]
    sizes, n_heads = block.sizes, known.get("n_heads", 0)
    if sizes is None and (projected or "out" in parts):
        sizes = _declared_sizes(parts, n_heads, known.get("n_kv_heads", n_heads), seen)
    if sizes is None:
        return block
    _check_heads(sizes, known)
    if not projected:
        return replace(block, sizes=sizes)
    layout: ProjectionLayout = "stacked" if "qkv" in parts else "own"
    projections = {site: Projection(path=path, site=site, layout=layout, sizes=sizes) for site, path in projected}
    if block.number is not None:
        projections.pop(V)  # it is read where attention is seen
    return replace(block, sizes=sizes, projections=projections, turned_norms={}, is_plain=False)


def _check_heads(sizes: HeadSizes, known: Mapping[str, Any]) -> None:
    """Raise `InvalidArgument` if attention runs with other numbers of heads than are declared."""
    n, kv = sizes.n_heads, sizes.n_kv_heads
    n_heads, n_kv_heads = known.get("n_heads", n), known.get("n_kv_heads", known.get("n_heads", kv))
    if (n_heads, n_kv_heads) != (n, kv):
        raise InvalidArgument(
            f"attention runs with {n} heads and {kv} key-value heads, not {n_heads} and {n_kv_heads}: check n_heads=…."
        )


def _declared_sizes(parts: Mapping[str, str], n_heads: int, n_kv_heads: int, seen: Observation) -> HeadSizes:
    """Return the heads of attention that was not seen: the input of `out`, or the queries, have their whole width."""
    if n_heads < 1 or n_kv_heads < 1:
        raise InvalidArgument("heads need their number: declare n_heads=…, and n_kv_heads=… if it differs.")
    of = {name: seen.calls[part] for name, part in parts.items() if part in seen.calls}
    whole = int(of["qkv"].gave.shape[-1] / (1 + 2 * n_kv_heads / n_heads)) if "qkv" in of else 0
    whole = of["q"].gave.shape[-1] if "q" in of else whole
    whole = whole if "out" not in of or of["out"].given is None else of["out"].given.shape[-1]
    if n_heads % n_kv_heads or whole % n_heads:
        raise InvalidArgument(
            f"{n_heads} heads with {n_kv_heads} key-value heads do not fit a width of {whole}: check n_heads=…."
        )
    return HeadSizes(n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=whole // n_heads)


def _sites_of(block: BlockParts) -> frozenset[Site]:
    """Return the sites that the parts of a block could give."""
    parts = {ATTN_OUT: block.attn, MLP_OUT: block.mlp, MLP_POST: block.down}
    sites = {RESID_PRE, RESID_POST, *block.projections, *(site for site, part in parts.items() if part)}
    if block.number is not None:
        return frozenset(sites | {Q_ROT, K_ROT, V, Z, PATTERN, *((Q, K) if block.is_plain else ())})
    heads = (Z, *((Q_ROT, K_ROT, PATTERN) if {Q, K, V} <= sites else ()))
    return frozenset(sites.union(heads if block.out else ()))


def _part_of(block: BlockParts, site: Site) -> str:
    """Return the name of the part at which a site is."""
    parts = {RESID_PRE: block.blocks[0], RESID_POST: block.blocks[1], ATTN_OUT: block.attn, MLP_OUT: block.mlp}
    parts |= {of: projection.path for of, projection in block.projections.items()}
    parts |= {MLP_POST: block.down[0]} if block.down else {}
    return parts.get(site, block.attention or (*block.out, "")[0])


def _declared_blocks(net: nn.Module, where: Where | Sequence[nn.Module]) -> Sequence[tuple[nn.Module, nn.Module]]:
    """Return every declared block as a pair of modules."""
    blocks = _found(net, where, "blocks") if isinstance(where, str) or callable(where) else where
    listed = list(blocks) if isinstance(blocks, nn.ModuleList | nn.Sequential | list | tuple) else [blocks]
    pairs = [tuple(pair) if isinstance(pair, tuple | list) else (pair, pair) for pair in listed]
    if not pairs or any(len(pair) != 2 or not all(isinstance(part, nn.Module) for part in pair) for pair in pairs):
        name = f"blocks={quoted(where)}" if isinstance(where, str) else "blocks=…"
        raise InvalidArgument(
            f"{name} of {type(net).__name__} must be a list of modules, or of pairs of modules; got "
            f"{', '.join(type(entry).__name__ for entry in listed) or 'none'}."
        )
    return [(first, last) for first, last in pairs]


def _part(block: tuple[nn.Module, nn.Module], where: Where, what: str) -> nn.Module:
    """Return a part of a block; a function of a pair gets the pair."""
    is_pair = block[0] is not block[1]
    part = _found(block if is_pair and not isinstance(where, str) else block[0], where, what)
    if not isinstance(part, nn.Module):
        raise InvalidArgument(f"{what}=… must return a module of the block, got a {type(part).__name__}.")
    return part


def _found(owner: Any, where: Where, what: str) -> Any:
    """Return the part of this name, or what a function of the owner returns."""
    try:
        return owner.get_submodule(where) if isinstance(where, str) else where(owner)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(where, str):
            parts = ", ".join(path for path, _ in owner.named_modules() if path)
            known = lists_of(owner) if what == "blocks" else f"Its parts: {parts or 'none'}."
            raise InvalidArgument(
                f"{what}={quoted(where)}: {type(owner).__name__} has no part of this name. {known}"
            ) from error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidArgument(f"the function {what}=… failed on a {type(owner).__name__}: {reason[0]}") from error


@final
class WrappedModel(Reattachable):
    """The `Model` that `wrap` returns."""

    def __init__(
        self, net: nn.Module, known: Mapping[str, Any], *, blocks: Sequence[BlockParts] | None = None, digest: str = ""
    ) -> None:
        self.module, self.task, self.structure = net, None, structure_of(net)
        self.tokenizer = known.get("tokenizer")
        self._net, self._known, self._name = net, known, known.get("name", type(net).__name__)
        self._is_function, self._with_targets = isinstance(net, _FunctionModule), False
        self._layer, self._watch = 0, AttentionWatch(1)
        self._projected: dict[tuple[Site, int], Tensor] = {}  # of the pass that is running
        self._proofs: dict[Site, Mapping[str, float]] = {}
        weight = next(net.parameters(), torch.zeros(()))
        dtype = str(weight.dtype).removeprefix("torch.")
        with lock_of(net), evaluating(net), torch.no_grad():
            logits = self._first_logits(torch.zeros(1, 2, dtype=torch.int64, device=weight.device))
            d_vocab, dtype = logits.shape[-1], str(logits.dtype).removeprefix("torch.") if self._is_function else dtype
            tokens = sentinel_trials(d_vocab, known.get("n_ctx"), str(weight.device)).tokens
            self._check_logits(tokens, d_vocab, tolerance_of(dtype))
            seen = Observation(net, partial(self._forward, tokens), (tokens.shape[0], tokens.shape[1]), dtype)
            self._blocks = _blocks(net, seen, known) if blocks is None else blocks
            self._is_position_first = any(block.blocks[1] in seen.turned for block in self._blocks)
            self.spec = self._spec(seen, d_vocab, weight, digest)
            each = [_sites_of(block) for block in self._blocks]
            self._taps = Taps(each[0].intersection(*each) if each else (), len(self._blocks))
            self.withheld = Withheld(self._examined(tokens, seen))

    def __str__(self) -> str:
        rows, parts = [("part", "site", "by")], dict[tuple[str, str], list[str]]()
        stem, _, number = self._blocks[0].blocks[0].rpartition(".") if self._blocks else ("", "", "")
        for site in (site for site in self._proofs if site in self.sites):
            part, by = _part_of(self._blocks[0], site), next(iter(self._proofs[site]), "a single block: it runs once")
            if number.isdigit() and self.spec.n_layers > 1:
                part = f"{stem}.*{part.removeprefix(f'{stem}.{number}')}" if stem else f"*{part.removeprefix(number)}"
            parts.setdefault((part, by), []).append(site.name)
        rows += [(part, ", ".join(names), by) for (part, by), names in parts.items()]
        called = ["Logits are those of net(ids, ids)."] * self._with_targets
        called += [] if self._blocks or self._is_function else [f"Predictions only: {_NO_STACK}. {lists_of(self._net)}"]
        return "\n".join([repr(self), *(aligned_table(rows) if parts else []), *called])

    def digest(self) -> str:
        """Return the hash of the weights as they are now; "" if there are none, as of a function."""
        weights = self._net.state_dict()
        return weights_hash(weights) if weights else ""

    def attached_again(self, digest: str) -> "WrappedModel":
        return WrappedModel(self._net, self._known, blocks=self._blocks, digest=digest)

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset(site for site in ALL_SITES if site not in self.withheld)

    def point(self, site: Site, layer: int) -> nn.Module:
        same = {Q: Q_ROT, K: K_ROT} if self._blocks[layer].is_plain else {}
        if self._blocks[layer].number is None and "rotary" not in self._known:
            same = {Q_ROT: Q, K_ROT: K}
        return self._taps.at(same.get(site, site), layer)

    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        raise MissingSite(f"{self.spec.name} offers no {site.name}: {_NOT_OFFERED}.")

    def _head_output(self, layer: int) -> HeadOutput | None:
        names, sizes = self._blocks[layer].out, self._blocks[layer].sizes
        if not names or sizes is None:
            return None
        part, *norm = map(self._net.get_submodule, names)
        width = sizes.n_heads * (sizes.d_value or sizes.d_head)
        like = next(part.parameters()).new_zeros(1, width)
        rows = matrix_of(part.forward, torch.eye(width, dtype=torch.float64, device=like.device), like)
        return HeadOutput(matrix=rows.unflatten(0, (sizes.n_heads, -1)), norm=next(iter(norm), None))

    @holding_lock()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        with evaluating(self._net), self._open(len(trials)):
            return trials.at_scored(self._forward(trials.tokens))

    def untrained_copy(self, seed: int) -> "WrappedModel":
        if self._is_function:
            raise NoCopy("a function of tokens has no untrained baselines: pass the module itself.")
        with PROCESS_STATE, torch.random.fork_rng():
            torch.manual_seed(torch_seed(seed))
            if (rebuild := self._known.get("rebuild")) is not None:
                net = self._rebuilt(rebuild)
            else:
                net = initialized(self._net, self.spec.name)
        known = {**self._known, "name": f"{self.spec.name} at initialization {seed}"}
        with Contained() as attaching:
            made = WrappedModel(net, known, blocks=self._blocks, digest=untrained_hash(seed))
            if not self.sites - made.sites:
                return made
        says = attaching.fault or f"no {', '.join(sorted(site.name for site in self.sites - made.sites))}"
        raise NoCopy(
            f"{self.spec.name} has no untrained baselines: copies do not compute alike ({says.rstrip('.')}), as where "
            f"code in it refers to parts of the original. Declare rebuild=lambda: …, which returns a new module."
        ) from attaching.error

    def permuted_copy(self, seed: int) -> "WrappedModel | None":
        with PROCESS_STATE, torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(torch_seed(seed))
            is_known = "rebuild" in self._known or is_owners(self._net)
            if is_known or all(weight.ndim < 2 for weight in self._net.parameters()):
                return None
            net = deepcopy(self._net)
            matrices = (weight for weight in net.parameters() if weight.ndim > 1)
            for matrix in matrices:
                matrix.copy_(matrix.flatten()[torch.randperm(matrix.numel())].view_as(matrix))
        known = {**self._known, "name": f"{self.spec.name} at initialization {seed}"}
        with Contained() as attaching:
            return WrappedModel(net, known, blocks=self._blocks, digest=untrained_hash(seed))
        raise NoCopy(f"a copy of {self.spec.name} with permuted weights cannot be run: {attaching.fault.rstrip('.')}.")

    def _rebuilt(self, rebuild: Callable[[], nn.Module]) -> nn.Module:
        """Return a module that a function builds; raise `NoCopy` if it has other parts or other weights."""
        with Contained() as building:
            built = rebuild()
            if not (differing := weights_differ(self._net, built)):
                return built.to(self.spec.device).eval()
        says = building.fault.rstrip(".") or f"returned a module with other weights: {', '.join(differing[:3])} differ"
        raise NoCopy(f"{self.spec.name} has no untrained baselines: rebuild=… failed: {says}.") from building.error

    @holding_lock()
    def replayer(self) -> Replayer:
        ends = [block.blocks for block in self._blocks]
        blocks = tuple(self._net.get_submodule(first) for first, last in ends if first == last)
        if len(blocks) == self.spec.n_layers and not self._is_position_first and RESID_PRE in self.sites:
            replay = PrefixReplay(self, blocks)
            if replay.inexact_from() is None:
                return replay
        return PlainLoop(self)  # the stream between blocks is not all that a later block reads

    def _first_logits(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        """Return logits of `net(ids)`, or else of `net(ids, ids)`: some modules save time without targets."""
        with Contained() as running:
            return self._forward(tokens)
        assert running.error is not None, "it returned otherwise"
        self._with_targets = not (self._is_function or "forward" in self._known or is_out_of_memory(running.error))
        with Contained():
            return self._forward(tokens)
        raise running.error

    def _forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        forward = self._known.get("forward")
        with self._named_faults(tokens):
            given = (tokens, tokens) if self._with_targets else (tokens,)
            output = self._net(*given) if forward is None else forward(self._net, tokens)
        match output:
            case {"logits": logits} | object(logits=logits):
                pass
            case [first, *_]:
                arrays = (item for item in map(_as_tensor, output) if isinstance(item, Tensor))
                logits = next((array for array in arrays if array.ndim == 3), first)
            case _:
                logits = output
        logits = _as_tensor(logits)
        is_float = isinstance(logits, Tensor) and logits.is_floating_point()
        if not is_float or logits.ndim != 3 or logits.shape[:2] != tokens.shape:
            is_tensor = isinstance(logits, Tensor)
            got = f"{logits.dtype} of shape {tuple(logits.shape)}" if is_tensor else f"a {type(logits).__name__}"
            raise InvalidArgument(
                f"{self._name} returned {got} for token ids of shape {tuple(tokens.shape)}; logits of shape (batch, "
                f"position, vocabulary) are needed. {_AS_FUNCTION if self._is_function else _AS_FORWARD}."
            )
        logits = logits.to(tokens.device)  # a function may compute elsewhere
        has_zeros = bool(logits.isneginf().any()) and are_log_probabilities(logits)
        return cast(Tensor, logits.clamp_min(_NOTHING) if has_zeros else logits)

    @contextlib.contextmanager
    def _named_faults(self, tokens: Int64[Tensor, "batch pos"]) -> Iterator[None]:
        """Name the model, whose code is the user's, in each of its exceptions."""
        with Contained() as running:
            yield
        error = running.error
        if error is None:
            return
        if isinstance(error, BayesGeomError) or is_out_of_memory(error):
            raise error
        is_long = isinstance(error, IndexError | RuntimeError) and not self._is_function
        raise InvalidArgument(
            f"{self._name} failed on token ids of shape {tuple(tokens.shape)}: {running.fault.rstrip('.')}."
            + " Declare n_ctx=… if they are too many." * bool(is_long and "n_ctx" not in self._known)
        ) from error

    def _spec(self, seen: Observation, d_vocab: int, weight: Tensor, digest: str) -> ModelSpec:
        """Return the sizes that parts had in the pass that was observed."""
        first = self._blocks[0] if self._blocks else BlockParts(blocks=("", ""))
        sizes = first.sizes or HeadSizes(n_heads=0, n_kv_heads=0, d_head=0)
        stream = [seen.calls[block.blocks[1]].gave.shape[-1] for block in self._blocks] or [0]
        if len(of := set(stream)) > 1:
            raise InvalidArgument(f"blocks of {self._name} write widths {sorted(of)}: one is needed.")
        tops = [self._net.get_submodule(first.mlp)] if first.mlp else []
        wide = [part.out_features for top in tops for part in top.modules() if isinstance(part, nn.Linear)]
        units = next((call.given for name in first.down if (call := seen.calls.get(name))), None)
        return ModelSpec(
            name=self._name,
            architecture=self._name if self._is_function else type(self._net).__name__,
            n_layers=len(self._blocks),
            n_heads=sizes.n_heads,
            n_kv_heads=sizes.n_kv_heads,
            d_model=stream[0],
            d_head=sizes.d_head,
            d_value=sizes.d_value,
            d_mlp=max(wide, default=4 * stream[0]) if units is None else units.shape[-1],
            d_vocab=d_vocab,
            n_ctx=self._known.get("n_ctx", seen.n_positions()),
            score_scale=first.scale if first.number is not None or not sizes.d_head else sizes.d_head**-0.5,
            n_parameters=sum(parameter.numel() for parameter in self._net.parameters()),
            dtype=str(weight.dtype).removeprefix("torch."),
            device=str(weight.device),
            weights_hash=digest or self.digest(),
        )

    @contextlib.contextmanager
    def _open(self, n: int, heard: Callable[[AttentionCall], None] | None = None) -> Iterator[None]:
        """Lead activations of a pass of n sequences through the taps during the block."""
        layers = range(self.spec.n_layers)
        hooks = [hook for layer in layers for hook in self._hooks(layer)]
        self._watch = AttentionWatch(
            n,
            through=lambda site, x: self._taps.through(site, self._layer, x),
            is_watched=lambda site: self._taps.is_watched(self._layer, site),
            heard=None if heard is None else lambda call: heard(call) if self._watch.is_chosen(call.number) else None,
        )
        is_needed = heard or any(self._taps.is_watched(layer, Q_ROT, K_ROT, V, Z, PATTERN) for layer in layers)
        is_seen = any(block.number is not None for block in self._blocks)
        watching = self._watch if is_seen and is_needed else contextlib.nullcontext()
        with hooked(self._net, hooks, by=self.spec.name, times=None), watching:  # calls are counted at the taps
            try:
                yield
            finally:
                self._projected.clear()

    def _hooks(self, layer: int) -> Iterator[Hook]:
        block, part = self._blocks[layer], self._net.get_submodule
        first, last = map(part, block.blocks)
        yield (input_hook if first is last else output_hook)(first, partial(self._enter, layer))
        yield output_hook(last, partial(self._leave, layer))
        for site, name in ((ATTN_OUT, block.attn), (MLP_OUT, block.mlp)):
            if name:
                yield output_hook(part(name), partial(self._through, site, layer))
        for name in block.down[:1]:
            yield input_hook(part(name), partial(self._through, MLP_POST, layer))
        for path in dict.fromkeys(entry.path for entry in block.projections.values()):
            own = [entry for entry in block.projections.values() if entry.path == path]
            yield output_hook(part(path), partial(self._project, layer, own))
        for name in block.out[: block.number is None]:
            yield input_hook(part(name), partial(self._mixed, layer))

    def _enter(self, layer: int, x: Tensor) -> Tensor:
        """Begin a block."""
        entered, self._layer, block = self._through(RESID_PRE, layer, x), layer, self._blocks[layer]
        self._watch.begin(block.number, block.sizes.n_kv_heads if block.sizes else 0)
        return entered

    def _leave(self, layer: int, x: Tensor) -> Tensor:
        self._watch.begin()
        return self._through(RESID_POST, layer, x)

    def _through(self, site: Site, layer: int, x: Tensor) -> Tensor:
        """Return an activation after its tap, whose hooks run no attention of the module."""
        self._watch.is_off = True
        try:
            if not self._is_position_first:
                return self._taps.through(site, layer, x)
            return self._taps.through(site, layer, x.transpose(0, 1)).transpose(0, 1)
        finally:
            self._watch.is_off = False

    def _project(self, layer: int, projections: Sequence[Projection], x: Tensor) -> Tensor:
        """Lead the heads of a projection, or of all three, through their taps."""
        for projection in projections:
            before = projection.take(x)
            heads = self._through(projection.site, layer, before)
            self._projected[projection.site, layer] = heads.transpose(0, 1) if self._is_position_first else heads
            x = x if heads is before else projection.put(x, heads)
        return x

    def _mixed(self, layer: int, z: Tensor) -> Tensor:
        """Lead the input of `out` through its tap; compute it where q_rot, k_rot or the pattern has one."""
        heads = rearrange(z, "b p (h d) -> b p h d", h=self.spec.n_heads)
        if self._taps.is_watched(layer, Q_ROT, K_ROT, PATTERN):
            q, k = self._rotated(self._projected[Q, layer], self._projected[K, layer])
            q, k = self._taps.through(Q_ROT, layer, q), self._taps.through(K_ROT, layer, k)
            pattern = self._taps.through(PATTERN, layer, self._pattern(q, k))
            mixed = weighted(pattern, self._projected[V, layer]).to(z.dtype)
            heads = mixed.transpose(0, 1) if self._is_position_first else mixed
        return rearrange(self._through(Z, layer, heads), "b p h d -> b p (h d)")

    def _rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        rotary = self._known.get("rotary")
        return (q, k) if rotary is None else rotary(q, k)

    def _pattern(self, q: Tensor, k: Tensor) -> PerHead:
        """Return the pattern of plain causal attention."""
        return pattern_of(q, k, self.spec.score_scale, causal(q.shape[1], q))

    def _examined(self, tokens: Int64[Tensor, "batch pos"], seen: Observation) -> dict[Site, str]:
        """Return why each site is withheld."""
        if not self._blocks:
            lacks = "a function has no parts: pass its module itself" if self._is_function else _NO_STACK
            return dict.fromkeys(ALL_SITES, lacks)
        calls, first = dict[int, AttentionCall](), self._blocks[0]

        def forward() -> None:
            with self._open(len(tokens), heard=lambda call: calls.update({self._layer: call})):
                self._forward(tokens)

        is_seen = first.number is not None
        silent = {PATTERN} if is_seen else {Q_ROT, K_ROT, PATTERN}  # these are formed only where they are hooked
        places = [
            (site, layer)
            for site, layer in product(self._taps.sites(), range(self.spec.n_layers))
            if self.point(site, layer) is self._taps.at(site, layer)
            and (site not in silent or (is_seen and not self._blocks[layer].is_fused))
        ]
        passages = perturbed_pass(self._net, forward, self._taps.at, places)
        missed = {site for (site, _), passage in passages.items() if len(passage.arrived) != 1}
        passages = {place: passage for place, passage in passages.items() if place[0] not in missed}
        # Of a single block nothing else is known of its stream than that it ran.
        errors: dict[Site, dict[str, float]] = {RESID_PRE: {}, RESID_POST: {}}
        for layer in range(self.spec.n_layers):
            with self._named_faults(tokens):  # norms or out=… may be parts that take other inputs
                claims = list(self._claims(passages, layer, calls.get(layer)))
            for claim, site in ((equation, site) for equation in claims for site in equation.sites):
                worst = errors.setdefault(site, {})
                worst[claim.equation] = max(claim.error(), worst.get(claim.equation, 0.0))
        same = ((Q, Q_ROT), (K, K_ROT)) if is_seen else ((Q_ROT, Q), (K_ROT, K), (PATTERN, Q))
        errors |= {site: errors[of] for site, of in same if site not in errors and of in errors}
        reasons = {site: self._absent(site) for site in ALL_SITES}
        reasons |= {site: self._reason(errors.get(site)) for site in self._taps.sites()}
        reasons |= dict.fromkeys(missed, "its part does not run once a pass")
        entered, (begin, end) = seen.calls[first.blocks[0]].given, first.blocks
        if begin == end and (entered is None or entered.shape[-1] != self.spec.d_model):
            reasons[RESID_PRE] = f"it has not the width of resid_post, {self.spec.d_model}"
        self._proofs = {site: errors[site] for site in ALL_SITES if site in errors}
        return {site: reason for site, reason in reasons.items() if reason}

    def _absent(self, site: Site) -> str:
        """Return why no part gives a site, and what to declare."""
        counts = sorted({block.n_calls for block in self._blocks})
        if site in _HEADS and counts == [1] and self._blocks[0].number is not None:
            return "no projection fits its rotation: declare qkv=…, or q=…, k=… and v=…"
        if site in _HEADS and counts not in ([0], [1]):
            return f"attention runs {' or '.join(map(str, counts))} times in a block, not once"
        if site in (ATTN_OUT, MLP_OUT) and counts != [0]:
            return f"no two parts of a block add up to what it adds to its stream: {_TO_DECLARE[site]}"
        known = _TO_DECLARE.get(site)
        if known is None:
            return _OF_WEIGHTS if site.is_static else _NOT_OFFERED
        return f"no attention was seen in its blocks: {known}" if counts == [0] else known

    def _reason(self, errors: Mapping[str, float] | None) -> str:
        """Return why a site is withheld, given the errors of its equations; "" if they hold."""
        if errors is None:
            return f"no identity reaches it: declare {_WITH}, too"
        failed = [claim for claim, error in errors.items() if not error <= tolerance_of(self.spec.dtype)]
        if not failed:
            return ""
        return f"identity {failed[0]} fails by {errors[failed[0]]:.1e}{_HINTS.get(failed[0], '')}"

    def _claims(self, passages: Passages, layer: int, call: AttentionCall | None) -> Iterator[Claim]:
        """Yield the equations of a layer."""
        block, part = self._blocks[layer], self._net.get_submodule
        known = {site for site, at in passages if at == layer}
        left = {site: passages[site, layer].left[0] for site in known}
        arrived = {site: passages[site, layer].arrived[0] for site in known}
        if {RESID_PRE, RESID_POST, ATTN_OUT, MLP_OUT} <= known:
            first, second = map(part, block.norms) if block.norms else (nn.Identity(), nn.Identity())
            right = second(first(left[RESID_PRE] + left[ATTN_OUT]) + left[MLP_OUT])
            yield Claim(SUM, (RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST), arrived[RESID_POST], right)
        if {RESID_PRE, RESID_POST} <= known and layer + 1 < self.spec.n_layers:
            following = passages[RESID_PRE, layer + 1].arrived[0]
            yield Claim(_NEXT, (RESID_PRE, RESID_POST), following, left[RESID_POST])
        if call is not None and {Q_ROT, K_ROT, V, Z} <= known:
            pattern = pattern_of(left[Q_ROT], left[K_ROT], call.scale, call.added, call.soft_cap).to(left[V].dtype)
            if PATTERN not in known:
                arrived[PATTERN] = left[PATTERN] = pattern
            functions = Functions(normed=self._normed, pattern=lambda _q, _k, _layer: pattern)
            yield from attention_claims(arrived, left, functions, layer)
        elif {Q, K, V, Z} <= known and block.number is None:
            right = weighted(self._pattern(*self._rotated(left[Q], left[K])), left[V])
            yield Claim(_PLAIN, (Q, K, V) if ATTN_OUT in known else (Q, K, V, Z), arrived[Z], right)
        if block.out and {Z, ATTN_OUT} <= known:
            yield Claim(_OUT, (Z,), arrived[ATTN_OUT], self._chained(block.out, left[Z].flatten(2)))
        if {MLP_POST, MLP_OUT} <= known:
            yield Claim(_DOWN, (MLP_POST,), arrived[MLP_OUT], self._chained(block.down, left[MLP_POST]))

    def _normed(self, site: Site, x: Tensor, layer: int) -> Tensor:
        name, is_joined = self._blocks[layer].turned_norms.get(site, ("", False))
        if not name:
            return x
        return self._chained([name], x.flatten(2) if is_joined else x).reshape(x.shape)

    def _chained(self, names: Sequence[str], x: Tensor) -> Tensor:
        for name in names:
            x = self._net.get_submodule(name)(x)
        return x

    def _check_logits(self, tokens: Int64[Tensor, "batch pos"], d_vocab: int, bound: float) -> None:
        """Raise `InvalidArgument` if the outputs are not logits that follow from the tokens up to each position."""
        changed, name = tokens.clone(), self._name
        changed[:, -1] = (changed[:, -1] + 1) % d_vocab
        whole, same, changed_last = (self._forward(ids) for ids in (tokens, tokens, changed))
        if not torch.isfinite(whole).all():
            raise NonFinite(f"{name} returned NaN or infinite logits. Check its weights.")
        if bool((whole >= 0).all()) and bool(((whole.sum(-1) - 1).abs() < _SLACK).all()):
            raise InvalidArgument(f"{name} returns probabilities, not logits: return their logarithms.")
        alone = self._forward(tokens[:1].clone())
        remedy = "mask them" if self._is_function else "declare forward=lambda net, ids: …, which passes the mask"
        for other, says in (
            (same, "returns other logits for the same tokens{}: switch dropout and other noise off (net.eval())."),
            (changed_last, f"sees later tokens: another last one changes earlier logits{{}}. Be causal: {remedy}."),
            (alone, "mixes the sequences of a batch: without the others, the first has other logits{}."),
        ):
            error = Claim("", (), other[:, :-1], whole[: len(other), :-1]).error()
            if not error <= bound:
                raise InvalidArgument(f"{name} {says.format(f', by {error:.1e} of their largest')}")


def _as_tensor(output: Any) -> Any:
    """Return an array of another library as a tensor of its own memory, and anything else as it is."""
    if isinstance(output, Tensor):
        return output
    with Contained():
        return torch.from_numpy(np.array(output, order="C"))
    with Contained():  # second, because torch crashes on negative strides, which NumPy may have
        return from_dlpack(output).clone()
    return output
