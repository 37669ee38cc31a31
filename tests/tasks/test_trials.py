"""Trials: cutting, joining and reading the scored positions; a task's way to JSON and back."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.observers import WindowObservers
from bayesgeom.core.run import NO_LABEL, Relations, Trials, checked_trials, concatenate
from bayesgeom.tasks.base import BLOCK, WindTunnel, checked_seed, derived_seed, task_from_text
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM

TASKS = [Bijection(n_values=7, n_pairs=5, repeats=True), HMM(n_states=3, n_symbols=2, length=5, floor=0.1, grid=0.05)]


def scored_twice(scored: list[list[bool]]) -> Trials:
    """Trials with this scored mask and nothing else of interest."""
    mask = torch.tensor(scored, dtype=torch.bool)
    n, n_pos = mask.shape
    return Trials(
        tokens=torch.arange(n * n_pos).reshape(n, n_pos),
        scored=mask,
        answers=torch.tensor([1, 2]),
        predictive=torch.zeros(n, n_pos, 2, dtype=torch.float64),
        belief=torch.zeros(n, n_pos, 3, dtype=torch.float64),
        labels=torch.zeros(n, n_pos, dtype=torch.int64),
        token_sets={},
        relations={},
    )


def assert_equal(one: Trials, other: Trials) -> None:
    for name in (field.name for field in fields(Trials)):
        a, b = getattr(one, name), getattr(other, name)
        if a is None or isinstance(a, tuple | bool):
            assert a == b, name
            continue
        if isinstance(a, WindowObservers):
            torch.testing.assert_close(a.of, b.of, atol=0, rtol=0)
            continue
        pairs = [(a, b)] if isinstance(a, torch.Tensor) else [(a[key], b[key]) for key in a.keys() | b.keys()]
        for x, y in pairs:
            torch.testing.assert_close(x, y, atol=0, rtol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_rows_by_index_are_those_sequences(task: WindTunnel) -> None:
    trials, index = task.sample(11, seed=2), torch.tensor([7, 2, 2])
    chosen = trials.rows(index)
    assert len(chosen) == 3
    assert_equal(chosen, concatenate([trials.rows(slice(i, i + 1)) for i in index.tolist()]))


def test_at_scored_reads_each_sequence_in_order() -> None:
    trials = scored_twice([[False, True, False, True, False], [True, True, False, False, False]])
    assert trials.n_scored == 2 and len(trials) == 2
    assert trials.scored_positions().tolist() == [[1, 3], [0, 1]]
    assert trials.at_scored(trials.tokens).tolist() == [[1, 3], [5, 6]]
    deep = torch.arange(2 * 5 * 3 * 7).reshape(2, 5, 3, 7)
    assert trials.at_scored(deep).shape == (2, 2, 3, 7)
    assert torch.equal(trials.at_scored(deep)[1, 0], deep[1, 0])


def test_ragged_scored_positions_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"same, non-zero number of positions; the counts are \[2, 1, 2\]"):
        scored_twice([[True, True, False], [False, True, False], [True, False, True]])


def test_token_ids_are_those_of_all_sets_once() -> None:
    trials = TASKS[0].sample(3, seed=0)
    assert trials.token_ids().tolist() == list(range(14))
    overlapping = {"a": torch.tensor([5, 3]), "b": torch.tensor([3, 2])}
    assert replace(trials, token_sets=overlapping).token_ids().tolist() == [2, 3, 5]
    assert scored_twice([[True]]).token_ids().tolist() == []


@pytest.mark.parametrize("n", [1, BLOCK, BLOCK + 1, 2 * BLOCK + 17])
def test_a_stream_is_a_prefix_of_a_longer_one_in_blocks(n: int) -> None:
    blocks, longer = list(TASKS[0].stream(n, seed=3)), list(TASKS[0].stream(3 * BLOCK, seed=3))
    assert [len(block) for block in blocks] == [min(BLOCK, n - start) for start in range(0, n, BLOCK)]
    assert_equal(concatenate(blocks), concatenate(longer).rows(slice(0, n)))


@pytest.mark.parametrize(("task", "shared"), [(TASKS[0], slice(0, None, 2)), (TASKS[1], slice(0, 18))], ids=str)
def test_pairs_share_what_is_given_and_differ_in_the_latent(task: WindTunnel, shared: slice) -> None:
    original, donor = task.sample_pair(53, seed=5)
    assert torch.equal(original.tokens[:, shared], donor.tokens[:, shared])
    answers = [trials.at_scored(trials.labels) - trials.answers[0] for trials in (original, donor)]
    alike = (answers[0][:, 0] == answers[1][:, 0]).double().mean()
    assert float(alike) == pytest.approx(1 / len(original.answers), abs=0.16), "independent first answers"
    for trials, answer in zip((original, donor), answers, strict=True):
        given = trials.at_scored(trials.predictive).gather(2, answer[:, :, None])
        assert given.min() > 0, "each half's answers are possible under its own posterior"
    again = task.sample_pair(53, seed=5)
    assert_equal(concatenate([original, donor]), concatenate(list(again)))


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("hmm", HMM()),
        ("bijection:n_values=7,n_pairs=5, repeats = True", TASKS[0]),
        ("hmm:n_states=3,n_symbols=2,length=5,floor=0.1,grid=0.05,", TASKS[1]),
    ],
)
def test_a_task_can_be_written_on_a_command_line(text: str, task: WindTunnel) -> None:
    assert task_from_text(text) == task


def test_what_is_not_written_is_the_trained_tasks_own_where_the_names_agree() -> None:
    trained = replace(TASKS[0], n_pairs=2)
    assert task_from_text("bijection:n_pairs=3", trained=trained) == replace(trained, n_pairs=3)
    assert task_from_text("bijection", trained=trained) == trained
    assert task_from_text("hmm:length=7", trained=trained) == HMM(length=7), "another task has its defaults"
    rendered = task_from_text("bijection-in-context:n_pairs=3", trained=trained)
    assert rendered == task_from_text("bijection-in-context:n_pairs=3"), "and so has the same one in words"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hmm:length", r"'length' in 'hmm:length' is not key=value; write a task as NAME:key=value,key=value"),
        ("hmm:length=0", r"length ≥ 1, got HMM\(n_states=5, n_symbols=5, length=0, "),
    ],
)
def test_texts_that_are_no_task_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        task_from_text(text)


def test_every_draw_checks_its_seed() -> None:
    for draw in (TASKS[0].sample, TASKS[0].sample_pair, TASKS[0].stream, lambda n, seed: derived_seed(seed, n)):
        with pytest.raises(InvalidArgument, match=r"seed must be a non-negative integer.*, got -1"):
            list(draw(3, seed=-1))
    assert type(checked_seed(np.int64(5))) is int and checked_seed(np.uint8(5)) == 5


def test_seeds_that_differ_in_high_bits_give_other_draws() -> None:
    seeds = [3, 3 + 2**32, 3 + 2**33, 3 + 2**62]
    drawn = {task.sample(64, seed=seed).tokens.numpy().tobytes() for seed in seeds for task in TASKS}
    assert len(drawn) == len(seeds) * len(TASKS)


def test_derived_seeds_differ_by_seed_and_path_and_fit_torch() -> None:
    seeds = [derived_seed(*parts) for parts in [(0,), (1,), (0, 0), (0, 1), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(5, 3, 2) == derived_seed(5, 3, 2)
    for seed in seeds:
        torch.Generator().manual_seed(seed)


def test_relations_are_drawn_when_they_are_read_and_once() -> None:
    drawn = list[int]()

    def draw(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        drawn.append(len(tokens))
        return {"same": tokens[:, :, None] == tokens[:, None, :]}

    first, second = torch.arange(15).reshape(5, 3) % 4, torch.arange(21).reshape(7, 3) % 5
    trials = [
        replace(scored_twice([[True] * 3] * len(of)), relations=Relations(draw=draw, of=of)) for of in (first, second)
    ]
    joined = concatenate([trials[0].rows(slice(1, None)), trials[1].rows(torch.tensor([6, 0]))])
    assert not drawn
    tokens = torch.cat([first[1:], second[[6, 0]]])
    torch.testing.assert_close(joined.relations["same"], tokens[:, :, None] == tokens[:, None, :])
    assert list(joined.relations) == ["same"] and len(joined.relations) == 1 and drawn == [6]
    mixed = concatenate([trials[0], replace(trials[1], relations=dict(trials[1].relations))])
    assert mixed.relations["same"].shape == (12, 3, 3)


def test_visible_positions_are_those_up_to_the_scored_one() -> None:
    trials = Bijection(n_values=7, n_pairs=5, repeats=True).sample(3, seed=0)
    visible = trials.visible()
    assert visible.shape == (3, 5, 9)
    for row, query, key in itertools.product(range(3), range(5), range(9)):
        position = int(trials.scored[row].nonzero()[query, 0])
        assert bool(visible[row, query, key]) == (key <= position)


def planted() -> Trials:
    """Three sequences of five positions; two are scored, not the same in each; two answers, a belief of three."""
    scored = torch.tensor([[False, True, False, True, False]] * 2 + [[True, False, False, False, True]])
    nothing = torch.full((3, 5, 1), torch.nan, dtype=torch.float64)
    certain = torch.where(scored[..., None], 1.0, nothing)
    return Trials(
        tokens=torch.zeros(3, 5, dtype=torch.int64),
        scored=scored,
        answers=torch.tensor([4, 6]),
        predictive=certain * torch.tensor([0.25, 0.75]).double(),
        belief=certain * torch.tensor([0.5, 0.5, 0.0]).double(),
        labels=torch.where(scored, 6, NO_LABEL),
        token_sets={},
        relations={"first": torch.tensor([True] + [False] * 4).expand(3, 2, 5)},
    )


def planted_with(name: str, value: object, at: tuple[int, ...] = (2, 4)) -> Trials:
    """The same with another value at sequence 2 and position 4, the last one that is scored."""
    changed: torch.Tensor = vars(planted())[name].clone()
    changed[at] = torch.as_tensor(value, dtype=changed.dtype)
    return replace(planted(), **{name: changed})


def test_what_keeps_the_promises_passes_as_it_is() -> None:
    good = planted()
    assert checked_trials(good, task="coins") is good
    assert checked_trials(planted_with("labels", 0, at=(0, 0)), task="coins"), "what is not scored is free"
    assert checked_trials(planted_with("predictive", 3.0, at=(0, 0)), task="coins")
    textual = replace(good, answers=good.answers[:0], predictive=good.predictive[..., :0], belief=good.belief[..., :0])
    assert checked_trials(textual, task="prompts") is textual, "nobody knows its posterior"


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("predictive", [-0.2, 1.2], r"predictive of sequence 2 at position 4 .* least entry is -0.2, its sum 1\."),
        ("predictive", [torch.nan, 1.0], r"predictive of sequence 2 at position 4 .*nan"),
        (
            "predictive",
            [0.5, 0.5 + 2e-6],
            r"predictive .* its sum 1\.000002\. At scored positions, .* sum to 1 within 1e-06",
        ),
        ("belief", [1.0, 0.5, 0.5], r"belief of sequence 2 at position 4 .*its sum 2\."),
        ("labels", 5, r"label of sequence 2 at position 4 is 5, which is not one of the answers"),
    ],
)
def test_a_draw_that_breaks_a_promise_is_refused(name: str, row: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"task 'coins': {message}"):
        checked_trials(planted_with(name, row), task="coins")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "predictive",
            torch.zeros(3, 5, 2),
            r"predictive must be torch.float64 of shape \(3, 5, 2\), .* torch.float32",
        ),
        ("statistics", {"mean": torch.zeros(3, 4).double()}, r"statistic 'mean' must be .* \(3, 5\) .* \(3, 4\)"),
        (
            "statistics",
            {"mean": torch.full((3, 5), torch.nan).double()},
            "statistic 'mean' must be .* finite at scored",
        ),
        ("tokens", torch.zeros(2, 5, dtype=torch.int64), r"tokens must be .* \(3, 5\), .* of shape \(2, 5\)"),
    ],
)
def test_fields_of_another_type_or_shape_are_refused(name: str, value: object, message: str) -> None:
    """Past the shape checks of the tests, which no user has."""
    trials = planted()
    object.__setattr__(trials, name, value)
    with pytest.raises(InvalidArgument, match=rf"task 'coins': {message}"):
        checked_trials(trials, task="coins")


def test_every_way_to_draw_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = planted_with("predictive", 0.6)
    monkeypatch.setattr(Bijection, "draw", lambda *_: bad)
    monkeypatch.setattr(Bijection, "draw_pair", lambda *_: (planted(), bad))
    for draw in (TASKS[0].sample, TASKS[0].sample_pair, TASKS[0].stream):
        with pytest.raises(InvalidArgument, match=r"task 'bijection': predictive of sequence 2 at position 4"):
            list(draw(3, seed=0))


def test_relations_to_later_positions_are_refused_when_they_are_drawn() -> None:
    ahead = planted().relations["first"].clone()
    ahead[1, 0, 2] = True
    message = r"relation 'first' of sequence 1 at position 1 marks position 2 as evidence, which comes later"
    with pytest.raises(InvalidArgument, match=message):
        checked_trials(replace(planted(), relations={"first": ahead}), task="coins")
    lazy = Relations(draw=lambda of: {"first": of}, of=ahead)
    drawn = checked_trials(replace(planted(), relations=lazy), task="coins")
    with pytest.raises(InvalidArgument, match=message):
        _ = drawn.relations["first"]
    with pytest.raises(InvalidArgument, match="of sequence 3 at position 1 marks position 2"):
        _ = concatenate([drawn.rows(slice(0, 1)), drawn.rows(torch.tensor([2, 0, 1]))]).relations["first"]
    assert "first" in concatenate([drawn.rows(slice(0, 1)), drawn.rows(slice(2, 3))]).relations
    with pytest.raises(InvalidArgument, match=r"a row for every scored position, of shape \(3, 2, 'positions'\)"):
        checked_trials(replace(planted(), relations={"wide": torch.zeros(3, 5, 5, dtype=torch.bool)}), task="coins")
