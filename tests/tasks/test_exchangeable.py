"""Exchangeable tasks: their exact answers ignore the order of the evidence, and are a martingale."""

import itertools
from math import lgamma

import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials, checked_trials
from bayesgeom.tasks.base import ExchangeableTask
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.evidence import LabeledEvidence
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.in_context import InContext
from tests.tasks.tokenizers import word_tokenizer

N = 29


def bound(task: InContext | LabeledEvidence) -> ExchangeableTask:
    found = task.bind(word_tokenizer(), d_vocab=257)
    assert isinstance(found, ExchangeableTask)
    return found


TASKS: tuple[ExchangeableTask, ...] = (
    Dice(n_faces=3, concentration=0.7, length=7),
    Bijection(n_values=5, n_pairs=5),
    Bijection(n_values=5, n_pairs=11, repeats=True),
    bound(LabeledEvidence(k_max=5, reliability=0.8, n_words=7)),
    bound(LabeledEvidence(k_max=3, ks=(1, 3), query="latent", n_words=7)),
    bound(LabeledEvidence(k_max=3, control="shuffled", n_words=7)),
    bound(InContext(task=Bijection(n_values=5, n_pairs=3), separator=",")),
)
every_task = pytest.mark.parametrize("task", TASKS, ids=str)


def answers(trials: Trials) -> torch.Tensor:
    return trials.at_scored(trials.predictive)


@every_task
def test_the_order_of_the_evidence_does_not_change_the_exact_answer(task: ExchangeableTask) -> None:
    trials = task.sample(N, seed=1)
    order = torch.rand(N, task.n_evidence, generator=torch.Generator().manual_seed(2)).argsort(dim=1)
    found = checked_trials(task.reordered(trials, order), task=task.name)
    assert task.is_exchangeable and not torch.equal(found.tokens, trials.tokens)
    torch.testing.assert_close(answers(found)[:, -1], answers(trials)[:, -1], atol=1e-12, rtol=0)
    assert torch.equal(found.tokens.sort(dim=1).values, trials.tokens.sort(dim=1).values)
    back = task.reordered(found, order.argsort(dim=1))
    assert torch.equal(back.tokens, trials.tokens) and torch.equal(back.labels[:, -1], trials.labels[:, -1])


@every_task
def test_exact_answers_are_a_martingale(task: ExchangeableTask) -> None:
    trials = task.sample(N, seed=3)
    for step in range(task.n_continued):
        found, read = task.continued(trials, step)
        rows = torch.arange(len(found))
        exact = answers(found)[rows, read.flatten()].unflatten(0, (N, -1))
        own, before, after = exact[:, 0], exact[:, 1], exact[:, 2:]
        torch.testing.assert_close(torch.einsum("by,bya->ba", own, after), before, atol=1e-12, rtol=0)
        assert found.tokens.shape[1] <= trials.tokens.shape[1]


def test_the_discounted_filter_weights_each_piece_by_its_age() -> None:
    task = Dice(n_faces=3, concentration=0.7, length=5)
    trials = task.sample(N, seed=4)
    torch.testing.assert_close(task.discounted(trials, 1.0), answers(trials))
    for row, roll in itertools.product(range(N), range(5)):
        counts = [0.7] * 3
        for age in range(roll + 1):
            counts[int(trials.tokens[row, roll - age])] += 0.6**age
        expected = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        torch.testing.assert_close(task.discounted(trials, 0.6)[row, roll], expected)
    evidence = bound(LabeledEvidence(k_max=5, reliability=0.8, n_words=7))
    lines = evidence.sample(N, seed=5)
    torch.testing.assert_close(evidence.discounted(lines, 1.0), answers(lines))
    assert float((evidence.discounted(lines, 0.5) - answers(lines)).abs().max()) > 0.05


def test_dice_follow_the_integral_over_biases() -> None:
    """P(rolls) is a ratio of gamma functions; the predictive is that of one more roll."""
    task = Dice(n_faces=3, concentration=0.7, length=4)
    trials = task.sample(N, seed=6)

    def log_evidence(rolls: list[int]) -> float:
        counts = [rolls.count(face) for face in range(3)]
        return lgamma(2.1) - lgamma(2.1 + len(rolls)) + sum(lgamma(0.7 + c) - lgamma(0.7) for c in counts)

    for row, roll in itertools.product(range(N), range(4)):
        rolls = trials.tokens[row, : roll + 1].tolist()
        logs = torch.tensor([log_evidence([*rolls, face]) - log_evidence(rolls) for face in range(3)])
        torch.testing.assert_close(trials.predictive[row, roll], logs.double().exp(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("given", [{"n_faces": 1}, {"length": 0}, {"concentration": 0.0}, {"concentration": 1e308}])
def test_impossible_dice_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=f"{'concentration' if 'concentration' in given else 'n_faces'}.*got"):
        Dice(**given)  # type: ignore[arg-type]


def test_a_task_in_words_is_exchangeable_if_the_rendered_one_is() -> None:
    assert bound(LabeledEvidence(k_max=3, query="latent", n_words=7)).n_continued == 0
    assert not bound(InContext(task=HMM(n_states=2, n_symbols=2, length=4))).is_exchangeable
    assert not bound(LabeledEvidence(k_max=3, control="masked", n_words=7)).is_exchangeable
