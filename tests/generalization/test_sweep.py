"""Sweeps: the same tokens under other ids, the exact posterior alone or beside a model, one error for a wrong key."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, TaskMismatch, UnknownName
from bayesgeom.core.text import number_text
from bayesgeom.generalization import sweeps
from bayesgeom.generalization.sweeps import SHORTCUT, in_ids, known_ids, sweep, varied_task
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.stats.information import entropy_bits
from bayesgeom.tasks.base import derived_seed
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.evidence import LabeledEvidence
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.in_context import InContext
from bayesgeom.tasks.sticky_markov import StickyMarkov

TASK = HMM(n_states=2, n_symbols=3, length=7)
SIZES = TransformerConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=1, n_heads=3, d_model=15, d_mlp=7)


def small() -> HookedModel:
    return HookedModel(Transformer(SIZES, seed=0), name="small", task=TASK)


def test_a_higher_floor_is_the_same_tokens_under_other_ids() -> None:
    noisy = replace(TASK, floor=0.1)
    (there, inverse), trials = known_ids(noisy, TASK), noisy.sample(5, seed=0)
    rendered = in_ids(trials, there)
    own, known = noisy.token_labels(), TASK.token_labels()
    for before, after in zip(trials.tokens.flatten().tolist(), rendered.tokens.flatten().tolist(), strict=True):
        assert own[before] == known[after]
    assert torch.equal(rendered.answers, TASK.sample(1, seed=0).answers)
    back = in_ids(rendered, inverse)
    assert all(torch.equal(getattr(back, name), getattr(trials, name)) for name in ("tokens", "answers", "labels"))
    baselines = noisy.baseline_predictives(in_ids(rendered, inverse))
    torch.testing.assert_close(baselines["likelihood_only"], noisy.baseline_predictives(trials)["likelihood_only"])


def test_what_a_vocabulary_lacks_is_named() -> None:
    with pytest.raises(TaskMismatch, match=r"uses tokens that .* lacks: 0\.03, 0\.04\."):
        known_ids(replace(TASK, floor=0.03), TASK)


def test_fewer_values_are_the_first_of_more() -> None:
    few, many = Bijection(n_values=5, n_pairs=3), Bijection(n_values=11, n_pairs=7)
    rendered = in_ids(few.sample(3, seed=0), known_ids(few, many)[0])
    assert rendered.answers.tolist() == [11, 12, 13, 14, 15] and int(rendered.tokens.max()) < 16


def test_the_model_is_scored_as_it_is_on_its_own_task() -> None:
    model = small()
    found = sweep(TASK, "floor", [0.05, 0.15], model, n=17)
    seen = model.run(TASK.stream(17, seed=derived_seed(0, 0))).behavior
    assert float(found.kl_bits[0]) == pytest.approx(seen.kl_bits.mean(), rel=1e-5) and found.trained_value == "0.05"
    np.testing.assert_allclose(found.model_entropy_bits[0], seen.model_entropy_bits.mean(axis=0), rtol=1e-5)
    low, high = found.kl_bits.ends
    assert (low <= found.kl_bits.value).all() and (found.kl_bits.value <= high).all() and found.kl_bits.n == 17
    assert found.notes == ("", "") and "0.05 (trained)" in found.table()
    for own in (found.kl_bits, found.entropy_mae_bits):
        value, lo, hi = (number_text(one) for one in (own[1], *own[1].ends))
        assert f"{value} [{lo} … {hi}]" in found.table()


def test_a_value_without_tokens_has_the_exact_posterior_alone_and_says_why() -> None:
    found = sweep(TASK, "floor", [0.03, 0.05], small(), n=7)
    assert "0.03, 0.04" in found.notes[0] and found.notes[0] in found.table() and found.notes[1] == ""
    assert np.isnan(found.kl_bits.value[0]) and np.isnan(found.model_tokens.value[0])
    assert np.isfinite(found.exact_tokens.value).all()
    with pytest.raises(TaskMismatch, match=r"small cannot be run at any value of floor; at 0.01"):
        sweep(TASK, "floor", [0.01, 0.02], small(), n=7)
    with pytest.raises(TaskMismatch, match="positions for"):
        sweep(TASK, "length", [40], small(), n=7)


def test_without_a_model_the_exact_posterior_stands_alone() -> None:
    task = StickyMarkov(n_states=3, length=11)
    found = sweep(task, "noise", [0.0, 0.3, 1.0], n=31)
    for place, noise in enumerate((0.0, 0.3, 1.0)):
        trials = replace(task, noise=noise).stream(31, seed=derived_seed(0, 0))
        exact = torch.cat([entropy_bits(block.predictive) for block in trials]).mean(dim=0)
        np.testing.assert_allclose(found.exact_entropy_bits[place], exact.numpy(), rtol=1e-5)
    assert np.isnan(found.kl_bits.value).all() and found.trained_value == ""
    assert (np.diff(found.exact_floor_bits) > 0).all() and found.exact_floor_bits[2] == pytest.approx(np.log2(3))
    assert float(found.exact_tokens[2]) == 1, "nothing is learned from pure noise"
    assert found.kl_bits.baseline(SHORTCUT).value[2] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("symbols", "widest"), [(2.0, 4), (6.0, 6), (np.nan, 10), (None, 10)])
def test_window_observers_are_those_of_calibration(
    symbols: float | None, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to four symbols, and the one that decides for the model's memory; that of ten without a model (None)."""
    task = HMM(n_states=3, n_symbols=2, length=13, floor=0.01, stay=0.95)
    sizes = replace(SIZES, d_vocab=task.d_vocab, n_ctx=task.n_pos)
    model = None if symbols is None else HookedModel(Transformer(sizes, seed=0), name="small", task=task)
    measured = sweeps.equivalent_window
    monkeypatch.setattr(sweeps, "equivalent_window", lambda *a, **k: replace(measured(*a, **k), symbols=symbols))
    found = sweep(task, "stay", [0.95, 0.9], model, n=29)
    for at, stay in enumerate((0.95, 0.9)):
        own = replace(task, stay=stay)
        (trials,) = own.stream(29, seed=derived_seed(0, 0))
        known = {
            start: predicted_behavior(trials, own.window_predictives(trials, widest, start))
            for start in ("uniform", "stationary")
        }
        best = min(known, key=lambda start: known[start].kl_bits.mean())
        assert found.shortcuts[at] == f"window_{widest}_{best}"
        kl, error = (float(each.baseline(SHORTCUT).value[at]) for each in (found.kl_bits, found.entropy_mae_bits))
        assert kl == pytest.approx(known[best].kl_bits.mean(), rel=1e-4) and kl > 1e-4
        gap = np.abs(known[best].model_entropy_bits - known[best].exact_entropy_bits)
        assert error == pytest.approx(gap.mean(), rel=1e-3)


def test_lengths_may_vary_too() -> None:
    found = sweep(StickyMarkov(n_states=3), "length", [3, 7], n=5)
    assert found.exact_entropy_bits.shape == (2, 7) and np.isnan(found.exact_entropy_bits[0, 3:]).all()
    found.plot()


@pytest.mark.parametrize(
    ("vary", "value", "message"),
    [
        ("flor", 0.1, r"has no parameter 'flor' to vary. It has: floor, grid, length, n_states, n_symbols"),
        ("floor", "high", "floor must be float, got 'high'"),
        ("length", 2.5, "length must be int, got 2.5"),
        ("length", True, "length must be int, got True"),
        ("stay", "long", r"stay must be float \| None, got 'long'"),
        ("floor", 0.6, "exceeds a sum of 1"),
    ],
)
def test_what_cannot_be_varied(vary: str, value: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        sweep(TASK, vary, [value], n=5)


def test_a_parameter_that_is_none_by_default_takes_its_annotated_type() -> None:
    assert TASK.stay is None and varied_task(TASK, "stay", 0.5) == replace(TASK, stay=0.5)
    assert sweep(TASK, "stay", [None, 0.5], n=5).values == ("None", "0.5")


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        ("hm", [0.1], r"no task named 'hm'"),
        (HMM, [0.1], "got the class HMM"),
        (TASK, [], "must be a list with at least one value"),
    ],
)
def test_what_is_no_sweep(task: Any, values: Any, message: str) -> None:
    unchecked = inspect.unwrap(sweep)  # as without shape checks, which would refuse first
    with pytest.raises((InvalidArgument, UnknownName), match=message):
        unchecked(task, "floor", values, n=5)


def test_tasks_in_words_vary_by_their_own_and_the_inner_tasks_parameters() -> None:
    assert varied_task(LabeledEvidence(), "reliability", 0.7) == LabeledEvidence(reliability=0.7)
    inner = varied_task(InContext(task=TASK), "floor", 0.1)
    assert inner == InContext(task=replace(TASK, floor=0.1))
    with pytest.raises(InvalidArgument, match="pass a model"):
        sweep(LabeledEvidence(), "reliability", [0.7], n=5)
