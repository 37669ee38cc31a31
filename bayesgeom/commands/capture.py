"""`bayesgeom capture`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import Command, Of, TaskOption, tell
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.tables import counted


@final
@dataclass(frozen=True)
class Capture(Command):
    """Record activations and predictions in files, which `diagnose DIRECTORY` reads.

    Recording takes about as long as the forward passes of the model on --n sequences.
    """

    name: ClassVar[str] = "capture"
    order: ClassVar[int] = 150

    source: Of
    task: TaskOption = None
    out: Path | None = None
    """Directory to write. A capture that was stopped continues there. Required."""
    sites: tuple[str, ...] | None = None
    """Sites to record: resid_post k v … Default: all that a probe reads."""
    layers: tuple[int, ...] | None = None
    """Layers to record: 0 5 11. Default: all that have the site."""
    save_dtype: str = "float32"
    """Data type of the recorded activations: float32, float16 or bfloat16."""
    n: int = 512
    """Sequences to draw."""
    seed: int = 0
    """Seed of the sequences."""
    n_untrained: int = 0
    """Number of untrained networks to capture as baselines, on at most 192 sequences each."""

    def __call__(self) -> int:
        from bayesgeom.diagnosis.recording import Selection, capture
        from bayesgeom.models.captured.files import read_manifest

        if self.out is None:
            raise InvalidArgument("--out is missing: name the directory to write, such as --out captures/v20.")
        capture(
            self.source.load(),
            self.task,
            out=self.out,
            sites=Selection(sites=self.sites, layers=self.layers, dtype=self.save_dtype),
            n=self.n,
            seed=self.seed,
            n_untrained=self.n_untrained,
        )
        stored = read_manifest(self.out)
        sites = ", ".join([*stored.layers, *stored.static]) or "predictions only"
        shards = counted(len(stored.slices()), "shard")
        tell(f"{self.out}: {counted(stored.n, 'sequence')} in {shards} ({stored.dtype}): {sites}")
        return 0
