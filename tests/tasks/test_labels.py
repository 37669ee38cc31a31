"""Texts with labels: what a sequence holds, how texts are split, and what is refused."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bayesgeom
from bayesgeom.ablations import every_head
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.measurements.inside import HeadAblation
from bayesgeom.models.base import Model
from bayesgeom.tasks.base import FiniteTask, LabeledTask, WindTunnel, task_from_config
from bayesgeom.tasks.labels import labeled_texts
from tests.shape_checks import ARE_ON
from tests.tasks.tokenizers import pair_tokenizer, word_tokenizer

WORDS = ["apple", "river", "table", "stone", "garden", "window"]
TEXTS = [f"{a} {b}" if at % 2 else f"{a} {b} {a}" for at, a in enumerate(WORDS) for b in WORDS if a != b]
LABELS = [text.split()[1] in WORDS[:2] for text in TEXTS]
ANSWERS: Any = {True: "A", False: "B"}


def bound(**given: Any) -> LabeledTask:
    tokenizer = word_tokenizer()
    task = labeled_texts(TEXTS, LABELS, **{"answers": ANSWERS, **given}).bind(tokenizer, d_vocab=len(tokenizer))
    assert isinstance(task, LabeledTask)
    return task


def words_of(ids: torch.Tensor) -> list[str]:
    return str(word_tokenizer().decode(ids.tolist())).split()


def test_the_label_is_the_exact_answer_after_the_last_token() -> None:
    trials = bound().in_order()
    assert trials.is_labeled and trials.has_posterior and trials.n_scored == 1
    assert [len(own.split()) + 1 for own in TEXTS] == trials.ends().tolist()  # one token opens a text
    assert words_of(trials.answers) == ["B", "A"]  # False is before True
    assert trials.at_scored(trials.predictive)[:, 0, 1].tolist() == [float(own) for own in LABELS]
    assert torch.equal(trials.at_scored(trials.labels)[:, 0], trials.answers[torch.tensor(LABELS).long()])
    assert bool(trials.predictive[~trials.scored].isnan().all())
    labels = bound().token_labels()
    assert len(set(labels)) == len(labels) and labels[trials.tokens[0, 1]] == TEXTS[0].split()[0]


def test_a_text_may_have_a_label_for_each_of_its_last_tokens() -> None:
    rows = [[own in WORDS[:3] for own in text.split()[-2:]] for text in TEXTS]
    task = labeled_texts(TEXTS, rows, answers=ANSWERS).bind(word_tokenizer(), d_vocab=len(word_tokenizer()))
    assert isinstance(task, FiniteTask)
    trials = task.in_order()
    assert trials.n_scored == 2
    assert trials.at_scored(trials.predictive)[..., 1].tolist() == np.array(rows, dtype=float).tolist()
    assert words_of(trials.at_scored(trials.tokens)[0]) == TEXTS[0].split()[-2:]


@pytest.mark.parametrize("n_texts", [4, 30])
def test_few_texts_of_several_lengths_are_diagnosed_by_default(n_texts: int) -> None:
    tokenizer, labels = word_tokenizer(), [at % 2 == 0 for at in range(n_texts)]
    sizes: dict[str, Any] = {"n_layers": 2, "n_heads": 3, "d_model": 21, "d_mlp": 5}
    config = bayesgeom.TransformerConfig(d_vocab=len(tokenizer), n_ctx=7, **sizes)
    model = bayesgeom.as_model(config.build(seed=0), tokenizer=tokenizer)
    task = labeled_texts(TEXTS[:n_texts], labels, answers=ANSWERS)
    diagnosis = bayesgeom.diagnose(model, task, n_untrained=0)
    assert diagnosis.provenance["arguments"]["n"] == n_texts and not diagnosis.skipped
    assert "confident" not in diagnosis.summary()
    assert bayesgeom.gradient_laws(model, task).n == bayesgeom.audit(model, task).n == n_texts


def test_heads_of_texts_of_several_lengths_are_removed_as_of_each_text_alone() -> None:
    config = bayesgeom.TransformerConfig(d_vocab=len(word_tokenizer()), n_ctx=7, n_layers=2, n_heads=2, d_model=6)
    model, trials = bayesgeom.as_model(config.build(seed=1)), bound().in_order()
    ablation = HeadAblation(model, bound(), seed=0, mode="zero")
    together, alone = ablation.log_answers(trials, heads := every_head(model)), ablation_of_one_text(model)
    for row in (0, 1, 7):
        torch.testing.assert_close(together[:, [row]], alone.log_answers(trials.rows(slice(row, row + 1)), heads))


def ablation_of_one_text(model: Model) -> HeadAblation:
    """Texts of one length are replayed; each of any length can follow."""
    texts = [text for text in TEXTS if len(text.split()) == 2]
    task = labeled_texts(texts, [at % 2 for at in range(len(texts))], answers={0: "A", 1: "B"})
    alike = task.bind(word_tokenizer(), d_vocab=len(word_tokenizer()))
    assert isinstance(alike, WindTunnel)
    return HeadAblation(model, alike, seed=0, mode="zero")


def test_the_task_survives_json() -> None:
    assert task_from_config(json.loads(json.dumps(bound().config()))) == bound()


def test_halves_share_no_text_and_have_as_many_of_each_label() -> None:
    task = bound()
    fit, score = task.halves()
    seen = [{tuple(row.tolist()) for row in half.in_order().tokens} for half in (fit, score)]
    assert not seen[0] & seen[1] and len(seen[0] | seen[1]) == len(TEXTS)
    shares = [half.in_order().predictive.nansum(dim=(0, 1)) for half in (fit, score)]
    assert (shares[0] - shares[1]).abs().max() <= 1


def test_donors_are_other_texts_of_either_label() -> None:
    own, donor = bound().sample_pair(len(TEXTS), seed=0)
    assert len(own.tokens.unique(dim=0)) == len(TEXTS) and not bool((own.tokens == donor.tokens).all(dim=1).any())
    same = (own.at_scored(own.labels) == donor.at_scored(donor.labels)).float().mean()
    assert 0.2 < same < 0.8


def test_columns_of_a_table_and_arrays_are_taken() -> None:
    table = pd.DataFrame({"text": TEXTS, "label": LABELS})
    tokenizer = word_tokenizer()
    for labels in (table["label"], np.array(LABELS), torch.tensor(LABELS)):
        task = labeled_texts(table["text"], labels, answers=ANSWERS).bind(tokenizer, d_vocab=len(tokenizer))
        assert isinstance(task, WindTunnel) and task == bound()


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "numbers": (TEXTS, LABELS[:-1], {}, "30 texts and labels of 29"),
    "a text alone": ("apple", ["x"], {}, "at least two values"),
    "an empty text": ([*TEXTS[:-1], " "], LABELS, {}, "non-empty text, got ' '"),
    "a text twice": ([*TEXTS[:-1], TEXTS[0]], LABELS, {}, "is given 2 times"),
    "one label": (TEXTS, [True] * 30, {}, "at least two values"),
    "a label of one text": (TEXTS, [*LABELS[:-1], "other"], {}, "label 'other' is that of one text"),
    "fractions": (TEXTS, [0.5] * 30, {}, "whole numbers.*got 0.5"),
    "rows of unequal length": (TEXTS, [[1, 0], *[[1]] * 29], {}, "as many labels; text 0 has 2"),
    "labels that are no list": (TEXTS, None, {}, "labels must be a list.*got None"),
    "labels without an order": (TEXTS, {"x", "y"}, {}, "labels must be a list"),
    "labels of three axes": (TEXTS, np.zeros((30, 1, 1), dtype=int), {}, "whole numbers"),
    "a tensor without axes": (torch.tensor(8), LABELS, {}, "texts must be a list.*got a Tensor"),
    "an array without axes": (TEXTS, np.array(8), {}, "labels must be a list.*got a ndarray"),
    "bytes": (b"apple river", LABELS, {}, "texts must be a list.*got b'apple river'"),
    "bytes as labels": (["apple", "river"], b"ab", {}, "labels must be a list.*got b'ab'"),
    "numbers as texts": (np.arange(30.0), LABELS, {}, "non-empty text, got np.float64"),
    "a row of numbers": (torch.arange(30), LABELS, {}, "non-empty text, got a Tensor"),
    "answers without labels": (TEXTS, LABELS, {"answers": ["A", "B"]}, "a word for each"),
    "answers that are no words": (TEXTS, LABELS, {"answers": {True: 1, False: 0}}, "a word for each"),
    "no answer for a label": (TEXTS, LABELS, {"answers": {True: "A"}}, "a word for each"),
}


@pytest.mark.skipif(ARE_ON, reason="checks of annotations would refuse first")
@pytest.mark.parametrize("case", REFUSED)
def test_bad_labels_are_named(case: str) -> None:
    texts, labels, given, match = REFUSED[case]
    with pytest.raises(InvalidArgument, match=match):
        labeled_texts(texts, labels, **{"answers": None, **given})


def test_what_does_not_fit_the_tokenizer_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"2 answers that are single tokens.*Pass answers="):
        labeled_texts(TEXTS, LABELS).bind(word_tokenizer(n_words=60), d_vocab=2_000)
    with pytest.raises(InvalidArgument, match="9 labels for"):
        labeled_texts(TEXTS, [[1, 0] * 4 + [1]] * 30, answers={0: "A", 1: "B"}).bind(pair_tokenizer(), d_vocab=5_000)
