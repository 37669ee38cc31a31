"""The training loop: fresh data every step, atomic state, and resumption to the same weights.

Step s draws its batch from a seed derived from (recipe seed, s) alone, so a run that was stopped anywhere, also by
SIGKILL, repeats at most the steps since its last state and ends at the weights of an uninterrupted one.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesgeom.allocator import keep_freed_memory
from bayesgeom.errors import CheckpointFault, InvalidArgument, NonFinite
from bayesgeom.files import apart, file_aside, read_safetensors
from bayesgeom.information import kl_bits
from bayesgeom.models.checkpoint import save_checkpoint, write_tensors
from bayesgeom.progress import bar
from bayesgeom.tasks.base import derived_seed
from bayesgeom.training.optimisers import Optimisers
from bayesgeom.training.recipe import Recipe, deciding
from bayesgeom.training.warm_start import start_from_shipped
from bayesgeom.trials import Trials

STATE, LOG, RECIPE, SNAPSHOTS, BEFORE = "state.safetensors", "log.jsonl", "recipe.json", "snapshots", "before"
GRADIENT_CLIP = 1.0
HELD_OUT = 256
DATA, VALIDATION = 0, 1  # branches of the recipe's seed


@final
@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often a run reports and saves; none of it changes the weights."""

    log_every: int = 100
    save_seconds: float = 60.0
    quiet: bool = False


def train(
    recipe: Recipe, out: Path, *, resume: bool = False, device: str | torch.device = "cpu", pace: Pace = Pace()
) -> nn.Module:
    """Train `recipe` in the directory `out` and return the module; its state, log and snapshots stay there.

    **Raises** `InvalidArgument` when `out` already holds a run and `resume` is not set, `CheckpointFault` when it
    holds another recipe's, `NonFinite` when the loss stops being a number.
    """
    keep_freed_memory()
    _prepare(recipe, out, resume)
    has_state = resume and (out / STATE).exists()
    module = recipe.model_config().build(seed=recipe.seed).to(device)
    if recipe.after is not None and not has_state:
        before = out / BEFORE
        earlier = train(recipe.after, before, resume=(before / RECIPE).exists(), device=device, pace=pace)
        module.load_state_dict(earlier.state_dict())
    elif recipe.warm_start is not None and not has_state:
        start_from_shipped(recipe, module)
    module.train()
    optimisers = Optimisers(recipe, module)
    start = _restore(out / STATE, module, optimisers) if has_state else 0
    _cut_log(out / LOG, start)
    held_out = recipe.task.sample(HELD_OUT, seed=held_out_seed(recipe), device=device)
    due = snapshot_steps(recipe)
    saved_at = time.monotonic()
    progress = bar(
        range(start, recipe.steps),
        initial=start,
        total=recipe.steps,
        desc=recipe.name,
        is_quiet=pace.quiet,
    )
    for step in progress:
        if step in due:
            _snapshot(recipe, module, out, step)
        loss = _step(recipe, module, optimisers, step, device)
        if (step + 1) % pace.log_every == 0 or step + 1 == recipe.steps:
            line = {"step": step + 1, "loss_nats": loss, "kl_bits": _held_out_kl(module, held_out)}
            _log(out, line)
            progress.set_postfix(loss=f"{loss:.4f}", kl_bits=f"{line['kl_bits']:.2e}")
        if time.monotonic() - saved_at > pace.save_seconds:
            _save(out / STATE, module, optimisers, step + 1)
            saved_at = time.monotonic()
    _save(out / STATE, module, optimisers, recipe.steps)
    _snapshot(recipe, module, out, recipe.steps)
    return module.eval()


def check_run(recipe: Recipe, out: Path) -> None:
    """**Raises** `CheckpointFault` where `out` holds a run of another recipe; where it holds none, all is well."""
    file = out / RECIPE
    if file.exists() and (found := apart(deciding(json.loads(file.read_text())), deciding(recipe.to_dict()))):
        raise CheckpointFault(
            f"{out} holds a run of another recipe than {recipe.name!r} ({found}). Ask for what is there, with the "
            f"options that it was begun with; else name another directory, or move that one away."
        )


def snapshot_steps(recipe: Recipe) -> frozenset[int]:
    """Steps before which a snapshot is taken: 0, then log-spaced from 10; the final step is always added."""
    if recipe.snapshots == 0:
        return frozenset()
    spaced = np.geomspace(min(10, recipe.steps), recipe.steps, recipe.snapshots).round().astype(int)
    return frozenset({0, *(int(step) for step in spaced)} - {recipe.steps})


def batch_seed(recipe: Recipe, step: int) -> int:
    """The seed of one step's batch: a function of the recipe's seed and the step alone.

    The formula stays as it is: every shipped checkpoint's training data follow from it.
    """
    return int(np.random.SeedSequence([recipe.seed, DATA, step]).generate_state(1, np.uint64)[0] >> 1)


def held_out_seed(recipe: Recipe) -> int:
    """The seed of the trials whose KL a run reports: no batch's, and no block's of any stream."""
    return derived_seed(recipe.seed, VALIDATION, 0)


def loss_nats(recipe: Recipe, logits: Float[Tensor, "batch pos d_vocab"], trials: Trials) -> Float[Tensor, ""]:
    """Cross-entropy over all ids at the scored positions, against realised answers or the exact predictive."""
    if recipe.targets == "sampled":
        return nn.functional.cross_entropy(logits.flatten(0, 1), trials.realised.flatten())
    log_probabilities = logits[trials.scored].log_softmax(-1)[:, trials.answers]
    exact = trials.predictive[trials.scored].to(log_probabilities.dtype)
    return -(exact * log_probabilities).sum(-1).mean()


def _step(recipe: Recipe, module: nn.Module, optimisers: Optimisers, step: int, device: str | torch.device) -> float:
    trials = recipe.task_at(step).sample(recipe.batch_size_at(step), seed=batch_seed(recipe, step), device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=not recipe.is_float32_at(step)):
        logits = module(trials.tokens)
    loss = loss_nats(recipe, logits.float(), trials)
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), GRADIENT_CLIP)
    optimisers.step(step)
    value = float(loss.detach())
    if not np.isfinite(value):
        raise NonFinite(f"the loss of {recipe.name} is {value} at step {step}; lower lr or matrix_lr in the recipe.")
    return value


@torch.no_grad()
def _held_out_kl(module: nn.Module, trials: Trials) -> float:
    logits = module(trials.tokens)[trials.scored][:, trials.answers].double()
    return float(kl_bits(trials.predictive[trials.scored], logits.log_softmax(-1)).mean())


def _prepare(recipe: Recipe, out: Path, resume: bool) -> None:
    if (out / RECIPE).exists():
        if not resume:
            raise InvalidArgument(
                f"{out} already holds a run: go on by --resume (Python: resume=True), or name another directory."
            )
        check_run(recipe, out)
        return
    if resume:
        raise InvalidArgument(f"nothing to resume: {out} holds no run.")
    with file_aside(out / RECIPE) as aside:
        aside.write_text(json.dumps(recipe.to_dict(), indent=2) + "\n")


def _save(path: Path, module: nn.Module, optimisers: Optimisers, step: int) -> None:
    weights = {f"weights.{name}": tensor for name, tensor in module.state_dict().items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in (weights | optimisers.state()).items()}
    with file_aside(path) as aside:
        write_tensors(tensors, aside, metadata={"step": str(step)})


def _restore(path: Path, module: nn.Module, optimisers: Optimisers) -> int:
    tensors, metadata = read_safetensors(path, framework="pt")
    step = int(metadata["step"])
    weights = {name.removeprefix("weights."): t for name, t in tensors.items() if name.startswith("weights.")}
    module.load_state_dict(weights, strict=True)
    optimisers.restore({name: t for name, t in tensors.items() if name.startswith("optimiser.")})
    return step


def _snapshot(recipe: Recipe, module: nn.Module, out: Path, step: int) -> None:
    path = out / SNAPSHOTS / f"step-{step:07d}"
    if not path.exists():
        card = f"# {recipe.name} at step {step}\n\nA snapshot of training; weights {{weights_hash}}.\n"
        save_checkpoint(path, module, recipe.model_config(), recipe=recipe.to_dict(), step=step, card=card)


def _cut_log(path: Path, step: int) -> None:
    """Drop the lines of steps that will be run again."""
    if path.exists():
        lines = [line for line in path.read_text().splitlines(keepends=True) if json.loads(line)["step"] <= step]
        with file_aside(path) as aside:
            aside.write_text("".join(lines))


def _log(out: Path, line: dict[str, Any]) -> None:
    with (out / LOG).open("a") as file:
        file.write(json.dumps(line) + "\n")
