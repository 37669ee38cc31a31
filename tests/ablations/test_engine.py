"""The engine gives the numbers of the plain loop, whatever the model, the mode and the battery, and touches nothing."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from bayesgeom import ablations
from bayesgeom.ablations import Ablation, Component, engine
from bayesgeom.ablations.engine import (
    BATCH_BYTES,
    METRICS,
    BatchScores,
    Means,
    batches,
    batches_with_donors,
    score_batch,
    variants_at_once,
)
from bayesgeom.core.edits import Replace
from bayesgeom.core.run import ATTN_OUT, MLP_OUT, RESID_MID, RESID_POST, RESID_PRE, Site, Trials, Z
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import NORMS, POSITIONS
from bayesgeom.models.replay.hooked import PlainLoop
from tests.ablations.plain import HEADS, LAYERS, TASK, Plain, heads, lively, n_hooks, scored, some_sets

POINTS = {Z: "attn.hook_z", ATTN_OUT: "hook_attn_out", MLP_OUT: "hook_mlp_out"}
MODES = ("zero", "mean", "resample")
BITS = 1e-5
TRIALS, OTHERS = TASK.sample(17, seed=2), TASK.sample(23, seed=3)
LAST, SPEC = TRIALS.rows(slice(-1, None)), lively().spec


def means_of(plain: Plain) -> Means:
    return {(site, layer): plain.means[f"blocks.{layer}.{name}"] for site, name in POINTS.items() for layer in LAYERS}


def every_battery(model: HookedModel, *, all_pairs: bool = False) -> list[Ablation]:
    order = [Component(2, "mlp"), *heads((1, 3)), Component(0, "attention"), Component(1, "block")]
    off = [ablation for m in (1, 2, 3) for ablation in ablations.top_attention_off(model, m)]
    pairs = ablations.every_pair_of_heads(model, scope="model" if all_pairs else "layer")
    return [*ablations.everything(model), *pairs, *off, *ablations.cumulative(order), *some_sets()]


def engine_scores(model: HookedModel, battery: list[Ablation], mode: str, plain: Plain) -> BatchScores:
    variants = [ablation.edits(mode) for ablation in battery]
    return score_batch(model.replayer(), plain.trials, plain.trials.rows(slice(-1, None)), variants, means_of(plain))


def assert_same(found: BatchScores, battery: list[Ablation], mode: str, plain: Plain) -> None:
    assert found.variants.shape == (len(battery), len(METRICS), 17, 7)
    for ablation, scores in zip(battery, found.variants, strict=True):
        np.testing.assert_allclose(
            scores, plain.scores(ablation, mode), atol=BITS, rtol=0, err_msg=f"{mode} {ablation.label}"
        )


@pytest.mark.parametrize("mode", MODES)
def test_every_battery_equals_the_loop_with_hooks(mode: str) -> None:
    model = lively()
    plain, battery = Plain.of(model.module, TRIALS, OTHERS), every_battery(model, all_pairs=mode == "mean")
    found = engine_scores(model, battery, mode, plain)
    assert_same(found, battery, mode, plain)
    with torch.no_grad():
        logits = TRIALS.at_scored(model.module(TRIALS.tokens))
    np.testing.assert_allclose(found.baseline, scored(logits, TRIALS), atol=BITS, rtol=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("mode", MODES)
def test_every_architecture_equals_the_loop_with_hooks(mode: str, positions: str, norm: str) -> None:
    model = lively(positions=positions, norm=norm, tied=norm == "rmsnorm")
    plain = Plain.of(model.module, TRIALS, OTHERS)
    battery = [*ablations.everything(model), *some_sets()]
    assert_same(engine_scores(model, battery, mode, plain), battery, mode, plain)


@pytest.mark.parametrize("mode", MODES)
def test_heads_that_dominate_the_residual_leave_no_rounding_behind(mode: str) -> None:
    """They write some hundred times what was there: a difference of sums would keep two digits fewer."""
    model, every = lively(), [Ablation(heads(*((layer, head) for head in HEADS))) for layer in LAYERS]
    battery = [
        *every,
        Ablation((*every[0].components, Component(1, "mlp"))),
        Ablation((*every[0].components, *heads((1, 3)))),
    ]
    with torch.no_grad():
        for layer in LAYERS:
            model.module.get_parameter(f"blocks.{layer}.attn.W_O.weight").mul_(300)
    plain = Plain.of(model.module, TRIALS, OTHERS)
    assert_same(engine_scores(model, battery, mode, plain), battery, mode, plain)


@pytest.mark.parametrize("mode", MODES)
def test_the_plain_loop_is_a_replayer_too(mode: str) -> None:
    model = lively(positions="rotary")
    single = ablations.everything(model) if mode == "mean" else []
    plain, battery = Plain.of(model.module, TRIALS, OTHERS), [*single, *some_sets()]
    variants = [ablation.edits(mode) for ablation in battery]
    assert_same(score_batch(PlainLoop(model), TRIALS, LAST, variants, means_of(plain)), battery, mode, plain)


@pytest.mark.parametrize("positions", POSITIONS)
def test_an_edit_of_the_residual_equals_a_hook_there(positions: str) -> None:
    model = lively(positions=positions)
    points = {RESID_PRE: "hook_resid_pre", RESID_MID: "hook_resid_mid", RESID_POST: "hook_resid_post"}
    plain = Plain.of(model.module, TRIALS, OTHERS)
    means = {(site, layer): plain.means[f"blocks.{layer}.{name}"] for site, name in points.items() for layer in LAYERS}
    for site, name in points.items():
        for layer in LAYERS:
            place = f"blocks.{layer}.{name}"
            found = score_batch(
                model.replayer(), TRIALS, LAST, [(Replace(site=site, layer=layer, mode="mean"),)], means
            )
            instead = plain.means[place]
            with torch.no_grad():
                hooks = [(place, lambda kept, hook, instead=instead: instead.expand_as(kept))]
                logits = TRIALS.at_scored(model.module.run_with_hooks(TRIALS.tokens, fwd_hooks=hooks))
            np.testing.assert_allclose(found.variants[0], scored(logits, TRIALS), atol=BITS, rtol=0, err_msg=place)


# What an ablation changes, and what it leaves alone.


@pytest.mark.parametrize("mode", MODES)
def test_every_ablation_changes_the_output(mode: str) -> None:
    model = lively()
    found = engine_scores(model, every_battery(model), mode, Plain.of(model.module, TRIALS, OTHERS))
    changes = np.abs(found.variants - found.baseline)[:, 0].max(axis=(1, 2))
    assert changes.min() > 1e-4 and not found.inert.any()


@pytest.mark.parametrize("site", [RESID_PRE, Z, ATTN_OUT, RESID_MID, MLP_OUT, RESID_POST], ids=lambda s: s.name)
def test_ablating_nothing_changes_nothing(site: Site) -> None:
    model = lively(norm="layernorm")
    nothing = [(Replace(site=site, layer=layer, mode="nothing"),) for layer in LAYERS]
    found = score_batch(model.replayer(), TRIALS, LAST, nothing, {})
    assert found.inert.all()
    np.testing.assert_allclose(found.variants, np.stack([found.baseline] * 3), atol=BITS, rtol=0)


def test_a_head_that_is_already_zero_is_inert_wherever_it_stands_in_the_batch() -> None:
    model = lively()
    with torch.no_grad():
        for layer, head in ((0, 1), (2, 3)):
            model.module.get_submodule(f"blocks.{layer}.attn.W_O").weight[:, 6 * head : 6 * head + 6] = 0.0
    for mode in MODES:
        battery = [*ablations.everything(model), Ablation(heads((0, 1), (2, 3)))]
        found = engine_scores(model, battery, mode, Plain.of(model.module, TRIALS, OTHERS))
        assert [a.label for a, inert in zip(battery, found.inert, strict=True) if inert] == [
            "L0H1",
            "L2H3",
            "L0H1 + L2H3",
        ]


@pytest.mark.filterwarnings("ignore:.*every ablation runs a full forward pass")  # because of the hook
@pytest.mark.parametrize("n_training", [True, False])
def test_module_hooks_and_inputs_stay_as_they_were(n_training: bool) -> None:
    model = lively()
    model.module.train(n_training)
    fired: list[int] = []
    own = model.module.get_submodule("blocks.1.hook_resid_mid").register_forward_hook(lambda *_: fired.append(1))
    weights = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    plain = Plain.of(model.module, TRIALS, OTHERS)
    before, tokens = {name: mean.clone() for name, mean in plain.means.items()}, TRIALS.tokens.clone()
    hooks = n_hooks(model.module)
    fired.clear()
    for mode in MODES:
        engine_scores(model, [*some_sets()], mode, plain)
    assert (
        n_hooks(model.module) == hooks
        and own.id in model.module.get_submodule("blocks.1.hook_resid_mid")._forward_hooks
    )
    assert model.module.training == n_training and torch.is_grad_enabled()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.module.state_dict().items())
    assert all(torch.equal(before[name], mean) for name, mean in plain.means.items())
    assert torch.equal(tokens, TRIALS.tokens)


def test_a_replay_leaves_its_baseline_as_it_was() -> None:
    model, plain = lively(), Plain.of(lively().module, TRIALS, OTHERS)
    replayer = model.replayer()
    baseline = replayer.baseline(TRIALS)
    stored = {place: values.clone() for place, values in baseline.stored.items()}
    reference = engine.BatchReference(means_of(plain), baseline)
    for mode in MODES:
        for ablation in every_battery(model):
            replayer.logits(baseline, [ablation.edits(mode)], reference)
    assert all(torch.equal(stored[place], values) for place, values in baseline.stored.items())


def test_every_trial_is_resampled_from_the_one_before_it_in_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TARGET_ROWS", 31)
    donors = [torch.cat([before.tokens, batch.tokens[:-1]]) for batch, before in batches_with_donors(TRIALS, SPEC)]
    assert len(donors) > 1 and torch.equal(torch.cat(donors), TRIALS.tokens.roll(1, dims=0))


@cache
def block_of(n: int) -> Trials:
    return TASK.sample(n, seed=n)


@pytest.mark.parametrize("rows", [1, 26, 39, 65, 143, 1_536])
def test_tiles_are_the_block_in_order_and_none_is_a_sequence_alone(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TARGET_ROWS", rows)
    for n in range(1, 60):
        block = block_of(n)
        cut = list(batches(block, SPEC))
        assert torch.equal(torch.cat([batch.tokens for batch in cut]), block.tokens)
        assert n == 1 or min(map(len, cut)) > 1, (n, [len(batch) for batch in cut])
        assert max(map(len, cut)) <= max(3, 2 * rows // 13)


@pytest.mark.parametrize("d_vocab", [22, 128_256, 1_000_003])
def test_a_tile_stays_within_the_budget_whatever_the_vocabulary(d_vocab: int) -> None:
    block, spec = TASK.sample(128, seed=0), replace(SPEC, d_vocab=d_vocab)
    cut = list(batches(block, spec))
    assert torch.equal(torch.cat([batch.tokens for batch in cut]), block.tokens)
    for batch in cut:
        logits = torch.empty(len(batch), batch.n_scored, d_vocab, device="meta")
        variants = variants_at_once(batch, logits)
        assert variants >= 1 and (len(batch) == 2 or 4 * logits.numel() * (2 + variants) <= BATCH_BYTES)


# Faults.
