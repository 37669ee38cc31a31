"""The rule, case by case, and what is not evidence: identities, functions of position, direct paths."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import MLP_OUT, RESID_POST, RESID_PRE
from bayesgeom.interventions._evidence import Erasure
from bayesgeom.interventions.design import MATCHED, RANDOM, Design
from bayesgeom.interventions.report import INDIRECT_KL, KL, OUTSIDE
from bayesgeom.interventions.run import intervene
from bayesgeom.interventions.verdicts import LEAST_SEQUENCES, Effect, Evidence, Obstacle, Reach, verdict_of
from bayesgeom.report.estimate import UNTRAINED
from bayesgeom.report.storage import parts_of
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import InterventionSite, Subspace
from bayesgeom.tasks.bijection import Bijection
from tests.interventions.worlds import N_ANSWERS, TASK, answer_table, checked, coordinates, lively, planted_model

FEW = Design(n_random=3, n_matched=2, n_control=5, n_untrained=0, n_fit=101)
ERASED, LEFT = (Erasure(before=0.9, after=after, permuted=0.01) for after in (-0.02, 0.4))
USED = Evidence(
    kind="swap",
    effects={"movement": (Effect(0.6, 0.5, 0.7), 0.1, 0.4)},
    is_matched=True,
    n=64,
    n_random=20,
    n_matched=20,
    erasure=LEFT,
    removal=Effect(0.3, 0.2, 0.4),
    removal_ceiling=2.0,
    own_kl=0.01,
    is_identified=True,
    is_readout=False,
    reach=Reach(outside_share=0.5, share_of_ceiling=0.6, untrained_share=0.2),
)
IDLE = replace(
    USED,
    effects={"movement": (Effect(0.0, -0.1, 0.1), 0.1, 0.4)},
    erasure=ERASED,
    removal=Effect(0.001, -0.003, 0.004),
)


def reaching(**changes: float) -> Evidence:
    """The evidence of use with another reach."""
    return replace(USED, reach=replace(USED.reach, **changes))


CASES = {
    "used": (USED, "used"),
    "random reach": (replace(USED, effects={"movement": (Effect(0.6, 0.5, 0.7), 0.55, 0.4)}), "undecided"),
    "matched reach": (replace(USED, effects={"movement": (Effect(0.6, 0.5, 0.7), 0.1, 0.55)}), "undecided"),
    "away from the donor": (replace(USED, effects={"movement": (Effect(-0.6, -0.7, -0.5), -0.9, -0.9)}), "undecided"),
    "one effect of two": (
        replace(USED, effects={**USED.effects, "answer shift": (Effect(1.0, 0.5, 1.5), 0.7, 0.1)}),
        "undecided",
    ),
    "not matched": (replace(USED, is_matched=False), "undecided"),
    "few random controls": (replace(USED, n_random=19), "undecided"),
    "few matched controls": (replace(USED, n_matched=19), "undecided"),
    "few sequences": (replace(USED, n=15), "undecided"),
    "little is read": (replace(USED, removal_ceiling=0.004), "undecided"),
    "nothing is decodable": (
        replace(USED, erasure=Erasure(before=0.005, after=0.0, permuted=0.0), erasing=USED.removal),
        "undecided",
    ),
    "nothing to remove": (replace(IDLE, erasure=Erasure(before=0.005, after=0.0, permuted=0.0)), "undecided"),
    "hardly decodable": (replace(IDLE, erasure=Erasure(before=0.089, after=-0.02, permuted=-0.01)), "undecided"),
    "below the floor above shuffled values": (
        replace(IDLE, erasure=Erasure(before=0.119, after=-0.02, permuted=0.02)),
        "undecided",
    ),
    "above the floor": (replace(IDLE, erasure=Erasure(before=0.121, after=-0.02, permuted=0.02)), "not used"),
    "used, hardly decodable": (replace(USED, erasure=Erasure(before=0.089, after=-0.02, permuted=-0.01)), "used"),
    "hardly decodable, not a bit changes": (
        replace(IDLE, erasure=Erasure(before=0.05, after=0.0, permuted=0.0), removal=Effect(0.0, 0.0, 0.0)),
        "undecided",
    ),
    "one control counted once": (replace(USED, n_matched=1), "undecided"),
    "not a bit changes": (replace(IDLE, removal=Effect(0.0, 0.0, 0.0), own_kl=0.0, removal_ceiling=0.0), "not used"),
    "removal alone": (replace(USED, kind="remove"), "undecided"),
    "no interval": (replace(USED, effects={"movement": (Effect(0.6, np.nan, np.nan), 0.1, 0.4)}), "undecided"),
    "not used": (IDLE, "not used"),
    "not used on removal": (replace(IDLE, kind="remove"), "not used"),
    "still decodable": (replace(IDLE, erasure=LEFT), "undecided"),
    "never measured": (replace(IDLE, erasure=None), "undecided"),
    "read-out": (replace(IDLE, is_readout=True), "undecided"),
    "beyond its own KL": (replace(IDLE, removal=Effect(0.001, -0.003, 0.006)), "undecided"),
    "below its own KL": (replace(IDLE, removal=Effect(-0.001, -0.006, 0.003)), "undecided"),
    "beyond the ceiling": (replace(IDLE, removal_ceiling=0.3), "undecided"),
    "kept": (replace(IDLE, kind="keep"), "undecided"),
    "position": (replace(USED, is_identified=False), "not identified"),
    "identity": (reaching(outside_share=1e-9), "by construction"),
    "as untrained": (reaching(share_of_ceiling=0.995, untrained_share=0.999), "by construction"),
    "untrained unknown": (reaching(share_of_ceiling=0.999, untrained_share=np.nan), "used"),
    "untrained alone": (reaching(untrained_share=0.999), "used"),
    "untrained as far": (replace(reaching(untrained_share=0.6), least_share_of_ceiling=0.5), "undecided"),
    "untrained less far": (replace(reaching(untrained_share=0.4), least_share_of_ceiling=0.5), "used"),
    "no untrained network": (reaching(share_of_ceiling=0.995, untrained_share=np.nan), "used"),
    "a part of an identity": (replace(USED, whole=(reaching(outside_share=1e-9).reach,)), "by construction"),
    "a part of what untrained networks reach": (
        replace(USED, whole=(USED.reach, reaching(share_of_ceiling=0.995, untrained_share=0.999).reach)),
        "by construction",
    ),
    "a part of what is no identity": (replace(USED, whole=(USED.reach, USED.reach)), "used"),
    "direct path alone": (replace(USED, indirect=(Effect(0.0, -0.01, 0.01), -1.0, -1.0)), "undecided"),
    "indirectly, too": (replace(USED, indirect=(Effect(0.1, 0.05, 0.2), 0.04, 0.03)), "used"),
    "indirectly as random": (replace(USED, indirect=(Effect(0.1, 0.05, 0.2), 0.06, 0.03)), "undecided"),
    "indirectly as matched": (replace(USED, indirect=(Effect(0.1, 0.05, 0.2), 0.04, 0.06)), "undecided"),
    "erasing costs": (replace(USED, erasing=Effect(0.3, 0.2, 0.4)), "used"),
    "erasing costs nothing": (replace(USED, erasing=Effect(0.001, 0.0005, 0.0015)), "undecided"),
    "erasing, no interval": (replace(USED, erasing=Effect(0.3, np.nan, np.nan)), "undecided"),
    "erased to the noise": (replace(IDLE, erasure=Erasure(before=0.9, after=-0.01, permuted=-0.02)), "not used"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case: str) -> None:
    evidence, verdict = CASES[case]
    found = verdict_of(evidence)
    assert found.verdict == verdict and (found.against_use == "") == (verdict == "used")
    assert (found.against_disuse != "") == (verdict in ("used", "undecided") and evidence.n >= LEAST_SEQUENCES)


@pytest.mark.parametrize("fit", ["leace:belief", "leace:belief,given=position", "trained_swap:2,belief"])
def test_an_edit_of_a_part_of_an_identity_is_an_identity(fit: str) -> None:
    """All that tokens differ in is affine in the belief, so donor and recipient differ only inside its subspace."""
    model = planted_model()
    code = answer_table()
    with torch.no_grad():
        model.module.embed.weight[:, :N_ANSWERS] = 8 * (code - code.mean(dim=0)).float()
        model.module.embed.weight[:, N_ANSWERS:] = 1.0
    report = intervene(model, subspace=fit, kind=FEW, sites=InterventionSite(RESID_PRE, (0,)), n=17)
    assert report.verdict_by_layer[0] == "by construction"
    is_whole = fit == "leace:belief"
    assert (report.share.value[OUTSIDE, 0] < 1e-9) == is_whole
    assert report.against_use[0] == (Obstacle.INSIDE if is_whole else Obstacle.INSIDE_WHOLE)


def test_the_embedding_frame_of_layer_0_is_an_identity() -> None:
    """Pairs share keys and positions, so donor and recipient differ in the embeddings of the answers alone."""
    report = intervene(lively(), subspace=fits.frame(), kind=replace(FEW, n_untrained=1), n=11)
    outside = report.share.value[OUTSIDE]
    assert report.verdict_by_layer[0] == "by construction" and outside[0] < 1e-9 < outside[1]
    np.testing.assert_allclose(report.movement.value[0, 0], 1, atol=1e-4)
    np.testing.assert_allclose(report.movement.baseline(UNTRAINED).value[0, 0], 1, atol=1e-4)


def test_the_entropy_of_keys_that_never_repeat_is_not_identified() -> None:
    report = intervene(lively(), Bijection(n_values=11, n_pairs=5), fits.leace("entropy"), kind=FEW, n=11)
    assert set(report.verdict_by_layer) <= {"not identified"} and report.where.endswith("; donors: independent")
    assert set(report.against_use) == {Obstacle.POSITION}


def test_entropy_is_swapped_between_sequences_that_differ_in_it() -> None:
    """Pairs share keys, and with them the entropy; sequences that have nothing to do with one another do not."""
    place = InterventionSite(RESID_PRE, (1,))
    for quantity, donors in (("entropy", "independent"), ("belief", "paired")):
        report = intervene(lively(), subspace=fits.covariance(quantity), kind=FEW, sites=place, n=5)
        assert report.where.endswith(f"; donors: {donors}")


def test_without_the_direct_path_nothing_is_left_at_the_end_of_the_stream() -> None:
    report = intervene(lively(), subspace=fits.covariance("belief"), kind=FEW, sites=InterventionSite(RESID_POST), n=11)
    assert abs(report.change_bits.value[INDIRECT_KL, 1, 0]) < 1e-6 < 1e-3 < abs(report.kl_increase_bits.value[1, 0])
    assert abs(report.indirect_movement.value[1, 0]) < 1e-6
    assert abs(report.change_bits.value[INDIRECT_KL, 0, 0]) > 1e-4, "a later block reads what was edited"
    most = np.stack([own.value[:, 0] for own in report.indirect_movement.baselines])
    assert (abs(most[:, 1]) < 1e-6).all(), "controls lose their direct paths, too"
    assert (most[:, 0] != [report.movement.baseline(name).bar("higher")[0, 0] for name in (RANDOM, MATCHED)]).all()


def test_the_indirect_effect_is_that_of_plain_hooks() -> None:
    """The edit is subtracted again from what enters the final norm."""
    from bayesgeom.stats.behavior import answer_log_probabilities
    from bayesgeom.stats.information import kl_bits

    model, fit, place = lively(), fits.covariance("belief"), InterventionSite(MLP_OUT, (0,))
    job = checked(model, fit, kind=FEW, place=place, n=7)
    ((originals, donors),) = job.pairs(7)
    assert donors is not None
    projector = job.fit.fitted(job.sample(), (0,))[0].projector().T.float()
    point, last, kept = model.point(MLP_OUT, 0), model.point(RESID_POST, 1), list[torch.Tensor]()
    mask = originals.scored[0][:, None]
    with torch.no_grad():
        unedited = model.logits(originals)
        for trials in (originals, donors):
            handle = point.register_forward_hook(lambda m, i, out: kept.append(out))
            model.logits(trials)
            handle.remove()
        change = mask * ((kept[1] - kept[0]) @ projector)
        handles = [
            point.register_forward_hook(lambda m, i, out: out + change),
            last.register_forward_hook(lambda m, i, out: out - change),
        ]
        edited = model.logits(originals)
        for handle in handles:
            handle.remove()
    exact = originals.at_scored(originals.predictive)
    after, before = (kl_bits(exact, answer_log_probabilities(logits, originals)[0]) for logits in (edited, unedited))
    assert job.report().change_bits.value[INDIRECT_KL, 0, 0] == pytest.approx(float((after - before).mean()), abs=1e-5)


def test_scored_after_the_edit_only_what_is_carried_on_counts() -> None:
    """At the end of the stream nothing is carried on; one layer before, attention carries it."""
    place = InterventionSite(RESID_POST, positions="scored", score_after=True)
    report = intervene(lively(), subspace=fits.covariance("belief"), kind=FEW, sites=place, n=11)
    assert report.bands == ("all later", "next scored", "second next") and report.where.startswith(
        "resid_post, one scored"
    )
    assert np.isnan(report.effect("answer shift").value).all(), "the donor's later tokens were not seen"
    np.testing.assert_allclose(report.kl_increase_bits.value[1], 0, atol=1e-7)
    np.testing.assert_allclose(report.change_bits.ceiling[KL, 1], 0, atol=1e-7)
    assert abs(report.change_bits.ceiling[KL, 0, 0]) > 1e-3
    np.testing.assert_allclose(report.movement.ceiling[0], 1, atol=1e-6)


def test_what_is_held_fixed_is_not_moved() -> None:
    """With `given`, a swap leaves what linearly predicts the position where it was."""
    fit = fits.covariance("entropy", given=("position",))
    job = checked(lively(), fit, kind=FEW, place=InterventionSite(RESID_PRE, (1,)), n=7)
    sample = job.sample()
    own, confounds, points = fit.fitted(sample, (1,))[1], sample.confounds(("position",)), sample.points(1)
    along = (points @ own.reads)[:, 0]
    centered = confounds - confounds.mean(dim=0)
    assert float((centered * (along - along.mean())[:, None]).mean(dim=0).abs().max()) < 1e-6 * float(along.std())
    values = sample.values(fit.about.quantity)[:, 0]
    assert abs(np.corrcoef(along, values)[0, 1]) > 0.05


def test_a_layer_in_which_nothing_is_left_is_undecided_with_the_reason() -> None:
    """At layer 0 each query is its key plus its position: erasing position and answer removes all that varies."""
    fit = fits.leace("entropy", given=("position", "answer"))
    report = intervene(lively(), subspace=fit, kind=FEW, n=17)
    assert report.verdict_by_layer[0] == "undecided" and report.against_use[0] == Obstacle.NOTHING_LEFT
    assert report.layers == [1] and report.rank.tolist() == [0, 1] and report.against_use[1] != Obstacle.NOTHING_LEFT
    assert np.isnan(report.movement.value[0]).all() and np.isfinite(report.movement.value[1]).all()
    (line,) = (own for own in report.headlines() if own.why == Obstacle.NOTHING_LEFT)
    assert line.verdict == "undecided" and np.isnan(line.value) and Obstacle.NOTHING_LEFT in report.table()


def test_where_no_layer_has_anything_left_the_request_is_refused() -> None:
    """Seven tokens vary in six dimensions: two of positions, by sampling, and four of answers take all of them."""
    job = checked(planted_model(), fits.leace("belief", given=("position", "answer")), kind=FEW, n=17)
    with pytest.raises(
        InvalidArgument, match=r"exists in no layer: in layers 0, 1, erasing position and answer \(6 of 13"
    ):
        job.report()
    with pytest.raises(InvalidArgument, match=r"layer 1: erasing position .* Choose other layers, or hold fewer"):
        job.fit.fitted(job.sample(), (1,))


def test_training_finds_a_subspace_that_moves_the_answer() -> None:
    """The used coordinates are five of thirteen: trained directions do better than most drawn at random."""
    design = replace(FEW, n_control=23)
    fit = fits.trained_swap(4, "belief", steps=15)
    report = intervene(planted_model(), subspace=fit, kind=design, sites=InterventionSite(RESID_PRE, (1,)), n=23)
    assert report.movement.value[1, 0] > 0.9 > report.movement.baseline(RANDOM).bar("higher")[1, 0]


def test_seeds_make_the_same_numbers() -> None:
    unused = Subspace("unused", coordinates(6))
    reports = (intervene(planted_model(), subspace=unused, kind=FEW, n=5, seed=3) for _ in range(2))
    first, second = (parts_of(report)[1] for report in reports)
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)
    assert TASK.n_pairs == 7


def test_what_is_by_construction_is_so_without_the_direct_path_and_in_every_effect() -> None:
    """Layer 0 was by construction, and "indirect, layer 0" with the same value beat its baselines."""
    report = intervene(lively(), subspace=fits.frame(), kind=FEW, n=11)
    assert report.verdict_by_layer[0] == "by construction"
    indirect = {own.label[:17]: own for own in report.headlines() if own.metric == "indirect_movement"}
    assert indirect["indirect, layer 0"].ruling == "by construction" and not indirect["indirect, layer 0"].verdict
    assert indirect["indirect, layer 1"].verdict and not indirect["indirect, layer 1"].ruling
    assert all(own.caveat == "untrained networks are not measured without the direct path" for own in indirect.values())
    everywhere = replace(report, verdict_by_layer=("by construction",) * 2)
    rows = [own for own in everywhere.headlines() if own.has_baseline and own.metric != "r2"]
    assert len(rows) > 4 and all(own.ruling == "by construction" for own in rows)


def test_headlines_are_of_a_layer_that_is_no_identity() -> None:
    report = intervene(lively(), subspace=fits.frame(), kind=FEW, n=11)
    assert report.verdict_by_layer == ("by construction", "undecided") and report.strongest() == 1
    used = replace(report, verdict_by_layer=("used", "undecided"))
    assert used.strongest() == 0
    assert replace(report, verdict_by_layer=("by construction",) * 2).strongest() == 0
