"""A function of a finished run as a probe: `diagnose(model, probes=[f])`.

Before anything is measured, the function is tried on a few sequences. Each site that it asks for is recorded, and it is
tried again. It is then tried on one more sequence: an array whose first axis grows with the sequences has a value for
each of them, so its mean has an interval.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float64, Int
from torch import Tensor

from bayesgeom.core import Ask, InvalidArgument, MissingSite, Reason, Run, Site, UnknownName
from bayesgeom.core.errors import quoted
from bayesgeom.core.plugins import Contained
from bayesgeom.measurements.base import Control, Needs, Probe, known
from bayesgeom.models.base import LARGE, Model, recording_bytes, run_on
from bayesgeom.report.estimate import Coordinate, Estimate, Quantity, Unit, codes_of, mean_estimate, of_untrained
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.tasks.base import WindTunnel

Function = Callable[[Run], Any]
Numbers = Mapping[str, Float64[np.ndarray, "..."]]
MOST = 5000  # numbers that a function may return for each sequence: each has an interval
_TRIED, _TRIED_LARGE = 16, 2  # sequences of a trial, and those of a large model or of a server
_SHOWN = 3  # headlines of a report
_RETURNS = "Return a number, an array of numbers, or a dict of these by name."


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class FunctionReport(Report):
    """What a function of the run returned, with what it returned for untrained networks.

    A number with an interval is the mean over sequences, for which the function returned a value each. Other numbers
    have no interval. Which direction is better is unknown, so there is no verdict.

    Fields: `outputs` names every number, and `result` holds them in this order. `arrays` names the returned arrays, ""
    for a function that returns one, and `shapes` are theirs. `of` gives an array back. `layer` and `head` are those of
    each number of an array whose first two axes have as many entries as the model has layers and heads; −1 for others.
    """

    name: str = "function"  # type: ignore[misc]  # that of the function, where other reports share one
    title: str = "Own function"  # type: ignore[misc]  # its name and the first line of its docstring
    made_by: str = "function"  # the kind of report that a file of this name holds
    outputs: tuple[str, ...]
    arrays: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    layer: Annotated[Int[np.ndarray, " output"], Unit("1"), Coordinate()]
    head: Annotated[Int[np.ndarray, " output"], Unit("1"), Coordinate()]
    result: Annotated[Estimate, Quantity("output", label="returned value")]

    def of(self, name: str = "") -> Estimate:
        """Return one of the returned arrays in its own shape, averaged over sequences if it had a value for each.

        Args:
            name: Its name in the returned dict; "" if the function returned no dict.

        Returns:
            The numbers, with intervals and untrained baselines.

        Raises:
            InvalidArgument: The function returned nothing of this name.
        """
        if name not in self.arrays:
            listed = ", ".join(map(repr, self.arrays))
            raise InvalidArgument(f"function {self.name!r} returned nothing named {name!r}. It returned: {listed}.")
        start, shape = self._start(name), self.shapes[self.arrays.index(name)]
        return self.result[start : start + prod(shape)].mapped(lambda each: each.reshape(shape))

    def _start(self, name: str) -> int:
        """Return the place of the first number of an array."""
        return sum(map(prod, self.shapes[: self.arrays.index(name)]))

    def headlines(self) -> Sequence[Headline]:
        lines = [headline_of(self, "result", (at,), name) for at, name in enumerate(self.outputs[:_SHOWN])]
        count, known = len(self.outputs), self.result.value[~np.isnan(self.result.value)]
        if count > _SHOWN and known.size:
            (at,), extreme = self.result.extreme("largest" if known.max() >= -known.min() else "smallest")
            label = f"{self.outputs[at]}: largest in size of {count} entries, {count - _SHOWN} of them not shown"
            lines.append(headline_of(self, "result", (at,), label, own=extreme, chosen_of=known.size))
        return lines

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.forest import add_forest

        shapes = dict(zip(self.arrays, self.shapes, strict=True))
        panels = [self._panel(name) for name, shape in shapes.items() if shape]
        single = [self.outputs.index(_named(self.name, name)) for name, shape in shapes.items() if not shape]
        if single:
            panel, values = Panel.blank("Returned values"), self.result[single]
            labels = [self.outputs[at] for at in single]
            levels = {f"baseline: {level.name}": level.value for level in values.baselines}
            add_forest(panel.figure, labels, values.value, values.ends, unit="returned value", levels=levels)
            panels.insert(0, panel)
        return panels

    def _panel(self, name: str) -> Panel:
        """Return the plot of an array: a line, or a map of its last two axes with the others below each other."""
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.charts.lines import add_estimate
        from bayesgeom.report.theme import label_axes

        panel, estimate = Panel.blank(_named(self.name, name)), self.of(name)
        if estimate.value.ndim > 1:
            rows = estimate.value.reshape(-1, estimate.value.shape[-1])
            axes = ("last axis", "other axes")
            if estimate.value.ndim == 2 and self.layer[self._start(name)] >= 0:
                axes = ("head", "layer")
            add_heat(panel.figure, rows, unit="returned value", axes=axes)
            return panel
        add_estimate(panel.figure, range(len(estimate.value)), estimate, name="returned")
        label_axes(panel.figure, "index", "returned value")
        return panel


@final
@dataclass(frozen=True, kw_only=True)
class FunctionProbe(Probe[FunctionReport]):
    """A function, with the sites that it asked for and the form of what it returned in its trials.

    `shapes` are those of the returned arrays by name, without the axis of sequences of those in `per_sequence`.
    """

    is_written_by_user: ClassVar[bool] = True
    function: Function
    name: str = "function"  # type: ignore[misc]  # that of the function
    needs: Needs  # type: ignore[misc]  # what it asked for
    shapes: Mapping[str, tuple[int, ...]] = field(hash=False)
    per_sequence: frozenset[str]

    def measure(self, run: Run, untrained: Sequence[FunctionReport] = ()) -> FunctionReport:
        numbers = _called(self.function, self.name, run)
        parts, counts = list[Estimate](), [run.n_recorded if self.needs.sites else run.n]
        for name, array in numbers.items():
            if self._shape(name, array) != self.shapes.get(name):
                raise InvalidArgument(
                    f"function {self.name!r} returned other names or shapes than in its trial: {name!r} has "
                    f"{array.shape}. They must not depend on the sequences."
                )
            if name in self.per_sequence:
                flat = array.reshape(len(array), -1)
                parts.append(mean_estimate(flat, seed=run.seed))
                counts.append(len(array))
            else:
                parts.append(Estimate.of(array.reshape(-1)))
        baselines = known(*of_untrained([copy.result.value for copy in untrained]))
        lows, highs = (np.concatenate([part.ends[end] for part in parts]) for end in (0, 1))
        sizes = (run.spec.n_layers, run.spec.n_heads)
        named = [(_named(self.name, key), shape, shape[:2] == sizes) for key, shape in self.shapes.items()]
        places = [index[:2] if has_heads else (-1, -1) for _, shape, has_heads in named for index in np.ndindex(shape)]
        layer, head = np.array(places, dtype=np.int64).T
        value, reason = (np.concatenate(each) for each in zip(*((p.value, codes_of(p)) for p in parts), strict=True))
        summary = (inspect.getdoc(self.function) or "").partition("\n")[0]
        return FunctionReport(
            name=self.name,
            title=f"{self.name}: {summary}" if summary else self.name,
            outputs=tuple(label for names in named for label in _labels(*names)),
            arrays=tuple(self.shapes),
            shapes=tuple(self.shapes.values()),
            layer=layer,
            head=head,
            result=Estimate.of(
                value,
                (lows, highs) if self.per_sequence else None,
                n=counts[-1] if self.per_sequence else 0,
                baselines=baselines,
                reason=np.where(np.isnan(value) & (reason == Reason.NONE), Reason.MISSING, reason),
            ),
            n=counts[-1],
        )

    def controls(self) -> Iterator[Control[FunctionReport]]:
        return iter(())

    def _shape(self, name: str, own: Float64[np.ndarray, "..."]) -> tuple[int, ...] | None:
        """Return a shape without the axis of sequences; None if this axis is missing."""
        if name in self.per_sequence:
            return own.shape[1:] if own.ndim and len(own) else None
        return own.shape


def function_name(function: Any) -> str:
    """Return the name under which a function is reported.

    Raises:
        InvalidArgument: It has none, or it is a class.
    """
    match function:
        case type():
            name = function.__name__
            raise InvalidArgument(f"probes holds the class {name}: pass an instance, {name}().")
        case FunctionType() | MethodType() | BuiltinFunctionType():
            name = function.__name__
        case functools.partial():
            name = "<partial>"
        case _:
            name = type(function).__name__
    if not name.isidentifier():
        raise InvalidArgument(
            f"probes holds a {name.strip('<>')}, which has no name for its report: write it as def NAME(run): …."
        )
    return name


def tried(function: Function, model: Model, task: WindTunnel, *, seed: int) -> FunctionProbe:
    """Try a function on a few sequences, and return it as a probe.

    Args:
        function: The function of a run.
        model: The model.
        task: The task.
        seed: Seed of the sequences, as that of `diagnose`.

    Raises:
        InvalidArgument: It failed, or returned something else than numbers.
        MissingSite: It asks for a site that the model does not provide.
        UnknownName: It asks for a site that does not exist.
    """
    name, sites, trials = function_name(function), dict[Site, None](), list[Numbers]()
    sizes = _sizes(model, task)
    while len(trials) < len(sizes):
        run = _trial(model, task, tuple(sites), sizes[len(trials)], seed)
        try:
            trials.append(_called(function, name, run, is_trial=True))
        except _Asked as asked:
            if asked.site in sites:  # it is there, so another run was asked for it
                raise InvalidArgument(str(asked)) from asked
            sites[asked.site] = None
            if not model.layers_of(*sites):
                model.require(sites, by=f"function {name!r}")
                listed = ", ".join(site.name for site in sites)
                raise MissingSite(f"function {name!r} reads {listed}, and no layer has all of them.") from None
    shapes, per_sequence = dict[str, tuple[int, ...]](), set[str]()
    first, second = trials
    for key, array in second.items():
        earlier = first.get(key)
        if earlier is None or first.keys() != second.keys():
            raise InvalidArgument(f"function {name!r} returns other names for other sequences: return the same ones.")
        grows = (earlier.shape[:1], array.shape[:1]) == ((sizes[0],), (sizes[1],)) and sizes[0] != sizes[1]
        if earlier.shape[grows:] != array.shape[grows:]:
            raise InvalidArgument(
                f"function {name!r} returns shape {earlier.shape} for {sizes[0]} sequences and {array.shape} for "
                f"{sizes[1]}: only a first axis may grow, with one entry per sequence: x.movedim(1, 0)."
            )
        shapes[key] = array.shape[grows:]
        per_sequence |= {key} if grows else set()
    if (count := sum(map(prod, shapes.values()))) > MOST:
        raise InvalidArgument(f"function {name!r} returns {count:,} numbers, more than {MOST:,}: return a summary.")
    needs = Needs(sites=tuple(sites))
    return FunctionProbe(function=function, name=name, needs=needs, shapes=shapes, per_sequence=frozenset(per_sequence))


class _Asked(InvalidArgument):
    """A function asked for a site that its trial did not record."""

    def __init__(self, site: Site, message: str) -> None:
        super().__init__(message)
        self.site = site


def _sizes(model: Model, task: WindTunnel) -> tuple[int, int]:
    """Return the numbers of sequences of the two trials; equal if there is only one sequence."""
    is_slow = model.spec.n_parameters >= LARGE or Ask.RERUN not in model.asks
    most, _ = model.sequences(task, n=_TRIED_LARGE if is_slow else _TRIED, seed=0)
    return max(1, most - 1), most


def _trial(model: Model, task: WindTunnel, sites: tuple[Site, ...], n: int, seed: int) -> Run:
    budget = recording_bytes(model.spec.device, model.memory_gib)
    run = run_on(model, task, n=n, seed=seed, record=sites, n_recorded=n, budget_bytes=budget)
    return run.within(model.layers_of(*sites), sites)


def _called(function: Function, name: str, run: Run, *, is_trial: bool = False) -> Numbers:
    """Return the numbers that a function returns for a run; anything else raises `InvalidArgument`."""
    value: Any = None
    with Contained() as calling:
        value = function(run)
    error = calling.error
    if isinstance(error, UnknownName):
        raise InvalidArgument(f"function {name!r} failed: {error}") from error
    if is_trial and isinstance(error, MissingSite) and error.site is not None:
        raise _Asked(error.site, f"function {name!r} failed: {error}")
    if is_trial and isinstance(error, KeyError) and error.args and isinstance(error.args[0], Site):
        raise _Asked(error.args[0], f"function {name!r} failed: {calling.fault}")  # of `run.recorded[site]`
    if error is not None:
        raise InvalidArgument(f"function {name!r} failed: {calling.fault.rstrip('.')}.") from error
    given = value if isinstance(value, Mapping) else {"": value}
    numbers = {key: _numbers(item, f"function {name!r} returned", key) for key, item in given.items()}
    if not numbers:
        raise InvalidArgument(f"function {name!r} returned an empty dict. {_RETURNS}")
    return numbers


def _numbers(value: Any, what: str, key: Any) -> Float64[np.ndarray, "..."]:
    """Return one returned value as an array."""
    if not isinstance(key, str) or not (key.isprintable() and len(key) <= 60):
        raise InvalidArgument(f"{what} the key {quoted(key)}: names must be printable text of at most 60 letters.")
    where = f" for {key!r}" if key else ""
    plain: Any = value.detach().cpu() if isinstance(value, Tensor) else value
    plain = plain.double() if isinstance(plain, Tensor) and not plain.is_complex() else plain
    try:
        array = np.asarray(plain)
    except (ValueError, TypeError, RuntimeError):  # rows of several lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or not array.size:
        raise InvalidArgument(f"{what} a {type(value).__name__} without numbers{where}. {_RETURNS}")
    if np.isinf(array.astype(np.float64)).any():
        raise InvalidArgument(f"{what} an infinite number{where}: return NaN where a value is not defined.")
    return array.astype(np.float64)


def _named(function: str, key: str) -> str:
    """Return the name of a returned array, which no other function of a diagnosis has."""
    return f"{function}.{key}" if key else function


def _labels(name: str, shape: tuple[int, ...], has_heads: bool) -> Iterator[str]:
    """Yield the names of the entries of an array, such as "share[0, 3]", or "share[L0H3]" by layer and head."""
    for index in np.ndindex(shape):
        places = [f"L{index[0]}H{index[1]}", *map(str, index[2:])] if has_heads else map(str, index)
        yield f"{name}[{', '.join(places)}]" if shape else name
