"""Replay: recompute a transformer from an edited activation on, and reuse everything that the edit cannot change.

A baseline pass keeps the input of each layer and the update of each part. An edit of a head's z at layer l changes the
residual by (z′ − z) W_O of that head; an edit of an MLP's output starts after the MLP. Later layers are computed in
full, except that the last one and the output are computed at the scored rows only.

Norm weights are folded into the matrices that follow, and q, k and v share one product. This gives the same numbers up
to rounding with fewer passes over memory. The module itself is not modified.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core.edits import Edit, Reference, Replace
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import ATTN_OUT, MLP_OUT, RESID_MID, RESID_POST, RESID_PRE, Site, Trials, Z
from bayesgeom.models.base import STAGES, BaselinePass, Variant, entry
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.replay.layer import ReplayLayer, Scratch, folded, normed


@final
class Replay:
    """Replays variants of one transformer. Weights are read once, at construction."""

    def __init__(self, module: Transformer) -> None:
        self.module, self.n_layers = module, module.config.n_layers
        self.layers = [ReplayLayer(module, layer) for layer in range(self.n_layers)]
        self.scratch = Scratch()
        self._mid_in_of: weakref.ref[BaselinePass] | None = None
        self._mid_in: dict[int, Tensor] = {}
        output = module.embed if module.config.tied else module.unembed
        with torch.no_grad():
            self._output, self._output_bias = folded(module.ln_final, output.weight, None)

    @torch.no_grad()
    def baseline(self, trials: Trials) -> BaselinePass:
        """Run one unedited pass and keep its activations.

        Raises:
            InvalidArgument: Sequences have different scored positions.
        """
        tokens, positions = trials.tokens, trials.scored_positions()
        rows = positions[0]
        if not bool((positions == rows).all()):
            other = int((positions != rows).any(dim=1).nonzero()[0, 0])
            raise InvalidArgument(
                f"replay needs every sequence to score the same positions; sequence 0 scores {rows.tolist()[:8]}, "
                f"sequence {other} scores {positions[other].tolist()[:8]}. Run the model instead."
            )
        stored: dict[tuple[Site, int], Tensor] = {}
        mid_ins: dict[int, Tensor] = {}
        resid = self.module.embedded(tokens)
        for index, layer in enumerate(self.layers):
            stored[RESID_PRE, index] = resid
            stored[Z, index] = layer.z(resid, None, self.scratch).clone()
            stored[ATTN_OUT, index] = layer.attn_out(stored[Z, index], self.scratch).clone()
            stored[RESID_MID, index] = resid + stored[ATTN_OUT, index]
            # Use the product from which edits of heads start, so that an edit without effect is bit-exact.
            mid_ins[index] = layer.mid_in(stored[RESID_MID, index], self._wide_buffer(f"mid_in {index}", resid))
            stored[MLP_OUT, index] = layer.mlp_out_of(stored[RESID_MID, index], mid_ins[index], self.scratch).clone()
            stored[RESID_POST, index] = resid = stored[RESID_MID, index] + stored[MLP_OUT, index]
        mid_ins[self.n_layers - 1] = mid_ins[self.n_layers - 1].index_select(1, rows)
        baseline = BaselinePass(trials=trials, rows=rows, stored=stored, logits=self._logits(resid[:, rows]))
        self._mid_in_of, self._mid_in = weakref.ref(baseline), mid_ins
        return baseline

    @torch.no_grad()
    def logits(
        self, baseline: BaselinePass, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """Return the logits at the scored rows under each variant. All variants must have the same `entry`."""
        first, stage = entry(variants[0])
        assert all(entry(variant) == (first, stage) for variant in variants), "variants of one batch share their entry"
        places = frozenset((edit.site, edit.layer) for variant in variants for edit in variant)
        batch = _Batch(replay=self, baseline=baseline, variants=variants, reference=reference, places=places)
        resid = batch.first_layer(first, stage)
        for index in range(first + 1, self.n_layers):
            resid = batch.whole_layer(index, resid)
        logits = self._logits(resid)
        return rearrange(logits, "(variant batch) p v -> variant batch p v", variant=len(variants))

    def _logits(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        x = normed(resid, self.module.config, self.scratch)
        return x @ self._output if self._output_bias is None else x @ self._output + self._output_bias

    def mid_in(self, baseline: BaselinePass, index: int) -> Float[Tensor, "batch pos d_mlp"]:
        """Return a baseline's MLP input before the norm's scale and the bias; in the last layer at scored rows only.

        It is cached for the most recent baseline only, in reused buffers, because it is the largest activation.
        """
        if self._mid_in_of is None or self._mid_in_of() is not baseline:
            self._mid_in_of, self._mid_in = weakref.ref(baseline), {}
        if index not in self._mid_in:
            mid = baseline.stored[RESID_MID, index]
            if index == self.n_layers - 1:
                mid = mid.index_select(1, baseline.rows)
            self._mid_in[index] = self.layers[index].mid_in(mid, self._wide_buffer(f"mid_in {index}", mid))
        return self._mid_in[index]

    def _wide_buffer(self, name: str, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_mlp"]:
        return self.scratch.take(name, (len(resid), resid.shape[1], self.module.config.d_mlp), resid)


@final
@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Variants with the same entry, stacked along the batch axis."""

    replay: Replay
    baseline: BaselinePass
    variants: Sequence[Variant]
    reference: Reference
    places: frozenset[tuple[Site, int]]

    def first_layer(self, index: int, stage: int) -> Float[Tensor, "stacked pos d_model"]:
        """Return the output of the entry layer; parts before the entry come from the baseline."""
        if stage == STAGES[RESID_PRE]:
            return self.whole_layer(index, self._stacked(RESID_PRE, index, cut=False))
        if stage == STAGES[RESID_POST]:
            return self._edited(RESID_POST, index, self._stacked(RESID_POST, index))
        if stage == STAGES[MLP_OUT]:
            written = self._edited(MLP_OUT, index, self._stacked(MLP_OUT, index))
            return self._edited(RESID_POST, index, self._stacked(RESID_MID, index).add_(written))
        if self._has_heads_alone(index):
            return self._edited(RESID_POST, index, self._after_heads(index))
        return self._after_mid(index, self._mid(index, stage))

    def whole_layer(
        self, index: int, resid: Float[Tensor, "stacked pos d_model"]
    ) -> Float[Tensor, "stacked query_pos d_model"]:
        """Compute one full layer; the last one at scored rows only. Overwrites `resid`."""
        layer, scratch, rows = self.replay.layers[index], self.replay.scratch, self._rows(index)
        resid = self._edited(RESID_PRE, index, resid, is_whole=True)
        mid = self._at(rows, "queries of resid", resid)
        if self._is_replaced(ATTN_OUT, index):
            mid.add_(self._edited(ATTN_OUT, index, scratch.take("attn_out", tuple(mid.shape), mid)))
        else:
            z = self._edited(Z, index, layer.z(resid, rows, scratch))
            if (ATTN_OUT, index) in self.places:
                mid.add_(self._edited(ATTN_OUT, index, layer.attn_out(z, scratch)))
            else:
                layer.add_attn_out(mid, z)
        return self._after_mid(index, self._edited(RESID_MID, index, mid))

    def _after_mid(self, index: int, mid: Float[Tensor, "stacked pos d_model"]) -> Float[Tensor, "stacked pos d_model"]:
        """Apply the MLP's part of a layer, in place."""
        layer, scratch = self.replay.layers[index], self.replay.scratch
        if self._is_replaced(MLP_OUT, index):
            mid.add_(self._edited(MLP_OUT, index, scratch.take("mlp_out", tuple(mid.shape), mid)))
        elif (MLP_OUT, index) in self.places:
            mid.add_(self._edited(MLP_OUT, index, layer.mlp_out(mid, scratch)))
        else:
            layer.add_mlp_out(mid, scratch)
        return self._edited(RESID_POST, index, mid)

    def _after_heads(self, index: int) -> Float[Tensor, "stacked pos d_model"]:
        """The layer's output with some heads' z replaced, by updates of rank d_head to the residual and MLP input."""
        layer, reference = self.replay.layers[index], _Cut(self.reference, self._rows(index))
        z, mid = self._base(Z, index), self._stacked(RESID_MID, index)
        mid_in, scratch = self.replay.mid_in(self.baseline, index), self.replay.scratch
        for variant, own in zip(self.variants, mid.chunk(len(self.variants)), strict=True):
            edit = next(edit for edit in variant if (edit.site, edit.layer) == (Z, index))
            assert isinstance(edit, Replace) and edit.heads is not None, "checked by _has_heads_alone"
            layer.add_heads_and_mlp(own, mid_in, edit.substitute(z, reference), z, edit.heads, scratch)
        return mid

    def _mid(self, index: int, stage: int) -> Float[Tensor, "stacked pos d_model"]:
        if stage == STAGES[RESID_MID]:
            return self._edited(RESID_MID, index, self._stacked(RESID_MID, index))
        layer, base = self.replay.layers[index], self._base
        mid = self._stacked(RESID_MID, index)
        for variant, own in zip(self.variants, mid.chunk(len(self.variants)), strict=True):
            at_z = [edit for edit in variant if (edit.site, edit.layer) == (Z, index)]
            if not at_z:  # entered at attn_out: its edit below starts from the baseline
                continue
            z, reference = base(Z, index), _Cut(self.reference, self._rows(index))
            first, is_whole = at_z[0], any(self._is_every_head(edit) for edit in at_z)
            if isinstance(first, Replace) and first.heads is not None and len(at_z) == 1 and not is_whole:
                layer.add_heads(own, first.substitute(z, reference), z, first.heads, self.replay.scratch)
                continue
            edited = z
            for edit in at_z:
                edited = edit.applied(edited, reference)
            if is_whole:
                # Subtracting heads that dominate the sum would leave its rounding error: start from resid_pre.
                layer.add_attn_out(own.copy_(base(RESID_PRE, index)), edited)
            else:
                layer.add_attn_out(own, edited - z)
        return self._edited(RESID_MID, index, self._edited_attn_out(index, mid))

    def _edited_attn_out(
        self, index: int, mid: Float[Tensor, "stacked pos d_model"]
    ) -> Float[Tensor, "stacked pos d_model"]:
        """Apply edits of attn_out to the residual, which already contains it: resid_pre + edited."""
        reference = _Cut(self.reference, self._rows(index))
        before, written = self._base(RESID_PRE, index), self._base(ATTN_OUT, index)
        for variant, own in zip(self.variants, mid.chunk(len(self.variants)), strict=True):
            edits = [edit for edit in variant if (edit.site, edit.layer) == (ATTN_OUT, index)]
            has_z = any((edit.site, edit.layer) == (Z, index) for edit in variant)
            for number, edit in enumerate(edits):
                # Use the baseline's attn_out if it is unchanged, so that an edit without effect is exact.
                current = own - before if has_z or number else written
                torch.add(before, edit.applied(current, reference), out=own)
        return mid

    def _edited(
        self, site: Site, index: int, values: Float[Tensor, "stacked pos *rest"], *, is_whole: bool = False
    ) -> Float[Tensor, "stacked pos *rest"]:
        """Apply each variant's edits of this site to its part of the stack, in place."""
        if (site, index) not in self.places:
            return values
        reference = _Cut(self.reference, None if is_whole else self._rows(index))
        for variant, own in zip(self.variants, values.chunk(len(self.variants)), strict=True):
            for edit in variant:
                if (edit.site, edit.layer) == (site, index):
                    own.copy_(edit.applied(own, reference))
        return values

    def _has_heads_alone(self, index: int) -> bool:
        """Whether each variant's only edit before this layer's output replaces some, but not all, heads."""
        for variant in self.variants:
            own = [edit for edit in variant if edit.layer == index and edit.site != RESID_POST]
            if len(own) != 1 or not isinstance(own[0], Replace) or own[0].heads is None or self._is_every_head(own[0]):
                return False
        return True

    def _is_every_head(self, edit: Edit) -> bool:
        """Whether the edit names every head. An edit of the whole activation does not count: "nothing" is exact."""
        heads = edit.heads if isinstance(edit, Replace) else None
        return heads is not None and len(set(heads)) == self.replay.module.config.n_heads

    def _is_replaced(self, site: Site, index: int) -> bool:
        """Whether every variant replaces the whole output of this site, so that it need not be computed."""
        return (site, index) in self.places and all(
            any((edit.site, edit.layer) == (site, index) and is_outright(edit) for edit in variant)
            for variant in self.variants
        )

    def _rows(self, index: int) -> Int64[Tensor, " query_pos"] | None:
        return self.baseline.rows if index == self.replay.n_layers - 1 else None

    def _base(self, site: Site, index: int) -> Float[Tensor, "batch pos *rest"]:
        return self._at(self._rows(index), f"queries of {site.name}", self.baseline.stored[site, index])

    def _at(
        self, rows: Int64[Tensor, " query_pos"] | None, name: str, values: Float[Tensor, "batch pos *rest"]
    ) -> Float[Tensor, "batch query_pos *rest"]:
        if rows is None:
            return values
        out = self.replay.scratch.take(name, (len(values), len(rows), *values.shape[2:]), values)
        return torch.index_select(values, 1, rows, out=out)

    def _stacked(self, site: Site, index: int, *, cut: bool = True) -> Float[Tensor, "stacked pos *rest"]:
        """One copy per variant."""
        values = self._base(site, index) if cut else self.baseline.stored[site, index]
        shape = (len(self.variants) * len(values), *values.shape[1:])
        stacked = self.replay.scratch.take(f"stacked {site.name}", shape, values)
        stacked.unflatten(0, (len(self.variants), -1)).copy_(values.expand(len(self.variants), *values.shape))
        return stacked


def is_outright(edit: Edit) -> bool:
    """Return whether the replacement is independent of the activation that it replaces."""
    return isinstance(edit, Replace) and edit.heads is None and edit.is_constant


@final
@dataclass(frozen=True)
class _Cut:
    """A reference, reduced to the rows that a layer computes."""

    whole: Reference
    rows: Int64[Tensor, " query_pos"] | None

    def mean(self, site: Site, layer: int) -> Float[Tensor, "*axes"]:
        values = self.whole.mean(site, layer)
        return values if self.rows is None else values[self.rows]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "*axes"]:
        values = self.whole.donor(site, layer)
        return values if self.rows is None else values.index_select(1, self.rows)
