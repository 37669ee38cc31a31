"""Effects by lag and by dose in planted networks: one sets a state, one writes answers, one ignores a direction."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import RESID_PRE
from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions.design import MATCHED, Design
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.lags import Course, continued
from bayesgeom.interventions.report import LAST, RANDOM_DIRECTIONS, LagReport
from bayesgeom.interventions.run import intervene
from bayesgeom.models.adapters.hooked import ResidualModel
from bayesgeom.models.native.lstm import LSTM, LSTMConfig
from bayesgeom.models.replay.carried import CARRIED
from bayesgeom.selftest.planted import PlantedBlock, PlantedModel, PlantedNetwork
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import NATS_PER_BIT, kl_bits
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.subspaces.fits import basis
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.markov import MarkovProcess
from bayesgeom.tasks.process import Mess3, Process
from tests.shape_checks import ARE_ON
from tests.weights import perturbed

TASK = Mess3(x=0.05, a=0.85, length=11)
LAGS = (0, 1, 2, 5)
FEW = Design(n_random=20, n_matched=20, n_control=16, n_untrained=2, n_fit=64)
WIDTH, EVIDENCE, ANSWER, UNREAD = (
    29,
    (0, 1, 2),
    (3, 4, 5),
    10,
)  # coordinates; those from 6 on are written and never read


class Recurrent(nn.Module):
    """The filter of Mess3: reads symbols from `EVIDENCE`, and writes log predictives to `ANSWER`."""

    def __init__(self) -> None:
        super().__init__()
        self.hook_resid_pre, self.hook_mlp_out, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        resid = self.hook_resid_pre(resid)
        labeled, belief = TASK.labeled().float(), TASK.start().float().expand(len(resid), -1)
        written = torch.zeros_like(resid)
        for at in range(resid.shape[1]):
            belief = torch.einsum("bi,bx,xij->bj", belief, resid[:, at, list(EVIDENCE)], labeled).clamp_min(1e-6)
            belief = belief / belief.sum(dim=-1, keepdim=True)
            written[:, at, list(ANSWER)] = torch.einsum("bi,xij->bx", belief, labeled).log()
        post: Tensor = self.hook_resid_post(resid + self.hook_mlp_out(written))
        return post


def filtering() -> PlantedModel:
    """Block 1 filters blurred symbols, and block 2 does nothing: what enters that is the answer."""
    network = PlantedNetwork(3, WIDTH, (1, 1, 1))
    with torch.no_grad():
        for block in network.blocks:
            assert isinstance(block, PlantedBlock)
            block.W_out.weight.zero_()
        network.embed.weight[:, :3] = 0.94 * torch.eye(3) + 0.02
        network.embed.weight[:, 3:6] = 0.0
        network.embed.weight[:, 6:] *= 5
        network.unembed.weight.zero_()
        network.unembed.bias.zero_()
        network.unembed.weight[:, 3:6] = torch.eye(3)
    network.blocks[1] = Recurrent()
    network.setup()  # type: ignore[no-untyped-call]
    return PlantedModel(network, name="filtering", task=TASK)


def coordinates(*at: int) -> Float[Tensor, "d r"]:
    return torch.eye(WIDTH, dtype=torch.float64)[:, list(at)]


def swapped(layer: int, columns: Float[Tensor, "d r"]) -> LagReport:
    site = InterventionSite(RESID_PRE, (layer,))
    return intervene(filtering(), subspace=basis(columns), kind=FEW, sites=site, lags=LAGS, n=24)


def test_a_network_that_sets_a_state_is_told_from_one_that_only_writes_answers() -> None:
    sets, writes = swapped(1, coordinates(*EVIDENCE)), swapped(2, coordinates(*ANSWER))
    np.testing.assert_allclose(sets.lag_movement.value[1], sets.lag_movement.ceiling[1], atol=1e-4)
    assert (sets.lag_movement.value[1] > 0.85).all()
    np.testing.assert_array_equal(writes.lag_movement.value[2, 1:], 0.0)
    assert writes.lag_movement.value[2, 0] == pytest.approx(sets.lag_movement.value[1, 0], abs=1e-4)
    assert sets.verdict_by_layer == ("", Verdict.SETS, "") and writes.verdict_by_layer == ("", "", Verdict.WRITES)
    assert (sets.forced_kl_bits.value[1] < 0.5 * sets.forced_kl_bits.baselines[0].value[1]).all()
    np.testing.assert_allclose(writes.forced_kl_bits.value[2, 1:], writes.forced_kl_bits.baselines[0].value[2, 1:])
    for report in (sets, writes):
        last = report.lag_movement.baseline(LAST).value
        np.testing.assert_array_equal(last[:, 1:], 0.0)
        assert report.lags == ("0", "1", "2", "5") and "up to scored position 5" in report.where
        assert report.plot().data
    for report, verdict in ((sets, Verdict.SETS), (writes, Verdict.WRITES)):
        assert verdict in report.table() and report.headlines()[0].verdict == verdict


def test_without_controls_of_the_same_variance_a_swap_sets_no_state_but_can_be_seen_to_write() -> None:
    embedded = filtering().module.embed.weight.detach()[:, 6:].double()
    main, second, unused = torch.linalg.svd(embedded - embedded.mean(dim=0))[2][:3]
    loud = torch.stack([main, 0.95 * second + 0.0975**0.5 * unused], dim=1)  # nearly all variance; read by nothing
    for layer, at, verdict in ((1, EVIDENCE, Verdict.UNDECIDED), (2, ANSWER, Verdict.WRITES)):
        alone = swapped(layer, coordinates(*at))
        report = swapped(layer, torch.cat([coordinates(*at), torch.cat([torch.zeros(6, 2), loud])], dim=1))
        assert alone.controls_found[layer] == 20 and report.controls_found.tolist() == [0, 0, 0]
        assert MATCHED not in {level.name for level in report.lag_movement.baselines}
        assert np.isfinite(alone.lag_movement.baseline(MATCHED).value[layer]).all()
        np.testing.assert_allclose(report.lag_movement.value[layer], alone.lag_movement.value[layer], atol=1e-4)
        assert report.verdict_by_layer[layer] == verdict and report.table() and report.plot().data


def test_a_swap_of_all_that_differs_is_by_construction() -> None:
    report = swapped(1, torch.eye(WIDTH))
    assert report.verdict_by_layer[1] == Verdict.BY_CONSTRUCTION


@pytest.mark.parametrize("task", [TASK, Process("rrxor", length=11)], ids=["mess3", "rrxor"])
def test_the_continued_filter_is_the_exact_one_of_the_donors_symbols_followed_by_the_recipients(
    task: MarkovProcess,
) -> None:
    originals, donors = task.sample_pair(41, seed=3)
    assert originals.observers is not None
    found = continued(originals.observers.filter, donors.belief[:, 5:6], 5, LAGS)
    tokens = torch.cat([donors.tokens[:, :6], originals.tokens[:, 6:]], dim=1)
    for row in range(41):
        belief, expected = task.start(), []
        for symbol in tokens[row]:
            belief = belief @ task.labeled()[symbol]
            expected.append(torch.einsum("i,xij->x", belief / belief.sum(), task.labeled()))
        for i, lag in enumerate(LAGS):
            is_possible = bool(expected[5 + lag].isfinite().all())
            assert bool(found[row, i].isfinite().all()) == is_possible
            if is_possible:
                torch.testing.assert_close(found[row, i], expected[5 + lag])


def test_exact_answers_and_those_of_the_window_do_not_move_and_half_of_the_way_is_one_half() -> None:
    originals, donors = TASK.sample_pair(37, seed=1)
    assert originals.observers is not None
    own, at = originals.observers.filter, [5 + lag for lag in LAGS]
    forced, exact = continued(own, donors.belief[:, 5:6], 5, LAGS), originals.predictive[:, at]
    window = continued(own, own.priors["stationary"].expand(37, -1)[:, None], 5, LAGS)
    model = torch.stack([exact, exact, window, forced, (forced + exact) / 2]).log()
    answers = Course(forced=forced, others=(exact, window), model=model)
    above, below = answers.moved(torch.exp)
    movement = above.sum(axis=0) / below.sum(axis=0)
    np.testing.assert_allclose(movement, np.array([0.0, 0.0, 1.0, 0.5])[:, None].repeat(4, axis=1), atol=1e-9)
    unknown = replace(answers, forced=torch.where(torch.arange(37)[:, None, None] < 3, torch.nan, forced))
    assert (unknown.moved(torch.exp)[1][:3] == 0).all() and (unknown.kl_bits()[0][:3] == 0).all()


def test_a_carried_state_is_set_at_one_position() -> None:
    """Swapping the whole state of the only layer gives what the donor's symbols and then the recipient's give."""
    module = perturbed(LSTM(LSTMConfig(d_vocab=3, n_ctx=11, n_layers=1, d_model=7), seed=0), 0.5)
    model, site = ResidualModel(module, task=TASK), InterventionSite(CARRIED, score_after=True)
    few = replace(FEW, n_random=1, n_matched=1, n_untrained=0)
    report = intervene(model, subspace=basis(torch.eye(14)), kind=few, sites=site, lags=(1, 3), n=19)
    design = replace(few, lags=(1, 3))
    job = Intervention.of(model, TASK, basis(torch.eye(14)), design=design, place=site, n=19, seed=0)
    kl = list[Tensor]()
    for originals, donors in job.pairs(19):
        assert donors is not None
        tokens = torch.cat([donors.tokens[:, :8], originals.tokens[:, 8:]], dim=1)
        forced = TASK.trials(torch.cat([tokens, tokens[:, :1]], dim=1))
        log_answers, _ = answer_log_probabilities(model.logits(forced).detach(), forced)
        kl.append(kl_bits(forced.predictive, log_answers)[:, [8, 10]])
    np.testing.assert_allclose(report.forced_kl_bits.value[0], torch.cat(kl).mean(dim=0), rtol=1e-4)


def test_pairs_that_rule_out_the_recipients_symbols_are_left_out() -> None:
    task = Process("rrxor", length=11)
    module = perturbed(LSTM(LSTMConfig(d_vocab=2, n_ctx=11, n_layers=1, d_model=7), seed=0), 0.5)
    few = replace(FEW, n_random=1, n_matched=1, n_untrained=0)
    report = intervene(ResidualModel(module, task=task), subspace="random:2", kind=few, lags=(0, 3), n=19)
    assert report.n_possible[0] == 19 and 0 < report.n_possible[1] < 19


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lags": (0, 11)}, "lag 11 lies beyond the sequence, which scores 11 positions"),
        ({"lags": (0, -1)}, "whole numbers from 0 on"),
        ({"lags": (1, 1)}, "whole numbers from 0 on"),
        pytest.param({"lags": 3}, "lags must be", marks=pytest.mark.skipif(ARE_ON, reason="another kind")),
        ({"lags": (1,), "kind": "remove"}, "remove got"),
        ({"doses": (0, 1)}, "swap got"),
        ({"doses": (0, math.inf), "kind": "add"}, "finite"),
        ({"doses": (1,), "kind": "add"}, "two or more"),
        ({"lags": (1,), "sites": [InterventionSite(RESID_PRE, (1,))]}, "one site"),
    ],
)
def test_bad_lags_and_doses_are_refused_by_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        intervene(filtering(), subspace="random:2", n=4, **options)  # type: ignore[call-overload]


def test_a_task_without_a_filter_is_refused() -> None:
    module = LSTM(LSTMConfig(d_vocab=6, n_ctx=11, n_layers=1, d_model=7), seed=0)
    with pytest.raises(InvalidArgument, match="continues from any belief"):
        intervene(ResidualModel(module, task=Dice(length=11)), subspace="random:2", lags=(1,), n=4)


def added(direction: Float[Tensor, "d 1"], doses: tuple[float, ...], layer: int = 2):  # type: ignore[no-untyped-def]
    design, site = replace(FEW, kind="add"), InterventionSite(RESID_PRE, (layer,))
    return intervene(filtering(), subspace=basis(direction), kind=design, sites=site, doses=doses, n=24)


def test_log_odds_that_add_have_slope_one_and_a_direction_that_is_ignored_has_slope_zero() -> None:
    """One standard deviation σ along (x0 − x1) / √2 adds √2 σ nats: that is the planted unit."""
    between = (coordinates(3) - coordinates(4)) / 2**0.5
    report, unread = added(between, (-2, -1, 0, 1, 2)), added(coordinates(UNREAD), (-2, -1, 0, 1, 2))
    odds = report.dose_log_odds_bits.value[2]
    unit = odds[3]
    np.testing.assert_allclose(odds / unit, [-2, -1, 0, 1, 2], atol=1e-4)
    np.testing.assert_allclose(report.dose_slope_bits.value[2] / unit, 1.0, atol=1e-4)
    spread = TASK.sample(2_048, seed=5).predictive.log() @ torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64) / 2**0.5
    assert unit == pytest.approx(2**0.5 * float(spread.std()) / NATS_PER_BIT, rel=0.1)
    assert report.answers_by_layer[2] == "x0 : x1" and report.saturated_by_layer == ("", "", "")
    assert abs(report.dose_slope_bits.baseline(RANDOM_DIRECTIONS).value[2]) < unit / 2
    np.testing.assert_allclose(unread.dose_log_odds_bits.value[2], 0.0, atol=1e-6)
    np.testing.assert_allclose(unread.dose_slope_bits.value[2], 0.0, atol=1e-6)
    assert "x0 : x1" in report.table() and report.plot().data and "x0 : x1" in report.headlines()[0].label


def test_doses_that_saturate_are_named_and_do_not_count() -> None:
    between = (coordinates(3) - coordinates(4)) / 2**0.5
    report = added(between, (-400, 0, 1, 400))
    assert report.saturated_by_layer[2] == "-400, 400" and "-400, 400" in report.table()
    np.testing.assert_allclose(report.dose_slope_bits.value[2], report.dose_log_odds_bits.value[2, 2], rtol=1e-4)
    alone = added(between, (-400, 400))
    assert np.isnan(alone.dose_slope_bits.value[2]) and alone.saturated_by_layer[2] == "-400, 400"
    assert alone.table() and alone.summary()
