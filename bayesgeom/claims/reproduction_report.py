"""The report of `reproduce`: a claim's numbers measured again, next to the recorded ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.claims.claim import Claim, Value, Verdict
from bayesgeom.claims.verdicts import verdict
from bayesgeom.core.text import number_text
from bayesgeom.results.estimate import Baseline, Estimate, Quantity, Unit
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report
from bayesgeom.results.tables import aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

RECORDED = "the recorded value"
STRONGEST = "strongest baseline"  # of the number, by the report that it is read from
_NOTHING = Value(value=math.nan, lo=math.nan, hi=math.nan, baseline=math.nan)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ReproductionReport(Report):
    """The numbers of a claim measured again, the recorded ones, and both verdicts.

    `values_agree` is 1 for a number whose value agrees with the recorded one, 0 for one that differs, and NaN without a
    recorded value. `ends_agree` and `baselines_agree` are the same for the ends of intervals and for the strongest
    baseline, NaN if neither number has one. `differences` says in words what differs, by number; "" for those that
    agree. `not_run` lists the commands that were left out. `output` is the text that the others printed. `hold` is the
    reason if the recorded numbers give no verdict.
    """

    name: ClassVar[str] = "reproduction"
    counts: ClassVar[str] = "number"
    title: ClassVar[str] = "Reproduction: do a claim's numbers come out again?"
    about: ClassVar[str] = (
        "The commands of the claim were run again, and its numbers were read from their reports. On the machine type "
        "of the record, values and baselines must agree within the claim's relative tolerance (0.1 %), and distances "
        "of ends from the value within ten times that of the interval's width. On another type, values may lie "
        "anywhere in the recorded interval, and the distances may differ by half of its width, because rounding "
        "differs. The verdict follows from the numbers by the criterion of the claim. Agreement shows "
        "that the measurement is reproducible, not that the claim is true."
    )

    claim_id: str
    claim: str
    criterion: str
    numbers: tuple[str, ...]
    labels: Annotated[tuple[str, ...], "number"]
    units: Annotated[tuple[str, ...], "number"]
    reproduced: Annotated[Estimate, Quantity("number", label="reproduced")]
    recorded: Annotated[Estimate, Quantity("number", label="recorded")]
    values_agree: Annotated[Float[np.ndarray, " number"], Unit("1")]
    ends_agree: Annotated[Float[np.ndarray, " number"], Unit("1")]
    baselines_agree: Annotated[Float[np.ndarray, " number"], Unit("1")]
    differences: Annotated[tuple[str, ...], "number"]
    verdict: str
    recorded_verdict: str
    hold: str
    not_run: tuple[str, ...]
    output: str

    @property
    def agrees(self) -> Float[np.ndarray, " number"]:
        """1 for a number whose value, ends and baseline agree with the record, 0 if one differs; NaN without one."""
        return np.asarray(np.fmin(np.fmin(self.values_agree, self.ends_agree), self.baselines_agree))

    @property
    def is_reproduced(self) -> bool:
        """Whether value, interval and baseline of every recorded number, and the verdict, were reproduced."""
        return bool((self.agrees != 0).all()) and self.verdict == self.recorded_verdict

    @property
    def found(self) -> dict[str, Value]:
        """The reproduced numbers by name."""
        ends = self.reproduced.ends
        levels = self.reproduced.baseline(STRONGEST).value
        rows = zip(self.reproduced.value, *ends, levels, strict=True)
        values = (Value(value=float(v), lo=float(lo), hi=float(hi), baseline=float(b)) for v, lo, hi, b in rows)
        return dict(zip(self.numbers, values, strict=True))

    def conclusion(self) -> str:
        if not len(self.numbers):
            return f"{self.claim_id} defines no numbers yet; its recorded verdict is {self.recorded_verdict}."
        same = "again" if self.verdict == self.recorded_verdict else f"recorded: {self.recorded_verdict}"
        how = f"{self._ruling()}: claim {self.claim_id} ({self.claim.rstrip('.')})"
        return f"{how}. {self._counts()}, and the verdict is {self.verdict} ({same})."

    def headlines(self) -> Sequence[Headline]:
        low, high = self.reproduced.ends
        counts = [
            Headline(
                metric=metric,
                label=f"recorded {noun} that agree, of {_known(agree)}",
                value=float(np.nansum(agree)),
                ruling=self._ruling() if metric == "agrees" else "",
            )
            for metric, noun, agree in (("agrees", "numbers", self.agrees), *self._parts)
        ]
        rows = [
            Headline(
                metric="reproduced",
                label=_plain(label),
                value=float(self.reproduced.value[row]),
                unit=self.units[row],
                low=float(low[row]),
                high=float(high[row]),
                baseline=float(self.recorded.value[row]),
                baseline_name=RECORDED,
                ruling={1.0: "agrees", 0.0: "differs"}.get(float(self.agrees[row]), ""),
                detail=self.differences[row],
            )
            for row, label in enumerate(self.labels)
        ]
        return [*counts, *rows]

    def table(self) -> str:
        """Return recorded and reproduced numbers side by side, what differs, the verdicts, and what was not run."""
        rows = [("number", "recorded", "reproduced", "agrees")]
        for row, label in enumerate(self.labels):
            recorded, own = (_text(of, row, self.units[row]) for of in (self.recorded, self.reproduced))
            rows.append((label, recorded, own, {1.0: "yes", 0.0: "no"}.get(float(self.agrees[row]), "–")))
        counts = [self._counts()] * bool(_known(self.agrees))
        differing = [f"differs: {own}" for own in self.differences if own]
        verdicts = f"verdict: recorded {self.recorded_verdict}, reproduced {self.verdict}"
        reason = [f"why there is no verdict: {self.hold}"] if self.hold else []
        left_out = [f"not run: {command}" for command in self.not_run]
        numbers = aligned(rows) if self.numbers else ["no numbers are defined yet"]
        return "\n".join([*numbers, "", *counts, *differing, verdicts, *reason, *left_out])

    def plot(self) -> "Figure":
        from bayesgeom.charts.forest import add_again
        from bayesgeom.results.theme import panels

        units = list(dict.fromkeys(self.units)) or [""]
        titles = tuple(f"Numbers in {unit}" if unit else "Numbers without a unit" for unit in units)
        figure = panels(f"{self.title} — {self.claim_id}", titles, n_columns=1, row_height=300)
        for panel, unit in enumerate(units, start=1):
            rows = [row for row, own in enumerate(self.units) if own == unit]
            labels = [_plain(self.labels[row]) for row in rows]
            add_again(figure, (panel, 1), labels, self.reproduced[rows], self.recorded[rows], unit=unit)
        return figure

    def _ruling(self) -> str:
        return "agrees" if self.is_reproduced else "differs"

    @property
    def _parts(self) -> tuple[tuple[str, str, np.ndarray], ...]:
        """Fields that say which part of each number agrees, with the noun of the part."""
        return (
            ("values_agree", "values", self.values_agree),
            ("ends_agree", "intervals", self.ends_agree),
            ("baselines_agree", "baselines", self.baselines_agree),
        )

    def _counts(self) -> str:
        """How many values, intervals and baselines agree with recorded ones, of those that exist."""
        counts = [f"{np.nansum(own):.0f} of {_known(own)} {noun}" for _, noun, own in self._parts if _known(own)]
        if not counts:
            return "No number is recorded"
        *others, last = counts
        return f"{', '.join(others)}{' and ' * bool(others)}{last} agree with the record"


def _known(agree: Float[np.ndarray, " number"]) -> int:
    """How many numbers have a recorded one to compare with."""
    return int((~np.isnan(agree)).sum())


def _plain(label: str) -> str:
    """Return a label without the marks of code, which only Markdown shows as such."""
    return label.replace("`", "")


def reproduction_report(
    claim: Claim,
    found: Mapping[str, Value],
    differs: Mapping[str, Sequence[str]],
    *,
    verdicts: tuple[Verdict, Verdict],
    not_run: Sequence[str] = (),
    output: str = "",
) -> ReproductionReport:
    """Build the report.

    Args:
        claim: The claim.
        found: The reproduced numbers by name.
        differs: The parts that differ, for each number with a recorded value; see `reading.differing`.
        verdicts: The verdict on the reproduced numbers, and the recorded one.
        not_run: Commands that were not run.
        output: Text that the commands printed.
    """
    recorded = {} if claim.measured is None else claim.measured.numbers
    names = tuple(found)
    both = [(found[name], recorded.get(name, _NOTHING), differs.get(name)) for name in names]
    return ReproductionReport(
        claim_id=claim.id,
        claim=claim.claim,
        criterion=claim.criterion,
        numbers=names,
        labels=tuple(_label(claim, name, own) for name, own in found.items()),
        units=tuple(claim.numbers[name].unit for name in names),
        reproduced=_estimate([found[name] for name in names]),
        recorded=_estimate([recorded.get(name, _NOTHING) for name in names]),
        values_agree=_agreement(both, ("value",)),
        ends_agree=_agreement(both, ("interval", "low end", "high end"), unless_missing="lo"),
        baselines_agree=_agreement(both, ("baseline",), unless_missing="baseline"),
        differences=tuple(
            _difference(_label(claim, name, own), claim.numbers[name].unit, own, known, parts or ())
            for name, (own, known, parts) in zip(names, both, strict=True)
        ),
        verdict=str(verdicts[0]),
        recorded_verdict=str(verdicts[1]),
        hold=reason(claim),
        not_run=tuple(not_run),
        output=output,
        n=len(names),
    )


def _label(claim: Claim, name: str, value: Value) -> str:
    """The label of a number, and what its interval is over unless these are sequences."""
    return f"{claim.numbers[name].label}{value.scope and f' (interval: {value.scope})'}"


def _agreement(
    both: Sequence[tuple[Value, Value, Sequence[str] | None]], parts: Sequence[str], *, unless_missing: str = ""
) -> Float[np.ndarray, " number"]:
    """1 where none of these parts differs, else 0; NaN without a record, or if both lack the field `unless_missing`."""
    agree = []
    for found, recorded, differ in both:
        is_missing = unless_missing and all(math.isnan(getattr(own, unless_missing)) for own in (found, recorded))
        agree.append(math.nan if differ is None or is_missing else float(not set(parts) & set(differ)))
    return np.array(agree, dtype=np.float64)


def _difference(label: str, unit: str, found: Value, recorded: Value, parts: Sequence[str]) -> str:
    """What differs, in words; "" if nothing does."""
    fields = {"value": "value", "low end": "lo", "high end": "hi", "baseline": "baseline"}
    words = []
    for part in parts:
        if part == "interval" and math.isnan(found.lo):
            words.append(f"no interval{found.why_not and f' ({found.why_not})'}, recorded {text(recorded, unit)}")
        elif part == "interval":
            words.append(f"{text(found, unit)}, recorded without an interval")
        else:
            own, known = (getattr(of, fields[part]) for of in (found, recorded))
            scale = abs(known) if part in ("value", "baseline") else recorded.hi - recorded.lo
            share = f"{100 * (own - known) / scale:+,.1f} %" if scale and math.isfinite((own - known) / scale) else ""
            change = f" ({share}{' of the width' * part.endswith('end')})" if share else ""
            words.append(f"{part} {_or_none(own)}, recorded {_or_none(known)}{unit and f' {unit}'}{change}")
    return f"{_plain(label)}: {'; '.join(words)}" if words else ""


def _or_none(number: float) -> str:
    return "none" if math.isnan(number) else short(number)


def text(value: Value, unit: str = "") -> str:
    """Return a number with its interval and unit."""
    written = short(value.value)
    if not math.isnan(value.lo):
        written += f" [{short(value.lo)}, {short(value.hi)}{value.scope and f'; {value.scope}'}]"
    return f"{written} {unit}".strip()


def reason(claim: Claim) -> str:
    """Return why a claim has no verdict, with the measured numbers in place of their names.

    Empty if it has a verdict, or if no text says why it has none.
    """
    if claim.hold is None and verdict(claim) != Verdict.NOT_DECIDED:
        return ""
    why = claim.why_open if claim.hold is None else claim.hold.reason
    recorded = {} if claim.measured is None else claim.measured.numbers
    numbers = {name: text(recorded[name], of.unit) if name in recorded else "–" for name, of in claim.numbers.items()}
    return why.format_map(numbers)


def short(number: float) -> str:
    """Return a number as all tables print it; small ones as a power of ten, because records are compared."""
    return number_text(number)


def _text(of: Estimate, row: int, unit: str) -> str:
    value, (low, high) = float(of.value[row]), (float(end[row]) for end in of.ends)
    return "–" if math.isnan(value) else text(Value(value=value, lo=low, hi=high, baseline=math.nan), unit)


def _estimate(values: Sequence[Value]) -> Estimate:
    columns = [(own.value, own.lo, own.hi, own.baseline) for own in values]
    value, low, high, baseline = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    return Estimate.of(value, (low, high), baselines=[Baseline.of("baseline", STRONGEST, baseline)])
