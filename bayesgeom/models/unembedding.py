"""What a model does after its last block, found by what its parts compute: the logit lens applies it to every layer.

No family is named. One pass perturbs the last residual, and the modules that run after it are recorded. The path back
from the logits is then followed: a soft cap, a scale, the output matrix, and the parts between it and the residual.
The path is used only if it gives the logits of that pass; so the lens of the last layer is the model's own output.

References:
    nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from bayesgeom.core import RESID_POST, ModelSpec, Site, Trials
from bayesgeom.core.torch_state import Hook, evaluating, hooked, site_hook
from bayesgeom.models.adapters.proof import (
    NOISE,
    factor_between,
    first_input,
    first_output,
    relative_error,
    sentinel_trials,
    tolerance_of,
)

_LONGEST = 4  # parts between the last block and the output matrix
_LARGE = 64.0  # size at which the ε of a norm is negligible; exact in half precision
_AT_ONCE = 64  # unit vectors in a product that gives a matrix
_ROUNDING = 1e-3  # of a factor of many bfloat16 numbers


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Unembedding:
    """The final norm, the output matrix, and the scale and the cap of the logits.

    Attributes:
        parts: Modules that the residual passes, the final norm among them.
        factors: Factor of the residual, and of the output of each part.
        matrix: The output matrix; None if `output` must be called.
        bias: Its bias, if it has one.
        output: The module that computes logits with weights that are not plain, such as quantized ones.
        scale: Factor of the logits.
        soft_cap: c in c · tanh(logits / c). None: no cap.
    """

    parts: tuple[nn.Module, ...]
    factors: tuple[float, ...]
    matrix: Float[Tensor, "d_vocab d_model"] | None
    bias: Float[Tensor, " d_vocab"] | None
    output: nn.Module | None
    scale: float
    soft_cap: float | None

    def logits(
        self, resid: Float[Tensor, "*batch d_model"], ids: Int64[Tensor, " answer"] | None = None
    ) -> Float[Tensor, "*batch answer"]:
        """Return the logits of these ids that a residual after the last block would give.

        Args:
            resid: Residuals, of any layer.
            ids: Token ids. Default: all.
        """
        x = resid * self.factors[0] if self.factors[0] != 1 else resid
        for part, factor in zip(self.parts, self.factors[1:], strict=True):
            x = part.forward(x)  # without hooks: these belong to the model's own pass
            x = x * factor if factor != 1 else x
        logits = self._read(x, ids)
        return self.capped(logits * self.scale if self.scale != 1 else logits)

    def _read(
        self, x: Float[Tensor, "*batch d_model"], ids: Int64[Tensor, " answer"] | None
    ) -> Float[Tensor, "*batch answer"]:
        if self.matrix is None:
            assert self.output is not None, "it has a matrix or a module"
            every: Tensor = self.output.forward(x)
            return every if ids is None else every[..., ids.to(every.device)]
        rows = slice(None) if ids is None else ids.to(self.matrix.device)
        bias = None if self.bias is None else self.bias[rows]
        return nn.functional.linear(x.to(self.matrix), self.matrix[rows], bias)

    def capped(self, logits: Float[Tensor, "*batch answer"]) -> Float[Tensor, "*batch answer"]:
        """Return logits after the soft cap, if there is one."""
        return logits if self.soft_cap is None else self.soft_cap * (logits / self.soft_cap).tanh()

    @torch.no_grad()
    def linear(self, ids: Int64[Tensor, " answer"], like: Float[Tensor, "*batch d_model"]) -> "LinearEnd | None":
        """Return the path with the factors of its norms apart; None if a part is neither linear nor a norm.

        Args:
            ids: Token ids.
            like: Residuals, which give width, dtype and device.
        """
        steps, width = list[tuple[nn.Module, float, FrozenNorm | None]](), like.shape[-1]
        matrix = self.factors[0] * torch.eye(width, dtype=torch.float64, device=like.device)
        for part, factor in zip(self.parts, self.factors[1:], strict=True):
            probe = like.new_zeros(1, matrix.shape[1])
            norm = FrozenNorm.of(part, probe)
            if norm is None and not _is_affine(part.forward, probe):
                return None
            matrix = factor * (matrix_of(part.forward, matrix, probe) if norm is None else norm.applied(matrix))
            steps.append((part, factor, norm))
        probe = like.new_zeros(1, matrix.shape[1])
        matrix = self.scale * matrix_of(lambda x: self._read(x, ids), matrix, probe)
        return LinearEnd(matrix=matrix.T.contiguous(), factor=self.factors[0], steps=tuple(steps))

    def log_answers(
        self, resid: Float[Tensor, "*batch d_model"], answers: Int64[Tensor, " answer"]
    ) -> Float[Tensor, "*batch answer"]:
        """Return the natural-log probabilities of the answers, renormalized over them, in float64."""
        return self.logits(resid, answers).double().log_softmax(dim=-1)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenNorm:
    """A norm without its factor: x, centered if the norm centers, times its weight. The norm is a multiple of that.

    Attributes:
        part: The norm.
        weight: Its weight, up to a factor.
        bias: Its output for 0.
        is_centered: Whether it subtracts the mean.
    """

    part: nn.Module
    weight: Float64[Tensor, " d"]
    bias: Float64[Tensor, " d"]
    is_centered: bool

    @classmethod
    @torch.no_grad()
    def of(cls, part: nn.Module, like: Float[Tensor, "*batch d"]) -> "FrozenNorm | None":
        """Return a norm of vectors like these; None if the part is none."""
        width = like.shape[-1]
        signs = like.new_ones(1, width)
        signs[:, 1::2] = -1
        large, shifted = _LARGE * signs, _LARGE * (signs + 0.5)  # both exact in half precision
        bias = part.forward(torch.zeros_like(large)).double()[0]
        odd = part.forward(large).double() - bias
        if odd.shape[-1] != width:
            return None
        is_centered = relative_error(part.forward(shifted).double() - bias, odd) <= _ROUNDING
        centered = large.double() - large.double().mean() * is_centered
        unembedding = cls(part=part, weight=(odd / centered)[0], bias=bias, is_centered=is_centered)
        noise = torch.randn(3, width, generator=torch.Generator().manual_seed(0)).to(like)
        lengths = torch.tensor([[0.5], [1.0], [4.0]]).to(like)
        given = noise * lengths
        out = part.forward(given).double() - bias
        expected = unembedding.scale(given) * unembedding.applied(given.double())
        tolerance = max(_ROUNDING, 8 * torch.finfo(like.dtype).eps)
        return unembedding if relative_error(out, expected) <= tolerance else None

    def applied(self, x: Float64[Tensor, "*batch d"]) -> Float64[Tensor, "*batch d"]:
        """Return vectors, centered if the norm centers, times the weight. It is linear."""
        return (x - x.mean(dim=-1, keepdim=True) if self.is_centered else x) * self.weight

    @torch.no_grad()
    def scale(self, x: Float[Tensor, "*batch d"]) -> Float64[Tensor, "*batch 1"]:
        """Return the factor by which the norm's output for x, without its bias, exceeds `applied(x)`."""
        plain, out = self.applied(x.double()), self.part.forward(x).double() - self.bias
        squared = plain.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        return cast(Tensor, (plain * out).sum(dim=-1, keepdim=True) / squared)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LinearEnd:
    """The path from the last residual to the logits before the soft cap, as a matrix times a factor of each residual.

    Attributes:
        matrix: Maps residuals, or parts of them, to logits, up to the factor of the final norm.
        factor: Of the residual.
        steps: Each part with the factor of its output and, if it is one, its norm.
    """

    matrix: Float64[Tensor, "answer d_model"]
    factor: float
    steps: tuple[tuple[nn.Module, float, FrozenNorm | None], ...]

    @torch.no_grad()
    def scale(self, resid: Float[Tensor, "*batch d_model"]) -> Float64[Tensor, "*batch 1"]:
        """Return the factor that the norms give a residual: frozen, all of its parts share it."""
        x = resid * self.factor
        scale = torch.ones_like(resid[..., :1], dtype=torch.float64)
        for part, factor, norm in self.steps:
            scale = scale if norm is None else scale * norm.scale(x)
            x = part.forward(x) * factor
        return scale


@torch.no_grad()
def matrix_of(
    part: Callable[[Tensor], Tensor], rows: Float64[Tensor, "row width"], like: Float[Tensor, "*batch width"]
) -> Float64[Tensor, "row out"]:
    """Return what an affine function makes of rows, without its constant; a few rows at a time."""
    none = part(like.new_zeros(1, 1, rows.shape[1]))
    return torch.cat([(part(row[None].to(like)) - none)[0].double() for row in rows.split(_AT_ONCE)])


def _is_affine(part: Callable[[Tensor], Tensor], like: Float[Tensor, "*batch width"]) -> bool:
    noise = torch.randn(1, 2, like.shape[-1], generator=torch.Generator().manual_seed(0)).to(like)
    none, one, other, both = (
        part(x) for x in (torch.zeros_like(noise[:, :1]), noise[:, :1], noise[:, 1:], noise.sum(1, keepdim=True))
    )
    return relative_error(both + none, one + other) <= max(_ROUNDING, 8 * torch.finfo(like.dtype).eps)


@final
@dataclass(frozen=True, kw_only=True)
class _Call:
    part: nn.Module
    given: Tensor
    gave: Tensor


@torch.no_grad()
def unembedding_of(
    module: nn.Module,
    logits: Callable[[Trials], Float[Tensor, "batch query_pos d_vocab"]],
    point: Callable[[Site, int], nn.Module],
    spec: ModelSpec,
) -> Unembedding | None:
    """Find what a model does after its last block, in one pass on a few tokens.

    Args:
        module: The whole model, whose lock is held.
        logits: Runs a pass.
        point: Returns the module of a site and layer; that of the last resid_post is read and edited.
        spec: The sizes of the model.

    Returns:
        The first path from the last residual that gives the logits, of a model that normalizes them up to a constant
        of each position; None if there is none.
    """
    place, calls, resids = (RESID_POST, spec.n_layers - 1), list[_Call](), list[Tensor]()
    began_after = dict[nn.Module, bool]()  # the last block; what began before holds blocks itself
    generator = torch.Generator().manual_seed(0)

    def perturb(output: Tensor) -> Tensor:
        # Other lengths at other positions, so that a norm cannot be mistaken for a constant factor.
        lengths = torch.linspace(0.5, 1.5, output.shape[1])[:, None].to(output)
        noise = torch.randn(output.shape, generator=generator).to(output)
        resids.append(lengths * (output + NOISE * output.float().std().to(output) * noise))
        return resids[-1].clone()  # a model may modify it in place

    def begin(part: nn.Module, _args: object) -> None:
        began_after[part] = bool(resids)

    def keep(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        given, gave = first_input(args, kwargs), first_output(output)
        if not began_after.get(part) or given is None or not given.is_floating_point() or not isinstance(gave, Tensor):
            return
        n, n_pos = resids[0].shape[:2]
        if given.shape[0] == n * n_pos == gave.shape[0]:
            given, gave = (x.reshape(n, n_pos, -1) for x in (given, gave))
        elif given.shape[:2] == (n_pos, n) == gave.shape[:2]:
            given, gave = given.transpose(0, 1), gave.transpose(0, 1)
        calls.append(_Call(part=part, given=given.clone(), gave=gave.clone()))

    hooks = [Hook(part=part, call=begin, kind="pre") for part in module.modules()]
    hooks += [Hook(part=part, call=keep, with_kwargs=True) for part in module.modules()]
    with (
        evaluating(module),
        hooked(module, hooks, by=spec.name, times=None),
        hooked(module, [site_hook(place, point(*place), perturb)], by=spec.name),
    ):
        expected = logits(sentinel_trials(spec.d_vocab, spec.n_ctx, spec.device))
    tolerance = tolerance_of(spec.dtype)
    # Log-probabilities are logits up to a constant of each row, which no path gives.
    form = _centered if are_log_probabilities(expected) else torch.as_tensor
    candidates = _candidates(module, calls, resids[0], expected, tolerance)
    errors = (
        (candidate, relative_error(form(candidate.logits(resids[0])), form(expected))) for candidate in candidates
    )
    return next((candidate for candidate, error in errors if error <= tolerance), None)


def are_log_probabilities(logits: Float[Tensor, "*batch d_vocab"]) -> bool:
    """Return whether all rows are logarithms of distributions, up to rounding."""
    slack = max(_ROUNDING, 8 * torch.finfo(logits.dtype).eps)
    return bool((logits.float().logsumexp(dim=-1).abs() < slack).all())


def _centered(logits: Tensor) -> Tensor:
    return logits - logits.mean(dim=-1, keepdim=True)


def _candidates(
    module: nn.Module, calls: Sequence[_Call], resid: Tensor, logits: Tensor, tolerance: float
) -> Iterator[Unembedding]:
    """Yield paths from the residual to the logits; which of them are right is not known yet."""
    for entered, matrix, bias, output in _outputs(module, calls, resid, logits.shape[-1]):
        path = _path(calls, resid, entered, tolerance)
        for cap in (*_soft_caps(module), None) if path is not None else ():
            assert path is not None, "else there is no cap to try"
            whole = Unembedding(
                parts=tuple(part for part, _ in path[1:] if part is not None),
                factors=tuple(factor for _, factor in path),
                matrix=matrix,
                bias=bias,
                output=output,
                scale=1.0,
                soft_cap=None,
            )
            uncapped = logits if cap is None else cap * (logits / cap).clamp(-1 + 1e-6, 1 - 1e-6).atanh()
            yield replace(whole, scale=_factor(_centered(uncapped), _centered(whole.logits(resid))), soft_cap=cap)


def _outputs(
    module: nn.Module, calls: Sequence[_Call], resid: Tensor, n_ids: int
) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None, nn.Module | None]]:
    """Yield what may enter the output matrix, the matrix with its bias, or else the module that must be called."""
    wide = [call for call in reversed(calls) if call.gave.shape[-1] == n_ids]
    for call in wide:
        parameters = dict(call.part.named_parameters(recurse=False))
        matrix, bias = parameters.get("weight"), parameters.get("bias")
        if matrix is None or matrix.is_meta or not matrix.is_floating_point():
            continue
        if matrix.shape == (n_ids, call.given.shape[-1]):
            yield call.given, matrix, bias, None
    for call in wide:  # quantized, offloaded, or with an adapter
        yield call.given, None, None, call.part
    for matrix in (
        parameter for parameter in module.parameters() if not wide and parameter.ndim == 2 and len(parameter) == n_ids
    ):
        for entered in (*(call.gave for call in reversed(calls)), resid):  # a table that is used twice is no module
            if entered.shape[-1] == matrix.shape[1]:
                yield entered, matrix, None, None


def _path(
    calls: Sequence[_Call], resid: Tensor, entered: Tensor, tolerance: float
) -> list[tuple[nn.Module | None, float]] | None:
    """Return the modules from the residual to what enters the output matrix, each with the factor of its output."""
    steps, target = list[tuple[nn.Module | None, float]](), entered

    def factor_from(x: Tensor) -> float | None:
        if x.shape != target.shape:
            return None
        factor = _factor(target, x)
        return factor if relative_error(factor * x, target) <= tolerance else None

    while len(steps) <= _LONGEST:
        if (factor := factor_from(resid)) is not None:
            return [(None, factor), *reversed(steps)]
        # The outermost module that gave it, and did more than pass it on.
        each = ((call, factor_from(call.gave)) for call in reversed(calls) if factor_from(call.given) is None)
        call, factor = next((pair for pair in each if pair[1] is not None), (None, None))
        if call is None or factor is None:
            return None
        steps.append((call.part, factor))
        target = call.given
    return None


def _soft_caps(module: nn.Module) -> list[float]:
    """Return the caps of logits that a config states; small logits do not show them."""
    match module:
        case object(config=object(get_text_config=text)):
            stated = vars(text(decoder=True))
        case object(cfg=config):
            stated = vars(config)
        case _:
            return []
    named = (cap for name, cap in stated.items() if re.search(r"logit.*soft_?cap", name) and "attn" not in name)
    return [float(cap) for cap in named if isinstance(cap, int | float) and cap > 0]


def _factor(a: Tensor, b: Tensor) -> float:
    """Return c with the least error of a = c · b; 1 if it is near 1, as rounding makes it."""
    factor = factor_between(a, b)
    return 1.0 if abs(factor - 1) <= _ROUNDING else factor
