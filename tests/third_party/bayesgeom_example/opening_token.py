"""Opening token: does the last answer depend on it? The model runs again, with the first token of another sequence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

from bayesgeom.charts.forest import add_forest
from bayesgeom.core import Ask, Run, Trials
from bayesgeom.measurements.base import Control, Further, Measurement, Subject, planted_run
from bayesgeom.report.estimate import Estimate, Share, mean_estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.dice import Dice


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class OpeningTokenReport(Report):
    """How far the last answer moves when the first token is that of another sequence: 0 is not at all."""

    name: ClassVar[str] = "opening_token"
    title: ClassVar[str] = "Opening token: does the last answer depend on it?"
    change: Annotated[Estimate, Share(label="total variation of the last answer")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return (headline_of(self, "change"),)

    def panels(self) -> Sequence[Panel]:
        panel = Panel.blank("Change of the last answer")
        ends = tuple(end.reshape(1) for end in self.change.ends)
        add_forest(panel.figure, ["change"], self.change.value.reshape(1), ends, unit="total variation")
        return (panel,)


@final
@dataclass(frozen=True)
class OpeningToken(Measurement[OpeningTokenReport]):
    """The answers of the recorded sequences, and of the same with the first token of the one before."""

    name: ClassVar[str] = "opening_token"
    asks: ClassVar[frozenset[Ask]] = frozenset({Ask.PREDICT})

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterator[Further]:
        tokens = run.trials.tokens.clone()
        tokens[:, 0] = tokens[:, 0].roll(1)
        yield Further(trials=replace(run.trials, tokens=tokens), is_last_only=True, label="other first tokens")

    def of(self, subject: Subject, untrained: Sequence[OpeningTokenReport] = ()) -> OpeningTokenReport:
        before, after = (run.log_answers[:, -1].exp() for run in (subject.run, *subject.further))
        change = (before - after).abs().sum(dim=1) / 2
        estimate = mean_estimate(change.cpu().numpy(), seed=subject.seed, bounds=(0.0, 1.0))
        return OpeningTokenReport(change=estimate, n=len(change))

    def controls(self) -> Iterator[Control[OpeningTokenReport]]:
        trials: Trials = Dice(length=5).sample(61, seed=0)
        exact, swapped = planted_run(trials, {}), trials.at_scored(trials.predictive).flip(-1)
        other = planted_run(trials, {}, model=swapped)
        yield Control(label="the same", run=exact, further=(exact,), holds=lambda report: float(report.change) == 0)
        yield Control(label="swapped", run=exact, further=(other,), holds=lambda report: float(report.change) > 0.1)
