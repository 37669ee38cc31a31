"""`bayesgeom checkpoints`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from bayesgeom.commands.base import Command


@final
@dataclass(frozen=True)
class Checkpoints(Command):
    """List available checkpoints with task, KL and entropy error; then packed trainings."""

    name: ClassVar[str] = "checkpoints"

    seal: tuple[Path, ...] = ()
    """Instead of listing: store the hash of the configs in these directories again, after a change that you made on
    purpose, or for checkpoints of an earlier version. The weights' own hash must hold."""

    def __call__(self) -> int:
        if self.seal:
            from bayesgeom.training.formation import seal

            for folder in self.seal:
                print(f"{folder}: {seal(folder)}")
            return 0
        from bayesgeom.models.checkpoint import read_description
        from bayesgeom.models.resolve import checkpoint_folder, checkpoints
        from bayesgeom.training.formation import formations

        found, packed = checkpoints(), formations()
        if not found and not packed:
            print(f"no checkpoints in {checkpoint_folder()}")
        for name, path in found.items():
            description = read_description(path)
            print(
                f"{name}\n  task    {_listed(description['task'])}\n  scores  {_quality(description)}\n"
                f"  weights {description['weights_hash']}"
            )
        for name, path in packed.items():
            print("\n".join([name, *_formation(name, path)]))
        return 0


def _formation(name: str, path: Path) -> list[str]:
    """What a packed training is, and what it is for: it is no model, but dynamics and gradients read it."""
    from bayesgeom.training.formation import read_formation

    whole = read_formation(path)
    steps = [int(entry["step"]) for entry in whole["snapshots"]]
    of = f"{len(steps)} snapshots of {whole['recipe']['name']}, steps {min(steps):,} to {max(steps):,}"
    return [
        f"  task    {_listed(whole['task'])}",
        f"  holds   {of}",
        f"  for     bayesgeom dynamics {name}, bayesgeom gradients {name} --over-training",
    ]


def _listed(task: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in task.items())


def _quality(description: Mapping[str, Any]) -> str:
    """Scores as they were published, each beside the null that is hardest to beat."""
    scores = description.get("scores") or {}
    said = []
    for key in (key for key in scores if key.endswith("bits")):
        nulls = scores.get("nulls", {}).get(key, {})
        hardest = min(nulls, key=nulls.__getitem__, default=None)
        beside = "" if hardest is None else f" (null {nulls[hardest]:.3g}, {hardest})"
        said.append(f"{key} {scores[key]:.3g}{beside}")
    return ", ".join(said) or "not scored"
