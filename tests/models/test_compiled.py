"""The compiled loops against float64 autograd, at sizes that fill no block, and against the same without numba."""

import inspect
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models import _loops as loops
from bayesgeom.models.native import scan
from bayesgeom.models.native.mamba import MambaConfig
from bayesgeom.models.native.scan import causal_conv_silu, plain_states, read_states, selective_scan
from tests.structure.test_light_import import heavy_after

# Sequences, positions, channels, states: none, one, or several full blocks and segments, with and without a rest.
SIZES = [
    (1, 1, 1, 1),
    (5, 13, 7, 3),
    (3, loops.SEGMENT, loops.BLOCK, 2),
    (2, 37, 2 * loops.BLOCK + 5, 3),
    (1, 61, 31, 5),
]
NAMES = ("x", "δ", "A", "B", "C", "D", "z")
LIMIT = 3e-6  # error, as a share of what is largest


def scan_inputs(sizes: tuple[int, int, int, int], steps: Callable[[Tensor], Tensor] = lambda raw: raw) -> list[Tensor]:
    batch, n_pos, n_channel, n_state = sizes
    generator = torch.Generator().manual_seed(0)
    rows, columns = (batch, n_pos, n_channel), (batch, n_pos, n_state)
    shapes = (rows, rows, (n_channel, n_state), columns, columns, (n_channel,), rows)
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    drawn[1], drawn[2] = steps(drawn[1]), -drawn[2].exp()
    return [tensor.requires_grad_() for tensor in drawn]


def plain(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Tensor:
    return read_states(plain_states(x, delta, A, B), x, C, D, z)


def result_and_gradients(function: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    out = function(*given)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad((out * weights.to(out.dtype)).sum(), given, materialize_grads=True)]


def assert_near(found: list[Tensor], expected: list[Tensor], limit: float = LIMIT) -> None:
    for name, own, twin in zip(("out", *NAMES), found, expected, strict=False):
        error = float((own.double() - twin.double()).abs().max())
        assert error <= limit * float(twin.abs().max()) + 1e-30, name


def widened(given: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in given]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the loops that were entered."""
    entered: list[str] = []
    for name in ("scan", "scan_backward", "convolve", "convolve_backward"):
        whole = getattr(loops, name)

        def enter(*given: object, name: str = name, whole: Callable[..., None] = whole) -> None:
            entered.append(name)
            whole(*given)

        monkeypatch.setattr(loops, name, enter)
    return entered


@pytest.mark.parametrize("sizes", SIZES)
def test_the_scan_is_the_plain_one_in_float64(sizes: tuple[int, int, int, int], calls: list[str]) -> None:
    given = scan_inputs(sizes)
    found = result_and_gradients(selective_scan, given)
    assert calls == ["scan", "scan_backward"]
    assert_near(found, result_and_gradients(plain, widened(given)))


@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_steps_of_any_size_are_taken(scale: float) -> None:
    given = scan_inputs((3, 19, 11, 5), lambda raw: raw * scale)
    assert_near(result_and_gradients(selective_scan, given), result_and_gradients(plain, widened(given)))


@pytest.mark.parametrize("spoilt", range(7))
def test_what_is_no_number_stays_none(spoilt: int) -> None:
    given = [tensor.detach() for tensor in scan_inputs((2, 19, 11, 5))]
    given[spoilt].view(-1)[-1] = math.nan
    found, expected = selective_scan(*given), plain(*given)
    assert expected.isnan().any()
    assert torch.equal(found.isnan(), expected.isnan())


def test_the_same_without_numba(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    given = scan_inputs((5, 13, 7, 3))
    fast = result_and_gradients(selective_scan, given)
    entered = list(calls)
    monkeypatch.setattr(scan, "has_numba", lambda: False)
    assert_near(result_and_gradients(selective_scan, given), fast)
    assert calls == entered


def test_a_whole_model_is_the_same_without_numba(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    module = MambaConfig(d_vocab=11, n_ctx=17, n_layers=2, d_model=10, d_state=3).build(seed=0)
    tokens = torch.randint(11, (5, 17), generator=torch.Generator().manual_seed(2))
    weights = list(module.parameters())
    fast = result_and_gradients(lambda *_: module(tokens), weights)
    assert len(calls) == 8  # two layers, a scan and a convolution each, there and back
    monkeypatch.setattr(scan, "has_numba", lambda: False)
    slow = result_and_gradients(lambda *_: module(tokens), weights)
    # The longest chain of float32 additions has 353 links: in each of 2 layers products over 10, 20 and 20 terms, a
    # convolution over 4 and a scan over 17; an unembedding over 10; the same back; a sum over 5 · 17 rows. Each link is
    # off by at most 2^-24 of the tensor's largest entry, in either way of computing. (Found: up to 16 links' worth.)
    limit = 2 * 353 * 2.0**-24
    for own, twin in zip(fast, slow, strict=True):
        assert float((own - twin).abs().max()) <= limit * float(twin.abs().max())
    with torch.no_grad():
        module.blocks[0].mixer.A_log.add_(1e-2)  # a scan that decays one percent faster is no rounding
    changed = result_and_gradients(lambda *_: module(tokens), weights)
    assert any(float((a - b).abs().max()) > limit * float(b.abs().max()) for a, b in zip(changed, slow, strict=True))


def test_the_same_numbers_every_time() -> None:
    given = scan_inputs((2, 37, 131, 3))
    first, second = (result_and_gradients(selective_scan, given) for _ in range(2))
    assert all(torch.equal(own, twin) for own, twin in zip(first, second, strict=True))


def test_states_that_grow_are_left_to_torch(calls: list[str]) -> None:
    given = scan_inputs((2, 5, 7, 3))
    given[2] = given[2].detach().abs().requires_grad_()
    found = result_and_gradients(selective_scan, given)
    assert calls == []
    assert_near(found, result_and_gradients(plain, widened(given)))


@pytest.mark.parametrize("wrong", range(7))
def test_shapes_that_do_not_fit_never_reach_the_loops(wrong: int, calls: list[str]) -> None:
    given = [tensor.detach() for tensor in scan_inputs((2, 5, 7, 3))]
    given[wrong] = given[wrong][..., :-1]
    with pytest.raises((RuntimeError, UserWarning)):
        inspect.unwrap(selective_scan)(*given)  # without the tests' own look at shapes
    with pytest.raises((RuntimeError, UserWarning)):
        inspect.unwrap(causal_conv_silu)(given[0][..., :3], given[2], given[5][:5])
    assert calls == []


def test_a_second_derivative_is_refused() -> None:
    given = scan_inputs((2, 5, 7, 3))
    for out in (selective_scan(*given), causal_conv_silu(given[0], given[2], given[5])):
        with pytest.raises(InvalidArgument, match=r"first derivatives only.*hook_state"):
            torch.autograd.grad(out.sum(), given[0], create_graph=True)


@pytest.mark.parametrize(("n_pos", "n_channel", "n_tap"), [(1, 1, 4), (2, 7, 4), (13, 131, 3), (5, 3, 1)])
def test_the_convolution_is_torchs_in_float64(n_pos: int, n_channel: int, n_tap: int, calls: list[str]) -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = ((5, n_pos, n_channel), (n_channel, n_tap), (n_channel,))
    given = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]

    def twin(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide = nn.functional.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=n_tap - 1, groups=n_channel)
        return nn.functional.silu(wide[:, :, :n_pos]).transpose(1, 2)

    found = result_and_gradients(causal_conv_silu, given)
    assert calls == ["convolve", "convolve_backward"]
    assert_near(found, result_and_gradients(twin, widened(given)))


def test_the_arithmetic_is_good_to_the_last_bits() -> None:
    below, between, around = -np.geomspace(1e-8, 86, 2001), np.geomspace(1e-8, 1, 1001), np.linspace(-80, 80, 1001)
    for function, twin, points in (
        (loops._exp, np.exp, below),
        (loops._log1p, np.log1p, between),
        (loops._logistic, lambda x: 1 / (1 + np.exp(-x)), around),
    ):
        points = points.astype(np.float32)
        expected = twin(points.astype(np.float64))
        found = np.array([function(point) for point in points])
        assert np.abs(found / expected - 1).max() < 3.5e-7
    assert loops._exp(np.float32(0)) == 1
    assert 0 <= loops._exp(np.float32(-1e30)) < 1e-37


def test_without_a_place_for_its_cache_it_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loops.numba.njit

    def without_a_place(cache: bool = False, **options: object) -> Callable[..., object]:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return whole(**options)

    monkeypatch.setattr(loops.numba, "njit", without_a_place)
    twice = loops._compiled(inspect.unwrap(lambda x: x + x))
    assert twice(3) == 6


@pytest.mark.exhaustive
def test_numba_loads_with_the_first_scan_and_not_before() -> None:
    assert "numba" not in heavy_after("import bayesgeom.models.native.mamba")
    assert "numba" in heavy_after("import numba")
