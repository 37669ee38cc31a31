"""Training: the loss against a loop, what a run leaves, and the same weights however it was interrupted."""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, NonFinite
from bayesgeom.core.run import Trials
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training import loop
from bayesgeom.training.loop import Pace, check_startable, loss_nats, snapshot_steps, train
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe, recipe_from_dict
from bayesgeom.training.state import locked, read_log
from tests.dynamics.trainings import a_recipe

TINY = a_recipe(
    name="tiny",
    targets="exact",
    task=Bijection(n_values=5, n_pairs=3),
    warmup=3,
    steps=11,
    batch_size=7,
    late_batch_size=11,
    late_from=0.5,
    snapshots=3,
)
KINDS = {"muon": TINY, "adamw": replace(TINY, optimizer="adamw", targets="sampled")}
QUIET = Pace(quiet=True)
SAVING = Pace(quiet=True, save_seconds=0.0)  # a state after every step
STOP_AT, LAST_STATE = 8, 5
INTERRUPTIONS = [(RuntimeError, "undone"), *((KeyboardInterrupt, where) for where in ("undone", "half done", "done"))]


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def log_lines(out: Path) -> list[dict[str, Any]]:
    return read_log(out / "log.jsonl")


def stop_in_step(monkeypatch: pytest.MonkeyPatch, error: type[BaseException], where: str) -> None:
    """Break step `STOP_AT`, its update undone, half done or done; until then the last state is that of `LAST_STATE`."""
    update, save, stopped = Optimizers.step, loop.save_state, []

    def broken(self: Optimizers, step: int) -> None:
        if step == STOP_AT and where == "half done":
            self.parts[0].step()
        if step != STOP_AT or where == "done":
            update(self, step)
        if step == STOP_AT:
            stopped.append(step)
            raise error

    def early(path: Path, recipe: Recipe, module: nn.Module, optimizers: Optimizers, step: int) -> None:
        if step <= LAST_STATE or stopped:
            save(path, recipe, module, optimizers, step)

    monkeypatch.setattr(Optimizers, "step", broken)
    monkeypatch.setattr(loop, "save_state", early)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory that one whole run of each kind has left."""
    outs = {kind: tmp_path_factory.mktemp(kind) / "tiny" for kind in KINDS}
    for kind, out in outs.items():
        train(KINDS[kind], out, pace=Pace(quiet=True, log_every=4))
    return outs


@pytest.fixture
def finished(uninterrupted: dict[str, Path]) -> Path:
    return uninterrupted["muon"]


def last_weights(out: Path) -> nn.Module:
    return load_checkpoint(out / "snapshots" / "step-0000011").module


@pytest.mark.parametrize("targets", ["sampled", "exact"])
def test_loss_matches_a_loop_over_positions(targets: str) -> None:
    recipe = replace(TINY, targets=targets)
    trials = recipe.task.sample(7, seed=1)
    logits = torch.randn(7, 5, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    terms = []
    for row, pos in trials.scored.nonzero().tolist():
        log_probability = np.log(np.exp(logits[row, pos].numpy()) / np.exp(logits[row, pos].numpy()).sum())
        if targets == "sampled":
            terms.append(-log_probability[int(trials.labels[row, pos])])
        else:
            pairs = zip(trials.answers.tolist(), trials.predictive[row, pos].tolist(), strict=True)
            terms.append(-sum(p * log_probability[answer] for answer, p in pairs))
    assert float(loss_nats(recipe, logits, trials)) == pytest.approx(np.mean(terms), rel=1e-12)


def test_each_step_is_trained_on_the_task_whose_turn_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(TINY, also=(replace(TINY.task, n_pairs=2),), steps=5)
    seen = []

    def watched(own: Recipe, logits: Tensor, trials: Trials) -> Tensor:
        seen.append(trials.tokens)
        return loss_nats(own, logits, trials)

    monkeypatch.setattr(loop, "loss_nats", watched)
    train(recipe, tmp_path, pace=Pace(quiet=True))
    for step, tokens in enumerate(seen):
        drawn = recipe.task_at(step).sample(recipe.batch_size_at(step), seed=loop.batch_seed(recipe, step))
        assert torch.equal(tokens, drawn.tokens)
    assert [tokens.shape[1] for tokens in seen] == [5, 3, 5, 3, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls(kind: str, tmp_path: Path) -> None:
    longer = replace(KINDS[kind], steps=30, batch_size=23, late_batch_size=23, lr=1e-2, snapshots=0)
    trials, start = longer.task.sample(23, seed=6), longer.model_config().build(seed=longer.seed)
    first = float(loss_nats(longer, start(trials.tokens), trials).detach())
    assert first == pytest.approx(math.log(10), abs=0.1), "all ids alike"
    end = train(longer, tmp_path / "run", pace=QUIET)
    assert not end.training
    assert 1.36 - 0.2 < log_lines(tmp_path / "run")[-1]["loss_nats"] < math.log(10) - 0.5, "not below the posterior's"


def test_a_run_leaves_its_recipe_log_state_and_snapshots(finished: Path) -> None:
    left = {entry.name for entry in finished.iterdir()}
    records = {"recipe.json", "precision.json", "environment.json"}
    assert left == {*records, "log.jsonl", "state.safetensors", "snapshots", ".lock"}
    assert recipe_from_dict(json.loads((finished / "recipe.json").read_text())) == TINY
    assert [line["step"] for line in log_lines(finished)] == [4, 8, 11]
    assert all(line.keys() == {"step", "loss_nats", "kl_bits"} for line in log_lines(finished))


def test_snapshots_are_checkpoints_of_their_step(finished: Path) -> None:
    steps = sorted({*snapshot_steps(TINY), TINY.steps})
    assert steps == [0, 10, 11]
    loaded = [load_checkpoint(path) for path in sorted((finished / "snapshots").iterdir())]
    assert [checkpoint.step for checkpoint in loaded] == steps
    assert all(checkpoint.task == TINY.task and checkpoint.config == TINY.model_config() for checkpoint in loaded)
    assert_same_weights(loaded[0].module, TINY.model_config().build(seed=TINY.seed))
    trials = TINY.task.sample(loop.HELD_OUT, seed=loop.held_out_seed(TINY))
    with torch.no_grad():
        log_model = trials.at_scored(loaded[-1].module(trials.tokens))[..., trials.answers].log_softmax(-1)
    twin = kl_bits(trials.at_scored(trials.predictive), log_model.double()).mean()
    assert log_lines(finished)[-1]["kl_bits"] == pytest.approx(float(twin), rel=1e-4)


@pytest.mark.parametrize(("steps", "snapshots"), [(10_000, 20), (1_000, 5)])
def test_snapshot_steps_are_spaced_by_ratio(steps: int, snapshots: int) -> None:
    due = sorted(snapshot_steps(replace(TINY, steps=steps, snapshots=snapshots)))
    assert due[:2] == [0, 10] and len(due) == snapshots, "the last of the spaced steps is the final one, taken anyway"
    ratios = [later / earlier for earlier, later in zip(due[1:], [*due[2:], steps], strict=True)]
    assert ratios == pytest.approx([(steps / 10) ** (1 / (snapshots - 1))] * len(ratios), rel=0.06)


@pytest.mark.parametrize(
    ("kind", "error", "where"),
    [
        pytest.param(
            kind,
            *own,
            marks=() if own[1] == "half done" or (kind, own[1]) == ("muon", "done") else pytest.mark.exhaustive,
        )
        for kind in KINDS
        for own in INTERRUPTIONS
    ],
)
def test_an_interrupted_run_ends_at_the_same_weights(
    kind: str,
    error: type[BaseException],
    where: str,
    uninterrupted: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        stop_in_step(patch, error, where)
        with pytest.raises(error):
            train(KINDS[kind], tmp_path / "run", pace=SAVING)
    resumed = train(KINDS[kind], tmp_path / "run", resume=True, pace=QUIET)
    assert_same_weights(resumed, last_weights(uninterrupted[kind]))
    for snapshot in (tmp_path / "run" / "snapshots").iterdir():
        twin = load_checkpoint(uninterrupted[kind] / "snapshots" / snapshot.name)
        assert load_checkpoint(snapshot).weights_hash == twin.weights_hash


def test_a_run_stopped_before_its_first_state_starts_over(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        stop_in_step(patch, RuntimeError, "done")
        train(TINY, tmp_path / "run", pace=QUIET)
    assert not (tmp_path / "run" / "state.safetensors").exists()
    assert_same_weights(train(TINY, tmp_path / "run", resume=True, pace=QUIET), last_weights(finished))


def test_resuming_a_finished_run_changes_nothing(finished: Path) -> None:
    before = tree(finished)
    assert_same_weights(train(TINY, finished, resume=True, pace=QUIET), last_weights(finished))
    assert tree(finished) == before


def test_pace_does_not_change_the_weights_and_the_seed_does(finished: Path, tmp_path: Path) -> None:
    weights = last_weights(finished)
    assert_same_weights(train(TINY, tmp_path / "busy", pace=Pace(quiet=True, log_every=1, save_seconds=0.0)), weights)
    other = train(replace(TINY, seed=1), tmp_path / "other", pace=QUIET)
    assert not torch.equal(other.state_dict()["embed.weight"], weights.state_dict()["embed.weight"])


def test_a_directory_with_a_run_is_refused_and_unchanged(finished: Path) -> None:
    before = tree(finished)
    with pytest.raises(
        InvalidArgument, match=r"already contains a run: continue it with --resume \(Python: resume=True\), or"
    ):
        train(TINY, finished, pace=QUIET)
    with pytest.raises(
        CheckpointFault, match=r"than 'tiny' \(lr: \S+ there, 0\.5 requested\)\. Use the recipe and options"
    ):
        train(replace(TINY, lr=0.5), finished, resume=True, pace=QUIET)
    assert tree(finished) == before


def test_a_folder_of_other_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidArgument, match=r"holds other files than a run: name an empty or a new directory"):
        train(TINY, tmp_path, pace=QUIET)
    assert [*tree(tmp_path)] == ["thesis.tex"]


def test_what_a_run_writes_before_its_recipe_is_no_obstacle(finished: Path, tmp_path: Path) -> None:
    for name in (".lock", "environment.json", "precision.json"):
        (tmp_path / name).write_bytes((finished / name).read_bytes() if (finished / name).exists() else b"")
    assert_same_weights(train(TINY, tmp_path, pace=QUIET), last_weights(finished))


def test_a_directory_in_which_another_process_trains_is_refused_and_unchanged(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        for start in (train, check_startable):
            with pytest.raises(InvalidArgument, match=r"another process is training in .*run"):
                start(TINY, tmp_path / "run", resume=False)
        assert tree(tmp_path / "run").keys() == {".lock"}


def test_a_run_that_another_process_starts_meanwhile_is_not_continued(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run starts and ends between the check and the lock."""
    before = tree(finished)

    @contextlib.contextmanager
    def late(out: Path) -> Iterator[None]:
        shutil.copytree(finished, out)
        with locked(out):
            yield

    monkeypatch.setattr(loop, "locked", late)
    with pytest.raises(InvalidArgument, match="already contains a run"):
        train(TINY, tmp_path / "run", pace=QUIET)
    assert tree(tmp_path / "run") == before


@pytest.mark.parametrize("bad", ["loss", "gradients"])
@pytest.mark.parametrize("at", [STOP_AT, TINY.steps - 1])
def test_a_step_that_diverges_ends_the_run_and_spoils_no_state(
    bad: str, at: int, uninterrupted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients can be infinite while the loss is finite, also in the last step, after which no loss is computed."""
    losses = list[Tensor]()

    def spoiled(recipe: Recipe, logits: Tensor, trials: Trials) -> Tensor:
        losses.append(loss_nats(recipe, logits, trials))
        if len(losses) == at + 1 and bad == "gradients":
            losses[-1].register_hook(lambda gradient: gradient * math.inf)
        return losses[-1] * (math.nan if len(losses) == at + 1 and bad == "loss" else 1)

    norm, loss = ("nan", "nan") if bad == "loss" else (r"(nan|inf)", r"\d\.\d+")
    with (
        monkeypatch.context() as patch,
        pytest.raises(NonFinite, match=f"{norm} and the loss of tiny is {loss} at step {at};"),
    ):
        patch.setattr(loop, "loss_nats", spoiled)
        train(TINY, tmp_path / "run", pace=SAVING)
    assert_same_weights(train(TINY, tmp_path / "run", resume=True, pace=QUIET), last_weights(uninterrupted["muon"]))


def test_weights_that_are_not_finite_replace_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiling(self: Optimizers, step: int) -> None:
        self.parts[0].param_groups[0]["params"][0].data.fill_(math.nan)

    monkeypatch.setattr(Optimizers, "step", spoiling)
    with pytest.raises(NonFinite, match=r"weights of tiny are not finite after 1 step;"):
        train(replace(TINY, steps=1), tmp_path / "run", pace=QUIET)
    assert not (tmp_path / "run" / "state.safetensors").exists()
