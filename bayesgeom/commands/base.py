"""What every command is, and the arguments that several share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import tyro

if TYPE_CHECKING:
    from bayesgeom.diagnosis import Diagnosis
    from bayesgeom.models.base import Model

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
AskedTask = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="NAME:KEY=VALUE,…",
        help="Another task, by NAME or NAME:key=value,key=value: hmm:length=10, prompts:domain=code, evidence, "
        "bijection-in-context:n_values=5. Where NAME is that of the checkpoint's own task, what is not written stays "
        "as it is there; else it is the default. Without --task: the checkpoint's own.",
    ),
]
RecipeName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]


class Command(ABC):
    """A subcommand: a frozen dataclass whose fields are its arguments, and whose docstrings are its help.

    Heavy imports belong inside `__call__`: every command is imported to print any command's help.
    """

    name: ClassVar[str]

    @abstractmethod
    def __call__(self) -> int:
        """Do it, print what came of it, and return the exit status."""


@final
@dataclass(frozen=True)
class Source:
    """Which model, and how it is loaded."""

    checkpoint: Name
    """Name of a shipped checkpoint (see `bayesgeom checkpoints`), a directory, or owner/name on Hugging Face's hub."""
    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, …"""
    dtype: str | None = None
    """For Hugging Face models: float32, bfloat16, … Default: as the model was saved."""
    device_map: str | None = None
    """For Hugging Face models: auto spreads whole layers over the devices that there are."""
    revision: str | None = None
    """For Hugging Face models: branch, tag or commit."""

    def load(self) -> "Model":
        """The model."""
        from bayesgeom.models.resolve import load

        return load(
            self.checkpoint, device=self.device, dtype=self.dtype, device_map=self.device_map, revision=self.revision
        )


Of = Annotated[Source, tyro.conf.OmitArgPrefixes]


def check_target(out: Path | None) -> None:
    """Refuse a directory that cannot be written before anything is measured for it."""
    from bayesgeom import diagnosis

    if out is not None:
        diagnosis.check_target(out)


def save(diagnosis: "Diagnosis", out: Path | None) -> None:
    """Write the report where `--out` says, if it does, and print where its page lies, and what lay there before."""
    from bayesgeom.diagnosis import HTML

    if out is not None:
        before = _said_at(out)
        diagnosis.save(out)
        gone = f", in place of that of {before}" if before not in ("", _said(diagnosis)) else ""
        print(f"\nreport: {out / HTML}{gone}")


def _said_at(out: Path) -> str:
    from bayesgeom.diagnosis import Diagnosis
    from bayesgeom.errors import OutputFault

    try:
        return _said(Diagnosis.load(out))
    except OutputFault:  # nothing, or nothing that could be read
        return ""


def _said(diagnosis: "Diagnosis") -> str:
    return f"{diagnosis.title} ({', '.join(diagnosis.reports)})"
