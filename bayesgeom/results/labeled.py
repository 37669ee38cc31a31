"""A report as an xarray dataset: named axes, coordinates for named entries, units in the attributes."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.estimate import Estimate, Quantity
from bayesgeom.results.storage import axes_of, quantities_of, units_of, values_of

if TYPE_CHECKING:
    import xarray as xr


def dataset(name: str, report: object) -> "xr.Dataset":
    """Return the estimates and arrays of a report (see `Report.to_xarray`)."""
    import xarray as xr

    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    declared, axes, values_by_field = quantities_of(type(report)), axes_of(type(report)), values_of(report)
    for field, quantity in declared.items():
        own, levels = _of_estimate(field, values_by_field[field], quantity)
        variables |= own
        coordinates |= levels
    units = units_of(type(report)).items()
    variables |= {field: (axes[field], values_by_field[field], {"units": unit}) for field, unit in units}
    used, named = {dim for dims in axes.values() for dim in dims}, {**vars(type(report)), **values_by_field}
    coordinates |= {dim: list(named[f"{dim}s"]) for dim in used if isinstance(named.get(f"{dim}s"), tuple)}
    if clash := sorted(used & variables.keys()):
        raise InvalidArgument(
            f"{type(report).__name__} has an axis and a field of the same name: {', '.join(clash)}. Rename one."
        )
    plain = {field: value for field, value in values_by_field.items() if isinstance(value, str | int | float)}
    whole = xr.Dataset(variables, coords=coordinates, attrs={"report": name, **plain})
    counted = {str(dim): np.arange(size) for dim, size in whole.sizes.items() if dim not in coordinates}
    return whole.assign_coords(counted)


def _of_estimate(name: str, estimate: Estimate, quantity: Quantity) -> tuple[dict[str, Any], dict[str, Any]]:
    attributes = {"units": quantity.unit or "1", "long_name": quantity.label or name, "better": quantity.better}
    found: dict[str, Any] = {name: (quantity.dims, estimate.value, {**attributes, "n": estimate.n})}
    if estimate.low is not None and estimate.high is not None:
        over = {**attributes, "resampled": estimate.resampled}
        found[f"{name}_low"] = (quantity.dims, estimate.low, over)
        found[f"{name}_high"] = (quantity.dims, estimate.high, over)
    if not estimate.baselines:
        return found, {}
    axis = f"{name}_baselines"
    levels = np.stack([own.value for own in estimate.baselines])
    kinds = ", ".join(own.kind for own in estimate.baselines)
    found[f"{name}_baseline"] = ((axis, *quantity.dims), levels, {**attributes, "kinds": kinds})
    unknown, lows = np.full(estimate.value.shape, np.nan), [own.low for own in estimate.baselines]
    for end, of in (("low", lows), ("high", [own.high for own in estimate.baselines])):
        if any(level is not None for level in of):
            ends = np.stack([unknown if level is None else level for level in of])
            found[f"{name}_baseline_{end}"] = ((axis, *quantity.dims), ends, attributes)
    return found, {axis: [own.name for own in estimate.baselines]}
