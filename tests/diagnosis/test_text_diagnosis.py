"""Text tasks from end to end: a tiny Hugging Face model with its tokenizer, saved, loaded, bound, diagnosed."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.measurements.value_manifold import ValueManifoldReport
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import as_model, load, task_of
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.evidence import LabeledEvidence
from bayesgeom.tasks.in_context import InContext
from bayesgeom.tasks.prompts import Prompts
from tests.angles import principal_angles
from tests.families import lively
from tests.tasks.tokenizers import word_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer, path = word_tokenizer(), tmp_path_factory.mktemp("model")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer) + 3,
        max_position_embeddings=131,
        hidden_size=28,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=1,
        eos_token_id=1,
    )
    lively(transformers.LlamaForCausalLM(config)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder)


@pytest.mark.slow
def test_prompts_are_diagnosed_with_the_models_own_entropy(model: Model, tmp_path: Path) -> None:
    diagnosis = bayesgeom.diagnose(model, Prompts(), n_untrained=1)
    assert diagnosis.provenance["arguments"]["n"] == 160, "of a fixed stock no more than all"
    assert {"calibration", "belief_readout"} <= diagnosis.inapplicable.keys()
    assert "requires an exact posterior, which task 'prompts' does not have" in diagnosis.inapplicable["calibration"]
    assert {"value_manifold", "key_overlap", "attention_entropy", "domain_separation"} <= diagnosis.keys()
    assert "the model's own" in diagnosis[ValueManifoldReport].conditions
    assert any("(the model's own)" in line.label for _, line in diagnosis.headlines())
    diagnosis.save(tmp_path / "report")
    assert bayesgeom.Diagnosis.load(tmp_path / "report").inapplicable == diagnosis.inapplicable


def test_own_entropy_is_that_of_the_whole_vocabulary_at_the_last_token(model: Model) -> None:
    task = task_of(model, Prompts(domain="code"))
    trials = task.sample(11, seed=0)
    run = model.run([trials], n_recorded=11)
    hf = model.module
    for row in range(len(trials)):
        end = int(trials.scored[row].nonzero()[0]) + 1
        with torch.no_grad():
            logits = hf(trials.tokens[row : row + 1, :end]).logits[0, -1].double()
        p = logits.softmax(-1)
        assert run.behavior.model_entropy_bits[row, 0] == pytest.approx(float(-(p * p.log2()).sum()), abs=1e-5)
    assert np.isnan(run.behavior.kl_bits).all() and np.isnan(run.exact_behavior.correct).all()
    np.testing.assert_allclose(run.reference_entropy_bits(), run.behavior.model_entropy_bits, atol=0)


def test_the_model_at_hand_selects_quintiles(model: Model) -> None:
    chosen = task_of(model, Prompts(domain="code", per_quintile=3))
    everything = task_of(model, Prompts(domain="code")).sample(40, seed=0)
    assert chosen.config()["per_quintile"] == 0 and len(chosen.config()["prompts"]) == 15
    entropy = model.run([everything]).behavior.model_entropy_bits[:, -1]
    kept = model.run([chosen.sample(15, seed=0)]).behavior.model_entropy_bits[:, -1]
    edges = np.sort(entropy)[[7, 8, 15, 16, 23, 24, 31, 32]]
    for low, high in zip([0, *edges[1::2]], [*edges[0::2], 99], strict=True):
        assert ((kept >= low - 1e-5) & (kept <= high + 1e-5)).sum() == 3


def test_evidence_and_wind_tunnels_in_context_have_their_posterior(model: Model) -> None:
    diagnosis = bayesgeom.diagnose(model, LabeledEvidence(k_max=3, n_words=7), n=13, n_untrained=1)
    assert "calibration" in diagnosis and "domain_separation" in diagnosis.inapplicable
    assert "several kinds" in diagnosis.inapplicable["domain_separation"]
    inside = InContext(task=Bijection(n_values=5, n_pairs=3))
    report = bayesgeom.ablate(model, inside, bayesgeom.ablations.every_mlp(model), n=5)
    assert not report.inert.any()
    calibration = bayesgeom.diagnose(model, inside, n=7, n_untrained=0)["calibration"]
    assert isinstance(calibration, CalibrationReport) and 0 < float(calibration.off_answer_prob) < 1


def test_text_needs_a_tokenizer() -> None:
    bare = as_model(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=31, n_embd=12, n_head=2, n_layer=1))
    )
    with pytest.raises(InvalidArgument, match=r"'prompts' is text, and .* has no tokenizer"):
        bayesgeom.diagnose(bare, Prompts())


def test_what_is_counted_in_bits_to_the_posterior_needs_one(model: Model) -> None:
    with pytest.raises(TaskMismatch, match="this measurement requires a task with an exact posterior"):
        bayesgeom.ablate(model, Prompts(), n=3)
    with pytest.raises(TaskMismatch, match="probe 'calibration' requires an exact posterior"):
        bayesgeom.diagnose(model, Prompts(), probes=["calibration"])


def test_principal_angles_of_known_planes() -> None:
    basis, angle = torch.eye(7, dtype=torch.float64), torch.tensor(30.0).deg2rad().double()
    turned = torch.stack([basis[0], angle.cos() * basis[1] + angle.sin() * basis[2]], dim=1)
    torch.testing.assert_close(principal_angles(basis[:, :2], turned), torch.tensor([0.0, 30.0]).double())
    torch.testing.assert_close(principal_angles(basis[:, :2], basis[:, 3:5]), torch.tensor([90.0, 90.0]).double())
