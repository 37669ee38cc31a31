"""Panels of every committed kind of report: one meaning per color, notes that hold numbers, honest axes."""

import numpy as np
import pytest

import examples.replication.reports as study
from bayesgeom.charts.lines import SMALLEST_BITS
from bayesgeom.core.text import with_minus
from bayesgeom.report.diagnosis import load_report
from bayesgeom.report.panels import Panel, figure_of
from tests.figures import assert_one_meaning_per_color
from tests.pages import READINGS

KINDS = (  # one committed reading of each kind of page
    "bijection-v20/ablation",
    "bijection-v20-llama/entropy_axis-remove-together",
    "checks/comparison",
    "claims/calibration-bijection-v20",
    "claims/gradients-bijection-v20",
    "claims/key-overlap-bijection-v20",
    "claims/qk-alignment-bijection-v20-repeats",
    "claims/value-manifold-bijection-v20-repeats",
    "clusters/hmm-mamba",
    "dynamics-bijection",
    "em-experiment",
    "gradient-movement/hmm-s5",
    "interventions/hmm-s5/leace-belief",
    "interventions/hmm-s5/onwards-leace-entropy",
    "length-recall-mixed",
    "relabeling/hmm-s5",
    "seeds-hmm",
    "smollm2-prompts",
    "smollm2-evidence-none",
    "sweep/hmm",
)


@pytest.fixture(scope="module", params=KINDS)
def panels(request: pytest.FixtureRequest) -> dict[str, list[Panel]]:
    """The panels of one committed page, by report."""
    assert study.EMReport.name == "em_experiment", "the study's kinds are known once they are imported"
    found = load_report(READINGS / request.param)
    return {name: list(report.panels()) for name, report in getattr(found, "reports", {found.title: found}).items()}


def test_a_color_has_one_meaning_in_all_panels(panels: dict[str, list[Panel]]) -> None:
    for own in panels.values():
        assert_one_meaning_per_color(figure_of("", own))


def test_notes_are_short_and_their_numbers_known(panels: dict[str, list[Panel]]) -> None:
    for panel in (panel for own in panels.values() for panel in own):
        assert panel.title and len(panel.title) < 110, panel.title
        assert len(panel.note) < 330 and "nan" not in panel.note and with_minus(panel.note) == panel.note, panel.note


def test_pages_show_at_most_twelve_panels_at_once(panels: dict[str, list[Panel]]) -> None:
    assert all(sum(not panel.is_folded for panel in own) <= 12 for own in panels.values())


def test_no_log_axis_begins_far_below_what_matters(panels: dict[str, list[Panel]]) -> None:
    for panel in (panel for own in panels.values() for panel in own):
        for axis in (panel.figure.layout.xaxis, panel.figure.layout.yaxis):
            if axis.type == "log" and axis.range is not None:
                assert axis.range[0] >= np.log10(SMALLEST_BITS) - 1, panel.title
