"""Associative recall against enumeration over every one-to-one map, its layout, its baselines and its laws."""

import itertools

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import NO_LABEL, Trials
from bayesgeom.tasks.associative_recall import AssociativeRecall

SMALL = [
    AssociativeRecall(n_pairs=2, n_keys=4, n_values=5, n_queries=2, n_filler=3, unstored_share=0.5),
    AssociativeRecall(n_pairs=3, n_keys=3, n_values=3, n_queries=2, n_filler=0, unstored_share=0.0),
    AssociativeRecall(n_pairs=3, n_keys=5, n_values=5, n_queries=7, n_filler=5, pooled_pairs=True),
    AssociativeRecall(n_pairs=3, n_keys=4, n_values=4, n_queries=5, n_filler=1, unstored_share=0.0, pooled_pairs=True),
]
PAPER = AssociativeRecall(n_pairs=64, n_keys=256, n_values=256, n_queries=3, n_filler=32)


def stored_pairs(task: AssociativeRecall, tokens: list[int]) -> dict[int, int]:
    """What the tokens say, by the documented layout alone: key to value, each counted from 0."""
    pairs = [tokens[4 * i : 4 * i + 4] for i in range(task.n_pairs)]
    first = task.n_keys + task.n_values
    assert all((store, sep) == (first, first + 1) for store, _, sep, _ in pairs)
    return {key: value - task.n_keys for _, key, _, value in pairs}


def enumerated(task: AssociativeRecall, pairs: dict[int, int], key: int) -> np.ndarray:
    """The value of a key over every one-to-one map that has these pairs."""
    maps = itertools.permutations(range(task.n_values), task.n_keys)
    kept = [m[key] for m in maps if all(m[k] == v for k, v in pairs.items())]
    return np.bincount(kept, minlength=task.n_values) / len(kept)


def queries(trials: Trials) -> list[tuple[int, int, int]]:
    """Row, number of the query, position."""
    return [
        (row, i, pos) for row, places in enumerate(trials.scored_positions().tolist()) for i, pos in enumerate(places)
    ]


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_posterior_is_the_count_over_all_maps(task: AssociativeRecall) -> None:
    trials = task.sample(7, seed=3)
    for row, _, pos in queries(trials):
        tokens = trials.tokens[row].tolist()
        twin = enumerated(task, stored_pairs(task, tokens), tokens[pos])
        np.testing.assert_allclose(trials.predictive[row, pos].numpy(), twin, atol=1e-15)


@pytest.mark.parametrize("task", [*SMALL, AssociativeRecall(), PAPER], ids=str)
def test_layout(task: AssociativeRecall) -> None:
    trials = task.sample(5, seed=4)
    first = task.n_keys + task.n_values
    for tokens, places in zip(trials.tokens.tolist(), trials.scored_positions().tolist(), strict=True):
        pairs = stored_pairs(task, tokens)
        assert len(pairs) == len(set(pairs.values())) and (task.pooled_pairs or len(pairs) == task.n_pairs)
        rest = ["F"] * task.n_filler
        for i in range(task.n_queries):
            rest += ["F"] * (task.n_filler // 2 if i else 0) + ["Q", "k", "_"]
        names = {first + 2: "Q", first + 3: "F", first + 4: "_", **dict.fromkeys(range(task.n_keys), "k")}
        assert [names[token] for token in tokens[4 * task.n_pairs :]] == rest
        assert places == [4 * task.n_pairs + i for i, name in enumerate(rest) if name == "k"]
    assert trials.tokens.shape == (5, task.n_pos)
    assert (trials.labels[~trials.scored] == NO_LABEL).all() and trials.predictive[~trials.scored].isnan().all()
    assert trials.answers.tolist() == list(range(task.n_keys, first))


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_baselines_by_enumeration(task: AssociativeRecall) -> None:
    """Each baseline is the average of the exact posterior over the maps and queries that it cannot tell apart."""
    trials = task.sample(5, seed=6)
    baselines = task.baseline_predictives(trials)
    assert list(baselines) == ["uniform", "bag", "last_pair", "membership"]
    for row, i, pos in queries(trials):
        tokens = trials.tokens[row].tolist()
        pairs = stored_pairs(task, tokens)
        others = [key for key in range(task.n_keys) if key not in pairs]

        def averaged(keys: list[int], pairs: dict[int, int] = pairs) -> np.ndarray:
            return np.mean([enumerated(task, pairs, key) for key in keys], axis=0)

        share, asked, last = task.unstored_share, tokens[pos], tokens[4 * task.n_pairs - 3]
        earlier = [key for key in pairs if key != last]
        outside = averaged(others) if others else np.zeros(task.n_values)
        bag = (1 - share) * averaged([*pairs]) + share * outside
        before = averaged(earlier) if earlier else np.zeros(task.n_values)
        not_last = (1 - share) * len(earlier) / len(pairs) * before + share * outside
        twins = {
            "uniform": np.full(task.n_values, 1 / task.n_values),
            "bag": bag,
            "last_pair": enumerated(task, pairs, last) if asked == last else not_last / not_last.sum(),
            "membership": averaged([*pairs]) if asked in pairs else outside,
        }
        for name, twin in twins.items():
            np.testing.assert_allclose(baselines[name][row, i].numpy(), twin, atol=1e-15, err_msg=name)


def test_relations_match_a_loop_over_tokens() -> None:
    task = SMALL[0]
    trials = task.sample(11, seed=8)
    for row, i, pos in queries(trials):
        tokens, want = trials.tokens[row].tolist(), {}
        for place in range(4 * task.n_pairs):
            is_pair = tokens[place - place % 4 + 1] == tokens[pos]
            want[place] = {
                "stored_value": is_pair and place % 4 == 3,
                "same_key": is_pair and place % 4 == 1,
                "stored_pair": is_pair,
                "other_value": not is_pair and place % 4 == 3,
            }
        assert trials.relations.keys() == want[0].keys()
        for name, related in trials.relations.items():
            assert related.shape == (11, 2, task.n_pos)
            twin = {place for place, names in want.items() if names[name]}
            assert set(related[row, i].nonzero()[:, 0].tolist()) == twin, (name, row, i)


def test_every_map_and_every_question_is_as_likely() -> None:
    trials = SMALL[1].sample(12_000, seed=9)
    keys, values, asked = trials.tokens[:, 1:12:4], trials.tokens[:, 3:12:4] - 3, trials.at_scored(trials.tokens)
    for drawn in (values.gather(1, keys.argsort(1)), keys):
        counts = torch.unique(drawn, dim=0, return_counts=True)[1]
        assert len(counts) == 6 and (counts - 2_000).abs().max() < 170  # sd 41
    place = (keys[:, :, None] == asked[:, None, :]).double().argmax(1)
    counts = torch.unique(place, dim=0, return_counts=True)[1]
    assert len(counts) == 9 and (counts - 12_000 / 9).abs().max() < 140  # two queries, independently; sd 34


def test_pools_have_every_size_alike_and_store_every_key_of_theirs() -> None:
    task = AssociativeRecall(n_pairs=5, n_keys=7, n_values=7, n_queries=3, pooled_pairs=True)
    tokens = task.sample(4_000, seed=7).tokens
    stored = torch.nn.functional.one_hot(tokens[:, 1:20:4], 7).sum(1)
    sizes = torch.bincount((stored > 0).sum(1), minlength=6) / 4_000
    torch.testing.assert_close(sizes[1:], torch.full((5,), 0.2), atol=0.03, rtol=0)
    assert all(int(row.max()) - int(row[row > 0].min()) <= 1 for row in stored), "each about as often as the others"
    plain = AssociativeRecall(n_pairs=5, n_keys=7, n_values=7, n_queries=3).sample(100, seed=7)
    assert (torch.nn.functional.one_hot(plain.tokens[:, 1:20:4], 7).sum(1).amax(1) == 1).all()


SIZES = r"AssociativeRecall\(n_pairs=8, n_keys=16, n_values=16, "


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_pairs": 17}, r"17 pairs need distinct keys and values, got 16 and 16.*choose n_pairs ≤ n_keys ≤ n_values"),
        ({"n_pairs": 16}, r"all 16 keys are stored.*unstored_share=0\.25: use more keys, or unstored_share=0"),
        ({"n_queries": 0}, rf"n_queries ≥ 1.*got {SIZES}n_queries=0, n_filler=2, unstored_share=0\.25"),
        ({"unstored_share": 1.0}, rf"unstored_share < 1, got {SIZES}n_queries=8, n_filler=2, unstored_share=1\.0"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        AssociativeRecall(**parameters)
