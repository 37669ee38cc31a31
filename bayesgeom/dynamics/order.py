"""Does the key frame settle before the precision? The order on several scales and for several frame measures.

One rule decides when a curve has settled: at the first snapshot from which on at most a tenth of the distance between
first and last value remains. KL is measured on three scales, because KL, √KL and log KL cover nine tenths of their
distance at different steps of the same training. An order that depends on scale or measure is "not decided".

The swap of the key frame at layer 0 is not a frame measure: if donor and recipient differ only inside the frame, it
exchanges the whole activation, and so follows the answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float

from bayesgeom.dynamics.rows import over_trainings
from bayesgeom.dynamics.settling import MIN_SEEDS, Dissociation, dissociation
from bayesgeom.dynamics.threshold_steps import Steps, ThresholdStep, settled
from bayesgeom.results.tables import counted

FRAME, PRECISION = "the frame", "precision"
MIN_MEASURES = 2
SCALES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "KL": lambda kl_bits: kl_bits,
    "√KL": np.sqrt,
    "log KL": np.log,
}
ORDER_RULE = (
    f"The order needs {MIN_SEEDS} trainings or more. It is decided if it is the same on the scales {', '.join(SCALES)} "
    f"and for at least {MIN_MEASURES} frame measures, with intervals that exclude 0. Otherwise it is not decided."
)


@final
@dataclass(frozen=True, kw_only=True)
class Order:
    """Settling steps of each scale of KL and each frame measure, per training, and their comparison."""

    frame_measures: tuple[str, ...]
    precision_steps: Float[np.ndarray, "run scale"]
    frame_steps: Float[np.ndarray, "run frame_measure"]
    pairs: tuple[tuple[Dissociation, ...], ...]  # by scale, then by measure

    @property
    def verdicts(self) -> tuple[tuple[str, ...], ...]:
        """The verdict of each pair alone."""
        return tuple(tuple(own.verdict(first=FRAME, second=PRECISION) for own in row) for row in self.pairs)

    @property
    def verdict(self) -> str:
        """The verdict on which settles first on all scales and measures, or "not decided" with the reason."""
        n_runs, n_measures = len(self.precision_steps), len(self.frame_measures)
        if n_measures < MIN_MEASURES:
            return f"not decided: {counted(n_measures, 'frame measure')}, and at least {MIN_MEASURES} are needed"
        if n_runs < MIN_SEEDS:
            return f"not decided: {counted(n_runs, 'training')}, and at least {MIN_SEEDS} are needed"
        found = {
            (scale, measure): outcome
            for scale, row in zip(SCALES, self.verdicts, strict=True)
            for measure, outcome in zip(self.frame_measures, row, strict=True)
        }
        first = {who: [at for at, outcome in found.items() if outcome.startswith(f"{who} is first")] for who in _BOTH}
        for who in _BOTH:
            if len(first[who]) == len(found):
                return f"{who} is first on all scales and measures"
        counts = f"the frame first in {len(first[FRAME])}, precision first in {len(first[PRECISION])}"
        reason = "the order changes with the scale or the measure" if all(first.values()) else "some pairs are open"
        return f"not decided: {reason} ({counts} of {len(found)} pairs)"

    def fields(self) -> dict[str, Any]:
        """Return the fields of the report on what settles first: the order of the steps from `settled`."""
        shape = (len(SCALES), len(self.frame_measures))

        def table(values: list[list[float]]) -> Float[np.ndarray, "scale frame_measure"]:
            return np.array(values, dtype=float).reshape(shape)

        ends = (
            table([[own.lo for own in row] for row in self.pairs]),
            table([[own.hi for own in row] for row in self.pairs]),
        )
        return {
            "scales": tuple(SCALES),
            "frame_measures": self.frame_measures,
            "precision_step_by_scale": self.precision_steps,
            "frame_step_by_measure": self.frame_steps,
            "dissociation_by_scale": over_trainings(
                table([[own.mean for own in row] for row in self.pairs]),
                ends,
                n=len(self.precision_steps),
            ),
            "order_by_scale": tuple(outcome for row in self.verdicts for outcome in row),
            "order": self.verdict,
        }


_BOTH = (FRAME, PRECISION)


def order_of(steps: Steps, curves: Mapping[str, np.ndarray]) -> Order:
    """Compute when every scale and frame measure settles in some trainings.

    Args:
        steps: Training step of every snapshot, the same in all trainings.
        curves: `kl_bits`, `pattern_distance_bits`, `curve_share` by run and step, `key_overlap` by run, step and layer,
            as a dynamics report stores them; NaN where an architecture lacks one.

    Returns:
        Settling steps, log2 ratios with intervals, and the verdict.
    """
    kl = np.maximum(curves["kl_bits"], np.finfo(float).tiny)
    measures = {
        "attention patterns": curves["pattern_distance_bits"],
        "key overlap, layer 0": curves["key_overlap"][..., 0],
        "manifold curve fit": curves["curve_share"],
    }
    measures = {name: own for name, own in measures.items() if np.isfinite(own).all()}
    precise = [[settled(steps, own) for own in scale(kl)] for scale in SCALES.values()]
    framed = [[settled(steps, own) for own in values] for values in measures.values()]
    return Order(
        frame_measures=tuple(measures),
        precision_steps=_steps_of(precise, len(kl)),
        frame_steps=_steps_of(framed, len(kl)),
        pairs=tuple(tuple(dissociation(later, earlier) for earlier in framed) for later in precise),
    )


def _steps_of(moments: Sequence[Sequence[ThresholdStep]], n_runs: int) -> Float[np.ndarray, "run what"]:
    return np.array([[own.step for own in row] for row in moments], dtype=float).reshape(len(moments), n_runs).T
