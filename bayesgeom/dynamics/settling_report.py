"""The settling report: when frame and precision settle over training, and whether curves fall again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.text import interval_text, number_text, percent_text
from bayesgeom.dynamics.order import ORDER_RULE
from bayesgeom.dynamics.settling import FALL_RULE, NEAR, THERE
from bayesgeom.dynamics.threshold_steps import NEARBY
from bayesgeom.results.estimate import Estimate, Quantity, Unit
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

RULES = ("stated thresholds", "nine tenths of the way")
TOGETHER = "both at the same step"  # a log2 ratio of 0
SPACING = "spacing of snapshots"  # source of the bounds of one training's log2 ratio
_RATIO = "log2(precision step / frame step)"
_OPEN = "not decided"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class SettlingReport(Report):
    """When frame and precision reach thresholds and settle in each training, their order, and the falls of every curve.

    - `frame_step`, `precision_step`: when each reaches its threshold (`dynamics.settling`); precision by the stated
      threshold and by the frame's rule. `dissociation`: log2 of their ratio, mean over trainings with Student's
      interval, widened by the spacing of snapshots. `dissociation_by_run`: the ratio in each training, with the bounds
      from the spacing. `verdicts`: the verdict by each rule alone.
    - `order`: the verdict on all scales and frame measures (`dynamics.order`). `precision_step_by_scale` and
      `frame_step_by_measure`: when each settled. `dissociation_by_scale`: log2 of their ratio, mean over trainings.
      `order_by_scale`: the verdict of each pair alone, scale by scale.
    - `fall`: largest fall of each curve after a maximum, between two `fall_steps`; `fall_share`: as a share of the
      curve's rise.
    """

    name: ClassVar[str] = "settling"
    ends: ClassVar[tuple[str, ...]] = ("start", "end")
    title: ClassVar[str] = "Does the frame settle before the precision?"
    about: ClassVar[str] = (
        "The claim is that the key frame (attention patterns, layer-0 keys) settles long before the answers are "
        "precise. The order depends on the scale of the error: KL, √KL and log KL cover nine tenths of their decrease "
        "at different steps. So all three scales are compared with every frame measure. "
        f"The stated thresholds, patterns within {percent_text(NEARBY)} of their first distance and KL at most "
        f"{NEAR:g} times the last one, are reported, too; they are not equally strict. A log2 ratio of 0 means that "
        "both are at the same step."
    )
    rule: ClassVar[str] = f"{ORDER_RULE} {FALL_RULE}"

    runs: tuple[str, ...]
    rules: tuple[str, ...]
    frame_step: Annotated[Float[np.ndarray, " run"], Unit("steps")]
    precision_step: Annotated[Float[np.ndarray, "rule run"], Unit("steps")]
    dissociation_by_run: Annotated[Estimate, Quantity("rule run", label=_RATIO)]
    dissociation: Annotated[Estimate, Quantity("rule", label=f"{_RATIO}, mean over trainings")]
    verdicts: Annotated[tuple[str, ...], "rule"]
    scales: tuple[str, ...]
    frame_measures: tuple[str, ...]
    precision_step_by_scale: Annotated[Float[np.ndarray, "run scale"], Unit("steps")]
    frame_step_by_measure: Annotated[Float[np.ndarray, "run frame_measure"], Unit("steps")]
    dissociation_by_scale: Annotated[Estimate, Quantity("scale frame_measure", label=f"{_RATIO}, mean over trainings")]
    order_by_scale: Annotated[tuple[str, ...], "scale frame_measure"]
    order: str
    curves: tuple[str, ...]
    fall: Annotated[Estimate, Quantity("curve", label="largest fall after a maximum")]
    fall_share: Annotated[Float[np.ndarray, " curve"], Unit("1")]
    fall_steps: Annotated[Float[np.ndarray, "end curve"], Unit("steps")]
    fall_verdicts: Annotated[tuple[str, ...], "curve"]
    n: int

    def conclusion(self) -> str:
        return f"whether the frame or the precision settles first is {self.order}" if self._is_open else self.order

    @property
    def _is_open(self) -> bool:
        """Whether the order of frame and precision is not decided."""
        return self.order.startswith(_OPEN)

    def headlines(self) -> Sequence[Headline]:
        falls = (
            replace(
                headline_of(self, "fall", at=(at,), label=f"{name}, largest fall{self._fall_text(at)}"),
                ruling=self.fall_verdicts[at],
            )
            for at, name in enumerate(self.curves)
            if np.isfinite(self.fall.value[at])
        )
        first = headline_of(self, "dissociation", at=(0,), label=f"{_RATIO}, at the stated thresholds")
        return (
            replace(first, ruling=_OPEN if self._is_open else "decided"),
            replace(
                headline_of(
                    self, "dissociation", at=(1,), label="the same by nine tenths of the way, on the scale KL alone"
                ),
                short_label=f"{_RATIO}, by nine tenths of the way on the scale KL alone",
            ),
            *falls,
        )

    def plot(self) -> "Figure":
        from bayesgeom.dynamics.drawing import Forest, forests_figure

        ratios = Forest(
            title="How much later precision settles, by scale",
            unit=_RATIO,
            labels=[f"{scale} / {measure}" for scale in self.scales for measure in self.frame_measures],
            estimate=self.dissociation_by_scale,
            otherwise=self.order,
            verdicts=self.order_by_scale,
        )
        falls = Forest(
            title="Largest fall of every curve",
            unit="fall (share of the curve's rise)",
            labels=self.curves,
            estimate=self._fall_shares(),
            otherwise="no curve was measured",
            baseline=THERE,
            verdicts=self.fall_verdicts,
        )
        return forests_figure(self.title, (ratios, falls))

    def table(self) -> str:
        """Return the steps at the stated thresholds in each training, then every scale and frame measure."""
        moments: list[tuple[str, ...]] = [
            ("training", "frame step", "precision step", "by the frame's rule", "log2 ratio", "spacing allows")
        ]
        for run, name in enumerate(self.runs):
            steps = (self.frame_step[run], *self.precision_step[:, run])
            own = self.dissociation_by_run[0, run]
            low, high = map(float, own.ends)
            moments.append(
                (
                    name,
                    *(f"{step:g}" for step in steps),
                    number_text(float(own)),
                    interval_text(low, high),
                )
            )
        return "\n".join([*aligned(moments), "", *self._orders()])

    def _orders(self) -> list[str]:
        """Return every scale with every frame measure, and the verdict on all of them.

        A verdict that all pairs share, as for too few trainings, is stated once.
        """
        rows: list[tuple[str, ...]] = [
            ("scale", "settled at step", "frame measure", "settled at step", "log2 ratio", "")
        ]
        is_shared = len(set(self.order_by_scale)) == 1 < len(self.order_by_scale)
        for at, verdict in enumerate(self.order_by_scale):
            one, other = divmod(at, len(self.frame_measures))
            own = self.dissociation_by_scale[one, other]
            moments = _steps(self.precision_step_by_scale[:, one]), _steps(self.frame_step_by_measure[:, other])
            rows.append(
                (
                    self.scales[one],
                    moments[0],
                    self.frame_measures[other],
                    moments[1],
                    own.text(),
                    verdict * (not is_shared),
                )
            )
        return [*aligned(rows), f"frame or precision first: {self.order}"]

    def _fall_shares(self) -> Estimate:
        """Return the falls as shares of their curve's rise, in which curves of all units can be compared."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = np.where(self.fall_share != 0, self.fall.value / self.fall_share, np.nan)
            ends = tuple(np.where(end == 0, 0.0, end / rise) for end in self.fall.ends)
        return replace(self.fall, value=self.fall_share, low=ends[0], high=ends[1])

    def _fall_text(self, at: int) -> str:
        """Return between which steps a curve falls and by how much, for a label; "" without a fall."""
        first, last = self.fall_steps[:, at]
        where = f" (from step {first:,.0f} to {last:,.0f}, {percent_text(self.fall_share[at])} of its rise)"
        return where if self.fall_share[at] > 0 else ""


def _steps(of: Float[np.ndarray, " run"]) -> str:
    """Return the common step of all trainings, or the range of steps."""
    return f"{of.min():g}" if of.min() == of.max() else f"{of.min():g} … {of.max():g}"
