"""`bayesgeom checkpoints`."""

from dataclasses import dataclass
from typing import ClassVar, final

from bayesgeom.commands.base import Command


@final
@dataclass(frozen=True)
class Checkpoints(Command):
    """List the named checkpoints: their task, and how good they are."""

    name: ClassVar[str] = "checkpoints"

    def __call__(self) -> int:
        from bayesgeom.models.checkpoint import read_description
        from bayesgeom.models.resolve import checkpoint_folder, checkpoints

        found = checkpoints()
        if not found:
            print(f"no checkpoints in {checkpoint_folder()}")
        for name, path in found.items():
            description = read_description(path)
            scores = description.get("scores") or {}
            task = ", ".join(f"{key}={value}" for key, value in description["task"].items())
            quality = ", ".join(f"{key} {value:.3g}" for key, value in scores.items() if key.endswith("bits"))
            print(
                f"{name}\n  task    {task}\n  scores  {quality or 'not scored'}\n"
                f"  weights {description['weights_hash']}"
            )
        return 0
