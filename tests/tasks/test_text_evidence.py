"""Labeled evidence against enumeration over the latent and every label, its controls, its baselines and its laws."""

import copy
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import NO_LABEL
from bayesgeom.tasks.evidence import MESSAGES, BoundEvidence, LabeledEvidence
from tests.tasks.tokenizers import pair_tokenizer, word_tokenizer

K, R = 5, 0.8
SPEC = LabeledEvidence(k_max=K, reliability=R, n_words=11)
CONTROLS = ["none", "filler", "shuffled", "masked", "remap"]
QUERIES = ["next", "latent"]


def bound(**changes: Any) -> BoundEvidence:
    return replace(SPEC, **changes).bind(pair_tokenizer(), d_vocab=2_503)


def shown_labels(task: BoundEvidence, tokens: list[int]) -> list[int]:
    """The labels of a prompt, counted from 0, by the documented layout alone."""
    return [task.label_ids.index(token) for token in tokens[len(task.prefix) + 2 :: 4]]


def enumerated(shown: list[int], query: str) -> tuple[np.ndarray, np.ndarray]:
    """Belief and predictive after these labels: the joint of y and one label more, summed."""
    joint = np.zeros((2, 2))
    for y, following in itertools.product(range(2), repeat=2):
        joint[y, following] = 0.5 * np.prod([R if label == y else 1 - R for label in [*shown, following]])
    joint /= joint.sum()
    return joint.sum(1), joint.sum(0) if query == "next" else joint.sum(1)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("control", ["none", "remap"])
def test_posterior_is_the_sum_over_latent_and_label(query: str, control: str) -> None:
    task = bound(query=query, control=control)
    trials = task.sample(13, seed=3)
    for row, tokens in enumerate(trials.tokens.tolist()):
        shown = shown_labels(task, tokens)
        for k, pos in enumerate(trials.scored_positions()[row].tolist()):
            belief, predictive = enumerated(shown[:k], query)
            np.testing.assert_allclose(trials.belief[row, pos].numpy(), belief, atol=1e-14)
            np.testing.assert_allclose(trials.predictive[row, pos].numpy(), predictive, atol=1e-14)


@pytest.mark.parametrize("tokenizer", [word_tokenizer(), pair_tokenizer()], ids=["words", "pairs"])
def test_layout_is_word_colon_label_comma_and_every_colon_asks(tokenizer: Any) -> None:
    task = SPEC.bind(tokenizer, d_vocab=len(tokenizer))
    trials = task.sample(7, seed=1)
    start = len(task.prefix)
    assert start == (tokenizer is word_tokenizer())
    assert trials.tokens.shape == (7, task.n_pos) == (7, start + 4 * K + 2)
    assert trials.scored_positions()[0].tolist() == [start + 1 + 4 * k for k in range(K + 1)]
    assert (trials.tokens[trials.scored] == task.colon_id).all()
    assert (trials.tokens[:, start + 3 :: 4] == task.separator_id).all()
    words = trials.tokens[:, start::4]
    assert all(len({*row}) == K + 1 and {*row} <= {*task.word_ids} for row in words.tolist())
    assert trials.answers.tolist() == list(task.label_ids)
    assert (trials.labels[~trials.scored] == NO_LABEL).all()
    assert trials.token_sets["hypotheses"].tolist() == list(task.label_ids)
    assert trials.token_sets["inputs"].tolist() == list(task.word_ids)
    assert trials.has_posterior and trials.groups is None


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("query", QUERIES)
def test_answers_come_true_as_often_as_the_posterior_says(query: str, control: str) -> None:
    trials = bound(query=query, control=control).sample(20_000, seed=2)
    exact = trials.at_scored(trials.predictive)[..., 0].round(decimals=9)
    came_true = (trials.at_scored(trials.labels) == trials.answers[0]).double()
    for given in exact.unique():
        chosen = exact == given
        error = 4 * 0.5 / int(chosen.sum()) ** 0.5 + 0.01
        assert abs(float(came_true[chosen].mean() - given)) < error, f"answers given {given:.3f}"
    mean = trials.at_scored(trials.belief).mean(0)
    assert (mean - 0.5).abs().max() < 0.015, "the expected posterior is the prior"


def test_latent_asks_for_one_and_the_same_label_and_next_for_what_comes() -> None:
    latent, following = (bound(query=query).sample(17, seed=4) for query in ("latent", "next"))
    assert torch.equal(latent.tokens, following.tokens) and torch.equal(
        latent.belief.nan_to_num(), following.belief.nan_to_num()
    )
    asked = latent.at_scored(latent.labels)
    assert (asked == asked[:, :1]).all()
    start = len(bound().prefix)
    assert torch.equal(following.at_scored(following.labels)[:, :-1], following.tokens[:, start + 2 :: 4])
    assert following.at_scored(following.predictive).max() < R < latent.at_scored(latent.predictive).max()


def test_chosen_ks_are_those_columns_of_all() -> None:
    every, some = bound().sample(7, seed=5), bound(ks=(4, 1)).sample(7, seed=5)
    assert some.n_scored == 2 and some.tokens.shape[1] == 4 * 4 + 2
    few = bound(ks=tuple(range(5))).sample(7, seed=5)
    assert torch.equal(some.at_scored(some.predictive), few.at_scored(few.predictive)[:, [1, 4]])
    assert torch.equal(every.at_scored(every.predictive)[:, 0], few.at_scored(few.predictive)[:, 0])


def test_controls_keep_length_and_places_and_take_the_evidence_away() -> None:
    main = bound().sample(11, seed=6)
    for control in ("filler", "shuffled", "masked"):
        task = bound(control=control)
        trials = task.sample(11, seed=6)
        assert torch.equal(trials.scored, main.scored)
        flat = trials.at_scored(trials.predictive)
        assert torch.equal(flat, torch.full_like(flat, 0.5)), "1 bit at every k"
        where_labels = trials.tokens[:, len(task.prefix) + 2 :: 4]
        if control == "masked":
            assert len(where_labels.unique()) == 1 and not {*where_labels.unique().tolist()} & {*task.label_ids}
        if control == "filler":
            words = trials.tokens[:, len(task.prefix) :: 4]
            assert all(not {*a} & {*b} for a, b in zip(words.tolist(), where_labels.tolist(), strict=True))
            assert {*where_labels.flatten().tolist()} <= {*task.word_ids}
        assert {*trials.at_scored(trials.labels).flatten().tolist()} == {*task.label_ids}


def test_a_remap_changes_words_and_labels_and_nothing_else() -> None:
    task, other = bound(), bound(control="remap")
    assert not ({*task.word_ids, *task.label_ids} & {*other.word_ids, *other.label_ids})
    renamed = dict(zip((*task.word_ids, *task.label_ids), (*other.word_ids, *other.label_ids), strict=True))
    one, two = task.sample(11, seed=8), other.sample(11, seed=8)
    assert [[renamed.get(i, i) for i in row] for row in one.tokens.tolist()] == two.tokens.tolist()
    assert torch.equal(one.at_scored(one.predictive), two.at_scored(two.predictive))


def test_pairs_share_words_and_have_opposite_latents() -> None:
    task = bound(query="latent")
    original, donor = task.sample_pair(2_000, seed=9)
    start = len(task.prefix)
    for place in (0, 1, 3):
        assert torch.equal(original.tokens[:, start + place :: 4], donor.tokens[:, start + place :: 4])
    latents = [trials.at_scored(trials.labels) for trials in (original, donor)]
    assert (latents[0] != latents[1]).all()
    agree = (original.tokens[:, start + 2 :: 4] == donor.tokens[:, start + 2 :: 4]).double().mean()
    assert float(agree) == pytest.approx(2 * R * (1 - R), abs=0.02), "each has noise of its own"


def test_relations_match_a_loop_over_tokens() -> None:
    task = bound()
    trials = task.sample(3, seed=1)
    assert trials.relations.keys() == {"label", "word", "latest_label"}
    for row, tokens in enumerate(trials.tokens.tolist()):
        for query, pos in enumerate(trials.scored_positions()[row].tolist()):
            for earlier, token in enumerate(tokens):
                label = earlier < pos and token in task.label_ids
                twin = {
                    "label": label,
                    "word": earlier < pos - 1 and token in task.word_ids,
                    "latest_label": label and earlier == pos - 3,
                }
                for name, related in twin.items():
                    assert bool(trials.relations[name][row, query, earlier]) == related, (name, pos, earlier)


@pytest.mark.parametrize("query", QUERIES)
def test_last_label_forgets_all_but_the_latest(query: str) -> None:
    task = bound(query=query)
    trials = task.sample(7, seed=11)
    baseline = task.baseline_predictives(trials)["last_label"]
    for row, tokens in enumerate(trials.tokens.tolist()):
        shown = shown_labels(task, tokens)
        for k in range(K + 1):
            np.testing.assert_allclose(
                baseline[row, k].numpy(), enumerated(shown[max(0, k - 1) : k], query)[1], atol=1e-14
            )


def test_shuffled_labels_have_a_baseline_that_believes_them() -> None:
    task = bound(control="shuffled")
    trials = task.sample(7, seed=12)
    baselines = task.baseline_predictives(trials)
    assert baselines.keys() == {"uniform", "as_evidence"}
    for row, tokens in enumerate(trials.tokens.tolist()):
        for k in range(K + 1):
            twin = enumerated(shown_labels(task, tokens)[:k], "next")[1]
            np.testing.assert_allclose(baselines["as_evidence"][row, k].numpy(), twin, atol=1e-14)
    for control in ("filler", "masked"):
        flat = bound(control=control)
        assert flat.baseline_predictives(flat.sample(3, seed=0)).keys() == {"uniform"}


def test_words_cannot_be_labels_too() -> None:
    with pytest.raises(InvalidArgument, match=r"words and labels must be distinct: apple"):
        bound(labels=("apple", "dax"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reliability": 0.5}, r"between 0\.5 and 1, both excluded, got 0\.5"),
        ({"control": "noise"}, "noise"),
        ({"ks": (3, 3)}, r"distinct numbers of labels.*\[3, 3\]"),
        ({"k_max": -1}, r"k_max = -1"),
        ({"n_words": 10, "control": "filler"}, r"control 'filler' need n_words of at least 11, got 10"),
    ],
)
def test_impossible_parameters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidArgument, TypeCheckError), match=message):  # the latter where types are checked
        replace(SPEC, **changes)


def test_too_few_words_for_a_remap_are_counted() -> None:
    with pytest.raises(InvalidArgument, match=r"needs 22 words.*Pass words=\(…\) with at least 22 .*n_words below 11"):
        replace(SPEC, control="remap").bind(word_tokenizer(n_words=20), d_vocab=997)


def _chatting() -> Any:
    tokenizer = copy.deepcopy(pair_tokenizer())
    tokenizer.chat_template = "U {{ messages[0]['content'] }} A "
    return tokenizer


@pytest.mark.parametrize("style", ["chat", "instruct"])
def test_a_style_changes_what_stands_before_and_nothing_else(style: str) -> None:
    tokenizer = _chatting()
    plain, styled = (replace(SPEC, style=own).bind(tokenizer, d_vocab=2_503) for own in ("plain", style))
    before, after = plain.sample(7, seed=2), styled.sample(7, seed=2)
    text = tokenizer.decode(list(styled.prefix))
    message = MESSAGES[style].format(reliability=R, rest=1 - R)
    assert text == f"U {message} A "
    assert "80%" in text if style == "instruct" else "%" not in text
    assert torch.equal(after.tokens[:, len(styled.prefix) :], before.tokens[:, len(plain.prefix) :])
    assert torch.equal(after.at_scored(after.predictive), before.at_scored(before.predictive))
    for name, level in plain.baseline_predictives(before).items():
        assert torch.equal(styled.baseline_predictives(after)[name], level)
    assert f"style='{style}'" in str(styled) and "style" not in str(plain)


def test_a_chat_needs_a_template() -> None:
    with pytest.raises(InvalidArgument, match=r"has no chat template.*use style='plain'"):
        bound(style="chat")
    with pytest.raises((InvalidArgument, TypeCheckError), match="letter"):
        bound(style="letter")
