"""`diagnose`: measure everything that applies in one pass over new sequences, and on untrained networks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float64

from bayesgeom.core import N_RECORDED, Ask, InvalidArgument, NoCopy, NonFinite, Run, checked, phase
from bayesgeom.diagnosis.measuring import Found, attempted, probed, usable
from bayesgeom.diagnosis.passes import whole_run
from bayesgeom.diagnosis.plan import (
    AnyMeasurement,
    Named,
    Plan,
    affordable,
    all_probes,
    bytes_of_one,
    bytes_streamed,
    check_probes,
    check_untrained,
    named_measurement,
    plan_of,
    sites_read,
    with_streams,
)
from bayesgeom.executors import Batch, Executor, Job, check_same, job_arguments, name_of
from bayesgeom.measurements.base import Subject
from bayesgeom.measurements.calibration import sequence_kl_bits
from bayesgeom.measurements.running import further_runs
from bayesgeom.measurements.short_memory import completed
from bayesgeom.models.base import (
    KERNELS,
    LARGE,
    Model,
    is_out_of_memory,
    kernels_of,
    provenance,
    recording_bytes,
    return_freed_memory,
)
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, check_names, load, task_of
from bayesgeom.report.answer import N_COPIES, answer_of
from bayesgeom.report.diagnosis import LAYERS, STREAMED, Diagnosis
from bayesgeom.report.report import Report
from bayesgeom.tasks.base import Branch, WindTunnel, check_count, derived_seed, task_from_config

_INITIALIZATION = "initialization"  # key in `skipped` if no untrained network can be built
_PREDICTIONS = "calibration"
_ANSWER = (_PREDICTIONS, "evidence_response")  # what the answer reads: predictions alone
ANSWERED = ContextVar[Callable[[Diagnosis], None] | None]("answered", default=None)  # of the command line: told first


@checked("model", "task")
def diagnose(
    model: ModelLike,
    task: TaskLike | None = None,
    *,
    probes: Named | Sequence[Named] | None = None,
    n: int = 512,
    seed: int = 0,
    n_untrained: int = 3,
    ablations: bool = False,
    executor: Executor | Batch | None = None,
) -> Diagnosis:
    """Run every measurement that the model supports, most of them in one pass over new sequences of its task.

    Behavioral numbers use all `n` sequences, activations the first 192 or as many as the model's `memory_gib` holds. A
    measurement that would get fewer than 16 is skipped. Three take passes of their own, by default and if they are
    named: "relabeling" on 128 sequences, "evidence_response" on 64 for each age, and "inside", which keeps eight
    sequences for the viewer. "fitted_lens" runs only if it is named, on up to 1,280 other sequences; "fitted_lens:MAP"
    adds a J-lens. A measurement that cannot run, as on too few sequences, is skipped if it is not the only one named.
    `skipped` states which measurements this model does not support, `inapplicable` which do not apply to this task.

    Args:
        model: A model, or any argument of `as_model`: a checkpoint's name or directory, a module, a Hugging Face model,
            a directory that `capture` wrote.
        task: A task, its text as on the command line, or a list of prompts. Default: the model's own task.
        probes: Measurements: their names ("NAME:option" switches an option on), objects such as probes, or functions
            of a `Run` that return numbers: see docs/extending.md. Default: all that apply.
        n: Number of sequences; at most all sequences of a task with a fixed number of them.
            `n=24, n_untrained=1` is what --quick does on the command line: 44 seconds and 1.8 GB, with loading, for a
            language model of 135 million parameters on two idle CPU cores.
        seed: Seed of the sequences and of the intervals. For a capture, 0 stands for its own seed, which
            `provenance` states; any third seed is an error.
        n_untrained: Number of untrained networks to compare with; the answer takes at least 8, except with 0 and for
            models of more than 50 million parameters. `skipped["initialization"]` states why some are left out.
        ablations: Whether to run the default ablation battery as well.
        executor: Where untrained networks are measured, a job each (see `bayesgeom.executors`); the model is then given
            by its name or directory, and measurements by their names. Default: this process.

    Returns:
        The reports by the name of their measurement.

    Raises:
        InvalidArgument: n is below 1, n_untrained below 0, or the list of measurements is empty.
        UnknownName: A measurement or checkpoint does not exist.
        TaskMismatch: Ids or length of the task do not fit the model, or a named measurement needs another kind of task.
        MissingSite: A named measurement reads a site that the model does not provide.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> list(bayesgeom.diagnose("mess3-small", n=8, n_untrained=0, probes=["calibration"]))
        ['calibration']
    """
    check_untrained(n_untrained)
    sent = None if executor is None else (Batch.of(executor), name_of(model))
    check_names(task, [model])
    check_probes(probes)
    arguments = {"n": n, "seed": seed, "n_untrained": n_untrained, "probes": (), "ablations": ablations}
    return _diagnosed(as_model(model), task, probes, arguments, executor=sent)


def _diagnosed(
    subject: Model, task: TaskLike | None, probes: Any, arguments: dict[str, Any], executor: tuple[Batch, str] | None
) -> Diagnosis:
    """Return the reports with their provenance, and tell who waits for the answer what it rests on before the rest."""
    chosen, n_untrained = task_of(subject, task), arguments["n_untrained"]
    n, seed = subject.sequences(chosen, n=arguments["n"], seed=arguments["seed"])
    subject.check_fits(one := chosen.sample(1, seed=seed))
    check_count(n)  # before untrained networks run
    budget = recording_bytes(subject.spec.device, subject.memory_gib)  # also of untrained networks, to compare with
    plan = plan_of(subject, chosen, one, probes, n=n, seed=seed, ablations=arguments["ablations"])
    plan = affordable(plan, subject, one, budget, min(n, N_RECORDED))
    every, sequences = (*plan.supported, *plan.again), {"n": min(n, N_RECORDED), "seed": seed, "budget": budget}
    arguments |= {"n": n, "seed": seed, "probes": tuple(plan.supported)}

    def measured(part: Plan, n_untrained: int, known: Mapping[str, Report]) -> Diagnosis:
        untrained, skipped = _untrained_reports(subject, part, chosen, n_untrained, sequences, executor)
        copies, skipped = _copies(subject, chosen, untrained, skipped, n_untrained, sequences, executor)
        subject.begin()
        before = {name: reports for name, reports in untrained.items() if name not in skipped}
        run = whole_run(subject, chosen, part, n=n, seed=seed, budget=budget)
        reports, faults = probed(part, run, before, on_all_layers=True)
        reports, reasons = {**known, **reports}, dict[str, str]()
        seen = Subject(run=run, task=chosen, seed=seed, n_untrained=n_untrained, model=subject)
        for name, measurement in part.again.items():  # one that fails must not lose the earlier measurements
            runs = attempted(part, name, partial(further_runs, subject, measurement, chosen, run, seed=seed), reasons)
            if runs is None:
                continue
            with phase(f"{subject.spec.name}: {name}"):
                work = partial(_reported, measurement, replace(seen, further=runs))
                report = attempted(part, name, work, reasons)
            reports |= {} if report is None else {name: report}
        if _PREDICTIONS in part.supported:
            reports = completed(reports, copies, seen)
        if (answer := answer_of(reports)) is not None and not answer.explains:
            reports = {name: report.no_better() for name, report in reports.items()}
        where, skipped = _provenance(subject, chosen, part, run, arguments, tuple(reports)), skipped | faults | reasons
        return Diagnosis(reports=reports, skipped=skipped, inapplicable=plan.inapplicable, provenance=where)

    tell, is_local = ANSWERED.get(), Ask.RERUN in subject.asks and executor is None  # predictions may cost money
    if tell is None or not is_local or _ANSWER[0] not in every or {*every} <= {*_ANSWER}:
        return measured(plan, n_untrained, {})
    # Copies of a large model take longer than the rest of the answer, and are too few for it.
    n_first = 0 if subject.spec.n_parameters >= LARGE else n_untrained
    tell(first := measured(replace(plan.only(_ANSWER), sites=(), streamed=frozenset()), n_first, {}))
    final = _ANSWER if n_first == n_untrained else _ANSWER[1:]
    rest = measured(plan.only([name for name in every if name not in final]), n_untrained, first)
    reports = {name: rest[name] for name in every if name in rest}
    return replace(rest, reports=reports, skipped=_with_faults(first.skipped, rest.skipped))


def _untrained_reports(
    model: Model,
    plan: Plan,
    task: WindTunnel,
    n_untrained: int,
    sequences: Mapping[str, int],
    executor: tuple[Batch, str] | None,
) -> tuple[dict[str, list[Report]], dict[str, str]]:
    """Return every probe's reports on untrained networks, and why some probes or networks are missing."""
    results: Iterable[Found]
    if executor is None:
        results = (_untrained(model, plan, task, index, **sequences) for index in range(n_untrained))
    else:
        one, n_seen, budget = task.sample(1, seed=sequences["seed"]), sequences["n"], sequences["budget"]
        each = bytes_of_one(model, plan.sites, one)
        streamed = plan.n_streamed * bytes_streamed(model, [plan.supported[name] for name in plan.streamed], one)
        n_rows = min(n_seen, max(1, (budget - streamed) // max(1, each)))
        n = n_seen if plan.streamed else n_rows
        counts = {"n": n, "seed": sequences["seed"], "bytes": streamed + n_rows * each}
        batch, name = executor
        probes = [_spelled(probe) for probe in plan.supported.values()]
        streams = {"streamed": sorted(plan.streamed), "n_streamed": plan.n_streamed}
        shared = job_arguments(name, model.spec, task, probes=probes, is_named=plan.is_named, **streams, **counts)
        job, title = partial(Job, function=untrained_at), f"{model.spec.name} untrained"
        indices = range(n_untrained if plan.supported else 0)
        jobs = [job(name=f"{title} {index}", arguments={**shared, "index": index}) for index in indices]
        results = batch.results(jobs, desc="untrained networks")
    reports: dict[str, list[Report]] = {name: [] for name in plan.supported}
    skipped = dict(plan.skipped)
    is_quiet = executor is not None or not n_untrained  # jobs have a bar of their own
    with phase("untrained networks", n_untrained, "network", is_quiet=is_quiet) as shown:
        for network_reports, faults in results:
            skipped = _with_faults(skipped, faults)
            for name, report in network_reports.items():
                reports[name].append(report)
            shown.update(1)
    return reports, skipped


def _with_faults(skipped: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons with those of another network: each that was left out has its own."""
    known, reason = (reasons.get(_INITIALIZATION, "") for reasons in (skipped, faults))
    every = known if reason in known else f"{known} {reason}".strip()
    return {**skipped, **faults, **({_INITIALIZATION: every} if every else {})}


def _copies(
    model: Model,
    task: WindTunnel,
    untrained: Mapping[str, Sequence[Any]],
    skipped: Mapping[str, str],
    n_untrained: int,
    sequences: Mapping[str, int],
    executor: tuple[Batch, str] | None,
) -> tuple[list[Float64[np.ndarray, " sequence"]], dict[str, str]]:
    """Return the KL of the sequences of at least `N_COPIES` untrained networks, and what was left out.

    The networks that probes are measured on are among them. The others run for their predictions alone; a large model
    gets none of them.
    """
    copies, reasons = [report.sequence_scores[:, 0] for report in untrained.get(_PREDICTIONS, ())], dict(skipped)
    if not n_untrained or _PREDICTIONS not in untrained:
        return copies, reasons
    with suppress(NoCopy):
        if model.permuted_copy(0) is not None:
            why = f"how {model.spec.name} is initialized is unknown: its predictions are compared with those of copies "
            why += "with permuted weights. Declare rebuild=lambda: …, which returns a new module."
            copies, reasons = [], _with_faults(reasons, {_INITIALIZATION: why})
    n = max(n_untrained, 0 if model.spec.n_parameters >= LARGE else N_COPIES)
    further = range(n_untrained, n_untrained + n - len(copies))
    counts = {"n": sequences["n"], "seed": sequences["seed"]}
    if executor is None:
        results = [_predicted(model, task, index, **counts) for index in further]
    else:
        shared, title = job_arguments(executor[1], model.spec, task, **counts), f"{model.spec.name} untrained"
        job = partial(Job, function=predictions_at)
        jobs = [job(name=f"{title} {index}", arguments={**shared, "index": index}) for index in further]
        results = executor[0].results(jobs, desc="predictions of untrained networks")
    for kl, reason in results:
        copies += [np.array(kl)] * bool(kl)
        reasons = _with_faults(reasons, {_INITIALIZATION: reason} if reason else {})
    return copies, reasons


def predictions_at(
    *, model: str, weights: str, device: str, task: Mapping[str, Any], index: int, n: int, seed: int
) -> tuple[list[float], str]:
    """Do the job of one untrained network that is run for its predictions alone."""
    return _predicted(check_same(load(model, device=device), weights), task_from_config(task), index, n=n, seed=seed)


def _predicted(model: Model, task: WindTunnel, index: int, *, n: int, seed: int) -> tuple[list[float], str]:
    """Return the KL of each sequence of an untrained network; empty with the reason if there is none."""
    network_seed = derived_seed(seed, Branch.UNTRAINED, index)
    try:
        network = model.permuted_copy(network_seed) or model.untrained_copy(network_seed)
        blocks = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=network.spec.device)
        return sequence_kl_bits(network.run(blocks, n_recorded=n).behavior).tolist(), ""
    except (NoCopy, NonFinite, RuntimeError) as reason:
        if isinstance(reason, RuntimeError) and not is_out_of_memory(reason):
            raise
        return [], f"{str(reason).rstrip('.')}."


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
    subject, chosen = check_same(load(model, device=device), weights), task_from_config(task)
    one = chosen.sample(1, seed=seed)
    plan = replace(plan_of(subject, chosen, one, probes, n=n, seed=seed), is_named=bool(counts["is_named"]))
    if counts["streamed"]:
        plan = with_streams(plan, subject, frozenset(counts["streamed"]), int(counts["n_streamed"]))
    budget = int(counts["bytes"])
    return _untrained(subject, plan, chosen, index, n=n, seed=seed, budget=budget)


def _spelled(probe: AnyMeasurement) -> str:
    """Return the name by which a worker finds this probe.

    Raises:
        InvalidArgument: No name gives it.
    """
    switched = [name for name, value in vars(probe).items() if value is True]
    spelled = ":".join([probe.name, *switched])
    known = all_probes()
    if probe.name not in known or len(switched) > 1 or named_measurement(spelled, known) != probe:
        raise InvalidArgument(f"executor= takes probes by their names, which workers find; got the object {probe!r}.")
    return spelled


def _reported(measurement: AnyMeasurement, subject: Subject) -> Report:
    return usable(measurement.of(subject))


def _untrained(model: Model, plan: Plan, task: WindTunnel, index: int, *, n: int, seed: int, budget: int) -> Found:
    """Return every probe's report on an untrained network of the model's shape, and why some are missing."""
    try:
        # No variable holds the network: it is freed before the next one is built and before the model runs.
        network = model.untrained_copy(derived_seed(seed, Branch.UNTRAINED, index))
        read = (site for probe in plan.supported.values() for site in sites_read(model, probe))
        if lacking := [site for site in read if not {*model.layers_of(site)} <= {*network.layers_of(site)}]:
            why = network.withheld.get(lacking[0], "its network does not provide it")
            return {}, {_INITIALIZATION: f"untrained network {index} was left out: it lacks {lacking[0].name} ({why})."}
        return_freed_memory()  # of loading and of building, before the pass allocates its own
        run = whole_run(network, task, plan, n=n, seed=seed, budget=budget)
        del network
    except NoCopy as reason:
        return {}, {_INITIALIZATION: str(reason)}
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {}, {_INITIALIZATION: f"untrained network {index} was left out, because it does not fit into memory."}
    return probed(plan, run, {name: [] for name in plan.supported})


def _provenance(
    model: Model, task: WindTunnel, plan: Plan, run: Run, arguments: Mapping[str, Any], measured: Sequence[str]
) -> dict[str, Any]:
    """Return the provenance, with what differs from a diagnosis that records every layer of a model in memory."""
    where = provenance(model, task, arguments) | {"n_recorded": run.n_recorded}
    if run.trials.has_posterior:
        where["task_in_words"] = task.in_words(run.trials, run.log_answers[0, -1].exp().tolist())
    streamed = [statistic.site for name in plan.streamed for statistic in plan.supported[name].needs.streamed]
    if kernels := kernels_of(model, [*plan.sites, *streamed], also_without=run.n_recorded < len(run.behavior.kl_bits)):
        where[KERNELS] = kernels
    probes = {name: plan.supported[name] for name in measured if name in plan.supported}
    seen = {name: list(plan.layers[name]) for name in probes}
    seen |= {
        f"{name} of {site.name}": list(model.layers_of(site))
        for name, probe in probes.items()
        for site in sites_read(model, probe)
        if site in probe.needs.partial
    }
    partly = {name: layers for name, layers in seen.items() if len(layers) < model.spec.n_layers}
    where |= {LAYERS: partly} if partly else {}
    where |= {STREAMED: dict.fromkeys(sorted(plan.streamed), plan.n_streamed)} if plan.streamed else {}
    return where | model.notes()
