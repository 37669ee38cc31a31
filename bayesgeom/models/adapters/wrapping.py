"""`wrap`: any causal `nn.Module`, measured through hooks on the parts that its owner names.

The module is not changed. Sites pass the same kind of proof as those of other models: in one pass noise is added at
every site, and the inputs of later sites must follow from the outputs of earlier ones. A site that fails, or that no
equation reaches, is withheld with the reason and what to declare.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from types import FunctionType, MethodType
from typing import Any, TypedDict, Unpack, cast, final, get_type_hints

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

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
    check_argument,
    checked,
    unknown_name,
)
from bayesgeom.core.errors import quoted, with_plain_integers
from bayesgeom.core.plugins import Contained
from bayesgeom.core.run import untrained_hash
from bayesgeom.core.torch_state import PROCESS_STATE, Hook, evaluating, holding_lock, hooked, structure_of
from bayesgeom.models.adapters.proof import (
    SUM,
    Claim,
    Passage,
    PerHead,
    Taps,
    per_query_head,
    perturbed_pass,
    sentinel_trials,
    tolerance_of,
)
from bayesgeom.models.base import HeadOutput, Model, Reattachable, Replayer, Withheld, hooked_sites, is_out_of_memory
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.replay.hooked import PlainLoop, PrefixReplay
from bayesgeom.models.unembedding import matrix_of
from bayesgeom.tasks.base import torch_seed

Where = str | Callable[[Any], Any]  # a name within the owner, or a function of it
_HEADS = (Q, K, Q_ROT, K_ROT, V, Z, PATTERN)
_SLACK = 1e-3  # of a sum of probabilities, in half precision
_NEXT, _OUT, _PLAIN = "resid_post = next resid_pre", "out(z) = attn_out", "softmax(q·k / √d_head) · v = z"
_DOWN = "down(mlp_post) = mlp_out"
_LAST_OF = "the last projection of the"
_HINTS = {
    _NEXT: ": something changes the stream between blocks",
    SUM: ": declare as attn and mlp what the block adds to its stream, and norms=… if it normalizes the sums",
    _OUT: f": out=… must be {_LAST_OF} heads before attn",
    _DOWN: f": down=… must be {_LAST_OF} MLP before mlp",
    _PLAIN: ": n_heads=… is wrong, queries or keys are rotated, normed or swapped, or the mask is not causal",
}
_PART = "declare {}=…, the part of a block whose output is added to the stream"
_TO_DECLARE: Mapping[Site, str] = {
    ATTN_OUT: _PART.format("attn"),
    MLP_OUT: _PART.format("mlp"),
    MLP_POST: f"declare down=…, {_LAST_OF} MLP",
    **dict.fromkeys(_HEADS, "declare n_heads, out=… and qkv=…, or q=…, k=… and v=…"),
}
_WITH: Mapping[Site, str] = {  # what else an equation of a declared site needs
    ATTN_OUT: "mlp=…",
    MLP_OUT: "attn=…",
    MLP_POST: "mlp=…",
    Z: "attn=…, or the projections to q, k and v",
    **dict.fromkeys((Q, K, V), f"out=…, {_LAST_OF} heads"),
}
_NOT_OFFERED = "no declaration of `wrap` gives it: write a subclass of Model (docs/extending.md, section A model)"
_OF_WEIGHTS = "`wrap` reads no weights: name a subspace that is fitted to activations, such as covariance:belief"
_AS_FORWARD = "Declare forward=lambda net, ids: …, which returns them"
_AS_FUNCTION = "Return them as a torch tensor"


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parts of a module. A block is one module, or a pair whose outputs are the stream before and after it.

    The other parts have one entry per block, or none: `qkv` one fused projection or three, `norms` two.
    """

    blocks: tuple[tuple[nn.Module, nn.Module], ...]
    attn: tuple[nn.Module, ...] = ()
    mlp: tuple[nn.Module, ...] = ()
    qkv: tuple[tuple[nn.Module, ...], ...] = ()
    out: tuple[nn.Module, ...] = ()
    down: tuple[nn.Module, ...] = ()
    norms: tuple[tuple[nn.Module, ...], ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that these parts could give."""
        if not self.blocks:
            return ()
        heads = (*(Q, K, V) * bool(self.qkv), *(Z,) * bool(self.out), *(PATTERN,) * bool(self.qkv and self.out))
        in_mlp = (*(MLP_OUT,) * bool(self.mlp), *(MLP_POST,) * bool(self.down))
        return (RESID_PRE, RESID_POST, *(ATTN_OUT,) * bool(self.attn), *in_mlp, *heads)

    def within(self, net: nn.Module, other: nn.Module) -> "Layout":
        """Return the parts of the same names in another module of the same architecture."""
        names = {part: name for name, part in net.named_modules()}

        def moved(own: Any) -> Any:
            return tuple(map(moved, own)) if isinstance(own, tuple) else other.get_submodule(names[own])

        return Layout(**{each.name: moved(getattr(self, each.name)) for each in fields(self)})


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
        forward: A function of `net` and the ids that returns the logits at all positions, where `net(ids)` does not.
        n_ctx: Longest sequence in tokens. Default: any length.
        rebuild: Returns a new module of the same architecture, for untrained baselines. Default: a copy on which
            `reset_parameters` is called.
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
    forward: Callable[[Any, Int64[Tensor, "batch pos"]], Any]
    n_ctx: int
    rebuild: Callable[[], nn.Module]
    tokenizer: Tokenizer
    name: str


@checked("net", "blocks")
def wrap(
    net: nn.Module,
    *,
    blocks: Where | Sequence[nn.Module],
    attn: Where | None = None,
    mlp: Where | None = None,
    n_heads: int = 0,
    **options: Unpack[Options],
) -> "WrappedModel":
    """Return any causal module as a `Model`, whose verified sites every probe and ablation can use.

    Parts are named within a block, "attn" or "attn.c_proj", or found by a function of it. The result's `withheld`
    states which sites are missing, and what to declare to get them.

    Args:
        net: Maps token ids (batch pos) to logits (batch pos d_vocab); a tuple or `.logits` is fine.
        blocks: The list of blocks: its name in `net`, or a function of `net`. Where no module is a whole block, a pair
            of modules stands for it, whose outputs are the residual stream before and after the block.
        attn: The part of a block whose output is added to the stream by attention: after a norm of its own, that norm.
        mlp: The same of the MLP.
        n_heads: Number of attention heads; 0 if no part of a head is declared.
        **options: What `Options` lists: projections of heads, norms after the sums, how to compute logits, and more.

    Returns:
        The model. It shares the weights of `net`, which is not changed.

    Raises:
        InvalidArgument: A part does not exist, heads do not divide the width, the module cannot be run on token ids,
            its output is no logits, it sees later tokens, or `attn` and `mlp` are swapped.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Embedding(10, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 10))
        >>> def forward(net, ids):
        ...     return net[2](net[1](net[0](ids))[0])
        >>> model = wrap(net, blocks=lambda net: [net[1]], forward=forward, name="gru")
        >>> sorted(site.name for site in model.sites)
        ['resid_post', 'resid_pre']
    """
    if not isinstance(net, nn.Module):
        advice = "pass an instance of it" if isinstance(net, type) else "diagnose takes functions and Models"
        raise InvalidArgument(f"wrap needs a torch module, got a {type(net).__name__}: {advice}.")
    if any(parameter.is_meta for parameter in net.parameters()):
        raise InvalidArgument(f"{type(net).__name__} is on device meta, without numbers: load its weights first.")
    for unknown in options.keys() - Options.__annotations__.keys():
        raise unknown_name("option of wrap", unknown, [*Options.__annotations__, "blocks", "attn", "mlp", "n_heads"])
    given = {name: value for name, value in options.items() if value is not None}
    hints = get_type_hints(Options)
    for name, value in given.items():
        check_argument(name, value, hints[name])
    chosen = cast(Options, with_plain_integers(given))
    for name, least, count in (("n_kv_heads", 1, chosen.get("n_kv_heads")), ("n_ctx", 2, chosen.get("n_ctx"))):
        if count is not None and count < least:
            raise InvalidArgument(f"{name} must be an integer of at least {least}, got {count}.")
    return WrappedModel(net, _layout(_blocks(net, blocks), attn, mlp, n_heads, chosen), n_heads, chosen)


def from_callable(function: Callable[[Int64[Tensor, "batch pos"]], Any], tokenizer: Tokenizer | None = None) -> Model:
    """Return the `Model` of a function of token ids that returns logits: it has predictions and no sites.

    Raises:
        InvalidArgument: It cannot be called on token ids, its output is no logits, or it sees later tokens.
    """
    is_named = isinstance(function, FunctionType | MethodType)
    name = function.__qualname__.rpartition("<locals>.")[2] if is_named else type(function).__name__
    options: Options = {"name": name} if tokenizer is None else {"name": name, "tokenizer": tokenizer}
    return WrappedModel(_FunctionModule(function), Layout(blocks=()), 0, options)


@final
class _FunctionModule(nn.Module):
    """A function as a module without weights."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Any:
        return self.function(tokens)

    def reset_parameters(self) -> None:
        """Raise `NoCopy`: what the function computes with is unknown."""
        raise NoCopy("a function of tokens has no untrained baselines: pass the module itself to bayesgeom.wrap.")


def _layout(
    blocks: tuple[tuple[nn.Module, nn.Module], ...],
    attn: Where | None,
    mlp: Where | None,
    n_heads: int,
    options: Options,
) -> Layout:
    """Return the declared parts of every block."""
    three = {name: where for name in ("q", "k", "v") if (where := options.get(name)) is not None}
    projections = three if "qkv" not in options else {**three, "qkv": options["qkv"]}
    if projections and set(projections) not in ({"qkv"}, {"q", "k", "v"}):
        raise InvalidArgument(f"got {', '.join(projections)}: declare either qkv=…, or all of q=…, k=… and v=….")
    if n_heads < 0 or any(
        count < bool(projections or "out" in options) for count in (n_heads, options.get("n_kv_heads", 1))
    ):
        raise InvalidArgument("heads need their number: declare n_heads=…, and n_kv_heads=… if it differs.")

    def each(what: str, where: Any) -> tuple[nn.Module, ...]:
        return () if where is None else tuple(_part(block, where, what) for block in blocks)

    return Layout(
        blocks=blocks,
        attn=each("attn", attn),
        mlp=each("mlp", mlp),
        qkv=tuple(zip(*(each(what, where) for what, where in projections.items()), strict=True)),
        out=each("out", options.get("out")),
        down=each("down", options.get("down")),
        norms=tuple(zip(*(each("norms", where) for where in options.get("norms", ())), strict=True)),
    )


def _blocks(net: nn.Module, where: Where | Sequence[nn.Module]) -> tuple[tuple[nn.Module, nn.Module], ...]:
    """Return every block as a pair of modules."""
    blocks = _found(net, where, "blocks") if isinstance(where, str) or callable(where) else where
    listed = list(blocks) if isinstance(blocks, nn.ModuleList | nn.Sequential | list | tuple) else [blocks]
    pairs = [tuple(pair) if isinstance(pair, tuple | list) else (pair, pair) for pair in listed]
    if not pairs or any(len(pair) != 2 or not all(isinstance(part, nn.Module) for part in pair) for pair in pairs):
        name = f"blocks={quoted(where)}" if isinstance(where, str) else "blocks=…"
        raise InvalidArgument(
            f"{name} of {type(net).__name__} must be a list of modules, or of pairs of modules; got "
            f"{', '.join(type(entry).__name__ for entry in listed) or 'none'}."
        )
    return tuple((first, last) for first, last in pairs)


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
            known = ", ".join(path for path, _ in owner.named_modules() if path) or "none"
            raise InvalidArgument(
                f"{what}={quoted(where)}: {type(owner).__name__} has no part of this name. Its parts: {known}."
            ) from error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidArgument(f"the function {what}=… failed on a {type(owner).__name__}: {reason[0]}") from error


@final
class WrappedModel(Reattachable):
    """The `Model` that `wrap` returns."""

    def __init__(self, net: nn.Module, layout: Layout, n_heads: int, options: Options, *, digest: str = "") -> None:
        self.module, self.task, self.structure = net, None, structure_of(net)
        self.tokenizer = options.get("tokenizer")
        self._net, self._layout, self._options = net, layout, options
        self._heads, self._name = (n_heads, options.get("n_kv_heads", n_heads)), options.get("name", type(net).__name__)
        self._taps = Taps(layout.sites, len(layout.blocks))
        self._is_position_first = False
        self._projected: dict[tuple[Site, int], Tensor] = {}  # of the pass that is running
        with evaluating(net), torch.no_grad():
            self.spec = self._spec(digest)
            self.withheld = Withheld(self._examined())

    def digest(self) -> str:
        """Return the hash of the weights as they are now; "" if there are none, as of a function."""
        weights = self._net.state_dict()
        return weights_hash(weights) if weights else ""

    def attached_again(self, digest: str) -> "WrappedModel":
        return WrappedModel(self._net, self._layout, self._heads[0], self._options, digest=digest)

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset(site for site in ALL_SITES if site not in self.withheld)

    def point(self, site: Site, layer: int) -> nn.Module:
        return self._taps.at({Q_ROT: Q, K_ROT: K}.get(site, site), layer)

    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        raise MissingSite(f"{self.spec.name} offers no {site.name}: {_NOT_OFFERED}.")

    def _head_output(self, layer: int) -> HeadOutput | None:
        if not self._layout.out:
            return None
        part, width = self._layout.out[layer], self._heads[0] * (self.spec.d_value or self.spec.d_head)
        like = next(part.parameters()).new_zeros(1, width)
        rows = matrix_of(part.forward, torch.eye(width, dtype=torch.float64, device=like.device), like)
        return HeadOutput(matrix=rows.unflatten(0, (self._heads[0], -1)))

    @holding_lock()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        with evaluating(self._net), self._open():
            return trials.at_scored(self._forward(trials.tokens))

    def untrained_copy(self, seed: int) -> "WrappedModel":
        with PROCESS_STATE, torch.random.fork_rng():
            torch.manual_seed(torch_seed(seed))
            if (net := self._initialized()) is None:
                net = _reset(deepcopy(self._net), self.spec.name)
        return self._of_weights(net, seed)

    def permuted_copy(self, seed: int) -> "WrappedModel | None":
        with PROCESS_STATE, torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(torch_seed(seed))
            if self._initialized() is not None or all(weight.ndim < 2 for weight in self._net.parameters()):
                return None
            net = deepcopy(self._net)
            matrices = (weight for weight in net.parameters() if weight.ndim > 1)
            for matrix in matrices:
                matrix.copy_(matrix.flatten()[torch.randperm(matrix.numel())].view_as(matrix))
        return self._of_weights(net, seed)

    def _of_weights(self, net: nn.Module, seed: int) -> "WrappedModel":
        """Return the model of a module like this one, with weights drawn from a seed."""
        options: Options = {**self._options, "name": f"{self.spec.name} at initialization {seed}"}
        layout = self._layout.within(self._net, net)
        return WrappedModel(net, layout, self._heads[0], options, digest=untrained_hash(seed))

    def _initialized(self) -> nn.Module | None:
        """Return a module with new weights, drawn as its owner does; None if it is unknown how.

        Raises:
            NoCopy: `rebuild` was declared and failed.
        """
        if (rebuild := self._options.get("rebuild")) is not None:
            return self._rebuilt(rebuild)
        with Contained():  # the constructor may take other arguments, or draw the same weights each time
            match self._net:
                case object(config=config):
                    build = partial(self._rebuilt, lambda: type(self._net)(deepcopy(config)))
                    digest = weights_hash(build().state_dict())  # one module at a time in memory
                    if weights_hash((built := build()).state_dict()) != digest:
                        return built
        with Contained():
            match net := deepcopy(self._net):
                case object(_init_weights=initialize) if callable(initialize):
                    return _reset(net, self.spec.name).apply(initialize)
        return None

    def _rebuilt(self, rebuild: Callable[[], nn.Module]) -> nn.Module:
        """Return a module that a function builds; raise `NoCopy` if it has other parts or other weights."""
        built: Any = None
        with Contained() as building:
            built = rebuild()
        name = f"{self.spec.name} has no untrained baselines: rebuild=…"
        if building.fault:
            raise NoCopy(f"{name} failed: {building.fault.rstrip('.')}.") from building.error
        if not isinstance(built, nn.Module):
            raise NoCopy(f"{name} returned a {type(built).__name__}; it must return a new module.")
        shapes = ({key: value.shape for key, value in net.state_dict().items()} for net in (self._net, built))
        shape, other = shapes
        if differing := sorted(key for key in shape.keys() | other.keys() if shape.get(key) != other.get(key)):
            raise NoCopy(f"{name} returned a module with other weights: {', '.join(differing[:3])} differ.")
        return built.to(self.spec.device).eval()

    @holding_lock()
    def replayer(self) -> Replayer:
        blocks = tuple(first for first, last in self._layout.blocks if first is last)
        if len(blocks) == self.spec.n_layers and not self._is_position_first:
            replay = PrefixReplay(self, blocks)
            if replay.inexact_from() is None:
                return replay
        return PlainLoop(self)  # the stream between blocks is not all that a later block reads

    def _forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        forward = self._options.get("forward")
        with self._named_faults(tokens):
            output = self._net(tokens) if forward is None else forward(self._net, tokens)
        match output:
            case {"logits": logits} | object(logits=logits):
                pass
            case [first, *_]:
                logits = next((item for item in output if isinstance(item, Tensor) and item.ndim == 3), first)
            case _:
                logits = output
        is_float = isinstance(logits, Tensor) and logits.is_floating_point()
        if not is_float or logits.ndim != 3 or logits.shape[:2] != tokens.shape:
            is_tensor = isinstance(logits, Tensor)
            got = f"{logits.dtype} of shape {tuple(logits.shape)}" if is_tensor else f"a {type(logits).__name__}"
            raise InvalidArgument(
                f"{self._name} returned {got} for token ids of shape {tuple(tokens.shape)}; logits of shape (batch, "
                f"position, vocabulary) are needed. {self._advice}."
            )
        return cast(Tensor, logits).to(tokens.device)  # a function may compute elsewhere

    @property
    def _advice(self) -> str:
        """What to do about wrong logits."""
        return _AS_FORWARD if self._layout.blocks else _AS_FUNCTION

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
        is_long = isinstance(error, IndexError | RuntimeError) and self._layout.blocks and "n_ctx" not in self._options
        raise InvalidArgument(
            f"{self._name} failed on token ids of shape {tuple(tokens.shape)}: {running.fault.rstrip('.')}."
            + " Declare n_ctx=… if they are too many." * bool(is_long)
        ) from error

    def _spec(self, digest: str) -> ModelSpec:
        """Run the module on a few tokens, and return its sizes."""
        layout, (n_heads, n_kv_heads) = self._layout, self._heads
        weight, widths = next(self._net.parameters(), torch.zeros(())), dict[str, list[int]]()
        n, n_pos = 1, 2

        def seen(name: str, is_output: bool) -> Callable[..., None]:
            def see(_part: nn.Module, given: tuple[Any, ...], *rest: Any) -> None:
                x = _first(rest[-1]) if is_output else _first((*given, *rest[0].values()))
                if name == "stream":
                    self._is_position_first = tuple(x.shape[:2]) == (n_pos, n)
                widths.setdefault(name, []).append(x.shape[-1])

            return see

        parts = [("stream", first, first is not last) for first, last in layout.blocks]
        parts += [("stream", last, True) for _, last in layout.blocks]
        parts += [("units", part, False) for part in layout.down]
        parts += [("heads", part, False) for part in layout.out] + [
            ("q", projections[0], True) for projections in layout.qkv
        ]
        hooks = [
            Hook(part=part, call=seen(name, is_output), kind="forward" if is_output else "pre", with_kwargs=True)
            for name, part, is_output in parts
        ]
        with hooked(self._net, hooks, by=self._name):
            d_vocab = self._forward(torch.zeros(n, n_pos, dtype=torch.int64, device=weight.device)).shape[-1]
        stream = widths.setdefault("stream", [0])
        if len(of := set(stream)) > 1:
            raise InvalidArgument(f"blocks of {self._name} read and write widths {sorted(of)}: one is needed.")
        whole = (widths.get("heads") or widths.get("q") or stream)[0]
        if layout.qkv and len(layout.qkv[0]) == 1 and not layout.out:
            whole = whole * n_heads // (n_heads + 2 * n_kv_heads)
        if n_heads and (n_heads % n_kv_heads or whole % n_heads):
            raise InvalidArgument(
                f"{n_heads} heads with {n_kv_heads} key-value heads do not fit a width of {whole}: check n_heads=…."
            )
        wide = [part.out_features for top in layout.mlp for part in top.modules() if isinstance(part, nn.Linear)]
        d_head = whole // n_heads if n_heads else 0
        return ModelSpec(
            name=self._name,
            architecture=type(self._net).__name__,
            n_layers=len(layout.blocks),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            d_model=stream[0],
            d_head=d_head,
            d_mlp=(widths.get("units") or [max(wide, default=4 * stream[0])])[0],
            d_vocab=d_vocab,
            n_ctx=self._options.get("n_ctx"),
            score_scale=d_head**-0.5 if d_head else 1.0,
            n_parameters=sum(parameter.numel() for parameter in self._net.parameters()),
            dtype=str(weight.dtype).removeprefix("torch."),
            device=str(weight.device),
            weights_hash=digest or self.digest(),
        )

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Lead activations through the taps during the block."""
        hooks = [hook for layer in range(self.spec.n_layers) for hook in self._hooks(layer)]
        with hooked(self._net, hooks, by=self.spec.name, times=None):  # calls are counted at the taps
            try:
                yield
            finally:
                self._projected.clear()

    def _hooks(self, layer: int) -> Iterator[Hook]:
        layout, (first, last) = self._layout, self._layout.blocks[layer]
        entered = _before if first is last else _after
        yield entered(first, partial(self._through, RESID_PRE, layer))
        yield _after(last, partial(self._through, RESID_POST, layer))
        for site, parts in ((ATTN_OUT, layout.attn), (MLP_OUT, layout.mlp)):
            if parts:
                yield _after(parts[layer], partial(self._through, site, layer))
        if layout.down:
            yield _before(layout.down[layer], partial(self._through, MLP_POST, layer))
        for number, part in enumerate(layout.qkv[layer] if layout.qkv else ()):
            yield _after(
                part, partial(self._split, (Q, K, V) if len(layout.qkv[layer]) == 1 else ((Q, K, V)[number],), layer)
            )
        if layout.out:
            yield _before(layout.out[layer], partial(self._mixed, layer))

    def _through(self, site: Site, layer: int, x: Tensor) -> Tensor:
        if not self._is_position_first:
            return self._taps.through(site, layer, x)
        return self._taps.through(site, layer, x.transpose(0, 1)).transpose(0, 1)

    def _split(self, sites: Sequence[Site], layer: int, x: Tensor) -> Tensor:
        """Lead the heads of a projection, or of all three, through their taps."""
        d_head, (n_heads, n_kv_heads) = self.spec.d_head, self._heads
        sizes = [d_head * (n_heads if site == Q else n_kv_heads) for site in sites]
        if x.shape[-1] != sum(sizes):
            named = ", ".join(site.name for site in sites)
            if self._layout.out and x.shape[-1] * d_head * n_heads == sum(sizes) * self.spec.d_model:
                raise InvalidArgument(
                    f"out=… reads a width of {d_head * n_heads}, and the projection to {named}, of width "
                    f"{x.shape[-1]}, fits one of {self.spec.d_model}: out=… must be the last projection of the heads."
                )
            raise InvalidArgument(
                f"the projection to {named} has width {x.shape[-1]}, not {sum(sizes)}: "
                f"check n_heads=… and n_kv_heads=…."
            )
        changed = list[Tensor]()
        for site, piece in zip(sites, x.split(sizes, dim=-1), strict=True):
            heads = self._through(site, layer, rearrange(piece, "b p (h d) -> b p h d", d=d_head))
            self._projected[site, layer] = heads.transpose(0, 1) if self._is_position_first else heads
            changed.append(rearrange(heads, "b p h d -> b p (h d)"))
        return changed[0] if len(changed) == 1 else torch.cat(changed, dim=-1)

    def _mixed(self, layer: int, z: Tensor) -> Tensor:
        """Lead the input of a heads' output projection through its tap; compute it where the pattern is hooked."""
        heads = rearrange(z, "b p (h d) -> b p h d", d=self.spec.d_head)
        if self._taps.is_watched(layer, PATTERN):
            q, k, v = (self._projected[site, layer] for site in (Q, K, V))
            pattern = self._taps.through(PATTERN, layer, self._pattern(q, k))
            mixed = self._weighted(pattern, v).to(z.dtype)
            heads = mixed.transpose(0, 1) if self._is_position_first else mixed
        return rearrange(self._through(Z, layer, heads), "b p h d -> b p (h d)")

    def _pattern(
        self, q: Float[Tensor, "batch pos head d_head"], k: Float[Tensor, "batch pos kv_head d_head"]
    ) -> PerHead:
        """Return the pattern of plain causal attention."""
        keys = per_query_head(k.transpose(1, 2), self.spec.n_heads)
        scores = self.spec.score_scale * einsum(q, keys, "b q h d, b h k d -> b h q k")
        n_pos = scores.shape[-1]
        later = torch.ones(n_pos, n_pos, dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(later, -torch.inf).softmax(-1)

    def _weighted(
        self, pattern: PerHead, v: Float[Tensor, "batch pos kv_head d_head"]
    ) -> Float[Tensor, "batch pos head d_head"]:
        """Return the values that a pattern weights."""
        values = per_query_head(v.transpose(1, 2), self.spec.n_heads)
        return einsum(pattern, values, "b h q k, b h k d -> b q h d")

    def _examined(self) -> dict[Site, str]:
        """Return why each site is withheld."""
        trials = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device)
        self._check_logits(trials.tokens)
        if not self._layout.blocks:
            return dict.fromkeys(ALL_SITES, "a function has no parts: pass its module to bayesgeom.wrap")
        sites = [site for site in self._layout.sites if site != PATTERN]  # that of this module is never formed
        places = list(product(sites, range(self.spec.n_layers)))

        def forward() -> None:
            with self._open():
                self._forward(trials.tokens)

        passages = perturbed_pass(self._net, forward, self.point, places)
        reasons = {site: _TO_DECLARE.get(site, _OF_WEIGHTS if site.is_static else _NOT_OFFERED) for site in ALL_SITES}
        missed = {site for (site, _), passage in passages.items() if len(passage.arrived) != 1}
        reasons |= dict.fromkeys(missed, "its part does not run once a pass")
        # Of a single block nothing else is known of its stream than that it ran.
        errors: dict[Site, dict[str, float]] = {RESID_PRE: {}, RESID_POST: {}}
        for layer in range(self.spec.n_layers):
            with self._named_faults(trials.tokens):  # norms or out=… may be parts that take other inputs
                claims = list(self._claims(passages, set(sites) - missed, layer))
            for claim, site in ((equation, site) for equation in claims for site in equation.sites):
                worst = errors.setdefault(site, {})
                worst[claim.equation] = max(claim.error(), worst.get(claim.equation, 0.0))
        for site in set(sites) - missed:
            reasons[site] = self._reason(errors.get(site), site)
        for site, of in ((Q_ROT, Q), (K_ROT, K), (PATTERN, Q)):
            if of in sites and Z in sites:
                reasons[site] = reasons[of]
        if not (reasons[ATTN_OUT] or reasons[MLP_OUT]):
            self._check_swapped(trials.tokens)
        return {site: reason for site, reason in reasons.items() if reason}

    def _check_swapped(self, tokens: Int64[Tensor, "batch pos"]) -> None:
        """Raise `InvalidArgument` if the MLP of a layer reads other positions, and its attention its own alone.

        In a second pass the stream before each block is negated, except at the last position, and what its two parts
        add is that of the first pass. A part that does not mix positions then writes the same at the last position.
        """
        seen = {place: list[Tensor]() for place in product((RESID_PRE, ATTN_OUT, MLP_OUT), range(self.spec.n_layers))}

        def replaced(place: tuple[Site, int], output: Tensor) -> Tensor:
            seen[place].append(output.clone())  # blocks may modify it in place
            kept = seen[place][0].clone()
            if place[0] == RESID_PRE and len(seen[place]) > 1:
                kept[:, :-1].neg_()
            return kept

        for _ in range(2):
            with self._open(), hooked_sites(self, {place: partial(replaced, place) for place in seen}):
                self._forward(tokens)

        def is_changed(site: Site, layer: int) -> Bool[Tensor, " pos"]:
            before, after = seen[site, layer]
            return (after - before).abs().amax(dim=(0, 2)) > tolerance_of(self.spec.dtype) * before.abs().max()

        for layer in range(self.spec.n_layers):
            attn, mlp = is_changed(ATTN_OUT, layer), is_changed(MLP_OUT, layer)
            if mlp[-1] and attn[:-1].any() and not attn[-1]:
                raise InvalidArgument(
                    f"attn=… and mlp=… of {self._name} look swapped: in layer {layer}, mlp=… reads other positions, "
                    f"and attn=… does not. Exchange them."
                )

    def _reason(self, errors: Mapping[str, float] | None, site: Site) -> str:
        """Return why a site is withheld, given the errors of its equations; "" if they hold."""
        if errors is None:
            return f"no identity reaches it: declare {_WITH.get(site, 'the other parts of the block')}, too"
        failed = [claim for claim, error in errors.items() if not error <= tolerance_of(self.spec.dtype)]
        return f"identity {failed[0]} fails by {errors[failed[0]]:.1e}{_HINTS[failed[0]]}" if failed else ""

    def _claims(self, passages: Mapping[tuple[Site, int], Passage], known: set[Site], layer: int) -> Iterator[Claim]:
        """Yield the equations of a layer."""
        layout = self._layout
        left = {site: passages[site, layer].left[0] for site in known}
        arrived = {site: passages[site, layer].arrived[0] for site in known}
        if {RESID_PRE, RESID_POST, ATTN_OUT, MLP_OUT} <= known:
            first, second = layout.norms[layer] if layout.norms else (nn.Identity(), nn.Identity())
            right = second(first(left[RESID_PRE] + left[ATTN_OUT]) + left[MLP_OUT])
            yield Claim(SUM, (RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST), arrived[RESID_POST], right)
        if {RESID_PRE, RESID_POST} <= known and layer + 1 < self.spec.n_layers:
            following = passages[RESID_PRE, layer + 1].arrived[0]
            yield Claim(_NEXT, (RESID_PRE, RESID_POST), following, left[RESID_POST])
        if {Z, ATTN_OUT} <= known:
            written = layout.out[layer](rearrange(left[Z], "b p h d -> b p (h d)"))
            yield Claim(_OUT, (Z,), arrived[ATTN_OUT], written)
        if {MLP_POST, MLP_OUT} <= known:
            yield Claim(_DOWN, (MLP_POST,), arrived[MLP_OUT], layout.down[layer](left[MLP_POST]))
        if {Q, K, V, Z} <= known:
            q, k, v = (left[site] for site in (Q, K, V))
            right = self._weighted(self._pattern(q, k), v)
            yield Claim(_PLAIN, (Q, K, V) if ATTN_OUT in known else (Q, K, V, Z), arrived[Z], right)

    def _check_logits(self, tokens: Int64[Tensor, "batch pos"]) -> None:
        """Raise `InvalidArgument` if the outputs are not logits that follow from the tokens up to each position."""
        changed, given = tokens.clone(), tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % self.spec.d_vocab
        one, same, other = (self._forward(ids)[:, :-1] for ids in (given, tokens.clone(), changed))
        if not torch.isfinite(one).all():
            raise NonFinite(f"{self.spec.name} returned NaN or infinite logits. Check its weights.")
        if not torch.equal(given, tokens):
            raise InvalidArgument(f"{self.spec.name} changes its token ids in place: let it work on ids.clone().")
        if bool((one >= 0).all()) and bool(((one.sum(-1) - 1).abs() < _SLACK).all()):
            raise InvalidArgument(f"{self.spec.name} returns probabilities, not logits: return their logarithms.")
        bound = tolerance_of(self.spec.dtype)
        if not (error := Claim("", (), same, one).error()) <= bound:
            raise InvalidArgument(
                f"{self.spec.name} returns other logits for the same tokens, by {error:.1e} of their largest: switch "
                f"dropout and other noise off (net.eval())."
            )
        has_parts = bool(self._layout.blocks)
        if not (error := Claim("", (), other, one).error()) <= bound:
            raise InvalidArgument(
                f"{self.spec.name} sees later tokens: another last token changes earlier logits by {error:.1e} of "
                f"their largest. A causal model is needed: "
                + ("declare forward=lambda net, ids: …, which passes the mask." if has_parts else "mask them.")
            )


def _first(output: Any) -> Tensor:
    """Return the first tensor of a module's input or output."""
    if isinstance(output, Tensor):
        return output
    for entry in output if isinstance(output, tuple | list) else ():
        if isinstance(entry, Tensor):
            return entry
    raise InvalidArgument(f"a declared part takes or returns a {type(output).__name__}: declare one with a tensor.")


def _after(part: nn.Module, change: Callable[[Tensor], Tensor]) -> Hook:
    """Return a hook that changes the first tensor that a module returns, alone or in a tuple or list."""

    def call(_part: nn.Module, _given: object, output: Any) -> Any:
        changed = change(first := _first(output))
        if first is output:
            return changed
        items = [changed if item is first else item for item in output]
        return type(output)(items) if type(output) in (tuple, list) else type(output)(*items)  # a named tuple

    return Hook(part=part, call=call)


def _before(part: nn.Module, change: Callable[[Tensor], Tensor]) -> Hook:
    """Return a hook that changes the first tensor that a module is given."""

    def call(_part: nn.Module, given: tuple[Any, ...], known: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if given:
            return (change(_first(given[0])), *given[1:]), known
        name = next((name for name, value in known.items() if isinstance(value, Tensor)), "")
        return given, {**known, name: change(_first(known.get(name)))}

    return Hook(part=part, call=call, kind="pre", with_kwargs=True)


def _reset(net: nn.Module, name: str) -> nn.Module:
    """Return the module with new weights.

    Raises:
        NoCopy: Some of its weights belong to a part without `reset_parameters`.
    """
    for path, part in net.named_modules():
        match part:
            case object(reset_parameters=reset) | object(_reset_parameters=reset):
                reset()
            case _ if list(part.parameters(recurse=False)):
                raise NoCopy(
                    f"{name} has no untrained baselines: {path or 'the module'} ({type(part).__name__}) has weights "
                    f"and no reset_parameters. Declare rebuild=lambda: …, which returns a new module of this "
                    f"architecture."
                )
    return net.eval()
