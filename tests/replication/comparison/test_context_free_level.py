"""The best context-free predictor of a comparison is at least as good as the uniform one, in saved reports, too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesgeom.report.estimate import ROUNDING
from bayesgeom.report.report import with_provenance
from examples.replication.comparison.again import restated
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


@pytest.mark.exhaustive  # scores the baselines of five tasks
def test_a_saved_level_that_is_worse_than_todays_is_replaced_and_shares_with_it(tmp_path: Path) -> None:
    report = ComparisonReport.load(COMMITTED)
    own, share = report.kl_bits, report.share_closed
    worse = tuple(
        replace(level, value=1.003 * level.value) if level.name == CONTEXT_FREE else level for level in own.baselines
    )
    moved = share.mapped(lambda values: 1 - (1 - values) / 1.003)
    planted = replace(
        report, kl_bits=replace(own, baselines=worse), share_closed=replace(moved, baselines=share.baselines)
    )
    with_provenance(planted, report.provenance).save(tmp_path / "saved")
    again = restated(tmp_path / "saved")
    level = again.kl_bits.baseline(CONTEXT_FREE).value
    np.testing.assert_allclose(level, own.baseline(CONTEXT_FREE).value, rtol=1e-6)
    np.testing.assert_allclose(again.share_closed.value, 1 - own.value / level, atol=1e-6)
    np.testing.assert_allclose(again.share_closed.ends, share.ends, atol=1e-6)
    assert not again.share_closed.baseline(CONTEXT_FREE).value.any(), "the level itself closes nothing"
    for name in ("entropy_mae_bits", "accuracy_where_known"):
        now, before = (each.estimate(name).baseline(CONTEXT_FREE).value for each in (again, report))
        np.testing.assert_allclose(now, before, rtol=1e-6, err_msg=name)


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
