"""The answers of untrained networks: none is said to close a part of the gap, however their owner draws the weights."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

import bayesgeom
from bayesgeom.core import Verdict
from bayesgeom.executors import Batch
from bayesgeom.models.base import Model
from bayesgeom.report.answer import N_COPIES, Answer
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.change_point import ChangePoint
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.process import Mess3, Process

MESS3 = Mess3(x=0.05, a=0.85, length=16)
TASKS: tuple[WindTunnel, ...] = (
    MESS3,
    Dice(length=16),
    Process("rrxor", length=16),
    ChangePoint(length=16),
    Bijection(n_values=7, n_pairs=5),
)
BETTER = {Verdict.MATCHES, Verdict.CLOSE, Verdict.PARTLY}


class CausalAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.c_attn, self.c_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        parts = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in parts)
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.c_proj(z.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = CausalAttention(d_model, n_heads)
        self.c_fc, self.c_proj = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(nn.functional.gelu(self.c_fc(self.ln_2(x))))


@dataclass
class GPTConfig:
    d_vocab: int
    n_ctx: int
    n_layer: int = 2
    n_head: int = 2
    d_model: int = 32


class Layers(nn.Module):
    """The parts of a nanoGPT (Karpathy 2022) and how it draws weights: N(0, 0.02), scaled projections."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(config.d_vocab, config.d_model), nn.Embedding(config.n_ctx, config.d_model)
        self.h = nn.ModuleList(Block(config.d_model, config.n_head) for _ in range(config.n_layer))
        self.ln_f, self.lm_head = nn.LayerNorm(config.d_model), nn.Linear(config.d_model, config.d_vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(initialize)
        for name, weight in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.n_layer))

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


def initialize(part: nn.Module) -> None:
    if isinstance(part, nn.Linear | nn.Embedding):
        nn.init.normal_(part.weight, std=0.02)
    if isinstance(part, nn.Linear) and part.bias is not None:
        nn.init.zeros_(part.bias)


class NanoGPT(Layers):
    """It states its configuration, from which copies are made."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.config = config


class Initializing(Layers):
    """It states how it draws the weights of each part."""

    def _init_weights(self, part: nn.Module) -> None:
        initialize(part)


class GRU(nn.Module):
    """It states nothing: its weights are torch's own."""

    def __init__(self, d_vocab: int, d_model: int = 32) -> None:
        super().__init__()
        self.embed, self.unembed = nn.Embedding(d_vocab, d_model), nn.Linear(d_model, d_vocab)
        self.layer = nn.GRU(d_model, d_model, batch_first=True)

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        logits: Tensor = self.unembed(self.layer(self.embed(tokens))[0])
        return logits


def answer_of(model: Model, task: WindTunnel, *, n: int, seed: int) -> Answer:
    answer = bayesgeom.diagnose(model, task, n=n, seed=seed, n_untrained=1, probes=["calibration"]).answer
    assert answer is not None and answer.n_copies == N_COPIES and 0 <= answer.untrained_level < 1
    return answer


def rebuilt(d_vocab: int) -> Model:
    return bayesgeom.wrap(GRU(d_vocab), blocks="layer", rebuild=lambda: GRU(d_vocab))


def transformer(d_vocab: int) -> Model:
    sizes = bayesgeom.TransformerConfig(d_vocab=d_vocab, n_ctx=32, n_layers=2, n_heads=2, d_model=32, d_mlp=64)
    return bayesgeom.as_model(sizes.build(seed=torch.initial_seed()))


@pytest.mark.parametrize("kind", [NanoGPT, Initializing, Layers])
@pytest.mark.parametrize(
    "seeds", [[1], pytest.param(range(12), marks=pytest.mark.slow)], ids=["one", "twelve"]
)  # of 12, one untrained network of 100 would be called partly by the level that one in 1,000 exceeds
def test_no_untrained_nano_gpt_is_partly_right(seeds: Sequence[int], kind: Callable[[GPTConfig], nn.Module]) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        model = bayesgeom.wrap(kind(GPTConfig(d_vocab=MESS3.d_vocab, n_ctx=MESS3.n_pos)), blocks="h", attn="attn")
        answer = answer_of(model, MESS3, n=48, seed=seed)
        assert answer.verdict not in BETTER and not answer.explains
        assert float(answer.gap_closed) > 0.2, "single untrained networks close a part of the gap here"


@pytest.mark.slow
@pytest.mark.parametrize("build", [transformer, rebuilt])
def test_of_120_untrained_networks_one_at_most_is_partly_right(build: Callable[[int], Model]) -> None:
    found = []
    for task in TASKS:
        for seed in range(12):
            torch.manual_seed(seed)
            found.append(answer_of(build(task.d_vocab), task, n=48, seed=seed).verdict in BETTER)
    assert len(found) == 60 and sum(found) <= 1


SHAPES = ("mess3-small", "dice-lstm", "dice-transformer", "sticky-small")
SHAPES += ("rrxor-lstm", "change-point-transformer", "repeats-mamba")
CLAIMS = {*BETTER, Verdict.YES, Verdict.TRANSPORTS, Verdict.IN_PART, Verdict.CAUSAL}


def claims(name: str, seed: int) -> list[str]:
    """The verdicts of an untrained network of a shipped shape that say that something is there."""
    model = bayesgeom.load(name)
    found = bayesgeom.diagnose(model.untrained_copy(seed), model.task, n=96, seed=seed, ablations=True)
    lines = [(report.name, line.label, line.verdict) for report in found.values() for line in report.headlines()]
    ablation = found.get("ablation")
    matters = [("ablation", "matters", "yes")] if ablation is not None and ablation.n_mattering else []
    assert found.answer is not None
    said = [("answer", "", str(found.answer.verdict)), *lines, *matters]
    return [f"{name} {seed}: {' '.join(line)}" for line in said if line[-1] in CLAIMS]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_headlines_of_untrained_networks_claim_nothing() -> None:
    found = [claim for seed in (101, 102) for name in SHAPES for claim in claims(name, seed)]
    assert len(found) <= 2, found


def test_a_trained_network_has_claims() -> None:
    probes = ["calibration", "evidence_response"]
    found = bayesgeom.diagnose("mess3-small", n=96, n_untrained=3, ablations=True, probes=probes)
    assert {line.verdict for report in found.values() for line in report.headlines()} >= {"yes", Verdict.TRANSPORTS}
    assert found["ablation"].n_mattering and found["ablation"].kl_increase_bits.baselines


def test_a_module_of_unknown_initialization_says_that_weights_were_permuted() -> None:
    d_vocab = MESS3.d_vocab
    found = bayesgeom.diagnose(bayesgeom.wrap(GRU(d_vocab), blocks="layer"), MESS3, n=16, n_untrained=1)
    assert "permuted weights. Declare rebuild=lambda: …" in found.skipped["initialization"]
    known = bayesgeom.diagnose(rebuilt(d_vocab), MESS3, n=16, n_untrained=1)
    assert "initialization" not in known.skipped


def test_a_permuted_copy_has_the_entries_of_each_matrix_in_another_order() -> None:
    model = bayesgeom.wrap(GRU(5), blocks="layer")
    one, again, other = (model.permuted_copy(seed) for seed in (1, 1, 2))
    assert one is not None and again is not None and other is not None
    for name, weight in model.module.state_dict().items():
        copies = [copy.module.state_dict()[name] for copy in (one, again, other)]
        assert torch.equal(copies[0], copies[1])
        assert torch.equal(*(values.flatten().sort()[0] for values in (copies[0], weight)))
        assert torch.equal(copies[0], weight) == torch.equal(copies[0], copies[2]) == (weight.ndim == 1)


def test_a_module_is_built_from_its_configuration_unless_that_gives_the_same_weights() -> None:
    config = GPTConfig(d_vocab=3, n_ctx=16)
    stated = bayesgeom.wrap(NanoGPT(config), blocks="h", attn="attn")
    assert stated.permuted_copy(1) is None
    spreads = [stated.untrained_copy(seed).module.state_dict()["h.0.c_proj.weight"].std().item() for seed in (1, 2)]
    assert spreads[0] != spreads[1] and spreads == pytest.approx([0.01] * 2, rel=0.1), "0.02 / √(2 · 2 layers)"

    class Seeded(NanoGPT):
        def __init__(self, config: GPTConfig) -> None:
            torch.manual_seed(0)
            super().__init__(config)

    class Other(NanoGPT):
        def __init__(self, config: GPTConfig, size: int) -> None:
            super().__init__(config)

    for module in (Seeded(config), Other(config, 3)):
        assert bayesgeom.wrap(module, blocks="h", attn="attn").permuted_copy(1) is not None


@pytest.mark.parametrize("n_untrained", [0, 2])
def test_without_copies_nothing_is_compared(n_untrained: int) -> None:
    """A function has none, and none are asked for with n_untrained=0."""
    model = transformer(MESS3.d_vocab)
    subject = model if not n_untrained else model.module.forward
    found = bayesgeom.diagnose(subject, MESS3, n=16, n_untrained=n_untrained, probes=["calibration"])
    assert found.answer is not None and found.answer.n_copies == 0 and math.isnan(found.answer.untrained_level)
    assert found.answer.verdict not in BETTER and not found["calibration"].gap_closed_by_copies.size


def test_the_shares_of_copies_are_those_of_the_same_sequences_by_hand() -> None:
    model = transformer(MESS3.d_vocab)
    found = bayesgeom.diagnose(model, MESS3, n=200, seed=3, n_untrained=1, probes=["calibration"])
    report, alone = found["calibration"], []
    for index in range(N_COPIES):
        copy = model.untrained_copy(derived_seed(3, Branch.UNTRAINED, index))
        alone.append(bayesgeom.diagnose(copy, MESS3, n=192, seed=3, n_untrained=0, probes=["calibration"]))
    shares = [own["calibration"].gap_closed.value[0] for own in alone]
    np.testing.assert_allclose(report.gap_closed_by_copies, shares, rtol=1e-6)
    assert {own["calibration"].references[0] for own in alone} == {report.references[0]}


@pytest.mark.exhaustive
def test_jobs_measure_the_same_copies(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        batch = Batch(executor=pool, folder=tmp_path)
        sent = bayesgeom.diagnose("mess3-small", n=16, n_untrained=2, probes=["calibration"], executor=batch)
    here = bayesgeom.diagnose("mess3-small", n=16, n_untrained=2, probes=["calibration"])
    shares = [found["calibration"].gap_closed_by_copies for found in (sent, here)]
    np.testing.assert_allclose(*shares, rtol=1e-6)
    assert len(shares[0]) == N_COPIES and len(list(tmp_path.glob("*/result.safetensors"))) == N_COPIES
