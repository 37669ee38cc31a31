"""Published values: each declared once, in agreement with the claims, and shown where they can be compared."""

import re
from dataclasses import fields

import pytest

from bayesgeom import load_report
from bayesgeom.checks.published import PublishedValue, published_cell, published_values
from bayesgeom.claims.loading import find
from bayesgeom.results.diagnosis import report_kinds
from bayesgeom.results.storage import quantities_of
from tests.pages import READINGS

TRANSFORMER = {"architecture": "transformer", "n_heads": 6, "n_layers": 6, "d_model": 192, "n_parameters": 2_677_248}
V20 = {"name": "bijection", "n_values": 20, "n_pairs": 19}


def numbers_in(text: str) -> set[float]:
    text = re.sub(r"\(v\d(?:, v\d)*\)|Llama-3\.2-1B|Pythia-410M|Mistral-7B|Phi-2|I v3", "", text)
    return {float(own.replace(",", "")) for own in re.findall(r"\d[\d,]*\.?\d*(?:e-?\d+)?", text)}


@pytest.mark.parametrize("own", [own for own in published_values() if own.claim], ids=lambda own: own.claim)
def test_a_claim_names_the_same_numbers(own: PublishedValue) -> None:
    claim = find(own.claim)
    assert numbers_in(own.value) <= numbers_in(claim.published), (own.value, claim.published)


def test_each_number_belongs_to_a_field_of_a_report_and_is_declared_once() -> None:
    kinds = report_kinds()
    for own in published_values():
        assert own.metric in {*quantities_of(kinds[own.report]), *(field.name for field in fields(kinds[own.report]))}
    places = [(v.report, v.metric, v.label, str(v.tasks), v.architectures) for v in published_values()]
    assert len(places) == len(set(places)) >= 30


@pytest.mark.parametrize(
    ("task", "model", "cell"),
    [
        (V20, TRANSFORMER, "0.003 bits (v1), 0.007 bits (v3)"),
        (V20, {"architecture": "lstm", "n_heads": 0}, "0.009 bits"),
        (V20, {"architecture": "rwkv", "n_heads": 0}, "other architecture"),
        ({"name": "bijection", "n_values": 5}, TRANSFORMER, "other size of the task"),
        ({"name": "mess3"}, TRANSFORMER, "other task"),
        ({}, {}, ""),
    ],
)
def test_a_number_is_shown_only_for_the_papers_own_task_and_size(
    task: dict[str, object], model: dict[str, object], cell: str
) -> None:
    assert published_cell("calibration", "entropy_mae_bits", "", {"task": task, "model": model})[0] == cell
    assert published_cell("calibration", "kl_bits", "", {"task": task, "model": model}) == ("", "")


def test_the_note_states_the_papers_model_and_this_one() -> None:
    _, note = published_cell("calibration", "entropy_mae_bits", "", {"task": V20, "model": TRANSFORMER})
    assert note == (
        "I v1, v3 on bijection: 6 layers, 6 heads, width 192, 2.67 million parameters; whether keys return is not "
        "stated. Here: 6 layers, 6 heads, width 192, 2,677,248 parameters."
    )


def test_a_page_has_a_column_of_published_values_where_there_are_any() -> None:
    text = load_report(READINGS / "claims/attention-entropy-bijection-v20").to_html()
    assert "<th>published</th>" in text and ">85–90 %</td>" in text and "the transformers of I" in text
    assert "<th>published</th>" not in load_report(READINGS / "claims/belief-readout-mess3-small").to_html()
    assert ">other task</td>" in load_report(READINGS / "smollm2-recall-in-context").to_html()
