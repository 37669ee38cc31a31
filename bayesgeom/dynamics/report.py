"""The dynamics report: every diagnostic over the snapshots of one training or several, and what settles when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.dynamics.order import ORDER_RULE
from bayesgeom.dynamics.settling import FALL_RULE, NEAR, SETTLED
from bayesgeom.results.cells import interval_cell
from bayesgeom.results.report import Headline, Report, aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@final
@dataclass(frozen=True, kw_only=True)
class DynamicsReport(Report):
    """One row per training, one column per snapshot; all snapshots saw the same trials.

    Per training, intervals are over sequences; `…_mean` is over trainings, with Student's interval, NaN for one alone.

    - `pattern_distance_bits`: Jensen–Shannon divergence of attention rows at scored positions from the last snapshot.
    - `key_overlap`: mean |cosine| between hypothesis tokens' keys. `pc1_share`, `curve_share`: of the last layer's
      values (of the stream where there are none). `belief_r2`: of the last layer's stream, held out.
    - `redirect_bits`: what swapping the frame at each layer's input does to the answer; `…_ceiling` swaps all of it,
      `…_null` random subspaces of that rank. `frame_ratio`: overlap of the frame with the directions that the answers
      depend on, over chance.
    - `frame_step`, `precision_step`, `precision_step_by_share`: first snapshots that settle, as
      `over_training.settling` says; `dissociation…`: log2 of their ratio, `…_least` and `…_most` what the spacing of
      snapshots allows.
    - `order`: the verdict on all scales and frame measures (`over_training.order`); `precision_step_by_scale` and
      `frame_step_by_measure`: when each had settled; `dissociation_by_scale`: log2 of their ratio, mean over trainings;
      `order_by_scale`: what each pair alone would say, scale by scale.
    - `fall…`: per curve the largest fall after a maximum, between which steps, and as a share of the curve's rise.
    """

    name: ClassVar[str] = "dynamics"
    title: ClassVar[str] = "How the geometry forms: does the frame settle before the precision?"
    about: ClassVar[str] = (
        "Every snapshot of a training is measured on the same sequences. The claim is that the key frame (attention "
        "patterns, layer-0 keys) settles long before the answers are precise. Which of the two is first depends on "
        "the scale of the error: KL, √KL and log KL have covered nine tenths of their way at different steps. So "
        f"all three are timed, each against every frame measure, by one rule: {ORDER_RULE}. The stated thresholds, "
        f"patterns within {SETTLED:.0%} of their first distance and KL at most {NEAR:g} times the last one, are "
        "reported too; they are not alike. The baseline is the first snapshot, where nothing was learned, and 0 for "
        f"the dissociation. Of falls: {FALL_RULE}."
    )

    runs: tuple[str, ...]
    steps: tuple[str, ...]
    curves: tuple[str, ...]
    kl_bits: Float[np.ndarray, "run step"]
    kl_bits_lo: Float[np.ndarray, "run step"]
    kl_bits_hi: Float[np.ndarray, "run step"]
    kl_bits_mean: Float[np.ndarray, " step"]
    kl_bits_mean_lo: Float[np.ndarray, " step"]
    kl_bits_mean_hi: Float[np.ndarray, " step"]
    entropy_mae_bits: Float[np.ndarray, "run step"]
    entropy_mae_bits_lo: Float[np.ndarray, "run step"]
    entropy_mae_bits_hi: Float[np.ndarray, "run step"]
    entropy_mae_bits_mean: Float[np.ndarray, " step"]
    entropy_mae_bits_mean_lo: Float[np.ndarray, " step"]
    entropy_mae_bits_mean_hi: Float[np.ndarray, " step"]
    pattern_distance_bits: Float[np.ndarray, "run step"]
    pattern_distance_bits_lo: Float[np.ndarray, "run step"]
    pattern_distance_bits_hi: Float[np.ndarray, "run step"]
    pattern_distance_bits_by_layer: Float[np.ndarray, "run step layer"]
    key_overlap: Float[np.ndarray, "run step layer"]
    key_overlap_lo: Float[np.ndarray, "run step layer"]
    key_overlap_hi: Float[np.ndarray, "run step layer"]
    pc1_share: Float[np.ndarray, "run step"]
    pc1_share_lo: Float[np.ndarray, "run step"]
    pc1_share_hi: Float[np.ndarray, "run step"]
    curve_share: Float[np.ndarray, "run step"]
    curve_share_null: Float[np.ndarray, "run step"]
    belief_r2: Float[np.ndarray, "run step"]
    belief_r2_lo: Float[np.ndarray, "run step"]
    belief_r2_hi: Float[np.ndarray, "run step"]
    belief_r2_null: Float[np.ndarray, "run step"]
    redirect_bits: Float[np.ndarray, "run step layer"]
    redirect_bits_lo: Float[np.ndarray, "run step layer"]
    redirect_bits_hi: Float[np.ndarray, "run step layer"]
    redirect_bits_null: Float[np.ndarray, "run step layer"]
    redirect_ceiling_bits: Float[np.ndarray, "run step layer"]
    frame_ratio: Float[np.ndarray, "run step layer"]
    frame_step: Float[np.ndarray, " run"]
    precision_step: Float[np.ndarray, " run"]
    precision_step_by_share: Float[np.ndarray, " run"]
    dissociation_by_run: Float[np.ndarray, " run"]
    dissociation_by_run_least: Float[np.ndarray, " run"]
    dissociation_by_run_most: Float[np.ndarray, " run"]
    dissociation_by_share_by_run: Float[np.ndarray, " run"]
    scales: tuple[str, ...]
    frame_measures: tuple[str, ...]
    precision_step_by_scale: Float[np.ndarray, "run scale"]
    frame_step_by_measure: Float[np.ndarray, "run frame_measure"]
    dissociation_by_scale: Float[np.ndarray, "scale frame_measure"]
    dissociation_by_scale_lo: Float[np.ndarray, "scale frame_measure"]
    dissociation_by_scale_hi: Float[np.ndarray, "scale frame_measure"]
    order_by_scale: tuple[str, ...]
    order: str
    fall: Float[np.ndarray, " curve"]
    fall_lo: Float[np.ndarray, " curve"]
    fall_hi: Float[np.ndarray, " curve"]
    fall_share: Float[np.ndarray, " curve"]
    fall_start: Float[np.ndarray, " curve"]
    fall_end: Float[np.ndarray, " curve"]
    fall_verdicts: tuple[str, ...]
    dissociation: float
    dissociation_by_share: float
    verdict: str
    verdict_by_share: str
    key_overlap_chance: float
    kl_bits_uniform: float
    missing: Mapping[str, str]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def conclusion(self) -> str:
        return self.verdict

    def headlines(self) -> Sequence[Headline]:
        kl = self.entry("kl_bits_mean", (len(self.steps) - 1,), "KL at the last snapshot", unit="bits")
        falls = (
            self.entry("fall", (at,), f"{name}, largest fall: {self._fall_text(at)}")
            for at, name in enumerate(self.curves)
            if np.isfinite(self.fall[at])
        )
        return (
            self.scalar(
                "dissociation", f"frame or precision first: {self.order}; log2 ratio at the stated thresholds",
                null_label="together",
            ),
            self.scalar(
                "dissociation_by_share", "the same by nine tenths of the way, on the scale KL alone",
                null_label="together",
            ),
            kl,
            *falls,
        )  # fmt: skip

    def figure(self) -> "Figure":
        from bayesgeom.dynamics.drawing import dynamics_figure

        return dynamics_figure(self.title, vars(self))

    def table(self) -> str:
        """What the command line prints: means over trainings by snapshot, then when each training settled."""
        rows: list[tuple[str, ...]] = [
            (
                "step", "KL (bits)", "entropy error (bits)", "pattern distance (bits)", "key overlap", "PC1 share",
                "belief R²", "redirect (bits)", "frame ratio",
            )
        ]  # fmt: skip
        for at, step in enumerate(self.steps):
            columns = [self.kl_bits, self.entropy_mae_bits, self.pattern_distance_bits, self.key_overlap[..., 0]]
            columns += [self.pc1_share, self.belief_r2, self.redirect_bits[..., 0], self.frame_ratio[..., 0]]
            rows.append((step, *(f"{column[:, at].mean():.4g}" for column in columns)))
        moments: list[tuple[str, ...]] = [
            ("training", "frame step", "precision step", "by the frame's rule", "log2 ratio", "spacing allows")
        ]
        for run, name in enumerate(self.runs):
            steps = (self.frame_step[run], self.precision_step[run], self.precision_step_by_share[run])
            reach = f"{self.dissociation_by_run_least[run]:.2f} … {self.dissociation_by_run_most[run]:.2f}"
            moments.append((name, *(f"{step:g}" for step in steps), f"{self.dissociation_by_run[run]:.2f}", reach))
        return "\n".join([*aligned(rows), self._chance(), "", *aligned(moments), "", *self._orders()])

    def _orders(self) -> list[str]:
        """Every scale against every frame measure, and the verdict on all of them."""
        rows: list[tuple[str, ...]] = [
            ("scale", "settled at step", "frame measure", "settled at step", "log2 ratio", "")
        ]
        for at, said in enumerate(self.order_by_scale):
            one, other = divmod(at, len(self.frame_measures))
            lo, hi = (float(end[one, other]) for end in self._order_ends)
            rows.append(
                (
                    self.scales[one], _steps(self.precision_step_by_scale[:, one]), self.frame_measures[other],
                    _steps(self.frame_step_by_measure[:, other]),
                    f"{self.dissociation_by_scale[one, other]:.2f} [{interval_cell(lo, hi)}]", said,
                )
            )  # fmt: skip
        return [*aligned(rows), f"frame or precision first: {self.order}"]

    @property
    def _order_ends(self) -> tuple[np.ndarray, np.ndarray]:
        return self.dissociation_by_scale_lo, self.dissociation_by_scale_hi

    def _chance(self) -> str:
        """The level of each column without the structure, at the last snapshot."""
        levels = {
            "KL {} (uniform predictor)": self.kl_bits_uniform,
            "key overlap {} (random directions)": self.key_overlap_chance,
            "belief R² {} (shuffled within position)": float(self.belief_r2_null[:, -1].mean()),
            "redirect {} (random subspaces)": float(self.redirect_bits_null[:, -1, 0].mean()),
            "frame ratio {} (random directions)": 1.0,
        }
        known = [said.format(f"{level:.4g}") for said, level in levels.items() if np.isfinite(level)]
        return (
            f"chance: {', '.join(known)}; of the other columns, the first snapshot. "
            "Key overlap, redirect and frame ratio are those of layer 0."
        )

    def _fall_text(self, at: int) -> str:
        where = f"from step {self.fall_start[at]:g} to {self.fall_end[at]:g}, {self.fall_share[at]:.0%} of its rise"
        return f"{self.fall_verdicts[at]} ({where})" if self.fall_share[at] > 0 else self.fall_verdicts[at]


def _steps(of: Float[np.ndarray, " run"]) -> str:
    """Steps over trainings: one where they agree, else the range."""
    return f"{of.min():g}" if of.min() == of.max() else f"{of.min():g} … {of.max():g}"
