"""The best context-free predictor of a comparison is at least as good as the uniform one, in saved reports, too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesgeom.comparison.again import restated
from bayesgeom.comparison.report import CONTEXT_FREE, ComparisonReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.report import with_provenance
from tests.pages import READINGS

COMMITTED = READINGS.parent / "comparison"


def test_the_committed_level_is_not_worse_than_uniform() -> None:
    kl = Diagnosis.load(COMMITTED)[ComparisonReport].kl_bits
    free, uniform = (kl.baseline(name).value for name in (CONTEXT_FREE, "uniform"))
    is_known = np.isfinite(uniform)
    assert is_known.any()
    assert (free <= uniform * (1 + 1e-6))[is_known].all(), "processors differ in the last digits"


@pytest.mark.exhaustive  # scores the baselines of five tasks
def test_a_saved_level_that_is_worse_than_todays_is_replaced_and_shares_with_it(tmp_path: Path) -> None:
    saved = Diagnosis.load(COMMITTED)
    report = saved[ComparisonReport]
    own, share = report.kl_bits, report.share_closed
    worse = tuple(
        replace(level, value=1.003 * level.value) if level.name == CONTEXT_FREE else level for level in own.baselines
    )
    moved = share.mapped(lambda values: 1 - (1 - values) / 1.003)
    planted = replace(
        report, kl_bits=replace(own, baselines=worse), share_closed=replace(moved, baselines=share.baselines)
    )
    Diagnosis.of(with_provenance(planted, saved.provenance)).save(tmp_path / "saved")
    again = restated(tmp_path / "saved")[ComparisonReport]
    level = again.kl_bits.baseline(CONTEXT_FREE).value
    np.testing.assert_allclose(level, own.baseline(CONTEXT_FREE).value, rtol=1e-6)
    np.testing.assert_allclose(again.share_closed.value, 1 - own.value / level, atol=1e-6)
    np.testing.assert_allclose(again.share_closed.ends, share.ends, atol=1e-6)
    assert not again.share_closed.baseline(CONTEXT_FREE).value.any(), "the level itself closes nothing"
