"""Calibration: does the model say what an exact Bayesian observer would say?

Entropy error is averaged over sequences and positions, |H_model − H_exact|; the order that averages entropies over
sequences first, which hides errors of opposite sign, is given beside it. KL is KL(exact ‖ model).

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (entropy error); the authors' code averages sequences first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64

from bayesgeom.activations import Behaviour, Run
from bayesgeom.cells import hardest_null
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
        "and the task's own shortcuts. A model that only learned those shortcuts lies on a grey line. The null in the "
        "table is the one that is hardest to beat, with the others after it."
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
    no_interval: Mapping[str, str] = field(default_factory=dict)

    def headlines(self) -> Sequence[Headline]:
        mae, kl = (_hardest(levels) for levels in (self.null_entropy_mae_bits, self.null_kl_bits))
        return (
            replace(self.scalar("entropy_mae_bits", "entropy error", unit="bits"), **mae),
            replace(self.scalar("kl_bits", "KL(exact ‖ model)", unit="bits"), **kl),
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
    needs: ClassVar[Needs] = Needs(posterior=True)

    def measure(self, run: Run, initialised: Sequence[CalibrationReport] = ()) -> CalibrationReport:
        seen, errors = _scored(run.behaviour), _entropy_errors(run.behaviour)
        null_errors = {name: _entropy_errors(b) for name, b in run.null_behaviours.items()}
        # The median is the constant with the least mean absolute error.
        exact = seen["exact_entropy_bits"]
        null_errors["constant"] = np.abs(np.median(exact) - exact)
        null_kl = {name: float(b.kl_bits.mean(dtype=np.float64)) for name, b in run.null_behaviours.items()}
        null_mae = {name: float(values.mean()) for name, values in null_errors.items()}
        if initialised:
            null_mae["initialisation"] = float(np.mean([report.entropy_mae_bits for report in initialised]))
            null_kl["initialisation"] = float(np.mean([report.kl_bits for report in initialised]))
        # Drawn first is the uniform predictor: the level that a model which reads nothing lands on.
        order = tuple(sorted(null_errors, key=lambda name: (name != "uniform", name)))
        means_gap = np.abs(seen["model_entropy_bits"].mean(axis=0) - exact.mean(axis=0))
        scalars: dict[str, Any] = {key: float(seen[key].mean()) for key in ("kl_bits", "total_variation", "leak")}
        profiles: dict[str, Any] = {f"{key}_by_position": seen[key].mean(axis=0) for key in _PER_POSITION}
        return CalibrationReport(
            entropy_mae_bits=float(errors.mean()),
            entropy_mae_of_means_bits=float(means_gap.mean()),
            accuracy=float(seen["correct"].mean()),
            exact_accuracy=float(run.exact_behaviour.correct.mean(dtype=np.float64)),
            log_loss_gap_bits=float(np.mean(run.exact_behaviour.answer_log2 - seen["answer_log2"])),
            **scalars,
            **profiles,
            **_bounds(seen, errors, run.seed),
            entropy_mae_bits_by_position=errors.mean(axis=0),
            null_entropy_mae_bits=null_mae,
            null_kl_bits=null_kl,
            null_entropy_mae_bits_by_position=np.stack([null_errors[name].mean(axis=0) for name in order]),
            predictors=order,
            example_model_entropy_bits=seen["model_entropy_bits"][:N_EXAMPLES],
            example_exact_entropy_bits=exact[:N_EXAMPLES],
            nulls={"entropy_mae_bits": _hardest(null_mae)["null"], "kl_bits": _hardest(null_kl)["null"]},
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


def _scored(seen: Behaviour) -> dict[str, Float64[np.ndarray, "sequence position"]]:
    """Every number in float64: a run holds them in float32, whose sums would be rounded."""
    return {name: np.asarray(values, dtype=np.float64) for name, values in vars(seen).items()}


def _entropy_errors(seen: Behaviour) -> Float64[np.ndarray, "sequence position"]:
    return np.asarray(np.abs(np.subtract(seen.model_entropy_bits, seen.exact_entropy_bits, dtype=np.float64)))


def _bounds(
    seen: Mapping[str, Float64[np.ndarray, "sequence position"]],
    errors: Float64[np.ndarray, "sequence position"],
    seed: int,
) -> dict[str, Any]:
    """Intervals of the scalars and of two profiles, from one set of resamples."""
    scalars = {"entropy_mae_bits": errors, "accuracy": seen["correct"]}
    scalars |= {name: seen[name] for name in ("kl_bits", "total_variation", "leak")}
    means = [values.mean(axis=1)[:, None] for values in scalars.values()]
    found = mean_interval(np.concatenate([errors, seen["kl_bits"], *means], axis=1), seed=seed)
    lo, hi = found
    n_pos = errors.shape[1]
    error, kl, rest = slice(0, n_pos), slice(n_pos, 2 * n_pos), 2 * n_pos
    pairs = zip(lo[rest:].tolist(), hi[rest:].tolist(), strict=True)
    return {
        "entropy_mae_bits_by_position_lo": lo[error],
        "entropy_mae_bits_by_position_hi": hi[error],
        "kl_bits_by_position_lo": lo[kl],
        "kl_bits_by_position_hi": hi[kl],
        "intervals": dict(zip(scalars, pairs, strict=True)),
        "no_interval": {name: why for i, name in enumerate(scalars) if (why := found.why_not((rest + i,)))},
    }


def _hardest(levels: Mapping[str, float]) -> dict[str, Any]:
    """The null of a headline: the predictor that is hardest to beat, then the others."""
    null, label = hardest_null({name.replace("_", " "): level for name, level in levels.items()}, is_error=True)
    return {"null": null, "null_label": label}
