"""Reports of one kind, joined along a new axis, such as the steps of a training."""

from collections.abc import Sequence
from dataclasses import fields, make_dataclass, replace
from functools import cache
from typing import Annotated, Any

import numpy as np

from bayesgeom.core import InvalidArgument
from bayesgeom.report.estimate import Estimate, stacked
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import JOINED, coordinates_of, quantities_of, values_of
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.report.theme import label_axes

TRAINING_STEP = "training_step"
_AXES = (TRAINING_STEP,)
_SHOWN, _MOST_LINES = 3, 9  # headlines, and lines of one panel


def join(reports: Sequence[Report], labels: Sequence[str], *, axis: str = TRAINING_STEP) -> Report:
    """Join reports of one kind: every estimate gets a leading axis, with its ends, reasons and baselines.

    The names and coordinates of other axes are kept; everything else stays in the single reports.

    Args:
        reports: The reports.
        labels: What each is of, in their order, such as the steps of a training.
        axis: Name of the new axis.

    Raises:
        InvalidArgument: The reports differ in kind, or in the names of their axes.
    """
    first, every = reports[0], [values_of(report) for report in reports]
    if len({type(report) for report in reports}) > 1:
        raise InvalidArgument(
            f"reports of several kinds cannot be joined: {', '.join(report.name for report in reports)}."
        )
    named = _named(type(first))
    for name in named:
        if any(not np.array_equal(values[name], every[0][name]) for values in every):
            raise InvalidArgument(f"reports {first.name!r} cannot be joined along {axis}: their {name} differ.")
    whole: dict[str, Any] = {JOINED: axis, f"{axis}s": tuple(labels), "name": first.name, "title": first.title}
    whole |= {name: every[0][name] for name in named}
    whole |= {name: stacked([values[name] for values in every]) for name in quantities_of(type(first))}
    return joined_kind(type(first), axis)(**whole, n=max(report.n for report in reports))


@cache
def joined_kind(kind: type[Report], axis: str) -> type[Report]:
    """Return the class of joined reports of a kind.

    Raises:
        InvalidArgument: Reports are not joined along this axis.
    """
    if axis not in _AXES:
        raise InvalidArgument(f"reports are joined along {', '.join(_AXES)}; got {axis!r}.")
    hints = {field.name: field.type for field in fields(kind)}
    declared: dict[str, Any] = {JOINED: str, "name": str, "title": str, f"{axis}s": tuple[str, ...]}
    declared |= {name: hints[name] for name in _named(kind)}
    declared |= {
        name: Annotated[Estimate, replace(quantity, axes=f"{axis} {quantity.axes}".strip())]
        for name, quantity in quantities_of(kind).items()
    }
    methods = {"headlines": _headlines, "panels": _panels, "about": kind.about, "limit": kind.limit}
    made: type[Report] = make_dataclass(
        f"Joined{kind.__name__}",
        declared.items(),
        bases=(Report,),
        namespace={**methods, "counts": kind.counts, "is_behavioral": kind.is_behavioral},
        frozen=True,
        kw_only=True,
        repr=False,
    )
    return made


def _named(kind: type[Report]) -> list[str]:
    """Return the fields that name the entries of axes of estimates, or are coordinates of them."""
    axes = {axis for quantity in quantities_of(kind).values() for axis in quantity.dims}
    marked = [name for name, axis in coordinates_of(kind).items() if axis in axes]
    every = [field.name for field in fields(kind)]
    return [name for name in every if name in marked or name in {f"{axis}s" for axis in axes} or name == "made_by"]


def _headlines(report: Report) -> Sequence[Headline]:
    """Return the numbers without further axes at the last place; without any, the first entry of the first estimate."""
    names = list(quantities_of(type(report)))
    single = [name for name in names if report.estimate(name).value.ndim == 1][:_SHOWN] or names[:1]
    sizes = {name: report.estimate(name).value.shape for name in single}
    return [headline_of(report, name, (shape[0] - 1, *(0 for _ in shape[1:]))) for name, shape in sizes.items()]


def _panels(report: Report) -> Sequence[Panel]:
    """Return a panel with the curves of each estimate that has few of them."""
    axis, panels = values_of(report)[JOINED], list[Panel]()
    labels = values_of(report)[f"{axis}s"]
    for name, quantity in quantities_of(type(report)).items():
        curves = report.estimate(name).value.reshape(len(labels), -1)
        if 0 < curves.shape[1] <= _MOST_LINES and np.isfinite(curves).any():
            panel = Panel.blank(quantity.label or name, is_folded=bool(panels))
            for index, values in enumerate(curves.T):
                panel.figure.add_scatter(x=labels, y=values, mode="lines+markers", name=f"{name} {index}")
            label_axes(panel.figure, axis.replace("_", " "), quantity.unit)
            panels.append(panel)
    return panels
