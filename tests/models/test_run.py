"""One pass: what it records, what it scores, and what it leaves behind, also when something goes wrong."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformer_lens.utilities import get_act_name

from bayesgeom.core import run as s
from bayesgeom.core.errors import HookFault, InvalidArgument, MissingSite, NonFinite, TaskMismatch
from bayesgeom.core.run import Behavior, Site, Trials, concatenate
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model, Replayer, bytes_per_sequence
from bayesgeom.models.native.transformer import POSITIONS, Transformer, TransformerConfig
from bayesgeom.stats.behavior import answer_log_probabilities, behavior
from bayesgeom.tasks.bijection import Bijection
from tests.weights import perturbed

TASK = Bijection(n_values=11, n_pairs=7)  # 22 ids, 13 positions of which 7 are scored
SIZES = TransformerConfig(d_vocab=22, n_ctx=13, n_layers=2, n_heads=3, d_model=30, d_mlp=17)
STATIC = {site for site in s.ALL_SITES if site.is_static}


def lively(positions: str = "learned") -> HookedModel:
    """A model whose weights are large enough for every term to show."""
    module = perturbed(Transformer(replace(SIZES, positions=positions), seed=0), 0.4)
    return HookedModel(module, name="tiny", task=TASK)


def blocks(*sizes: int) -> list[Trials]:
    return [TASK.sample(size, seed=seed) for seed, size in enumerate(sizes)]


def n_hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in module.modules())


def scored_rows(trials: Trials, values: Tensor, axis: int) -> Tensor:
    """One sequence at a time: what lies at its scored positions along an axis."""
    positions = [torch.tensor([pos for pos in range(13) if row[pos]]) for row in trials.scored]
    return torch.stack([row.index_select(axis - 1, kept) for row, kept in zip(values, positions, strict=True)])


def assert_same(one: Behavior, other: Behavior, **close: float) -> None:
    for name, values in vars(one).items():
        np.testing.assert_allclose(vars(other)[name], values, err_msg=name, **close)


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_site_is_what_transformer_lens_caches_there(positions: str) -> None:
    model = lively(positions)
    (trials,) = blocks(5)
    with torch.no_grad():
        cache = model.module.run_with_cache(trials.tokens)[1]
    run = model.run([trials], record=model.sites, n_recorded=5)
    assert set(run.recorded) == model.sites == set(s.ALL_SITES) - {s.STATE, s.ROUTER_LOGITS, s.EXPERT_WEIGHTS}
    for site in model.sites - STATIC:
        name = site.name
        if site in (s.Q_ROT, s.K_ROT):
            name = f"rot_{name[0]}" if positions == "rotary" else name[0]
        for layer in range(2):
            cached = cache[get_act_name(name, layer)]
            kept = next((i for i, axis in enumerate(site.axes) if axis in ("pos", "query_pos")), None)
            expected = cached if kept is None else scored_rows(trials, cached, kept)
            torch.testing.assert_close(run.at(site)[layer], expected, atol=1e-5, rtol=1e-5, msg=f"{site.name} {layer}")


def test_static_sites_are_the_weights_own_products() -> None:
    model = lively()
    run = model.run(blocks(5), record=STATIC)
    embedding = model.module.embed.weight.detach()
    assert run.at(s.W_K).shape == (2, 3, 10, 30) and run.at(s.TOKEN_KEYS).shape == (2, 22, 3, 10)
    for layer, block in enumerate(model.module.blocks):
        assert torch.equal(run.at(s.TOKEN_EMBEDDINGS)[layer], embedding)
        assert torch.equal(run.at(s.NORM_WEIGHT)[layer], block.ln1.w.detach())
        for head in range(3):
            own = slice(10 * head, 10 * (head + 1))
            assert torch.equal(run.at(s.W_V)[layer, head], block.attn.W_V.weight.detach()[own])
            assert torch.equal(run.at(s.W_O)[layer, head], block.attn.W_O.weight.detach()[:, own].T)
            rows = block.attn.W_K.weight.detach()[10 * head : 10 * (head + 1)]
            assert torch.equal(run.at(s.W_K)[layer, head], rows)
            torch.testing.assert_close(run.at(s.W_K_GRAM)[layer, head], rows @ rows.T)
            for token in range(22):
                x = embedding[token]
                x = x / (x.square().mean() + 1e-5).sqrt() * block.ln1.w.detach()
                torch.testing.assert_close(run.at(s.TOKEN_INPUTS)[layer, token], x, atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(run.at(s.TOKEN_KEYS)[layer, token, head], rows @ x, atol=1e-4, rtol=1e-5)


def test_predictions_are_the_modules_own() -> None:
    model, (trials,) = lively(), blocks(5)
    run = model.run([trials], n_recorded=5)
    with torch.no_grad():
        log_answers, off_answer_prob = answer_log_probabilities(trials.at_scored(model.module(trials.tokens)), trials)
    assert_same(behavior(trials, log_answers, off_answer_prob), run.behavior, atol=1e-6)
    torch.testing.assert_close(run.log_answers, log_answers)
    assert np.abs(run.exact_behavior.kl_bits).max() < 1e-12
    assert np.allclose(run.exact_behavior.model_entropy_bits, run.behavior.exact_entropy_bits, atol=1e-12)


@pytest.mark.parametrize("positions", POSITIONS)
def test_logits_at_scored_positions_are_those_of_the_whole_pass(positions: str) -> None:
    model, (trials,) = lively(positions), blocks(5)
    with torch.no_grad():
        whole, found = model.module(trials.tokens), model.logits(trials)
    torch.testing.assert_close(found, scored_rows(trials, whole, 1), rtol=1e-5, atol=1e-5)


def hidden_of_last(model: HookedModel, trials: Trials, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """The shape of what the last MLP activates in a pass, seen from outside of the module."""
    seen, gelu = list[tuple[int, ...]](), nn.functional.gelu

    def watched(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return gelu(x)

    with monkeypatch.context() as patched:
        patched.setattr(nn.functional, "gelu", watched)
        model.logits(trials)
    return seen[-1]


def test_a_plain_pass_leaves_out_positions_after_the_last_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (trials,) = lively(), blocks(5)
    assert hidden_of_last(model, trials, monkeypatch) == (5, 7, 17)


class Summed(nn.Module):
    """A part that combines positions before its inner part sees them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        summed: Tensor = self.inner(x.cumsum(dim=1))
        return summed


@pytest.mark.parametrize(
    "watch",
    [
        lambda module: module.blocks[-1].mlp.register_forward_hook(lambda _, __, output: None),
        lambda module: module.blocks[-1].mlp.register_full_backward_hook(lambda _, __, gradients: None),
        lambda module: setattr(module.blocks[-1].mlp, "forward", module.blocks[-1].mlp.forward),
        lambda module: setattr(module.blocks[-1], "mlp", Summed(module.blocks[-1].mlp)),
    ],
    ids=["hook", "backward hook", "forward", "part"],
)
def test_whoever_watches_or_replaces_a_part_gets_every_position(
    watch: Callable[[nn.Module], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (trials,) = lively(), blocks(5)
    watch(model.module)
    assert hidden_of_last(model, trials, monkeypatch) == (5, 13, 17)
    with torch.no_grad():
        assert torch.equal(model.logits(trials), scored_rows(trials, model.module(trials.tokens), 1))


def test_recording_ends_in_the_middle_of_a_block() -> None:
    model, parts = lively(), blocks(7, 5, 3)
    everything = model.run(parts, record=(s.RESID_PRE, s.PATTERN), n_recorded=15)
    cut = model.run(parts, record=(s.RESID_PRE, s.PATTERN), n_recorded=11)
    assert (everything.n, everything.n_recorded, cut.n, cut.n_recorded) == (15, 15, 15, 11)
    assert torch.equal(cut.trials.tokens, concatenate(parts).tokens[:11])
    torch.testing.assert_close(cut.log_answers, everything.log_answers[:11])
    for site, shape in ((s.RESID_PRE, (2, 11, 7, 30)), (s.PATTERN, (2, 11, 3, 7, 13))):
        assert cut.at(site).shape == shape
        torch.testing.assert_close(cut.at(site), everything.at(site)[:, :11])
    assert_same(everything.behavior, cut.behavior, atol=1e-5)


def test_the_byte_budget_bounds_what_is_recorded() -> None:
    model, parts = lively(), blocks(7, 5)
    each = 4 * 2 * (7 * 30 + 3 * 7 * 13 + 13 * 3 * 10)  # float32, two layers
    assert bytes_per_sequence(model.spec, dict.fromkeys((s.RESID_POST, s.PATTERN, s.K), range(2)), parts[0]) == each
    for budget, kept in ((3 * each, 3), (4 * each - 1, 3), (9 * each, 9), (0, 1)):
        run = model.run(parts, record=(s.RESID_POST, s.PATTERN, s.K), n_recorded=11, budget_bytes=budget)
        assert (run.n, run.n_recorded) == (12, kept)
        assert sum(run.at(site).untyped_storage().nbytes() for site in run.recorded) == kept * each
        assert run.behavior.kl_bits.shape == (12, 7), "behavior is that of all"


def test_blocks_are_only_a_matter_of_memory() -> None:
    model, parts = lively(), blocks(7, 1, 5)
    streamed = model.run(iter(parts), record=(s.K, s.Z), n_recorded=13, baseline_predictives=TASK.baseline_predictives)
    whole = model.run(
        [concatenate(parts)], record=(s.K, s.Z), n_recorded=13, baseline_predictives=TASK.baseline_predictives
    )
    assert_same(whole.behavior, streamed.behavior, atol=1e-4)
    assert_same(whole.baseline_behaviors["uniform"], streamed.baseline_behaviors["uniform"], atol=1e-12)
    for site in (s.K, s.Z):
        torch.testing.assert_close(streamed.at(site), whole.at(site), atol=1e-4, rtol=1e-5)


def test_baselines_are_scored_on_every_sequence() -> None:
    task = replace(TASK, repeats=True)
    parts = [task.sample(size, seed=size) for size in (7, 5)]
    run = lively().run(parts, n_recorded=3, baseline_predictives=task.baseline_predictives)
    assert run.baseline_behaviors.keys() == {"uniform", "elimination_only", "key_membership"}
    uniform = run.baseline_behaviors["uniform"]
    np.testing.assert_allclose(uniform.model_entropy_bits, np.full((12, 7), np.log2(11)), atol=1e-6)
    np.testing.assert_allclose(uniform.kl_bits, np.log2(11) - run.behavior.exact_entropy_bits, atol=1e-6)
    assert lively().run(parts).baseline_behaviors == {}


def failing(error: Exception) -> Iterator[Trials]:
    yield TASK.sample(5, seed=0)
    raise error


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_module_is_left_as_it_was(training: bool, fails: bool) -> None:
    model, modes = lively(), []
    model.module.train(training)
    model.module.blocks[1].train(not training)  # somebody froze, or woke, a part
    before = [part.training for part in model.module.modules()]
    model.module.blocks[0].register_forward_hook(lambda m, i, o: modes.append(m.training))
    hooks = n_hooks(model.module)
    if fails:
        with pytest.raises(ZeroDivisionError):
            model.run(failing(ZeroDivisionError()), record=model.sites, n_recorded=7)
    else:
        model.run(blocks(5), record=model.sites, n_recorded=7)
    assert modes and not any(modes), "the pass itself is in evaluation mode"
    assert [part.training for part in model.module.modules()] == before and n_hooks(model.module) == hooks


def test_the_users_own_hooks_fire_and_stay() -> None:
    model, seen = lively(), []
    module = model.module
    handle = module.blocks[1].hook_resid_post.register_forward_hook(lambda m, i, o: seen.append("torch"))
    module.blocks[1].hook_resid_post.add_hook(lambda value, hook: seen.append(hook.name))
    run = model.run(blocks(7, 5), record=(s.RESID_POST,), n_recorded=9)
    assert seen == ["torch", "blocks.1.hook_resid_post"] * 3, "seven, two recorded, three beyond"
    assert handle.id in module.blocks[1].hook_resid_post._forward_hooks and run.n == 12
    module(TASK.sample(1, seed=0).tokens)
    assert len(seen) == 8


def test_a_users_edit_is_what_is_measured() -> None:
    model = lively()
    before = model.run(blocks(5), record=(s.RESID_POST,), n_recorded=5)
    model.module.blocks[0].hook_mlp_out.add_hook(lambda value, hook: 0 * value)
    after = model.run(blocks(5), record=(s.RESID_POST,), n_recorded=5)
    assert np.abs(after.behavior.kl_bits - before.behavior.kl_bits).max() > 0.01
    assert (after.at(s.RESID_POST) - before.at(s.RESID_POST)).abs().amax(dim=(1, 2, 3)).min() > 0.1


def test_missing_sites_name_what_there_is() -> None:
    model = lively()
    with pytest.raises(
        MissingSite,
        match=r"this run requires site 'state', which tiny does not provide. Available sites: W_K, W_K_gram, W_O",
    ):
        model.run(blocks(5), record=(s.Z, s.STATE))
    with pytest.raises(
        MissingSite, match=r"site 'k' was not recorded in this run of tiny\. Recorded sites: pattern, z\."
    ):
        model.run(blocks(5), record=(s.Z, s.PATTERN)).at(s.K)
    with pytest.raises(MissingSite, match=r"Recorded sites: \(none\)"):
        model.run(blocks(5)).at(s.K)


def test_tasks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TaskMismatch, match=r"uses ids \d+ … 23; tiny has 22 ids, 0 … 21\. Use the task"):
        lively().run([Bijection(n_values=12, n_pairs=7).sample(3, seed=0)])
    with pytest.raises(
        TaskMismatch, match=r"the task's sequences have 21 tokens; tiny has positions for 13\. Use shorter sequences"
    ):
        lively().run([Bijection(n_values=11, n_pairs=11).sample(3, seed=0)])
    (trials,) = blocks(5)
    with pytest.raises(TaskMismatch, match=r"uses ids -1 … \d+; tiny has 22 ids"):
        lively().run([replace(trials, tokens=torch.where(trials.tokens == trials.tokens[2, 3], -1, trials.tokens))])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(value: float) -> None:
    model = lively()
    model.module.ln_final.register_forward_hook(lambda m, i, out: out.index_fill(0, torch.tensor([1, 4]), value))
    with pytest.raises(
        NonFinite, match=r"tiny returned NaN or infinite logits in 4 of 12 sequences. Check its weights"
    ):
        model.run(blocks(5, 7), n_recorded=5)


def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"at least one block of trials"):
        lively().run([])


class Faulty(Model):
    """A model that answers, and whose hook points for `attn_out` fire as often, and as wide, as they are told to."""

    sites = frozenset({s.ATTN_OUT})

    def __init__(self, *outputs: tuple[int, ...]) -> None:
        self.spec, self.task, self.withheld = lively().spec, TASK, {}
        self.module = nn.ModuleList(nn.Identity() for _ in range(2))
        self.outputs = outputs

    def point(self, site: Site, layer: int) -> nn.Module:
        return self.module[layer]

    def static(self, site: Site, tokens: Tensor, layer: int) -> Tensor:
        raise AssertionError("no site is static")

    def logits(self, trials: Trials) -> Tensor:
        self.module[0](torch.zeros(len(trials), 13, 30))
        for shape in self.outputs:
            self.module[1](torch.zeros(shape))
        return torch.zeros(len(trials), 7, 22)

    def untrained_copy(self, seed: int) -> Model:
        raise AssertionError("nobody asks")

    def replayer(self) -> Replayer:
        raise AssertionError("nobody asks")


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([], r"'attn_out' of layer 1 of tiny fired 0 times in one pass"),
        ([(5, 13, 30)] * 2, r"'attn_out' of layer 1 of tiny fired 2 times in one pass"),
        ([(5, 13, 31)], r"layer 1 of tiny has shape \(5, 13, 31\); its axes batch pos d_model require \(5, 13, 30\)"),
        ([(5, 7, 30)], r"has shape \(5, 7, 30\)"),
        ([(13, 5, 30)], r"has shape \(13, 5, 30\)"),
        ([(5, 13, 3, 10)], r"has shape \(5, 13, 3, 10\)"),
    ],
    ids=["silent", "twice", "wide", "cut", "transposed", "per head"],
)
def test_hook_points_that_break_their_word_are_found(outputs: list[tuple[int, ...]], message: str) -> None:
    model = Faulty(*outputs)
    with pytest.raises(HookFault, match=message):
        model.run(blocks(5), record=(s.ATTN_OUT,), n_recorded=5)
    assert n_hooks(model.module) == 0 and torch.is_grad_enabled()
    assert Faulty((5, 13, 30)).run(blocks(5), record=(s.ATTN_OUT,), n_recorded=5).at(s.ATTN_OUT).shape == (2, 5, 7, 30)
