"""Making of a checkpoint: train a recipe, score the module, write it with its card."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from bayesgeom.core import number_text
from bayesgeom.core.files import check_directory
from bayesgeom.core.progress import progress_in
from bayesgeom.core.torch_state import with_torch_defaults
from bayesgeom.measurements.calibration import Calibration, CalibrationReport
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.checkpoint_files import FINISHED
from bayesgeom.models.resolve import check_device, of_module
from bayesgeom.tasks.base import derived_seed
from bayesgeom.training.environment import Precision
from bayesgeom.training.loop import (
    check_startable,
    run_precision,
    train,
)
from bayesgeom.training.recipes import Recipe
from bayesgeom.training.state import STATE

N_SCORED = 2_000
_SCORING = 2  # branch of the recipe's seed; 0 and 1 are its training and validation data


@with_torch_defaults
def score_and_save(
    recipe: Recipe, module: nn.Module, path: Path, *, precision: Precision | None = None
) -> CalibrationReport:
    """Score a module on 2,000 new sequences and write it as a checkpoint with its card.

    Args:
        recipe: The recipe of the module.
        module: The trained module.
        path: Directory of the checkpoint.
        precision: Precision of the training, from `training.environment.recorded_precision`. None: not recorded.

    Returns:
        The scores.
    """
    scores, entries, n_parameters = _scored(recipe, module)
    text, made = card(recipe, n_parameters, scores, precision), {"scores": entries, "precision": precision}
    config, whole = recipe.model_config(), recipe.to_dict()
    save_checkpoint(path, module, config, recipe=whole, step=recipe.steps, card=text, entries=made)
    return scores


@with_torch_defaults
def make_checkpoint(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    precision: Literal["auto", "bfloat16", "float32"] = "auto",
) -> CalibrationReport:
    """Train a recipe in a directory and publish the checkpoint there, in the folder "checkpoint".

    Args:
        recipe: The recipe, with its seed and steps.
        out: Directory of the run: state, log, snapshots and, at the end, the checkpoint.
        resume: Whether to continue the run in that directory.
        device: Where to train.
        precision: Precision of matrix products; "auto" is that of the run, or the fastest one that the device has.

    Returns:
        The scores of the checkpoint.

    Raises:
        CheckpointFault: The directory holds a run that this recipe cannot continue.
        InvalidArgument: The device does not exist, or the run exists and `resume` is false.
    """
    check_device(device)
    check_startable(recipe, out, resume=resume, device=device)
    check_directory(out)
    used = run_precision(out, precision, device)
    with progress_in(out, "repeat the command with --resume", saved=f"**/{STATE}"):
        module = train(recipe, out, resume=resume, device=device, precision=used)
    return score_and_save(recipe, module, out / FINISHED, precision=used)


def _scored(recipe: Recipe, module: nn.Module) -> tuple[CalibrationReport, dict[str, Any], int]:
    """Measure the calibration on the sequences that score this recipe.

    Returns:
        The report; the scores for a checkpoint's config, with those of baselines on the same sequences, without
        infinite and unknown ones; and the number of parameters.
    """
    seed, model = derived_seed(recipe.seed, _SCORING), of_module(module, name=recipe.name, task=recipe.task)
    blocks = recipe.task.stream(N_SCORED, seed=seed, device=model.spec.device)
    run = model.run(blocks, baseline_predictives=recipe.task.baseline_predictives, seed=seed)
    scores = Calibration().measure(run)
    stored = {"entropy_mae_bits": scores.entropy_mae_bits, "kl_bits": scores.kl_bits}
    baselines = {
        score: {row.name.replace(" ", "_"): float(row.value) for row in estimate.baselines if np.isfinite(row.value)}
        for score, estimate in stored.items()
    }
    means = {score: float(estimate) for score, estimate in stored.items()}
    return scores, {"n": scores.n, "seed": seed, **means, "baselines": baselines}, model.spec.n_parameters


def card(recipe: Recipe, n_parameters: int, scores: CalibrationReport, precision: Precision | None = None) -> str:
    """Return the card's text; `save_checkpoint` replaces `{weights_hash}`."""
    kl_of = {level.name: number_text(float(level.value)) for level in scores.kl_bits.baselines}
    levels = "\n".join(
        f"| {level.name} | {number_text(float(level.value))} | {kl_of.get(level.name, '–')} |"
        for level in scores.entropy_mae_bits.baselines
    )
    mae, kl = scores.entropy_mae_bits.text(), scores.kl_bits.text()
    means_first, elsewhere = scores.entropy_mae_of_means_bits, float(scores.off_answer_prob)
    sizes = ", ".join(f"{key} {value}" for key, value in recipe.model_config().to_dict().items())
    return f"""# {recipe.name}

Task: `{recipe.task}`
Model: {sizes} ({n_parameters:,} parameters, float32)
Weights: `{{weights_hash}}`

## How it scores

On {scores.n:,} fresh sequences, against the exact posterior; 95 % bootstrap intervals over sequences.

| | entropy error (bits) | KL(exact ‖ model) (bits) |
|---|---|---|
| **this model** | **{mae}** | **{kl}** |
{levels}

Entropy error with entropies averaged over sequences first: {number_text(means_first)} bits. Probability
outside the answers: {number_text(elsewhere)}.

## How it was made

By the recipe {recipe.name}, which is in `config.json` as a whole; its stages:

{_story(recipe, precision)}
"""


def _story(recipe: Recipe, precision: Precision | None) -> str:
    """One line per training stage: its settings by name."""
    apart = {"name", "task", "sizes", "after", "also", "snapshots"}
    lines = []
    for stage in recipe.stages():
        settings = {key: value for key, value in stage.to_dict().items() if key not in apart and value is not None}
        also = [f"also {other}" for other in stage.also]
        lines.append(f"- {stage.task}: {', '.join([*(f'{key} {value}' for key, value in settings.items()), *also])}")
    return "\n".join([*lines, f"- precision {precision or 'not recorded'}"])
