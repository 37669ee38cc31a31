"""The sweep report: convergence of the posterior, and the model's error, at each value of a task parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.run import Behavior
from bayesgeom.core.text import number_text
from bayesgeom.generalization.curves import floor_bits, strongest, tokens_to_converge
from bayesgeom.results.estimate import Baseline, Estimate, NonNegative, Quantity, Unit
from bayesgeom.results.estimators import mean_estimate, stacked
from bayesgeom.results.findings import numbers
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class SweepReport(Report):
    """One row per value of the parameter; the model's numbers are NaN without a model, or if it cannot be run.

    `notes` states for each value why the model could not be run, else it is empty. `…_tokens` count scored positions
    until mean entropy is within `threshold_bits` of its floor, the mean over the last quarter of the positions; exact
    posterior and model have separate floors. The baseline is the task's strongest shortcut (`shortcuts`). On tasks with
    latent dynamics it may be a window observer of up to ten symbols, chosen as for calibration (see
    `bayesgeom.stats.memory.wider_window`).
    """

    name: ClassVar[str] = "sweep"
    title: ClassVar[str] = "Noise and evidence: how fast does the posterior converge?"
    about: ClassVar[str] = (
        "One parameter of the task varies; everything else, including seeds, is the same. The first panel shows the "
        "entropy of the exact posterior (wide) and of the model (thin) at each position. The second shows how many "
        "observations each needs to converge. The others show the model's error at each value, and the error of the "
        "task's strongest shortcut; their axes begin at 10⁻⁶ bits or at the model's smallest error. A model that "
        "infers follows the exact posterior at values on which it was not trained; a model that memorized the speed "
        "of convergence does not."
    )

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
        lines, findings = [], self._findings()
        for index, value in enumerate(self.values):
            place = f"{self.vary}={value}"
            if np.isfinite(self.kl_bits.value[index]):
                label = f"{place}: KL (shortcut: {self.shortcuts[index].replace('_', ' ')})"
                line = self._compared("kl_bits", index, label)
                subject = f"KL at {place} ({label.split(' (')[1]}"
                lines.append(replace(line, finding=findings.get(index, ""), short_label=subject))
                lines.append(self._converged("model", index))
            lines.append(self._converged("exact", index))
        return tuple(lines)

    def _converged(self, whose: str, index: int) -> Headline:
        place, name = f"{self.vary}={self.values[index]}", "model" if whose == "model" else "exact posterior"
        line = headline_of(self, f"{whose}_tokens", at=(index,), label=f"{place}: tokens to converge, {whose}")
        return replace(line, short_label=f"number of tokens until the {name} converges at {place}")

    def _findings(self) -> dict[int, str]:
        """Return sentences on all values of the parameter, by the index of the value whose number they stand at."""
        known = np.flatnonzero(np.isfinite(self.kl_bits.value)).tolist()
        if not known:
            return {}
        compared = [index for index in known if not self._exact(index)]
        beats = self.kl_bits[compared].clears("lower").tolist()
        converged = int((self.model_tokens.value[known] == self.exact_tokens.value[known]).sum())
        exact = {f"at {self.vary}={self.values[index]} {why}": None for index in known if (why := self._exact(index))}
        below = (
            f"At {beats.count('yes')} of {len(compared)} values of {self.vary} the model's KL is below that of the "
            f"strongest shortcut{''.join(f'; {why}' for why in exact)}."
        )
        if not compared:
            below = f"No comparison with shortcuts is applicable: {'; '.join(exact)}."
        everywhere = (
            f"{below} At {converged} of {len(known)} both entropies reach their own floors after as many tokens."
        )
        most = known[int(self.kl_bits.value[known].argmax())]
        trained = self.values.index(self.trained_value) if self.trained_value in self.values else most
        found = {most: f"The KL is greatest at {self.vary}={self.values[most]}."}
        return found | {trained if trained in known else most: everywhere}

    def _compared(self, metric: str, index: int, label: str) -> Headline:
        """Return an error at one value of the parameter; where a shortcut is exact, no model can be better."""
        line, exact = headline_of(self, metric, at=(index,), label=label), self._exact(index)
        detail = f"{self.vary}={self.values[index]}: {exact}"
        return replace(line, verdict="", ruling=NOT_APPLICABLE, caveat=exact, detail=detail) if exact else line

    def _exact(self, index: int) -> str:
        """Return that a shortcut predicts the exact posterior at one value of the parameter; "" if none does."""
        is_exact = self.kl_bits.baseline(SHORTCUT).value[index] <= EXACT_BITS
        return f"the {self.shortcuts[index].replace('_', ' ')} predictor is exact here" if is_exact else ""

    def plot(self) -> "Figure":
        from bayesgeom.generalization.sweep_drawing import sweep_figure
        from bayesgeom.results.captions import with_captions

        figure = sweep_figure(
            self.title,
            (self.vary, self.values),
            entropies=(self.exact_entropy_bits, self.model_entropy_bits),
            tokens=(self.exact_tokens, self.model_tokens),
            errors=(self.kl_bits, self.entropy_mae_bits),
        )
        last = f"{self.vary}={self.values[-1]}"
        errors = (("kl_bits", "KL"), ("entropy_mae_bits", "entropy error"))
        captions = (numbers(self._compared(metric, -1, f"{label} at {last}")) for metric, label in errors)
        return with_captions(figure, ("", "", *captions))

    def table(self) -> str:
        """Return one row per value, then the reasons why the model could not be run."""
        rows = [(self.vary, *_HEADER), *(self._row(index) for index in range(len(self.values)))]
        notes = [f"{self.vary}={v}: {note}" for v, note in zip(self.values, self.notes, strict=True) if note]
        return "\n".join([*aligned(rows), *([""] if notes else []), *notes])

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


SHORTCUT, NOT_APPLICABLE = "strongest shortcut", "not applicable"
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
