"""Identities between sites, which are checked when a model is attached.

    softmax(scale · q_rot·k_rot + bias, over k ≤ q) = pattern    pattern · v = z
    |q_rot| = |q|, |k_rot| = |k|                                 W_O z + b = attn_out
    resid_pre + attn_out = resid_mid                             resid_pre + attn_out + mlp_out = resid_post

A site whose identity fails is withheld with the equation and its error. A site without an identity that could be
checked is withheld, too. q and k are withheld together with q_rot and k_rot.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
    K,
    Q,
    Site,
    Trials,
    V,
    Z,
)
from bayesgeom.core.torch_state import hooked, site_hook

TOLERANCE = 1e-4  # relative to the largest entry; float32 rounding is a hundred times smaller
N_SEQUENCES, N_POSITIONS = 2, 7

Captured = Mapping[Site, Shaped[Tensor, "layer *axes"]]
AttnOut = Callable[[Float[Tensor, "batch pos head d_head"], int], Float[Tensor, "batch pos d_model"]]


@final
@dataclass(frozen=True, kw_only=True)
class _Identity:
    """An equation, the sites that it verifies, and its two sides."""

    equation: str
    sites: tuple[Site, ...]
    left: Float[Tensor, "..."]
    right: Float[Tensor, "..."]

    def error(self) -> float:
        """Return the largest difference relative to the right side's largest entry."""
        return float((self.left - self.right).abs().max() / self.right.abs().max().clamp_min(1e-12))


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
    for identity in (*_attention(stored, scale, bias), *_writes(stored, attn_out)):
        error = identity.error()
        verified |= {*identity.sites}
        if not error <= TOLERANCE:  # NaN is broken too
            for site in identity.sites:
                broken.setdefault(site, f"identity {identity.equation} fails by {error:.1e}")
    alone = (site for site in stored if site not in verified)
    return broken | dict.fromkeys(alone, "no identity that verifies it could be checked")


def _attention(
    stored: Captured, scale: float, bias: Float[Tensor, "*layer_and_batch head query_pos key_pos"] | None
) -> Iterator[_Identity]:
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
        yield _Identity(equation="softmax(scale · q_rot·k_rot) = pattern", sites=sites, left=expected, right=pattern)
        for plain, rotated in ((Q, Q_ROT), (K, K_ROT)):
            if plain in stored:
                left, right = stored[rotated].norm(dim=-1), stored[plain].norm(dim=-1)
                equation = f"|{rotated.name}| = |{plain.name}|"
                yield _Identity(equation=equation, sites=(plain,), left=left, right=right)
    if {PATTERN, V, Z} <= stored.keys():
        pattern = stored[PATTERN]
        v = _per_query_head(stored[V], pattern.shape[2])
        z = einsum(pattern, v, "l b h q k, l b k h d -> l b q h d")
        yield _Identity(equation="pattern · v = z", sites=(V, Z), left=z, right=stored[Z])


def _writes(stored: Captured, attn_out: AttnOut) -> Iterator[_Identity]:
    """Identities of the updates to the residual stream."""
    n_layers = max(map(len, stored.values()), default=0)
    if {Z, ATTN_OUT} <= stored.keys():
        written = torch.stack([attn_out(stored[Z][layer], layer) for layer in range(n_layers)])
        yield _Identity(equation="W_O z + b = attn_out", sites=(Z, ATTN_OUT), left=written, right=stored[ATTN_OUT])
    if {RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST} <= stored.keys():
        total = stored[RESID_PRE] + stored[ATTN_OUT] + stored[MLP_OUT]
        yield _Identity(
            equation="resid_pre + attn_out + mlp_out = resid_post",
            sites=(RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST),
            left=total,
            right=stored[RESID_POST],
        )
    if {RESID_PRE, ATTN_OUT, RESID_MID} <= stored.keys():
        yield _Identity(
            equation="resid_pre + attn_out = resid_mid",
            sites=(RESID_MID,),  # the other two are checked at the end of the block
            left=stored[RESID_PRE] + stored[ATTN_OUT],
            right=stored[RESID_MID],
        )


def _per_query_head(x: Float[Tensor, "l b k kv d"], n_heads: int) -> Float[Tensor, "l b k h d"]:
    """Grouped keys or values, repeated for the query heads that share them."""
    return repeat(x, "l b k kv d -> l b k (kv group) d", group=n_heads // x.shape[3])
