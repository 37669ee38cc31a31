"""The state that an LSTM carries: against torch's own cells, and what a swap of it moves."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesgeom.core.edits import AtPositions, InSubspace, Replace
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import PairReference
from bayesgeom.interventions.run import fit_subspace, intervene
from bayesgeom.models.adapters.hooked import ResidualModel
from bayesgeom.models.native.lstm import LSTM, LSTMConfig
from bayesgeom.models.native.mamba import Mamba, MambaConfig
from bayesgeom.models.replay.carried import CARRIED, CarriedReplayer, states_of
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.subspaces.jacobian import _chosen, answer_gradients
from tests.interventions.worlds import TASK, lively
from tests.weights import perturbed

FEW = Design(n_random=3, n_matched=2, n_control=5, n_untrained=1, n_fit=101)
HERE = InterventionSite(CARRIED, score_after=True)


def lstm() -> ResidualModel:
    """An untrained LSTM whose weights are large enough for every term to show."""
    module = perturbed(LSTM(LSTMConfig(d_vocab=22, n_ctx=13, n_layers=2, d_model=17), seed=0), 0.3)
    return ResidualModel(module, task=TASK)


def test_states_are_those_of_torch() -> None:
    block = lstm().module.blocks[1]
    resid = torch.randn(5, 11, 17, generator=torch.Generator().manual_seed(2))
    states = states_of(block, resid)
    for at in (0, 6, 10):
        h, c = (part[0] for part in block.lstm(block.ln(resid[:, : at + 1]))[1])
        torch.testing.assert_close(states[:, at], torch.cat([h, c], dim=-1), atol=1e-6, rtol=1e-5)


def test_the_baseline_is_a_plain_pass_and_an_edit_is_carried_by_a_loop_over_positions() -> None:
    """Torch's own cell, one position after the other, with the state exchanged after the fifth scored position."""
    model = lstm()
    originals, donors = TASK.sample_pair(7, seed=0)
    replayer = CarriedReplayer(model)
    own, other = replayer.baseline(originals), replayer.baseline(donors)
    torch.testing.assert_close(own.logits, model.logits(originals), atol=1e-5, rtol=1e-5)
    at = int(own.trials.scored_positions()[0][4])
    mask = torch.arange(13) == at
    basis = random_subspaces(34, 5, draws=1, seed=0)[0].float()
    swap = InSubspace(site=CARRIED, layer=0, kind="swap", basis=basis)
    whole = Replace(site=CARRIED, layer=0, mode="resample")
    variants = [(AtPositions.of(edit, mask),) for edit in (swap, whole)]
    found = replayer.logits(own, variants, PairReference({}, other))
    first, second = model.module.blocks
    for edited, projector in zip(found, (basis @ basis.T, torch.eye(34)), strict=True):
        with torch.no_grad():
            embedded, given = (model.module.embed(trials.tokens) for trials in (originals, donors))
            h = c = torch.zeros(7, 17)
            steps = []
            for p in range(13):
                _, (h1, c1) = first.lstm(first.ln(embedded[:, p : p + 1]), (h[None], c[None]))
                h, c = h1[0], c1[0]
                if p == at:
                    donated = torch.cat([part[0] for part in first.lstm(first.ln(given[:, : p + 1]))[1]], dim=-1)
                    state = torch.cat([h, c], dim=-1)
                    h, c = (state + (donated - state) @ projector).split(17, dim=-1)
                steps.append(h)
            resid = second(embedded + torch.stack(steps, dim=1))
            logits = model.module.ln_final(resid) @ model.module.embed.weight.T
        torch.testing.assert_close(edited, logits[:, own.trials.scored_positions()[0]], atol=1e-4, rtol=1e-4)
        assert float((edited - own.logits)[:, 5:].abs().max()) > 1e-3, "later positions see it"
        torch.testing.assert_close(edited[:, :4], own.logits[:, :4], atol=1e-5, rtol=1e-5)


def test_interventions_run_on_the_state() -> None:
    report = intervene(lstm(), subspace=fits.covariance("belief"), kind=FEW, sites=HERE, n=11)
    assert report.where.startswith("carried, one scored") and report.rank.tolist() == [10, 10] and report.n == 11
    np.testing.assert_allclose(report.movement.ceiling[:, 0], 1, atol=1e-6)
    assert np.abs(report.kl_increase_bits.value[:, 0]).min() > 1e-6 and np.isfinite(report.r2_after.value).all()
    removed = intervene(lstm(), subspace=fits.leace("entropy"), kind=replace(FEW, kind="remove"), sites=HERE, n=11)
    assert np.isfinite(removed.removal_kl_increase_bits.value[:, 0]).all()


@torch.no_grad()
def logits_after(model: ResidualModel, tokens: torch.Tensor, layer: int, at: int, added: torch.Tensor) -> torch.Tensor:
    """Torch's own LSTM, stopped after one position, where something is added to the state (h, c)."""
    resid = model.module.embed(tokens)
    for number, block in enumerate(model.module.blocks):
        first, state = block.lstm(block.ln(resid[:, : at + 1]))
        if number == layer:
            state = tuple(own + part for own, part in zip(state, added.split(17, dim=-1), strict=True))
            first = torch.cat([first[:, :-1], state[0].transpose(0, 1)], dim=1)
        if at + 1 < resid.shape[1]:
            first = torch.cat([first, block.lstm(block.ln(resid[:, at + 1 :]), state)[0]], dim=1)
        resid = resid + first
    return model.module.ln_final(resid) @ model.module.embed.weight.T


def test_the_jacobian_of_a_state_is_that_of_differences() -> None:
    model = lstm()
    model.module.double()
    trials, step = TASK.sample(3, seed=5), 1e-5
    rows, picked = trials.scored_positions()[0], answer_gradients(model, trials, CARRIED, (0, 1), seed=7)
    places = itertools.islice(_chosen(len(rows), len(trials.answers), 7), 3)
    for (query, answer), found in zip(places, picked, strict=False):
        for layer, at in ((0, 2), (1, 4), (0, int(rows[query]))):
            way = torch.randn(34, generator=torch.Generator().manual_seed(at), dtype=torch.float64)
            up, down = (logits_after(model, trials.tokens, layer, at, sign * step * way) for sign in (1, -1))
            slope = ((up - down) / (2 * step))[:, rows[query], trials.answers[answer]]
            torch.testing.assert_close(found[layer][:, at] @ way, slope, atol=1e-7, rtol=1e-5)
        assert not found[0][:, int(rows[query]) + 1 :].any(), "later states are no part of it"


@pytest.mark.exhaustive
def test_frame_and_jacobian_of_the_state() -> None:
    model = lstm()
    report = intervene(model, subspace=fits.frame(), kind=FEW, sites=HERE, n=11)
    fitted = fit_subspace(model, None, fits.frame(), sites=HERE)[1].basis
    assert not fitted[17:].any() and fitted.shape == (34, int(report.rank[1])), "h alone has the stream's coordinates"
    np.testing.assert_allclose(report.embedding_share.value, 1, atol=1e-9)
    jacobian = intervene(model, subspace=fits.top_jacobian(3), kind=FEW, sites=HERE, n=11)
    assert jacobian.rank.tolist() == [3, 3] and np.isfinite(jacobian.movement.value[:, 0]).all()
    assert (jacobian.embedding_share.value > 0).all()


def test_what_has_no_such_state_is_refused() -> None:
    mamba = ResidualModel(Mamba(MambaConfig(d_vocab=22, n_ctx=13, n_layers=1, d_model=6), seed=0), task=TASK)
    with pytest.raises(InvalidArgument, match="state of a Mamba layer has 192 numbers, too many"):
        intervene(mamba, subspace=fits.leace("belief"), sites=HERE)
    with pytest.raises(InvalidArgument, match="which tiny does not provide: it carries no recurrent state"):
        intervene(lively(), subspace=fits.leace("belief"), sites=HERE)
    with pytest.raises(InvalidArgument, match="score_after=True"):
        intervene(lstm(), subspace=fits.leace("belief"), sites=InterventionSite(CARRIED))
    with pytest.raises(InvalidArgument, match="trains through hook points; 'carried' has none"):
        intervene(lstm(), subspace=fits.trained_swap(3, "belief"), sites=HERE)
    for kind in ("keys", "ov"):
        with pytest.raises(InvalidArgument, match=rf"frame \({kind}\) lies in the residual stream; 'carried' has"):
            intervene(lstm(), subspace=fits.frame(kind, head=0), sites=HERE)
