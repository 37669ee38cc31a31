"""Swaps against subspaces with the same share of the difference, on planted networks that are nearly linear.

With small logits, a swap of the projection P moves the answer by Σ ⟨R P δ, R δ⟩ / Σ |R δ|², where R is what the output
reads and δ the difference of donor and recipient.
"""

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.matching import SITE, TOLERANCE, WHOLE
from bayesgeom.interventions.run import intervene
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.subspaces.base import Subspace
from examples.replication.shares import ALIKE, ShareControlsReport, share_controls
from tests.interventions.worlds import N_ANSWERS, N_TOKENS, TASK, WIDTH, Echo, coordinates, lively
from tests.pages import READINGS

N = 23
READ = tuple(range(N_ANSWERS))  # coordinates that the output reads; the last one is constant, the rest is never read
REST, CONSTANT = tuple(range(N_ANSWERS, WIDTH - 1)), WIDTH - 1


def planted(*, unread: float) -> HookedModel:
    """Blocks that do nothing, and `unread` times as much difference between tokens in what is never read."""
    config = TransformerConfig(
        d_vocab=N_TOKENS, n_ctx=3, n_layers=2, n_heads=1, d_model=WIDTH, d_mlp=11, positions="none", tied=False
    )
    module, generator = Transformer(config, seed=0), torch.Generator().manual_seed(3)
    code, other = torch.randn(N_TOKENS, len(READ), generator=generator), torch.randn(N_TOKENS, 7, generator=generator)
    code, other = (each - each.mean(dim=0) for each in (code, other))
    code = code - code.mean(dim=1, keepdim=True)  # logits that differ by a constant give the same answer
    with torch.no_grad():
        for parameter in (*module.blocks.parameters(), module.embed.weight, module.unembed.weight):
            parameter.zero_()
        module.embed.weight[:, READ] = 0.01 * code / code.norm()
        module.embed.weight[:, REST] = 0.01 * unread**0.5 * other / other.norm()
        module.embed.weight[:, CONSTANT] = WIDTH**0.5  # so large that the final norm hardly changes under a swap
        module.unembed.weight[: len(READ), READ] = torch.eye(len(READ))
    return HookedModel(module, name="planted", task=Echo())


def controls_of(report: ShareControlsReport) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, least and most over the controls, with the direct path."""
    level = report.movement.baseline(ALIKE)
    assert level.low is not None and level.high is not None
    return level.value[0], level.low[0], level.high[0]


def test_where_only_the_share_matters_controls_move_as_far() -> None:
    """The output reads every direction in which tokens differ, so that the movement is the share."""
    report = share_controls(planted(unread=0), subspace=Subspace("two of five", coordinates(0, 1)), n=N)
    own, controls, in_own = report.share.value
    mean, least, most = controls_of(report)
    assert 0.2 < own[0] < 0.45 and in_own.max() == 0, "controls lie in the complement"
    np.testing.assert_allclose(controls, own, rtol=1e-3)
    np.testing.assert_allclose(report.movement.value[0], own, atol=0.06)  # the share is of other pairs
    np.testing.assert_allclose(mean, report.movement.value[0], atol=0.06)
    assert (most - least).max() < 0.1


def test_where_the_directions_matter_controls_do_not_move_it() -> None:
    """Most of the difference is in what is never read."""
    report = share_controls(planted(unread=1.2), subspace=Subspace("read", coordinates(*READ)), n=N)
    own, controls, in_own = report.share.value
    mean, least, most = controls_of(report)
    assert 0.4 < own[0] < 0.5 and in_own.max() == 0
    np.testing.assert_allclose(controls, own, rtol=TOLERANCE)
    np.testing.assert_allclose(report.movement.value[0], 1, atol=1e-3)
    assert max(np.abs(mean).max(), np.abs(least).max(), np.abs(most).max()) < 1e-3
    low, high = report.movement.ends
    assert (low[0] <= report.movement.value[0]).all() and (report.movement.value[0] <= high[0] + 1e-9).all()


def test_a_subspace_that_holds_its_share_and_is_never_read_moves_nothing_unlike_its_controls() -> None:
    report = share_controls(planted(unread=0.6), subspace=Subspace("unread", coordinates(*REST)), n=N)
    _, least, _ = controls_of(report)
    assert np.abs(report.movement.value[0]).max() < 1e-3 < 0.15 < least.min()


def test_controls_from_the_whole_site_all_hold_the_share_and_move_by_what_they_hold_of_the_subspace() -> None:
    """Its complement holds too little; that complement, which moves nothing here, is not counted as a control."""
    report = share_controls(planted(unread=0.5), subspace=Subspace("read", coordinates(*READ)), n=N)
    own, controls, in_own = report.share.value
    mean, least, most = controls_of(report)
    assert own[0] > 0.6 and all(drawn.startswith(f"{SITE}, rank 5, 20 ") for drawn in report.drawn_by_layer)
    np.testing.assert_allclose(controls, own, rtol=TOLERANCE)
    np.testing.assert_allclose(mean, in_own, atol=0.06)
    assert (least > 0.2).all() and (most < 0.95).all()


def test_where_nothing_else_has_the_share_there_is_no_level() -> None:
    """In every layer, so that the single control fills all conditions."""
    report = share_controls(planted(unread=0.05), subspace=Subspace("read", coordinates(*READ)), n=N)
    assert all(drawn.startswith(WHOLE) for drawn in report.drawn_by_layer)
    assert np.isnan(controls_of(report)).all()
    np.testing.assert_allclose(report.movement.value[0], 1, atol=1e-3)
    assert "nan" in report.table()


def test_blocks_that_do_nothing_leave_the_direct_path_alone() -> None:
    report = share_controls(planted(unread=1.2), subspace=Subspace("read", coordinates(*READ)), n=N)
    assert np.abs(report.movement.value[1]).max() < 1e-3
    assert np.abs(report.movement.baseline(ALIKE).value[1]).max() < 1e-3
    assert [head.label for head in report.headlines()][:2] == ["movement, layer 0", "movement, layer 1"]
    drawn = [own for panel in report.panels() for own in panel.figure.data if own.name == f"baseline: {ALIKE}"]
    assert len(drawn) == 2, "one in each panel"
    np.testing.assert_allclose(drawn[0].y, controls_of(report)[0])


def test_the_subspace_moves_as_far_as_its_intervention_says() -> None:
    model, few = lively(), Design(n_random=1, n_matched=1, n_control=1, n_untrained=0)
    whole = intervene(model, subspace="frame", n=N, kind=few)
    report = share_controls(model, subspace="frame", n=N)
    np.testing.assert_allclose(report.movement.value[0], whole.movement.value[:, 0], atol=1e-6)
    np.testing.assert_allclose(report.movement.value[1], whole.indirect_movement.value[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, InvalidArgument, "n, the number of sequences to draw, must be a positive integer, got 0"),
        ({"subspace": "frames"}, UnknownName, "frames"),
        ({"subspace": Subspace("wide", torch.eye(WIDTH, dtype=torch.float64)[:, :2])}, InvalidArgument, "wide"),
    ],
)
def test_what_cannot_be_compared_is_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        share_controls(lively(), TASK, **arguments)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    "name",
    [
        "bijection-v20",
        "bijection-v20-repeats",
        "bijection-v20-llama",
        "bijection-transformer-untied",
        "repeats-transformer",
    ],
)
def test_committed_controls_hold_the_share(name: str) -> None:
    report = Diagnosis.load(READINGS / f"claims/share-controls-{name}")["share_controls"]
    assert isinstance(report, ShareControlsReport) and report.n == 64
    mean, _, most = controls_of(report)
    is_known = np.isfinite(mean)
    own, controls, _ = report.share.value[:, is_known]
    assert is_known.sum() >= 2 and np.isnan(mean[0]), "layer 0 holds all of the difference"
    assert (np.abs(controls / own - 1) <= TOLERANCE).all() and (most >= mean)[is_known].all()
    swaps = Diagnosis.load(READINGS / f"interventions/{name}/frame")["intervention"]
    for effect, metric in enumerate(("movement", "indirect_movement")):  # the same swap, measured by another command
        whole = swaps.estimate(metric).value[:, 0]
        np.testing.assert_allclose(report.movement.value[effect], whole, atol=1e-3)
