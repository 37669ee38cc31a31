"""Replaced evidence follows its exact distribution given what stays, in every task."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from jaxtyping import Bool
from torch import Tensor

from bayesgeom.core.plugins import discover
from bayesgeom.core.run import Trials, checked_trials
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.windows import is_window
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.base import EvidenceTask, random_completion
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.causal_graph import CausalGraph
from bayesgeom.tasks.change_point import ChangePoint
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.dirichlet_markov import DirichletMarkov
from bayesgeom.tasks.evidence import BoundEvidence, LabeledEvidence
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.in_context import InContext
from bayesgeom.tasks.linear_gaussian import LinearGaussian
from bayesgeom.tasks.linear_regression import LinearRegression
from bayesgeom.tasks.modular_recurrence import ModularRecurrence
from bayesgeom.tasks.process import Mess3, Process
from bayesgeom.tasks.product import Product
from bayesgeom.tasks.sticky_markov import StickyMarkov
from tests.tasks.tokenizers import word_tokenizer

N = 1_500
DRIFTING = Process([[[0.8, 0.1], [0.0, 0.2]], [[0.0, 0.1], [0.1, 0.7]]], initial=[0.9, 0.1], length=4)


def bound(task: InContext | LabeledEvidence) -> EvidenceTask:
    found = task.bind(word_tokenizer(), d_vocab=257)
    assert isinstance(found, EvidenceTask)
    return found


TASKS: tuple[EvidenceTask, ...] = (
    Bijection(n_values=3, n_pairs=3),
    Bijection(n_values=3, n_pairs=4, repeats=True),
    Bijection(n_values=3, n_pairs=4, repeats=True, pooled_keys=True),
    AssociativeRecall(n_pairs=2, n_keys=3, n_values=3, n_queries=2, n_filler=1),
    AssociativeRecall(n_pairs=2, n_keys=3, n_values=3, n_queries=2, n_filler=1, pooled_pairs=True),
    HMM(n_states=2, n_symbols=2, length=4, floor=0.1, grid=0.1, stay=0.9),
    Dice(n_faces=3, length=3),
    Mess3(length=3),
    StickyMarkov(n_states=3, length=3),
    DRIFTING,
    Product("golden-mean", "z1r", length=3),
    Process("bloch-walk", length=3),
    CausalGraph(n_variables=2, n_rows=3),
    ChangePoint(n_symbols=2, hazard=0.3, length=4),
    DirichletMarkov(n_symbols=2, length=4),
    DirichletMarkov(n_symbols=2, length=4, pool=3),
    LinearGaussian(decay=(0.5, 0.9), noise=0.5, n_bins=3, length=4),
    LinearGaussian(decay=0.9, noise=0.5, n_bins=3, length=4),
    LinearRegression(n_inputs=2, n_bins=3, n_points=4, n_grid=5),
    ModularRecurrence(modulus=3, length=4),
    ModularRecurrence(modulus=3, length=4, kinds="rules", opaque=True),
    ModularRecurrence(modulus=3, length=4, kinds="noise", scored_to=3),
    ModularRecurrence(modulus=5, length=3, prefixes="trained"),
    bound(LabeledEvidence(k_max=3, reliability=0.8, n_words=4)),
    bound(LabeledEvidence(k_max=2, query="latent", control="shuffled", n_words=4)),
    bound(InContext(task=Bijection(n_values=3, n_pairs=3), separator=",")),
)
every_task = pytest.mark.parametrize("task", TASKS, ids=str)


def kept(task: EvidenceTask, n: int) -> Bool[Tensor, " evidence"]:
    return torch.arange(task.n_evidence) >= task.n_evidence - n


def body(task: EvidenceTask, trials: Trials) -> list[tuple[int, ...]]:
    """Evidence and labels of each sequence; the header of an HMM or an opaque recurrence takes too many values."""
    tokens, labels = trials.tokens, trials.at_scored(trials.labels)
    match task:
        case HMM():
            tokens = tokens[:, task._header_length + 1 :: 2]
        case ModularRecurrence(opaque=True):
            order, tokens = task._read(tokens)
            assert order is not None
            labels = (order.argsort(dim=1)).gather(1, labels - task.modulus)
        case CausalGraph():
            tokens = task._read(trials)[0].flatten(1)
        case BoundEvidence():
            tokens = tokens[:, len(task.prefix) + 2 :: 4]
    return [tuple(row) for row in torch.cat([tokens, labels], dim=1).tolist()]


def distance(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> float:
    """Total variation between two samples."""
    first, second = Counter(one), Counter(other)
    return sum(abs(first[own] - second[own]) for own in {*first, *second}) / (2 * len(one))


@pytest.mark.exhaustive
@every_task
def test_replaced_sequences_are_those_of_the_task(task: EvidenceTask) -> None:
    original, fresh = task.sample(N, seed=1), task.sample(N, seed=2)
    noise = distance(body(task, original), body(task, fresh))
    for n in range(task.n_evidence + 1):
        found = task.replace_evidence(original, kept(task, n), torch.Generator().manual_seed(3 + n))
        checked_trials(found, task=task.name)
        assert distance(body(task, found), body(task, fresh)) < 1.35 * noise + 0.02


@every_task
def test_what_stays_and_what_is_given_do_not_change(task: EvidenceTask) -> None:
    trials = task.sample(101, seed=4)
    nothing = task.replace_evidence(trials, kept(task, task.n_evidence), torch.Generator().manual_seed(5))
    last = int(trials.scored_positions()[0, -1])
    assert torch.equal(nothing.tokens[:, : last + 1], trials.tokens[:, : last + 1])
    assert torch.equal(nothing.scored, trials.scored)
    exact, again = (own.at_scored(own.predictive)[:, -1] for own in (trials, nothing))
    torch.testing.assert_close(exact, again, atol=1e-12, rtol=0)
    one = task.replace_evidence(trials, kept(task, 1), torch.Generator().manual_seed(6))
    everything = task.replace_evidence(trials, kept(task, 0), torch.Generator().manual_seed(6))
    is_given = (everything.tokens == trials.tokens).all(dim=0)
    assert bool((one.tokens == trials.tokens)[:, is_given].all())
    changed = (one.tokens != trials.tokens).any(dim=0).nonzero()[:, 0]
    all_changed = (everything.tokens != trials.tokens).any(dim=0).nonzero()[:, 0]
    assert set(changed.tolist()) <= set(all_changed.tolist())


def test_an_independent_draw_is_not_the_task_s() -> None:
    """The naive replacement, the old part of another sequence under the same matrices, fails the test of this file."""
    task = HMM(n_states=2, n_symbols=2, length=4, floor=0.1, grid=0.1, stay=0.9)
    original, donor = task.sample_pair(4 * N, seed=1)
    fresh = body(task, task.sample(4 * N, seed=2))
    symbols = [
        [(*b[:2], *a[2:4]) for a, b in zip(body(task, original), body(task, other), strict=True)]
        for other in (original, donor)
    ]
    known, naive = (distance(own, [row[:4] for row in fresh]) for own in symbols)
    assert naive > 2 * known


def test_the_values_of_replaced_pairs_are_still_unused() -> None:
    task = Bijection(n_values=5, n_pairs=5)
    trials = task.sample(53, seed=0)
    found = task.replace_evidence(trials, kept(task, 2), torch.Generator().manual_seed(1))
    assert torch.equal(found.tokens[:, 4:], trials.tokens[:, 4:]) and torch.equal(
        found.tokens[:, 0::2], trials.tokens[:, 0::2]
    )
    assert all(len({*row}) == 4 for row in found.tokens[:, 1::2].tolist())
    assert (found.tokens[:, 1] != trials.tokens[:, 1]).any()


def frequencies(rows: list[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    return {row: count / len(rows) for row, count in Counter(rows).items()}


@pytest.mark.parametrize(
    "pattern", [(False, False, True, True), (True, False, False, True), (False, True, True, False)]
)
def test_an_hmm_is_drawn_from_the_sum_over_all_paths(pattern: tuple[bool, ...]) -> None:
    task = HMM(n_states=2, n_symbols=2, length=4, floor=0.1, grid=0.1, stay=0.8)
    one = task.sample(1, seed=7)
    transition, emission, (symbols,) = task._read(one.tokens)
    exact = dict[tuple[int, ...], float]()
    for drawn in itertools.product(range(2), repeat=4):
        if all(drawn[i] == symbols[i] for i in range(4) if pattern[i]):
            for states in itertools.product(range(2), repeat=4):
                weight = 0.5 * float(emission[0, states[0], drawn[0]])
                for step in range(1, 4):
                    weight *= float(
                        transition[0, states[step - 1], states[step]] * emission[0, states[step], drawn[step]]
                    )
                exact[drawn + states] = weight
    total = sum(exact.values())
    many = one.rows(torch.zeros(20_000, dtype=torch.int64))
    found = task.replace_evidence(many, torch.tensor(pattern), torch.Generator().manual_seed(8))
    states = found.at_scored(found.labels) - found.answers[0]
    drawn = task._read(found.tokens)[2]
    seen = frequencies([tuple(row) for row in torch.cat([drawn, states], dim=1).tolist()])
    assert seen.keys() <= exact.keys()
    assert (
        sum(abs(seen.get(key, 0.0) - own / total) for key, own in exact.items()) / 2 < 0.03
    )  # 0.022 is expected of 64 entries


def test_one_piece_alone_can_be_replaced() -> None:
    task = ModularRecurrence(modulus=3, length=5)
    trials = task.sample(300, seed=1)
    keep = torch.arange(5) != 2
    found = task.replace_evidence(trials, keep, torch.Generator().manual_seed(2))
    assert torch.equal(found.tokens[:, keep], trials.tokens[:, keep])
    follows = trials.belief[:, -1, 0] < 0.1  # a rule, so that the piece is determined
    assert float((found.tokens == trials.tokens)[follows, 2].double().mean()) > 0.9
    assert float((found.tokens == trials.tokens)[~follows, 2].double().mean()) < 0.7


def test_maps_are_completed_with_values_that_no_other_key_has(rng: np.random.Generator) -> None:
    known = torch.tensor([[4, -1, -1, 0], [-1, -1, -1, -1]]).repeat(2_000, 1)
    found = random_completion(known, 5, torch.Generator().manual_seed(0))
    assert torch.equal(found[known >= 0], known[known >= 0])
    assert (found.sort(dim=1).values.diff(dim=1) > 0).all() and found.min() == 0 and found.max() == 4
    pairs = Counter(map(tuple, found[0::2, 1:3].tolist()))
    assert len(pairs) == 6 and max(pairs.values()) < 1.25 * min(pairs.values())


def test_the_exact_observer_does_not_learn_from_the_replacement_itself() -> None:
    """Averaged over replaced evidence, the exact answer is that of an observer of the kept window alone."""
    task = Mess3(length=6, x=0.05, a=0.85)
    one = task.sample(1, seed=3)
    many = task.replace_evidence(
        one.rows(torch.zeros(20_000, dtype=torch.int64)), kept(task, 2), torch.Generator().manual_seed(4)
    )
    mean = many.at_scored(many.predictive)[:, -1].mean(dim=0)
    window = task.window_predictives(one, 2)[0, -1]
    assert float(kl_bits(window[None, None], mean.log()[None, None])) < 1e-4


def redrawn(task: EvidenceTask, trials: Trials, n_kept: int, seed: int) -> Trials:
    return task.replace_evidence(trials, kept(task, n_kept), torch.Generator().manual_seed(seed))


WITH_HEADERS = (HMM(n_states=3, n_symbols=2, length=5), LinearRegression(n_bins=5, n_points=7))


@pytest.mark.parametrize("task", [*TASKS, *WITH_HEADERS], ids=str)
def test_what_is_said_to_read_no_evidence_reads_none(task: EvidenceTask) -> None:
    """Nor does a window observer read older symbols."""
    trials = task.sample(53, seed=0)
    before = task.baseline_predictives(trials)
    assert {"uniform", "prior", "stationary"} & before.keys()
    widths = {name: int(name.split("_")[1]) for name in before if is_window(name) and name.startswith("window")}
    for name, width in widths.items() | {("uniform", 0), ("prior", 0), ("stationary", 0)}:
        if name in before:
            after = task.baseline_predictives(redrawn(task, trials, width, seed=1))[name]
            last = slice(None) if not width else slice(-1, None)
            torch.testing.assert_close(after[:, last], before[name][:, last], msg=name)


@pytest.mark.parametrize("task", [*TASKS, *WITH_HEADERS], ids=str)
def test_no_stronger_predictor_without_evidence_is_left_out(task: EvidenceTask) -> None:
    """The mean of the exact answers, given all that is no evidence, is the strongest such predictor."""
    given, n_fitted = task.sample(41, seed=0), 30
    drawn = [redrawn(task, given, 0, seed) for seed in range(2 * n_fitted)]
    exact = torch.stack([trials.at_scored(trials.predictive) for trials in drawn])
    fitted, seen = exact[:n_fitted].mean(dim=0), exact[n_fitted:]
    known = {"position alone": exact.mean(dim=(0, 1)).expand_as(fitted)}
    known |= {name: level for name, level in task.baseline_predictives(given).items() if name in ("uniform", "prior")}
    costs = {name: float(kl_bits(seen, level.log().expand_as(seen)).mean()) for name, level in known.items()}
    assert min(costs.values()) <= float(kl_bits(seen, fitted.log().expand_as(seen)).mean()) + 1e-9


def test_every_task_with_evidence_is_among_these() -> None:
    # mypy: an abstract class as a value is what discovery is about.
    kinds = discover("bayesgeom.tasks", EvidenceTask)  # type: ignore[type-abstract]
    assert {*kinds.values()} <= {type(task) for task in TASKS}
