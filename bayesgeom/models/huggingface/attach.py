"""Attaching a Hugging Face model: its sites are located and verified on a few tokens."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesgeom.core import sites as s
from bayesgeom.core.errors import InvalidArgument, NonFinite
from bayesgeom.core.hooks import Hook, hooked, site_hook
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.torch_state import evaluating, lock_of
from bayesgeom.models.adapters.identities import sentinel_trials
from bayesgeom.models.adapters.proof import Functions, Passages, Taps, examined, perturbed_pass, tolerance_of
from bayesgeom.models.huggingface.anatomy import (
    Anatomy,
    HeadSizes,
    anatomy_of,
    attention_of,
    blocks_of,
    first_input,
    is_close,
    turned_of,
)
from bayesgeom.models.huggingface.attention import Handed, Route, routed, watched_functions
from bayesgeom.models.huggingface.model_parts import Forward, refuse_sharded, sizes_of, spec_of
from bayesgeom.models.huggingface.site_hooks import By, SiteHooks
from bayesgeom.models.huggingface.static_sites import StaticSites, call, embedded
from bayesgeom.models.huggingface.weights import named_faults, unreachable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FUSED = "grouped_mm"
_COARSE = 1e-4  # eps above which rounding could be mistaken for a factor near 1
_AMOUNT = 0.3  # standard deviations of the noise in the verification


@final
@dataclass(frozen=True, kw_only=True)
class Attached:
    """The result of attaching a model, which the adapter uses. `layers`: where each verified site exists."""

    spec: ModelSpec
    forward: Forward
    site_hooks: SiteHooks
    static_sites: StaticSites
    withheld: Mapping[s.Site, str]
    layers: Mapping[s.Site, tuple[int, ...]]
    errors: Mapping[s.Site, float]


@torch.no_grad()
def attach(hf: "PreTrainedModel", name: str, digest: str | None) -> Attached:
    """Locate and verify the sites of a model; its training mode is restored.

    Args:
        hf: The model.
        name: Its name.
        digest: Hash of the weights, if known.

    Raises:
        InvalidArgument: Heads are sharded, blocks are not recognized, or the model is not causal.
        NonFinite: Logits are NaN or infinite.
    """
    refuse_sharded(hf)
    if hf.config.is_encoder_decoder:
        raise InvalidArgument(
            f"{type(hf).__name__} is an encoder with a decoder, not a causal language model. Pass a decoder such as "
            f"GPT-2, Pythia or Llama."
        )
    if (missing := unreachable(hf)) is not None:
        raise InvalidArgument(
            f"{missing} of {type(hf).__name__} is on torch's meta device: the model has shapes but no weights. Load "
            f"its weights, for example with from_pretrained."
        )
    with lock_of(hf), evaluating(hf), named_faults(hf):
        return _Attaching(hf, name, digest).attached()


@final
class _Attaching:
    """The forward passes for attaching a model."""

    def __init__(self, hf: "PreTrainedModel", name: str, digest: str | None) -> None:
        self.hf, self.forward = hf, Forward(hf)
        self.spec = spec_of(hf, name, digest)
        self.tokens = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device).tokens
        self.logits = self._first_logits()
        self._check_language_model()
        self._check_finite(self.logits)

    def attached(self) -> Attached:
        anatomy, seen = self._anatomy()
        calls = [own for own, parts in zip(seen.handed, anatomy.parts, strict=True) if parts.output is not None]
        is_known = bool(calls) and all(len(layer) == 1 for layer in calls)
        if is_known:
            self.spec = replace(self.spec, score_scale=calls[0][0].scaling)
        heads = anatomy.sizes
        self.spec = replace(self.spec, n_kv_heads=heads.n_kv_heads, d_head=heads.d_head, d_value=heads.d_value)
        site_hooks = SiteHooks(self.hf, anatomy, seen.route if is_known else "modules")
        passages, functions = self._perturbed(site_hooks)
        static_sites = StaticSites(self.hf, anatomy, self.spec.d_model, 1.0)
        of_weights = static_sites.layers()
        if site_hooks.layers.get(s.K, ()) == of_weights.get(s.TOKEN_INPUTS):
            functions = replace(functions, projected=static_sites.projected)
        found = examined(passages, functions, self.spec, self.tokens.shape[1])
        withheld = dict(found.broken)
        scale = self._embedding_scale(passages[s.RESID_PRE, 0].arrived[0])
        if scale is None:
            reason = "resid_pre of layer 0 is not the token's embedding plus a function of the position"
            withheld |= dict.fromkeys((s.TOKEN_EMBEDDINGS, s.TOKEN_INPUTS, s.TOKEN_KEYS), reason)
        if (layer := static_sites.misnormed(of_weights.get(s.NORM_WEIGHT, ()))) is not None:
            withheld[s.NORM_WEIGHT] = f"the input of W_K in layer {layer} is not a norm of the residual stream"
        self._check_causal(site_hooks, withheld)
        self._check_gated(site_hooks, withheld)
        layers = site_hooks.layers | of_weights
        absent = _absent(anatomy, layers, static_sites)
        return Attached(
            spec=self.spec,
            forward=self.forward,
            site_hooks=site_hooks,
            static_sites=StaticSites(self.hf, anatomy, self.spec.d_model, scale or 1.0),
            withheld=absent | withheld,
            layers={site: own for site, own in layers.items() if site not in withheld},
            errors=found.errors,
        )

    def _first_logits(self) -> Float[Tensor, "..."]:
        """Logits of the first pass; a mixture of experts falls back to eager experts if the fused ones fail."""
        try:
            return self.forward.logits(self.tokens)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
        if self.hf.get_experts_implementation()[""] == _FUSED:
            warnings.warn(
                f"{self.spec.name}: the fused experts ({_FUSED}) cannot run here ({reason}); experts run one by one.",
                stacklevel=2,
            )
            self.hf.set_experts_implementation("eager")
            return self._first_logits()
        raise InvalidArgument(f"{self.spec.name} cannot be run on {self.tokens.shape[1]} random tokens: {reason}.")

    def _check_language_model(self) -> None:
        """Raise `InvalidArgument` unless there are logits of every id at every position."""
        (n, n_pos), found = self.tokens.shape, tuple(self.logits.shape)
        n_ids = min(self.spec.d_vocab, self.hf.config.get_text_config(decoder=True).vocab_size)
        if len(found) != 3 or found[:2] != (n, n_pos) or found[2] < n_ids:
            raise InvalidArgument(
                f"{type(self.hf).__name__} is not a causal language model: for {n} sequences of {n_pos} tokens and "
                f"{n_ids} ids it returns logits of shape {found}. Load it with AutoModelForCausalLM."
            )

    def _check_finite(self, logits: Float[Tensor, "batch pos d_vocab"]) -> None:
        if not bool(logits.isfinite().all()):
            name = self.spec.name
            raise NonFinite(f"{name} returns NaN or infinite logits on a few random tokens. Check its weights.")

    def _anatomy(self, *, is_forced: bool = True) -> tuple[Anatomy, "_Seen"]:
        """The anatomy, and the arguments of the attention function in each layer.

        With `is_forced`, eager attention is tried in models that choose it by their config alone.

        Raises `InvalidArgument` if eager attention returns other logits, because patterns would then be wrong.
        """
        blocks = blocks_of(self.hf, self.spec.n_layers)
        seen, stated = _Seen(len(blocks)), sizes_of(self.hf)
        routes, inside = (
            {
                block.get_submodule(name): Route(taps=seen.no_taps, layer=layer, handed=own[layer])
                for layer, block in enumerate(blocks)
                if (name := attention_of(block)) is not None
            }
            for own in (seen.by_interface, seen.by_functions)
        )
        eager: list[Tensor] = []

        def watched() -> None:
            with (
                routed(self.hf, routes, is_eager=True, is_forced=is_forced),
                watched_functions(inside, stated.n_kv_heads),
            ):
                eager.append(self.forward.logits(self.tokens))

        anatomy = anatomy_of(blocks, watched, lambda: seen.sizes(stated), seen.of)
        if any(seen.handed) and not all(seen.handed):  # attention in some layers only: the others have no heads
            known = zip(anatomy.parts, seen.handed, strict=True)
            anatomy = replace(anatomy, parts=tuple(p if own else p.without_heads() for p, own in known))
        self._check_finite(eager[0])  # fused attention can hide NaN
        error = float((eager[0].double() - self.logits.double()).abs().max() / self.logits.double().abs().max())
        if not error <= tolerance_of(self.spec.dtype):
            if is_forced:  # Falcon with ALiBi: its two implementations differ
                return self._anatomy(is_forced=False)
            raise InvalidArgument(
                f"{self.spec.name} returns other logits with eager attention (by {error:.1e}), so patterns would not "
                f"be those of the model. Load it with attn_implementation='eager'."
            )
        return anatomy, seen

    def _perturbed(self, site_hooks: SiteHooks) -> tuple[Passages, Functions]:
        """Inputs and outputs of the taps in one pass with noise, and the model's functions in that pass."""
        anatomy, n_layers = site_hooks.anatomy, self.spec.n_layers
        given: list[Tensor | None] = [None] * n_layers
        late: list[dict[str, list[Tensor]]] = [{} for _ in range(n_layers)]
        alibi: list[Tensor | None] = [None] * n_layers

        def watch(layer: int, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given[layer] = first_input(args, kwargs)

        def attend(layer: int, _module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            alibi[layer] = kwargs.get("alibi")

        def norm(layer: int, path: str, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            entering = first_input(args, kwargs)
            assert entering is not None, "its input was seen when the model was attached"
            late[layer].setdefault(path, []).append(entering.clone())

        def forward() -> None:
            norms = [
                Hook(part=anatomy.part(layer, path), call=partial(norm, layer, path), kind="pre", with_kwargs=True)
                for layer, parts in enumerate(anatomy.parts)
                for path in {own for own, _ in parts.late_norms.values()}
            ]
            hooks = [
                Hook(part=anatomy.part(layer, path), call=partial(hook, layer), kind="pre", with_kwargs=True)
                for layer, parts in enumerate(anatomy.parts)
                for path, hook in ((parts.mid_reader, watch), (parts.attention, attend))
                if path is not None
            ]
            with hooked(self.hf, [*hooks, *norms], by=self.spec.name, times=None), site_hooks.open(is_witnessed=True):
                self.forward.logits(self.tokens)

        places = [(site, layer) for site, layers in site_hooks.layers.items() for layer in layers]
        passages = perturbed_pass(self.hf, forward, site_hooks.taps.at, places, amount=_AMOUNT)
        return passages, Functions(
            written=partial(_written, anatomy),
            projected=None,
            normed=partial(_normed, anatomy),
            pattern=partial(self._pattern, site_hooks.handed, alibi),
            mid_given=lambda layer: given[layer],
            turned=partial(_turned, anatomy, late),
        )

    def _pattern(
        self,
        handed: list[list[Handed]],
        alibi: list[Tensor | None],
        q: Float[Tensor, "batch pos head d_head"],
        k: Float[Tensor, "batch pos kv_head d_head"],
        layer: int,
    ) -> Float[Tensor, "batch head query_pos key_pos"]:
        """The pattern of rotated queries and keys, with the spec's scale and the mask of the pass."""
        k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        scores = self.spec.score_scale * torch.einsum("b q h d, b k h d -> b h q k", q.float(), k.float())
        if handed[layer]:
            call_ = handed[layer][0]
            if call_.softcap is not None:
                scores = call_.softcap * (scores / call_.softcap).tanh()
            mask = call_.mask
            scores = scores if mask is None else scores + mask[..., : scores.shape[-1]].float()
            if call_.sinks is not None:
                sinks = call_.sinks.float().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
                return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        else:
            bias = alibi[layer]
            scores = scores if bias is None else scores + bias.reshape(*scores.shape[:2], 1, -1).float()
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        return scores.softmax(-1)

    def _embedding_scale(self, resid: Float[Tensor, "batch pos d_model"]) -> float | None:
        """The factor c with resid = c · embedding + a function of the position; None if there is none."""
        embedding = embedded(self.hf, self.tokens).to(resid.device).double()
        if embedding.shape != resid.shape:
            return None
        between, inside = resid[0].double() - resid[1].double(), embedding[0] - embedding[1]
        scale = float((between * inside).sum() / inside.square().sum().clamp_min(1e-30))
        # Compared in the model's dtype: a bfloat16 stream is rounded after the position is added.
        if is_close(inside.to(resid.dtype), between.to(resid.dtype)) and torch.finfo(resid.dtype).eps > _COARSE:
            return 1.0
        return scale if is_close((scale * inside).to(resid.dtype), between.to(resid.dtype)) else None

    def _check_causal(self, site_hooks: SiteHooks, withheld: dict[s.Site, str]) -> None:
        """Check causality and the last resid_post: change the last token and negate resid_post of position 0."""
        last = self.spec.n_layers - 1
        tokens = self.tokens.clone()
        tokens[:, -1] = (tokens[:, -1] + 1) % self.spec.d_vocab

        def turn(output: Tensor) -> Tensor:
            return torch.cat([-output[:, :1], output[:, 1:]], dim=1)

        hook = site_hook((s.RESID_POST, last), site_hooks.taps.at(s.RESID_POST, last), turn)
        with hooked(self.hf, [hook], by=self.spec.name), site_hooks.open():
            logits = self.forward.logits(tokens)
        if tokens.shape[1] > 2 and not is_close(logits[:, 1:-1], self.logits[:, 1:-1]):
            raise InvalidArgument(
                f"{self.spec.name} is not causal: changing the last token changes earlier predictions. Pass a causal "
                f"language model, not an encoder."
            )
        if is_close(logits[:, 0], self.logits[:, 0]):
            withheld.setdefault(s.RESID_POST, f"an edit in the last layer, {last}, has no effect on the logits")

    def _check_gated(self, site_hooks: SiteHooks, withheld: dict[s.Site, str]) -> None:
        """Check, where a gate or a norm follows z, that the input of W_O is zero for heads whose z is zero."""
        anatomy = site_hooks.anatomy
        gated = {layer: p.output for layer, p in enumerate(anatomy.parts) if p.is_gated and p.output is not None}
        if s.Z in withheld or not gated:
            return
        found = dict[int, float]()

        def watch(layer: int, _module: nn.Module, args: tuple[Any, ...]) -> None:
            found[layer] = float(args[0].abs().max())

        reads = [Hook(part=anatomy.part(i, path), call=partial(watch, i), kind="pre") for i, path in gated.items()]
        zeros = [site_hook((s.Z, layer), site_hooks.taps.at(s.Z, layer), torch.zeros_like) for layer in gated]
        with hooked(self.hf, [*reads, *zeros], by=self.spec.name, times=None), site_hooks.open():
            self.forward.logits(self.tokens)
        if (wrong := next((layer for layer, most in found.items() if most > 0), None)) is not None:
            withheld[s.Z] = f"W_O of layer {wrong} reads more than the heads' outputs"


def _turned(
    anatomy: Anatomy,
    late: Sequence[Mapping[str, Sequence[Tensor]]],
    site: s.Site,
    x: Float[Tensor, "batch pos head d"],
    layer: int,
) -> Float[Tensor, "batch pos head d"] | None:
    """The rotated queries or keys that entered their norm; None if the norm, if any, acts before the rotation."""
    if site not in anatomy.parts[layer].late_norms:
        return None
    path, at = anatomy.parts[layer].late_norms[site]
    given = late[layer][path][at]
    found = turned_of(given, x)
    return given.reshape(x.shape) if found is None else found


@final
class _Seen:
    """What the attention functions of a model were given in one pass, by layer."""

    def __init__(self, n_layers: int) -> None:
        self.by_interface: list[list[Handed]] = [[] for _ in range(n_layers)]
        self.by_functions: list[list[Handed]] = [[] for _ in range(n_layers)]
        self.no_taps = Taps((), n_layers)

    @property
    def route(self) -> By:
        """Where attention was reached: in the interface, if it was called."""
        return "interface" if any(self.by_interface) else "functions"

    @property
    def handed(self) -> list[list[Handed]]:
        """The calls that count: those of the interface, if there are any."""
        return self.by_interface if self.route == "interface" else self.by_functions

    def of(self, layer: int) -> Handed | None:
        """Return the call of a layer; None unless it is the only one."""
        calls = self.handed[layer]
        return calls[0] if len(calls) == 1 else None

    def sizes(self, stated: HeadSizes) -> HeadSizes:
        """Return the sizes that the calls show, where they agree; else those that the config states."""
        shapes = {(own.value.shape[1], own.d_key, own.value.shape[-1]) for calls in self.handed for own in calls}
        if len(shapes) != 1 or not stated.n_heads:
            return stated
        ((n_kv_heads, d_key, d_value),) = shapes
        return replace(stated, n_kv_heads=n_kv_heads, d_head=d_key, d_value=0 if d_value == d_key else d_value)


def _written(anatomy: Anatomy, z: Float[Tensor, "batch pos head d_head"], layer: int) -> Float[Tensor, "..."] | None:
    """The attention output for these head outputs: W_O, then the norm after it if there is one; None if z is gated."""
    parts = anatomy.parts[layer]
    assert parts.output is not None and parts.writers is not None, "z and attn_out exist"
    if parts.is_gated:
        return None
    out = call(anatomy.part(layer, parts.output), z.flatten(-2))
    return parts.write_scale * (out if parts.is_plain_write else call(anatomy.part(layer, parts.writers[0]), out))


def _normed(anatomy: Anatomy, site: s.Site, x: Float[Tensor, "batch pos head d"], layer: int) -> Float[Tensor, "..."]:
    """Queries or keys after their norm, which acts per head or on all heads of a position together."""
    parts = anatomy.parts[layer]
    path = parts.late_norms[site][0] if site in parts.late_norms else parts.norms.get(site)
    if path is None:
        return x
    norm = anatomy.part(layer, path)
    together = any(p.shape[-1:] == (x.shape[-1] * x.shape[-2],) for p in norm.parameters())
    return call(norm, x.flatten(-2)).reshape(x.shape) if together else call(norm, x)


def _absent(anatomy: Anatomy, found: Mapping[s.Site, tuple[int, ...]], static_sites: StaticSites) -> dict[s.Site, str]:
    """The reasons for sites that not all layers have."""
    reasons = static_sites.absent()
    heads = (s.Q, s.K, s.Q_ROT, s.K_ROT, s.V, s.Z, s.PATTERN)
    if all(parts.output is None for parts in anatomy.parts):
        reasons |= dict.fromkeys(heads, "it has no attention heads that are known here")
    elif any(s.K not in parts.projections for parts in anatomy.parts):
        reasons |= dict.fromkeys((s.Q, s.K), "its queries and keys are projected in a way that is not known here")
    if any(parts.writers is None for parts in anatomy.parts):
        no_sum = "identity resid_pre + attn_out + mlp_out = resid_post holds for no two parts of a block"
        reasons |= dict.fromkeys((s.ATTN_OUT, s.MLP_OUT, s.RESID_MID), no_sum)
    elif any(parts.mid_reader is None for parts in anatomy.parts):
        reasons[s.RESID_MID] = "attention and MLP work side by side: nothing reads the stream between them"
    for site, own in found.items():
        if len(own) < anatomy.n_layers:
            layers = ", ".join(map(str, own))
            reasons[site] = f"only layers {layers} have it: the others have no attention, or heads of another width"
    return {site: reason for site, reason in reasons.items() if len(found.get(site, ())) < anatomy.n_layers}
