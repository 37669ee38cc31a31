"""Plans of a diagnosis: which probes run, what a pass records for them, and why the others do not run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

from bayesgeom.ablations.inside import InsideReport
from bayesgeom.core import (
    Contained,
    InvalidArgument,
    MissingSite,
    Site,
    TaskMismatch,
    Trials,
    Verdict,
    discovered,
    is_foreign,
    unknown_name,
)
from bayesgeom.diagnosis.fitted_lens import FittedLensReport, JacobianMap, LensFit
from bayesgeom.diagnosis.functions import Function, FunctionProbe, function_name, tried
from bayesgeom.generalization.relabeling import RelabelingReport, Renaming
from bayesgeom.generalization.response import EvidenceResponseReport, Replacement
from bayesgeom.models.base import Model, bytes_per_sequence
from bayesgeom.models.resolve import require_posterior
from bayesgeom.probes.base import Needs, Probe
from bayesgeom.report.diagnosis import report_kinds
from bayesgeom.tasks.base import WindTunnel

MOST_UNTRAINED = 1000  # each costs a pass
LEAST_RECORDED = 16  # a probe of activations is skipped if the memory holds fewer sequences
N_RENAMED = 128  # sequences of the renaming test: one block, the same for every n
N_REPLACED = 64  # sequences of the evidence response, for each age
BY_NAME = (FittedLensReport.name,)  # runs if it is named
SECOND_PASSES = (RelabelingReport.name, EvidenceResponseReport.name, InsideReport.name, *BY_NAME)  # run the model again

AnyProbe = Probe[Any]
Named = str | AnyProbe | Function  # a probe or a test by its name, a probe, or a function of the run


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
    broken = {name if name not in kinds else f"{name} (plug-in)": reason for name, reason in unusable.items()}
    for name, kind in kinds.items():
        with Contained(is_foreign=is_foreign(kind)) as making:
            probe = kind()
            if not isinstance(probe.needs, Needs):
                raise InvalidArgument(f"its needs must be a Needs(…), got {probe.needs!r}")
            found[name] = probe
        if making.fault:
            broken[name] = f"plug-in {name!r} ({kind.__module__}) cannot be used: {making.fault.rstrip('.')}."
    return found, broken


@final
@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """Probes that will run, the sites that they read, and why the others will not: because of the model, or the task.

    `layers`: the layers that have all the sites that a probe requires. `streamed`: probes whose statistics are computed
    during the pass, of `n_streamed` sequences, because the memory does not hold their activations. `contained`: probes
    of users and of plug-ins, whose errors lose only their own report.
    """

    supported: dict[str, AnyProbe]
    contained: frozenset[str]
    is_named: bool
    sites: tuple[Site, ...]
    layers: dict[str, tuple[int, ...]]
    streamed: frozenset[str]
    n_streamed: int
    skipped: dict[str, str]
    inapplicable: dict[str, str]
    renaming: Renaming | None
    replacement: Replacement | None
    is_inside_shown: bool
    lens_fit: LensFit | None


def check_probes(probes: Named | Sequence[Named] | None) -> None:
    """Check the names of probes, which needs no model.

    Raises:
        UnknownName: There is no such probe or option.
        InvalidArgument: The list is empty, or holds what is no probe, or two probes of one name.
    """
    known, probes = all_probes(), listed(probes)
    if probes is not None and not probes:
        names = ", ".join(sorted({*known, *SECOND_PASSES}))
        raise InvalidArgument(f"probes is empty: leave it out for all, or choose from: {names}.")
    if probes is not None and (named := [own for own in broken_probes().items() if own[0] in probes]):
        raise InvalidArgument(named[0][1])
    own: Named
    taken: dict[str, Named] = {}
    for item in probes or ():
        if isinstance(item, str):
            own = item if _second_pass(item) else named_probe(item, known)
            name = item.partition(":")[0]
        else:
            own, name = item, item.name if isinstance(item, Probe) else function_name(item)
            if not isinstance(item, Probe) and name in {*known, *SECOND_PASSES, *report_kinds()}:
                raise InvalidArgument(f"function {name!r} has the name of one of bayesgeom's reports: rename it.")
        if taken.setdefault(name, own) != own:
            raise InvalidArgument(f"two probes are named {name!r}: rename one.")


def listed(probes: Named | Sequence[Named] | None) -> Sequence[Named] | None:
    """Return the requested probes as a list; None for all."""
    return [probes] if isinstance(probes, str | Probe) or callable(probes) else probes


def check_untrained(n_untrained: int) -> None:
    """Raise `InvalidArgument` for a number of untrained networks below 0, or one that no run would end with."""
    if not 0 <= n_untrained <= MOST_UNTRAINED:
        raise InvalidArgument(
            f"n_untrained, the number of untrained networks, must be from 0 to {MOST_UNTRAINED:,}, got {n_untrained}."
        )


def plan_of(
    model: Model,
    task: WindTunnel,
    trials: Trials,
    probes: Named | Sequence[Named] | None,
    *,
    n: int,
    seed: int,
) -> ProbePlan:
    """Choose the probes and tests that this model and task support; a named one that they lack is an error."""
    check_probes(probes)
    known, probes = all_probes(), listed(probes)
    requested: dict[str, AnyProbe] = {}
    for item in known.values() if probes is None else [own for own in probes if not _second_pass(own)]:
        probe = named_probe(item, known) if isinstance(item, str) else item
        if not isinstance(probe, Probe):
            probe = tried(probe, model, task, seed=seed)
        requested[probe.name] = probe
    supported, skipped, inapplicable = {}, dict[str, str](), dict[str, str]()
    if probes is None:
        skipped |= broken_probes()
    for name, probe in requested.items():
        try:
            _require_task(probe.needs, task, trials, by=f"probe {name!r}")
            if not model.layers_of(*probe.needs.sites):
                model.require(probe.needs.sites, by=f"probe {name!r}")
        except (MissingSite, TaskMismatch) as reason:
            if probes is not None:
                raise
            (inapplicable if isinstance(reason, TaskMismatch) else skipped)[name] = str(reason)
            continue
        supported[name] = probe
    options = dict(filter(None, map(_second_pass, probes or ())))
    named = options if probes is not None else {name: "" for name in SECOND_PASSES if name not in BY_NAME}
    n_named = 0 if probes is None else len(requested) + len(options)
    second, more, others = _second_passes(model, task, named, n=n, seed=seed, n_named=n_named)
    skipped, inapplicable = skipped | more, inapplicable | others
    # Calibration is first: the other probes explain it.
    first = sorted(supported, key=lambda name: (name != "calibration", list(supported).index(name)))
    chosen = {name: supported[name] for name in first}
    foreign = frozenset(n for n, own in chosen.items() if is_foreign(type(own)) or isinstance(own, FunctionProbe))
    return ProbePlan(
        supported=chosen,
        contained=foreign,
        is_named=probes is not None,
        sites=_sites(model, chosen.values()),
        layers={name: model.layers_of(*probe.needs.sites) for name, probe in chosen.items()},
        streamed=frozenset(),
        n_streamed=0,
        skipped=skipped,
        inapplicable=inapplicable,
        renaming=second.get(RelabelingReport.name),
        replacement=second.get(EvidenceResponseReport.name),
        is_inside_shown=InsideReport.name in second,
        lens_fit=second.get(FittedLensReport.name),
    )


def _second_passes(
    model: Model, task: WindTunnel, names: Mapping[str, str], *, n: int, seed: int, n_named: int
) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Return the tests that run the model again, and why others are skipped or do not apply, by name.

    Args:
        model: The model.
        task: The task.
        names: The option of each test by its name.
        n: Number of sequences.
        seed: Seed of the sequences.
        n_named: Number of named probes and tests. A named test that does not apply is an error, and the only one also
            if it cannot run: with so few sequences, for example.
    """
    found, skipped, inapplicable = dict[str, Any](), dict[str, str](), dict[str, str]()
    for name, option in names.items():
        jacobian = JacobianMap.of(option, model.spec) if option else None  # no reason to skip: the name is wrong
        try:
            if name == InsideReport.name:
                require_posterior(task)
                found[name] = True
            elif name == FittedLensReport.name:
                found[name] = LensFit.of(model, task, n=n, seed=seed, jacobian=jacobian)
            elif name == RelabelingReport.name:
                found[name] = Renaming.of(model, task, n=min(n, N_RENAMED), seed=seed)
            else:
                found[name] = Replacement.of(model, task, n=min(n, N_REPLACED), seed=seed)
        except (InvalidArgument, TaskMismatch) as reason:
            if n_named == 1 or (n_named and isinstance(reason, TaskMismatch)):
                raise
            (inapplicable if isinstance(reason, TaskMismatch) else skipped)[name] = str(reason)
    if EvidenceResponseReport.name in inapplicable and task.has_posterior:
        inapplicable[EvidenceResponseReport.name] = str(Verdict.NOT_REPLACEABLE)
    return found, skipped, inapplicable


def _second_pass(item: Named) -> tuple[str, str] | None:
    """Return the name and the option of a test that runs the model again, such as fitted_lens:MAP; None for others."""
    name, _, option = item.partition(":") if isinstance(item, str) else ("", "", "")
    return (name, option) if name in SECOND_PASSES and (not option or name == FittedLensReport.name) else None


def affordable(plan: ProbePlan, model: Model, trials: Trials, budget: int, n: int) -> ProbePlan:
    """Stream or remove probes until the memory holds the activations of `n` sequences, or at least of enough.

    Probes whose statistics can be computed during the pass are streamed if the activations of all `n` sequences do not
    fit. Then probes are removed until activations and statistics of enough sequences fit: first those whose statistics
    alone do not fit, then the one with the largest activations. A named probe raises `InvalidArgument` instead.
    Statistics of as many sequences as fit next to the activations of enough are computed; activations get the rest.
    """
    least = min(n, LEAST_RECORDED)
    supported, skipped = dict(plan.supported), dict(plan.skipped)
    is_needed = bytes_of_one(model, _sites(model, supported.values()), trials) * n > budget
    smaller = (
        name
        for name, probe in supported.items()
        if 0 < bytes_streamed(model, [probe], trials) < bytes_of_one(model, sites_read(model, probe), trials)
    )
    streamed = frozenset(smaller if is_needed else ())

    def stored_bytes(names: Iterable[str]) -> int:
        probes = [plan.supported[name] for name in names if name not in streamed]
        return bytes_of_one(model, _sites(model, probes), trials)

    def streamed_bytes(names: Iterable[str]) -> int:
        return bytes_streamed(model, [plan.supported[name] for name in names if name in streamed], trials)

    def rank(name: str) -> tuple[bool, int, int]:
        alone = streamed_bytes([name])
        return alone * least > budget, stored_bytes([name]), alone

    while (stored_bytes(supported) + streamed_bytes(supported)) * least > budget:
        name = max(supported, key=rank)
        gib, kept = (stored_bytes([name]) + streamed_bytes([name])) * least / 2**30, budget / 2**30
        del supported[name]
        what = "statistics" if name in streamed else "activations"
        skipped[name] = (
            f"probe {name!r} reads {what} of at least {least} sequences, which take {gib:.3g} GiB; the limit for all "
            f"probes is {kept:.3g} GiB. Raise memory_gib of load (--memory-gib)."
        )
        if plan.is_named:
            raise InvalidArgument(skipped[name])
    plan = replace(plan, supported=supported, skipped=skipped)
    rest = budget - least * stored_bytes(supported)
    n_streamed = min(n, rest // max(1, streamed_bytes(supported)))
    return with_streams(plan, model, streamed.intersection(supported), n_streamed)


def with_streams(plan: ProbePlan, model: Model, streamed: frozenset[str], n_streamed: int) -> ProbePlan:
    """The plan in which these probes are streamed: only what they read from the weights is stored."""
    reads = {name: sites_read(model, probe) for name, probe in plan.supported.items()}
    sites = [site for name, own in reads.items() for site in own if site.is_static or name not in streamed]
    return replace(plan, sites=tuple(dict.fromkeys(sites)), streamed=streamed, n_streamed=n_streamed)


def bytes_streamed(model: Model, probes: Iterable[AnyProbe], trials: Trials) -> int:
    """The bytes of one sequence's statistics that these probes read."""
    of = {own: sites_read(model, probe) for probe in probes for own in probe.needs.streamed}
    layers = {own: model.layers_of(own.site) for own, sites in of.items() if own.site in sites}
    return bytes_per_sequence(model.spec, layers, trials)


def _sites(model: Model, probes: Iterable[AnyProbe]) -> tuple[Site, ...]:
    """Return the sites of a model that probes read."""
    return tuple(dict.fromkeys(site for probe in probes for site in sites_read(model, probe)))


def bytes_of_one(model: Model, sites: Iterable[Site], one: Trials) -> int:
    """Return the bytes that the activations of one sequence take at these sites."""
    return bytes_per_sequence(model.spec, {site: model.layers_of(site) for site in sites if not site.is_static}, one)


def sites_read(model: Model, probe: AnyProbe) -> tuple[Site, ...]:
    """The sites that a probe requires, and the optional ones that exist in the same layers."""
    needed = probe.needs.sites
    layers = model.layers_of(*needed)
    return (*needed, *(site for site in probe.needs.optional if model.layers_of(site, *needed) == layers))


def named_probe(text: str, known: Mapping[str, AnyProbe]) -> AnyProbe:
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
        raise TaskMismatch(
            f"{by} requires an exact posterior, which task {task.name!r} does not have. Use a task that has one."
        )
    if needs.groups and len(trials.group_names) < 2:
        kinds = ", ".join(trials.group_names) or "one kind"
        raise TaskMismatch(
            f"{by} requires sequences of several kinds; task {task.name!r} has only {kinds}. Use a task with two or "
            f"more, such as prompts of several domains."
        )
