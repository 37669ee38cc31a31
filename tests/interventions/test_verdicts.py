"""The rule, case by case, and what is not evidence: identities, functions of position, direct paths."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import MLP_OUT, RESID_POST, RESID_PRE
from bayesgeom.core.verdict import Reason
from bayesgeom.interventions._evidence import Erasure
from bayesgeom.interventions.design import ERASED, MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST, Design
from bayesgeom.interventions.run import intervene
from bayesgeom.interventions.summary import intervention_report
from bayesgeom.interventions.verdicts import (
    LEAST_SEQUENCES,
    Evidence,
    Obstacle,
    Survival,
    survival_of,
    verdict_of,
)
from bayesgeom.report.estimate import WHOLE, Baseline, Estimate, of_untrained
from bayesgeom.selftest.planted import SITE, PlantedModel, PlantedNetwork, uses_entropy
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.tasks.bijection import Bijection
from tests.interventions.worlds import N_ANSWERS, answer_table, checked, lively, planted_model

FEW = Design(n_random=3, n_matched=2, n_control=5, n_untrained=0, n_fit=101)
NETWORKS = of_untrained([0.01, 0.02, 0.03])  # 0.02 ± 0.0497
COMPLETE, LEFT = (Erasure(before=0.9, after=after, permuted=0.01) for after in (-0.02, 0.4))


def moved(
    value: float,
    low: float,
    high: float,
    *,
    random: float = 0.1,
    matched: float = 0.4,
    whole: float = 1.0,
    untrained: tuple[Baseline, ...] = NETWORKS,
) -> Estimate:
    """A movement with its controls, and a ceiling whose interval has a half width of 0.2."""
    levels = (
        *untrained,
        Baseline.of("chance", RANDOM, random / 2, low=0.0, high=random),
        Baseline.of("chance", MATCHED, matched / 2, low=0.0, high=matched),
        Baseline.of("ceiling", WHOLE, whole, low=whole - 0.2, high=whole + 0.2),
    )
    return Estimate.of(value, (low, high), n=64, baselines=levels)


def later(
    value: float,
    low: float,
    high: float,
    random: float = 0.04,
    matched: float = 0.03,
    untrained: tuple[Baseline, ...] = NETWORKS,
) -> Estimate:
    """A movement without the direct path, and the largest of controls without theirs."""
    levels = (Baseline.of("chance", RANDOM_MOST, random), Baseline.of("chance", MATCHED_MOST, matched))
    return Estimate.of(value, (low, high), n=64, baselines=(*levels, *untrained))


def removed(value: float, low: float, high: float, *, whole: float = 2.0, random: float = 0.05) -> Estimate:
    """A KL increase on removal, with that of the whole activation and the median of random erasures."""
    levels = (Baseline.of("chance", ERASED, random, low=0.0, high=1.0), Baseline.of("ceiling", WHOLE, whole))
    return Estimate.of(value, (low, high), n=64, baselines=levels)


CAUSAL = Evidence(
    kind="swap",
    movement=moved(0.6, 0.5, 0.7),
    indirect=Estimate.of(np.nan),
    removal=removed(0.3, 0.2, 0.4),
    is_matched=True,
    n=64,
    n_random=20,
    n_matched=20,
    erasure=LEFT,
    is_identified=True,
    is_readout=False,
    outside_share=0.5,
)
IDLE = replace(CAUSAL, movement=moved(0.0, -0.1, 0.1), erasure=COMPLETE, removal=removed(0.001, -0.003, 0.004))


CASES: dict[str, tuple[Evidence, str, str]] = {  # with the obstacle that a case names
    "causal": (CAUSAL, "causal", ""),
    "random reach": (replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, random=0.55)), "undecided", Obstacle.RANDOM_REACHES),
    "matched reach": (
        replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, matched=0.55)),
        "undecided",
        Obstacle.MATCHED_REACHES,
    ),
    "away from the donor": (
        replace(CAUSAL, movement=moved(-0.6, -0.7, -0.5, random=-0.9, matched=-0.9)),
        "undecided",
        Obstacle.NOT_ABOVE_ZERO,
    ),
    "not matched": (replace(CAUSAL, is_matched=False), "undecided", Obstacle.UNMATCHED),
    "few random controls": (replace(CAUSAL, n_random=19), "undecided", Obstacle.FEW_RANDOM),
    "few matched controls": (replace(CAUSAL, n_matched=19), "undecided", Obstacle.FEW_MATCHED),
    "few sequences": (replace(CAUSAL, n=15), "undecided", Obstacle.FEW_SEQUENCES),
    "the whole may not move it": (
        replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, whole=0.19)),
        "undecided",
        Obstacle.WHOLE_UNDEFINED,
    ),
    "a tenth of the whole": (replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, whole=5.9)), "causal", ""),
    "less than a tenth of the whole": (
        replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, whole=6.1)),
        "undecided",
        Obstacle.SMALL,
    ),
    "no interval": (replace(CAUSAL, movement=moved(0.6, np.nan, np.nan)), "undecided", Obstacle.NOT_ABOVE_ZERO),
    "removal alone": (replace(CAUSAL, kind="remove"), "undecided", Obstacle.ONLY_SWAP),
    "read-out moves": (replace(CAUSAL, is_readout=True), "undecided", Obstacle.READ_OUT),
    "hardly decodable, but moves": (
        replace(CAUSAL, erasure=Erasure(before=0.089, after=-0.02, permuted=-0.01)),
        "causal",
        "",
    ),
    "nothing is decodable": (
        replace(CAUSAL, erasure=Erasure(before=0.005, after=0.0, permuted=0.0)),
        "undecided",
        Obstacle.NOT_DECODABLE,
    ),
    "direct path alone": (
        replace(CAUSAL, indirect=later(0.0, -0.01, 0.01, -1.0, -1.0)),
        "undecided",
        Obstacle.DIRECT_PATH,
    ),
    "indirectly, too": (replace(CAUSAL, indirect=later(0.1, 0.08, 0.2)), "causal", ""),
    "indirectly as random": (
        replace(CAUSAL, indirect=later(0.1, 0.08, 0.2, 0.09, 0.03)),
        "undecided",
        Obstacle.RANDOM_LATER,
    ),
    "indirectly as matched": (
        replace(CAUSAL, indirect=later(0.1, 0.08, 0.2, 0.04, 0.09)),
        "undecided",
        Obstacle.MATCHED_LATER,
    ),
    "as untrained networks": (
        replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, untrained=of_untrained([0.2, 0.3, 0.35]))),
        "undecided",
        Obstacle.UNTRAINED,
    ),
    "above all three of them, but not above their bound": (
        replace(CAUSAL, indirect=later(0.07, 0.06, 0.08)),
        "undecided",
        Obstacle.UNTRAINED_LATER,
    ),
    "as untrained networks by the direct path alone": (
        replace(
            CAUSAL,
            movement=moved(0.6, 0.5, 0.7, untrained=of_untrained([0.6, 0.7, 0.8])),
            indirect=later(0.1, 0.08, 0.2),
        ),
        "causal",
        "",
    ),
    "covariance, and LEACE": (
        replace(CAUSAL, indirect=later(0.1, 0.08, 0.2), by_leace=later(0.1, 0.08, 0.2)),
        "causal",
        "",
    ),
    "covariance alone": (
        replace(CAUSAL, indirect=later(0.1, 0.08, 0.2), by_leace=later(0.07, 0.06, 0.08)),
        "undecided",
        Obstacle.LEACE_LATER,
    ),
    "below zero in untrained networks": (
        replace(CAUSAL, indirect=later(0.0, -0.01, 0.01, -1.0, -1.0, of_untrained([-0.5, -0.51, -0.52]))),
        "undecided",
        Obstacle.DIRECT_PATH,
    ),
    "both, not compared": (
        replace(IDLE, movement=moved(0.6, 0.5, 0.7, untrained=())),
        "undecided",
        Obstacle.BOTH,
    ),
    "both": (
        replace(IDLE, movement=CAUSAL.movement),
        "undecided",
        Obstacle.BOTH,
    ),
    "inert": (IDLE, "inert", ""),
    "inert on removal": (replace(IDLE, kind="remove"), "inert", ""),
    "not a bit changes": (replace(IDLE, removal=removed(0.0, 0.0, 0.0, whole=0.0, random=0.0)), "inert", ""),
    "erased to the noise": (replace(IDLE, erasure=Erasure(before=0.9, after=-0.01, permuted=-0.02)), "inert", ""),
    "above the floor": (replace(IDLE, erasure=Erasure(before=0.121, after=-0.02, permuted=0.02)), "inert", ""),
    "hardly decodable": (
        replace(IDLE, erasure=Erasure(before=0.089, after=-0.02, permuted=-0.01)),
        "undecided",
        Obstacle.HARDLY_DECODABLE,
    ),
    "below the floor above shuffled values": (
        replace(IDLE, erasure=Erasure(before=0.119, after=-0.02, permuted=0.02)),
        "undecided",
        Obstacle.HARDLY_DECODABLE,
    ),
    "still decodable": (replace(IDLE, erasure=LEFT), "undecided", Obstacle.STILL_DECODABLE),
    "read-out": (replace(IDLE, is_readout=True), "undecided", Obstacle.READ_OUT),
    "beyond the ceiling": (
        replace(IDLE, removal=removed(0.001, -0.003, 0.004, whole=0.3)),
        "undecided",
        Obstacle.KL_OF_CEILING,
    ),
    "beyond random erasures": (
        replace(IDLE, removal=removed(0.001, -0.003, 0.004, random=0.003)),
        "undecided",
        Obstacle.KL_OF_RANDOM,
    ),
    "improves the answer": (replace(IDLE, removal=removed(-0.02, -0.03, -0.01)), "inert", ""),
    "removal without an interval": (
        replace(IDLE, removal=removed(0.001, np.nan, np.nan)),
        "undecided",
        Obstacle.KL_OF_CEILING,
    ),
    "kept": (replace(IDLE, kind="keep"), "undecided", Obstacle.ONLY_REMOVAL),
    "position": (replace(CAUSAL, is_identified=False), "not identified", Obstacle.POSITION),
    "identity": (replace(CAUSAL, outside_share=1e-9), "by construction", Obstacle.INSIDE),
    "an identity up to sampling": (replace(CAUSAL, outside_share=0.009), "by construction", Obstacle.INSIDE),
    "little outside": (replace(CAUSAL, outside_share=0.011), "causal", ""),
    "untrained unknown": (
        replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, untrained=())),
        "moves the answer",
        Obstacle.UNCOMPARED,
    ),
    "one untrained network": (
        replace(CAUSAL, indirect=later(0.1, 0.08, 0.2, untrained=of_untrained([0.01]))),
        "moves the answer",
        Obstacle.UNCOMPARED,
    ),
    "not fitted in an untrained network": (
        replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, untrained=of_untrained([0.01, np.nan, 0.02]))),
        "moves the answer",
        Obstacle.UNCOMPARED,
    ),
    "a trained swap, judged by LEACE": (
        replace(CAUSAL, indirect=later(0.1, 0.08, 0.2, untrained=()), by_leace=later(0.1, 0.08, 0.2)),
        "causal",
        "",
    ),
    "LEACE in no untrained network": (
        replace(CAUSAL, indirect=later(0.1, 0.08, 0.2), by_leace=later(0.1, 0.08, 0.2, untrained=())),
        "moves the answer",
        Obstacle.UNCOMPARED,
    ),
    "untrained unknown, and few controls": (
        replace(CAUSAL, movement=moved(0.6, 0.5, 0.7, untrained=()), n_random=19),
        "undecided",
        Obstacle.FEW_RANDOM,
    ),
    "a part of an identity": (replace(CAUSAL, whole_outside=(1e-9,)), "by construction", Obstacle.INSIDE_WHOLE),
    "a part of what is no identity": (replace(CAUSAL, whole_outside=(0.5, 0.2)), "causal", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case: str) -> None:
    evidence, verdict, obstacle = CASES[case]
    found = verdict_of(evidence)
    assert found.verdict == verdict and (found.against_causal == "") == (verdict == "causal")
    is_open = verdict in ("causal", "moves the answer", "undecided") and evidence.n >= LEAST_SEQUENCES
    assert (found.against_inert != "") == is_open
    assert not obstacle or obstacle in (found.against_causal, found.against_inert)
    assert bool(obstacle) == (verdict not in ("causal", "inert"))


MOVED = moved(0.6, 0.5, 0.7)


@pytest.mark.parametrize(
    ("given", "by_code", "survival"),
    [
        (None, None, Survival.SURVIVES),
        (Estimate.of(0.5, (0.4, 0.6)), Estimate.of(0.2, (0.1, 0.29)), Survival.SURVIVES),
        (Estimate.of(0.5, (0.4, 0.6)), Estimate.of(0.2, (0.1, 0.31)), Survival.OPEN),
        (None, Estimate.of(0.31, (np.nan, np.nan)), Survival.OPEN),
        (Estimate.of(0.5, (0.05, 0.6)), None, Survival.GIVEN),
        (Estimate.of(0.09, (0.08, 0.12)), None, Survival.GIVEN),
        (Estimate.of(np.nan, (np.nan, np.nan)), None, Survival.GIVEN),
        (None, Estimate.of(0.31, (0.2, 0.4)), Survival.CATEGORY),
        (None, Estimate.of(0.31, (-0.1, 0.7)), Survival.OPEN),
    ],
)
def test_what_a_causal_verdict_goes_with(given: Estimate | None, by_code: Estimate | None, survival: Survival) -> None:
    assert survival_of(MOVED, given, "category", by_code) == survival


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
    assert (report.outside_share.value[0] < 1e-9) == is_whole
    assert report.against_causal[0] == (Obstacle.INSIDE if is_whole else Obstacle.INSIDE_WHOLE)


def test_the_embedding_frame_of_layer_0_is_an_identity() -> None:
    """Pairs share keys and positions, so donor and recipient differ in the embeddings of the answers alone."""
    report = intervene(lively(), subspace=fits.frame(), kind=FEW, n=11)
    outside = report.outside_share.value
    assert report.verdict_by_layer[0] == "by construction" and outside[0] < 1e-9 < outside[1]
    np.testing.assert_allclose(report.movement.value[0, 0], 1, atol=1e-4)


def test_the_entropy_of_keys_that_never_repeat_is_not_identified() -> None:
    report = intervene(lively(), Bijection(n_values=11, n_pairs=5), fits.leace("entropy"), kind=FEW, n=11)
    assert set(report.verdict_by_layer) <= {"not identified"} and report.where.endswith("; donors: independent")
    assert set(report.against_causal) == {Obstacle.POSITION}


def test_entropy_is_swapped_between_sequences_that_differ_in_it() -> None:
    """Pairs share keys, and with them the entropy; sequences that have nothing to do with one another do not."""
    place = InterventionSite(RESID_PRE, (1,))
    for quantity, donors in (("entropy", "independent"), ("belief", "paired")):
        report = intervene(lively(), subspace=fits.covariance(quantity), kind=FEW, sites=place, n=5)
        assert report.where.endswith(f"; donors: {donors}")


def test_without_the_direct_path_nothing_is_left_at_the_end_of_the_stream() -> None:
    report = intervene(lively(), subspace=fits.covariance("belief"), kind=FEW, sites=InterventionSite(RESID_POST), n=11)
    assert abs(report.indirect_kl_increase_bits.value[1, 0]) < 1e-6 < 1e-3 < abs(report.kl_increase_bits.value[1, 0])
    assert abs(report.indirect_movement.value[1, 0]) < 1e-6
    assert abs(report.indirect_kl_increase_bits.value[0, 0]) > 1e-4, "a later block reads what was edited"
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
    increase = intervention_report(job).indirect_kl_increase_bits
    assert increase.value[0, 0] == pytest.approx(float((after - before).mean()), abs=1e-5)


def test_scored_after_the_edit_only_what_is_carried_on_counts() -> None:
    """At the end of the stream nothing is carried on; one layer before, attention carries it."""
    place = InterventionSite(RESID_POST, positions="scored", score_after=True)
    report = intervene(lively(), subspace=fits.covariance("belief"), kind=FEW, sites=place, n=11)
    assert report.bands == ("all later", "next scored", "second next") and report.where.startswith(
        "resid_post, one scored"
    )
    assert np.isnan(report.answer_shift_bits.value).all(), "the donor's later tokens were not seen"
    np.testing.assert_allclose(report.kl_increase_bits.value[1], 0, atol=1e-7)
    np.testing.assert_allclose(report.kl_increase_bits.ceiling[1], 0, atol=1e-7)
    assert abs(report.kl_increase_bits.ceiling[0, 0]) > 1e-3
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
    assert report.verdict_by_layer[0] == "undecided" and report.against_causal[0] == Obstacle.NOTHING_LEFT
    assert report.layers == [1] and report.rank.tolist() == [0, 1] and report.against_causal[1] != Obstacle.NOTHING_LEFT
    assert np.isnan(report.movement.value[0]).all() and np.isfinite(report.movement.value[1]).all()
    (line,) = (own for own in report.headlines() if own.why == Obstacle.NOTHING_LEFT)
    assert line.verdict == "undecided" and np.isnan(line.value) and Obstacle.NOTHING_LEFT in report.table()


def test_where_no_layer_has_anything_left_the_request_is_refused() -> None:
    """Seven tokens vary in six dimensions: two of positions, by sampling, and four of answers take all of them."""
    job = checked(planted_model(), fits.leace("belief", given=("position", "answer")), kind=FEW, n=17)
    with pytest.raises(
        InvalidArgument, match=r"exists in no layer: in layers 0, 1, erasing position and answer \(6 of 13"
    ):
        intervention_report(job)
    with pytest.raises(InvalidArgument, match=r"layer 1: erasing position .* Choose other layers, or hold fewer"):
        job.fit.fitted(job.sample(), (1,))


def test_training_finds_a_subspace_that_moves_the_answer() -> None:
    """The used coordinates are five of thirteen: trained directions do better than most drawn at random."""
    design = replace(FEW, n_control=23)
    fit = fits.trained_swap(4, "belief", steps=15)
    report = intervene(planted_model(), subspace=fit, kind=design, sites=InterventionSite(RESID_PRE, (1,)), n=23)
    assert report.movement.value[1, 0] > 0.9 > report.movement.baseline(RANDOM).bar("higher")[1, 0]


def test_what_is_by_construction_is_so_without_the_direct_path_and_in_every_effect() -> None:
    """Layer 0 was by construction, and "indirect, layer 0" with the same value beat its baselines."""
    report = intervene(lively(), subspace=fits.frame(), kind=FEW, n=11)
    assert report.verdict_by_layer[0] == "by construction"
    first, second = (own for own in report.headlines() if own.metric == "indirect_movement")
    assert (first.label[:7], first.verdict, second.label[:7]) == ("layer 0", "by construction", "layer 1")
    assert second.verdict in ("yes", "no", "undecided")
    everywhere = replace(report, verdict_by_layer=("by construction",) * 2)
    rows = [own for own in everywhere.headlines() if own.levels and own.metric != "r2_after"]
    assert len(rows) > 4 and all(own.verdict == "by construction" for own in rows)


def test_headlines_are_of_a_layer_that_is_no_identity() -> None:
    report = intervene(lively(), subspace=fits.frame(), kind=FEW, n=11)
    assert report.verdict_by_layer == ("by construction", "undecided") and report.strongest() == 1
    causal = replace(report, verdict_by_layer=("causal", "undecided"))
    assert causal.strongest() == 0
    assert replace(report, verdict_by_layer=("by construction",) * 2).strongest() == 0


def deep() -> PlantedModel:
    """A network that uses entropy at `resid_pre` of layers 1 to 5: four idle blocks stand before the one that reads."""
    small = uses_entropy()
    first, last = small.module.d_hidden
    deep = PlantedNetwork(small.spec.d_vocab, small.spec.d_model, (first, 1, 1, 1, 1, last))
    for block in deep.blocks[1:-1]:
        torch.nn.init.zeros_(block.W_out.weight)
    planted = {name.replace("blocks.1.", "blocks.5."): own for name, own in small.module.state_dict().items()}
    deep.load_state_dict(deep.state_dict() | planted)
    return PlantedModel(deep, name="deep", task=small.task)


def test_the_headline_is_causal_only_with_an_interval_that_allows_for_the_choice_of_the_layer() -> None:
    """One of five layers was called causal by its own interval, next to a wider one that reached a control."""
    model, design = deep(), Design(n_control=11, n_untrained=2, n_fit=257)
    few, many = (
        intervene(model, None, fits.covariance("entropy"), kind=design, sites=InterventionSite(SITE, range(1, 6)), n=n)
        for n in (16, 64)
    )
    assert few.verdict_by_layer[1:] == many.verdict_by_layer[1:] == ("causal",) * 5
    (first, second, *_), line = few.headlines(), many.headlines()[0]
    assert (first.verdict, first.why.split("; ")[0]) == ("undecided", str(Reason.CHOICE_IGNORED))
    assert (second.verdict, line.verdict, line.chosen_of) == ("causal", "causal", 5)
    assert line.low < many.movement.ends[0][1, 0]
    reached = Baseline.of("chance", RANDOM, 0.0, low=0.0, high=(line.low + many.movement.ends[0][1, 0]) / 2)
    reached = reached.broadcast(many.movement.value.shape)
    assert reached.high is not None
    reached.high[2:] = 0.0  # in the other layers no random subspace moves it
    levels = (reached, many.movement.baseline(WHOLE))
    between = replace(many, movement=replace(many.movement, baselines=levels))
    assert between.headlines()[0].why.split("; ")[0] == Obstacle.RANDOM_REACHES
    assert [own.verdict for own in map(between.among_layers, range(1, 6))] == ["undecided"] * 5, "of five layers"
    without = {name: replace(many.estimate(name), baselines=()) for name in ("indirect_movement", "leace_movement")}
    older = replace(many, **without)
    assert older.headlines()[0].verdict == "moves the answer" and older.headlines()[0].why == Obstacle.UNCOMPARED


def test_headlines_are_of_a_layer_that_was_edited_where_no_ceiling_is_known() -> None:
    """Layer 0 was named, with the number of layer 1."""
    design = replace(FEW, kind="remove")
    report = intervene(lively(), subspace=fits.frame(), kind=design, sites=InterventionSite(RESID_PRE, (1,)), n=11)
    increase = report.kl_increase_bits
    unknown = replace(report, kl_increase_bits=replace(increase, baselines=increase.compared))
    assert np.isnan(unknown.share_of_ceiling).all()
    assert unknown.layers == [1] and unknown.strongest() == 1
    assert "layer 1" in unknown.headlines()[0].label
