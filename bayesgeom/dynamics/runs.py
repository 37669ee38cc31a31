"""Training runs: snapshots in order of step, from a run's directory, a packed training, or checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from bayesgeom.core.errors import InvalidArgument, UnknownName, suggested
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.text import counted
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import CONFIG, checkpoints, read_description
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.resolve import from_checkpoint, of_module
from bayesgeom.tasks.base import WindTunnel, task_from_config
from bayesgeom.training.formation import load_packed, snapshot_paths
from bayesgeom.training.packed import FORMATION, formations, read_formation
from bayesgeom.training.recipe import deciding

Source = str | Path
CACHE = "dynamics"  # the folder of a run for saved results of snapshots


@final
@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training: its snapshots in order of step, with architecture, task and recipe.

    `paths` are checkpoint directories, or the files of a packed training. `folder` is the run's directory, where
    results may be saved, or None.
    """

    name: str
    steps: tuple[int, ...]
    paths: tuple[Path, ...]
    hashes: tuple[str, ...]
    model: Mapping[str, Any]
    task: Mapping[str, Any]
    recipe: Mapping[str, Any]
    folder: Path | None = None

    def load(self, index: int, *, device: str | torch.device = "cpu") -> Model:
        """Return the model of one snapshot."""
        return model_at(self.paths[index], device=device)

    def blank(self) -> Model:
        """Return an untrained model of the architecture: it has a snapshot's sites and sizes."""
        return of_module(config_from_dict(self.model).build(seed=0))

    def spec(self, *, device: str | torch.device = "cpu") -> ModelSpec:
        """Return the spec of the last snapshot, with the name of the training."""
        return replace(self.load(len(self.steps) - 1, device=device).spec, name=self.name)

    def wind_tunnel(self) -> WindTunnel:
        """Return the task of the training."""
        return task_from_config(self.task)


def model_at(path: Path, *, device: str | torch.device = "cpu") -> Model:
    """The model of a checkpoint's directory, or of a packed training's file."""
    return from_checkpoint(load_packed(path, device=device) if path.is_file() else load_checkpoint(path, device=device))


def runs_of(sources: Sequence[Source]) -> tuple[TrainingRun, ...]:
    """Return the trainings for run directories, packed trainings, or the checkpoints of a single training.

    Several trainings must be seeds of the same recipe.

    Raises:
        InvalidArgument: There are fewer than two snapshots, architectures, tasks or recipes differ, a training is
            given twice, or two have the same seed.
        UnknownName: There is no such training.
    """
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
    return _distinguished(runs)


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


def _distinguished(runs: tuple[TrainingRun, ...]) -> tuple[TrainingRun, ...]:
    """Return the runs with seeds added to the names if names are equal."""
    if len({run.name for run in runs}) == len(runs):
        return runs
    return tuple(replace(run, name=f"{run.name}, seed {_seeds(run.recipe)}") for run in runs)


def _place(source: object) -> Path:
    if not isinstance(source, (str, Path)):
        raise InvalidArgument(
            f"a training must be a str or a Path, one argument per training; got a {type(source).__name__}."
        )
    name, path = str(source), Path(source)
    named = {**checkpoints(), **formations()}
    if name in named and not path.is_dir():
        return named[name]
    if not path.is_dir():
        packed = ", ".join(formations()) or "(none; bijection-formation is in the repository, not in wheels)"
        raise UnknownName(
            f"there is no training named {name!r}. Packed trainings: {packed}.{suggested(name, named)} For a run, pass "
            f"its directory."
        )
    return path


def _of_run(folder: Path) -> TrainingRun:
    """Return the training of a run's directory, or a packed training."""
    if not (folder / FORMATION).is_file():
        return _of_checkpoints(snapshot_paths(folder), folder)
    whole = read_formation(folder)
    entries = sorted(whole["snapshots"], key=lambda entry: int(entry["step"]))
    _check_count(folder.name, len(entries))
    return TrainingRun(
        name=folder.name,
        steps=tuple(int(entry["step"]) for entry in entries),
        paths=tuple(folder / entry["file"] for entry in entries),
        hashes=tuple(entry["weights_hash"] for entry in entries),
        model=_model(whole),
        task=_task(whole),
        recipe=whole["recipe"],
    )


def _of_checkpoints(paths: Sequence[Path], folder: Path | None = None) -> TrainingRun:
    described = [{**found, "model": _model(found), "task": _task(found)} for found in map(read_description, paths)]
    order = sorted(range(len(paths)), key=lambda index: int(described[index]["step"]))
    first, last = described[order[0]], described[order[-1]]
    name = str(last["recipe"].get("name", paths[order[-1]].name))
    _check_count(str(folder or name), len(paths))
    for index in order:
        names = (str(paths[order[0]]), str(paths[index]))
        _check_alike(first, described[index], names, "snapshots of different {} are not one training")
        if deciding(described[index]["recipe"]) != deciding(first["recipe"]):
            raise InvalidArgument(
                f"{names[0]} and {names[1]} are of different trainings; for several seeds, pass the run "
                f"directories instead."
            )
    steps = tuple(int(described[index]["step"]) for index in order)
    if len(set(steps)) < len(steps):
        raise InvalidArgument(
            f"two snapshots of {name} are of the same step; the steps are {', '.join(map(str, steps))}."
        )
    return TrainingRun(
        name=name,
        steps=steps,
        paths=tuple(paths[index] for index in order),
        hashes=tuple(described[index]["weights_hash"] for index in order),
        model=last["model"],
        task=last["task"],
        recipe=last["recipe"],
        folder=folder,
    )


_PLURALS = {"model": "architectures", "task": "tasks"}


def _model(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the architecture with every size; older files lack some."""
    return config_from_dict(described["model"]).to_dict()


def _task(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the task with every parameter; older files lack some."""
    return task_from_config(described["task"]).config()


def _check_count(name: str, n: int) -> None:
    if n < 2:
        raise InvalidArgument(f"{name} has {counted(n, 'snapshot')}; at least 2 are needed to show a training.")


def _check_seeds(runs: Sequence[TrainingRun]) -> None:
    """Check that several trainings differ only in their seed."""
    first = runs[0]
    for run in runs[1:]:
        _check_alike(
            _described(first),
            _described(run),
            (first.name, run.name),
            "trainings of different {} cannot be put together",
        )
        if _seedless(run.recipe) != _seedless(first.recipe):
            one, other = _seedless(first.recipe), _seedless(run.recipe)
            apart = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
            raise InvalidArgument(
                f"{first.name} and {run.name} were made by recipes that differ in more than the seed, in "
                f"{', '.join(apart)}. Pass trainings of one recipe."
            )
        if run.steps != first.steps:
            raise InvalidArgument(
                f"{first.name} has snapshots at {len(first.steps)} steps up to {first.steps[-1]:,}, {run.name} at "
                f"{len(run.steps)} up to {run.steps[-1]:,}: seeds are compared at the same steps."
            )
    for index, run in enumerate(runs):
        if any(run.hashes == other.hashes for other in runs[:index]):
            raise InvalidArgument(f"{run.name} is given twice: a second seed must be another training.")
        for other in runs[:index]:
            if _seeds(run.recipe) == _seeds(other.recipe):
                raise InvalidArgument(
                    f"{_directory(other)} and {_directory(run)} are both of seed {_seeds(run.recipe)}, so they are not "
                    f"independent trainings: pass one of them."
                )


def _described(run: TrainingRun) -> Mapping[str, Any]:
    return {"model": run.model, "task": run.task}


def _seedless(recipe: Mapping[str, Any]) -> Any:
    """Return a recipe without seeds and names, in every stage."""
    after = recipe.get("after")
    return {**deciding(recipe), "seed": 0, "name": "", "after": None if after is None else _seedless(after)}


def _seeds(recipe: Mapping[str, Any]) -> str:
    """Return the seeds of a recipe's stages as text, such as "0" or "1000 after 0"."""
    after = deciding(recipe)["after"]
    return f"{deciding(recipe)['seed']}" + ("" if after is None else f" after {_seeds(after)}")


def _directory(run: TrainingRun) -> Path:
    return run.folder or run.paths[0].parent


def _check_alike(one: Mapping[str, Any], other: Mapping[str, Any], names: tuple[str, str], fault: str) -> None:
    """Raise `InvalidArgument` with the fields in which two architectures or tasks differ."""
    for what, plural in _PLURALS.items():
        apart = [key for key, value in one[what].items() if other[what].get(key) != value]
        if not apart:
            continue
        shown = apart[:1] if apart[0] in ("architecture", "name") else apart
        here, there = (", ".join(f"{key} {stored[what][key]}" for key in shown) for stored in (one, other))
        raise InvalidArgument(f"{fault.format(plural)}: {names[0]} has {here}, {names[1]} has {there}.")
