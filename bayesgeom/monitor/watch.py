"""`Monitor` for any training loop, and `trainer_callback` for `transformers.Trainer`.

watch = Monitor(module, task, every=100)
for step in range(steps):
    ...
    optimizer.step()
    watch(step)
    if watch.should_stop:
        break
watch.save("runs/watched")
"""

import logging
import math
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Shaped
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten  # torch has no public one

from bayesgeom.core import CheckpointFault, InvalidArgument, NoCopy, check_argument, check_types, checked
from bayesgeom.core.errors import quoted
from bayesgeom.core.files import atomic_file, check_directory, read_safetensors, write_arrays
from bayesgeom.core.torch_state import check_default_device, with_gradients
from bayesgeom.measurements.base import known
from bayesgeom.models.base import Model, Reattachable, provenance
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.resolve import TaskLike, as_model, task_of
from bayesgeom.monitor.report import (
    LEVELS,
    UNTRAINED,
    Measures,
    MonitorReport,
    chance_levels,
    measured,
    undisturbed,
)
from bayesgeom.monitor.rules import Event, Rules, Thresholds
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Baseline, Estimate, mean_estimate
from bayesgeom.report.report import with_provenance
from bayesgeom.report.storage import METRICS as TABLE
from bayesgeom.tasks.base import Branch, check_count, checked_seed, derived_seed, torch_seed

FILE = "last_good.safetensors"
_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."
_SETTINGS = ("params", "lr", "betas", "momentum", "weight_decay")  # of a group of parameters; they follow a schedule
_STORABLE = (Tensor, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

Tensors = dict[str, Shaped[Tensor, "..."]]
EVERY = 100
THRESHOLDS = Thresholds()
_LOG = logging.getLogger("bayesgeom.monitor")


@final
@dataclass(frozen=True, kw_only=True)
class Response:
    """The response to degeneration. Weights or KL that are not finite always trigger the action.

    Args:
        action: "warn" logs a warning; "stop" also sets `should_stop`; "roll_back" restores the last good state, up to
            `most` times, and then stops.
        on: The measurements whose degeneration triggers the action. Low orthogonality alone is not a problem.
        optimizer: Optimizer whose state is stored and restored with the weights.
        folder: Folder for the stored state. None: memory.
        most: Maximum number of rollbacks.

    Raises:
        InvalidArgument: An argument is invalid.

    Example:
        >>> from bayesgeom.monitor import Response
        >>> Response(action="stop").action
        'stop'
    """

    action: Literal["warn", "stop", "roll_back"] = "warn"
    on: str | Collection[str] = "kl_bits"
    optimizer: torch.optim.Optimizer | None = None
    folder: str | Path | None = None
    most: int = 3

    def __post_init__(self) -> None:
        check_types(self)
        known = {"kl_bits", "key_orthogonality"}
        if not self.acted_on <= known or self.most < 1:
            raise InvalidArgument(
                f"`on` must be one or more of {', '.join(sorted(known))}, and `most` at least 1; got on={self.on!r}, "
                f"most={self.most}."
            )

    @property
    def acted_on(self) -> frozenset[str]:
        """The measurements whose degeneration triggers the action, as a set."""
        return frozenset({self.on} if isinstance(self.on, str) else self.on)


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a monitor.

    Args:
        n: Number of fixed sequences.
        seed: Seed of the sequences and intervals.
        untrained: Also measure an untrained network of the same architecture, as a baseline. Where none can be made,
            a warning is logged.
        out: Directory whose metrics.parquet is updated at every measurement.

    Raises:
        InvalidArgument: An argument has the wrong type.

    Example:
        >>> from bayesgeom.monitor import Settings
        >>> Settings(n=64).seed
        0
    """

    n: int = 32
    seed: int = 0
    untrained: bool = True
    out: str | Path | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_count(self.n)
        checked_seed(self.seed)


@final
class Monitor:
    """Measures a model in training: call it with the step after the optimizer's step.

    Events are logged to "bayesgeom.monitor" and appended to `events`. The model is not changed, except by a rollback.

    Args:
        model: The model or module in training.
        task: The task. None: the model's own.
        every: Steps between measurements.
        settings: Sequences, seed and output.
        thresholds: Thresholds of the measurements.
        response: Response to degeneration.

    Raises:
        InvalidArgument: `every` or n is below 1, or the task is not known.
        TaskMismatch: Ids or length do not fit the model.
        OutputFault: `settings.out` cannot be written.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom.monitor import Monitor, Settings
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> watch = Monitor(config.build(seed=0), task, every=10, settings=Settings(n=8, untrained=False))
        >>> watch(10)  # events of the measurement after step 10
        ()
        >>> watch.should_stop
        False
    """

    @checked("task")
    def __init__(
        self,
        model: Model | nn.Module,
        task: TaskLike | None = None,
        *,
        every: int = EVERY,
        settings: Settings = Settings(),
        thresholds: Thresholds = THRESHOLDS,
        response: Response = Response(),
    ) -> None:
        if every < 1:
            raise InvalidArgument(f"every must be at least 1; got {every}.")
        if settings.out is not None:
            check_directory(Path(settings.out))
        self.every, self.settings, self.response = every, settings, response
        with undisturbed(model if isinstance(model, nn.Module) else model.module):
            wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
            self.model: Model = as_model(model.module if isinstance(model, wrappers) else model)
            self.task = task_of(self.model, task)
            self._trials = self.task.sample(
                settings.n, seed=derived_seed(settings.seed, Branch.TRIALS), device=self.model.spec.device
            )
            self.model.check_fits(self._trials)
            self.untrained = dict.fromkeys(LEVELS, math.nan)
            if settings.untrained:
                try:
                    untrained = self.model.untrained_copy(derived_seed(settings.seed, Branch.UNTRAINED))
                    self.untrained = measured(untrained, self._trials, seed=settings.seed).summary()
                except NoCopy as reason:
                    _LOG.warning("%s", reason)
            self.chance = chance_levels(self.model, self._trials, seed=torch_seed(settings.seed))
        self.events: list[Event] = []
        self.should_stop = False
        self._rules = Rules(thresholds)
        self._good = GoodState(self.model.module, response.optimizer, response.folder)
        self._steps, self._measures = list[int](), list[Measures]()
        self._rollbacks, self._was_broken, self._digest = 0, False, ""

    def __call__(self, step: int) -> tuple[Event, ...]:
        """Measure if `step` is a multiple of `every`, and return the events.

        Raises:
            InvalidArgument: `step` is no integer.
        """
        check_argument("step", step, int)
        return self.measure(step) if step % self.every == 0 else ()

    @with_gradients  # of a state that is put back under inference_mode, no optimizer could take a step
    def measure(self, step: int) -> tuple[Event, ...]:
        """Measure now and return the events.

        Args:
            step: Step of the training, for tables and events.

        Raises:
            InvalidArgument: `step` is no integer, torch's default device is not the CPU, or a rollback could not
                restore the state of the optimizer.
        """
        check_argument("step", step, int)
        check_default_device()
        found = measured(self.model, self._trials, seed=self.settings.seed)
        self._steps.append(step)
        self._measures.append(found)
        self._digest = self.model.digest() if isinstance(self.model, Reattachable) else self.model.spec.weights_hash
        bad = self._good.non_finite()
        if self._trials.has_posterior:
            bad["kl_bits"] = int((~np.isfinite(found.kl_bits)).sum())
        broken = [
            Event(step=step, kind="not finite", metric=metric, value=float(count), threshold=0.0)
            for metric, count in bad.items()
            if count
        ][:1]
        if broken:  # other rules do not apply; report once until the numbers are finite again
            noticed = [] if self._was_broken else broken
        else:
            chance = {**self.chance, "separation": found.shuffled_separation}
            noticed = self._rules.update(step, found.summary(), found.kl_bits, chance)
        events = (*noticed, *self._responded(step, broken or noticed, found))
        self._was_broken = bool(broken)
        for event in events:
            _LOG.log(logging.WARNING if event.is_warning else logging.INFO, "%s", event)
        self.events += events
        if self.settings.out is not None:
            with atomic_file(Path(self.settings.out) / TABLE) as temporary:
                self.diagnosis().to_pandas().to_parquet(temporary)
        return events

    @property
    def has_measured(self) -> bool:
        """Whether there is a measurement."""
        return bool(self._steps)

    def report(self) -> MonitorReport:
        """Return the report of all measurements so far. Its provenance has the hash of the weights measured last.

        Raises:
            InvalidArgument: There is no measurement yet.
        """
        if not self._steps:
            raise InvalidArgument("nothing has been measured yet: call the monitor with a step first.")
        seed = derived_seed(self.settings.seed, Branch.RESAMPLING)
        kl = np.stack([own.kl_bits for own in self._measures], axis=1)
        n, summaries = len(kl), [own.summary() for own in self._measures]
        at = {**self.chance, "separation": np.array([own.shuffled_separation for own in self._measures])}

        def levels(metric: str) -> tuple[Baseline, ...]:
            untrained = Baseline.of("baseline", UNTRAINED, self.untrained[metric])
            return known(Baseline.of(*LEVELS[metric], at[metric]), untrained)

        estimates: dict[str, Any] = {
            name: Estimate.of([own[name] for own in summaries], n=n, baselines=levels(name)) for name in LEVELS
        }
        estimates["kl_bits"] = mean_estimate(kl, seed=seed, baselines=levels("kl_bits"))
        found = MonitorReport(
            **estimates,
            steps=tuple(str(step) for step in self._steps),
            key_orthogonality_by_head=np.stack([own.key_orthogonality for own in self._measures]),
            coverage_by_head=np.stack([own.coverage for own in self._measures]),
            attention_entropy_bits_by_head=np.stack([own.attention_entropy_bits for own in self._measures]),
            rules=tuple(asdict(self._rules.thresholds)),
            threshold=np.array([*asdict(self._rules.thresholds).values()], dtype=np.float64),
            events=tuple(event.kind for event in self.events),
            event_metrics=tuple(event.metric for event in self.events),
            event_step=np.array([event.step for event in self.events], dtype=np.int64),
            event_value=np.array([event.value for event in self.events], dtype=np.float64),
            n=n,
        )
        arguments = {"n": self.settings.n, "seed": self.settings.seed, "every": self.every}
        source = provenance(self.model, self.task, arguments)
        return with_provenance(found, {**source, "model": {**source["model"], "weights_hash": self._digest}})

    def diagnosis(self) -> Diagnosis:
        """Return the report as a diagnosis."""
        return Diagnosis.of(self.report())

    def save(self, path: str | Path) -> None:
        """Write the report directory: report.json, arrays.safetensors, metrics.parquet, report.html.

        Args:
            path: The directory. A saved report that is there already is replaced.
        """
        self.diagnosis().save(path)

    def _responded(self, step: int, noticed: list[Event], found: Measures) -> list[Event]:
        """Store a good state, or respond to a bad one."""
        response = self.response
        acted_on = {("degenerated", metric) for metric in response.acted_on}
        bad = [own for own in noticed if own.kind == "not finite" or (own.kind, own.metric) in acted_on]
        if response.action == "roll_back" and not bad and self._rules.is_healthy(found.kl_bits, response.acted_on):
            self._good.keep(step)
            self._rules.keep()
        if not bad or response.action == "warn":
            return []
        cause = bad[0]
        if response.action == "roll_back" and self._good.step is not None and self._rollbacks < response.most:
            self._rollbacks += 1
            back = self._good.put_back()
            self._rules.put_back()
            return [replace(cause, kind="rolled back", value=float(back), chance=math.nan)]
        self.should_stop = True
        return [replace(cause, kind="stopped", chance=math.nan)]


@runtime_checkable
class Watching(Protocol):
    """A `transformers.TrainerCallback` that holds a monitor once training has begun."""

    monitor: Monitor | None


@checked()
def trainer_callback(
    task: TaskLike,
    *,
    every: int = EVERY,
    settings: Settings = Settings(),
    thresholds: Thresholds = THRESHOLDS,
    response: Response = Response(),
) -> Watching:
    """Return a callback for `transformers.Trainer(callbacks=[…])` that monitors its model on this task.

    A rollback also restores the trainer's optimizer. With `settings.out` the full report is written at the end.

    Args:
        task: The task.
        every: Steps between measurements.
        settings: As in `Monitor`.
        thresholds: As in `Monitor`.
        response: As in `Monitor`; its optimizer is the trainer's by default.

    Returns:
        A `transformers.TrainerCallback`; its `monitor` is None until training begins.

    Raises:
        ImportError: `transformers` is not installed.

    Example:
        >>> from bayesgeom.monitor import trainer_callback
        >>> trainer_callback("bijection").monitor is None
        True
    """
    from bayesgeom.models.config import quiet

    with quiet():
        from transformers import TrainerCallback

    @final
    class Watch(TrainerCallback):
        """Calls the monitor after each step, and stops the training if requested."""

        def __init__(self) -> None:
            self.monitor: Monitor | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            own = replace(response, optimizer=response.optimizer or given.get("optimizer"))
            self.monitor = Monitor(
                given["model"], task, every=every, settings=settings, thresholds=thresholds, response=own
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            assert self.monitor is not None, "training has begun"
            self.monitor(state.global_step)
            control.should_training_stop |= self.monitor.should_stop

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.monitor is not None and settings.out is not None and self.monitor.has_measured:
                self.monitor.save(settings.out)

    return Watch()


@final
class GoodState:
    """Stores one state and restores it; in memory if `folder` is None.

    Learning rates, betas, momentum and weight decay are not restored: they follow their schedule.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer | None, folder: str | Path | None) -> None:
        self.step: int | None = None
        self._module, self._optimizer, self._folder = module, optimizer, None if folder is None else Path(folder)
        self._stored: Tensors = {}
        self._leaves, self._structure = tree_flatten({})  # of the optimizer's state; a tensor's leaf is its device
        self._digest = ""  # of the stored file, which another process may change
        self._endless = frozenset(name for name, value in module.named_buffers() if non_finite([value]))

    def non_finite(self) -> dict[str, int]:
        """Return the number of NaN or infinite entries of the weights, and of the optimizer's state.

        Buffers that held such entries from the start, such as a mask of −∞, do not count.
        """
        state = self._module.state_dict()
        weights = (value for name, value in state.items() if name not in self._endless)
        entries = [] if self._optimizer is None else tree_leaves(self._optimizer.state_dict()["state"])
        return {"weights": non_finite(weights), "optimizer": non_finite(entries)}

    def keep(self, step: int) -> None:
        """Store the current state and replace the previous one. A state with NaN or infinite entries is not stored.

        Raises:
            InvalidArgument: The optimizer's state contains objects.
            OutputFault: The folder cannot be written.
        """
        if any(self.non_finite().values()):
            return
        tensors = {_WEIGHTS + name: value for name, value in self._module.state_dict().items()}
        leaves, structure = list[Any](), self._structure
        if self._optimizer is not None:
            state = self._optimizer.state_dict()
            for leaf in tree_leaves({**state, "param_groups": ()}):
                if not isinstance(leaf, _STORABLE):  # its copy might refer to copies of the weights
                    raise InvalidArgument(
                        f"the state of {type(self._optimizer).__name__} contains {quoted(leaf)}, and a rollback "
                        f"restores only tensors, numbers and text. Leave out optimizer, or use another action."
                    )
            # Without `is_leaf`, a torch.Size would come back as a tuple.
            leaves, structure = tree_flatten(state, is_leaf=lambda leaf: isinstance(leaf, torch.Size))
            tensors |= {f"{_OPTIMIZER}{place}": leaf for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        # Copies: training modifies weights in place, and safetensors does not support shared memory.
        copies = {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
        if self._folder is None:
            self._stored = copies
        else:
            with atomic_file(self._folder / FILE) as temporary:
                on_cpu = {name: value.cpu() for name, value in copies.items()}
                write_arrays(on_cpu, temporary, {"step": str(step)}, framework="pt")
            self._digest = weights_hash(on_cpu)
        self._leaves = [leaf.device if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.step, self._structure = step, structure

    @torch.no_grad()
    def put_back(self) -> int:
        """Restore the stored state in place and return its step.

        Raises:
            InvalidArgument: No state was stored.
            CheckpointFault: Its file cannot be read, or holds another state.
        """
        if self.step is None:
            raise InvalidArgument("no good state has been stored yet, so there is nothing to restore.")
        tensors = self._stored if self._folder is None else self._read(self._folder / FILE)
        weights = {name.removeprefix(_WEIGHTS): t for name, t in tensors.items() if name.startswith(_WEIGHTS)}
        self._module.load_state_dict(weights, strict=True)
        if self._optimizer is not None:
            leaves = [
                tensors[name].to(leaf, copy=True) if (name := f"{_OPTIMIZER}{place}") in tensors else leaf
                for place, leaf in enumerate(self._leaves)
            ]
            restore_optimizer(self._optimizer, tree_unflatten(leaves, self._structure))
        return self.step

    def _read(self, path: Path) -> Tensors:
        try:
            found: Tensors = read_safetensors(path, framework="pt")[0]
        except (OSError, SafetensorError) as error:
            raise CheckpointFault(
                f"{path}, the last good state, cannot be read back: {error}. Restart from a checkpoint."
            ) from error
        if weights_hash(found) != self._digest:
            raise CheckpointFault(
                f"{path}, the last good state, was changed after it was stored, or another monitor writes there. Name "
                f"a folder for each monitor."
            )
        return found


def restore_optimizer(optimizer: torch.optim.Optimizer, stored: dict[str, Any]) -> None:
    """Restore a `state_dict` without its copy and its settings that follow a schedule."""
    groups = optimizer.state_dict()["param_groups"]
    for group, former in zip(groups, stored["param_groups"], strict=False):  # the training may have added groups
        group.update({key: value for key, value in former.items() if key not in _SETTINGS})
    optimizer.load_state_dict({**stored, "state": {}, "param_groups": groups})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, entries in stored["state"].items():  # `load_state_dict` would cast them to the dtype of the parameter
        optimizer.state[parameters[key] if isinstance(key, int) else key] = entries


def non_finite(values: Iterable[object]) -> int:
    """Return the number of NaN or infinite entries of the tensors and numbers among these values."""
    tensors = (torch.as_tensor(value).detach() for value in values if isinstance(value, Tensor | float))
    return sum(tensor.numel() - int(tensor.isfinite().sum()) for tensor in tensors if tensor.is_floating_point())
