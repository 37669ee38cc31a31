"""`wrap(net)` alone: the parts of modules as people write them, attention after its rotation, copies, bad input."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, NoCopy
from bayesgeom.core.run import ATTN_OUT, K_ROT, MLP_POST, PATTERN, Q_ROT, RESID_POST, RESID_PRE, K, Q, Site, V, Z
from bayesgeom.monitor import Monitor, Settings
from tests.models import own_modules
from tests.models.own_modules import HEADS, STYLES, VOCAB, WIDTH, NanoGPT, RMSNorm, Stacked, rotated_halves

TASK = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
DOCS = Path(__file__).parents[2] / "docs" / "extending.md"
ATTENTION = (PATTERN, Q_ROT, K_ROT, V, Z)


def of_style(style: str) -> Any:
    torch.manual_seed(0)
    net = STYLES[style]().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():  # norms are not trivial, patterns are sharp
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return net


def recorded(model: Any, sites: tuple[Site, ...]) -> dict[Site, Tensor]:
    trials = every_position(3)
    return dict(model.run([trials], record=sites, n_recorded=3).recorded)


def every_position(n: int) -> Any:
    return bayesgeom.tasks.StickyMarkov(n_states=5, length=13).sample(n, seed=0)


def test_the_table_of_styles_is_current_and_most_are_complete() -> None:
    table = own_modules.table()
    assert table in DOCS.read_text(encoding="utf-8"), "python -m tests.models.own_modules makes it"
    rows = table.splitlines()[2:]
    complete = [row for row in rows if row.count(" all ") + row.count(" it has none ") == 3]
    assert len(rows) >= 12 and len(complete) >= len(rows) - 2


def rotated_by_hand(x: Tensor, *, is_paired: bool) -> Tensor:
    """Heads with axes batch, position, head, width, turned one pair of coordinates after the other."""
    half, out = x.shape[-1] // 2, x.clone()
    for pos in range(x.shape[1]):
        for at in range(half):
            one, other = (2 * at, 2 * at + 1) if is_paired else (at, at + half)
            angle = pos / 10.0 ** (at / half)
            a, b = x[:, pos, :, one], x[:, pos, :, other]
            out[:, pos, :, one] = a * math.cos(angle) - b * math.sin(angle)
            out[:, pos, :, other] = b * math.cos(angle) + a * math.sin(angle)
    return out


def heads_by_hand(attention: Any, x: Tensor) -> dict[Site, Tensor]:
    """Attention of `GroupedAttention`, one head and one query after the other."""
    family, style = attention.family, attention.style
    q, k, v = (w(x).unflatten(-1, (-1, 6)) for w in (attention.wq, attention.wk, attention.wv))
    if "q_norm" in attention._modules:
        q, k = attention.q_norm(q), attention.k_norm(k)
    q, k = (rotated_by_hand(own, is_paired=style == "einsum") for own in (q, k))
    scale, n_pos = 0.3 if style == "fused" else 6**-0.5, x.shape[1]
    pattern, z = torch.zeros(len(x), 4, n_pos, n_pos), torch.zeros_like(q)
    for head in range(4):
        for pos in range(n_pos):
            first = max(0, pos - 3) if (family, style) == ("gemma", "fused") else 0
            scores = scale * (q[:, None, pos, head] * k[:, first : pos + 1, head // 2]).sum(-1)
            scores = 2 * (scores / 2).tanh() if (family, style) == ("gemma", "matmul") else scores
            pattern[:, head, pos, first : pos + 1] = scores.softmax(-1)
            z[:, pos, head] = (pattern[:, head, pos, :, None] * v[:, :, head // 2]).sum(1)
    return {Q_ROT: q, K_ROT: k, V: v, Z: z, PATTERN: pattern}


@pytest.mark.parametrize("style", [style for style in STYLES if style.startswith(("Llama", "Qwen", "Gemma"))])
def test_heads_are_those_computed_by_hand(style: str) -> None:
    net = of_style(style)
    found = recorded(bayesgeom.wrap(net), (RESID_PRE, *ATTENTION))
    for layer, block in enumerate(net.layers):
        named = dict(block.named_children())
        norm = named["norms"]["input"] if style.startswith("Gemma") else named["attention_norm"]
        attention = named.get("self_attn", named.get("attention"))
        with torch.no_grad():
            expected = heads_by_hand(attention, norm(found[RESID_PRE][layer]))
        for site in ATTENTION:
            torch.testing.assert_close(found[site][layer], expected[site], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("style", [style for style in STYLES if style.startswith(("nanoGPT", "minGPT", "GPT-2"))])
def test_heads_of_two_styles_of_gpt_are_those_computed_by_hand(style: str) -> None:
    net = of_style(style)
    found = recorded(bayesgeom.wrap(net), (RESID_PRE, Q, K, *ATTENTION))
    block = next(part for name, part in net.named_modules() if name.endswith(("h.0", "layers.0")))
    fused = next(part for name, part in block.named_modules() if name.endswith("c_attn"))
    with torch.no_grad():
        q, k, v = (x.unflatten(-1, (HEADS, -1)) for x in fused(block.ln_1(found[RESID_PRE][0])).chunk(3, dim=-1))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(WIDTH // HEADS)
    pattern = scores.masked_fill(torch.ones(13, 13, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
    expected = {Q: q, K: k, Q_ROT: q, K_ROT: k, V: v, PATTERN: pattern, Z: z}
    for site, values in expected.items():
        torch.testing.assert_close(found[site][0], values, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("style", ["Llama, fused", "Qwen, matmul", "Gemma, matmul", "Gemma, fused", "Llama, einsum"])
def test_edits_of_heads_have_the_effect_of_other_weights(style: str) -> None:
    """Zero queries, values and outputs are those of zero matrices, and an equal pattern changes nothing."""
    from bayesgeom.models.base import hooked_sites

    net, trials = of_style(style), every_position(3)
    model = bayesgeom.wrap(net)
    attention = next(part for name, part in net.layers[0].named_children() if "att" in name and "norm" not in name)
    plain = model.logits(trials)
    with hooked_sites(model, {(PATTERN, 0): torch.clone}):
        torch.testing.assert_close(model.logits(trials), plain, atol=1e-4, rtol=1e-4)
    for site, matrix in ((V, "wv"), (Z, "wo"), (Q_ROT, "wq"), (K_ROT, "wk"), (K, "wk")):
        with hooked_sites(model, {(site, 0): torch.zeros_like}):
            edited = model.logits(trials)
        weights = [(own, own.detach().clone()) for own in getattr(attention, matrix).parameters()]
        with torch.no_grad():
            for parameter, _ in weights:
                parameter.zero_()
            torch.testing.assert_close(edited, model.logits(trials), atol=1e-4, rtol=1e-4)
            assert float((edited - plain).abs().max()) > 0.01
            for parameter, former in weights:
                parameter.copy_(former)


def test_sites_are_those_of_a_hugging_face_model() -> None:
    import transformers

    sizes = {"vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2, "head_dim": 6}
    config = transformers.Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)
    torch.manual_seed(0)
    hf = transformers.Qwen3ForCausalLM(config).eval()
    ours, theirs = bayesgeom.wrap(hf), bayesgeom.as_model(hf)
    sites = (RESID_PRE, RESID_POST, ATTN_OUT, MLP_POST, Q, K, *ATTENTION)
    one, other = recorded(ours, sites), recorded(theirs, sites)
    for site in sites:
        torch.testing.assert_close(one[site], other[site], atol=1e-5, rtol=1e-4)
    assert ours.spec.score_scale == pytest.approx(theirs.spec.score_scale)
    assert ours.untrained_copy(3).sites == ours.sites


def test_every_probe_of_attention_and_every_battery_runs_on_what_is_found() -> None:
    model = bayesgeom.wrap(of_style("Llama, fused"))
    diagnosis = bayesgeom.diagnose(model, TASK, n=32, n_untrained=1)
    assert {"key_overlap", "qk_alignment", "attention_entropy", "value_manifold"} <= set(diagnosis)
    assert bayesgeom.ablate(model, TASK, n=8, battery="heads").n == 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("style", ["nanoGPT", "TransformerEncoder", "MultiheadAttention, parallel"])
def test_other_precisions_have_the_same_sites(style: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = bayesgeom.wrap(STYLES[style]().to(dtype))
    assert {RESID_PRE, RESID_POST, ATTN_OUT, MLP_POST, Q, K, *ATTENTION} <= model.sites, model.withheld


def test_what_was_found_is_printed() -> None:
    printed = str(bayesgeom.wrap(of_style("nanoGPT"))).splitlines()
    assert printed[0].startswith("WrappedModel(NanoGPT, 2 layers, 2 heads")
    assert any(line.split()[:2] == ["transformer.h.*.mlp.c_proj", "mlp_post"] for line in printed)
    assert printed[-1] == "Logits are those of net(ids, ids)."


class Own(nn.Module):
    """Attention that calls no function of torch in which heads are seen."""

    def __init__(self, *, is_rotated: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mlp, self.is_rotated = nn.Linear(WIDTH, WIDTH), is_rotated
        self.attn = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (own(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for own in (self.q, self.k, self.v))
        if self.is_rotated:
            q, k = rotated_halves(q), rotated_halves(k)
        weights = ((q[:, :, :, None] * k[:, :, None]).sum(-1) / math.sqrt(q.shape[-1])).exp().tril()
        z = (weights[..., None] * v[:, :, None]).sum(3) / weights.sum(-1, keepdim=True)
        x = x + self.attn(self.out(z.transpose(1, 2).flatten(2)))
        return torch.add(x, self.mlp(x))


def rotary(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    q, k = (rotated_halves(x.transpose(1, 2)).transpose(1, 2) for x in (q, k))
    return q, k


@pytest.mark.parametrize("is_rotated", [False, True])
def test_attention_that_is_not_seen_is_declared_with_its_rotation(*, is_rotated: bool) -> None:
    torch.manual_seed(0)
    net = Stacked(lambda: Own(is_rotated=is_rotated), nn.LayerNorm(WIDTH), positions=False)
    assert "no attention was seen" in bayesgeom.wrap(net).withheld[PATTERN]
    parts: dict[str, Any] = {name: name for name in ("attn", "mlp", "q", "k", "v", "out")}
    turned: dict[str, Any] = {"rotary": rotary} if is_rotated else {}
    model = bayesgeom.wrap(net, **parts, n_heads=HEADS, **turned)
    assert {Q, K, V, Z, PATTERN, Q_ROT, K_ROT} <= model.sites
    found = recorded(model, (Q_ROT, K_ROT, Q, K, PATTERN))
    q, k = rotary(found[Q][0], found[K][0]) if is_rotated else (found[Q][0], found[K][0])
    torch.testing.assert_close((found[Q_ROT][0], found[K_ROT][0]), (q, k))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(WIDTH // HEADS)
    expected = scores.masked_fill(torch.ones(13, 13, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    torch.testing.assert_close(found[PATTERN][0], expected, atol=1e-5, rtol=1e-4)
    if is_rotated:
        assert "rotary=" in bayesgeom.wrap(net, **parts, n_heads=HEADS).withheld[K]
    with pytest.raises(InvalidArgument, match="heads need their number"):
        bayesgeom.wrap(net, **parts)
    with pytest.raises(InvalidArgument, match="do not fit a width of 20"):
        bayesgeom.wrap(net, **parts, n_heads=3)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # of torch
@pytest.mark.parametrize("how", ["whole", "in place", "blocks"])
def test_a_compiled_module_is_measured_as_it_is_written_and_says_so(how: str) -> None:
    net = of_style("Llama, fused")
    plain = recorded(bayesgeom.wrap(net), (K_ROT, PATTERN))
    compiled: Any = torch.compile(net) if how == "whole" else net
    if how == "in place":
        net.compile()
    if how == "blocks":
        net.layers[1] = torch.compile(net.layers[1])
    with pytest.warns(UserWarning, match="Stacked is compiled: it is measured as it is written"):
        model = bayesgeom.wrap(compiled)
    assert model.spec.name == "Stacked" and model.untrained_copy(0).sites == model.sites
    for site, values in recorded(model, (K_ROT, PATTERN)).items():
        torch.testing.assert_close(values, plain[site])
    native = bayesgeom.load("mess3-small").module
    native.compile()
    with pytest.warns(UserWarning, match="Transformer is compiled"):
        other = bayesgeom.as_model(native)
    effects = [
        bayesgeom.ablate(own, bayesgeom.tasks.Mess3(length=9), n=4) for own in (other, bayesgeom.load("mess3-small"))
    ]
    torch.testing.assert_close(*(torch.as_tensor(effect.kl_increase_bits.value) for effect in effects))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


def test_copies_are_made_by_the_class_with_the_config_of_the_module() -> None:
    torch.manual_seed(0)
    net = NanoGPT(SimpleNamespace(flash=True))
    copy: Any = bayesgeom.wrap(net).untrained_copy(1).module
    assert copy.lm_head.weight is copy.transformer.wte.weight and not torch.equal(
        copy.lm_head.weight, net.lm_head.weight
    )
    assert float(copy.lm_head.weight.detach().std()) == pytest.approx(0.2, rel=0.2), "as _init_weights draws them"
    again: Any = bayesgeom.wrap(net).untrained_copy(1).module
    assert torch.equal(again.lm_head.weight, copy.lm_head.weight)


class Seeded(nn.Module):
    """A network whose constructor takes a seed, or sets one."""

    def __init__(self, config: Any, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed if config.takes_seed else 0)
        self.config, self.embed, self.head = config, nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)[0]
        return torch.as_tensor(self.head(x))


@pytest.mark.parametrize("takes_seed", [False, True])
def test_copies_differ_where_a_constructor_has_a_seed_of_its_own(*, takes_seed: bool) -> None:
    model = bayesgeom.wrap(Seeded(SimpleNamespace(takes_seed=takes_seed)))
    weights = [model.untrained_copy(seed).module.get_parameter("head.weight") for seed in (1, 2, 1)]
    assert not torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])


def test_copies_are_reset_by_init_weights_where_the_class_needs_other_arguments() -> None:
    class Initialized(Stacked):
        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, Scaled):
                nn.init.constant_(module.gain, 0.1)
            if isinstance(module, Initialized) and module.pos_emb is not None:
                nn.init.normal_(module.pos_emb, std=0.02)

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Scaled())

    torch.manual_seed(0)
    net = Initialized(block, RMSNorm(WIDTH, 1.0), positions=True)
    with torch.no_grad():
        for part in net.parameters():
            part.add_(1.0)
    copy: Any = bayesgeom.wrap(net).untrained_copy(0).module
    assert bool((copy.layers[0][1].gain == 0.1).all()) and float(copy.pos_emb.detach().std()) < 0.03
    assert bool((copy.norm.weight == 0).all()), "the weight of a norm that multiplies by one plus its weight"
    with pytest.raises(NoCopy, match=r"layers\.0\.1\.gain is a weight of a part without reset_parameters.*rebuild="):
        bayesgeom.wrap(Stacked(block, RMSNorm(WIDTH), positions=False)).untrained_copy(0)


def test_norms_without_a_reset_get_the_weights_that_make_them_norms() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.scale = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return functional.layer_norm(x, (WIDTH,), self.scale, self.shift)

    net = Stacked(lambda: nn.GRU(WIDTH, WIDTH, batch_first=True), Both(), positions=False)
    net.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
    with torch.no_grad():
        for part in net.norm.parameters():
            part.add_(3.0)
    copy: Any = bayesgeom.wrap(net).untrained_copy(0).module
    assert bool((copy.norm.scale == 1).all()) and bool((copy.norm.shift == 0).all())


def test_a_copy_whose_functions_refer_to_the_original_is_none() -> None:
    torch.manual_seed(0)
    net = Stacked(own_modules.MinBlock, nn.LayerNorm(WIDTH), positions=False)
    with pytest.raises(NoCopy, match=r"copies do not compute alike.*refers to parts of the original.*rebuild="):
        bayesgeom.wrap(net).untrained_copy(0)


class TwoStacks(Stacked):
    def __init__(self) -> None:
        super().__init__(lambda: own_modules.LlamaBlock("llama", "fused"), nn.LayerNorm(WIDTH), positions=False)
        self.late = nn.ModuleList(own_modules.LlamaBlock("llama", "fused") for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok_embeddings(ids)
        for layer in (*self.layers, *self.late):
            x = layer(x)
        return torch.as_tensor(self.output(x))


class NoStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)
        self.spare = nn.ModuleList(nn.Linear(2, 3) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.as_tensor(self.table(ids))


def changed(change: Callable[[Tensor], Any]) -> nn.Module:
    net = of_style("Llama, fused")
    net.output.register_forward_hook(lambda _part, _given, output: change(output))
    return nn.Sequential(net)


BAD: list[tuple[Callable[[], nn.Module], dict[str, Any], str]] = [
    (TwoStacks, {}, r"several stacks of blocks: late\.0 to late\.2, layers\.0 to layers\.1.*module lists: layers"),
    (
        NoStack,
        {},
        r"no modules of NoStack hand a stream.*Its module lists: spare \(2 Linear\)\. Name them with blocks=",
    ),
    (lambda: of_style("nanoGPT"), {"blocks": "h"}, r"module lists: transformer\.h"),
    (lambda: changed(lambda x: x + x.flip(1)), {}, "sees later tokens"),
    (lambda: changed(lambda x: x - x.mean(0)), {}, "mixes the sequences of a batch"),
    (lambda: changed(lambda x: x.softmax(-1)), {}, "returns probabilities, not logits"),
    (lambda: changed(lambda x: x.argmax(-1)), {}, "returned torch.int64"),
    (lambda: changed(lambda x: 1 / 0), {}, "ZeroDivisionError"),
]


@pytest.mark.parametrize(("make", "options", "says"), BAD)
def test_bad_input_gets_a_sentence_and_leaves_no_hook(
    make: Callable[[], nn.Module], options: dict[str, Any], says: str
) -> None:
    net = make()
    before = [(len(part._forward_hooks), len(part._forward_pre_hooks), part.training) for part in net.modules()]
    with pytest.raises(InvalidArgument, match=says) as refused:
        bayesgeom.wrap(net, **options)
    assert "\n" not in str(refused.value)
    if not options and "module lists" not in says:
        for other in (net, lambda ids: net(ids)):  # noqa: PLW0108  (people write it)
            with pytest.raises(InvalidArgument, match=says):
                bayesgeom.diagnose(other, TASK, n=8, n_untrained=0)
    assert before == [(len(part._forward_hooks), len(part._forward_pre_hooks), part.training) for part in net.modules()]
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("make", [lambda: of_style("nanoGPT"), lambda: of_style("GRU, two layers")])
def test_a_module_itself_has_what_wrap_finds(make: Callable[[], nn.Module]) -> None:
    net = make()
    bare, wrapped = bayesgeom.as_model(net), bayesgeom.wrap(net)
    assert bare.sites == wrapped.sites and bare.spec == wrapped.spec and str(bare) == str(wrapped)


@pytest.mark.parametrize("make", [NoStack, TwoStacks])
def test_where_no_stack_is_found_predictions_are_measured_and_wrap_is_named(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = make().train()
    before = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in net.modules()]
    diagnosis = bayesgeom.diagnose(net, TASK, n=16, n_untrained=2)
    assert {"calibration", "evidence_response", "relabeling"} <= {*diagnosis}
    assert "no stack of blocks was found: bayesgeom.wrap(net, blocks=…) adds" in diagnosis.skipped["belief_readout"]
    untrained = diagnosis["calibration"].gap_closed_by_copies
    assert len({*untrained}) == len(untrained) >= 2 and np.isfinite(untrained).all()
    model = bayesgeom.as_model(net)
    assert not model.sites and "Predictions only: no stack of blocks" in str(model) and "module lists: " in str(model)
    next(net.parameters()).data.add_(0.1)
    assert bayesgeom.as_model(model).spec.weights_hash != model.spec.weights_hash  # attached again
    watch = Monitor(net, TASK, every=1, settings=Settings(n=8))
    watch(1)
    report = watch.report()
    assert net.training and np.isfinite(report.kl_bits.value).all() and np.isnan(report.coverage.value).all()
    assert {level.name for level in report.kl_bits.baselines} == {"uniform predictor", "untrained network"}
    assert not report.attention_entropy_bits.baselines
    assert before == [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in net.modules()]


def test_a_monitor_needs_no_untrained_copy() -> None:
    net = of_style("Llama, fused")
    net.norm = Scaled()
    with TestCase().assertLogs("bayesgeom.monitor", logging.WARNING) as logged:
        watch = Monitor(net, TASK, every=1, settings=Settings(n=8))
    watch(1)
    assert "has no untrained baselines: norm.gain" in logged.output[0]
    assert [level.name for level in watch.report().kl_bits.baselines] == ["uniform predictor"]


def test_a_function_is_named_for_the_module_that_it_calls() -> None:
    net = of_style("Llama, fused")
    models = [bayesgeom.as_model(own) for own in (lambda ids: net(ids), net.forward)]  # noqa: PLW0108  (people write it)
    assert [(model.spec.name, model.spec.architecture) for model in models] == [("Stacked", "Stacked")] * 2


class Deep(nn.Module):
    """Attention whose last projection is deeper in the block than its MLP."""

    def __init__(self, *, is_silent: bool) -> None:
        super().__init__()
        self.parts: Any = nn.ModuleDict({"qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH)})
        self.mlp = own_modules.NanoMLP()
        if is_silent:  # as at the initialization of many networks
            for part in (self.parts["out"], self.mlp.c_proj):
                nn.init.zeros_(part.weight)
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        heads = (own.unflatten(-1, (HEADS, -1)).transpose(1, 2) for own in self.parts["qkv"](x).chunk(3, dim=-1))
        z = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.parts["out"](z)
        return torch.add(x, self.mlp(x))


@pytest.mark.parametrize("is_silent", [False, True])
def test_attention_and_mlp_are_told_apart_by_when_they_run_and_without_any_output(*, is_silent: bool) -> None:
    torch.manual_seed(0)
    model = bayesgeom.wrap(Stacked(lambda: Deep(is_silent=is_silent), nn.LayerNorm(WIDTH), positions=False))
    lines = [line.split()[:2] for line in str(model).splitlines()]
    assert ["layers.*.parts.out", "attn_out"] in lines and ["layers.*.mlp.c_proj", "mlp_post"] in lines
    assert {ATTN_OUT, MLP_POST, Q, K, *ATTENTION} <= model.sites
