"""`bayesgeom checkpoints`."""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from bayesgeom.commands.base import Command, tell
from bayesgeom.core.columns import WIDTH
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import number_text


@final
@dataclass(frozen=True)
class Checkpoints(Command):
    """List available checkpoints with task, KL and entropy error, and packed trainings.

    Listing takes seconds. With --rescore, a shipped checkpoint takes about 15 seconds on two CPU cores.
    """

    name: ClassVar[str] = "checkpoints"
    order: ClassVar[int] = 140

    seal: tuple[Path, ...] = ()
    """Instead of listing: recompute the stored config hashes of these directories, after an intended change or for
    checkpoints of an earlier version. The hash of the weights must still match."""

    rescore: tuple[Path, ...] = ()
    """Instead of listing: score the checkpoints in these directories again, with the baselines of this version. Card
    and scores are replaced; the weights stay."""

    def __call__(self) -> int:
        if self.rescore and self.seal:
            raise InvalidArgument(
                "--seal and --rescore were both given; pass one: a checkpoint is sealed before it is scored."
            )
        if self.rescore:
            from bayesgeom.training.publish import rescore

            for folder in self.rescore:
                rescore(folder)
                tell(f"{folder}:", *_lines(folder, _checkpoint))
            return 0
        if self.seal:
            from bayesgeom.training.formation import seal

            for folder in self.seal:
                tell(f"{folder}: {seal(folder)}")
            return 0
        from bayesgeom.core.files import is_temporary
        from bayesgeom.models.checkpoint_files import WEIGHTS, checkpoint_folder, checkpoints
        from bayesgeom.training.packed import formations

        found, packed = checkpoints(), formations()
        # A directory without a config cannot be loaded by name, but listing it helps to find the fault.
        there = (path.parent for path in checkpoint_folder().glob(f"*/{WEIGHTS}"))
        halves = {path.name: path for path in there if not is_temporary(path.name)}
        for name, path in sorted({**halves, **found}.items()):
            tell(name, *_lines(path, _checkpoint))
        for name, path in packed.items():
            tell(name, *_lines(path, _formation))
        if not found and not packed and not halves:
            tell(f"no checkpoints in {checkpoint_folder()}")
        return 0


def _lines(path: Path, described: Callable[[Path], list[str]]) -> list[str]:
    """Return the lines that describe an entry, or why it cannot be read: one bad entry must not end the list."""
    from bayesgeom.core.errors import BayesGeomError

    try:
        return described(path)
    except BayesGeomError as error:
        return [_entry("error", str(error))]
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        return [_entry("error", f"{path} cannot be read ({type(error).__name__}: {error}). Restore it, or delete it.")]


def _entry(label: str, *texts: str) -> str:
    """Return labeled texts, one below the other; long ones wrap."""
    first, other = f"  {label:7} ", " " * 10
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent=other, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(f"{other if at else first}{text}") for at, text in enumerate(texts))


def _checkpoint(path: Path) -> list[str]:
    """Describe a checkpoint: task, scores and hash."""
    from bayesgeom.models.checkpoint_files import read_description

    description = read_description(path)
    return [
        _entry("task", _listed(description["task"])),
        _entry("scores", *_quality(description)),
        _entry("weights", description["weights_hash"]),
    ]


def _formation(path: Path) -> list[str]:
    """Describe a packed training, which is not a model: `dynamics` and `gradients` read it."""
    from bayesgeom.training.packed import read_formation

    whole = read_formation(path)
    steps = [int(entry["step"]) for entry in whole["snapshots"]]
    of = f"{len(steps)} snapshots of {whole['recipe']['name']}, steps {min(steps):,} to {max(steps):,}"
    return [
        _entry("task", _listed(whole["task"])),
        _entry("holds", of),
        _entry("for", f"bayesgeom dynamics {path.name}", f"bayesgeom gradients {path.name} --over-training"),
    ]


def _listed(task: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in task.items())


def _quality(description: Mapping[str, Any]) -> list[str]:
    """Return the published scores, each with its strongest baseline."""
    scores = description.get("scores") or {}
    parts = []
    for key in (key for key in scores if key.endswith("bits")):
        baselines = scores.get("baselines", {}).get(key, {})
        hardest = min(baselines, key=baselines.__getitem__, default=None)
        level = ""
        if hardest is not None:
            level = f" (baseline {number_text(baselines[hardest])}, {hardest.replace('_', ' ')})"
        parts.append(f"{key} {number_text(scores[key])}{level}")
    return parts or ["not scored"]
