"""Reports on some layers of a model: NaN in the layers that lack the measured sites."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Shaped

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.report import Report
from bayesgeom.report.storage import axes_of, value_of

R = TypeVar("R", bound=Report)
_AXIS = "layer"


def on_layers(report: R, layers: Sequence[int], n_layers: int) -> R:
    """Return the report with one entry per layer of the model along every axis `layer`; NaN in unmeasured layers.

    Args:
        report: A report whose layers are `layers`, in this order.
        layers: Indices of the measured layers.
        n_layers: Number of layers of the model.

    Raises:
        InvalidArgument: A field along `layer` has no NaN, because its numbers are integers.
    """
    wider = dict[str, Any]()
    for name, axes in axes_of(type(report)).items():
        if _AXIS not in axes:
            continue
        at, own = axes.index(_AXIS), value_of(report, name)

        def spread(values: Shaped[np.ndarray, "..."], at: int = at, name: str = name) -> Shaped[np.ndarray, "..."]:
            if values.dtype.kind != "f":
                raise InvalidArgument(f"{type(report).__name__}.{name} cannot be NaN in the layers that lack its site.")
            wide = np.full((*values.shape[:at], n_layers, *values.shape[at + 1 :]), np.nan, dtype=values.dtype)
            wide[(slice(None),) * at + (list(layers),)] = values
            return wide

        wider[name] = own.mapped(spread) if isinstance(own, Estimate) else spread(own)
    return replace(report, **wider)
