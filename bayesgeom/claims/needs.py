"""The checkpoints that a claim's commands need: where they are, how to train them and how long that takes."""

import shlex
from pathlib import Path

from bayesgeom.claims.claim import Claim, Run
from bayesgeom.core.errors import CheckpointFault, UnknownName
from bayesgeom.core.files import RUNS
from bayesgeom.models.checkpoint_files import FINISHED, checkpoints
from bayesgeom.training.duration import as_duration, typical_seconds

_INSTALLED = {"models/smollm2": "make real-model"}  # models that a command installs


def arguments_of(run: Run, runs: Path = RUNS) -> list[str]:
    """Return the arguments of a run's command line; a checkpoint in `runs` is named by its path.

    `compare` names architectures instead of checkpoints, so it gets the folder.
    """
    shipped = checkpoints()
    words = shlex.split(run.command)[1:]
    placed = [_place(word, runs) if word in run.needs and word not in shipped else word for word in words]
    return [*placed, "--runs", str(runs)] if words[0] == "compare" and runs != RUNS else placed


def runnable(claim: Claim, runs: Path = RUNS) -> list[Run]:
    """Return the `decisive` runs, except those without a committed report whose checkpoints do not exist yet.

    All of them if no run would be left, so that `check_needs` names what is absent.
    """
    shipped = checkpoints()
    found = [run for run in claim.decisive if run.report is not None or not _absent(run, shipped, runs)]
    return found or list(claim.decisive)


def check_needs(claim: Claim, runs: Path = RUNS) -> None:
    """Check that every checkpoint exists that the claim's `runnable` commands load.

    Raises:
        CheckpointFault: If one is absent; the message states how to make it and how long that takes.
    """
    shipped = checkpoints()
    absent = [name for run in runnable(claim, runs) for name in _absent(run, shipped, runs)]
    if absent:
        ways = ". ".join(_way(name) for name in dict.fromkeys(absent))
        raise CheckpointFault(
            f"claim {claim.id} needs {', '.join(map(repr, dict.fromkeys(absent)))}: neither shipped nor in "
            f"{str(runs)!r}. {ways}."
        )


def ways_to_make(claim: Claim) -> list[str]:
    """Return a sentence for each checkpoint that the claim needs and that is not shipped: how to make it."""
    shipped = checkpoints()
    needed = dict.fromkeys(name for run in claim.decisive for name in run.needs)
    return [_way(name) for name in needed if name not in shipped and "/" not in name]


def ways_to(run: Run, runs: Path = RUNS) -> str:
    """Return how to make each absent checkpoint of a run that the claim reads, and how long that takes; "" if none."""
    if not run.numbers:
        return ""
    return "; ".join(dict.fromkeys(map(_way, _absent(run, checkpoints(), runs))))


def _absent(run: Run, shipped: dict[str, Path], runs: Path) -> list[str]:
    return [name for name in run.needs if not _is_there(name, shipped, runs)]


def _is_there(name: str, shipped: dict[str, Path], runs: Path) -> bool:
    if name in _INSTALLED:
        return Path(name).exists()
    if "/" in name:  # on the Hugging Face hub: loading it says what is wrong
        return True
    return name in shipped or (runs / name / FINISHED).is_dir()


def _place(name: str, runs: Path) -> str:
    path = runs / name / FINISHED
    return str(path) if path.is_dir() else name


def _way(name: str) -> str:
    from bayesgeom.training.recipes import recipe

    if name in _INSTALLED:
        return f"Install {name!r} with `{_INSTALLED[name]}` in a source checkout, and run the command there"
    base, _, seed = name.partition("-seed")
    try:
        found = recipe(name if not seed.isdecimal() else base)
    except UnknownName:
        return f"No recipe makes {name!r} yet"
    option = f" --seed {seed}" if seed.isdecimal() else ""
    time = as_duration(typical_seconds(found))
    return f"Make {name!r} with `bayesgeom train {found.name}{option}` (about {time} on two cores in float32)"
