"""The dynamics report: every diagnostic at the snapshots of one training or several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.text import number_text
from bayesgeom.dynamics.threshold_steps import NEARBY
from bayesgeom.results.estimate import AtMostOne, Estimate, NonNegative, Quantity, Share, Unit
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned, counted
from bayesgeom.stats.extremes import remark_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from bayesgeom.dynamics.drawing import Curves

UNIFORM, DIRECTIONS, SUBSPACES = "uniform predictor", "random directions", "random subspaces"
SHUFFLED = "shuffled entropies"
_SHOWN = 4  # panels that answer the title's question; pages fold the others
_FORMED = (  # metric, layer and label of what has formed by the last snapshot
    ("belief_r2", (), "held-out R² of the belief, last layer,"),
    ("answer_shift_bits", (0,), "answer shift of the frame swap, layer 0,"),
    ("frame_ratio", (0,), "frame ratio, layer 0,"),
)
_BY_CONSTRUCTION = "by construction"
_IDENTITY = 1e-5  # relative difference from the ceiling; errors of float32 are below 1e-6
_MAX_LAYERS = 7  # of the answer shift, whose ceiling and baseline are drawn too


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class DynamicsReport(Report):
    """One row per training, one column per snapshot; all snapshots are measured on the same sequences.

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
    title: ClassVar[str] = "How the geometry forms over training"
    about: ClassVar[str] = (
        "Every snapshot of a training is measured on the same sequences. Curves show the error of the answers and the "
        "distance of attention patterns from the last snapshot. They also show the geometry of keys and values, the R² "
        "of a linear read-out of the belief, and how much the answer depends on the key frame. Baselines are the "
        "uniform predictor, random directions and subspaces, and shuffled entropies; otherwise compare with the first "
        "snapshot, before training."
    )

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
    curve_share: Annotated[Estimate, AtMostOne("run step", better="higher", label="curve share of the last values")]
    belief_r2: Annotated[
        Estimate, AtMostOne("run step", better="higher", label="held-out R² of the belief, last layer")
    ]
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
            label = "KL at the last snapshot of one training (interval over sequences)"
            return (headline_of(self, "kl_bits", at=(0, last), label=label), *self._lowest(last))
        label = f"KL at the last snapshot, mean of {counted(len(self.runs), 'training')}"
        return (headline_of(self, "kl_bits_mean", at=(last,), label=label), *self._lowest(last))

    def _lowest(self, last: int) -> list[Headline]:
        """Return what formed by the last snapshot, in the training in which it is lowest; unknown numbers are left out.

        The frame is that of layer 0: deeper layers receive what it has written. A swap there that equals the ceiling
        is an identity, whatever the training: it has no verdict of its own.
        """
        found = list[Headline]()
        of = f", lowest of {counted(len(self.runs), 'training')}" if len(self.runs) > 1 else ""
        for metric, layer, label in _FORMED:
            trainings = self.estimate(metric)[(slice(None), last, *layer)]
            if np.isfinite(trainings.value).any():
                (run,), own = trainings.extreme("smallest")
                remark, at = remark_of(float(own.ends[0]), len(self.runs)), (run, last, *layer)
                line = headline_of(self, metric, at, f"{label} at the last snapshot{of}{remark}", own=own)
                found.append(self._ruled(line, at) if metric == "answer_shift_bits" else line)
        return found

    def _ruled(self, line: Headline, at: tuple[int, ...]) -> Headline:
        """Return the answer shift without a verdict if the swap equals that of the whole residual stream."""
        ceiling = float(self.answer_shift_bits.ceiling[at])
        if not math.isclose(line.value, ceiling, rel_tol=_IDENTITY):
            return line
        detail = "At layer 0 the frame holds all that differs between sequences, so its swap equals the ceiling."
        return replace(line, verdict="", ruling=_BY_CONSTRUCTION, detail=detail)

    def plot(self) -> "Figure":
        from bayesgeom.dynamics.drawing import Curves, by_run, curves_figure, levels_of, of_baselines, stable_from
        from bayesgeom.results.captions import with_captions

        patterns_of = self.pattern_distance_bits.value
        at_layers = self.pattern_distance_bits_by_layer.mean(axis=0).T
        settle = ("", stable_from("patterns", self.steps, self.runs, patterns_of))
        drawn = (
            Curves(
                title="Error of the answers",
                unit="KL (bits, log scale)",
                curves=by_run(self.runs, self.kl_bits),
                levels=levels_of(self.kl_bits),
                is_log=True,
            ),
            Curves(
                title="Patterns: distance from the last, share of the first",
                unit="share of the first",
                curves=by_run(self.runs, self.pattern_distance_bits, patterns_of[:, :1]),
                levels=(("stable: a tenth", NEARBY), ("start", 1.0)),
            ),
            Curves(
                title="Belief read-out, last layer",
                unit="held-out R²",
                curves=by_run(self.runs, self.belief_r2),
                levels=of_baselines("belief R²", self.belief_r2.baselines),
            ),
            self._swapped(),
            *self._further(),
        )
        layers = [f"layer {layer}" for layer in range(len(at_layers))]
        by_layers = stable_from("patterns", self.steps, layers, at_layers)
        figure = curves_figure(self.title, self.steps, drawn)
        return with_captions(figure, (*settle, "", "", "", by_layers), n_shown=_SHOWN)

    def _further(self) -> "tuple[Curves, ...]":
        """Return the panels that pages show on request."""
        from bayesgeom.charts.curves import Curve
        from bayesgeom.dynamics.drawing import Curves, by_layer, by_run, levels_of, of_baselines
        from bayesgeom.results.theme import QUANTITIES

        shape = [
            Curve(name="PC1 share", values=self.pc1_share.value.mean(axis=0), color=QUANTITIES[0]),
            Curve(name="curve share", values=self.curve_share.value.mean(axis=0), color=QUANTITIES[1]),
        ]
        errors = by_run(self.runs, self.entropy_mae_bits)
        return (
            Curves(title="Error of their entropy", unit="entropy error (bits, log scale)", curves=errors, is_log=True),
            Curves(
                title="Patterns: distance from the last, by layer",
                unit="Jensen–Shannon (bits)",
                curves=by_layer(self.pattern_distance_bits_by_layer),
            ),
            Curves(
                title="Key overlap, by layer",
                unit="mean |cosine|",
                curves=by_layer(self.key_overlap.value),
                levels=levels_of(self.key_overlap),
            ),
            Curves(
                title="Shape of the last values",
                unit="share of variance",
                curves=shape,
                levels=of_baselines("curve share", self.curve_share.baselines),
            ),
            Curves(
                title="Frame ratio, by layer",
                unit="over chance",
                curves=by_layer(self.frame_ratio.value),
                levels=levels_of(self.frame_ratio),
            ),
        )

    def _swapped(self) -> "Curves":
        """Return the panel of the answer shift by layer, with its ceiling."""
        from bayesgeom.charts.curves import Curve
        from bayesgeom.dynamics.drawing import Curves, by_layer, of_baselines
        from bayesgeom.results.theme import EXACT

        shift, highest = self.answer_shift_bits, self.answer_shift_bits.ceiling[..., 0].mean(axis=0)
        ceiling = Curve(name="ceiling, layer 0", values=highest, color=EXACT)
        return Curves(
            title="Swapping the frame, by layer",
            unit="answer shift (bits)",
            curves=[ceiling, *by_layer(shift.value)[:_MAX_LAYERS]],
            levels=(*of_baselines("layer 0", shift[..., 0].compared), ("no shift", 0.0)),
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
        return "\n".join([*aligned(rows), self._chance()])

    def _chance(self) -> str:
        """Return the chance level of each column at the last snapshot."""
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
        return (
            f"chance: {', '.join(known)}; of the other columns, the first snapshot. "
            "Key overlap, answer shift and frame ratio are those of layer 0."
        )
