"""The report of `reproduce`: a claim's numbers measured again, next to the recorded ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.claims.claim import Claim, Value, Verdict
from bayesgeom.claims.verdicts import verdict
from bayesgeom.core.numbers import number_text
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

    `agrees` is 1 for a number that agrees with the recorded one, 0 for one that differs, and NaN without a recorded
    value. `not_run` lists the commands that were left out. `output` is the text that the others printed. `hold` is the
    reason if the recorded numbers give no verdict.
    """

    name: ClassVar[str] = "reproduction"
    counts: ClassVar[str] = "number"
    title: ClassVar[str] = "Reproduction: do a claim's numbers come out again?"
    about: ClassVar[str] = (
        "The commands of the claim were run again, and its numbers were read from their reports. On the machine type "
        "of the record they must agree within the claim's relative tolerance. On another type they may "
        "lie anywhere in the recorded interval, because rounding differs. The verdict follows from the numbers by the "
        "criterion of the claim. Agreement shows that the measurement is reproducible, not that the claim is true."
    )

    claim_id: str
    claim: str
    criterion: str
    numbers: tuple[str, ...]
    labels: tuple[str, ...]
    units: tuple[str, ...]
    reproduced: Annotated[Estimate, Quantity("number", label="reproduced")]
    recorded: Annotated[Estimate, Quantity("number", label="recorded")]
    agrees: Annotated[Float[np.ndarray, " number"], Unit("1")]
    verdict: str
    recorded_verdict: str
    hold: str
    not_run: tuple[str, ...]
    output: str

    @property
    def is_reproduced(self) -> bool:
        """Whether every recorded number and the verdict were reproduced."""
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
        known = ~np.isnan(self.agrees)
        if not len(self.numbers):
            return f"{self.claim_id} defines no numbers yet; its recorded verdict is {self.recorded_verdict}."
        agreeing = f"{int(self.agrees[known].sum())} of {int(known.sum())} recorded numbers agree"
        same = "again" if self.verdict == self.recorded_verdict else f"recorded: {self.recorded_verdict}"
        how = f"{self._ruling()}: claim {self.claim_id} ({self.claim.rstrip('.')})"
        return f"{how}. {agreeing[0].upper()}{agreeing[1:]}, and the verdict is {self.verdict} ({same})."

    def headlines(self) -> Sequence[Headline]:
        (low, high), known = self.reproduced.ends, ~np.isnan(self.agrees)
        agreeing = Headline(
            metric="agrees",
            label=f"recorded numbers that agree, of {known.sum()}",
            value=float(self.agrees[known].sum()),
            ruling=self._ruling(),
        )
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
            )
            for row, label in enumerate(self.labels)
        ]
        return [agreeing, *rows]

    def table(self) -> str:
        """Return recorded and reproduced numbers side by side, then the verdicts and the commands that were not run."""
        rows = [("number", "recorded", "reproduced", "agrees")]
        for row, label in enumerate(self.labels):
            recorded, own = (_text(of, row, self.units[row]) for of in (self.recorded, self.reproduced))
            rows.append((label, recorded, own, {1.0: "yes", 0.0: "no"}.get(float(self.agrees[row]), "–")))
        verdicts = f"verdict: recorded {self.recorded_verdict}, reproduced {self.verdict}"
        reason = [f"why there is no verdict: {self.hold}"] if self.hold else []
        left_out = [f"not run: {command}" for command in self.not_run]
        numbers = aligned(rows) if self.numbers else ["no numbers are defined yet"]
        return "\n".join([*numbers, "", verdicts, *reason, *left_out])

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


def _plain(label: str) -> str:
    """Return a label without the marks of code, which only Markdown shows as such."""
    return label.replace("`", "")


def reproduction_report(
    claim: Claim,
    found: Mapping[str, Value],
    agrees: Mapping[str, bool],
    *,
    verdicts: tuple[Verdict, Verdict],
    not_run: Sequence[str] = (),
    output: str = "",
) -> ReproductionReport:
    """Build the report.

    Args:
        claim: The claim.
        found: The reproduced numbers by name.
        agrees: Whether each number with a recorded value agrees with it.
        verdicts: The verdict on the reproduced numbers, and the recorded one.
        not_run: Commands that were not run.
        output: Text that the commands printed.
    """
    recorded = {} if claim.measured is None else claim.measured.numbers
    names = tuple(found)
    return ReproductionReport(
        claim_id=claim.id,
        claim=claim.claim,
        criterion=claim.criterion,
        numbers=names,
        labels=tuple(_label(claim, name, own) for name, own in found.items()),
        units=tuple(claim.numbers[name].unit for name in names),
        reproduced=_estimate([found[name] for name in names]),
        recorded=_estimate([recorded.get(name, _NOTHING) for name in names]),
        agrees=np.array([float(agrees.get(name, math.nan)) for name in names], dtype=np.float64),
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
    return number_text(number, is_exact=True)


def _text(of: Estimate, row: int, unit: str) -> str:
    value, (low, high) = float(of.value[row]), (float(end[row]) for end in of.ends)
    return "–" if math.isnan(value) else text(Value(value=value, lo=low, hi=high, baseline=math.nan), unit)


def _estimate(values: Sequence[Value]) -> Estimate:
    columns = [(own.value, own.lo, own.hi, own.baseline) for own in values]
    value, low, high, baseline = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    return Estimate.of(value, (low, high), baselines=[Baseline.of("baseline", STRONGEST, baseline)])
