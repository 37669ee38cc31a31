"""The report of a scorecard: architecture × world, made from the rows of its cells."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core import Verdict, number_text
from bayesgeom.models.base import provenance
from bayesgeom.report.estimate import AtMostOne, Baseline, Estimate, NonNegative, Quantity, Unit
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.scorecards.cell import N_CURVE, OBSERVERS, SCORED, SEQUENCES, Row
from bayesgeom.scorecards.worlds import MEMORIZE, NAMED, World

if TYPE_CHECKING:
    import pandas as pd

HAS, PARTLY, NOT_SHOWN = str(Verdict.HAS), "partly", "not shown"
CANNOT_TELL, FAILED = "this world cannot tell", "failed"
_MARKS = {"○": (HAS, PARTLY, FAILED, NOT_SHOWN), "◐": (HAS, PARTLY), "●": (HAS,)}  # and the states that reach it
SHIPPED = " (shipped)"  # at the end of the name of an architecture whose rows come with the package
LEAST_BITS, LEAST_SHARE = 0.02, 0.05  # KL that the shortcut must leave, in bits and of the gap, for a world to tell
_HALF, _CAPACITY_BITS, PARAMETERS = 0.5, 0.05, 100_000


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Scorecard(Report):
    """What each architecture reached in each world, trained from scratch on equally many sequences.

    A cell is one training: that at the best of the tried rates, and of its seeds the best, which other sequences chose.
    It *has* what the world needs if it transports (evidence older than ten symbols), if it binds every trained number
    of pairs, or elsewhere if it closes more than half of what the strongest shortcut leaves, by the whole interval.
    *Partly*: in part, some numbers of pairs, or more than nothing. *Not shown*: not within this budget, which does not
    say that it cannot be learned. A world whose shortcut is nearly exact cannot tell. Chances of a better rate grow
    with the number of rates.

    Architectures marked as shipped were trained beforehand, as `docs/scorecard.md` says; the answer leaves them out
    where there are others. `rows` are the numbers of all cells, by column, and `cells()` is their table.

    Fields: `beyond` is 1 − KL / KL of the strongest shortcut; `slope` that of the evidence response. `capacity` is the
    largest number of stored pairs of which 97 % are named with at most 0.05 bits, where stored keys alone are queried.
    `seed_kl_bits` are those of all trainings at the best rate. `rate_kl_bits` and `curve_kl_bits` are of held-out
    sequences. `states` and `notes` go through the worlds of the first architecture, then the second's.
    """

    name: ClassVar[str] = "scorecard"
    is_behavioral: ClassVar[bool] = True
    title: ClassVar[str] = "Scorecard: which architecture learned to infer what?"

    architectures: tuple[str, ...]
    worlds: tuple[str, ...]
    primitives: Annotated[tuple[str, ...], "world"]
    rates: tuple[str, ...]
    kl_bits: Annotated[Estimate, NonNegative("architecture world", unit="bits", better="lower", label="KL")]
    gap_closed: Annotated[Estimate, AtMostOne("architecture world", better="higher", label="share of the gap closed")]
    beyond: Annotated[Estimate, AtMostOne("architecture world", better="higher", label="share beyond the shortcut")]
    slope: Annotated[Estimate, Quantity("architecture world", label="evidence response older than 10")]
    capacity: Annotated[Float[np.ndarray, "architecture world"], Unit("pairs")]
    shortcuts: Annotated[tuple[str, ...], "world"]
    shortcut_kl_bits: Annotated[Float[np.ndarray, " world"], Unit("bits")]
    best_rate: Annotated[Float[np.ndarray, "architecture world"], Unit("1")]
    parameters: Annotated[Float[np.ndarray, " architecture"], Unit("1")]
    seconds: Annotated[Float[np.ndarray, "architecture world"], Unit("s")]
    seed_kl_bits: Annotated[Float[np.ndarray, "architecture world seed"], Unit("bits")]
    rate_kl_bits: Annotated[Float[np.ndarray, "architecture world rate"], Unit("bits")]
    step: Annotated[Float[np.ndarray, " point"], Unit("steps")]
    curve_kl_bits: Annotated[Float[np.ndarray, "architecture world point"], Unit("bits")]
    states: tuple[str, ...]
    notes: tuple[str, ...]
    weights: tuple[str, ...]
    rows: Mapping[str, tuple[Any, ...]]
    n: int

    @property
    def own(self) -> tuple[str, ...]:
        """The architectures that were trained for this report; all if none was."""
        return _trained(self.architectures)

    def cells(self) -> "pd.DataFrame":
        """Return a row for each number of each cell: architecture, world, rate, seed, step, quantity, value, …

        `is_best` says whether the cell was trained at the best rate.
        """
        import pandas as pd

        table = pd.DataFrame({name: list(values) for name, values in self.rows.items()})
        rows, columns = table["architecture"].map(self.architectures.index), table["world"].map(self.worlds.index)
        return table.assign(is_best=table["rate"] == self.best_rate[rows.to_numpy(), columns.to_numpy()])

    def state(self, architecture: str, world: str) -> str:
        """Return what an architecture has shown in a world: "has", "partly", "not shown", …"""
        at = self.architectures.index(architecture) * len(self.worlds) + self.worlds.index(world)
        return self.states[at]

    def having(self, primitive: str, states: Sequence[str] = (HAS,)) -> list[str]:
        """Return the architectures with these states in every world that needs a primitive and can tell."""
        names = [name for name, own in zip(self.worlds, self.primitives, strict=True) if own == primitive]

        def told(architecture: str) -> list[str]:
            return [found for name in names if (found := self.state(architecture, name)) not in ("", CANNOT_TELL)]

        return [name for name in self.architectures if told(name) and set(told(name)) <= set(states)]

    def headlines(self) -> Sequence[Headline]:
        places = [(name, world) for name in self.own for world in self.worlds]
        n_had = sum(self.state(*place) == HAS for place in places)
        verdict = HAS if n_had == len(places) else PARTLY if n_had else NOT_SHOWN
        label = f"worlds of {len(places)} whose needs are met"
        lines = [Headline(metric="states", label=label, value=n_had, verdict=verdict)]
        for name, world in places:
            at = self.architectures.index(name), self.worlds.index(world)
            if np.isfinite(self.kl_bits.value[at]):
                verdict = self.state(name, world)
                lines.append(headline_of(self, "kl_bits", at, f"{name} on {world}: KL", verdict=verdict))
        return lines

    def answer(self) -> Opening:
        each, strategies = dict[str, list[str]](), dict[str, list[str]]()
        for kind, world in zip(self.primitives, self.worlds, strict=True):
            if kind != MEMORIZE:
                each[kind] = [name for name in self.having(kind) if name in self.own] or ["none"]
                continue
            for name in self.own:
                strategies.setdefault(self.state(name, world), []).append(f"{name} on {world}")
        return Finding.LEARNED.of(learned=each, pools=strategies)

    def table(self) -> str:
        """Return architecture × world: KL and state; below, why cells are blank."""
        from bayesgeom.core.text import aligned_table

        rows = [("KL (bits)", *self.worlds)]
        for at, architecture in enumerate(self.architectures):
            cells = zip(self.kl_bits.value[at], self.worlds, strict=True)
            rows.append((architecture, *(f"{number_text(kl)} {self.state(architecture, name)}" for kl, name in cells)))
        levels = zip(self.shortcut_kl_bits, self.shortcuts, strict=True)
        rows.append(("strongest shortcut", *(f"{number_text(kl)} {name}" for kl, name in levels)))
        notes = zip((f"{own} on {name}" for own in self.architectures for name in self.worlds), self.notes, strict=True)
        below = [f"{cell}: {note}" for cell, note in notes if note]
        return "\n".join([*aligned_table(rows), *([""] if below else []), *below])

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.scorecards.pools import pool_panels

        heat = Panel.blank("Share of the gap between no evidence and exact that each closed", is_wide=True)
        closed = np.clip(self.gap_closed.value, 0, 1)
        limits: dict[str, Any] = {"limits": (0.0, 1.0), "axes": ("world", "architecture")}
        add_heat(heat.figure, closed, unit="share of the gap closed", names=(self.architectures, self.worlds), **limits)
        return [self._primitive_panel(), heat, *pool_panels(self.cells()), *self._curves()]

    def _primitive_panel(self) -> Panel:
        from bayesgeom.charts.heat import add_heat

        kinds = list(dict.fromkeys(self.primitives))
        reached = [[self.having(kind, states) for states in _MARKS.values()] for kind in kinds]
        levels = np.array([[sum(own in names for names in each) for each in reached] for own in self.architectures])
        values, texts = np.where(levels > 0, (levels - 1) / 2, np.nan), np.array(["", *_MARKS])[levels.ravel()].tolist()
        marks = ", ".join(f"{mark} {states[-1]}" for mark, states in reversed(_MARKS.items()))
        panel = Panel.blank(f"Who infers what? {marks} within this budget, at the best of these rates", is_wide=True)
        axes: dict[str, Any] = {"limits": (0.0, 1.0), "axes": ("what worlds need", "architecture")}
        add_heat(panel.figure, values, unit="state", names=(self.architectures, kinds), **axes)
        panel.figure.update_traces(text=texts, selector={"name": "cells"})
        panel.figure.update_xaxes(ticktext=kinds, tickangle=-35, title_text=axes["axes"][0])
        return panel

    def _curves(self) -> Iterator[Panel]:
        from bayesgeom.charts.lines import add_line, add_reference
        from bayesgeom.report.theme import SERIES, label_axes

        rates = np.array(list(map(float, self.rates)))
        for place, world in enumerate(self.worlds):
            learning = Panel.blank(f"{world}: KL by step, at the best rate", is_folded=place > 0)
            chosen = Panel.blank(f"{world}: KL by learning rate", is_folded=place > 0)
            level = np.full(2, self.shortcut_kl_bits[place])
            ends = self.step[np.isfinite(self.step) & (self.step > 0)]
            if len(ends):
                add_reference(learning.figure, ends[[0, -1]], level, name=self.shortcuts[place])
            add_reference(chosen.figure, rates[[0, -1]], level, name=self.shortcuts[place])
            for at, architecture in enumerate(self.architectures):
                line: dict[str, Any] = {"name": architecture, "color": SERIES[at % len(SERIES)]}
                add_line(learning.figure, self.step[1:], self.curve_kl_bits[at, place, 1:], **line)
                add_line(chosen.figure, rates, self.rate_kl_bits[at, place], **line)
            for panel, title in ((learning, "step"), (chosen, "peak learning rate")):
                panel.figure.update_xaxes(type="log")
                panel.figure.update_yaxes(type="log")
                label_axes(panel.figure, title, "KL(exact ‖ model) (bits)")
                yield panel


def card_of(
    rows: Sequence[Row], worlds: Sequence[World], *, arguments: Mapping[str, Any], reference: Sequence[Row] = ()
) -> Scorecard:
    """Return the report of the rows of cells.

    Args:
        rows: The rows, of any architectures.
        worlds: The worlds, in the order of the table.
        arguments: Arguments of the scorecard, for its provenance.
        reference: Rows of networks that were trained beforehand.
    """
    rows = [*rows, *(replace(row, architecture=row.architecture + SHIPPED) for row in reference)]
    architectures = tuple(dict.fromkeys(row.architecture for row in rows))
    rates = tuple(sorted({row.rate for row in rows}))
    n_seeds = 1 + max((row.seed for row in rows), default=0)
    found = {
        (own, world.name): _Found(rows, own, world, rates, n_seeds)
        for own, world in itertools.product(architectures, worlds)
    }
    shape = len(architectures), len(worlds)

    def table(name: str, *more: int) -> Any:
        values = [getattr(cell, name) for cell in found.values()]
        return np.array(values, dtype=np.float64).reshape(*shape, *more)

    def estimate(name: str, baselines: Sequence[Baseline] = ()) -> Estimate:
        value, low, high = np.moveaxis(table(name, 3), -1, 0)
        return Estimate.of(value, (low, high), n=len(value), baselines=baselines)

    shortcuts = [_shortcut([found[own, world.name] for own in architectures]) for world in worlds]
    levels = np.array([level for _, level in shortcuts])
    trained = {"name": ", ".join(_trained(architectures)), "architecture": "several"}
    steps = next((cell.steps for cell in found.values() if np.isfinite(cell.steps).any()), np.full(N_CURVE + 1, np.nan))
    return Scorecard(
        architectures=architectures,
        worlds=tuple(world.name for world in worlds),
        primitives=tuple(world.primitive for world in worlds),
        rates=tuple(f"{rate:g}" for rate in rates),
        kl_bits=estimate("kl_bits", [Baseline.of("baseline", "strongest shortcut", np.tile(levels, (shape[0], 1)))]),
        gap_closed=estimate("gap_closed"),
        beyond=estimate("beyond"),
        slope=estimate("slope"),
        capacity=table("capacity"),
        shortcuts=tuple(name for name, _ in shortcuts),
        shortcut_kl_bits=levels,
        best_rate=table("rate"),
        parameters=np.array([_first(row) for row in table("parameters")]),
        seconds=table("seconds"),
        seed_kl_bits=table("seed_kl_bits", n_seeds),
        rate_kl_bits=table("rate_kl_bits", len(rates)),
        step=steps,
        curve_kl_bits=table("curve", len(steps)),
        states=tuple(cell.state for cell in found.values()),
        notes=tuple(cell.note for cell in found.values()),
        weights=tuple(cell.weights for cell in found.values()),
        rows={field.name: tuple(vars(row)[field.name] for row in rows) for field in fields(Row)},
        n=SCORED,
        provenance=provenance(trained, "worlds", arguments),
    )


_NONE = (math.nan,) * 3
_Key = TypeVar("_Key", int, float)


def _trained(architectures: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in architectures if not name.endswith(SHIPPED)) or architectures


def _first(values: Float[np.ndarray, " world"]) -> float:
    """Return the first known value; NaN if there is none."""
    return next((float(value) for value in values if not math.isnan(value)), math.nan)


def _shortcut(cells: "Sequence[_Found]") -> tuple[str, float]:
    """Return name and KL of the strongest shortcut of a world, from the first cell that was scored."""
    return next((cell.shortcut for cell in cells if cell.shortcut[0]), ("", math.nan))


@final
class _Found:
    """What the rows of one architecture in one world say."""

    def __init__(
        self, rows: Sequence[Row], architecture: str, world: World, rates: Sequence[float], n_seeds: int
    ) -> None:
        rows = [row for row in rows if (row.architecture, row.world) == (architecture, world.name)]
        self._rows, self._world = rows, world
        ends = {rate: row.value for rate, row in _ends(self._all("validation_kl_bits"), lambda row: row.rate).items()}
        failed = self._all("failed")
        scored = {row.rate for row in self._all("kl_bits")}
        known = {rate: kl for rate, kl in ends.items() if rate in scored and math.isfinite(kl)}
        self.rate = min(known, key=known.__getitem__) if known else math.nan
        self._best = [row for row in rows if row.rate == self.rate]
        self._chosen = [row for row in self._best if row.seed == self._seed()]
        kl = next((row for row in self._chosen if row.quantity == "kl_bits"), None)
        self.kl_bits = _NONE if kl is None else (kl.value, kl.lower, kl.upper)
        self.weights, self.seconds = ("", math.nan) if kl is None else (kl.weights, kl.seconds)
        self.note = failed[0].setting if failed and not known else ""
        self.parameters = next((row.value for row in self._all("parameters")), math.nan)
        level = next((row.value for row in self._all("context_free_kl_bits")), math.nan)
        self.shortcut = next(((row.setting, row.value) for row in self._all("shortcut_kl_bits")), ("", math.nan))
        self.gap_closed, self.beyond = _closed(self.kl_bits, level), _closed(self.kl_bits, self.shortcut[1])
        can_tell = self.shortcut[1] >= max(LEAST_BITS, LEAST_SHARE * level)
        response = next((row for row in self._chosen if row.quantity == "slope"), None)
        self.slope = _NONE if response is None else (response.value, response.lower, response.upper)
        named = {int(row.setting): row.value for row in self._chosen if row.quantity == "named"}
        bits = {int(row.setting): row.value for row in self._chosen if row.quantity == "kl_bits_at"}
        unbound = [at for at, share in named.items() if share < NAMED or bits[at] > _CAPACITY_BITS]
        self._unbound = {at: f"{named[at]:.1%} of {at} ({number_text(bits[at])} bits)" for at in unbound}
        self.capacity = float(max(set(named) - set(self._unbound), default=0)) if named else math.nan
        self.state = self._state(response, can_tell=can_tell)
        if named and not self.note:
            self.note = self._binding_note()
        if not self.note and abs(self.parameters / PARAMETERS - 1) > 0.2:
            self.note = f"{self.parameters:,.0f} parameters without embeddings; the reference has {PARAMETERS:,}"
        self.rate_kl_bits = [ends.get(rate, math.nan) for rate in rates]
        seeds = {row.seed: row.value for row in self._best if row.quantity == "kl_bits"}
        self.seed_kl_bits = [seeds.get(seed, math.nan) for seed in range(n_seeds)]
        first = [row for row in self._chosen if row.quantity == "validation_kl_bits"]
        padding = [math.nan] * (N_CURVE + 1 - len(first))
        self.steps = np.array([row.step for row in first] + padding, dtype=np.float64)[: N_CURVE + 1]
        self.curve = ([row.value for row in first] + padding)[: N_CURVE + 1]

    def _all(self, quantity: str) -> list[Row]:
        return [row for row in self._rows if row.quantity == quantity and row.seed == 0]

    def _seed(self) -> int:
        """Return the seed that held-out sequences choose among the trainings at the best rate."""
        scored = {row.seed for row in self._best if row.quantity == "kl_bits" and math.isfinite(row.value)}
        ends = _ends([row for row in self._best if row.seed in scored], lambda row: row.seed)
        return min(ends, key=lambda seed: ends[seed].value, default=0)

    @property
    def _pairs(self) -> list[int]:
        """The numbers of pairs of the world's stages, in their order."""
        return [vars(task).get("n_pairs", 0) for task in self._world.stages]

    def _binding_note(self) -> str:
        """Return which stage the training did not reach, or which smaller numbers of pairs it has forgotten; or ""."""
        (end,) = _ends(self._chosen, lambda row: row.seed).values()
        reached = self._pairs[int(end.setting) - 1]
        if reached < self._pairs[-1]:
            return f"it was trained on at most {reached} pairs: 97 % were not named in time"
        forgotten = [text for pairs, text in self._unbound.items() if pairs < self.capacity]
        return f"it names {self.capacity:.0f} pairs, but {', '.join(forgotten)}" if forgotten else ""

    def _state(self, response: Row | None, *, can_tell: bool) -> str:
        """Return what the cell shows of its world's primitive."""
        if not self._rows:
            return ""
        if math.isnan(self.kl_bits[0]):
            return FAILED
        if response is not None:
            return {Verdict.TRANSPORTS: HAS, Verdict.IN_PART: PARTLY}.get(Verdict(response.setting), NOT_SHOWN)
        if self._world.primitive == "bind":
            is_whole = self.capacity >= max(self._pairs) and not set(self._pairs) & set(self._unbound)
            return HAS if is_whole else PARTLY if self.capacity > 0 or self.beyond[1] > 0 else NOT_SHOWN
        if self._world.primitive == MEMORIZE:
            return _strategy([row for row in self._chosen if row.step == max(each.step for each in self._chosen)])
        if not can_tell:
            return CANNOT_TELL
        return HAS if self.beyond[1] > _HALF else PARTLY if self.beyond[1] > 0 else NOT_SHOWN


def _ends(rows: Sequence[Row], key: Callable[[Row], _Key]) -> dict[_Key, Row]:
    """Return the last check on held-out sequences, by rate or by seed."""
    checks = (row for row in rows if row.quantity == "validation_kl_bits")
    return {key(row): row for row in sorted(checks, key=lambda row: row.step)}


def _strategy(rows: Sequence[Row]) -> str:
    """Return which observer the predictions are those of, by more than half of the weight on new chains."""
    fresh = [row for row in rows if row.setting == SEQUENCES[1] and row.quantity in OBSERVERS]
    return next((row.quantity for row in fresh if row.lower > _HALF), "neither")


def _closed(kl: tuple[float, ...], level: float) -> tuple[float, float, float]:
    """Return 1 − KL / level, with its interval; that of the level, which has the same sequences, is left out."""
    value, low, high = (1 - bits / level if level > 0 else math.nan for bits in (kl[0], kl[2], kl[1]))
    return value, low, high
