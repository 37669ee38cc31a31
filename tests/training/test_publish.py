"""Publishing: a checkpoint that loads, whose scores can be found again, and a card that says the same."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bayesgeom.cli import main
from bayesgeom.core.errors import OutputFault
from bayesgeom.measurements.calibration import Calibration, CalibrationReport
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import hashed, read_description
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.resolve import from_checkpoint
from bayesgeom.report.estimate import Estimate
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training import publish as module
from bayesgeom.training.loop import batch_seed, held_out_seed
from bayesgeom.training.publish import command, rescore, score_and_save
from bayesgeom.training.recipes import recipe
from tests.dynamics.trainings import a_recipe

TINY = a_recipe(
    name="tiny",
    task=Bijection(n_values=5, n_pairs=3, repeats=True),
    steps=1_234,
    batch_size=7,
    late_batch_size=11,
    late_from=0.25,
    seed=3,
)


def built() -> Transformer:
    module = TINY.model_config().build(seed=1)
    assert isinstance(module, Transformer)
    return module


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CalibrationReport]:
    """A tiny module, published once."""
    path = tmp_path_factory.mktemp("published") / "tiny"
    return path, score_and_save(TINY, built(), path, precision="bfloat16")


def levels(of: Estimate) -> dict[str, float]:
    """Finite levels of the baselines, as a config names them."""
    return {own.name.replace(" ", "_"): float(own.value) for own in of.baselines if math.isfinite(own.value)}


def test_the_scores_can_be_found_again(published: tuple[Path, CalibrationReport]) -> None:
    path, scores = published
    stored = json.loads((path / "config.json").read_text())["scores"]
    assert stored == {
        "n": 2_000,
        "seed": stored["seed"],
        "entropy_mae_bits": float(scores.entropy_mae_bits),
        "kl_bits": float(scores.kl_bits),
        "baselines": {"entropy_mae_bits": levels(scores.entropy_mae_bits), "kl_bits": levels(scores.kl_bits)},
    }
    model = from_checkpoint(load_checkpoint(path))
    assert model.task is not None
    run = model.run(model.task.stream(stored["n"], seed=stored["seed"]), seed=stored["seed"])
    again = Calibration().measure(run)
    assert (float(again.entropy_mae_bits), float(again.kl_bits)) == (stored["entropy_mae_bits"], stored["kl_bits"])


def test_scoring_uses_sequences_that_training_never_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No block of the stream has a seed of the loop; the test compared with seeds that the loop does not use."""
    drawn, sample = set(), Bijection.sample

    def watched(task: Bijection, n: int, *, seed: int, **given: Any) -> Any:
        drawn.add(seed)
        return sample(task, n, seed=seed, **given)

    monkeypatch.setattr(Bijection, "sample", watched)
    monkeypatch.setattr(module, "N_SCORED", 600)
    score_and_save(TINY, built(), tmp_path / "tiny")
    training = {batch_seed(TINY, step) for step in range(TINY.steps)} | {held_out_seed(TINY)}
    assert len(drawn) > 1 and not training & drawn


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: recipe("recall-lstm"), "recall-lstm"),
        (lambda: recipe("recall-lstm").reseeded(1), "recall-lstm --seed 1"),
        (lambda: replace(recipe("recall-mlp").reseeded(7), steps=3), "recall-mlp --seed 7 --steps 3"),
        (
            lambda: recipe("mess3-small").resized({"n_layers": 2, "x": 0.1, "batch_size": 7}).reseeded(2),
            "mess3-small --set n_layers=2 --set x=0.1 --set batch_size=7 --seed 2",
        ),
        (lambda: replace(recipe("recall-lstm"), lr=0.1), None),
        (lambda: replace(recipe("recall-lstm"), name="recall-lstm-mine"), None),
    ],
)
def test_the_card_states_the_command_that_trains_it(made: Any, expected: str | None) -> None:
    """Of further seeds it stated `bayesgeom train recall-lstm-seed1`, an unknown name."""
    assert command(made()) == (None if expected is None else f"bayesgeom train {expected}")


def test_a_checkpoint_can_be_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores, baselines and the card's table are those of today; weights and the text on the training stay."""
    monkeypatch.setattr(module, "N_SCORED", 64)
    path = tmp_path / "tiny"
    score_and_save(TINY, built(), path)
    first, card = read_description(path), (path / "card.md").read_text()
    old = {**first, "scores": {"n": 1, "seed": 0, "kl_bits": 9.0, "baselines": {}}}
    (path / "config.json").write_text(json.dumps(hashed(old)))
    (path / "card.md").write_text("# tiny\n\n## How it was made\n\nAs only this card says.\n")
    assert main(["checkpoints", "--rescore", str(path)]) == 0
    assert read_description(path) == first
    assert (path / "card.md").read_text() == card.partition("## How it was made")[0] + (
        "## How it was made\n\nAs only this card says.\n"
    )
    (path / "card.md").unlink()
    assert main(["checkpoints", "--rescore", str(path)]) == 2


def test_a_failed_rescoring_changes_neither_config_nor_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk left the config of new scores with the card of old ones."""
    monkeypatch.setattr(module, "N_SCORED", 64)
    path, write = tmp_path / "tiny", Path.write_text
    score_and_save(TINY, built(), path)
    (path / "config.json").write_text(json.dumps(hashed({**read_description(path), "scores": {}})))
    before = {file.name: file.read_bytes() for file in path.iterdir()}

    def full(file: Path, text: str, **given: Any) -> int:
        if "card.md" in file.name:
            raise OSError(28, "No space left on device")
        return write(file, text, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OutputFault, match="No space left on device"):
            rescore(path)
    assert before == {file.name: file.read_bytes() for file in path.iterdir()}
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny"]
    rescore(path)
    assert {file.name for file in path.iterdir()} == before.keys() and read_description(path)["scores"]["n"] == 64
