"""Frames: the span of tokens in the residual stream, as embedded, as a head reads them, or as it writes them.

They are computed from the model's static sites, one layer at a time, for any architecture that provides them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from einops import einsum
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core import NORM_WEIGHT, TOKEN_EMBEDDINGS, TOKEN_INPUTS, W_K, W_O, W_V, InvalidArgument, Site, Trials
from bayesgeom.models.base import Model
from bayesgeom.models.replay.carried import CARRIED
from bayesgeom.subspaces.base import Fit, Sample, Setting, Subspace, span

FrameKind = Literal["embedding", "keys", "ov"]
EMBEDDING_SITES = (TOKEN_EMBEDDINGS,)
PULLBACK_SITES = (TOKEN_INPUTS, NORM_WEIGHT, W_K)
WRITE_SITES = (TOKEN_INPUTS, W_V, W_O)


@torch.no_grad()
def token_embeddings(model: Model, tokens: Int64[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
    """Return embeddings scaled to unit mean square, as by a norm without weights; their span does not change."""
    (vectors,) = _precise(model, EMBEDDING_SITES, tokens, 0)
    return vectors / vectors.square().mean(dim=-1, keepdim=True).sqrt()


def _precise(model: Model, sites: Sequence[Site], tokens: Int64[Tensor, " token"], layer: int) -> list[Tensor]:
    """Return static sites in at least float32: rounding of products in half precision would add directions."""
    matrices = [model.static(site, tokens, layer) for site in sites]
    return [matrix.to(torch.promote_types(matrix.dtype, torch.float32)) for matrix in matrices]


@final
@dataclass(frozen=True)
class TokenFrame(Fit):
    """The span of the hypothesis tokens: their embeddings, or as a head reads or writes them."""

    kind: FrameKind
    head: int | None
    layer: int | None

    @property
    def label(self) -> str:
        if self.kind == "embedding":
            return "frame (embedding)"
        return f"frame ({self.kind} of {'' if self.layer is None else f'L{self.layer}'}H{self.head})"

    def check(self, setting: Setting) -> None:
        spec, place = setting.model.spec, setting.place
        if not place.is_residual and (self.kind != "embedding" or place.site != CARRIED):
            raise InvalidArgument(
                f"a frame ({self.kind}) lies in the residual stream; {place.site.name!r} has other coordinates."
            )
        sites = {"keys": PULLBACK_SITES, "ov": WRITE_SITES}.get(self.kind, EMBEDDING_SITES)
        setting.model.require(sites, by=self.label)
        if (self.kind == "embedding") != (self.head is None):
            raise InvalidArgument(
                f"frame kind {self.kind!r}: keys and ov require head=…, embedding requires no head; got {self.head}."
            )
        if self.head is not None and not 0 <= self.head < spec.n_heads:
            raise InvalidArgument(f"head {self.head}: {spec.name} has heads 0 … {spec.n_heads - 1} in a layer.")
        if self.layer is not None and not 0 <= self.layer < spec.n_layers:
            raise InvalidArgument(f"layer {self.layer}: {spec.name} has layers 0 … {spec.n_layers - 1}.")
        self._tokens(setting.trials)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        tokens = self._tokens(sample.run.trials)
        vectors = {layer: self._vectors(sample.model, tokens, layer) for layer in layers}
        if sample.place.site == CARRIED:  # (h, c): only h has the coordinates of the residual stream
            vectors = {layer: torch.nn.functional.pad(rows, (0, rows.shape[1])) for layer, rows in vectors.items()}
        return {layer: span(self.label, rows.T) for layer, rows in vectors.items()}

    @torch.no_grad()
    def _vectors(self, model: Model, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "token d_model"]:
        spec = model.spec
        if self.head is None:
            return token_embeddings(model, tokens)
        at, group = layer if self.layer is None else self.layer, self.head // (spec.n_heads // spec.n_kv_heads)
        if self.kind == "keys":
            inputs, norm, keys = _precise(model, PULLBACK_SITES, tokens, at)
            return norm * einsum(inputs, keys[group], keys[group], "t m, d m, d n -> t n")
        inputs, values, output = _precise(model, WRITE_SITES, tokens, at)
        return einsum(inputs, values[group], output[self.head], "t m, d m, d n -> t n")

    def _tokens(self, trials: Trials) -> Int64[Tensor, " token"]:
        for name in ("hypotheses", "inputs"):
            if name in trials.token_sets:
                return trials.token_sets[name]
        named = ", ".join(trials.token_sets) or "(none)"
        raise InvalidArgument(f"a frame needs a token set hypotheses or inputs; this task has: {named}.")
