"""Base class of the commands, and the arguments that several commands share."""

import contextlib
import json
import os
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import tyro

from bayesgeom.core.columns import WIDTH
from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.core.files import JOBS
from bayesgeom.core.progress import bars_cleared
from bayesgeom.core.text import is_whole, on_lines

if TYPE_CHECKING:
    from bayesgeom.engines.executor import Batch
    from bayesgeom.models.base import Model
    from bayesgeom.results.diagnosis import Diagnosis
    from bayesgeom.results.report import Report

HUB_VARIABLE = "BAYESGEOM_TOKEN"  # environment variable of the hub's token
KEY_VARIABLE = "BAYESGEOM_SERVER_KEY"  # of an inference server's key, which no other host may get
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
TaskOption = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="NAME:KEY=VALUE,…",
        help="Another task, by NAME or NAME:key=value,key=value: hmm:length=10, prompts:domain=code, evidence, "
        "bijection-in-context:n_values=5. If NAME is the checkpoint's own task, other parameters keep the checkpoint's "
        "values; otherwise they take their defaults.",
        help_behavior_hint="(default: the checkpoint's own task)",
    ),
]
RecipeName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]


class Command(ABC):
    """A subcommand: a frozen dataclass whose fields are its arguments and whose docstrings are its help.

    Heavy imports belong inside `__call__`, because `--help` imports every command.
    """

    name: ClassVar[str]
    order: ClassVar[int] = 1_000
    """Place in `bayesgeom --help`, which lists commands in the order of use. Default: after those of this package."""
    hint: ClassVar[str] = ""
    """A sentence added to the error about options that this command does not have."""

    @abstractmethod
    def __call__(self) -> int:
        """Run the command, print the result, and return the exit status."""

    @classmethod
    def choices(cls) -> Mapping[str, Mapping[str, str]]:
        """Return the allowed values of options with a description each, by title. `--help` prints them."""
        return {}


@final
@dataclass(frozen=True)
class Source:
    """Which model to load, and how."""

    checkpoint: Name
    """Name of a shipped checkpoint (see `bayesgeom checkpoints`), a directory, or owner/name on Hugging Face's hub."""
    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, …"""
    dtype: str | None = None
    """For Hugging Face models: float32, bfloat16, … Default: the dtype in which the model was saved."""
    device_map: str | None = None
    """For Hugging Face models: auto distributes whole layers over the available devices.
    Default: the whole model on --device."""
    revision: str | None = None
    """For Hugging Face models: branch, tag or commit. Default: the hub's main branch."""
    memory_gib: float | None = None
    """Memory for recorded activations, in GiB. Default: a share of the free memory."""
    batch_size: int | None = None
    """Most sequences in a forward pass. Default: according to the memory of a pass."""
    attn_implementation: str | None = None
    """For Hugging Face models: eager, sdpa, … Default: as transformers chooses."""
    max_memory: dict[str, str] | None = None
    """For Hugging Face models with --device-map: memory by device, as in --max-memory 0 20GiB cpu 64GiB.
    Default: all free memory."""
    quantization_config: str | None = None
    """For Hugging Face models: the quantization to load with, as JSON: '{"quant_method": "torchao", …}'.
    Default: as the model was saved."""
    local_files_only: bool = False
    """For Hugging Face models: use only files on this machine, never the hub."""
    tokenizer: str | None = None
    """Directory, GGUF file or hub name of a tokenizer. A server requires one. $BAYESGEOM_SERVER_KEY is the server's
    key, $BAYESGEOM_TOKEN the hub's token. Default: the model's own tokenizer."""
    top: int | None = None
    """For a server: number of most probable tokens to request. Default: 20."""

    def load(self) -> "Model":
        """Load the model."""
        from bayesgeom.models.resolve import load
        from bayesgeom.models.served.client import is_address

        # No arguments: other users of a machine can read those.
        key = os.environ.get(KEY_VARIABLE) if is_address(self.checkpoint) else None
        return load(
            self.checkpoint,
            device=self.device,
            dtype=self.dtype,
            tokenizer=self.tokenizer,
            memory_gib=self.memory_gib,
            device_map=self.device_map,
            revision=self.revision,
            batch_size=self.batch_size,
            attn_implementation=self.attn_implementation,
            max_memory=None if self.max_memory is None else {_device(k): v for k, v in self.max_memory.items()},
            quantization_config=_parsed(self.quantization_config),
            local_files_only=self.local_files_only or None,
            token=os.environ.get(HUB_VARIABLE),
            server_key=key or None,
            top=self.top,
        )

    def name_alone(self) -> str:
        """Return the name by which workers load it.

        Raises:
            InvalidArgument: There are options of loading, which jobs do not support.
        """
        default = Source(self.checkpoint)
        if given := [
            f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value != vars(default)[name]
        ]:
            raise InvalidArgument(f"with --on, workers load a model as it was saved: leave out {', '.join(given)}.")
        return self.checkpoint


def _device(name: str) -> str | int:
    return int(name) if is_whole(name) else name


def _parsed(text: str | None) -> dict[str, Any] | None:
    """The quantization of `--quantization-config`; anything but a JSON object raises `InvalidArgument`."""
    try:
        found = None if text is None else json.loads(text)
    except ValueError:
        found = text
    if found is not None and not isinstance(found, dict):
        raise InvalidArgument(f"--quantization-config must be a JSON object, got {text!r}.")
    return found


Of = Annotated[Source, tyro.conf.OmitArgPrefixes]


@final
@dataclass(frozen=True)
class Machines:
    """Where jobs run."""

    on: str | None = None
    """Run jobs on local:N (processes here), slurm, ray, ray://ADDRESS or dask://HOST:PORT. Default: no jobs."""
    on_options: Path | None = None
    """TOML file with the engine's own options, in a table of its name: [slurm], [ray] or [dask].
    Default: none."""
    jobs: Path = JOBS
    """With --on: directory of the jobs' results, which every worker sees. What is there is not computed again."""

    @contextlib.contextmanager
    def executor(self) -> "Iterator[Batch | None]":
        """What `--on` names, for the length of a block; None without it."""
        if self.on is None:
            if self.on_options is not None:
                raise InvalidArgument("--on-options are those of an engine: name it with --on.")
            yield None
            return
        from bayesgeom.engines.executor import Batch
        from bayesgeom.engines.named import engine

        with engine(self.on, self.on_options) as executor:
            yield Batch(executor=executor, folder=self.jobs)


On = Annotated[Machines, tyro.conf.OmitArgPrefixes]
HERE = Machines()


def check_target(out: Path | None) -> None:
    """Check that the output directory can be written, before anything is measured."""
    from bayesgeom.results import folder

    if out is not None:
        folder.check_target(out)


def conclude(diagnosis: "Diagnosis", out: Path | None, *lines: str) -> int:
    """Save the report to `--out`, if given, then print the lines and the path of the report's page, or how to get one.

    The lines are printed even if the report cannot be saved.

    Returns:
        The exit status, 0.

    Raises:
        OutputFault: The report cannot be saved, or standard output cannot be written.
    """
    from bayesgeom.results.folder import HTML

    if out is None:
        tell(*lines, "\nreport: not saved; --out DIRECTORY saves a page with all numbers and figures")
        return 0
    before = _title_at(out)
    try:
        diagnosis.save(out)
    except OutputFault:
        with contextlib.suppress(OutputFault):  # the first fault is reported
            tell(*lines)
        raise
    replaced = [] if before in ("", _title(diagnosis)) else [f"It replaces that of {before}."]
    try:
        tell(*lines, f"\nreport: {out / HTML}", *replaced)
    except OutputFault as fault:
        raise OutputFault(f"{fault} The report is complete: {out / HTML}.") from fault
    return 0


def conclude_report(report: "Report", out: Path | None, *below: str) -> int:
    """Conclude with what `print(report)` prints, and lines below it; see `conclude`."""
    from bayesgeom.results.diagnosis import Diagnosis

    return conclude(Diagnosis.of(report), out, report.summary(left_out_at(out)), *below)


def left_out_at(out: Path | None) -> str:
    """Return where to find what a printed summary leaves out."""
    from bayesgeom.results.folder import HTML

    return "in the saved report" if out is None else f"see {HTML}"


def tell(*lines: str) -> None:
    """Print lines to standard output and flush it. Lines of more than 100 columns wrap; paths are never broken.

    Raises:
        OutputFault: Standard output cannot be written, for example because the disk is full.
        BrokenPipeError: The reader of the output has closed the pipe.
    """
    with writing_output(), bars_cleared():
        print("\n".join(map(_folded, on_lines("\n".join(lines)).split("\n"))), flush=True)


def _folded(line: str) -> str:
    """Wrap a line at whole words, indented by two columns more than it is."""
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def flush() -> None:
    """Flush standard output. Raises the errors of `tell`."""
    with writing_output():
        if sys.stdout is not None:
            sys.stdout.flush()


def note(text: str) -> None:
    """Print a line to standard error. A standard error that cannot be written is ignored: no result is lost."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError), bars_cleared():
        print(on_lines(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def writing_output() -> Iterator[None]:
    """Turn failures to write standard output into the errors of `tell`."""
    try:
        yield
    except (BrokenPipeError, OutputFault):  # the latter from an inner block
        raise
    except OSError as error:
        if error.filename is not None:  # of a file, not of standard output
            raise
        raise OutputFault(f"cannot write to standard output: {error.strerror or error}.") from error


def _title_at(out: Path) -> str:
    """Return the title of the report in this directory, or "" if it holds none."""
    from bayesgeom.results.storage import JSON

    file = out / JSON
    try:
        stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        return ""
    match stored:
        case {"provenance": {"model": {"name": str(name)}, "task_label": str(task)}, "reports": dict(reports)}:
            return f"{name} on {task} ({', '.join(reports)})"
    return ""


def _title(diagnosis: "Diagnosis") -> str:
    return f"{diagnosis.title} ({', '.join(diagnosis.reports)})"
