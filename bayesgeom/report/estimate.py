"""An estimate is one value: a number or an array with its interval and its baselines.

    report.kl_bits.value                  # array; of a scalar, float(report.kl_bits)
    report.kl_bits.low, report.kl_bits.high
    report.kl_bits.reason                 # codes: which entries have no interval, or a conservative one, and why
    report.kl_bits.baselines              # predictors, untrained networks, random directions, permutations
    report.kl_bits.clears("lower")        # does the interval lie beyond every baseline?

`Quantity`, in the annotation of a report's field, states the axes of the estimate, its unit, and which direction is
better. Tables, figures, files and checks follow from it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, final

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.special import stdtrit

from bayesgeom.core import InvalidArgument, Reason, Verdict, number_text
from bayesgeom.core.text import interval_text
from bayesgeom.stats.bootstrap import mean_interval, percentile_interval, statistic_interval
from bayesgeom.stats.bounds import Extreme, extreme_interval, within_bounds
from bayesgeom.stats.intervals import UNBOUNDED, Bounds, Interval, Scale

Kind = Literal["baseline", "chance", "permutation", "ceiling"]
Better = Literal["higher", "lower", ""]
WHOLE = "whole activation"  # name of the ceiling of an edit
UNTRAINED = "untrained networks"
_ROUNDING = 1e-5  # of a bound: further beyond it a value is wrong, and not rounded
ROUNDING = 1e-6  # of a level: computed in float32 or by another processor, the same level differs by as much
Values = Float[np.ndarray, "..."]
Codes = Int[np.ndarray, "..."]


@final
@dataclass(frozen=True)
class Quantity:
    """Axes, unit, direction, label and range of an estimate in a report's field.

    Args:
        axes: Names of the axes, in order, separated by spaces; "" for a scalar. An axis `thing` whose entries
            have names is labeled by the report's field `things`.
        unit: Unit of the value, such as "bits"; "" for none.
        better: Which direction is better than a baseline; "" if neither is.
        label: Label in tables and figures.
        range: Least and greatest possible value. A report holds no other: see `within`.
    """

    axes: str = ""
    unit: str = ""
    better: Better = ""
    label: str = ""
    range: tuple[float, float] = (-math.inf, math.inf)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes, in order."""
        return tuple(self.axes.split())


@final
@dataclass(frozen=True)
class Unit:
    """Unit of a plain array in a report's field, such as "bits"; "1" for counts, shares, indices and masks."""

    name: str


@final
@dataclass(frozen=True)
class Coordinate:
    """Marks a field with one entry per place on an axis as a coordinate of it, which tables show as a column.

        layer: Annotated[Int[np.ndarray, " ablation"], Coordinate()]
        kinds: Annotated[tuple[str, ...], "ablation", Coordinate()]

    The column has the name of the field, without the final "s" of a tuple. A negative integer means that the place has
    none, such as the head of an ablation of a whole layer.
    """


Share = partial(Quantity, range=(0.0, 1.0))  # also accuracies, probabilities and absolute cosines
Signed = partial(Quantity, range=(-1.0, 1.0))  # correlations, silhouettes, and differences of shares
AtMostOne = partial(Quantity, range=(-math.inf, 1.0))  # relative reductions and adjusted indices
R2 = partial(Quantity, range=(-1.0, 1.0))  # on held-out sequences; below −1 the fit does not carry over to them
NonNegative = partial(Quantity, range=(0.0, math.inf))  # KL, errors, norms, and ratios of these


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Baseline:
    """The level of a value without the claimed structure, or the most that an edit can reach.

    Args:
        kind: "baseline" for a predictor or an untrained network, "chance" for random directions or subspaces,
            "permutation" for shuffled values. "ceiling" for the same edit of the whole activation, which no estimate
            has to beat.
        name: Name in tables.
        value: The level, broadcast to the axes of its estimate.
        low: Lower end of its interval, the minimum of several draws, or the lower bound of untrained networks
            (`of_untrained`); None without any.
        high: Upper end of its interval, the maximum of several draws, or the upper bound.
    """

    kind: Kind
    name: str
    value: Values
    low: Values | None = None
    high: Values | None = None

    @classmethod
    def of(cls, kind: Kind, name: str, value: Shaped[Any, "..."] | float, *, low: Any = None, high: Any = None) -> Self:
        """Return a baseline of numbers or arrays that broadcast to the shape of the estimate."""
        low, high = (None if end is None else _array(end) for end in (low, high))
        return cls(kind=kind, name=name, value=_array(value), low=low, high=high)

    @property
    def ends(self) -> tuple[Values, Values]:
        """Both ends of its range; NaN where there is none."""
        unknown = np.full(self.value.shape, np.nan)
        return unknown if self.low is None else self.low, unknown if self.high is None else self.high

    def bar(self, better: Better) -> Values:
        """Return the level that has to be exceeded: the far end of the range if there is one, else the value."""
        end = {"higher": self.high, "lower": self.low, "": None}[better]
        return self.value if end is None else np.where(np.isnan(end), self.value, end)

    def broadcast(self, shape: tuple[int, ...]) -> Self:
        """Return the same baseline with the shape of its estimate."""
        return replace(self, **_changed(self, lambda values: _to_shape(values, shape, self.name)))

    def __getitem__(self, index: Any) -> Self:
        """Return the baseline of some entries."""
        return replace(self, **_changed(self, lambda values: _array(values[index])))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """A value with its 95 % interval and its baselines; all arrays have the same shape.

    Args:
        value: The estimate; an array without axes for a scalar.
        low: Lower end of the 95 % interval, NaN where it is withheld; None for a number that is not estimated.
        high: Upper end.
        resampled: The resampled units: "sequences", "trainings", …; "" without an interval.
        n: Number of these units; 0 if that does not apply.
        baselines: Levels that the value is compared with.
        reason: The number of a `Reason` by entry: why a known value has no interval, or that its interval is
            conservative; None where every known value has a usual interval, or none is estimated.
    """

    value: Values
    low: Values | None = None
    high: Values | None = None
    resampled: str = ""
    n: int = 0
    baselines: tuple[Baseline, ...] = ()
    reason: Codes | None = None

    def __post_init__(self) -> None:
        """Give each entry a code that agrees with its interval, which `replace` may have changed."""
        codes = None
        if self.low is not None or self.reason is not None:
            codes = np.array(
                np.broadcast_to(0 if self.reason is None else self.reason, self.value.shape), dtype=np.int64
            )
            if self.low is not None:
                is_known = ~np.isnan(self.value)
                codes[~np.isnan(self.low) & (codes != Reason.CONSERVATIVE)] = Reason.NONE
                is_without = np.isnan(self.low) & np.isin(codes, (Reason.NONE, Reason.CONSERVATIVE))
                codes[is_without] = Reason.NONE
                codes[is_without & is_known] = Reason.NOT_COMPUTED
        object.__setattr__(self, "reason", codes if codes is not None and codes.any() else None)

    @classmethod
    def of(
        cls,
        value: Any,
        interval: tuple[Any, Any] | None = None,
        *,
        resampled: str = "sequences",
        n: int = 0,
        baselines: Sequence[Baseline] = (),
        reason: Reason | int | np.integer | Codes | None = None,
    ) -> Self:
        """Return an estimate of numbers or arrays; interval ends and baselines are broadcast to the value's shape.

        Args:
            value: A number or an array.
            interval: Both ends of the 95 % interval, or None.
            resampled: The resampled units.
            n: Number of these units.
            baselines: Levels to compare with.
            reason: Why intervals are withheld, for all entries without one or by entry.

        Returns:
            The estimate, in float64.

        Raises:
            InvalidArgument: The shapes do not broadcast to that of the value.

        Example:
            >>> Estimate.of([0.25, 0.5], ([0.125, 0.25], [0.5, 1.0]), n=64)[0]
            Estimate(0.25 [0.125 … 0.5])
        """
        own = _array(value)
        low, high = (None, None) if interval is None else (_to_shape(end, own.shape, "interval") for end in interval)
        return cls(
            value=own,
            low=low,
            high=high,
            resampled="" if interval is None else resampled,
            n=n,
            baselines=tuple(baseline.broadcast(own.shape) for baseline in baselines),
            reason=None if reason is None else np.asarray(reason, dtype=np.int64),
        )

    def __float__(self) -> float:
        """Return the value of a scalar.

        Raises:
            TypeError: The estimate has axes.
        """
        return float(self.value)

    def __getitem__(self, index: Any) -> Self:
        """Return the estimate of some entries, with their ends and baselines."""
        baselines = tuple(baseline[index] for baseline in self.baselines)
        reason = None if self.reason is None else np.asarray(self.reason[index])
        parts = _changed(self, lambda values: _array(values[index]))
        return replace(self, **parts, baselines=baselines, reason=reason)

    def mapped(self, change: Callable[[Values], Values]) -> Self:
        """Return the estimate with its value, its ends and those of its baselines changed by a function.

        Args:
            change: A function of an array, applied to each of them.
        """
        baselines = tuple(replace(level, **_changed(level, change)) for level in self.baselines)
        parts, reason = _changed(self, change), self.reason
        if reason is not None and parts["value"].shape != reason.shape:
            reason = np.asarray(np.nan_to_num(change(reason.astype(np.float64))), dtype=np.int64)
        return replace(self, **parts, baselines=baselines, reason=reason)

    def __repr__(self) -> str:
        if self.value.ndim:
            names = f", baselines: {', '.join(own.name for own in self.baselines)}" if self.baselines else ""
            return f"Estimate(shape {self.value.shape}{names})"
        levels = "".join(f", {own.name} {number_text(float(own.value))}" for own in self.baselines)
        return f"Estimate({self.text()}{levels})"

    def text(self) -> str:
        """Return a scalar with its interval, as in the cells of tables."""
        low, high = map(float, self.ends)
        return f"{number_text(float(self))}{'' if np.isnan(low) else f' [{interval_text(low, high)}]'}"

    @property
    def ends(self) -> tuple[Values, Values]:
        """Return both ends of the interval; NaN where there is none."""
        unknown = np.full(self.value.shape, np.nan)
        return unknown if self.low is None else self.low, unknown if self.high is None else self.high

    @property
    def is_withheld(self) -> Shaped[np.ndarray, "..."]:
        """Return where a known estimate has no interval although it should have one."""
        if self.low is None:
            return np.zeros(self.value.shape, dtype=bool)
        return np.asarray(np.isnan(self.low) & ~np.isnan(self.value))

    def reason_at(self, index: tuple[int, ...] = ()) -> Reason:
        """Return the reason of one entry.

        Example:
            >>> Estimate.of([0.5, 0.25], ([0.25, np.nan], [0.75, np.nan]), reason=Reason.HEAVY_TAIL).reason_at((1,))
            <Reason.HEAVY_TAIL: 4>
        """
        return Reason.of(int(codes_of(self)[index]))

    def baseline(self, name: str) -> Baseline:
        """Return one of the baselines by name.

        Raises:
            InvalidArgument: No baseline has that name.
        """
        for own in self.baselines:
            if own.name == name:
                return own
        known = ", ".join(own.name for own in self.baselines) or "none"
        raise InvalidArgument(f"no baseline is named {name!r}; there are: {known}.")

    @property
    def compared(self) -> tuple[Baseline, ...]:
        """The baselines that the value has to beat: all but ceilings."""
        return tuple(own for own in self.baselines if own.kind != "ceiling")

    @property
    def ceiling(self) -> Values:
        """The effect of the same edit on the whole activation; NaN without one."""
        found = next((own.value for own in self.baselines if own.kind == "ceiling"), None)
        return np.full(self.value.shape, np.nan) if found is None else found

    def hardest_baseline(self, better: Better) -> Baseline | None:
        """Return the strongest baseline of a scalar, or None. Unknown levels are left out.

        Baselines are compared by `Baseline.bar`: the far end of the range, or else the value.

        Args:
            better: Which direction is better: "higher", "lower", or "" if neither is.

        Returns:
            The baseline that is hardest to beat; without a direction the first; None if no level is known.

        Example:
            >>> levels = [Baseline.of("baseline", "uniform", 1.0), Baseline.of("baseline", "window 1", 0.25)]
            >>> Estimate.of(0.125, baselines=levels).hardest_baseline("lower").name
            'window 1'
        """
        known = [own for own in self.compared if not math.isnan(float(own.value))]
        sign = {"higher": 1, "lower": -1, "": 0}[better]
        return max(known, key=lambda own: sign * float(own.bar(better)), default=None)

    def extreme(self, which: Extreme, *, count: int = 0) -> tuple[tuple[int, ...], Self]:
        """Return the index of the largest (smallest) entry, and that entry with an interval that allows for the choice.

        The interval is about the largest true value: see `bayesgeom.stats.bounds`. NaN entries are never chosen.

        Args:
            which: "largest" or "smallest".
            count: Number of entries among which it was found, if it is not that of the known ones.

        Example:
            >>> own = Estimate.of([0.5, 0.4], ([0.25, 0.3], [0.75, 0.5]), n=64)
            >>> own.extreme("largest")
            ((0,), Estimate(0.5 [0.25 … 0.75]))
        """
        sign, (low, high) = 1 if which == "largest" else -1, self.ends
        chosen = int(np.where(np.isnan(self.value), -np.inf, sign * self.value).argmax())
        at = tuple(int(index) for index in np.unravel_index(chosen, self.value.shape))
        if self.low is None or (own := self[at]).is_withheld:
            return at, self[at]
        lo, hi, reason = extreme_interval(self.value.ravel(), low.ravel(), high.ravel(), which, n=self.n, count=count)
        code = codes_of(own) if reason == Reason.NONE else np.asarray(reason, dtype=np.int64)
        return at, replace(own, low=_array(lo), high=_array(hi), reason=code)

    def clears(self, better: Better) -> Shaped[np.ndarray, "..."]:
        """Return whether the interval lies beyond every baseline: "yes", "no" or "undecided", by entry.

        "no" means that the whole interval lies on the other side of at least one of them; of untrained networks, of
        their mean, because the bound of few of them is far off. Undecided: there is no interval, it includes a baseline
        or is within rounding of it, there is none, or neither direction is better.
        With "higher", an interval that reaches down to 0 is never "yes": 0 is no effect. Exact values have equal ends.

        Args:
            better: Which direction is better: "higher", "lower", or "" if neither is.

        Returns:
            The verdict on every entry, in the shape of the value.

        Example:
            >>> level = Baseline.of("baseline", "uniform", 0.7)
            >>> own = Estimate.of([0.1, 0.9], ([0.0, 0.5], [0.2, 1.0]), baselines=[level])
            >>> own.clears("lower").tolist()
            ['yes', 'undecided']
        """
        found = np.full(self.value.shape, str(Verdict.UNDECIDED), dtype="<U9")
        if not self.compared or not better:
            return found
        sign, least = (1, 0.0) if better == "higher" else (-1, -np.inf)
        near, far = self.ends if better == "higher" else self.ends[::-1]
        hardest, typical = np.full((2, *self.value.shape), -np.inf)
        for own in self.compared:
            bar = np.where(np.isnan(own.value), np.nan, own.bar(better))
            hardest = np.fmax(hardest, sign * bar)
            typical = np.fmax(typical, sign * (own.value if own.name == UNTRAINED else bar))
        with np.errstate(invalid="ignore"):
            has_bar, rounding = np.isfinite(hardest), ROUNDING * np.abs(hardest)
            found[has_bar & (sign * near > np.fmax(hardest + rounding, least))] = str(Verdict.YES)
            found[has_bar & (sign * far < typical - ROUNDING * np.abs(typical))] = str(Verdict.NO)
        return found


def codes_of(own: Estimate) -> Codes:
    """Return the number of each entry's `Reason`; 0 where there is none to state."""
    return np.zeros(own.value.shape, dtype=np.int64) if own.reason is None else own.reason


def with_ceiling(own: Estimate, ceiling: Any) -> Estimate:
    """Return the same estimate with a ceiling, broadcast to the shape of the value."""
    level = Baseline.of("ceiling", WHOLE, np.asarray(ceiling, dtype=np.float64)).broadcast(own.value.shape)
    return replace(own, baselines=(*own.baselines, level))


def within(own: Estimate, least: float, greatest: float | Values) -> Estimate:
    """Return an estimate in the range of its quantity.

    Beyond a bound by rounding alone, a value is the bound. A value further out is missing, with the reason
    `OUT_OF_RANGE`, and so is the level of a baseline. Intervals and ranges end at the bounds; intervals that reach one
    are conservative.

    Example:
        >>> found = within(Estimate.of([0.9, 1.5], ([0.85, 1.4], [1.1, 1.6])), 0.0, 1.0)
        >>> found[0], found.reason_at((0,)), found[1], found.reason_at((1,))
        (Estimate(0.9 [0.85 … 1]), <Reason.CONSERVATIVE: 1>, Estimate(–), <Reason.OUT_OF_RANGE: 18>)
    """
    slack = [
        _ROUNDING * np.fmax(1.0, np.abs(np.nan_to_num(bound, posinf=1.0, neginf=1.0))) for bound in (least, greatest)
    ]

    def inside(values: Values) -> Values:
        """Return values with those beyond a bound at it if that is rounding, else NaN; the same array if all fit."""
        with np.errstate(invalid="ignore"):
            is_low, is_high = values < least, values > greatest
            is_out = (values < least - slack[0]) | (values > greatest + slack[1])
        if not (is_low | is_high).any():
            return values
        return np.where(is_out, np.nan, np.where(is_low, least, np.where(is_high, greatest, values)))

    def ended(end: Values | None) -> Values | None:
        return None if end is None else _array(np.clip(end, least, greatest))

    value = inside(own.value)
    baselines = tuple(
        Baseline.of(each.kind, each.name, inside(each.value), low=ended(each.low), high=ended(each.high))
        for each in own.baselines
    )
    is_out = np.isnan(value) & ~np.isnan(own.value)
    low, high = own.low, own.high
    if low is not None and high is not None and value is not own.value:  # ends move with a value that was rounded
        is_moved = value != own.value
        low, high = (np.where(is_moved, np.clip(end, least, greatest), end) for end in (low, high))
        low, high = (np.where(is_out, np.nan, end) for end in (low, high))
    code = np.where(is_out, int(Reason.OUT_OF_RANGE), codes_of(own)) if is_out.any() else own.reason
    own = replace(own, value=value, low=low, high=high, reason=code, baselines=baselines)
    low, high, is_reached = within_bounds(own.value, *own.ends, (least, greatest))
    if not is_reached.any():
        return own
    return replace(own, low=low, high=high, reason=np.where(is_reached, int(Reason.CONSERVATIVE), codes_of(own)))


def mean_estimate(
    per_sequence: Float[np.ndarray, "sequence *rest"],
    *,
    seed: int,
    baselines: Sequence[Baseline] = (),
    bounds: Bounds = UNBOUNDED,
) -> Estimate:
    """Return the mean over sequences with its bootstrap-t interval; `bounds` are those of a value."""
    found = mean_interval(per_sequence, seed=seed, bounds=bounds)
    return with_interval(per_sequence.mean(axis=0), found, n=len(per_sequence), baselines=baselines)


def smooth_estimate(
    replicates: Float[np.ndarray, "replicate *rest"],
    *,
    seed: int,
    n: int,
    baselines: Sequence[Baseline] = (),
    scale: Scale = "plain",
    bounds: Bounds = UNBOUNDED,
) -> Estimate:
    """Return a smooth statistic with its interval, from its values under `jackknife_weights(n)`.

    `bounds` are those of a mean over sequences: see `statistic_interval`.
    """
    found = statistic_interval(replicates, seed=seed, scale=scale, bounds=bounds)
    return with_interval(replicates[0], found, n=n, baselines=baselines)


def with_interval(
    value: Float[np.ndarray, "*rest"] | float,
    interval: Interval,
    *,
    n: int,
    baselines: Sequence[Baseline] = (),
) -> Estimate:
    """Return an estimate with this interval, and the reason of each entry whose interval is withheld."""
    ends = (interval.lo, interval.hi)
    return Estimate.of(value, ends, n=n, baselines=baselines, reason=interval.code)


def of_untrained(found: Sequence[Float[np.ndarray, "*axes"] | float]) -> tuple[Baseline, ...]:
    """Return the mean over untrained networks as a baseline, with bounds for one more network if there are several.

    Of k networks with mean m and standard deviation s, the bounds are m ± t(0.975, k − 1)·s·√(1 + 1/k). A network of
    the same distribution exceeds the best of three in one case of four, and this upper bound in one of forty.

    Example:
        >>> (level,) = of_untrained([0.2, 0.3, 0.4])
        >>> print(level.value.round(3), level.low.round(3), level.high.round(3))
        0.3 -0.197 0.797
    """
    if not len(found):
        return ()
    networks, k = np.asarray(found, dtype=np.float64), len(found)
    mean = networks.mean(axis=0)
    if k == 1:
        return (Baseline.of("baseline", UNTRAINED, mean),)
    reach = stdtrit(k - 1, 0.975) * networks.std(axis=0, ddof=1) * math.sqrt(1 + 1 / k)
    return (Baseline.of("baseline", UNTRAINED, mean, low=mean - reach, high=mean + reach),)


def of_draws(kind: Kind, name: str, draws: Float[np.ndarray, "draw *rest"]) -> Baseline:
    """Return the mean of draws as a baseline, with the range of the central 95 % of them."""
    low, high = percentile_interval(draws)
    return Baseline.of(kind, name, draws.mean(axis=0), low=low, high=high)


def stacked(found: Sequence[Estimate], baselines: Sequence[Baseline] | None = None) -> Estimate:
    """Stack estimates of one shape along a new first axis; each entry keeps its reason.

    Baselines and interval ends that only some of them have are NaN for the others.

    Args:
        found: The estimates.
        baselines: Baselines of the result, instead of the estimates' own.
    """
    unknown = np.full(found[0].value.shape, np.nan)
    kinds = {own.name: own.kind for part in found for own in part.baselines}

    def along(levels: Sequence[Float[np.ndarray, "*rest"] | None]) -> Float[np.ndarray, "part *rest"] | None:
        stored = [unknown if level is None else level for level in levels]
        return None if all(level is None for level in levels) else np.stack(stored)

    def baseline(name: str) -> Baseline:
        levels = [{level.name: vars(level) for level in part.baselines}.get(name, {}) for part in found]
        value, low, high = (along([level.get(end) for level in levels]) for end in ("value", "low", "high"))
        assert value is not None, "one of the parts has this baseline"
        return Baseline.of(kinds[name], name, value, low=low, high=high)

    low, high = along([own.low for own in found]), along([own.high for own in found])
    return Estimate.of(
        np.stack([own.value for own in found]),
        None if low is None or high is None else (low, high),
        resampled=next((own.resampled for own in found if own.resampled), ""),
        n=max(own.n for own in found),
        baselines=[baseline(name) for name in kinds] if baselines is None else baselines,
        reason=np.stack([codes_of(own) for own in found]),
    )


def _changed(own: Estimate | Baseline, change: Callable[[Values], Values]) -> dict[str, Any]:
    """Return value, low and high with each of them changed that is there."""
    parts = {"value": own.value, "low": own.low, "high": own.high}
    return {name: None if values is None else change(values) for name, values in parts.items()}


def _array(value: Any) -> Values:
    return np.asarray(value, dtype=np.float64)


def _to_shape(value: Any, shape: tuple[int, ...], what: str) -> Values:
    own = _array(value)
    try:
        return np.array(np.broadcast_to(own, shape))
    except ValueError as error:
        raise InvalidArgument(f"{what} of shape {own.shape} does not fit an estimate of shape {shape}.") from error
