"""Renaming is exact, and the test tells a model that follows names from one that prefers or ignores them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.core.run import Run, Trials
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements.base import Further
from bayesgeom.measurements.relabeling import (
    STUCK,
    Relabeling,
    RelabelingReport,
    Scored,
    relabeling_invariance,
    relabeling_report,
    verdict,
)
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.base import SymmetricTask, WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.process import Mess3

N = 11
TASKS: tuple[SymmetricTask, ...] = (
    Bijection(n_values=5, n_pairs=3),
    Bijection(n_values=5, n_pairs=7, repeats=True),
    HMM(n_states=3, n_symbols=5, length=7),
    AssociativeRecall(n_pairs=2, n_keys=3, n_values=5, n_queries=7),
)


def renamings(task: SymmetricTask, seed: int = 0, n: int = N) -> Int64[Tensor, "batch name"]:
    return torch.rand(n, task.n_names, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)


def rebuilt_bijection(task: SymmetricTask, trials: Trials, names: Tensor) -> Trials:
    assert isinstance(task, Bijection)
    keys, values = trials.tokens[:, 0::2], trials.at_scored(trials.labels) - task.n_values
    return task.trials(keys, names.gather(1, values))


def rebuilt_hmm(task: SymmetricTask, trials: Trials, names: Tensor) -> Trials:
    """Every entry of both matrices moved by hand, and the filter run anew."""
    assert isinstance(task, HMM)
    s, o, floor = task.n_states, task.n_symbols, round(task.floor / task.grid)
    transition = trials.tokens[:, 1 : 1 + s * s].reshape(-1, s, s) + floor
    emission = trials.tokens[:, 2 + s * s : 2 + s * s + s * o].reshape(-1, s, o) + floor
    moved, shown = torch.zeros_like(transition), torch.zeros_like(emission)
    for row, called in enumerate(names.tolist()):
        for i in range(s):
            shown[row, called[i]] = emission[row, i]
            for j in range(s):
                moved[row, called[i], called[j]] = transition[row, i, j]
    first_symbol = int(trials.token_sets["inputs"][0])
    states = trials.at_scored(trials.labels) - trials.answers[0]
    return task.trials(moved, shown, names.gather(1, states), trials.at_scored(trials.tokens) - first_symbol)


def rebuilt_recall(task: SymmetricTask, trials: Trials, names: Tensor) -> Trials:
    assert isinstance(task, AssociativeRecall)
    order, stored = trials.tokens[:, 1 : 4 * task.n_pairs : 4], trials.tokens[:, 3 : 4 * task.n_pairs : 4] - task.n_keys
    keys, values = trials.at_scored(trials.tokens), trials.at_scored(trials.labels) - task.n_keys
    value_of_key = torch.zeros(len(trials), task.n_keys, dtype=torch.int64)
    value_of_key.scatter_(1, order, names.gather(1, stored)).scatter_(1, keys, names.gather(1, values))
    return task.trials(order, value_of_key, keys)


REBUILT: tuple[Callable[[SymmetricTask, Trials, Tensor], Trials], ...] = (
    rebuilt_bijection,
    rebuilt_bijection,
    rebuilt_hmm,
    rebuilt_recall,
)


@pytest.mark.parametrize(("task", "rebuilt"), list(zip(TASKS, REBUILT, strict=True)), ids=[str(task) for task in TASKS])
def test_relabeled_sequences_match_the_task_rebuilt_with_renamed_symbols(
    task: SymmetricTask, rebuilt: Callable[[SymmetricTask, Trials, Tensor], Trials]
) -> None:
    trials, names = task.sample(N, seed=2), renamings(task, seed=3)
    after, anew = task.relabeled(trials, names), rebuilt(task, trials, names)
    assert torch.equal(after.tokens, anew.tokens) and torch.equal(after.labels, anew.labels)
    torch.testing.assert_close(after.predictive, anew.predictive, atol=1e-12, rtol=0, equal_nan=True)
    assert all(torch.equal(after.relations[name], relation) for name, relation in anew.relations.items())


TASK = HMM(n_states=3, n_symbols=2, length=5)
SIZES = TransformerConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=1, n_heads=3, d_model=15, d_mlp=7)


def model(change: Callable[[Transformer], None]) -> HookedModel:
    module = Transformer(replace(SIZES, tied=False), seed=0)
    with torch.no_grad():
        change(module)
    return HookedModel(module, name="planted", task=TASK)


def says_nothing(module: Transformer) -> None:
    module.unembed.weight.zero_()


def prefers_a_name(module: Transformer) -> None:
    """One position vector everywhere, drowning the rest, that is read as the first answer."""
    module.unembed.weight.zero_()
    module.pos_embed.weight[:] = 50 * torch.ones(15)
    module.unembed.weight[TASK.d_vocab - 3] = 0.2


def test_a_model_that_says_nothing_cares_for_no_name() -> None:
    found = relabeling_invariance(model(says_nothing), n=61)
    assert found.verdict == "invariant" and float(found.prediction_change) == 0 and found.n == 61
    assert abs(float(found.kl_difference_bits)) < 1e-9 and float(found.kl_before_bits) > 0.1
    np.testing.assert_allclose(found.kl_before_bits_by_sequence, found.kl_after_bits_by_sequence, atol=1e-6)
    assert float(found.sequence_correlation) == pytest.approx(1, abs=1e-4)


def test_a_preference_for_a_name_cancels_in_the_mean_and_not_sequence_by_sequence() -> None:
    found = relabeling_invariance(model(prefers_a_name), n=151)
    lo, hi = found.kl_difference_bits.ends
    assert lo < 0 < hi and found.verdict in ("invariant on average only", "undecided")
    assert (
        float(found.kl_difference_size_bits) > 3 * abs(float(found.kl_difference_bits))
        and float(found.prediction_change) > 0.3
    )
    assert float(found.prediction_change.baseline(STUCK).value) == pytest.approx(
        float(found.prediction_change), abs=1e-5
    ), "it is stuck"
    assert float(found.kl_difference_bits.baseline(STUCK).value) == pytest.approx(
        float(found.kl_difference_bits), abs=1e-5
    )


@pytest.mark.parametrize(
    ("mean", "size", "expected"),
    [
        ((-0.5, 0.5), (0.1, 0.9), "invariant"),
        ((-0.5, 0.5), (1.1, 1.9), "invariant on average only"),
        ((-0.5, 0.5), (0.9, 1.1), "undecided"),
        ((-1.5, 0.5), (0.1, 0.9), "undecided"),
        ((1.1, 1.5), (1.1, 1.9), "not invariant"),
        ((-1.5, -1.1), (1.1, 1.9), "not invariant"),
        ((0.1, 0.5), (0.1, 0.9), "undecided"),  # significant, and within the bound
        ((1e-4, 0.5), (0.1, 0.9), "invariant"),  # 0 lies outside by rounding alone
        ((-0.5, 0.5), (np.nan, np.nan), "undecided"),
        ((np.nan, np.nan), (0.1, 0.9), "undecided"),
        ((0.0, 0.0), (0.0, 0.0), "invariant"),
    ],
)
def test_the_verdict_follows_its_rule(mean: tuple[float, float], size: tuple[float, float], expected: str) -> None:
    assert verdict(mean, size, 1.0) == expected


def test_the_bound_is_half_of_the_models_own_kl_or_a_hundredth_of_the_uniform_one() -> None:
    found = relabeling_invariance(model(says_nothing), n=31)
    assert found.bound_bits == pytest.approx(0.01 * float(found.kl_before_bits), rel=1e-4), (
        "it is the uniform prediction"
    )
    rng = np.random.default_rng(0)
    accurate = pair(rng, own_kl=4e-5, change=lambda kl: kl)
    assert accurate.bound_bits == pytest.approx(0.5 * float(accurate.kl_before_bits))


def pair(rng: np.random.Generator, *, own_kl: float, change: Callable[[np.ndarray], np.ndarray]) -> RelabelingReport:
    """Two passes of an accurate model: skewed KL of mean `own_kl`, and the same KL changed by the renaming."""
    n, positions, answers = 211, 7, 3
    before = own_kl * rng.lognormal(-0.5, 1.0, size=(n, 1)) * np.ones(positions)
    exact = rng.dirichlet(np.ones(answers), size=(n, positions))
    first, second, stuck = (
        Scored(kl_bits=kl, entropy_error_bits=kl, answers=exact) for kl in (before, change(before), before + 0.3)
    )
    return relabeling_report(first, second, stuck, uniform_kl_bits=0.4, seed=1)


def test_verdicts_do_not_depend_on_the_size_of_a_small_kl() -> None:
    """A floor of 0.001 bits called each of these invariant: thirty times the KL of the model itself."""
    for own_kl in (4e-5, 4e-4, 4e-3):
        rng = np.random.default_rng(3)
        sign = np.where(rng.random((211, 1)) < 0.5, 1.0, -1.0)
        noise = 1 + 0.1 * rng.normal(size=(211, 1))
        planted: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "invariant": lambda kl, noise=noise: kl * noise,
            "not invariant": lambda kl, noise=noise: 3 * kl * noise,  # renaming triples the error
            "invariant on average only": lambda kl, sign=sign: kl + 0.9 * sign * kl.mean(),  # prefers some names
        }
        for verdict_of_it, change in planted.items():
            found = pair(np.random.default_rng(5), own_kl=own_kl, change=change)
            assert found.verdict == verdict_of_it, (own_kl, found.headlines())


def test_refusals() -> None:
    module = Transformer(replace(SIZES, d_vocab=3, n_ctx=13), seed=0)
    with pytest.raises(TaskMismatch, match="cannot be renamed without changing the task"):
        relabeling_invariance(HookedModel(module, task=Mess3()), n=5)
    with pytest.raises(InvalidArgument, match="at least 2"):
        relabeling_invariance(model(says_nothing), n=1)


@pytest.mark.parametrize("n", [40, 200])
def test_a_diagnosis_shows_only_the_renamed_sequences_anew(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own pass is the one under the first names; the report is that of the whole test on its first block."""
    most = min(n, Relabeling().n)
    subject, known = model(prefers_a_name), relabeling_invariance(model(prefers_a_name), n=most)
    labels = list[tuple[str, int]]()
    further = Relabeling.further

    def counted(test: Relabeling, task: WindTunnel, run: Run, seed: int) -> Iterator[Further]:
        for each in further(test, task, run, seed):
            labels.append((each.label, len(each.trials)))
            yield each

    monkeypatch.setattr(Relabeling, "further", counted)
    found = diagnose(subject, n=n, n_untrained=0)["relabeling"]
    assert isinstance(found, RelabelingReport) and labels == [("hypotheses renamed", most)]
    np.testing.assert_allclose(float(found.kl_difference_size_bits), float(known.kl_difference_size_bits), rtol=1e-4)
    np.testing.assert_allclose(found.kl_difference_bits.ends, known.kl_difference_bits.ends, rtol=1e-4)
    assert found.bound_bits == pytest.approx(known.bound_bits, rel=1e-6), "of the same sequences, of which n is more"
