"""The tables of the page on the comparison are those of the committed reports."""

import numpy as np

from bayesgeom.comparison.report import ComparisonReport
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.probes.calibration import CalibrationReport
from bayesgeom.results.diagnosis import Diagnosis
from tests.pages import READINGS, named_rows, numbers, section


def committed() -> ComparisonReport:
    return Diagnosis.load(READINGS.parent / "comparison")[ComparisonReport]


def test_windows_of_up_to_ten_symbols_are_baselines_of_the_table() -> None:
    found = committed()
    for name, strongest in (("hmm-s5", "window_5_stationary"), ("slow-hmm-transformer", "window_10_stationary")):
        assert found.strongest_baseline(found.checkpoints.index(name)).name == strongest
        (line,) = (own for own in found.headlines() if own.label == f"{name}, share closed")
        assert line.baseline_name.startswith(f"{strongest.replace('_', ' ')}; ") and line.baseline > 0, (
            "cards once named context-free"
        )


def test_cells_with_a_verdict_are_those_that_the_page_names() -> None:
    found = committed()
    decided = dict.fromkeys(
        (task, architecture)
        for task, architecture, verdict in zip(found.task_of, found.architecture_of, found.cell_verdicts, strict=True)
        if verdict in ("realized", "limited", "not realized")
    )
    text = " ".join(section("comparison.md", "Conclusions, and their limits").split())
    named = {"Eleven": 11, "Twelve": 12, "Thirteen": 13, "Fourteen": 14, "Fifteen": 15}
    (count,) = (word for word, number in named.items() if number == len(decided))
    assert f"**{count} cells have a verdict.**" in text, decided


def test_a_copied_row_names_the_reading_of_its_training() -> None:
    """`docs/comparison` once named itself."""
    found = Diagnosis.load(READINGS.parent / "comparison")
    report, sources = found[ComparisonReport], found.provenance["rows_of"]
    assert set(sources) == set(report.checkpoints) - checkpoints().keys()
    for name, source in sources.items():
        assert source.endswith(f"/{name}"), "run docs/readings/name_row_sources.py"
        index, reading = report.checkpoints.index(name), Diagnosis.load(READINGS.parents[1] / source)
        assert reading.provenance["model"]["weights_hash"] == report.weights_hashes[index]
        kl = reading[CalibrationReport].kl_bits
        row = report.kl_bits[index]
        np.testing.assert_allclose([row.value, *row.ends], [kl.value, *kl.ends], rtol=1e-6)


def test_a_row_of_a_further_seed_is_its_report() -> None:
    text = {name: kl for name, (kl, *_) in named_rows(section("comparison.md", "Further seeds")).items()}
    others = section("comparison.md", "More pairs, and sampled targets").split("Held-out KL")[0]
    text |= {name: kl for name, (_, kl, *_) in named_rows(others).items()}
    folders = {path.parent.name: path.parent for path in READINGS.glob("seeds-*/*/report.json")}
    assert set(text) == set(folders)
    for name, kl in text.items():
        own = Diagnosis.load(folders[name])[CalibrationReport].kl_bits
        np.testing.assert_allclose(numbers(kl), [float(own), *map(float, own.ends)], rtol=6e-4)
