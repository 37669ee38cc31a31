"""Scorecards: cells, the choice of rates, what fails, and what a killed run keeps."""

from pathlib import Path

import pytest

import bayesgeom
from bayesgeom.core import InvalidArgument
from bayesgeom.executors import Batch, connect
from bayesgeom.scorecards.report import FAILED
from bayesgeom.scorecards.run import best_rates, rates_of, scorecard
from tests.scorecards import recurrence

OWN = f"{Path(recurrence.__file__)}:make"
SMALL = {"steps": 6, "rates": 1, "seeds": 1, "batch_size": 4}


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


def test_a_training_that_diverges_marks_its_cell() -> None:
    card = scorecard("lstm", "dice", steps=6, rates=[1e30], seeds=1, batch_size=4)
    assert card.state("lstm", "dice") == FAILED and "diverged" in card.notes[0]


def test_the_rate_of_other_seeds_is_that_with_the_least_held_out_kl() -> None:
    card = scorecard("lstm", "dice", steps=40, rates=[1e-6, 1e-2], seeds=2, batch_size=8)
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
