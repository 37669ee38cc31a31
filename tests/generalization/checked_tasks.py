"""The table in docs/check-task.md: what each task of the package can show.

`python -m tests.generalization.checked_tasks` writes it; `test_check_task.py` compares it.
"""

import math
import re
from collections.abc import Iterable

import bayesgeom
from bayesgeom.generalization.check_task import AFTER, COUNTS, CURRENT, SIMPLE, TaskReport
from bayesgeom.report.findings import Finding
from bayesgeom.tasks.base import WindTunnel, task_kinds
from tests.structure.source import ROOT

PAGE = ROOT / "docs" / "check-task.md"
FURTHER = (  # with other parameters
    *("mess3:x=0.15,a=0.6", "bijection:repeats=true", "dice:n_faces=6"),
    "hmm:n_states=3,n_symbols=3,length=64,floor=0.01,stay=0.96",
)
HEADER = (
    "| task | without evidence | current symbol | counts | last 4 | last 10 | task's own | R² linear, nearest "
    "| beliefs | evidence | can tell from shortcuts |\n|" + "---|" * 11
)
MANY = 1_000  # beliefs, from which on their number only says how many were drawn
VERDICTS = {
    Finding.TASK_TELLS: "yes",
    Finding.TASK_TELLS_IN_PART: "in part: not from {shortcut}",
    Finding.TASK_CANNOT_TELL: "no: {shortcut}",
    Finding.TASK_HAS_NO_GAP: "no: without evidence",
}


def names() -> list[str]:
    """Every task that has an exact posterior and can be made without a tokenizer or a parameter, by name."""
    made = (name for name, (kind, outer) in task_kinds().items() if outer is None and issubclass(kind, WindTunnel))
    return sorted({*made, *FURTHER} - {"process"})


def rounded(bits: Iterable[float]) -> str:
    """The least of some numbers, with two digits."""
    least = min(bits, default=None)
    return "–" if least is None else "0" if least < 1e-7 else f"{least:.2g}"


def row(name: str, report: TaskReport) -> str:
    """The line of a task."""
    bits = dict(zip(report.predictors, map(float, report.kl_bits.value), strict=True))
    own = {key: value for key, value in list(bits.items())[SIMPLE:] if not re.match(r"the last \d+ symbols", key)}
    best = min(own, key=own.__getitem__, default="")
    said = report.answer()
    cells = (
        f"`{name}`",
        rounded([bits[report.predictors[0]]]),
        *(rounded(bits[key] for key in keys if key in bits) for keys in ([CURRENT], [COUNTS, AFTER])),
        *(rounded(bits[key] for key in [f"the last {width} symbols"] if key in bits) for width in (4, 10)),
        f"{rounded(own.values())} ({best})" if own else "–",
        ", ".join("–" if math.isnan(value) else f"{value:.2f}" for value in report.belief_r2.value),
        f"{report.n_beliefs:,}" if report.n_beliefs < MANY else f"over {MANY:,}",
        "–" if math.isnan(report.identified_age) else f"{report.identified_age:.0f}",
        VERDICTS[said.finding].format(**said.values),
    )
    return f"| {' | '.join(cells)} |"


def page(rows: Iterable[str]) -> str:
    """The page with these rows in place of those it has."""
    before, _, after = PAGE.read_text(encoding="utf-8").partition("| task |")
    _, _, after = after.partition("\n\n")
    return "\n".join([before + HEADER, *rows]) + "\n\n" + after


if __name__ == "__main__":
    PAGE.write_text(page(row(name, bayesgeom.check_task(name)) for name in names()), encoding="utf-8")
