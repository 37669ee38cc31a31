"""Scorecards: cells, the choice of rates, what fails, and what a killed run keeps."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bayesgeom
from bayesgeom.core import InvalidArgument
from bayesgeom.executors import Batch, connect
from bayesgeom.scorecards.cell import _SCORES, SCORED, Row
from bayesgeom.scorecards.pools import crossing, pool_weights
from bayesgeom.scorecards.report import FAILED, Scorecard, card_of
from bayesgeom.scorecards.run import best_rates, rates_of, reference_rows, scorecard
from bayesgeom.scorecards.worlds import World, worlds_of
from tests.scorecards import recurrence

OWN = f"{Path(recurrence.__file__)}:make"
SMALL = {"steps": 6, "rates": 1, "seeds": 1, "batch_size": 4, "beside": False}


@pytest.mark.exhaustive
def test_an_own_layer_gets_its_row() -> None:
    card = scorecard({"mine": recurrence.make, "lstm": "lstm"}, ["dice", "rrxor"], **SMALL)
    assert card.architectures == ("mine", "lstm") and card.worlds == ("dice", "rrxor")
    assert (card.kl_bits.value > 0).all() and (card.kl_bits.low < card.kl_bits.high).all()
    assert (card.curve_kl_bits[:, :, 0] > 0).all() and len(card.weights[0]) == 16
    assert not any(card.notes), "both have about 100,000 parameters"


def test_a_fault_marks_its_cell_and_leaves_the_others() -> None:
    given = {"acausal": recurrence.acausal, "wrong": recurrence.wrong, "lstm": "lstm"}
    card = scorecard(given, "dice", **SMALL)
    assert [card.state(own, "dice") == FAILED for own in card.architectures] == [True, True, False]
    assert "not causal" in card.notes[0] and "make(2, 32)" in card.notes[1]


def test_a_training_that_diverges_marks_its_cell_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    times = list[int]()
    for _ in range(2):
        card = scorecard("lstm", "dice", steps=6, rates=[1e30], seeds=1, batch_size=4, beside=False)
        assert card.state("lstm", "dice") == FAILED and "diverged" in card.notes[0]
        times += [path.stat().st_mtime_ns for path in tmp_path.glob("runs/jobs/*/result.safetensors")]
    assert len(times) == 2 and times[0] == times[1]


def test_the_rate_of_other_seeds_is_that_with_the_least_held_out_kl() -> None:
    card = scorecard("lstm", "dice", steps=40, rates=[1e-6, 1e-2], seeds=2, batch_size=8, beside=False)
    assert float(card.best_rate[0, 0]) == 1e-2 and card.rates == ("1e-06", "0.01")
    assert card.rate_kl_bits[0, 0, 1] < card.rate_kl_bits[0, 0, 0]
    assert (card.seed_kl_bits[0, 0] > 0).all() and card.seed_kl_bits[0, 0, 0] != card.seed_kl_bits[0, 0, 1]


@pytest.mark.exhaustive
def test_finished_cells_are_not_trained_again(tmp_path: Path) -> None:
    with connect("local:1") as executor:
        first = scorecard(OWN, "dice", **SMALL, executor=Batch(executor=executor, folder=tmp_path))
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.safetensors")}
    assert len(files) == 1
    with connect("local:1") as executor:
        again = scorecard(OWN, "dice", **SMALL, executor=Batch(executor=executor, folder=tmp_path))
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert again.kl_bits.value.tolist() == first.kl_bits.value.tolist()


def test_a_failed_cell_is_trained_again_and_a_finished_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "size.txt").write_text("wrong")
    (tmp_path / "layer.py").write_text(
        "from pathlib import Path\nfrom torch import nn\n\ndef make(d_vocab, n_ctx):\n"
        "    width = int(Path(__file__).with_name('size.txt').read_text())\n"
        "    return nn.Sequential(nn.Embedding(d_vocab, width), nn.Linear(width, d_vocab))\n"
    )
    monkeypatch.chdir(tmp_path)
    given = {"mine": f"{tmp_path / 'layer.py'}:make", "lstm": "lstm"}
    failed = scorecard(given, "dice", **SMALL)
    assert failed.state("mine", "dice") == FAILED and "ValueError" in failed.notes[0]
    files = {path.parent.name[:4]: path.stat().st_mtime_ns for path in tmp_path.glob("runs/jobs/*/result.safetensors")}
    (tmp_path / "size.txt").write_text("8")
    mended = scorecard(given, "dice", **SMALL)
    assert mended.state("mine", "dice") != FAILED and "ValueError" not in mended.notes[0]
    assert mended.kl_bits.value[1] == failed.kl_bits.value[1]
    for path in tmp_path.glob("runs/jobs/*/result.safetensors"):
        assert (path.stat().st_mtime_ns == files[path.parent.name[:4]]) == path.parent.name.startswith("lstm")


def test_rates() -> None:
    assert rates_of(1) == (2e-3,) and rates_of([3e-3, 1e-3]) == (1e-3, 3e-3)
    assert rates_of(8)[0] == pytest.approx(2e-4) and rates_of(8)[-1] == pytest.approx(2e-2)
    with pytest.raises(InvalidArgument, match="positive learning rates"):
        rates_of([0.0])
    assert best_rates([]) == {}


@pytest.mark.parametrize(
    ("make", "worlds", "message"),
    [
        ("lstmm", "core", "Perhaps you meant 'lstm'"),
        ("lstm", "coree", "Perhaps you meant 'core'"),
        (recurrence.Network(3), "core", "make\\(d_vocab, n_ctx\\)"),
        ("/nowhere/layer.py:make", "core", "cannot be imported"),
        (f"{Path(recurrence.__file__)}:nothing", "core", "nothing"),
        (["lstm", "lstm"], "core", "same name"),
    ],
)
def test_bad_input(make: object, worlds: str, message: str) -> None:
    with pytest.raises(bayesgeom.BayesGeomError, match=message):
        scorecard(make, worlds)


def test_an_architecture_of_this_process_cannot_be_sent() -> None:
    with connect("local:1") as executor, pytest.raises(InvalidArgument, match="this process only"):
        scorecard(recurrence.make, "dice", executor=executor)


def test_pools_have_the_weights_of_both_observers_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where finished cells are kept: none of another run is read
    settings: Any = {"steps": 12, "rates": 1, "seeds": 2, "batch_size": 8}
    card = scorecard("lstm", ["chains-4", "chains-64"], **settings, beside=False)
    assert not any(card.notes), card.notes
    weights = pool_weights(card.cells())
    assert set(weights["pool"]) == {4, 64} and set(weights["sequences"]) == {"pool", "fresh"}
    sums = weights.groupby(["pool", "seed", "step", "sequences"])["value"].sum()
    assert ((sums >= 0) & (sums < 1.001)).all() and len(sums) == 2 * 2 * 2 * 4
    card.save(tmp_path / "card")
    pd.testing.assert_frame_equal(Scorecard.load(tmp_path / "card").cells(), card.cells())


def planted_pools(generalizing: list[list[float]]) -> Scorecard:
    """A card of pools of 4, 16, 64 chains, with these weights by seed and pool."""
    rows = []
    for seed, values in enumerate(generalizing):
        for pool, weight in zip((4, 16, 64), values, strict=True):
            made = partial(Row, architecture="a", world=f"chains-{pool}", rate=1e-3, seed=seed, step=9)
            rows += [made(quantity=name, value=0.1) for name in ("validation_kl_bits", "kl_bits")]
            for name, value in (("generalizing", weight), ("memorizing", 1 - weight)):
                rows.append(made(quantity=name, setting="fresh", value=value, lower=value - 0.1, upper=value + 0.1))
    return card_of(rows, worlds_of(["chains-4", "chains-16", "chains-64"]), arguments={})


def test_the_crossing_is_where_both_observers_have_the_same_weight() -> None:
    card = planted_pools([[0.0, 0.25, 0.75], [0.0, 0.5, 0.9], [0.0, 0.25, 0.75]])
    found = crossing(card.cells(), "a")
    assert float(found) == pytest.approx(2 ** ((5 + 4 + 5) / 3)) and found.low < found.value < found.high
    assert card.state("a", "chains-64") == "generalizing" and card.state("a", "chains-4") == "memorizing"
    assert math.isnan(float(crossing(planted_pools([[0.0, 0.1, 0.2]]).cells(), "a"))), "no pool generalizes"


def binding_rows(
    named: dict[int, float], bits: float = 0.01, *, kl: float = 0.3, seed: int = 0, stage: str = "3"
) -> list[Row]:
    """The rows of a training on recall that names these shares, by number of pairs."""
    made = partial(Row, architecture="a", world="recall-8", rate=1e-3, seed=seed, step=9)
    ends = {"lower": kl - 0.1, "upper": kl + 0.1}
    rows = [made(quantity="validation_kl_bits", value=kl, setting=stage), made(quantity="kl_bits", value=kl, **ends)]
    rows += [made(quantity="context_free_kl_bits", value=3.1), made(quantity="shortcut_kl_bits", value=2.2)]
    for pairs, share in named.items():
        numbers = {"named": share, "kl_bits_at": bits if share > 0.9 else 3.0}
        rows += [made(quantity=name, setting=str(pairs), value=value) for name, value in numbers.items()]
    return rows


@pytest.mark.parametrize(
    ("named", "bits", "kl", "state"),
    [(0.98, 0.04, 0.3, "has"), (0.98, 0.2, 0.7, "partly"), (0.3, 0.2, 0.7, "partly"), (0.3, 0.2, 2.5, "not shown")],
)
def test_binding_is_partly_there_where_the_strongest_shortcut_is_beaten(
    named: float, bits: float, kl: float, state: str
) -> None:
    rows = binding_rows({8: named}, bits, kl=kl)
    assert card_of(rows, worlds_of("recall-8"), arguments={}).state("a", "recall-8") == state


@pytest.mark.parametrize(
    ("named", "stage", "state", "note"),
    [
        ({2: 0.99, 4: 0.99, 8: 0.99}, "3", "has", ""),
        ({2: 0.7, 4: 0.99, 8: 0.99}, "3", "partly", "it names 8 pairs, but 70.0% of 2 (3 bits)"),
        ({2: 0.99, 4: 0.8, 8: 0.4}, "2", "partly", "it was trained on at most 4 pairs: 97 % were not named in time"),
    ],
)
def test_a_network_that_forgets_fewer_pairs_binds_in_part(
    named: dict[int, float], stage: str, state: str, note: str
) -> None:
    card = card_of(binding_rows(named, stage=stage), worlds_of("recall-8"), arguments={})
    assert (card.state("a", "recall-8"), card.notes[0].partition(";")[0]) == (state, note)


@pytest.mark.parametrize("best", [0, 1])
def test_all_numbers_of_a_cell_are_of_the_seed_that_held_out_sequences_choose(best: int) -> None:
    rows = binding_rows(dict.fromkeys((2, 4, 8), 0.99), kl=0.2, seed=best)
    rows += binding_rows(dict.fromkeys((2, 4, 8), 0.3), kl=2.5, seed=1 - best)
    card = card_of(rows, worlds_of("recall-8"), arguments={})
    assert card.state("a", "recall-8") == "has" and card.capacity[0, 0] == 8 and card.kl_bits.value[0, 0] == 0.2
    assert card.seed_kl_bits[0, 0, best] == 0.2 and card.seed_kl_bits[0, 0, 1 - best] == 2.5


def test_shipped_rows_stand_beside_and_do_not_answer() -> None:
    rows = [row for row in reference_rows(worlds_of("dice")) if row.architecture == "lstm"]
    card = card_of([replace(row, architecture="mine") for row in rows], worlds_of("dice"), arguments={}, reference=rows)
    assert card.architectures == ("mine", "lstm (shipped)") and card.own == ("mine",)
    assert (card.kl_bits.value[0] == card.kl_bits.value[1]).all() and "shipped" not in str(card).splitlines()[1]


@pytest.mark.parametrize("world", worlds_of("core"), ids=lambda world: world.name)
def test_shipped_rows_are_of_the_worlds_as_they_are_now(world: World) -> None:
    levels = [row.value for row in reference_rows([world]) if row.quantity == "context_free_kl_bits"]
    settings: Any = {"n": SCORED, "seed": _SCORES, "n_untrained": 0, "probes": ["calibration"]}
    network = recurrence.Network(world.task.d_vocab)
    found: Any = bayesgeom.diagnose(network, world.task, **settings)["calibration"]
    assert levels and levels == pytest.approx([float(found.reference_kl_bits[0])] * len(levels))
