"""What is recorded is what the report holds, and it reads back as it was written."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bayesgeom.core.errors import InvalidArgument
from examples.replication.__main__ import main
from examples.replication.claims import loading, reproduction
from examples.replication.claims.claim import Claim, verdict
from examples.replication.claims.loading import load
from examples.replication.claims.reading import values_of
from examples.replication.claims.reproduction import record
from tests.structure.source import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The claims' data in a folder that may be written to."""
    data = tmp_path / "data"
    data.mkdir()
    for path in loading.FOLDER.glob("*.toml"):
        (data / path.name).write_bytes(path.read_bytes())
    for module in (loading, reproduction):
        monkeypatch.setattr(module, "FOLDER", data)
    load.cache_clear()
    yield data
    monkeypatch.undo()
    load.cache_clear()


def test_a_recorded_claim_reads_back(folder: Path) -> None:
    before = load()
    (folder / "measured.toml").unlink()
    load.cache_clear()
    assert load()["D3"].measured is None
    measured = record(load()["D3"], ROOT)
    after = load()["D3"]
    assert after.measured is not None and before["D3"].measured is not None
    assert str(after.measured.numbers) == str(before["D3"].measured.numbers)  # NaN is no NaN
    assert after.measured.origins == before["D3"].measured.origins == measured.origins
    assert [c.id for c in load().values() if c.measured is not None] == ["D3"]
    record(load()["A2"], ROOT)
    assert {c.id for c in load().values() if c.measured is not None} == {"D3", "A2"}
    found = load()["A2"].measured
    assert found is not None and math.isnan(found.numbers["repeats_ratio"].baseline)
    assert found.numbers["repeats_layer"].baseline == 0.0


def test_a_new_number_is_recorded_from_the_report_that_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load()["A4"].measured
    assert before is not None
    path = folder / "3-ablations.toml"
    known = 'hmm_attention = { label = "the largest of an attention'
    new = 'second = { label = "second", unit = "bits", probe = "ablation", metric = "unablated_kl_bits" }'
    read = 'tests = [{ number = "hmm", above = "hmm_attention" }]'
    text = path.read_text(encoding="utf-8")
    assert text.count(known) == text.count(read) == 1
    text = text.replace(read, read.replace(" }]", ' }, { number = "second", above = 0.0 }]'))
    path.write_text(text.replace(known, f"{new}\n{known}"), encoding="utf-8")
    load.cache_clear()
    assert load()["A4"].unrecorded == ["second"]
    monkeypatch.setattr(reproduction, "_make", lambda *_: pytest.fail("the report is there"))
    assert main(["record", "A4"]) == 0
    assert "A4: 7 numbers, new: second, does not hold in 2 of 3, at the threshold in 1" in capsys.readouterr().out
    after = load()["A4"]
    assert after.measured is not None and after.unrecorded == []
    assert after.measured.numbers["second"].value == pytest.approx(3.46e-5, rel=0.01)
    kept = {name: value for name, value in after.measured.numbers.items() if name != "second"}
    assert {name: str(value) for name, value in kept.items()} == {k: str(v) for k, v in before.numbers.items()}


def test_only_stale_or_missing_reports_are_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(reproduction, "_make", lambda _claim, _run, path: made.append(path))
    claim = load()["A4"]
    record(claim, ROOT)
    assert made == []
    stale = {Path(str(claim.runs[0].report))}
    record(claim, ROOT, stale=stale)
    assert made == [ROOT / str(claim.runs[0].report)] and stale == set()
    record(claim, ROOT, stale=stale)
    assert len(made) == 1


def test_a_claim_without_a_report_cannot_be_recorded(folder: Path) -> None:
    claim: Claim = load()["D3"]
    nowhere = replace(claim, runs=tuple(replace(run, report=None) for run in claim.runs))
    assert claim.recordable and not nowhere.recordable
    with pytest.raises(InvalidArgument, match="claim D3 defines no numbers, or no folder"):
        record(nowhere, ROOT)
    assert values_of(claim.runs[0], ROOT / str(claim.runs[0].report))


def test_numbers_of_trainings_that_do_not_exist_are_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """H5 needs a second training of each, which does not exist: its other numbers are recorded."""
    claim = load()["H5"]
    assert [run.name for run in claim.runs if run not in claim.recordable] == ["comparison"]
    assert main(["record", "H5"]) == 0
    assert "no numbers to record" not in capsys.readouterr().out
    after = load()["H5"]
    assert after.measured is not None and sorted(after.unrecorded) == ["mamba_seed1", "transformer_seed1"]
    assert str(verdict(after)) == "does not hold"
