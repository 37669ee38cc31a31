"""The probes of a plan, measured on one run."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.plugins import Contained, is_foreign
from bayesgeom.core.progress import bar
from bayesgeom.core.run import Run
from bayesgeom.core.torch_state import side_by_side
from bayesgeom.diagnosis.layers import on_layers
from bayesgeom.diagnosis.plan import Plan
from bayesgeom.diagnosis.views import within
from bayesgeom.report.report import Report
from bayesgeom.report.storage import parts_of
from bayesgeom.report.tables import records_of

LARGE = 50_000_000  # a model with more parameters is worth all threads in each operation
_MOST_STORED = 2**30  # bytes of activations up to which probes run side by side

Found = tuple[dict[str, Report], dict[str, str]]  # reports by the name of their probe, and why others are missing


def probed(
    plan: Plan,
    run: Run,
    untrained: Mapping[str, Sequence[Report]],
    *,
    on_all_layers: bool = False,
    meanwhile: Iterable[object] = (),
) -> Found:
    """Return the reports of the probes in `untrained` on a run, and why plug-ins failed.

    A report on some layers gets NaN in the others if `on_all_layers`; those of untrained networks keep their layers.
    `meanwhile` are steps of other work, some of which are taken while probes are measured side by side.
    """

    def measured(name: str) -> Report:
        probe = plan.supported[name]
        seen = run.streamed if name in plan.streamed else run
        assert seen is not None, "it was streamed if a probe of the plan is"
        needed = (*probe.needs.sites, *probe.needs.optional)
        report = probe.measure(within(seen, plan.layers[name], needed), untrained[name])
        report = _usable(report) if name in plan.contained else report
        is_partial = on_all_layers and len(plan.layers[name]) < run.spec.n_layers
        return on_layers(report, plan.layers[name], run.spec.n_layers) if is_partial else report

    found, faults = dict[str, Report](), dict[str, str]()
    with bar(total=len(untrained), desc=f"{run.spec.name}: probes", unit="probe", leave=False) as shown:
        foreign = [name for name in untrained if is_foreign(type(plan.supported[name]))]
        own = _longest_first(plan, [name for name in untrained if name not in foreign])
        works = [partial(measured, name) for name in own]
        each = side_by_side(works, meanwhile) if _is_small(run) else ((at, do()) for at, do in enumerate(works))
        for place, report in each:
            found[own[place]] = report
            shown.update()
        for name in foreign:
            with Contained(is_foreign=name in plan.contained) as measuring:
                found[name] = measured(name)
            if measuring.fault:
                faults[name] = f"plug-in {name!r} failed: {measuring.fault.rstrip('.')}."
                if plan.is_named:
                    raise InvalidArgument(faults[name])
            shown.update()
    return {name: found[name] for name in untrained if name in found}, faults


def _is_small(run: Run) -> bool:
    """Whether probes gain from running side by side, and the memory holds what several of them compute at a time."""
    stored = sum(values.nbytes for values in run.recorded.values())
    return run.spec.n_parameters < LARGE and stored < _MOST_STORED


def _longest_first(plan: Plan, names: Sequence[str]) -> list[str]:
    """Order probes so that the short ones come last and no thread waits long for the others at the end."""
    return sorted(names, key=lambda name: plan.supported[name].relative_time, reverse=True)


def _usable(report: object) -> Report:
    """Return the report of a plug-in, after checking that tables and files can be made from it."""
    if not isinstance(report, Report):
        raise InvalidArgument(f"its measure must return a Report, got {type(report).__name__} {report!r:.40}")
    report.headlines(), records_of(report), parts_of(report)[0], parts_of(report)[1]
    return report
