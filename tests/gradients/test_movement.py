"""Routing and values over a run's snapshots: distances, order, one model at a time, bad input."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom import cli
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.gradients.report import Frame, GradientMovementReport, moment_of, movement_report
from bayesgeom.gradients.run import gradient_movement
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import hashed
from bayesgeom.stats.information import jensen_shannon_bits
from bayesgeom.tasks.base import derived_seed
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.formation import pack
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.recipes import Recipe
from tests.dynamics.trainings import a_run

TINY = Recipe(
    name="tiny",
    task=Bijection(n_values=7, n_pairs=5),
    sizes={"architecture": "transformer", "n_layers": 2, "n_heads": 3, "d_model": 15, "d_mlp": 7},
    steps=40,
    batch_size=8,
    warmup=2,
    snapshots=3,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("run") / "tiny"
    train(TINY, home, pace=Pace(quiet=True))
    return home


@pytest.fixture(scope="module")
def report(run: Path) -> GradientMovementReport:
    return bayesgeom.gradient_movement(run, n=5)


def test_every_snapshot_has_its_place(report: GradientMovementReport) -> None:
    assert report.steps == ("0", "10", "20", "40") and report.n == 5
    patterns, values = report.pattern_distance_bits.value, report.value_distance.value
    assert patterns[-1] == values[-1] == 0 and (patterns[:-1] > 0).all() and (values[:-1] > 0).all()
    assert np.isnan(report.pattern_moved_bits[0]) and (report.pattern_moved_bits[1:] > 0).all()
    assert report.pattern_distance_bits_by_layer.shape == report.value_distance_by_layer.shape == (4, 2)
    np.testing.assert_allclose(report.value_distance_by_layer.mean(axis=1), values)
    assert np.isnan(report.routing_norm.ends).all(), "five sequences give no interval"


def test_distances_are_those_of_two_plain_passes(run: Path, report: GradientMovementReport) -> None:
    """With transformer-lens's own cache in float32, layer by layer."""
    trials = TINY.task.sample(5, seed=derived_seed(0, 0))
    caches = []
    for step in (0, 40):
        module = load_checkpoint(run / "snapshots" / f"step-{step:07d}").module
        with torch.no_grad():
            caches.append(module.run_with_cache(trials.tokens)[1])  # type: ignore[operator]
    for layer in range(2):
        before, after = (c[f"blocks.{layer}.attn.hook_pattern"].double() for c in caches)
        bits = jensen_shannon_bits(before, after)
        scored = torch.stack([row[:, keep].mean() for row, keep in zip(bits, trials.scored, strict=True)]).mean()
        assert report.pattern_distance_bits_by_layer[0, layer] == pytest.approx(float(scored), rel=1e-3)
        old, new = (c[f"blocks.{layer}.attn.hook_v"].double().flatten(1) for c in caches)
        relative = ((old - new).norm(dim=1) / new.norm(dim=1)).mean()
        assert report.value_distance_by_layer[0, layer] == pytest.approx(float(relative), rel=1e-4)


STEPS = (0, 10, 20, 40, 80)


def test_what_is_within_a_tenth_at_the_last_snapshot_alone_is_not_stable() -> None:
    """Distances as frames would give them: patterns are stable from step 20 on, values only where training ends."""
    distances = {"pattern_distance_bits": (5.0, 4.0, 0.5, 0.4, 0.0), "value_distance": (5.0, 4.0, 3.0, 2.0, 0.0)}
    flat = dict.fromkeys(
        ("loss_nats", "routing_norm", "value_norm", "value_elasticity", "correlation", "other_correlation"), np.ones(3)
    )
    arrays = {
        **dict.fromkeys(("pattern_distance_bits_by_layer", "value_distance_by_layer"), np.ones(2)),
        **dict.fromkeys(("pattern_moved_bits", "value_moved"), np.array(np.nan)),
    }
    moments = [
        {**flat, **arrays, **{name: np.full(3, own[at]) for name, own in distances.items()}} for at in range(len(STEPS))
    ]
    found = movement_report(STEPS, moments, targets="sampled", seed=0)
    assert float(found.routing_stable_step) == 20 and found.stable_ratio.baselines == ()
    assert math.isnan(float(found.values_stable_step)) and math.isnan(float(found.stable_ratio))


def test_planted_frames_move_as_planted() -> None:
    """Values twice as long as at the end are one length away; uniform against one-hot of two keys is known."""
    sharp = torch.tensor([1.0, 0.0]).expand(1, 3, 1, 1, 2)
    last = Frame(patterns=sharp, values=torch.ones(1, 3, 1, 2, 2))
    now = Frame(patterns=torch.full((1, 3, 1, 1, 2), 0.5), values=2 * torch.ones(1, 3, 1, 2, 2))
    found = moment_of({"loss_nats": np.zeros(3)}, now, last, last)
    divergence = float(jensen_shannon_bits(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])))
    np.testing.assert_allclose(found["value_distance"], 1)
    np.testing.assert_allclose(found["pattern_distance_bits"], divergence, rtol=1e-6)
    assert float(found["pattern_moved_bits"]) == pytest.approx(divergence, rel=1e-6) and found["value_moved"] == 1


def test_a_packed_training_is_followed_as_the_run_is(
    run: Path, report: GradientMovementReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(run, tmp_path / "packed", keep=4)
    packed = bayesgeom.gradient_movement(tmp_path / "packed", n=5)
    assert packed.steps == report.steps
    np.testing.assert_allclose(packed.value_distance.value, report.value_distance.value, atol=1e-3)  # half precision
    assert cli.main(["gradients", str(tmp_path / "packed"), "--over-training", "--n", "2"]) == 0
    assert "values within a tenth" in capsys.readouterr().out


def test_options_that_have_no_say_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {
        ("--task", "hmm"): "--task is not allowed with --over-training",
        ("--device", "foo"): "device 'foo' cannot be used here",
        ("--dtype", "float16"): "leave out --dtype",
        ("--device-map", "auto"): "leave out --device-map",
        ("--n", "0"): "at least 2 for the baseline; got 0",
        ("--seed", "-1"): "seed must be a non-negative integer below 2^63, got -1",
    }
    for arguments, message in refused.items():
        assert cli.main(["gradients", str(run), "--over-training", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_snapshot_from_before_a_size_had_a_name_is_of_the_same_architecture(run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(run / "snapshots" / "step-0000000", old)
    described = json.loads((old / "config.json").read_text())
    del described["model"]["top_attention_off"], described["task"]["pooled_keys"]
    (old / "config.json").write_text(json.dumps(hashed(described)))
    assert gradient_movement([old, run / "snapshots" / "step-0000040"], n=2).steps == ("0", "40")


def test_bad_input_is_refused(run: Path, tmp_path: Path) -> None:
    """As `dynamics` refuses it: tests/dynamics/test_dynamics.py has the rest."""
    folder = run / "snapshots"
    with pytest.raises(InvalidArgument, match="contains no snapshots"):
        gradient_movement(tmp_path)
    with pytest.raises(InvalidArgument, match=r"1 snapshot; at least 2"):
        gradient_movement([folder / "step-0000000"])
    with pytest.raises(InvalidArgument, match="of the same step"):
        gradient_movement([folder / "step-0000000"] * 2)
    with pytest.raises(InvalidArgument, match="at least 2 for the baseline; got 1"):
        gradient_movement(run, n=1)
    for changed, message in (
        ({"task": Bijection(n_values=7, n_pairs=5, repeats=True)}, "different tasks.*repeats: False.*True"),
        ({"sizes": {**TINY.sizes, "d_mlp": 9}}, "different architectures.*\\(d_mlp: 7 there, 9"),
        ({"seed": 3}, "different trainings"),
    ):
        other = a_run(tmp_path / next(iter(changed)), replace(TINY, **changed), steps=(0, 10, 20, 40))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=message):
            gradient_movement([folder / "step-0000000", other / "snapshots" / "step-0000040"])
    with pytest.raises(InvalidArgument, match="a single training is required; got tiny, seed 0 and tiny, seed 3"):
        gradient_movement([run, tmp_path / "seed"])
