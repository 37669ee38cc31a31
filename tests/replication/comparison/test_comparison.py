"""The comparison of architectures: equal data, equal size, and verdicts that follow from their rule."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import CheckpointFault, InvalidArgument, UnknownName
from bayesgeom.executors import Batch
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.report.theme import DARK
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training import publish
from bayesgeom.training.recipes import Recipe
from examples.replication.capacity import n_parameters
from examples.replication.comparison import cell as cells
from examples.replication.comparison.cell import cell
from examples.replication.comparison.report import ComparisonReport, comparison_report
from examples.replication.comparison.run import compare, replicate
from examples.replication.comparison.scores import CONTEXT_FREE, Scores, check_counts, context_aware
from examples.replication.comparison.state_size import state_floats
from examples.replication.comparison.verdict import (
    NOT_TESTABLE,
    cell_verdict,
    has_published_sizes,
    standing,
    transport_verdict,
    verdict,
)
from examples.replication.training.recipes import ARCHITECTURES, ON_REQUEST, TASKS, compared, lengthened, recipe
from examples.replication.training.trained_models import TrainedModels

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
    other = lengthened(recipe.reseeded(2), 3)
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
    [(0.95, "realized"), (0.94, "limited"), (0.5, "limited"), (0.49, "not realized"), (-3, "not realized")],
)
def test_the_verdict_follows_its_rule(share: float, expected: str) -> None:
    assert verdict(share) == expected


def test_one_seed_decides_nothing_and_seeds_must_agree() -> None:
    assert cell_verdict(["realized"]) == "not decided: one seed"
    assert cell_verdict(["realized", "realized"]) == "realized"
    assert cell_verdict(["realized", "limited", "realized"]) == "not decided: seeds disagree (limited, realized)"
    assert cell_verdict(["realized", "realized"], 3) == "not decided: 2 of 3 seeds"
    assert cell_verdict(["realized", "limited"], 3) == "not decided: seeds disagree (limited, realized)"
    assert cell_verdict([NOT_TESTABLE]) == NOT_TESTABLE
    unknown = "not decided: equivalent window not measured"
    assert cell_verdict(["realized", unknown]) == unknown


def test_a_contradiction_needs_the_published_sizes() -> None:
    stands = partial(standing, "limited")
    assert stands("realized", is_published_size=True) == "contradicts"
    assert stands("realized", is_published_size=False) == "differs at these sizes"
    assert stands("limited", is_published_size=False) == "as published at these sizes"
    assert stands("not decided: one seed", is_published_size=True) == "not decided: one seed"
    assert stands(NOT_TESTABLE, is_published_size=True) == NOT_TESTABLE
    assert standing(None, "realized", is_published_size=True) == "nothing published"
    assert not has_published_sizes(compared()["recall-lstm"].task) and has_published_sizes(
        compared()["recall-64-lstm"].task
    )


@pytest.mark.parametrize(
    ("symbols", "gap", "expected"),
    [
        (20.0, 0.0, NOT_TESTABLE),
        (20.0, 0.019, NOT_TESTABLE),
        (11.0, 0.02, "realized"),
        (10.0, 0.05, "not realized"),
        (np.nan, 0.05, "not decided: equivalent window not measured, or without an interval"),
        (np.nan, np.nan, "not decided: equivalent window not measured"),
    ],
)
def test_transport_is_judged_by_memory_where_the_task_can_show_it(symbols: float, gap: float, expected: str) -> None:
    assert transport_verdict(symbols, gap) == expected


def test_cells_state_their_terms() -> None:
    assert cell("hmm", "lstm").targets == "exact (distilled)" and cell("hmm-sampled", "lstm").targets == "sampled"
    assert cell("hmm", "lstm").rate_search == "none: the decay schedule was tuned on the transformer"
    assert "pooled first stage" in cell("recall", "lstm").rate_search
    with pytest.raises(UnknownName, match=r"architecture with a recipe on recall-64.*'mamba'.*mamba2"):
        cell("recall-64", "mamba")


# State, and baselines that see the context.


def test_state_sizes_count_the_carried_numbers() -> None:
    size = {name: state_floats(compared()[name].model_config(), compared()[name].task.n_pos) for name in compared()}
    assert size["bijection-transformer"] == 2 * 37 * 128 * 3 and size["bijection-lstm"] == 2 * 192 * 2
    assert size["bijection-mamba"] == 3 * 340 * (16 + 3) and size["bijection-mlp"] == 0
    assert size["bijection-mamba2"] == 3 * (348 * 32 + 3 * (348 + 64)) and size["bijection-rwkv"] == 5 * 123 * 3
    assert size["recall-mlp-prefix"] == compared()["recall-mlp-prefix"].task.n_pos
    assert state_floats(recipe("bijection-v20-llama").model_config(), 37) == 2 * 37 * 2 * 32 * 6


def test_the_bag_of_values_is_exact_where_keys_never_return() -> None:
    task = Bijection(n_values=5, n_pairs=5)
    trials = task.sample(7, seed=3)
    text = context_aware(task, trials)
    torch.testing.assert_close(text["bag_of_values"], trials.at_scored(trials.predictive))
    assert set(text) == {"uniform", "bag_of_values"}


def test_membership_knows_whether_a_key_returned_and_not_its_value() -> None:
    task = Bijection(n_values=5, n_pairs=7, repeats=True)
    trials = task.sample(11, seed=3)
    text = context_aware(task, trials)["key_membership"]
    keys, values = trials.tokens[:, 0::2], trials.at_scored(trials.labels) - 5
    for row in range(11):
        for at in range(7):
            shown = set(values[row, :at].tolist())
            allowed = shown if keys[row, at] in keys[row, :at] else set(range(5)) - shown
            slow = [(1 / len(allowed)) if value in allowed else 0.0 for value in range(5)]
            assert text[row, at].tolist() == pytest.approx(slow)


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
        n_parameters=700_001,
        weights_hash="h",
        baseline_kl_bits={"context-free": 2.0, "bag_of_values": 0.5, "elimination_only": np.inf},
        baseline_known_correct={"context-free": 0.01, "bag_of_values": 0.05, "elimination_only": 0.03},
    )


def table(*kls: float, rng: np.random.Generator) -> ComparisonReport:
    row = [cell("bijection", architecture) for architecture in ("transformer", "mamba", "mlp")]
    return comparison_report(row, [scores(kl, rng) for kl in kls], seed=0)


def test_the_table_says_what_the_scores_say(rng: np.random.Generator) -> None:
    report = table(0.02, 0.6, 1.9, rng=rng)
    assert report.share_closed.value == pytest.approx([0.99, 0.7, 0.05], abs=0.01)
    assert report.verdicts == ("realized", "limited", "not realized")
    assert report.standings == report.cell_verdicts == ("not decided: one seed",) * 3
    strongest = [report.strongest_baseline(index) for index in range(3)]
    assert {own.name for own in strongest} == {"bag_of_values"} and {float(own.value) for own in strongest} == {0.5}
    assert [line.verdict for line in report.headlines()] == ["not decided: one seed"] * 3
    assert report.n_seeds == (1, 1, 1) and np.isnan(report.memory_symbols.value).all()
    low, high = report.share_closed.ends
    assert (low < report.share_closed.value).all() and (report.share_closed.value < high).all()
    known = report.accuracy_where_known
    assert known.value == pytest.approx(0.8) and known.baseline(CONTEXT_FREE).value == pytest.approx(0.04)
    assert known.baseline("elimination_only").value == pytest.approx(0.12)
    assert report.kl_bits.baseline(CONTEXT_FREE).value == pytest.approx(2.0)
    assert not report.share_closed.baseline(CONTEXT_FREE).value.any()
    assert report.kl_bits.clears("lower").tolist() == ["yes", "no", "no"]
    assert report.share_by_task().tolist() == [report.share_closed.value.tolist()]
    printed = report.table()
    assert "0.6984" in printed and "0.8 [0.8 … 0.8]; bag_of_values 0.2" in printed
    assert "One training is realized if it closes at least 95 %" in printed and "bag_of_values: 0.5" in printed
    for part in report.table(is_markdown=True).split("\n\n")[:2]:
        header, rule, first = (line.split(" | ") for line in part.splitlines()[:3])
        assert len(header) == len(rule) == len(first) and set(rule[1:-1]) == {"---"}


def test_a_cell_that_is_not_trained_is_named_in_a_color_that_dark_pages_change(rng: np.random.Generator) -> None:
    """A heat map writes on missing cells as on light ones, which is dark gray on dark pages."""
    row = [cell("recall", "mamba"), cell("bijection", "lstm")]
    cells, named, *_ = comparison_report(row, [scores(kl, rng) for kl in (0.02, 1.9)], seed=0).panels()[0].figure.data
    assert [[np.isfinite(share) for share in line] for line in cells.z] == [[True, False], [False, True]]
    missing = [text == "–" for text in named.text]
    assert named.mode == "text" and missing == [False, True, True, False]
    assert set(named.textfont.color) <= set(DARK), "inks and cells change on dark pages"
    assert [(x, y.split("<br>")[0]) for x, y in zip(named.x, named.y, strict=True)] == [
        ("mamba", "recall"),
        ("lstm", "recall"),
        ("mamba", "bijection"),
        ("lstm", "bijection"),
    ]


def test_equivalent_window_explains_verdicts_on_transport(rng: np.random.Generator) -> None:
    """A share of 0.9 was not realized, for a reason that the page did not state."""
    row = [*(cell("slow-hmm", "transformer", seed=seed) for seed in (0, 1)), cell("slow-hmm", "mamba")]
    row.append(cell("hmm", "lstm"))  # which cannot test transport
    measured = [
        replace(scores(0.1, rng), memory_symbols=memory, most_memory_symbols=memory, window_gap_bits=gap)
        for memory, gap in ((17.0, 0.03), (16.0, 0.03), (7.0, 0.03), (3.0, 1e-8))
    ]
    lines = comparison_report(row, measured, seed=0).headlines()
    memories = [(line.value, line.verdict, line.baseline) for line in lines if line.metric == "memory_symbols"]
    assert memories == [(17, "realized", 10), (16, "realized", 10), (7, "not decided: one seed", 10)]


def test_seeds_at_the_same_budget_make_a_verdict_and_checks_do_not(rng: np.random.Generator) -> None:
    own = [cell("bijection", "lstm", seed=seed) for seed in (0, 1, 2)]  # trained in less than a quarter of an hour
    check = cell("bijection", "lstm", seed=1, is_check=True)
    found = [scores(kl, rng) for kl in (0.02, 0.03, 0.02, 1.9)]
    assert set(comparison_report(own[:2], found[:2], seed=0).cell_verdicts) == {"not decided: 2 of 3 seeds"}
    report = comparison_report([*own, check], found, seed=0)
    assert report.cell_verdicts[:3] == ("realized",) * 3 and report.standings[0] == "as published"
    assert report.n_seeds == (3, 3, 3, 1) and report.share_by_task() == pytest.approx(0.9875, abs=0.005)
    assert "1, twice the budget" in report.table()
    recall = [cell("recall", "mamba", seed=seed) for seed in (0, 1)]
    report = comparison_report(recall, [scores(kl, rng) for kl in (0.02, 0.03)], seed=0)
    assert set(report.standings) == {"differs at these sizes"}


def test_the_papers_hmm_cannot_show_transport(rng: np.random.Generator) -> None:
    own = replace(scores(0.02, rng), memory_symbols=20.0, most_memory_symbols=20.0, window_gap_bits=1e-6)
    report = comparison_report([cell("hmm", "lstm"), cell("hmm", "lstm", seed=1)], [own, own], seed=0)
    assert set(report.verdicts) == set(report.standings) == {NOT_TESTABLE}
    slow = replace(own, window_gap_bits=0.06)
    report = comparison_report([cell("slow-hmm", "lstm"), cell("slow-hmm", "lstm", seed=1)], [slow, slow], seed=0)
    assert set(report.cell_verdicts) == {"realized"} and "20 [20 … 20]" in report.table()


def test_where_no_answer_is_known_there_is_no_accuracy(rng: np.random.Generator) -> None:
    nothing = np.zeros(41)
    own = replace(scores(0.1, rng), known=nothing, known_correct=nothing, context_free_known_correct=nothing)
    report = comparison_report([cell("bijection", "lstm")], [own], seed=0)
    accuracy = report.accuracy_where_known
    assert np.isnan(accuracy.value[0]) and np.isnan(accuracy.baseline(CONTEXT_FREE).value[0])
    assert "| – | – | realized |" in report.table(is_markdown=True)


def test_the_figure_shows_every_model_and_the_baseline(rng: np.random.Generator) -> None:
    shares, models = table(0.02, 0.6, 1.9, rng=rng).panels()
    heat, (points,) = shares.figure.data[0], models.figure.data
    assert np.asarray(heat.z).shape == (1, 3)
    assert list(points.y) == ["bijection-transformer", "bijection-mamba", "bijection-mlp"]


# The whole of it.


@pytest.mark.usefixtures("quick")
def test_what_is_missing_is_trained_and_checks_only_where_they_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.replication.training.trained_models.checkpoints", dict)
    kept = TrainedModels(runs=tmp_path, train_missing=True)
    kept.model(cell("bijection", "transformer", seed=1, is_check=True).recipe)
    report = compare(("transformer", "mlp", "mlp"), "bijection", n=5, runs=tmp_path)
    names = ("bijection-transformer", "bijection-mlp", "bijection-transformer-seed1-x2")
    assert report.checkpoints == names and report.is_check == (False, False, True)
    assert set(report.standings) == {"not decided: one seed"}
    again = compare(("transformer", "mlp"), "bijection", n=5, runs=str(tmp_path), train_missing=False)
    partly = compare(("transformer", "lstm"), ("bijection",), n=5, runs=tmp_path, train_missing=False)
    assert partly.missing == ("bijection-lstm",)
    assert partly.table().endswith("Not trained, or without weights here: bijection-lstm.")
    assert np.array_equal(again.kl_bits.value, report.kl_bits.value)
    assert again.weights_hashes == report.weights_hashes
    report.save(tmp_path / "out")
    loaded = ComparisonReport.load(tmp_path / "out")
    assert loaded.table() == report.table()


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.exhaustive), 3])
def test_a_comparison_gives_the_numbers_of_a_diagnosis(seed: int, tmp_path: Path) -> None:
    """Both measure the same sequences with the same resamples, so that KL and memory have one interval each."""
    compared = compare("lstm", "hmm", n=43, seed=seed, runs=tmp_path, train_missing=False)
    (own,) = bayesgeom.diagnose("hmm-lstm", probes=["calibration"], n=43, seed=seed, n_untrained=0).values()
    assert isinstance(own, CalibrationReport)
    for here, there in (
        (compared.memory_symbols[0], own.equivalent_window_symbols),
        (compared.kl_bits[0], own.kl_bits),
        (compared.entropy_mae_bits[0], own.entropy_mae_bits),
    ):
        np.testing.assert_allclose([here.value, *here.ends], [there.value, *there.ends], rtol=1e-6)
    assert not np.isnan(compared.kl_bits.ends).any()


@pytest.mark.usefixtures("quick")
def test_an_executor_gives_the_same_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.replication.training.trained_models.checkpoints", dict)
    asked: dict[str, Any] = {"tasks": "bijection", "n": 5, "runs": tmp_path / "runs"}
    announced = list[str]()
    with ThreadPoolExecutor(2) as pool:
        batch = Batch(executor=pool, folder=tmp_path / "jobs")
        sent = compare(("transformer", "mlp"), **asked, executor=batch, announce=announced.append)
        again = compare(("transformer", "mlp"), **asked, executor=batch, announce=announced.append)
    here = compare(("transformer", "mlp"), **asked, train_missing=False)
    assert sent.table() == again.table() == here.table() and sent.provenance == here.provenance
    assert len(announced) == 1 and "bijection-mlp: 6 sequences in 3 steps" in announced[0], "nothing is trained again"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("what", ["checkpoint", "stopped run", "check"])
def test_what_another_recipe_made_is_refused_before_anything_is_trained(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.replication.training.trained_models.checkpoints", dict)
    recipe = cell("bijection", "mlp", seed=1, is_check=True) if what == "check" else cell("bijection", "mlp")
    other = replace(recipe.recipe, lr=0.5)
    TrainedModels(runs=tmp_path, train_missing=True).model(other)
    if what == "stopped run":
        shutil.rmtree(tmp_path / other.name / "checkpoint")
    with pytest.raises(CheckpointFault, match=r"different recipe than (the current )?'?bijection-mlp"):
        compare(("transformer", "mlp"), "bijection", n=5, runs=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [other.name], "nothing was trained"


def test_what_cannot_be_compared_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match=r"compared task.*'chess'.*bijection"):
        compare(tasks="chess")
    with pytest.raises(UnknownName, match=r"compared architecture.*'rnn'.*lstm, .*mlp-prefix.*rwkv"):
        compare(("rnn",))
    with pytest.raises(InvalidArgument, match=r"^architectures is empty: pass at least one architecture"):
        compare(())
    monkeypatch.setattr("examples.replication.training.trained_models.checkpoints", dict)
    with pytest.raises(UnknownName, match=r"named 'bijection-lstm' or 'bijection-lstm-seed1', .*only-existing"):
        compare(("lstm",), ("bijection",), seeds=2, n=2, runs=tmp_path, train_missing=False)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"seeds": 0}, "seeds, the number of trainings, must be an integer of at least 1, got 0"),
        ({"n": 1}, "^n must be an integer of at least 2, got 1"),
        ({"seed": -1}, "seed must be a non-negative integer below 2.63, got -1"),
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
    assert report.checkpoints[0] == f"bijection-{architecture}" and np.isfinite(report.kl_bits.value).all()
