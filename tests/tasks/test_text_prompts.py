"""Prompts: what ships, how domains are grouped and joined, padding, drawing without replacement, quintiles."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.core.run import NO_LABEL, Trials, concatenate
from bayesgeom.tasks.base import BLOCK, derived_seed
from bayesgeom.tasks.prompts import BoundPrompts, Prompts, texts_in
from tests.tasks.test_trials import assert_equal
from tests.tasks.tokenizers import pair_tokenizer, word_tokenizer

SHIPPED = Prompts().groups()
OWN = {"fruit": ["apple river table", "stone garden", "cherry"], "tools": ["hammer window paper bread", "rope lamp"]}


def bound(task: Prompts | None = None) -> BoundPrompts:
    return (task or Prompts()).bind(pair_tokenizer(), d_vocab=2_503)


def listed(trials: Trials, *, pad: int) -> list[list[int]]:
    return [[i for i in row if i != pad] for row in trials.tokens.tolist()]


def test_rows_are_the_tokenizers_ids_padded_on_the_right() -> None:
    task = bound()
    trials = task.in_order()
    texts = [text for members in SHIPPED.values() for text in members]
    ids = [pair_tokenizer().encode(text) for text in texts]
    assert trials.tokens.shape == (160, task.n_pos) == (160, max(map(len, ids)))
    for row, own in zip(trials.tokens.tolist(), ids, strict=True):
        assert row[: len(own)] == own
        assert len({*row[len(own) :]}) <= 1
    padding = {i for row, own in zip(trials.tokens.tolist(), ids, strict=True) for i in row[len(own) :]}
    assert len(padding) == 1 and not padding & {i for own in ids for i in own}, "padding is no prompt's id"


@pytest.mark.parametrize("last", [1, 3])
def test_the_last_real_tokens_are_scored(last: int) -> None:
    task = bound(Prompts(last=last))
    trials = task.in_order()
    ends = torch.tensor([len(prompt) for prompt in task.prompts])
    assert trials.n_scored == last
    assert torch.equal(trials.scored_positions(), ends[:, None] - last + torch.arange(last))


def test_an_opening_token_comes_first_unless_it_is_unwanted() -> None:
    with_one, without = (
        Prompts(texts=OWN, bos=bos).bind(word_tokenizer(), d_vocab=257).in_order() for bos in (True, False)
    )
    assert (with_one.tokens[:, 0] == word_tokenizer().bos_token_id).all()
    assert torch.equal(with_one.tokens[:, 1:], without.tokens)


def test_a_text_that_begins_with_the_opening_token_gets_no_second_one() -> None:
    tokenizer = word_tokenizer()
    own, text = tokenizer.bos_token, "apple river table"
    texts = [f"{own}{text}", text, f"{own}{own} apple", own]
    bound = Prompts(texts=texts).bind(tokenizer, d_vocab=257).prompts
    first, ids = tokenizer.bos_token_id, tokenizer.encode(text, add_special_tokens=False)
    assert bound[0] == bound[1] == (first, *ids) and bound[2][:3].count(first) == 2 and bound[3] == (first,)
    assert Prompts(texts=texts[:1], bos=False).bind(tokenizer, d_vocab=257).prompts == (bound[0],)
    assert Prompts(texts=[own, own + own]).bind(tokenizer, d_vocab=257).prompts == ((first,), (first, first))


def test_there_is_no_posterior_and_nothing_is_made_up() -> None:
    task = bound()
    trials = task.sample(7, seed=0)
    assert not trials.has_posterior
    assert trials.answers.shape == (0,) and trials.predictive.shape == trials.belief.shape == (7, task.n_pos, 0)
    assert trials.at_scored(trials.predictive).shape == (7, 1, 0)
    assert (trials.labels == NO_LABEL).all() and trials.relations == {}
    assert task.baseline_predictives(trials) == {}
    with pytest.raises(InvalidArgument, match=r"prompts have no pairs.*bijection-in-context"):
        task.sample_pair(2, seed=0)


def test_the_common_ids_are_the_token_set() -> None:
    task = bound(Prompts(texts=["b a b", "a b c"]))
    counts = [pair_tokenizer().encode(text) for text in ("b a b", "a b c")]
    flat = [i for ids in counts for i in ids]
    inputs = task.sample(1, seed=0).token_sets["inputs"].tolist()
    assert {*inputs} == {*flat}
    assert [flat.count(i) for i in inputs] == sorted((flat.count(i) for i in inputs), reverse=True)
    assert len(bound().sample(1, seed=0).token_sets["inputs"]) == 64


def test_groups_say_which_domain_and_follow_their_rows() -> None:
    task = bound(Prompts(texts=OWN))
    trials = task.in_order()
    assert trials.group_names == ("fruit", "tools")
    assert trials.groups is not None and trials.groups.tolist() == [0, 0, 0, 1, 1]
    chosen = trials.rows(torch.tensor([4, 0]))
    assert chosen.groups is not None and chosen.groups.tolist() == [1, 0]
    assert_equal(concatenate([trials.rows(slice(0, 2)), trials.rows(slice(2, 5))]), trials)


def test_joined_domains_come_in_both_orders() -> None:
    task = Prompts(domain="mathematics+code")
    groups = task.groups()
    assert [*groups] == ["mathematics, then code", "code, then mathematics"]
    assert [len(texts) for texts in groups.values()] == [20, 20]
    used = {"mathematics": set[str](), "code": set[str]()}
    for name, texts in groups.items():
        for text in texts:
            for domain in name.split(", then "):
                (part,) = (p for p in SHIPPED[domain] if p in text)
                used[domain].add(part)
            assert text.startswith(tuple(SHIPPED[name.split(", ")[0]]))
    assert all({*SHIPPED[domain]} == parts for domain, parts in used.items()), "every prompt is used once"
    assert bound(task).n_sequences == 40


def test_drawing_takes_every_prompt_once() -> None:
    task = bound(Prompts(texts=OWN))
    everything = task.sample(5, seed=1)
    pad = max({*everything.tokens.flatten().tolist()} - {i for prompt in task.prompts for i in prompt})
    assert sorted(listed(everything, pad=pad)) == sorted(map(list, task.prompts))
    assert_equal(task.sample(3, seed=1), everything.rows(slice(0, 3)))
    with pytest.raises(InvalidArgument, match=r"6 prompts are requested and there are 5: use n ≤ 5"):
        task.sample(6, seed=1)
    with pytest.raises(InvalidArgument, match=r"6 prompts are requested"):
        task.stream(6, seed=1)


def test_a_stream_takes_every_prompt_once_in_blocks() -> None:
    task = bound()
    blocks = list(task.stream(160, seed=3))
    assert [len(block) for block in blocks] == [BLOCK, 160 - BLOCK]
    whole = concatenate(blocks)
    assert len({tuple(row) for row in whole.tokens.tolist()}) == 160
    assert_equal(whole, task.sample(160, seed=derived_seed(3, 0)))
    assert_equal(concatenate(list(task.stream(7, seed=3))), whole.rows(slice(0, 7)))


def test_quintiles_are_taken_alike_from_every_group() -> None:
    task, rng = bound(), np.random.default_rng(0)
    entropies = rng.exponential(size=160)
    chosen = task.select(entropies, per_quintile=3, seed=5)
    assert chosen.n_sequences == 4 * 5 * 3 and chosen.group_names == task.group_names
    place = {prompt: i for i, prompt in enumerate(task.prompts)}
    for group in range(4):
        members = [i for i in range(160) if task.groups[i] == group]
        ranked = sorted(members, key=lambda i: entropies[i])
        kept = [place[p] for p, g in zip(chosen.prompts, chosen.groups, strict=True) if g == group]
        assert [sum(i in kept for i in ranked[q * 8 : (q + 1) * 8]) for q in range(5)] == [3] * 5
    assert task.select(entropies, per_quintile=3, seed=5) == chosen != task.select(entropies, per_quintile=3, seed=6)
    assert task.select(entropies, per_quintile=8) == task


@pytest.mark.parametrize(
    ("entropies", "per_quintile", "message"),
    [
        (np.ones(159), 3, r"160 prompts need a finite entropy each; got 159 finite ones of 159"),
        (np.ones(160), 9, r"per_quintile=9 prompts of five quintiles are requested of 40 in 'mixed': use 1 … 8"),
        (np.ones(160), 0, r"per_quintile=0 prompts"),
    ],
)
def test_impossible_selections_are_refused(entropies: np.ndarray, per_quintile: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        bound().select(entropies, per_quintile=per_quintile)


@pytest.mark.parametrize("domain", ["maths", "code+maths"])
def test_an_unknown_domain_lists_those_that_there_are(domain: str) -> None:
    with pytest.raises(UnknownName, match=r"no domain named 'maths'. There are: code, mathematics, mixed, philosophy"):
        Prompts(domain=domain)


def test_texts_that_are_no_lists_of_prompts_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"got 'apple river': put it into a list"):
        Prompts(texts="apple river")
    with pytest.raises(InvalidArgument, match=r"group 'a' has no prompts, or an empty one"):
        Prompts(texts={"a": []})
    with pytest.raises(InvalidArgument, match=r"has no prompts, or an empty one"):
        Prompts(texts=["apple", " "])


def test_a_prompt_shorter_than_requested_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"last=3 tokens of each prompt are requested; 'cherry' has 2\."):
        Prompts(texts=OWN, last=3).bind(word_tokenizer(), d_vocab=257)
    with pytest.raises(InvalidArgument, match=r"last=1000000000000 tokens of each prompt are requested"):
        Prompts(texts=OWN, last=10**12).bind(word_tokenizer(), d_vocab=257)


def test_where_every_id_is_used_padding_is_still_an_id() -> None:
    task = BoundPrompts(n_ids=2, prompts=((0, 1, 1), (1,)), groups=(0, 0), group_names=("only",))
    assert task.in_order().tokens.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert replace(task, n_ids=3).in_order().tokens.tolist() == [[0, 1, 1], [1, 2, 2]]


class Unknowing:
    """A tokenizer whose vocabulary has none of the words of the prompts."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [0] * 20

    def decode(self, token_ids: list[int]) -> str:
        return "<unk>"


def test_a_tokenizer_that_knows_none_of_the_words_is_refused() -> None:
    """It made all prompts alike, and every number was that of one sequence."""
    with pytest.raises(
        InvalidArgument, match=r"1 encodings to 40 different texts: .* are both \[0, 0, .*tokenizer of the model"
    ):
        Prompts(domain="code", bos=False).bind(Unknowing(), d_vocab=9)


WRITTEN = {
    "plain": ("a.txt", "The sky is\nTwo and two make\n\n"),
    "JSONL": ("a.jsonl", '{"label": 1, "text": "The sky is"}\n{"prompt": "Two and two make", "label": 0}\n'),
    "JSONL by content": ("a.txt", '{"text": "The sky is"}\r\n{"text": "Two and two make"}'),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_file_holds_a_prompt_on_each_line(kind: str, tmp_path: Path) -> None:
    name, content = WRITTEN[kind]
    (tmp_path / name).write_text(content)
    assert texts_in(tmp_path / name) == ("The sky is", "Two and two make")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("is_jsonl", [False, True])
def test_every_line_keeps_its_spaces_in_every_encoding(encoding: str, is_jsonl: bool, tmp_path: Path) -> None:
    prompts = (" zwölf ", "Two and\u2028two make ", "\tthree\u00a0", "四 ")
    lines = [json.dumps({"text": own}, ensure_ascii=False) for own in prompts] if is_jsonl else prompts
    mark = "\ufeff" if encoding[-3:] in ("-be", "-le") else ""
    (tmp_path / "a.txt").write_bytes((mark + "\r\n".join([*lines, "", " ", ""])).encode(encoding))
    assert texts_in(tmp_path / "a.txt") == prompts


def test_files_that_were_joined_have_a_mark_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(2 * "\ufeffThe sky is \nOne\ufefftwo\n".encode())
    assert texts_in(tmp_path / "a.txt") == 2 * ("The sky is ", "One\ufefftwo")


FAULTS = {
    "UTF-16 without its mark": ("One\ntwo".encode("utf-16-le"), "zero bytes"),
    "half of UTF-16": ("\ufeffOne\ntwo".encode("utf-16-le")[:-1], "begins as utf-16 and is not"),
    "a mark alone": ("\ufeff \n".encode("utf-16-be"), "holds no prompts"),
    "empty": (b"\n \n", "holds no prompts"),
    "an empty line": (b"One\n\nthree", "line 2 of .* is empty"),
    "another encoding": ("One\nzwölf".encode("latin-1"), "line 2 of .* is not UTF-8"),
    "another key": (
        b'{"text": "One"}\n{"question": "Two", "id": 3}',
        'line 2 of .* has the keys question, id: .* "text"',
    ),
    "half an object": (b'{"text": "One"}\n{"text": "Two', "line 2 of .* is no JSON object"),
    "a number": (b'{"text": "One"}\n{"text": 2}', "line 2 of .* has the keys text: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_line_that_holds_no_prompt_is_named(fault: str, tmp_path: Path) -> None:
    content, message = FAULTS[fault]
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InvalidArgument, match=message):
        texts_in(tmp_path / "a.txt")
