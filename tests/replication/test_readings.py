"""What the readings say of relabeling and of noise is what the committed reports hold."""

import numpy as np
import pytest

from bayesgeom.generalization.sweeps import SHORTCUT, SweepReport
from bayesgeom.measurements.relabeling import STUCK, RelabelingReport
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Estimate
from tests.pages import READINGS, named_rows, numbers, rows, section


def with_ends(own: Estimate) -> list[float]:
    """A number and both ends of its interval."""
    return [float(own), *map(float, own.ends)]


def shortcut(own: Estimate, at: int) -> float:
    """The error of the strongest shortcut at one value."""
    return float(own.baseline(SHORTCUT).value[at])


def kl_and_width(report: SweepReport, at: int) -> list[float]:
    """The KL of the strongest window observer at one value, and its width."""
    kind, width, _ = report.shortcuts[at].split("_")
    assert kind == "window"
    return [shortcut(report.kl_bits, at), float(width)]


NAMED = named_rows(section("readings.md", "Relabeling"))


@pytest.mark.parametrize("name", NAMED)
def test_a_row_of_relabeling_is_its_report(name: str) -> None:
    report = Diagnosis.load(READINGS / "relabeling" / name)["relabeling"]
    assert isinstance(report, RelabelingReport)
    before, difference, size, moved, unnoticed, correlation, verdict = NAMED[name]
    assert verdict == report.verdict
    for cell, known in (
        (before, [float(report.kl_before_bits)]),
        (difference, with_ends(report.kl_difference_bits)),
        (size, [float(report.kl_difference_size_bits)]),
        (moved, with_ends(report.prediction_change)),
        (unnoticed, [float(report.prediction_change.baseline(STUCK).value)]),
        (correlation, [float(report.sequence_correlation)]),
    ):
        np.testing.assert_allclose(numbers(cell), known, rtol=0.06, atol=1e-6)


def test_relabeling_is_of_the_shipped_weights() -> None:
    for name in NAMED:
        reading = Diagnosis.load(READINGS / "relabeling" / name)
        assert reading.provenance["model"]["weights_hash"] in (checkpoints()[name] / "card.md").read_text()
        assert reading.provenance["arguments"] == {"n": 512, "seed": 0}


def test_the_rows_of_the_sweep_are_its_report() -> None:
    report = Diagnosis.load(READINGS / "sweep" / "hmm")["sweep"]
    assert isinstance(report, SweepReport)
    text = rows(section("readings.md", "Sweep: the floor of the HMM"))[2:]
    assert tuple(cells[0] for cells in text) == report.values
    for i, (_, tokens, kl, baseline, error, error_baseline) in enumerate(text):
        assert numbers(tokens) == [float(report.exact_tokens[i]), float(report.model_tokens[i])]
        np.testing.assert_allclose(numbers(kl), with_ends(report.kl_bits[i]), rtol=0.04)
        for cell, known in (
            (baseline, kl_and_width(report, i)),
            (error, with_ends(report.entropy_mae_bits[i])),
            (error_baseline, [shortcut(report.entropy_mae_bits, i)]),
        ):
            np.testing.assert_allclose(numbers(cell), known, rtol=0.04)


def of_sweep(name: str) -> SweepReport:
    report = Diagnosis.load(READINGS / "sweep" / name)["sweep"]
    assert isinstance(report, SweepReport)
    return report


def test_the_rows_of_untrained_noise_are_their_report() -> None:
    report = of_sweep("sticky")
    text = rows(section("readings.md", "Sweep: noise outside training"))[2:]
    assert tuple(cells[0] for cells in text) == report.values and report.trained_value == "0.3"
    for i, (_, tokens, kl, baseline, error, error_baseline) in enumerate(text):
        assert numbers(tokens) == [float(report.exact_tokens[i]), float(report.model_tokens[i])]
        for cell, known in (
            (kl, with_ends(report.kl_bits[i])),
            (baseline, kl_and_width(report, i)),
            (error, with_ends(report.entropy_mae_bits[i])),
            (error_baseline, [shortcut(report.entropy_mae_bits, i)]),
        ):
            np.testing.assert_allclose(numbers(cell), known, rtol=0.01, atol=6e-5 if known[0] < 0.01 else 6e-4)


def test_the_rows_of_pairs_are_their_reports() -> None:
    reports = [of_sweep(f"recall-{architecture}") for architecture in ("transformer", "mamba", "lstm")]
    text = rows(section("readings.md", "Sweep: number of pairs"))[2:]
    assert tuple(cells[0] for cells in text) == reports[1].values
    for pairs, *cells, baseline in text:
        for cell, report in zip(cells, reports, strict=True):
            assert (cell == "–") == (pairs not in report.values)
            if cell != "–":
                known = with_ends(report.kl_bits[report.values.index(pairs)])
                np.testing.assert_allclose(numbers(cell), known, rtol=0.01, atol=6e-5 if known[0] < 0.01 else 6e-4)
        known_baseline = shortcut(reports[1].kl_bits, reports[1].values.index(pairs))
        np.testing.assert_allclose(numbers(baseline), [known_baseline], atol=6e-4)


@pytest.mark.parametrize("name", ["sticky", "recall-transformer", "recall-mamba", "recall-lstm", "hmm"])
def test_sweeps_are_of_the_shipped_weights(name: str) -> None:
    model = Diagnosis.load(READINGS / "sweep" / name).provenance["model"]
    assert model["weights_hash"] in (checkpoints()[model["name"]] / "card.md").read_text()
