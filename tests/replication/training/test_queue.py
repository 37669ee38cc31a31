"""The training queue and its status: read from a folder of runs, without loading a model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from bayesgeom.models.checkpoint_files import FINISHED, checkpoints
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.loop import RECIPE
from bayesgeom.training.recipes import Recipe
from bayesgeom.training.state import LOG, append_log, locked
from examples.replication.capacity import n_parameters
from examples.replication.comparison import commands
from examples.replication.training.queue import (
    PARAMETERS,
    REPORTED,
    Queued,
    n_tokens,
    progress,
    queue,
    status_table,
    typical_seconds,
)
from examples.replication.training.recipes import network_of, recipe
from tests.pages import READINGS

# Minutes on two cores without AVX-512 in float32, from the processor time of single steps, by recipe.
MEASURED = {
    "slow-hmm-transformer": 114,
    "slow-hmm-lstm": 61,
    "slow-hmm-mamba": 120,
    "slow-hmm-mlp-prefix": 77,
    "bijection-transformer": 21,
    "bijection-lstm": 13,
    "bijection-mlp": 14,
    "bijection-mamba": 30,
    "recall-transformer": 27,
    "recall-rwkv": 73,
    "recall-mamba2": 72,
    "hmm-mamba": 110,
    "hmm-s5": 110,
    "bijection-v20-refined": 110,
}
TINY = Recipe(
    name="tiny",
    task=Bijection(n_values=5, n_pairs=3),
    sizes={"architecture": "lstm", "n_layers": 2, "d_model": 11},
    steps=20,
    batch_size=5,
    late_batch_size=7,
    late_from=0.5,
)
ENTRIES = (
    Queued(recipe="sticky-small"),
    Queued(recipe="recall-lstm", seed=7),
    Queued(recipe="recall-mlp", seed=7),
)


def begun(runs: Path, own: Queued, step: int, *, before: bool = False, steps: int | None = None) -> Path:
    """The folder of a run of this training, or of one with other `steps`."""
    chosen = own.reseeded if steps is None else replace(own.reseeded, steps=steps)
    folder = runs / chosen.name
    inner = folder / "before" if before else folder
    inner.mkdir(parents=True)
    (folder / RECIPE).write_text(json.dumps(chosen.to_dict()))
    for at in (100, step):
        append_log(inner / LOG, {"step": at})
    return folder


def test_every_entry_is_a_recipe_and_stands_once() -> None:
    names = [own.reseeded.name for own in queue()]
    assert len(set(names)) == len(names) and all(own.minutes > 0 for own in queue())
    assert names[0] == "slow-hmm-transformer" and "recall-64-mamba2" in names and "hmm-s5-seed1" in names
    assert all(sum(f"recall-{own}-quarter" in name for name in names) == 3 for own in ("lstm", "mlp", "mamba2"))


@pytest.fixture(scope="module")
def queued() -> tuple[Queued, ...]:
    """Every entry; recipes are checked anew each time that they are made."""
    return tuple(queue())


@pytest.mark.parametrize("name", MEASURED)
def test_typical_times_agree_with_measured_ones(name: str, queued: tuple[Queued, ...]) -> None:
    assert MEASURED[name] / 1.4 < typical_seconds(recipe(name)) / 60 < MEASURED[name] * 1.4
    assert all(own.minutes == typical_seconds(recipe(name)) / 60 for own in queued if own.recipe == name)


@pytest.mark.parametrize("name", [own for own in PARAMETERS if own not in MEASURED])
def test_the_recorded_sizes_are_those_of_the_networks(name: str) -> None:
    assert n_parameters(recipe(name).model_config()) == PARAMETERS[name]


def test_every_entry_has_a_recorded_size() -> None:
    assert {network_of(own.recipe) for own in queue()} == PARAMETERS.keys()


def test_the_untied_control_of_the_flagships_size_differs_in_the_unembedding_alone() -> None:
    tied, untied = recipe("bijection-v20"), recipe("bijection-v20-untied")
    while tied is not None:
        assert untied is not None and untied.sizes == {**tied.sizes, "tied": False}
        assert replace(untied, name=tied.name, sizes=tied.sizes, after=tied.after) == tied
        tied, untied = tied.after, untied.after
    assert untied is None and Queued(recipe="bijection-v20-untied") in queue()


def test_no_stage_but_one_takes_more_than_two_hours() -> None:
    """The stages of the untied flagship are those of `bijection-v20`, whose first one is longer."""
    longer = set[str]()
    for own in queue():
        longer |= {
            stage.name for stage in own.reseeded.stages() if typical_seconds(replace(stage, after=None)) > 2 * 3_600
        }
    assert longer == {"bijection-v20-untied-decayed"}


def test_what_is_done_running_and_next_is_read_from_the_folder(tmp_path: Path) -> None:
    assert [own.state for own in progress(tmp_path, ENTRIES)] == ["shipped", "waiting", "waiting"]
    folder = begun(tmp_path, ENTRIES[1], 1_000, before=True)
    with locked(folder):
        shipped, running, waiting = progress(tmp_path, ENTRIES)
    assert (running.state, running.steps_done, running.steps) == ("running", 1_000, 5_000)
    assert running.minutes_left == pytest.approx(0.8 * ENTRIES[1].minutes) and shipped.minutes_left == 0
    assert shipped.kl_bits < 1e-3
    table = status_table([shipped, running, waiting])
    assert "recall-lstm-seed7" in table and table.endswith(
        "next: python -m examples.replication train recall-mlp --seed 7"
    )
    append_log(folder / LOG, {"step": 1_500})
    assert progress(tmp_path, ENTRIES)[1].steps_done == 1_500 + recipe("recall-lstm").after.steps  # type: ignore[union-attr]


def test_a_run_whose_report_is_committed_is_reported_also_while_its_checkpoint_is_in_the_folder(tmp_path: Path) -> None:
    entries = (Queued(recipe="recall-16-lstm"), Queued(recipe="sticky-small"), Queued(recipe="recall-lstm", seed=7))
    for own in entries:
        shutil.copytree(checkpoints()["bijection-mlp"], begun(tmp_path, own, 100) / FINISHED)
    found = progress(tmp_path, entries)
    assert [own.state for own in found] == ["reported", "shipped", "finished"], "once all were finished"
    assert found[0].kl_bits == REPORTED["recall-16-lstm"], "the report's, not that of the run's card"
    assert found[1].kl_bits < 1e-3 < 1 < found[2].kl_bits, "the shipped checkpoint's; the run's"
    shutil.rmtree(tmp_path / "recall-16-lstm" / FINISHED)
    assert progress(tmp_path, entries)[0].state == "stopped", "it is trained again"


def test_steps_of_more_tokens_take_longer(tmp_path: Path) -> None:
    """Before its last stage, with 31 % of the steps and 34 % of the tokens, 31 % of the time were left."""
    own, last = Queued(recipe="recall-64-lstm"), recipe("recall-64-lstm")
    assert last.after is not None and last.after.after is not None
    begun(tmp_path, own, last.after.steps, before=True)
    (found,) = progress(tmp_path, [own])
    assert found.steps - found.steps_done == last.steps
    tokens = [s.steps * s.batch_size * s.task.n_pos for s in (last, last.after, last.after.after)]
    assert found.minutes_left == pytest.approx(own.minutes * tokens[0] / sum(tokens))


def test_half_a_log_line_does_not_cost_the_status(tmp_path: Path) -> None:
    with (begun(tmp_path, ENTRIES[2], 1_000) / LOG).open("a") as file:
        file.write('{"step": 11')
    with pytest.warns(UserWarning, match="skipped 1 corrupt or incomplete line"):
        found = progress(tmp_path, ENTRIES)[2]
    assert found.steps_done == 1_000 + recipe("recall-mlp").after.steps  # type: ignore[union-attr]


def test_a_run_is_running_while_a_process_holds_its_lock(tmp_path: Path) -> None:
    """A resumed run was shown as stopped, and as next, until it saved its first state."""
    folder = begun(tmp_path, ENTRIES[1], 1_000)
    assert progress(tmp_path, ENTRIES)[1].state == "stopped", "its files are new"
    with locked(folder):
        found = progress(tmp_path, ENTRIES)
        assert found[1].state == progress(tmp_path, ENTRIES)[1].state == "running", "looking takes no lock away"
        assert status_table(found).endswith("next: python -m examples.replication train recall-mlp --seed 7")
    with locked(folder):
        pass  # nor is it kept
    found = progress(tmp_path, ENTRIES)
    assert found[1].state == "stopped"
    assert status_table(found).endswith("next: python -m examples.replication train recall-lstm --seed 7 --resume")


def test_a_run_of_another_recipe_is_neither_done_nor_next(tmp_path: Path) -> None:
    """`--steps 3` was shown as finished with its KL, and `--steps 20000` as 20,000 of 5,000 steps."""
    short = begun(tmp_path, ENTRIES[1], 3, steps=3)
    shutil.copytree(checkpoints()["bijection-mlp"], short / FINISHED)
    begun(tmp_path, ENTRIES[2], 20_000, steps=20_000)
    found = progress(tmp_path, ENTRIES)
    assert [own.state for own in found] == ["shipped", "another recipe", "another recipe"]
    assert [(own.steps_done, own.minutes_left) for own in found[1:]] == [(0, own.minutes) for own in ENTRIES[1:]]
    table = status_table(found)
    assert "move these runs away to train the queue's: recall-lstm-seed7, recall-mlp-seed7" in table
    assert "1 of 3 finished" in table and table.endswith("nothing is waiting")
    own = Queued(recipe="recall-16-lstm")
    begun(tmp_path, own, 3, steps=3)
    assert progress(tmp_path, [own])[0].state == "reported", "its report is there, whatever is in the folder"
    (short / RECIPE).write_text("{}")
    assert progress(tmp_path, ENTRIES)[1].state == "another recipe", "a recipe that cannot be read"


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.train(status=True, out=tmp_path)
    out = capsys.readouterr().out
    assert "slow-hmm-transformer" in out and " left on two cores in float32" in out


@pytest.mark.parametrize("name", REPORTED)
def test_a_reported_training_is_queued_and_has_the_kl_of_its_report(
    name: str, queued: tuple[Queued, ...], tmp_path: Path
) -> None:
    (own,) = (each for each in queued if name.startswith(each.recipe) and each.reseeded.name == name)
    (found,) = progress(tmp_path, [own])
    assert (found.state, found.minutes_left, found.kl_bits) == ("reported", 0.0, REPORTED[name])
    kl_bits = pd.read_csv(READINGS / "trainings.csv", index_col="training").kl_bits
    cards = {path.stem: path for path in READINGS.glob("rates/*.md")}
    assert {*kl_bits.index} | cards.keys() == REPORTED.keys()
    if name in cards:
        assert f"| **{REPORTED[name]}** (" in cards[name].read_text(encoding="utf-8")
    else:
        assert REPORTED[name] == pytest.approx(kl_bits[name], rel=1e-3)


def test_the_tokens_of_a_training_are_those_of_every_stage_in_turn() -> None:
    first = replace(TINY, name="first", steps=3, batch_size=2, late_from=1.0, task=Bijection(n_values=5, n_pairs=2))
    own = replace(TINY, after=replace(TINY, name="second", after=first))
    assert [stage.name for stage in own.stages()] == ["first", "second", "tiny"]
    sizes = [2 * 3] * 3 + ([5 * 5] * 10 + [7 * 5] * 10) * 2
    assert [n_tokens(own, steps) for steps in range(44)] == [sum(sizes[:steps]) for steps in range(44)]
    assert n_tokens(own) == sum(sizes)
