"""The command line: a function for each command, whose parameters are the options and whose docstring is the help.

A command returns a report, which is printed and saved to `--out`, or an exit status; 2 is for invalid input. Heavy
libraries load within the functions. Another package adds an entry point in the group `bayesgeom.commands`.
"""

import contextlib
import inspect
import io
import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points, version
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, final

import tyro
from tyro.conf import DisallowNone, OmitArgPrefixes, Positional, UseAppendAction, arg

import bayesgeom
from bayesgeom.core import BayesGeomError, InvalidArgument, OutputFault, number_text, phase, unknown_name
from bayesgeom.core.errors import is_whole_number, on_lines, quoted
from bayesgeom.core.files import JOBS, RUNS, is_temporary
from bayesgeom.core.plugins import declared, plugin_values
from bayesgeom.core.progress import bars_cleared, phases_shown
from bayesgeom.core.text import WIDTH, aligned_table, count_text, text_width

if TYPE_CHECKING:
    from bayesgeom.executors import Batch
    from bayesgeom.models.base import Model
    from bayesgeom.report.report import Report
    from bayesgeom.subspaces.base import Fit
    from bayesgeom.tasks import Prompts

T = TypeVar("T")
Maybe = Annotated[T | None, arg(help_behavior_hint="(optional)")]
Checkpoint = Annotated[str, Positional, arg(metavar="CHECKPOINT")]
TaskOption = Annotated[
    str | None,
    arg(
        metavar="NAME:KEY=VALUE,…",
        help=f"Another task: {', '.join(name for name in declared('tasks') if name != 'in-context')}; a process by its "
        "name, bloch-walk, coin, days-of-week, even, fanizza, golden-mean, leaky-rrxor, matching-parens, mr-name, "
        "no-consecutive-ones, post-quantum, rrxor, sns, tom-quantum, z1r or zero-one-random; or, in words, "
        "NAME-in-context. hmm:length=10 changes one parameter.",
        help_behavior_hint="(default: the checkpoint's own task)",
    ),
]
Probes = Annotated[
    tuple[str, ...] | None,
    arg(
        help=f"Measure only these of {', '.join(declared('measurements'))}. value_manifold:standardized is an option; "
        "relabeling, evidence_response and inside (the viewer) run the model again; audit and fitted_lens "
        "(fitted_lens:MAP with a J-lens) run only if they are named.",
        help_behavior_hint="(default: all that apply)",
    ),
]
Out = Annotated[Path | None, arg(help="Directory for the report.", help_behavior_hint="(default: not saved)")]
N = Annotated[int, arg(help="Sequences to draw.")]
Seed = Annotated[int, arg(help="Seed of sequences, fits, controls and intervals.")]
Device = Annotated[str, arg(help="Where to run: cpu, cuda, cuda:1, …")]


def described(entry: T) -> T:
    """Join the lines of each entry of a docstring: tyro keeps the ends of indented lines."""
    entry.__doc__ = re.sub(r"\n {8,}", " ", inspect.cleandoc(entry.__doc__ or ""))
    return entry


@final
@described
@dataclass(frozen=True)
class Source:
    """Which model to load, and how.

    Args:
        checkpoint: A shipped checkpoint (`bayesgeom checkpoints`), a directory, or owner/name on the Hugging Face hub.
        dtype: Hugging Face models: float32, bfloat16, … Default: the dtype in which the model was saved.
        device_map: Hugging Face models: auto distributes whole layers over the devices. Default: all on --device.
        revision: Hugging Face models: branch, tag or commit. Default: the hub's main branch.
        memory_gib: Memory for recorded activations, in GiB. Default: a share of the free memory.
        batch_size: Most sequences in a forward pass. Default: according to the memory of a pass.
        attn_implementation: Hugging Face models: eager, sdpa, … Default: as transformers chooses.
        max_memory: With --device-map: memory by device: --max-memory 0 20GiB cpu 64GiB. Default: all free memory.
        quantization_config: Hugging Face models: quantization to load with, as JSON: '{"quant_method": "torchao", …}'.
        local_files_only: Hugging Face models: use only files on this machine, never the hub.
        tokenizer: Directory, GGUF file or hub name of a tokenizer, which a server requires. Default: the model's own.
            $BAYESGEOM_SERVER_KEY is the server's key, $BAYESGEOM_TOKEN the hub's token.
        top: Servers: number of most probable tokens to request. Default: 20.
    """

    checkpoint: Checkpoint
    device: Device = "cpu"
    dtype: Maybe[str] = None
    device_map: Maybe[str] = None
    revision: Maybe[str] = None
    memory_gib: Maybe[float] = None
    batch_size: Maybe[int] = None
    attn_implementation: Maybe[str] = None
    max_memory: Maybe[dict[int | str, str]] = None
    quantization_config: Maybe[str] = None
    local_files_only: bool = False
    tokenizer: Maybe[str] = None
    top: Maybe[int] = None

    def load(self) -> "Model":
        """Load the model."""
        from bayesgeom.models.served.client import is_address

        options = {name: value for name, value in vars(self).items() if name != "checkpoint"}
        # Secrets are no arguments, which other users of a machine can read; no other host may get the server's key.
        key = os.environ.get("BAYESGEOM_SERVER_KEY") if is_address(self.checkpoint) else None
        options |= {"token": os.environ.get("BAYESGEOM_TOKEN"), "server_key": key or None}
        options |= {"local_files_only": self.local_files_only or None}
        if (quantization := self.quantization_config) is not None:
            with contextlib.suppress(ValueError):
                options["quantization_config"] = json.loads(quantization)
            if not isinstance(options["quantization_config"], dict):
                raise InvalidArgument(f"--quantization-config must be a JSON object, got {quantization!r}.")
        return bayesgeom.load(self.checkpoint, **options)

    def name_alone(self) -> str:
        """Return the name by which workers load it: options of loading, which jobs do not support, are refused."""
        default = vars(Source(self.checkpoint))
        if given := [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value != default[name]]:
            raise InvalidArgument(f"leave out {', '.join(given)}: jobs and snapshots are of models as they were saved.")
        return self.checkpoint


@final
@described
@dataclass(frozen=True)
class Machines:
    """Where jobs run.

    Args:
        on: Run jobs on local:N (processes here), slurm, ray, ray://ADDRESS or dask://HOST:PORT. Default: no jobs.
        on_options: TOML file with the engine's own options, in a table of its name: [slurm], [ray] or [dask].
        jobs: With --on: directory of the jobs' results, which every worker sees. What is there is not computed again.
    """

    on: Maybe[str] = None
    on_options: Maybe[Path] = None
    jobs: Path = JOBS

    @contextlib.contextmanager
    def executor(self) -> "Iterator[Batch | None]":
        """What `--on` names, for the length of a block; None without it."""
        if self.on is None:
            if self.on_options is not None:
                raise InvalidArgument("--on-options are those of an engine: name it with --on.")
            yield None
            return
        from bayesgeom.executors import Batch, connect

        with connect(self.on, self.on_options) as executor:
            yield Batch(executor=executor, folder=self.jobs)


Of = Annotated[Source, OmitArgPrefixes]
On = Annotated[Machines, OmitArgPrefixes]
HERE = Machines()
COMMANDS = dict[str, Callable[..., Any]]()
GROUPS = dict[str, list[str]]()  # names of commands by the heading of `bayesgeom --help`, in the order of this file


def command(heading: str) -> Callable[[T], T]:
    """Enter a function as a command."""

    def entered(function: T) -> T:
        assert isinstance(function, FunctionType)
        name = function.__name__.replace("_", "-")
        COMMANDS[name] = function
        GROUPS.setdefault(heading, []).append(name)
        return function

    return entered


@command("Measure one model")
def diagnose(
    source: Of,
    task: TaskOption = None,
    domain: Maybe[str] = None,
    chat: bool = False,
    texts: Maybe[Path] = None,
    quick: bool = False,
    n: Annotated[int | None, arg(help="Sequences to draw.", help_behavior_hint="(default: 512)")] = None,
    seed: Seed = 0,
    n_untrained: Annotated[int | None, arg(help_behavior_hint="(default: 3)")] = None,
    probes: Probes = None,
    ablations: bool = False,
    machines: On = HERE,
) -> "bayesgeom.Diagnosis":
    """Compare a model with the exact posterior of its task, and measure its geometry.

    The answer is printed as soon as predictions and evidence response are measured. bijection-v20 takes about 5 seconds
    with n = 512, plus 2.5 seconds for each untrained network at any n. Time is proportional to n and to the size of the
    network.

    Args:
        domain: For the task prompts: mixed, mathematics, code, philosophy, or two: mathematics+code. Default: all.
        chat: Write the task in the tokenizer's chat template: prompts as a user's messages, others as the answer.
        texts: File with your own prompts, for the task prompts: one a line, or JSONL with "text" or "prompt".
        quick: Use 24 sequences and one untrained network where --n and --n-untrained are not given.
        n_untrained: Number of untrained networks of the same architecture to compare with. The answer takes 8, unless
            this is 0 or the model has more than 50 million parameters.
        ablations: Also run the default ablation battery.
    """
    n = (24 if quick else 512) if n is None else n
    n_untrained = (1 if quick else 3) if n_untrained is None else n_untrained
    counts = {"n": n, "seed": seed, "n_untrained": n_untrained}
    asked = _text_task(task, domain, texts, chat=chat)
    model = source.load() if machines.on is None else source.name_alone()
    with machines.executor() as executor:
        return bayesgeom.diagnose(model, asked, probes=probes, ablations=ablations, executor=executor, **counts)


@command("Measure one model")
def view(source: Of, task: TaskOption = None, live: bool = False, seed: Seed = 0, out: Path = Path("view.html")) -> int:
    """Write a page that shows the exact posterior next to the insides of a model, for eight sequences.

    It is part of the page of `diagnose`; alone it takes seconds.

    Args:
        live: The page runs the model, while the reader edits the evidence: for small transformers of this package.
        out: File to write.
    """
    if live:
        from bayesgeom.diagnosis.live import live_html
        from bayesgeom.report.storage import write_page

        write_page(live_html(source.load(), task, seed=seed), out)
    else:
        bayesgeom.diagnose(source.load(), task, probes=["inside"], n=8, seed=seed, n_untrained=0).to_html(out)
    tell(f"page: {out}")
    return 0


def _text_task(task: str | None, domain: str | None, texts: Path | None, *, chat: bool) -> "str | Prompts | None":
    """Combine `--task`, `--domain`, `--texts` and `--chat`."""
    name, _, given = (task or ("" if domain is None and texts is None else "prompts")).partition(":")
    if domain is not None and (name != "prompts" or texts is not None):
        raise InvalidArgument("--domain chooses prompts of bayesgeom: use it with --task prompts and without --texts.")
    if chat and not name:
        raise InvalidArgument("--chat needs a task in text: name one with --task, such as prompts or evidence.")
    added = [] if domain is None else [f"domain={domain}"]
    added += ["chat=True" if name == "prompts" else "style=chat"] if chat else []
    written = f"{name}:{','.join(filter(None, [given, *added]))}" if added else task
    if texts is None:
        return written
    from bayesgeom.models.resolve import as_task
    from bayesgeom.tasks.prompts import Prompts, texts_in

    if not isinstance(chosen := as_task(written or name, trained=None), Prompts):
        raise InvalidArgument(f"--texts are your own prompts, and --task {task} draws others: leave one of them out.")
    return replace(chosen, texts=texts_in(texts))


@command("Measure one model")
def ablate(
    source: Of,
    battery: str = "all",
    mode: str = "mean",
    method: Literal["exact", "attribution", "both"] = "exact",
    task: TaskOption = None,
    n: N = 512,
    seed: Seed = 0,
    out: Out = None,
    machines: On = HERE,
) -> "Report":
    """Ablate components one by one, and rank them by the KL increase in bits.

    A shipped checkpoint takes 3 to 6 minutes on two CPU cores. With --out, an interrupted run continues there.

    Args:
        battery: heads, attention, mlps, layers, pairs, neurons (the strongest 64), experts, or all (the first four).
        mode: Replacement for the ablated activation: zero; mean over sequences; or resample, from another sequence.
        method: exact replays every ablation; attribution is a first-order preview from one backward pass.
    """
    from bayesgeom.ablations.run import attribution_preview

    model = source.load() if machines.on is None else source.name_alone()
    report = None
    if method != "attribution":
        with machines.executor() as executor:
            report = bayesgeom.ablate(model, task, battery, mode=mode, n=n, seed=seed, out=out, executor=executor)
    if report is None or method == "both":
        report = attribution_preview(model, task, battery, mode=mode, n=n, seed=seed, exact=report)
    return report


@command("Measure one model")
def intervene(
    source: Of,
    subspace: str = "frame",
    kind: Literal["swap", "remove", "keep", "rotate", "add"] = "swap",
    donors: Literal["auto", "paired", "independent"] = "auto",
    positions: Maybe[Literal["all", "scored"]] = None,
    score_after: bool = False,
    onwards: bool = False,
    lags: tuple[int, ...] = (),
    doses: tuple[float, ...] = (),
    controls: int = 20,
    n_fit: int = 1_024,
    n_untrained: int = 3,
    layers: Maybe[str] = None,
    site: str = "resid_pre",
    task: TaskOption = None,
    n: int = 256,
    seed: Seed = 0,
) -> "Report":
    """Intervene on a subspace of the activations, and report whether the model uses it.

    A shipped checkpoint takes 1 to 15 minutes on two CPU cores with --n 64, about 4 for most subspaces.

    Args:
        subspace: covariance:QUANTITY, leace:QUANTITY (both also with ,given=position+answer+known), decoder:QUANTITY,
            trained_swap:RANK,QUANTITY, entropy_axis, entropy_axis:pc1, entropy_axis:pc1_standardized, frame,
            frame:keys,HEAD, frame:ov,HEAD, top_jacobian:RANK or random:RANK. QUANTITY: entropy, belief,
            log_odds:HYPOTHESIS or statistic:NAME.
        kind: What to do with the subspace. A swap takes it from another sequence; only a swap can show use.
        donors: Sequences to swap from: the task's pairs, independent ones, or pairs if they differ in the quantity.
        positions: Positions to intervene at. Default: scored for subspaces of a quantity, all for others.
        score_after: Intervene at one scored position and score only later ones.
        onwards: Erase the quantity of --subspace at all positions, from each of --layers to the last, in one pass.
        lags: Numbers of scored positions, such as 0 1 2 4 8: swap up to one position, and score so many later.
        doses: Multiples of the first direction's standard deviation that --kind add adds, such as -2 -1 0 1 2.
        controls: Number of random subspaces, and of those with the same share of variance. Below 20 none can show use.
        n_fit: Number of sequences that subspaces are fitted on. With fewer, erasure is less complete.
        n_untrained: Number of untrained networks in which a swap is repeated. Below 2 none can show use.
        layers: Layers to intervene in, one at a time: 1,3; together: 1+3, or 1,1+3. Default: all, one at a time.
        site: resid_pre, z, attn_out, resid_mid, mlp_out or resid_post; for several layers together also v; with
            --score-after also carried, the state (h, c) of an LSTM.
        n: Number of sequences, or of pairs.
    """
    from bayesgeom.interventions.design import Design
    from bayesgeom.subspaces.fits import fit_from_text

    places, fit, model = _places(site, layers), fit_from_text(subspace), source.load()
    is_joint = any(len(place.layers or ()) > 1 for place in places)
    sites = replace(places[0], layers=tuple(at for place in places for at in place.layers or ()) or None)
    if onwards:
        if is_joint or lags or doses:
            raise InvalidArgument("--onwards takes first layers joined by commas, not by +, and no --lags or --doses.")
        return _onwards(model, task, fit, sites, n=n, seed=seed)
    given: dict[str, Any] = {"lags": lags, "doses": doses, "n_fit": n_fit, "n": n, "seed": seed}
    if is_joint:
        return bayesgeom.intervene(model, task, fit, sites=places, kind=kind, **given)
    sites = replace(sites, positions=positions, score_after=score_after)
    design = Design(kind, donors=donors, n_random=controls, n_matched=controls, n_untrained=n_untrained)
    report: Report = bayesgeom.intervene(model, task, fit, sites=sites, kind=design, **given)
    return report


def _onwards(
    model: "Model", task: str | None, fit: "Fit", sites: "bayesgeom.InterventionSite", **counts: int
) -> "Report":
    """Erase the quantity of a subspace that an eraser fits, from each layer on."""
    from bayesgeom.subspaces.erasers import Eraser

    if not isinstance(fit, Eraser) or fit.given:
        raise InvalidArgument(f"--onwards takes covariance:QUANTITY or leace:QUANTITY alone; got {fit.label}.")
    return bayesgeom.erase_onwards(model, task, fit.quantity, sites=sites, oblique=fit.oblique, **counts)


def _places(site: str, layers: str | None) -> "list[bayesgeom.InterventionSite]":
    """Return one site per set of layers, or one site for all layers if none is named."""
    from bayesgeom.core.run import site_of
    from bayesgeom.models.replay.carried import CARRIED

    place = CARRIED if site == CARRIED.name else site_of(site)
    if layers is None:
        return [bayesgeom.InterventionSite(place)]
    sets = [part.split("+") for part in layers.split(",")]
    if not all(is_whole_number(layer.strip()) for several in sets for layer in several):
        raise InvalidArgument(f"--layers takes whole numbers joined by , or +: 1,3 or 1+3; got {quoted(layers)}.")
    return [bayesgeom.InterventionSite(place, tuple(map(int, several))) for several in sets]


@command("Measure one model")
def length(
    checkpoints: Annotated[tuple[str, ...], Positional, arg(metavar="CHECKPOINT …", help_behavior_hint="(required)")],
    to: Maybe[str] = None,
    task: TaskOption = None,
    n: N = 512,
    seed: Seed = 0,
    threshold: float = 0.01,
    untrained_rows: bool = False,
    machines: On = HERE,
) -> "Report":
    """Measure errors beyond the training length, and where they are discontinuous.

    A shipped checkpoint takes about 3 minutes on two CPU cores at 128 sequences.

    Args:
        checkpoints: Checkpoints, by name or directory. Several share one chart and the same sequences.
        to: Lengths to report, joined by commas: 50,100. They end where a learned position table does (see
            --untrained-rows), or a bijection has no further key. Default: up to 5 times the training length.
        threshold: KL in bits above which a position counts as failed.
        untrained_rows: Extend learned position tables that are too short with random rows, which are not trained.
    """
    parts = [] if to is None else [part.strip() for part in to.split(",")]
    if not all(map(is_whole_number, parts)):
        raise InvalidArgument(f"--to takes whole numbers joined by commas (50,100), got {quoted(to)}.")
    at = tuple(map(int, parts)) or None
    models: list[Any] = list(checkpoints)
    if untrained_rows:
        if machines.on is not None:
            raise InvalidArgument("--untrained-rows extends models here, and --on cannot send them: leave out one.")
        from bayesgeom.generalization.length import with_room

        models = [with_room(model, task, at, seed=seed) for model in models]
    measured = partial(bayesgeom.length_generalization, models, task, at, n=n, seed=seed, threshold_bits=threshold)
    with machines.executor() as executor:
        return measured(executor=executor)


@command("Measure one model")
def relabel(source: Of, task: TaskOption = None, n: N = 512, seed: Seed = 0) -> "Report":
    """Test invariance to renaming the hypotheses.

    These are values of a map or states of an HMM. A shipped checkpoint takes 5 to 30 seconds on two CPU cores.
    """
    return bayesgeom.relabeling_invariance(source.load(), task, n=n, seed=seed)


@command("Measure one model")
def response(
    source: Of,
    task: TaskOption = None,
    ages: Maybe[tuple[int, ...]] = None,
    single: bool = False,
    n: Maybe[int] = None,
    seed: Seed = 0,
) -> "Report":
    """Measure how far the answers follow old evidence.

    It is drawn again, given the later evidence, and the change of the model's answers compared with the exact change.

    Args:
        ages: Numbers of the latest pieces of evidence that stay. Default: 1, 2, 4, 8, …
        single: Draw only the piece of each age again, instead of all older ones.
        n: Number of sequences. Default: 128, for old evidence up to 1,024, until the interval is ±0.1.
    """
    return bayesgeom.evidence_response(source.load(), task, ages=ages, single=single, n=n, seed=seed)


@command("Measure one model")
def sweep(
    task: Annotated[str, Positional, arg(metavar="TASK")],
    vary: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="NAME=VALUE,VALUE,…")],
    checkpoint: Maybe[str] = None,
    n: N = 512,
    seed: Seed = 0,
    threshold: float = 0.05,
    machines: On = HERE,
) -> "Report":
    """Vary one parameter of a task, and measure how fast the posterior converges.

    A value takes seconds on two CPU cores. With a checkpoint, its distance to the posterior is measured, too.

    Args:
        task: The task, as for `bayesgeom diagnose --task`: hmm, sticky-markov:length=40, evidence.
        vary: The parameter and its values: floor=0.05,0.1,0.2 or noise=0.01,0.1,0.5. Give the option once.
        checkpoint: A checkpoint to compare with the exact posterior. Default: only the exact posterior is measured.
        threshold: The posterior has converged when its mean entropy is within this many bits of its floor.
    """
    from bayesgeom.tasks.base import literal

    key, _, listed = vary[0].partition("=") if vary else ("", "", "")
    chosen = [literal(part.strip()) for part in listed.split(",") if part.strip()]
    if len(vary) != 1 or not chosen:
        raise InvalidArgument(f"--vary takes a parameter with values, once: noise=0,1; got {' '.join(vary) or None}.")
    with machines.executor() as executor:
        return bayesgeom.sweep(
            task, key.strip(), chosen, checkpoint, n=n, seed=seed, threshold_bits=threshold, executor=executor
        )


@command("Measure one model")
def check_task(task: Annotated[str, Positional, arg(metavar="TASK")], n: N = 512, seed: Seed = 0) -> "Report":
    """Measure what a task can show: which shortcuts predict as well as the exact belief. No model is run.

    Args:
        task: The task, as for `bayesgeom diagnose --task`: mess3:x=0.05,a=0.85, rrxor, dice.
    """
    return bayesgeom.check_task(task, n=n, seed=seed)


@command("Measure one model")
def gradients(
    source: Of,
    task: TaskOption = None,
    targets: Literal["sampled", "exact"] = "sampled",
    over_training: bool = False,
    n: Maybe[int] = None,
    seed: Seed = 0,
) -> "Report":
    """Measure the loss gradients at each head, and check the laws that they obey.

    A shipped checkpoint takes 5 to 60 seconds on two CPU cores, and with --over-training as long for each snapshot.

    Args:
        targets: The loss: hard labels, or the exact predictive as soft labels.
        over_training: CHECKPOINT is a training run or a packed training: measure every snapshot, on the run's own task.
        n: Sequences to draw. Default: 64, or 32 per snapshot with --over-training.
    """
    counts = {"seed": seed} if n is None else {"seed": seed, "n": n}
    if not over_training:
        return bayesgeom.gradient_laws(source.load(), task, targets=targets, **counts)
    if task is not None:
        raise InvalidArgument("--task is not allowed with --over-training: snapshots are measured on their own task.")
    run = replace(source, device="cpu").name_alone()
    return bayesgeom.gradient_movement(run, targets=targets, device=source.device, **counts)


@command("Measure one model")
def capture(
    source: Of,
    out: Path,
    task: TaskOption = None,
    sites: Maybe[tuple[str, ...]] = None,
    layers: Maybe[tuple[int, ...]] = None,
    save_dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    n: N = 512,
    seed: Seed = 0,
    n_untrained: int = 0,
) -> int:
    """Record activations and predictions in files, which `diagnose DIRECTORY` reads.

    Recording takes about as long as the forward passes of the model on --n sequences.

    Args:
        out: Directory to write, such as captures/v20. A capture that was stopped continues there.
        sites: Sites to record: resid_post k v … Default: all that a probe reads.
        layers: Layers to record: 0 5 11. Default: all that have the site.
        save_dtype: Data type of the recorded activations: float32, float16 or bfloat16.
        n_untrained: Number of untrained networks to capture as baselines, on at most 192 sequences each.
    """
    from bayesgeom.diagnosis.recording import Selection
    from bayesgeom.models.captured.model import read_manifest

    selection = Selection(sites=sites, layers=layers, dtype=save_dtype)
    bayesgeom.capture(source.load(), task, out=out, sites=selection, n=n, seed=seed, n_untrained=n_untrained)
    stored = read_manifest(out)
    recorded = ", ".join([*stored.layers, *stored.static]) or "predictions only"
    tell(f"{out}: {count_text(stored.n, 'sequence')} ({stored.dtype}): {recorded}")
    return 0


@command("Compare models and snapshots")
def compare(
    models: Annotated[tuple[str, ...], Positional, arg(metavar="MODEL …", help_behavior_hint="(required)")],
    task: TaskOption = None,
    n: Maybe[int] = None,
    seed: Maybe[int] = None,
    probes: Maybe[tuple[str, ...]] = None,
    cka: bool = False,
) -> "Report":
    """Compare checkpoints on the same sequences, or saved diagnoses.

    Two shipped checkpoints take about 30 seconds on two CPU cores.

    Args:
        models: Checkpoints, or directories of saved diagnoses; differences are from the first.
        n: Number of sequences for checkpoints. Default: 512.
        seed: Seed of the sequences and intervals, for checkpoints. Default: 0.
        probes: Compare all estimates of these probes, and not calibration alone.
        cka: Measure how alike the layers of every two checkpoints are (linear CKA).
    """
    return bayesgeom.compare(models, task, n=n, seed=seed, probes=probes, cka=cka)


@command("Compare models and snapshots")
def dynamics(
    runs: Annotated[tuple[str, ...], Positional, arg(metavar="RUN …", help_behavior_hint="(required)")],
    n: N = 256,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = None,
    machines: On = HERE,
) -> "bayesgeom.Diagnosis":
    """Measure the geometry over the snapshots of a training: what settles first.

    A snapshot takes 1 to 30 seconds on two CPU cores. Measured ones are kept in the run or in --out, to continue.

    Args:
        runs: Directories of runs, or names of packed trainings, one per seed; or the checkpoints of a single training.
    """
    with machines.executor() as executor:
        return bayesgeom.training_dynamics(*runs, n=n, seed=seed, device=device, out=out, executor=executor)


@command("Train and exchange models")
def train(
    name: Annotated[str, Positional, arg(metavar="RECIPE")],
    out: Maybe[Path] = None,
    resume: bool = False,
    set: Annotated[tuple[str, ...], UseAppendAction] = (),  # noqa: A002  # the name of the option
    steps: Maybe[int] = None,
    seed: int = 0,
    keep: Maybe[int] = None,
    device: Device = "cpu",
    precision: Literal["auto", "bfloat16", "float32"] = "auto",
) -> int:
    """Train a recipe.

    An interrupted run continues with --resume, and ends with the same weights on the same kind of CPU with as many
    threads. Recipes take between five minutes and several hours; the progress bar shows the time that remains.

    Args:
        name: Name of the recipe. An unknown name lists the available recipes.
        out: Directory of the run and, at the end, its checkpoint. Default: runs/train/NAME[-seedK].
        resume: Continue the run in that directory.
        set: Change a size, a parameter of the task or a batch size: --set n_layers=2 is added to the recipe's name.
        steps: Number of steps of the last stage. Default: the recipe's.
        seed: Index of the recipe's seed: 0 is the recipe itself.
        keep: Number of log-spaced snapshots to keep after step 0; 0 keeps only the last step. Default: the recipe's.
        precision: Of matrix products. auto: that of a resumed run, else bfloat16 where it is fast, or float32.
    """
    from bayesgeom.models.checkpoint_files import FINISHED
    from bayesgeom.training.publish import make_checkpoint
    from bayesgeom.training.recipes import recipe

    chosen = recipe(name).resized(_assignments(set)).reseeded(seed)
    asked: dict[str, Any] = {"steps": steps, "snapshots": keep}
    chosen = replace(chosen, **{option: value for option, value in asked.items() if value is not None})
    out = out or RUNS / chosen.name
    scores = make_checkpoint(chosen, out, resume=resume, device=device, precision=precision)
    tell(*map(str, scores.headlines()), f"\ncheckpoint: {out / FINISHED}")
    return 0


def _assignments(listed: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--set KEY=VALUE` by key."""
    from bayesgeom.tasks.base import literal

    changes: dict[str, Any] = {}
    for text in listed:
        key, equals, value = (part.strip() for part in text.partition("="))
        if key in train.__annotations__:
            raise InvalidArgument(f"{key} is an option of its own: use --{key} {value} instead of --set.")
        if not (equals and key and value) or key in changes:
            raise InvalidArgument(f"--set takes KEY=VALUE, each key once, such as n_layers=2; got {text!r}.")
        changes[key] = literal(value)
    return changes


@command("Train and exchange models")
def scorecard(
    make: Annotated[tuple[str, ...], Positional, arg(metavar="FILE.py:NAME|ARCHITECTURE …")],
    worlds: tuple[str, ...] = ("core",),
    steps: int = 2_000,
    rates: int = 3,
    seeds: int = 3,
    beside: bool = True,
    machines: On = HERE,
) -> "Report":
    """Train architectures on worlds whose posterior is known, and show what each learned to infer.

    A cell of the core worlds takes one to nine minutes of a core; with --on local:2, two run side by side. A killed run
    continues when the same command is given again.

    Args:
        make: Functions make(d_vocab, n_ctx) that return a network of your own, as layer.py:make, or names such as
            transformer or lstm. An unknown name lists the known ones.
        worlds: core, recall, chains, all, or names of single worlds.
        steps: Training steps of a cell, of 64 sequences each.
        rates: Number of learning rates, around 0.002.
        seeds: Number of trainings at the best rate.
        beside: Show the shipped rows of known architectures, too.
    """
    settings: dict[str, Any] = {"steps": steps, "rates": rates, "seeds": seeds, "beside": beside}
    with machines.executor() as executor:
        return bayesgeom.scorecard(list(make), list(worlds), **settings, executor=executor)


@command("Train and exchange models")
def checkpoints(seal: Maybe[tuple[Path, ...]] = None) -> int:
    """List available checkpoints with task, KL and entropy error, and packed trainings; this takes seconds.

    Args:
        seal: Instead of listing: recompute the stored config hashes of these directories, whose weights are the same.
    """
    if seal:
        from bayesgeom.training.formation import seal as sealed

        for directory in seal:
            tell(f"{directory}: {sealed(directory)}")
        return 0
    from bayesgeom.models.checkpoint_files import WEIGHTS, bytes_to_fetch, checkpoint_folder
    from bayesgeom.training.packed import formations

    # A directory without a config cannot be loaded by name, but listing it helps to find the fault.
    there = (path.parent for path in checkpoint_folder().glob(f"*/{WEIGHTS}") if not is_temporary(path.parent.name))
    named, packed = {path.name: path for path in there} | {**bayesgeom.checkpoints().folders}, formations().folders
    for name, path in [*sorted(named.items()), *packed.items()]:
        tell(name, *_described_at(path, is_packed=name in packed))
        if size := bytes_to_fetch(path):
            tell(f"  fetch   on first use, {size / 1e6:.1f} MB")
    if not named and not packed:
        tell(f"no checkpoints in {checkpoint_folder()}")
    return 0


def _described_at(path: Path, *, is_packed: bool = False) -> Iterator[str]:
    """Yield what describes a checkpoint, or why it cannot be read: one bad entry must not end the list."""
    try:
        entries = _packed(path) if is_packed else _checkpoint(path)
    except (BayesGeomError, OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        fault = "" if isinstance(error, BayesGeomError) else f"{type(error).__name__}: "
        entries = {"error": [f"{fault}{error}"]}
    for label, texts in entries.items():
        yield from (f"  {'' if at else label:7} {text}" for at, text in enumerate(texts))


def _checkpoint(path: Path) -> dict[str, Sequence[str]]:
    """Describe a checkpoint: task, published scores, each with its strongest baseline, and hash."""
    from bayesgeom.models.checkpoint_files import read_description

    whole = read_description(path)
    scores, parts = whole.get("scores") or {}, []
    for key in (key for key in scores if key.endswith("bits")):
        baselines = scores.get("baselines", {}).get(key, {})
        best = min(baselines, key=baselines.__getitem__, default="")
        level = f" (baseline {number_text(baselines[best])}, {best.replace('_', ' ')})" if best else ""
        parts.append(f"{key} {number_text(scores[key])}{level}")
    task = ", ".join(f"{key}={value}" for key, value in whole["task"].items())
    return {"task": [task], "scores": parts or ["not scored"], "weights": [whole["weights_hash"]]}


def _packed(path: Path) -> dict[str, Sequence[str]]:
    """Describe a packed training, which is not a model: `dynamics` and `gradients` read it."""
    from bayesgeom.training.packed import read_formation

    whole = read_formation(path)
    task = ", ".join(f"{key}={value}" for key, value in whole["task"].items())
    steps = [int(entry["step"]) for entry in whole["snapshots"]]
    of = f"{len(steps)} snapshots of {whole['recipe']['name']}, steps {min(steps):,} to {max(steps):,}"
    uses = f"bayesgeom dynamics {path.name}", f"bayesgeom gradients {path.name} --over-training"
    return {"task": [task], "holds": [of], "for": uses}


@command("Train and exchange models")
def pack(
    run: Annotated[Path, Positional, arg(metavar="RUN")],
    out: Annotated[Path, Positional, arg(metavar="OUT")],
    keep: int = 12,
    dtype: Literal["float16", "bfloat16", "float32"] = "float16",
) -> int:
    """Pack the snapshots of a run for distribution.

    Only weights are kept, in half precision where scores do not change. A snapshot takes about 15 seconds.

    Args:
        run: Directory of the run.
        out: Directory to write. `bayesgeom dynamics` finds it by name if it lies in the folder of checkpoints.
        keep: Maximum number of snapshots to keep, including the first and the last.
        dtype: Precision to try. A snapshot whose KL changes in its first three digits keeps its own precision.
    """
    from bayesgeom.training.formation import pack

    packed = pack(run, out, keep=keep, dtype=dtype)
    for snap in packed:
        tell(f"step {snap.step:>7,}  {snap.dtype:8}  KL {snap.kl_bits:.5g} → {snap.kl_bits_stored:.5g} bits")
    size = sum(file.stat().st_size for file in out.iterdir())
    tell(f"\n{count_text(len(packed), 'snapshot')}, {size / 1e6:.1f} MB: {out}")
    return 0


@command("Train and exchange models")
def export(checkpoint: Checkpoint, out: Path) -> int:
    """Export a bayesgeom transformer as a Hugging Face directory.

    A shipped checkpoint takes about 20 seconds on two CPU cores.

    Args:
        checkpoint: A shipped checkpoint or a directory.
        out: Directory to write.
    """
    from bayesgeom.models.export import export_checkpoint
    from bayesgeom.report.storage import check_target

    check_target(out)
    tell(f"{export_checkpoint(checkpoint, out)}: {out}")
    return 0


@command("Check the installation")
def selftest() -> int:
    """Run every probe on planted data with known answers.

    Takes about twenty seconds on two CPU cores.
    """
    from bayesgeom.selftest.run import ControlResult, planted_tables, selftest

    verdicts = selftest()
    for table in planted_tables():
        tell("\n".join([table.title, *aligned_table([table.head, *table.rows])]) + "\n")
        verdicts.append(ControlResult(probe=table.probe, control=table.title, passed=table.passed))
    for verdict in verdicts:
        tell(f"{'ok    ' if verdict.passed else 'FAILED'}  {verdict.probe}: {verdict.control}")
    failed = sum(not verdict.passed for verdict in verdicts)
    tell(f"\n{len(verdicts) - failed} controls hold, {failed} do not")
    return int(failed > 0)


# The groups of entry points by which other packages extend a command.
_OPEN = {"diagnose": "probes tasks", "ablate": "ablations", "intervene": "subspaces", "train": "recipes models"}
_HELP = """usage: bayesgeom COMMAND [options]

Measure whether a sequence model does Bayesian inference, and where in the network.

Example:
  bayesgeom diagnose bijection-v20 --out runs/first   # then open runs/first/report.html
{commands}

bayesgeom COMMAND --help lists the options of a command. bayesgeom --version prints the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. An invalid input prints one line to standard error."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):  # it may not encode all; tables stay aligned
            sys.stdout.reconfigure(errors="replace")
        if given == ["--version"]:
            tell(f"bayesgeom {version('bayesgeom')}")
            return 0
        command = parsed(given)
        with _reporting(given) if arguments is None else contextlib.nullcontext():
            return command()
    except BayesGeomError as error:
        notes = vars(error).get("__notes__", [])
        note("; ".join([f"bayesgeom: {error}".rstrip("." if notes else ""), *notes]))
        return 2
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        return 0
    except OSError as error:  # a name that is too long, a directory without permission
        name = "" if error.filename is None else f"{quoted(error.filename)} cannot be used: "
        note(f"bayesgeom: {name}{error.strerror or error}.")
        return 2
    except KeyboardInterrupt as stopped:
        note("; ".join(["bayesgeom: interrupted", *vars(stopped).get("__notes__", [])]))
        return 130
    finally:
        try:
            print(end="", flush=True)
        except OSError:  # discard it: the interpreter would retry and complain at exit, and without /dev/null twice
            with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())


@contextlib.contextmanager
def _reporting(given: Sequence[str]) -> Iterator[None]:
    """One line on standard error before a command of the shell and one after it, and one for each phase."""
    begun, what = time.monotonic(), f"bayesgeom {given[0]}"
    note(textwrap.shorten(f"{what}: {' '.join(given[1:])}".rstrip(": "), 100, placeholder=" …") + " …")
    with phases_shown():
        yield
    note(f"{what}: finished in {time.monotonic() - begun:,.1f} s")


def parsed(given: Sequence[str]) -> "partial[int]":
    """Return the requested call of `run`, with the options as its keywords; `InvalidArgument` if tyro rejects them."""
    name = given[0] if given else ""
    if name in ("--help", "-h"):
        tell(_HELP.format(commands="\n".join(_overview())))
        raise SystemExit(0)
    known = (
        COMMANDS if name in COMMANDS else COMMANDS | plugin_values("bayesgeom.commands", FunctionType, taken=COMMANDS)
    )
    if name not in known:
        problem = unknown_name("command", name, known) if name else f"name a command: {', '.join(known)}."
        problem = f"{name} is no command: use bayesgeom.{name} in Python." if name in dir(bayesgeom) else problem
        raise InvalidArgument(f"{problem} See bayesgeom --help.")
    try:
        with writing_output():
            call, text = _call_of(known[name]), "\n\n".join(map(_folded, _description(name, known[name])))
            return tyro.cli(call, prog=f"bayesgeom {name}", description=text, args=given[1:], config=(DisallowNone,))
    except SystemExit as stopped:
        if stopped.code in (None, 0):  # after --help
            with writing_output():
                print(end="", flush=True)
            raise
        raise InvalidArgument(f"the options above are invalid. See bayesgeom {name} --help.") from None


def _overview() -> Iterator[str]:
    """A line for each command, by group."""
    others = plugin_values("bayesgeom.commands", FunctionType, taken=COMMANDS)
    width = max(map(len, [*COMMANDS, *others]))
    for group, names in {**GROUPS, **({"Of other packages": others} if others else {})}.items():
        yield f"\n{group}:"
        for name in names:
            first = (inspect.getdoc({**COMMANDS, **others}[name]) or "").partition("\n\n")[0]
            yield f"  {name:{width}}  {textwrap.shorten(first, WIDTH - width - 4, placeholder=' …')}"


def _description(name: str, command: Callable[..., Any]) -> Iterator[str]:
    """The paragraphs of a command's docstring, and the names by which other packages extend it."""
    for paragraph in (inspect.getdoc(command) or "").partition("\n\nArgs:")[0].split("\n\n"):
        yield " ".join(paragraph.split())
    for group in _OPEN.get(name, "").split():
        if names := sorted(entry_points(group=f"bayesgeom.{group}").names):
            yield f"Of other packages: {group} {', '.join(names)}"


def _call_of(command: Callable[..., Any]) -> Callable[..., "partial[int]"]:
    """Return what tyro calls with a command's options: it returns the call. A report's command takes `--out`, too."""
    parameters = dict(inspect.signature(command).parameters)
    if command.__annotations__["return"] is not int:
        out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Out)
        parameters.setdefault("out", out)

    def call(**options: Any) -> "partial[int]":
        return partial(run, command, **options)

    call.__doc__ = command.__doc__
    call.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    vars(call)["__signature__"] = inspect.Signature(list(parameters.values()))
    vars(call).pop("__wrapped__", None)  # under run-time checks of annotations; tyro would read those of what is inside
    return described(call)


def _check_names(options: Mapping[str, Any]) -> None:
    """Check the names among a command's options before it loads a model, which can take minutes.

    What needs no library comes first, and then what needs torch alone.
    """
    from bayesgeom.models.checkpoint_files import path_of
    from bayesgeom.models.served.client import is_address

    if isinstance(source := options.get("source"), Source) and not is_address(source.checkpoint):
        path_of(source.checkpoint)
    if (texts := options.get("texts")) is not None and not texts.is_file():
        raise InvalidArgument(f"--texts takes a file of prompts; there is no file {quoted(str(texts))}.")
    with phase("loading libraries"):
        if isinstance(task := options.get("task"), str):
            from bayesgeom.tasks.base import check_text

            check_text(task)
        from bayesgeom.ablations.batteries import check_battery
        from bayesgeom.diagnosis.plan import check_probes

    check_battery(options.get("battery"), options.get("mode", "mean"))
    check_probes(options.get("probes"))


def run(command: Callable[..., Any], **options: Any) -> int:
    """Run a command with its options, and return the exit status; a report that it returns is printed and saved."""
    has_report = command.__annotations__["return"] is not int
    if has_report or "source" in options:
        _check_names(options)
    if not has_report:
        return int(command(**options))
    from bayesgeom.diagnosis.run import ANSWERED
    from bayesgeom.report.storage import check_target

    out = options["out"] if "out" in command.__annotations__ else options.pop("out")
    if out is not None:
        check_target(out)  # before anything is measured
    context, told = copy_context(), list[str]()

    def tell_first(part: bayesgeom.Diagnosis) -> None:
        with contextlib.suppress(OSError, OutputFault):  # reported where the rest is printed
            tell(answer := part.summary().partition("\n\n")[0])
            told.append(answer)

    if command is diagnose:
        context.run(ANSWERED.set, tell_first)
    return _conclude(context.run(command, **options), out, told)


def _conclude(measured: "bayesgeom.Diagnosis | Report", out: Path | None, told: Sequence[str]) -> int:
    """Save a report to `--out`, if given, then print it, even if it cannot be saved, and where its page is.

    The answer is not printed again if it is among what was `told` before the rest was measured.

    A report that the command has saved there is not saved again, so that its progress stays for the same command.
    """
    from bayesgeom.core.files import encoded_json
    from bayesgeom.report.storage import HTML

    diagnosis = measured if isinstance(measured, bayesgeom.Diagnosis) else bayesgeom.Diagnosis.of(measured)
    summary = measured.summary("" if out is None else HTML)
    for answer in told:
        summary = summary.removeprefix(f"{answer}\n")
    if out is None:
        tell(summary, "\nreport: not saved; --out DIRECTORY saves a page with all numbers and figures")
        return 0
    is_saved = False
    with contextlib.suppress(BayesGeomError):  # there is none, or it cannot be read
        stored = bayesgeom.Diagnosis.load(out)  # with the viewer, where the command saved it
        is_saved = all(stored.get(name) == part for name, part in diagnosis.items()) and (out / HTML).is_file()
        is_saved &= encoded_json(stored.provenance) == encoded_json(diagnosis.provenance)
    try:
        if not is_saved:
            with phase("writing the report"):
                diagnosis.save(out)
    except OutputFault:
        with contextlib.suppress(OutputFault):  # the first fault is reported
            tell(measured.summary())
        raise
    try:
        tell(summary, f"report: {out / HTML}")
    except OutputFault as fault:
        raise OutputFault(f"{fault} The report is complete: {out / HTML}.") from fault
    return 0


def tell(*lines: str) -> None:
    """Print lines to standard output and flush it. Longer lines than `text_width` wrap; paths are never broken."""
    with writing_output(), bars_cleared():
        print("\n".join(map(_folded, on_lines("\n".join(lines)).split("\n"))), flush=True)


def _folded(line: str) -> str:
    """Wrap a line at whole words, indented by two columns more than it is."""
    if len(line) <= (width := text_width()):
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
    except OSError as error:
        if isinstance(error, BrokenPipeError | OutputFault) or error.filename is not None:  # reported; or of a file
            raise
        raise OutputFault(f"cannot write to standard output: {error.strerror or error}.") from error
