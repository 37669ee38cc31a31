"""The report that the viewer shows: its numbers are those of the model, and of the model without a head."""

import gzip
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load

import bayesgeom
from bayesgeom.ablations.report import AblationReport
from bayesgeom.cli import main
from bayesgeom.core import LOGIT_LENS, PATTERN, Z
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.measurements import inside
from bayesgeom.measurements.inside import N_MEANS, InsideReport
from bayesgeom.models.base import Model, hooked_sites
from bayesgeom.models.native.lstm import LSTMConfig
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import Branch, derived_seed
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures

TASK = bayesgeom.tasks.Bijection(n_values=7, n_pairs=5)
LAYERS, HEADS = 2, 3


def transformer(seed: int = 0) -> Any:
    sizes = {"n_layers": LAYERS, "n_heads": HEADS, "d_model": 15, "d_mlp": 11}
    module = bayesgeom.TransformerConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, **sizes).build(seed=seed)
    for weights in module.parameters():
        weights.data *= 4  # so that every head matters
    return module


@cache
def model() -> Model:
    return bayesgeom.as_model(transformer())


@cache
def diagnosis() -> Diagnosis:
    return bayesgeom.diagnose(model(), TASK, probes=["inside"], n=11, n_untrained=0)


def report(found: Diagnosis | None = None) -> InsideReport:
    own = (found or diagnosis())["inside"]
    assert isinstance(own, InsideReport)
    return own


def sequences() -> Any:
    return next(TASK.stream(8, seed=derived_seed(0, Branch.TRIALS)))


def test_probabilities_and_attention_are_those_of_the_model() -> None:
    own, trials = report(), sequences()
    run = model().run([trials], record=[PATTERN, LOGIT_LENS], n_recorded=8)
    np.testing.assert_array_equal(own.ids, trials.tokens)
    np.testing.assert_array_equal(own.scored, trials.scored_positions())
    np.testing.assert_allclose(own.exact_probs, trials.at_scored(trials.predictive), atol=1e-7)
    np.testing.assert_allclose(own.model_probs, run.log_answers.exp(), atol=1e-6)
    np.testing.assert_allclose(own.kl_bits, run.behavior.kl_bits, atol=1e-5)
    assert np.abs(own.attention / 255 - run.at(PATTERN).transpose(0, 1).numpy()).max() <= 0.5 / 255 + 1e-6
    np.testing.assert_allclose(own.lens_probs, run.at(LOGIT_LENS).exp().transpose(0, 1), atol=1e-3)
    lens = run.at(LOGIT_LENS).double()
    lens_kl = kl_bits(trials.at_scored(trials.predictive).expand_as(lens), lens).transpose(0, 1)
    np.testing.assert_allclose(own.lens_kl_bits, lens_kl, atol=1e-5)
    assert own.texts[:2] == tuple(TASK.token_labels()[token] for token in trials.tokens[0, :2])
    assert own.answers == tuple(f"v{value}" for value in range(7))


def test_a_head_is_replaced_by_its_mean_over_other_sequences() -> None:
    """The slow twin: hooks, one head at a time."""
    own, trials, layer, head = report(), sequences(), 1, 2
    stored = list[torch.Tensor]()
    for block in TASK.stream(N_MEANS, seed=derived_seed(0, inside._MEANS)):
        with torch.no_grad(), hooked_sites(model(), {(Z, layer): stored.append}):
            model().logits(block)
    mean = torch.cat(stored).mean(dim=0)

    def without(z: torch.Tensor) -> torch.Tensor:
        edited = z.clone()
        edited[:, :, head] = mean[:, head]
        return edited

    with torch.no_grad(), hooked_sites(model(), {(Z, layer): without}):
        log_answers, _ = answer_log_probabilities(model().logits(trials), trials)
    exact = trials.at_scored(trials.predictive)
    np.testing.assert_allclose(own.edited_probs[:, layer, head], log_answers.exp(), atol=1e-3)
    np.testing.assert_allclose(own.edited_kl_bits[:, layer, head], kl_bits(exact, log_answers), atol=1e-4)
    assert np.abs(own.edited_kl_bits - own.kl_bits[:, None, None]).max() > 0.1, "some head matters"


def test_the_payload_holds_the_numbers_of_the_report(tmp_path: Path) -> None:
    own, file = report(), tmp_path / "data"
    file.write_bytes(gzip.decompress(own.payload()))
    for name, values in load(file.read_bytes()).items():
        np.testing.assert_array_equal(values, vars(own)[name])
    with safe_open(file, framework="numpy") as opened:
        about = json.loads(opened.metadata()["about"])
    assert [text for row in about["tokens"] for text in row] == list(own.texts) and tuple(
        about["answers"]
    ) == own.answers


def test_it_is_stored_as_any_report_and_has_no_rows(tmp_path: Path) -> None:
    whole = bayesgeom.diagnose(model(), TASK, probes=["calibration", "inside"], n=11, n_untrained=0)
    whole.save(tmp_path / "run")
    loaded = Diagnosis.load(tmp_path / "run")
    assert report(loaded) == report(whole) and report(loaded).n == 8
    assert set(whole.to_pandas()["probe"]) == {"calibration"} and not whole["inside"].headlines()
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.count('id="viewer"') == page.count('id="viewer-data"') == 1


def test_it_is_part_of_every_diagnosis_with_a_posterior() -> None:
    assert "inside" in bayesgeom.diagnose(model(), TASK, n=8, n_untrained=0)
    assert "inside" not in bayesgeom.diagnose(model(), TASK, n=8, n_untrained=0, probes=["calibration"])


@pytest.mark.parametrize("mode", ["mean", "zero"])
def test_the_page_of_an_ablation_has_the_viewer(mode: Any, tmp_path: Path) -> None:
    saved = bayesgeom.ablate(model(), TASK, "heads", mode=mode, n=11, out=tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert re.findall("<h1>(.*?)</h1>", page) == ["What breaks without each component?"]
    assert page.count('id="viewer-data"') == 1 and load_report(tmp_path / "run") == saved
    assert AblationReport.load(tmp_path / "run") == saved
    own = report(Diagnosis.load(tmp_path / "run"))
    effects = (own.edited_kl_bits - own.kl_bits[:, None, None]).mean(axis=(0, 3))
    assert own.n == 8 and own.edited_kl_bits.shape[1:3] == (LAYERS, HEADS)
    assert np.corrcoef(effects.ravel(), saved.kl_increase_bits.value)[0, 1] > 0.9, (
        "the same effects, of 8 sequences of 11"
    )
    is_same = np.allclose(own.edited_kl_bits, report().edited_kl_bits, atol=1e-5)
    assert is_same == (mode == "mean"), "the mode of the battery is that of the viewer"
    np.testing.assert_allclose(own._without(model())(2, [(1, 2)])[1], own.edited_kl_bits[2, 1, 2], atol=1e-5)


def test_without_attention_there_are_predictions_alone() -> None:
    lstm = LSTMConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=1, d_model=5).build(seed=0)
    own = report(bayesgeom.diagnose(lstm, TASK, probes="inside", n=3, n_untrained=0))
    assert own.attention.shape[:3] == own.edited_kl_bits.shape[:3] == (3, 0, 0) and own.model_probs.shape == (3, 5, 7)


def test_long_sequences_of_many_heads_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    of_place = LAYERS * HEADS * TASK.n_pos
    for n_bytes, n, n_places in ((15 * of_place, 3, 5), (3 * of_place, 1, 3), (1, 1, 1)):
        monkeypatch.setattr(inside, "MOST_BYTES", n_bytes)
        own = report(bayesgeom.diagnose(model(), TASK, probes="inside", n=8, n_untrained=0))
        assert own.model_probs.shape == (n, n_places, 7) and own.attention.size <= max(n_bytes, of_place)
        np.testing.assert_array_equal(own.scored, report().scored[:n, -n_places:])
        np.testing.assert_allclose(own.edited_kl_bits, report().edited_kl_bits[:n, ..., -n_places:], atol=1e-5)


def test_the_widget_runs_the_model_without_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    widget: Any = diagnosis().view(model())
    sent = list[tuple[dict[str, Any], list[bytes]]]()
    monkeypatch.setattr(widget, "send", lambda content, buffers: sent.append((content, buffers)))
    for heads in ([[1, 2]], [[0, 1], [1, 2]]):
        widget._handle_custom_msg({"id": 3, "sequence": 4, "heads": heads}, [])
    (content, (probs, kl)), (_, (both, _)) = sent
    assert content == {"id": 3, "shapes": [[5, 7], [5]]} and widget.runs
    found = np.frombuffer(probs, np.float32).reshape(5, 7)
    np.testing.assert_allclose(found, report().edited_probs[4, 1, 2], atol=1e-3)
    np.testing.assert_allclose(np.frombuffer(kl, np.float32), report().edited_kl_bits[4, 1, 2], atol=1e-5)
    assert np.abs(np.frombuffer(both, np.float32).reshape(5, 7) - found).max() > 1e-3, "two heads differ from one"


def test_the_widget_without_a_model_shows_what_is_stored() -> None:
    widget: Any = diagnosis().view()
    assert not widget.runs and widget.data == report().payload()


def test_another_model_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"runs the diagnosed model, transformer; got transformer with other"):
        diagnosis().view(transformer(seed=1))
    lstm = LSTMConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=1, d_model=5).build(seed=0)
    found = bayesgeom.diagnose(lstm, TASK, probes="inside", n=3, n_untrained=0)
    with pytest.raises(MissingSite, match=r"switching heads off in view\(\) requires site 'z'"):
        found.view(lstm)


def test_missing_parts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match=r"no report 'inside' to view\. Diagnose without probes"):
        bayesgeom.diagnose(model(), TASK, probes="calibration", n=3, n_untrained=0).view()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(InvalidArgument, match=r"view\(\) needs anywidget: pip install '\.\[notebook\]'"):
        diagnosis().view()


def test_the_command_writes_the_viewer_alone(
    tiny_checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", "bijection-v20", "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('id="viewer-data"') == 1 and 'id="library"' not in page and len(page) < 1e6
    assert main(["view", "bijection-v20", "--out", str(tmp_path)]) == 2
    assert main(["view", "bijection-v20", "--task", "hmm", "--out", str(tmp_path / "other.html")]) == 2
    assert "Is a directory" in capsys.readouterr().err and not (tmp_path / "other.html").exists()


def test_a_task_without_a_posterior_has_no_viewer() -> None:
    word = bayesgeom.tasks.Prompts(texts=["one two"])
    with pytest.raises(InvalidArgument, match="tokenizer"):
        bayesgeom.diagnose(model(), word, probes="inside", n=1, n_untrained=0)


def test_callables_show_predictions_alone() -> None:
    module = transformer()
    own = report(bayesgeom.diagnose(lambda tokens: 2 * module(tokens), TASK, probes="inside", n=3, n_untrained=0))
    twice = report().model_probs[:3].astype(np.float64) ** 2
    np.testing.assert_allclose(own.model_probs, twice / twice.sum(axis=-1, keepdims=True), atol=1e-6)
    assert own.attention.shape[1] == own.lens_probs.shape[1] == own.edited_probs.shape[1] == 0


def test_the_first_view_is_where_a_head_matters_most() -> None:
    own = report()
    lost = own.edited_kl_bits[0] - own.kl_bits[0]
    place = int(np.unravel_index(lost.argmax(), lost.shape)[-1])
    found = own.first_view()
    assert len(found.tokens) == own.scored[0, place] + 1
    for answer, shares in found.answers.items():
        at = own.answers.index(answer)
        assert shares == (own.exact_probs[0, place, at], own.model_probs[0, place, at])
    assert (
        max(found.answers, key=lambda name: found.answers[name][0]) == own.answers[own.exact_probs[0, place].argmax()]
    )
