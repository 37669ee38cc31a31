"""`bayesgeom pack`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, final

import tyro

from bayesgeom.commands.base import Command, tell
from bayesgeom.results.tables import counted

RunName = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Target = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]


@final
@dataclass(frozen=True)
class Pack(Command):
    """Pack the snapshots of a run for distribution.

    Only weights are kept, in half precision where scores do not change. A snapshot takes about 15 seconds on two CPU
    cores.
    """

    name: ClassVar[str] = "pack"
    order: ClassVar[int] = 170

    run: RunName
    """Directory of the run."""
    out: Target
    """Directory to write. `bayesgeom dynamics` finds it by name if it lies in the folder of checkpoints."""
    keep: int = 12
    """Maximum number of snapshots to keep, including the first and the last."""
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    """Precision to try. A snapshot whose KL changes in its first three digits keeps its own precision."""

    def __call__(self) -> int:
        from bayesgeom.training.formation import pack

        self._check_target()
        packed = pack(self.run, self.out, keep=self.keep, dtype=self.dtype)
        steps = [
            f"step {own.step:>7,}  {own.dtype:8}  KL {own.kl_bits:.5g} → {own.kl_bits_stored:.5g} bits"
            for own in packed
        ]
        size = sum(file.stat().st_size for file in self.out.iterdir())
        tell(*steps, f"\n{counted(len(packed), 'snapshot')}, {size / 1e6:.1f} MB: {self.out}")
        return 0

    def _check_target(self) -> None:
        """Check that the directory holds nothing but a packed training, because it is replaced."""
        from bayesgeom.core.errors import OutputFault
        from bayesgeom.models.checkpoint_files import CARD
        from bayesgeom.training.packed import FORMATION

        entries = sorted(self.out.iterdir()) if self.out.is_dir() else []
        known = (CARD, FORMATION, ".DS_Store")
        if foreign := [own.name for own in entries if own.name not in known and own.suffix != ".safetensors"]:
            named = ", ".join(foreign[:3])
            raise OutputFault(
                f"{self.out} holds files that are not a packed training ({named}); name an empty or a new directory."
            )
