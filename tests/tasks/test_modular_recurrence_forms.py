"""The opaque form, restricted prefixes, single kinds and scored parts of the modular recurrence, by enumeration."""

import hashlib
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import NO_LABEL
from bayesgeom.tasks.base import task_from_config, task_from_text
from bayesgeom.tasks.modular_recurrence import ModularRecurrence, _buckets

OPAQUE = ModularRecurrence(modulus=5, length=7, opaque=True)
TRAINED = ModularRecurrence(modulus=5, length=6, prefixes="trained", prefix_buckets=3, held_out=1, rule_share=0.3)
HELD_OUT = replace(TRAINED, prefixes="held_out")
COMPOSITE = ModularRecurrence(modulus=4, length=5, prefixes="trained", prefix_buckets=2)
RESTRICTED = [TRAINED, HELD_OUT, COMPOSITE, replace(TRAINED, opaque=True)]


def is_allowed(task: ModularRecurrence, numbers: tuple[int, ...]) -> bool:
    if task.prefixes == "all":
        return True
    is_held_out = int(_buckets(task.modulus, task.prefix_buckets)[numbers[:3]]) == task.held_out
    return is_held_out == (task.prefixes == "held_out")


def worlds(task: ModularRecurrence) -> tuple[list[tuple[int, tuple[int, ...], float]], int]:
    """Every hypothesis with every first four numbers that it can give, and their prior probability."""
    p, found = task.modulus, []
    starts = [(a, b, x) for a in range(p) for b in range(p) for x in range(p)]
    followed = []
    for a, b, x in starts:
        numbers = [x]
        for _ in range(3):
            numbers.append((a * numbers[-1] + b) % p)
        if is_allowed(task, tuple(numbers)):
            followed.append((1 + a * p + b, tuple(numbers)))
    found += [(h, numbers, task.rule_share / len(followed)) for h, numbers in followed]
    noise = [own for own in itertools.product(range(p), repeat=4) if is_allowed(task, own)]
    found += [(0, numbers, (1 - task.rule_share) / len(noise)) for numbers in noise]
    return found, p


def enumerated(task: ModularRecurrence, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Belief and next number after at most three numbers, as counts over every world."""
    found, p = worlds(task)
    belief, following = np.zeros(p**2 + 1), np.zeros(p)
    for hypothesis, own, probability in found:
        if own[: len(numbers)] == tuple(numbers):
            belief[hypothesis] += probability
            following[own[len(numbers)]] += probability
    return belief / belief.sum(), following / following.sum()


def decoded(task: ModularRecurrence, tokens: list[int]) -> tuple[list[int], list[int]]:
    """Header and numbers of a sequence."""
    p = task.modulus
    if not task.opaque:
        return list(range(p)), tokens
    assert tokens[0] == 2 * p and tokens[p + 1] == 2 * p + 1 and sorted(tokens[1 : p + 1]) == list(range(p))
    order = tokens[1 : p + 1]
    return order, [order.index(token - p) for token in tokens[p + 2 :]]


def test_the_hash_of_prefixes_does_not_change() -> None:
    """Checkpoints that were trained on some buckets depend on it."""
    own = _buckets(31, 5)
    assert own.shape == (31, 31, 31) and own[0, 0, :7].tolist() == own.flatten()[:7].tolist()
    assert hashlib.sha256(own.numpy().astype("uint8").tobytes()).hexdigest()[:16] == "a137ac1ec2707da5"
    sizes = torch.bincount(own.flatten())
    assert len(sizes) == 5 and int(sizes.min()) > 5_700 and int(sizes.max()) < 6_200


def test_the_opaque_form_shows_the_same_numbers_as_symbols() -> None:
    plain, shown = (own.sample(13, seed=4) for own in (replace(OPAQUE, opaque=False), OPAQUE))
    p, header = 5, 7
    assert (OPAQUE.d_vocab, OPAQUE.n_pos) == (12, 14) and shown.answers.tolist() == [5, 6, 7, 8, 9]
    assert len({tuple(row[1:6].tolist()) for row in shown.tokens}) > 6, "the order is drawn anew in each sequence"
    for row in range(13):
        order, numbers = decoded(OPAQUE, shown.tokens[row].tolist())
        assert numbers == plain.tokens[row].tolist()
        assert [order.index(own - p) for own in shown.labels[row, header:].tolist()] == plain.labels[row].tolist()
        np.testing.assert_array_equal(shown.belief[row, header:], plain.belief[row])
        for t in range(7):
            twin = {order[x]: float(plain.predictive[row, t, x]) for x in range(p)}
            assert dict(enumerate(shown.predictive[row, header + t].tolist())) == twin
    assert not shown.scored[:, :header].any() and shown.scored[:, header:].all()
    assert (shown.labels[:, :header] == NO_LABEL).all() and shown.belief[:, :header].isnan().all()


def test_baselines_and_relations_of_the_opaque_form() -> None:
    plain, shown = (own.sample(11, seed=5) for own in (replace(OPAQUE, opaque=False), OPAQUE))
    bare, dressed = replace(OPAQUE, opaque=False).baseline_predictives(plain), OPAQUE.baseline_predictives(shown)
    for row, tokens in enumerate(shown.tokens.tolist()):
        order, _ = decoded(OPAQUE, tokens)
        torch.testing.assert_close(dressed["prior_odds"][row][:, order], bare["prior_odds"][row], rtol=0, atol=1e-15)
        for t in range(7):
            at = 7 + t
            same = {s for s in range(7, at) if tokens[s] == tokens[at]}
            twin = {
                "after_same_number": {s + 1 for s in same},
                "same_number": same,
                "current_number": {at},
                "previous_number": {at - 1} - {6},
                "earlier_number": set(range(7, at - 1)),
                "place_in_header": {1 + order.index(tokens[at] - 5)},
            }
            assert shown.relations.keys() == twin.keys()
            for name, places in twin.items():
                assert set(shown.relations[name][row, t].nonzero()[:, 0].tolist()) == places, (name, row, t)


@pytest.mark.parametrize("task", RESTRICTED, ids=str)
def test_restricted_prefixes_match_enumeration(task: ModularRecurrence) -> None:
    trials = task.sample(17, seed=1)
    for row in range(17):
        order, numbers = decoded(task, trials.tokens[row].tolist())
        assert is_allowed(task, tuple(numbers))
        for t in range(3):
            belief, following = enumerated(task, numbers[: t + 1])
            at = task.n_header + t
            np.testing.assert_allclose(trials.belief[row, at].numpy(), belief, atol=1e-14)
            np.testing.assert_allclose(trials.predictive[row, at].numpy()[order], following, atol=1e-14)


@pytest.mark.parametrize("task", RESTRICTED, ids=str)
def test_after_the_prefix_each_number_multiplies_the_odds_by_p_or_by_0(task: ModularRecurrence) -> None:
    trials, p = task.sample(40, seed=2), task.modulus
    for row in range(40):
        _, numbers = decoded(task, trials.tokens[row].tolist())
        belief = trials.belief[row, task.n_header :].numpy()
        for t in range(3, task.length):
            fits = np.array([(a * numbers[t - 1] + b) % p == numbers[t] for a in range(p) for b in range(p)])
            joint = np.concatenate([belief[t - 1, :1] / p, belief[t - 1, 1:] * fits])
            np.testing.assert_allclose(belief[t], joint / joint.sum(), atol=1e-14)


def test_the_odds_change_by_the_shares_of_allowed_prefixes_and_rules() -> None:
    """A factor near 1 for sequences with noise restricted alike, and not the inverse share of trained buckets."""
    task = ModularRecurrence(modulus=31, length=4, prefixes="trained")
    free = replace(task, prefixes="all")
    numbers = task.sample(9, seed=0).tokens
    odds = [own.trials(numbers).belief[:, 2] for own in (task, free)]
    ratio = [own[:, 1:].sum(1) / own[:, 0] for own in odds]
    factor = (ratio[0] / ratio[1])[ratio[1] > 0]
    torch.testing.assert_close(factor, factor[:1].expand_as(factor))
    assert abs(float(factor[0]) - 1) < 0.02 and float(factor[0]) != 1


@pytest.mark.parametrize("task", [TRAINED, COMPOSITE], ids=str)
def test_restricted_sequences_are_drawn_from_their_prior(task: ModularRecurrence) -> None:
    n = 40_000
    trials = task.sample(n, seed=3)
    numbers = torch.cat([trials.tokens, trials.labels[:, -1:]], dim=1)
    seen = Counter(tuple(row[:4]) for row in numbers.tolist())
    expected: Counter[tuple[int, ...]] = Counter()
    for _, own, probability in worlds(task)[0]:
        expected[own] += probability
    assert seen.keys() <= expected.keys() and sum(expected.values()) == pytest.approx(1)
    # The sum of squared standardized differences is chi-squared, up to correlations of order 1 / cells.
    cells = len(expected)
    squares = sum((seen[own] - n * share) ** 2 / (n * share) for own, share in expected.items())
    assert abs(squares - cells) < 5 * (2 * cells) ** 0.5


def test_restricted_pairs_have_the_same_start_and_kind() -> None:
    original, donor = TRAINED.sample_pair(60, seed=8)
    assert torch.equal(original.tokens[:, 0], donor.tokens[:, 0])
    assert all(is_allowed(TRAINED, tuple(row)) for own in (original, donor) for row in own.tokens.tolist())
    follows = [own.belief[:, -1, 0] < 0.5 for own in (original, donor)]
    assert int((follows[0] != follows[1]).sum()) <= 4, "by chance, noise follows a rule over four numbers"


def test_one_kind_is_drawn_with_the_posterior_of_both() -> None:
    rules, noise = (ModularRecurrence(length=9, kinds=kind).sample(50, seed=9) for kind in ("rules", "noise"))
    assert (rules.belief[:, -1, 0] < 1e-6).all() and (noise.belief[:, -1, 0] > 0.9).double().mean() > 0.9
    torch.testing.assert_close(rules.belief[:, 0, 0], torch.full((50,), 0.5).double())
    both = ModularRecurrence(length=9)
    again = both.trials(torch.cat([rules.tokens, rules.labels[:, -1:]], dim=1))
    assert torch.equal(again.belief, rules.belief) and torch.equal(again.predictive, rules.predictive)


@pytest.mark.parametrize("task", [ModularRecurrence(modulus=5, length=7), OPAQUE], ids=str)
def test_scored_parts_hold_the_numbers_of_the_whole(task: ModularRecurrence) -> None:
    whole, part = (own.sample(11, seed=10) for own in (task, replace(task, scored_from=2, scored_to=5)))
    assert torch.equal(whole.tokens, part.tokens) and part.n_scored == 3
    for name in ("belief", "predictive", "labels"):
        assert torch.equal(part.at_scored(vars(part)[name]), whole.at_scored(vars(whole)[name])[:, 2:5])
    for name, own in part.relations.items():
        assert torch.equal(own, whole.relations[name][:, 2:5])
    own, other = (of.baseline_predictives(trials) for of, trials in ((part_task(task), part), (task, whole)))
    for name in own:
        torch.testing.assert_close(own[name], other[name][:, 2:5])


def part_task(task: ModularRecurrence) -> ModularRecurrence:
    return replace(task, scored_from=2, scored_to=5)


def test_parameters_are_read_from_the_command_line_and_from_a_saved_config() -> None:
    trained = ModularRecurrence(modulus=31, prefixes="trained")
    found = task_from_text("modular-recurrence:prefixes=held_out,kinds=rules,scored_from=3", trained=trained)
    assert found == replace(trained, prefixes="held_out", kinds="rules", scored_from=3)
    assert task_from_config(found.config()) == found  # type: ignore[union-attr]
    assert task_from_config({"name": "modular-recurrence", "modulus": 5}) == ModularRecurrence(modulus=5)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prefix_buckets": 1}, r"prefix_buckets ≥ 2 and 0 ≤ held_out < prefix_buckets, got 1 and held_out=0"),
    ({"held_out": -1}, r"got 5 and held_out=-1"),
    ({"prefixes": "trained", "length": 2}, r"needs length ≥ 3, the numbers of a prefix, got 2"),
    ({"prefixes": "held_out", "modulus": 2, "held_out": 2, "prefix_buckets": 97}, r"modulus 2 is too small for 97 b"),
    ({"kinds": "rule"}, r"kinds"),
    ({"scored_from": 16}, r"0 ≤ scored_from < scored_to ≤ length, got 16, None and length 16"),
    ({"scored_to": 17}, r"got 0, 17 and length 16"),
]


@pytest.mark.parametrize(("parameters", "message"), BAD, ids=str)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        task_from_config({"name": "modular-recurrence", **parameters})


def test_sequences_that_the_task_cannot_have_are_refused() -> None:
    foreign = HELD_OUT.sample(3, seed=0).tokens
    with pytest.raises(InvalidArgument, match=r"sequence 0 starts with .* which prefixes='trained' excludes"):
        TRAINED.trials(foreign)
    with pytest.raises(InvalidArgument, match=r"header of the opaque form only; opaque is False"):
        ModularRecurrence(modulus=5).trials(foreign, torch.arange(5).expand(3, 5))
    with pytest.raises(InvalidArgument, match=r"opaque is True"):
        OPAQUE.trials(foreign)
