"""The comparison of architectures: equal data, equal size, and verdicts that follow from their rule."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.compare import ComparisonJob, compare
from bayesgeom.comparison import cell as cells
from bayesgeom.comparison.cell import cell
from bayesgeom.comparison.report import ComparisonReport, comparison_report
from bayesgeom.comparison.verdict import standing, verdict
from bayesgeom.diagnosis import Diagnosis
from bayesgeom.errors import CheckpointFault, InvalidArgument, UnknownName
from bayesgeom.models.capacity import n_parameters
from bayesgeom.replicate import replicate
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training import publish
from bayesgeom.training.compared import ARCHITECTURES, ON_REQUEST, TASKS, compared
from bayesgeom.training.kept import Kept
from bayesgeom.training.recipe import Recipe
from bayesgeom.training.scores import Scores, check_counts

SLOW = pytest.mark.slow
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
    monkeypatch.setattr(publish, "N_SCORED", 8)


# The recipes.


@pytest.mark.parametrize("task", TASKS)
def test_architectures_of_a_row_have_as_many_weights_and_the_same_data(task: str) -> None:
    row = [compared()[f"{task}-{architecture}"] for architecture in (*ARCHITECTURES, *ON_REQUEST)]
    sizes = [n_parameters(recipe.model_config()) for recipe in row]
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


# The table.


def scores(kl: float, rng: np.random.Generator, n: int = 41) -> Scores:
    noise = rng.normal(0, 0.01, n)
    return Scores(
        kl_bits=kl + noise,
        context_free_kl_bits=np.full(n, 2.0),
        entropy_error_bits=kl / 2 + noise,
        context_free_entropy_error_bits=np.full(n, 1.5),
        known=np.full(n, 0.25),
        known_correct=np.full(n, 0.2),
        context_free_known_correct=np.full(n, 0.01),
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
    assert report.accuracy_where_known_null == pytest.approx(0.04) and not report.share_closed_null.any()
    assert report.share_by_task.tolist() == [report.share_closed.tolist()]
    printed = report.table()
    assert "0.70" in printed and "80.0% [80.0%, 80.0%]" in printed and "Realised: at least 95%" in printed
    header, rule, first = (line.split(" | ") for line in report.table(is_markdown=True).splitlines()[:3])
    assert len(header) == len(rule) == len(first) and set(rule[1:-1]) == {"---"}
    assert [cell for name, cell in zip(header, first, strict=True) if name == "null"] == ["2.0000", "1.5000", "4.0%"]


def test_where_no_answer_is_known_there_is_no_accuracy(rng: np.random.Generator) -> None:
    nothing = np.zeros(41)
    own = replace(scores(0.1, rng), known=nothing, known_correct=nothing, context_free_known_correct=nothing)
    report = comparison_report([cell("bijection", "lstm")], [own], seed=0)
    assert np.isnan(report.accuracy_where_known[0]) and np.isnan(report.accuracy_where_known_null[0])
    assert "–  –  realised" in report.table() or "| – | – |" in report.table(is_markdown=True)


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
    kept = Kept(runs=tmp_path, is_trained=True)
    job = ComparisonJob.of(("transformer", "mlp", "mlp"), "bijection", seeds=1, n=5, seed=0, kept=kept)
    report = job.run()
    names = ("bijection-transformer", "bijection-mlp", "bijection-transformer-seed1-x2")
    assert report.checkpoints == names and report.is_check == (False, False, True)
    assert report.standings[0].startswith("contradicts") and report.standings[1] == "as published"
    again = bayesgeom.compare(("transformer", "mlp"), "bijection", n=5, runs=str(tmp_path), is_trained=False)
    partly = compare(("transformer", "lstm"), ("bijection",), n=5, runs=tmp_path, is_trained=False)
    assert partly.missing == ("bijection-lstm",) and partly.table().endswith("Not trained: bijection-lstm.")
    assert np.array_equal(again.kl_bits, report.kl_bits) and again.weights_hashes == report.weights_hashes
    job.diagnosis(report).save(tmp_path / "out")
    loaded = Diagnosis.load(tmp_path / "out")["comparison"]
    assert isinstance(loaded, ComparisonReport) and loaded.table() == report.table()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("what", ["checkpoint", "stopped run", "check"])
def test_what_another_recipe_made_is_refused_before_anything_is_trained(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayesgeom.training.kept.checkpoints", dict)
    recipe = cell("bijection", "mlp", seed=1, is_check=True) if what == "check" else cell("bijection", "mlp")
    other = replace(recipe.recipe, lr=0.5)
    Kept(runs=tmp_path, is_trained=True).model(other)
    if what == "stopped run":
        shutil.rmtree(tmp_path / other.name / "checkpoint")
    with pytest.raises(CheckpointFault, match=r"another recipe than '?bijection-mlp"):
        compare(("transformer", "mlp"), "bijection", n=5, runs=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [other.name], "nothing was trained"


@pytest.mark.usefixtures("quick")
def test_the_command_says_first_what_it_will_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bayesgeom.training.kept.checkpoints", dict)
    asked = ["compare", "--tasks", "bijection", "--n", "5", "--runs", str(tmp_path), "--architectures"]
    assert main([*asked, "mlp", "mlp"]) == 0
    out, err = capsys.readouterr()
    first = f"there: nothing\nto be trained, in {str(tmp_path)!r}:\n  bijection-mlp: 6 sequences in 3 steps\n"
    assert err.startswith(first) and out.count("bijection-mlp ") == 1
    assert main([*asked, "mlp", "lstm", "--only-existing"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.count("bijection-lstm") == 1 and "Not trained: bijection-lstm." in out


def test_what_cannot_be_compared_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match=r"compared task.*'chess'.*bijection"):
        compare(tasks="chess")
    with pytest.raises(UnknownName, match=r"compared architecture.*'rnn'.*lstm, .*mlp-prefix.*rwkv"):
        compare(("rnn",))
    with pytest.raises(InvalidArgument, match=r"at least one architecture"):
        compare(())
    monkeypatch.setattr("bayesgeom.training.kept.checkpoints", dict)
    with pytest.raises(UnknownName, match=r"named 'bijection-lstm' or 'bijection-lstm-seed1', .*only-existing"):
        compare(("lstm",), ("bijection",), seeds=2, n=2, runs=tmp_path, is_trained=False)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"seeds": 0}, "seeds, the number of trainings, is a whole number, at least 1, got 0"),
        ({"n": 1}, "^n is a whole number, at least 2, got 1"),
        ({"seed": -1}, "a seed is a whole number, at least 0, got -1"),
    ],
)
def test_counts_that_are_none_are_named(asked: dict[str, Any], message: str) -> None:
    for ask in (compare, partial(replicate, "bijection-lstm")):
        with pytest.raises(InvalidArgument, match=message):
            ask(**asked)
    with pytest.raises(InvalidArgument, match=r"seeds, the number of trainings, .* got \[0, 1\]"):
        check_counts(seeds=[0, 1], n=5, seed=0)


@pytest.mark.parametrize(
    "architecture", ["mlp-prefix", pytest.param("mamba2", marks=SLOW), pytest.param("rwkv", marks=SLOW)]
)
def test_architectures_on_request_are_trained_by_the_same_recipes(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {name: replace(recipe, steps=2, batch_size=2, warmup=1, snapshots=0) for name, recipe in compared().items()}
    monkeypatch.setattr(cells, "compared", lambda: short)
    monkeypatch.setattr(publish, "N_SCORED", 8)
    report = compare(architecture, "bijection", n=8, runs=tmp_path)
    assert report.checkpoints[0] == f"bijection-{architecture}" and np.isfinite(report.kl_bits).all()
