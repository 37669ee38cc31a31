"""The commands `compare`, `replicate`, `train` and `length`: a function each, whose arguments are the options."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bayesgeom.cli import HERE, On
from bayesgeom.core.files import RUNS
from bayesgeom.generalization.length import length_generalization
from bayesgeom.models.checkpoint_files import FINISHED
from bayesgeom.models.resolve import of_module
from bayesgeom.report.report import Report
from bayesgeom.training.publish import make_checkpoint
from examples.replication.comparison import run
from examples.replication.training import recipes
from examples.replication.training.trained_models import TrainedModels
from examples.replication.training.variants import variants_of_kinds


def compare(
    architectures: tuple[str, ...] = recipes.ARCHITECTURES,
    tasks: tuple[str, ...] = ("bijection", "repeats", "recall", "hmm"),
    *,
    seeds: int = 1,
    n: int = 2_000,
    seed: int = 0,
    only_existing: bool = False,
    runs: Path = RUNS,
    machines: On = HERE,
    out: Path | None = None,
) -> None:
    """Compare architectures: which one reaches the exact posterior on which task.

    Shipped checkpoints take 1 to 2 minutes a task on two CPU cores. Missing models are trained first:
    that takes hours.

    Args:
        architectures: Architectures to compare; mlp-prefix, mamba2 and rwkv are also available.
        tasks: Tasks to compare them on; slow-hmm, hmm-sampled, recall-16 and recall-64 are also available.
        seeds: Number of trainings of each, at the same budget. One seed gives no verdict.
        n: Number of sequences on which each model is scored.
        seed: Seed of these sequences and of the intervals.
        only_existing: Train nothing: report the models that exist, and list the missing ones.
        runs: Directory where missing models are trained and saved.
        machines: Where models are trained and scored.
        out: Directory for the report. Default: it is not saved.
    """
    with machines.executor() as executor:
        report = run.compare(
            architectures,
            tasks,
            seeds=seeds,
            n=n,
            seed=seed,
            runs=runs,
            train_missing=not only_existing,
            executor=executor,
            announce=_note,
        )
    _conclude(report, out, report.table())


def replicate(
    recipe: Annotated[str, tyro.conf.Positional],
    *,
    seeds: int = run.N_SEEDS,
    n: int = 2_000,
    seed: int = 0,
    only_existing: bool = False,
    runs: Path = RUNS,
    machines: On = HERE,
    out: Path | None = None,
) -> None:
    """Train a recipe with several seeds, and report mean, spread and curves.

    Args:
        recipe: Name of the recipe. An unknown name lists the available recipes.
        seeds: Number of seeds; the first is the recipe's own.
        n: Number of sequences on which each training is scored.
        seed: Seed of these sequences and of the intervals.
        only_existing: Train nothing: report the trainings that exist, and list the missing ones.
        runs: Directory of the trainings: existing ones are loaded, new ones are saved.
        machines: Where models are trained and scored.
        out: Directory for the report. Default: it is not saved.
    """
    with machines.executor() as executor:
        report = run.replicate(
            recipe,
            seeds=seeds,
            n=n,
            seed=seed,
            runs=runs,
            train_missing=not only_existing,
            executor=executor,
            announce=_note,
        )
    _conclude(report, out, report.table(), *_missing(report.missing))


def train(
    recipe: Annotated[str, tyro.conf.Positional],
    *,
    seed: int = 0,
    steps: int | None = None,
    resume: bool = False,
    out: Path | None = None,
    device: str = "cpu",
    precision: Literal["auto", "bfloat16", "float32"] = "auto",
) -> None:
    """Train a recipe of the study or of a shipped checkpoint.

    Args:
        recipe: Name of the recipe. An unknown name lists the available recipes.
        seed: Index of the recipe's seed: 0 is the recipe itself.
        steps: Number of steps of the last stage. Default: the recipe's.
        resume: Continue the run in its directory.
        out: Directory of the run. Default: runs/train/NAME[-seedK].
        device: Where to train.
        precision: Precision of matrix products; auto: the fastest one that the device has.
    """
    chosen = recipes.recipe(recipe).reseeded(seed)
    folder = out or RUNS / chosen.name
    if steps is not None:
        chosen = replace(chosen, steps=steps)
    scores = make_checkpoint(chosen, folder, resume=resume, device=device, precision=precision)
    print(*scores.headlines(), f"checkpoint: {folder / FINISHED}", sep="\n")


def length(
    variants: Annotated[str, tyro.conf.Positional],
    *,
    kinds: tuple[str, ...] = (),
    to: tuple[int, ...] = (),
    n: int = 512,
    seed: int = 0,
    threshold: float = 0.01,
    only_existing: bool = False,
    runs: Path = RUNS,
    out: Path | None = None,
) -> None:
    """Measure errors beyond the training length of networks that differ only in their positional encoding.

    Args:
        variants: hmm, recall or recall-mixed. Missing networks are trained, in minutes each.
        kinds: Kinds of positional encoding. Default: all of them.
        to: Lengths to report. Default: 1, 1.5, 2.5 and 5 times the training length.
        n: Number of sequences.
        seed: Seed of sequences and intervals.
        threshold: KL in bits above which a position counts as failed.
        only_existing: Train nothing: report the networks that exist, and list the missing ones.
        runs: Directory where missing networks are trained and saved.
        out: Directory for the report. Default: it is not saved.
    """
    available = TrainedModels(runs=runs, train_missing=not only_existing)
    requested = variants_of_kinds(variants, kinds)
    plan = available.plan(requested, _note)
    if plan.to_train:
        blank = [of_module(own.model_config().build(seed=0), name=own.name, task=own.task) for own in requested]
        # What is refused is refused before anything is trained.
        length_generalization(blank, lengths=to or None, n=min(n, 2), seed=seed, threshold_bits=threshold)
    models = [available.model(own) for own in requested if own not in plan.missing]
    report = length_generalization(models, lengths=to or None, n=n, seed=seed, threshold_bits=threshold)
    _conclude(report, out, str(report), *_missing(tuple(own.name for own in plan.missing)))


def _conclude(report: Report, out: Path | None, *lines: str) -> None:
    print(*lines, sep="\n")
    if out is not None:
        report.save(out)
        print(f"report: {out}")


def _missing(names: tuple[str, ...]) -> list[str]:
    return [f"missing: {', '.join(names)}"] if names else []


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
