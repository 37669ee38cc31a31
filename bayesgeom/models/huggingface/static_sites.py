"""Static sites, computed with the model's own modules instead of reading parameters.

A matrix is a module's output for the unit vectors minus its output for zero. A norm's weight is half the difference of
its outputs for x and −x. This is correct for any layout, for quantized modules, for norms that multiply by one plus
their parameter, and for weights that accelerate keeps elsewhere.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core import sites as s
from bayesgeom.core.sites import K, Site, V
from bayesgeom.models.huggingface.anatomy import Anatomy, Parts, is_close

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LARGE = 64.0  # root mean square at which the ε of a norm is negligible


@final
class StaticSites:
    """Embeddings, normed embeddings, and matrices. `scale` multiplies embeddings before the first block."""

    def __init__(self, hf: "PreTrainedModel", anatomy: Anatomy, d_model: int, scale: float) -> None:
        self._hf, self._anatomy, self._d_model, self._scale = hf, anatomy, d_model, scale

    def absent(self) -> dict[Site, str]:
        """Return the static sites that some layer lacks, each with the reason in the first such layer."""
        reasons = dict[Site, str]()
        for layer, parts in enumerate(self._anatomy.parts):
            for site, reason in _absent_in(parts).items():
                reasons.setdefault(site, f"{reason}, in layer {layer}")
        return reasons

    def layers(self) -> dict[Site, tuple[int, ...]]:
        """Return the layers that have each static site, without sites that no layer has."""
        absent = [_absent_in(parts) for parts in self._anatomy.parts]
        static = (site for site in s.ALL_SITES if site.is_static)
        found = {site: tuple(i for i, own in enumerate(absent) if site not in own) for site in static}
        return {site: layers for site, layers in found.items() if layers}

    @torch.no_grad()
    def of(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        """Return a site of one layer, for these token ids."""
        anatomy, d_model, parts = self._anatomy, self._d_model, self._anatomy.parts[layer]
        match site:
            case s.W_K | s.W_V:
                kind = K if site == s.W_K else V
                found = self._matrix(lambda x: self._projected(kind, x, layer), d_model).permute(1, 2, 0)
            case s.W_O:
                assert parts.output is not None, "it is absent otherwise"
                part, heads = anatomy.part(layer, parts.output), anatomy.sizes
                wide = self._matrix(lambda x: call(part, x), heads.n_heads * (heads.d_value or heads.d_head))
                found = (parts.write_scale * wide).unflatten(0, (heads.n_heads, -1))
            case s.NORM_WEIGHT:
                found = self._norm_weight(layer)
            case _:
                found = self._of_tokens(site, tokens, layer)[0]
        return found.to(tokens.device).float()

    def inputs(self, resid: Float[Tensor, "batch pos d_model"], layer: int) -> Float[Tensor, "batch pos d_model"]:
        """Return the residual stream after the norm, as the input of W_K."""
        path = self._anatomy.parts[layer].key_input
        return call(self._anatomy.part(layer, path), resid) if path else resid

    def projected(
        self, site: Site, resid: Float[Tensor, "batch pos d_model"], layer: int
    ) -> Float[Tensor, "batch pos kv_head d_head"]:
        """Return the keys or values of a residual stream, before rotation and norm."""
        return self._projected(site, self.inputs(resid, layer), layer)

    @torch.no_grad()
    def misnormed(self, layers: Iterable[int]) -> int | None:
        """Return the first of these layers where the input of W_K is not a norm times a weight plus a bias."""
        x = 3 * torch.randn(1, 5, self._d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(
            self._hf.dtype
        )
        centered = x - x.mean(dim=-1, keepdim=True)
        normed = [part * part.float().square().mean(dim=-1, keepdim=True).rsqrt() for part in (x, centered)]
        for layer in layers:
            odd = (self.inputs(x, layer) - self.inputs(-x, layer)).float() / 2
            weight = self._norm_weight(layer).to(odd.device)
            expected = [weight * part.to(odd) for part in (normed if self._anatomy.parts[layer].key_input else [x])]
            if not any(is_close(odd.to(x.dtype), part) for part in expected):  # to the model's own rounding
                return layer
        return None

    def _of_tokens(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "batch token *rest"]:
        embeddings = embedded(self._hf, tokens[None]) * self._scale
        if site == s.TOKEN_EMBEDDINGS:
            return embeddings
        return self.inputs(embeddings, layer) if site == s.TOKEN_INPUTS else self.projected(K, embeddings, layer)

    def _projected(
        self, site: Site, x: Float[Tensor, "batch pos d"], layer: int
    ) -> Float[Tensor, "batch pos kv_head d_head"]:
        projection = self._anatomy.parts[layer].projections[site]
        return projection.take(call(self._anatomy.part(layer, projection.path), x))

    def _norm_weight(self, layer: int) -> Float[Tensor, " d_model"]:
        """Half the difference of the norm's outputs for x and −x, divided by x / rms, for an x of mean zero."""
        if not self._anatomy.parts[layer].key_input:
            return torch.ones(self._d_model)
        x = torch.ones(self._d_model, dtype=torch.float64)
        x[self._d_model // 2 :] = -1
        x = x - x.mean()
        x = (_LARGE * x / x.square().mean().sqrt()).to(self._hf.dtype)
        odd = (self.inputs(x[None, None], layer) - self.inputs(-x[None, None], layer)).float()[0, 0] / 2
        return odd * _LARGE / x.to(odd)

    def _matrix(self, part: Callable[[Tensor], Tensor], width: int) -> Float[Tensor, "width *out"]:
        unit = torch.eye(width + 1, width)[None]  # the last row is zero
        rows = part(unit.to(self._hf.dtype))[0].float()
        return rows[:-1] - rows[-1]


def _absent_in(parts: Parts) -> dict[Site, str]:
    """The static sites that one block does not provide, each with the reason."""
    reasons = dict[Site, str]()
    if parts.key_input is None or K not in parts.projections:
        read = (s.TOKEN_INPUTS, s.TOKEN_KEYS, s.NORM_WEIGHT, s.W_V)
        reasons |= dict.fromkeys(read, "its key projection or the input of that projection was not found")
    if K not in parts.projections:
        reasons |= dict.fromkeys((s.W_K, s.W_K_GRAM), "its key projection was not found")
    if V not in parts.projections:
        reasons.setdefault(s.W_V, "its value projection was not found")
    if parts.output is None or parts.writers is None:
        reasons[s.W_O] = "the part that adds its heads' outputs to the residual stream was not found"
    elif parts.is_gated:
        reasons[s.W_O] = "a gate or a norm stands between a head's output z and W_O: a head's update is not linear in z"
    elif not parts.is_plain_write:
        reasons[s.W_O] = "a norm stands between W_O and the residual stream: a head's update is not linear in z"
    return reasons


def embedded(hf: "PreTrainedModel", tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_embed"]:
    """Return the token embeddings alone."""
    return call(hf.get_input_embeddings(), tokens)


def call(part: nn.Module, x: Tensor) -> Float[Tensor, "..."]:
    """Return the output of a part for `x`, on the part's device."""
    device = next((p.device for p in part.parameters() if p.device.type != "meta"), x.device)
    output: Tensor = part(x.to(device))
    return output
