"""The table: per primitive and architecture, how far a model is from the exact posterior, and what that amounts to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.comparison.cell import Cell
from bayesgeom.comparison.verdict import PRIMITIVE_OF, PUBLISHED, RULE, Verdict, standing, verdict
from bayesgeom.report import Headline, Report, aligned
from bayesgeom.statistics import mean_interval, r2_interval, ratio_interval
from bayesgeom.training.scores import Scores

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonReport(Report):
    """One entry per trained model, named by its checkpoint.

    `share_closed` is 1 − KL(model) / KL(best context-free predictor): 1 is the exact posterior, 0 reads nothing, and
    less is worse than that. `accuracy_where_known` counts positions whose answer the posterior knows, NaN without any.
    `trained_on` counts sequences, in all stages. Nulls are those of the context-free predictor.
    """

    name: ClassVar[str] = "comparison"
    title: ClassVar[str] = "Who can accumulate, transport and bind"
    about: ClassVar[str] = (
        "Each row of the heat map is a task that asks for one primitive, each column an architecture with as many "
        "weights, trained on the same sequences in the same order. The colour is the share of the gap closed between "
        "the best predictor that reads nothing, which is the null at 0, and the exact posterior, at 1. "
        f"The rule of the verdicts is: {RULE}."
    )

    checkpoints: tuple[str, ...]
    tasks: tuple[str, ...]
    architectures: tuple[str, ...]
    task_of: tuple[str, ...]
    architecture_of: tuple[str, ...]
    is_check: tuple[bool, ...]
    verdicts: tuple[str, ...]
    published: tuple[str, ...]
    standings: tuple[str, ...]
    weights_hashes: tuple[str, ...]
    missing: tuple[str, ...]  # asked for, not there, and not to be trained
    n_parameters: Int[np.ndarray, " checkpoint"]
    trained_on: Int[np.ndarray, " checkpoint"]
    kl_bits: Float[np.ndarray, " checkpoint"]
    kl_bits_lo: Float[np.ndarray, " checkpoint"]
    kl_bits_hi: Float[np.ndarray, " checkpoint"]
    kl_bits_null: Float[np.ndarray, " checkpoint"]
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
    share_by_task: Float[np.ndarray, "task architecture"]  # mean over seeds at the stated budget
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        said = zip(self.checkpoints, self.verdicts, self.standings, strict=True)
        return tuple(
            self.entry("share_closed", (index,), f"{name}: {found}, {standing}; share closed")
            for index, (name, found, standing) in enumerate(said)
        )

    def figure(self) -> "Figure":
        from bayesgeom.charts.comparison import comparison_figure

        primitives = [f"{task}<br>({PRIMITIVE_OF[task]})" for task in self.tasks]
        models = (self.checkpoints, self.share_closed, (self.share_closed_lo, self.share_closed_hi))
        return comparison_figure(self.title, self.share_by_task, primitives, self.architectures, models)

    def table(self, *, is_markdown: bool = False) -> str:
        """All cells as the command line prints them, or as Markdown, and the rule below."""
        rows = [_HEADER, *(self._row(index) for index in range(len(self.checkpoints)))]
        if is_markdown:
            rows.insert(1, tuple("---" for _ in _HEADER))
        lines = [f"| {' | '.join(row)} |" for row in rows] if is_markdown else aligned(rows)
        missing = [f"Not trained: {', '.join(self.missing)}."] if self.missing else []
        return "\n".join([*lines, "", f"{_NULLS} {RULE[0].upper()}{RULE[1:]}.", *missing])

    def _row(self, index: int) -> tuple[str, ...]:
        kl, entropy, share, accuracy = (self.entry(metric, (index,), "") for metric in _METRICS)
        return (
            PRIMITIVE_OF[self.task_of[index]],
            self.checkpoints[index],
            f"{self.n_parameters[index]:,}",
            f"{self.trained_on[index]:,}",
            _estimate(kl, ".4f"),
            f"{kl.null:.4f}",
            _estimate(entropy, ".4f"),
            f"{entropy.null:.4f}",
            _estimate(share, ".3f"),
            _estimate(accuracy, ".1%"),
            "–" if math.isnan(accuracy.null) else f"{accuracy.null:.1%}",
            self.verdicts[index],
            self.published[index] or "–",
            "check" if self.is_check[index] else self.standings[index],
        )


_HEADER = (
    "primitive", "checkpoint", "parameters", "trained on", "KL (bits)", "null", "entropy error (bits)", "null",
    "share closed", "accuracy where known", "null", "verdict", "published", "standing",
)  # fmt: skip
_NULLS = "Nulls are those of the best context-free predictor; its share closed is 0."
_METRICS = ("kl_bits", "entropy_mae_bits", "share_closed", "accuracy_where_known")


def comparison_report(
    cells: Sequence[Cell], scores: Sequence[Scores], *, seed: int, missing: Sequence[str] = ()
) -> ComparisonReport:
    """Intervals by resampling sequences, verdicts, and how they stand to what was published."""
    numbers = [_numbers(own, seed) for own in scores]
    shares = [float(own["share_closed"]) for own in numbers]
    verdicts = [verdict(share) for share in shares]
    tasks = tuple(dict.fromkeys(cell.task for cell in cells))
    architectures = tuple(dict.fromkeys(cell.architecture for cell in cells))
    by_task = np.full((len(tasks), len(architectures)), np.nan)
    for row, task in enumerate(tasks):
        for column, architecture in enumerate(architectures):
            own = [s for c, s in zip(cells, shares, strict=True) if _is_in(c, task, architecture) and not c.is_check]
            by_task[row, column] = np.mean(own) if own else np.nan
    return ComparisonReport(
        checkpoints=tuple(cell.name for cell in cells),
        tasks=tasks,
        architectures=architectures,
        task_of=tuple(cell.task for cell in cells),
        architecture_of=tuple(cell.architecture for cell in cells),
        is_check=tuple(cell.is_check for cell in cells),
        verdicts=tuple(verdicts),
        published=tuple(_published(cell) or "" for cell in cells),
        standings=tuple(_standing(cell, cells, verdicts) for cell in cells),
        weights_hashes=tuple(own.weights_hash for own in scores),
        missing=tuple(missing),
        n_parameters=np.array([own.n_parameters for own in scores]),
        trained_on=np.array([cell.recipe.n_sequences for cell in cells]),
        **{metric: np.array([own[metric] for own in numbers]) for metric in numbers[0]},
        share_by_task=by_task,
        intervals={},
        nulls={},
        n=len(scores[0].kl_bits),
    )


def _estimate(line: Headline, spec: str) -> str:
    return "–" if math.isnan(line.value) else f"{line.value:{spec}} [{line.lo:{spec}}, {line.hi:{spec}}]"


def _standing(cell: Cell, cells: Sequence[Cell], verdicts: Sequence[Verdict]) -> str:
    own = [(c, v) for c, v in zip(cells, verdicts, strict=True) if _is_in(c, cell.task, cell.architecture)]
    return standing(_published(cell), [v for c, v in own if not c.is_check], [v for c, v in own if c.is_check])


def _published(cell: Cell) -> Verdict | None:
    return PUBLISHED.get(cell.task, {}).get(cell.architecture)


def _is_in(cell: Cell, task: str, architecture: str) -> bool:
    return (cell.task, cell.architecture) == (task, architecture)


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
