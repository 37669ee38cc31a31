"""`bayesgeom export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

from bayesgeom.commands.base import Command, Name, check_target, tell


@final
@dataclass(frozen=True)
class Export(Command):
    """Export a bayesgeom transformer as a Hugging Face directory, or import one.

    The exported model has the same logits. A shipped checkpoint takes about 20 seconds on two CPU cores.
    """

    name: ClassVar[str] = "export"
    order: ClassVar[int] = 160

    checkpoint: Name
    """Name of a shipped checkpoint (see `bayesgeom checkpoints`) or a directory; for --to bayesgeom, an export."""
    out: Path
    """Directory to write."""
    to: Literal["hf", "bayesgeom"] = "hf"
    """Target format: hf for the transformers library, or bayesgeom."""

    def __call__(self) -> int:
        from bayesgeom.models.export import export_checkpoint, import_checkpoint

        check_target(self.out)
        write = export_checkpoint if self.to == "hf" else import_checkpoint
        tell(f"{write(self.checkpoint, self.out)}: {self.out}")
        return 0
