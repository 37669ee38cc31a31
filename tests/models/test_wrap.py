"""`bayesgeom.wrap`: own modules of every layout give proven sites, the same numbers as by hand, and clear refusals."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, NoCopy
from bayesgeom.core.run import ATTN_OUT, K_ROT, MLP_OUT, PATTERN, RESID_POST, RESID_PRE, K, Q, V, Z
from bayesgeom.models.adapters.wrapping import WrappedModel

TASK = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
WIDTH, HEADS, VOCAB = 16, 2, 10


class CausalAttention(nn.Module):
    """nanoGPT's layout: one fused projection."""

    def __init__(self, *, is_rotated: bool = False) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.is_rotated = is_rotated

    def forward(self, x: Tensor) -> Tensor:
        n, n_pos, _ = x.shape
        q, k, v = (own.view(n, n_pos, HEADS, -1).transpose(1, 2) for own in self.c_attn(x).split(WIDTH, dim=2))
        if self.is_rotated:
            angle = torch.arange(n_pos)[:, None] * torch.ones(q.shape[-1])
            q, k = (own * angle.cos() + own.flip(-1) * angle.sin() for own in (q, k))
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(z.transpose(1, 2).reshape(n, n_pos, WIDTH))
        return out


class Block(nn.Module):
    """A block that normalizes before each part, after each sum, or once for both parts."""

    def __init__(self, order: str, *, is_rotated: bool = False) -> None:
        super().__init__()
        self.order, self.attn = order, CausalAttention(is_rotated=is_rotated)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "post":
            x = self.ln_1(x + self.attn(x))
            after: Tensor = self.ln_2(x + self.mlp(x))
            return after
        if self.order == "parallel":
            return torch.add(x + self.attn(self.ln_1(x)), self.mlp(self.ln_1(x)))
        x = x + self.attn(self.ln_1(x))
        return torch.add(x, self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    def __init__(self, order: str = "pre", *, is_rotated: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(16, WIDTH)
        self.h = nn.ModuleList(Block(order, is_rotated=is_rotated) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return (logits, None) if targets is not None else (logits[:, [-1]], None)  # as nanoGPT saves time


def gpt(order: str = "pre", **given: Any) -> tuple[Any, WrappedModel]:
    torch.manual_seed(0)
    net = GPT(order, is_rotated=given.pop("is_rotated", False)).eval()
    parts: dict[str, Any] = {
        "attn": "attn",
        "mlp": "mlp",
        "qkv": "attn.c_attn",
        "out": "attn.c_proj",
        "n_heads": HEADS,
    } | given
    return net, bayesgeom.wrap(net, blocks="h", forward=lambda net, ids: net(ids, ids), n_ctx=16, **parts)


@pytest.mark.parametrize("order", ["pre", "parallel", "post"])
def test_each_order_of_norms_gives_every_site(order: str) -> None:
    _, model = gpt(order, **({"norms": ("ln_1", "ln_2")} if order == "post" else {}))
    assert {RESID_PRE, RESID_POST, ATTN_OUT, MLP_OUT, Q, K, V, Z, PATTERN, K_ROT} <= model.sites, model.withheld


def test_recorded_sites_equal_those_computed_by_hand() -> None:
    net, model = gpt()
    trials = TASK.sample(4, seed=0)
    run = model.run([trials], record=[RESID_PRE, RESID_POST, PATTERN, Z], n_recorded=4)
    with torch.no_grad():
        x = net.wte(trials.tokens) + net.wpe(torch.arange(trials.tokens.shape[1]))
        q, k, _ = net.h[0].attn.c_attn(net.h[0].ln_1(x)).split(WIDTH, dim=2)
        q, k = (own.view(*own.shape[:2], HEADS, -1).transpose(1, 2) for own in (q, k))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        pattern = scores.masked_fill(later, -torch.inf).softmax(-1)
        after = net.h[1](net.h[0](x))
    rows = trials.scored_positions()[0]
    assert torch.allclose(run.recorded[RESID_PRE][0], x[:, rows], atol=1e-6)
    assert torch.allclose(run.recorded[RESID_POST][1], after[:, rows], atol=1e-5)
    assert torch.allclose(run.recorded[PATTERN][0], pattern[:, :, rows], atol=1e-6)


def test_an_edit_of_the_pattern_changes_the_logits_as_it_would_in_the_module() -> None:
    _, model = gpt()
    report = bayesgeom.ablate(model, TASK, n=16, battery="heads")
    assert float(abs(report.kl_increase_bits.value).min()) > 0


def test_a_diagnosis_and_an_ablation_run_on_a_wrapped_module() -> None:
    _, model = gpt()
    diagnosis = bayesgeom.diagnose(model, TASK, n=16, n_untrained=1)
    assert {"calibration", "attention_entropy", "qk_alignment", "value_manifold", "belief_readout"} <= set(diagnosis)


def test_rotated_keys_are_withheld_with_the_reason_and_the_stream_stays() -> None:
    _, model = gpt(is_rotated=True)
    assert {Q, K, V, PATTERN} <= model.withheld.keys()
    assert "rotated" in model.withheld[K]
    assert {RESID_PRE, RESID_POST, ATTN_OUT, MLP_OUT, Z} <= model.sites


def test_post_norm_without_its_norms_is_withheld_and_says_what_to_declare() -> None:
    _, model = gpt("post")
    assert "norms=" in model.withheld[ATTN_OUT]


def test_a_transformer_encoder_with_a_causal_mask() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, norm_first=True, dropout=0.0)  # positions first
    net = nn.ModuleDict(
        {"embed": nn.Embedding(VOCAB, WIDTH), "encoder": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)}
    )
    net["head"] = nn.Linear(WIDTH, VOCAB)

    def forward(net: Any, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = net["encoder"](net["embed"](ids).transpose(0, 1), mask=mask)
        logits: Tensor = net["head"](x.transpose(0, 1))
        return logits

    model = bayesgeom.wrap(net, blocks="encoder.layers", attn="self_attn", mlp="linear2", forward=forward)
    assert {RESID_PRE, RESID_POST, ATTN_OUT, MLP_OUT} <= model.sites, model.withheld
    assert "n_heads" in model.withheld[Z]
    trials = TASK.sample(4, seed=0)
    with torch.no_grad():
        right = trials.at_scored(forward(net, trials.tokens))
        assert torch.allclose(model.logits(trials), right, atol=1e-5)
    assert bayesgeom.ablate(model, TASK, n=8, battery="layers").n == 8


def test_a_gru_of_two_layers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
            self.layers = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x)[0]
            logits: Tensor = self.head(x)
            return logits

    model = bayesgeom.wrap(Net(), blocks="layers")
    assert {RESID_PRE, RESID_POST} <= model.sites
    assert model.untrained_copy(1).spec.n_parameters == model.spec.n_parameters
    assert "belief_readout" in bayesgeom.diagnose(model, TASK, n=16, n_untrained=1)


def test_layers_of_x_transformers_are_pairs() -> None:
    class Residual(nn.Module):
        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            return x + residual

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
            parts = (CausalAttention(), nn.Linear(WIDTH, WIDTH), CausalAttention(), nn.Linear(WIDTH, WIDTH))
            self.layers: Any = nn.ModuleList(nn.ModuleList([nn.LayerNorm(WIDTH), part, Residual()]) for part in parts)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for norm, part, residual in self.layers:
                x = residual(part(norm(x)), x)
            logits: Tensor = self.head(x)
            return logits

    torch.manual_seed(0)
    net = Decoder()
    after = [net.layers[at][2] for at in range(4)]  # the four residual sums
    model = bayesgeom.wrap(
        net,
        blocks=lambda net: [(net.embed, after[1]), (after[1], after[3])],
        attn=lambda pair: net.layers[after.index(pair[1]) - 1][1],
        mlp=lambda pair: net.layers[after.index(pair[1])][1],
    )
    assert {RESID_PRE, RESID_POST, ATTN_OUT, MLP_OUT} <= model.sites, model.withheld


def test_an_own_module_needs_its_parts_by_name() -> None:
    net = GPT()
    with pytest.raises(InvalidArgument, match=r"'attention'.*attn\.c_proj"):
        bayesgeom.wrap(net, blocks="h", attn="attention", forward=lambda net, ids: net(ids, ids))
    with pytest.raises(InvalidArgument, match="'layers'"):
        bayesgeom.wrap(net, blocks="layers")


def test_logits_of_one_position_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"\(1, 1, 10\).*forward="):
        bayesgeom.wrap(GPT(), blocks="h")


@pytest.mark.parametrize("n_heads", [3, 0, -1])
def test_a_number_of_heads_that_does_not_divide_is_refused(n_heads: int) -> None:
    with pytest.raises(InvalidArgument, match="n_heads"):
        gpt(n_heads=n_heads)


def test_a_module_that_sees_later_tokens_is_refused() -> None:
    parts = (
        nn.Embedding(VOCAB, WIDTH),
        nn.Linear(WIDTH, WIDTH),
        nn.GRU(WIDTH, 5, batch_first=True, bidirectional=True),
    )
    net = nn.Sequential(*parts)
    with pytest.raises(InvalidArgument, match="later tokens"):
        bayesgeom.wrap(net, blocks=lambda net: [net[1]])


def test_weights_without_a_reset_need_a_function_that_rebuilds() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(VOCAB, WIDTH), Scaled(), nn.Linear(WIDTH, VOCAB))

    with pytest.raises(NoCopy, match=r"Scaled.*rebuild="):
        bayesgeom.wrap(build(), blocks=lambda net: [net[1]]).untrained_copy(0)
    copy = bayesgeom.wrap(build(), blocks=lambda net: [net[1]], rebuild=build).untrained_copy(0)
    assert copy.sites == {RESID_PRE, RESID_POST}


def test_a_function_of_tokens_gives_what_predictions_alone_give() -> None:
    model = bayesgeom.load("mess3-small")
    net, task = model.module, model.task
    assert task is not None
    ours, theirs = (bayesgeom.diagnose(own, task, n=32, n_untrained=0) for own in (net.forward, model))
    one, other = (float(own["calibration"].estimate("kl_bits")) for own in (ours, theirs))
    assert one == pytest.approx(other, rel=1e-5)  # passes of other sizes
    assert "bayesgeom.wrap" in ours.skipped["belief_readout"]


def test_a_function_that_returns_no_logits_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="forward="):
        bayesgeom.diagnose(lambda tokens: tokens, TASK, n=8)
