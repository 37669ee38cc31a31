"""The state that an LSTM carries: against torch's own cells, and what a swap of it moves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesgeom.core.edits import AtPositions, InSubspace, Replace
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import PairReference
from bayesgeom.interventions.report import REMOVAL
from bayesgeom.interventions.run import intervene
from bayesgeom.models.adapters.residual import ResidualModel
from bayesgeom.models.native.lstm import LSTM, LSTMConfig
from bayesgeom.models.native.mamba import Mamba, MambaConfig
from bayesgeom.models.replay.carried import CARRIED, CarriedReplayer, states_of
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.site import InterventionSite
from tests.interventions.worlds import TASK, lively

FEW = Design(n_random=3, n_matched=2, n_control=5, n_untrained=1, n_fit=101)
HERE = InterventionSite(CARRIED, score_after=True)


def lstm() -> ResidualModel:
    """An untrained LSTM whose weights are large enough for every term to show."""
    module = LSTM(LSTMConfig(d_vocab=22, n_ctx=13, n_layers=2, d_model=17), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
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
    at = int(own.rows[4])
    mask = torch.arange(13) == at
    basis = random_subspaces(34, 5, draws=1, seed=0)[0].float()
    swap = InSubspace(site=CARRIED, layer=0, kind="swap", basis=basis)
    whole = Replace(site=CARRIED, layer=0, mode="resample")
    variants = [(AtPositions.of(edit, mask, own.rows),) for edit in (swap, whole)]
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
        torch.testing.assert_close(edited, logits[:, own.rows], atol=1e-4, rtol=1e-4)
        assert float((edited - own.logits)[:, 5:].abs().max()) > 1e-3, "later positions see it"
        torch.testing.assert_close(edited[:, :4], own.logits[:, :4], atol=1e-5, rtol=1e-5)


def test_interventions_run_on_the_state() -> None:
    report = intervene(lstm(), subspace=fits.covariance("belief"), kind=FEW, sites=HERE, n=11)
    assert report.where.startswith("carried, one scored") and report.rank.tolist() == [10, 10] and report.n == 11
    np.testing.assert_allclose(report.ceiling_movement.value[:, 0], 1, atol=1e-6)
    assert np.abs(report.kl_increase_bits.value[:, 0]).min() > 1e-6 and np.isfinite(report.r2.value).all()
    removed = intervene(lstm(), subspace=fits.leace("entropy"), kind=replace(FEW, kind="remove"), sites=HERE, n=11)
    assert np.isfinite(removed.change_bits.value[REMOVAL, :, 0]).all()


def test_what_has_no_such_state_is_refused() -> None:
    mamba = ResidualModel(Mamba(MambaConfig(d_vocab=22, n_ctx=13, n_layers=1, d_model=6), seed=0), task=TASK)
    with pytest.raises(InvalidArgument, match="state of a Mamba layer has 192 numbers, too many"):
        intervene(mamba, subspace=fits.leace("belief"), sites=HERE)
    with pytest.raises(InvalidArgument, match="which tiny does not provide: it carries no recurrent state"):
        intervene(lively(), subspace=fits.leace("belief"), sites=HERE)
    with pytest.raises(InvalidArgument, match="score_after=True"):
        intervene(lstm(), subspace=fits.leace("belief"), sites=InterventionSite(CARRIED))
    with pytest.raises(MissingSite, match="'carried'"):
        intervene(lstm(), subspace=fits.trained_swap(3, "belief"), sites=HERE)
    with pytest.raises(MissingSite, match="'carried'"):
        intervene(lstm(), subspace=fits.top_jacobian(3), sites=HERE)
