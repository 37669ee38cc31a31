"""Faults of files: changed bytes and changed structure of checkpoints, reports and trainings."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import bayesgeom
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.checkpoint_files import hashed as sealed
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import HASH, parts_of
from bayesgeom.report.storage import hashed as report_hash
from bayesgeom.training.recipes import Recipe
from benchmarks.faults import Accepted, Case

TASK = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
SIZES = {"architecture": "transformer", "n_layers": 1, "n_heads": 3, "d_model": 15, "d_mlp": 7}
RECIPE = Recipe(name="tiny", task=TASK, sizes=SIZES, steps=100)
# Rotary positions: these can be measured beyond the length of training, and exported.
ROTARY = Recipe(name="rotary", task=TASK, sizes={**SIZES, "d_model": 12, "positions": "rotary"}, steps=100)
N_CHECKPOINT, N_REPORT, N_TRAINING = 1500, 1000, 400  # damaged files of each kind
ODD: tuple[Any, ...] = (None, True, -1, 0, 1, 2**70, 1.5, 1e308, "", "x", "../x", [], [1], [[]], {}, {"x": 1})


def checkpoint(path: Path, step: int = 0, recipe: Recipe = RECIPE) -> Path:
    """An untrained transformer of one layer, as a checkpoint directory."""
    config = recipe.model_config()
    save_checkpoint(path, config.build(seed=step), config, recipe=recipe.to_dict(), step=step, card="# tiny\n")  # type: ignore[arg-type]
    return path


def training(path: Path, steps: Sequence[int] = (0, 10, 100)) -> Path:
    """The directory of a training, with a few snapshots."""
    for step in steps:
        checkpoint(path / "snapshots" / f"step-{step:07d}", step)
    return path


def report(path: Path) -> Path:
    """A saved diagnosis."""
    model = bayesgeom.as_model(RECIPE.model_config().build(seed=0))
    bayesgeom.diagnose(model, TASK, n=8, n_untrained=1, probes=["calibration", "key_overlap"]).save(path)
    return path


def damaged(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """One change of some bytes, and what it is called."""
    at, kind = draw.randrange(len(content)), draw.choice(("flip", "byte", "delete", "insert", "cut", "zero", "swap"))
    end = min(len(content), at + draw.choice((1, 4, 16, 64)))
    other = draw.randrange(len(content))
    new = {
        "flip": content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :],
        "byte": content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :],
        "delete": content[:at] + content[end:],
        "insert": content[:at] + draw.randbytes(end - at) + content[at:],
        "cut": content[:at],
        "zero": content[:at] + bytes(end - at) + content[end:],
        "swap": content[:at] + content[other : other + end - at] + content[end:],
    }[kind]
    return f"{kind} at {at}", new


def byte_cases(
    make: Callable[[Path], Path], read: Callable[[Path], Any], files: Sequence[str], n: int, folder: Path
) -> Iterator[Case]:
    """`n` damaged copies of a directory; what is read has to be what was written, or refused."""
    whole, copy = make(folder / "whole" / "own"), folder / "copy" / "own"  # a model is called by its directory
    expected, draw = read(whole), random.Random(f"bytes of {folder.name}")
    shutil.copytree(whole, copy)
    for _ in range(n):
        name = draw.choice(files)
        what, content = damaged((whole / name).read_bytes(), draw)

        def act(name: str = name, content: bytes = content) -> None:
            try:
                (copy / name).write_bytes(content)
                if read(copy) != expected:
                    raise Accepted(f"{name} reads as something else")
            finally:
                shutil.copyfile(whole / name, copy / name)

        yield Case(f"{name}: {what}", act)


def read_checkpoint(path: Path) -> Any:
    """What decides the numbers of a checkpoint, read anew."""
    model = bayesgeom.load(path)
    assert model.task is not None
    numbers = bayesgeom.diagnose(model, n=2, n_untrained=0, probes=["calibration"])
    return repr(model.spec), repr(model.task), held(numbers)


def held(diagnosis: Any) -> str:
    """Every value of a report or diagnosis, as text."""
    reports = diagnosis.reports if isinstance(diagnosis, Diagnosis) else {diagnosis.name: diagnosis}
    parts = {name: parts_of(own) for name, own in reports.items()}
    return repr(
        [
            (name, scalars, {key: (v.shape, v.tobytes()) for key, v in own.items()})
            for name, (scalars, own) in parts.items()
        ]
    )


def checkpoint_bytes(folder: Path) -> Iterator[Case]:
    files = ("model.safetensors", "config.json", "config.json", "card.md")
    return byte_cases(checkpoint, read_checkpoint, files, N_CHECKPOINT, folder)


def report_bytes(folder: Path) -> Iterator[Case]:
    def read(path: Path) -> str:
        found = bayesgeom.load_report(path)
        return held(found) + json.dumps(found.provenance, sort_keys=True)

    return byte_cases(
        report, read, ("report.json", "report.json", "arrays.safetensors", "metrics.parquet"), N_REPORT, folder
    )


def training_bytes(folder: Path) -> Iterator[Case]:
    files = [
        f"snapshots/step-{step:07d}/{name}" for step in (0, 10, 100) for name in ("model.safetensors", "config.json")
    ]

    def read(path: Path) -> str:
        return held(bayesgeom.training_dynamics(path, n=4))

    return byte_cases(training, read, files, N_TRAINING, folder)


def places(held: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside JSON."""
    if at:
        yield at
    inside = held.items() if isinstance(held, dict) else enumerate(held[:3]) if isinstance(held, list) else ()
    for key, value in inside:
        yield from places(value, (*at, key))


def changes(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every single change of structure: a value gone, or an odd one in its place."""
    for place in places(whole):
        *way, last = place
        label = ".".join(map(str, place))
        for odd in ("(gone)", *ODD):
            changed = deepcopy(whole)
            inside: Any = changed
            for key in way:
                inside = inside[key]
            if odd == "(gone)":
                del inside[last]
            elif type(odd) is type(inside[last]) and odd == inside[last]:
                continue
            else:
                inside[last] = odd
            yield f"{label} = {odd!r:.40}", changed


def checkpoint_structure(folder: Path) -> Iterator[Case]:
    """Odd values in `config.json` behind a right hash: what is accepted has to be measurable."""
    whole = checkpoint(folder / "whole")
    copy = Path(shutil.copytree(whole, folder / "copy"))
    for label, changed in changes(json.loads((whole / "config.json").read_text())):

        def act(changed: dict[str, Any] = changed) -> None:
            try:
                text = json.dumps(sealed(changed))
            except (TypeError, AttributeError):
                text = json.dumps(changed)
            (copy / "config.json").write_text(text)
            read_checkpoint(copy)

        yield Case(label, act)


def report_structure(folder: Path) -> Iterator[Case]:
    """Odd values in `report.json` behind a right hash: what is accepted has to be usable."""
    whole = report(folder / "whole")
    copy = Path(shutil.copytree(whole, folder / "copy"))
    arrays: dict[str, np.ndarray] = load_file(whole / "arrays.safetensors")
    cases = list(changes(json.loads((whole / "report.json").read_text())))
    for label, changed in random.Random("report structure").sample(cases, min(len(cases), 1200)):

        def act(changed: dict[str, Any] = changed) -> None:
            rest = {key: value for key, value in changed.items() if key != HASH}
            (copy / "report.json").write_text(json.dumps({**rest, HASH: report_hash(rest, arrays)}))
            found = bayesgeom.load_report(copy)
            assert found.summary() and repr(found) and found.to_dict() and len(found.to_pandas())

        yield Case(label, act)
