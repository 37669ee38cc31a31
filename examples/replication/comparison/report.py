"""The comparison report: distance from the exact posterior per task and architecture, and verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.text import aligned_table, number_text, percent_text
from bayesgeom.report.estimate import (
    AtMostOne,
    Baseline,
    Estimate,
    NonNegative,
    Quantity,
    Share,
    Unit,
    mean_estimate,
    with_interval,
)
from bayesgeom.report.render import markdown
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, Level, headline_of
from bayesgeom.stats.bootstrap import r2_interval, ratio_interval
from bayesgeom.stats.windows import TRANSPORT_BITS, TRANSPORT_WINDOW
from examples.replication.comparison.cell import Cell
from examples.replication.comparison.scores import CONTEXT_FREE, Scores
from examples.replication.comparison.state_size import state_floats
from examples.replication.comparison.verdict import (
    LIMITED,
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

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

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
        "equivalent window instead: the width of the narrowest window observer that a model does not beat. "
        "Equal data, budget and parameters do not make the comparison fair if hyperparameters were tuned on one "
        "architecture. The saved report holds the hyperparameter search, targets, state size and seeds of every cell."
        f"\n\n{RULE}"
    )

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
        Estimate, Quantity("checkpoint", unit="symbols", better="higher", label="equivalent window")
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
        return _cell_verdicts(self._cells(), self.verdicts)

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
        rulings = zip(self.checkpoints, self.verdicts, self.cell_verdicts, self.is_check, strict=True)
        found = [outcome if is_check else of_cell for _, outcome, of_cell, is_check in rulings]
        shares = [
            replace(headline_of(self, "share_closed", (index,), f"{name}, share closed"), verdict=found[index])
            for index, name in enumerate(self.checkpoints)
        ]
        return (*shares, *(self._memory(index, found[index]) for index in self._transporting()))

    def _memory(self, index: int, verdict: str) -> Headline:
        """The equivalent window of one training, with the width that transport has to exceed as its baseline."""
        line = headline_of(self, "memory_symbols", at=(index,), label=f"{self.checkpoints[index]}, equivalent window")
        return replace(line, verdict=verdict, levels=(Level(name="transport needs more", value=TRANSPORT_WINDOW),))

    def _transporting(self) -> list[int]:
        """The trainings whose verdict follows from equivalent window."""
        rows = enumerate(zip(self.task_of, self.window_gap_bits, strict=True))
        return [index for index, (task, gap) in rows if task in TRANSPORT_TASKS and gap >= TRANSPORT_BITS]

    def panels(self) -> "Sequence[Panel]":
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.report.panels import Panel
        from bayesgeom.report.theme import BASELINE

        untestable = [
            task for task, outcome in zip(self.task_of, self.verdicts, strict=True) if outcome == NOT_TESTABLE
        ]
        primitives = {task: PRIMITIVE_OF[task].replace(" and ", "\nand ") for task in self.tasks}
        more = {task: ",\nnot testable" * (task in untestable) for task in self.tasks}
        rows = [f"{task}\n({primitives[task]}{more[task]})" for task in self.tasks]
        levels = ((0.0, CONTEXT_FREE), (LIMITED, "limited"), (REALIZED, "realized"))
        named = ", ".join(f"{name} {level:g}" for level, name in levels)  # on the lines, the names would cover rows
        title = "Share of the gap closed (context-free predictor: 0)"
        shares = Panel.blank(title, is_wide=True, note="–: not trained" * bool(np.isnan(self.share_by_task()).any()))
        title = f"Every trained model (dotted lines: {named})"
        models = Panel.blank(title, is_wide=True)
        axes, names = ("architecture", ""), (rows, self.architectures)  # a title of y would lie on the tasks' names
        own, limits = self.share_by_task(), (0.0, 1.0)
        add_heat(shares.figure, own, unit="share closed", baseline=0.0, names=names, axes=axes, limits=limits)
        low, high = self.share_closed.ends
        shown = np.maximum(self.share_closed.value, -0.25)  # a model may be worse than that predictor by any amount
        add_forest(
            models.figure, self.checkpoints, shown, (np.maximum(low, -0.25), high), unit="share closed", levels={}
        )
        for level, _ in levels:
            models.figure.add_vline(x=level, line={"color": BASELINE, "dash": "dot", "width": 1})
        return shares, models

    def table(self, *, is_markdown: bool = False) -> str:
        """Return two tables, measurements and terms, and the rule, as text or Markdown."""
        indices = range(len(self.checkpoints))
        measured = _lines([_MEASURED, *(self._measured(index) for index in indices)], is_markdown)
        terms = _lines([_TERMS, *(self._terms(index) for index in indices)], is_markdown)
        missing = [f"Not trained, or without weights here: {', '.join(self.missing)}."] if self.missing else []
        rule = f"{_BASELINES} {RULE}"
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
    "equivalent window",
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
    "beats all up to 10; still wider ones are nearer to exact. Equivalent window is the width of the narrowest "
    "observer, of any width, that a model does not beat."
)


def comparison_report(
    cells: Sequence[Cell], scores: Sequence[Scores], *, seed: int, missing: Sequence[str] = ()
) -> ComparisonReport:
    """Return the report: intervals over sequences, verdicts on trainings, and the terms of every cell."""
    kl, free = _columns([own.kl_bits for own in scores]), _columns([own.context_free_kl_bits for own in scores])
    errors = _columns([own.entropy_error_bits for own in scores])
    free_errors = _columns([own.context_free_entropy_error_bits for own in scores])
    levels = _task_baselines(free.mean(axis=0), [own.baseline_kl_bits for own in scores])
    with np.errstate(divide="ignore", invalid="ignore"):
        closed = 1 - kl.sum(axis=0) / free.sum(axis=0)
        shares = with_interval(closed, r2_interval(kl, free, seed=seed), n=len(kl), baselines=_shares_of(levels))
    verdicts = [
        _verdict_on(cell.task, float(share), own.memory_symbols, own.window_gap_bits)
        for cell, own, share in zip(cells, scores, shares.value, strict=True)
    ]
    memory = np.array([own.memory_symbols for own in scores])
    longest = np.array([own.most_memory_symbols for own in scores])
    return ComparisonReport(
        checkpoints=tuple(cell.name for cell in cells),
        task_of=tuple(cell.task for cell in cells),
        architecture_of=tuple(cell.architecture for cell in cells),
        is_check=tuple(cell.is_check for cell in cells),
        **_stated(cells, verdicts),
        weights_hashes=tuple(own.weights_hash for own in scores),
        missing=tuple(missing),
        **_sizes(cells, [own.n_parameters for own in scores]),
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


def _task_baselines(
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


def _shares_of(levels: Sequence[Baseline]) -> tuple[Baseline, ...]:
    """Return the shares of the gap that baselines of the KL close: 0 for the context-free predictor."""
    (free,) = (own.value for own in levels if own.name == CONTEXT_FREE)
    with np.errstate(divide="ignore", invalid="ignore"):
        return tuple(Baseline.of("baseline", own.name, 1 - own.value / free) for own in levels)


def _stated(cells: Sequence[Cell], verdicts: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a report that follow from the cells and the verdicts on their trainings."""
    of_cell = _cell_verdicts([cell.place for cell in cells], verdicts)
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


def _cell_verdicts(places: Sequence[tuple[str, str, bool]], verdicts: Sequence[str]) -> tuple[str, ...]:
    """Return the verdict on the cell of each training."""
    required = [seeds_required(task, architecture) for task, architecture, _ in places]
    return tuple(map(cell_verdict, same_cell(places, verdicts), required))


def _sizes(cells: Sequence[Cell], n_parameters: Sequence[int]) -> dict[str, Any]:
    """Return the sizes of each checkpoint as fields of a report: of the model, of its state, and of its training."""
    states = [state_floats(own.recipe.model_config(), own.recipe.task.n_pos) for own in cells]
    trained_on = [own.recipe.n_sequences for own in cells]
    return {"sizes": SIZES, "size_of": np.array([n_parameters, states, trained_on])}


def _verdict_on(task: str, share_closed: float, memory_symbols: float, window_gap_bits: float) -> str:
    """Return the verdict on one training: by equivalent window where the task has latent dynamics, else by share."""
    if task in TRANSPORT_TASKS:
        return transport_verdict(memory_symbols, window_gap_bits)
    return "not decided: share of the gap not measured" if math.isnan(share_closed) else verdict(share_closed)


def _lines(rows: list[tuple[str, ...]], is_markdown: bool) -> list[str]:
    return markdown(rows[0], rows[1:]).split("\n") if is_markdown else aligned_table(rows)


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
            baselines=_task_baselines(free.mean(axis=0) / share, levels),
        )


def _strongest_accuracy(accuracy: Estimate) -> Baseline | None:
    """Return the baseline with the highest accuracy; None if no answer is known."""
    known = [own for own in accuracy.baselines if not math.isnan(float(own.value))]
    return max(known, key=lambda own: float(own.value), default=None)
