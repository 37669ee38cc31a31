"""A report as an xarray dataset: named axes, coordinates for named entries, units in the attributes."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.estimate import Estimate, Quantity
from bayesgeom.results.storage import axes_of, quantities_of, values_of
from bayesgeom.results.tidy import COLUMN_OF_AXIS

if TYPE_CHECKING:
    import xarray as xr

_UNITS = ("bits", "nats", "seconds", "steps", "symbols", "tokens")


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
    plain_arrays = ((field, dims) for field, dims in axes.items() if field not in declared)
    variables |= {field: (dims, values_by_field[field], _units_of(field)) for field, dims in plain_arrays}
    used = {dim for dims in axes.values() for dim in dims}
    coordinates |= {
        dim: list(values_by_field[f"{dim}s"]) for dim in used if isinstance(values_by_field.get(f"{dim}s"), tuple)
    }
    if clash := sorted(used & variables.keys()):
        raise InvalidArgument(
            f"{type(report).__name__} has an axis and a field of the same name: {', '.join(clash)}. Rename one."
        )
    plain = {field: value for field, value in values_by_field.items() if isinstance(value, str | int | float)}
    whole = xr.Dataset(variables, coords=coordinates, attrs={"report": name, **plain})
    counted = {str(dim): np.arange(size) for dim, size in whole.sizes.items() if dim in COLUMN_OF_AXIS}
    return whole.assign_coords({dim: places for dim, places in counted.items() if dim not in coordinates})


def _units_of(field: str) -> dict[str, str]:
    """The unit in the name of a plain array: a last part, or one before `_by_…` and `_at_…`."""
    stem = field.partition("_by_")[0].partition("_at_")[0]
    return {"units": unit} if (unit := stem.rpartition("_")[2]) in _UNITS else {}


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
    unknown, lows = np.full(estimate.value.shape, np.nan), [own.low for own in estimate.baselines]
    for end, of in (("low", lows), ("high", [own.high for own in estimate.baselines])):
        if any(level is not None for level in of):
            ends = np.stack([unknown if level is None else level for level in of])
            found[f"{name}_baseline_{end}"] = ((axis, *quantity.dims), ends, attributes)
    return found, {axis: [own.name for own in estimate.baselines]}
