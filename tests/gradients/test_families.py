"""The gradient laws on every Hugging Face family: exact under windows, soft caps, biases and sinks, or one sentence."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.gradients.capture import IDENTITIES, SITES, captured, in_float64, layer_tally
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.tasks.bijection import Bijection
from tests.families import ATTENTION, TYPICAL
from tests.supported import FAMILIES, tiny

TASK = Bijection(n_values=7, n_pairs=7)
MASKED = ("mistral", "gpt_oss", "bloom")  # of each kind of attention that is no plain causal softmax, in addition
DEFAULT = {*TYPICAL, *MASKED}
WINDOWED = tuple(name for name, own in ATTENTION.items() if any(own.window(layer) for layer in range(3)))


def each(names: tuple[str, ...]) -> list[object]:
    return [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.families) for name in names]


@pytest.mark.parametrize("name", each(FAMILIES))
def test_the_laws_hold_in_every_family_that_has_the_sites(name: str) -> None:
    model = HFModel(tiny(name))
    if not set(SITES) <= model.sites:
        with pytest.raises(MissingSite, match="gradients requires site"):
            bayesgeom.gradient_laws(model, TASK, n=3)
        return
    report = bayesgeom.gradient_laws(model, TASK, n=3)
    found = dict(zip(IDENTITIES, report.identity_error.value, strict=True))
    known = ("mixing", "values", "queries", "keys")
    assert all((found[law] < 1e-12).all() for law in known)
    assert np.isnan(found["scores"]).all()  # a Hugging Face model has no point for them
    is_summed = np.isclose(report.mean_attention.sum(axis=-1), 1, atol=1e-5)
    assert is_summed.all() or name == "gpt_oss", "sinks take the rest of a row"


@pytest.mark.parametrize("name", each(WINDOWED))
def test_attention_outside_a_window_is_zero_and_counts_nowhere(name: str) -> None:
    """Correlation and norm are those of a loop over the keys inside."""
    trials, family = TASK.sample(3, seed=1), ATTENTION[name]
    _, layers = captured(in_float64(HFModel(tiny(name))), trials, "sampled")
    n_pos = trials.tokens.shape[1]
    for at, layer in enumerate(layers):
        window = family.window(at) or n_pos
        back = torch.arange(n_pos)[:, None] - torch.arange(n_pos)
        is_inside = (back >= 0) & (back < window)
        tally = layer_tally(layer, trials, is_inside)
        assert bool((layer.pattern[..., ~is_inside] == 0).all()) and bool((layer.pattern[..., is_inside] > 0).all())
        gain = (layer.pattern * layer.agreement).sum(-1, keepdim=True) - layer.agreement
        routing = (layer.pattern * gain)[..., is_inside].square().mean(-1).sqrt()
        torch.testing.assert_close(tally.routing_norm, routing)
        rows = [
            spearmanr(layer.pattern[0, 1, i, first : i + 1], gain[0, 1, i, first : i + 1])[0]
            for i in trials.scored[0].nonzero()[:, 0].tolist()
            if i + 1 - (first := max(0, i + 1 - window)) >= 3
        ]
        assert float(tally.correlation[0, 1]) == pytest.approx(np.mean(rows), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_is_widened(dtype: torch.dtype) -> None:
    hf = tiny("llama").to(dtype)
    report = bayesgeom.gradient_laws(HFModel(hf), TASK, n=3)
    assert np.nanmax(report.identity_error.value) < 1e-12
    assert {own.dtype for own in hf.parameters()} == {dtype}


def test_an_error_of_a_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HFModel(tiny("llama"))

    def broken(*given: object) -> None:
        raise RuntimeError("\"addmm_impl\" not implemented for 'Double'\nand a second line")

    monkeypatch.setattr(HFModel, "logits", broken)
    with pytest.raises(InvalidArgument, match=r"a pass in float64 with eager attention, which fails: .*'Double'\.$"):
        bayesgeom.gradient_laws(model, TASK, n=3)
