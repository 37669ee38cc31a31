"""Planted predictors of a coin, each of which one part of the audit catches: a table of `bayesgeom selftest`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core import number_text
from bayesgeom.measurements.audit import AuditReport, audit
from bayesgeom.tasks.base import FORGETTING, discounted_sums
from bayesgeom.tasks.dice import PLUG_IN, Dice

COIN, AGE, POOL = Dice(n_faces=2, length=24), "8", (0.2, 0.5, 0.8)
MEMORIZING = "pool of three"
Flips = Int64[Tensor, "batch flip"]
LogAnswers = Float64[Tensor, "batch flip face"]
_FREE = {"martingale": 0.0, "order": 0.0, "discount": 1.0}
_EXACT = {"regret": 0.0, "response": 1.0, "confidence": 1.0, "log-odds": 1.0, **_FREE}
COLUMNS = (*_EXACT, "strategy")


def _flipped(flips: Flips) -> Float64[Tensor, "batch flip face"]:
    return torch.nn.functional.one_hot(flips, 2).double()


def _log_shares(weights: Float64[Tensor, "batch flip face"]) -> LogAnswers:
    return (weights / weights.sum(dim=-1, keepdim=True)).log()


def _exact(flips: Flips) -> LogAnswers:
    return _log_shares(_flipped(flips).cumsum(dim=1) + 1)


def _overconfident(flips: Flips) -> LogAnswers:
    return (2 * _exact(flips)).log_softmax(dim=-1)


def _forgetful(flips: Flips) -> LogAnswers:
    return _log_shares(discounted_sums(_flipped(flips), FORGETTING) + 1)


def _plug_in(flips: Flips) -> LogAnswers:
    return _log_shares(_flipped(flips).cumsum(dim=1) + PLUG_IN)


def _order_sensitive(flips: Flips) -> LogAnswers:
    return _log_shares(_flipped(flips).cumsum(dim=1) + 2 * _flipped(flips) + 1)  # the latest flip counts three times


def _memorizing(flips: Flips) -> LogAnswers:
    heads = torch.tensor(POOL, dtype=torch.float64, device=flips.device)
    coins = torch.stack([1 - heads, heads], dim=1)
    posterior = (_flipped(flips).cumsum(dim=1) @ coins.log().T).softmax(dim=-1)
    return (posterior @ coins).log()


@final
@dataclass(frozen=True, kw_only=True)
class PlantedAudit:
    """The audit of one predictor.

    Attributes:
        name: Name of the predictor.
        report: Its audit.
        expected: Least and greatest number in some columns, among them the part that catches the predictor.
    """

    name: str
    report: AuditReport
    expected: Mapping[str, tuple[float, float]]

    def numbers(self) -> dict[str, float]:
        """Return the number of each column; that of the strategy is the largest weight."""
        report = self.report
        return {
            "regret": float(report.regret_bits),
            "response": float(report.response.value[report.ages.index(AGE)]),
            "confidence": float(report.confidence),
            "log-odds": float(report.log_odds_slope),
            "martingale": float(report.martingale_gap),
            "order": float(report.order_spread),
            "discount": float(report.discount),
            "strategy": float(report.weights.value[report.predictors.index(MEMORIZING)]),
        }

    @property
    def passed(self) -> bool:
        """Whether the numbers are those that are known."""
        numbers = self.numbers()
        return all(low <= numbers[name] <= high for name, (low, high) in self.expected.items())

    def row(self) -> tuple[str, ...]:
        """Return the name, and the number of each column with three digits."""
        return self.name, *(number_text(float(f"{number:.3g}")) for number in self.numbers().values())


# An independent script has regret 2.41, 0.53, 4.44, 0.37, 0.48, response 1.35, 0.19, 1.08, 0.93, 0.83, and as its
# confidence the slope of log-odds: 2, 0.72, 2.18, 1.07, 0.66.
PLANTED: tuple[tuple[str, Callable[[Flips], LogAnswers], Mapping[str, tuple[float, float]]], ...] = (
    ("exact", _exact, {name: (value - 1e-5, value + 1e-5) for name, value in _EXACT.items()}),
    (
        "overconfident",
        _overconfident,
        {"regret": (2.2, 2.7), "log-odds": (1.999, 2.001), "martingale": (0.006, 0.0084)},
    ),
    ("forgetful", _forgetful, {"response": (0.15, 0.23), "martingale": (0.01, 0.015), "discount": (0.799, 0.801)}),
    ("plug-in", _plug_in, {"regret": (4.1, 4.9), "log-odds": (2.0, 2.4), "martingale": (0, 1e-9), "order": (0, 1e-9)}),
    ("order-sensitive", _order_sensitive, {"regret": (0.32, 0.4), "martingale": (0.03, 0.05), "order": (0.02, 0.026)}),
    ("memorizing", _memorizing, {"regret": (0.4, 0.6), "log-odds": (0.6, 0.72), "strategy": (0.99, 1)}),
)


def planted_audits(n: int = 256) -> Iterator[PlantedAudit]:
    """Yield the audit of each planted predictor on the same flips of a coin.

    Args:
        n: Number of sequences.
    """
    pool = {MEMORIZING: lambda trials: _memorizing(trials.tokens).exp()}
    for name, predictor, expected in PLANTED:
        report = audit(predictor, COIN, n=n, predictors=pool)
        yield PlantedAudit(name=name, report=report, expected=expected)
