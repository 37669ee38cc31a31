"""Training of any module: `train` as a whole, and `Training` step by step, of which cells of scorecards are made."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypedDict, Unpack, final, get_type_hints

import torch
from torch import nn

from bayesgeom.core import InvalidArgument, checked
from bayesgeom.core.errors import check_known, quoted
from bayesgeom.core.plugins import Contained
from bayesgeom.core.torch_state import default_dtype
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.resolve import TaskLike, as_model, as_task
from bayesgeom.tasks.base import WindTunnel, torch_seed
from bayesgeom.training.environment import Precision, RequestedPrecision
from bayesgeom.training.loop import RECIPE, Pace, Watch, training_step
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
        self.recipe, self.module, self.device, self.precision = recipe, module, device, precision
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
        self.module.train()
        loss = training_step(self.recipe, self.module, self.optimizers, self.step, self.device, self.precision)
        self.step += 1
        self.seconds += time.process_time() - start
        return loss

    def evaluated(self) -> nn.Module:
        """Return the module in the mode in which it is measured; the next step sets it back."""
        return self.module.eval()


class TrainSettings(TypedDict, total=False):
    """Further settings of `train`."""

    batch_size: int
    weight_decay: float
    targets: Literal["sampled", "exact"]
    until: float | None
    snapshots: int
    precision: RequestedPrecision
    monitor: Watch


_OF_RECIPES = frozenset({"batch_size", "weight_decay", "targets", "until", "snapshots"})  # fields of a recipe


@checked("task")
def train(
    model: nn.Module | Callable[[int, int], nn.Module],
    task: TaskLike,
    *,
    steps: int = 2_000,
    lr: float = 1e-3,
    seed: int = 0,
    out: str | Path | None = None,
    **further: Unpack[TrainSettings],
) -> Model:
    """Train any network on new sequences of a task, and return it as `diagnose` takes it.

    AdamW with a linear warm-up over a tenth of the steps, then half a cosine to zero; the gradient norm is clipped at
    1. The loss is the cross-entropy over all ids at the scored positions.

    Args:
        model: A module from ids to logits, which is trained in place, or `make(d_vocab, n_ctx)`, which returns one.
        task: The task, or its text as on the command line.
        steps: Number of steps.
        lr: Peak learning rate.
        seed: Seed of the sequences, and of the weights that `make` draws.
        out: Directory of state, log and snapshots. A run that was killed there continues to the same weights.
        **further: `batch_size` (64), `weight_decay` (0) and `targets` ("sampled", or "exact" for the posterior as soft
            labels); `until`, the share of held-out answers named at which the training ends early; `snapshots`, a
            number of log-spaced ones in `out`; `precision` of matrix products ("float32"); and `monitor`, which is
            called with each step, as `bayesgeom.monitor.Monitor(module, task)`.

    Returns:
        The trained model, with its sites where they are known.

    Raises:
        InvalidArgument: An argument is out of range, or `out` is missing where snapshots are wanted.
        CheckpointFault: `out` holds a run with other arguments or other initial weights.
        NonFinite: Loss, gradients or weights are NaN or infinite.

    Example:
        >>> import bayesgeom
        >>> config = bayesgeom.TransformerConfig(d_vocab=2, n_ctx=8, n_layers=2, n_heads=2, d_model=8, d_mlp=16)
        >>> bayesgeom.train(config.build(seed=0), "dice:length=8", steps=3)
        HookedModel(transformer, 2 layers, 2 heads, d_model 8, 1.19k parameters)
    """
    chosen = as_task(task, trained=None)
    if not isinstance(chosen, WindTunnel):
        raise InvalidArgument(f"{quoted(chosen)} has words, not ids: train on a task such as dice or hmm.")
    check_known("train", further, get_type_hints(TrainSettings))
    if further.get("snapshots") and out is None:
        raise InvalidArgument("snapshots need a directory: pass out=.")
    net = model if isinstance(model, nn.Module) else built(model, chosen.d_vocab, chosen.n_pos, seed=seed)
    recipe = _recipe_of(net, chosen, steps=steps, lr=lr, seed=seed, further=further)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()) if out is None else out)
        pace = Pace(quiet=out is None, watch=further.get("monitor"))
        resume, precision = (folder / RECIPE).exists(), further.get("precision", "float32")
        trained_in(recipe, folder, resume=resume, precision=precision, own=net, pace=pace)
    return as_model(net.eval())


def built(make: Callable[[int, int], Any], d_vocab: int, n_ctx: int, *, seed: int) -> nn.Module:
    """Build a network from a seed, in float32, without changing the random state of the process.

    Raises:
        InvalidArgument: The function does not take two integers, fails, or does not return a module with weights.
    """
    number = torch_seed(seed)
    with default_dtype(torch.float32), torch.random.fork_rng(devices=()), Contained() as making:
        torch.manual_seed(number)
        net: Any = make(d_vocab, n_ctx)
    if making.error is not None:
        raise InvalidArgument(f"make({d_vocab}, {n_ctx}) failed: {making.fault.rstrip('.')}.") from making.error
    if not isinstance(net, nn.Module) or not any(parameter.requires_grad for parameter in net.parameters()):
        raise InvalidArgument(f"make({d_vocab}, {n_ctx}) must return a module with weights, got {quoted(net)}.")
    return net


def _recipe_of(
    net: nn.Module, task: WindTunnel, *, steps: int, lr: float, seed: int, further: Mapping[str, Any]
) -> Recipe:
    """Return the recipe of a network's training; its hash of the initial weights tells runs apart."""
    return Recipe(
        name=type(net).__name__,
        task=task,
        sizes={"initial_weights": weights_hash(net.state_dict())},
        optimizer="adamw",
        lr=lr,
        warmup=steps // 10,
        steps=steps,
        late_batch_size=further.get("batch_size", 64),
        seed=seed,
        **{"snapshots": 0} | {name: value for name, value in further.items() if name in _OF_RECIPES},
    )
