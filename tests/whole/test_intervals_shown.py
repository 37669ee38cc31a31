"""How many entries of quantities with intervals have none, by code, in what the public functions return."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest

import bayesgeom
from bayesgeom.core.verdict import Reason
from bayesgeom.report.estimate import codes_of
from bayesgeom.report.report import Report
from bayesgeom.report.storage import quantities_of
from bayesgeom.subspaces import fits
from tests.report.planted import planted

N = 96
MOST = 0.08  # of all entries with a known value


def withheld(reports: Iterable[Report]) -> Counter[str]:
    """The number of entries by code of their interval; "" for usual ones. Quantities without intervals are left out."""
    found = Counter[str]()
    for report in reports:
        for name in quantities_of(type(report)):
            own = report.estimate(name)
            if own.low is not None:
                found.update(Reason.of(code).label for code in codes_of(own)[~np.isnan(own.value)])
    return found


def share(found: Mapping[str, int]) -> float:
    """The share of entries without an interval."""
    shown = found[""] + found[str(Reason.CONSERVATIVE)]
    return 1 - shown / sum(found.values())


def assert_few(reports: Iterable[Report]) -> None:
    found = withheld(reports)
    told = {label or "usual": f"{count} ({count / found.total():.1%})" for label, count in found.most_common()}
    assert share(found) <= MOST and str(Reason.NOT_STORED) not in found, told


def test_withheld_entries_are_counted_by_code(rng: np.random.Generator) -> None:
    report = planted(rng)
    found = withheld(
        [report, replace(report, depth=replace(report.depth, low=np.array(np.nan), high=np.array(np.nan)))]
    )
    assert found == {"": 11, str(Reason.NOT_COMPUTED): 1} and share(found) == pytest.approx(1 / 12)


@pytest.mark.exhaustive
def test_a_battery_and_a_small_diagnosis_show_nearly_all_intervals() -> None:
    diagnosis = bayesgeom.diagnose("mess3-small", n=N, n_untrained=1)
    assert_few([*diagnosis.values(), bayesgeom.ablate("mess3-small", n=N)])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_shipped_checkpoints_give_shows_nearly_all_intervals() -> None:
    names = (
        "bijection-v20",
        "bijection-lstm",
        "hmm-mamba",
        "recall-transformer",
        "mess3-small",
        "slow-hmm-transformer",
    )
    reports = [report for name in names for report in bayesgeom.diagnose(name, n=N).values()]
    reports += [bayesgeom.ablate(name, n=N) for name in ("bijection-v20", "recall-transformer")]
    reports.append(bayesgeom.intervene("bijection-v20", subspace=fits.covariance("entropy"), n=N))
    reports.append(bayesgeom.length_generalization("hmm-lstm", n=N))
    assert_few(reports)
