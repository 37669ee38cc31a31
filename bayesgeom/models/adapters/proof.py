"""Taps, through which activations pass, and the checks of a model's sites: which satisfy their equations.

There is one tap per site and layer: an identity module. A forward hook on it receives the activation in the site's
shape, and the hook's return value replaces the activation in the model. In the proof, every tap adds noise to its
activation. The inputs of later taps must then follow from the *outputs* of earlier ones:

    W_K norm(resid_pre) + b = k, and so for v     q, k → q_rot, k_rot keeps every norm, and turns nothing at position 0
    softmax(scale · q_rot·k_rot + mask) = pattern        pattern · v = z        W_O z + b = attn_out
    resid_pre + attn_out = resid_mid              resid_pre + attn_out + mlp_out = resid_post → the next resid_pre

So one pass verifies both that a site contains what its name says and that an edit there takes effect.

`broken_identities` checks the same equations on the activations of an unchanged pass, from `capture`. A site whose
identity fails is withheld with the equation and its error. A site without an identity that could be checked is
withheld, too. q and k are withheld together with q_rot and k_rot.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import final

import torch
from einops import einsum, repeat
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from bayesgeom.core.run import (
    ATTN_OUT,
    K_ROT,
    MLP_OUT,
    PATTERN,
    Q_ROT,
    RESID_MID,
    RESID_POST,
    RESID_PRE,
    TOKEN_INPUTS,
    TOKEN_KEYS,
    W_K,
    W_K_GRAM,
    W_O,
    W_V,
    K,
    ModelSpec,
    Q,
    Site,
    Trials,
    V,
    Z,
)
from bayesgeom.core.torch_state import Change, hooked, site_hook


@final
class Tap(nn.Module):
    """An identity module that holds hooks."""

    def forward(self, x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        return x

    @property
    def is_watched(self) -> bool:
        """Whether a hook is set."""
        return bool(self._forward_hooks)


@final
class Taps:
    """The taps of a model, by site and layer."""

    def __init__(self, sites: Iterable[Site], n_layers: int) -> None:
        self.n_layers = n_layers
        self._taps = {site: [Tap() for _ in range(n_layers)] for site in sites}

    def at(self, site: Site, layer: int) -> Tap:
        """Return the tap of a site in a layer."""
        return self._taps[site][layer]

    def sites(self) -> frozenset[Site]:
        """Return the sites that have taps."""
        return frozenset(self._taps)

    def is_watched(self, layer: int, *sites: Site) -> bool:
        """Return whether a hook is set on one of these sites in this layer."""
        return any(site in self._taps and self._taps[site][layer].is_watched for site in sites)

    def through(self, site: Site, layer: int, x: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
        """Return `x` after its tap, or `x` itself if there is no tap or no hook."""
        if not self.is_watched(layer, site):
            return x
        passed: Tensor = self._taps[site][layer](x)
        # An edit may return an expanded mean; modules that take views of their input need it contiguous.
        return passed if passed is x else passed.to(x.dtype).contiguous()


@final
@dataclass(frozen=True, kw_only=True)
class Passage:
    """Inputs (`arrived`) and outputs (`left`) of a tap in one pass."""

    arrived: list[Tensor] = field(default_factory=list)
    left: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def perturbed_pass(
    owner: nn.Module,
    forward: Callable[[], object],
    point: Callable[[Site, int], nn.Module],
    places: Iterable[tuple[Site, int]],
    *,
    amount: float,
) -> dict[tuple[Site, int], Passage]:
    """Run one pass in which every hook point adds seeded noise to its activation, and record inputs and outputs.

    If the inputs of later points satisfy the model's equations given the *outputs* of earlier ones, then the points are
    where their names say, and edits there take effect.

    Args:
        owner: The whole model, whose lock is held.
        forward: Runs the pass.
        point: Returns the module of a site and layer.
        places: The sites and layers.
        amount: Standard deviation of the noise, relative to that of the activation.
    """
    passages = {place: Passage() for place in places}
    generator = torch.Generator().manual_seed(0)

    def perturbing(passage: Passage) -> Change:
        def perturb(output: Tensor) -> Tensor:
            noise = torch.randn(output.shape, generator=generator).to(output)
            left = output + amount * output.float().std().to(output) * noise
            # Copies: a model may modify its activations in place (OLMo clips queries and keys).
            passage.arrived.append(output.clone())
            passage.left.append(left.clone())
            return left

        return perturb

    hooks = [site_hook(place, point(*place), perturbing(passage)) for place, passage in passages.items()]
    with hooked(owner, hooks, by="this model", times=None):  # the caller withholds sites that do not fire once
        forward()
    return passages


def per_query_head(x: Float[Tensor, "b kv p d"], n_heads: int) -> Float[Tensor, "b h p d"]:
    """Return grouped keys or values, repeated for the query heads that share them."""
    return x if x.shape[1] == n_heads else repeat(x, "b kv p d -> b (kv group) p d", group=n_heads // x.shape[1])


TOLERANCE = 1e-4  # relative to the largest entry, in float32
SUM = "resid_pre + attn_out + mlp_out = resid_post"
_RESIDUAL = (RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST)

_STANDS_WITH = (
    (Q, Q_ROT),
    (K, K_ROT),
    (TOKEN_KEYS, K),
    (W_K, K),
    (W_K_GRAM, K),
    (W_V, V),
    (W_O, Z),
)

Passages = Mapping[tuple[Site, int], Passage]
Norm = Callable[[Site, Tensor, int], Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class Functions:
    """The model's own functions between sites of a layer. None if the model has no such part.

    Attributes:
        written: Maps z to the attention output; None in a layer where it depends on more than z.
        projected: Maps the residual stream to k or v.
        normed: Maps q or k to the output of its norm.
        pattern: Maps rotated q and k to the pattern, including mask and bias.
        mid_given: Returns the input of the part that reads resid_mid.
        turned: Maps q or k to its rotation before a norm; None if no norm follows the rotation.
    """

    written: Callable[[Tensor, int], Tensor | None] | None
    projected: Callable[[Site, Tensor, int], Tensor] | None
    normed: Norm
    pattern: Callable[[Tensor, Tensor, int], Tensor] | None
    mid_given: Callable[[int], Tensor | None]
    turned: Callable[[Site, Tensor, int], Tensor | None] = lambda _site, _x, _layer: None


@final
@dataclass(frozen=True, kw_only=True)
class _Claim:
    """An equation in one layer, the sites that it verifies, and its two sides."""

    equation: str
    sites: tuple[Site, ...]
    left: Float[Tensor, "..."]
    right: Float[Tensor, "..."]

    def error(self) -> float:
        """Return the largest difference relative to the right side's largest entry."""
        left, right = self.left.double(), self.right.to(self.left.device).double()
        if left.shape != right.shape:
            return float("inf")
        return float((left - right).abs().max() / right.abs().max().clamp_min(1e-12))


@torch.no_grad()
def examined(
    passages: Passages, functions: Functions, spec: ModelSpec, n_pos: int
) -> tuple[dict[Site, str], dict[Site, float]]:
    """Check every equation in every layer.

    Returns:
        The reason for each site that failed, and the largest equation error of each site.
    """
    errors: dict[Site, float] = {}
    broken = dict(_misplaced(passages, spec, n_pos))
    stored = {place: passage for place, passage in passages.items() if place[0] not in broken}
    verified = {(site, layer) for site in (RESID_PRE, RESID_POST) for layer in range(spec.n_layers)}
    for layer in range(spec.n_layers):
        for claim in _claims(_Layer(stored, layer), functions, layer, spec.n_layers):
            error = claim.error()
            verified |= {(site, layer) for site in claim.sites}
            errors |= {site: max(error, errors.get(site, 0.0)) for site in claim.sites}
            if not error <= tolerance_of(spec.dtype):  # NaN is broken too
                reason = f"identity {claim.equation} fails by {error:.1e} in layer {layer}"
                broken = dict.fromkeys(claim.sites, reason) | broken
    for site, layer in stored.keys() - verified:
        broken.setdefault(site, f"no identity holds it, layer {layer}")
    for site, source in _STANDS_WITH:
        if source in broken:  # these sites are verified only through `source`
            broken.setdefault(site, broken[source])
    return broken, errors


def _misplaced(passages: Passages, spec: ModelSpec, n_pos: int) -> Iterator[tuple[Site, str]]:
    """Sites that do not occur exactly once in every layer with their expected shape."""
    for (site, layer), passage in passages.items():
        if len(passage.arrived) != 1:
            yield site, f"met {len(passage.arrived)} times in layer {layer}"
        elif (shape := tuple(passage.arrived[0].shape))[1:] != _widths(site, spec, n_pos):
            yield site, f"shape {shape} in layer {layer}, not {' '.join(site.axes)}"


def tolerance_of(dtype: str) -> float:
    """Return the tolerance of an equation for a dtype, relative to the largest entry."""
    return max(TOLERANCE, 8 * torch.finfo(getattr(torch, dtype)).eps)


def _widths(site: Site, spec: ModelSpec, n_pos: int) -> tuple[int, ...]:
    width = spec.d_of_value if site in (V, Z) else spec.d_head
    known = {"d_model": spec.d_model, "head": spec.n_heads, "kv_head": spec.n_kv_heads, "d_head": width}
    return tuple(known.get(axis, n_pos) for axis in site.axes[1:])


@final
class _Layer:
    """The passages of one layer and the next."""

    def __init__(self, passages: Passages, layer: int) -> None:
        self._passages, self._layer = passages, layer

    def has(self, *sites: Site) -> bool:
        return all((site, self._layer) in self._passages for site in sites)

    def arrived(self, site: Site, ahead: int = 0) -> Float[Tensor, "..."]:
        return self._passages[site, self._layer + ahead].arrived[0]

    def left(self, site: Site) -> Float[Tensor, "..."]:
        return self._passages[site, self._layer].left[0]


def _claims(at: _Layer, functions: Functions, layer: int, n_layers: int) -> Iterator[_Claim]:
    yield from _residual_claims(at, functions, layer, n_layers)
    for site, verified in ((K, (TOKEN_INPUTS, TOKEN_KEYS)), (V, (W_V,))):
        if at.has(RESID_PRE, site) and functions.projected is not None:
            yield _Claim(
                equation=f"W_{site.name.upper()} norm(resid_pre) + b = {site.name}",
                sites=verified,
                left=at.arrived(site),
                right=functions.projected(site, at.left(RESID_PRE), layer),
            )
    for plain, turned in ((Q, Q_ROT), (K, K_ROT)):
        if at.has(plain, turned):
            yield from _turned_claims(at.left(plain), at.arrived(turned), functions, plain, layer)
    if at.has(Q_ROT, K_ROT, PATTERN) and functions.pattern is not None:
        yield _Claim(
            equation="softmax(scale · q_rot·k_rot) = pattern",
            sites=(Q_ROT, K_ROT),
            left=at.arrived(PATTERN),
            right=functions.pattern(at.left(Q_ROT), at.left(K_ROT), layer),
        )
    if at.has(PATTERN, V, Z):
        pattern = at.left(PATTERN)
        v = per_query_head(at.left(V).transpose(1, 2), pattern.shape[1])
        z = einsum(pattern, v, "b h q k, b h k d -> b q h d")
        claim = _Claim(equation="pattern · v = z", sites=(PATTERN,), left=at.arrived(Z), right=z)
        yield claim
        unchanged = einsum(at.arrived(PATTERN), v, "b h q k, b h k d -> b q h d")
        twin = replace(claim, right=unchanged)  # v and z may be right even if an edited pattern has no effect
        yield replace(min(claim, twin, key=_Claim.error), sites=(V, Z))
    if at.has(Z, ATTN_OUT) and functions.written is not None:
        right = functions.written(at.left(Z), layer)
        if right is not None:
            left, sites = at.arrived(ATTN_OUT), (Z, ATTN_OUT)
            yield _Claim(equation="W_O z + b = attn_out", sites=sites, left=left, right=right)


def _residual_claims(at: _Layer, functions: Functions, layer: int, n_layers: int) -> Iterator[_Claim]:
    if at.has(*_RESIDUAL):
        attn_out, mlp_out = at.left(ATTN_OUT), at.left(MLP_OUT)
        # The input of a block may still be on the device of the previous block.
        summed = at.left(RESID_PRE).to(attn_out.device) + attn_out
        middle = at.left(RESID_MID) if at.has(RESID_MID) else summed
        yield _Claim(
            equation=SUM,
            sites=_RESIDUAL,
            left=at.arrived(RESID_POST),
            right=middle.to(mlp_out.device) + mlp_out,
        )
    if at.has(RESID_MID):
        given, mid = functions.mid_given(layer), at.left(RESID_MID)
        right = torch.full_like(mid, torch.nan) if given is None else given.reshape(mid.shape)
        yield _Claim(equation="the MLP reads resid_mid", sites=(RESID_MID,), left=mid, right=right)
    if layer + 1 < n_layers and at.has(RESID_PRE, RESID_POST):
        left, arrived = at.left(RESID_POST), at.arrived(RESID_PRE, ahead=1)
        # RWKV halves the stream every few layers: compare up to one factor.
        factor = (arrived.double().to(left.device) * left.double()).sum() / left.double().square().sum()
        sites = (RESID_PRE, RESID_POST)
        yield _Claim(
            equation=f"{RESID_POST.name} = next {RESID_PRE.name}", sites=sites, left=arrived, right=factor * left
        )


def _turned_claims(
    x: Float[Tensor, "batch pos head d"],
    arrived: Float[Tensor, "batch pos head d"],
    functions: Functions,
    plain: Site,
    layer: int,
) -> Iterator[_Claim]:
    """A norm and a rotation, in either order."""
    turned = functions.turned(plain, x, layer)
    if turned is None:
        yield from _rotation_claims(functions.normed(plain, x, layer), arrived, plain)
        return
    yield from _rotation_claims(x, turned, plain)
    equation, right = f"norm of the rotated {plain.name} = {plain.name}_rot", functions.normed(plain, turned, layer)
    yield _Claim(equation=equation, sites=(plain,), left=arrived, right=right)


def _rotation_claims(
    normed: Float[Tensor, "batch pos head d"], turned: Float[Tensor, "batch pos head d"], plain: Site
) -> Iterator[_Claim]:
    """A rotation may include one factor, equal at every position (OPT scales its queries, YaRN both)."""
    before, after = normed.double().norm(dim=-1), turned.double().norm(dim=-1)
    factor = after.norm() / before.norm().clamp_min(1e-12)
    name = f"{plain.name}_rot"
    yield _Claim(equation=f"|{plain.name}| = |{name}|", sites=(plain,), left=after, right=factor * before)
    yield _Claim(
        equation=f"{plain.name} = {name} at position 0",
        sites=(plain,),
        left=turned[:, 0].double(),
        right=factor * normed[:, 0].double(),
    )


N_SEQUENCES, N_POSITIONS = 2, 7

Captured = Mapping[Site, Shaped[Tensor, "layer *axes"]]
AttnOut = Callable[[Float[Tensor, "batch pos head d_head"], int], Float[Tensor, "batch pos d_model"]]


def sentinel_trials(d_vocab: int, n_ctx: int | None, device: str) -> Trials:
    """Return a few random tokens with every position scored, on which identities are checked."""
    n_pos = min(N_POSITIONS, n_ctx or N_POSITIONS)
    tokens = torch.randint(d_vocab, (N_SEQUENCES, n_pos), generator=torch.Generator().manual_seed(0)).to(device)
    certain = torch.ones(N_SEQUENCES, n_pos, 1, dtype=torch.float64, device=device)
    return Trials(
        tokens=tokens,
        scored=torch.ones_like(tokens, dtype=torch.bool),
        answers=tokens.new_zeros(1),
        predictive=certain,
        belief=certain,
        labels=torch.zeros_like(tokens),
        token_sets={},
        relations={},
    )


def capture(
    owner: nn.Module,
    forward: Callable[[], object],
    point: Callable[[Site, int], nn.Module],
    sites: Mapping[Site, object],
    n_layers: int,
) -> dict[Site, Shaped[Tensor, "layer *axes"]]:
    """Return the activations of every site in one forward pass, without sites that do not fire once in every layer."""
    caught: dict[Site, list[list[Tensor]]] = {site: [[] for _ in range(n_layers)] for site in sites}
    hooks = [
        site_hook((site, layer), point(site, layer), outputs.append)
        for site, layers in caught.items()
        for layer, outputs in enumerate(layers)
    ]
    with hooked(owner, hooks, by="this model", times=None), torch.no_grad():
        forward()
    once = {site: layers for site, layers in caught.items() if all(len(outputs) == 1 for outputs in layers)}
    return {site: torch.stack([outputs[0] for outputs in layers]) for site, layers in once.items()}


@torch.no_grad()
def broken_identities(
    stored: Captured,
    *,
    scale: float,
    bias: Float[Tensor, "*layer_and_batch head query_pos key_pos"] | None,
    attn_out: AttnOut,
) -> dict[Site, str]:
    """Return the sites that failed, each with the reason. Identities with absent sites are not checked."""
    broken: dict[Site, str] = {}
    verified: set[Site] = set()
    for identity in (*_attention_claims(stored, scale, bias), *_write_claims(stored, attn_out)):
        error = identity.error()
        verified |= {*identity.sites}
        if not error <= TOLERANCE:  # NaN is broken too
            for site in identity.sites:
                broken.setdefault(site, f"identity {identity.equation} fails by {error:.1e}")
    alone = (site for site in stored if site not in verified)
    return broken | dict.fromkeys(alone, "no identity could be checked")


def _attention_claims(
    stored: Captured, scale: float, bias: Float[Tensor, "*layer_and_batch head query_pos key_pos"] | None
) -> Iterator[_Claim]:
    if {Q_ROT, K_ROT, PATTERN} <= stored.keys():
        pattern = stored[PATTERN]
        k = _per_query_head(stored[K_ROT], pattern.shape[2])
        scores = scale * einsum(stored[Q_ROT], k, "l b q h d, l b k h d -> l b h q k")
        n_pos = scores.shape[-1]
        if bias is not None:
            scores = scores + bias[..., :n_pos, :n_pos]
        hidden = torch.ones(n_pos, n_pos, dtype=torch.bool, device=scores.device).triu(1)
        expected = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        sites = (Q_ROT, K_ROT, PATTERN, *(site for site in (Q, K) if site in stored))
        yield _Claim(equation="softmax(scale · q_rot·k_rot) = pattern", sites=sites, left=expected, right=pattern)
        for plain, rotated in ((Q, Q_ROT), (K, K_ROT)):
            if plain in stored:
                left, right = stored[rotated].norm(dim=-1), stored[plain].norm(dim=-1)
                equation = f"|{rotated.name}| = |{plain.name}|"
                yield _Claim(equation=equation, sites=(plain,), left=left, right=right)
    if {PATTERN, V, Z} <= stored.keys():
        pattern = stored[PATTERN]
        v = _per_query_head(stored[V], pattern.shape[2])
        z = einsum(pattern, v, "l b h q k, l b k h d -> l b q h d")
        yield _Claim(equation="pattern · v = z", sites=(V, Z), left=z, right=stored[Z])


def _write_claims(stored: Captured, attn_out: AttnOut) -> Iterator[_Claim]:
    """Identities of the updates to the residual stream."""
    n_layers = max(map(len, stored.values()), default=0)
    if {Z, ATTN_OUT} <= stored.keys():
        written = torch.stack([attn_out(stored[Z][layer], layer) for layer in range(n_layers)])
        yield _Claim(equation="W_O z + b = attn_out", sites=(Z, ATTN_OUT), left=written, right=stored[ATTN_OUT])
    if {RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST} <= stored.keys():
        total = stored[RESID_PRE] + stored[ATTN_OUT] + stored[MLP_OUT]
        yield _Claim(
            equation=SUM,
            sites=(RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST),
            left=total,
            right=stored[RESID_POST],
        )
    if {RESID_PRE, ATTN_OUT, RESID_MID} <= stored.keys():
        yield _Claim(
            equation="resid_pre + attn_out = resid_mid",
            sites=(RESID_MID,),  # the other two are checked at the end of the block
            left=stored[RESID_PRE] + stored[ATTN_OUT],
            right=stored[RESID_MID],
        )


def _per_query_head(x: Float[Tensor, "l b k kv d"], n_heads: int) -> Float[Tensor, "l b k h d"]:
    """Grouped keys or values, repeated for the query heads that share them."""
    return repeat(x, "l b k kv d -> l b k (kv group) d", group=n_heads // x.shape[3])
