"""A report as an xarray dataset: named axes, coordinates where entries have names, units in the attributes."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.estimate import Estimate, Quantity

if TYPE_CHECKING:
    import xarray as xr

    from bayesgeom.results.report import Report


def dataset(report: "Report") -> "xr.Dataset":
    """Return the estimates and arrays of a report (see `Report.to_xarray`)."""
    import xarray as xr

    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    quantities, axes, held = report.quantities(), report.axes(), vars(report)
    for name, quantity in quantities.items():
        own, levels = _of_estimate(name, held[name], quantity)
        variables |= own
        coordinates |= levels
    variables |= {name: (dims, held[name]) for name, dims in axes.items() if name not in quantities}
    used = {dim for dims in axes.values() for dim in dims}
    coordinates |= {dim: list(held[f"{dim}s"]) for dim in used if isinstance(held.get(f"{dim}s"), tuple)}
    clash = sorted(used & variables.keys())
    if clash:
        raise InvalidArgument(f"{type(report).__name__} names both an axis and a field {', '.join(clash)}.")
    plain = {name: value for name, value in held.items() if isinstance(value, str | int | float)}
    return xr.Dataset(variables, coords=coordinates, attrs={"report": report.name, **plain})


def _of_estimate(name: str, estimate: Estimate, quantity: Quantity) -> tuple[dict[str, Any], dict[str, Any]]:
    attributes = {"units": quantity.unit or "1", "long_name": quantity.label or name, "better": quantity.better}
    found: dict[str, Any] = {name: (quantity.dims, estimate.value, {**attributes, "n": estimate.n})}
    if estimate.low is not None and estimate.high is not None:
        over = {**attributes, "resampled": estimate.resampled}
        found |= {
            f"{name}_low": (quantity.dims, estimate.low, over),
            f"{name}_high": (quantity.dims, estimate.high, over),
        }
    if not estimate.baselines:
        return found, {}
    axis = f"{name}_baselines"
    levels = np.stack([own.value for own in estimate.baselines])
    kinds = ", ".join(own.kind for own in estimate.baselines)
    found[f"{name}_baseline"] = ((axis, *quantity.dims), levels, {**attributes, "kinds": kinds})
    return found, {axis: [own.name for own in estimate.baselines]}
