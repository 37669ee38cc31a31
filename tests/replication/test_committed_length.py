"""What the page on length says of the models is what the committed report holds."""

import re

import numpy as np
import pytest

from bayesgeom.generalization.curves import LARGEST_WITHIN
from bayesgeom.generalization.length_report import KL, LengthReport
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.theme import BASELINE
from tests.pages import READINGS, named_rows, numbers, section

PAGE = "../examples/replication/length.md"
NAMED = named_rows(section(PAGE, "Readings"))
ROWS = {name: cells for name, cells in NAMED.items() if not name.startswith("window")}
OBSERVERS = {name: cells for name, cells in NAMED.items() if name.startswith("window")}


def with_ends(own: Estimate) -> list[float]:
    """A number and both ends of its interval."""
    return [float(own), *map(float, own.ends)]


@pytest.fixture(scope="module")
def report() -> LengthReport:
    found = Diagnosis.load(READINGS / "length-hmm")["length"]
    assert isinstance(found, LengthReport)
    return found


def test_the_rows_are_the_reports(report: LengthReport) -> None:
    assert [f"hmm-variant-{kind}" for kind in ROWS] == list(report.models)
    for i, (kind, cells) in enumerate(ROWS.items()):
        known = [
            [float(report.kl_bits[i, 9])],
            [report.predicted_kl_bits[i]],
            [report.found_kl_bits[i]],
            with_ends(report.discontinuity_bits[KL, i]),
            [float(report.discontinuity_bits[KL, i].baseline(LARGEST_WITHIN).value)],
            [float(report.critical_length[i])],
            list(report.whole_error_bits.value[KL, i]),
            [report.entry_layer[i]],
        ]
        for cell, values in zip(cells, known, strict=True):
            text = numbers(cell)
            if text:  # "never" and "nowhere" are said in words
                np.testing.assert_allclose(text, values, rtol=0.05, atol=6e-5, err_msg=kind)
            else:
                assert values[0] in (-1, np.inf)


def test_the_findings_name_every_variant_once_with_number_interval_and_ruling(report: LengthReport) -> None:
    found = findings([section_of(report.name, report)])
    rulings = ("discontinuity", "no discontinuity", "undecided")
    assert [own.verdict for own in found[:3]] == list(rulings)
    named = [name for own in found[:3] for name in own.sentence.rstrip(".").split(": ")[1].split(", ")]
    assert sorted(named) == sorted(ROWS)
    assert all("95 % interval" in own.numbers and "trongest baseline" in own.numbers for own in found[:4])
    assert "16.77 (none) to 1,868 (learned)" in found[3].sentence, "the closest and the furthest variant"
    assert not found[4].numbers and all(name in found[4].sentence for name in ROWS) and len(found) == 5
    gray = {trace.line.color for trace in report.plot().data if trace.name in ROWS} & {BASELINE, "#5c6b7a"}
    assert not gray, "gray stands for baselines"


def test_the_rows_of_window_observers_are_the_reports(report: LengthReport) -> None:
    assert report.predictors[0] == "window_10_stationary" and "cannot show transport" in report.transport
    assert set(OBSERVERS) == {f"window {width}" for width in range(1, 11)}
    for name, cells in OBSERVERS.items():
        level = report.kl_bits.baseline(f"{name.replace(' ', '_')}_stationary").value[0]
        means = [level[: int(length)].mean() for length in report.lengths]
        for cell, known in zip(cells, ([level[9]], [level[10]], means), strict=True):
            np.testing.assert_allclose(numbers(cell), known, rtol=0.04)


def test_over_a_hundred_symbols_one_symbol_is_nearer_than_every_variant(report: LengthReport) -> None:
    within, at_fifty, beyond = (report.whole_error_bits[KL, :, at] for at in (0, 2, 3))
    four, two = (report.kl_bits.baseline(f"window_{w}_stationary").value[0, :10].mean() for w in (4, 2))
    one = report.kl_bits.baseline("window_1_stationary").value[0]
    assert (beyond.ends[0] > one.mean()).all()
    named = [model.removeprefix("hmm-variant-") for model in report.models]
    low, high = (dict(zip(named, end > one[:50].mean(), strict=True)) for end in at_fifty.ends)
    assert {name for name, is_worse in low.items() if not is_worse} == {"prior"} and all(high.values())
    nearer = {name for name, high in zip(named, within.ends[1], strict=True) if high < four}
    assert nearer == {"learned", "sinusoidal", "rotary", "no-top-attention"}
    five, six = (report.kl_bits.baseline(f"window_{w}_stationary").value[0, :10].mean() for w in (5, 6))
    assert {name for name, high in zip(named, within.ends[1], strict=True) if high < five} == {"learned"}
    assert within.ends[0][named.index("learned")] < six < within.ends[1][named.index("learned")]
    assert within.value[named.index("alibi")] > two and within.ends[1][named.index("alibi")] > two


def test_the_shipped_model_breaks_as_the_page_says() -> None:
    found = Diagnosis.load(READINGS / "length-s5")["length"]
    assert isinstance(found, LengthReport) and (found.n, found.trained) == (128, 20)
    text = section(PAGE, "A shipped checkpoint").replace("\n", " ")
    discontinuity, low, high = with_ends(found.discontinuity_bits[KL, 0])
    assert f"The discontinuity is {discontinuity:.3f} [{low:.3f} … {high:.3f}]" in text and found.entry_layer[0] == 4


BY_DISTANCE = {
    "length-recall-mixed": "Recall, at growing distance",
    "length-recall-mixed-seed1": "The same with another seed",
    "length-recall": "Recall, trained at one distance",
    "length-recall-recurrent": "Recall, trained at one distance",
}


def by_distance(name: str) -> tuple[LengthReport, dict[str, list[str]]]:
    """A committed report, and what the page says of its models: models by their kind."""
    found = Diagnosis.load(READINGS / name)["length"]
    assert isinstance(found, LengthReport)
    rows = named_rows(section(PAGE, BY_DISTANCE[name]))
    return found, {model: rows[re.sub(r"^recall-(?:mixed-)?variant-|-seed1$", "", model)] for model in found.models}


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_the_rows_by_distance_are_their_reports(name: str) -> None:
    found, text = by_distance(name)
    for i, cells in enumerate(text.values()):
        shown = [j for j, length in enumerate(found.lengths) if "mixed" not in name or length != "4"]
        for j, cell in zip(shown, cells, strict=False):
            stored = with_ends(found.whole_error_bits[KL, i, j])
            np.testing.assert_allclose(numbers(cell), stored, rtol=0.01, atol=6e-5 if stored[0] < 0.01 else 6e-4)
        assert len(cells) == len(shown) + (2 if "mixed" in name else 0)


@pytest.mark.parametrize("name", [name for name in BY_DISTANCE if "mixed" in name])
def test_the_jumps_at_the_edge_are_their_reports(name: str) -> None:
    found, text = by_distance(name)
    assert found.trained == 8 and found.n == 512
    for i, cells in enumerate(text.values()):
        discontinuity = found.discontinuity_bits[KL, i]
        stored = [*with_ends(discontinuity), float(discontinuity.baseline(LARGEST_WITHIN).value)]
        np.testing.assert_allclose(numbers(cells[-2]), stored, rtol=0.06, atol=6e-8)
        assert numbers(cells[-1]) == [float(found.critical_length[i])]
