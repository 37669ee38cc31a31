"""The best context-free predictor of a comparison is at least as good as the uniform one, in saved reports, too."""

from pathlib import Path

import numpy as np
import pytest

from bayesgeom.report.estimate import ROUNDING
from examples.replication.comparison.report import ComparisonReport
from examples.replication.comparison.scores import CONTEXT_FREE
from tests.pages import READINGS

COMMITTED = READINGS / "comparison"
OTHERS = (READINGS / "mlp-prefix", READINGS / "checks" / "comparison", *sorted(READINGS.glob("claims/comparison-*")))


def test_the_committed_level_is_not_worse_than_uniform() -> None:
    kl = ComparisonReport.load(COMMITTED).kl_bits
    free, uniform = (kl.baseline(name).value for name in (CONTEXT_FREE, "uniform"))
    is_known = np.isfinite(uniform)
    assert is_known.any()
    assert (free <= uniform * (1 + ROUNDING))[is_known].all(), "processors differ in the last digits"


@pytest.mark.parametrize("folder", [COMMITTED, *OTHERS])
def test_one_predictor_gives_the_context_free_level_of_all_rows_of_a_task(folder: Path) -> None:
    """Copied rows once had the accuracy and the entropy error of the average, next to the KL of the uniform one."""
    report = ComparisonReport.load(folder)
    uniform = report.kl_bits.baseline("uniform").value
    for name in ("kl_bits", "entropy_mae_bits"):
        level = report.estimate(name).baseline(CONTEXT_FREE).value
        assert (level <= uniform * (1 + ROUNDING)).all(), f"{name}: both are log2 K - H of the uniform predictor"
    for name in ("kl_bits", "entropy_mae_bits", "accuracy_where_known"):
        for task in report.tasks:
            own = report.estimate(name).baseline(CONTEXT_FREE).value[[row == task for row in report.task_of]]
            np.testing.assert_allclose(own, own[0], rtol=ROUNDING, err_msg=f"{name} {task}")


@pytest.mark.parametrize("folder", [COMMITTED, *OTHERS])
def test_tables_name_the_baseline_of_the_share_closed_that_cards_name(folder: Path) -> None:
    """Both read the field; tables once had the context-free predictor, whatever the strongest baseline was."""
    report = ComparisonReport.load(folder)
    table = report.to_pandas()
    rows = table[table.metric == "share_closed"].set_index("checkpoint_axis")
    lines = [line for line in report.headlines() if line.metric == "share_closed"]
    for index, (name, line) in enumerate(zip(report.checkpoints, lines, strict=True)):
        strongest = report.strongest_baseline(index)
        assert rows.baseline_name[name] == strongest.name and line.baselines[0].endswith(
            f"({strongest.name.replace('_', ' ')})"
        )
        level = report.kl_bits.baseline(CONTEXT_FREE).value[index]
        assert rows.baseline[name] == line.baseline == pytest.approx(1 - float(strongest.value) / level)
        found = report.verdicts if report.is_check[index] else report.cell_verdicts
        assert line.verdict == found[index], "the rule decides"
