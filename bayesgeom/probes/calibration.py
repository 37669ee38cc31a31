"""Calibration: does the model say what an exact Bayesian observer would say?

Entropy error is averaged over sequences and positions, |H_model − H_exact|; the order that averages entropies over
sequences first, which hides errors of opposite sign, is given beside it. KL is KL(exact ‖ model).

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (entropy error); the authors' code averages sequences first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float

from bayesgeom.activations import Behaviour, Run
from bayesgeom.probes.base import Control, Needs, Probe, planted_run, planted_trials
from bayesgeom.report import Headline, Report
from bayesgeom.statistics import mean_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

N_EXAMPLES = 4
_PER_POSITION = ("kl_bits", "total_variation", "leak", "model_entropy_bits", "exact_entropy_bits")


@final
@dataclass(frozen=True, kw_only=True)
class CalibrationReport(Report):
    """Distance between the model's predictions and the exact posterior predictive; all in bits, 0 is perfect.

    `entropy_mae_of_means_bits` ≤ `entropy_mae_bits` always. `log_loss_gap_bits` is the model's cross-entropy on the
    realised answers minus the exact predictive's. `accuracy` counts the realised answer as most probable one;
    `exact_accuracy` is the same for the exact predictive.
    """

    name: ClassVar[str] = "calibration"
    title: ClassVar[str] = "Calibration: does it say what Bayes says?"
    about: ClassVar[str] = (
        "At every scored position the task knows the exact probability of each answer. The curves show how uncertain "
        "the exact posterior is and how uncertain the model is; the error panel shows the gap. Grey lines are what "
        "predictors without the computation would get: uniform over the answers, the best single constant entropy, "
        "and the task's own shortcuts. A model that only learned those shortcuts lies on a grey line."
    )

    entropy_mae_bits: float
    entropy_mae_of_means_bits: float
    kl_bits: float
    total_variation: float
    leak: float
    accuracy: float
    exact_accuracy: float
    log_loss_gap_bits: float
    entropy_mae_bits_by_position: Float[np.ndarray, " position"]
    entropy_mae_bits_by_position_lo: Float[np.ndarray, " position"]
    entropy_mae_bits_by_position_hi: Float[np.ndarray, " position"]
    kl_bits_by_position: Float[np.ndarray, " position"]
    kl_bits_by_position_lo: Float[np.ndarray, " position"]
    kl_bits_by_position_hi: Float[np.ndarray, " position"]
    total_variation_by_position: Float[np.ndarray, " position"]
    leak_by_position: Float[np.ndarray, " position"]
    model_entropy_bits_by_position: Float[np.ndarray, " position"]
    exact_entropy_bits_by_position: Float[np.ndarray, " position"]
    null_entropy_mae_bits: Mapping[str, float]
    null_kl_bits: Mapping[str, float]
    null_entropy_mae_bits_by_position: Float[np.ndarray, "predictor position"]
    predictors: tuple[str, ...]
    example_model_entropy_bits: Float[np.ndarray, "example position"]
    example_exact_entropy_bits: Float[np.ndarray, "example position"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        best = self.predictors[0]
        return (
            self.scalar("entropy_mae_bits", "entropy error", unit="bits", null_label=f"{best} predictor"),
            self.scalar("kl_bits", "KL(exact ‖ model)", unit="bits", null_label=f"{best} predictor"),
            self.scalar("entropy_mae_of_means_bits", "entropy error, means first", unit="bits"),
            self.scalar("leak", "probability outside the answers"),
        )

    def figure(self) -> "Figure":
        from bayesgeom.charts.calibration import calibration_figure

        return calibration_figure(
            title=self.title,
            exact=self.exact_entropy_bits_by_position,
            model=self.model_entropy_bits_by_position,
            error=self.entropy_mae_bits_by_position,
            error_band=(self.entropy_mae_bits_by_position_lo, self.entropy_mae_bits_by_position_hi),
            nulls=dict(zip(self.predictors, self.null_entropy_mae_bits_by_position, strict=True)),
            examples=(self.example_exact_entropy_bits, self.example_model_entropy_bits),
        )


@final
@dataclass(frozen=True)
class Calibration(Probe[CalibrationReport]):
    """Behaviour alone: every sequence counts, no activation is read."""

    name: ClassVar[str] = "calibration"
    needs: ClassVar[Needs] = Needs()

    def measure(self, run: Run, initialised: Sequence[CalibrationReport] = ()) -> CalibrationReport:
        seen = run.behaviour
        errors = np.abs(seen.model_entropy_bits - seen.exact_entropy_bits)
        null_errors = {
            name: np.abs(b.model_entropy_bits - b.exact_entropy_bits) for name, b in run.null_behaviours.items()
        }
        # The median is the constant with the least mean absolute error.
        null_errors["constant"] = np.abs(np.median(seen.exact_entropy_bits) - seen.exact_entropy_bits)
        null_kl = {name: float(b.kl_bits.mean()) for name, b in run.null_behaviours.items()}
        null_mae = {name: float(values.mean()) for name, values in null_errors.items()}
        if initialised:
            null_mae["initialisation"] = float(np.mean([report.entropy_mae_bits for report in initialised]))
            null_kl["initialisation"] = float(np.mean([report.kl_bits for report in initialised]))
        # The uniform predictor leads: it is the level that a model which reads nothing lands on.
        order = tuple(sorted(null_errors, key=lambda name: (name != "uniform", name)))
        intervals = _intervals(seen, errors, run.seed)
        error_lo, error_hi = mean_interval(errors, seed=run.seed)
        kl_lo, kl_hi = mean_interval(seen.kl_bits, seed=run.seed)
        means_gap = np.abs(seen.model_entropy_bits.mean(axis=0) - seen.exact_entropy_bits.mean(axis=0))
        scalars: dict[str, Any] = {key: float(vars(seen)[key].mean()) for key in ("kl_bits", "total_variation", "leak")}
        profiles: dict[str, Any] = {f"{key}_by_position": vars(seen)[key].mean(axis=0) for key in _PER_POSITION}
        return CalibrationReport(
            entropy_mae_bits=float(errors.mean()),
            entropy_mae_of_means_bits=float(means_gap.mean()),
            accuracy=float(seen.correct.mean()),
            **_against_exact(run),
            **scalars,
            **profiles,
            entropy_mae_bits_by_position=errors.mean(axis=0),
            entropy_mae_bits_by_position_lo=error_lo,
            entropy_mae_bits_by_position_hi=error_hi,
            kl_bits_by_position_lo=kl_lo,
            kl_bits_by_position_hi=kl_hi,
            null_entropy_mae_bits=null_mae,
            null_kl_bits=null_kl,
            null_entropy_mae_bits_by_position=np.stack([null_errors[name].mean(axis=0) for name in order]),
            predictors=order,
            example_model_entropy_bits=seen.model_entropy_bits[:N_EXAMPLES],
            example_exact_entropy_bits=seen.exact_entropy_bits[:N_EXAMPLES],
            intervals=intervals,
            nulls=_leading_nulls(order[0], null_mae, null_kl),
            n=run.n,
        )

    def controls(self) -> Iterator[Control[CalibrationReport]]:
        rng = np.random.default_rng(0)
        exact = rng.dirichlet(np.ones(5), size=(11, 3))
        trials = planted_trials(exact, rng.integers(7, size=(11, 3)))
        flat = torch.full((11, 3, 5), 0.2, dtype=torch.float64)
        yield Control(label="exact predictions", run=planted_run(trials, {}), holds=lambda r: abs(r.kl_bits) < 1e-12)
        yield Control(
            label="uniform predictions",
            run=planted_run(trials, {}, model=flat),
            holds=lambda r: np.allclose(r.kl_bits, np.log2(5) - r.exact_entropy_bits_by_position.mean()),
        )


def _intervals(
    seen: Behaviour, errors: Float[np.ndarray, "sequence position"], seed: int
) -> dict[str, tuple[float, float]]:
    per_sequence = {
        "entropy_mae_bits": errors,
        "kl_bits": seen.kl_bits,
        "total_variation": seen.total_variation,
        "leak": seen.leak,
        "accuracy": seen.correct,
    }
    bounds = {name: mean_interval(values.mean(axis=1), seed=seed) for name, values in per_sequence.items()}
    return {name: (float(lo), float(hi)) for name, (lo, hi) in bounds.items()}


def _against_exact(run: Run) -> dict[str, Any]:
    """Accuracy of the exact predictive, and how much more the realised answers cost the model."""
    exact = run.exact_behaviour
    return {
        "exact_accuracy": float(exact.correct.mean()),
        "log_loss_gap_bits": float((exact.answer_log2 - run.behaviour.answer_log2).mean()),
    }


def _leading_nulls(leading: str, mae: Mapping[str, float], kl: Mapping[str, float]) -> dict[str, float]:
    nulls = {"entropy_mae_bits": mae[leading]}
    return nulls | ({"kl_bits": kl[leading]} if leading in kl else {})
