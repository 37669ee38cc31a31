"""Reading a claim's numbers from a report's table."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesgeom.claims.claim import Number, Origin, Run, Value
from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.results.report import METRICS
from bayesgeom.results.storage import JSON

if TYPE_CHECKING:
    import pandas as pd


def values_of(run: Run, folder: Path) -> dict[str, Value]:
    """Return the numbers of a run from the report in `folder`.

    Raises:
        OutputFault: If there is no report.
        InvalidArgument: If the report holds no such number, or several where one was meant.
    """
    import pandas as pd

    if not (folder / METRICS).is_file():
        raise OutputFault(f"there is no report in {folder} ({METRICS} is missing). Run: {run.command} --out {folder}")
    table = pd.read_parquet(folder / METRICS)
    return {name: value_of(number, table) for name, number in run.numbers.items()}


def value_of(number: Number, table: "pd.DataFrame") -> Value:
    """Return one number from a report's table.

    Raises:
        InvalidArgument: If no row matches, or several do and the number does not say which one counts.
    """
    rows = table[(table["probe"] == number.probe) & (table["metric"] == number.metric)]
    if number.variant_has is not None:
        rows = rows[rows["variant"].fillna("").str.contains(number.variant_has, regex=False)]
    for column in ("variant", "layer", "head", "position"):
        if (wanted := vars(number)[column]) is not None:
            rows = rows[(rows[column] == wanted).fillna(value=False)]
    if rows.empty or (len(rows) > 1 and number.reduce == "only"):
        raise InvalidArgument(
            f"number {number.name!r} ({number.probe}.{number.metric}) matches {len(rows)} rows of the report; it must "
            f"match one, or state reduce = 'min' or 'max'."
        )
    row = rows.sort_values("value").iloc[-1 if number.reduce == "max" else 0]
    return Value(
        value=float(row["value"]), lo=float(row["low"]), hi=float(row["high"]), baseline=float(row["baseline"])
    )


def origin_of(folder: Path) -> Origin:
    """Return which weights, how many sequences and which seed a report is about."""
    origin: Mapping[str, Any] = json.loads((folder / JSON).read_text(encoding="utf-8"))["provenance"]
    arguments, model = origin["arguments"], origin["model"]
    return Origin(
        model=str(model.get("name", "")), weights_hash=str(model.get("weights_hash") or ""),
        n=int(arguments.get("n", 0)), seed=int(arguments.get("seed", 0)),
    )  # fmt: skip


def agree(found: Value, recorded: Value, tolerance: float, *, is_same_machine: bool) -> bool:
    """Return whether a reproduced number agrees with the recorded one.

    On the same type of machine they have to agree within the relative tolerance. On another one the reproduced value
    may also lie anywhere in the recorded interval, since rounding differs.
    """
    if math.isnan(found.value) or math.isnan(recorded.value):
        return math.isnan(found.value) and math.isnan(recorded.value)
    is_close = math.isclose(found.value, recorded.value, rel_tol=tolerance, abs_tol=1e-12)
    return is_close or (not is_same_machine and recorded.lo <= found.value <= recorded.hi)
