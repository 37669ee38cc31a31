"""Scores of trained models: who reads nothing, and where the answer is known."""

import math
from dataclasses import replace

import pytest
import torch

from bayesgeom.measurements import calibration
from bayesgeom.measurements.calibration import Calibration
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.models.resolve import of_module
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.process import Process
from examples.replication.comparison import scores
from examples.replication.comparison.scores import context_free, score


def candidates_kl(task: WindTunnel, *, n: int, seed: int) -> dict[str, float]:
    """Return the mean KL of both candidates for the best context-free predictor, by a loop over sequences."""
    trials = next(iter(task.stream(n, seed=derived_seed(seed, Branch.TRIALS))))
    exact, found = trials.at_scored(trials.predictive), {}
    for name, own in context_free(task, seed=seed).items():
        found[name] = float(torch.where(exact > 0, exact * (exact / own).log2(), 0.0).sum(-1).mean())
    return found


def test_candidates_for_the_best_context_free_predictor_are_the_average_and_uniform() -> None:
    average, uniform = context_free(Bijection(n_values=5, n_pairs=4), seed=0).values()
    assert average.shape == (4, 5) and 0 < float((average - 0.2).abs().max()) < 0.05
    assert torch.allclose(average.sum(-1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(uniform, torch.full((4, 5), 0.2, dtype=torch.float64))


def test_the_best_context_free_predictor_is_never_worse_than_uniform() -> None:
    """The average over a bijection's sequences is uniform, so that an estimate of it can only be worse."""
    task = Bijection(n_values=5, n_pairs=4)
    average, uniform = candidates_kl(task, n=97, seed=0).values()
    assert uniform < average
    sizes = {"n_ctx": task.n_pos, "n_layers": 1, "n_heads": 3, "d_model": 21, "d_mlp": 13}
    model = of_module(Transformer(TransformerConfig(d_vocab=task.d_vocab, **sizes)), task=task)
    own = score(model, task, n=97, seed=0)
    assert own.context_free_kl_bits.mean() == pytest.approx(uniform, abs=1e-5)
    assert not any(name.startswith("context-free:") for name in (*own.baseline_kl_bits, *own.baseline_known_correct))


def test_the_average_predictive_is_the_best_where_answers_are_not_equally_frequent() -> None:
    coin = [[[0.9, 0.0], [0.0, 0.2]], [[0.1, 0.0], [0.0, 0.8]]]
    task = Process(coin, initial=[0.9, 0.1], length=3)
    average, uniform = candidates_kl(task, n=97, seed=0).values()
    assert average < uniform
    sizes = {"n_ctx": task.n_pos, "n_layers": 1, "n_heads": 3, "d_model": 21, "d_mlp": 13}
    model = of_module(Transformer(TransformerConfig(d_vocab=task.d_vocab, **sizes)), task=task)
    assert score(model, task, n=97, seed=0).context_free_kl_bits.mean() == pytest.approx(average, abs=1e-5)


def test_scores_count_where_the_answer_is_known() -> None:
    task = Bijection(n_values=5, n_pairs=7, repeats=True)
    module = Transformer(TransformerConfig(d_vocab=10, n_ctx=13, n_layers=1, n_heads=3, d_model=21, d_mlp=13))
    own = score(of_module(module, task=task), task, n=11, seed=0)
    trials = next(iter(task.stream(11, seed=derived_seed(0, 0))))
    asked = trials.at_scored(trials.predictive)
    known = (asked.amax(-1) > 1 - 1e-9).double().mean(1)
    assert own.known == pytest.approx(known.numpy()) and 0 < known.mean() < 1
    assert (own.known_correct <= own.known + 1e-12).all() and (own.kl_bits > 0).all()
    by_name = candidates_kl(task, n=11, seed=0)
    free = context_free(task, seed=0)[min(by_name, key=by_name.__getitem__)].expand_as(asked)
    kl = torch.where(asked > 0, asked * (asked / free).log2(), 0.0).sum(-1).mean(1)
    assert own.context_free_kl_bits == pytest.approx(kl.numpy(), abs=1e-5)
    right = (free.argmax(-1) == asked.argmax(-1)).double() * (asked.amax(-1) > 1 - 1e-9)
    assert own.context_free_known_correct == pytest.approx(right.mean(1).numpy())
    assert own.baseline_known_correct["context-free"] == pytest.approx(float(right.mean()))


def test_accuracy_has_the_baselines_of_the_task() -> None:
    """With three pairs, the pair stored last answers a third of the queries, and the bag a half of the others."""
    task = AssociativeRecall(n_pairs=3, n_keys=5, n_values=7, n_queries=2, n_filler=1)
    module = Transformer(
        TransformerConfig(d_vocab=task.d_vocab, n_ctx=task.n_pos, n_layers=1, n_heads=3, d_model=21, d_mlp=13)
    )
    own = score(of_module(module, task=task), task, n=997, seed=0)
    found = {name: value / own.known.mean() for name, value in own.baseline_known_correct.items()}
    assert found["bag"] == pytest.approx(1 / 3, abs=0.04) and found["last_pair"] == pytest.approx(2 / 3, abs=0.04)
    assert found["context-free"] < found["bag"]


@pytest.mark.parametrize("symbols", [3.0, 6.0, 12.0, math.nan])
def test_baselines_of_the_comparison_are_those_of_calibration(symbols: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both add the observer that decides for the equivalent window of the model."""
    task = HMM(n_states=3, n_symbols=2, length=17, floor=0.01, stay=0.95)
    for place in (scores, calibration):
        found = place.equivalent_window  # type: ignore[attr-defined]
        monkeypatch.setattr(place, "equivalent_window", lambda *a, of=found, **k: replace(of(*a, **k), symbols=symbols))
    sizes = {"n_ctx": task.n_pos, "n_layers": 1, "n_heads": 3, "d_model": 21, "d_mlp": 13}
    model = of_module(Transformer(TransformerConfig(d_vocab=task.d_vocab, **sizes)), task=task)
    own = score(model, task, n=29, seed=0)
    stream = task.stream(29, seed=derived_seed(0, Branch.TRIALS))
    report = Calibration().measure(model.run(stream, baseline_predictives=task.baseline_predictives, seed=0))
    expected = {each.name.replace(" ", "_"): float(each.value) for each in report.kl_bits.baselines}
    assert own.baseline_kl_bits == pytest.approx(expected | {"context-free": own.context_free_kl_bits.mean()}, abs=1e-6)
    widest = max(int(name.split("_")[1]) for name in expected if name.startswith("window"))
    assert widest == (4 if symbols < 4 else 6 if symbols == 6 else 10)
    errors = {each.name for each in report.entropy_mae_bits.baselines} - {"constant"}
    assert errors == {each.name for each in report.kl_bits.baselines}
