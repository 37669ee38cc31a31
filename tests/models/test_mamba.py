"""Mamba against Hugging Face's, against a loop over channels, and its fast scan against the plain one."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.native import scan
from bayesgeom.models.native import scan as causal_conv
from bayesgeom.models.native.mamba import Mamba, MambaConfig
from bayesgeom.models.native.scan import causal_conv_silu, plain_states, read_states, selective_scan
from benchmarks.mamba_step import huggingface_twin, their_name
from tests.weights import perturbed

SMALL = MambaConfig(d_vocab=11, n_ctx=7, n_layers=2, d_model=10, d_state=3, d_conv=4, expand=2, dt_rank=5)


def lively(config: MambaConfig = SMALL) -> Mamba:
    """A Mamba whose weights are large enough for every term to show."""
    return perturbed(Mamba(config, seed=0), 0.2).eval()


def some_tokens(n_pos: int = 7) -> Tensor:
    return torch.randint(11, (5, n_pos), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("n_pos", [1, 3, 7, 13])
def test_outputs_and_gradients_are_those_of_huggingface(n_pos: int) -> None:
    module = lively()
    twin, tokens = huggingface_twin(module).eval(), some_tokens(n_pos)
    ours, theirs = module(tokens), twin(input_ids=tokens).logits
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3))
    for logits in (ours, theirs):
        (logits * weights).mean().backward()
    gradients = {name: parameter.grad for name, parameter in twin.named_parameters()}
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[their_name(name)], atol=1e-5, rtol=1e-5, msg=name)


def scan_inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, δ, A, B, C, D, z for 5 sequences, 13 positions, 7 channels with 3 states."""
    generator = torch.Generator().manual_seed(4)
    shapes = ((5, 13, 7), (5, 13, 7), (7, 3), (5, 13, 3), (5, 13, 3), (7,), (5, 13, 7))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    drawn[2] = -drawn[2].exp()
    return [tensor.to(dtype).requires_grad_() for tensor in drawn]


def plain(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Tensor:
    return read_states(plain_states(x, delta, A, B), x, C, D, z)


@pytest.mark.parametrize("at_once", [1, 5])
@pytest.mark.parametrize("segment", [1, 4, 20])
def test_the_fast_scan_is_the_plain_one(monkeypatch: pytest.MonkeyPatch, at_once: int, segment: int) -> None:
    monkeypatch.setattr(scan, "_CPU_BYTES", at_once * 7 * 3 * 8)
    monkeypatch.setattr(scan, "_SEGMENT", segment)
    given = scan_inputs()
    weights = torch.randn(5, 13, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    fast, slow = selective_scan(*given), plain(*given)
    torch.testing.assert_close(fast, slow, atol=1e-12, rtol=1e-12)
    found, expected = (torch.autograd.grad((out * weights).sum(), given) for out in (fast, slow))
    for own, twin in zip(found, expected, strict=True):
        torch.testing.assert_close(own, twin, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_steps_of_any_size_are_taken(scale: float) -> None:
    given = [tensor.detach() for tensor in scan_inputs(torch.float32)]
    given[1] *= scale
    torch.testing.assert_close(selective_scan(*given), plain(*given), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("spoilt", range(7))
def test_what_is_no_number_stays_none(spoilt: int) -> None:
    given = [tensor.detach() for tensor in scan_inputs()]
    given[spoilt].view(-1)[-1] = torch.nan
    found, expected = selective_scan(*given), plain(*given)
    assert expected.isnan().any() and torch.equal(found.isnan(), expected.isnan())


def test_a_second_derivative_is_refused() -> None:
    given = scan_inputs()
    with pytest.raises(InvalidArgument, match=r"first derivatives only.*hook_state"):
        torch.autograd.grad(selective_scan(*given).sum(), given[0], create_graph=True)


def test_states_are_those_of_a_loop_over_channels() -> None:
    x, raw, A, B = (tensor.detach().numpy() for tensor in scan_inputs()[:4])
    delta, states = np.log1p(np.exp(raw)), np.zeros((5, 13, 7, 3))
    for sequence, channel, n in np.ndindex(5, 7, 3):
        h = 0.0
        for t in range(13):
            step = delta[sequence, t, channel]
            h = np.exp(step * A[channel, n]) * h + step * B[sequence, t, n] * x[sequence, t, channel]
            states[sequence, t, channel, n] = h
    found = plain_states(*(torch.from_numpy(array) for array in (x, raw, A, B)))
    np.testing.assert_allclose(found.numpy(), states, atol=1e-12)


def test_half_precision_comes_back_as_it_came_and_is_summed_in_float32() -> None:
    half = [tensor.detach().bfloat16().requires_grad_() for tensor in scan_inputs()]
    wide = [tensor.detach().float().requires_grad_() for tensor in half]
    with torch.autocast("cpu", torch.bfloat16):
        out = selective_scan(*half)
    assert out.dtype == torch.bfloat16
    twin = selective_scan(*wide)
    torch.testing.assert_close(out, twin.bfloat16(), atol=0, rtol=0)
    found, expected = (torch.autograd.grad(own.float().sum(), given) for own, given in ((out, half), (twin, wide)))
    for own, wider in zip(found, expected, strict=True):
        assert own.dtype == torch.bfloat16
        torch.testing.assert_close(own.float(), wider, atol=0.03 * float(wider.abs().max()), rtol=0.02)


@pytest.mark.parametrize("n_pos", [1, 3, 13])
def test_the_convolution_is_torchs(monkeypatch: pytest.MonkeyPatch, n_pos: int) -> None:
    monkeypatch.setattr(causal_conv, "_CPU_BYTES", 2 * n_pos * 7 * 8)
    generator = torch.Generator().manual_seed(6)
    x, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((5, n_pos, 7), (7, 4), (7,))
    )
    twin = nn.functional.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=3, groups=7)[:, :, :n_pos]
    twin = nn.functional.silu(twin).transpose(1, 2)
    out = causal_conv_silu(x, weight, bias)
    torch.testing.assert_close(out, twin, atol=1e-12, rtol=1e-12)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    found, expected = (torch.autograd.grad((y * weights).sum(), (x, weight, bias)) for y in (out, twin))
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, atol=1e-12, rtol=1e-12)


def test_every_hook_has_its_name_and_watching_changes_nothing() -> None:
    module, tokens = lively(), some_tokens()
    with torch.no_grad():
        alone = module(tokens)
        logits, cache = module.run_with_cache(tokens)
    in_block = {f"blocks.{layer}.hook_{name}" for layer in (0, 1) for name in ("resid_pre", "state", "resid_post")}
    assert set(cache) == {"hook_embed", *in_block}
    assert cache["blocks.0.hook_state"].shape == (5, 7, 20 * 3)
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)


def test_an_edited_state_changes_what_is_read_there_and_later_layers_but_nothing_before() -> None:
    module, tokens = lively(), some_tokens()

    def silence(states: Tensor, hook: object) -> Tensor:
        return torch.where(torch.arange(7)[:, None] == 3, 0.0, states)

    with torch.no_grad():
        before = module(tokens)
        after = module.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_state", silence)])
        torch.testing.assert_close(module(tokens), before, atol=0, rtol=0)
    assert (after - before)[:, 3:].abs().amax() > 1e-3
    torch.testing.assert_close(after[:, :3], before[:, :3], atol=1e-6, rtol=0)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="every size of a Mamba must be at least 1"):
        MambaConfig(d_vocab=11, n_ctx=7, d_state=0)
