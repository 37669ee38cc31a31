"""The training loop: new data every step, atomic state, and resumption to the same weights.

The seed of a step's batch depends only on the recipe's seed and the step. So a run that was stopped, even by SIGKILL,
repeats at most the steps since its last state, and ends with the weights of an uninterrupted run in its environment
(`training.environment`).
"""

import contextlib
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from bayesgeom.core import NO_LABEL, CheckpointFault, InvalidArgument, NonFinite, Trials, phase, unknown_name
from bayesgeom.core.files import atomic_directory, holds_others, read_json, write_arrays
from bayesgeom.core.torch_state import with_torch_defaults
from bayesgeom.models.checkpoint import load_checkpoint, save_checkpoint
from bayesgeom.models.checkpoint_files import WEIGHTS, checkpoints
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import DerivedSeed, derived_seed
from bayesgeom.training.environment import (
    ENVIRONMENT,
    PRECISION,
    Precision,
    RequestedPrecision,
    check_device_kind,
    environment,
    recorded_precision,
    resolve_precision,
    warn_of_changes,
    write_json,
)
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe
from bayesgeom.training.state import (
    LOCK,
    LOG,
    STATE,
    append_log,
    check_finite,
    check_recipe,
    cut_log,
    locked,
    restore_state,
    save_state,
    steps_done,
)

RECIPE, SNAPSHOTS, BEFORE = "recipe.json", "snapshots", "before"
GRADIENT_CLIP = 1.0
HELD_OUT = 256
_TIE = 1e-9  # answers whose exact probabilities differ by less are equally probable
CHECK_EVERY = 50  # steps between two looks whether a stage with `until` is learned; not of the pace: it decides weights
DATA, VALIDATION, LABELS = 0, 1, 2  # branches of the recipe's seed


@final
class Logits(nn.Module):
    """A module of any kind as one that returns logits: those of a Hugging Face output, or the first of several."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        return cast(Tensor, logits_of(self.net(tokens)))


def logits_of(output: Any) -> Any:
    """Return the logits in what a module returned: the field `logits`, the first of several, or the output itself."""
    match output:
        case object(logits=logits):
            return logits
        case tuple() | list():
            return output[0]
    return output


@runtime_checkable
class Watch(Protocol):
    """What a run calls after every step, such as `bayesgeom.monitor.Monitor`."""

    should_stop: bool

    def __call__(self, step: int) -> object:
        """Look at the network after a step."""


@final
@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often a run reports and saves. This does not affect the weights."""

    log_every: int = 100
    save_seconds: float = 60.0
    quiet: bool = False
    watch: Watch | None = None  # it may end the run


@with_torch_defaults
def train(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    device: str | torch.device = "cpu",
    precision: RequestedPrecision = "auto",
    pace: Pace = Pace(),
    own: nn.Module | None = None,
) -> nn.Module:
    """Train a recipe in a directory, which then contains state, log and snapshots, and return the module.

    Args:
        recipe: The recipe.
        out: Directory of the run.
        resume: Whether to continue the run in `out`. The weights equal those of an uninterrupted run on the same
            kind of CPU, with the same number of threads and the same libraries; a warning names what differs.
        device: Device of the training. A resumed run keeps its kind.
        precision: Precision of matrix products. "auto": bfloat16 if `device` computes it natively, else float32. A
            resumed run keeps its precision.
        pace: How often the run reports and saves.
        own: The network to train, of any kind; default: that of the recipe's sizes.

    Raises:
        InvalidArgument: `out` already contains a run and `resume` is false, `precision` or the kind of `device`
            differs from that of the run, or another process trains in `out`.
        CheckpointFault: `out` contains a run of another recipe, or a corrupt state.
        NonFinite: Loss, gradients or weights are NaN or infinite. The saved state is from before that step.
        OutputFault: A file could not be written. Free some space and continue with `resume`.
    """
    check_startable(recipe, out, resume=resume, device=device)
    chosen = run_precision(out, precision, device)  # before the lock, which makes the directory
    with locked(out):
        _check_run_in(recipe, out, resume=resume, device=device)  # another process may have started one just now
        if (out / RECIPE).exists():
            chosen = run_precision(out, precision, device)
        # Write environment, precision and recipe of a new run. The recipe comes last, because its file marks a run.
        if resume and (stage := _continued_stage(recipe, out)) is not None:
            warn_of_changes(stage, device)
        if not (resume and (out / STATE).exists()):
            write_json(out / ENVIRONMENT, environment(device))
        if not (out / RECIPE).exists():
            write_json(out / PRECISION, {"precision": chosen})
            write_json(out / RECIPE, recipe.to_dict(), indent=2)
        return _trained(recipe, out, resume=resume, device=device, precision=chosen, pace=pace, own=own)


def _trained(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool,
    device: str | torch.device,
    precision: Precision,
    pace: Pace,
    own: nn.Module | None,
) -> nn.Module:
    """Train in a directory that is checked and locked."""
    has_state = resume and (out / STATE).exists()
    module = (recipe.model_config().build(seed=recipe.seed) if own is None else Logits(own)).to(device)
    if not has_state:
        _start(recipe, module, out, device=device, precision=precision, pace=pace)
    optimizers = Optimizers(recipe, module, precision)
    start = restore_state(out / STATE, recipe, module, optimizers) if has_state else 0
    cut_log(out / LOG, start)
    held_out = recipe.task.sample(HELD_OUT, seed=held_out_seed(recipe), device=device)
    due = snapshot_steps(recipe)
    saved_at = time.monotonic()
    with phase(recipe.name, recipe.steps, "step", done=start, leave=True, is_quiet=pace.quiet) as shown:
        for step in range(start, recipe.steps):
            if step in due:
                _snapshot(recipe, module, out, step, precision)
            loss = training_step(recipe, module.train(), optimizers, step, device, precision)
            module.eval()
            ends = step + 1 == recipe.steps or is_learned(recipe, module, held_out, step + 1)
            if (step + 1) % pace.log_every == 0 or ends:
                line = {"step": step + 1, "loss_nats": loss, "kl_bits": held_out_kl(module, held_out)}
                append_log(out / LOG, line)
                shown.set_postfix(loss=f"{loss:.4f}", kl_bits=f"{line['kl_bits']:.2e}")
            shown.update(1)
            if ends or _is_stopped(pace.watch, step):
                break
            if time.monotonic() - saved_at > pace.save_seconds:
                save_state(out / STATE, recipe, module, optimizers, step + 1)
                saved_at = time.monotonic()
    # Before the last state, which ends the run and does not state the step at which it ended early.
    if start < recipe.steps:
        _snapshot(recipe, module, out, step + 1, precision)
    elif recipe.until is None and pace.watch is None:
        _snapshot(recipe, module, out, recipe.steps, precision)
    save_state(out / STATE, recipe, module, optimizers, recipe.steps)
    if recipe.until is not None and start < recipe.steps:
        _warn_unless_learned(recipe, module, held_out)
    return module.eval()


def _is_stopped(watch: Watch | None, step: int) -> bool:
    """Call the watch after a step, and return whether it ends the run."""
    return watch is not None and (watch(step), watch.should_stop)[1]


def _start(
    recipe: Recipe, module: nn.Module, out: Path, *, device: str | torch.device, precision: Precision, pace: Pace
) -> None:
    """Give a module the weights from which the recipe starts, where it does not start from its initialization."""
    if recipe.after is not None:
        before = out / BEFORE
        has_begun = (before / RECIPE).exists()
        earlier = train(recipe.after, before, resume=has_begun, device=device, precision=precision, pace=pace)
        module.load_state_dict(earlier.state_dict())
    elif recipe.warm_start is not None:
        _start_from_shipped(recipe, module)


def check_startable(recipe: Recipe, out: Path, *, resume: bool, device: str | torch.device = "cpu") -> None:
    """Check that a run can be started or resumed in a directory, and create nothing. Errors are those of `train`."""
    if (out / LOCK).exists():
        with locked(out):
            pass
    _check_run_in(recipe, out, resume=resume, device=device)


def _check_run_in(recipe: Recipe, out: Path, *, resume: bool, device: str | torch.device) -> None:
    """Check the run in a directory, or its absence, against what is requested."""
    if (out / RECIPE).exists():
        if not resume:
            raise InvalidArgument(
                f"{out} already contains a run: continue it with --resume (Python: resume=True), or use another "
                f"directory."
            )
        check_run(recipe, out)
        if (stage := _continued_stage(recipe, out)) is not None:
            check_device_kind(stage, device)
        elif recipe.after is not None and not (out / STATE).exists() and (out / BEFORE / RECIPE).exists():
            _check_run_in(recipe.after, out / BEFORE, resume=True, device=device)
    elif resume:
        raise InvalidArgument(
            f"nothing to resume: {out} contains no run. Name its directory with --out, or leave out --resume."
        )
    elif holds_others(out, own=(LOCK, ENVIRONMENT, PRECISION)):  # what is written before the recipe
        raise InvalidArgument(f"{out} holds other files than a run: name an empty or a new directory.")


def _continued_stage(recipe: Recipe, out: Path) -> Path | None:
    """Directory of the stage whose saved weights the next step of this stage trains; None without such a step."""
    if (out / STATE).exists():
        return out if steps_done(out / STATE, recipe) < recipe.steps else None
    before, earlier = out / BEFORE, recipe.after
    is_next = earlier is not None and (before / STATE).exists() and steps_done(before / STATE, earlier) == earlier.steps
    return before if is_next else None


def run_precision(out: Path, requested: RequestedPrecision, device: str | torch.device = "cpu") -> Precision:
    """Return the precision of the run in `out`; for a new run, the resolved one.

    Raises:
        InvalidArgument: Another precision is requested for an existing run.
    """
    if not (out / RECIPE).exists():
        return resolve_precision(requested, device)
    begun = recorded_precision(out)
    if requested not in ("auto", begun):
        raise InvalidArgument(
            f"the run in {out} was started in {begun} and cannot continue in {requested}: its weights would be those "
            f"of neither. Omit the precision, or train in another directory."
        )
    return begun


def check_run(recipe: Recipe, out: Path) -> None:
    """Check that a run in `out`, if there is one, is of this recipe.

    Raises:
        CheckpointFault: It is of another recipe.
    """
    if (out / RECIPE).exists():
        remedy = "Use the recipe and options of that run, use another directory, or move that one away."
        check_recipe(read_json(out / RECIPE), recipe, out / RECIPE, remedy)


def snapshot_steps(recipe: Recipe) -> frozenset[int]:
    """Return the steps before which a snapshot is taken: 0, then log-spaced from 10, without the final step."""
    if recipe.snapshots == 0:
        return frozenset()
    spaced = np.geomspace(min(10, recipe.steps), recipe.steps, recipe.snapshots).round().astype(int)
    return frozenset({0, *(int(step) for step in spaced)} - {recipe.steps})


def batch_seed(recipe: Recipe, step: int) -> int:
    """Return the seed of one step's batch, which depends only on the recipe's seed and the step.

    Do not change the formula: the training data of every shipped checkpoint follow from it.
    """
    return DerivedSeed(np.random.SeedSequence([recipe.seed, DATA, step]).generate_state(1, np.uint64)[0] >> 1)


def held_out_seed(recipe: Recipe) -> int:
    """Return the seed of the held-out sequences, which no batch or stream uses."""
    return derived_seed(recipe.seed, VALIDATION, 0)


def loss_nats(recipe: Recipe, logits: Float[Tensor, "batch pos d_vocab"], trials: Trials) -> Float[Tensor, ""]:
    """Return the cross-entropy over all ids at the scored positions, for the labels or the exact predictive.

    With `loss_positions`, only scored positions with a label count (see `labeled`).
    """
    if recipe.targets == "sampled":
        return nn.functional.cross_entropy(logits.flatten(0, 1), trials.labels.flatten())
    counted = trials.scored if recipe.loss_positions is None else trials.scored & (trials.labels != NO_LABEL)
    log_probabilities = logits[counted].log_softmax(-1)[:, trials.answers]
    exact = trials.predictive[counted].to(log_probabilities.dtype)
    return -(exact * log_probabilities).sum(-1).mean()


def training_step(
    recipe: Recipe,
    module: nn.Module,
    optimizers: Optimizers,
    step: int,
    device: str | torch.device,
    precision: Precision,
) -> float:
    """Train the module on this step's batch and return the loss in nats, before the update.

    Args:
        recipe: The recipe.
        module: The module, on `device`.
        optimizers: Its optimizers.
        step: The step.
        device: Device of the module.
        precision: Precision of matrix products.

    Raises:
        NonFinite: The loss or the gradient norm is NaN or infinite. The weights are not changed.
    """
    trials = recipe.task_at(step).sample(recipe.batch_size_at(step), seed=batch_seed(recipe, step), device=device)
    is_half = precision == "bfloat16" and not recipe.is_float32_at(step)
    # float32 sets no autocast, so it also works on devices without it.
    with torch.autocast(torch.device(device).type, torch.bfloat16) if is_half else contextlib.nullcontext():
        logits = module(trials.tokens)
    torch.clear_autocast_cache()  # only the outermost autocast does, which may be the caller's
    loss = loss_nats(recipe, logits.float(), labeled(recipe, trials, step))
    loss.backward()
    norm = float(nn.utils.clip_grad_norm_(module.parameters(), GRADIENT_CLIP))
    value = float(loss.detach())
    if not (np.isfinite(value) and np.isfinite(norm)):  # the weights are still those before this step
        raise NonFinite(
            f"the gradient norm is {norm} and the loss of {recipe.name} is {value} at step {step:,}; lower lr or "
            f"matrix_lr in the recipe."
        )
    optimizers.step(step)
    return value


def is_learned(recipe: Recipe, module: nn.Module, held_out: Trials, steps: int) -> bool:
    """Return whether a stage with `until` ends after so many steps."""
    return recipe.until is not None and steps % CHECK_EVERY == 0 and named_share(module, held_out) >= recipe.until


def _warn_unless_learned(recipe: Recipe, module: nn.Module, held_out: Trials) -> None:
    """Warn that a stage ended by its number of steps."""
    assert recipe.until is not None, "called for stages with it"
    if not (share := named_share(module, held_out)) >= recipe.until:
        warnings.warn(
            f"{recipe.name} ended after {recipe.steps:,} steps with {share:.3f} of the answers named; until is "
            f"{recipe.until}. Give it more steps, or an easier stage before it.",
            stacklevel=2,
        )


@torch.no_grad()
def named_share(module: nn.Module, trials: Trials) -> float:
    """Return the share of scored positions with a single most probable answer at which the module names that answer.

    Args:
        module: Maps tokens to logits.
        trials: Sequences with an exact predictive. NaN if no position has a single most probable answer.
    """
    exact, logits = trials.predictive[trials.scored], module(trials.tokens)[trials.scored][:, trials.answers]
    two = exact.topk(2, dim=1).values
    is_named = logits.argmax(dim=1) == exact.argmax(dim=1)
    return float(is_named[two[:, 0] - two[:, 1] > _TIE].double().mean())


@torch.no_grad()
def held_out_kl(module: nn.Module, trials: Trials) -> float:
    """Return the mean KL divergence, in bits, from the exact predictive to the module's."""
    return float(scored_kl_bits(module, trials).mean())


def scored_kl_bits(module: nn.Module, trials: Trials) -> Float64[Tensor, " scored"]:
    """Return the KL divergence, in bits, from the exact predictive to the module's at every scored position."""
    logits = module(trials.tokens)[trials.scored][:, trials.answers].double()
    return kl_bits(trials.predictive[trials.scored], logits.log_softmax(-1))


def _snapshot(recipe: Recipe, module: nn.Module, out: Path, step: int, precision: Precision) -> None:
    path = out / SNAPSHOTS / f"step-{step:07d}"
    if not path.exists():
        check_finite(recipe, module, step)
        if isinstance(module, Logits):
            with atomic_directory(path) as temporary:
                tensors = {name: own.detach().cpu().contiguous() for name, own in module.net.state_dict().items()}
                write_arrays(tensors, temporary / WEIGHTS, {"step": str(step)}, framework="pt")
            return
        card = f"# {recipe.name} at step {step}\n\nWeights: `{{weights_hash}}`\n"
        made: dict[str, Any] = {"recipe": recipe.to_dict(), "step": step, "entries": {"precision": precision}}
        save_checkpoint(path, module, recipe.model_config(), card=card, **made)


def labeled(recipe: Recipe, trials: Trials, step: int) -> Trials:
    """Return this step's batch with labels only where the recipe has a loss.

    Which later positions have a label depends only on the recipe's seed and the step, so a resumed run draws the same
    ones.

    Args:
        recipe: The recipe; without `loss_positions`, the batch is returned unchanged.
        trials: The batch.
        step: The step.

    Example:
        >>> from bayesgeom.tasks import ModularRecurrence
        >>> first = Recipe(name="first", task=ModularRecurrence(modulus=3, length=5), sizes={}, loss_positions=2)
        >>> (labeled(first, first.task.sample(1, seed=0), step=0).labels != NO_LABEL).tolist()
        [[True, True, False, False, False]]
    """
    if recipe.loss_positions is None:
        return trials
    generator = torch.Generator().manual_seed(derived_seed(recipe.seed, LABELS, step))
    is_labeled = torch.rand(len(trials), trials.n_scored, generator=generator, dtype=torch.float64) < recipe.label_share
    is_labeled[:, : recipe.loss_positions] = True
    chosen = torch.zeros_like(trials.scored)
    chosen[trials.scored] = is_labeled.flatten().to(chosen.device)
    return replace(trials, labels=trials.labels.masked_fill(~chosen, NO_LABEL))


def _start_from_shipped(recipe: Recipe, module: nn.Module) -> None:
    """Load the weights that `recipe.warm_start` names into the module.

    Args:
        recipe: A recipe with `warm_start` = "checkpoint@hash".
        module: The recipe's module, whose weights are replaced.

    Raises:
        UnknownName: There is no shipped checkpoint of that name.
        CheckpointFault: Its weights have another hash, or its architecture differs from the recipe's.
    """
    assert recipe.warm_start is not None, "called for recipes that have a warm start"
    name, digest = recipe.warm_start.split("@")
    shipped = checkpoints()
    if name not in shipped:
        raise unknown_name("shipped checkpoint", name, shipped)
    start = load_checkpoint(shipped[name])
    if start.weights_hash != digest:
        raise CheckpointFault(
            f"{recipe.name} starts from {name} with weights {digest}, but the shipped {name} has {start.weights_hash}; "
            f"restore that checkpoint, or give the recipe a new name and the new hash."
        )
    if start.config != recipe.model_config():
        raise CheckpointFault(
            f"{recipe.name} builds {recipe.model_config()}, but {name} is {start.config}. Give the recipe the sizes "
            f"of that checkpoint."
        )
    module.load_state_dict(start.module.state_dict(), strict=True)
