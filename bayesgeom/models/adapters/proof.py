"""Taps, through which activations pass, and the checks of a model's sites: which satisfy their equations.

There is one tap per site and layer: an identity module. A forward hook on it receives the activation in the site's
shape, and the hook's return value replaces the activation in the model. In the proof, every tap adds noise to its
activation. The inputs of later taps must then follow from the *outputs* of earlier ones:

    W_K norm(resid_pre) + b = k, and so for v     q, k → q_rot, k_rot keeps every norm, and turns nothing at position 0
    softmax(scale · q_rot·k_rot + mask) = pattern        pattern · v = z        W_O z + b = attn_out
    resid_pre + attn_out = resid_mid              resid_pre + attn_out + mlp_out = resid_post → the next resid_pre

So one pass verifies both that a site contains what its name says and that an edit there takes effect.
A site whose equation fails is withheld with the equation and its error. A site without an equation that could be
checked is withheld, too. q and k are withheld together with q_rot and k_rot.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from einops import einsum, repeat
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from bayesgeom.core import (
    ALL_SITES,
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
    W_V,
    InvalidArgument,
    K,
    ModelSpec,
    Q,
    Site,
    Trials,
    V,
    Z,
)
from bayesgeom.core.run import site_of
from bayesgeom.core.torch_state import Change, Hook, hooked, site_hook


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


NOISE = 0.3  # standard deviation, relative to that of the activation


@torch.no_grad()
def perturbed_pass(
    owner: nn.Module,
    forward: Callable[[], object],
    point: Callable[[Site, int], nn.Module],
    places: Iterable[tuple[Site, int]],
) -> dict[tuple[Site, int], Passage]:
    """Run one pass in which every hook point adds seeded noise to its activation, and record inputs and outputs.

    If the inputs of later points satisfy the model's equations given the *outputs* of earlier ones, then the points are
    where their names say, and edits there take effect.

    Args:
        owner: The whole model, whose lock is held.
        forward: Runs the pass.
        point: Returns the module of a site and layer.
        places: The sites and layers.
    """
    passages = {place: Passage() for place in places}
    generator = torch.Generator().manual_seed(0)

    def perturbing(passage: Passage) -> Change:
        def perturb(output: Tensor) -> Tensor:
            noise = torch.randn(output.shape, generator=generator).to(output)
            left = output + NOISE * output.float().std().to(output) * noise
            # Copies: a model may modify its activations in place (OLMo clips queries and keys).
            passage.arrived.append(output.clone())
            passage.left.append(left.clone())
            return left

        return perturb

    hooks = [site_hook(place, point(*place), perturbing(passage)) for place, passage in passages.items()]
    with hooked(owner, hooks, by="this model", times=None):  # the caller withholds sites that do not fire once
        forward()
    return passages


def first_tensor(values: Iterable[Any]) -> Tensor | None:
    """Return the first tensor among these values; None if there is none."""
    return next((value for value in values if isinstance(value, Tensor)), None)


def output_hook(part: nn.Module, change: Callable[[Tensor], Tensor]) -> Hook:
    """Return a hook that changes the first tensor that a module returns, alone or in a tuple or list."""

    def call(_part: nn.Module, _given: object, output: Any) -> Any:
        changed = change(first := _first(output))
        if first is output:
            return changed
        items = [changed if item is first else item for item in output]
        return type(output)(items) if type(output) in (tuple, list) else type(output)(*items)  # a named tuple

    return Hook(part=part, call=call)


def input_hook(part: nn.Module, change: Callable[[Tensor], Tensor], **options: Any) -> Hook:
    """Return a hook that changes the first tensor that a module is given; by name, `hidden_states` comes first."""

    def call(_part: nn.Module, given: tuple[Any, ...], known: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        at = next((at for at, value in enumerate(given) if isinstance(value, Tensor)), None)
        if at is not None:
            return (*given[:at], change(given[at]), *given[at + 1 :]), known
        names = [name for name, value in known.items() if isinstance(value, Tensor)]
        name = "hidden_states" if "hidden_states" in names else next(iter(names), "")
        return given, {**known, name: change(_first(known.get(name)))}

    return Hook(part=part, call=call, kind="pre", with_kwargs=True, **options)


def _first(output: Any) -> Tensor:
    first = first_tensor(output if isinstance(output, tuple | list) else (output,))
    if first is None:
        raise InvalidArgument(f"a declared part takes or returns a {type(output).__name__}: declare one with a tensor.")
    return first


def first_output(output: Any) -> Any:
    """Return what a part returned, or the first of several outputs."""
    return output[0] if isinstance(output, tuple | list) and output else output


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shaped[Tensor, "..."] | None:
    """Return the input of a part: its first argument, or `hidden_states`."""
    given = args[0] if args else kwargs.get("hidden_states")
    return given if isinstance(given, Tensor) else None


def per_query_head(x: Float[Tensor, "b kv p d"], n_heads: int) -> Float[Tensor, "b h p d"]:
    """Return grouped keys or values, repeated for the query heads that share them."""
    return x if x.shape[1] == n_heads else repeat(x, "b kv p d -> b (kv group) p d", group=n_heads // x.shape[1])


PerHead = Float[Tensor, "batch head query_pos key_pos"]
TOLERANCE = 1e-4  # relative to the largest entry, in float32
_EPS = 8  # rounding errors of the dtype, where these are more
SUM = "resid_pre + attn_out + mlp_out = resid_post"
_RESIDUAL = (RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST)

_STANDS_WITH = [(site, site_of(site.proven_by)) for site in ALL_SITES if site.proven_by]

Passages = Mapping[tuple[Site, int], Passage]
Side = Mapping[Site, Tensor]  # what arrived at the hook points of a layer, or what left them


@final
@dataclass(frozen=True, kw_only=True)
class Functions:
    """The model's own functions between sites of a layer. None if the model has no such part, or it is not known.

    Attributes:
        written: Maps z to the attention output; None in a layer where it depends on more than z.
        projected: Maps the residual stream to k or v.
        normed: Maps q or k to the output of its norm.
        pattern: Maps rotated q and k to the pattern, including mask and bias.
        mid_given: Returns the input of the part that reads resid_mid.
        turned: Maps q or k to its rotation before a norm; None if no norm follows the rotation.
    """

    written: Callable[[Tensor, int], Tensor | None] | None = None
    projected: Callable[[Site, Tensor, int], Tensor] | None = None
    normed: Callable[[Site, Tensor, int], Tensor] = lambda _site, x, _layer: x
    pattern: Callable[[Tensor, Tensor, int], Tensor] | None = None
    mid_given: Callable[[int], Tensor | None] = lambda _layer: None
    turned: Callable[[Site, Tensor, int], Tensor | None] = lambda _site, _x, _layer: None


@final
@dataclass(frozen=True)
class Claim:
    """An equation in one layer, the sites that it verifies, and its two sides; `of`: what its error is relative to."""

    equation: str
    sites: tuple[Site, ...]
    left: Float[Tensor, "..."]
    right: Float[Tensor, "..."]
    tolerance: float = TOLERANCE
    of: Float[Tensor, "..."] | None = None

    def error(self) -> float:
        """Return `relative_error`."""
        return relative_error(self.left, self.right, self.of)


def relative_error(
    left: Float[Tensor, "..."], right: Float[Tensor, "..."], of: Float[Tensor, "..."] | None = None
) -> float:
    """Return the largest difference of two activations, divided by the largest entry of the right one, or of `of`.

    `of` is a branch of the sum `right`: where it is small, the divisor is the entry at which rounding is tolerable.
    """
    if left.shape != right.shape:
        return math.inf
    difference = float((left.double() - right.to(left.device).double()).abs().max())
    largest = float(right.abs().max())
    if of is not None:
        dtype = str(left.dtype).removeprefix("torch.")
        largest = max(float(of.abs().max()), largest * _EPS * torch.finfo(left.dtype).eps / tolerance_of(dtype))
    return difference / max(largest, 1e-12)


def factor_between(a: Shaped[Tensor, "..."], b: Shaped[Tensor, "..."]) -> float:
    """Return c with the least error of a = c · b."""
    x, y = a.double(), b.to(a.device).double()
    return float((x * y).sum() / y.square().sum().clamp_min(1e-30))


Equations = Callable[[Side, Side, int], Iterable[Claim]]  # of what arrived at a layer's sites, and what left them


@torch.no_grad()
def examined(
    passages: Passages,
    functions: Functions,
    spec: ModelSpec,
    n_pos: int,
    *,
    equations: Equations = lambda _arrived, _left, _layer: (),
) -> tuple[dict[Site, str], dict[Site, float]]:
    """Check every equation in every layer.

    Args:
        passages: Inputs and outputs of every hook point in one pass.
        functions: The model's functions between the sites that most architectures share.
        spec: Sizes of the model.
        n_pos: Length of the sequences.
        equations: Further equations of this architecture: of the activations that arrived at a layer's hook points and
            those that left them.

    Returns:
        The reason for each site that failed, and the largest equation error of each site.
    """
    errors: dict[Site, float] = {}
    broken, rounding = dict(_misplaced(passages, spec, n_pos)), _EPS * torch.finfo(getattr(torch, spec.dtype)).eps
    stored = {place: passage for place, passage in passages.items() if place[0] not in broken}
    verified = {(site, layer) for site in (RESID_PRE, RESID_POST) for layer in range(spec.n_layers)}
    for layer in range(spec.n_layers):
        for claim in _claims(stored, functions, equations, layer):
            error = claim.error()
            verified |= {(site, layer) for site in claim.sites}
            errors |= {site: max(error, errors.get(site, 0.0)) for site in claim.sites}
            if not error <= max(claim.tolerance, rounding):  # NaN is broken too
                reason = f"identity {claim.equation} fails by {error:.1e} in layer {layer}"
                broken = dict.fromkeys(claim.sites, reason) | broken
    for site, layer in (place for place in stored if place not in verified):
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
        elif (shape := tuple(passage.arrived[0].shape))[1:] != tuple(
            spec.sizes_at(site).get(axis, n_pos) for axis in site.axes[1:]
        ):
            yield site, f"shape {shape} in layer {layer}, not {' '.join(site.axes)}"


def tolerance_of(dtype: str) -> float:
    """Return the tolerance of an equation for a dtype, relative to the largest entry."""
    return max(TOLERANCE, _EPS * torch.finfo(getattr(torch, dtype)).eps)


def _claims(stored: Passages, functions: Functions, equations: Equations, layer: int) -> Iterator[Claim]:
    """The equations of one layer whose sites there are."""
    arrived = {site: passage.arrived[0] for (site, at), passage in stored.items() if at == layer}
    left = {site: stored[site, layer].left[0] for site in arrived}
    has = arrived.keys().__ge__
    if has({*_RESIDUAL}):
        # The input of a block may still be on the device of the previous block.
        middle = left[RESID_PRE].to(left[ATTN_OUT].device) + left[ATTN_OUT]
        if has({RESID_MID}):
            sites = (*_RESIDUAL, RESID_MID)
            yield Claim("resid_pre + attn_out = resid_mid", sites, arrived[RESID_MID], middle, of=left[ATTN_OUT])
            middle = left[RESID_MID]
        total = middle.to(left[MLP_OUT].device) + left[MLP_OUT]
        least = min((left[ATTN_OUT], left[MLP_OUT]), key=lambda branch: float(branch.abs().max()))
        yield Claim(SUM, _RESIDUAL, arrived[RESID_POST], total, of=least)
    if has({RESID_MID}):
        given, mid = functions.mid_given(layer), left[RESID_MID]
        right = torch.full_like(mid, torch.nan) if given is None else given.reshape(mid.shape)
        yield Claim("the MLP reads resid_mid", (RESID_MID,), mid, right)
    if {RESID_PRE, RESID_POST} <= arrived.keys() and (RESID_PRE, layer + 1) in stored:
        before, after = left[RESID_POST], stored[RESID_PRE, layer + 1].arrived[0]
        # RWKV halves the stream every few layers: compare up to one factor.
        yield Claim(
            "resid_post = next resid_pre", (RESID_PRE, RESID_POST), after, factor_between(after, before) * before
        )
    yield from attention_claims(arrived, left, functions, layer)
    yield from equations(arrived, left, layer)


def attention_claims(arrived: Side, left: Side, functions: Functions, layer: int) -> Iterator[Claim]:
    """Yield the equations of one layer's heads whose sites there are."""
    has = arrived.keys().__ge__
    for site, verified in ((K, (TOKEN_INPUTS, TOKEN_KEYS)), (V, (W_V,))):
        if has({RESID_PRE, site}) and functions.projected is not None:
            equation = f"W_{site.name.upper()} norm(resid_pre) + b = {site.name}"
            yield Claim(equation, verified, arrived[site], functions.projected(site, left[RESID_PRE], layer))
    for plain, turned in ((Q, Q_ROT), (K, K_ROT)):
        if has({plain, turned}):
            rotated = functions.turned(plain, left[plain], layer)
            if rotated is None:
                yield from rotation_claims(functions.normed(plain, left[plain], layer), arrived[turned], plain)
                continue
            yield from rotation_claims(left[plain], rotated, plain)
            right = functions.normed(plain, rotated, layer)
            yield Claim(f"norm of the rotated {plain.name} = {turned.name}", (plain,), arrived[turned], right)
    if has({Q_ROT, K_ROT, PATTERN}) and functions.pattern is not None:
        expected = functions.pattern(left[Q_ROT], left[K_ROT], layer)
        yield Claim("softmax(scale · q_rot·k_rot) = pattern", (Q_ROT, K_ROT), arrived[PATTERN], expected)
    if has({PATTERN, V, Z}):
        v = per_query_head(left[V].transpose(1, 2), left[PATTERN].shape[1])
        z, unchanged = (einsum(side[PATTERN], v, "b h q k, b h k d -> b q h d") for side in (left, arrived))
        claim = Claim("pattern · v = z", (PATTERN,), arrived[Z], z)
        yield claim
        twin = replace(claim, right=unchanged)  # v and z may be right even if an edited pattern has no effect
        yield replace(min(claim, twin, key=Claim.error), sites=(V, Z))
    if has({Z, ATTN_OUT}) and functions.written is not None and (out := functions.written(left[Z], layer)) is not None:
        yield Claim("W_O z + b = attn_out", (Z, ATTN_OUT), arrived[ATTN_OUT], out)


def rotation_claims(
    normed: Float[Tensor, "batch pos head d"], turned: Float[Tensor, "batch pos head d"], plain: Site
) -> Iterator[Claim]:
    """Yield the equations of a rotation, which may include a factor equal at every position: OPT's queries, YaRN."""
    before, after = normed.double().norm(dim=-1), turned.double().norm(dim=-1)
    factor = after.norm() / before.norm().clamp_min(1e-12)
    name = f"{plain.name}_rot"
    yield Claim(f"|{plain.name}| = |{name}|", (plain,), after, factor * before)
    at_zero = factor * normed[:, 0].double()
    yield Claim(f"{plain.name} = {name} at position 0", (plain,), turned[:, 0].double(), at_zero)


N_SEQUENCES, N_POSITIONS = 2, 7


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
    )
