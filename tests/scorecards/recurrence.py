"""A layer of one's own: a gated linear recurrence, as a user would write it, for scorecards of it."""

import torch
from torch import Tensor, nn


class Recurrence(nn.Module):
    """h_t = a_t ∘ h_{t−1} + (1 − a_t) ∘ x_t, with a gate a_t that depends on the input; read out through another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, resid: Tensor) -> Tensor:
        x, gate, read = self.into(self.norm(resid)).chunk(3, dim=-1)
        keep = torch.sigmoid(gate + 2.0)
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = keep[:, step] * state + (1 - keep[:, step]) * x[:, step]
            states.append(state)
        resid = resid + self.out(torch.stack(states, dim=1) * nn.functional.silu(read))
        return resid + self.mlp(resid)


class Network(nn.Module):
    """Embedding, two layers, read-out."""

    def __init__(self, d_vocab: int, width: int = 80) -> None:
        super().__init__()
        self.embed = nn.Embedding(d_vocab, width)
        self.layers = nn.Sequential(Recurrence(width), Recurrence(width))
        self.unembed = nn.Linear(width, d_vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.unembed(self.layers(self.embed(ids)))


def make(d_vocab: int, n_ctx: int) -> nn.Module:
    """Return the network for so many ids; it has no positions."""
    return Network(d_vocab)


def acausal(d_vocab: int, n_ctx: int) -> nn.Module:
    """Return a network that sees later tokens."""
    net = Network(d_vocab, 8)
    net.layers.register_forward_hook(lambda module, args, output: output + output.mean(dim=1, keepdim=True))
    return net


def wrong(d_vocab: int) -> nn.Module:
    """Take one number too few."""
    return Network(d_vocab, 8)
