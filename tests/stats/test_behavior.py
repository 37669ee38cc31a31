"""Scoring predictions against the posterior: slow loops, bounds, and which way the divergence points."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.core.run import Behavior, Trials
from bayesgeom.stats.behavior import (
    BehaviorLog,
    answer_log_probabilities,
    are_finite,
    behavior,
    position_kl_bits,
    predicted_behavior,
    whole_entropy_bits,
)
from bayesgeom.tasks.bijection import Bijection

TASK = Bijection(n_values=7, n_pairs=5, repeats=True)  # 14 ids, 9 positions of which 5 are scored


def some_logits(trials: Trials, scale: float = 2.0, seed: int = 3) -> Tensor:
    shape = (len(trials), trials.n_scored, 2 * TASK.n_values)
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def twin(trials: Trials, logits: np.ndarray) -> dict[str, np.ndarray]:
    """One sequence, one position, one id at a time, in plain floats."""
    n, n_scored = logits.shape[:2]
    found = {name: np.zeros((n, n_scored)) for name in Behavior.__dataclass_fields__}
    for i in range(n):
        positions = [pos for pos in range(trials.tokens.shape[1]) if trials.scored[i, pos]]
        for j, pos in enumerate(positions):
            largest = max(logits[i, j])
            weights = [math.exp(x - largest) for x in logits[i, j]]
            everything, inside = sum(weights), sum(weights[a] for a in trials.answers.tolist())
            q = [weights[a] / inside for a in trials.answers.tolist()]
            p = trials.predictive[i, pos].tolist()
            asked = trials.answers.tolist().index(int(trials.labels[i, pos]))
            found["exact_entropy_bits"][i, j] = -sum(x * math.log2(x) for x in p if x > 0)
            found["model_entropy_bits"][i, j] = -sum(x * math.log2(x) for x in q)
            found["kl_bits"][i, j] = sum(x * math.log2(x / y) for x, y in zip(p, q, strict=True) if x > 0)
            found["total_variation"][i, j] = sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2
            found["off_answer_prob"][i, j] = 1 - inside / everything
            found["answer_log2"][i, j] = math.log2(q[asked])
            found["correct"][i, j] = float(max(range(len(q)), key=q.__getitem__) == asked)
    return found


def test_behavior_equals_a_loop_over_every_id() -> None:
    trials = TASK.sample(11, seed=1)
    logits = some_logits(trials)
    seen = behavior(trials, *answer_log_probabilities(logits, trials))
    for name, values in twin(trials, logits.double().numpy()).items():
        assert vars(seen)[name].shape == (11, 5)
        np.testing.assert_allclose(vars(seen)[name], values, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e2, 1e4, 1e30])
def test_leak_is_a_probability_however_sure_the_model(scale: float) -> None:
    trials = TASK.sample(31, seed=2)
    log_answers, off_answer_prob = answer_log_probabilities(some_logits(trials, scale), trials)
    assert bool(((off_answer_prob >= 0) & (off_answer_prob <= 1)).all()) and not bool(log_answers.isnan().any())
    torch.testing.assert_close(log_answers.exp().sum(-1), torch.ones(31, 5, dtype=torch.float64))


def test_leak_is_exact_where_it_is_tiny() -> None:
    trials = TASK.sample(1, seed=0)
    logits = torch.zeros(1, 5, 14)
    logits[..., :7] = -25.0
    np.testing.assert_allclose(answer_log_probabilities(logits, trials)[1], math.exp(-25), rtol=1e-4)
    logits[..., :7] = -1e4
    off_answer_prob = answer_log_probabilities(logits, trials)[1]
    assert not off_answer_prob.any() and not off_answer_prob.signbit().any(), "none at all, and not “-0”"


def test_the_exact_predictive_is_perfect() -> None:
    trials = TASK.sample(101, seed=1)
    exact = predicted_behavior(trials, trials.at_scored(trials.predictive))
    for name in ("kl_bits", "total_variation", "off_answer_prob"):
        assert np.abs(vars(exact)[name]).max() < 1e-12, name
    np.testing.assert_allclose(exact.model_entropy_bits, exact.exact_entropy_bits, atol=1e-12)
    uncertain = exact.exact_entropy_bits > 1e-9
    assert (exact.correct[~uncertain] == 1).all() and (exact.answer_log2[~uncertain] == 0).all()


def test_kl_weighs_by_the_exact_side() -> None:
    """Missing what can happen costs infinitely much; spreading over what cannot happen costs a finite amount."""
    trials = TASK.trials(torch.tensor([[0, 0, 1]]), torch.tensor([[4, 4, 2]]))
    exact = trials.at_scored(trials.predictive)
    assert exact[0, 1].tolist() == [0, 0, 0, 0, 1, 0, 0]
    uniform = torch.full_like(exact, 1 / 7)
    spread = predicted_behavior(trials, uniform).kl_bits[0]
    np.testing.assert_allclose(spread, [0.0, math.log2(7), math.log2(7 / 6)], atol=1e-12)
    point = torch.nn.functional.one_hot(torch.tensor([[4, 4, 2]]), 7).double()
    sure = predicted_behavior(trials, point)
    assert sure.kl_bits[0].tolist() == [math.inf, 0.0, math.inf]
    assert sure.model_entropy_bits[0].tolist() == [0.0, 0.0, 0.0] and sure.answer_log2[0].tolist() == [0.0, 0.0, 0.0]


def logged(trials: Trials, logits: Tensor, cuts: list[slice]) -> tuple[Behavior, Behavior, dict[str, Behavior]]:
    log = BehaviorLog()
    for rows in cuts:
        block = trials.rows(rows)
        log.add(block, *answer_log_probabilities(logits[rows], block), TASK.baseline_predictives(block))
    assert log.n == len(trials)
    return log.finished()


@pytest.mark.parametrize("cuts", [[(0, 41)], [(0, 2), (2, 7), (7, 41)], [(i, i + 1) for i in range(41)]])
def test_a_log_of_blocks_is_scoring_them_at_once(cuts: list[tuple[int, int]]) -> None:
    trials = TASK.sample(41, seed=4)
    logits = some_logits(trials)
    model, exact, baselines = logged(trials, logits, [slice(*cut) for cut in cuts])
    expected = {name: predicted_behavior(trials, p) for name, p in TASK.baseline_predictives(trials).items()}
    assert baselines.keys() == expected.keys() == {"uniform", "elimination_only", "key_membership"}
    pairs = [(baselines[name], expected[name]) for name in baselines]
    pairs += [(model, behavior(trials, *answer_log_probabilities(logits, trials)))]
    pairs += [(exact, predicted_behavior(trials, trials.at_scored(trials.predictive)))]
    for found, wanted in pairs:
        for name, values in vars(wanted).items():
            assert vars(found)[name].shape == (41, 5) and vars(found)[name].dtype == np.float32
            np.testing.assert_allclose(vars(found)[name], values, atol=1e-6, err_msg=name)


def test_a_log_holds_each_number_once() -> None:
    trials = TASK.sample(41, seed=4)
    model, exact, baselines = logged(trials, some_logits(trials), [slice(0, 41)])
    everyone = [model, exact, *baselines.values()]
    assert all(np.shares_memory(one.exact_entropy_bits, model.exact_entropy_bits) for one in everyone)
    assert all(np.shares_memory(v, model.kl_bits.base) for v in vars(model).values()), "no copy is made at the end"
    for none in (exact.kl_bits, exact.total_variation, *(one.off_answer_prob for one in everyone[1:])):
        assert none.strides == (0, 0) and not none.any()


def test_a_log_takes_no_more_than_it_needs() -> None:
    trials, log = TASK.sample(1, seed=4), BehaviorLog()
    answers = answer_log_probabilities(some_logits(trials), trials)
    for n in range(1, 101):
        log.add(trials, *answers, {})
        rows = log.finished()[0].kl_bits.base
        assert rows is not None and len(rows) == n


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("d_vocab", [3, 70_001])
def test_entropy_over_the_vocabulary_is_its_definition(dtype: torch.dtype, d_vocab: int) -> None:
    """Vocabularies beyond what is reduced at a time, and logits far from 0."""
    logits = 5 * torch.randn(2, 3, d_vocab, generator=torch.Generator().manual_seed(0)).to(dtype) + 1_000
    p = logits.double().softmax(-1)
    expected = -torch.xlogy(p, p).sum(-1) / math.log(2)
    torch.testing.assert_close(whole_entropy_bits(logits), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_logit_that_is_no_number_is_found(value: float) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        logits = torch.full((3, 5, 1_009), 1e4, dtype=dtype)
        logits[1, 4, 1_008] = value
        assert are_finite(logits).tolist() == [True, False, True]
        assert whole_entropy_bits(logits).isfinite().all(-1).tolist() == [True, False, True]


def test_position_alone_is_the_mutual_information_of_many_sequences(rng: np.random.Generator) -> None:
    exact = np.eye(4)[rng.integers(4, size=(20_000, 3))]  # certain, and different at every position
    assert position_kl_bits(exact).mean() == pytest.approx(2.0, abs=0.01)
    same = np.broadcast_to(rng.dirichlet(np.ones(4), size=3), (50, 3, 4))
    np.testing.assert_allclose(position_kl_bits(same), 0, atol=1e-12)
