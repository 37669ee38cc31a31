"""The adapter of MLP, LSTM and Mamba: sites that prove themselves, replays, training, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bayesgeom.ablations.batteries import every_layer, every_mlp
from bayesgeom.ablations.engine import BatchReference
from bayesgeom.core import run as s
from bayesgeom.core.edits import Replace
from bayesgeom.core.errors import MissingSite
from bayesgeom.core.text import number_text
from bayesgeom.measurements.ablation import ablate
from bayesgeom.models.adapters.hooked import ResidualModel
from bayesgeom.models.config import ModelConfig, config_from_dict
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.models.resolve import as_model, load
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.publish import score_and_save
from bayesgeom.training.recipes import Recipe
from tests.weights import perturbed

TASK = Bijection(n_values=7, n_pairs=5)
SIZES = {
    "mlp": {"architecture": "mlp", "n_layers": 3, "d_model": 11, "d_mlp": 13},
    "mlp-prefix": {"architecture": "mlp", "n_layers": 3, "d_model": 11, "d_mlp": 13, "context": "prefix"},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 11},
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 11, "d_state": 5},
}
STATES = {"lstm": 11, "mamba": 2 * 11 * 5}
every_kind = pytest.mark.parametrize("kind", SIZES)


def config(kind: str) -> ModelConfig:
    return config_from_dict({"d_vocab": TASK.d_vocab, "n_ctx": TASK.n_pos, **SIZES[kind]})


def attached(kind: str) -> ResidualModel:
    module = perturbed(config(kind).build(seed=0), 0.2)
    model = as_model(module)
    assert isinstance(model, ResidualModel)
    model.task = TASK
    return model


@every_kind
def test_every_site_proves_itself(kind: str) -> None:
    model = attached(kind)
    own = s.STATE if kind in STATES else s.MLP_OUT
    assert model.sites == {s.RESID_PRE, s.RESID_POST, s.TOKEN_EMBEDDINGS, own}
    assert model.spec.d_state == STATES.get(kind, 0) and model.spec.n_heads == 0


@every_kind
def test_a_run_records_every_site(kind: str) -> None:
    model = attached(kind)
    run = model.run([TASK.sample(4, seed=0)], record=model.sites, n_recorded=4)
    pre, post = run.at(s.RESID_PRE), run.at(s.RESID_POST)
    assert pre.shape == (3, 4, 5, 11)
    torch.testing.assert_close(pre[1:], post[:-1])
    if kind in STATES:
        assert run.at(s.STATE).shape == (3, 4, 5, STATES[kind])
    if kind != "mamba":
        written = run.at(s.STATE if kind == "lstm" else s.MLP_OUT)
        torch.testing.assert_close(pre + written, post)
    assert run.at(s.TOKEN_EMBEDDINGS).shape == (3, len(run.trials.token_ids()), 11)


def test_bare_embeddings_are_what_enters_the_first_block() -> None:
    model, ids = attached("lstm"), torch.arange(TASK.d_vocab)
    trials = TASK.sample(3, seed=0)
    with torch.no_grad():
        entering = model.module.run_with_cache(trials.tokens)[1]["blocks.0.hook_resid_pre"]
    torch.testing.assert_close(model.static(s.TOKEN_EMBEDDINGS, ids, 0)[trials.tokens], entering)


class Shifted(nn.Module):
    """Hands on what it was given, and shows its hooks something else."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@pytest.mark.parametrize("kind", ["mlp", "lstm", "mamba"])
def test_a_site_that_is_not_what_it_says_is_withheld(kind: str) -> None:
    module = config(kind).build(seed=0)
    module.blocks[1].hook_resid_post = Shifted()
    model = as_model(module)
    assert s.RESID_POST not in model.sites
    reason = model.withheld[s.RESID_POST]
    assert "= resid_post fails by" in reason and "in layer 1" in reason


@every_kind
def test_replays_are_whole_passes(kind: str) -> None:
    model, trials = attached(kind), TASK.sample(4, seed=0)
    replayer, loop = model.replayer(), PlainLoop(model)
    baseline = replayer.baseline(trials)
    reference = BatchReference({}, baseline)
    for layer in range(3):
        for site in model.sites & {s.RESID_PRE, s.MLP_OUT, s.RESID_POST}:
            variant = [Replace(site=site, layer=layer, mode="zero")]
            fast, slow = (side.logits(baseline, [variant], reference) for side in (replayer, loop))
            torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)
            assert (fast - baseline.logits).abs().max() > 1e-3


@every_kind
def test_an_untrained_copy_is_the_architecture_at_that_seed(kind: str) -> None:
    model = attached(kind)
    fresh, again, other = (model.untrained_copy(seed).module.state_dict() for seed in (3, 3, 4))
    built = config(kind).build(seed=3).state_dict()
    assert all(torch.equal(fresh[name], again[name]) and torch.equal(fresh[name], built[name]) for name in built)
    assert any(not torch.equal(fresh[name], other[name]) for name in built)


@pytest.mark.parametrize("kind", ["mlp-prefix", "lstm", "mamba"])
def test_what_is_trained_is_published_and_loaded(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesgeom.training.publish.N_SCORED", 64)
    recipe = Recipe(name=f"tiny-{kind}", task=TASK, sizes=SIZES[kind], steps=6, batch_size=5, warmup=2, snapshots=2)
    module = train(recipe, tmp_path / "run", pace=Pace(quiet=True))
    scores = score_and_save(recipe, module, tmp_path / "checkpoint")
    model = load(tmp_path / "checkpoint")
    assert isinstance(model, ResidualModel) and model.task == TASK
    assert model.spec.architecture == SIZES[kind]["architecture"]
    tokens = TASK.sample(3, seed=0).tokens
    with torch.no_grad():
        torch.testing.assert_close(model.module(tokens), module(tokens))
    assert number_text(scores.kl_bits) in (tmp_path / "checkpoint" / "card.md").read_text()
    untrained = as_model(config(kind).build(seed=recipe.seed))
    assert all(
        not torch.equal(own, first)
        for name, own in model.module.state_dict().items()
        if (first := untrained.module.state_dict()[name]).ndim > 1
    ), "every matrix moved"


@every_kind
def test_logits_do_not_see_what_comes_later(kind: str) -> None:
    model, tokens = attached(kind), TASK.sample(4, seed=0).tokens
    other = tokens.clone()
    other[:, 5] = (other[:, 5] + 1) % TASK.d_vocab
    with torch.no_grad():
        moved = (model.module(other) - model.module(tokens)).abs().amax(dim=(0, 2))
    assert moved[:5].max() < 1e-5 and moved[5] > 1e-3


def test_mlps_are_ablated_and_what_a_block_has_not_is_refused() -> None:
    model = attached("mlp")
    report = ablate(model, TASK, every_mlp(model), n=6)
    assert len(report.kl_increase_bits.value) == 3
    for battery in (every_layer, every_mlp):
        lstm = attached("lstm")
        with pytest.raises(MissingSite, match=r"which lstm does not provide \(blocks write once"):
            ablate(lstm, TASK, battery(lstm), n=6)
