"""What the page on the comparison says of clusters is what the probe finds on the shipped checkpoints."""

import numpy as np
import pytest

from bayesgeom.diagnose import diagnose
from bayesgeom.probes.belief_report import BeliefReadoutReport
from tests.pages import named_rows, numbers, section

ROWS = named_rows(section("comparison.md", "Are there five clusters?"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_what_the_probe_finds(name: str) -> None:
    report = diagnose(name, probes=["belief_readout"], n=512)["belief_readout"]
    assert isinstance(report, BeliefReadoutReport)
    site, k = report.sites.index("resid_post"), report.cluster_counts.index("5")
    known = [
        *([[vars(report)[m + e][site, -1, k] for e in ends] for m, ends in _BY_CLUSTER]),
        [report.r2[site, -1], report.r2_lo[site, -1], report.r2_hi[site, -1]],
        [report.r2_random_subspace[site, -1]],
    ]
    for said, found in zip(ROWS[name], known, strict=True):
        np.testing.assert_allclose(numbers(said), found, atol=2e-3)


_BY_CLUSTER = (
    ("silhouette", ("", "_lo", "_hi")), ("silhouette_null", ("",)), ("silhouette_initialisation", ("",)),
    ("rand_index", ("", "_lo", "_hi")), ("rand_index_null", ("",)),
)  # fmt: skip


def test_there_is_a_row_for_more_than_one_architecture() -> None:
    assert {"hmm-s5", "hmm-mamba", "hmm-lstm"} <= set(ROWS)
