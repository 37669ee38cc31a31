"""States of recurrent layers: those in the model's own cache, those of transformer-lens, edits, and failed proofs."""

import copy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom import diagnose
from bayesgeom.core import run as s
from bayesgeom.diagnosis import plan
from bayesgeom.measurements.base import Subject
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.native.wrapped import Mamba2Config
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.process import Mess3
from tests.families import each
from tests.models.huggingface.test_sites import edited_logits, text
from tests.supported import tiny

FAMILIES = {  # of each recurrence: layers with states, heads × key × value
    "mamba": ((0, 1, 2), (68, 7)),
    "mamba2": ((0, 1, 2), (6, 8, 12)),
    "qwen3_next": ((0, 1), (4, 8, 8)),
    "recurrent_gemma": ((0, 1), (60,)),
}


@pytest.fixture(scope="module")
def models() -> Callable[[str], HFModel]:
    made = dict[str, HFModel]()
    return lambda name: made[name] if name in made else made.setdefault(name, HFModel(tiny(name)))


def cached(hf: Any, name: str, layer: int, tokens: Tensor) -> Tensor:
    """The state in the model's own cache after these tokens: heads × key × value."""
    with torch.no_grad():
        output = hf(input_ids=tokens, use_cache=True)
    if name == "recurrent_gemma":
        state: Tensor = hf.model.layers[layer].temporal_block.rg_lru.recurrent_states
        return state
    cache = output["cache_params"] if "cache_params" in output else output["past_key_values"]
    state = cache.get_recurrent_state(layer)
    return state.transpose(-1, -2) if name == "mamba2" else state


@pytest.mark.parametrize("name", FAMILIES)
def test_states_are_those_in_the_cache_after_every_prefix(name: str, models: Callable[[str], HFModel]) -> None:
    model, trials, (layers, shape) = models(name), text(), FAMILIES[name]
    states = model.run([trials], record=(s.STATE,), n_recorded=5).at(s.STATE).unflatten(-1, shape)
    assert model.layers_of(s.STATE) == layers and states.shape[:3] == (len(layers), *trials.tokens.shape)
    hf = copy.deepcopy(model.module)
    for row, layer in enumerate(layers):
        for n in (1, 4, 11):
            expected = cached(hf, name, layer, trials.tokens[:, :n])
            torch.testing.assert_close(states[row, :, n - 1], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3_next"])
def test_states_are_those_of_transformer_lens(name: str, models: Callable[[str], HFModel]) -> None:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model, trials, (layers, shape) = models(name), text(), FAMILIES[name]
    states = model.run([trials], record=(s.STATE,), n_recorded=5).at(s.STATE).unflatten(-1, shape)
    hf, part = copy.deepcopy(model.module), "linear_attn" if name == "qwen3_next" else "mixer"
    bridge = build_bridge_from_module(hf, type(hf).__name__, hf_config=hf.config, model_name="x", tokenizer=None)
    for layer in layers:
        bridge.get_submodule(f"blocks.{layer}.{part}").eager_scan = True
    _, cache = bridge.run_with_cache(trials.tokens, use_cache=False)
    for row, layer in enumerate(layers):
        found = cache[f"blocks.{layer}.{part}.hook_ssm_state"]
        found = {"mamba": lambda x: x.transpose(1, 2), "mamba2": lambda x: x.mT}.get(name, lambda x: x)(found)
        torch.testing.assert_close(states[row], found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_edit_changes_what_is_read_from_its_position_on(name: str, models: Callable[[str], HFModel]) -> None:
    model, trials, layer = models(name), text(), FAMILIES[name][0][-1]
    before = model.logits(trials)

    def turned(state: Tensor) -> Tensor:
        return torch.cat([state[:, :4], -state[:, 4:]], dim=1)

    unchanged = edited_logits(model, trials, s.STATE, layer, torch.clone)
    torch.testing.assert_close(unchanged, before, atol=1e-5, rtol=1e-5)
    found = edited_logits(model, trials, s.STATE, layer, turned)
    torch.testing.assert_close(found[:, :4], before[:, :4], atol=1e-5, rtol=1e-5)
    assert (found - before)[:, 4:].abs().amax(-1).min() > 1e-3
    assert torch.equal(model.logits(trials), before), "nothing is left behind"


def test_nothing_is_left_in_the_library(models: Callable[[str], HFModel]) -> None:
    model = models("mamba2")
    mixer = model.module.get_submodule("backbone.layers.0.mixer")
    names = vars(sys.modules[type(mixer).__module__])
    function = names["mamba2_chunk_scan"]

    def fail(_state: Tensor) -> Tensor:
        assert names["mamba2_chunk_scan"] is not function, "it is replaced while a state is hooked"
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        edited_logits(model, text(), s.STATE, 1, fail)
    assert names["mamba2_chunk_scan"] is function and "forward" not in vars(mixer)


def test_threads_get_the_states_of_their_own_models() -> None:
    one, two = (HFModel(Mamba2Config(d_vocab=97, n_ctx=61, n_layers=2, d_model=32).build(seed=i).whole) for i in (0, 1))

    def states(model: HFModel) -> Tensor:
        found: Tensor = model.run([text()], record=(s.STATE,), n_recorded=5).at(s.STATE)
        return found

    expected = [states(model) for model in (one, two)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(states, [one, two] * 6))
    assert all(torch.equal(x, expected[i % 2]) for i, x in enumerate(found))


def test_states_that_do_not_give_the_output_are_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = tiny("mamba2")
    names = vars(sys.modules[type(hf).__module__])
    function = names["mamba2_chunk_scan"]

    @wraps(function)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        return 1.0001 * function(*args, **kwargs)

    monkeypatch.setitem(names, "mamba2_chunk_scan", wrong)
    model = HFModel(hf)
    assert s.STATE not in model.sites and "what is read of state" in model.withheld[s.STATE]
    assert {s.RESID_PRE, s.RESID_POST} <= model.sites
    assert not any(part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in hf.modules())


def test_a_network_without_a_known_recurrence_says_so() -> None:
    model = HFModel(tiny("llama"))
    assert model.withheld[s.STATE] == "no recurrence of a known form" and model.spec.d_state == 0


def test_gradients_flow_through_states(models: Callable[[str], HFModel]) -> None:
    model, kept = models("mamba2"), list[Tensor]()

    def keep(state: Tensor) -> Tensor:
        kept.append(state.requires_grad_())
        return state

    handle = model.point(s.STATE, 1).register_forward_hook(lambda _module, _inputs, state: keep(state.detach()))
    try:
        model.logits(text()).square().sum().backward()
    finally:
        handle.remove()
    (gradient,) = (state.grad for state in kept)
    assert gradient is not None and gradient.abs().max() > 0


def test_probes_read_states_that_are_not_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    task = HMM(n_states=2, length=7)
    model = HFModel(Mamba2Config(d_vocab=task.d_vocab, n_ctx=61, n_layers=2, d_model=32).build(seed=0).whole)
    names = ("belief_readout", "value_manifold")
    report = diagnose(model, task, probes=names, n=32, n_untrained=0)
    for name in names:
        assert "state" in report[name].sites and "state" not in report.skipped
    assert model.spec.d_state == 64 * 32
    monkeypatch.setattr(plan, "_WIDEST_STATE", 2047)
    report = diagnose(model, task, probes=names, n=32, n_untrained=0)
    assert "state" not in report["belief_readout"].sites and "2,048 numbers" in report.skipped["state"]


@pytest.mark.parametrize("name", ["recurrent_gemma", *each(("qwen3_next", "jamba (with attention)"))])
def test_probes_measure_states_in_the_layers_that_have_them(name: str) -> None:
    model, task = HFModel(tiny(name)), Mess3(length=11)
    names = ("belief_readout", "belief_clusters", "value_manifold")
    layers = list(model.partial_sites[s.STATE])
    absent = [layer for layer in range(3) if layer not in layers]
    assert layers and absent
    found = diagnose(model, task, probes=names, n=24, n_untrained=1)
    whole = model.run(
        task.stream(24, seed=derived_seed(0, Branch.TRIALS)),
        record=(s.RESID_PRE, s.RESID_POST, s.STATE),
        n_recorded=24,
        seed=derived_seed(0, Branch.RESAMPLING),
    )
    for probe, field in zip(names, ("r2", "nearest_centroid_accuracy", "pc1_share"), strict=True):
        report, kind = found[probe], plan.all_probes()[probe]
        estimate, state = getattr(report, field), report.sites.index("state")
        assert np.isnan(estimate.value[state, absent]).all()
        assert all(np.isnan(end[state, absent]).all() for end in estimate.ends)
        assert all(np.isnan(level.value[state, absent]).all() for level in estimate.baselines)
        assert found.provenance["layers"][f"{probe} of state"] == layers
        assert f"{probe} of state: only layers {', '.join(map(str, layers))}" in found.summary()
        # The same numbers as of a model that has these layers alone, and of one without a state.
        alone = whole.within(layers, (s.RESID_POST, s.STATE))
        stream = whole.within(range(3), (s.RESID_PRE, s.RESID_POST))
        own = kind.of(Subject(run=alone))
        expected = getattr(own, field).value[own.sites.index("state")]
        np.testing.assert_allclose(estimate.value[state, layers], expected, rtol=1e-6)
        rows = [row for row, site in enumerate(report.sites) if site == "resid_post"]
        expected = getattr(kind.of(Subject(run=stream)), field).value
        np.testing.assert_allclose(estimate.value[rows], expected, rtol=1e-6)
