"""The dynamics report: every diagnostic at the snapshots of one training or several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.text import counted, number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.dynamics.threshold_steps import NEARBY
from bayesgeom.report.columns import fitted
from bayesgeom.report.estimate import R2, Estimate, NonNegative, Quantity, Share, Unit
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of

UNIFORM, DIRECTIONS, SUBSPACES = "uniform predictor", "random directions", "random subspaces"
SHUFFLED = "shuffled entropies"
_FORMED = (  # metric, layer and label of what has formed by the last snapshot
    ("belief_r2", (), "R² of the belief, last layer,"),
    ("answer_shift_bits", (0,), "answer shift, layer 0,"),
    ("frame_ratio", (0,), "frame ratio, layer 0,"),
)
_IDENTITY = 1e-5  # relative difference from the ceiling; errors of float32 are below 1e-6
_MAX_LAYERS = 7  # of the answer shift, whose ceiling and baseline are drawn too


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class DynamicsReport(Report):
    """Every snapshot of a training is measured on the same sequences.

    Curves show the error of the answers and the distance of attention patterns from the last snapshot. They also show
    the geometry of keys and values, the R² of a linear read-out of the belief, and how much the answer depends on the
    key frame. Baselines are the uniform predictor, random directions and subspaces, and shuffled entropies; otherwise
    compare with the first snapshot, before training. Numbers at the last snapshot are those of the training in which
    they are lowest. At layer 0 the frame may hold all that differs between sequences; its swap then equals the ceiling,
    by construction.

    Fields: one row per training, one column per snapshot; all snapshots are measured on the same sequences.

    Intervals of one training are over sequences. `kl_bits_mean` is the mean over trainings, with Student's interval.

    - `pattern_distance_bits`: Jensen–Shannon divergence of attention rows at scored positions from the last snapshot.
    - `key_overlap`: mean |cosine| between hypothesis tokens' keys. `pc1_share`, `curve_share`: for the last layer's
      values (for its residual stream in models without values). `belief_r2`: held out, from the last layer's residual
      stream.
    - `answer_shift_bits`: effect on the answer of swapping the frame at each layer's input; its `ceiling` is that of
      swapping the whole residual stream. `frame_ratio`: overlap of the frame with the directions on which the answers
      depend, divided by chance level.
    """

    name: ClassVar[str] = "dynamics"
    title: ClassVar[str] = "Geometry over training"

    runs: tuple[str, ...]
    steps: tuple[str, ...]
    # KL has no `better`: the uniform predictor is a scale. `calibration` compares with the task's strongest baseline.
    kl_bits: Annotated[Estimate, NonNegative("run step", unit="bits", label="KL(exact ‖ model)")]
    kl_bits_mean: Annotated[Estimate, NonNegative("step", unit="bits", label="KL, mean over trainings")]
    entropy_mae_bits: Annotated[Estimate, NonNegative("run step", unit="bits", better="lower", label="entropy error")]
    pattern_distance_bits: Annotated[
        Estimate, Quantity("run step", unit="bits", label="distance of attention patterns from the last snapshot")
    ]
    pattern_distance_bits_by_layer: Annotated[Float[np.ndarray, "run step layer"], Unit("bits")]
    key_overlap: Annotated[Estimate, Share("run step layer", better="lower", label="mean |cos| between keys")]
    pc1_share: Annotated[Estimate, Share("run step", better="higher", label="PC1 share of the last values")]
    curve_share: Annotated[Estimate, R2("run step", better="higher", label="curve share of the last values")]
    belief_r2: Annotated[Estimate, R2("run step", better="higher", label="held-out R² of the belief, last layer")]
    answer_shift_bits: Annotated[
        Estimate, Quantity("run step layer", unit="bits", better="higher", label="answer shift of the frame swap")
    ]
    frame_ratio: Annotated[
        Estimate, NonNegative("run step layer", better="higher", label="frame ratio: overlap over chance level")
    ]
    n: int

    def headlines(self) -> Sequence[Headline]:
        last = len(self.steps) - 1
        if len(self.runs) == 1:
            label = "KL at the last snapshot"
            return (headline_of(self, "kl_bits", at=(0, last), label=label), *self._lowest(last))
        label = f"KL at the end, mean of {counted(len(self.runs), 'training')}"
        return (headline_of(self, "kl_bits_mean", at=(last,), label=label), *self._lowest(last))

    def _lowest(self, last: int) -> list[Headline]:
        """Return what formed by the last snapshot, in the training in which it is lowest; unknown numbers are left out.

        The frame is that of layer 0: deeper layers receive what it has written. A swap there that equals the ceiling
        is an identity, whatever the training: it has no verdict of its own.
        """
        found, n_runs = list[Headline](), len(self.runs)
        of = f", lowest of {counted(n_runs, 'training')}" if n_runs > 1 else ""
        for metric, layer, label in _FORMED:
            trainings = self.estimate(metric)[(slice(None), last, *layer)]
            if np.isfinite(trainings.value).any():
                (run,), own = trainings.extreme("smallest")
                at, named = (run, last, *layer), f"{label} at the last snapshot{of}"
                line = headline_of(self, metric, at, named, own=own, chosen_of=n_runs)
                ceiling = float(self.estimate(metric).ceiling[at])
                is_identity = math.isclose(line.value, ceiling, rel_tol=_IDENTITY)
                found.append(replace(line, verdict=str(Verdict.BY_CONSTRUCTION)) if is_identity else line)
        return found

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.curves import Curve
        from bayesgeom.dynamics.drawing import by_layer, by_run, curves_panel, levels_of, of_baselines
        from bayesgeom.report.theme import EXACT

        distances, shift = self.pattern_distance_bits, self.answer_shift_bits
        panel = partial(curves_panel, steps=self.steps)
        highest = Curve(name="ceiling, layer 0", values=shift.ceiling[..., 0].mean(axis=0), color=EXACT)
        return (
            panel(
                "Error of the answers",
                curves=by_run(self.runs, self.kl_bits),
                unit="KL (bits, log scale)",
                levels=levels_of(self.kl_bits),
                is_log=True,
            ),
            panel(
                "Patterns: distance from the last",
                curves=by_run(self.runs, distances, distances.value[:, :1]),
                unit="share of the first",
                levels=(("stable: a tenth", NEARBY), ("start", 1.0)),
            ),
            panel(
                "Belief read-out, last layer",
                curves=by_run(self.runs, self.belief_r2),
                unit="held-out R²",
                levels=of_baselines("belief R²", self.belief_r2.baselines),
            ),
            panel(
                "Swapping the frame, by layer",
                curves=[highest, *by_layer(shift.value)[:_MAX_LAYERS]],
                unit="answer shift (bits)",
                levels=(*of_baselines("layer 0", shift[..., 0].compared), ("no shift", 0.0)),
            ),
            *self._folded_panels(),
        )

    def _folded_panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.curves import Curve
        from bayesgeom.dynamics.drawing import by_layer, by_run, curves_panel, levels_of, of_baselines
        from bayesgeom.report.theme import QUANTITIES

        folded = partial(curves_panel, steps=self.steps, is_folded=True)
        shape = [
            Curve(name="PC1 share", values=self.pc1_share.value.mean(axis=0), color=QUANTITIES[0]),
            Curve(name="curve share", values=self.curve_share.value.mean(axis=0), color=QUANTITIES[1]),
        ]
        return (
            folded(
                "Error of their entropy",
                curves=by_run(self.runs, self.entropy_mae_bits),
                unit="entropy error (bits, log scale)",
                is_log=True,
            ),
            folded(
                "Patterns: distance from the last, by layer",
                curves=by_layer(self.pattern_distance_bits_by_layer),
                unit="Jensen–Shannon (bits)",
            ),
            folded(
                "Key overlap, by layer",
                curves=by_layer(self.key_overlap.value),
                unit="mean |cosine|",
                levels=levels_of(self.key_overlap),
            ),
            folded(
                "Shape of the last values",
                curves=shape,
                unit="share of variance",
                levels=of_baselines("curve share", self.curve_share.baselines),
            ),
            folded(
                "Frame ratio, by layer",
                curves=by_layer(self.frame_ratio.value),
                unit="over chance",
                levels=levels_of(self.frame_ratio),
            ),
        )

    def table(self) -> str:
        """Return means over trainings by snapshot, and the chance levels."""
        rows: list[tuple[str, ...]] = [
            (
                "step",
                "KL (bits)",
                "entropy error (bits)",
                "pattern distance (bits)",
                "key overlap",
                "PC1 share",
                "belief R²",
                "answer shift (bits)",
                "frame ratio",
            )
        ]
        columns = (
            self.kl_bits.value,
            self.entropy_mae_bits.value,
            self.pattern_distance_bits.value,
            self.key_overlap.value[..., 0],
            self.pc1_share.value,
            self.belief_r2.value,
            self.answer_shift_bits.value[..., 0],
            self.frame_ratio.value[..., 0],
        )
        for at, step in enumerate(self.steps):
            rows.append((step, *(number_text(column[:, at].mean()) for column in columns)))
        return "\n".join([*fitted(rows), self._chance()])

    def _chance(self) -> str:
        """Return the chance level of each column at the last snapshot; those by layer are of layer 0."""
        last = (
            ("KL", self.kl_bits[:, -1]),
            ("key overlap", self.key_overlap[:, -1, 0]),
            ("belief R²", self.belief_r2[:, -1]),
            ("answer shift", self.answer_shift_bits[:, -1, 0]),
            ("frame ratio", self.frame_ratio[:, -1, 0]),
        )
        known = [
            f"{what} {number_text(level.value.mean())} ({level.name})" for what, own in last for level in own.compared
        ]
        return f"chance: {', '.join(known)}"
