"""Symbols of one token, what opens a text, padding, and how tasks are named in text."""

import json
import re

import pytest
from transformers import PreTrainedTokenizerFast

from bayesgeom.core.errors import InvalidArgument, TaskMismatch, UnknownName
from bayesgeom.core.plugins import discover
from bayesgeom.core.tokenizer import (
    Tokenizer,
    check_ids,
    first_symbols,
    punctuation_id,
    single_tokens,
)
from bayesgeom.tasks import HMM, Bijection, InContext, LabeledEvidence, Prompts
from bayesgeom.tasks.base import TextTask, WindTunnel, candidates, task_from_config, task_from_text
from tests.tasks.test_trials import assert_equal
from tests.tasks.tokenizers import byte_tokenizer, pair_tokenizer, word_tokenizer

TOKENIZERS = [word_tokenizer(), pair_tokenizer()]
TEXT_TASKS = [
    LabeledEvidence(k_max=3, n_words=7),
    LabeledEvidence(k_max=3, n_words=7, control="masked", query="latent", ks=(0, 3)),
    InContext(task=Bijection(n_values=5, n_pairs=3, repeats=True), separator=","),
    InContext(task=HMM(n_states=3, n_symbols=2, length=5, floor=0.1, grid=0.05)),
    Prompts(texts={"fruit": ["apple river table", "stone garden"], "tools": ["hammer window paper bread"]}, last=2),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["words", "pairs"])
def test_single_tokens_are_what_the_tokenizer_writes_in_running_text(tokenizer: PreTrainedTokenizerFast) -> None:
    found = single_tokens(tokenizer, ["apple", "unheard", "dax", "apple", "grandmothers"])
    assert [*found] == ["apple", "dax"]
    text = " apple: dax, apple"
    comma, colon = punctuation_id(tokenizer, ",", after="dax"), punctuation_id(tokenizer, ":", after="apple")
    ids = [found["apple"], colon, found["dax"], comma, found["apple"]]
    assert tokenizer.encode(text, add_special_tokens=False) == ids


def test_two_words_with_one_id_are_one_symbol() -> None:
    class Deaf:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [7]

        def decode(self, token_ids: list[int]) -> str:
            return "apple"

    assert isinstance(Deaf(), Tokenizer)
    assert single_tokens(Deaf(), ["apple", "pear", "apple"]) == {"apple": 7}


def test_too_few_symbols_names_what_was_tried_and_what_there_is() -> None:
    with pytest.raises(
        InvalidArgument, match=r"needs 3 pets.*of the 3 candidates \(apple, cat, zzz\).*2 \(apple, cat\)\. Buy"
    ):
        first_symbols(word_tokenizer(), ["apple", "cat", "zzz"], 3, kind="pets", remedy="Buy some.")


def test_a_mark_of_several_tokens_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"'→→' is not a single token for this tokenizer; choose another mark"):
        punctuation_id(pair_tokenizer(), "→→", after="apple")


def test_ids_that_the_model_has_not_are_refused() -> None:
    check_ids([0, 6], 7)
    with pytest.raises(TaskMismatch, match=r"ids up to 7; the model has 7 ids"):
        check_ids([7, 3], 7)


def test_candidates_are_distinct_and_no_label_begins_another() -> None:
    for kind in ("words", "labels", "masks"):
        assert len({*candidates(kind)}) == len(candidates(kind))
    labels = candidates("labels")
    assert not [(a, b) for a in labels for b in labels if a != b and b.startswith(a)]
    assert not {*candidates("words")} & {*labels}


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["words", "pairs"])
@pytest.mark.parametrize("task", TEXT_TASKS, ids=str)
def test_a_bound_task_survives_json_without_its_tokenizer(task: TextTask, tokenizer: PreTrainedTokenizerFast) -> None:
    bound = task.bind(tokenizer, d_vocab=len(tokenizer) + 11)
    assert isinstance(bound, WindTunnel) and bound.d_vocab == len(tokenizer) + 11
    revived = task_from_config(json.loads(json.dumps(bound.config())))
    assert revived == bound and type(revived) is type(bound)
    assert_equal(revived.sample(3, seed=5), bound.sample(3, seed=5))
    assert bound.sample(3, seed=5).tokens.shape == (3, bound.n_pos)
    assert len(bound.token_labels()) == bound.d_vocab


@pytest.mark.parametrize("task", TEXT_TASKS, ids=str)
def test_a_model_with_fewer_ids_than_the_tokenizer_is_refused(task: TextTask) -> None:
    with pytest.raises(TaskMismatch, match=r"the tokenizer gives ids up to \d+; the model has 97 ids"):
        task.bind(pair_tokenizer(), d_vocab=97)


@pytest.mark.parametrize("task", [*TEXT_TASKS[:2], TEXT_TASKS[3]], ids=str)
def test_a_tokenizer_that_splits_every_word_is_refused(task: TextTask) -> None:
    found = r"has (0 \(none\)|26 \(A, B, C, .*\))\. Pass"
    with pytest.raises(InvalidArgument, match=rf"single tokens; of the \d+ candidates \(apple, river, .*{found}"):
        task.bind(byte_tokenizer(), d_vocab=256)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("prompts:domain=mathematics,last=3", Prompts(domain="mathematics", last=3)),
        ("evidence:control=filler,k_max=5", LabeledEvidence(control="filler", k_max=5)),
        ("evidence:ks=1+2+4,bos=false", LabeledEvidence(ks=(1, 2, 4), bos=False)),
        ("bijection-in-context:n_values=5,n_pairs=3", InContext(task=Bijection(n_values=5, n_pairs=3))),
        ("hmm-in-context:separator=;,length=3", InContext(task=HMM(length=3), separator=";")),
    ],
)
def test_text_tasks_can_be_written_on_a_command_line(text: str, task: TextTask | WindTunnel) -> None:
    assert task_from_text(text) == task


@pytest.mark.parametrize("name", ["in-context", "evidence-in-context", "recal", "bijection-evidence"])
def test_unknown_names_list_what_can_be_written(name: str) -> None:
    tunnels, texts = (discover("bayesgeom.tasks", base) for base in (WindTunnel, TextTask))
    plain = {*tunnels} - {*texts} | {name for kind in tunnels.values() for name in kind.presets}
    names = sorted([*plain, *(f"{tunnel}-in-context" for tunnel in plain), "evidence", "prompts"])
    listed = re.escape(", ".join(names))
    with pytest.raises(UnknownName, match=rf"no task named '{name}'\. There are: {listed}\."):
        task_from_text(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evidence:ks=3", r"task 'evidence': ks must be tuple\[int, \.\.\.\], got 3"),
        ("evidence:k=3", r"task 'evidence' has no parameter 'k'. It has: .*ks"),
        (
            "bijection-in-context:n_value=3",
            r"task 'bijection-in-context' has no parameter 'n_value'. It has: .*n_values",
        ),
    ],
)
def test_wrong_parameters_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        task_from_text(text)
