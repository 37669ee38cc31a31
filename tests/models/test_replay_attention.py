"""The replay's attention against softmax written out: all positions, few rows, large scores, long sequences."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bayesgeom.models.native.positions import rotated
from bayesgeom.models.native.transformer import NORMS, POSITIONS, MultiHeadAttention, Transformer, TransformerConfig
from bayesgeom.models.replay import transformer as module
from bayesgeom.models.replay.transformer import ReplayAttention, ReplayLayer, Scratch
from tests.ablations.plain import SIZES

HEADS, BATCH, POS, WIDTH = 5, 3, 13, 6
ROWS = torch.tensor([1, 4, 5, 12])


def heads(seed: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(HEADS, BATCH, POS, WIDTH, generator=generator) for _ in range(3)]


def layer(config: TransformerConfig) -> MultiHeadAttention:
    """A layer's attention; its own prior is not the one that it starts from."""
    module, generator = MultiHeadAttention(config, "auto"), torch.Generator().manual_seed(7)
    for parameter in (*module.prior.parameters(),) if config.positions == "prior" else ():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return module.requires_grad_(requires_grad=False)


def z_of(attention: ReplayAttention, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None, scratch: Scratch) -> Tensor:
    """What it writes into every other row of a buffer, so that it must go by the strides."""
    out = torch.full((BATCH, 2 * q.shape[2], HEADS, WIDTH), torch.nan)
    attention.z(q, k, v, rows, scratch, out=out[:, ::2])
    assert out[:, 1::2].isnan().all()
    return out[:, ::2]


def written_out(q: Tensor, k: Tensor, v: Tensor, attention: MultiHeadAttention) -> Tensor:
    """[batch, pos, head, d_head], one query at a time, in float64."""
    q, k, v = (part.permute(1, 2, 0, 3).double() for part in (q, k, v))
    if attention.config.positions == "rotary":
        q, k = rotated(q), rotated(k)
    bias = attention.score_bias(POS, q)
    bias = torch.zeros(HEADS, POS, POS).double() if bias is None else bias
    out = torch.zeros_like(q)
    for query in range(POS):
        scores = torch.einsum("bhd,bkhd->bhk", q[:, query], k[:, : query + 1]) + bias[:, query, : query + 1]
        out[:, query] = torch.einsum("bhk,bkhd->bhd", scores.softmax(-1), v[:, : query + 1])
    return out


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("longest", [1, module.LONGEST])
@pytest.mark.parametrize("positions", POSITIONS)
def test_attention_is_softmax_over_visible_keys(
    positions: str, longest: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores up to some thousands: far past what exp can hold in float32."""
    monkeypatch.setattr(module, "LONGEST", longest)
    own = layer(replace(SIZES, positions=positions))
    attention, scratch = ReplayAttention(own), Scratch()
    q, k, v = heads(0, scale)
    expected = written_out(q, k, v / scale, own).float()
    whole = z_of(attention, q, k, v / scale, None, scratch)
    torch.testing.assert_close(whole, expected, atol=1e-5 * scale, rtol=0)
    asked = z_of(attention, q[:, :, ROWS].contiguous(), k, v / scale, ROWS, scratch)
    torch.testing.assert_close(asked, expected[:, ROWS], atol=1e-5 * scale, rtol=0)


def test_long_sequences_take_no_room_of_query_times_position(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    take = Scratch.take
    monkeypatch.setattr(Scratch, "take", lambda self, name, *rest: (taken.append(name), take(self, name, *rest))[1])
    attention, (q, k, v) = ReplayAttention(layer(SIZES)), heads(2)
    z_of(attention, q, k, v, None, Scratch())
    assert set(taken) == {"scores", "total", "summed"}
    taken.clear()
    monkeypatch.setattr(module, "LONGEST", POS - 1)
    z_of(attention, q, k, v, None, Scratch())
    assert taken == []


def test_a_broken_value_stays_broken() -> None:
    q, k, v = heads(1)
    k[2, 1, 3] = torch.nan
    z = z_of(ReplayAttention(layer(SIZES)), q, k, v, None, Scratch())
    assert z[1, 3:, 2].isnan().all() and z[0].isfinite().all()


def test_views_are_cached_in_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_VIEWS", 3)
    scratch, like = Scratch(), torch.zeros(1)
    first = scratch.take("a", (9,), like)
    shapes = [scratch.take("a", (n,), like) for n in range(1, 9)]
    assert all(view.data_ptr() == first.data_ptr() and len(view) == n for n, view in enumerate(shapes, start=1))
    assert len(scratch._views) <= 3 and scratch.take("a", (2,), like) is scratch.take("a", (2,), like)


@pytest.mark.parametrize("norm", NORMS)
def test_batches_of_changing_shape_share_their_buffers(norm: str) -> None:
    """Smaller, larger, all positions and some, all of them asked for by rows: each as with buffers of its own."""
    own = ReplayLayer(Transformer(replace(SIZES, norm=norm), seed=3), 1)
    generator, scratch = torch.Generator().manual_seed(0), Scratch()
    with torch.no_grad():
        for n_sequences, n_pos, rows in [(2, 9, None), (5, 13, ROWS), (2, 9, ROWS[:3]), (5, 13, None), (2, 9, None)]:
            resid = torch.randn(n_sequences, n_pos, SIZES.d_model, generator=generator)
            for asked in (rows, None, torch.arange(n_pos)):
                found = own.z(resid, asked, scratch).clone()
                assert torch.equal(found, own.z(resid, asked, Scratch()))
                whole = own.z(resid, None, Scratch())
                torch.testing.assert_close(found, whole if asked is None else whole[:, asked], atol=1e-5, rtol=1e-5)
