"""The committed reports."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayesgeom.core.verdict import Reason
from bayesgeom.measurements.key_overlap import KeyOverlapReport
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.report.report import Report
from bayesgeom.report.storage import JSON, METRICS, axes_of, parts_of, quantities_of, write
from examples.replication.settling import SettlingReport
from tests.pages import READINGS

LATER = {
    *("answer_shift_bits", "kl_increase_bits", "entropy_error_increase_bits", "removal_kl_increase_bits"),
    *("indirect_answer_shift_bits", "indirect_kl_increase_bits", "unedited_answer_shift_bits", "unedited_kl_bits"),
    *("unedited_entropy_error_bits", "r2_before", "r2_after", "entropy_r2", "belief_r2", "variance_share"),
    *("outside_share", "embedding_share", "given_movement", "code_movement", "kl_beyond_random_bits"),
    "entropy_error_beyond_random_bits",
}
FOLDERS = sorted(path.parent for path in READINGS.glob(f"**/{JSON}"))


def reports() -> Iterator[tuple[str, Report]]:
    for folder in FOLDERS:
        found = load_report(folder)
        own = [found] if isinstance(found, Report) else list(found.values())
        yield from ((f"{folder.name}: {type(report).__name__}", report) for report in own)


def assert_short(found: Iterable[tuple[str, Report | Diagnosis]]) -> None:
    """The representation is one short line, whose value belongs to the label before it."""
    texts = [repr(own) for _, own in found]
    assert texts and max(map(len, texts)) < 150 and not any("\n" in text for text in texts)
    assert not any("untrained networks 0." in text for text in texts)


def test_long_results_have_a_short_representation() -> None:
    many = Diagnosis.load(READINGS / "length-recall-mixed")
    assert repr(many).startswith("Diagnosis(recall-mixed-variant-learned, recall-mixed-variant-sinusoidal + 5 more")
    settling = Diagnosis.load(READINGS / "dynamics-bijection")[SettlingReport]
    assert repr(settling) == "SettlingReport(log2(precision step / frame step), at the stated thresholds 0.8095, n=256)"
    keys = Diagnosis.load(READINGS / "claims" / "key-overlap-bijection-v20-repeats")[KeyOverlapReport]
    assert repr(keys) == "KeyOverlapReport(keys of inputs (activation): |cos|, layer 0 (0.1349), n=192)"
    assert_short([("", many), ("", settling), ("", keys)])


@pytest.mark.parametrize(
    ("reading", "n_chosen"),
    [("interventions/hmm-s5/leace-belief", 1), ("bijection-v20/ablation", 1), ("dynamics-bijection", 0)],
)
def test_the_interval_of_a_chosen_entry_is_in_tables_and_files(reading: str, n_chosen: int, tmp_path: Path) -> None:
    """A headline said 0.05612 where the table said 0.05643, and no file had the former."""
    found = load_report(READINGS / reading)
    reports = [found] if isinstance(found, Report) else list(found.values())
    found.save(tmp_path / "run")
    table, stored = pd.read_parquet(tmp_path / "run" / METRICS), json.loads((tmp_path / "run" / JSON).read_text())
    chosen = [(report, line) for report in reports for line in report.headlines() if line.chosen_of > 1]
    rows = table[table.chosen_of > 1]
    assert len(rows) == len(chosen) >= n_chosen and table.chosen_low.isna().sum() == len(table) - len(rows)
    for report, line in chosen:
        (row,) = rows[(rows.probe == report.name) & (rows.metric == line.metric)].itertuples()
        ends = (line.low, line.high)
        assert (row.value, row.chosen_low, row.chosen_high, row.chosen_of) == (line.value, *ends, line.chosen_of)
        entry = report.estimate(line.metric)[line.at]
        assert (row.low, row.high) == tuple(map(float, entry.ends)) and line.low <= row.low and row.high <= line.high
        own = {"metric": line.metric, "at": list(line.at), "chosen_low": line.low, "chosen_high": line.high}
        assert {**own, "chosen_of": line.chosen_of} in stored["chosen"][report.name]
    assert stored["chosen"] == {report.name: report.to_dict()["chosen"] for report in reports}


@pytest.mark.exhaustive
def test_every_representation_is_short() -> None:
    assert_short(reports())
    assert_short((folder.name, load_report(folder)) for folder in FOLDERS)


@pytest.mark.exhaustive
def test_intervals_contain_their_estimates() -> None:
    n_intervals, outside = 0, []
    for where, report in reports():
        for metric in quantities_of(type(report)):
            own, (low, high) = report.estimate(metric).value, report.estimate(metric).ends
            n_intervals += int((~np.isnan(low)).sum())
            if ((own < low) | (own > high)).any():
                outside.append(f"{where}.{metric}")
    assert outside == []
    assert n_intervals > 20_000


@pytest.mark.parametrize(
    "reading",
    [
        "interventions/hmm-s5/leace-belief",
        "interventions/hmm-s5/leace-entropy-remove",
        "bijection-v20-llama/entropy_axis-remove-together",
        "interventions/recurrence/onwards-leace-belief",
        "claims/key-overlap-bijection-v20",
    ],
)
def test_reports_of_version_0_2_load_without_the_fields_that_they_lack(reading: str, tmp_path: Path) -> None:
    ((name, report),) = Diagnosis.load(READINGS / reading).items()
    ours = [field for field, axes in axes_of(type(report)).items() if field in LATER or "token_set" in axes]
    scalars, arrays = (
        {field: value for field, value in part.items() if field.split(".")[0] not in (*ours, "token_sets", "variants")}
        for part in parts_of(report)
    )
    arrays |= {"unedited_bits": np.zeros((6, 4)), "welch": np.zeros(7)}
    write(tmp_path, {name: (scalars, arrays)}, {"provenance": report.provenance, "skipped": {}, "inapplicable": {}})
    older = Diagnosis.load(tmp_path)[name]
    first, found = report.headline(), older.headline()
    assert ours and (found is None or (first is not None and found.verdict == first.verdict)) and older.summary()
    codes = [older.estimate(field).reason for field in quantities_of(type(older)) if field in ours]
    assert all(code is None or (code == Reason.NOT_STORED).all() for code in codes)
    assert older.to_html() and older.to_pandas() is not None and older.plot() is not None
