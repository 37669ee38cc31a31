"""The comparison of architectures: equal data, equal size, and verdicts that follow from their rule."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesgeom.compare import ComparisonJob, compare
from bayesgeom.comparison import cell as cells
from bayesgeom.comparison.cell import CellScores, cell, context_free, score
from bayesgeom.comparison.report import ComparisonReport, comparison_report
from bayesgeom.comparison.verdict import standing, verdict
from bayesgeom.diagnosis import Diagnosis
from bayesgeom.errors import CheckpointFault, InvalidArgument, UnknownName
from bayesgeom.models.resolve import of_module
from bayesgeom.models.transformer import Transformer, TransformerConfig
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.compared import ARCHITECTURES, TASKS, compared
from bayesgeom.training.recipe import Recipe

SMALL = {"architecture": "transformer", "n_layers": 1, "n_heads": 3, "d_model": 21, "d_mlp": 13}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same recipes, of three steps and one stage, and every architecture a small transformer."""
    shortened = {
        name: replace(recipe, sizes=SMALL, steps=3, batch_size=2, warmup=1, snapshots=0, after=None)
        for name, recipe in compared().items()
        if "hmm" not in name and "recall" not in name
    }
    monkeypatch.setattr(cells, "compared", lambda: shortened)


# The recipes.


@pytest.mark.parametrize("task", TASKS)
def test_architectures_of_a_row_have_as_many_weights_and_the_same_data(task: str) -> None:
    row = [compared()[f"{task}-{architecture}"] for architecture in ARCHITECTURES]
    sizes = [sum(p.numel() for p in recipe.model_config().build(seed=0).parameters()) for recipe in row]
    assert max(abs(size / sizes[0] - 1) for size in sizes) <= 0.01
    assert len({str(replace(recipe, name="", sizes={}, after=None)) for recipe in row}) == 1
    stages = [[(s.seed, s.steps, s.batch_size, s.task) for s in _stages(recipe)] for recipe in row]
    assert all(own == stages[0] for own in stages)


def _stages(recipe: Recipe | None) -> Iterator[Recipe]:
    while recipe is not None:
        yield recipe
        recipe = recipe.after


def test_reseeding_and_lengthening_reach_every_stage() -> None:
    recipe = compared()["repeats-lstm"]
    other = recipe.reseeded(2).lengthened(3)
    assert recipe.after is not None and other.after is not None
    assert [s.seed - o.seed for s, o in zip(_stages(other), _stages(recipe), strict=True)] == [2_000, 2_000]
    assert other.n_sequences == 3 * recipe.n_sequences and other.name == "repeats-lstm-seed2-x3"


def test_sequences_are_counted_over_stages_and_late_batches() -> None:
    first = Recipe(name="a", task=Bijection(), sizes=SMALL, steps=5, batch_size=2)
    then = replace(first, name="b", steps=10, batch_size=3, late_batch_size=7, late_from=0.8, after=first)
    assert then.n_sequences == 5 * 2 + 8 * 3 + 2 * 7


# Verdicts.


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.95, "realised"), (0.94, "limited"), (0.5, "limited"), (0.49, "not realised"), (-3, "not realised")],
)  # fmt: skip
def test_the_verdict_follows_its_rule(share: float, expected: str) -> None:
    assert verdict(share) == expected


def test_nothing_is_a_contradiction_before_it_is_checked() -> None:
    assert standing("realised", ["realised", "realised"], []) == "as published"
    assert standing("realised", ["limited"], []) == "differs, not yet checked"
    assert standing("realised", ["limited"], ["limited"]).startswith("contradicts")
    assert standing("realised", ["limited"], ["realised"]).startswith("undecided")
    assert standing("realised", ["limited", "realised"], ["limited"]).startswith("undecided")
    assert standing(None, ["limited"], []) == "nothing published"


# Scores.


def test_the_best_context_free_predictor_of_a_bijection_is_uniform() -> None:
    marginal = context_free(Bijection(n_values=5, n_pairs=4), seed=0)
    assert marginal.shape == (4, 5) and float((marginal - 0.2).abs().max()) < 0.05
    assert torch.allclose(marginal.sum(-1), torch.ones(4, dtype=torch.float64))


def test_scores_count_where_the_answer_is_known() -> None:
    task = Bijection(n_values=5, n_pairs=7, repeats=True)
    module = Transformer(TransformerConfig(d_vocab=10, n_ctx=13, n_layers=1, n_heads=3, d_model=21, d_mlp=13))
    own = score(of_module(module, task=task), task, n=11, seed=0)
    trials = next(iter(task.stream(11, seed=_first_seed())))
    asked = trials.at_scored(trials.predictive)
    known = (asked.amax(-1) > 1 - 1e-9).double().mean(1)
    assert own.known == pytest.approx(known.numpy()) and 0 < known.mean() < 1
    assert (own.known_correct <= own.known + 1e-12).all() and (own.kl_bits > 0).all()
    free = context_free(task, seed=0).expand_as(asked)
    kl = torch.where(asked > 0, asked * (asked / free).log2(), 0.0).sum(-1).mean(1)
    assert own.context_free_kl_bits == pytest.approx(kl.numpy(), abs=1e-5)


def _first_seed() -> int:
    from bayesgeom.tasks.base import derived_seed

    return derived_seed(0, 0)


def scores(kl: float, rng: np.random.Generator, n: int = 41) -> CellScores:
    noise = rng.normal(0, 0.01, n)
    return CellScores(
        kl_bits=kl + noise,
        context_free_kl_bits=np.full(n, 2.0),
        entropy_error_bits=kl / 2 + noise,
        context_free_entropy_error_bits=np.full(n, 1.5),
        known=np.full(n, 0.25),
        known_correct=np.full(n, 0.2),
        n_parameters=17,
        weights_hash="h",
    )


def table(*kls: float, rng: np.random.Generator) -> ComparisonReport:
    row = [cell("bijection", architecture) for architecture in ("transformer", "mamba", "mlp")]
    return comparison_report(row, [scores(kl, rng) for kl in kls], seed=0)


def test_the_table_says_what_the_scores_say(rng: np.random.Generator) -> None:
    report = table(0.02, 0.6, 1.9, rng=rng)
    assert report.share_closed == pytest.approx([0.99, 0.7, 0.05], abs=0.01)
    assert report.verdicts == ("realised", "limited", "not realised")
    assert report.standings == ("as published", "differs, not yet checked", "as published")
    assert (report.share_closed_lo < report.share_closed).all() and (report.share_closed < report.share_closed_hi).all()
    assert report.accuracy_where_known == pytest.approx(0.8) and report.kl_bits_null == pytest.approx(2.0)
    assert report.share_by_task.tolist() == [report.share_closed.tolist()]
    printed = report.table()
    assert "0.70" in printed and "80.0%" in printed and "Realised: at least 95%" in printed
    assert report.table(is_markdown=True).splitlines()[1].startswith("| ---")


def test_the_figure_shows_every_model_and_the_null(rng: np.random.Generator) -> None:
    figure = table(0.02, 0.6, 1.9, rng=rng).figure()
    heat, points = figure.data
    assert np.asarray(heat.z).shape == (1, 3) and list(points.y) == [
        "bijection-transformer",
        "bijection-mamba",
        "bijection-mlp",
    ]
    assert "null" in figure.layout.annotations[0].text


# The whole of it.


@pytest.mark.usefixtures("quick")
def test_what_is_missing_is_trained_and_a_difference_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayesgeom.training.kept.checkpoints", dict)
    job = ComparisonJob(
        architectures=("transformer", "mlp"), tasks=("bijection",), seeds=1, n=5, seed=0, runs=tmp_path, is_trained=True
    )
    report = job.run()
    names = ("bijection-transformer", "bijection-mlp", "bijection-transformer-seed1-x2")
    assert report.checkpoints == names and report.is_check == (False, False, True)
    assert report.standings[0].startswith("contradicts") and report.standings[1] == "as published"
    again = compare(("transformer", "mlp"), ("bijection",), n=5, runs=tmp_path, is_trained=False)
    partly = compare(("transformer", "lstm"), ("bijection",), n=5, runs=tmp_path, is_trained=False)
    assert partly.missing == ("bijection-lstm",) and partly.table().endswith("Not trained: bijection-lstm.")
    assert np.array_equal(again.kl_bits, report.kl_bits) and again.weights_hashes == report.weights_hashes
    job.diagnosis(report).save(tmp_path / "out")
    loaded = Diagnosis.load(tmp_path / "out")["comparison"]
    assert isinstance(loaded, ComparisonReport) and loaded.table() == report.table()


@pytest.mark.usefixtures("quick")
def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesgeom.training.kept.checkpoints", dict)
    compare(("mlp",), ("bijection",), n=5, runs=tmp_path)
    changed = {name: replace(recipe, lr=0.5) for name, recipe in cells.compared().items()}
    monkeypatch.setattr(cells, "compared", lambda: changed)
    with pytest.raises(CheckpointFault, match=r"another recipe than bijection-mlp"):
        compare(("mlp",), ("bijection",), n=5, runs=tmp_path)


def test_what_cannot_be_compared_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match=r"compared task.*'chess'.*bijection"):
        compare(tasks=("chess",))
    with pytest.raises(UnknownName, match=r"compared architecture.*'rnn'.*lstm"):
        compare(("rnn",))
    with pytest.raises(InvalidArgument, match=r"seeds is at least 1"):
        compare(seeds=0)
    with pytest.raises(InvalidArgument, match=r"at least one architecture"):
        compare(())
    monkeypatch.setattr("bayesgeom.training.kept.checkpoints", dict)
    with pytest.raises(UnknownName, match=r"none of bijection-lstm, bijection-lstm-seed1 is there.*only-existing"):
        compare(("lstm",), ("bijection",), seeds=2, n=2, runs=tmp_path, is_trained=False)
