"""`diagnose`: run all probes on one pass of the model over new sequences, and on untrained networks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

from bayesgeom.ablations.report import AblationReport
from bayesgeom.ablations.run import BatteryRun
from bayesgeom.checks.arguments import checked
from bayesgeom.core.errors import InvalidArgument, MissingSite, NoCopy, TaskMismatch, unknown_name
from bayesgeom.core.plugins import Contained, discovered, is_foreign
from bayesgeom.core.progress import bar
from bayesgeom.core.run import Run
from bayesgeom.core.sites import Site
from bayesgeom.core.trials import Trials, concatenate
from bayesgeom.diagnosis.views import captured_arguments, captured_provenance, within
from bayesgeom.engines.executor import Batch, Executor, Job, path_of
from bayesgeom.generalization.relabeling import Renaming
from bayesgeom.generalization.relabeling_report import RelabelingReport
from bayesgeom.models.base import Model
from bayesgeom.models.budget import is_out_of_memory, recording_bytes
from bayesgeom.models.disk.reading import CapturedModel
from bayesgeom.models.provenance import provenance
from bayesgeom.models.recorder import Stream, bytes_per_sequence
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, require_posterior, task_of
from bayesgeom.models.sendable import job_arguments, load_same, name_of
from bayesgeom.models.server.model import ServedModel
from bayesgeom.probes.base import Needs, Probe
from bayesgeom.results.diagnosis import SERVED, STREAMED, Diagnosis
from bayesgeom.results.layers import LAYERS, on_layers
from bayesgeom.results.report import Report
from bayesgeom.results.storage import parts_of
from bayesgeom.results.tidy import records_of
from bayesgeom.tasks.base import Branch, FiniteTask, WindTunnel, derived_seed, task_from_config

N_RECORDED = 192  # sequences whose activations are stored: enough for every interval, and independent of n
LEAST_RECORDED = 16  # a probe of activations is skipped if the memory holds fewer sequences
N_RENAMED = 128  # sequences of the renaming test: one block, the same for every n
_LARGE, _PART = 50_000_000, 16  # models with more parameters run blocks in parts of this many sequences
_INITIALIZATION = "initialization"  # key in `skipped` if no untrained network can be built

AnyProbe = Probe[Any]
Found = tuple[dict[str, Report], dict[str, str]]  # reports by the name of their probe, and why others are missing


@checked("model", "task")
def diagnose(
    model: ModelLike,
    task: TaskLike | None = None,
    *,
    probes: str | AnyProbe | Sequence[str | AnyProbe] | None = None,
    n: int = 512,
    seed: int = 0,
    n_untrained: int = 3,
    ablations: bool = False,
    executor: Executor | Batch | None = None,
) -> Diagnosis:
    """Run every probe that the model supports, in one pass over new sequences of its task.

    Behavioral numbers use all `n` sequences, activations the first 192 or as many as the model's `memory_gib` holds. A
    probe that would get fewer than 16 is skipped. If no probes are named, a test of relabeling invariance is added.
    `skipped` states which probes this model does not support, `inapplicable` which ones do not apply to this task.

    Args:
        model: A model, or any argument of `as_model`: a checkpoint's name or directory, a module, a Hugging Face model,
            a directory that `capture` wrote.
        task: A task, its text as on the command line, or a list of prompts. Default: the model's own task.
        probes: Probes, or their names; "NAME:option" switches an option on. Default: all that apply.
        n: Number of sequences; at most all sequences of a task with a fixed number of them.
        seed: Seed of the sequences and of the intervals. For a capture, 0 stands for its own seed, which
            `provenance` states; any third seed is an error.
        n_untrained: Number of untrained networks to compare with; `skipped["initialization"]` if none can be built.
        ablations: Whether to run the default ablation battery as well.
        executor: Where untrained networks are measured, a job each (see `bayesgeom.engine`); the model is then given by
            its name or directory, and probes by their names. Default: this process.

    Returns:
        The reports by the name of their probe.

    Raises:
        InvalidArgument: n is below 1, n_untrained below 0, or the list of probes is empty.
        UnknownName: A probe or checkpoint does not exist.
        TaskMismatch: Ids or length of the task do not fit the model, or a named probe needs another kind of task.
        MissingSite: A named probe reads a site that the model does not provide.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> list(bayesgeom.diagnose("mess3-small", n=8, n_untrained=0, probes=["calibration"]))
        ['calibration']
    """
    if n_untrained < 0:
        raise InvalidArgument(f"n_untrained, the number of untrained networks, must be at least 0, got {n_untrained}.")
    sent = None if executor is None else (Batch.of(executor), name_of(model))
    return _diagnosed(
        as_model(model),
        task,
        probes,
        n=n,
        seed=seed,
        n_untrained=n_untrained,
        ablations=ablations,
        executor=sent,
    )


def _diagnosed(
    subject: Model,
    task: TaskLike | None,
    probes: str | AnyProbe | Sequence[str | AnyProbe] | None,
    *,
    n: int,
    seed: int,
    n_untrained: int,
    ablations: bool,
    executor: tuple[Batch, str] | None,
) -> Diagnosis:
    """Return the reports with their provenance."""
    chosen = task_of(subject, task)
    if isinstance(subject, CapturedModel):
        n, seed = captured_arguments(subject, chosen, n=n, seed=seed)
    if isinstance(chosen, FiniteTask):
        n = min(n, chosen.n_sequences)
    subject.check_fits(one := chosen.sample(1, seed=seed))
    stream = _Stream(task=chosen, seed=derived_seed(seed, Branch.TRIALS), device=subject.spec.device)
    blocks = stream.blocks(n)  # first, so that an invalid n or task is an error before untrained networks run
    budget = recording_bytes(subject.spec.device, subject.memory_gib)  # also of untrained networks, to compare with
    plan = _affordable(_plan(subject, chosen, one, probes, n=n, seed=seed), subject, one, budget, min(n, N_RECORDED))
    n_seen = min(n, N_RECORDED)
    found: Iterable[Found]
    if executor is None:
        indices = range(n_untrained)
        found = (_untrained(subject, plan, stream, index, n=n_seen, seed=seed, budget=budget) for index in indices)
    else:
        each = _bytes_of_one(subject, plan.sites, one)
        streamed = plan.n_streamed * _bytes_streamed(subject, [plan.served[name] for name in plan.streamed], one)
        n_rows = min(n_seen, max(1, (budget - streamed) // max(1, each)))
        counts = {"n": n_seen if plan.streamed else n_rows, "seed": seed, "bytes": streamed + n_rows * each}
        found = _sent_untrained(executor, subject, plan, chosen, counts, n_untrained=n_untrained)
    untrained, faults = _collected(plan, found)
    skipped = plan.skipped | faults
    if isinstance(subject, ServedModel):
        subject.count_anew()
    run = _run(subject, stream, blocks, plan, seed, budget, n=n)
    before = {name: own for name, own in untrained.items() if name not in skipped}
    reports, faults = _measured(plan, run, before, on_all_layers=True)
    skipped |= faults
    partly = {name: plan.layers[name] for name in reports if len(plan.layers[name]) < subject.spec.n_layers}
    further, reasons = _further_passes(subject, chosen, run, plan.renaming, seed=seed, ablations=ablations)
    reports, skipped = reports | further, skipped | reasons
    arguments = {"n": n, "seed": seed, "n_untrained": n_untrained, "probes": tuple(plan.served), "ablations": ablations}
    where = provenance(subject, chosen, arguments) | {"n_recorded": run.n_recorded}
    where |= captured_provenance(subject) if isinstance(subject, CapturedModel) else {}
    where |= {LAYERS: {name: list(own) for name, own in partly.items()}} if partly else {}
    where |= {SERVED: {"top": subject.client.top, **subject.unlisted()}} if isinstance(subject, ServedModel) else {}
    where |= {STREAMED: dict.fromkeys(sorted(plan.streamed), plan.n_streamed)} if plan.streamed else {}
    return Diagnosis(reports=reports, skipped=skipped, inapplicable=plan.inapplicable, provenance=where)


def _collected(plan: "_Plan", found: Iterable[Found]) -> tuple[dict[str, list[Report]], dict[str, str]]:
    """Return every probe's reports on untrained networks, and why some are missing."""
    reports: dict[str, list[Report]] = {name: [] for name in plan.served}
    skipped = dict[str, str]()
    for own, faults in found:
        skipped |= faults
        for name, report in own.items():
            reports[name].append(report)
    return reports, skipped


def _record(model: Model, plan: "_Plan", stream: "_Stream") -> list[Site | Stream]:
    """What a pass records for the probes of a plan."""
    layers = {
        reduction: model.layers_of(reduction.site)
        for name in plan.streamed
        for reduction in plan.served[name].needs.streamed
        if reduction.site in _reads(model, plan.served[name])
    }
    if not layers:
        return [*plan.sites]
    blocks = list(stream.blocks(plan.n_streamed))
    return [*plan.sites, Stream(layers=layers, trials=concatenate(blocks).rows(slice(0, plan.n_streamed)))]


def _sent_untrained(
    executor: tuple[Batch, str],
    model: Model,
    plan: "_Plan",
    task: WindTunnel,
    counts: Mapping[str, int],
    *,
    n_untrained: int,
) -> list[Found]:
    """Return what `_untrained` returns for each network, each a job."""
    batch, name = executor
    probes = [_spelled(own) for own in plan.served.values()]
    streams = {"streamed": sorted(plan.streamed), "n_streamed": plan.n_streamed}
    shared = job_arguments(name, model.spec, task, probes=probes, is_named=plan.is_named, **streams, **counts)
    jobs = [
        Job(
            name=f"{model.spec.name} untrained {index}",
            function=path_of(untrained_at),
            arguments={**shared, "index": index},
        )
        for index in range(n_untrained if plan.served else 0)
    ]
    return batch.results(jobs, desc="untrained networks")


def untrained_at(
    *,
    model: str,
    weights: str,
    device: str,
    task: Mapping[str, Any],
    probes: Sequence[str],
    index: int,
    **counts: Any,
) -> Found:
    """Do the job of one untrained network."""
    n, seed = int(counts["n"]), int(counts["seed"])
    subject, chosen = load_same(model, weights, device=device), task_from_config(task)
    one = chosen.sample(1, seed=seed)
    plan = replace(_plan(subject, chosen, one, probes, n=n, seed=seed), is_named=bool(counts["is_named"]))
    if counts["streamed"]:
        plan = _with_streams(plan, subject, frozenset(counts["streamed"]), int(counts["n_streamed"]))
    budget = int(counts["bytes"])
    stream = _Stream(task=chosen, seed=derived_seed(seed, Branch.TRIALS), device=subject.spec.device)
    return _untrained(subject, plan, stream, index, n=n, seed=seed, budget=budget)


def _spelled(probe: AnyProbe) -> str:
    """Return the name by which a worker finds this probe.

    Raises:
        InvalidArgument: No name gives it.
    """
    switched = [name for name, value in vars(probe).items() if value is True]
    spelled = ":".join([probe.name, *switched])
    known = all_probes()
    if probe.name not in known or len(switched) > 1 or _named(spelled, known) != probe:
        raise InvalidArgument(f"executor= takes probes by their names, which workers find; got the object {probe!r}.")
    return spelled


def _further_passes(
    model: Model, task: WindTunnel, run: Run, renaming: Renaming | None, *, seed: int, ablations: bool
) -> Found:
    """Run what needs its own passes: the renaming of hypotheses, and ablations, or the reasons why there are none.

    Ablations that this model or task does not allow must not lose the earlier measurements.
    """
    found, skipped = list[Report](), dict[str, str]()
    if renaming is not None:
        found.append(renaming.report(before=run))  # its first block is the same
    if ablations:
        try:
            require_posterior(task)
            found.append(BatteryRun.of(model, task, "all", n=run.n, seed=seed).exact())
        except (InvalidArgument, MissingSite, TaskMismatch) as reason:
            skipped[AblationReport.name] = str(reason)
    return {report.name: report for report in found}, skipped


def all_probes() -> dict[str, AnyProbe]:
    """Return an instance of every installed, usable probe, by name."""
    return _probes()[0]


def broken_probes() -> dict[str, str]:
    """Return why plug-ins cannot be used as probes, by the name of their entry points."""
    return _probes()[1]


def _probes() -> tuple[dict[str, AnyProbe], dict[str, str]]:
    # mypy forbids an abstract class as a value, but discovery needs one.
    kinds, unusable = discovered("bayesgeom.probes", Probe)  # type: ignore[type-abstract]
    found: dict[str, AnyProbe] = {}
    broken = {own.name if own.name not in kinds else f"{own.name} (plug-in)": own.reason for own in unusable}
    for name, kind in kinds.items():
        with Contained(is_foreign=is_foreign(kind)) as making:
            found[name] = _checked(kind())
        if making.fault:
            broken[name] = f"plug-in {name!r} ({kind.__module__}) cannot be used: {making.fault.rstrip('.')}."
    return found, broken


def _checked(probe: AnyProbe) -> AnyProbe:
    """Return the probe; one without valid `needs` raises `InvalidArgument`."""
    if not isinstance(probe.needs, Needs):
        raise InvalidArgument(f"its needs must be a Needs(…), got {probe.needs!r}")
    return probe


@final
@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Probes that will run, the sites that they read, and why the others will not: because of the model, or the task.

    `layers`: the layers that have all the sites that a probe requires. `streamed`: probes whose statistics are computed
    during the pass, of `n_streamed` sequences, because the memory does not hold their activations. `contained`: probes
    of plug-ins; their errors lose only their own report, unless they were named.
    """

    served: dict[str, AnyProbe]
    contained: frozenset[str]
    is_named: bool
    sites: tuple[Site, ...]
    layers: dict[str, tuple[int, ...]]
    streamed: frozenset[str]
    n_streamed: int
    skipped: dict[str, str]
    inapplicable: dict[str, str]
    renaming: Renaming | None


@final
@dataclass(frozen=True, kw_only=True)
class _Stream:
    """The same sequences for the model and for the untrained networks."""

    task: WindTunnel
    seed: int
    device: str

    def blocks(self, n: int) -> Iterator[Trials]:
        return self.task.stream(n, seed=self.seed, device=self.device)


def _plan(
    model: Model,
    task: WindTunnel,
    trials: Trials,
    probes: str | AnyProbe | Sequence[str | AnyProbe] | None,
    *,
    n: int,
    seed: int,
) -> _Plan:
    known = all_probes()
    probes = [probes] if isinstance(probes, str | Probe) else probes
    if probes is not None and not probes:
        raise InvalidArgument(f"probes is empty: leave it out for all, or choose from: {', '.join(sorted(known))}.")
    if probes is not None and (named := [own for own in broken_probes().items() if own[0] in probes]):
        raise InvalidArgument(named[0][1])
    asked: dict[str, AnyProbe] = {}
    for item in known.values() if probes is None else probes:
        probe = _named(item, known) if isinstance(item, str) else item
        asked[probe.name] = probe
    served, skipped, inapplicable = {}, dict[str, str](), dict[str, str]()
    if probes is None:
        skipped |= broken_probes()
    for name, probe in asked.items():
        try:
            _require_task(probe.needs, task, trials, by=f"probe {name!r}")
            if not model.layers_of(*probe.needs.sites):
                model.require(probe.needs.sites, by=f"probe {name!r}")
        except (MissingSite, TaskMismatch) as reason:
            if probes is not None:
                raise
            (inapplicable if isinstance(reason, TaskMismatch) else skipped)[name] = str(reason)
            continue
        served[name] = probe
    renaming = None
    try:
        renaming = _renaming(model, task, n=n, seed=seed) if probes is None else None
    except (InvalidArgument, TaskMismatch) as reason:
        (inapplicable if isinstance(reason, TaskMismatch) else skipped)[RelabelingReport.name] = str(reason)
    # Calibration is first: the other probes explain it.
    first = sorted(served, key=lambda name: (name != "calibration", list(served).index(name)))
    chosen = {name: served[name] for name in first}
    by_name = set(known) if probes is None else {item.partition(":")[0] for item in probes if isinstance(item, str)}
    foreign = frozenset(n for n, probe in chosen.items() if n in by_name and is_foreign(type(probe)))
    return _Plan(
        served=chosen,
        contained=foreign,
        is_named=probes is not None,
        sites=_sites(model, chosen.values()),
        layers={name: model.layers_of(*probe.needs.sites) for name, probe in chosen.items()},
        streamed=frozenset(),
        n_streamed=0,
        skipped=skipped,
        inapplicable=inapplicable,
        renaming=renaming,
    )


def _renaming(model: Model, task: WindTunnel, *, n: int, seed: int) -> Renaming:
    if isinstance(model, CapturedModel):
        raise InvalidArgument("a capture cannot be run on renamed sequences.")
    return Renaming.of(model, task, n=min(n, N_RENAMED), seed=seed)


def _affordable(plan: _Plan, model: Model, trials: Trials, budget: int, n: int) -> _Plan:
    """Stream or remove probes until the memory holds the activations of `n` sequences, or at least of enough.

    Probes whose statistics can be computed during the pass are streamed if the activations of all `n` sequences do not
    fit. Then probes are removed until activations and statistics of enough sequences fit: first those whose statistics
    alone do not fit, then the one with the largest activations. A named probe raises `InvalidArgument` instead.
    Statistics of as many sequences as fit next to the activations of enough are computed; activations get the rest.
    """
    least = min(n, LEAST_RECORDED)
    served, skipped = dict(plan.served), dict(plan.skipped)
    streamed = _streamed(plan, model, trials, _bytes_of_one(model, _sites(model, served.values()), trials) * n > budget)

    def stored_bytes(names: Iterable[str]) -> int:
        probes = [plan.served[name] for name in names if name not in streamed]
        return _bytes_of_one(model, _sites(model, probes), trials)

    def streamed_bytes(names: Iterable[str]) -> int:
        return _bytes_streamed(model, [plan.served[name] for name in names if name in streamed], trials)

    def rank(name: str) -> tuple[bool, int, int]:
        alone = streamed_bytes([name])
        return alone * least > budget, stored_bytes([name]), alone

    while (stored_bytes(served) + streamed_bytes(served)) * least > budget:
        name = max(served, key=rank)
        gib, kept = (stored_bytes([name]) + streamed_bytes([name])) * least / 2**30, budget / 2**30
        del served[name]
        what = "statistics" if name in streamed else "activations"
        skipped[name] = (
            f"probe {name!r} reads {what} of at least {least} sequences, which take {gib:.3g} GiB; the limit for all "
            f"probes is {kept:.3g} GiB. Raise memory_gib of load (--memory-gib)."
        )
        if plan.is_named:
            raise InvalidArgument(skipped[name])
    plan = replace(plan, served=served, skipped=skipped)
    rest = budget - least * stored_bytes(served)
    n_streamed = min(n, rest // max(1, streamed_bytes(served)))
    return _with_streams(plan, model, streamed.intersection(served), n_streamed)


def _with_streams(plan: _Plan, model: Model, streamed: frozenset[str], n_streamed: int) -> _Plan:
    """The plan in which these probes are streamed: only what they read from the weights is stored."""
    reads = {name: _reads(model, probe) for name, probe in plan.served.items()}
    sites = [site for name, own in reads.items() for site in own if site.is_static or name not in streamed]
    return replace(plan, sites=tuple(dict.fromkeys(sites)), streamed=streamed, n_streamed=n_streamed)


def _streamed(plan: _Plan, model: Model, trials: Trials, is_needed: bool) -> frozenset[str]:
    """The probes that are streamed if needed: those whose statistics are smaller than their activations."""

    def is_smaller(probe: AnyProbe) -> bool:
        stored = bytes_per_sequence(model.spec, _layers(model, _reads(model, probe)), trials)
        return 0 < _bytes_streamed(model, [probe], trials) < stored

    return frozenset(name for name, probe in plan.served.items() if is_needed and is_smaller(probe))


def _bytes_streamed(model: Model, probes: Iterable[AnyProbe], trials: Trials) -> int:
    """The bytes of one sequence's statistics that these probes read."""
    of = {own: _reads(model, probe) for probe in probes for own in probe.needs.streamed}
    layers = {own: model.layers_of(own.site) for own, sites in of.items() if own.site in sites}
    return bytes_per_sequence(model.spec, layers, trials)


def _sites(model: Model, probes: Iterable[AnyProbe]) -> tuple[Site, ...]:
    """Return the sites of a model that probes read."""
    return tuple(dict.fromkeys(site for probe in probes for site in _reads(model, probe)))


def _bytes_of_one(model: Model, sites: Iterable[Site], one: Trials) -> int:
    """Return the bytes that the activations of one sequence take at these sites."""
    return bytes_per_sequence(model.spec, _layers(model, sites), one)


def _reads(model: Model, probe: AnyProbe) -> tuple[Site, ...]:
    """The sites that a probe requires, and the optional ones that exist in the same layers."""
    needed = probe.needs.sites
    layers = model.layers_of(*needed)
    return (*needed, *(site for site in probe.needs.optional if model.layers_of(site, *needed) == layers))


def _layers(model: Model, sites: Iterable[Site]) -> dict[Site, tuple[int, ...]]:
    """The layers in which each site is recorded during a pass."""
    return {site: model.layers_of(site) for site in sites if not site.is_static}


def _named(text: str, known: Mapping[str, AnyProbe]) -> AnyProbe:
    """Return the probe of NAME or NAME:option; an option is a field that is switched on."""
    name, _, option = text.partition(":")
    if name not in known:
        raise unknown_name("probe", name, known)
    probe: Any = known[name]
    if not option:
        return known[name]
    options = [field.name for field in fields(probe) if field.type is bool]
    if option not in options:
        raise unknown_name(f"option of probe {name!r}", option, options)
    chosen: AnyProbe = replace(probe, **{option: True})
    return chosen


def _require_task(needs: Needs, task: WindTunnel, trials: Trials, by: str) -> None:
    """Raise `TaskMismatch` if the task lacks a posterior or groups that the probe needs."""
    if needs.posterior and not task.has_posterior:
        raise TaskMismatch(f"{by} requires an exact posterior, which this task does not have.")
    if needs.groups and len(trials.group_names) < 2:
        kinds = ", ".join(trials.group_names) or "one kind"
        raise TaskMismatch(f"{by} requires sequences of several kinds; this task has {kinds}.")


def _untrained(model: Model, plan: _Plan, stream: _Stream, index: int, *, n: int, seed: int, budget: int) -> Found:
    """Return every probe's report on an untrained network of the model's shape, and why some are missing."""
    try:
        # No variable holds the network: it is freed before the next one is built and before the model runs.
        run = _run(
            model.untrained_copy(derived_seed(seed, Branch.UNTRAINED, index)),
            stream,
            stream.blocks(n),
            plan,
            seed,
            budget,
            n=n,
        )
    except NoCopy as reason:
        return {}, {_INITIALIZATION: str(reason)}
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {}, {_INITIALIZATION: f"untrained network {index} was left out, because it does not fit into memory."}
    return _measured(plan, run, {name: [] for name in plan.served})


def _measured(
    plan: _Plan, run: Run, untrained: Mapping[str, Sequence[Report]], *, on_all_layers: bool = False
) -> Found:
    """Return the reports of the probes in `untrained` on a run, and why plug-ins failed.

    A report on some layers gets NaN in the others if `on_all_layers`; those of untrained networks keep their layers.
    """
    reports, faults = dict[str, Report](), dict[str, str]()
    shown = bar(untrained.items(), desc=f"{run.spec.name}: probes", unit="probe", leave=False)
    for name, before in shown:
        with Contained(is_foreign=name in plan.contained) as measuring:
            probe = plan.served[name]
            needed = (*probe.needs.sites, *probe.needs.optional)
            seen = run.streamed if name in plan.streamed else run
            assert seen is not None, "it was streamed if a probe of the plan is"
            report = probe.measure(within(seen, plan.layers[name], needed), before)
            report = _usable(report) if name in plan.contained else report
            is_partial = on_all_layers and len(plan.layers[name]) < run.spec.n_layers
            reports[name] = on_layers(report, plan.layers[name], run.spec.n_layers) if is_partial else report
        if measuring.fault:
            faults[name] = f"plug-in {name!r} failed: {measuring.fault.rstrip('.')}."
            if plan.is_named:
                raise InvalidArgument(faults[name])
    return reports, faults


def _usable(report: object) -> Report:
    """Return the report of a plug-in, after checking that tables and files can be made from it."""
    if not isinstance(report, Report):
        raise InvalidArgument(f"its measure must return a Report, got {type(report).__name__} {report!r:.40}")
    report.headlines(), records_of(report), parts_of(report)[0], parts_of(report)[1]
    return report


def _run(
    model: Model, stream: _Stream, blocks: Iterator[Trials], plan: _Plan, seed: int, budget: int, *, n: int
) -> Run:
    with bar(total=n, desc=model.spec.name, unit="seq", leave=False) as shown:

        def counted() -> Iterator[Trials]:
            for part in _in_passes(model, blocks):
                yield part
                shown.update(len(part))  # the next part is requested, so this one is done

        run = model.run_from_disk if isinstance(model, CapturedModel) else model.run
        return run(
            counted(),
            record=_record(model, plan, stream),
            n_recorded=N_RECORDED,
            baseline_predictives=stream.task.baseline_predictives,
            budget_bytes=budget,
            seed=derived_seed(seed, Branch.RESAMPLING),
        )


def _in_passes(model: Model, blocks: Iterator[Trials]) -> Iterator[Trials]:
    """Yield the blocks, for a large model in parts that take seconds, so that progress is visible."""
    for block in blocks:
        at_once = len(block) if model.spec.n_parameters < _LARGE else _PART
        for start in range(0, len(block), at_once):
            yield block.rows(slice(start, start + at_once))
