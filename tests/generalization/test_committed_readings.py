"""What the readings say of relabelling and of noise is what the committed reports hold."""

import numpy as np
import pytest

from bayesgeom.generalization.relabeling_report import RelabellingReport
from bayesgeom.generalization.sweep_report import SweepReport
from bayesgeom.models.resolve import checkpoints
from bayesgeom.results.diagnosis import Diagnosis
from tests.pages import READINGS, named_rows, numbers, rows, section

NAMED = named_rows(section("readings.md", "Names exchanged"))


@pytest.mark.parametrize("name", NAMED)
def test_a_row_of_relabelling_is_its_report(name: str) -> None:
    report = Diagnosis.load(READINGS / "relabelling" / name)["relabelling"]
    assert isinstance(report, RelabellingReport)
    before, difference, size, moved, unnoticed, correlation, verdict = NAMED[name]
    assert verdict == report.verdict
    ends = report.intervals["kl_difference_bits"], report.intervals["prediction_change"]
    for cell, known in (
        (before, [report.kl_before_bits]),
        (difference, [report.kl_difference_bits, *ends[0]]),
        (size, [report.kl_difference_size_bits]),
        (moved, [report.prediction_change, *ends[1]]),
        (unnoticed, [report.nulls["prediction_change"]]),
        (correlation, [report.sequence_correlation]),
    ):
        np.testing.assert_allclose(numbers(cell), known, rtol=0.06, atol=1e-6)


def test_relabelling_is_of_the_shipped_weights() -> None:
    for name in NAMED:
        reading = Diagnosis.load(READINGS / "relabelling" / name)
        assert reading.provenance["model"]["weights_hash"] in (checkpoints()[name] / "card.md").read_text()
        assert reading.provenance["arguments"] == {"n": 512, "seed": 0}


def test_the_rows_of_the_sweep_are_its_report() -> None:
    report = Diagnosis.load(READINGS / "sweep" / "hmm")["sweep"]
    assert isinstance(report, SweepReport)
    said = rows(section("readings.md", "Less and less to infer"))[2:]
    assert tuple(cells[0] for cells in said) == report.values
    for i, (_, tokens, kl, null, error, error_null) in enumerate(said):
        assert numbers(tokens) == [report.exact_tokens[i], report.model_tokens[i]]
        held = [vars(report)[f"kl_bits{end}"][i] for end in ("", "_lo", "_hi")]
        np.testing.assert_allclose(numbers(kl), held, rtol=0.04)
        ends = vars(report)["entropy_mae_bits_lo"][i], vars(report)["entropy_mae_bits_hi"][i]
        for cell, known in (
            (null, [report.kl_bits_null[i]]),
            (error, [report.entropy_mae_bits[i], *ends]),
            (error_null, [report.entropy_mae_bits_null[i]]),
        ):
            np.testing.assert_allclose(numbers(cell), known, atol=6e-5)


def held(report: SweepReport, metric: str, at: int) -> list[float]:
    return [float(vars(report)[f"{metric}{end}"][at]) for end in ("", "_lo", "_hi")]


def of_sweep(name: str) -> SweepReport:
    report = Diagnosis.load(READINGS / "sweep" / name)["sweep"]
    assert isinstance(report, SweepReport)
    return report


def test_the_rows_of_untrained_noise_are_their_report() -> None:
    report = of_sweep("sticky")
    said = rows(section("readings.md", "Noise that it was not trained on"))[2:]
    assert tuple(cells[0] for cells in said) == report.values and report.trained_value == "0.3"
    for i, (_, tokens, kl, null, error, error_null) in enumerate(said):
        assert numbers(tokens) == [report.exact_tokens[i], report.model_tokens[i]]
        for cell, known in (
            (kl, held(report, "kl_bits", i)),
            (null, [report.kl_bits_null[i]]),
            (error, held(report, "entropy_mae_bits", i)),
            (error_null, [report.entropy_mae_bits_null[i]]),
        ):
            np.testing.assert_allclose(numbers(cell), known, rtol=0.01, atol=6e-5 if known[0] < 0.01 else 6e-4)


def test_the_rows_of_pairs_are_their_reports() -> None:
    reports = [of_sweep(f"recall-{architecture}") for architecture in ("transformer", "mamba", "lstm")]
    said = rows(section("readings.md", "More pairs, and fewer"))[2:]
    assert tuple(cells[0] for cells in said) == reports[1].values
    for pairs, *cells, null in said:
        for cell, report in zip(cells, reports, strict=True):
            assert (cell == "–") == (pairs not in report.values)
            if cell != "–":
                known = held(report, "kl_bits", report.values.index(pairs))
                np.testing.assert_allclose(numbers(cell), known, rtol=0.01, atol=6e-5 if known[0] < 0.01 else 6e-4)
        known_null = reports[1].kl_bits_null[reports[1].values.index(pairs)]
        np.testing.assert_allclose(numbers(null), [known_null], atol=6e-4)


@pytest.mark.parametrize("name", ["sticky", "recall-transformer", "recall-mamba", "recall-lstm", "hmm"])
def test_sweeps_are_of_the_shipped_weights(name: str) -> None:
    model = Diagnosis.load(READINGS / "sweep" / name).provenance["model"]
    assert model["weights_hash"] in (checkpoints()[model["name"]] / "card.md").read_text()
