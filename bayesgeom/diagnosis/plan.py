"""Plans of a diagnosis: what is measured, what a pass records for it, and why the rest is not measured."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from bayesgeom.core import (
    LOGIT_LENS,
    STATE,
    Ask,
    BayesGeomError,
    InvalidArgument,
    MissingSite,
    Site,
    TaskMismatch,
    Trials,
    unknown_name,
)
from bayesgeom.core.plugins import Contained, is_foreign, plugins_and_faults
from bayesgeom.measurements.base import Measurement, Needs, Probe
from bayesgeom.measurements.functions import Function, function_name, tried
from bayesgeom.models.base import Model, bytes_per_sequence
from bayesgeom.report.diagnosis import report_kinds
from bayesgeom.report.storage import VIEWER
from bayesgeom.tasks.base import WindTunnel

BATTERY = "ablation"  # name of the measurement that `ablations` adds
_WIDEST_STATE = 2**15  # numbers of a state up to which probes read it without requiring it
LEAST_RECORDED = 16  # a probe of activations is skipped if the memory holds fewer sequences

AnyMeasurement = Measurement[Any]
Named = str | AnyMeasurement | Function  # a measurement by its name, a measurement, or a function of the run


def all_probes() -> dict[str, AnyMeasurement]:
    """Return an instance of every installed, usable probe, by name."""
    return {name: each for name, each in all_measurements().items() if isinstance(each, Probe)}


def all_measurements() -> dict[str, AnyMeasurement]:
    """Return an instance of every installed, usable measurement, by name."""
    return _discovered()[0]


def broken_probes() -> dict[str, str]:
    """Return why plug-ins cannot be used, by the name of their entry points."""
    return _discovered()[1]


def _discovered() -> tuple[dict[str, AnyMeasurement], dict[str, str]]:
    # mypy forbids an abstract class as a value, but discovery needs one.
    kinds, unusable = plugins_and_faults("bayesgeom.measurements", Measurement, group="bayesgeom.probes")  # type: ignore[type-abstract]
    usable = dict[str, AnyMeasurement]()
    broken = {name if name not in kinds else f"{name} (plug-in)": reason for name, reason in unusable.items()}
    for name, kind in kinds.items():
        if kind.is_written_by_user:  # made from a function, not found
            continue
        with Contained(is_foreign=is_foreign(kind)) as making:
            measurement = kind()
            if not isinstance(measurement.needs, Needs):
                raise InvalidArgument(f"its needs must be a Needs(…), got {measurement.needs!r}")
            usable[name] = measurement
        if making.fault:
            broken[name] = f"plug-in {name!r} ({kind.__module__}) cannot be used: {making.fault.rstrip('.')}."
    return usable, broken


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be measured, the sites that it reads, and why the rest will not be: because of the model, or the task.

    `supported`: what reads the first run, by name; `again`: what also runs further sequences, or edits the model.
    `layers`: the layers that have all the sites that a measurement requires. `streamed`: those whose statistics are
    computed during the pass, of `n_streamed` sequences, because the memory does not hold their activations.
    `contained`: those of users and of plug-ins, whose errors lose only their own report.
    """

    supported: dict[str, AnyMeasurement]
    again: dict[str, AnyMeasurement]
    contained: frozenset[str]
    is_named: bool
    sites: tuple[Site, ...]
    layers: dict[str, tuple[int, ...]]
    streamed: frozenset[str]
    n_streamed: int
    skipped: dict[str, str]
    inapplicable: dict[str, str]

    def only(self, names: Collection[str]) -> "Plan":
        """Return the part of the plan with these measurements."""
        supported, again = ({k: v for k, v in part.items() if k in names} for part in (self.supported, self.again))
        return replace(self, supported=supported, again=again, is_named=False)


def check_probes(probes: Named | Sequence[Named] | None) -> dict[str, AnyMeasurement | Function]:
    """Return the requested measurements and functions by name; that needs no model. Empty for all.

    Raises:
        UnknownName: There is no such measurement or option.
        InvalidArgument: The list is empty, or holds what is none, or two of one name.
    """
    known, probes = all_measurements(), listed(probes)
    if probes is not None and not probes:
        raise InvalidArgument(f"probes is empty: leave it out for all, or choose from: {', '.join(sorted(known))}.")
    if probes is not None and (named := [each for each in broken_probes().items() if each[0] in probes]):
        raise InvalidArgument(named[0][1])
    taken: dict[str, AnyMeasurement | Function] = {}
    for item in probes or ():
        given = named_measurement(item, known) if isinstance(item, str) else item
        name = given.name if isinstance(given, Measurement) else function_name(given)
        if not isinstance(given, Measurement) and name in {*known, *report_kinds()}:
            raise InvalidArgument(f"function {name!r} has the name of one of bayesgeom's reports: rename it.")
        if taken.setdefault(name, given) != given:
            raise InvalidArgument(f"two probes are named {name!r}: rename one.")
    return taken


def listed(probes: Named | Sequence[Named] | None) -> Sequence[Named] | None:
    """Return the requested measurements as a list; None for all."""
    return [probes] if isinstance(probes, str | Measurement) or callable(probes) else probes


def check_untrained(n_untrained: int) -> None:
    """Raise `InvalidArgument` for a number of untrained networks below 0."""
    if n_untrained < 0:
        raise InvalidArgument(f"n_untrained, the number of untrained networks, must be at least 0, got {n_untrained}.")


def plan_of(
    model: Model,
    task: WindTunnel,
    trials: Trials,
    probes: Named | Sequence[Named] | None,
    *,
    n: int,
    seed: int,
    ablations: bool = False,
) -> Plan:
    """Choose what this model and task support; a named measurement that they do not support is an error.

    With `ablations`, the default battery is measured, too, and the viewer shows the effect of every head.
    """
    named, known, chosen = check_probes(probes), all_measurements(), dict[str, AnyMeasurement]()
    requested = {name: each for name, each in known.items() if each.is_default and probes is None}
    for name, each in named.items():  # a function is tried
        requested[name] = each if isinstance(each, Measurement) else tried(each, model, task, seed=seed)
    with_option = {text.partition(":")[0] for text in listed(probes) or () if isinstance(text, str) and ":" in text}
    if ablations:
        requested[BATTERY] = known[BATTERY]
        if VIEWER in requested:
            requested[VIEWER] = requested[VIEWER].with_option("with_heads")
    skipped, inapplicable = ({} if probes is not None else broken_probes()), dict[str, str]()
    for name, measurement in requested.items():
        try:
            chosen[name] = _prepared(measurement, model, task, trials, n=n, seed=seed)
        except (MissingSite, TaskMismatch, InvalidArgument) as reason:
            if name in named and (len(named) == 1 or not isinstance(reason, InvalidArgument) or name in with_option):
                raise
            (inapplicable if isinstance(reason, TaskMismatch) else skipped)[name] = str(reason)
    if is_wide(model, STATE) and any(STATE in each.needs.optional for each in chosen.values()):
        skipped[STATE.name] = (
            f"site 'state' has {model.spec.d_state:,} numbers per layer and position; probes read up to "
            f"{_WIDEST_STATE:,} unless they require it. Write a probe that needs it, or record it with model.run."
        )
    order = list(chosen)

    def place(name: str) -> tuple[bool, int, bool]:  # calibration is first: the others explain it
        before = chosen[name].follows
        return name != "calibration", order.index(before if before in chosen else name), bool(before)

    supported = {name: chosen[name] for name in sorted(chosen, key=place) if isinstance(chosen[name], Probe)}
    foreign = {name for name, each in chosen.items() if is_foreign(type(each)) or each.is_written_by_user}
    return Plan(
        supported=supported,
        again={name: each for name, each in chosen.items() if name not in supported},
        contained=frozenset(foreign),
        is_named=probes is not None,
        sites=_sites(model, supported.values()),
        layers={name: model.layers_of(*each.needs.sites) for name, each in supported.items()},
        streamed=frozenset(),
        n_streamed=0,
        skipped=skipped,
        inapplicable=inapplicable,
    )


def _prepared(
    measurement: AnyMeasurement, model: Model, task: WindTunnel, trials: Trials, *, n: int, seed: int
) -> AnyMeasurement:
    """Return a measurement in the size that it has here; a fault of a plug-in's is `InvalidArgument`."""
    by, needs = f"probe {measurement.name!r}", measurement.needs
    needs.check_task(task, trials, by=by)
    if LOGIT_LENS in needs.sites or measurement.asks - {Ask.PREDICT}:
        _ = trials.answer_ids  # an error if answers are several tokens each
    if not model.layers_of(*needs.sites):
        model.require(needs.sites, by=by)
    if not isinstance(measurement, Probe) and (needs.sites or needs.optional or needs.streamed):
        raise InvalidArgument(f"{by} is no Probe, so the first run records no sites for it: ask for Further(record=…).")
    model.require_asks(measurement.asks, by=measurement.name)
    with Contained(is_foreign=is_foreign(type(measurement))) as preparing:
        return measurement.prepared(model, task, n=n, seed=seed)
    if isinstance(preparing.error, BayesGeomError):
        raise preparing.error
    raise InvalidArgument(f"{by} failed: {preparing.fault.rstrip('.')}.") from preparing.error


def affordable(plan: Plan, model: Model, trials: Trials, budget: int, n: int) -> Plan:
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


def with_streams(plan: Plan, model: Model, streamed: frozenset[str], n_streamed: int) -> Plan:
    """The plan in which these probes are streamed: only what they read from the weights is stored."""
    reads = {name: sites_read(model, probe) for name, probe in plan.supported.items()}
    sites = [site for name, read in reads.items() for site in read if site.is_static or name not in streamed]
    return replace(plan, sites=tuple(dict.fromkeys(sites)), streamed=streamed, n_streamed=n_streamed)


def bytes_streamed(model: Model, probes: Iterable[AnyMeasurement], trials: Trials) -> int:
    """The bytes of one sequence's statistics that these probes read."""
    of = {statistic: sites_read(model, probe) for probe in probes for statistic in probe.needs.streamed}
    layers = {statistic: model.layers_of(statistic.site) for statistic, sites in of.items() if statistic.site in sites}
    return bytes_per_sequence(model.spec, layers, trials)


def _sites(model: Model, probes: Iterable[AnyMeasurement]) -> tuple[Site, ...]:
    """Return the sites of a model that probes read."""
    return tuple(dict.fromkeys(site for probe in probes for site in sites_read(model, probe)))


def bytes_of_one(model: Model, sites: Iterable[Site], one: Trials) -> int:
    """Return the bytes that the activations of one sequence take at these sites."""
    return bytes_per_sequence(model.spec, {site: model.layers_of(site) for site in sites if not site.is_static}, one)


def sites_read(model: Model, probe: AnyMeasurement) -> tuple[Site, ...]:
    """The sites that a probe requires, and the optional ones that exist in these layers and are not too wide."""
    needs = probe.needs
    layers, optional = model.layers_of(*needs.sites), (site for site in needs.optional if not is_wide(model, site))
    common = {site: model.layers_of(site, *needs.sites) for site in optional}
    read = (site for site, own in common.items() if own == layers or (own and site in needs.partial))
    return (*needs.sites, *read)


def is_wide(model: Model, site: Site) -> bool:
    """Return whether this is a state of too many numbers to be read where no probe requires it."""
    return site == STATE and bool(model.layers_of(STATE)) and model.spec.d_state > _WIDEST_STATE


def named_measurement(text: str, known: Mapping[str, AnyMeasurement]) -> AnyMeasurement:
    """Return the measurement of NAME or NAME:option; an option is a field that is switched on."""
    name, _, option = text.partition(":")
    if name not in known:
        raise unknown_name("probe", name, known)
    return known[name].with_option(option)
