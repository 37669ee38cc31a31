"""Path patching: a planted circuit is found exactly, and every edge equals a loop over hooks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bayesgeom
from bayesgeom import tasks
from bayesgeom.circuits.effects import effects_of, ranked
from bayesgeom.circuits.graph import N_LISTED, RANDOM, PathsReport
from bayesgeom.core.errors import InvalidArgument, TaskMismatch, UnknownName
from bayesgeom.core.torch_state import default_dtype
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.export import export_huggingface
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.models.resolve import load
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import Branch, derived_seed
from tests import families
from tests.circuits.planted import EDGES, induction
from tests.models.test_wrap import gpt

TASK, NARROW = tasks.Bijection(n_values=5, n_pairs=4), tasks.Bijection(n_values=5, n_pairs=3)
HEADS = ("embedding", "L0H0", "L0H1", "L0 mlp")
N = 9


@pytest.fixture(autouse=True)
def few_draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance levels are the larger part of tests whose edges are few."""
    if "chance" not in request.node.name:
        monkeypatch.setattr("bayesgeom.circuits.edges.N_DRAWS", 1)


def lively(seed: int = 0, **kinds: Any) -> Transformer:
    """A random transformer whose edges all matter."""
    config = TransformerConfig(
        d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=2, n_heads=3, d_model=18, d_mlp=11, **kinds
    )
    module, generator = Transformer(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            spread = 0.3 if parameter.ndim == 1 else 1.5 / parameter.shape[-1] ** 0.5
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return module


Hooks = dict[str, Callable[..., Tensor]]


class Loop:
    """Path patching by hooks of transformer-lens: a whole pass for each edge, written without the engine."""

    def __init__(self, module: Transformer, task: Any, seed: int = 0) -> None:
        self.module, self.trials = module, next(task.stream(N, seed=derived_seed(seed, Branch.TRIALS)))
        with torch.no_grad():
            _, self.cache = module.run_with_cache(self.trials.tokens)
            others = next(task.stream(256, seed=derived_seed(seed, 3)))
            rest = next(iter(list(task.stream(256, seed=derived_seed(seed, 3)))[1:]), None)
            tokens = torch.cat([others.tokens] + ([] if rest is None else [rest.tokens]))
            _, reference = module.run_with_cache(tokens)
            self.means = {name: own.mean(dim=0) for name, own in reference.items()}

    def written(self, sender: str, values: Any) -> Tensor:
        """What a sender writes, given activations by name."""
        if sender == "embedding":
            return values["blocks.0.hook_resid_pre"]
        layer = int(sender[1])
        if sender.endswith("mlp"):
            return values[f"blocks.{layer}.hook_mlp_out"]
        head, width = int(sender[3]), self.module.config.d_head
        z = values[f"blocks.{layer}.attn.hook_z"][..., head, :]
        return z @ self.module.get_parameter(f"blocks.{layer}.attn.W_O.weight")[:, head * width : (head + 1) * width].T

    def logits(self, sender: str, receiver: str) -> Tensor:
        change = self.written(sender, self.means) - self.written(sender, self.cache)
        return self.module.run_with_hooks(self.trials.tokens, fwd_hooks=list(self.hooks(receiver, change).items()))

    def hooks(self, receiver: str, change: Tensor) -> Hooks:
        last = self.module.config.n_layers - 1
        if receiver == "output":
            return {f"blocks.{last}.hook_resid_post": lambda own, hook: own + change}
        layer = int(receiver[1])
        block = self.module.blocks[layer]
        if receiver.endswith("mlp"):
            mid = self.cache[f"blocks.{layer}.hook_resid_mid"] + change
            with torch.no_grad():
                written = block.mlp.W_out(torch.nn.functional.gelu(block.mlp.W_in(block.ln2(mid))))
            return {f"blocks.{layer}.hook_mlp_out": lambda own, hook: written}
        head, letter = int(receiver[3]), receiver[-1]
        x = block.ln1(self.cache[f"blocks.{layer}.hook_resid_pre"] + change)
        new = block.attn.get_submodule(f"W_{letter.upper()}")(x).unflatten(-1, (self.module.config.n_heads, -1))

        def edit(own: Tensor, hook: Any) -> Tensor:
            own = own.clone()
            own[:, :, head] = new[:, :, head]
            return own

        return {f"blocks.{layer}.attn.hook_{letter}": edit}

    def bits(self, logits: Tensor) -> float:
        answers = self.trials.at_scored(logits)[..., self.trials.answers].double().log_softmax(-1)
        return float(kl_bits(self.trials.at_scored(self.trials.predictive), answers).mean())

    @torch.no_grad()
    def kl_increase_bits(self, report: PathsReport) -> np.ndarray:
        plain = self.bits(self.module(self.trials.tokens))
        edges = [own.split(" → ") for own in report.edges]
        return np.array([self.bits(self.logits(*edge)) - plain for edge in edges])


KINDS = [{}, {"positions": "rotary", "tied": False}, {"positions": "alibi", "norm": "layernorm"}]


@pytest.mark.parametrize("kinds", KINDS)
def test_every_edge_equals_a_loop_over_hooks(kinds: dict[str, Any]) -> None:
    module = lively(**kinds)
    report = bayesgeom.paths(module, TASK, n=N)
    assert len(report.edges) == 9 * (1 + 5) + (1 + 3) + (1 + 4 + 3) + 9
    np.testing.assert_allclose(report.kl_increase_bits.value, Loop(module, TASK).kl_increase_bits(report), atol=2e-5)
    assert (np.abs(report.kl_increase_bits.value) > 1e-3).mean() > 0.9


def test_a_planted_induction_circuit_is_found_exactly() -> None:
    report = bayesgeom.paths(induction(), n=16)
    bits = dict(zip(report.edges, report.kl_increase_bits.value, strict=True))
    assert {edge for edge, own in bits.items() if own > 1e-6} == EDGES
    assert all(bits[edge] > 10 for edge in EDGES)
    # A contribution to the output sees only the last step: nothing of the head that copies the keys.
    direct = bayesgeom.contributions(induction(), n=16)
    lost = dict(zip(direct.components, direct.kl_increase_bits.value, strict=True))
    assert lost["L1H0"] > 10 and lost["L1H1"] > 10 and abs(lost["L0H0"]) < 1e-6


@pytest.mark.parametrize(
    "kinds",
    [
        {"positions": "rotary"},
        pytest.param({"positions": "learned", "norm": "layernorm"}, marks=pytest.mark.exhaustive),
    ],
)
def test_the_same_weights_in_hugging_face_have_the_same_edges(kinds: dict[str, Any], tmp_path: Path) -> None:
    module = lively(**kinds)
    export_huggingface(module, tmp_path / "exported")
    hf = load(str(tmp_path / "exported"))
    assert not isinstance(hf, HookedModel)
    found, own = bayesgeom.paths(hf, TASK, n=N), bayesgeom.paths(module, TASK, n=N)
    assert found.edges == own.edges
    np.testing.assert_allclose(found.kl_increase_bits.value, own.kl_increase_bits.value, atol=1e-4)


@pytest.mark.exhaustive
def test_keys_that_heads_share_count_for_each_head_alone() -> None:
    """Grouped keys and values, written out for every head, have the same edges."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": TASK.d_vocab,
        "hidden_size": 24,
        "intermediate_size": 13,
        "num_hidden_layers": 2,
    }
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": TASK.n_pos}
    grouped, whole = (
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=n_heads))
        for n_heads in (2, 4)
    )
    weights = families.lively(grouped).state_dict()
    for name in (own for own in weights if "k_proj" in own or "v_proj" in own):
        weights[name] = weights[name].unflatten(0, (2, -1)).repeat_interleave(2, dim=0).flatten(0, 1)
    whole.load_state_dict(weights)
    found, expected = (bayesgeom.paths(own.eval(), TASK, n=N) for own in (grouped, whole))
    assert found.edges == expected.edges and "L0H3 → L1H2 k" in found.edges
    np.testing.assert_allclose(found.kl_increase_bits.value, expected.kl_increase_bits.value, atol=1e-5)
    assert (np.abs(found.kl_increase_bits.value) > 1e-4).mean() > 0.9


def test_an_mlp_beside_the_attention_reads_what_came_before_the_layer() -> None:
    net, model = gpt("parallel")
    report = bayesgeom.paths(model, NARROW, n=N, receivers=["L0 mlp", "L1 mlp"])
    assert report.edges == tuple(
        f"{sender} → L{layer} mlp" for layer, senders in ((0, HEADS[:1]), (1, HEADS)) for sender in senders
    )
    trials = next(NARROW.stream(N, seed=derived_seed(0, Branch.TRIALS)))
    others = torch.cat([own.tokens for own in NARROW.stream(256, seed=derived_seed(0, 3))])

    def entered(ids: Tensor) -> Tensor:
        return net.wte(ids) + net.wpe(torch.arange(ids.shape[1]))

    def bits(x: Tensor) -> float:
        answers = net.lm_head(net.ln_f(x))[:, ::2][..., trials.answers].double().log_softmax(-1)
        return float(kl_bits(trials.at_scored(trials.predictive), answers).mean())

    with torch.no_grad():
        x, first = entered(trials.tokens), net.h[0]
        changed = first.mlp(first.ln_1(entered(others).mean(0).expand_as(x)))
        after = x + first.attn(first.ln_1(x)) + changed
        expected = bits(net.h[1](after)) - bits(net.h[1](net.h[0](x)))
    assert float(report.kl_increase_bits.value[0]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", families.each(families.ATTENTION))
def test_edges_of_every_family(name: str, tmp_path: Path) -> None:
    report = bayesgeom.paths(
        load(str(families.saved(name, tmp_path))), TASK, n=N, receivers=["L2H1 k", "L2 mlp", "output"]
    )
    assert {"embedding → L2H1 k", "L1H0 → L2H1 k", "L0 mlp → L2 mlp", "L2H3 → output"} <= {*report.edges}
    bits = np.abs(report.kl_increase_bits.value)
    assert (bits > 1e-7).mean() > 0.95


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"senders": []}, InvalidArgument, "senders is empty: name at least one, such as 'embedding', or omit it"),
        (
            {"task": tasks.Bijection(n_values=9, n_pairs=4)},
            TaskMismatch,
            "the task uses ids 0 … 17; transformer has 10",
        ),
        ({"n": 0}, InvalidArgument, "n, the number of sequences to draw, must be a positive integer, got 0"),
        (
            {"senders": ["L0H9"]},
            UnknownName,
            r"there is no sender named 'L0H9'. There are: embedding, L0H0, L0H1 …",
        ),
        ({"receivers": ["L1H0 z"]}, UnknownName, r"there is no receiver named 'L1H0 z'. There are: L0H0, L0H0 q"),
        (
            {"senders": ["L1 mlp"], "receivers": ["L0H0"]},
            InvalidArgument,
            "no edge leads from L1 mlp to L0H0 q",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        bayesgeom.paths(lively(), **{"task": TASK, "n": N, **arguments})


def test_a_network_without_effects_has_a_figure() -> None:
    module = lively()
    with torch.no_grad():
        for name in (
            "embed.weight",
            *(f"blocks.{i}.{own}" for i in (0, 1) for own in ("attn.W_O.weight", "mlp.W_out.weight")),
        ):
            module.get_parameter(name).zero_()
    for report in (bayesgeom.paths(module, TASK, n=N), bayesgeom.contributions(module, TASK, n=N)):
        assert not report.kl_increase_bits.value.any() and not np.any(report.kl_increase_bits.ends)
        assert all(panel.figure.layout.height for panel in report.panels())
        assert "None of" in str(report) and "is shown to matter" in str(report)


def test_small_effects_have_their_digits_in_the_graph() -> None:
    report = bayesgeom.paths(lively(), TASK, n=N, receivers=["output"])
    small = replace(report, kl_increase_bits=report.kl_increase_bits.mapped(lambda own: np.abs(own) / 1e4))
    texts = [note.text for note in small.panels()[0].figure.layout.annotations]
    assert texts and "0" not in texts and "e−" in texts[-1]


def test_rounding_is_no_effect() -> None:
    lost = np.random.default_rng(0).normal(size=(N, 2)) * [1e-9, 1e-3]
    found = effects_of(lost, seed=0)
    assert found.value[0] == found.ends[0][0] == found.ends[1][0] == 0 and found.value[1] != 0


def test_too_many_edges_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesgeom.circuits.edges.MOST_EDGES", 10)
    with pytest.raises(InvalidArgument, match=r"has 75 edges .* at most 10 are measured at once. Name some: receivers"):
        bayesgeom.paths(lively(), TASK)


def test_chance_levels_of_the_strongest_edges() -> None:
    report = bayesgeom.paths(lively(), TASK, n=N)
    level = report.kl_increase_bits.baseline(RANDOM)
    known = np.flatnonzero(np.isfinite(level.value))
    assert set(known) == set(ranked(report.kl_increase_bits)[:N_LISTED])
    assert level.low is not None and (level.low[known] < level.value[known]).all()
    assert report == bayesgeom.paths(lively(), TASK, n=N)


@pytest.mark.slow
def test_the_two_steps_of_a_trained_network_are_found() -> None:
    """Keys of layer 1 hold the key of a pair, which layer 0 has put there; random directions there cost little."""
    receivers = [*(f"L1H{head}" for head in range(6)), "L0 mlp"]
    report = bayesgeom.paths("bijection-v20-repeats", n=16, senders=["L0H4", "L0 mlp"], receivers=receivers)
    first = [report.edges[at] for at in ranked(report.kl_increase_bits)[:3]]
    assert set(first) == {"L0H4 → L0 mlp", "L0 mlp → L1H3 q", "L0 mlp → L1H3 k"}
    level = report.kl_increase_bits.baseline(RANDOM)
    assert level.high is not None
    for edge in first:
        at = report.edges.index(edge)
        assert report.kl_increase_bits.value[at] > max(0.05, float(level.high[at]))


def test_chance_levels_do_not_depend_on_the_default_dtype() -> None:
    model, found = HookedModel(lively(), task=TASK), list[np.ndarray]()
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        with default_dtype(dtype):
            report = bayesgeom.paths(model, senders=["embedding", "L0 mlp"], receivers=["L1 mlp", "output"], n=N)
        found.append(report.kl_increase_bits.baseline(RANDOM).value)
    assert np.isfinite(found[0]).any() and all(np.array_equal(found[0], own, equal_nan=True) for own in found)
