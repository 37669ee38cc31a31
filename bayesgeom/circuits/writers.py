"""The parts of a model that write into its residual stream, and the inputs through which they read it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, final

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from bayesgeom.core import ATTN_OUT, MLP_OUT, RESID_POST, RESID_PRE, Site, Z
from bayesgeom.core.torch_state import SiteLayer
from bayesgeom.models.base import Model
from bayesgeom.models.unembedding import FrozenNorm

Kind = Literal["embedding", "positions", "head", "attention", "mlp", "block", "biases"]
Input = Literal["q", "k", "v", "mlp", "output"]
HEAD_INPUTS: tuple[Input, ...] = ("q", "k", "v")
Stored = Mapping[SiteLayer, Tensor]


@final
@dataclass(frozen=True, kw_only=True, order=True)
class Writer:
    """A part that adds to the residual stream. `layer` and `head` are −1 for a part that has none."""

    layer: int = -1
    kind: Kind
    head: int = -1

    @property
    def label(self) -> str:
        """The label in tables and plots: L2H3, L2 mlp, embedding."""
        if self.kind == "head":
            return f"L{self.layer}H{self.head}"
        return self.kind if self.layer < 0 else f"L{self.layer} {self.kind}"


@final
@dataclass(frozen=True, kw_only=True)
class Receiver:
    """An input that reads the residual stream: q, k or v of a head, an MLP, or the output after the last layer."""

    layer: int
    input: Input
    head: int = -1

    @property
    def part(self) -> str:
        """The label of the part: L2H3, L2 mlp, output."""
        if self.head >= 0:
            return f"L{self.layer}H{self.head}"
        return "output" if self.input == "output" else f"L{self.layer} mlp"

    @property
    def label(self) -> str:
        """The label of the input: L2H3 k, L2 mlp, output."""
        return f"{self.part} {self.input}" if self.head >= 0 else self.part

    def reads(self, sender: Writer, serial: frozenset[int]) -> bool:
        """Return whether a sender writes before this input reads. In `serial` layers the MLP comes after the heads."""
        is_within = self.input == "mlp" and self.layer in serial and sender.kind in ("head", "attention")
        return sender.layer < self.layer or (is_within and sender.layer == self.layer)


@final
class Writers:
    """The writers of a model.

    Heads write where the model gives their outputs and W_O; elsewhere their sum is one writer, as is a block whose
    parts are not known.
    """

    def __init__(self, model: Model, by: str) -> None:
        model.require((RESID_PRE, RESID_POST), by=by)
        has = {site: frozenset(model.layers_of(site)) for site in (Z, ATTN_OUT, MLP_OUT)}
        with_heads = sorted(has[Z] & has[ATTN_OUT])
        self._outputs = {layer: output for layer in with_heads if (output := model.output_of(layer)) is not None}
        self._norms: dict[int, FrozenNorm] = {}
        self._sites: dict[int, tuple[Site, ...]] = {}
        every, n_heads = [Writer(kind="embedding")], model.spec.n_heads
        for layer in range(model.spec.n_layers):
            if layer in self._outputs:
                every += [Writer(layer=layer, kind="head", head=head) for head in range(n_heads)]
            elif layer in has[ATTN_OUT]:
                every.append(Writer(layer=layer, kind="attention"))
            if layer in has[MLP_OUT]:
                every.append(Writer(layer=layer, kind="mlp"))
            if layer not in has[ATTN_OUT] | has[MLP_OUT]:
                every.append(Writer(layer=layer, kind="block"))
        self.every = tuple(every)

    def places(self) -> tuple[SiteLayer, ...]:
        """Return the sites and layers from which the updates are computed."""
        sites: Mapping[Kind, tuple[Site, ...]] = {
            "embedding": (RESID_PRE,),
            "head": (Z,),
            "attention": (ATTN_OUT,),
            "mlp": (MLP_OUT,),
            "block": (RESID_PRE, RESID_POST),
        }
        each = ((site, max(writer.layer, 0)) for writer in self.every for site in sites[writer.kind])
        return tuple(dict.fromkeys(each))

    def updates(self, values: Stored, frozen_at: Stored) -> Iterator[tuple[Writer, Float[Tensor, "batch pos d_model"]]]:
        """Yield what each writer adds to the residual stream. It is linear in `values`, but for biases.

        Args:
            values: Activations at the `places`, or their differences.
            frozen_at: Activations that give the factor of norms between the heads and the residual stream.
        """
        wide = {place: value.to(torch.promote_types(value.dtype, torch.float32)) for place, value in values.items()}
        heads = dict[int, Tensor]()
        for writer in self.every:
            layer = writer.layer
            match writer.kind:
                case "embedding":
                    yield writer, wide[RESID_PRE, 0]
                case "head":
                    if layer not in heads:
                        heads = {layer: self._of_heads(layer, wide[Z, layer], frozen_at[Z, layer])}
                    yield writer, heads[layer][:, :, writer.head]
                case "attention":
                    yield writer, wide[ATTN_OUT, layer]
                case "mlp":
                    yield writer, wide[MLP_OUT, layer]
                case "block":
                    yield writer, wide[RESID_POST, layer] - wide[RESID_PRE, layer]

    def _of_heads(
        self, layer: int, z: Float[Tensor, "batch pos head d_head"], at: Float[Tensor, "batch pos head d_head"]
    ) -> Float[Tensor, "batch pos head d_model"]:
        output = self._outputs[layer]
        matrix = output.matrix.to(z)
        written = einsum(z, matrix, "b p h d, h d m -> b p h m")
        if output.norm is None:
            return written
        summed = einsum(at.to(matrix), matrix, "b p h d, h d m -> b p m").to(at.dtype)
        if layer not in self._norms:
            norm = FrozenNorm.of(output.norm, summed)
            assert norm is not None, "a model says that it is a norm"
            self._norms[layer] = norm
        norm = self._norms[layer]
        scaled: Tensor = output.factor * norm.scale(summed)[..., None] * norm.applied(written.double())
        return scaled.to(z)
