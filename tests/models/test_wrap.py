"""`bayesgeom.wrap`: own modules of every layout give proven sites, the same numbers as by hand, and clear refusals."""

import math
from collections.abc import Callable
from operator import attrgetter, itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesgeom
from bayesgeom.core.errors import BayesGeomError, InvalidArgument, NoCopy, NonFinite, TaskMismatch
from bayesgeom.core.run import ATTN_OUT, K_ROT, MLP_OUT, MLP_POST, PATTERN, Q_ROT, RESID_POST, RESID_PRE, K, Q, V, Z
from bayesgeom.models.adapters.wrapping import WrappedModel
from tests.shape_checks import ARE_ON

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


def test_hidden_units_need_the_last_projection_of_the_mlp() -> None:
    net, model = gpt(down="mlp.2")
    assert MLP_POST in model.sites and model.spec.d_mlp == 4 * WIDTH
    trials = TASK.sample(4, seed=0)
    run = model.run([trials], record=[MLP_POST], n_recorded=4)
    with torch.no_grad():
        x = net.wte(trials.tokens) + net.wpe(torch.arange(trials.tokens.shape[1]))
        units = net.h[0].mlp[:2](net.h[0].ln_2(x + net.h[0].attn(net.h[0].ln_1(x))))
    torch.testing.assert_close(run.at(MLP_POST)[0], units[:, trials.scored_positions()[0]], atol=1e-5, rtol=1e-5)
    report = bayesgeom.ablate(model, TASK, "neurons", n=8)
    assert set(report.kinds) == {"neuron"} and not report.inert.all()
    assert MLP_POST in gpt()[1].sites, "it is found as well"
    assert "down=… must be the last projection" in gpt(down="mlp.0")[1].withheld[MLP_POST]


def test_keys_that_are_no_rotation_of_a_projection_are_withheld_and_those_in_the_scores_stay() -> None:
    _, model = gpt(is_rotated=True)
    assert {Q, K} <= model.withheld.keys() and "|k| = |k_rot|" in model.withheld[K]
    printed = str(model.withheld).splitlines()
    assert len(printed) == len(set(model.withheld.values())) < len(model.withheld), "a line for each reason"
    assert {RESID_PRE, RESID_POST, ATTN_OUT, MLP_OUT, Q_ROT, K_ROT, V, PATTERN, Z} <= model.sites


def test_norms_after_the_sums_are_found_and_missing_ones_are_named() -> None:
    assert ATTN_OUT in gpt("post", attn=None, mlp=None)[1].sites
    assert "norms=" in gpt("post", attn="attn.c_proj")[1].withheld[ATTN_OUT], "nothing is found for another part"


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
    assert {Q, K, Q_ROT, K_ROT, V, Z, PATTERN} <= model.sites and model.spec.n_heads == HEADS
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
        bayesgeom.wrap(GPT(), forward=lambda net, ids: net(ids))


@pytest.mark.parametrize("n_heads", [3, -1])
def test_a_number_of_heads_that_attention_does_not_have_is_refused(n_heads: int) -> None:
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

    with pytest.raises(NoCopy, match=r"1\.scale is a weight of a part without.*rebuild="):
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
    assert "pass its module itself" in ours.skipped["belief_readout"]


class Foreign:
    """An array of another library, which says nothing but what it is asked."""

    def __init__(self, array: Any) -> None:
        self._array = array


class WithArray(Foreign):
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:  # as NumPy asks for
        array: np.ndarray = self._array
        return array


class WithDLPack(Foreign):
    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def read_only(logits: Tensor) -> np.ndarray:
    array = logits.numpy()[..., ::-1].copy()[..., ::-1]
    array.setflags(write=False)
    return array


RETURNED: list[Callable[[Tensor], Any]] = [
    lambda logits: logits.numpy(),
    lambda logits: logits.double().numpy(),
    read_only,
    lambda logits: WithArray(read_only(logits)),
    WithDLPack,
    lambda logits: (None, WithDLPack(logits)),
    lambda logits: {"logits": logits.log_softmax(-1).numpy()},
    lambda logits: logits.log_softmax(-1),
]


@pytest.mark.parametrize("change", RETURNED)
def test_functions_may_return_arrays_of_other_libraries_and_log_probabilities(change: Callable[[Tensor], Any]) -> None:
    net, trials = grouped().eval(), TASK.sample(7, seed=0)
    expected = bayesgeom.as_model(net).logits(trials).log_softmax(-1)
    for own in (lambda ids: change(net(ids).detach()), grouped(lambda logits: change(logits.detach()))):
        found = bayesgeom.as_model(own).logits(trials)
        assert isinstance(found, Tensor)
        torch.testing.assert_close(found.float().log_softmax(-1), expected, atol=1e-5, rtol=1e-5)


def test_an_array_whose_memory_a_function_uses_again_is_copied() -> None:
    net, buffers = grouped().eval(), dict[tuple[int, ...], np.ndarray]()

    def reusing(ids: Tensor) -> np.ndarray:
        logits = net(ids).detach().numpy()
        logits = logits + logits[:, ::-1]  # it sees later tokens
        buffer = buffers.setdefault(logits.shape, np.empty_like(logits))
        buffer[...] = logits
        return buffer

    with pytest.raises(InvalidArgument, match="sees later tokens"):
        bayesgeom.as_model(reusing)


def test_a_log_probability_of_minus_infinity_is_no_fault_where_rows_are_normalized() -> None:
    task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=4)

    def uniform(ids: Tensor) -> np.ndarray:
        p = np.full((*ids.shape, task.d_vocab), 0.0)
        p[..., task.sample(1, seed=0).answers] = 1 / 5
        with np.errstate(divide="ignore"):
            return np.log(p)

    report = bayesgeom.diagnose(uniform, task, n=32, n_untrained=0, probes="calibration")["calibration"]
    uniform_kl = report.reference_kl_bits[report.references.index("uniform")]
    assert float(report.kl_bits) == pytest.approx(uniform_kl, rel=1e-6) and float(report.off_answer_prob) == 0
    with pytest.raises(NonFinite):
        bayesgeom.as_model(lambda ids: uniform(ids) + 1)  # no log-probabilities


class Grouped(nn.Module):
    """Four query heads on two key-value heads, with projections of their own."""

    def __init__(self, *, n_kv: int = 2) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, 4 * n_kv) for _ in range(2))
        self.drop, self.mlp = nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)
        self.attn = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (own(x).unflatten(-1, (-1, 4)).transpose(1, 2) for own in (self.q, self.k, self.v))
        k, v = (own.repeat_interleave(4 // k.shape[1], dim=1) for own in (k, v))
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.attn(self.drop(self.out(z)))
        return torch.add(x, self.mlp(x))


def grouped(change: Callable[[Tensor], Any] = lambda logits: logits, *, n_kv: int = 2) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
            self.blocks = nn.Sequential(Grouped(n_kv=n_kv), Grouped(n_kv=n_kv))

        def forward(self, ids: Tensor) -> Any:
            return change(self.head(self.blocks(self.embed(ids))))

    torch.manual_seed(0)
    return Net()


PARTS: dict[str, Any] = {"blocks": "blocks", "attn": "attn", "mlp": "mlp", "q": "q", "k": "k", "v": "v", "out": "out"}


def test_declared_numbers_of_heads_are_those_of_attention() -> None:
    model = bayesgeom.wrap(grouped(), **PARTS, n_heads=4, n_kv_heads=2)
    assert {Q, K, V, Z, PATTERN} <= model.sites
    for n_heads, n_kv_heads in ((4, 4), (4, 1), (4, 3), (2, 2)):
        with pytest.raises(
            InvalidArgument, match=r"attention runs with 4 heads and 2 key-value heads, not .*: check n_heads"
        ):
            bayesgeom.wrap(grouped(), **PARTS, n_heads=n_heads, n_kv_heads=n_kv_heads)


def test_a_wrong_output_projection_is_named_and_a_missing_one_is_found() -> None:
    known = {own: part for own, part in PARTS.items() if own != "out"}
    assert {Q, K, V, Z} <= bayesgeom.wrap(grouped(n_kv=4), **known, n_heads=4).sites
    with pytest.raises(InvalidArgument, match="failed on token ids"):
        gpt(out="mlp.2")


def test_dropout_is_off_and_the_mode_is_left_as_it_was() -> None:
    net = grouped().train()
    model = bayesgeom.wrap(net, **PARTS, n_heads=4, n_kv_heads=2)
    assert {ATTN_OUT, Z} <= model.sites and net.training


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: (logits, None),
        lambda logits: (logits.mean(), logits),
        lambda logits: [logits],
        lambda logits: {"loss": None, "logits": logits},
    ],
)
def test_logits_are_found_in_what_a_module_returns(change: Callable[[Tensor], Any]) -> None:
    trials = TASK.sample(3, seed=0)
    plain, packed = (bayesgeom.wrap(grouped(own), blocks="blocks") for own in (lambda logits: logits, change))
    assert torch.equal(plain.logits(trials), packed.logits(trials))


REFUSED: list[tuple[Callable[[Tensor], Any], str]] = [
    (lambda logits: logits.softmax(-1), "returns probabilities, not logits: return their logarithms"),
    (lambda logits: logits.detach().numpy()[:, 0], r"returned torch.float32 of shape \(1, 10\)"),
    (lambda logits: logits[:, -1], r"float32 of shape \(1, 10\) for token ids of shape \(1, 2\)"),
    (lambda logits: logits.transpose(1, 2), r"float32 of shape \(1, 10, 2\)"),
    (lambda logits: logits.round().long(), "returned torch.int64"),
    (lambda logits: None, "returned a NoneType"),
    (lambda logits: logits + torch.randn(logits.shape), "other logits for the same tokens, by .* switch dropout"),
    (lambda logits: logits + logits.flip(1), "sees later tokens"),
    (lambda logits: logits + logits.mean(0), "mixes the sequences of a batch"),
    (lambda logits: 1 / 0, "failed on token ids .*: ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize(("change", "says"), REFUSED)
def test_other_outputs_are_refused_of_a_module_and_of_a_function(change: Callable[[Tensor], Any], says: str) -> None:
    net = grouped(change).eval()
    makes: list[Callable[[], Any]] = [
        lambda: bayesgeom.wrap(net, blocks="blocks"),
        lambda: bayesgeom.as_model(net.forward),
    ]
    for make in makes:
        with pytest.raises(InvalidArgument, match=says):
            make()
    with pytest.raises(NonFinite, match="NaN"):
        bayesgeom.as_model(grouped(lambda logits: logits * torch.nan).eval().forward)


def test_a_class_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="the class Grouped: pass an instance"):
        bayesgeom.as_model(Grouped)  # type: ignore[arg-type]
    if not ARE_ON:  # checks of annotations would refuse first
        with pytest.raises(InvalidArgument, match="pass an instance"):
            bayesgeom.wrap(Grouped, blocks="blocks")  # type: ignore[arg-type]


def test_an_embedding_of_positions_bounds_them_and_another_table_is_named() -> None:
    long, net = bayesgeom.tasks.StickyMarkov(n_states=5, length=20), GPT()
    assert bayesgeom.wrap(net).spec.n_ctx == 16
    with pytest.raises(TaskMismatch, match="positions for 16"):
        bayesgeom.diagnose(bayesgeom.wrap(net), long, n=8, n_untrained=0)
    table = torch.zeros(16, WIDTH)
    net.wpe = Table(table)
    with pytest.raises(InvalidArgument, match=r"shape \(.*, 20\): RuntimeError|IndexError: .* Declare n_ctx="):
        bayesgeom.diagnose(bayesgeom.wrap(net), long, n=8, n_untrained=0)


class Table(nn.Module):
    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table

    def forward(self, at: Tensor) -> Tensor:
        return self.table[at]


@pytest.mark.parametrize(
    ("rebuild", "says"),
    [
        (lambda: 1 / 0, "rebuild=… failed: ZeroDivisionError"),
        (lambda: nn.Linear(2, 2), "rebuild=… failed: returned a module with other weights"),
    ],
)
def test_a_wrong_rebuild_costs_the_baselines_alone(rebuild: Callable[[], Any], says: str) -> None:
    model = bayesgeom.wrap(grouped(), blocks="blocks", rebuild=rebuild)
    diagnosis = bayesgeom.diagnose(model, TASK, n=16, n_untrained=1)
    assert "belief_readout" in diagnosis and says in diagnosis.skipped["initialization"]


def test_every_function_takes_a_wrapped_module_or_refuses_in_one_sentence(tmp_path: Path) -> None:
    """Those that read weights, or runs, say what they need; the others measure."""
    model = bayesgeom.wrap(grouped(), **PARTS, n_heads=4, n_kv_heads=2)
    bare = grouped().eval().forward
    assert bayesgeom.intervene(model, TASK, subspace="covariance:belief", n=32).n == 32
    assert bayesgeom.length_generalization(bare, TASK, lengths=[4], n=8).n == 8
    bayesgeom.capture(model, TASK, out=tmp_path / "capture", n=8)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: bayesgeom.intervene(model, TASK, n=32), "name a subspace that is fitted to activations"),
        (lambda: bayesgeom.gradient_laws(model, TASK, n=8), "only transformers of bayesgeom and Hugging Face models"),
        (lambda: bayesgeom.ablate(bare, TASK, n=8), "pass its module itself"),
        (lambda: bayesgeom.capture(bare, TASK, out=tmp_path / "none", n=8), "provides no site to capture"),
        (lambda: bayesgeom.training_dynamics(model), r"runs must be str \| Path"),  # type: ignore[arg-type]
    ]
    for refuse, says in refused:
        with pytest.raises(BayesGeomError, match=says):
            refuse()
    assert not (tmp_path / "none").exists()


class TokenShift(nn.Module):
    """An MLP that also reads the position before, as in RWKV."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mlp(x + functional.pad(x, (0, 0, 1, -1)))
        return out


SWAPPED: dict[str, dict[str, Any]] = {
    "alone": {"qkv": None, "out": None, "n_heads": 0},
    "heads": {"out": "attn.c_proj", "down": "mlp.2"},
    "down": {"qkv": None, "out": None, "n_heads": 0, "down": "mlp.2"},
}


@pytest.mark.parametrize("parts", SWAPPED)
@pytest.mark.parametrize("order", ["pre", "parallel"])
def test_attention_and_mlp_that_are_swapped_are_refused(order: str, parts: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"mlp=… of GPT returns what attention adds to the stream in h\.0.*swapped"
    ):
        gpt(order, **SWAPPED[parts], attn="mlp", mlp="attn")


def test_swapped_parts_are_found_in_any_layer_and_in_other_blocks() -> None:
    torch.manual_seed(0)
    net = GPT()
    nn.init.zeros_(net.h[0].attn.c_proj.weight)  # at initialization the first attention often adds nothing
    swapped = {"blocks": "h", "forward": lambda net, ids: net(ids, ids), "attn": "mlp", "mlp": "attn"}
    with pytest.raises(InvalidArgument, match=r"in h\.0.*swapped"):
        bayesgeom.wrap(net, **swapped)
    import transformers

    sizes = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 16}
    hugging = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    with pytest.raises(InvalidArgument, match="swapped"):
        bayesgeom.wrap(hugging, blocks="transformer.h", attn="mlp", mlp="attn")
    assert {ATTN_OUT, MLP_OUT} <= bayesgeom.wrap(hugging, blocks="transformer.h", attn="attn", mlp="mlp").sites


def test_parts_of_which_neither_or_both_mix_positions_are_no_swap() -> None:
    torch.manual_seed(0)
    shifted, silent = GPT(), GPT()
    for block in shifted.h:
        block.mlp = TokenShift(block.mlp)
    for parameter in silent.h.parameters():
        nn.init.zeros_(parameter)
    for net in (shifted, silent):
        model = bayesgeom.wrap(net, blocks="h", forward=lambda net, ids: net(ids, ids), attn="attn", mlp="mlp")
        assert {ATTN_OUT, MLP_OUT} <= model.sites, model.withheld


class Named(NamedTuple):
    weights: str
    out: Tensor


class Returning(nn.Module):
    """A part that returns its output in a container, as Hugging Face's attentions do."""

    def __init__(self, part: nn.Module, wrapped: Callable[[Tensor], Any], unwrapped: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.holder = nn.Module()
        self.holder.part = Container(part, wrapped)
        self.unwrapped = unwrapped

    def forward(self, x: Tensor) -> Tensor:
        return self.unwrapped(self.holder.part(x))


class Container(nn.Module):
    def __init__(self, part: nn.Module, wrapped: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.part, self.wrapped = part, wrapped

    def forward(self, x: Tensor) -> Any:
        return self.wrapped(self.part(x))


CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "named tuple": (lambda x: Named("none", x), lambda given: given.out),
    "list": (lambda x: [None, x], lambda given: given.pop()),
    "tuple": (lambda x: (x, None), lambda given: given[0]),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_parts_may_return_a_tensor_in_a_container(kind: str) -> None:
    _, plain = gpt()
    net, _ = gpt()
    for block in net.h:
        block.attn = Returning(block.attn, *CONTAINERS[kind])
    where: dict[str, Any] = {"attn": "attn.holder.part", "qkv": "attn.holder.part.part.c_attn"}
    where |= {"out": "attn.holder.part.part.c_proj", "mlp": "mlp", "n_heads": HEADS, "n_ctx": 16}
    model = bayesgeom.wrap(net, blocks="h", forward=lambda net, ids: net(ids, ids), **where)
    assert model.sites == plain.sites
    effects = [bayesgeom.ablate(own, TASK, "attention", n=8).kl_increase_bits.value for own in (model, plain)]
    assert (effects[0] == effects[1]).all() and abs(effects[0]).min() > 0


@pytest.mark.parametrize(("holder", "out"), [(dict, itemgetter("out")), (SimpleNamespace, attrgetter("out"))])
def test_a_part_that_returns_no_tensor_first_is_named(holder: type, out: Callable[[Any], Tensor]) -> None:
    net, _ = gpt()
    for block in net.h:
        block.attn = Returning(block.attn, lambda x: holder(out=x), out)
    with pytest.raises(InvalidArgument, match=rf"returns a {holder.__name__}: declare one with a tensor"):
        bayesgeom.wrap(net, blocks="h", forward=lambda net, ids: net(ids, ids), attn="attn.holder.part", mlp="mlp")
