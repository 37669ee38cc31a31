"""Recipes of the study: sizes, data, budgets, learning-rate sweep, and starts from shipped weights."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import pytest
import torch

from bayesgeom.core.errors import UnknownName
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.training.loop import loss_nats
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe
from examples.replication.capacity import n_parameters
from examples.replication.comparison.cell import cell
from examples.replication.training.recipes import FURTHER_TASKS, MULTIPLES, RECIPES, architectures_of, recipe, sweep
from tests.pages import READINGS

FURTHER = [f"{task}-{own}" for task in FURTHER_TASKS for own in architectures_of(task)]
STEPPED = ["hmm-sampled-transformer", "hmm-sampled-lstm", *(name for name in FURTHER if name.startswith("recall"))]


def stages(own: Recipe | None) -> Iterator[Recipe]:
    while own is not None:
        yield own
        own = own.after


@pytest.mark.parametrize("task", FURTHER_TASKS)
def test_a_further_row_has_equal_parameters_and_equal_data(task: str) -> None:
    row = [recipe(f"{task}-{own}") for own in architectures_of(task)]
    sizes = [n_parameters(own.model_config()) for own in row]
    assert max(abs(size / sizes[0] - 1) for size in sizes) <= 0.01
    data = [[(s.seed, s.steps, s.batch_size, s.task, s.also, s.lr, s.matrix_lr) for s in stages(own)] for own in row]
    assert all(own == data[0] for own in data)


TYPICAL = "recall-16-transformer"  # a step of the others takes as long or seconds, by the same optimizers


@pytest.mark.parametrize(
    "name", [pytest.param(own, marks=() if own == TYPICAL else pytest.mark.exhaustive) for own in STEPPED]
)
def test_every_stage_of_a_recipe_takes_a_step(name: str) -> None:
    module = recipe(name).model_config().build(seed=0)
    before = weights_hash(module.state_dict())
    for stage in stages(recipe(name)):
        assert stage.model_config() == recipe(name).model_config()
        optimizers, trials = Optimizers(stage, module), stage.task.sample(2, seed=3)
        loss = loss_nats(stage, module(trials.tokens), trials)
        loss.backward()
        optimizers.step(stage.warmup)
        assert torch.isfinite(loss) and before != (before := weights_hash(module.state_dict()))


def test_the_last_stage_of_recall_64_is_scored_at_the_published_sizes() -> None:
    published = AssociativeRecall(n_pairs=64, n_keys=256, n_values=256, n_queries=3, n_filler=32)
    assert {recipe(f"recall-64-{own}").task for own in ("transformer", "mamba2", "lstm")} == {published}
    assert published.n_pos == 329 and published.d_vocab == 522


def test_the_sampled_hmm_differs_from_the_exact_one_in_targets_alone() -> None:
    sampled, exact = recipe("hmm-sampled-lstm"), recipe("hmm-lstm")
    assert replace(sampled, name=exact.name, targets="exact") == exact and sampled.targets == "sampled"


def test_the_sweep_has_three_rates_at_a_quarter_of_the_budget() -> None:
    trials = sweep()
    for architecture in ("transformer", "mamba", "lstm", "mlp", "mlp-prefix", "mamba2", "rwkv"):
        whole = recipe(f"recall-{architecture}")
        for multiple in MULTIPLES:
            trial = trials[f"recall-{architecture}-quarter-lr{multiple:g}"]
            assert recipe(trial.name) is RECIPES[trial.name]
            assert trial.n_sequences * 4 == whole.n_sequences and trial.model_config() == whole.model_config()
            ratios = [a.lr / b.lr for a, b in zip(stages(trial), stages(whole), strict=True)]
            ratios += [a.matrix_lr / b.matrix_lr for a, b in zip(stages(trial), stages(whole), strict=True)]
            assert ratios == pytest.approx([multiple] * 4)
    assert len(trials) == 21


def test_any_recipe_is_found_at_the_rates_of_the_sweep() -> None:
    fast, whole = recipe("repeats-lstm-lr3"), recipe("repeats-lstm")
    assert fast.n_sequences == whole.n_sequences and fast.lr == 3 * whole.lr and fast.name == "repeats-lstm-lr3"
    for name in ("repeats-lstm-lr7", "repeats-rnn-lr3", "recall-lstm-lr013", "recall-lstm-lr0x3", "recall-lstm-lr03"):
        with pytest.raises(UnknownName, match=name):
            recipe(name)


def test_any_recipe_is_found_at_a_quarter_of_its_budget() -> None:
    quarter, whole = recipe("recall-64-mamba2-quarter-lr3"), recipe("recall-64-mamba2")
    assert quarter.name == "recall-64-mamba2-quarter-lr3" and quarter.task == whole.task
    assert [own.steps * 4 for own in stages(quarter)] == [own.steps for own in stages(whole)]
    assert all(a.lr == 3 * b.lr for a, b in zip(stages(quarter), stages(whole), strict=True))
    assert recipe("recall-64-mamba2-quarter").lr == whole.lr
    for name in ("recall-64-rnn-quarter", "recall-64-mamba2-quarter-lr7", "recall-64-mamba2-lr3-quarter"):
        with pytest.raises(UnknownName, match=name):
            recipe(name)


def test_a_check_is_found_by_its_name() -> None:
    """Checks do not ship: another seed at twice the budget, as `compare` names it."""
    for task, architecture in (("recall", "lstm"), ("recall", "mamba"), ("hmm", "lstm")):
        check = recipe(f"{task}-{architecture}-seed1-x2")
        assert check == cell(task, architecture, seed=1, is_check=True).recipe
        assert check.seed == recipe(f"{task}-{architecture}").seed + 1_000
    for name in ("recall-lstm-seed0-x2", "recall-lstm-seed1-x3", "recall-rnn-seed1-x2"):
        with pytest.raises(UnknownName, match=name):
            recipe(name)


def test_every_stored_training_has_a_recipe() -> None:
    cards = sorted(path.stem for path in READINGS.glob("rates/*.md"))
    names = [*pd.read_csv(READINGS / "trainings.csv").training, *cards]
    assert len(cards) == 25 and len(names) == 60
    for name in names:
        base, _, seed = name.partition("-seed")
        assert recipe(base).reseeded(int(seed or 0)).name == name


def test_the_untied_control_of_the_flagships_size_differs_in_the_unembedding_alone() -> None:
    tied: Recipe | None = recipe("bijection-v20")
    for untied in stages(recipe("bijection-v20-untied")):
        assert tied is not None and untied.sizes == {**tied.sizes, "tied": False}
        assert replace(untied, name=tied.name, sizes=tied.sizes, after=tied.after) == tied
        tied = tied.after
    assert tied is None


@pytest.mark.parametrize("name", ["bijection-v20-refined", "bijection-v20-refined-sampled"])
def test_the_flagship_starts_from_the_shipped_weights(name: str) -> None:
    first = list(stages(recipe(name)))[-1]
    config = json.loads((checkpoints()["bijection-v20"] / "config.json").read_text())
    assert first.warm_start == f"bijection-v20@{config['weights_hash']}"
    assert all(stage.weight_decay == 0 for stage in stages(recipe(name)))
    assert {stage.targets for stage in stages(recipe(name))} == {"sampled" if "sampled" in name else "exact"}
    assert recipe(name).model_config() == recipe("bijection-v20").model_config()
