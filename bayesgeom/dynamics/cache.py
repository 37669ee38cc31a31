"""Cache of snapshot measurements: one file per snapshot, written atomically."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bayesgeom.core.parcels import read_parcel, write_parcel
from bayesgeom.dynamics.measure import Measured

_METHOD = 8  # version of the measurements: increase it when they or their names change


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
        found: Measured = read_parcel(file)
        return found

    def put(self, weights: str, last: str, found: Measured) -> None:
        """Save the measurements of a snapshot."""
        if self.folder is not None:
            write_parcel(self._file(weights, last), found)

    def _file(self, weights: str, last: str) -> Path:
        assert self.folder is not None, "callers check that there is a folder"
        decides = json.dumps([_METHOD, weights, last, dict(self.settings)], sort_keys=True)
        return self.folder / f"{hashlib.sha256(decides.encode()).hexdigest()[:20]}.safetensors"
