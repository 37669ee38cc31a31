"""The laws of acting on a subspace, and the replay against whole passes with plain hooks."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bayesgeom.core.edits import SUBSPACE_KINDS, InSubspace
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import ATTN_OUT, RESID_POST, RESID_PRE, Site, Z
from bayesgeom.interventions.engine import PairReference
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.stats.information import NATS_PER_BIT
from bayesgeom.stats.subspace import random_subspaces
from tests.interventions.worlds import TASK, lively

D, R = 7, 3
SHAPE = (5, 11, D)


@dataclass(frozen=True)
class Fixed:
    """A reference that gives the same values wherever it is asked."""

    mean_values: Tensor
    donor_values: Tensor

    def mean(self, site: Site, layer: int) -> Tensor:
        return self.mean_values

    def donor(self, site: Site, layer: int) -> Tensor:
        return self.donor_values


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


REFERENCE = Fixed(drawn(11, D, seed=1), drawn(*SHAPE, seed=2))
VALUES = drawn(*SHAPE, seed=3)
BASIS = random_subspaces(D, R, draws=1, seed=4)[0]
TURN = random_subspaces(R, R, draws=1, seed=5)[0]


def edit(kind: str, basis: Tensor = BASIS, site: Site = RESID_PRE, layer: int = 0) -> InSubspace:
    r = basis.shape[1]
    turn = random_subspaces(r, r, draws=1, seed=5)[0].to(basis) if kind == "rotate" else None
    shift = drawn(r, seed=6).to(basis) if kind == "add" else None
    return InSubspace(site=site, layer=layer, kind=kind, basis=basis, turn=turn, shift=shift)


def acted(kind: str, values: Tensor = VALUES, basis: Tensor = BASIS) -> Tensor:
    return edit(kind, basis).applied(values, REFERENCE)


def test_every_kind_is_what_a_loop_over_positions_gives() -> None:
    within = BASIS @ BASIS.T
    outside = torch.eye(D, dtype=torch.float64) - within
    for n in range(5):
        for p in range(11):
            x, mean, donor = VALUES[n, p], REFERENCE.mean_values[p], REFERENCE.donor_values[n, p]
            expected = {
                "remove": outside @ x + within @ mean,
                "keep": within @ x + outside @ mean,
                "swap": outside @ x + within @ donor,
                "rotate": outside @ x + BASIS @ (TURN @ (BASIS.T @ x)),
                "add": x + BASIS @ drawn(R, seed=6),
            }
            for kind, value in expected.items():
                torch.testing.assert_close(acted(kind)[n, p], value, atol=1e-12, rtol=0)


def test_the_activation_itself_is_left_as_it_is() -> None:
    before = VALUES.clone()
    for kind in SUBSPACE_KINDS:
        acted(kind)
    assert torch.equal(VALUES, before)


def test_heads_are_taken_together_at_z() -> None:
    z, mean, donor = (drawn(*shape, seed=seed) for seed, shape in enumerate([(5, 11, 2, 3), (11, 2, 3), (5, 11, 2, 3)]))
    basis = random_subspaces(6, 5, draws=1, seed=9)[0]
    for kind in ("remove", "keep", "swap"):
        flat = Fixed(mean.flatten(-2), donor.flatten(-2))
        expected = edit(kind, basis).applied(z.flatten(-2), flat).reshape(z.shape)
        found = edit(kind, basis, site=Z).applied(z, Fixed(mean, donor))
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("basis", "message"),
    [
        (
            torch.ones(7, 2) / 7**0.5,
            r"not orthonormal: BᵀB differs from the identity by 1\.0e\+00\. Pass torch\.linalg\.qr",
        ),
        (torch.full((7, 2), torch.nan), "not orthonormal"),
        (torch.ones(2, 7), "a basis in 2 dimensions must have 1 to 2 orthonormal columns, got 7"),
        (torch.ones(7, 0), "got 0"),
    ],
)
def test_bases_that_are_none(basis: Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        edit("remove", basis)


def test_what_goes_with_which_kind() -> None:
    for wrong in ({"kind": "rotate"}, {"kind": "add", "turn": TURN}, {"kind": "swap", "shift": drawn(R, seed=0)}):
        with pytest.raises(InvalidArgument, match="`turn` is required for 'rotate' and `shift` for 'add'"):
            InSubspace(site=RESID_PRE, layer=0, basis=BASIS, **wrong)
    with pytest.raises(InvalidArgument, match="the basis has 5 dimensions, the site 7"):
        edit("remove", random_subspaces(5, 2, draws=1, seed=0)[0]).applied(VALUES, REFERENCE)


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("site", [RESID_PRE, RESID_POST, ATTN_OUT, Z], ids=lambda site: site.name)
def test_replay_equals_whole_passes_with_plain_hooks(norm: str, site: Site) -> None:
    model = lively(norm=norm)
    originals, donors = TASK.sample_pair(5, seed=0)
    basis = random_subspaces(30, 5, draws=1, seed=7)[0].float()
    variants = {layer: [(edit(kind, basis, site, layer),) for kind in SUBSPACE_KINDS] for layer in range(2)}
    logits = []
    for replayer in (model.replayer(), PlainLoop(model)):
        donated = replayer.baseline(donors)
        baseline = replayer.baseline(originals)
        means = {(site, layer): donated.stored[site, layer].mean(dim=0) for layer in range(2)}
        reference = PairReference(means, donated)
        logits.append(torch.stack([replayer.logits(baseline, variants[layer], reference) for layer in range(2)]))
    replayed, looped = (each[..., originals.answers].double().log_softmax(-1) / NATS_PER_BIT for each in logits)
    torch.testing.assert_close(replayed, looped, atol=1e-5, rtol=1e-6)
    unedited = model.logits(originals)[..., originals.answers].double().log_softmax(-1) / NATS_PER_BIT
    assert bool(((looped - unedited).abs().amax(dim=(2, 3, 4)) > 1e-2).all()), "every edit acts"
