"""The commands: each is its arguments, and what they do. Parsing them is `cli`'s."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, final

import tyro

from bayesgeom.errors import InvalidArgument

if TYPE_CHECKING:
    from bayesgeom.diagnosis import Diagnosis
    from bayesgeom.models.base import Model
    from bayesgeom.tasks.base import TextTask, WindTunnel

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
RecipeName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]


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


def _task(text: str | None, *, domain: str | None = None) -> "WindTunnel | TextTask | None":
    from bayesgeom.tasks.base import task_from_text

    if domain is not None:
        name, _, given = (text or "prompts").partition(":")
        if name != "prompts":
            raise InvalidArgument(f"--domain chooses prompts; {text!r} has no domains. Use --task prompts.")
        text = f"prompts:{given + ',' if given else ''}domain={domain}"
    return None if text is None else task_from_text(text)


def _check(out: Path | None) -> None:
    """Refuse a directory that cannot be written before anything is measured for it."""
    from bayesgeom.diagnosis import check_target

    if out is not None:
        check_target(out)


def _save(diagnosis: "Diagnosis", out: Path | None) -> None:
    from bayesgeom.diagnosis import HTML

    if out is not None:
        diagnosis.save(out)
        print(f"\nreport: {out / HTML}")


@final
@dataclass(frozen=True)
class Diagnose:
    """Compare a checkpoint with the exact posterior of its task, and look at its geometry."""

    source: Of
    task: str | None = None
    """Another task, as NAME or NAME:key=value,key=value: hmm:length=10, prompts:domain=code, evidence,
    bijection-in-context:n_values=5. Default: the one it was trained on."""
    domain: str | None = None
    """Of the task prompts, one domain: mixed, mathematics, code, philosophy, or two joined: mathematics+code."""
    n: int = 512
    """Sequences to draw; of prompts, at most all."""
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

    def __call__(self) -> int:
        from bayesgeom.diagnose import diagnose

        _check(self.out)
        model = self.source.load()
        task = _task(self.task, domain=self.domain)
        diagnosis = diagnose(
            model, task, probes=self.probes, n=self.n, seed=self.seed, nulls=self.nulls, ablations=self.ablations
        )
        print(diagnosis.summary())
        _save(diagnosis, self.out)
        return 0


@final
@dataclass(frozen=True)
class Ablate:
    """Take parts of a model away one by one and rank what each costs, in bits of KL to the exact posterior."""

    source: Of
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

    def __call__(self) -> int:
        from bayesgeom.ablate import AblationJob
        from bayesgeom.ablations.batteries import battery

        _check(self.out)
        model = self.source.load()
        task = _task(self.task)
        chosen = battery(self.battery, model)
        job = AblationJob.of(model, task, chosen, mode=self.mode, n=self.n, seed=self.seed, method=self.method)
        report = job.run(self.out)
        diagnosis = job.diagnosis(report)
        print(f"{diagnosis.title}, {self.mode} ablation, {report.n} sequences\n\n{report.table()}\n")
        for line in report.headlines():
            print(line)
        _save(diagnosis, self.out)
        return 0


@final
@dataclass(frozen=True)
class Intervene:
    """Act on a subspace of the activations, layer by layer, and see whether the answer follows."""

    source: Of
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

    def __call__(self) -> int:
        from bayesgeom.diagnosis import Diagnosis, provenance
        from bayesgeom.intervene import InterventionJob
        from bayesgeom.interventions.fits import fit_from_text

        _check(self.out)
        model = self.source.load()
        task = _task(self.task)
        fit = fit_from_text(self.subspace)
        job = InterventionJob.of(model, task, fit, kind=self.kind, at=None, n=self.n, seed=self.seed)
        report = job.run()
        arguments = {"n": self.n, "seed": self.seed, "kind": self.kind, "subspace": self.subspace}
        where = provenance(model.spec, job.task, arguments)
        diagnosis = Diagnosis(reports={report.name: report}, skipped={}, provenance=where)
        print(f"{diagnosis.title}\n\n{report.table()}")
        _save(diagnosis, self.out)
        return 0


@final
@dataclass(frozen=True)
class Export:
    """Write a transformer of ours as a Hugging Face directory with the same logits, or read such a directory back."""

    checkpoint: Name
    """Name of a shipped checkpoint (see `bayesgeom checkpoints`) or a directory; for --to bayesgeom, an export."""
    out: Path
    """Directory to write."""
    to: Literal["hf", "bayesgeom"] = "hf"
    """hf is what transformers reads; bayesgeom is our own form."""

    def __call__(self) -> int:
        from bayesgeom.conversion import export_checkpoint, import_checkpoint

        _check(self.out)
        write = export_checkpoint if self.to == "hf" else import_checkpoint
        print(f"{write(self.checkpoint, self.out)}: {self.out}")
        return 0


@final
@dataclass(frozen=True)
class Train:
    """Train a committed recipe; interrupted at any moment, it goes on with --resume to the same weights."""

    recipe: RecipeName
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
