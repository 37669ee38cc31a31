"""Text tasks under tokenizers of the four kinds that pretrained models have."""

from typing import Any

import pytest

from bayesgeom.core.tokenizer import prefix_ids, punctuation_id, single_tokens
from bayesgeom.tasks.base import candidates
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.evidence import BoundEvidence, LabeledEvidence
from bayesgeom.tasks.in_context import InContext
from tests.tasks.tokenizer_families import BOS, FAMILIES, MARKS

every_family = pytest.mark.parametrize("family", FAMILIES)


def plain(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


@every_family
def test_most_candidates_are_one_token_and_are_found_as_they_stand_in_running_text(family: str) -> None:
    tokenizer = FAMILIES[family]()
    for kind in ("words", "labels"):
        found = single_tokens(tokenizer, candidates(kind))
        assert len(found) > 0.6 * len(candidates(kind)), (kind, len(found))
        assert len({*found.values()}) == len(found)
    words, labels = (single_tokens(tokenizer, candidates(kind)) for kind in ("words", "labels"))
    for word, label in zip([*words][:20], [*labels][:20], strict=False):
        ids = plain(tokenizer, f"{word}: {label}, {word}")
        assert words[word] in ids and labels[label] in ids and len(ids) == 5, tokenizer.convert_ids_to_tokens(ids)


@every_family
@pytest.mark.parametrize(
    "task",
    [
        LabeledEvidence(k_max=4),
        LabeledEvidence(k_max=3, control="remap", n_words=10),
        LabeledEvidence(k_max=2, bos=False),
    ],
    ids=["evidence", "remap", "without an opening"],
)
def test_evidence_reads_as_text_and_is_read_back_as_the_same_ids(family: str, task: LabeledEvidence) -> None:
    tokenizer = FAMILIES[family]()
    bound = task.bind(tokenizer, d_vocab=len(tokenizer))
    assert isinstance(bound, BoundEvidence) and len({*bound.label_ids}) == 2
    for row in bound.sample(7, seed=1).tokens.tolist():
        text = str(tokenizer.decode(row, skip_special_tokens=True)).lstrip()
        again = tokenizer.encode(text, add_special_tokens=task.bos)
        assert again[-len(row) + 1 + len(bound.prefix) :] == row[1 + len(bound.prefix) :], text
        assert text.count(":") == text.count(",") + 1 == max(bound.ks) + 1


@every_family
def test_a_wind_tunnel_in_context_reads_back(family: str) -> None:
    tokenizer = FAMILIES[family]()
    task = InContext(task=Bijection(n_values=7, n_pairs=5), separator=",")
    bound = task.bind(tokenizer, d_vocab=len(tokenizer))
    row = bound.sample(1, seed=0).tokens[0].tolist()
    text = str(tokenizer.decode(row, skip_special_tokens=True)).lstrip()
    start = 1 + len(prefix_ids(tokenizer, "apple"))
    assert tokenizer.encode(text, add_special_tokens=True)[start:] == row[start:], text


@every_family
def test_what_opens_a_text_and_marks_are_found(family: str) -> None:
    tokenizer = FAMILIES[family]()
    prefix = prefix_ids(tokenizer, "apple")
    assert prefix == (() if family == "gpt2" else (tokenizer.convert_tokens_to_ids(BOS),))
    for text in MARKS[:4]:
        assert plain(tokenizer, f"apple{text}")[-1] == punctuation_id(tokenizer, text, after="apple")


@every_family
def test_what_is_split_is_no_symbol(family: str) -> None:
    """Unknown characters fall into bytes, rare words into pieces, long numbers into groups of digits."""
    tokenizer = FAMILIES[family]()
    assert single_tokens(tokenizer, ["🜁", "antidisestablishmentarianism", "zxqvkj", "1234567"]) == {}
