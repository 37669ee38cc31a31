"""The interventions on planted networks: every control holds, and instruments that skip one condition get it wrong."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from bayesgeom.interventions.design import ARBITRARY, Design
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.interventions.run import intervene
from bayesgeom.interventions.verdicts import UNKNOWN, Obstacle, against_movement
from bayesgeom.report.estimate import with_ceiling
from bayesgeom.selftest.planted import LAYER, SITE, uses_belief, uses_entropy
from bayesgeom.selftest.run import KINDS, NOISES, InterventionControl, intervention_controls, planted_tables
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.subspaces.fits import leace
from bayesgeom.subspaces.quantity import PosteriorQuantity
from bayesgeom.subspaces.trained import TrainedSwap

CONTROLS = {control.label: control for control in intervention_controls()}
ERASERS = [
    f"{kind} ({quantity}): {what}"
    for kind in ("covariance", "LEACE")
    for quantity in ("entropy", "belief")
    for what in ("causal", "a copy that is not read")
]


@cache
def report_of(label: str) -> InterventionReport:
    return CONTROLS[label].report()


@pytest.mark.parametrize("label", CONTROLS)
def test_each_control_holds(label: str) -> None:
    report = report_of(label)
    assert CONTROLS[label].holds(report), report.table()


@pytest.mark.exhaustive
def test_each_planted_kind_has_one_verdict_at_every_noise_level() -> None:
    """An accurate network was never called not used: the margin was half of its own KL."""
    table, *_, responses = planted_tables()
    found = [row[-2:] for row in table.rows]
    assert table.passed and found == [expected for _, _, expected in KINDS for _ in NOISES]
    own_kl = [float(row[2].replace("−", "-")) for row in table.rows]
    assert responses.passed and {row[0] for row in responses.rows} >= {"exact", "forgetful"}
    assert max(own_kl) > 1e4 * min(own_kl), "the networks differ in accuracy by four orders of magnitude"


@pytest.mark.parametrize("quantity", ["entropy", "belief"])
@pytest.mark.parametrize("kind", ["covariance", "LEACE"])
def test_a_control_does_not_hold_of_the_other_network(kind: str, quantity: str) -> None:
    used, copy = (CONTROLS[f"{kind} ({quantity}): {what}"] for what in ("causal", "a copy that is not read"))

    def crossed(control: InterventionControl, other: InterventionControl) -> bool:
        return control.holds(report_of(other.label))

    assert not crossed(used, copy) and not crossed(copy, used)


def test_a_causal_quantity_moves_all_the_way_and_a_copy_not_at_all() -> None:
    for label in ERASERS:
        report, control = report_of(label), CONTROLS[label]
        goal = 1.0 if control.label.endswith(": causal") else 0.0
        movement = report.movement[LAYER, 0]
        low, high = movement.ends
        assert float(movement) == pytest.approx(goal, abs=0.03)
        assert low - 0.01 < goal < high + 0.01


def test_a_causal_entropy_survives_when_the_log_odds_of_the_answers_are_held_fixed() -> None:
    """By symmetry they are uncorrelated with it: log probabilities themselves would take the entropy away."""
    own, given = leace("entropy"), leace("entropy", given=("answer",))
    for fit in (own, given):
        report = InterventionControl(label="", build=uses_entropy, fit=fit, holds=bool).report()
        assert report.verdict_by_layer[LAYER] == "causal"
        assert report.movement.value[LAYER, 0] > 0.8


def test_the_same_training_toward_random_labels_is_a_level_that_a_causal_trained_swap_exceeds() -> None:
    few, site = Design(n_random=2, n_matched=2, n_control=8, n_untrained=0, n_fit=128), InterventionSite(SITE, (LAYER,))
    fit = TrainedSwap(2, PosteriorQuantity.of("belief"), steps=12)
    report = intervene(uses_belief(), None, fit, kind=few, sites=site, n=8)
    movement = report.movement[LAYER, 0]
    level = movement.baseline(ARBITRARY)
    assert abs(level.value) < 0.5 * movement.value and "labels" in report.table()
    reached = replace(movement, baselines=(replace(level, value=np.asarray(2.0)),))
    assert Obstacle.LABELS_REACH in against_movement(with_ceiling(reached, 1.0), UNKNOWN, UNKNOWN)
    other = intervene(uses_belief(), None, leace("belief"), kind=few, sites=site, n=8)
    assert ARBITRARY not in [each.name for each in other.movement.baselines]


def test_random_labels_depend_on_the_donors_token_alone_and_are_answers_of_the_model() -> None:
    model, fit = uses_belief(), TrainedSwap(2, PosteriorQuantity.of("belief"), random_labels=True)
    assert model.task is not None
    design, site = Design(n_fit=16), InterventionSite(SITE, (LAYER,))
    sample = Intervention.of(model, model.task, fit, design=design, place=site, n=8, seed=0).sample()
    donors = model.task.sample(300, seed=3)
    labels, tokens = fit.labels(sample, donors).flatten(0, 1), donors.tokens.flatten()
    by_token = {int(token): label for token, label in zip(tokens, labels, strict=True)}
    torch.testing.assert_close(labels, torch.stack([by_token[int(token)] for token in tokens]))
    points = sample.run.log_answers.flatten(0, 1).double()
    assert all(bool((points == label).all(dim=1).any()) for label in by_token.values())
    assert len(torch.unique(torch.stack(list(by_token.values())), dim=0)) > 10
