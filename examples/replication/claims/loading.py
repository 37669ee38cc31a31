"""Reading the claims from their TOML files; every entry is checked by name."""

import functools
import tomllib
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from bayesgeom.core.errors import InvalidArgument, unknown_name
from examples.replication.claims.claim import Case, Claim, Condition, Measurement, Number, Origin, Run, Value

FOLDER, MEASURED = Path(__file__).parent / "data", "measured.toml"
PROGRAMS = ("bayesgeom ", "python -m examples.replication ")  # what a command may begin with
Made = TypeVar("Made")


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
        The claim, with its tests, commands and recorded measurement.

    Raises:
        UnknownName: If there is none; the message lists those that exist.

    Example:
        >>> find("B1").runs[0].command.split()[:2]
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
    parts = {
        "runs": tuple(_run(run, where) for run in entry.get("run", [])),
        "cases": tuple(_case(case, where) for case in entry.get("case", [])),
        "measured": None if measured is None else _measurement(measured, f"the measurement of {where}"),
    }
    claim = _made(Claim, {name: own for name, own in entry.items() if name not in ("run", "case")}, where, parts)
    if not claim.cases:
        raise InvalidArgument(f"{where} has no case: name a network and its tests.")
    if not claim.quantifier.startswith(("every ", "some ")):
        raise InvalidArgument(f"{where}: quantifier must start with 'every ' or 'some ', got {claim.quantifier!r}.")
    counts = Counter(name for run in claim.runs for name in run.numbers)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidArgument(f"{where}: number {twice[0]!r} is defined by two runs. Rename one.")
    if unknown := [name for name in _named(claim) if name not in counts]:
        raise InvalidArgument(f"{where} refers to number {unknown[0]!r}. Its runs define: {_listed(counts)}.")
    if unused := sorted(counts.keys() - set(_named(claim))):
        raise InvalidArgument(f"{where}: no test reads {', '.join(unused)}. Add a test, or delete the number.")
    strangers = sorted(claim.measured.numbers.keys() - counts.keys()) if claim.measured is not None else []
    if strangers:
        raise InvalidArgument(
            f"{where}: the measurement records {', '.join(strangers)}, which no run defines; the runs define "
            f"{_listed(counts)}. Delete these lines from {MEASURED}, or give the runs these numbers again."
        )
    return claim


def _named(claim: Claim) -> Iterator[str]:
    """Every number that a claim's tests refer to."""
    for test in (test for case in claim.cases for test in case.tests):
        yield test.number
        if isinstance(test.than, str) and test.than != "baseline":
            yield test.than


def _case(entry: Mapping[str, Any], where: str) -> Case:
    place = f"case {entry.get('network', '(without a network)')!r} of {where}"
    tests = tuple(_test(own, place) for own in entry.get("tests", []))
    if not tests:
        raise InvalidArgument(f"{place} has no tests: state one as {{ number = …, above = … }}.")
    return _made(Case, {name: own for name, own in entry.items() if name != "tests"}, place, {"tests": tests})


def _test(entry: Mapping[str, Any], where: str) -> Condition:
    sides = [side for side in ("above", "below") if side in entry]
    if len(sides) != 1:
        raise InvalidArgument(f"a test of {where} needs one of above and below, got {_listed(entry)}.")
    own = {name: value for name, value in entry.items() if name not in sides}
    return _made(Condition, own | {"side": sides[0], "than": entry[sides[0]]}, f"a test of {where}")


def _run(entry: Mapping[str, Any], where: str) -> Run:
    place = f"run {entry.get('name', '(without a name)')!r} of {where}"
    numbers = {name: _number(name, own, place) for name, own in entry.get("numbers", {}).items()}
    run = _made(Run, {name: own for name, own in entry.items() if name != "numbers"}, place, {"numbers": numbers})
    if run.command and not run.command.startswith(PROGRAMS):
        raise InvalidArgument(
            f"{place}: the command must start with {' or '.join(map(repr, PROGRAMS))}, got {run.command!r}."
        )
    return run


def _number(name: str, entry: Mapping[str, Any], where: str) -> Number:
    place = f"number {name!r} of {where}"
    if "end" in entry and "baseline" not in entry:
        raise InvalidArgument(f"{place}: end is of a baseline, so it needs 'baseline'; got {entry['end']!r}.")
    return _made(Number, {"name": name, **entry}, place)


def _measurement(entry: Mapping[str, Any], where: str) -> Measurement:
    parts = {
        kind: {name: _made(made, own, f"{kind} {name!r} of {where}") for name, own in entry.get(kind, {}).items()}
        for kind, made in (("numbers", Value), ("origins", Origin))
    }
    return _made(Measurement, {name: own for name, own in entry.items() if name not in parts}, where, parts)


def _made(kind: type[Made], entry: Mapping[str, Any], where: str, parts: Mapping[str, Any] | None = None) -> Made:
    """Return a `kind` from the entry's fields and the parts that are made already.

    Raises:
        InvalidArgument: A field is missing, unknown, or of another type.
    """
    hints, given = get_type_hints(kind), dict(parts or {})
    own = [each for each in fields(kind) if each.name not in given]  # type: ignore[arg-type]  # a dataclass
    for each in own:
        if each.name not in entry and each.default is MISSING and each.default_factory is MISSING:
            raise InvalidArgument(f"{where} has no {each.name!r}: add it.")
    known = {each.name: hints[each.name] for each in own}
    for name, value in entry.items():
        if name not in known:
            raise InvalidArgument(f"{where} has no field {name!r}. Fields: {_listed(known)}.")
        if not _fits(value, known[name]):
            raise InvalidArgument(f"{where}: {name!r} must be {_kind_text(known[name])}, got {value!r}.")
    return kind(**given, **entry)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_fits(value, own) for own in get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, list if get_origin(hint) is not None else hint)


def _kind_text(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return "of type " + " or ".join(own.__name__ for own in kinds if own is not type(None))


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "(none)"
