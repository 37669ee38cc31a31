"""Training runs: snapshots in order of step, from a run's directory, a packed training, checkpoints or weights."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from bayesgeom.core import CheckpointFault, InvalidArgument, UnknownName, check_types
from bayesgeom.core.errors import quoted, suggestion
from bayesgeom.core.files import differences, read_safetensors
from bayesgeom.core.text import count_text
from bayesgeom.models.base import Model, Reattachable
from bayesgeom.models.checkpoint import load_checkpoint, weights_hash
from bayesgeom.models.checkpoint_files import CONFIG, Named, checkpoints, read_description
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.resolve import TaskLike, as_model, from_checkpoint, scored_task_of
from bayesgeom.tasks.base import WindTunnel, task_from_config
from bayesgeom.training.formation import load_packed, snapshot_paths
from bayesgeom.training.packed import FORMATION, formations, read_formation
from bayesgeom.training.recipes import deciding, recipe_from_dict

Source = str | Path
State = Mapping[str, Tensor] | str | Path


@final
@dataclass(frozen=True, eq=False)
class Snapshots:
    """Snapshots of a training of your own, by step.

    Args:
        states: A copy of the `state_dict`, or the path of one in a .safetensors file, by step.
        make: Returns a new module of the architecture, or a new `bayesgeom.wrap` of one.
        task: The task, which has an exact posterior.

    Raises:
        InvalidArgument: An argument has the wrong type.

    Example:
        >>> import bayesgeom
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> states = {step: config.build(seed=step).state_dict() for step in (0, 100)}
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> own = Snapshots(states, lambda: config.build(seed=0), task)
        >>> bayesgeom.training_dynamics(own, n=8)["dynamics"].steps
        ('0', '100')
    """

    states: Mapping[int, State]
    make: Callable[[], Any]
    task: TaskLike

    def __post_init__(self) -> None:
        check_types(self)

    def weights(self, step: int) -> Mapping[str, Tensor]:
        """Return the weights of a step.

        Raises:
            CheckpointFault: The file cannot be read.
        """
        state = self.states[step]
        if not isinstance(state, (str, Path)):
            return state
        try:
            return read_safetensors(Path(state), framework="pt")[0]
        except (OSError, SafetensorError) as error:
            raise CheckpointFault(
                f"{state}, of step {step:,}, is no .safetensors file ({error}). Of another file, pass the state_dict "
                f"itself, such as that of torch.load(path, weights_only=True)."
            ) from error

    def load(self, step: int, *, device: str | torch.device = "cpu") -> Model:
        """Return the model of a step.

        Raises:
            InvalidArgument: `make` makes no module.
            RuntimeError: It makes one with other weights.
        """
        made: Any = self.make()
        module = made.module if isinstance(made, Model) else made
        if not isinstance(module, nn.Module):
            raise InvalidArgument(f"make=… must return a new module, got {quoted(made)}.")
        module.load_state_dict(self.weights(step))
        module.to(device)
        if not isinstance(made, Reattachable):
            return as_model(made)
        model = made.attached_again(made.digest())
        model.tokenizer = made.tokenizer
        return model


@final
@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training: its snapshots in order of step, with architecture, task and recipe.

    `paths` are checkpoint directories, or the files of a packed training, of one `ModelConfig`; of `Snapshots` they are
    these with a step, there is no config, and `made` tells what `make` decides. `folder` is the run's directory, where
    results may be saved, or None.
    """

    name: str
    steps: tuple[int, ...]
    paths: tuple[Any, ...]
    hashes: tuple[str, ...]
    config: Any
    task: WindTunnel
    recipe: Mapping[str, Any]
    folder: Path | None = None
    made: str = ""

    def load(self, index: int, *, device: str | torch.device = "cpu") -> Model:
        """Return the model of one snapshot."""
        return model_at(self.paths[index], device=device)


def model_at(path: Path, *, device: str | torch.device = "cpu") -> Model:
    """The model of a checkpoint's directory, or of a packed training's file."""
    return from_checkpoint(load_packed(path, device=device) if path.is_file() else load_checkpoint(path, device=device))


def runs_of(sources: Sequence[Source | Snapshots]) -> tuple[TrainingRun, ...]:
    """Return the trainings for run directories, packed trainings, or the checkpoints or weights of a single training.

    Several trainings must be seeds of the same recipe.

    Raises:
        InvalidArgument: There are fewer than two snapshots, architectures, tasks or recipes differ, a training is
            given twice, or two have the same seed; of `Snapshots`, weights or modules are the same, `make` makes no
            module that takes these weights, no blocks are found, or the task has no exact posterior.
        CheckpointFault: A file cannot be read.
        UnknownName: There is no such training.
    """
    for source in sources:
        if isinstance(source, Snapshots):
            if len(sources) > 1:
                raise InvalidArgument("Snapshots are measured alone: leave other runs out.")
            return (_of_own(source),)
    if not sources:
        raise InvalidArgument(
            "pass at least one training: a run's directory, the name of a packed training, or its checkpoints."
        )
    places = [_place(source) for source in sources]
    are_checkpoints = [(place / CONFIG).is_file() for place in places]
    if any(are_checkpoints) and not all(are_checkpoints):
        single = places[are_checkpoints.index(True)]
        raise InvalidArgument(
            f"{single} is a single checkpoint, other arguments are runs: pass either runs or checkpoints."
        )
    runs = (_of_checkpoints(places),) if all(are_checkpoints) else tuple(_of_run(place) for place in places)
    _check_seeds(runs)
    if len({run.name for run in runs}) == len(runs):
        return runs
    return tuple(replace(run, name=f"{run.name}, seed {_seeds(run.recipe)}") for run in runs)


def _of_own(own: Snapshots) -> TrainingRun:
    """Return the training of snapshots of a user."""
    if len(own.states) < 2:
        raise InvalidArgument(f"at least 2 snapshots are needed to show a training, got {len(own.states)}.")
    steps = tuple(sorted(own.states))
    hashes = tuple(weights_hash(own.weights(step)) for step in steps)
    if len({*hashes}) < len(hashes):
        raise InvalidArgument("snapshots have the same weights: keep copies, which training does not change in place.")
    first, second = map(own.load, steps[:2])
    if first.module is second.module:
        raise InvalidArgument("make=… returns the same module each time, which snapshots would change: make a new one.")
    if not first.spec.n_layers:
        raise InvalidArgument(
            f"{first.spec.name} has no blocks that training dynamics could follow: make=… must return "
            f"bayesgeom.wrap(net, blocks=…). bayesgeom.diagnose measures predictions alone."
        )
    task = scored_task_of(first, own.task)
    return TrainingRun(
        name=first.spec.name,
        steps=steps,
        paths=tuple((own, step) for step in steps),
        hashes=hashes,
        config=None,
        task=task,
        recipe={},
        made=_made(first, task),
    )


def _made(model: Model, task: WindTunnel) -> str:
    """Return a hash of what the weights do not determine: class, sizes, sites, and predictions on a few sequences."""
    answers = model.run([task.sample(4, seed=0, device=model.spec.device)], n_recorded=4).log_answers
    sites = sorted(site.name for site in model.sites)
    decides = (type(model.module).__qualname__, model.spec.to_dict(), sites, answers.round(decimals=4).tolist())
    return hashlib.sha256(repr(decides).encode()).hexdigest()


def run_of(source: Source | Sequence[Source]) -> TrainingRun:
    """Return a single training.

    Raises:
        InvalidArgument: As in `runs_of`, or there are several trainings.
        UnknownName: There is no such training.
    """
    run, *others = runs_of([source] if isinstance(source, (str, Path)) else source)
    if others:
        raise InvalidArgument(f"a single training is required; got {' and '.join(own.name for own in (run, *others))}.")
    return run


def _place(source: object) -> Path:
    if not isinstance(source, (str, Path)):
        raise InvalidArgument(
            f"a training must be a str or a Path, one argument per training; got a {type(source).__name__}."
        )
    name, path = str(source), Path(source)
    named = Named({**checkpoints().folders, **formations().folders})
    if name in named and not path.is_dir():
        return named[name]
    if not path.is_dir():
        raise UnknownName(
            f"there is no training named {name!r}. Packed trainings: {', '.join(formations()) or '(none)'}."
            f"{suggestion(name, named)} For a run, pass its directory."
        )
    return path


def _of_run(folder: Path) -> TrainingRun:
    """Return the training of a run's directory, or a packed training."""
    if not (folder / FORMATION).is_file():
        return _of_checkpoints(snapshot_paths(folder), folder)
    whole = read_formation(folder)
    snapshots = [({**whole, **entry}, folder / entry["file"]) for entry in whole["snapshots"]]
    return _of_snapshots(snapshots, name=folder.name)


def _of_checkpoints(paths: Sequence[Path], folder: Path | None = None) -> TrainingRun:
    return _of_snapshots([(read_description(path), path) for path in paths], folder=folder)


def _of_snapshots(
    described: Sequence[tuple[Mapping[str, Any], Path]], *, name: str = "", folder: Path | None = None
) -> TrainingRun:
    """Return the training of these snapshots; older files lack some sizes of the model and parameters of the task."""
    each = sorted((_snapshot(*own) for own in described), key=lambda own: own.steps)
    first, last = each[0], each[-1]
    name, steps = name or str(last.recipe.get("name", last.paths[0].name)), tuple(own.steps[0] for own in each)
    if len(each) < 2:
        raise InvalidArgument(
            f"{folder or name} has {count_text(len(each), 'snapshot')}; at least 2 are needed to show a training."
        )
    for own in each:
        _check_alike(first, own, "snapshots")
        if deciding(own.recipe) != deciding(first.recipe):
            raise InvalidArgument(
                f"{first.name} and {own.name} are of different trainings; for several seeds, pass the run "
                f"directories instead."
            )
    if len(set(steps)) < len(steps):
        raise InvalidArgument(
            f"two snapshots of {name} are of the same step; the steps are {', '.join(map(str, steps))}."
        )
    paths, hashes = tuple(own.paths[0] for own in each), tuple(own.hashes[0] for own in each)
    return replace(last, name=name, steps=steps, paths=paths, hashes=hashes, folder=folder)


def _snapshot(described: Mapping[str, Any], path: Path) -> TrainingRun:
    return TrainingRun(
        name=str(path),
        steps=(int(described["step"]),),
        paths=(path,),
        hashes=(described["weights_hash"],),
        config=config_from_dict(described["model"]),
        task=task_from_config(described["task"]),
        recipe=described["recipe"],
    )


def _check_seeds(runs: Sequence[TrainingRun]) -> None:
    """Check that several trainings differ only in their seed."""
    first = runs[0]
    for run in runs[1:]:
        _check_alike(first, run, "trainings")
        if _seedless(run.recipe) != _seedless(first.recipe):
            apart = differences(_seedless(first.recipe), _seedless(run.recipe))
            raise InvalidArgument(
                f"{first.name} and {run.name} were made by recipes that differ in more than the seed ({apart}). Pass "
                f"trainings of one recipe."
            )
        if run.steps != first.steps:
            raise InvalidArgument(
                f"{first.name} has snapshots at {len(first.steps)} steps up to {first.steps[-1]:,}, {run.name} at "
                f"{len(run.steps)} up to {run.steps[-1]:,}: seeds are compared at the same steps."
            )
    for other, run in itertools.combinations(runs, 2):
        if _seeds(run.recipe) == _seeds(other.recipe):
            one, two = (own.folder or own.paths[0].parent for own in (other, run))
            raise InvalidArgument(
                f"{one} and {two} are both of seed {_seeds(run.recipe)}, so they are not independent trainings: pass "
                f"one of them."
            )


def _seedless(recipe: Mapping[str, Any]) -> Any:
    """Return a recipe without seeds and names, in every stage."""
    after = recipe.get("after")
    return {**deciding(recipe), "seed": 0, "name": "", "after": None if after is None else _seedless(after)}


def _seeds(recipe: Mapping[str, Any]) -> str:
    """Return the seeds of a recipe's stages as text, such as "0" or "1000 after 0"."""
    return " after ".join(str(stage.seed) for stage in reversed([*recipe_from_dict(recipe).stages()]))


def _check_alike(one: TrainingRun, other: TrainingRun, what: str) -> None:
    """Raise `InvalidArgument` with the fields in which two architectures or tasks differ."""
    for plural, a, b in (
        ("architectures", one.config.to_dict(), other.config.to_dict()),
        ("tasks", one.task.config(), other.task.config()),
    ):
        if apart := differences(a, b):
            raise InvalidArgument(
                f"{what} of different {plural} cannot be put together: {one.name} and {other.name} differ ({apart})."
            )
