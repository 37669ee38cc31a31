"""Capacity: sizes within 1 % of a reference's parameters, whatever the architecture, and refusals."""

import pytest
from torch import nn

from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.core.plugins import discover, find
from bayesgeom.models.capacity import capacity_matched, n_parameters
from bayesgeom.models.config import ModelConfig, config_from_dict
from bayesgeom.models.native.lstm import LSTMConfig
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.models.resolve import as_model

REFERENCE = TransformerConfig(d_vocab=40, n_ctx=37, n_layers=2, n_heads=4, d_model=128, d_mlp=512)
ARCHITECTURES = sorted(discover("bayesgeom.models.native", ModelConfig))  # type: ignore[type-abstract]


def built(config: ModelConfig) -> int:
    return sum(parameter.numel() for parameter in config.build(seed=0).parameters())


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_comes_within_one_percent(architecture: str) -> None:
    config = capacity_matched(architecture, REFERENCE)
    assert (config.name, config.d_vocab, config.n_ctx) == (architecture, 40, 37)
    assert abs(built(config) / built(REFERENCE) - 1) <= 0.01
    assert 1 <= vars(config)["n_layers"] <= 4, "the depth stays near the reference's"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_count_is_that_of_what_is_built(architecture: str) -> None:
    kind = find("bayesgeom.models.native", ModelConfig, architecture)  # type: ignore[type-abstract]
    sizes = {"architecture": architecture, "d_vocab": 11, "n_ctx": 7, "n_layers": 2, **kind.proportions(48)}
    config = config_from_dict(sizes)
    assert n_parameters(config) == built(config)


def test_the_reference_may_be_a_module_or_a_model() -> None:
    config = LSTMConfig(d_vocab=11, n_ctx=7, n_layers=2, d_model=30, tied=False)
    module = config.build(seed=0)
    found, *others = (capacity_matched("mamba", reference) for reference in (config, module, as_model(module)))
    assert others == [found, found] and abs(built(found) / built(config) - 1) <= 0.01
    assert vars(found)["tied"] is False


def test_sizes_that_are_given_stay() -> None:
    config = capacity_matched("mlp", REFERENCE, context="prefix", n_ctx=29, tied=False, d_embed=16)
    assert {"context": "prefix", "n_ctx": 29, "tied": False, "d_embed": 16}.items() <= vars(config).items()
    assert vars(capacity_matched("lstm", REFERENCE, n_layers=2))["d_model"] == 157


def test_a_reference_that_nothing_matches_is_refused() -> None:
    tiny = TransformerConfig(d_vocab=40, n_ctx=37, n_layers=1, n_heads=1, d_model=2, d_mlp=1)
    expected = r"no lstm with 40 ids, d_model = 64 is within 1 % of the reference's \d+ parameters: the nearest, LSTM"
    with pytest.raises(InvalidArgument, match=expected):
        capacity_matched("lstm", tiny, d_model=64)
    with pytest.raises(InvalidArgument, match=r"no mamba with 40 ids is within 1 % .*: the nearest, .* is .* % off"):
        capacity_matched("mamba", tiny)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UnknownName, match="no ModelConfig named 'gru'"):
        capacity_matched("gru", REFERENCE)
    with pytest.raises(
        InvalidArgument, match=r"architecture 'lstm' has no parameter d_mlp\. It has: .*d_model.*n_layers"
    ):
        capacity_matched("lstm", REFERENCE, d_mlp=3)
    with pytest.raises(
        InvalidArgument, match=r"must be a ModelConfig, a module built from one, or a Model; got a Linear"
    ):
        capacity_matched("lstm", nn.Linear(3, 5))
    with pytest.raises(UnknownName, match="no checkpoint named 'bijection-20'"):
        capacity_matched("lstm", "bijection-20")


def test_a_reference_without_a_context_length_is_refused() -> None:
    import transformers

    sizes = {"vocab_size": 11, "hidden_size": 40, "state_size": 3, "num_hidden_layers": 2, "intermediate_size": 80}
    model = as_model(transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)))
    with pytest.raises(InvalidArgument, match="the reference does not state n_ctx: pass them by name"):
        capacity_matched("lstm", model)
    config = capacity_matched("lstm", model, n_ctx=7)
    assert abs(built(config) / model.spec.n_parameters - 1) <= 0.01
