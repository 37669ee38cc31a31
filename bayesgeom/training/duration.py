"""Estimates of training time on this machine, from a few timed steps."""

import itertools
import time
from collections.abc import Sequence

import torch

from bayesgeom.training.loop import Pace, held_out_kl, held_out_trials, training_step
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.precision import Precision
from bayesgeom.training.recipe import Recipe

TIMED_STEPS, SECONDS = 3, 3.0  # for each batch size and precision, after one step of the stage that warms up


def estimated_seconds(
    stages: Sequence[tuple[Recipe, int]],
    *,
    device: str | torch.device = "cpu",
    precision: Precision,
    log_every: int = Pace.log_every,
) -> float:
    """Estimate the training time of these stages on this machine under its current load.

    Each stage is divided into segments of one batch size and one precision. In each segment a few steps of a temporary
    network are timed on real batches. The run's network and the global random state are not changed.

    Args:
        stages: Recipes with the step at which each one starts (`loop.remaining_stages`).
        device: Device of the training.
        precision: Precision of the run's matrix products.
        log_every: Steps between measurements of the held-out KL, which are timed, too.

    Returns:
        Seconds, without the time to save states and snapshots.
    """
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices):
        return sum(_stage_seconds(stage, start, device, precision, log_every) for stage, start in stages)


def as_duration(seconds: float) -> str:
    """Return a duration as text, in its two largest units.

    Example:
        >>> as_duration(41.3), as_duration(754), as_duration(5_500), as_duration(100_000)
        ('41 s', '12 min 34 s', '1 h 31 min', '27 h 46 min')
    """
    whole = max(1, round(seconds))
    hours, minutes = whole // 3_600, whole // 60
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _stage_seconds(
    recipe: Recipe, start: int, device: str | torch.device, precision: Precision, log_every: int
) -> float:
    module = recipe.model_config().build(seed=recipe.seed).to(device).train()
    optimizers = Optimizers(recipe, module, precision)
    segments = _segments(recipe, start, precision)
    if segments:
        training_step(recipe, module, optimizers, segments[0][0], device, precision)  # warms up
    seconds = 0.0
    for first, end in segments:
        kinds = 1 + len(recipe.also)  # every alternating task is timed
        n_timed, began = 0, time.perf_counter()
        while n_timed < kinds or (n_timed < TIMED_STEPS and time.perf_counter() - began < SECONDS):
            training_step(recipe, module, optimizers, first + n_timed % kinds, device, precision)
            n_timed += 1
        seconds += (end - first) * (time.perf_counter() - began) / n_timed
    n_reports = -(-(recipe.steps - start) // log_every)
    if n_reports:
        held_out, before = held_out_trials(recipe, device), time.perf_counter()
        held_out_kl(module, held_out)
        seconds += n_reports * (time.perf_counter() - before)
    return seconds


def _segments(recipe: Recipe, start: int, precision: Precision) -> list[tuple[int, int]]:
    """First step and end of each run of steps with one batch size and one precision."""

    def kind(step: int) -> tuple[int, bool]:
        return recipe.batch_size_at(step), precision == "float32" or recipe.is_float32_at(step)

    groups = (list(steps) for _, steps in itertools.groupby(range(start, recipe.steps), kind))
    return [(steps[0], steps[-1] + 1) for steps in groups]
