"""The command line: arguments in, tables out. Exit status 0: done; 1: a selftest failed; 2: bad arguments or input."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, final

import tyro

from bayesgeom.errors import BayesGeomError

Name = Annotated[str, tyro.conf.Positional]


@final
@dataclass(frozen=True)
class Diagnose:
    """Compare a checkpoint with the exact posterior of its task, and look at its geometry."""

    checkpoint: Name
    """Name of a shipped checkpoint (see `bayesgeom checkpoints`) or a checkpoint directory."""
    task: str | None = None
    """Another task, as NAME or NAME:key=value,key=value (hmm:length=10). Default: the one it was trained on."""
    n: int = 512
    """Sequences to draw."""
    seed: int = 0
    """Seed of trials, nulls and intervals."""
    nulls: int = 3
    """Freshly initialised copies of the architecture to compare with."""
    probes: tuple[str, ...] | None = None
    """Only these probes. Default: every probe that the model can serve."""
    out: Path | None = None
    """Directory for report.html, report.json, arrays.safetensors and metrics.parquet."""
    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, …"""

    def __call__(self) -> int:
        from bayesgeom.diagnose import diagnose
        from bayesgeom.diagnosis import HTML, check_target
        from bayesgeom.models.resolve import load
        from bayesgeom.tasks.base import task_from_text

        if self.out is not None:
            check_target(self.out)
        model = load(self.checkpoint, device=self.device)
        task = None if self.task is None else task_from_text(self.task)
        diagnosis = diagnose(model, task, probes=self.probes, n=self.n, seed=self.seed, nulls=self.nulls)
        print(diagnosis.summary())
        if self.out is not None:
            diagnosis.save(self.out)
            print(f"\nreport: {self.out / HTML}")
        return 0


@final
@dataclass(frozen=True)
class Train:
    """Train a committed recipe; interrupted at any moment, it goes on with --resume to the same weights."""

    recipe: Name
    """Name of the recipe; an unknown one lists those that exist."""
    out: Path | None = None
    """Directory of the run: state, log, snapshots and, at the end, the checkpoint. Default: runs/train/NAME."""
    resume: bool = False
    """Go on with the run in that directory."""
    steps: int | None = None
    """Another number of steps than the recipe's."""
    seed: int | None = None
    """Another seed than the recipe's."""
    device: str = "cpu"
    """Where to train: cpu, cuda, …"""

    def __call__(self) -> int:
        from bayesgeom.training.loop import train
        from bayesgeom.training.publish import publish
        from bayesgeom.training.recipes import recipe

        changes = {"steps": self.steps, "seed": self.seed}
        chosen = replace(recipe(self.recipe), **{key: value for key, value in changes.items() if value is not None})
        out = self.out or Path("runs/train") / self.recipe
        scores = publish(chosen, train(chosen, out, resume=self.resume, device=self.device), out / "checkpoint")
        for line in scores.headlines():
            print(line)
        print(f"\ncheckpoint: {out / 'checkpoint'}")
        return 0


@final
@dataclass(frozen=True)
class Checkpoints:
    """List the named checkpoints: their task, and how good they are."""

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
            print(f"{name}\n  task    {task}\n  scores  {quality or 'not scored'}\n  weights {description['weights_hash']}")
        return 0


@final
@dataclass(frozen=True)
class Selftest:
    """Run every probe against planted data with known answers."""

    def __call__(self) -> int:
        from bayesgeom.selftest import selftest

        verdicts = selftest()
        for verdict in verdicts:
            print(f"{'ok    ' if verdict.held else 'FAILED'}  {verdict.probe}: {verdict.control}")
        failed = sum(not verdict.held for verdict in verdicts)
        print(f"\n{len(verdicts) - failed} controls hold, {failed} do not")
        return int(failed > 0)


_COMMANDS = {"diagnose": Diagnose, "train": Train, "checkpoints": Checkpoints, "selftest": Selftest}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a user's mistake is one line on standard error."""
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            _COMMANDS, prog="bayesgeom", description="Does a sequence model do Bayesian inference, and where?", args=arguments
        )
        return int(command())
    except BayesGeomError as error:
        print(f"bayesgeom: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bayesgeom: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
