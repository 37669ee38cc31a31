"""The report of the sticky-chain experiment: final losses, paired differences and speeds of every arm, with intervals.

Intervals are Student's over seeds, paired wherever arms are compared: every arm of a seed has the same start and the
same sequences. Losses are computed in nats and given in bits; `final_loss_nats` is there for comparison with the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.experiments.em.arms import ARMS, BASELINE, EM_LIKE, Curves, steps_to
from bayesgeom.experiments.em.chain import StickyChain
from bayesgeom.results.cells import interval_cell
from bayesgeom.results.report import Headline, Report, aligned
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.stats.information import NATS_PER_BIT

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_BASE, _EM = ([arm.name for arm in ARMS].index(name) for name in (BASELINE, EM_LIKE))


@final
@dataclass(frozen=True, kw_only=True)
class EMReport(Report):
    """Per chain and arm: loss on the sequence trained on and on a held-out one, and how much sooner than small steps.

    - `floor_bits`: entropy rate of the chain; `filter_bits`, what the exact filter scores on the two sequences.
    - `speedup`: steps that the baseline took, over the steps to its final loss on the same sequence, seed by seed;
      geometric mean over seeds. NaN where a seed never got there; `reached` counts those that did.
    - `speedup_authors`: the same to the *mean* final loss of the baseline, as in the authors' code.
    - `em_margin_bits`: final loss of the arm minus that of the EM-like arm, paired. Above 0, EM-like is better.
    """

    name: ClassVar[str] = "em_experiment"
    counts: ClassVar[str] = "seed"
    title: ClassVar[str] = "Sticky chain: EM-like schedule against its controls"
    about: ClassVar[str] = (
        "One attention head learns to name the next symbol of a Markov chain. The EM-like arm gives the value matrix a "
        "tenfold step and leaves the rest at 0.01. It must not only beat 0.01 everywhere, which takes smaller steps in "
        "all, but the controls: 0.1 everywhere, 0.1 on the output matrix alone, 0.1 on the routing alone. The grey "
        "lines are the entropy rate of the chain, which no predictor beats on fresh data; on the sequence trained on, "
        "a loss below it is memory. Bands and whiskers are Student's 95 % intervals over seeds."
    )

    chains: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: tuple[str, ...]
    self_probability: Float[np.ndarray, " chain"]
    floor_bits: Float[np.ndarray, " chain"]
    floor_nats: Float[np.ndarray, " chain"]
    filter_bits: Float[np.ndarray, " chain"]
    held_out_filter_bits: Float[np.ndarray, " chain"]
    final_loss_nats: Float[np.ndarray, "chain arm"]
    final_loss_bits: Float[np.ndarray, "chain arm"]
    final_loss_bits_lo: Float[np.ndarray, "chain arm"]
    final_loss_bits_hi: Float[np.ndarray, "chain arm"]
    held_out_bits: Float[np.ndarray, "chain arm"]
    held_out_bits_lo: Float[np.ndarray, "chain arm"]
    held_out_bits_hi: Float[np.ndarray, "chain arm"]
    best_held_out_bits: Float[np.ndarray, "chain arm"]
    best_held_out_bits_lo: Float[np.ndarray, "chain arm"]
    best_held_out_bits_hi: Float[np.ndarray, "chain arm"]
    entropy_bits: Float[np.ndarray, "chain arm"]
    accuracy: Float[np.ndarray, "chain arm"]
    held_out_accuracy: Float[np.ndarray, "chain arm"]
    em_margin_bits: Float[np.ndarray, "chain arm"]
    em_margin_bits_lo: Float[np.ndarray, "chain arm"]
    em_margin_bits_hi: Float[np.ndarray, "chain arm"]
    em_held_out_margin_bits: Float[np.ndarray, "chain arm"]
    em_held_out_margin_bits_lo: Float[np.ndarray, "chain arm"]
    em_held_out_margin_bits_hi: Float[np.ndarray, "chain arm"]
    speedup: Float[np.ndarray, "chain arm"]
    speedup_lo: Float[np.ndarray, "chain arm"]
    speedup_hi: Float[np.ndarray, "chain arm"]
    reached: Int[np.ndarray, "chain arm"]
    speedup_authors: Float[np.ndarray, "chain arm"]
    speedup_authors_lo: Float[np.ndarray, "chain arm"]
    speedup_authors_hi: Float[np.ndarray, "chain arm"]
    held_out_speedup: Float[np.ndarray, "chain arm"]
    held_out_speedup_lo: Float[np.ndarray, "chain arm"]
    held_out_speedup_hi: Float[np.ndarray, "chain arm"]
    held_out_reached: Int[np.ndarray, "chain arm"]
    recorded_steps: Int[np.ndarray, " record"]
    loss_bits_by_step: Float[np.ndarray, "chain arm seed record"]
    held_out_bits_by_step: Float[np.ndarray, "chain arm seed record"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        controls = [i for i in range(len(self.arms)) if i not in (_BASE, _EM)]
        return (
            self._line("speedup", _EM, "sooner at SGD's final loss", 1.0),
            *(self._line("speedup", i, "sooner at SGD's final loss", 1.0) for i in controls),
            *(self._line("em_margin_bits", i, "final loss minus EM-like's", 0.0) for i in controls),
            *(self._line("em_held_out_margin_bits", i, "held-out loss minus EM-like's", 0.0) for i in controls),
        )

    def _line(self, metric: str, arm: int, label: str, null: float) -> Headline:
        lo, hi = (float(vars(self)[f"{metric}_{end}"][0, arm]) for end in ("lo", "hi"))
        times = "times" if metric == "speedup" else "bits"
        return Headline(
            metric=metric, label=f"{self.arms[arm]}: {label}", value=float(vars(self)[metric][0, arm]), unit=times,
            lo=lo, hi=hi, null=null, null_label="no difference",
        )  # fmt: skip

    def figure(self) -> "Figure":
        from bayesgeom.experiments.em.drawing import ChainCurves, em_figure

        found = (self.chains, self.loss_bits_by_step, self.held_out_bits_by_step, self.floor_bits)
        chains = [
            ChainCurves(chain=chain, trained_on=trained, held_out=held, floor=float(floor))
            for chain, trained, held, floor in zip(*found, strict=True)
        ]
        speeds = (
            (self.speedup[0], self.speedup_lo[0], self.speedup_hi[0]),
            (self.held_out_speedup[0], self.held_out_speedup_lo[0], self.held_out_speedup_hi[0]),
        )
        return em_figure(self.title, self.arms, self.recorded_steps, chains, speeds)

    def table(self) -> str:
        """What the command line prints, one block per chain."""
        blocks = [self._block(i) for i in range(len(self.chains))]
        return "\n\n".join(blocks)

    def _block(self, chain: int) -> str:
        head = ("arm", "loss nats", "loss bits", "95 % interval", "held out bits", "sooner (times)", "reached by")
        rows: list[tuple[str, ...]] = [(*head, "held out: sooner (times)", "reached by")]
        rows += [self._row(chain, arm) for arm in range(len(self.arms))]
        floor = (
            f"{self.chains[chain]}: self-probability {self.self_probability[chain]:.3f}, floor "
            f"{self.floor_nats[chain]:.4f} nats = {self.floor_bits[chain]:.4f} bits; exact filter "
            f"{self.filter_bits[chain]:.4f} bits, held out {self.held_out_filter_bits[chain]:.4f}"
        )
        return "\n".join([floor, *aligned(rows)])

    def _row(self, chain: int, arm: int) -> tuple[str, ...]:
        at = (chain, arm)
        return (
            self.arms[arm],
            f"{self.final_loss_nats[at]:.4f}",
            f"{self.final_loss_bits[at]:.4f}",
            interval_cell(self.final_loss_bits_lo[at], self.final_loss_bits_hi[at], ".4f"),
            f"{self.held_out_bits[at]:.4f}",
            *self._times("speedup", int(self.reached[at]), at),
            *self._times("held_out_speedup", int(self.held_out_reached[at]), at),
        )

    def _times(self, metric: str, reached: int, at: tuple[int, int]) -> tuple[str, str]:
        value, lo, hi = (float(vars(self)[f"{metric}{end}"][at]) for end in ("", "_lo", "_hi"))
        estimate = f"{value:.2f} [{interval_cell(lo, hi, '.2f')}]"
        never = "not in every seed" if reached else "in no seed"
        return never if np.isnan(value) else estimate, f"{reached}/{self.n}"


def em_report(
    chains: Sequence[StickyChain], seeds: Sequence[int], curves: Sequence[Sequence[Curves]], recorded: Sequence[int]
) -> EMReport:
    """Summaries of the curves of every chain and seed; `recorded` are the steps of the held-out losses."""
    at = np.asarray(recorded)
    loss = np.stack([np.stack([c.loss for c in of]) for of in curves]) / NATS_PER_BIT  # chain seed arm step
    held = np.stack([np.stack([c.held_out for c in of]) for of in curves]) / NATS_PER_BIT
    last, held_last = loss[..., -1], held[..., -1]
    filters = np.array([[c.floors for c in of] for of in curves]).mean(axis=1) / NATS_PER_BIT
    ends = {name: _stacked(curves, name) for name in ("entropy", "accuracy", "held_out_accuracy")}
    rate = np.array([chain.entropy_rate_nats() for chain in chains])
    every_step = np.arange(loss.shape[-1])
    return EMReport(
        chains=tuple(f"diagonal {chain.diagonal}" for chain in chains),
        arms=tuple(arm.name for arm in ARMS),
        seeds=tuple(str(seed) for seed in seeds),
        self_probability=np.array([float(chain.transition()[0, 0]) for chain in chains]),
        floor_bits=rate / NATS_PER_BIT,
        floor_nats=rate,
        filter_bits=filters[:, 0],
        held_out_filter_bits=filters[:, 1],
        final_loss_nats=last.mean(axis=1) * NATS_PER_BIT,
        **_mean("final_loss_bits", last),
        **_mean("held_out_bits", held_last),
        **_mean("best_held_out_bits", held.min(axis=-1)),
        entropy_bits=ends["entropy"].mean(axis=1) / NATS_PER_BIT,
        accuracy=ends["accuracy"].mean(axis=1),
        held_out_accuracy=ends["held_out_accuracy"].mean(axis=1),
        **_mean("em_margin_bits", last - last[:, :, _EM : _EM + 1]),
        **_mean("em_held_out_margin_bits", held_last - held_last[:, :, _EM : _EM + 1]),
        **_speeds("speedup", "reached", loss, every_step, last[:, :, _BASE]),
        **_speeds("held_out_speedup", "held_out_reached", held, at, held_last[:, :, _BASE]),
        **_authors(loss, every_step, last[:, :, _BASE]),
        recorded_steps=at,
        loss_bits_by_step=loss[..., at].swapaxes(1, 2),
        held_out_bits_by_step=held.swapaxes(1, 2),
        intervals={},
        nulls={},
        n=len(seeds),
    )


def _stacked(curves: Sequence[Sequence[Curves]], name: str) -> Float[np.ndarray, "chain seed arm"]:
    return np.stack([np.stack([vars(c)[name] for c in of]) for of in curves])


def _mean(name: str, values: Float[np.ndarray, "chain seed arm"]) -> dict[str, Any]:
    lo, hi = seed_interval(values.swapaxes(0, 1))
    return {name: values.mean(axis=1), f"{name}_lo": lo, f"{name}_hi": hi}


def _speeds(
    name: str,
    count: str,
    losses: Float[np.ndarray, "chain seed arm record"],
    at: Int[np.ndarray, " record"],
    threshold: Float[np.ndarray, "chain seed"],
) -> dict[str, Any]:
    """How many times sooner each arm is as low as the threshold than the last step; geometric mean over seeds."""
    took = np.empty(losses.shape[:3])
    for place in np.ndindex(*took.shape):
        took[place] = steps_to(losses[place], at.astype(np.float64), float(threshold[place[:2]]))
    with np.errstate(divide="ignore"):
        found = _mean(name, np.log(at[-1] / took))
    return {key: np.exp(value) for key, value in found.items()} | {count: np.isfinite(took).sum(axis=1)}


def _authors(
    losses: Float[np.ndarray, "chain seed arm record"],
    at: Int[np.ndarray, " record"],
    final: Float[np.ndarray, "chain seed"],
) -> dict[str, Any]:
    mean = np.broadcast_to(final.mean(axis=1, keepdims=True), final.shape)
    found = _speeds("speedup_authors", "reached", losses, at, np.ascontiguousarray(mean))
    return {name: value for name, value in found.items() if name != "reached"}
