"""Interventions on planted models whose used subspace is known; the report against a slow twin; what is refused."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.core.edits import SUBSPACE_KINDS
from bayesgeom.core.errors import BayesGeomError, InvalidArgument, MissingSite, UnknownName
from bayesgeom.core.run import ATTN_OUT, PATTERN, RESID_POST, RESID_PRE, STATE, Site, Trials, Z
from bayesgeom.interventions import run
from bayesgeom.interventions.design import RANDOM, Design
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.interventions.run import fit_subspace, intervene
from bayesgeom.interventions.verdicts import Obstacle
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import Fit, InterventionSite, Subspace, span
from bayesgeom.subspaces.quantity import ENTROPY, PosteriorQuantity, confounds
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.change_point import ChangePoint
from tests.interventions.worlds import (
    N_ANSWERS,
    Echo,
    checked,
    coordinates,
    lively,
    past_type_checks,
    planted_model,
)
from tests.shape_checks import ARE_ON

USED, UNUSED = Subspace("used", coordinates(*range(N_ANSWERS))), Subspace("unused", coordinates(6))
N = 23
FEW = Design(n_random=3, n_matched=2, n_control=5, n_untrained=0, n_fit=101)


@pytest.fixture(scope="module")
def swapped() -> InterventionReport:
    return intervene(planted_model(), subspace=USED, n=N)


def test_a_swap_of_the_used_subspace_gives_the_donors_answer(swapped: InterventionReport) -> None:
    assert swapped.unedited_kl_bits[0] < 1e-5, "the planted model is exact"
    shift, unedited = swapped.answer_shift_bits, swapped.unedited_answer_shift_bits
    np.testing.assert_allclose(shift.value, swapped.answer_shift_bits.ceiling, atol=1e-4)
    assert shift.value[0, 0] + unedited[0] > 0.3 > -0.3 > unedited[0]
    assert shift.baseline(RANDOM).bar("higher").max() < shift.ends[0][:, 0].min()
    # The subspace holds most of the variance, so that every control with as much holds most of it, too, and moves the
    # answer nearly as far: see `test_planted` for "causal".
    assert swapped.verdict_by_layer == ("undecided",) * 2 and swapped.against_causal == (Obstacle.MATCHED_REACHES,) * 2
    np.testing.assert_allclose(swapped.movement.value[:, 0], 1, atol=1e-3)
    assert (swapped.n, list(swapped.rank)) == (N, [5, 5])
    assert swapped.controls_found.tolist() == [20, 20], "19 from the whole site, and the whole complement"


def test_a_whole_complement_that_is_the_only_control_is_counted_once() -> None:
    """Twelve of thirteen dimensions hold nearly all of the variance."""
    most = Subspace("all but one", coordinates(*range(12)))
    report = intervene(planted_model(), subspace=most, n=N, kind=replace(FEW, n_matched=20))
    assert report.controls_found.tolist() == [1, 1] and report.verdict_by_layer == ("undecided", "undecided")


@pytest.mark.parametrize("kind", ["swap", "remove"])
def test_a_direction_that_nothing_reads_costs_nothing_and_shows_nothing(kind: str) -> None:
    report = intervene(planted_model(), subspace=UNUSED, kind=kind, n=N)
    assert np.abs(report.kl_increase_bits.value).max() < 2e-3 < 0.1 < report.kl_increase_bits.ceiling[:, 0].min()
    assert report.verdict_by_layer == ("undecided", "undecided")
    assert report.against_inert == (Obstacle.STILL_DECODABLE,) * 2
    assert report.r2_after.value.min() > 0.99, "the belief lies elsewhere"


def test_the_number_of_sequences_to_fit_on_is_a_keyword_and_replaces_that_of_a_design() -> None:
    few = replace(FEW, kind="remove")
    whole, replaced, default = (
        intervene(lively(), subspace=fits.covariance("belief"), n=N, **given)
        for given in ({"kind": replace(few, n_fit=31)}, {"kind": few, "n_fit": 31}, {"kind": few})
    )
    np.testing.assert_array_equal(replaced.kl_increase_bits.value, whole.kl_increase_bits.value)
    assert not np.array_equal(default.kl_increase_bits.value, whole.kl_increase_bits.value), (
        "101 sequences fit another subspace"
    )
    assert Design.of("keep", n_fit=31) == Design("keep", n_fit=31) and Design.of() == Design()


def test_keeping_the_used_subspace_costs_little_and_removing_it_all() -> None:
    removed, kept = (intervene(planted_model(), subspace=USED, kind=kind, n=N) for kind in ("remove", "keep"))
    assert removed.kl_increase_bits.value[:, 0].min() > 0.3 > 0.05 > kept.kl_increase_bits.value[:, 0].max()
    entropy_r2, belief_r2 = removed.entropy_r2.value, removed.belief_r2.value
    assert np.isnan(removed.answer_shift_bits.value).all() and belief_r2.min() > 0.8
    assert np.isnan(entropy_r2).all(), "the entropy is the same at every position"


@pytest.mark.parametrize("kind", SUBSPACE_KINDS)
def test_every_kind_runs_everywhere(kind: str) -> None:
    for site in (RESID_POST, Z):
        report = intervene(
            lively(), subspace=fits.random(3), kind=replace(FEW, kind=kind), sites=InterventionSite(site, (1,)), n=11
        )
        increase = report.kl_increase_bits.value
        assert np.isnan(increase[0]).all() and np.isfinite(increase[1]).all()
        assert report.layers == [1] and report.verdict_by_layer[0] == ""
        assert np.abs(increase[1]).max() > 1e-5, "something changed"


def answers(logits: Tensor) -> Tensor:
    return logits[..., 11:22].double().softmax(-1)


def kl(logits: Tensor, trials: Trials, at: Trials) -> Tensor:
    return kl_bits(at.at_scored(at.predictive), answer_log_probabilities(logits, trials)[0])


@pytest.mark.parametrize("positions", ["all", "scored"])
@pytest.mark.parametrize("site", [RESID_PRE, ATTN_OUT], ids=lambda site: site.name)
def test_numbers_are_those_of_plain_hooks(site: Site, positions: Literal["all", "scored"]) -> None:
    """Answer shift, KL increase and movement against whole passes with a hook that swaps the component."""
    model, fit, place = lively(), fits.leace("belief"), InterventionSite(site, positions=positions)
    report = intervene(model, subspace=fit, kind=FEW, sites=place, n=13)
    job = checked(model, fit, kind=FEW, place=place, n=13)
    ((originals, donors),) = job.pairs(13)
    assert donors is not None
    thirds = np.array_split(np.arange(7), 3)
    acts = (originals.scored[0] if positions == "scored" else torch.ones(13, dtype=torch.bool))[:, None]
    center = job.sample().run.log_answers.exp().mean(dim=0)
    for layer, subspace in job.fit.fitted(job.sample(), job.layers).items():
        point, projection, kept = model.point(site, layer), subspace.projector().T.float(), []
        with torch.no_grad():
            unedited = model.logits(originals)
            handle = point.register_forward_hook(lambda m, i, out, kept=kept: kept.append(out))
            donated = model.logits(donors)
            handle.remove()
            handle = point.register_forward_hook(
                lambda m, i, x, kept=kept, p=projection: x + acts * ((kept[0] - x) @ p)
            )
            edited = model.logits(originals)
            handle.remove()
        shift = (kl(edited, originals, originals) - kl(edited, originals, donors)).numpy()
        before = (kl(unedited, originals, originals) - kl(unedited, originals, donors)).numpy()
        increase = (kl(edited, originals, originals) - kl(unedited, originals, originals)).numpy()
        for band, at in enumerate([np.arange(7), *thirds]):
            level = report.answer_shift_bits.value[layer, band] + report.unedited_answer_shift_bits[band]
            assert level == pytest.approx(shift[:, at].mean(), abs=1e-5)
            recipient, donor = (answers(logits) - center for logits in (unedited, donated))
            way = donor - recipient * (donor * recipient).sum() / recipient.square().sum()
            moved = answers(edited) - answers(unedited)
            share = (moved * way)[:, at].sum() / way.square()[:, at].sum()
            assert report.movement.value[layer, band] == pytest.approx(float(share), abs=1e-4)
            assert report.kl_increase_bits.value[layer, band] == pytest.approx(increase[:, at].mean(), abs=1e-5)
            change = (shift - before)[:, at].mean()
            assert report.answer_shift_bits.value[layer, band] == pytest.approx(change, abs=1e-5)


def test_more_pairs_begin_with_the_fewer_and_none_is_fitted_on() -> None:
    job = checked(lively(), "frame", n=1, seed=3)
    many = [pair for block in job.pairs(131) for pair in block[0].tokens.tolist()]
    few = [pair for block in job.pairs(7) for pair in block[0].tokens.tolist()]
    assert len(many) == 131 and many[:7] == few
    fitted = {tuple(row) for row in job.sample().run.trials.tokens.tolist()}
    assert len(fitted) > 200 and not fitted & {tuple(row) for row in many}


def test_the_jacobian_finds_the_used_directions() -> None:
    for layer, found in fit_subspace(planted_model(), None, fits.top_jacobian(5)).items():
        inside = float((found.basis[:N_ANSWERS] ** 2).sum()) / 5
        assert inside > 0.8, f"layer {layer}: {inside} of it is where the answer is; chance is {N_ANSWERS / 13}"
    report = intervene(planted_model(), subspace=fits.top_jacobian(5), n=N)
    assert report.movement.ends[0][:, 0].min() > report.movement.baseline(RANDOM).bar("higher")[:, 0].max()


def test_overlap_with_the_embeddings_has_a_chance_level_and_no_interval() -> None:
    inside = intervene(lively(), subspace=fits.frame(), n=N, kind=replace(FEW, kind="remove"))
    np.testing.assert_allclose(inside.embedding_share.value, 1, atol=1e-6, err_msg="the frame lies in itself")
    found = intervene(lively(), subspace=fits.top_jacobian(4), n=N, kind=replace(FEW, kind="remove"))
    share, random = inside.rank[0] / 30, found.embedding_share.baseline(RANDOM).value
    np.testing.assert_allclose(random, share, atol=0.02, err_msg="a random subspace's share is k / d")
    assert found.embedding_share.low is None
    assert "max of 1,000" in found.table() and "max of 1,000" not in inside.table()
    elsewhere = intervene(
        lively(), subspace=fits.random(2), sites=InterventionSite(Z), n=N, kind=replace(FEW, kind="remove")
    )
    assert np.isnan(elsewhere.embedding_share.value).all(), "there are no embeddings at z"


@pytest.mark.parametrize("by", ["readout", "pc1"])
def test_the_entropy_axis_points_toward_entropy(by: fits.AxisKind) -> None:
    model, axis = lively(), fits.entropy_axis(by)
    job = checked(model, axis, kind="remove", place=InterventionSite(RESID_POST), n=1)
    sample = job.sample()
    for layer, found in axis.fitted(sample, (0, 1)).items():
        along = (sample.points(layer) @ found.basis)[:, 0].numpy()
        assert found.rank == 1 and np.corrcoef(along, sample.values(ENTROPY)[:, 0].numpy())[0, 1] > 0
    with pytest.raises(InvalidArgument, match=r"the exact entropy is the same at every scored position"):
        fit_subspace(planted_model(), None, axis)


def test_frames_are_spans_of_what_they_say() -> None:
    model = lively(norm="layernorm")
    block, embed = model.module.blocks[1], model.module.embed.weight.detach()[11:]
    k, v = (w.weight.detach()[10:20] for w in (block.attn.W_K, block.attn.W_V))
    normed = block.ln1(embed).detach()
    o = block.attn.W_O.weight.detach()[:, 10:20]
    expected = {
        "embedding": embed,
        "keys": torch.stack([block.ln1.w.detach() * (k.T @ (k @ e)) for e in normed]),
        "ov": torch.stack([o @ (v @ e) for e in normed]),
    }
    for kind, vectors in expected.items():
        head = None if kind == "embedding" else 1
        found = fit_subspace(model, None, fits.frame(kind, head=head, layer=None if head is None else 1))[0]
        own = span("own", vectors.T)
        assert found.rank == own.rank == (11 if kind == "embedding" else 10)
        torch.testing.assert_close(found.basis @ found.basis.T, own.basis @ own.basis.T, atol=1e-4, rtol=0)


def test_fits_have_names_on_the_command_line() -> None:
    forms = {
        "entropy_axis": fits.entropy_axis(),
        "entropy_axis:pc1": fits.entropy_axis("pc1"),
        "frame": fits.frame(),
        "frame:keys,3": fits.frame("keys", head=3),
        "frame:ov, 0": fits.frame("ov", head=0),
        "decoder:entropy": fits.decoder("entropy"),
        "covariance:entropy": fits.covariance("entropy"),
        "leace:log_odds:3, given=position+answer": fits.leace("log_odds:3", given=("position", "answer")),
        "leace:statistic:mean": fits.leace("statistic:mean"),
        "trained_swap:4,belief": fits.trained_swap(4, "belief"),
        "top_jacobian:16": fits.top_jacobian(16),
        "random:5": fits.random(5),
    }
    for text, fit in forms.items():
        assert fits.fit_from_text(text) == fit
    for text in ("frames", "frame:keys", "random", "random:x", "leace:entropy,held=position"):
        with pytest.raises(UnknownName, match=f"no subspace named '{text}'. There are: covariance:QUANT"):
            fits.fit_from_text(text)
    with pytest.raises(
        UnknownName, match=r"no quantity named 'surprise'\. There are: belief, entropy, log_odds:HYPOTH"
    ):
        fits.fit_from_text("covariance:surprise")
    with pytest.raises(
        UnknownName,
        match=r"no quantity to hold fixed named 'length'\. There are: answer, category, known, position, previous",
    ):
        fits.fit_from_text("covariance:entropy,given=length")


def test_known_marks_the_positions_where_the_posterior_leaves_one_answer() -> None:
    """With returning keys, entropy is nearly this one bit: a swap of entropy may swap nothing else."""
    trials = Bijection(n_values=5, n_pairs=6, repeats=True).sample(200, seed=0)
    known, exact = confounds(trials, ("known",)), trials.at_scored(trials.predictive)
    assert known.shape == (200, trials.n_scored, 1) and set(known.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(known[..., 0] == 1, exact.max(dim=-1).values > 1 - 1e-9)


def test_a_statistic_is_a_quantity_whose_own_value_follows_from_the_answers() -> None:
    trials = Bijection(n_values=5, n_pairs=3).sample(29, seed=0)
    first = trials.predictive[..., 0]
    own = PosteriorQuantity.of("statistic:first_answer")
    stated = replace(trials, statistics={"first_answer": first})
    assert torch.equal(own.exact(stated)[..., 0], trials.at_scored(first)) and own.label == "first answer"
    other = torch.randn(3, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(dim=2)
    torch.testing.assert_close(own.own(stated)(other)[..., 0], other[..., 0].exp(), atol=0.02, rtol=0)


def test_where_answers_do_not_tell_a_statistic_only_its_movement_is_withheld() -> None:
    task, fit = ChangePoint(n_symbols=3, length=12), fits.covariance("statistic:run_length")
    with pytest.raises(InvalidArgument, match=r"statistic:run_length: the answers do not tell it.*Use the belief, or"):
        PosteriorQuantity.of("statistic:run_length").own(task.sample(100, seed=0))
    place = InterventionSite(layers=(0,))
    model = HookedModel(lively(d_vocab=3, n_ctx=12, n_layers=1).module, name="tiny", task=task)
    report = intervene(model, subspace=fit, kind=FEW, sites=place, n=N)
    assert np.isnan(report.movement.value).all() and report.against_causal == (Obstacle.NOT_TOLD,)
    assert np.isfinite(report.answer_shift_bits.value).all() and report.headlines()


class Alone(Echo):  # type: ignore[misc]
    """A task that draws no pairs."""

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        raise NotImplementedError


def unknown_kind() -> object:
    return past_type_checks(Design(), kind="twist").__post_init__()


REFUSED: dict[str, tuple[Callable[[], object], type[BayesGeomError], str]] = {
    "layer": (
        lambda: intervene(lively(), sites=InterventionSite(RESID_PRE, (0, 2))),
        InvalidArgument,
        r"layers \[0, 2\].*0 … 1",
    ),
    "site": (
        lambda: intervene(lively(), sites=InterventionSite(STATE)),
        MissingSite,
        "site 'state', which tiny does not provide",
    ),
    "pattern": (lambda: intervene(lively(), sites=InterventionSite(PATTERN)), InvalidArgument, "not 'pattern'"),
    "width": (lambda: intervene(lively(), subspace=USED), InvalidArgument, "'used' is 13 wide; .* are 30 wide"),
    "rank": (lambda: intervene(lively(), subspace=fits.top_jacobian(31)), InvalidArgument, "r = 31: .* 1 … 30"),
    "name": (lambda: intervene(lively(), subspace="leac:belief"), UnknownName, "subspace named 'leac:belief'"),
    "n": (lambda: intervene(lively(), n=0), InvalidArgument, "positive integer, got 0"),
    "kind": (unknown_kind, InvalidArgument, "'swap' or 'remove' .*got 'twist'"),
    "pairs": (
        lambda: intervene(planted_model(), Alone(), USED, kind=Design(donors="paired")),
        InvalidArgument,
        "has no pairs. Use donors='independent' or 'auto'",
    ),
    "n_fit": (lambda: intervene(lively(), n_fit=1), InvalidArgument, "n_fit at least 2"),
    "float": (lambda: intervene(lively(), n_fit=8.5), InvalidArgument, "n_fit must be int, got 8.5"),  # type: ignore[call-overload]
    "controls": (lambda: Design(n_random=0), InvalidArgument, "at least 1"),
    "hypothesis": (lambda: intervene(lively(), subspace=fits.leace("log_odds:11")), InvalidArgument, "0 … 10"),
    "statistic": (
        lambda: intervene(lively(), subspace=fits.leace("statistic:mean")),
        UnknownName,
        "statistic of this task named 'mean'",
    ),
    "positions": (
        lambda: InterventionSite(positions="odd"),  # type: ignore[arg-type]
        InvalidArgument,
        "positions must be .*got 'odd'",
    ),
    "score after": (
        lambda: intervene(planted_model(), subspace=USED, sites=InterventionSite(score_after=True)),
        InvalidArgument,
        "at least 5 scored positions; this one has 3",
    ),
    "frame at z": (lambda: intervene(lively(), sites=InterventionSite(Z)), InvalidArgument, "other coordinates"),
    "frame head": (lambda: intervene(lively(), subspace=fits.frame("keys", head=3)), InvalidArgument, "heads 0 … 2"),
    "no head": (lambda: intervene(lively(), subspace=fits.frame("ov")), InvalidArgument, "require head"),
    "zero span": (lambda: span("none", torch.zeros(7, 3)), InvalidArgument, "all zero"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_before_anything_runs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, kind, message = REFUSED[what]
    if ARE_ON and what in ("float", "positions"):
        pytest.skip("checks of annotations would refuse first")
    monkeypatch.setattr(run, "intervention_report", lambda job: pytest.fail("it ran"))
    with pytest.raises(kind, match=message):
        ask()


def test_one_pair_gives_numbers_and_no_verdict() -> None:
    report = intervene(lively(), subspace=fits.random(3), kind=FEW, sites=InterventionSite(RESID_POST), n=1)
    shift = report.answer_shift_bits
    assert np.isfinite(shift.value).all() and np.isnan(shift.ends[0]).all()
    assert set(report.verdict_by_layer) == {"undecided"} and set(report.against_causal) == {Obstacle.FEW_SEQUENCES}
    assert report.table() and report.plot().data


@pytest.mark.parametrize("fit", [fits.trained_swap(2, "belief"), fits.top_jacobian(2)])
def test_fits_with_gradients_refuse_weights_without_them_before_anything_runs(fit: Fit) -> None:
    with torch.inference_mode():
        copy = HookedModel(deepcopy(lively().module), name="copy")
    task, passes = lively().task, list[int]()
    copy.module.embed.register_forward_hook(lambda *_: passes.append(1))
    for call in (fit_subspace, partial(intervene, kind=FEW)):
        with pytest.raises(InvalidArgument, match=r"weights of copy .*inference_mode"):
            call(copy, task, fit)
    assert passes == [] and fit_subspace(copy, task, fits.covariance("belief"))[0].rank
