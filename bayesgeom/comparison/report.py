"""The comparison report: distance from the exact posterior per task and architecture, and verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.comparison.cell import Cell, cell
from bayesgeom.comparison.verdict import (
    DISAGREE,
    LIMITED,
    NOT_DECIDED,
    NOT_TESTABLE,
    PRIMITIVE_OF,
    PUBLISHED,
    PUBLISHED_ACCURACY,
    REALIZED,
    RULE,
    TRANSPORT_TASKS,
    cell_verdict,
    same_cell,
    seeds_required,
    standing,
    transport_verdict,
    verdict,
)
from bayesgeom.core.text import number_text, percent_text
from bayesgeom.models.native.state_size import state_floats
from bayesgeom.results.estimate import AtMostOne, Baseline, Estimate, NonNegative, Quantity, Share, Unit
from bayesgeom.results.estimators import mean_estimate, with_interval
from bayesgeom.results.findings import FEWEST
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned, markdown
from bayesgeom.stats.bootstrap import r2_interval, ratio_interval
from bayesgeom.stats.memory import TRANSPORT_BITS, TRANSPORT_WINDOW
from bayesgeom.training.scores import Scores

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CONTEXT_FREE = "context-free"
NOTHING, _OPEN = "nothing published", f"{NOT_DECIDED}: "
_AGAINST_PUBLISHED = {  # the standing of a cell, below its verdict
    "as published": "as published",
    "as published at these sizes": "as published, at these sizes",
    "contradicts": "contradicts the published verdict",
    "differs at these sizes": "differs from the published verdict, at these sizes",
}
_ORDER = ("realized", "limited", "not realized", NOT_DECIDED, NOT_TESTABLE)  # of the findings
_TOLD = {
    "realized": "The tested primitive is realized on {}.",
    "limited": "The tested primitive is limited on {}.",
    "not realized": "The tested primitive is not realized on {}.",
    NOT_TESTABLE: f"No verdict is possible on {{}}: the last {TRANSPORT_WINDOW} symbols nearly give the posterior.",
}
EXACT_BITS = 1e-6  # a baseline this close to the posterior is exact


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ComparisonReport(Report):
    """One entry per trained model, named by its checkpoint.

    `share_closed` is 1 − KL(model) / KL(best context-free predictor): 1 is the exact posterior, 0 no better than that
    predictor. Its baselines are the shares that those of `kl_bits` close; the verdict is that of the rule.
    `accuracy_where_known` is over positions where the posterior is certain, NaN without any; `trained_on` counts
    sequences, in all stages. `verdicts` are those of single trainings, `cell_verdicts` those of all seeds of the
    cell at the same budget. The baselines of `kl_bits` are the context-free predictor and the task's baselines, which
    see the context but lack the tested primitive; they are NaN on other tasks. `memory_symbols` is the effective
    memory, NaN without latent dynamics, and `window_gap_bits` the KL of the stationary observer of the last ten
    symbols.
    """

    name: ClassVar[str] = "comparison"
    title: ClassVar[str] = "Which architectures accumulate, transport and bind?"
    about: ClassVar[str] = (
        "Each row of the heat map is a task that tests one primitive, each column an architecture. All have the same "
        "number of parameters and see the same sequences in the same order. The color is the share of the gap between "
        "the best context-free predictor (0) and the exact posterior (1) that is closed. Transport is judged by "
        "effective memory instead: the width of the narrowest window observer that a model does not beat. "
        "Equal data, budget and parameters do not make the comparison fair if hyperparameters were tuned on one "
        "architecture. The saved report holds the hyperparameter search, targets, state size and seeds of every cell."
    )
    rule: ClassVar[str] = RULE

    checkpoints: tuple[str, ...]
    task_of: Annotated[tuple[str, ...], "checkpoint"]
    architecture_of: Annotated[tuple[str, ...], "checkpoint"]
    is_check: Annotated[tuple[bool, ...], "checkpoint"]
    verdicts: Annotated[tuple[str, ...], "checkpoint"]
    published: Annotated[tuple[str, ...], "checkpoint"]
    standings: Annotated[tuple[str, ...], "checkpoint"]
    targets: Annotated[tuple[str, ...], "checkpoint"]
    rate_search: Annotated[tuple[str, ...], "checkpoint"]
    weights_hashes: Annotated[tuple[str, ...], "checkpoint"]
    missing: tuple[str, ...]  # requested, but neither saved nor trained
    sizes: tuple[str, ...]
    size_of: Annotated[Int[np.ndarray, "size checkpoint"], Unit("1")]
    kl_bits: Annotated[Estimate, NonNegative("checkpoint", unit="bits", better="lower", label="KL(exact ‖ model)")]
    entropy_mae_bits: Annotated[Estimate, NonNegative("checkpoint", unit="bits", better="lower", label="entropy error")]
    share_closed: Annotated[Estimate, AtMostOne("checkpoint", better="higher", label="share closed")]
    accuracy_where_known: Annotated[
        Estimate, Share("checkpoint", better="higher", label="accuracy where the answer is known")
    ]
    memory_symbols: Annotated[
        Estimate, Quantity("checkpoint", unit="symbols", better="higher", label="effective memory")
    ]
    window_gap_bits: Annotated[Float[np.ndarray, " checkpoint"], Unit("bits")]
    n: int

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks, each once."""
        return tuple(dict.fromkeys(self.task_of))

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of the architectures, each once."""
        return tuple(dict.fromkeys(self.architecture_of))

    @property
    def cell_verdicts(self) -> tuple[str, ...]:
        """The verdict on the cell of each checkpoint, from all its trainings at the same budget."""
        return _cell_verdicts(self._cells(), self.verdicts, self.size_of[0].tolist())

    @property
    def n_seeds(self) -> tuple[int, ...]:
        """Number of trainings of each checkpoint's cell at the same budget."""
        return tuple(len(found) for found in same_cell(self._cells(), self.verdicts))

    def strongest_baseline(self, index: int) -> Baseline:
        """Return the baseline with the lowest KL on the task of a checkpoint, the context-free predictor included."""
        found = self.kl_bits[index].hardest_baseline("lower")
        assert found is not None, "every task has a context-free predictor"
        return found

    def share_by_task(self) -> Float[np.ndarray, "task architecture"]:
        """Return the share of the gap closed, mean over seeds at the stated budget; NaN without a training."""
        total, count = (np.zeros((len(self.tasks), len(self.architectures))) for _ in range(2))
        rows = zip(self.task_of, self.architecture_of, self.is_check, self.share_closed.value, strict=True)
        for task, architecture, is_check, share in rows:
            if not is_check:
                at = self.tasks.index(task), self.architectures.index(architecture)
                total[at] += share
                count[at] += 1
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def headlines(self) -> Sequence[Headline]:
        full, found = self._full_rulings(), self._told()
        rows = zip(self.checkpoints, full, self.published, self.standings, self.is_check, strict=True)
        lines = [
            replace(
                self._share_headline(index, f"{name}, share closed"),
                ruling=ruling,
                published=published or NOTHING,
                caveat="check at twice the budget" if is_check else _AGAINST_PUBLISHED.get(stands, ""),
                short_label=f"share of the gap closed ({name})",
            )
            for index, (name, ruling, published, stands, is_check) in enumerate(rows)
        ]
        for place, (index, (finding, subject)) in enumerate(found.items()):
            lines[index] = replace(lines[index], finding=finding, place=place, short_label=subject)
        memories = [self._memory_headline(index, full[index]) for index in self._transporting()]
        nearest = np.argsort(self.kl_bits.value, kind="stable")[: max(0, FEWEST - len(found))]
        distances = [
            replace(headline_of(self, "kl_bits", (at,), f"{name}, KL"), short_label=f"KL of {name}")
            for at, name in ((int(at), self.checkpoints[at]) for at in nearest)
        ]
        return (*lines, *memories, *distances)

    def conclusion(self) -> str:
        first, *others = (finding for finding, _ in self._told().values())
        return f"{first}{self._open_cells() if others else ''}"

    def _open_cells(self) -> str:
        """How many cells have no verdict, as a sentence with a space before it; "" if all have one."""
        rows = zip(self._cells(), self.cell_verdicts, strict=True)
        of_cell = {cell: found for cell, found in rows if not cell[-1]}
        n_open = sum(found.startswith(NOT_DECIDED) for found in of_cell.values())
        n_untestable = sum(found == NOT_TESTABLE for found in of_cell.values())
        counts = [
            f"{n} {'is' if n == 1 else 'are'} {what}"
            for n, what in ((n_open, "not decided"), (n_untestable, "not testable"))
            if n
        ]
        cells = f"{len(of_cell)} cells (one architecture on one task each)"
        return f" Of {cells}, {' and '.join(counts)}." if counts else ""

    def _told(self) -> dict[int, tuple[str, str]]:
        """One finding per verdict, and one for cells whose trainings disagree, with the subject of its number.

        The key is the training that shows the number. Decided verdicts come first, and tasks that test nothing last.
        """
        alike: dict[tuple[str, str], list[int]] = {}
        for index, (ruling, outcome, of_cell) in enumerate(
            zip(self._rulings(), self.verdicts, self.cell_verdicts, strict=True)
        ):
            is_split = of_cell.startswith(DISAGREE) and ruling == NOT_DECIDED
            alike.setdefault((ruling, of_cell if is_split else outcome), []).append(index)
        found: dict[int, tuple[str, str]] = {}
        needs = f"; transport needs more than {TRANSPORT_WINDOW}"  # stated once, where a page first reads a memory
        for ruling, outcome in sorted(alike, key=lambda own: tuple(map(_place, own))):
            places = alike[ruling, outcome]
            memory = self._memory_sentence(places)
            finding = f"{self._finding(places, ruling, outcome)}{f' {memory}{needs}.' if memory else ''}"
            index = self._hardest(places, outcome)
            which = "" if len(places) == 1 else "lowest " if outcome == "realized" else "highest "
            found[index] = finding, f"{which}share of the gap closed ({self.checkpoints[index]})"
            needs = "" if memory else needs
        return found

    def _share_headline(self, index: int, label: str) -> Headline:
        """The share closed by one training next to the strongest and the context-free baseline; the rule decides."""
        line = headline_of(self, "share_closed", (index,), label)
        strongest, *others = line.baseline_name.split("; ")
        free = [own for own in others if own.endswith(f"({CONTEXT_FREE})")]
        return replace(line, verdict="", baseline_name="; ".join([strongest, *free]))

    def _transporting(self, places: Sequence[int] | None = None) -> list[int]:
        """The trainings, of all or of `places`, whose verdict follows from effective memory."""
        chosen = range(len(self.checkpoints)) if places is None else places
        found = [index for index in chosen if self.task_of[index] in TRANSPORT_TASKS]
        return [index for index in found if self.window_gap_bits[index] >= TRANSPORT_BITS]

    def _memory_headline(self, index: int, ruling: str) -> Headline:
        """The effective memory of one training, with the width that transport has to exceed as its baseline."""
        name = self.checkpoints[index]
        line = headline_of(self, "memory_symbols", at=(index,), label=f"{name}, effective memory")
        line = replace(line, short_label=f"effective memory of {name}", verdict="", ruling=ruling)
        return replace(line, baseline=float(TRANSPORT_WINDOW), baseline_name="transport needs more")

    def _hardest(self, places: Sequence[int], outcome: str) -> int:
        """The training that comes closest to another verdict: the lowest share if realized, else the highest."""
        worst = min if outcome == "realized" else max
        return worst(places, key=lambda index: float(self.share_closed.value[index]))

    def _finding(self, places: Sequence[int], ruling: str, outcome: str) -> str:
        """A sentence on trainings with one verdict: their cells, why it is open, and where the papers differ."""
        if outcome.startswith(DISAGREE):
            return f"Seeds disagree on {self._seeds(places)}."
        named = self._named(places)
        if ruling != outcome:
            reasons = dict.fromkeys(self.cell_verdicts[index].removeprefix(_OPEN) for index in places)
            why = " or ".join(reasons)
            return f"On {named}, the tested primitive is {outcome} in these trainings, but {why} cannot decide a cell."
        told = _TOLD.get(outcome, f"The tested primitive cannot be judged on {{}}: {outcome.removeprefix(_OPEN)}.")
        differ = ""
        for stands, how in (("contradicts", ""), ("differs at these sizes", ", at other sizes,")):
            if own := [index for index in places if self.standings[index] == stands]:
                differ += f" The published verdict{how} differs for {self._named(own)}."
        return f"{told.format(named)}{differ}"

    def _seeds(self, places: Sequence[int]) -> str:
        """The verdicts of the trainings of each cell: "recall (lstm): limited in 2 of 3 trainings (a, b), …"."""
        cells: dict[str, list[int]] = {}
        for index in places:
            cells.setdefault(self._named([index]), []).append(index)
        texts = []
        for cell_name, own in cells.items():
            named: dict[str, list[str]] = {}
            for index in own:
                named.setdefault(self.verdicts[index], []).append(self.checkpoints[index])
            counts = [
                f"{found} in {len(names)} of {len(own)} trainings ({', '.join(names)})"
                for found, names in named.items()
            ]
            texts.append(f"{cell_name}: {', '.join(counts)}")
        return "; ".join(texts)

    def _memory_sentence(self, places: Sequence[int]) -> str:
        """What decides transport, without a period; "" if no training tests it. Names its cells among others."""
        own = self._transporting(places)
        known = [float(self.memory_symbols.value[index]) for index in own]
        if not known or np.isnan(known).any():
            return ""
        ends = " to ".join(number_text(value) for value in dict.fromkeys((min(known), max(known))))
        where = "" if own == list(places) else f" on {self._named(own)}"
        return f"Effective memory{where} is {ends} symbol{'s' * (ends != '1')}"

    def _named(self, places: Sequence[int]) -> str:
        """The cells of trainings, by task: "bijection (transformer, lstm), recall (transformer)"."""
        of_task: dict[str, dict[str, None]] = {}
        for index in places:
            name = f"{self.architecture_of[index]}{', twice the budget' if self.is_check[index] else ''}"
            of_task.setdefault(self.task_of[index], {})[name] = None
        return ", ".join(f"{task} ({', '.join(names)})" for task, names in of_task.items())

    def _rulings(self) -> tuple[str, ...]:
        """The verdict on the cell of each checkpoint in short; a check has its own."""

        def ruling(outcome: str, cell: str, is_check: bool) -> str:
            is_open = cell.startswith(NOT_DECIDED) and not outcome.startswith(NOT_DECIDED)
            return NOT_DECIDED if is_open and not is_check else outcome

        return tuple(map(ruling, self.verdicts, self.cell_verdicts, self.is_check))

    def _full_rulings(self) -> list[str]:
        """The verdict on the cell of each checkpoint, and that on the training where the cell's is open.

        Where seeds disagree, the finding states the verdict on each training: one of them would look like the cell's.
        """
        both = zip(self._rulings(), self.verdicts, self.cell_verdicts, strict=True)
        return [
            ruling if ruling == outcome or of_cell.startswith(DISAGREE) else f"{ruling} ({outcome})"
            for ruling, outcome, of_cell in both
        ]

    def plot(self) -> "Figure":
        from bayesgeom.comparison.drawing import comparison_figure
        from bayesgeom.results.captions import with_captions

        untestable = self._untestable()
        primitives = [
            f"{task}<br>({PRIMITIVE_OF[task].replace(' and ', '<br>and ')}{',<br>not testable' * (task in untestable)})"
            for task in self.tasks
        ]
        models = (self.checkpoints, self.share_closed)
        figure = comparison_figure(self.title, self.share_by_task(), primitives, self.architectures, models)
        return with_captions(figure, self._captions(untestable))

    def _untestable(self) -> tuple[str, ...]:
        """Return the tasks on which no verdict is possible, because a baseline without the primitive suffices."""
        rows = zip(self.task_of, self.verdicts, strict=True)
        return tuple(dict.fromkeys(task for task, outcome in rows if outcome == NOT_TESTABLE))

    def _captions(self, untestable: Sequence[str]) -> tuple[str, str]:
        """Return what map and rows show on the tasks that can be tested: others are no evidence."""
        others = ", ".join(untestable)
        without = f" Not counted, because it cannot be tested here: {others}." if untestable else ""
        rows = [index for index, task in enumerate(self.task_of) if task not in untestable]
        if not rows:
            none = f"No verdict follows from these {len(self.checkpoints)} trainings."
            return f"{none}{without}", none
        shares = self.share_by_task()[[task not in untestable for task in self.tasks]]
        known = shares[np.isfinite(shares)]
        closed, least = (int((known >= level).sum()) for level in (REALIZED, LIMITED))
        cells = (
            f"Of {len(known)} cells, {closed} close at least {percent_text(REALIZED)} of the gap, "
            f"{len(known) - least} less than {percent_text(LIMITED)}.{without}"
        )
        ends = [pick(rows, key=lambda index: float(self.share_closed.value[index])) for pick in (max, min)]
        texts = [f"{self.checkpoints[index]}, {self.share_closed[index].text()}" for index in ends]
        of = f"Share closed, without {others}" if others else "Share closed"
        return cells, f"{of}. Largest: {texts[0]}; smallest: {texts[1]}."

    def table(self, *, is_markdown: bool = False) -> str:
        """Return two tables, measurements and terms, and the rule, as text or Markdown."""
        indices = range(len(self.checkpoints))
        measured = _lines([_MEASURED, *(self._measured(index) for index in indices)], is_markdown)
        terms = _lines([_TERMS, *(self._terms(index) for index in indices)], is_markdown)
        missing = [f"Not trained, or without weights here: {', '.join(self.missing)}."] if self.missing else []
        rule = f"{_BASELINES} {self.rule}"
        return "\n".join([*measured, "", *terms, "", rule, *missing])

    def _measured(self, index: int) -> tuple[str, ...]:
        strongest, accuracy = self.strongest_baseline(index), self.accuracy_where_known[index]
        level = float(strongest.value)
        without = _strongest_accuracy(accuracy)
        is_check, memory = self.is_check[index], self.memory_symbols[index]
        return (
            self.checkpoints[index],
            self.kl_bits[index].text(),
            number_text(float(self.kl_bits.baseline(CONTEXT_FREE).value[index])),
            f"{strongest.name}: {'exact' if level < EXACT_BITS else number_text(level)}",
            self.entropy_mae_bits[index].text(),
            self.share_closed[index].text(),
            f"{accuracy.text()}{'' if without is None else f'; {without.name} {number_text(float(without.value))}'}",
            memory.text(),
            self.verdicts[index],
            "check" if is_check else self.cell_verdicts[index],
            self.published[index] or "–",
            "check" if is_check else self.standings[index],
        )

    def _terms(self, index: int) -> tuple[str, ...]:
        return (
            self.checkpoints[index],
            PRIMITIVE_OF[self.task_of[index]],
            *(f"{size:,}" for size in self.size_of[:, index]),
            self.targets[index],
            self.rate_search[index],
            f"{self.n_seeds[index]}{', twice the budget' if self.is_check[index] else ''}",
        )

    def _cells(self) -> list[tuple[str, str, bool]]:
        return list(zip(self.task_of, self.architecture_of, self.is_check, strict=True))


SIZES = ("parameters", "state (floats)", "trained on")
_MEASURED = (
    "checkpoint",
    "KL (bits)",
    "context-free",
    "strongest baseline, KL",
    "entropy error (bits)",
    "share closed",
    "accuracy where known",
    "effective memory",
    "this training",
    "verdict on the cell",
    "published",
    "standing",
)
_TERMS = (
    "checkpoint",
    "primitive",
    *SIZES,
    "targets",
    "hyperparameter search",
    "seeds",
)
_BASELINES = (
    "Share closed is measured from the best context-free predictor. The strongest baseline is that of the row with the "
    "lowest KL; all but the context-free predictor see the context and lack what the row tests (“exact”: the row tests "
    "no more than that baseline does). On hidden Markov models a row has the observers of the last 1 to 4 symbols as "
    "baselines. If the model beats these, it also has the narrowest that it does not beat, or that of 10 symbols if it "
    "beats all up to 10; still wider ones are nearer to exact. Effective memory is the width of the narrowest "
    "observer, of any width, that a model does not beat."
)


def comparison_report(
    cells: Sequence[Cell], scores: Sequence[Scores], *, seed: int, missing: Sequence[str] = ()
) -> ComparisonReport:
    """Return the report: intervals over sequences, verdicts on trainings, and the terms of every cell."""
    kl, free = _columns([own.kl_bits for own in scores]), _columns([own.context_free_kl_bits for own in scores])
    errors = _columns([own.entropy_error_bits for own in scores])
    free_errors = _columns([own.context_free_entropy_error_bits for own in scores])
    levels = task_baselines(free.mean(axis=0), [own.baseline_kl_bits for own in scores])
    with np.errstate(divide="ignore", invalid="ignore"):
        closed = 1 - kl.sum(axis=0) / free.sum(axis=0)
        shares = with_interval(closed, r2_interval(kl, free, seed=seed), n=len(kl), baselines=shares_of(levels))
    verdicts = [
        verdict_on(cell.task, float(share), own.memory_symbols, own.window_gap_bits)
        for cell, own, share in zip(cells, scores, shares.value, strict=True)
    ]
    memory = np.array([own.memory_symbols for own in scores])
    longest = np.array([own.most_memory_symbols for own in scores])
    return ComparisonReport(
        checkpoints=tuple(cell.name for cell in cells),
        task_of=tuple(cell.task for cell in cells),
        architecture_of=tuple(cell.architecture for cell in cells),
        is_check=tuple(cell.is_check for cell in cells),
        **stated(cells, verdicts, [own.n_parameters for own in scores]),
        weights_hashes=tuple(own.weights_hash for own in scores),
        missing=tuple(missing),
        **sizes(cells, [own.n_parameters for own in scores]),
        kl_bits=mean_estimate(kl, seed=seed, baselines=levels),
        entropy_mae_bits=mean_estimate(
            errors, seed=seed, baselines=[Baseline.of("baseline", CONTEXT_FREE, free_errors.mean(axis=0))]
        ),
        share_closed=shares,
        accuracy_where_known=_accuracy(scores, seed),
        memory_symbols=Estimate.of(memory, (memory, longest), n=len(kl)),
        window_gap_bits=np.array([own.window_gap_bits for own in scores]),
        n=len(kl),
    )


def _place(verdict: str) -> int:
    """Return the place of a verdict among the findings: decided, open, not testable."""
    return _ORDER.index(NOT_DECIDED if verdict.startswith(NOT_DECIDED) else verdict)


def task_baselines(
    context_free: Float[np.ndarray, " checkpoint"], levels: Sequence[Mapping[str, float]]
) -> tuple[Baseline, ...]:
    """Return the baselines of one quantity of each checkpoint; NaN if its task has none of that name.

    Args:
        context_free: The quantity of the best context-free predictor.
        levels: The quantity of the task's baselines by name, one mapping per checkpoint.
    """
    names = dict.fromkeys(name for own in levels for name in own if name != CONTEXT_FREE)
    others = (Baseline.of("baseline", name, np.array([own.get(name, math.nan) for own in levels])) for name in names)
    return Baseline.of("baseline", CONTEXT_FREE, context_free), *others


def shares_of(levels: Sequence[Baseline]) -> tuple[Baseline, ...]:
    """Return the shares of the gap that baselines of the KL close: 0 for the context-free predictor."""
    (free,) = (own.value for own in levels if own.name == CONTEXT_FREE)
    with np.errstate(divide="ignore", invalid="ignore"):
        return tuple(Baseline.of("baseline", own.name, 1 - own.value / free) for own in levels)


def stated(cells: Sequence[Cell], verdicts: Sequence[str], n_parameters: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a report that follow from the cells and the verdicts on their trainings."""
    of_cell = _cell_verdicts([cell.place for cell in cells], verdicts, n_parameters)
    return {
        "verdicts": tuple(verdicts),
        "published": tuple(map(_published, cells)),
        "standings": tuple(
            standing(_verdict_published(own), found, is_published_size=own.has_published_sizes)
            for own, found in zip(cells, of_cell, strict=True)
        ),
        "targets": tuple(own.targets for own in cells),
        "rate_search": tuple(own.rate_search for own in cells),
    }


def _cell_verdicts(
    places: Sequence[tuple[str, str, bool]], verdicts: Sequence[str], n_parameters: Sequence[int]
) -> tuple[str, ...]:
    """Return the verdict on the cell of each training."""
    required = [
        _required(task, architecture, size) for (task, architecture, _), size in zip(places, n_parameters, strict=True)
    ]
    return tuple(map(cell_verdict, same_cell(places, verdicts), required))


@cache
def _required(task: str, architecture: str, n_parameters: int) -> int:
    return seeds_required(cell(task, architecture).recipe, n_parameters)


def sizes(cells: Sequence[Cell], n_parameters: Sequence[int]) -> dict[str, Any]:
    """Return the sizes of each checkpoint as fields of a report: of the model, of its state, and of its training."""
    states = [state_floats(own.recipe.model_config(), own.recipe.task.n_pos) for own in cells]
    trained_on = [own.recipe.n_sequences for own in cells]
    return {"sizes": SIZES, "size_of": np.array([n_parameters, states, trained_on])}


def verdict_on(task: str, share_closed: float, memory_symbols: float, window_gap_bits: float) -> str:
    """Return the verdict on one training: by effective memory where the task has latent dynamics, else by share."""
    if task in TRANSPORT_TASKS:
        return transport_verdict(memory_symbols, window_gap_bits)
    return "not decided: share of the gap not measured" if math.isnan(share_closed) else verdict(share_closed)


def _lines(rows: list[tuple[str, ...]], is_markdown: bool) -> list[str]:
    return markdown(rows[0], rows[1:]).split("\n") if is_markdown else aligned(rows)


def _verdict_published(cell: Cell) -> str | None:
    return PUBLISHED.get(cell.task, {}).get(cell.architecture)


def _published(cell: Cell) -> str:
    """Return the published verdict, for recall with the published accuracy."""
    found = _verdict_published(cell) or ""
    if found and PRIMITIVE_OF[cell.task] == "binding" and cell.architecture in PUBLISHED_ACCURACY:
        return f"{found} ({percent_text(PUBLISHED_ACCURACY[cell.architecture], 1)} at 64 pairs)"
    return found


def _columns(rows: Sequence[Float[np.ndarray, " sequence"]]) -> Float[np.ndarray, "sequence checkpoint"]:
    return np.stack(rows, axis=1).astype(np.float64)


def _accuracy(scores: Sequence[Scores], seed: int) -> Estimate:
    """Return the accuracy where the answer is known, over the same sequences; NaN if none is known."""
    known, correct = _columns([own.known for own in scores]), _columns([own.known_correct for own in scores])
    free = _columns([own.context_free_known_correct for own in scores])
    share = known.mean(axis=0)
    share[share == 0] = math.nan
    levels = [
        {name: level / own for name, level in each.baseline_known_correct.items()}
        for each, own in zip(scores, share, strict=True)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        return with_interval(
            correct.sum(axis=0) / known.sum(axis=0),
            ratio_interval(correct, known, seed=seed),
            n=len(known),
            baselines=task_baselines(free.mean(axis=0) / share, levels),
        )


def _strongest_accuracy(accuracy: Estimate) -> Baseline | None:
    """Return the baseline with the highest accuracy; None if no answer is known."""
    known = [own for own in accuracy.baselines if not math.isnan(float(own.value))]
    return max(known, key=lambda own: float(own.value), default=None)
