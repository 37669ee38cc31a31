"""`em_experiment`: train every condition of the sticky-chain comparison on every seed, and report the speed-ups.

Intervals are Student's over seeds. Comparisons of conditions are paired: all conditions of a seed have the same initial
weights and sequences. Losses are computed in nats and reported in bits; `final_loss_nats` is for comparison with the
paper.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.charts.forest import add_forest
from bayesgeom.core.errors import InvalidArgument, checked
from bayesgeom.core.progress import phase
from bayesgeom.core.text import aligned_table, interval_text, number_text
from bayesgeom.core.torch_state import with_torch_defaults
from bayesgeom.models.base import provenance
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Unit
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.stats.information import NATS_PER_BIT
from examples.replication.em.chain import StickyChain
from examples.replication.em.training import (
    BASELINE,
    BY_MATRIX,
    CONDITIONS,
    EM_LIKE,
    Condition,
    Curves,
    describe_conditions,
    learned,
    recorded_steps,
    steps_to,
)

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

SEEDS = (42, 2024, 1337, 7777, 9999)
CHAINS = (StickyChain(diagonal="counted twice"), StickyChain(diagonal="as stated"))
_BASE, _EM = ([condition.name for condition in CONDITIONS].index(name) for name in (BASELINE, EM_LIKE))
_BEATS, _DOES_NOT = "beats controls", "does not beat controls"
TRAINED, HELD_OUT = 0, 1  # along the axis `sequence`
_CONDITIONS, _FEW = "sequence chain condition", "chain condition"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class EMReport(Report):
    """Loss and speed-up of every condition, for each chain and sequence (training and held-out).

    - `floor_bits`: entropy rate of the chain; `filter_bits`: loss of the exact filter on the two sequences.
    - `speedup`: steps until the baseline's loss is first as low as its final loss, divided by the steps that the
      condition needs to reach that loss on the same sequence; geometric mean over seeds. NaN if a seed never reaches
      it; `reached` counts those that do.
    - `speedup_authors`: steps of the training, divided by the steps that the condition needs to reach the *mean* final
      loss of the baseline, as in the authors' code; training sequence only.
    - `em_speed_ratio`: speed-up of the EM-like condition, divided by that of the condition, paired; geometric mean over
      seeds. Above 1, EM-like is faster. Read from the losses at recorded steps.
    - `em_margin_bits`: final loss of the condition minus that of the EM-like one, paired. Above 0, EM-like is better.
    - `best_held_out_bits`: the lowest held-out loss at any recorded step, mean over seeds.
    """

    name: ClassVar[str] = "em_experiment"
    counts: ClassVar[str] = "seed"
    title: ClassVar[str] = "Sticky chain: EM-like schedule against its controls"
    about: ClassVar[str] = (
        "One attention head learns to predict the next symbol of a Markov chain. The EM-like condition uses a step of "
        "0.1 for the value matrix and 0.01 for the rest. It must beat not only 0.01 everywhere, which takes smaller "
        "steps overall, but also the controls: 0.1 everywhere, 0.1 on the output matrix alone, 0.1 on the routing "
        "alone. The gray lines are the entropy rate of the chain, which no predictor beats on new data; a loss below "
        "it on the training sequence is memorization. Bands and whiskers are Student's 95 % intervals over seeds."
        "\n\n"
        "The EM-like condition beats its controls if every control has a higher final loss on both sequences: the "
        "interval of each paired difference lies above 0. It does not beat them if one interval lies below 0."
    )

    chains: tuple[str, ...]
    conditions: tuple[str, ...]
    seeds: tuple[str, ...]
    sequences: tuple[str, ...]
    self_probability: Annotated[Float[np.ndarray, " chain"], Unit("1")]
    floor_bits: Annotated[Float[np.ndarray, " chain"], Unit("bits")]
    filter_bits: Annotated[Float[np.ndarray, "sequence chain"], Unit("bits")]
    final_loss_bits: Annotated[Estimate, NonNegative(_CONDITIONS, unit="bits", better="lower", label="final loss")]
    best_held_out_bits: Annotated[Estimate, NonNegative(_FEW, unit="bits", better="lower", label="least held-out loss")]
    final_entropy_bits: Annotated[Float[np.ndarray, "chain condition"], Unit("bits")]
    accuracy: Annotated[Float[np.ndarray, "sequence chain condition"], Unit("1")]
    em_margin_bits: Annotated[
        Estimate, Quantity(_CONDITIONS, unit="bits", better="higher", label="final loss minus EM-like's")
    ]
    speedup: Annotated[
        Estimate,
        NonNegative(
            _CONDITIONS, unit="times", better="higher", label="speed-up to SGD's final loss on the same sequence"
        ),
    ]
    em_speed_ratio: Annotated[
        Estimate, NonNegative(_CONDITIONS, unit="times", better="higher", label="EM-like's speed-up over this one's")
    ]
    reached: Annotated[Int[np.ndarray, "sequence chain condition"], Unit("seeds")]
    speedup_authors: Annotated[
        Estimate, NonNegative(_FEW, unit="times", better="higher", label="speed-up to SGD's mean final loss")
    ]
    recorded_steps: Annotated[Int[np.ndarray, " record"], Unit("steps")]
    loss_bits_by_step: Annotated[Float[np.ndarray, "sequence chain condition seed record"], Unit("bits")]
    n: int

    @property
    def final_loss_nats(self) -> Float[np.ndarray, "sequence chain condition"]:
        """Mean final loss in nats, as in the paper."""
        return self.final_loss_bits.value * NATS_PER_BIT

    @property
    def floor_nats(self) -> Float[np.ndarray, " chain"]:
        """Entropy rate of the chain in nats."""
        return self.floor_bits * NATS_PER_BIT

    def verdict(self) -> str:
        """Return "beats controls", "does not beat controls" or "undecided"."""
        found = set(self.em_margin_bits.clears("higher")[:, 0, self._controls()].ravel())
        return _BEATS if found == {"yes"} else _DOES_NOT if "no" in found else "undecided"

    def _controls(self) -> list[int]:
        return [i for i in range(len(self.conditions)) if i not in (_BASE, _EM)]

    def headlines(self) -> Sequence[Headline]:
        controls = self._controls()
        # The best control by each number: the first line must show the one that decides.
        margins = np.nan_to_num(self.em_margin_bits.value[:, 0], nan=np.inf)
        closest, closest_held_out = (controls[int(np.argmin(own[controls]))] for own in margins)

        def line(metric: str, sequence: int, condition: int, label: str) -> Headline:
            return headline_of(
                self, metric, at=(sequence, 0, condition), label=label.format(self.conditions[condition])
            )

        trained_margin, held_out_margin = (f"advantage of EM-like over {{}}, {of} loss" for of in ("final", "held-out"))
        speedup = "speed-up of {} to SGD's final loss"
        return (
            replace(line("em_margin_bits", TRAINED, closest, trained_margin), verdict=self.verdict()),
            line("em_margin_bits", HELD_OUT, closest_held_out, held_out_margin),
            line("speedup", TRAINED, _EM, speedup),
            # The controls are not under test: that they are faster than the baseline is no verdict.
            *(replace(line("speedup", TRAINED, i, speedup), verdict="") for i in controls),
            *(line("em_margin_bits", TRAINED, i, trained_margin) for i in controls if i != closest),
            *(line("em_margin_bits", HELD_OUT, i, held_out_margin) for i in controls if i != closest_held_out),
        )

    def panels(self) -> "Sequence[Panel]":
        found = (self.chains, *self.loss_bits_by_step, self.floor_bits)
        chains = [
            ChainCurves(chain=chain, trained_on=trained, held_out=held_out, floor=float(floor))
            for chain, trained, held_out, floor in zip(*found, strict=True)
        ]
        speeds = (self.speedup[TRAINED, 0], self.speedup[HELD_OUT, 0])
        return em_panels(self.conditions, self.recorded_steps, chains, speeds)

    def table(self) -> str:
        """Return one block per chain."""
        blocks = [self._block(i) for i in range(len(self.chains))]
        return "\n\n".join(blocks)

    def _block(self, chain: int) -> str:
        head = ("condition", "loss (nats)", "loss (bits)", "95 % interval", "held out (bits)", "speed-up", "seeds")
        rows: list[tuple[str, ...]] = [(*head, "held out: speed-up", "seeds")]
        rows += [self._row(chain, condition) for condition in range(len(self.conditions))]
        floor = (
            f"{self.chains[chain]}: self-probability {number_text(self.self_probability[chain])}, floor "
            f"{number_text(self.floor_nats[chain])} nats = {number_text(self.floor_bits[chain])} bits; exact filter "
            f"{number_text(self.filter_bits[TRAINED, chain])} bits, "
            f"held out {number_text(self.filter_bits[HELD_OUT, chain])}"
        )
        return "\n".join([floor, *aligned_table(rows)])

    def _row(self, chain: int, condition: int) -> tuple[str, ...]:
        at, at_held_out = (TRAINED, chain, condition), (HELD_OUT, chain, condition)
        low, high = self.final_loss_bits.ends
        return (
            self.conditions[condition],
            number_text(self.final_loss_nats[at]),
            number_text(self.final_loss_bits.value[at]),
            interval_text(low[at], high[at]),
            number_text(self.final_loss_bits.value[at_held_out]),
            *self._times(at),
            *self._times(at_held_out),
        )

    def _times(self, at: tuple[int, int, int]) -> tuple[str, str]:
        own, reached = self.speedup[at], int(self.reached[at])
        low, high = own.ends
        estimate = f"{number_text(float(own))} [{interval_text(float(low), float(high))}]"
        never = "not in all seeds" if reached else "in no seed"
        return never if np.isnan(float(own)) else estimate, f"{reached}/{self.n}"


def em_report(
    chains: Sequence[StickyChain],
    seeds: Sequence[int],
    curves: Sequence[Sequence[Curves]],
    recorded: Sequence[int],
    conditions: tuple[Condition, ...] = CONDITIONS,
) -> EMReport:
    """Return the report on the curves of every chain and seed; `recorded` are the steps of held-out losses."""
    at = np.asarray(recorded)
    loss, held_out = (_stacked(curves, lambda c: c.loss), _stacked(curves, lambda c: c.held_out))
    loss, held_out = loss / NATS_PER_BIT, held_out / NATS_PER_BIT  # chain seed condition step
    last, every_step = np.stack([loss[..., -1], held_out[..., -1]]), np.arange(loss.shape[-1])
    accuracies = _stacked(curves, lambda c: c.accuracy), _stacked(curves, lambda c: c.held_out_accuracy)
    trained = _steps_to(loss, every_step, last[TRAINED, :, :, _BASE])
    elsewhere = _steps_to(held_out, at, last[HELD_OUT, :, :, _BASE])
    by_step = np.stack([loss[..., at].swapaxes(1, 2), held_out.swapaxes(1, 2)])
    mean_of_base = np.repeat(last[TRAINED, :, :, _BASE].mean(axis=1, keepdims=True), len(seeds), axis=1)
    rate = np.array([chain.entropy_rate_nats() for chain in chains])
    return EMReport(
        chains=tuple(f"diagonal {chain.diagonal}" for chain in chains),
        conditions=tuple(condition.name for condition in conditions),
        seeds=tuple(str(seed) for seed in seeds),
        sequences=("trained on", "held out"),
        self_probability=np.array([float(chain.transition()[0, 0]) for chain in chains]),
        floor_bits=rate / NATS_PER_BIT,
        filter_bits=np.array([[c.floors for c in of] for of in curves]).mean(axis=1).T / NATS_PER_BIT,
        final_loss_bits=_mean(last),
        best_held_out_bits=_mean(held_out.min(axis=-1)),
        final_entropy_bits=_stacked(curves, lambda c: c.entropy).mean(axis=1) / NATS_PER_BIT,
        accuracy=np.stack([own.mean(axis=1) for own in accuracies]),
        em_margin_bits=_mean(last - last[..., _EM : _EM + 1], Baseline.of("baseline", EM_LIKE, 0.0)),
        speedup=_speedup(np.stack([own[..., _BASE : _BASE + 1] / own for own in (trained, elsewhere)])),
        em_speed_ratio=em_speed_ratio(by_step, at),
        reached=np.stack([np.isfinite(took).sum(axis=1) for took in (trained, elsewhere)]),
        speedup_authors=_speedup(every_step[-1] / _steps_to(loss, every_step, mean_of_base)),
        recorded_steps=at,
        loss_bits_by_step=by_step,
        n=len(seeds),
    )


def em_speed_ratio(
    loss: Float[np.ndarray, "sequence chain condition seed record"], at: Int[np.ndarray, " record"]
) -> Estimate:
    """Return how many times as fast as each condition the EM-like one reaches the baseline's final loss, by seed."""
    by_seed = loss.swapaxes(2, 3)
    took = np.stack([_steps_to(own, at, own[:, :, _BASE, -1]) for own in by_seed])
    return _speedup(took / took[..., _EM : _EM + 1], against=EM_LIKE)


def _stacked(
    curves: Sequence[Sequence[Curves]], of: Callable[[Curves], Float[np.ndarray, "condition *rest"]]
) -> Float[np.ndarray, "chain seed condition *rest"]:
    return np.stack([np.stack([of(own) for own in by_seed]) for by_seed in curves])


def _mean(values: Float[np.ndarray, "*rest seed condition"], *baselines: Baseline) -> Estimate:
    """Return the mean over seeds with Student's interval."""
    interval = seed_interval(np.moveaxis(values, -2, 0))
    return Estimate.of(values.mean(axis=-2), interval, resampled="seeds", n=values.shape[-2], baselines=baselines)


def _speedup(times: Float[np.ndarray, "*rest seed condition"], *, against: str = BASELINE) -> Estimate:
    """Return the geometric mean over seeds with its interval; at 1, a condition is as fast as `against`."""
    with np.errstate(divide="ignore"):
        logs = _mean(np.log(times))
    low, high = logs.ends
    own = Baseline.of("baseline", against, 1.0)
    return Estimate.of(np.exp(logs.value), (np.exp(low), np.exp(high)), resampled="seeds", n=logs.n, baselines=(own,))


def _steps_to(
    losses: Float[np.ndarray, "chain seed condition record"],
    at: Int[np.ndarray, " record"],
    threshold: Float[np.ndarray, "chain seed"],
) -> Float[np.ndarray, "chain seed condition"]:
    """Return the step at which each condition reaches the threshold."""
    took = np.empty(losses.shape[:3])
    for place in np.ndindex(*took.shape):
        took[place] = steps_to(losses[place], at.astype(np.float64), float(threshold[place[:2]]))
    return took


@final
@dataclass(frozen=True, kw_only=True)
class ChainCurves:
    """One chain's losses in bits, on the sequence trained on and on the held-out one, and its entropy rate."""

    chain: str
    trained_on: Float[np.ndarray, "condition seed record"]
    held_out: Float[np.ndarray, "condition seed record"]
    floor: float


def em_panels(
    conditions: Sequence[str],
    steps: Int[np.ndarray, " record"],
    chains: Sequence[ChainCurves],
    speeds: tuple[Estimate, Estimate],
) -> "list[Panel]":
    """Draw the curves of each chain, then the speed-ups of all conditions on both sequences of the first chain."""
    from bayesgeom.report.panels import Panel

    panels = list[Panel]()
    for of in chains:
        for losses, name in ((of.trained_on, "trained on"), (of.held_out, "held out")):
            panels.append(Panel.blank(f"{of.chain}: {name}", height=380))
            curves = [_curve(own, losses[condition]) for condition, own in enumerate(conditions)]
            levels = [("entropy rate of the chain", of.floor)]
            add_curves(panels[-1].figure, steps, curves, unit="loss (bits)", levels=levels)
            _show_the_middle(panels[-1], losses, of.floor)
    for speed, title in zip(speeds, ("Speed-up to SGD 0.01's final loss", "The same, held out"), strict=True):
        panels.append(Panel.blank(title, height=380))
        reached = zip(conditions, np.isfinite(speed.value), strict=True)
        labels = [name if is_reached else f"{name} (not reached)" for name, is_reached in reached]
        add_forest(panels[-1].figure, labels, speed.value, speed.ends, unit="speed-up (times)", levels=1.0)
        panels[-1].figure.update_traces(showlegend=False)
    return panels


def _curve(name: str, losses: Float[np.ndarray, "seed record"]) -> Curve:
    return Curve(name=name, values=losses.mean(axis=0), band=seed_interval(losses))


def _show_the_middle(panel: "Panel", losses: Float[np.ndarray, "condition seed record"], floor: float) -> None:
    """Limit the axis to the range from the lowest loss to the start: an overfitting condition may exceed it."""
    low, high = min(floor, float(losses.mean(axis=1).min())), float(losses[..., 0].max())
    room = 0.1 * (high - low)
    panel.figure.update_yaxes(range=[low - room, high + 2 * room])


@checked()
@with_torch_defaults
def em_experiment(
    *,
    seeds: int | Sequence[int] = 5,
    steps: int = 1_000,
    length: int = 2_000,
    every: int = 10,
    by_matrix: bool = False,
) -> EMReport:
    """Repeat Paper II's comparison of an EM-like schedule with small steps, and add the missing controls.

    The chain's self-probability is tested in both readings of the paper.

    Args:
        seeds: Number of the paper's five seeds to use, or a list of seeds.
        steps: Number of training steps.
        length: Number of symbols in a sequence.
        every: Steps between records of the held-out loss.
        by_matrix: Compare with the same step on one other matrix at a time, on the authors' own chain alone.

    Returns:
        Learning curves of every schedule, and the speed-ups.

    Raises:
        InvalidArgument: There are fewer than two seeds or more than five, a seed is given twice, steps or `every` is
            below 1, or a sequence has fewer than three symbols.

    Example:
        >>> em_experiment(seeds=1)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.InvalidArgument: seeds is how many of the paper's five to train, 2 … 5; got 1.
    """
    chosen = _checked(seeds, steps=steps, length=length, every=every)
    conditions, of_chains = (BY_MATRIX, CHAINS[:1]) if by_matrix else (CONDITIONS, CHAINS)
    own = {"steps": steps, "length": length, "every": every}
    with phase("sticky chain", len(of_chains) * len(chosen) * steps) as progress:
        curves = [
            [learned(chain, seed=seed, tick=progress.update, conditions=conditions, **own) for seed in chosen]
            for chain in of_chains
        ]
    report = em_report(of_chains, chosen, curves, recorded_steps(steps, every), conditions)
    named = {"name": "one attention head", "architecture": "single-head"}
    arguments = {"seeds": chosen, **own, **({"by_matrix": True} if by_matrix else {})}
    chains = {"task": {"chains": [vars(chain) for chain in of_chains]}, "conditions": describe_conditions(conditions)}
    return with_provenance(report, provenance(named, "sticky chain", arguments) | chains)


def _checked(seeds: int | Sequence[int], *, steps: int, length: int, every: int) -> tuple[int, ...]:
    """Return the seeds to train; raise as `em_experiment`."""
    if isinstance(seeds, int) and not 2 <= seeds <= len(SEEDS):
        raise InvalidArgument(
            f"seeds is how many of the paper's five to train, 2 … 5, or a list of your own; got {seeds}."
        )
    chosen = SEEDS[:seeds] if isinstance(seeds, int) else tuple(seeds)
    if len(set(chosen)) < max(2, len(chosen)):
        raise InvalidArgument(f"an interval needs at least two different seeds, each given once; got {chosen}.")
    if min(steps, every) < 1 or length < 3:
        raise InvalidArgument(
            f"steps and every must be at least 1 and length at least 3; got steps={steps}, every={every} and "
            f"length={length}."
        )
    return chosen
