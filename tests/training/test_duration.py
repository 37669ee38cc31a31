"""How long a training takes: every segment is counted, and nothing of the run is touched."""

from dataclasses import replace

import pytest
import torch

from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training import publish as duration
from bayesgeom.training.publish import estimated_seconds
from bayesgeom.training.recipes import Recipe
from tests.dynamics.trainings import a_recipe

TINY = a_recipe(
    name="tiny",
    task=Bijection(n_values=5, n_pairs=3),
    sizes={"architecture": "lstm", "n_layers": 2, "d_model": 11},
    steps=20,
    batch_size=5,
    late_batch_size=7,
    late_from=0.5,
    float32_share=0.25,
)


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [(0, 10), (10, 15), (15, 20)]), (12, [(12, 15), (15, 20)]), (20, [])]
)
def test_segments_are_the_steps_that_remain(start: int, expected: list[tuple[int, int]]) -> None:
    assert duration._segments(TINY, start, "bfloat16") == expected
    joined = [(first, end) for first, end in ((start, 10), (max(start, 10), 20)) if first < end]
    assert duration._segments(TINY, start, "float32") == joined, "all in one precision"


def test_the_estimate_adds_up_every_step_of_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock on which a step takes one second per sequence, and the held-out KL a hundred."""
    now = [0.0]
    monkeypatch.setattr(duration.time, "perf_counter", lambda: now[0])

    def step(recipe: Recipe, module: object, optimizers: object, at: int, *given: object) -> float:
        now[0] += recipe.batch_size_at(at)
        return 0.0

    def held_out(*given: object) -> float:
        now[0] += 100.0
        return 0.0

    monkeypatch.setattr(duration, "training_step", step)
    monkeypatch.setattr(duration, "held_out_kl", held_out)
    first = replace(TINY, name="first", steps=10)
    found = estimated_seconds([(first, 0), (TINY, 4)], precision="float32")
    assert found == pytest.approx((5 * 5 + 5 * 7 + 100) + (6 * 5 + 10 * 7 + 100))
    assert estimated_seconds([(TINY, 20)], precision="float32") == 0.0


def test_tasks_that_take_turns_are_all_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    mixed = replace(TINY, also=(Bijection(n_values=5, n_pairs=2),), late_from=1.0, float32_share=0.0)

    def step(recipe: Recipe, module: object, optimizers: object, at: int, *given: object) -> float:
        seen.append(recipe.task_at(at))
        return 0.0

    monkeypatch.setattr(duration, "training_step", step)
    estimated_seconds([(mixed, 0)], precision="float32")
    assert set(seen[1:3]) == {mixed.task, *mixed.also}


def test_the_random_state_stays_as_it_is() -> None:
    before = torch.random.get_rng_state()
    assert 0.0 < estimated_seconds([(TINY, 0)], precision="float32") < 60.0
    assert torch.equal(torch.random.get_rng_state(), before)
