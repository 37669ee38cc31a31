"""Hugging Face models that were altered: the numbers of a whole pass, or one sentence before work begins."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils import prune

import bayesgeom
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.resolve import as_model
from bayesgeom.tasks.bijection import Bijection
from tests.families import _sizes
from tests.models.test_replay_baselines import Zero

TASK = Bijection(n_values=11, n_pairs=5)


def llama(**options: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    hf = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_sizes() | {"vocab_size": 22}, **options)).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.mul_(3)
    return hf


def louder_attention(hf: Any) -> None:
    attention = hf.model.layers[0].self_attn
    plain = attention.forward

    def forward(*given: Any, **named: Any) -> Any:
        out, *rest = plain(*given, **named)
        return (2 * out, *rest)

    attention.forward = forward


def pruned_mlp(hf: Any) -> None:
    prune.l1_unstructured(hf.model.layers[0].mlp.up_proj, "weight", 0.5)


def pruned_keys(hf: Any) -> None:
    prune.l1_unstructured(hf.model.layers[0].self_attn.k_proj, "weight", 0.5)


def frozen(hf: Any) -> None:
    hf.requires_grad_(requires_grad=False)


def with_zeros(hf: Any, path: str, tokens: torch.Tensor) -> torch.Tensor:
    """Logits with the output of one part set to zero, by a plain hook."""
    handle = hf.get_submodule(path).register_forward_hook(
        lambda _m, _i, out: (0 * out[0], *out[1:]) if isinstance(out, tuple) else 0 * out
    )
    with torch.no_grad():
        logits = hf(input_ids=tokens).logits
    handle.remove()
    return logits


@pytest.mark.parametrize("alter", [louder_attention, pruned_mlp, pruned_keys, frozen], ids=lambda own: own.__name__)
def test_altered_models_are_measured_as_they_run(alter: Callable[[Any], None]) -> None:
    hf = llama()
    alter(hf)
    model, trials = as_model(hf), TASK.sample(13, seed=1)
    battery = [bayesgeom.ablations.Ablation((bayesgeom.ablations.Component(1, kind),)) for kind in ("mlp", "attention")]
    replayer = model.replayer()
    baseline = replayer.baseline(trials)
    for ablation, path in zip(battery, ("model.layers.1.mlp", "model.layers.1.self_attn"), strict=True):
        (found,) = replayer.logits(baseline, [ablation.edits("zero")], Zero())
        torch.testing.assert_close(found, trials.at_scored(with_zeros(hf, path, trials.tokens)), atol=1e-4, rtol=1e-4)
    report = bayesgeom.ablate(model, TASK, "mlps", n=13)
    calibration = bayesgeom.diagnose(model, TASK, n=13, n_untrained=0, probes=["calibration"])["calibration"]
    assert float(report.unablated_kl_bits.value) == pytest.approx(float(calibration.kl_bits.value), abs=1e-5)


def mixed(hf: Any) -> None:
    hf.model.layers[0].half()


def mixed_norm(hf: Any) -> None:
    hf.model.norm.double()


def short(hf: Any) -> None:
    hf.model.layers = hf.model.layers[:1]


def tuples(hf: Any) -> None:
    hf.config.return_dict = False


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (mixed, "LlamaForCausalLM .*7 random tokens.* dtype"),
        (mixed_norm, "LlamaForCausalLM .*7 random tokens.* dtype"),
        (short, "LlamaForCausalLM .* 3 blocks"),
        (tuples, "LlamaForCausalLM .*return_dict=False"),
    ],
    ids=["mixed", "mixed norm", "short", "tuples"],
)
def test_models_that_cannot_run_are_refused(alter: Callable[[Any], None], message: str) -> None:
    hf, attached = llama(), as_model(llama())
    alter(hf)
    with pytest.raises(InvalidArgument, match=message):
        bayesgeom.diagnose(hf, TASK, n=3)
    if alter is not tuples:
        alter(attached.module)
        with pytest.raises(InvalidArgument, match=message):
            bayesgeom.ablate(attached, TASK, n=3)
