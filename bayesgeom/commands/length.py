"""`bayesgeom length`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import tyro

from bayesgeom.checks.text import is_whole, shown
from bayesgeom.commands.base import HERE, Command, On, TaskOption, check_target, conclude_report
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.tables import counted

if TYPE_CHECKING:
    from bayesgeom.models.resolve import ModelLike

Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT …")]


@final
@dataclass(frozen=True)
class Length(Command):
    """Measure errors beyond the training length, and where they are discontinuous.

    It states by how much, and in which layer. A shipped checkpoint takes about 3 minutes on two CPU cores at 128
    sequences.
    """

    name: ClassVar[str] = "length"
    order: ClassVar[int] = 50

    checkpoints: Names = ()
    """Checkpoints, by name or directory. Several share one chart and the same sequences. Required."""
    to: str | None = None
    """Lengths to report, joined by commas: 50,100. There is an error if models and task allow none beyond the training
    length: a learned position table ends there (see --untrained-rows), and a bijection whose keys do not return has no
    further key. Default: 1, 1.5, 2.5 and 5 times the training length, up to what models and task allow."""
    task: TaskOption = None
    n: int = 512
    """Sequences to draw, at least 2."""
    seed: int = 0
    """Seed of sequences and intervals."""
    threshold: float = 0.01
    """KL in bits above which a position counts as failed."""
    top_attention_off: int = 0
    """Number of top layers whose attention is ablated."""
    untrained_rows: bool = False
    """Extend learned position tables that are too short with randomly initialized rows, which are not trained."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.generalization.length import length_generalization, with_room

        if not self.checkpoints:
            raise InvalidArgument("Missing from bayesgeom length: CHECKPOINT …")
        check_target(self.out)
        lengths = self._lengths()
        models: Sequence[ModelLike] = self.checkpoints
        if self.untrained_rows:
            if self.machines.on is not None:
                raise InvalidArgument(
                    "--untrained-rows extends models in this process, which --on cannot send: leave out one of them."
                )
            models = [with_room(model, self.task, lengths, seed=self.seed) for model in models]
        with self.machines.executor() as executor:
            report = length_generalization(
                models,
                self.task,
                lengths,
                n=self.n,
                seed=self.seed,
                threshold_bits=self.threshold,
                top_attention_off=self.top_attention_off,
                executor=executor,
            )
        trained = report.provenance["trained_task"]
        return conclude_report(report, self.out, f"\ntrained on {trained}; {counted(report.n, 'sequence')}")

    def _lengths(self) -> tuple[int, ...] | None:
        if self.to is None:
            return None
        parts = [part.strip() for part in self.to.split(",")]
        if not all(map(is_whole, parts)):
            raise InvalidArgument(f"--to takes whole numbers joined by commas (50,100), got {shown(self.to)}.")
        return tuple(map(int, parts))
