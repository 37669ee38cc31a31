"""Capacity: sizes within 1 % of a reference's parameters, whatever the architecture."""

import pytest

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import ModelConfig
from bayesgeom.models.native.transformer import TransformerConfig
from examples.replication.capacity import capacity_matched, n_parameters
from examples.replication.sweeps import COMPARED

REFERENCE = TransformerConfig(d_vocab=40, n_ctx=37, n_layers=2, n_heads=4, d_model=128, d_mlp=512)


def built(config: ModelConfig) -> int:
    return sum(parameter.numel() for parameter in config.build(seed=0).parameters())


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", COMPARED[1:])
def test_every_compared_architecture_comes_within_one_percent(architecture: str) -> None:
    config = capacity_matched(architecture, REFERENCE)
    assert (config.name, config.d_vocab, config.n_ctx) == (architecture, 40, 37)
    assert n_parameters(config) == built(config)
    assert abs(built(config) / built(REFERENCE) - 1) <= 0.01
    assert 1 <= vars(config)["n_layers"] <= 4, "the depth stays near the reference's"


def test_weight_tying_is_the_references() -> None:
    tied = (capacity_matched("mamba", TransformerConfig(**{**vars(REFERENCE), "tied": tied})) for tied in (False, True))
    assert [vars(config)["tied"] for config in tied] == [False, True]


def test_a_reference_that_nothing_matches_is_refused() -> None:
    tiny = TransformerConfig(d_vocab=40, n_ctx=37, n_layers=1, n_heads=1, d_model=2, d_mlp=1)
    with pytest.raises(InvalidArgument, match=r"no mamba is within 1 % of the reference's \d+ parameters\. Use"):
        capacity_matched("mamba", tiny)
