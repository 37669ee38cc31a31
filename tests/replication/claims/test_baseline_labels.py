"""The baseline that a table names is the one whose level it prints."""

import math
from collections.abc import Iterator

from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.tables import Record, records_of
from examples.replication.claims import reading
from examples.replication.claims.claim import Number
from examples.replication.claims.loading import load
from tests.structure.source import ROOT

# What tables print, and the names of the same baselines in reports, where the two differ.
NAMES = {
    "uniform predictor": {"uniform"},
    "one untrained network": {"untrained networks"},
    "best constant entropy": {"constant"},
    "observer of the last four symbols": {"window 4 stationary", "window_4_stationary"},
    "observer of the last five symbols": {"window 5 stationary", "window_5_stationary"},
    "observer of the last seven symbols": {"window 7 stationary"},
    "observer of the last ten symbols": {"window 10 stationary"},
    "trend within the training length": {"largest within the training length"},
    "answers left as they were": {"answers do not change"},
    "best context-free predictor": {"context-free predictor"},
    "uniform attention in every layer": {"uniform in every layer"},
    "bag of values, which is exact there": {"bag_of_values"},
    "the pair stored last": {"last_pair"},
    "key membership": {"membership", "key_membership", "key membership"},
    "plain SGD": {"SGD 0.01"},
    "no difference": {"EM-like: 0.1 on W_V"},
    "same speed": {"EM-like: 0.1 on W_V"},
    "variance-matched subspaces, at most": {"variance-matched subspaces, most"},
    "share-matched subspaces, at most": {"share-matched subspaces"},
    "random subspaces, mean": {"random subspaces"},
    "random subspaces, most": {"strength in random subspaces"},
}


def test_labels_name_the_baseline_in_the_report() -> None:
    """P4 once gave the level of untrained networks as that of a shuffle, and L4 as that of exchanged domains."""
    found = list(labeled())
    assert len(found) > 60
    wrong = [f"{at}: {label}, {row.baseline_name}" for at, label, row in found if not agree(label, row.baseline_name)]
    assert wrong == []


def test_one_untrained_network_is_not_called_several() -> None:
    """Runs with `--n-untrained 1` have one, which is no distribution of untrained networks."""
    claims = [claim for claim in load().values() if any("--n-untrained 1" in run.command for run in claim.recordable)]
    labels = {own.baseline_label for claim in claims for run in claim.recordable for own in run.numbers.values()}
    assert {claim.id for claim in claims} >= {"L1", "L2", "L3", "L4", "L5"}
    assert "one untrained network" in labels and "untrained networks" not in labels


def test_another_label_is_found() -> None:
    assert agree("untrained networks", "untrained networks") and not agree(
        "shuffle within position", "untrained networks"
    )


def agree(label: str, name: str) -> bool:
    return name in NAMES.get(label, {label})


def labeled() -> Iterator[tuple[str, str, Record]]:
    """Each number with a label and a recorded report, and the row of the report that it reads."""
    for claim in load().values():
        for run in claim.recordable:
            folder = ROOT / str(run.report)
            numbers = [own for own in run.numbers.values() if own.baseline_label and not own.baseline]
            if numbers and folder.is_dir():
                diagnosis = Diagnosis.load(folder)
                yield from ((f"{claim.id}.{own.name}", own.baseline_label, _row(own, diagnosis)) for own in numbers)


def _row(number: Number, diagnosis: Diagnosis) -> Record:
    found = [
        row
        for report in diagnosis.values()
        if report.name == number.probe
        for row in records_of(report, metric=number.metric)
        if reading._matches(number, report, row) and not math.isnan(row.value)
    ]
    return (max if number.reduce == "max" else min)(found, key=lambda row: row.value)
