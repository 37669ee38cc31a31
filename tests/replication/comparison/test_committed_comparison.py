"""The committed comparison is what the committed reports of its rows hold."""

import numpy as np

from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.probes.calibration import CalibrationReport
from bayesgeom.results.diagnosis import Diagnosis
from examples.replication.comparison.report import ComparisonReport
from tests.pages import READINGS
from tests.structure.source import ROOT


def committed() -> ComparisonReport:
    return ComparisonReport.load(READINGS.parent / "comparison")


def test_windows_of_up_to_ten_symbols_are_baselines_of_the_table() -> None:
    found = committed()
    for name, strongest in (("hmm-s5", "window_5_stationary"), ("slow-hmm-transformer", "window_10_stationary")):
        assert found.strongest_baseline(found.checkpoints.index(name)).name == strongest


def test_thirteen_cells_have_a_verdict() -> None:
    found = committed()
    rows = zip(found.task_of, found.architecture_of, found.cell_verdicts, strict=True)
    decided = {(task, name) for task, name, outcome in rows if outcome in ("realized", "limited", "not realized")}
    assert len(decided) == 13, "`comparison.md` states the number"


def test_a_copied_row_names_the_reading_of_its_training() -> None:
    found = committed()
    sources = found.provenance["rows_of"]
    assert set(sources) == set(found.checkpoints) - checkpoints().keys()
    for name, source in sources.items():
        index, reading = found.checkpoints.index(name), Diagnosis.load(ROOT / source)
        assert reading.provenance["model"]["weights_hash"] == found.weights_hashes[index]
        kl, row = reading[CalibrationReport].kl_bits, found.kl_bits[index]
        np.testing.assert_allclose([row.value, *row.ends], [kl.value, *kl.ends], rtol=1e-6)
