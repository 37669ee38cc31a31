"""The training queue and its status: read from a folder of runs, without loading a model."""

import os
from pathlib import Path

import pytest

from bayesgeom.cli import main
from bayesgeom.training.duration import typical_seconds
from bayesgeom.training.loop import RECIPE
from bayesgeom.training.queue import Queued, progress, queue, status_table
from bayesgeom.training.recipes import recipe
from bayesgeom.training.state import LOG, append_log

ENTRIES = (
    Queued(recipe="sticky-small", minutes=3),
    Queued(recipe="recall-lstm", minutes=20, seed=7),
    Queued(recipe="recall-mlp", minutes=10, seed=7),
)


def begun(runs: Path, name: str, step: int, *, before: bool = False) -> None:
    folder = runs / name
    inner = folder / "before" if before else folder
    inner.mkdir(parents=True)
    (folder / RECIPE).write_text("{}")
    for at in (100, step):
        append_log(inner / LOG, {"step": at})


def test_every_entry_is_a_recipe_and_stands_once() -> None:
    names = [own.reseeded.name for own in queue()]
    assert len(set(names)) == len(names) and all(own.minutes > 0 for own in queue())
    assert names[0] == "slow-hmm-transformer" and "recall-64-mamba2" in names and "hmm-s5-seed1" in names
    assert all(sum(f"recall-{own}-quarter" in name for name in names) == 3 for own in ("lstm", "mlp", "mamba2"))


@pytest.mark.parametrize("name", ["slow-hmm-lstm", "recall-transformer", "hmm-mamba", "bijection-mlp", "recall-rwkv"])
def test_the_queues_times_agree_with_the_estimate_from_a_recipes_size(name: str) -> None:
    minutes = next(own.minutes for own in queue() if own.recipe == name)
    assert minutes / 1.4 < typical_seconds(recipe(name)) / 60 < minutes * 1.4


def test_no_stage_takes_more_than_two_hours() -> None:
    for own in queue():
        stages, chosen = 0, own.reseeded
        while chosen is not None:
            stages, chosen = stages + 1, chosen.after
        assert own.minutes <= 120 * stages, own


def test_what_is_done_running_and_next_is_read_from_the_folder(tmp_path: Path) -> None:
    assert [own.state for own in progress(tmp_path, ENTRIES)] == ["shipped", "waiting", "waiting"]
    begun(tmp_path, "recall-lstm-seed7", 1_000, before=True)
    shipped, running, waiting = progress(tmp_path, ENTRIES)
    assert (running.state, running.steps_done, running.steps) == ("running", 1_000, 5_000)
    assert running.minutes_left == pytest.approx(16) and shipped.minutes_left == 0 and shipped.kl_bits < 1e-3
    table = status_table([shipped, running, waiting])
    assert "recall-lstm-seed7" in table and table.endswith("next: bayesgeom train recall-mlp --seed 7")
    append_log(tmp_path / "recall-lstm-seed7" / LOG, {"step": 1_500})
    assert progress(tmp_path, ENTRIES)[1].steps_done == 1_500 + recipe("recall-lstm").after.steps  # type: ignore[union-attr]


def test_half_a_log_line_does_not_cost_the_status(tmp_path: Path) -> None:
    begun(tmp_path, "recall-mlp-seed7", 1_000)
    with (tmp_path / "recall-mlp-seed7" / LOG).open("a") as file:
        file.write('{"step": 11')
    with pytest.warns(UserWarning, match="dropped 1 line"):
        found = progress(tmp_path, ENTRIES)[2]
    assert found.steps_done == 1_000 + recipe("recall-mlp").after.steps  # type: ignore[union-attr]


def test_a_run_that_was_not_touched_for_long_has_stopped(tmp_path: Path) -> None:
    begun(tmp_path, "recall-lstm-seed7", 1_000)
    os.utime(tmp_path / "recall-lstm-seed7" / RECIPE, (0, 0))
    found = progress(tmp_path, ENTRIES)
    assert found[1].state == "stopped"
    assert status_table(found).endswith("next: bayesgeom train recall-lstm --seed 7 --resume")


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--status", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "slow-hmm-transformer" in out and " left on two cores in float32" in out
