"""Attention that is called with keywords, and initializations of a module as a whole, as people write them."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesgeom


class Network(nn.Module):
    """One layer of attention; its weights are drawn by a method without arguments."""

    def __init__(self, d_vocab: int, *, is_fused: bool) -> None:
        super().__init__()
        self.embed, self.qkv, self.unembed = nn.Embedding(d_vocab, 8), nn.Linear(8, 24), nn.Linear(8, d_vocab)
        self.is_fused = is_fused
        self._init_weights()

    def _init_weights(self) -> None:
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 1, 8)).movedim(2, 0).transpose(2, 3).transpose(2, 3).unbind(0)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if self.is_fused:
            z = functional.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True)
        else:
            scores = (q @ k.transpose(-1, -2)).masked_fill(torch.ones(2 * [ids.shape[1]]).triu(1).bool(), -torch.inf)
            z = torch.softmax(input=scores, dim=-1) @ v
        return self.unembed(x + z.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("is_fused", [True, False])
def test_keywords_of_attention_and_a_whole_initialization_are_taken(is_fused: bool) -> None:
    torch.manual_seed(0)
    net = Network(3, is_fused=is_fused)
    found = bayesgeom.diagnose(net, "mess3", n=32, n_untrained=1, probes=["calibration"])
    assert found.answer is not None and found.answer.n_copies == 8
