"""Erasure from a layer on: complete in every layer, against plain hooks, and where a copy is read or is not."""

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.core.run import ATTN_OUT, RESID_POST, RESID_PRE, concatenate
from bayesgeom.core.verdict import Reason
from bayesgeom.interventions.design import ERASED
from bayesgeom.interventions.engine import PairReference
from bayesgeom.interventions.onwards import Scrubber, erase_onwards, targets_of
from bayesgeom.interventions.verdicts import onwards_verdict
from bayesgeom.report.estimate import WHOLE, Baseline, Estimate
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.subspaces.quantity import PosteriorQuantity
from bayesgeom.tasks.base import derived_seed
from tests.interventions.worlds import TASK, lively, planted_model
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures

NONE = PairReference({}, None)


def test_the_next_and_the_last_quantity_stand_at_the_other_positions() -> None:
    trials, entropy = TASK.sample(5, seed=0), PosteriorQuantity("entropy")
    _, others = targets_of(trials, entropy)
    exact, positions = entropy.exact(trials)[..., 0], trials.scored_positions()[0].tolist()
    elsewhere = [p for p in range(trials.tokens.shape[1]) if p not in positions]
    found = others.reshape(5, len(elsewhere), 2)
    for column, p in enumerate(elsewhere):
        upcoming, former = (
            ([q for q in positions if q > p] or [None])[0],
            ([q for q in positions if q < p] or [None])[-1],
        )
        for part, q in ((0, upcoming), (1, former)):
            expected = exact.mean().expand(5) if q is None else exact[:, positions.index(q)]
            torch.testing.assert_close(found[:, column, part], expected)


@pytest.mark.parametrize("site", [RESID_PRE, RESID_POST], ids=lambda site: site.name)
def test_erasure_is_complete_in_every_layer_and_costs_what_plain_hooks_say(site: object) -> None:
    model = lively()
    report = erase_onwards(model, quantity="belief", sites=InterventionSite(site, (0, 1)), n=11)  # type: ignore[arg-type]
    assert report.r2_after.value.max() < 0.05 and report.layers == [0, 1]
    scrubber = Scrubber(model=model, site=site, quantity=PosteriorQuantity("belief"), oblique=True)  # type: ignore[arg-type]
    stream = list(TASK.stream(768 + 256 + 128, seed=derived_seed(0, 13)))
    scrubbed = scrubber.from_layer(concatenate(stream), 0, seed=0)
    assert list(scrubbed.edits) == [0, 1]
    scored = next(TASK.stream(11, seed=derived_seed(0, 12)))
    with torch.no_grad():
        before = model.logits(scored)
        handles = [
            model.point(site, at).register_forward_hook(lambda m, i, out, edit=edit: edit.applied(out, NONE))  # type: ignore[arg-type]
            for at, edit in scrubbed.edits.items()
        ]
        after = model.logits(scored)
        for handle in handles:
            handle.remove()
    exact = scored.at_scored(scored.predictive)
    kl = [float(kl_bits(exact, answer_log_probabilities(logits, scored)[0]).mean()) for logits in (before, after)]
    assert float(report.unedited_kl_bits) == pytest.approx(kl[0], abs=1e-5)
    assert report.kl_increase_bits.value[0] == pytest.approx(kl[1] - kl[0], abs=1e-4)


def test_what_the_answer_is_made_of_cannot_be_erased_for_free() -> None:
    report = erase_onwards(planted_model(), quantity="belief", n=23)
    assert report.kl_increase_bits.value[1] > 0.3 and report.verdict_by_layer == ("", "undecided")
    assert report.kl_increase_bits.ceiling[1] == pytest.approx(report.kl_increase_bits.value[1], rel=0.2)
    first = report.headlines()[0]
    assert (first.metric, first.verdict, first.value) == (
        "kl_increase_bits",
        "undecided",
        report.kl_increase_bits.value[1],
    )
    assert report.plot().data and report.table()


def test_matched_erasers_hold_as_much_variance_as_the_erased_subspace() -> None:
    trials = concatenate(list(TASK.stream(200, seed=3)))
    scrubber = Scrubber(
        model=lively(), site=RESID_POST, quantity=PosteriorQuantity("entropy"), oblique=False, n_fit=128, n_read=32
    )
    scrubbed = scrubber.from_layer(trials, 0, seed=0)
    sets, is_matched = scrubbed.matched(draws=3, seed=0)
    assert is_matched and len(sets) == 3
    for layer, edit in scrubbed.edits.items():
        scored = edit.roles[0]
        assert scored is not None
        wanted = scored.eraser.variance_share(scored.covariance)
        for own in sets:
            role = own[layer].roles[0]
            assert role is not None
            basis = role.eraser.basis
            share = float((basis * (scored.covariance @ basis)).sum() / scored.covariance.trace())
            assert share == pytest.approx(wanted, rel=0.06)
            assert float((basis.T @ scored.eraser.basis).abs().max()) < 1e-9, "drawn outside the erased subspace"


def test_a_withheld_interval_keeps_its_reason() -> None:
    increase = erase_onwards(planted_model(), quantity="belief", n=2).kl_increase_bits
    assert np.isnan(increase.ends[0]).all() and increase.reason_at((1,)) == Reason.FEW


@pytest.mark.parametrize(
    ("increase", "excess", "holds", "text"),
    [
        ((-0.001, 0.002), -0.01, (True, True), "inert"),
        ((-0.009, -0.002), -0.01, (True, True), "inert"),
        ((-0.001, 0.002), 0.02, (True, True), "undecided"),
        ((-0.001, 0.006), -0.01, (True, True), "undecided"),
        ((-0.001, 0.021), -0.01, (True, True), "undecided"),
        ((-0.001, 0.002), -0.01, (True, False), "not identified"),
        ((-0.001, 0.002), -0.01, (False, True), "undecided"),
        ((np.nan, np.nan), -0.01, (True, True), "undecided"),
    ],
)
def test_the_rule(increase: tuple[float, float], excess: float, holds: tuple[bool, bool], text: str) -> None:
    """`holds`: whether the quantity is clearly decodable before erasure, and whether it is identified."""
    is_decodable, is_identified = holds
    levels = [Baseline.of("chance", ERASED, 0.005), Baseline.of("ceiling", WHOLE, 2.0)]
    own = Estimate.of(sum(increase) / 2, increase, baselines=levels)
    assert onwards_verdict(own, excess=excess, is_decodable=is_decodable, is_identified=is_identified) == text


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not 'attn_out'"):
        erase_onwards(lively(), sites=InterventionSite(ATTN_OUT))
    with pytest.raises(UnknownName, match="named 'surprise'"):
        erase_onwards(lively(), quantity="surprise")
    with pytest.raises(InvalidArgument, match="layers"):
        erase_onwards(lively(), sites=InterventionSite(RESID_PRE, (2,)))
