"""The bijection against enumeration over every permutation, its layout, its baselines and its laws."""

import itertools

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import NO_LABEL, Trials
from bayesgeom.tasks.bijection import Bijection

# Fewer pairs than values; with repeats also more, so that every value gets used up.
SMALL = [
    Bijection(n_values=5, n_pairs=3),
    Bijection(n_values=5, n_pairs=5),
    Bijection(n_values=5, n_pairs=3, repeats=True),
    Bijection(n_values=5, n_pairs=11, repeats=True),
    Bijection(n_values=5, n_pairs=11, repeats=True, pooled_keys=True),
]


def shown_pairs(tokens: list[int], n_values: int) -> list[tuple[int, int]]:
    return [(key, value - n_values) for key, value in zip(tokens[0::2], tokens[1::2], strict=False)]


def consistent(pairs: list[tuple[int, int]], n_values: int) -> list[tuple[int, ...]]:
    """Every permutation that maps each shown key to its value."""
    return [p for p in itertools.permutations(range(n_values)) if all(p[key] == value for key, value in pairs)]


def enumerated_posterior(pairs: list[tuple[int, int]], key: int, n_values: int) -> np.ndarray:
    maps = consistent(pairs, n_values)
    return np.bincount([p[key] for p in maps], minlength=n_values) / len(maps)


def over_scored(trials: Trials) -> list[tuple[int, int]]:
    return [(int(row), int(pos)) for row, pos in trials.scored.nonzero()]


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_posterior_is_the_count_over_all_permutations(task: Bijection) -> None:
    trials = task.sample(7, seed=3)
    for row, pos in over_scored(trials):
        tokens = trials.tokens[row].tolist()
        twin = enumerated_posterior(shown_pairs(tokens[:pos], 5), tokens[pos], 5)
        np.testing.assert_allclose(trials.predictive[row, pos].numpy(), twin, atol=1e-15)


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_layout_is_key_value_and_every_key_asks(task: Bijection) -> None:
    trials = task.sample(13, seed=5)
    assert trials.tokens.shape == (13, 2 * task.n_pairs - 1) == (13, task.n_pos)
    keys, values = trials.tokens[:, 0::2], trials.tokens[:, 1::2]
    assert int(keys.min()) >= 0 and int(keys.max()) < 5
    assert values.numel() == 0 or (int(values.min()) >= 5 and int(values.max()) < task.d_vocab == 10)
    assert trials.scored[:, 0::2].all() and not trials.scored[:, 1::2].any()
    assert trials.answers.tolist() == [5, 6, 7, 8, 9]
    assert (trials.labels[:, 1::2] == NO_LABEL).all()
    assert torch.equal(trials.labels[:, 0:-1:2], values), "what is asked at a key is shown right after it"
    assert {name: ids.tolist() for name, ids in trials.token_sets.items()} == {
        "hypotheses": [5, 6, 7, 8, 9],
        "inputs": [0, 1, 2, 3, 4],
    }


@pytest.mark.parametrize("repeats", [False, True])
def test_relations_match_a_loop_over_tokens(repeats: bool) -> None:
    trials = Bijection(n_values=5, n_pairs=7 if repeats else 5, repeats=repeats).sample(11, seed=4)
    names = {"used_value", "used_key"} | ({"same_key", "stored_value"} if repeats else set())
    assert trials.relations.keys() == names
    for row, tokens in enumerate(trials.tokens.tolist()):
        for query, pos in enumerate(trials.scored_positions()[row].tolist()):
            for earlier, token in enumerate(tokens):
                before, is_key = earlier < pos, earlier % 2 == 0
                stored_for = token if is_key else tokens[earlier - 1]
                twin = {
                    "used_value": before and not is_key,
                    "used_key": before and is_key,
                    "same_key": before and is_key and token == tokens[pos],
                    "stored_value": before and not is_key and stored_for == tokens[pos],
                }
                for name in names:
                    assert bool(trials.relations[name][row, query, earlier]) == twin[name], (name, row, pos, earlier)


def test_pooled_keys_come_from_pools_of_every_size_alike() -> None:
    keys = Bijection(n_values=5, n_pairs=97, repeats=True, pooled_keys=True).sample(4_000, seed=7).tokens[:, 0::2]
    sizes = torch.tensor([len(row.unique()) for row in keys])  # 97 draws leave no key of at most 5 out
    shares = torch.bincount(sizes, minlength=6).double() / len(sizes)
    assert shares[:2].sum() == 0
    torch.testing.assert_close(shares[2:], torch.full((4,), 0.25).double(), atol=0.03, rtol=0)
    every_key = torch.bincount(keys.flatten(), minlength=5) / keys.numel()
    torch.testing.assert_close(every_key, torch.full((5,), 0.2), atol=0.01, rtol=0)


def test_elimination_only_treats_every_query_as_a_key_never_seen() -> None:
    task = Bijection(n_values=5, n_pairs=11, repeats=True)
    trials = task.sample(13, seed=6)
    baseline = task.baseline_predictives(trials)["elimination_only"]
    for row, tokens in enumerate(trials.tokens.tolist()):
        for query, pos in enumerate(trials.scored_positions()[row].tolist()):
            pairs = shown_pairs(tokens[:pos], 5)
            unseen = set(range(5)) - {key for key, _ in pairs}
            posteriors = [enumerated_posterior(pairs, key, 5) for key in unseen]
            twin = np.mean(posteriors, axis=0) if unseen else np.full(5, 1 / 5)
            np.testing.assert_allclose(baseline[row, query].numpy(), twin, atol=1e-15)


def test_every_permutation_is_equally_likely() -> None:
    trials = Bijection(n_values=3, n_pairs=3).sample(12_000, seed=7)
    keys, values = trials.tokens[:, 0::2], trials.at_scored(trials.labels) - 3
    drawn = values.gather(1, keys.argsort(1))
    counts = torch.unique(drawn, dim=0, return_counts=True)[1]
    assert len(counts) == 6
    assert (counts - 2_000).abs().max() < 170  # sd 41


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_values": 1}, r"n_values ≥ 2 and n_pairs ≥ 1, got 1 and 19"),
        ({"n_pairs": 0}, r"n_values ≥ 2 and n_pairs ≥ 1, got 20 and 0"),
        ({"pooled_keys": True}, r"pooled_keys draws keys with replacement.*needs repeats=True"),
        ({"n_values": 5, "n_pairs": 7}, r"7 distinct keys requested of 5: use n_pairs ≤ n_values, or repeats=True"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Bijection(**parameters)
