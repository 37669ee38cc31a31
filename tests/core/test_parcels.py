"""Values come back from files as they were, and what cannot be stored is named."""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import final

import numpy as np
import pytest

from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.core.parcels import read_parcel, write_parcel
from bayesgeom.core.run import Behavior


@final
class _Color(StrEnum):
    RED = "red"


@final
@dataclass(frozen=True)
class _Kept:
    n: int


def test_parcels_come_back_equal(tmp_path: Path, rng: np.random.Generator) -> None:
    grids = {name: rng.normal(size=(2, 3)).astype(np.float32) for name in Behavior.__dataclass_fields__}
    value = {
        "nested": (Behavior(**grids), [1, 2.5, float("nan"), -float("inf"), "é", None, True, _Color.RED]),
        3: {"bits": rng.normal(size=(5, 1, 7)) > 0, "scalar": np.float64(0.1), "flat": np.arange(4)[::2]},
        "zero axes": np.array(0.3),
    }
    write_parcel(tmp_path / "parcel", value)
    found = read_parcel(tmp_path / "parcel")
    behavior, rest = found["nested"]
    assert all(np.array_equal(vars(behavior)[name], grid) for name, grid in grids.items())
    assert repr(rest) == repr(value["nested"][1]) and found[3]["scalar"] == 0.1
    assert found[3]["bits"].dtype == bool and np.array_equal(found[3]["bits"], value[3]["bits"])
    assert found[3]["flat"].tolist() == [0, 2] and found["zero axes"].shape == ()


def test_a_parcel_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"<object object .* cannot be stored"):
        write_parcel(tmp_path / "parcel", [object()])
    write_parcel(tmp_path / "parcel", replace(_Kept(n=3), n=5))
    assert read_parcel(tmp_path / "parcel") == _Kept(n=5)
    (tmp_path / "parcel").write_bytes((tmp_path / "parcel").read_bytes()[:20])
    with pytest.raises(OutputFault, match=r"parcel cannot be read .*; delete it"):
        read_parcel(tmp_path / "parcel")
