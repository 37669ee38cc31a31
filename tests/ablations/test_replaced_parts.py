"""Models whose parts were replaced: ablations measure the model as it runs, or refuse in one sentence."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bayesgeom
from bayesgeom.ablations import Ablation, Component
from bayesgeom.ablations.engine import score_batch
from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.lstm import LSTMConfig
from bayesgeom.models.native.mamba import MambaConfig
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.models.resolve import as_model
from tests.ablations.plain import TASK, Plain, heads, lively, scored

TRIALS, LAST = TASK.sample(17, seed=2), TASK.sample(17, seed=2).rows(slice(-1, None))
BATTERY = [Ablation(heads(place)) for place in ((0, 1), (1, 4))] + [Ablation((Component(1, "mlp"),))]
BATTERY += [Ablation((Component(1, "attention"),)), Ablation((*heads((0, 3)), Component(0, "mlp")))]


class Louder(Transformer):
    """A subclass that computes other logits from the same weights."""

    def logits(self, resid: torch.Tensor) -> torch.Tensor:
        return 1.5 * super().logits(resid)


def patched_mlp(module: Transformer) -> None:
    mlp, plain = module.blocks[0].mlp, module.blocks[0].mlp.forward
    mlp.forward = lambda x: 2 * plain(x)


def patched_model(module: Transformer) -> None:
    plain = module.forward
    module.forward = lambda tokens, at=None: 1.5 * plain(tokens, at)


def patched_class_of_a_part(module: Transformer) -> None:
    class Twice(type(module.blocks[0].mlp)):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    module.blocks[0].mlp.__class__ = Twice


def patched_attention(module: Transformer) -> None:
    attention = module.blocks[1].attn
    for name in ("_fused", "_eager"):
        plain = getattr(attention, name)
        setattr(attention, name, lambda q, k, v, plain=plain: plain(2 * q, k, v))


def replaced_mlp(module: Transformer) -> None:
    torch.manual_seed(0)
    module.blocks[0].mlp = nn.Sequential(nn.Linear(30, 11), nn.ReLU(), nn.Linear(11, 30))


def biased_queries(module: Transformer) -> None:
    torch.manual_seed(0)
    module.blocks[1].attn.W_Q = nn.Linear(30, 30)


def no_final_norm(module: Transformer) -> None:
    module.ln_final = nn.Identity()


def hook(module: Transformer) -> None:
    module.blocks[0].mlp.register_forward_hook(lambda _m, _i, out: 2 * out)


def pre_hook(module: Transformer) -> None:
    module.blocks[0].mlp.register_forward_pre_hook(lambda _m, given: (2 * given[0],))


def hook_of_every_edit(module: Transformer) -> None:
    """It changes no unedited pass: only activations that an ablation has set to zero."""
    module.blocks[2].register_forward_pre_hook(lambda _m, given: (given[0] + 1.0 * (given[0].abs().min() == 0),))


def appended_block(module: Transformer) -> None:
    module.blocks.append(copy.deepcopy(module.blocks[1]))


def pruned_keys(module: Transformer) -> None:
    prune.l1_unstructured(module.blocks[0].attn.W_K, "weight", 0.5)


def subclass(module: Transformer) -> None:
    module.__class__ = Louder


CHANGES = [
    patched_mlp,
    patched_model,
    patched_class_of_a_part,
    patched_attention,
    replaced_mlp,
    biased_queries,
    no_final_norm,
    hook,
    pre_hook,
    hook_of_every_edit,
    appended_block,
    pruned_keys,
    subclass,
]


@pytest.mark.filterwarnings("ignore:.*every ablation runs a full forward pass")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_ablations_are_those_of_the_model_as_it_runs(change: Callable[[Transformer], None]) -> None:
    module = lively().module
    change(module)
    model, plain = HookedModel(module, task=TASK), Plain(module, TRIALS, {}, {})
    variants = [ablation.edits("zero") for ablation in BATTERY]
    found = score_batch(model.replayer(), TRIALS, LAST, variants, {})
    with torch.no_grad():
        expected = scored(TRIALS.at_scored(module(TRIALS.tokens)), TRIALS)
    np.testing.assert_allclose(found.baseline, expected, atol=1e-5, rtol=0)
    for ablation, scores in zip(BATTERY, found.variants, strict=True):
        np.testing.assert_allclose(scores, plain.scores(ablation, "zero"), atol=1e-5, rtol=0, err_msg=ablation.label)
    assert model.spec.n_layers == len(module.blocks)
    unablated = bayesgeom.ablate(model, n=23, battery="mlps").unablated_kl_bits.value
    calibration = bayesgeom.diagnose(model, n=23, n_untrained=1, probes=["calibration"])["calibration"]
    assert float(unablated) == pytest.approx(float(calibration.kl_bits.value), abs=1e-5)


def test_sites_of_replaced_attention_are_withheld() -> None:
    module = lively().module
    module.blocks[1].attn = nn.Linear(30, 30)
    model = HookedModel(module, task=TASK)
    assert {s.Z, s.PATTERN, s.K, s.W_K, s.TOKEN_KEYS} <= model.withheld.keys()
    assert {s.RESID_PRE, s.ATTN_OUT, s.MLP_OUT, s.RESID_POST, s.TOKEN_EMBEDDINGS} <= model.sites
    with pytest.raises(MissingSite, match="'z'"):
        bayesgeom.ablate(model, n=5, battery="heads")


def test_a_matrix_that_is_not_the_projection_is_withheld() -> None:
    module = lively().module
    module.blocks[1].attn.W_K.forward = lambda x: x.flip(-1)
    assert {s.TOKEN_KEYS, s.TOKEN_INPUTS, s.W_K, s.W_K_GRAM} == HookedModel(module).withheld.keys()


def hollow(module: Transformer) -> None:
    module.blocks[1].to("meta")


def mixed(module: Transformer) -> None:
    module.blocks[0].half()


def mixed_double(module: Transformer) -> None:
    module.ln_final.double()


def empty(module: Transformer) -> None:
    module.blocks = module.blocks[:0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (hollow, r"blocks\.1\.ln1\.w of transformer"),
        (mixed, "transformer .*float16 and float32"),
        (mixed_double, "transformer .*float32 and float64"),
        (empty, "transformer has no blocks"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_work_begins(
    change: Callable[[Transformer], None], message: str
) -> None:
    module = lively().module
    change(module)
    for measure in (bayesgeom.diagnose, bayesgeom.ablate):
        with pytest.raises(InvalidArgument, match=message):
            measure(module, TASK, n=5)
    attached = HookedModel(lively().module, name="transformer")
    change(attached.module)
    with pytest.raises(InvalidArgument, match=message):
        bayesgeom.ablate(attached, TASK, n=5)


@pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.bfloat16, nn.Module.double])
def test_other_dtypes_give_their_own_numbers(convert: Callable[[nn.Module], nn.Module]) -> None:
    exact = bayesgeom.ablate(lively().module, TASK, n=23, battery="mlps")
    module = convert(lively().module)
    found = bayesgeom.ablate(module, TASK, n=23, battery="mlps")
    assert found.provenance["model"]["dtype"] == str(next(module.parameters()).dtype).removeprefix("torch.")
    eps = max(torch.finfo(next(module.parameters()).dtype).eps, 1e-6)
    np.testing.assert_allclose(found.kl_increase_bits.value, exact.kl_increase_bits.value, atol=20 * eps)


@pytest.mark.parametrize("config", [LSTMConfig, MambaConfig], ids=lambda config: config.name)
def test_blocks_that_share_more_than_the_residual_run_full_passes(config: type) -> None:
    module, first = config(d_vocab=22, n_ctx=13, n_layers=3, d_model=18).build(seed=0), list[torch.Tensor]()
    module.blocks[0].register_forward_hook(lambda _m, _i, out: first.append(out) and None)
    plain = module.blocks[2].forward
    module.blocks[2].forward = lambda resid: plain(resid) + 3 * first[-1]
    model = as_model(module)
    with pytest.warns(UserWarning, match="block 2"):
        assert isinstance(model.replayer(), PlainLoop)
    module.blocks = module.blocks[:2]
    short = as_model(module)
    assert short.spec.n_layers == 2 and math.isfinite(float(short.run([TRIALS]).behavior.kl_bits.mean()))
