"""Wind tunnels in words: the same sequences, questions and answers as the bare ones, under other ids."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import pytest
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import NO_LABEL, Trials
from bayesgeom.core.tokenizer import chat_prompts
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.in_context import BoundInContext, InContext
from tests.tasks.test_trials import assert_equal
from tests.tasks.tokenizers import pair_tokenizer, word_tokenizer

INNER = [
    Bijection(n_values=7, n_pairs=5, repeats=True),
    Bijection(n_values=5, n_pairs=3),
    HMM(n_states=3, n_symbols=2, length=5, floor=0.1, grid=0.05),
]
SETTINGS = [(task, separator, bos) for task in INNER for separator in ("", ",") for bos in (True, False)]


def bound(task: WindTunnel, separator: str = "", *, bos: bool = True) -> BoundInContext:
    return InContext(task=task, separator=separator, bos=bos).bind(word_tokenizer(), d_vocab=257)


@pytest.mark.parametrize(("task", "separator", "bos"), SETTINGS, ids=str)
def test_trials_are_the_bare_ones_under_other_ids(task: WindTunnel, separator: str, bos: bool) -> None:
    world = bound(task, separator, bos=bos)
    bare, trials = task.sample(11, seed=3), world.sample(11, seed=3)
    name = dict(enumerate(world.symbol_ids))
    inserted = {*world.separator_ids, *world.prefix}
    assert [[i for i in row if i not in inserted] for row in trials.tokens.tolist()] == [
        [name[i] for i in row] for row in bare.tokens.tolist()
    ]
    assert trials.tokens.shape == (11, world.n_pos)
    assert trials.n_scored == bare.n_scored
    assert trials.answers.tolist() == [name[i] for i in bare.answers.tolist()]
    assert torch.equal(trials.at_scored(trials.predictive), bare.at_scored(bare.predictive))
    assert torch.equal(trials.at_scored(trials.belief), bare.at_scored(bare.belief))
    assert trials.at_scored(trials.labels).tolist() == [
        [name[i] for i in row] for row in bare.at_scored(bare.labels).tolist()
    ]
    assert (trials.labels[~trials.scored] == NO_LABEL).all() and trials.predictive[~trials.scored].isnan().all()
    asked, bare_asked = trials.at_scored(trials.tokens), bare.at_scored(bare.tokens)
    assert asked.tolist() == [[name[i] for i in row] for row in bare_asked.tolist()]
    assert {key: ids.tolist() for key, ids in trials.token_sets.items()} == {
        key: [name[i] for i in ids.tolist()] for key, ids in bare.token_sets.items()
    }


@pytest.mark.parametrize(("task", "separator", "bos"), SETTINGS, ids=str)
def test_relations_point_at_the_same_tokens_and_at_nothing_inserted(
    task: WindTunnel, separator: str, bos: bool
) -> None:
    world = bound(task, separator, bos=bos)
    bare, trials = task.sample(5, seed=4), world.sample(5, seed=4)
    is_own = ~torch.isin(trials.tokens[0], torch.tensor([*world.separator_ids, *world.prefix]))
    assert trials.relations.keys() == bare.relations.keys()
    for name, related in trials.relations.items():
        assert torch.equal(related[:, :, is_own], bare.relations[name]), name
        assert not related[:, :, ~is_own].any(), name


@pytest.mark.parametrize(("task", "separator", "bos"), SETTINGS, ids=str)
def test_unrendering_gives_the_bare_trials_back_and_so_their_baselines(
    task: WindTunnel, separator: str, bos: bool
) -> None:
    world = bound(task, separator, bos=bos)
    bare, trials = task.sample(7, seed=5), world.sample(7, seed=5)
    assert_equal(world.unrendered(trials), bare)
    baselines, own = task.baseline_predictives(bare), world.baseline_predictives(trials)
    assert own.keys() == baselines.keys()
    assert all(torch.equal(own[name], baselines[name]) for name in baselines)
    part = trials.rows(slice(2, 5))
    assert all(torch.equal(p, baselines[name][2:5]) for name, p in world.baseline_predictives(part).items())


@pytest.mark.parametrize("task", INNER, ids=str)
def test_pairs_are_the_bare_pairs(task: WindTunnel) -> None:
    world = bound(task, ",")
    for rendered, bare in zip(world.sample_pair(7, seed=6), task.sample_pair(7, seed=6), strict=True):
        assert_equal(world.unrendered(rendered), bare)


def test_too_few_symbols_count_the_tasks_ids() -> None:
    with pytest.raises(InvalidArgument, match=r"needs 10 symbols.*of the 3 candidates \(A, B, C\).*this bijection\."):
        InContext(task=INNER[1], symbols=("A", "B", "C")).bind(word_tokenizer(), d_vocab=257)


def test_wrong_numbers_of_symbols_and_shared_ones_are_refused() -> None:
    world = bound(INNER[1], ",")
    for ids in (world.symbol_ids[:-1], (*world.symbol_ids[:-1], world.symbol_ids[0])):
        with pytest.raises(
            InvalidArgument, match=rf"needs 10 distinct symbols, .*; got the ids \({ids[0]}, {ids[1]}, "
        ):
            replace(world, symbol_ids=ids)
    with pytest.raises(
        InvalidArgument, match=rf"a separator that is not one of them; got the ids .*, {world.symbol_ids[0]}\)"
    ):
        replace(world, separator_ids=world.symbol_ids[:1])


@final
@dataclass(frozen=True, kw_only=True)
class Asking(WindTunnel):
    """Asks at each of three positions what follows; there is one answer."""

    name: ClassVar[str] = "asking"

    @property
    def d_vocab(self) -> int:
        return 2

    @property
    def n_pos(self) -> int:
        return 3

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        sure, tokens = torch.ones(n, 3, 1, dtype=torch.float64), torch.zeros(n, 3, dtype=torch.int64)
        return Trials(
            tokens=tokens,
            scored=tokens == 0,
            answers=torch.tensor([1]),
            predictive=sure,
            belief=sure,
            labels=tokens + 1,
            token_sets={},
            relations={},
        )

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        return self.draw(n, generator), self.draw(n, generator)

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        return {}

    def token_labels(self) -> Sequence[str]:
        return ["a", "b"]


def test_a_separator_where_an_answer_belongs_is_refused() -> None:
    assert bound(Asking()).sample(2, seed=0).n_scored == 3
    with pytest.raises(InvalidArgument, match=r"asking has queries at adjacent positions.*Leave separator out"):
        bound(Asking(), ",").sample(2, seed=0)


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{% for", "TemplateSyntaxError"),
        ("{{ ().__class__.__bases__ }}", "SecurityError"),
        ("user", "it leaves the user's message out"),
        ({"one": "x", "other": "y"}, "ValueError: This model has multiple chat templates"),
        ("{{ messages[0]['content'] }}{{ '\\ud800' }}", "characters cannot be encoded"),
    ],
)
def test_a_chat_template_that_fails_or_drops_the_message_is_refused(template: Any, fault: str) -> None:
    tokenizer = copy.deepcopy(pair_tokenizer())
    tokenizer.chat_template = template
    with pytest.raises(InvalidArgument, match=f"^the chat template of this tokenizer cannot be used: [^\n]*({fault})"):
        chat_prompts(tokenizer, ["Continue the list."])


def test_a_chat_stands_before_the_same_sequences() -> None:
    tokenizer = copy.deepcopy(pair_tokenizer())
    with pytest.raises(InvalidArgument, match="has no chat template"):
        InContext(task=HMM(length=5), style="chat").bind(tokenizer, d_vocab=2_503)
    tokenizer.chat_template = "U {{ messages[0]['content'] }} A "
    plain, chat = (InContext(task=HMM(length=5), style=own).bind(tokenizer, d_vocab=2_503) for own in ("plain", "chat"))
    before, after = plain.sample(3, seed=2), chat.sample(3, seed=2)
    assert tokenizer.decode(list(chat.prefix)) == "U Continue the sequence. A "
    assert torch.equal(after.tokens[:, len(chat.prefix) :], before.tokens[:, len(plain.prefix) :])
    assert torch.equal(after.at_scored(after.predictive), before.at_scored(before.predictive))
    assert str(chat) == f"{plain}, as a chat"
