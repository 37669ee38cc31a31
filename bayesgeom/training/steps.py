"""Training of any module: `train` as a whole, and `Training` step by step, of which cells of scorecards are made."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, final

import torch
from torch import nn

from bayesgeom.core import InvalidArgument, checked
from bayesgeom.core.errors import quoted
from bayesgeom.core.torch_state import default_dtype
from bayesgeom.models.adapters.wrapping import from_callable
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.resolve import TaskLike, as_model, as_task
from bayesgeom.tasks.base import WindTunnel, torch_seed
from bayesgeom.training.environment import Precision, RequestedPrecision
from bayesgeom.training.loop import RECIPE, Logits, Pace, Watch, training_step
from bayesgeom.training.loop import train as trained_in
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.recipes import Recipe


@final
class Training:
    """A module in training, with the clock of its budget.

    Args:
        recipe: Task, batches and optimization; its sizes are not read.
        module: The module, which maps tokens to logits. It is trained in place.
        device: Where it is.
        precision: Precision of matrix products.
    """

    def __init__(
        self, recipe: Recipe, module: nn.Module, *, device: str = "cpu", precision: Precision = "float32"
    ) -> None:
        self.recipe, self.module, self.device, self.precision = recipe, module.train(), device, precision
        self.optimizers = Optimizers(recipe, module, precision)
        self.step, self.seconds = 0, 0.0

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.recipe.steps

    def on(self, task: WindTunnel) -> None:
        """Continue on another task, at the same place of the schedule."""
        self.recipe = replace(self.recipe, task=task)

    def advance(self) -> float:
        """Train one step, and return the loss in nats before it; `seconds` counts processor time.

        Raises:
            NonFinite: The loss or the gradient is NaN or infinite. The weights are not changed.
        """
        start = time.process_time()
        loss = training_step(self.recipe, self.module, self.optimizers, self.step, self.device, self.precision)
        self.step += 1
        self.seconds += time.process_time() - start
        return loss

    @torch.no_grad()
    def evaluated(self) -> nn.Module:
        """Return the module in the mode in which it is measured; the next step sets it back."""
        return self.module.eval()


@checked("task")
def train(
    model: nn.Module | Callable[[int, int], nn.Module],
    task: TaskLike,
    *,
    steps: int = 2_000,
    lr: float = 1e-3,
    batch_size: int = 64,
    weight_decay: float = 0.0,
    targets: Literal["sampled", "exact"] = "sampled",
    until: float | None = None,
    seed: int = 0,
    snapshots: int = 0,
    monitor: Watch | None = None,
    out: str | Path | None = None,
    precision: RequestedPrecision = "float32",
) -> Model:
    """Train any network on new sequences of a task, and return it as `diagnose` takes it.

    AdamW with a linear warm-up over a tenth of the steps, then half a cosine to zero; the gradient norm is clipped at
    1. The loss is the cross-entropy over all ids at the scored positions.

    Args:
        model: A module from ids to logits, which is trained in place, or `make(d_vocab, n_ctx)`, which returns one.
        task: The task, or its text as on the command line.
        steps: Number of steps.
        lr: Peak learning rate.
        batch_size: Sequences of a step.
        weight_decay: Weight decay; it bounds the logits, and so how certain the answers can be.
        targets: "sampled": labels drawn by the task. "exact": the posterior as soft labels.
        until: Share of held-out answers named at which the training ends early. Default: all steps.
        seed: Seed of the sequences, and of the weights that `make` draws.
        snapshots: Number of snapshots at log-spaced steps, in `out`.
        monitor: Called with the number of each step, as `bayesgeom.monitor.Monitor(module, task)`.
        out: Directory of state, log and snapshots. A run that was killed there continues to the same weights.
        precision: Precision of matrix products.

    Raises:
        InvalidArgument: An argument is out of range, or `out` is missing where snapshots are wanted.
        CheckpointFault: `out` holds a run with other arguments or other initial weights.
        NonFinite: Loss, gradients or weights are NaN or infinite.

    Example:
        >>> import bayesgeom
        >>> config = bayesgeom.TransformerConfig(d_vocab=2, n_ctx=8, n_layers=2, n_heads=2, d_model=8, d_mlp=16)
        >>> bayesgeom.train(config.build(seed=0), "dice:length=8", steps=3)
        HookedModel(transformer, 2 layers, 2 heads, d_model 8, 1.12k parameters)
    """
    chosen = as_task(task, trained=None)
    if not isinstance(chosen, WindTunnel):
        raise InvalidArgument(f"{quoted(chosen)} has words, not ids: train on a task such as dice or hmm.")
    if snapshots and out is None:
        raise InvalidArgument("snapshots need a directory: pass out=.")
    net: Any = model
    if not isinstance(model, nn.Module):
        with default_dtype(torch.float32), torch.random.fork_rng(devices=()):
            torch.manual_seed(torch_seed(seed))
            net = model(chosen.d_vocab, chosen.n_pos)
    if not isinstance(net, nn.Module):
        raise InvalidArgument(f"model must be a module, or return one from (d_vocab, n_ctx); got {quoted(net)}.")
    recipe = Recipe(
        name=type(net).__name__,
        task=chosen,
        sizes={"initial_weights": weights_hash(net.state_dict())},
        targets=targets,
        optimizer="adamw",
        lr=lr,
        weight_decay=weight_decay,
        warmup=steps // 10,
        steps=steps,
        batch_size=batch_size,
        late_batch_size=batch_size,
        seed=seed,
        snapshots=snapshots,
        until=until,
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()) if out is None else out)
        settings: dict[str, Any] = {"precision": precision, "watch": monitor, "pace": Pace(quiet=out is None)}
        trained_in(recipe, folder, resume=(folder / RECIPE).exists(), own=net, **settings)
    return model_of(net.eval())


def model_of(net: nn.Module) -> Model:
    """Return the model of a network: with its sites where they are known, else its predictions alone."""
    try:
        return as_model(net)
    except InvalidArgument:
        return from_callable(Logits(net))
