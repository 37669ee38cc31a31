"""The comparison report: per task and architecture, how far a model is from the exact posterior, and what follows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.comparison.cell import Cell
from bayesgeom.comparison.verdict import (
    PRIMITIVE_OF,
    PUBLISHED,
    PUBLISHED_ACCURACY,
    RULE,
    TRANSPORT_TASKS,
    cell_verdict,
    standing,
    transport_verdict,
    verdict,
)
from bayesgeom.models.native.state_size import state_floats
from bayesgeom.results.cells import number_cell
from bayesgeom.results.report import Headline, Report, aligned
from bayesgeom.results.tables import markdown
from bayesgeom.stats.bootstrap import mean_interval, r2_interval, ratio_interval
from bayesgeom.training.scores import Scores

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

EXACT_BITS = 1e-6  # a baseline this close to the posterior is exact


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonReport(Report):
    """One entry per trained model, named by its checkpoint.

    `share_closed` is 1 − KL(model) / KL(best context-free predictor): 1 is the exact posterior, 0 no better than that
    predictor. `accuracy_where_known` counts positions whose answer the posterior knows, NaN without any; `trained_on`
    counts sequences, in all stages. `verdicts` are those of single trainings, `cell_verdicts` of all seeds of the
    cell at the same budget. `strongest_baselines` and their KL: the best of the task's baselines, which see
    the context and lack what the row tests. `memory_symbols` is the effective memory, NaN without latent dynamics.
    """

    name: ClassVar[str] = "comparison"
    title: ClassVar[str] = "Who can accumulate, transport and bind"
    about: ClassVar[str] = (
        "Each row of the heat map is a task that tests one primitive, each column an architecture with as many "
        "parameters, trained on the same sequences in the same order. The color is the share of the gap closed between "
        "the best context-free predictor, at 0, and the exact posterior, at 1. Equal data, budget and parameters "
        "do not make the comparison fair where hyperparameters were found on one architecture: the table states the "
        f"search, the targets, the state size and the seeds of every cell. The rule of the verdicts: {RULE}."
    )

    checkpoints: tuple[str, ...]
    tasks: tuple[str, ...]
    architectures: tuple[str, ...]
    task_of: tuple[str, ...]
    architecture_of: tuple[str, ...]
    is_check: tuple[bool, ...]
    verdicts: tuple[str, ...]
    cell_verdicts: tuple[str, ...]
    published: tuple[str, ...]
    standings: tuple[str, ...]
    targets: tuple[str, ...]
    rate_search: tuple[str, ...]
    strongest_baselines: tuple[str, ...]
    weights_hashes: tuple[str, ...]
    missing: tuple[str, ...]  # requested, not there, and not to be trained
    n_parameters: Int[np.ndarray, " checkpoint"]
    n_state_floats: Int[np.ndarray, " checkpoint"]
    n_seeds: Int[np.ndarray, " checkpoint"]
    rate_trials: Int[np.ndarray, " checkpoint"]
    trained_on: Int[np.ndarray, " checkpoint"]
    kl_bits: Float[np.ndarray, " checkpoint"]
    kl_bits_lo: Float[np.ndarray, " checkpoint"]
    kl_bits_hi: Float[np.ndarray, " checkpoint"]
    kl_bits_null: Float[np.ndarray, " checkpoint"]
    strongest_baseline_kl_bits: Float[np.ndarray, " checkpoint"]
    entropy_mae_bits: Float[np.ndarray, " checkpoint"]
    entropy_mae_bits_lo: Float[np.ndarray, " checkpoint"]
    entropy_mae_bits_hi: Float[np.ndarray, " checkpoint"]
    entropy_mae_bits_null: Float[np.ndarray, " checkpoint"]
    share_closed: Float[np.ndarray, " checkpoint"]
    share_closed_lo: Float[np.ndarray, " checkpoint"]
    share_closed_hi: Float[np.ndarray, " checkpoint"]
    share_closed_null: Float[np.ndarray, " checkpoint"]
    accuracy_where_known: Float[np.ndarray, " checkpoint"]
    accuracy_where_known_lo: Float[np.ndarray, " checkpoint"]
    accuracy_where_known_hi: Float[np.ndarray, " checkpoint"]
    accuracy_where_known_null: Float[np.ndarray, " checkpoint"]
    memory_symbols: Float[np.ndarray, " checkpoint"]
    memory_symbols_hi: Float[np.ndarray, " checkpoint"]
    window_gap_bits: Float[np.ndarray, " checkpoint"]
    share_by_task: Float[np.ndarray, "task architecture"]  # mean over seeds at the stated budget
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        said = zip(self.checkpoints, self.verdicts, self.standings, strict=True)
        return tuple(
            self.entry("share_closed", (index,), f"{name}: {found}, {_of_cell(stands)}; share closed")
            for index, (name, found, stands) in enumerate(said)
        )

    def figure(self) -> "Figure":
        from bayesgeom.comparison.drawing import comparison_figure

        primitives = [f"{task}<br>({PRIMITIVE_OF[task]})" for task in self.tasks]
        models = (self.checkpoints, self.share_closed, (self.share_closed_lo, self.share_closed_hi))
        return comparison_figure(self.title, self.share_by_task, primitives, self.architectures, models)

    def table(self, *, is_markdown: bool = False) -> str:
        """Return two tables, as text or Markdown: what was measured, and on what terms. The rule stands below."""
        indices = range(len(self.checkpoints))
        measured = _lines([_MEASURED, *(self._measured(index) for index in indices)], is_markdown)
        terms = _lines([_TERMS, *(self._terms(index) for index in indices)], is_markdown)
        missing = [f"Not trained: {', '.join(self.missing)}."] if self.missing else []
        rule = f"{_BASELINES} {RULE[0].upper()}{RULE[1:]}."
        return "\n".join([*measured, "", *terms, "", rule, *missing])

    def _measured(self, index: int) -> tuple[str, ...]:
        kl, entropy, share, accuracy = (self.entry(metric, (index,), "") for metric in _METRICS)
        strongest = number_cell(float(self.strongest_baseline_kl_bits[index]))
        if self.strongest_baseline_kl_bits[index] < EXACT_BITS:
            strongest = "exact"
        return (
            self.checkpoints[index],
            _estimate(kl, ".4f"),
            f"{kl.null:.4f}",
            f"{self.strongest_baselines[index]}: {strongest}",
            _estimate(entropy, ".4f"),
            _estimate(share, ".3f"),
            f"{_estimate(accuracy, '.1%')}{'' if math.isnan(accuracy.null) else f'; chance {accuracy.null:.1%}'}",
            _memory(float(self.memory_symbols[index]), float(self.memory_symbols_hi[index])),
            self.verdicts[index],
            "check" if self.is_check[index] else self.cell_verdicts[index],
            self.published[index] or "–",
            "check" if self.is_check[index] else self.standings[index],
        )

    def _terms(self, index: int) -> tuple[str, ...]:
        return (
            self.checkpoints[index],
            PRIMITIVE_OF[self.task_of[index]],
            f"{self.n_parameters[index]:,}",
            f"{self.n_state_floats[index]:,}",
            f"{self.trained_on[index]:,}",
            self.targets[index],
            self.rate_search[index],
            f"{self.n_seeds[index]}{', twice the budget' if self.is_check[index] else ''}",
        )


_MEASURED = (
    "checkpoint", "KL (bits)", "context-free", "strongest baseline, KL", "entropy error (bits)", "share closed",
    "accuracy where known", "effective memory", "this training", "verdict on the cell", "published", "standing",
)  # fmt: skip
_TERMS = (
    "checkpoint", "primitive", "parameters", "state (floats)", "trained on", "targets", "hyperparameter search",
    "seeds",
)  # fmt: skip
_BASELINES = (
    "Share closed is measured from the best context-free predictor; the strongest baseline sees the context and lacks "
    "what the row tests (“exact”: the row tests no more than that baseline does)."
)
_METRICS = ("kl_bits", "entropy_mae_bits", "share_closed", "accuracy_where_known")


def comparison_report(
    cells: Sequence[Cell], scores: Sequence[Scores], *, seed: int, missing: Sequence[str] = ()
) -> ComparisonReport:
    """Put together intervals over sequences, verdicts on trainings and cells, and the terms of every cell."""
    numbers = [_numbers(own, seed) for own in scores]
    verdicts = [
        verdict_on(cell.task, found["share_closed"], own.memory_symbols, own.window_gap_bits)
        for cell, own, found in zip(cells, scores, numbers, strict=True)
    ]
    metrics: dict[str, Any] = {metric: np.array([own[metric] for own in numbers]) for metric in numbers[0]}
    strongest = [min(own.baseline_kl_bits.items(), key=lambda entry: entry[1]) for own in scores]
    return ComparisonReport(
        checkpoints=tuple(cell.name for cell in cells),
        tasks=tuple(dict.fromkeys(cell.task for cell in cells)),
        architectures=tuple(dict.fromkeys(cell.architecture for cell in cells)),
        task_of=tuple(cell.task for cell in cells),
        architecture_of=tuple(cell.architecture for cell in cells),
        is_check=tuple(cell.is_check for cell in cells),
        **stated(cells, verdicts),
        strongest_baselines=tuple(name for name, _ in strongest),
        weights_hashes=tuple(own.weights_hash for own in scores),
        missing=tuple(missing),
        n_parameters=np.array([own.n_parameters for own in scores]),
        trained_on=np.array([cell.recipe.n_sequences for cell in cells]),
        strongest_baseline_kl_bits=np.array([level for _, level in strongest]),
        memory_symbols=np.array([own.memory_symbols for own in scores]),
        memory_symbols_hi=np.array([own.memory_symbols_hi for own in scores]),
        window_gap_bits=np.array([own.window_gap_bits for own in scores]),
        **metrics,
        share_by_task=_by_task(cells, [own["share_closed"] for own in numbers]),
        intervals={},
        nulls={},
        n=len(scores[0].kl_bits),
    )


def stated(cells: Sequence[Cell], verdicts: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a report that follow from the cells and the verdicts on their trainings."""
    of_cell = [_cell_verdict(cell, cells, verdicts) for cell in cells]
    return {
        "verdicts": tuple(verdicts),
        "cell_verdicts": tuple(of_cell),
        "published": tuple(_published(cell) for cell in cells),
        "standings": tuple(
            standing(_verdict_published(cell), found, is_published_size=cell.has_published_sizes)
            for cell, found in zip(cells, of_cell, strict=True)
        ),
        "targets": tuple(cell.targets for cell in cells),
        "rate_search": tuple(cell.rate_search for cell in cells),
        "n_state_floats": np.array([state_floats(c.recipe.model_config(), c.recipe.task.n_pos) for c in cells]),
        "n_seeds": np.array([len(_seeds_of(cell, cells, verdicts)) for cell in cells]),
        "rate_trials": np.array([cell.rate_trials for cell in cells]),
    }


def verdict_on(task: str, share_closed: float, memory_symbols: float, window_gap_bits: float) -> str:
    """Return the verdict on one training: by effective memory where the task has latent dynamics, else by share."""
    if task in TRANSPORT_TASKS:
        return transport_verdict(memory_symbols, window_gap_bits)
    return "not decided: share of the gap not measured" if math.isnan(share_closed) else verdict(share_closed)


def _of_cell(stands: str) -> str:
    return stands if stands.startswith("not ") else f"the cell: {stands}"


def _lines(rows: list[tuple[str, ...]], is_markdown: bool) -> list[str]:
    return markdown(rows[0], rows[1:]).split("\n") if is_markdown else aligned(rows)


def _estimate(line: Headline, spec: str) -> str:
    if math.isnan(line.value):
        return "–"
    return f"{line.value:{spec}}" + ("" if math.isnan(line.lo) else f" [{line.lo:{spec}}, {line.hi:{spec}}]")


def _memory(symbols: float, most: float) -> str:
    return "–" if math.isnan(symbols) else f"{symbols:g} [{symbols:g}, {most:g}]"


def _seeds_of(cell: Cell, cells: Sequence[Cell], verdicts: Sequence[str]) -> list[str]:
    """Verdicts on the trainings of a cell at the same budget."""
    return [
        found
        for other, found in zip(cells, verdicts, strict=True)
        if (other.task, other.architecture, other.is_check) == (cell.task, cell.architecture, cell.is_check)
    ]


def _cell_verdict(cell: Cell, cells: Sequence[Cell], verdicts: Sequence[str]) -> str:
    return cell_verdict(_seeds_of(cell, cells, verdicts))


def _verdict_published(cell: Cell) -> str | None:
    return PUBLISHED.get(cell.task, {}).get(cell.architecture)


def _published(cell: Cell) -> str:
    """The published verdict; for recall with the figure and the sizes that it holds at."""
    found = _verdict_published(cell) or ""
    if found and PRIMITIVE_OF[cell.task] == "binding" and cell.architecture in PUBLISHED_ACCURACY:
        return f"{found} ({PUBLISHED_ACCURACY[cell.architecture]:.1%} at 64 pairs)"
    return found


def _by_task(cells: Sequence[Cell], shares: Sequence[float]) -> Float[np.ndarray, "task architecture"]:
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    architectures = list(dict.fromkeys(cell.architecture for cell in cells))
    total, count = (np.zeros((len(tasks), len(architectures))) for _ in range(2))
    for cell, share in zip(cells, shares, strict=True):
        if not cell.is_check:
            at = tasks.index(cell.task), architectures.index(cell.architecture)
            total[at] += share
            count[at] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _numbers(scores: Scores, seed: int) -> dict[str, float]:
    """Each number with its interval, over the same sequences."""
    own, free, known, correct = (
        np.asarray(v, dtype=np.float64)
        for v in (scores.kl_bits, scores.context_free_kl_bits, scores.known, scores.known_correct)
    )
    n_known = float(known.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        estimates = {
            "kl_bits": (own.mean(), mean_interval(own, seed=seed)),
            "entropy_mae_bits": (scores.entropy_error_bits.mean(), mean_interval(scores.entropy_error_bits, seed=seed)),
            "share_closed": (1 - own.sum() / free.sum(), r2_interval(own, free, seed=seed)),
            "accuracy_where_known": (correct.sum() / n_known, ratio_interval(correct, known, seed=seed)),
        }
    found = {
        "kl_bits_null": float(free.mean()),
        "entropy_mae_bits_null": float(scores.context_free_entropy_error_bits.mean()),
        "share_closed_null": 0.0,
        "accuracy_where_known_null": float(scores.context_free_known_correct.sum()) / n_known if n_known else math.nan,
    }
    for metric, (value, (lo, hi)) in estimates.items():
        found |= {metric: float(value), f"{metric}_lo": float(lo), f"{metric}_hi": float(hi)}
    return found
