"""Reading the claims from their TOML files; every entry is checked by name."""

import functools
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

from bayesgeom.core.errors import InvalidArgument, unknown_name
from examples.replication.claims.claim import (
    Claim,
    Condition,
    Hold,
    Measurement,
    Number,
    Origin,
    Run,
    Value,
    Verdict,
)

FOLDER, MEASURED = Path(__file__).parent / "data", "measured.toml"
PROGRAMS = ("bayesgeom ", "python -m examples.replication ")  # what a command may begin with
_CLAIM = {
    "id": str,
    "claim": str,
    "source": str,
    "published": str,
    "criterion": str,
    "does_not_show": str,
    "run": list,
    "supported_if": list,
    "contradicted_if": list,
    "seeds": int,
    "seeds_required": int,
    "trainings": str,
    "hold": dict,
    "why_open": str,
    "finding": str,
    "shown": list,
    "against": str,
    "is_criterion_later": bool,
}
_REQUIRED = ("id", "claim", "source", "published", "criterion", "does_not_show")
_RUN = {"name": str, "command": str, "report": str, "needs": list, "minutes": (int, float), "numbers": dict}
_NUMBER = {
    "label": str,
    "unit": str,
    "probe": str,
    "metric": str,
    "variant": str,
    "variant_has": str,
    "layer": int,
    "head": int,
    "position": int,
    "reduce": str,
    "baseline": str,
    "end": str,
    "baseline_label": str,
    "no_interval": str,
    "if_perfect": (int, float),
    "tolerance": (int, float),
}
_CONDITION = {
    "number": str,
    "is": str,
    "than": (str, int, float),
    "times": (int, float),
    "disjoint": bool,
}
_HOLD = {"verdict": str, "reason": str}
_OPTIONAL = ("why_not", "over")
_NUMERIC = dict.fromkeys(("value", "lo", "hi", "baseline"), (int, float))
_VALUE: dict[str, Any] = _NUMERIC | dict.fromkeys(_OPTIONAL, str)
_ORIGIN = {"model": str, "weights_hash": str, "n": int, "seed": int}


@functools.cache
def load() -> Mapping[str, Claim]:
    """Return every claim by its id, in the order of the files.

    Returns:
        The claims, with the recorded measurement of each that was measured.

    Raises:
        InvalidArgument: If an entry is missing, misspelled or of another type; the message names claim and entry.

    Example:
        >>> load()["B1"].claim
        'A transformer matches the exact posterior on the bijection task.'
    """
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.toml")}
    measured = tomllib.loads(texts.pop(MEASURED, ""))
    return parsed([texts[name] for name in sorted(texts)], measured)


def find(claim_id: str) -> Claim:
    """Return the claim with this id.

    Args:
        claim_id: The id, such as "B1".

    Returns:
        The claim, with its criterion, commands and recorded measurement.

    Raises:
        UnknownName: If there is none; the message lists those that exist.

    Example:
        >>> find("B1").commands[0].split()[:2]
        ['bayesgeom', 'diagnose']
    """
    known = load()
    if claim_id not in known:
        raise unknown_name("claim", claim_id, known)
    return known[claim_id]


def parsed(texts: list[str], measured: Mapping[str, Any]) -> dict[str, Claim]:
    """Return the claims that these TOML texts state, with the measurements recorded for them.

    A measurement may lack numbers that a run defines: `Claim.unrecorded` names them.

    Raises:
        InvalidArgument: If an entry is missing, misspelled or of another type, if an id appears twice, or if a
            measurement, or a number of one, belongs to no claim.
    """
    claims: dict[str, Claim] = {}
    for text in texts:
        for entry in tomllib.loads(text).get("claim", []):
            where = f"claim {entry.get('id', '(without an id)')!r}"
            if entry.get("id") in claims:
                raise InvalidArgument(f"{where} is stated twice: every id belongs to one claim. Rename one.")
            own = _claim(entry, measured.get(entry.get("id", "")), where)
            claims[own.id] = own
    if strangers := sorted(measured.keys() - claims.keys()):
        raise InvalidArgument(
            f"measurements are recorded for unknown claims: {', '.join(strangers)}. Correct the ids, or delete these "
            f"entries of {MEASURED}."
        )
    return claims


def _claim(entry: Mapping[str, Any], measured: Mapping[str, Any] | None, where: str) -> Claim:
    _check(entry, _CLAIM, _REQUIRED, where)
    runs = tuple(_run(run, where) for run in entry.get("run", []))
    counts = Counter(name for run in runs for name in run.numbers)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidArgument(f"{where}: number {twice[0]!r} is defined by two runs. Rename one.")
    supported_if = tuple(_condition(condition, where) for condition in entry.get("supported_if", []))
    claim = Claim(
        **{name: entry[name] for name in _REQUIRED},
        runs=runs,
        supported_if=supported_if,
        contradicted_if=_contradicting(entry, supported_if, where),
        seeds=entry.get("seeds", 1),
        seeds_required=entry.get("seeds_required", 1),
        trainings=entry.get("trainings", ""),
        is_criterion_later=entry.get("is_criterion_later", False),
        hold=_hold(entry["hold"], where) if "hold" in entry else None,
        why_open=entry.get("why_open", ""),
        finding=entry.get("finding", ""),
        shown=tuple(entry.get("shown", [])),
        against=entry.get("against", ""),
        measured=None if measured is None else _measurement(measured, where),
    )
    for name in _named(claim):
        if name not in claim.numbers:
            raise InvalidArgument(f"{where} refers to number {name!r}. Its runs define: {_listed(claim.numbers)}.")
    if claim.why_open and (claim.hold is not None or not claim.supported_if):
        raise InvalidArgument(
            f"{where}: why_open explains conditions that leave the claim open, so it needs supported_if and no hold. "
            f"Give the reason in 'hold', or write the conditions."
        )
    if claim.measured is not None:
        _check_recorded(claim, where)
    return claim


def _check_recorded(claim: Claim, where: str) -> None:
    """Refuse recorded numbers that no run defines.

    A number that a run defines may be missing from the record: conditions that need it are open until then.
    """
    assert claim.measured is not None, "only of what was measured"
    if strangers := sorted(claim.measured.numbers.keys() - claim.numbers.keys()):
        raise InvalidArgument(
            f"{where}: the measurement records {', '.join(strangers)}, which no run defines; the runs define "
            f"{_listed(claim.numbers)}. Delete these lines from {MEASURED}, or give the runs these numbers again."
        )


def _named(claim: Claim) -> Iterator[str]:
    """Every number that a claim's conditions and texts refer to."""
    yield from claim.shown
    if claim.against in claim.numbers or (claim.against and " " not in claim.against):
        yield claim.against
    for text in (claim.why_open, "" if claim.hold is None else claim.hold.reason):
        yield from (name for _, name, _, _ in Formatter().parse(text) if name is not None)
    for condition in claim.conditions:
        yield condition.number
        if isinstance(condition.than, str) and condition.than != "baseline":
            yield condition.than


def _run(entry: Mapping[str, Any], where: str) -> Run:
    _check(entry, _RUN, ("name", "command"), f"a run of {where}")
    place = f"run {entry['name']!r} of {where}"
    if not entry["command"].startswith(PROGRAMS):
        raise InvalidArgument(
            f"{place}: the command must start with {' or '.join(map(repr, PROGRAMS))}, got {entry['command']!r}."
        )
    numbers = {name: _number(name, own, place) for name, own in entry.get("numbers", {}).items()}
    return Run(
        name=entry["name"],
        command=entry["command"],
        report=entry.get("report"),
        needs=tuple(entry.get("needs", [])),
        minutes=float(entry.get("minutes", 1)),
        numbers=numbers,
    )


def _number(name: str, entry: Mapping[str, Any], where: str) -> Number:
    place = f"number {name!r} of {where}"
    _check(entry, _NUMBER, ("label", "probe", "metric"), place)
    if entry.get("reduce", "only") not in ("only", "min", "max"):
        raise InvalidArgument(f"{place}: reduce must be one of only, min, max, got {entry['reduce']!r}.")
    if entry.get("end", "value") not in ("value", "low", "high") or ("end" in entry and "baseline" not in entry):
        raise InvalidArgument(
            f"{place}: end must be one of value, low, high, and needs 'baseline'; got {entry['end']!r}."
        )
    return Number(name=name, **{"unit": "", **entry})


def _condition(entry: Mapping[str, Any], where: str) -> Condition:
    _check(entry, _CONDITION, ("number", "is", "than"), f"a condition of {where}")
    if entry["is"] not in ("below", "above"):
        raise InvalidArgument(f"a condition of {where}: 'is' must be below or above, got {entry['is']!r}.")
    is_disjoint = entry.get("disjoint", False)
    if is_disjoint and (not isinstance(entry["than"], str) or entry["than"] == "baseline"):
        raise InvalidArgument(
            f"a condition of {where}: disjoint compares two intervals, so than must name a number; got "
            f"{entry['than']!r}."
        )
    return Condition(
        number=entry["number"],
        side=entry["is"],
        than=entry["than"],
        times=float(entry.get("times", 1)),
        is_disjoint=is_disjoint,
    )


def _contradicting(
    entry: Mapping[str, Any], supported_if: tuple[Condition, ...], where: str
) -> tuple[tuple[Condition, ...], ...]:
    """The groups that contradict: by default each supporting condition on its other side, alone."""
    if "contradicted_if" not in entry:
        return tuple((condition.opposite,) for condition in supported_if)
    if entry["contradicted_if"] and not supported_if:
        raise InvalidArgument(f"{where} has contradicted_if without supported_if: state both.")
    groups = [own if isinstance(own, list) else [own] for own in entry["contradicted_if"]]
    if not all(groups):
        raise InvalidArgument(f"{where}: a group in contradicted_if is empty: name its conditions, or delete it.")
    return tuple(tuple(_condition(condition, where) for condition in group) for group in groups)


def _hold(entry: Mapping[str, Any], where: str) -> Hold:
    _check(entry, _HOLD, tuple(_HOLD), f"the hold of {where}")
    allowed = [str(v) for v in Verdict if v not in (Verdict.SUPPORTED, Verdict.CONTRADICTED)]
    if entry["verdict"] not in allowed:
        raise InvalidArgument(
            f"the hold of {where}: verdict must be one of {', '.join(allowed)}, got {entry['verdict']!r}. Supported "
            f"and contradicted follow from measured numbers alone."
        )
    return Hold(verdict=Verdict(entry["verdict"]), reason=entry["reason"])


def _measurement(entry: Mapping[str, Any], where: str) -> Measurement:
    place = f"the measurement of {where}"
    fields = {"date": str, "machine": str, "numbers": dict, "origins": dict}
    _check(entry, fields, tuple(fields), place)
    for kind, known in (("numbers", _VALUE), ("origins", _ORIGIN)):
        for name, own in entry[kind].items():
            _check(own, known, tuple(key for key in known if key not in _OPTIONAL), f"{kind} {name!r} of {place}")
    values = {
        name: Value(
            **{key: float(x) for key, x in own.items() if key not in _OPTIONAL},
            why_not=own.get("why_not", ""),
            over=own.get("over", ""),
        )
        for name, own in entry["numbers"].items()
    }
    origins = {name: Origin(**own) for name, own in entry["origins"].items()}
    return Measurement(date=entry["date"], machine=entry["machine"], numbers=values, origins=origins)


def _check(entry: Mapping[str, Any], known: Mapping[str, Any], required: tuple[str, ...], where: str) -> None:
    """Refuse an entry that is missing, unknown or of another type."""
    for name in required:
        if name not in entry:
            raise InvalidArgument(f"{where} has no {name!r}: add it.")
    for name, value in entry.items():
        if name not in known:
            raise InvalidArgument(f"{where} has no field {name!r}. Fields: {_listed(known)}.")
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            raise InvalidArgument(f"{where}: {name!r} must be of type {_type_name(known[name])}, got {value!r}.")


def _type_name(kind: Any) -> str:
    return " or ".join(k.__name__ for k in kind) if isinstance(kind, tuple) else str(kind.__name__)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "(none)"
