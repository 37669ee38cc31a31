"""Rules of a monitor: crossed thresholds and degeneration, robust to noise."""

import math
from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float64

from bayesgeom.core import InvalidArgument, check_argument, check_types

Kind = Literal["reached", "lost", "degenerated", "not finite", "rolled back", "stopped"]
CONFIRMED = 2  # consecutive measurements on the other side before a threshold counts as crossed
BLOCK = 5  # measurements whose median is the level of KL
LEAST_RISE, NOISES, ERRORS = 1.5, 5.0, 3.0
_N_CHANGES = 200
_FLOOR = "degenerate_orthogonality"  # the threshold that is not of its own measurement
_MAD = 1.4826  # from the median of |x| to the standard deviation of a Gaussian


@final
@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds: minimal orthogonality, coverage and separation, and maximal KL.

    Orthogonality that falls below `degenerate_orthogonality` is a sign of degeneration.

    Args:
        key_orthogonality: Least orthogonality of keys: 1 − the root mean square of their cosines.
        coverage: Least share of hypotheses whose key stands apart from all others.
        separation: Least rank correlation of distances between values and between posteriors.
        kl_bits: Largest KL(exact ‖ model), in bits.
        degenerate_orthogonality: Orthogonality below which an event warns of degeneration.

    Raises:
        InvalidArgument: A threshold is not finite, or that of the KL is not above 0.

    Example:
        >>> from bayesgeom.monitor import Thresholds
        >>> Thresholds(kl_bits=0.002).kl_bits
        0.002
    """

    key_orthogonality: float = 0.9
    coverage: float = 0.8
    separation: float = 0.7
    kl_bits: float = 0.01
    degenerate_orthogonality: float = 0.7

    def __post_init__(self) -> None:
        check_types(self)
        if self.kl_bits <= 0 or not all(math.isfinite(value) for value in asdict(self).values()):
            raise InvalidArgument(f"thresholds must be finite numbers, and that of KL above 0; got {self}.")


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """A finding or an action of a monitor. For a rollback, `value` is the step whose weights were restored.

    Args:
        step: Training step.
        kind: "reached", "lost", "degenerated", "not finite", "rolled back" or "stopped".
        metric: What was measured.
        value: Its value.
        threshold: The threshold that it passed.
        chance: Level of an untrained or random network; NaN if there is none.

    Example:
        >>> from bayesgeom.monitor import Event
        >>> print(Event(step=300, kind="reached", metric="kl_bits", value=0.0081, threshold=0.01))
        step 300: kl_bits reached (0.0081; threshold 0.01)
    """

    step: int
    kind: Kind
    metric: str
    value: float
    threshold: float
    chance: float = math.nan

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name not in ("value", "chance") or not (isinstance(value, float) and math.isnan(value)):
                check_argument(name, value, type(self).__annotations__[name])

    def __str__(self) -> str:
        if self.kind == "rolled back":
            return f"step {self.step:,}: rolled back to step {self.value:,.0f} ({self.metric})"
        if self.kind == "not finite":
            return f"step {self.step:,}: {self.value:,.0f} entries of {self.metric} are NaN or infinite"
        chance = "" if math.isnan(self.chance) else f", chance {self.chance:.3g}"
        return (
            f"step {self.step:,}: {self.metric} {self.kind} ({self.value:.4g}; threshold {self.threshold:.3g}{chance})"
        )

    @property
    def is_warning(self) -> bool:
        """Whether the event is a problem."""
        return self.kind != "reached"


@final
class Side:
    """The side of a threshold; it changes after `CONFIRMED` consecutive measurements on the other side."""

    def __init__(self) -> None:
        self.is_good = False
        self._against = 0

    def moved(self, is_good: bool) -> bool:
        """Add a measurement and return whether the side has changed."""
        self._against = self._against + 1 if is_good != self.is_good else 0
        if self._against < CONFIRMED:
            return False
        self.is_good, self._against = is_good, 0
        return True


@final
class RisingKL:
    """Detects a lasting rise of KL.

    The current level is the median of the last five measurements (in log), the best level the least median of any five.
    KL has risen if the current level exceeds the best one by all of these:

    - a factor of 1.5;
    - five standard deviations of the noise between successive measurements;
    - three paired standard errors over the sequences;
    - `least_bits`.
    """

    def __init__(self, least_bits: float) -> None:
        self.least_bits = least_bits
        self._recent: deque[Float64[np.ndarray, " sequence"]] = deque(maxlen=BLOCK)
        self._changes: deque[float] = deque(maxlen=_N_CHANGES)
        self._best: Float64[np.ndarray, "measurement sequence"] | None = None
        self._n = 0
        self._good: Float64[np.ndarray, " sequence"] | None = None  # of the last good state

    def update(self, kl_bits: Float64[np.ndarray, " sequence"]) -> bool:
        """Add the next measurement and return whether KL has risen."""
        if self._recent:
            self._changes.append(_level(kl_bits[None]) - _level(self._recent[-1][None]))
        self._recent.append(kl_bits)
        self._n += 1
        if len(self._recent) < BLOCK:
            return False
        now = np.stack(self._recent)
        has_risen = self._best is not None and self._is_above(now, self._best)
        if self._n % BLOCK == 0 and (self._best is None or _level(now) < _level(self._best)):
            self._best = now
        return has_risen

    def is_near_best(self, kl_bits: Float64[np.ndarray, " sequence"]) -> bool:
        """Return whether one measurement is within a factor of 1.5 of the best level, or of all before there is one."""
        good = [] if self._good is None else [self._good]
        known = [kl[None] for kl in (*self._recent, *good)] if self._best is None else [self._best]
        return all(_level(kl_bits[None]) <= _level(own) + math.log(LEAST_RISE) for own in known)

    def keep(self) -> None:
        """Store the last measurement as that of a good state: the reference after a rollback before a best level."""
        self._good = self._recent[-1] if self._recent else None

    def forget_recent(self) -> None:
        """Discard recent measurements, but keep the best level and that of the good state, after a rollback."""
        self._recent.clear()
        self._n = 0

    def _is_above(
        self, now: Float64[np.ndarray, "measurement sequence"], best: Float64[np.ndarray, "measurement sequence"]
    ) -> bool:
        noise = _MAD * float(np.median(np.abs(self._changes))) / math.sqrt(2)
        by_sequence = np.median(now, axis=0) - np.median(best, axis=0)
        error = float(by_sequence.std(ddof=1) / math.sqrt(len(by_sequence))) if len(by_sequence) > 1 else 0.0
        rise = float(by_sequence.mean())
        is_sure = rise > max(ERRORS * error, self.least_bits)
        return is_sure and _level(now) - _level(best) > max(math.log(LEAST_RISE), NOISES * noise)


def _level(kl_bits: Float64[np.ndarray, "measurement sequence"]) -> float:
    """Median over measurements of the log mean KL, which is clipped because rounding may make it negative."""
    return float(np.median(np.log(np.maximum(kl_bits.mean(axis=1), 1e-12))))


@final
class Rules:
    """The state of all rules. `update` returns the events of a measurement."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self.rising = RisingKL(least_bits=thresholds.kl_bits / 10)
        self._sides = {name: Side() for name in asdict(thresholds)}
        self._marked, self._is_falling = set[str](), False
        self._kept = deepcopy((self._sides, self._marked))

    def update(
        self,
        step: int,
        summary: Mapping[str, float],
        kl_bits: Float64[np.ndarray, " sequence"],
        chance: Mapping[str, float],
    ) -> list[Event]:
        """Return events for crossed thresholds and for degeneration; each kind of degeneration once until it ends.

        Args:
            step: The training step.
            summary: The measurements.
            kl_bits: KL of every sequence.
            chance: Chance levels, which events quote.
        """
        events, bad, frame = list[Event](), dict[str, tuple[bool, float]](), "key_orthogonality"

        def add(kind: Kind, metric: str, threshold: float) -> None:
            level, value = chance.get(metric, math.nan), summary[metric]
            events.append(Event(step=step, kind=kind, metric=metric, value=value, threshold=threshold, chance=level))

        for name, threshold in asdict(self.thresholds).items():
            metric, side = frame if name == _FLOOR else name, self._sides[name]
            is_good = summary[metric] <= threshold if name == "kl_bits" else summary[metric] >= threshold
            if math.isnan(summary[metric]) or not side.moved(is_good):
                continue
            if name == _FLOOR:
                bad[frame] = (not is_good, threshold)
            else:
                add("reached" if is_good else "lost", name, threshold)
        # NaN is no sign of a good frame.
        is_low = not summary[frame] >= self.thresholds.degenerate_orthogonality
        self._is_falling = self._sides[_FLOOR].is_good and is_low
        if np.isfinite(kl_bits).all():
            bad["kl_bits"] = (self.rising.update(kl_bits), self.thresholds.kl_bits)
        for metric, (is_bad, threshold) in bad.items():
            if is_bad and metric not in self._marked:
                add("degenerated", metric, threshold)
            (self._marked.add if is_bad else self._marked.discard)(metric)
        return events

    def is_healthy(self, kl_bits: Float64[np.ndarray, " sequence"], on: frozenset[str]) -> bool:
        """Return whether the state is good: KL is near its best, and no measurement in `on` is degenerate.

        One bad measurement is enough here, which an event is not raised for.
        """
        bad = self._marked | ({"key_orthogonality"} if self._is_falling else set())
        return not bad & on and self.rising.is_near_best(kl_bits)

    def keep(self) -> None:
        """Store the sides and the degeneration of a good state."""
        self._kept = deepcopy((self._sides, self._marked))
        self.rising.keep()

    def put_back(self) -> None:
        """Restore those of the last good state after a rollback to it, but keep the best level of KL."""
        self._sides, self._marked = deepcopy(self._kept)
        self.rising.forget_recent()
