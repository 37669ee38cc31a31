"""The committed comparison is what the committed reports of its rows hold."""

from examples.replication.comparison.report import ComparisonReport
from tests.pages import READINGS


def committed() -> ComparisonReport:
    return ComparisonReport.load(READINGS / "comparison")


def test_windows_of_up_to_ten_symbols_are_baselines_of_the_table() -> None:
    found = committed()
    for name, strongest in (("hmm-s5", "window_5_stationary"), ("slow-hmm-transformer", "window_10_stationary")):
        assert found.strongest_baseline(found.checkpoints.index(name)).name == strongest


def test_thirteen_cells_have_a_verdict() -> None:
    found = committed()
    rows = zip(found.task_of, found.architecture_of, found.cell_verdicts, strict=True)
    decided = {(task, name) for task, name, outcome in rows if outcome in ("realized", "limited", "not realized")}
    assert len(decided) == 13, "`comparison.md` states the number"
