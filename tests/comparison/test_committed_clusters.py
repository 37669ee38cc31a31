"""What the page on the comparison says of clusters is what the probe finds on the shipped checkpoints."""

from collections.abc import Mapping

import numpy as np
import pytest

from bayesgeom.diagnosis.run import diagnose
from bayesgeom.probes.belief_report import CONSTANT, GAUSSIAN, SHUFFLE, SUBSPACES, BeliefReadoutReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.estimators import UNTRAINED
from tests.pages import READINGS, named_rows, numbers, section

CLUSTERS, READ = (
    named_rows(section("comparison.md", "Are there five clusters?").split("R² of a linear map")[part])
    for part in (0, 1)
)


def in_three(own: Estimate) -> list[float]:
    """A number and both ends of its interval."""
    return [float(own), *(float(end) for end in own.ends)]


def level(own: Estimate, name: str) -> list[float]:
    return [float(own.baseline(name).value)]


def with_range(own: Estimate, name: str) -> list[float]:
    """A baseline of several draws, with the least and the most."""
    found = own.baseline(name)
    assert found.low is not None and found.high is not None
    return [float(found.value), float(found.low), float(found.high)]


def committed(name: str) -> BeliefReadoutReport:
    report = Diagnosis.load(READINGS / "clusters" / name)["belief_readout"]
    assert isinstance(report, BeliefReadoutReport)
    return report


def assert_rows(shown: Mapping[str, list[str]], found: list[list[float]], name: str) -> None:
    for text, values in zip(shown[name], found, strict=True):
        known = [value for value in values if not np.isnan(value)]  # a share of 1 in every sequence has no interval
        np.testing.assert_allclose(numbers(text), known, atol=6e-4)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_row_of_clusters_is_what_the_committed_report_holds(name: str) -> None:
    report = committed(name)
    site, k = report.sites.index("resid_post"), report.cluster_counts.index("5")
    clusters, best_guesses, tokens = (
        own[site, -1, k] for own in (report.silhouette, report.rand_index, report.token_rand_index)
    )
    found = [
        in_three(clusters),
        level(clusters, GAUSSIAN),
        level(clusters, UNTRAINED),
        in_three(best_guesses),
        level(best_guesses, SHUFFLE),
        level(best_guesses, UNTRAINED),
        in_three(tokens),
        level(tokens, SHUFFLE),
        with_range(tokens, UNTRAINED),
    ]
    assert_rows(CLUSTERS, found, name)


@pytest.mark.parametrize("name", READ)
def test_a_row_of_what_is_read_is_what_the_committed_report_holds(name: str) -> None:
    report = committed(name)
    site = report.sites.index("resid_post")
    r2, nearest = report.r2[site, -1], report.nearest_centroid_accuracy[site, -1]
    found = [
        in_three(r2),
        level(r2, SUBSPACES),
        in_three(nearest[0]),
        *([float(nearest.value[band])] for band in (1, 2, 3)),
        level(nearest[0], CONSTANT),
    ]
    assert_rows(READ, found, name)


@pytest.mark.slow
def test_the_shipped_mamba_still_clusters_by_the_last_symbol() -> None:
    report, before = diagnose("hmm-mamba", probes=["belief_readout"], n=512)["belief_readout"], committed("hmm-mamba")
    assert isinstance(report, BeliefReadoutReport)
    k = report.cluster_counts.index("5")
    assert report.token_rand_index.value[0, -1, k] > 0.999
    np.testing.assert_allclose(report.rand_index.value, before.rand_index.value, atol=2e-3)


def test_there_is_a_row_for_every_architecture() -> None:
    assert {"hmm-s5", "hmm-mamba", "hmm-lstm", "hmm-mlp"} == set(CLUSTERS) == set(READ)
