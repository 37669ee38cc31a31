"""Reading a claim's numbers from a report, or from the table of the sweeps."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import examples.replication.reports  # noqa: F401  # what claims read can be loaded
from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Baseline
from bayesgeom.report.report import Report
from bayesgeom.report.storage import JSON, axes_of, quantities_of
from bayesgeom.report.tables import INDICES, Record, records_of
from bayesgeom.scorecards.cell import HELD_OUT, SCORED, Row
from bayesgeom.scorecards.run import best_rates, reference_rows
from bayesgeom.scorecards.worlds import worlds_of
from bayesgeom.stats.bounds import Extreme, extreme_interval
from examples.replication.claims.claim import Number, Origin, Run, Value
from examples.replication.sweeps import N_HELD_OUT, TABLE, read

SCORECARD = ".parquet"  # the suffix of its table
_ROUNDING = 1e-6  # of a value, moves its ends when float32 rounds differently
_ZERO = 1e-12  # numbers below it count as 0 when they are compared


def values_of(run: Run, folder: Path) -> dict[str, Value]:
    """Return the numbers of a run from the report in `folder`, or from a table of sweeps or of a scorecard.

    Raises:
        OutputFault: If there is no report, or a damaged one.
        InvalidArgument: If the report holds no such number, or several that match.
    """
    if folder.suffix == TABLE.suffix:
        return {name: _tabled(number, folder) for name, number in run.numbers.items()}
    if folder.suffix == SCORECARD:
        rows = reference_rows(worlds_of("core"))
        return {name: _scored(number, rows) for name, number in run.numbers.items()}
    if not (folder / JSON).is_file():
        raise OutputFault(f"there is no report in {folder} ({JSON} is missing). Run: {run.command} --out {folder}")
    reports = list(Diagnosis.load(folder).values())
    return {name: value_of(number, reports) for name, number in run.numbers.items()}


def _tabled(number: Number, table: Path) -> Value:
    """A number of the sweeps: `variant` is architecture and place, or architecture, setting and place.

    A `layer` restricts the rows to one block. Of several rows, such as learning rates, `reduce` states which.
    """
    block = "" if number.layer is None else f"block {number.layer}"
    found = [
        row
        for row in read(table)
        if (row.sweep, row.quantity) == (number.probe, number.metric)
        and number.variant in (f"{row.architecture}, {row.at}", f"{row.architecture}, {row.setting}, {row.at}")
        and block in ("", row.setting)
    ]
    if not found or (len(found) > 1 and number.reduce == "only"):
        named = " / ".join(filter(None, (number.probe, number.metric, number.variant, block)))
        raise InvalidArgument(f"number {number.name!r}: {table} has {len(found)} rows of {named}.")
    best = (max if number.reduce == "max" else min)(found, key=lambda row: row.value)
    return Value(value=best.value, lo=best.lower, hi=best.upper, baseline=math.nan)


def _scored(number: Number, rows: Sequence[Row]) -> Value:
    """A number of the shipped scorecard at the best rate: `probe` is the architecture, `variant` world and setting."""
    world, _, setting = (number.variant or "").partition(", ")
    rate = best_rates(rows).get((number.probe, world))
    wanted = number.probe, world, number.metric, rate, 0
    found = [row for row in rows if (row.architecture, row.world, row.quantity, row.rate, row.seed) == wanted]
    found = [row for row in found if setting in ("", row.setting)]
    if len(found) != 1:
        place = f"{number.probe} on {number.variant}"
        raise InvalidArgument(f"number {number.name!r}: the shipped scorecard has {len(found)} rows of {place}.")
    (row,) = found
    if number.if_perfect and row.value == 1.0 and math.isnan(row.lower):
        row = replace(row, lower=1 - number.if_perfect * _share_of_errors(HELD_OUT), upper=1.0)
    return Value(value=row.value, lo=row.lower, hi=row.upper, baseline=math.nan)


def _share_of_errors(n: int) -> float:
    """Return the exact 95 % bound on the share of sequences with an error where none of `n` has one."""
    return float(1 - 0.05 ** (1 / n))


def value_of(number: Number, reports: Iterable[Report]) -> Value:
    """Return one number from the reports of a diagnosis.

    Raises:
        InvalidArgument: If no row matches; if several match and the number does not state `reduce`; or if the estimate
            lacks the baseline or its `end`.
    """
    found = [value for report in reports if report.name == number.probe for value in _matching(number, report)]
    if not found or (len(found) > 1 and number.reduce == "only"):
        raise InvalidArgument(
            f"number {number.name!r} ({number.probe}.{number.metric}) matches {len(found)} rows of the report; it must "
            f"match one, or state reduce = 'min' or 'max'."
        )
    known = [own for own in found if not math.isnan(own[0].value)] or found
    chosen = (max if number.reduce == "max" else min)((value for value, _ in known), key=lambda own: own.value)
    return chosen if len(known) == 1 or number.baseline or number.is_point else _extreme(chosen, known, number)


def _extreme(chosen: Value, known: Sequence[tuple[Value, int]], number: Number) -> Value:
    """The chosen value with an interval that allows for the choice among `known`; see `extreme_interval`."""
    value, low, high = (np.array([getattr(own, end) for own, _ in known]) for end in ("value", "lo", "hi"))
    which: Extreme = "largest" if number.reduce == "max" else "smallest"
    lo, hi, reason = extreme_interval(value, low, high, which, n=min(n for _, n in known))
    return replace(chosen, lo=lo, hi=hi, why_not=(reason and (chosen.why_not or str(reason))) or "")


def _matching(number: Number, report: Report) -> Iterator[tuple[Value, int]]:
    """The matching rows of the report's table, with n: their own numbers, or the level of the named baseline."""
    rows = records_of(report, metric=number.metric)
    levels = _levels(number, report, len(rows)) if number.baseline and rows else None
    for index, row in enumerate(rows):
        if not _matches(number, report, row):
            continue
        if levels is None and number.if_perfect and row.value == 1.0 and math.isnan(row.low):
            least = 1 - number.if_perfect * _share_of_errors(row.n)
            yield Value(value=1.0, lo=least, hi=1.0, baseline=_bar(report, row)), row.n
        elif levels is None:
            why_not = _reason(row) if math.isnan(row.low) and not number.is_point else ""
            bar, over = _bar(report, row), "" if math.isnan(row.low) else _over(report, number)
            own = Value(value=row.value, lo=row.low, hi=row.high, baseline=bar, why_not=why_not, over=over)
            yield own, row.n
        else:
            yield Value(value=float(levels[index]), lo=math.nan, hi=math.nan, baseline=math.nan), row.n


def _bar(report: Report, row: Record) -> float:
    """The level that the number has to pass; see `Baseline.bar`."""
    quantity = quantities_of(type(report)).get(row.metric)
    level = Baseline.of("baseline", row.baseline_name, row.baseline, low=row.baseline_low, high=row.baseline_high)
    return float(level.bar(quantity.better if quantity is not None else ""))


def _over(report: Report, number: Number) -> str:
    """What the number's interval is over; "" for sequences."""
    is_estimate = number.metric in quantities_of(type(report))
    return report.estimate(number.metric).resampled.removeprefix("sequences") if is_estimate else ""


def _reason(row: Record) -> str:
    """Why the number has no interval; "" if it is no estimate, or never has one."""
    return row.reason if math.isnan(row.low) and not math.isnan(row.value) else ""


def _variant(report: Report, row: Record) -> str | None:
    """The names of the row along other axes than layers, heads and positions."""
    axes = axes_of(type(report)).get(row.metric, ())
    return " / ".join(str(row.place(axis)) for axis in axes if axis not in INDICES) or None


def _matches(number: Number, report: Report, row: Record) -> bool:
    if number.variant_has is not None and number.variant_has not in (_variant(report, row) or ""):
        return False
    layer, head, position = (row.place(axis) for axis in ("layer", "head", "position"))
    if int(layer or 0) < number.from_layer or int(position or 0) < number.from_position:
        return False
    wanted = (number.variant, number.layer, number.head, number.position)
    own = (_variant(report, row), layer, head, position)
    return all(want is None or want == have for want, have in zip(wanted, own, strict=True))


def _levels(number: Number, report: Report, n_rows: int) -> np.ndarray:
    """The named end of the named baseline at every row: rows of an estimate are its entries in order."""
    own = report.estimate(number.metric).baseline(number.baseline)
    level = {"value": own.value, "low": own.low, "high": own.high}[number.end]
    if level is None:
        raise InvalidArgument(
            f"number {number.name!r}: the baseline {number.baseline!r} has no {number.end!r} end. Use end = 'value'."
        )
    assert level.size == n_rows, "one row for every entry"
    return level.ravel()


def provenance_of(folder: Path) -> Mapping[str, Any]:
    """Return the provenance of a report."""
    found: Mapping[str, Any] = json.loads((folder / JSON).read_text(encoding="utf-8"))["provenance"]
    return found


def origin_of(folder: Path) -> Origin:
    """Return the model, its weights hash, the number of sequences and the seed of a report."""
    if folder.suffix == TABLE.suffix:
        return Origin(model="sweeps", weights_hash="", n=N_HELD_OUT, seed=0)
    if folder.suffix == SCORECARD:
        return Origin(model="scorecard", weights_hash="", n=SCORED, seed=0)
    origin = provenance_of(folder)
    arguments, model = origin["arguments"], origin["model"]
    return Origin(
        model=str(model.get("name", "")),
        weights_hash=str(model.get("weights_hash") or ""),
        n=int(arguments.get("n", 0)),
        seed=int(arguments.get("seed", 0)),
    )


def differing(found: Value, recorded: Value, tolerance: float, *, is_same_machine: bool) -> tuple[str, ...]:
    """Return the parts of a reproduced number that differ from the recorded one.

    These are "value", "low end", "high end" and "baseline", and "interval" or "baseline" if only one of the two has it.
    On the same type of machine

    - value and baseline may differ by `tolerance` times the recorded level;
    - the distance of an end from the value may differ by ten times `tolerance` of the recorded interval's width, plus a
      millionth of the recorded value, which float32 does not resolve much better. A part of the width and not of the
      end, because 0.1 % of 0.9982 [0.9976, 0.9985] is more than its width. Ten times, because an end follows from the
      spread between sequences, which rounding changes more than the value: between processors with and without AVX-512
      it moved ends of claims by up to 0.05 % of the width.

    On another type of machine the value may also lie anywhere in the recorded interval, and the distances may differ by
    half of its width: rules that withhold or widen intervals from a threshold on can amplify rounding.
    """
    parts = [] if _is_value_close(found, recorded, tolerance, is_same_machine) else ["value"]
    if math.isnan(found.lo) != math.isnan(recorded.lo):
        parts.append("interval")
    width = recorded.hi - recorded.lo if math.isfinite(recorded.hi - recorded.lo) else 0.0
    most = (10 * tolerance if is_same_machine else 0.5) * width + _ROUNDING * abs(recorded.value) + _ZERO
    for part, own, known in (("low end", found.lo, recorded.lo), ("high end", found.hi, recorded.hi)):
        change = abs((own - found.value) - (known - recorded.value))
        if own != known and change > most:  # NaN, a missing end, is compared above
            parts.append(part)
    return (*parts, *([] if _is_close(found.baseline, recorded.baseline, tolerance) else ["baseline"]))


def _is_close(found: float, recorded: float, tolerance: float) -> bool:
    if math.isnan(found) or math.isnan(recorded):
        return math.isnan(found) and math.isnan(recorded)
    return math.isclose(found, recorded, rel_tol=tolerance, abs_tol=_ZERO)


def _is_value_close(found: Value, recorded: Value, tolerance: float, is_same_machine: bool) -> bool:
    is_close = _is_close(found.value, recorded.value, tolerance)
    return is_close or (not is_same_machine and recorded.lo <= found.value <= recorded.hi)
