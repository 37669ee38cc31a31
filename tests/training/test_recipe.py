"""Recipes: what they say at each step, their way to JSON and back, the committed ones, and their optimizers."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.models.checkpoint_files import checkpoints, read_description
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.training.optimizers import Optimizers, schedule
from bayesgeom.training.recipes import RECIPES, Recipe, deciding, recipe, recipe_from_dict
from tests.dynamics.trainings import a_recipe

SIZES = {"architecture": "transformer", "n_layers": 2, "n_heads": 3, "d_model": 21, "d_mlp": 13}
TINY = a_recipe(
    name="tiny",
    task=Bijection(n_values=5, n_pairs=3),
    steps=20,
    batch_size=7,
    late_batch_size=11,
    late_from=0.6,
    float32_share=0.25,
    warmup=5,
)


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    assert [schedule(TINY, step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_cosine_falls_from_the_peak_toward_zero() -> None:
    shares = [schedule(TINY, step) for step in range(5, 20)]
    assert shares == pytest.approx([math.cos(math.pi * k / 30) ** 2 for k in range(15)])
    assert shares[0] == 1 and all(a > b > 0 for a, b in itertools.pairwise(shares))
    assert schedule(TINY, 20) == pytest.approx(0, abs=1e-12)


def test_late_batches_and_float32_start_at_their_share_of_the_steps() -> None:
    assert [TINY.batch_size_at(step) for step in range(20)] == [7] * 12 + [11] * 8
    assert [TINY.is_float32_at(step) for step in range(20)] == [False] * 15 + [True] * 5


SHORTER = tuple(Bijection(n_values=5, n_pairs=pairs) for pairs in (1, 2))


@pytest.mark.parametrize(
    "kind",
    [TINY, replace(TINY, task=HMM(n_states=3, floor=0.0), seed=3), replace(TINY, also=SHORTER), *RECIPES.values()],
)
def test_a_recipe_survives_json(kind: Recipe) -> None:
    assert recipe_from_dict(json.loads(json.dumps(kind.to_dict()))) == kind


def test_tasks_take_turns_and_those_without_others_read_as_ever() -> None:
    assert [replace(TINY, also=SHORTER).task_at(step) for step in range(5)] == [
        TINY.task,
        *SHORTER,
        TINY.task,
        SHORTER[0],
    ]
    assert {TINY.task_at(step) for step in range(5)} == {TINY.task} and "also" not in TINY.to_dict()
    assert replace(TINY, also=SHORTER).reseeded(3).also == SHORTER


def test_the_architecture_is_fitted_to_the_task() -> None:
    expected = TransformerConfig(d_vocab=10, n_ctx=5, n_layers=2, n_heads=3, d_model=21, d_mlp=13)
    assert TINY.model_config() == expected
    assert replace(TINY, task=HMM()).model_config() == replace(expected, d_vocab=110, n_ctx=93)
    assert replace(TINY, sizes=SIZES | {"n_ctx": 17}).model_config() == replace(expected, n_ctx=17)


def test_unknown_recipes_name_those_that_exist() -> None:
    with pytest.raises(UnknownName, match=r"no recipe named 'bijection-20'\. There are: .*bijection-v20, .*hmm-s5"):
        recipe("bijection-20")


def test_every_shipped_checkpoint_has_its_recipe() -> None:
    stored = {name: read_description(path)["recipe"] for name, path in checkpoints().items()}
    assert stored.keys() == RECIPES.keys()
    for name, own in stored.items():
        assert deciding(own) == deciding(RECIPES[name].to_dict()), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, r"'tiny': steps must be finite and at least 1, got 0\."),
        ({"batch_size": 0}, r"'tiny': batch_size must be finite and at least 1, got 0"),
        ({"late_batch_size": -1}, r"'tiny': late_batch_size must be finite and at least 1, got -1"),
        ({"warmup": -1}, r"'tiny': warmup must be finite and at least 0, got -1"),
        ({"snapshots": -1}, r"'tiny': snapshots must be finite and at least 0, got -1"),
        ({"late_from": 1.5}, r"'tiny': late_from must be between 0 and 1, got 1\.5"),
        ({"float32_share": -0.1}, r"'tiny': float32_share must be between 0 and 1, got -0\.1"),
    ],
)
def test_impossible_recipes_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        replace(TINY, **change)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("targets", "other", r"must be 'sampled' or 'exact', got 'other'"),
        ("optimizer", "other", r"must be 'adamw' or 'muon', got 'other'"),
        ("steps", 5.5, r"must be int, got 5\.5"),
        ("batch_size", 7.5, r"must be int, got 7\.5"),
        ("warmup", True, r"must be int, got True"),
        ("decay_steps", 2.5, r"must be int \| None, got 2\.5"),
        ("loss_positions", 1.5, r"must be int \| None, got 1\.5"),
        ("lr", math.nan, r"must be float, got nan"),
        ("after", "tiny", r"must be Recipe \| None, got 'tiny'"),
    ],
)
def test_values_of_another_type_are_refused(field: str, value: object, message: str) -> None:
    changed = replace(TINY)
    object.__setattr__(changed, field, value)  # past the type checks that only the tests switch on
    with pytest.raises(InvalidArgument, match=rf"recipe 'tiny': {field} {message}"):
        changed.__post_init__()


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    module = TINY.model_config().build(seed=0)
    names = {id(p): name for name, p in module.named_parameters()}
    parts = [
        {names[id(p)] for group in part.param_groups for p in group["params"]}
        for part in Optimizers(TINY, module).parts
    ]
    matrices = [f"attn.W_{w}.weight" for w in "QKVO"] + ["mlp.W_in.weight", "mlp.W_out.weight"]
    assert parts[1] == {f"blocks.{layer}.{matrix}" for layer in range(2) for matrix in matrices}
    assert parts[0] == set(names.values()) - parts[1]
    everything = Optimizers(replace(TINY, optimizer="adamw"), module).parts
    assert [sum(len(group["params"]) for group in part.param_groups) for part in everything] == [len(names)]


@pytest.mark.parametrize("value", [3, [torch.ones(2)], None], ids=["number", "list", "None"])
def test_optimizer_state_that_a_file_cannot_hold_is_refused(value: object) -> None:
    module = TINY.model_config().build(seed=0)
    optimizers = Optimizers(TINY, module)
    first = next(module.parameters())
    optimizers.parts[0].state[first]["history"] = value
    with pytest.raises(InvalidArgument, match=r"optimizer\.0\.0\.history is .*, and only tensors are stored"):
        optimizers.state()
