"""What the page on the comparison says of clusters is what the probe finds on the shipped checkpoints."""

from collections.abc import Mapping

import numpy as np
import pytest

from bayesgeom.probes.belief_report import BeliefReadoutReport
from bayesgeom.probes.one_pass import diagnose
from bayesgeom.results.diagnosis import Diagnosis
from tests.pages import READINGS, named_rows, numbers, section

CLUSTERS, READ = (
    named_rows(section("comparison.md", "Are there five clusters?").split("What a linear map reads")[part])
    for part in (0, 1)
)
ENDS = ("", "_lo", "_hi")


def committed(name: str) -> BeliefReadoutReport:
    report = Diagnosis.load(READINGS / "clusters" / name)["belief_readout"]
    assert isinstance(report, BeliefReadoutReport)
    return report


def assert_rows(said: Mapping[str, list[str]], found: list[list[float]], name: str) -> None:
    for text, values in zip(said[name], found, strict=True):
        known = [value for value in values if not np.isnan(value)]  # a share of 1 in every sequence has no interval
        np.testing.assert_allclose(numbers(text), known, atol=6e-4)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_row_of_clusters_is_what_the_committed_report_holds(name: str) -> None:
    report = committed(name)
    site, k = report.sites.index("resid_post"), report.cluster_counts.index("5")
    by_cluster = (
        ("silhouette", ENDS), ("silhouette_null", ("",)), ("silhouette_initialisation", ("",)),
        ("rand_index", ENDS), ("rand_index_null", ("",)), ("token_rand_index", ENDS), ("token_rand_index_null", ("",)),
    )  # fmt: skip
    found = [[float(vars(report)[metric + end][site, -1, k]) for end in ends] for metric, ends in by_cluster]
    assert_rows(CLUSTERS, found, name)


@pytest.mark.parametrize("name", READ)
def test_a_row_of_what_is_read_is_what_the_committed_report_holds(name: str) -> None:
    report = committed(name)
    site = report.sites.index("resid_post")
    nearest = [vars(report)["nearest_centroid_accuracy" + end][site, -1] for end in ENDS]
    found = [
        [float(vars(report)["r2" + end][site, -1]) for end in ENDS],
        [float(report.r2_random_subspace[site, -1])],
        [float(values[0]) for values in nearest],
        *([float(nearest[0][band])] for band in (1, 2, 3)),
        [float(report.constant_accuracy[0])],
    ]
    assert_rows(READ, found, name)


@pytest.mark.slow
def test_the_shipped_mamba_still_clusters_by_the_last_symbol() -> None:
    report, before = diagnose("hmm-mamba", probes=["belief_readout"], n=512)["belief_readout"], committed("hmm-mamba")
    assert isinstance(report, BeliefReadoutReport)
    k = report.cluster_counts.index("5")
    assert report.token_rand_index[0, -1, k] > 0.999
    np.testing.assert_allclose(report.rand_index, before.rand_index, atol=2e-3)


def test_there_is_a_row_for_every_architecture() -> None:
    assert {"hmm-s5", "hmm-mamba", "hmm-lstm", "hmm-mlp"} == set(CLUSTERS) == set(READ)
