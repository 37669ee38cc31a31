"""Projections: the layout of queries, keys and values in the output of a linear part, separate or fused."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from bayesgeom.core.sites import K, Q, Site, V

Layout = Literal["own", "stacked", "grouped", "sharded"]
_N_SHARDS = 4  # CodeGen's: it was trained on as many processors
_SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("wq", "wk", "wv"))
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "Wqkv", "qkv")


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of heads and their width."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int = 0  # of values and heads' outputs, if other than d_head


@final
@dataclass(frozen=True, kw_only=True)
class Projection:
    """One of q, k and v in the output of the part at `path`.

    `layout`: "own", the whole output; "stacked", all queries, then all keys, then all values; "grouped", for each
    key-value head its queries, its key, its value; "sharded", four parts with queries, then values, then keys of a
    quarter of the heads.
    """

    path: str
    site: Site
    layout: Layout
    sizes: Sizes

    def take(self, output: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos head d_head"]:
        """Return this projection's part of the output, with heads as an axis."""
        s = self.sizes
        if self.layout == "grouped":
            return self._of_group(output.unflatten(-1, (s.n_kv_heads, -1, s.d_head))).flatten(2, 3)
        own: Tensor = output
        if self.layout == "stacked":
            widths = [s.n_heads * s.d_head, s.n_kv_heads * s.d_head, s.n_kv_heads * s.d_head]
            own = output.split(widths, dim=-1)[_ORDER.index(self.site)]
        elif self.layout == "sharded":
            own = output.unflatten(-1, (_N_SHARDS, 3, -1))[..., _IN_SHARD.index(self.site), :].flatten(2)
        return rearrange(own, "b p (h d) -> b p h d", d=s.d_head)

    def put(
        self, output: Float[Tensor, "batch pos width"], values: Float[Tensor, "batch pos head d_head"]
    ) -> Float[Tensor, "batch pos width"]:
        """Return the output with this projection's part replaced."""
        s = self.sizes
        if self.layout == "own":
            return values.flatten(2)
        parts = {site: replace(self, site=site).take(output) for site in _ORDER} | {self.site: values}
        if self.layout == "stacked":
            return torch.cat([parts[site].flatten(2) for site in _ORDER], dim=-1)
        if self.layout == "sharded":
            shards = [parts[site].flatten(2).unflatten(-1, (_N_SHARDS, -1)) for site in _IN_SHARD]
            return torch.stack(shards, dim=3).flatten(2)
        q = parts[Q].unflatten(2, (s.n_kv_heads, -1))
        groups = torch.cat([q, parts[K][:, :, :, None], parts[V][:, :, :, None]], dim=3)
        return groups.flatten(2)

    def _of_group(self, groups: Float[Tensor, "b p kv slot d"]) -> Float[Tensor, "b p kv own d"]:
        cut = {Q: slice(None, -2), K: slice(-2, -1), V: slice(-1, None)}[self.site]
        return groups[:, :, :, cut]


_ORDER, _IN_SHARD = (Q, K, V), (Q, V, K)


def projections(
    outputs: Mapping[str, Tensor], attention: str, sizes: Sizes, value: Float[Tensor, "batch kv_head pos d"] | None
) -> dict[Site, Projection]:
    """Locate the projections of q, k and v.

    Args:
        outputs: Outputs of the parts inside attention, by path.
        attention: Path of the attention.
        sizes: Heads and their width.
        value: The block's values, if known, to distinguish layouts.
    """
    for names in _SEPARATE:
        paths = [f"{attention}.{name}" for name in names]
        if all(path in outputs for path in paths):
            widths = (sizes.n_heads, sizes.n_kv_heads, sizes.n_kv_heads)
            return {
                site: Projection(path=path, site=site, layout="own", sizes=sizes)
                for site, path, heads in zip(_ORDER, paths, widths, strict=True)
                if outputs[path].shape[-1] == heads * sizes.d_head and not sizes.d_value
            }
    width = (sizes.n_heads + 2 * sizes.n_kv_heads) * sizes.d_head
    paths = [f"{attention}.{name}" for name in _FUSED]
    path = next((path for path in paths if path in outputs and outputs[path].shape[-1] == width), None)
    if path is None:
        return {}
    layouts: tuple[Layout, ...] = ("grouped", "stacked", "sharded")
    for layout in layouts:
        if layout == "sharded" and (sizes.n_heads % _N_SHARDS or sizes.n_kv_heads != sizes.n_heads):
            continue
        found = {site: Projection(path=path, site=site, layout=layout, sizes=sizes) for site in _ORDER}
        if value is None or bool((found[V].take(outputs[path]).transpose(1, 2) - value).abs().max() < 1e-6):
            return found
    return {}
