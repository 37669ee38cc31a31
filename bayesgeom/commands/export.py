"""`bayesgeom export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

from bayesgeom.commands.base import Command, Name, check_target, tell


@final
@dataclass(frozen=True)
class Export(Command):
    """Write a transformer of ours as a Hugging Face directory with the same logits, or read such a directory back."""

    name: ClassVar[str] = "export"

    checkpoint: Name
    """Name of a shipped checkpoint (see `bayesgeom checkpoints`) or a directory; for --to bayesgeom, an export."""
    out: Path
    """Directory to write."""
    to: Literal["hf", "bayesgeom"] = "hf"
    """hf is what transformers reads; bayesgeom is our own form."""

    def __call__(self) -> int:
        from bayesgeom.models.conversion import export_checkpoint, import_checkpoint

        check_target(self.out)
        write = export_checkpoint if self.to == "hf" else import_checkpoint
        tell(f"{write(self.checkpoint, self.out)}: {self.out}")
        return 0
