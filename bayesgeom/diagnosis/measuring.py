"""The probes of a plan, measured on one run: what each reads of it, and reports on some of a model's layers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Shaped

from bayesgeom.core import BayesGeomError, InvalidArgument, Run, Site, phase
from bayesgeom.core.plugins import Contained
from bayesgeom.core.torch_state import side_by_side
from bayesgeom.diagnosis.plan import Plan
from bayesgeom.measurements.base import Subject
from bayesgeom.models.base import return_freed_memory
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.report import Report
from bayesgeom.report.storage import axes_of, parts_of, value_of
from bayesgeom.report.tables import records_of

_MOST_STORED = 2**30  # bytes of activations up to which probes run side by side
R = TypeVar("R", bound=Report)
T = TypeVar("T")
_AXIS = "layer"

Found = tuple[dict[str, Report], dict[str, str]]  # reports by the name of their probe, and why others are missing


def probed(
    plan: Plan,
    run: Run,
    untrained: Mapping[str, Sequence[Report]],
    *,
    on_all_layers: bool = False,
) -> Found:
    """Return the reports of the probes in `untrained` on a run, and why plug-ins failed.

    A report on some layers gets NaN in the others if `on_all_layers`; those of untrained networks keep their layers.
    """

    def measured(name: str) -> Report:
        probe = plan.supported[name]
        seen = run.streamed if name in plan.streamed else run
        assert seen is not None, "it was streamed if a probe of the plan is"
        needed, partial = (*probe.needs.sites, *probe.needs.optional), probe.needs.partial
        read = seen.within(plan.layers[name], needed, partial)
        report = probe.of(Subject(run=read), untrained[name])
        report = without_absent(report, read.layers) if on_all_layers and read.layers else report
        report = usable(report) if name in plan.contained else report
        is_partial = on_all_layers and len(plan.layers[name]) < run.spec.n_layers
        return on_layers(report, plan.layers[name], run.spec.n_layers) if is_partial else report

    def one_by_one() -> Iterator[tuple[int, Report]]:
        for place, name in enumerate(names):
            return_freed_memory()  # of the network, if it is an untrained one, and of the probe before
            yield place, measured(name)

    reports, faults = dict[str, Report](), dict[str, str]()
    with phase(f"{run.spec.name}: probes", len(untrained), "probe") as shown:
        foreign = [name for name in untrained if name in plan.contained]
        names = [name for name in untrained if name not in foreign]
        names.sort(key=lambda name: plan.supported[name].relative_time, reverse=True)  # no thread waits long at the end
        # Side by side, if probes gain from it and the memory holds what several of them compute at a time.
        is_small = sum(values.nbytes for values in run.recorded.values()) < _MOST_STORED
        each = side_by_side([partial(measured, name) for name in names]) if is_small else one_by_one()
        for place, report in each:
            reports[names[place]] = report
            shown.update()
        for name in foreign:
            if (of_plugin := attempted(plan, name, partial(measured, name), faults)) is not None:
                reports[name] = of_plugin
            shown.update()
    return {name: reports[name] for name in untrained if name in reports}, faults


def attempted(plan: Plan, name: str, work: Callable[[], T], faults: dict[str, str]) -> T | None:
    """Return the result of one measurement's work; an error costs only its report, unless it alone was named.

    Errors of the package's own kind are stated in `faults`; so is every other error of a plug-in.
    """
    every = {**plan.supported, **plan.again}
    is_alone = plan.is_named and len(every) == 1
    try:
        with Contained(is_foreign=name in plan.contained) as working:
            return work()
    except BayesGeomError as error:
        if is_alone:
            raise
        faults[name] = str(error)
        return None
    fault = str(working.error) if isinstance(working.error, BayesGeomError) else working.fault
    faults[name] = fault if every[name].is_written_by_user else f"probe {name!r} failed: {fault.rstrip('.')}."
    if is_alone:
        raise InvalidArgument(faults[name]) from working.error
    return None


def usable(report: object) -> Report:
    """Return the report of a probe of another package, if tables and files can be made from it."""
    if not isinstance(report, Report):
        raise InvalidArgument(f"its measure must return a Report, got {type(report).__name__} {report!r:.40}")
    report.headlines(), records_of(report), parts_of(report)
    return report


def without_absent(report: R, layers: Mapping[Site, Sequence[int]]) -> R:
    """Return the report with NaN in the layers that lack a site, where the probe read another layer instead.

    Args:
        report: A report with a field `sites`.
        layers: By site, the layers that have it.
    """
    names = value_of(report, "sites")

    def blank(_: str, axes: Sequence[str], values: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        copied = np.array(values)
        by_site = np.moveaxis(copied, (axes.index("site"), axes.index(_AXIS)), (0, 1))
        for site, there in layers.items():
            by_site[names.index(site.name), [i for i in range(by_site.shape[1]) if i not in there]] = np.nan
        return copied

    return _changed(report, {"site", _AXIS}, blank)


def on_layers(report: R, layers: Sequence[int], n_layers: int) -> R:
    """Return the report with one entry per layer of the model along every axis `layer`; NaN in unmeasured layers.

    Args:
        report: A report whose layers are `layers`, in this order.
        layers: Indices of the measured layers.
        n_layers: Number of layers of the model.

    Raises:
        InvalidArgument: A field along `layer` has no NaN, because its numbers are integers.
    """

    def spread(name: str, axes: Sequence[str], values: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        if values.dtype.kind != "f":
            raise InvalidArgument(f"{type(report).__name__}.{name} cannot be NaN in the layers that lack its site.")
        at = axes.index(_AXIS)
        wide = np.full((*values.shape[:at], n_layers, *values.shape[at + 1 :]), np.nan, dtype=values.dtype)
        wide[(slice(None),) * at + (list(layers),)] = values
        return wide

    return _changed(report, {_AXIS}, spread)


def _changed(report: R, along: set[str], change: Callable[[str, Sequence[str], np.ndarray], np.ndarray]) -> R:
    """Return the report with each field along these axes changed by a function of its name, its axes and its values."""
    changed = dict[str, Any]()
    for name, axes in axes_of(type(report)).items():
        if along <= {*axes}:
            values, change_of = value_of(report, name), partial(change, name, axes)
            changed[name] = values.mapped(change_of) if isinstance(values, Estimate) else change_of(values)
    return replace(report, **changed)
