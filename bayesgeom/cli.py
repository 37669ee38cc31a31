"""The command line: arguments in, tables out. Exit status 0: done; 1: a selftest failed; 2: bad arguments or input."""

import sys
from collections.abc import Callable, Sequence
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
    ablations: bool = False
    """Run the default ablation battery as well."""
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
        diagnosis = diagnose(
            model, task, probes=self.probes, n=self.n, seed=self.seed, nulls=self.nulls, ablations=self.ablations
        )
        print(diagnosis.summary())
        if self.out is not None:
            diagnosis.save(self.out)
            print(f"\nreport: {self.out / HTML}")
        return 0


@final
@dataclass(frozen=True)
class Ablate:
    """Take parts of a model away one by one and rank what each costs, in bits of KL to the exact posterior."""

    checkpoint: Name
    """Name of a shipped checkpoint (see `bayesgeom checkpoints`) or a checkpoint directory."""
    battery: str = "all"
    """heads, attention, mlps, layers, pairs, or all (the first four)."""
    mode: Literal["zero", "mean", "resample"] = "mean"
    """What goes in place: zero, the task's mean at each position, or another trial's activation."""
    method: Literal["exact", "attribution", "both"] = "exact"
    """exact replays every ablation; attribution is a first-order preview from one backward pass."""
    task: str | None = None
    """Another task, as NAME or NAME:key=value,key=value. Default: the one it was trained on."""
    n: int = 512
    """Sequences to draw."""
    seed: int = 0
    """Seed of trials, means and intervals."""
    out: Path | None = None
    """Directory for the report; a stopped battery goes on from what is there."""
    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, …"""

    def __call__(self) -> int:
        from bayesgeom.ablate import AblationJob
        from bayesgeom.ablations.batteries import battery
        from bayesgeom.diagnosis import HTML, check_target
        from bayesgeom.models.resolve import load
        from bayesgeom.tasks.base import task_from_text

        if self.out is not None:
            check_target(self.out)
        model = load(self.checkpoint, device=self.device)
        task = None if self.task is None else task_from_text(self.task)
        chosen = battery(self.battery, model)
        job = AblationJob.of(model, task, chosen, mode=self.mode, n=self.n, seed=self.seed, method=self.method)
        report = job.run(self.out)
        diagnosis = job.diagnosis(report)
        print(f"{diagnosis.title}, {self.mode} ablation, {report.n} sequences\n\n{report.table()}\n")
        for line in report.headlines():
            print(line)
        if self.out is not None:
            diagnosis.save(self.out)
            print(f"\nreport: {self.out / HTML}")
        return 0


@final
@dataclass(frozen=True)
class Intervene:
    """Act on a subspace of the activations, layer by layer, and see whether the answer follows."""

    checkpoint: Name
    """Name of a shipped checkpoint (see `bayesgeom checkpoints`) or a checkpoint directory."""
    subspace: str = "frame"
    """entropy_axis, frame, frame:keys,HEAD, frame:ov,HEAD, belief_readout, top_jacobian:RANK, random:RANK."""
    kind: Literal["swap", "remove", "keep", "rotate", "add"] = "swap"
    """What is done to it; a swap takes it from a paired trial that differs in the latent."""
    task: str | None = None
    """Another task, as NAME or NAME:key=value,key=value. Default: the one it was trained on."""
    n: int = 256
    """Trials, or pairs of them."""
    seed: int = 0
    """Seed of trials, fits and intervals."""
    out: Path | None = None
    """Directory for the report."""
    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, …"""

    def __call__(self) -> int:
        from bayesgeom.diagnosis import HTML, Diagnosis, check_target, provenance
        from bayesgeom.intervene import InterventionJob
        from bayesgeom.interventions.fits import fit_from_text
        from bayesgeom.models.resolve import load
        from bayesgeom.tasks.base import task_from_text

        if self.out is not None:
            check_target(self.out)
        model = load(self.checkpoint, device=self.device)
        task = None if self.task is None else task_from_text(self.task)
        fit = fit_from_text(self.subspace)
        job = InterventionJob.of(model, task, fit, kind=self.kind, at=None, n=self.n, seed=self.seed)
        report = job.run()
        arguments = {"n": self.n, "seed": self.seed, "kind": self.kind, "subspace": self.subspace}
        where = provenance(model.spec, job.task, arguments)
        diagnosis = Diagnosis(reports={report.name: report}, skipped={}, provenance=where)
        print(f"{diagnosis.title}\n\n{report.table()}")
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
        from bayesgeom.models.resolve import check_device
        from bayesgeom.training.loop import train
        from bayesgeom.training.publish import publish
        from bayesgeom.training.recipes import recipe

        check_device(self.device)
        committed = recipe(self.recipe)
        steps = committed.steps if self.steps is None else self.steps
        chosen = replace(committed, steps=steps, seed=committed.seed if self.seed is None else self.seed)
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
            print(
                f"{name}\n  task    {task}\n  scores  {quality or 'not scored'}\n"
                f"  weights {description['weights_hash']}"
            )
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


_COMMANDS: dict[str, Callable[..., Callable[[], int]]] = {
    "diagnose": Diagnose,
    "ablate": Ablate,
    "intervene": Intervene,
    "train": Train,
    "checkpoints": Checkpoints,
    "selftest": Selftest,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a user's mistake is one line on standard error."""
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            _COMMANDS,
            prog="bayesgeom",
            description="Does a sequence model do Bayesian inference, and where?",
            args=arguments,
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
