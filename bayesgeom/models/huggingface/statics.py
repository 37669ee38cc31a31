"""Sites that are read from the weights, by asking the model's own parts: no weight is touched.

W_K is what the key projection makes of the unit vectors, less what it makes of zero. So it is right for any layout, for
quantised parts, and for weights that accelerate keeps elsewhere.
"""

from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom import sites as s
from bayesgeom.models.huggingface.anatomy import Anatomy
from bayesgeom.sites import K, Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@final
class Statics:
    """Token inputs, token keys and W_K of one model. `scale` multiplies bare embeddings before the first block."""

    def __init__(self, hf: "PreTrainedModel", anatomy: Anatomy, scale: float) -> None:
        self._hf, self._anatomy, self._scale = hf, anatomy, scale

    def sites(self) -> frozenset[Site]:
        """Those that the anatomy allows."""
        if K not in self._anatomy.projections:
            return frozenset()
        inputs = {s.TOKEN_INPUTS, s.TOKEN_KEYS} if self._anatomy.key_input is not None else set()
        return frozenset({s.W_K, *inputs})

    @torch.no_grad()
    def of(self, site: Site, tokens: Int64[Tensor, " token"]) -> Float[Tensor, "layer *axes"]:
        """A site for these token ids, all layers."""
        layers = range(len(self._anatomy.blocks))
        if site == s.W_K:
            return torch.stack([self._matrix(layer).cpu() for layer in layers]).to(tokens.device)
        x = embedded(self._hf, tokens[None]) * self._scale
        parts = [self.inputs(x, layer) if site == s.TOKEN_INPUTS else self.keys(x, layer) for layer in layers]
        return torch.stack([part[0].to(tokens.device) for part in parts]).float()

    def inputs(self, resid: Float[Tensor, "batch pos d_model"], layer: int) -> Float[Tensor, "batch pos d_model"]:
        """A residual stream, normed as it enters W_K."""
        path = self._anatomy.key_input
        return call(self._anatomy.part(layer, path), resid) if path else resid

    def keys(self, resid: Float[Tensor, "batch pos d_model"], layer: int) -> Float[Tensor, "batch pos kv_head d_head"]:
        """The keys of a residual stream, before rotation and norm."""
        return self._projected(self.inputs(resid, layer), layer)

    def _projected(self, x: Float[Tensor, "batch pos d"], layer: int) -> Float[Tensor, "batch pos kv_head d_head"]:
        projection = self._anatomy.projections[K]
        return projection.take(call(self._anatomy.part(layer, projection.path), x))

    def _matrix(self, layer: int) -> Float[Tensor, "kv_head d_head d_model"]:
        width = embedded(self._hf, torch.zeros(1, 1, dtype=torch.int64)).shape[-1]
        unit = torch.eye(width + 1, width)[None]  # the last row is zero
        keys = self._projected(unit.to(self._hf.dtype), layer)[0].float()
        return (keys[:-1] - keys[-1]).permute(1, 2, 0)


def embedded(hf: "PreTrainedModel", tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_embed"]:
    """Bare token embeddings."""
    return call(hf.get_input_embeddings(), tokens)


def call(part: nn.Module, x: Tensor) -> Float[Tensor, "..."]:
    """What a part makes of `x`, on the part's own device."""
    device = next((p.device for p in part.parameters() if p.device.type != "meta"), x.device)
    output: Tensor = part(x.to(device))
    return output
