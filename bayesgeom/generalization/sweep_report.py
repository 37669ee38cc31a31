"""The sweep report: convergence of the posterior, and the model's error, at each value of a task parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.run import Behavior
from bayesgeom.core.text import number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.generalization.curves import floor_bits, strongest, tokens_to_converge
from bayesgeom.report.columns import fitted
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Unit, mean_estimate, stacked
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class SweepReport(Report):
    """One parameter of the task varies; everything else, including seeds, is the same.

    The first panel shows the entropy of the exact posterior (wide) and of the model (thin) at each position. The second
    shows how many observations each needs to converge. The others show the model's error at each value, and the error
    of the task's strongest shortcut; their axes begin at 10⁻⁶ bits or at the model's smallest error. A model that
    infers follows the exact posterior at values on which it was not trained; a model that memorized the speed of
    convergence does not. Where the shortcut is exact, no model can be better.

    Fields: one row per value of the parameter; the model's numbers are NaN without a model, or if it cannot be run.

    `notes` states for each value why the model could not be run, else it is empty. `…_tokens` count scored positions
    until mean entropy is within `threshold_bits` of its floor, the mean over the last quarter of the positions; exact
    posterior and model have separate floors. The baseline is the task's strongest shortcut (`shortcuts`). On tasks with
    latent dynamics it may be a window observer of up to ten symbols, chosen as for calibration (see
    `bayesgeom.stats.windows.wider_window`).
    """

    name: ClassVar[str] = "sweep"
    title: ClassVar[str] = "Sweep: how fast it converges"

    task: str
    vary: str
    values: tuple[str, ...]
    trained_value: str  # "" without a model
    notes: Annotated[tuple[str, ...], "value"]
    shortcuts: Annotated[tuple[str, ...], "value"]  # the strongest at each value
    threshold_bits: float
    exact_entropy_bits: Annotated[Float[np.ndarray, "value position"], Unit("bits")]
    model_entropy_bits: Annotated[Float[np.ndarray, "value position"], Unit("bits")]
    exact_floor_bits: Annotated[Float[np.ndarray, " value"], Unit("bits")]
    model_floor_bits: Annotated[Float[np.ndarray, " value"], Unit("bits")]
    exact_tokens: Annotated[Estimate, Quantity("value", unit="tokens", label="tokens to converge, exact")]
    model_tokens: Annotated[Estimate, Quantity("value", unit="tokens", label="tokens to converge, model")]
    kl_bits: Annotated[Estimate, NonNegative("value", unit="bits", better="lower", label="KL(exact ‖ model)")]
    entropy_mae_bits: Annotated[Estimate, NonNegative("value", unit="bits", better="lower", label="entropy error")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        lines = list[Headline]()
        for index, value in enumerate(self.values):
            place, shortcut = f"{self.vary}={value}", self.kl_bits.baseline(SHORTCUT).value[index]
            if np.isfinite(self.kl_bits.value[index]):
                verdict = str(Verdict.NOT_APPLICABLE) if shortcut <= EXACT_BITS else None
                label = f"{place}: KL (shortcut: {self.shortcuts[index].replace('_', ' ')})"
                lines.append(headline_of(self, "kl_bits", (index,), label, verdict=verdict))
                lines.append(headline_of(self, "model_tokens", (index,), f"{place}: tokens to converge, model"))
            lines.append(headline_of(self, "exact_tokens", (index,), f"{place}: tokens to converge, exact"))
        return lines

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.generalization.sweep_drawing import sweep_panels

        return sweep_panels(
            (self.vary, self.values),
            entropies=(self.exact_entropy_bits, self.model_entropy_bits),
            tokens=(self.exact_tokens, self.model_tokens),
            errors=(self.kl_bits, self.entropy_mae_bits),
        )

    def table(self) -> str:
        """Return one row per value, then the reasons why the model could not be run."""
        rows = [(self.vary, *_HEADER), *(self._row(index) for index in range(len(self.values)))]
        notes = [f"{self.vary}={v}: {note}" for v, note in zip(self.values, self.notes, strict=True) if note]
        return "\n".join([*fitted(rows), *([""] if notes else []), *notes])

    def _row(self, index: int) -> tuple[str, ...]:
        trained = " (trained)" if self.values[index] == self.trained_value else ""
        kl, error = (own.baseline(SHORTCUT).value[index] for own in (self.kl_bits, self.entropy_mae_bits))
        return (
            self.values[index] + trained,
            number_text(self.exact_floor_bits[index]),
            number_text(self.exact_tokens.value[index]),
            number_text(self.model_tokens.value[index]),
            self.kl_bits[index].text(),
            f"{number_text(kl)} ({self.shortcuts[index]})",
            self.entropy_mae_bits[index].text(),
            number_text(error),
        )


SHORTCUT = "strongest shortcut"
EXACT_BITS = 1e-9  # a smaller KL is rounding
_HEADER = (
    "entropy floor (bits)",
    "tokens, exact",
    "tokens, model",
    "KL (bits)",
    "KL, shortcut",
    "entropy error (bits)",
    "entropy error, shortcut",
)


@final
@dataclass(frozen=True, kw_only=True)
class Value:
    """The measurements at one value of the parameter; without a model `own` is None, and `note` may state why.

    `wider` holds mean KL and mean entropy error of the window observer that joins the predictors, by name, if any.
    """

    label: str
    note: str
    exact_entropy_bits: Float[np.ndarray, "sequence position"]
    own: Behavior | None
    predictors: Mapping[str, Behavior]
    wider: Mapping[str, tuple[float, float]]

    def shortcut(self) -> tuple[str, float, float]:
        """Return the name of the predictor with the lowest mean KL, its mean KL and its mean entropy error."""
        exact = self.exact_entropy_bits.astype(np.float64)
        along = {name: own.kl_bits.mean(axis=0, dtype=np.float64) for name, own in self.predictors.items()}
        best = strongest(along | {name: np.array([kl]) for name, (kl, _) in self.wider.items()})
        if best in self.wider:
            return best, *self.wider[best]
        return best, float(along[best].mean()), float(_entropy_error(self.predictors[best], exact).mean())


def sweep_report(
    found: Sequence[Value], *, task: str, vary: str, trained_value: str, threshold_bits: float, seed: int
) -> SweepReport:
    """Return the report on all values, in the given order."""
    best, kls, errors = zip(*(value.shortcut() for value in found), strict=True)
    n_positions = max(value.exact_entropy_bits.shape[1] for value in found)
    exact = [value.exact_entropy_bits.astype(np.float64) for value in found]
    own = [None if value.own is None else value.own.model_entropy_bits.astype(np.float64) for value in found]
    return SweepReport(
        task=task,
        vary=vary,
        values=tuple(value.label for value in found),
        trained_value=trained_value,
        notes=tuple(value.note for value in found),
        shortcuts=best,
        threshold_bits=threshold_bits,
        exact_entropy_bits=np.stack([_padded(of, n_positions) for of in exact]),
        model_entropy_bits=np.stack([_padded(of, n_positions) for of in own]),
        exact_floor_bits=np.array([floor_bits(of) for of in exact]),
        model_floor_bits=np.array([np.nan if of is None else floor_bits(of) for of in own]),
        exact_tokens=stacked([tokens_to_converge(of, threshold_bits, seed=seed) for of in exact]),
        model_tokens=stacked(
            [_UNKNOWN if of is None else tokens_to_converge(of, threshold_bits, seed=seed) for of in own]
        ),
        kl_bits=_with_shortcut([_UNKNOWN if v.own is None else _mean(v.own.kl_bits, seed) for v in found], kls),
        entropy_mae_bits=_with_shortcut(
            [
                _UNKNOWN if value.own is None else _mean(_entropy_error(value.own, of), seed)
                for value, of in zip(found, exact, strict=True)
            ],
            errors,
        ),
        n=len(exact[0]),
    )


_UNKNOWN = Estimate.of(np.nan, (np.nan, np.nan))


def _with_shortcut(found: Sequence[Estimate], levels: Sequence[float]) -> Estimate:
    return stacked(found, baselines=(Baseline.of("baseline", SHORTCUT, np.array(levels)),))


def _mean(values: Float[np.ndarray, "sequence position"], seed: int) -> Estimate:
    return mean_estimate(values.mean(axis=1, dtype=np.float64), seed=seed)


def _entropy_error(
    own: Behavior, exact: Float[np.ndarray, "sequence position"]
) -> Float[np.ndarray, "sequence position"]:
    error: np.ndarray = np.abs(own.model_entropy_bits.astype(np.float64) - exact)
    return error


def _padded(values: Float[np.ndarray, "sequence position"] | None, n_positions: int) -> Float[np.ndarray, " longest"]:
    """Return the mean at each position, padded with NaN to the longest sequence."""
    padded = np.full(n_positions, np.nan)
    if values is not None:
        padded[: values.shape[1]] = values.mean(axis=0, dtype=np.float64)
    return padded
