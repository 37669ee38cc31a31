"""Interventions on the state (h, c) that an LSTM carries from one position to the next.

An edit at `hook_state` is applied after the recurrence has run, so it does not affect later positions of the layer.
Here the recurrence is run up to a position, its state is edited, and the rest of the sequence is run from that state.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from bayesgeom.core import RESID_PRE, AtPositions, InvalidArgument, Reference, Site, Trials
from bayesgeom.models.base import BaselinePass, Model, Variant
from bayesgeom.models.native.lstm import LSTM, LSTMBlock
from bayesgeom.models.native.mamba import Mamba

CARRIED = Site("carried", ("batch", "pos", "d_state"))


def check_carries(model: Model) -> None:
    """Check that the carried state of this model can be edited.

    Raises:
        InvalidArgument: The model is not an LSTM.
    """
    match model.module:
        case LSTM():
            return
        case Mamba():
            reason = f"the state of a Mamba layer has {model.spec.d_state} numbers, too many to fit a subspace"
        case _:
            reason = "it carries no recurrent state"
    raise InvalidArgument(
        f"site 'carried' is the state (h, c) of an LSTM, which {model.spec.name} does not provide: {reason}. Use "
        f"site 'resid_pre' with score_after instead."
    )


@final
class CarriedReplayer:
    """A `Replayer` of an LSTM. Each variant edits the state of one layer after one position."""

    def __init__(self, model: Model) -> None:
        check_carries(model)
        assert isinstance(model.module, LSTM), "checked above"
        self.module = model.module

    @torch.no_grad()
    def baseline(self, trials: Trials, also: Sequence[Site] = ()) -> BaselinePass:
        """Run one pass and keep the input of each layer and its state after each position."""
        stored: dict[tuple[Site, int], Tensor] = {}
        resid: Tensor = self.module.embed(trials.tokens)
        for layer, block in enumerate(self._blocks()):
            stored[RESID_PRE, layer] = resid
            stored[CARRIED, layer] = states = states_of(block, resid)
            resid = resid + states[..., : resid.shape[-1]]
        return BaselinePass(trials=trials, stored=stored, logits=self.module.logits(trials.at_scored(resid)))

    @torch.no_grad()
    def logits(
        self, baseline: BaselinePass, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """Return the logits at the scored rows under each variant."""
        return torch.stack([self._one(baseline, variant, reference) for variant in variants])

    def _one(
        self, baseline: BaselinePass, variant: Variant, reference: Reference
    ) -> Float[Tensor, "batch query_pos d_vocab"]:
        (edit,) = variant
        assert isinstance(edit, AtPositions), "a state is edited after one position"
        (at,) = edit.mask.nonzero()[:, 0].tolist()
        resid, states = (baseline.stored[site, edit.layer] for site in (RESID_PRE, CARRIED))
        edited, width = edit.applied(states, reference)[:, at], resid.shape[-1]
        block = self._blocks()[edit.layer]
        written = [states[:, :at, :width], edited[:, None, :width]]
        if at + 1 < resid.shape[1]:
            carried = tuple(part.contiguous()[None] for part in edited.split(width, dim=-1))
            written.append(block.lstm(block.ln(resid[:, at + 1 :]), carried)[0])
        resid = resid + torch.cat(written, dim=1)
        for later in self._blocks()[edit.layer + 1 :]:
            resid = later(resid)
        return self.module.logits(baseline.trials.at_scored(resid))

    def _blocks(self) -> list[LSTMBlock]:
        blocks = [block for block in self.module.blocks if isinstance(block, LSTMBlock)]
        assert len(blocks) == len(self.module.blocks), "an LSTM consists of LSTM blocks"
        return blocks


@torch.no_grad()
def states_of(block: LSTMBlock, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos state"]:
    """Return h and c, concatenated, after every position. torch's LSTM returns c after the last position only."""
    return torch.stack(_steps(block, resid), dim=1)


def logits_through_states(
    module: LSTM, trials: Trials
) -> tuple[Float[Tensor, "batch query_pos d_vocab"], list[list[Float[Tensor, "batch state"]]]]:
    """Return the logits at scored positions and, by layer and position, the states in their autograd graph.

    A gradient with respect to a state includes the read-out of h at the same position and the effect on later ones.
    """
    resid: Tensor = module.embed(trials.tokens)
    states = []
    for block in module.blocks:
        assert isinstance(block, LSTMBlock), "an LSTM consists of LSTM blocks"
        states.append(_steps(block, resid))
        resid = resid + torch.stack(states[-1], dim=1)[..., : resid.shape[-1]]
    return module.logits(resid[:, trials.scored_positions()[0]]), states


def _steps(block: LSTMBlock, resid: Float[Tensor, "batch pos d_model"]) -> list[Float[Tensor, "batch state"]]:
    """The state after each position; with gradients enabled, each one is a node of the graph."""
    lstm, d = block.lstm, resid.shape[-1]
    weights = dict(lstm.named_parameters())
    recurrent = weights["weight_hh_l0"].T
    given = block.ln(resid) @ weights["weight_ih_l0"].T + weights["bias_ih_l0"] + weights["bias_hh_l0"]
    h = c = torch.zeros_like(resid[:, 0])
    states = []
    for at in range(resid.shape[1]):
        i, f, g, o = (given[:, at] + h @ recurrent).split(d, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        state = torch.cat([h, c], dim=-1)
        if torch.is_grad_enabled() and not state.requires_grad:
            state.requires_grad_()  # with frozen weights, the graph starts here
        states.append(state)
        h, c = state.split(d, dim=-1)
    return states
