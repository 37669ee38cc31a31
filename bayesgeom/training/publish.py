"""Publishing of a trained module as a checkpoint with its recipe and scores."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from bayesgeom.core.errors import CheckpointFault, UnknownName
from bayesgeom.core.files import atomic_directory, check_directory
from bayesgeom.core.progress import progress_in
from bayesgeom.core.reading import read_json
from bayesgeom.core.text import counted, interval_text, number_text, percent_text
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import load_checkpoint, save_checkpoint
from bayesgeom.models.checkpoint_files import CARD, CONFIG, FINISHED, OURS, hashed
from bayesgeom.models.config import ModelConfig
from bayesgeom.models.resolve import check_device, of_module
from bayesgeom.probes.calibration import Calibration, CalibrationReport
from bayesgeom.report.estimate import Estimate
from bayesgeom.tasks.base import derived_seed
from bayesgeom.training.duration import as_duration, estimated_seconds
from bayesgeom.training.loop import check_startable, remaining_stages, run_precision, train
from bayesgeom.training.precision import Precision
from bayesgeom.training.recipe import Recipe, deciding, recipe_from_dict
from bayesgeom.training.recipes import recipe as committed

N_SCORED = 2_000
_MADE = "## How it was made"
_VARIANT = ("prior_", "top_")  # first parts of names
_SCORING = 2  # branch of the recipe's seed; 0 and 1 are its training and validation data


def publish(recipe: Recipe, module: nn.Module, path: Path, *, precision: Precision | None = None) -> CalibrationReport:
    """Score a module on 2,000 new sequences and write it as a checkpoint with its card.

    Args:
        recipe: The recipe of the module.
        module: The trained module.
        path: Directory of the checkpoint.
        precision: Precision of the training, from `training.precision.recorded_precision`. None: not recorded.

    Returns:
        The scores.
    """
    model = of_module(module, name=recipe.name, task=recipe.task)
    scores, seed = _scored(recipe, model)
    save_checkpoint(
        path,
        module,
        recipe.model_config(),
        recipe=recipe.to_dict(),
        step=recipe.steps,
        card=card(recipe, model.spec.n_parameters, scores, precision),
        entries={"scores": kept_scores(scores, seed=seed), "precision": precision},
    )
    return scores


def make_checkpoint(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    precision: Literal["auto", "bfloat16", "float32"] = "auto",
    announce: Callable[[str], None] | None = None,
) -> CalibrationReport:
    """Train a recipe in a directory and publish the checkpoint there, in the folder "checkpoint".

    Args:
        recipe: The recipe, with its seed and steps.
        out: Directory of the run: state, log, snapshots and, at the end, the checkpoint.
        resume: Whether to continue the run in that directory.
        device: Where to train.
        precision: Precision of matrix products; "auto" is that of the run, or the fastest one that the device has.
        announce: Called once before the training, with the number of steps and the estimated time. None: no estimate.

    Returns:
        The scores of the checkpoint.

    Raises:
        CheckpointFault: The directory holds a run that this recipe cannot continue.
        InvalidArgument: The device does not exist, or the run exists and `resume` is false.
    """
    check_device(device)
    check_startable(recipe, out, resume=resume, device=device)
    check_directory(out)
    used = run_precision(recipe, out, precision, device)
    if announce is not None:
        stages = remaining_stages(recipe, out)
        seconds = estimated_seconds(stages, device=device, precision=used)
        n_steps = sum(stage.steps - start for stage, start in stages)
        announce(f"{n_steps:,} steps in {used}, about {as_duration(seconds)}")
    with progress_in(out, "repeat the command with --resume"):
        module = train(recipe, out, resume=resume, device=device, precision=used)
    return publish(recipe, module, out / FINISHED, precision=used)


def rescore(path: Path) -> CalibrationReport:
    """Score a checkpoint again, on the sequences of its first scores, and write scores and baselines of today.

    Weights, recipe, versions and the card's text on the training stay. Baselines that were added since appear, such as
    window observers.

    Args:
        path: Directory of the checkpoint.

    Returns:
        The scores.

    Raises:
        CheckpointFault: The checkpoint cannot be used, or has no card.
        OutputFault: It cannot be written.
    """
    found = load_checkpoint(path)
    recipe = recipe_from_dict(found.recipe)
    model = of_module(found.module, name=recipe.name, task=recipe.task)
    scores, seed = _scored(recipe, model)
    whole = read_json(path / CONFIG)
    description = whole.get(OURS, whole)
    description["scores"] = kept_scores(scores, seed=seed)
    try:
        before = (path / CARD).read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointFault(f"{path / CARD} cannot be read: {error}. Restore the card.") from error
    made = card(recipe, model.spec.n_parameters, scores, description.get("precision"))
    made = made.replace("{weights_hash}", found.weights_hash)
    if _MADE in before:  # what an earlier version wrote on the training, such as its precision, may be known there only
        made = made.partition(_MADE)[0] + "".join(before.partition(_MADE)[1:])
    with atomic_directory(path) as temporary:  # config and card change together
        shutil.copytree(path, temporary, symlinks=True, dirs_exist_ok=True)
        for name, text in ((CONFIG, json.dumps(hashed(whole), indent=2) + "\n"), (CARD, made)):
            (temporary / name).write_text(text, encoding="utf-8")
    return scores


def _scored(recipe: Recipe, model: Model) -> tuple[CalibrationReport, int]:
    """Measure the calibration on the sequences that score this recipe; also return their seed."""
    seed = derived_seed(recipe.seed, _SCORING)
    blocks = recipe.task.stream(N_SCORED, seed=seed, device=model.spec.device)
    run = model.run(blocks, baseline_predictives=recipe.task.baseline_predictives, seed=seed)
    return Calibration().measure(run), seed


def kept_scores(scores: CalibrationReport, *, seed: int) -> dict[str, Any]:
    """Return the scores for a checkpoint's config, with those of context-free baselines on the same sequences.

    Baselines that are infinite or unknown are omitted.
    """
    stored = {"entropy_mae_bits": scores.entropy_mae_bits, "kl_bits": scores.kl_bits}
    baselines = {
        score: {own.name.replace(" ", "_"): float(own.value) for own in estimate.baselines if np.isfinite(own.value)}
        for score, estimate in stored.items()
    }
    own = {score: float(estimate) for score, estimate in stored.items()}
    return {"n": scores.n, "seed": seed, **own, "baselines": baselines}


def _bold(own: Estimate) -> str:
    """A number in bold with its interval; small numbers have a power of ten."""
    low, high = map(float, own.ends)
    return f"**{number_text(float(own))}** ({interval_text(low, high)})"


def card(recipe: Recipe, n_parameters: int, scores: CalibrationReport, precision: Precision | None = None) -> str:
    """Return the card's text; `save_checkpoint` replaces `{weights_hash}`."""
    kl_of = {own.name: number_text(float(own.value)) for own in scores.kl_bits.baselines}
    levels = "\n".join(
        f"| {own.name} | {number_text(float(own.value))} | {kl_of.get(own.name, '–')} |"
        for own in scores.entropy_mae_bits.baselines
    )
    mae, kl = _bold(scores.entropy_mae_bits), _bold(scores.kl_bits)
    means_first, elsewhere = scores.entropy_mae_of_means_bits, float(scores.off_answer_prob)
    sizes = ", ".join(f"{key} {value}" for key, value in _sizes(recipe.model_config()).items())
    made_by = command(recipe)
    how = f"`{made_by}`" if made_by else "No `bayesgeom train` command makes this recipe"
    return f"""# {recipe.name}

Task: `{recipe.task}`
Model: {sizes} ({n_parameters:,} parameters, float32)
Weights: `{{weights_hash}}`

## How it scores

On {scores.n:,} fresh sequences, against the exact posterior; 95 % bootstrap intervals over sequences.

| | entropy error (bits) | KL(exact ‖ model) (bits) |
|---|---|---|
| **this model** | {mae} | {kl} |
{levels}

Entropy error with entropies averaged over sequences first: {number_text(means_first)} bits. Probability
outside the answers: {number_text(elsewhere)}.

{_MADE}

{how}. The whole recipe is in `config.json`; in short:

{_story(recipe, precision)}
"""


def command(recipe: Recipe) -> str | None:
    """Return the command that trains this recipe: of a committed one, with its seed and options; None if none does.

    Example:
        >>> command(replace(committed("recall-lstm").reseeded(1), steps=300))
        'bayesgeom train recall-lstm --seed 1 --steps 300'
    """
    whole, _, number = recipe.name.rpartition("-seed")
    name, seed = (whole, int(number)) if number.isdecimal() else (recipe.name, 0)
    base, changes = _committed(recipe, name)
    if base is None or not (seed or name == recipe.name):
        return None
    options = [f"--set {shlex.quote(f'{key}={value}')}" for key, value in changes]
    options += [f"--seed {seed}"] if seed else []
    options += [f"--steps {recipe.steps}"] if recipe.steps != base.steps else []
    made = replace(base.reseeded(seed), steps=recipe.steps)
    if changes:
        changed = ("name", "task", "also", "sizes", "batch_size", "late_batch_size", "after")
        made = replace(made, **{field: vars(recipe)[field] for field in changed})
    is_it = deciding(made.to_dict()) == deciding(recipe.to_dict())
    return " ".join([f"bayesgeom train {base.name}", *options]) if is_it else None


def _committed(recipe: Recipe, name: str) -> tuple[Recipe | None, list[tuple[str, str]]]:
    """The committed recipe with the longest name that begins `name`, and the changes that the rest of it states."""
    keys = "|".join(sorted({*recipe.sizes, *recipe.task.config(), "batch_size", "late_batch_size"}, key=len)[::-1])
    change = re.compile(rf"-({keys})(.+?)(?=-(?:{keys})|$)")
    for end in (len(name), *(dash.start() for dash in reversed(list(re.finditer("-", name))))):
        try:
            base = committed(name[:end])
        except UnknownName:
            continue
        changes = change.findall(name[end:])
        if "".join(f"-{key}{value}" for key, value in changes) == name[end:]:
            return base, changes
    return None, []


def _sizes(config: ModelConfig) -> dict[str, Any]:
    """The config of a model, without the parameters of variants where these are off."""
    defaults = type(config)(**{name: getattr(config, name) for name in ("d_vocab", "n_ctx")}).to_dict()
    own = config.to_dict()
    return {key: own[key] for key in own if not (key.startswith(_VARIANT) and own[key] == defaults[key])}


def _story(recipe: Recipe, precision: Precision | None) -> str:
    """One line per training stage."""
    first = "" if recipe.after is None else _story(recipe.after, precision) + "\n"
    if recipe.warm_start is not None:
        name, digest = recipe.warm_start.split("@")
        first = f"- Starts from the weights of `{name}` (hash `{digest}`); what follows comes on top of its training.\n"
    late = (
        f", {recipe.late_batch_size} from {percent_text(recipe.late_from)} of them on" if recipe.late_from < 1 else ""
    )
    turns = f"in turn of the task and of {len(recipe.also)} others of its kind; " if recipe.also else ""
    until = "" if recipe.decay_steps is None else f" in the first {recipe.decay_steps:,} steps"
    return (
        f"{first}- {recipe.steps:,} steps of fresh data, {recipe.batch_size} sequences a step{late}; {turns}"
        f"{recipe.targets} targets; {_loss(recipe)}{recipe.optimizer}, lr {recipe.lr:g} (matrices "
        f"{recipe.matrix_lr:g}), weight decay {recipe.weight_decay:g}{until}; {recipe.warmup} steps of warm-up, then a "
        f"cosine to zero; gradient norm clipped at 1; {_products(recipe, precision)}; seed {recipe.seed}."
    )


def _loss(recipe: Recipe) -> str:
    if recipe.loss_positions is None:
        return ""
    share = number_text(recipe.label_share)
    later = f" and at each later one with probability {share}" if recipe.label_share else " only"
    return f"loss at the first {counted(recipe.loss_positions, 'scored position')}{later}; "


def _products(recipe: Recipe, precision: Precision | None) -> str:
    match precision:
        case "float32":
            return "float32 products"
        case "bfloat16":
            return f"bfloat16 products, float32 for the last {percent_text(recipe.float32_share)} of the steps"
        case None:
            return "precision of products not recorded"
