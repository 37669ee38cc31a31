"""Language models as people write them: each style is a function that returns a network of `VOCAB` ids."""

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesgeom

VOCAB, N_CTX, WIDTH, HEADS, LAYERS = 11, 24, 20, 2, 2


def _heads(x: Tensor, n: int) -> Tensor:
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def _causal(scores: Tensor) -> Tensor:
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf)


class NanoAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.flash = config.flash

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads(part, HEADS) for part in self.c_attn(x).split(WIDTH, dim=2))
        if self.flash:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = functional.softmax(_causal(att), dim=-1)
            y = self.attn_dropout(att) @ v
        out: Tensor = self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(x.shape)))
        return out


class NanoMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.c_proj(self.gelu(self.c_fc(x))))
        return out


class NanoBlock(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = (
            nn.LayerNorm(WIDTH),
            NanoAttention(config),
            nn.LayerNorm(WIDTH),
            NanoMLP(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return torch.add(x, self.mlp(self.ln_2(x)))


class NanoGPT(nn.Module):
    """nanoGPT: without targets it returns the logits of the last position."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        parts = {
            "wte": nn.Embedding(VOCAB, WIDTH),
            "wpe": nn.Embedding(N_CTX, WIDTH),
            "drop": nn.Dropout(0.1),
            "h": nn.ModuleList(NanoBlock(config) for _ in range(LAYERS)),
            "ln_f": nn.LayerNorm(WIDTH),
        }
        self.transformer: Any = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.2)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(idx.shape[1])
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class MinBlock(nn.Module):
    """minGPT: the MLP is a function that refers to parts in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = NanoAttention(SimpleNamespace(flash=False))
        self.mlp: Any = nn.ModuleDict(
            {
                "c_fc": nn.Linear(WIDTH, 4 * WIDTH),
                "c_proj": nn.Linear(4 * WIDTH, WIDTH),
                "act": nn.GELU(),
                "dropout": nn.Dropout(0.1),
            }
        )
        m = self.mlp
        self.mlpf = lambda x: m.dropout(m.c_proj(m.act(m.c_fc(x))))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return torch.add(x, self.mlpf(self.ln_2(x)))


class Stacked(nn.Module):
    """An embedding, blocks in a list, a norm and a head; `positions` adds a table of positions."""

    def __init__(
        self, blocks: Callable[[], nn.Module], norm: nn.Module, *, positions: bool, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, WIDTH)
        self.pos_emb = nn.Parameter(0.5 * torch.randn(1, N_CTX, WIDTH)) if positions else None
        self.layers = nn.ModuleList(blocks() for _ in range(LAYERS))
        self.norm, self.output, self.scale = norm, nn.Linear(WIDTH, VOCAB, bias=False), scale

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok_embeddings(ids) * self.scale
        x = x if self.pos_emb is None else x + self.pos_emb[:, : ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.output(self.norm(x))
        return logits


class RMSNorm(nn.Module):
    """As in Llama, without `reset_parameters`; `offset` 1 as in Gemma."""

    def __init__(self, width: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.full((width,), 1.0 - offset)), offset

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return normed * (self.offset + self.weight)


def rotated_halves(x: Tensor) -> Tensor:
    """Rotate heads with axes batch, head, position, width as in Hugging Face's Llama."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2])[:, None] / 10.0 ** (torch.arange(half) / half)
    angle = torch.cat([angle, angle], dim=-1)
    return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * angle.sin()


def rotated_pairs(x: Tensor) -> Tensor:
    """Rotate heads with axes batch, position, head, width as in Meta's Llama."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] / 10.0 ** (torch.arange(half) / half)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], half, 2)) * turn
    return torch.view_as_real(turned).flatten(-2).type_as(x)


class SwiGLU(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor] = functional.silu) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.w2, self.act = nn.Linear(3 * WIDTH, WIDTH, bias=False), act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(self.act(self.w1(x)) * self.w3(x))
        return out


class GroupedAttention(nn.Module):
    """Four query heads of width 6 on two key-value heads, in the style of a family and of a way to write it."""

    def __init__(self, family: str, style: str) -> None:
        super().__init__()
        self.family, self.style, self.d, bias = family, style, 6, family == "qwen"
        self.wq, self.wk, self.wv = (nn.Linear(WIDTH, n * self.d, bias=bias) for n in (4, 2, 2))
        self.wo = nn.Linear(4 * self.d, WIDTH, bias=False)
        if family == "qwen" or (family, style) == ("gemma", "fused"):
            self.q_norm, self.k_norm = (RMSNorm(self.d, float(family == "gemma")) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.d)) for w in (self.wq, self.wk, self.wv))
        if "q_norm" in self._modules:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.style == "einsum":
            q, k = rotated_pairs(q), rotated_pairs(k)
            k, v = (x.repeat_interleave(2, dim=2) for x in (k, v))
            scores = _causal(torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.d))
            z = torch.einsum("bhqk,bkhd->bqhd", functional.softmax(scores.float(), dim=-1).type_as(q), v)
            return torch.as_tensor(self.wo(z.flatten(2)))
        q, k, v = rotated_halves(q.transpose(1, 2)), rotated_halves(k.transpose(1, 2)), v.transpose(1, 2)
        if self.style == "fused":
            near = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            near = near.triu(-3) if self.family == "gemma" else near
            attend: Any = functional.scaled_dot_product_attention
            z = attend(q, k, v, attn_mask=near, scale=0.3, enable_gqa=True)
        else:
            k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for x in (k, v))
            scores = torch.matmul(q, k.transpose(2, 3)) * self.d**-0.5
            if self.family == "gemma":
                scores = torch.tanh(scores / 2.0) * 2.0
            z = torch.matmul(torch.softmax(_causal(scores), dim=-1, dtype=torch.float32), v)
        return torch.as_tensor(self.wo(z.transpose(1, 2).flatten(2)))


class LlamaBlock(nn.Module):
    def __init__(self, family: str, style: str) -> None:
        super().__init__()
        self.attention, self.feed_forward = GroupedAttention(family, style), SwiGLU()
        self.attention_norm, self.ffn_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x))
        return torch.add(h, self.feed_forward(self.ffn_norm(h)))


class GemmaBlock(nn.Module):
    """Norms before and after both parts."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.self_attn, self.mlp = GroupedAttention("gemma", style), SwiGLU(nn.GELU())
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        self.norms = nn.ModuleDict({name: RMSNorm(WIDTH, 1.0) for name in names})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norms["post_attention"](self.self_attn(self.norms["input"](x)))
        return torch.add(x, self.norms["post_feedforward"](self.mlp(self.norms["pre_feedforward"](x))))


class Conv1D(nn.Module):
    """GPT-2's linear layer."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.2 * torch.randn(nx, nf)), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class GPT2Block(nn.Module):
    """GPT-2 as written in one class, with a cache that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        self.c_fc, self.c_out = Conv1D(4 * WIDTH, WIDTH), Conv1D(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (_heads(part, HEADS) for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        w = torch.matmul(q, k.transpose(-1, -2)) / v.size(-1) ** 0.5
        allowed = torch.ones(x.shape[1], x.shape[1]).tril()
        w = w * allowed - 1e10 * (1 - allowed)
        z = torch.matmul(nn.Softmax(dim=-1)(w), v).transpose(1, 2).flatten(2)
        x = x + self.c_proj(z)
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x)))), (k, v)


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(N_CTX, WIDTH)
        self.h, self.ln_f = nn.ModuleList(GPT2Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor) -> Any:
        x, cache = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1])[None]), []
        for block in self.h:
            x, present = block(x)
            cache.append(present)
        return {"logits": self.ln_f(x) @ self.wte.weight.T, "past_key_values": cache}


class Encoder(nn.Module):
    """PyTorch's tutorial: `nn.TransformerEncoder` with a causal mask."""

    def __init__(self, *, batch_first: bool, norm_first: bool) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 3 * WIDTH, dropout=0.1, batch_first=batch_first, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.batch_first = batch_first

    def forward(self, ids: Tensor) -> Tensor:
        mask, x = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]), self.embedding(ids)
        if self.batch_first:
            return torch.as_tensor(self.fc(self.encoder(x, mask=mask, is_causal=True)))
        return torch.as_tensor(self.fc(self.encoder(x.transpose(0, 1), mask=mask).transpose(0, 1)))


class MultiheadBlock(nn.Module):
    """Parallel attention and MLP, with torch's module that also returns weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        later, normed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), self.norm(x)
        return x + self.attn(normed, normed, normed, attn_mask=later)[0] + self.down(self.up(normed).relu())


class Recurrent(nn.Module):
    """Embedding, recurrent core, head; the state is returned."""

    def __init__(self, kind: type[nn.RNNBase], width: int, n_layers: int = 1, *, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, width), nn.Linear(WIDTH, VOCAB)
        self.rnn, self.batch_first = kind(width, WIDTH, n_layers, batch_first=batch_first), batch_first

    def forward(self, ids: Tensor, hidden: Any = None) -> Any:
        x = self.embedding(ids)
        out, hidden = self.rnn(x if self.batch_first else x.transpose(0, 1), hidden)
        return self.head(out if self.batch_first else out.transpose(0, 1)), hidden


class GRUs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.cells = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for cell in self.cells:
            x = cell(x)[0]
        return torch.as_tensor(self.head(x))


class OneHead(nn.Module):
    """A head with projections of its own, as in Karpathy's lecture."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, WIDTH // HEADS, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * (WIDTH // HEADS) ** -0.5
        return functional.softmax(_causal(scores), dim=-1) @ torch.as_tensor(self.value(x))


class LectureBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(OneHead() for _ in range(HEADS)), nn.Linear(WIDTH, WIDTH)
        self.ffwd = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln1(x)
        x = x + self.proj(torch.cat([head(normed) for head in self.heads], dim=-1))
        return torch.add(x, self.ffwd(self.ln2(x)))


def _sequential() -> nn.Module:
    config = SimpleNamespace(flash=True)
    blocks = [NanoBlock(config) for _ in range(LAYERS)]
    return nn.Sequential(nn.Embedding(VOCAB, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB))


def _llama(family: str, style: str) -> nn.Module:
    return Stacked(lambda: LlamaBlock(family, style), RMSNorm(WIDTH), positions=False)


def _gemma(style: str) -> nn.Module:
    return Stacked(lambda: GemmaBlock(style), RMSNorm(WIDTH, 1.0), positions=False, scale=WIDTH**0.5)


STYLES: Mapping[str, Callable[[], nn.Module]] = {
    "nanoGPT": lambda: NanoGPT(SimpleNamespace(flash=True)),
    "nanoGPT without flash": lambda: NanoGPT(SimpleNamespace(flash=False)),
    "minGPT": lambda: Stacked(MinBlock, nn.LayerNorm(WIDTH), positions=True),
    "GPT-2 in one class": GPT2,
    "Llama, fused": lambda: _llama("llama", "fused"),
    "Llama, einsum": lambda: _llama("llama", "einsum"),
    "Qwen, fused": lambda: _llama("qwen", "fused"),
    "Qwen, matmul": lambda: _llama("qwen", "matmul"),
    "Gemma, fused": lambda: _gemma("fused"),
    "Gemma, matmul": lambda: _gemma("matmul"),
    "TransformerEncoder": lambda: Encoder(batch_first=True, norm_first=True),
    "TransformerEncoder, post-norm": lambda: Encoder(batch_first=False, norm_first=False),
    "MultiheadAttention, parallel": lambda: Stacked(MultiheadBlock, nn.LayerNorm(WIDTH), positions=True),
    "nn.Sequential": _sequential,
    "LSTM": lambda: Recurrent(nn.LSTM, WIDTH),
    "GRU, two layers": lambda: Recurrent(nn.GRU, WIDTH, 2, batch_first=False),
    "RNN, narrow embedding": lambda: Recurrent(nn.RNN, 12),
    "list of GRUs": GRUs,
    "a module for each head": lambda: Stacked(LectureBlock, nn.LayerNorm(WIDTH), positions=True),
}

STREAM, PARTS = ("resid_pre", "resid_post"), ("attn_out", "mlp_out", "mlp_post")
ATTENTION = ("q", "k", "q_rot", "k_rot", "v", "z", "pattern")


def table() -> str:
    """The table in docs/extending.md: which sites `wrap` finds without a declaration in each style."""
    lines = ["| module | stream | parts | heads |", "| --- | --- | --- | --- |"]
    for style, build in STYLES.items():
        torch.manual_seed(0)
        names = {site.name for site in bayesgeom.wrap(build()).sites}
        is_recurrent = any(isinstance(part, nn.RNNBase) for part in build().modules())
        cells = list[str]()
        for group in (STREAM, *(() if is_recurrent else (PARTS, ATTENTION))):
            found = [name for name in group if name in names]
            cells.append("all" if len(found) == len(group) else " ".join(f"`{name}`" for name in found) or "none")
        lines.append(f"| {style} | {' | '.join(cells + ['it has none'] * (3 - len(cells)))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201  (a page is made of it)
