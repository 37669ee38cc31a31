"""Published values: each declared once, in agreement with the claims, and shown where they can be compared."""

import re
from dataclasses import fields

import pytest

from bayesgeom import load_report
from bayesgeom.checks.published import PublishedValue, published_cell, published_values
from bayesgeom.claims.loading import find, parsed
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.diagnosis import report_kinds
from bayesgeom.results.storage import quantities_of
from bayesgeom.tasks.base import task_kinds
from bayesgeom.tasks.evidence import BoundEvidence
from tests.pages import READINGS

TRANSFORMER = {"architecture": "transformer", "n_heads": 6, "n_layers": 6, "d_model": 192, "n_parameters": 2_677_248}
MLP, LSTM, RWKV = ({"architecture": name, "n_heads": 0} for name in ("mlp", "lstm", "rwkv"))
V20 = {"name": "bijection", "n_values": 20, "n_pairs": 19, "repeats": False}
REPEATS = V20 | {"repeats": True}
HMM = {"name": "hmm", "n_states": 5, "n_symbols": 5, "length": 20, "floor": 0.05, "grid": 0.01, "stay": None}
EVIDENCE = {"name": "evidence", "control": "none", "style": "plain", "reliability": 0.9, "ks": (0, 1, 2, 4, 8)}
RECURRENCE = {"name": "modular-recurrence", "modulus": 17, "length": 16, "opaque": False, "prefixes": "all"}
OF_MODELS = "0.44 bits (Pythia-410M), 0.36 bits (Llama-3.2-1B), 0.31 bits (Phi-2)"


def numbers_in(text: str) -> set[float]:
    text = re.sub(
        r"\(v\d(?:, v\d)*\)|\d+ of \d+ layers|layers \d+–\d+|Llama-3\.2-1B|Pythia-410M|Mistral-7B|Phi-2|I v3", "", text
    )
    return {float(own.replace(",", "")) for own in re.findall(r"\d[\d,]*\.?\d*(?:e-?\d+)?", text)}


@pytest.mark.parametrize("own", [own for own in published_values() if own.claim], ids=lambda own: own.claim)
def test_a_claim_names_the_same_numbers(own: PublishedValue) -> None:
    claim = find(own.claim)
    assert numbers_in(own.value) <= numbers_in(claim.published), (own.value, claim.published)


def test_a_claim_takes_its_numbers_from_the_file() -> None:
    """The claims once repeated them as text."""
    assert find("B3").published == "entropy error 0.009 bits (LSTM), 0.010 bits (Mamba)"
    text = "[[claim]]\n" + "".join(f'{name} = "x"\n' for name in ("claim", "source", "criterion", "does_not_show"))
    for published, shown in (("{1} and {0}", "0.010 bits and 0.009 bits"), ("no number", "no number")):
        assert parsed([f'{text}id = "B3"\npublished = "{published}"\n'], {})["B3"].published == shown
    for published in ("{2}", "{lstm}", "{"):
        with pytest.raises(InvalidArgument, match=r"claim 'B3': 'published' refers .* declares 0\.009 bits, 0\.010"):
            parsed([f'{text}id = "B3"\npublished = "{published}"\n'], {})


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
        (V20 | {"n_pairs": 20}, TRANSFORMER, "0.003 bits (v1), 0.007 bits (v3)"),
        (REPEATS, TRANSFORMER, "0.003 bits (v1), 0.007 bits (v3)"),  # I does not say whether keys return
        (V20 | {"n_pairs": 3}, TRANSFORMER, "published for n_pairs=19 or 20; here n_pairs=3"),
        (V20, LSTM, "0.009 bits"),
        (V20, RWKV, "not published for rwkv on this task"),
        (V20, MLP, "1.854 bits (v1), 1.85 bits (v3); 1.107 bits (follow-up)"),
        (REPEATS, MLP, "1.854 bits (v1), 1.85 bits (v3)"),
        ({"name": "bijection", "n_values": 5}, TRANSFORMER, "published for n_values=20; here n_values=5"),
        (HMM, TRANSFORMER, "7.5e-5 bits (v1, v2), 0.049 bits (v3)"),
        (HMM | {"length": 30}, TRANSFORMER, "0.0125 bits"),
        (HMM | {"length": 50}, TRANSFORMER, "0.0288 bits"),
        (HMM | {"length": 40}, TRANSFORMER, "published for length=20 or 30 or 50; here length=40"),
        (HMM | {"length": 30}, LSTM, "published for length=20; here length=30"),
        (HMM, MLP, "0.409 bits (v1, v2), 0.40 bits (v3)"),
        (HMM | {"length": 50}, MLP, "0.402 bits"),
        (
            HMM | {"floor": 0.01, "stay": 0.9},
            TRANSFORMER,
            "published for floor=0.05, stay=None; here floor=0.01, stay=0.9",
        ),
        (HMM | {"stay": 0.9}, TRANSFORMER, "published for stay=None; here stay=0.9"),
        (HMM | {"floor": 0.0}, TRANSFORMER, "published for floor=0.05; here floor=0.0"),
        (HMM | {"grid": 0.05}, TRANSFORMER, "published for grid=0.01; here grid=0.05"),
        (EVIDENCE, TRANSFORMER, OF_MODELS),
        (EVIDENCE | {"ks": [0, 1, 2, 4, 8]}, TRANSFORMER, OF_MODELS),
        (EVIDENCE | {"reliability": 0.6}, TRANSFORMER, "published for reliability=0.9; here reliability=0.6"),
        (EVIDENCE | {"ks": (0, 1)}, TRANSFORMER, "published for ks=[0, 1, 2, 4, 8]; here ks=[0, 1]"),
        (EVIDENCE | {"control": "masked"}, TRANSFORMER, "published for control=none; here control=masked"),
        (EVIDENCE | {"style": "chat"}, TRANSFORMER, "published for style=plain; here style=chat"),
        (RECURRENCE | {"rule_share": 0.5}, TRANSFORMER, "0.014 bits"),
        (RECURRENCE | {"rule_share": 0.9}, TRANSFORMER, "published for rule_share=0.5; here rule_share=0.9"),
        ({"name": "mess3"}, TRANSFORMER, "not published for mess3"),
        ({}, {}, ""),
    ],
)
def test_a_number_is_shown_only_for_the_papers_own_task_and_size(
    task: dict[str, object], model: dict[str, object], cell: str
) -> None:
    assert published_cell("calibration", "entropy_mae_bits", "", {"task": task, "model": model})[0] == cell
    assert published_cell("calibration", "kl_bits", "", {"task": task, "model": model}) == ("", "")


@pytest.mark.parametrize(
    ("report", "metric", "label"),
    [
        ("key_overlap", "mean_overlap", "|cos|, hypotheses / weights, layer 0"),
        ("ablation", "top_to_second_ratio", ""),  # language: quoted
        ("dynamics", "frame_ratio", ""),
        ("write_strength", "strength", ""),
        ("intervention", "change_bits", "answer shift, layer 0, frame (embedding)"),
    ],
)
def test_numbers_of_the_follow_up_are_of_keys_that_never_return(report: str, metric: str, label: str) -> None:
    assert published_cell(report, metric, label, {"task": V20, "model": TRANSFORMER})[0][0].isalnum()
    cell, note = published_cell(report, metric, label, {"task": REPEATS, "model": TRANSFORMER})
    assert cell == "published for repeats=False; here repeats=True"
    assert "bijection with n_values=20, n_pairs=19, repeats=False" in note


def test_a_range_over_layers_says_so_where_layer_0_is_shown() -> None:
    known = {"task": {"name": "prompts"}, "model": TRANSFORMER}
    cell, note = published_cell("key_overlap", "mean_overlap", "|cos|, columns, layer 0", known)
    assert "Phi-2, 29 of 32 layers" in cell and "Pythia-410M, layers 1–22" in cell and "not numbers of layer 0" in note


def test_alternatives_and_none_are_named_in_the_reason() -> None:
    _, note = published_cell("value_manifold", "entropy_r2", "", {"task": HMM | {"stay": 0.9}, "model": MLP})
    assert "length=15 or 20, floor=0.05, grid=0.01, stay=None" in note


def test_the_tasks_of_published_numbers_have_the_parameters_that_they_state() -> None:
    kinds = {name: kind for name, (kind, _) in task_kinds().items()} | {"evidence": BoundEvidence}
    for own in published_values():
        for task in own.tasks:
            assert task.keys() - {"name"} <= {field.name for field in fields(kinds[task["name"]])}, task


def test_the_note_states_the_papers_model_and_this_one() -> None:
    _, note = published_cell("calibration", "entropy_mae_bits", "", {"task": V20, "model": TRANSFORMER})
    assert note == (
        "I v1, v3 on bijection: 6 layers, 6 heads, width 192, 2.67 million parameters; whether keys return is not "
        "stated. Here: 6 layers, 6 heads, width 192, 2,677,248 parameters."
    )


def test_a_page_has_a_column_of_published_values_where_there_are_any() -> None:
    text = load_report(READINGS / "claims/attention-entropy-bijection-v20").to_html()
    assert ">published</th>" in text and ">85–90 %</td>" in text and "the transformers of I" in text
    assert ">published</th>" not in load_report(READINGS / "claims/belief-readout-mess3-small").to_html()
    of_text = load_report(READINGS / "smollm2-recall-in-context")
    assert f">not published for {of_text.provenance['task']['name']}</td>" in of_text.to_html()
