"""Publishing: a checkpoint that loads, whose scores can be found again, and a card that says the same."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bayesgeom.measurements.calibration import Calibration, CalibrationReport
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.resolve import from_checkpoint
from bayesgeom.report.estimate import Estimate
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training import publish as module
from bayesgeom.training.loop import batch_seed, held_out_seed
from bayesgeom.training.publish import score_and_save
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
