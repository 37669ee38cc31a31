"""Cache of snapshot measurements: one file per snapshot, written atomically."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from safetensors import SafetensorError

from bayesgeom.core.errors import OutputFault
from bayesgeom.core.files import atomic_file, read_safetensors, write_arrays
from bayesgeom.dynamics.measure import Measured

_METHOD = 7  # version of the measurements: increase it when they or their names change


@final
@dataclass(frozen=True, kw_only=True)
class SnapshotCache:
    """A cache folder whose file names are hashes of all inputs; without a folder nothing is saved."""

    folder: Path | None
    settings: Mapping[str, Any]

    def find(self, weights: str, last: str) -> Measured | None:
        """Return the saved measurements of the snapshot with these weights and last snapshot, or None.

        Raises:
            OutputFault: The file cannot be read.
        """
        if self.folder is None or not (file := self._file(weights, last)).exists():
            return None
        try:
            numbers, metadata = read_safetensors(file, framework="numpy")
            return Measured(numbers=numbers, missing=json.loads(metadata.get("missing", "{}")))
        except (SafetensorError, OSError, ValueError) as error:
            raise OutputFault(f"{file} cannot be read ({error}); delete it to repeat the measurement.") from error

    def put(self, weights: str, last: str, found: Measured) -> None:
        """Save the measurements of a snapshot."""
        if self.folder is None:
            return
        arrays = {name: np.ascontiguousarray(values) for name, values in found.numbers.items()}
        with atomic_file(self._file(weights, last)) as temporary:
            write_arrays(arrays, temporary, {"missing": json.dumps(dict(found.missing))})

    def _file(self, weights: str, last: str) -> Path:
        assert self.folder is not None, "callers check that there is a folder"
        decides = json.dumps([_METHOD, weights, last, dict(self.settings)], sort_keys=True)
        return self.folder / f"{hashlib.sha256(decides.encode()).hexdigest()[:20]}.safetensors"
