"""What the pages say of formation, spread over seeds and the EM-like schedule is what the committed reports hold."""

import json
from pathlib import Path

import numpy as np
import pytest

from bayesgeom.core.files import encoded_json
from bayesgeom.diagnosis.plan import all_probes
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import parts_of
from bayesgeom.stats.bootstrap import seed_interval
from examples.replication.comparison.replication import ReplicationReport
from examples.replication.em.report import HELD_OUT, SEEDS, TRAINED, EMReport
from examples.replication.settling import SettlingReport, decided_again
from tests.pages import READINGS, named_rows, numbers, rows, section
from tests.structure.source import ROOT

PAGE = section("dynamics.md", "Readings")


def reading(name: str) -> tuple[DynamicsReport, SettlingReport]:
    found = Diagnosis.load(READINGS / name)
    curves, settled = found["dynamics"], found["settling"]
    assert isinstance(curves, DynamicsReport) and isinstance(settled, SettlingReport)
    return curves, settled


@pytest.fixture(scope="module")
def report() -> DynamicsReport:
    return reading("dynamics-bijection")[0]


@pytest.fixture(scope="module")
def settled() -> SettlingReport:
    return reading("dynamics-bijection")[1]


def test_the_table_is_the_means_over_seeds_and_their_intervals(report: DynamicsReport) -> None:
    lines = [
        [number for cell in cells for number in numbers(cell)]
        for cells in rows(PAGE.split("- **Does the frame")[0])[2:]
    ]
    steps = [int(step) for step in report.steps]
    columns = (
        report.kl_bits,
        report.entropy_mae_bits,
        report.pattern_distance_bits,
        report.key_overlap[..., 0],
        report.pc1_share,
        report.belief_r2,
        report.answer_shift_bits[..., 0],
        report.frame_ratio[..., 0],
    )
    assert len(lines) == 10
    for step, *text in lines:
        found = []
        for column in columns:
            per_seed = column.value[:, steps.index(int(step))]
            mean, (low, high) = float(per_seed.mean()), seed_interval(per_seed)
            printed = (
                [mean] if mean == 0 else [mean, float(high - low) / 2]
            )  # the last step's distance from itself is 0
            unit = 1e-2 if abs(mean) >= 2 or printed[-1] >= 0.1 else 1e-3 if abs(mean) >= 0.02 else 1e-4
            found += [(value, 0.51 * unit) for value in printed]
        for one, (value, atol) in zip(text, found, strict=True):
            assert abs(one - value) <= atol, (step, one, value)


def test_the_verdicts_are_the_reports(settled: SettlingReport) -> None:
    assert settled.verdicts[0].startswith("cannot decide")
    answer = settled.headline()
    assert answer is not None and answer.verdict == "not decided", "the page shows it as a verdict"
    assert settled.order.startswith("not decided: the order changes with the scale")
    assert "Of nine pairs, three say precision, one says the frame, five are open." in PAGE
    assert "the frame first in 1, precision first in 3 of 9 pairs" in settled.order
    own = settled.dissociation[0]
    low, high = own.ends
    assert f"log2 ratio {float(own):.2f} [{low:.2f} … {high:.2f}]" in PAGE.replace("\n  ", " ")
    np.testing.assert_array_equal(settled.frame_step, [3060, 3060, 4285])
    np.testing.assert_array_equal(settled.precision_step[0], [6000] * 3)
    np.testing.assert_array_equal(settled.precision_step_by_scale, [[290, 3060, 6000]] * 3)


def test_the_table_of_scales_and_measures_is_the_report(settled: SettlingReport) -> None:
    lines = {cells[0]: cells[1:] for cells in rows(PAGE.replace("\n  |", "\n|")) if cells[0] in settled.frame_measures}
    assert set(lines) == set(settled.frame_measures)
    for at, name in enumerate(settled.frame_measures):
        moments = set(settled.frame_step_by_measure[:, at].tolist())
        assert set(numbers(lines[name][0])) == moments
        for scale, text in enumerate(lines[name][1:]):
            own = settled.dissociation_by_scale[scale, at]
            np.testing.assert_allclose(numbers(text), [float(own), *map(float, own.ends)], atol=6e-3)


def test_the_second_task_says_what_its_report_says() -> None:
    _, found = reading("dynamics-sticky")
    text = PAGE[PAGE.index("**A second task") : PAGE.index("**Single trainings.**")].replace("\n", " ")
    assert found.verdicts[0].startswith("cannot decide") and found.order.startswith("not decided: the order changes")
    low, high = found.dissociation[0].ends
    assert f"log2 ratio {float(found.dissociation[0]):.2f} [{low:.2f} … {high:.2f}]" in text
    for scale, measure in ((0, 0), (1, 0), (2, 0), (2, 2)):
        own = found.dissociation_by_scale[scale, measure]
        low, high = own.ends
        assert f"{float(own):.2f} [{low:.2f} … {high:.2f}]" in text
    assert found.precision_step_by_scale.tolist() == [[70, 165, 484]] * 5
    assert set(found.frame_step.tolist()) == {314, 390} and set(found.precision_step[0].tolist()) == {484}


def test_falls_are_those_of_the_reports(settled: SettlingReport) -> None:
    def fall(found: SettlingReport, curve: str) -> str:
        own = found.fall[found.curves.index(curve)]
        low, high = own.ends
        digits = 3 if curve == "belief R²" else 2 if abs(float(own)) < 1 else 1
        return f"{float(own):.{digits}f} [{low:.{digits}f} … {high:.{digits}f}]"

    text = " ".join(PAGE.split())
    curves = ("frame ratio, layer 0", "frame ratio, layer 1", "frame ratio, layer 2", "curve share", "belief R²")
    missing = [name for name in curves if fall(settled, name) not in text]
    assert not missing
    assert fall(reading("dynamics-sticky")[1], "frame ratio, layer 0") in text


@pytest.mark.parametrize("name", ["dynamics-bijection", "dynamics-sticky", "formation"])
def test_a_committed_report_follows_from_its_curves(name: str) -> None:
    stored, again = reading(name)[1], decided_again(READINGS / name)["settling"]
    assert isinstance(again, SettlingReport)
    scalars, arrays = parts_of(again)
    assert encoded_json(parts_of(stored)[0]) == scalars
    for part, array in parts_of(stored)[1].items():
        if not part.endswith(".reason"):  # made before there were codes
            np.testing.assert_array_equal(arrays[part], array)


@pytest.mark.parametrize(("recipe", "name"), [("hmm-variant-learned", "seeds-hmm"), ("sticky-small", "seeds-sticky")])
def test_rows_over_seeds_are_their_reports(recipe: str, name: str) -> None:
    found = Diagnosis.load(READINGS / name)["replication"]
    assert isinstance(found, ReplicationReport) and len(found.replicas) == 5 and not found.missing
    trainings, kl, kl_spread, error, error_spread, _ = named_rows(PAGE)[recipe]
    assert numbers(trainings) == [5]
    for cell, known in (
        (kl, [float(found.mean_kl_bits), *map(float, found.mean_kl_bits.ends)]),
        (kl_spread, [float(found.spread_kl_bits)]),
        (error, [float(found.mean_entropy_mae_bits), *map(float, found.mean_entropy_mae_bits.ends)]),
        (error_spread, [float(found.spread_entropy_mae_bits)]),
    ):
        np.testing.assert_allclose(numbers(cell), known, rtol=0.06, atol=6e-5 if known[0] >= 1e-3 else 0)


def test_the_experiment_is_of_the_papers_size_and_its_table_is_the_reports() -> None:
    reading = Diagnosis.load(READINGS / "em-experiment")
    report, text = reading["em_experiment"], section("readings.md", "The EM-like schedule")
    assert isinstance(report, EMReport)
    arguments = reading.provenance["arguments"]
    assert (arguments["seeds"], arguments["steps"], arguments["length"]) == (SEEDS, 1_000, 2_000)
    shown = {cells[0]: [numbers(cell) for cell in cells[1:]] for cells in rows(text)}
    for condition, name in enumerate(report.conditions):
        loss, elsewhere = (report.final_loss_bits[at, 0, condition] for at in (TRAINED, HELD_OUT))
        margin, margin_elsewhere = (report.em_margin_bits[at, 0, condition] for at in (TRAINED, HELD_OUT))
        expected = [
            [report.final_loss_nats[TRAINED, 0, condition]],
            [float(loss), *loss.ends],
            [float(elsewhere)],
            [float(report.speedup[TRAINED, 0, condition]), *report.speedup[TRAINED, 0, condition].ends],
            [float(margin), *margin.ends],
            [float(margin_elsewhere), *margin_elsewhere.ends],
        ]
        for found, known, atol in zip(shown[name], expected, (6e-4, 6e-4, 6e-4, 0.06, 6e-4, 6e-4), strict=True):
            np.testing.assert_allclose(found, known[: len(found)], atol=atol, err_msg=name)


@pytest.mark.parametrize(
    "folder",
    [
        folder
        for name in checkpoints()
        for place in (name, f"interventions/{name}")
        for folder in sorted((READINGS / place).glob("*"))
    ],
    ids=lambda folder: f"{folder.parent.name}/{folder.name}",
)
def test_committed_readings_are_of_the_shipped_checkpoint(folder: Path) -> None:
    shipped = json.loads((ROOT / "checkpoints" / folder.parent.name / "config.json").read_text())
    shipped = shipped.get("bayesgeom", shipped)
    reading = Diagnosis.load(folder)
    assert reading.provenance["model"]["weights_hash"] == shipped["weights_hash"]
    if folder.name == "diagnosis":
        assert set(reading) > set(all_probes()) - {"domain_separation"}, "relabeling, and every probe that applies"
        return
    special = {"ablation": "ablation", "onwards": "erasure_onwards", "together": "joint_intervention"}
    kinds = {special[part] for part in folder.name.split("-") if part in special}
    assert list(reading) == list(kinds or {"intervention"})
