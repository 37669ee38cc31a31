"""Networks that differ in their positional encoding alone, and models that are trained where they are missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from bayesgeom.core.errors import BayesGeomError, UnknownName
from bayesgeom.generalization.length_report import LengthReport
from bayesgeom.tasks.hmm import HMM
from bayesgeom.training import publish
from bayesgeom.training.recipes import Recipe
from examples.replication.comparison import commands
from examples.replication.training import trained_models
from examples.replication.training.trained_models import TrainedModels
from examples.replication.training.variants import KINDS, TASKS, all_variants, variants, variants_of_kinds
from tests.pages import READINGS

TASK = HMM(n_states=2, n_symbols=3, length=7)
SIZES = {"architecture": "transformer", "n_layers": 2, "n_heads": 3, "d_model": 30, "d_mlp": 13, "positions": "rotary"}


@pytest.mark.parametrize("task", TASKS)
def test_arms_differ_in_positions_alone(task: str) -> None:
    rows = variants(task)
    stages = []
    for recipe in rows.values():
        own, stage = [], recipe
        while stage is not None:
            sizes = {k: v for k, v in stage.sizes.items() if k not in {key for kind in KINDS.values() for key in kind}}
            own.append((stage.seed, stage.steps, stage.batch_size, stage.task, stage.also, tuple(sizes.items())))
            stage = stage.after
        stages.append(own)
    assert all(own == stages[0] for own in stages)
    kinds = {str(recipe.sizes["positions"]) for recipe in rows.values()}
    assert kinds == {"learned", "sinusoidal", "rotary", "alibi", "prior", "none"}


def test_every_arm_can_be_built_and_has_room_for_ten_times_its_length() -> None:
    for name, recipe in all_variants().items():
        config = recipe.model_config()
        config.build(seed=0)
        factor = {"length": 100} if name.startswith("hmm") else {"n_filler": 80}
        assert replace(recipe.task, **factor).n_pos <= config.n_ctx  # type: ignore[type-var]


def test_mixed_arms_see_every_distance_within_and_none_beyond() -> None:
    for recipe in variants("recall-mixed").values():
        for stage in (recipe, recipe.after):
            assert stage is not None
            seen = [stage.task_at(step) for step in range(18)]
            assert [task.n_filler for task in seen] == 2 * [8, *range(8)]  # type: ignore[attr-defined]
            assert {replace(task, n_filler=8) for task in seen} == {stage.task}  # type: ignore[type-var]


def test_unknown_arms() -> None:
    with pytest.raises(UnknownName, match=r"no task with variants named 'mess3'. There are: hmm, recall, recall-mixed"):
        variants("mess3")
    with pytest.raises(UnknownName, match="there is no variant of recall named 'no-top-attention'"):
        variants_of_kinds("recall", ("rotary", "no-top-attention"))


def test_models_of_recipes_are_trained_once_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "N_SCORED", 8)
    recipe = Recipe(name="tiny-variant", task=TASK, sizes=SIZES, steps=2, batch_size=3, snapshots=0, targets="exact")
    with pytest.raises(UnknownName, match="no checkpoint named 'tiny-variant'"):
        TrainedModels(runs=tmp_path, train_missing=False).model(recipe)
    kept = TrainedModels(runs=tmp_path, train_missing=True)
    first = kept.model(recipe)
    assert (
        first.spec.name == "tiny-variant"
        and kept.has(recipe)
        and kept.model(recipe).spec.weights_hash == first.spec.weights_hash
    )


@pytest.mark.parametrize("wrong", [{"to": (5,)}, {"to": (50,), "n": 1}, {"threshold": 0.0}, {"to": (9_999,)}])
def test_no_arm_is_trained_for_what_is_refused(
    wrong: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*_: object, **__: object) -> None:
        raise AssertionError("trained before it was checked")

    monkeypatch.setattr(trained_models, "make_checkpoint", trained)
    with pytest.raises(BayesGeomError):
        commands.length("hmm", kinds=("learned",), runs=tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="trained before"):
        commands.length("hmm", kinds=("learned",), runs=tmp_path, to=(50,))


def test_the_arms_are_those_of_the_committed_report() -> None:
    report = LengthReport.load(READINGS / "length-hmm")
    assert set(report.models) <= set(variants("hmm")) and report.trained == 10 and report.n == 512
