"""The one path of edited passes: conditions in several layers against plain hooks, in any order and units."""

import numpy as np
import pytest
import torch

from bayesgeom.ablations.engine import edited_logits
from bayesgeom.core.edits import Edit, InSubspace
from bayesgeom.core.errors import NonFinite
from bayesgeom.core.run import RESID_POST, RESID_PRE, Z
from bayesgeom.interventions.engine import EditPlan, PairReference, Score, score_pairs
from bayesgeom.models.replay.hooked import PlainLoop, edited_pass
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import entropy_bits, kl_bits
from bayesgeom.stats.subspace import random_subspaces
from tests.interventions.worlds import TASK, lively

NONE = PairReference({}, None)


def shifted(site: object, layer: int, width: int, size: float = 2.0) -> Edit:
    basis = random_subspaces(width, 1, draws=1, seed=layer)[0].float()
    return InSubspace(site=site, layer=layer, kind="add", basis=basis, shift=torch.tensor([size]))  # type: ignore[arg-type]


def conditions() -> list[tuple[Edit, ...]]:
    width = lively().spec.d_model
    first, last = shifted(RESID_PRE, 0, width), shifted(RESID_POST, 1, width)
    return [(last,), (first, last), (first,), (shifted(RESID_PRE, 1, width), last), (last,)]


def test_every_condition_has_its_own_logits_whatever_runs_together() -> None:
    model, trials = lively(), TASK.sample(5, seed=1)
    replayer = model.replayer()
    found = dict[int, torch.Tensor]()
    for chosen, logits in edited_logits(replayer, replayer.baseline(trials), conditions(), NONE):
        found |= dict(zip(chosen, logits, strict=True))
    assert sorted(found) == list(range(5))
    for index, variant in enumerate(conditions()):
        with torch.no_grad():
            torch.testing.assert_close(found[index], edited_pass(model, trials, variant, NONE), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("max_units", [3, 11])
def test_sums_of_units_are_those_of_plain_passes(max_units: int) -> None:
    model, (trials, donors) = lively(), TASK.sample_pair(11, seed=2)
    plan = EditPlan(
        replayer=PlainLoop(model), spec=model.spec, conditions=lambda _: conditions(), means={}, max_units=max_units
    )
    totals = score_pairs(iter([(trials, donors)]), plan, 11)
    unit = np.arange(11) // (4 if max_units == 3 else 1)
    np.testing.assert_array_equal(totals.counts, np.bincount(unit))
    exact = trials.at_scored(trials.predictive)
    for index, variant in enumerate([(), *conditions()]):
        with torch.no_grad():
            log_answers, _ = answer_log_probabilities(edited_pass(model, trials, variant, NONE), trials)
        own = totals.baseline if index == 0 else totals.conditions[:, index - 1]
        expected = {
            Score.KL: kl_bits(exact, log_answers),
            Score.DONOR_KL: kl_bits(donors.at_scored(donors.predictive), log_answers),
            Score.ENTROPY_ERROR: (entropy_bits(log_answers.exp()) - entropy_bits(exact)).abs(),
        }
        for metric, values in expected.items():
            sums = np.bincount(unit, weights=values.mean(dim=1).numpy())
            np.testing.assert_allclose(own[:, metric, 0], sums, atol=1e-5)


def test_the_watch_sees_every_condition_once_a_batch() -> None:
    model, seen = lively(), list[int]()
    plan = EditPlan(
        replayer=model.replayer(),
        spec=model.spec,
        conditions=lambda _: conditions(),
        means={},
        watch=lambda index, log_answers: seen.append(index),
    )
    score_pairs(iter([(TASK.sample(5, seed=3), None)]), plan, 5)
    assert seen[0] == 0 and sorted(seen) == list(range(6))


def test_an_edit_that_breaks_the_logits_is_named() -> None:
    model = lively()
    broken = shifted(RESID_PRE, 1, model.spec.d_model, size=float("inf"))
    plan = EditPlan(replayer=model.replayer(), spec=model.spec, conditions=lambda _: [(broken,)], means={})
    with pytest.raises(NonFinite, match="under: add subspace at L1 resid_pre"):
        score_pairs(iter([(TASK.sample(3, seed=3), None)]), plan, 3)


def test_a_site_without_a_replay_is_kept_and_edited_by_hooks() -> None:
    from bayesgeom.core.run import V
    from bayesgeom.models.resolve import as_model
    from tests.interventions.test_huggingface import llama

    model = as_model(llama())
    trials = TASK.sample(3, seed=4)
    loop = PlainLoop(model, also=(V,))
    baseline = loop.baseline(trials)
    assert baseline.stored[V, 1].shape[:2] == trials.tokens.shape and (Z, 0) in baseline.stored
    edit = shifted(V, 1, baseline.stored[V, 1].flatten(2).shape[-1])
    ((_, (edited,)),) = edited_logits(loop, baseline, [(edit,)], NONE)
    assert float((edited - baseline.logits).abs().max()) > 1e-3
