"""Calibration: does the model say what an exact Bayesian observer would say?

On tasks whose hidden state moves, the report also states the model's *effective memory*: how many of the last symbols
an observer must see to predict as well (`bayesgeom.core.memory`).

Entropy error is averaged over sequences and positions, |H_model − H_exact|; the order that averages entropies over
sequences first, which hides errors of opposite sign, is given beside it. KL is KL(exact ‖ model).

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (entropy error); the authors' code averages sequences first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64

from bayesgeom.core.memory import (
    TRANSPORT_BITS,
    TRANSPORT_WINDOW,
    WIDEST_BASELINE,
    WindowScores,
    effective_memory,
    window_name,
    window_predictives,
)
from bayesgeom.core.observers import STARTS
from bayesgeom.core.run import Behaviour, Run
from bayesgeom.probes.base import Control, Needs, Probe, planted_chain, planted_run, planted_trials
from bayesgeom.results.cells import hardest_null
from bayesgeom.results.report import Headline, Report
from bayesgeom.stats.bootstrap import mean_interval

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

    On tasks with latent dynamics, `window_kl_bits` is the KL of the exact filter that sees only the last w symbols,
    w = 0, 1, …, and `window_gain_bits` that of the stronger start minus the model's. `effective_memory_symbols` is the
    least w whose observer the model does not beat; its interval ends at the least w that is at least as good with the
    same confidence. `transport_gap_bits` is what the stationary observer of ten symbols loses, and `transport` says in
    words whether the task can show transport and whether the model does. Elsewhere these are NaN, or empty.
    """

    name: ClassVar[str] = "calibration"
    title: ClassVar[str] = "Calibration: does it say what Bayes says?"
    about: ClassVar[str] = (
        "At every scored position the task knows the exact probability of each answer. The curves show how uncertain "
        "the exact posterior is and how uncertain the model is; the error panel shows the gap. Grey lines are what "
        "predictors without the computation would get: uniform over the answers, the best single constant entropy, "
        "and the task's own shortcuts. A model that only learned those shortcuts lies on a grey line. The null in the "
        "table is the one that is hardest to beat, with the others after it. Where the hidden state moves, window "
        "observers are among them: the exact filter of the last few symbols, which carries nothing. The effective "
        "memory is the number of symbols that such an observer needs to do as well as the model. Carrying the belief "
        "can be told from rereading the last symbols only where ten symbols are too few."
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
    window_kl_bits: Float[np.ndarray, "window_start window"]
    window_gain_bits: Float[np.ndarray, " window"]
    window_gain_bits_lo: Float[np.ndarray, " window"]
    window_gain_bits_hi: Float[np.ndarray, " window"]
    window_starts: tuple[str, ...]
    windows: tuple[str, ...]
    effective_memory_symbols: float
    transport_gap_bits: float
    transport: str
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int
    no_interval: Mapping[str, str] = field(default_factory=dict)

    def headlines(self) -> Sequence[Headline]:
        mae, kl = (_hardest(levels) for levels in (self.null_entropy_mae_bits, self.null_kl_bits))
        can = "can" if self.transport_gap_bits >= TRANSPORT_BITS else "cannot"
        memory = (
            self.scalar("effective_memory_symbols", "effective memory", unit="symbols"),
            self.scalar(
                "transport_gap_bits",
                f"KL of the last {TRANSPORT_WINDOW} symbols alone ({can} show transport: {TRANSPORT_BITS:g} needed)",
                unit="bits",
            ),
        )
        return (
            replace(self.scalar("entropy_mae_bits", "entropy error", unit="bits"), **mae),
            replace(self.scalar("kl_bits", "KL(exact ‖ model)", unit="bits"), **kl),
            self.scalar("entropy_mae_of_means_bits", "entropy error, means first", unit="bits"),
            self.scalar("leak", "probability outside the answers"),
            *(memory if self.windows else ()),
        )

    def figure(self) -> "Figure":
        from bayesgeom.charts.calibration import calibration_figure

        levels = dict(zip(self.predictors, self.null_entropy_mae_bits_by_position, strict=True))
        return calibration_figure(
            title=self.title,
            exact=self.exact_entropy_bits_by_position,
            model=self.model_entropy_bits_by_position,
            error=self.entropy_mae_bits_by_position,
            error_band=(self.entropy_mae_bits_by_position_lo, self.entropy_mae_bits_by_position_hi),
            nulls={name: level for name, level in levels.items() if name not in self._weaker()},
            examples=(self.example_exact_entropy_bits, self.example_model_entropy_bits),
        )

    def _weaker(self) -> set[str]:
        """Window observers whose other start is stronger: not drawn."""
        weaker = self.window_kl_bits.argmax(axis=0) if self.windows else ()
        return {window_name(width, self.window_starts[start]) for width, start in enumerate(weaker) if width}


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
        memory, memory_interval = _memory(run.windows, run.behaviour, run.seed)
        bounds = _bounds(seen, errors, run.seed)
        bounds["intervals"] |= memory_interval
        return CalibrationReport(
            entropy_mae_bits=float(errors.mean()),
            entropy_mae_of_means_bits=float(means_gap.mean()),
            accuracy=float(seen["correct"].mean()),
            exact_accuracy=float(run.exact_behaviour.correct.mean(dtype=np.float64)),
            log_loss_gap_bits=float(np.mean(run.exact_behaviour.answer_log2 - seen["answer_log2"])),
            **scalars,
            **profiles,
            **bounds,
            **memory,
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
        slow = planted_chain(stay=0.985, seed=0)
        yield Control(
            label="the exact filter of a slow chain remembers the whole sequence",
            run=planted_run(slow, {}),
            holds=lambda r: r.effective_memory_symbols == 43 and "the model transports" in r.transport,
        )
        # Its entropy and KL are good, and it carries nothing.
        window = next(islice(window_predictives(slow, "stationary"), 3, None))
        yield Control(
            label="an observer of the last three symbols remembers three",
            run=planted_run(slow, {}, model=window),
            holds=lambda r: (
                r.effective_memory_symbols == 3
                and r.intervals["effective_memory_symbols"] == (3, 3)
                and "does not transport" in r.transport
            ),
        )
        fast = planted_chain(stay=0.6, seed=0)
        yield Control(
            label="on a chain that forgets in one step, not even the exact filter shows transport",
            run=planted_run(fast, {}),
            holds=lambda r: r.effective_memory_symbols == 43 and "cannot show transport" in r.transport,
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


def _memory(scores: WindowScores | None, seen: Behaviour, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields on effective memory, and its interval."""
    if scores is None:
        none, unknown = np.zeros(0), float("nan")
        return {
            "window_kl_bits": none.reshape(0, 0), "window_gain_bits": none, "window_gain_bits_lo": none,
            "window_gain_bits_hi": none, "window_starts": (), "windows": (), "effective_memory_symbols": unknown,
            "transport_gap_bits": unknown, "transport": "",
        }, {}  # fmt: skip
    found = effective_memory(scores, seen.kl_bits, seed=seed)
    return {
        "window_kl_bits": found.kl_bits,
        "window_gain_bits": found.gain_bits,
        "window_gain_bits_lo": found.gain_bits_lo,
        "window_gain_bits_hi": found.gain_bits_hi,
        "window_starts": STARTS,
        "windows": tuple(map(str, range(found.length + 1))),
        "effective_memory_symbols": found.symbols,
        "transport_gap_bits": found.transport_gap_bits,
        "transport": found.verdict,
    }, {"effective_memory_symbols": (found.symbols, found.symbols_hi)}


def _hardest(levels: Mapping[str, float]) -> dict[str, Any]:
    """The null of a headline: the predictor that is hardest to beat, then the others; of windows the best one alone."""
    windows = {window_name(width, start) for width in range(1, WIDEST_BASELINE + 1) for start in STARTS}
    best = min(windows & levels.keys(), key=lambda name: levels[name], default="")
    listed = {name.replace("_", " "): level for name, level in levels.items() if name not in windows or name == best}
    null, label = hardest_null(listed, is_error=True)
    return {"null": null, "null_label": label}
