"""A report of schema 2 as it was saved: fields with the suffixes of their companions, intervals and nulls by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesgeom.results.estimate import Baseline, Estimate, Kind


@dataclass(frozen=True)
class Old:
    """Scalar and array fields of one saved report."""

    scalars: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name] if name in self.arrays else self.scalars[name]

    def get(self, name: str, otherwise: Any = np.nan) -> Any:
        """Return a field, or `otherwise` where an older version had none."""
        return self[name] if name in self.arrays or name in self.scalars else otherwise

    def ends(self, name: str) -> tuple[Any, Any] | None:
        """Return both ends of the interval of a field; None where it has none."""
        if f"{name}_lo" in self.arrays:
            return self.arrays[f"{name}_lo"], self.arrays[f"{name}_hi"]
        found: tuple[Any, Any] | None = self.scalars.get("intervals", {}).get(name)
        return found

    def null(self, name: str) -> Any:
        """Return the level that was stored beside a field; NaN where there is none."""
        return self.arrays.get(f"{name}_null", self.scalars.get("nulls", {}).get(name, np.nan))

    def estimate(self, name: str, *baselines: Baseline, resampled: str = "sequences", n: int | None = None) -> Estimate:
        """Return a field with its interval and these baselines; those that are NaN everywhere are left out."""
        why_not = self.scalars.get("no_interval", {}).get(name, "")
        known = [own for own in baselines if np.isfinite(own.value).any()]
        count = int(self.scalars["n"]) if n is None else n
        return Estimate.of(self[name], self.ends(name), resampled=resampled, n=count, baselines=known, why_not=why_not)

    def level(self, kind: Kind, name: str, field: str, *, low: str | None = None, high: str | None = None) -> Baseline:
        """Return a field as a baseline of another one."""
        ends: Sequence[Any] = [None if end is None else self.get(end) for end in (low, high)]
        return Baseline.of(kind, name, self.get(field), low=ends[0], high=ends[1])


def numbers(value: Any) -> Iterator[float]:
    """Every finite number in nested JSON values and arrays."""
    match value:
        case np.ndarray():
            yield from (float(x) for x in value.ravel() if np.isfinite(x))
        case bool() | str() | None:
            return
        case int() | float():
            if np.isfinite(value):
                yield float(value)
        case Mapping():
            for item in value.values():
                yield from numbers(item)
        case list() | tuple():
            for item in value:
                yield from numbers(item)
