"""Adapter for Hugging Face causal language models: PyTorch hooks and the attention interface.

It does not use `TransformerBridge`. Booting a bridge modifies the model in place (its state dict, its
`save_pretrained`), its rotated keys never fire on GPT-NeoX, Phi-3 and GPT-J, and edits of its patterns have no effect
on OPT. Hooks on the unmodified model reach every site of every tested family, keep the weights, and work with
`device_map`.

There is no table of families. `anatomy` finds the parts by what they compute. `proof` checks every site in every layer,
including edits, against the equations that relate sites, on a few tokens. A site that fails is withheld, with the
reason.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core import (
    ATTN_OUT,
    EXPERT_WEIGHTS,
    MLP_OUT,
    MLP_POST,
    NORM_WEIGHT,
    RESID_MID,
    RESID_POST,
    RESID_PRE,
    ROUTER_LOGITS,
    STATE,
    TOKEN_EMBEDDINGS,
    TOKEN_INPUTS,
    TOKEN_KEYS,
    W_O,
    InvalidArgument,
    K,
    ModelSpec,
    NoCopy,
    NonFinite,
    Site,
    Tokenizer,
    Trials,
    Z,
)
from bayesgeom.core.run import untrained_hash
from bayesgeom.core.torch_state import (
    PROCESS_STATE,
    Hook,
    default_dtype,
    evaluating,
    holding_lock,
    hooked,
    lock_of,
    site_hook,
    structure_of,
)
from bayesgeom.models.adapters.attention import AttentionCall, HeadSizes, causal, pattern_of
from bayesgeom.models.adapters.proof import (
    Claim,
    Equations,
    Functions,
    Passages,
    Side,
    Taps,
    examined,
    factor_between,
    first_input,
    first_output,
    perturbed_pass,
    sentinel_trials,
    tolerance_of,
)
from bayesgeom.models.base import HeadOutput, Reattachable, Replayer, Withheld
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.huggingface.anatomy import (
    Anatomy,
    anatomy_of,
    attention_of,
    blocks_of,
    is_close,
    routing_of,
    turned_of,
)
from bayesgeom.models.huggingface.attention import Route, routed, watched_functions
from bayesgeom.models.huggingface.prefixes import Prefixes
from bayesgeom.models.huggingface.sites import By, SiteHooks, StaticSites, call, embedded
from bayesgeom.models.huggingface.weights import (
    n_parameters,
    quantization_of,
    weights_identity,
)
from bayesgeom.models.replay.hooked import prefix_replayer
from bayesgeom.tasks.base import WindTunnel, torch_seed

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_MLP_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "d_ff")
_CONTEXTS = ("max_position_embeddings", "n_positions", "context_length", "max_seq_len")


def sizes_of(hf: "PreTrainedModel") -> HeadSizes:
    """Return the numbers of heads and their width; zeros if there are no heads."""
    config = _config(hf)
    n_heads = _first(config, _HEADS)
    if not n_heads or config.get("model_type") in ("mamba", "mamba2"):
        return HeadSizes(n_heads=0, n_kv_heads=0, d_head=0)
    d_head = config.get("head_dim") or _first(config, _WIDTHS, 0) // n_heads
    return HeadSizes(n_heads=n_heads, n_kv_heads=_first(config, _KV_HEADS) or n_heads, d_head=d_head)


def spec_of(hf: "PreTrainedModel", name: str, digest: str | None) -> ModelSpec:
    """Return the spec; `score_scale` is 1 / √d_head until it is read from the attention.

    Raises:
        InvalidArgument: The config does not state the number of layers or the width.
    """
    config, sizes = _config(hf), sizes_of(hf)
    n_layers, d_model = _first(config, _LAYERS), _first(config, _WIDTHS)
    n_layers = len(config.get("layers_block_type") or ()) or n_layers  # Nemotron-H states nothing else
    if n_layers is None or d_model is None:
        raise InvalidArgument(
            f"the config of {name} does not state the number of layers or the width: its layout is not supported."
        )
    if n_layers < 1:
        raise InvalidArgument(f"{name} has {n_layers} layers; a model needs at least one to be measured.")
    weight = hf.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return ModelSpec(
        name=name,
        architecture=str(config.get("model_type", type(hf).__name__)),
        n_layers=n_layers,
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        d_model=d_model,
        d_head=sizes.d_head,
        d_mlp=_first(config, _MLP_WIDTHS) or 4 * d_model,
        d_vocab=weight.shape[0],
        n_ctx=_context(config),
        score_scale=sizes.d_head**-0.5 if sizes.d_head else 1.0,
        n_parameters=n_parameters(hf),
        dtype=str(hf.dtype).removeprefix("torch."),
        device="cpu" if weight.device.type == "meta" else str(weight.device),
        weights_hash=digest or weights_identity(hf),
        quantization=quantization_of(hf),
    )


def _config(hf: "PreTrainedModel") -> dict[str, Any]:
    config: dict[str, Any] = hf.config.get_text_config(decoder=True).to_dict()
    return config


def _first(config: Mapping[str, Any], names: tuple[str, ...], otherwise: int | None = None) -> Any:
    """The first integer in the config under one of these names."""
    return next((config[name] for name in names if isinstance(config.get(name), int)), otherwise)


def _rotations(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parameters of the rotation, or of each kind of layer."""
    stated = config.get("rope_parameters") or {}
    return [entry for entry in (stated, *stated.values()) if isinstance(entry, Mapping) and entry.get("rope_type")]


def _context(config: Mapping[str, Any]) -> int | None:
    """The longest sequence; dynamic NTK multiplies the length of training by its factor."""
    n_ctx = _first(config, _CONTEXTS)
    factors = [entry.get("factor", 1) for entry in _rotations(config) if "dynamic" in entry["rope_type"]]
    return int(n_ctx * max(factors)) if n_ctx and factors else n_ctx


@final
class Forward:
    """Maps tokens to logits, without a padding mask: pad on the right, which causal models do not see."""

    def __init__(self, hf: "PreTrainedModel") -> None:
        self._hf = hf
        self._takes = frozenset(inspect.signature(hf.forward).parameters)
        each = _rotations(_config(hf))
        self._switches = [
            entry["original_max_position_embeddings"] for entry in each if entry["rope_type"] == "longrope"
        ]
        self._bounds = [_first(_config(hf), _CONTEXTS) for entry in each if "dynamic" in entry["rope_type"]]
        self._rotaries = [part for part in hf.modules() if self._bounds and "max_seq_len_cached" in vars(part)]

    @property
    def rotation(self) -> "Callable[[Tensor], Tensor] | None":
        """How keys are rotated, by the number of tokens: LongRoPE has two rotations, dynamic NTK one for each length.

        None if the rotation does not depend on the longest sequence of a pass.
        """
        if not (self._switches or self._bounds):
            return None
        return lambda n: torch.stack(
            [*((n > switch).long() for switch in self._switches), *(n.clamp_min(bound) for bound in self._bounds)],
            dim=-1,
        )

    def takes(self, option: str) -> bool:
        """Return whether the model's forward pass has this option."""
        return option in self._takes

    def logits(self, tokens: Int64[Tensor, "batch pos"], **options: Any) -> Float[Tensor, "batch *kept_d_vocab"]:
        """Return the logits at every position, or at those in the option `logits_to_keep`.

        Raises:
            InvalidArgument: The model returns no logits.
        """
        return cast(Tensor, self._output(tokens, **options)["logits"])

    def continued(
        self, tokens: Int64[Tensor, "batch pos"], start: int, kept: Int64[Tensor, " query_pos"], cache: Any
    ) -> tuple[Float[Tensor, "batch query_pos d_vocab"], Any]:
        """Run the tokens from `start` on, after those in the cache.

        Returns:
            The logits at the positions `kept`, counted from `start`, and the cache with these tokens, None without one.
        """
        options: dict[str, Any] = {"use_cache": True, "past_key_values": cache}
        if self.takes("logits_to_keep"):
            options["logits_to_keep"] = kept
        output = self._output(tokens[:, start:], attention_mask=torch.ones_like(tokens), **options)
        logits = output["logits"] if self.takes("logits_to_keep") else output["logits"][:, kept]
        return logits, output.get("past_key_values")

    def _output(self, tokens: Int64[Tensor, "batch pos"], **options: Any) -> Mapping[str, Any]:
        for config in (self._hf.config, self._hf.config.get_text_config(decoder=True)):
            if config.return_dict is False:  # parts inside the model would return tuples
                raise InvalidArgument(
                    f"the config of {type(self._hf).__name__} sets return_dict=False: set config.return_dict to True."
                )
        for part in self._rotaries:  # dynamic NTK keeps the rotation of a longer pass, until one of a short pass
            for kind in part.rope_type if isinstance(part.rope_type, dict) else [None]:
                at = torch.zeros(1, 1, device=tokens.device)
                part(at, at.long(), **({} if kind is None else {"layer_type": kind}))
        known: Mapping[str, Any] = {"use_cache": False, "attention_mask": torch.ones_like(tokens), **options}
        output: Mapping[str, Any] = self._hf(
            input_ids=tokens, return_dict=True, **{name: value for name, value in known.items() if name in self._takes}
        )
        if "logits" not in output:
            raise InvalidArgument(f"{type(self._hf).__name__} returns no logits. Load it with AutoModelForCausalLM.")
        return output

    def at_scored(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        """Return the logits at the scored positions; others are not computed if the model supports it."""
        options: dict[str, Any] = {}
        if self.rotation is not None:
            ends = trials.ends()
            if bool((self.rotation(ends) != self.rotation(ends[:1])).any()):
                raise InvalidArgument(
                    f"{type(self._hf).__name__} rotates keys by the longest sequence of a pass, and these sequences of "
                    f"{int(ends.min())} to {int(ends.max())} tokens need several: use sequences of one length."
                )
            # Positions of padding must not select the rotation.
            places = torch.arange(trials.tokens.shape[1], device=trials.tokens.device).clamp_max(int(ends.max()) - 1)
            options["position_ids"] = places.expand_as(trials.tokens)
        if "logits_to_keep" not in self._takes:
            return trials.at_scored(self.logits(trials.tokens, **options))
        positions, place = trials.scored_positions().unique(return_inverse=True)
        logits = self.logits(trials.tokens, logits_to_keep=positions, **options)
        if len(positions) == trials.n_scored:  # the same positions in every sequence
            return logits
        return logits.gather(1, place.to(logits.device)[..., None].expand(*place.shape, logits.shape[-1]))


_FUSED = "grouped_mm"
_OF_STATES = 1e-5  # relative error of what is read of states, in float32
_STRONG = -1e8  # factor of an edit that must have an effect
_MIXED = 0.05  # of the largest logit: quantized activations may share a scale over the batch, which rounds less
_COARSE = 1e-4  # eps above which rounding could be mistaken for a factor near 1


@final
@dataclass(frozen=True, kw_only=True)
class Attached:
    """The result of attaching a model, which the adapter uses. `layers`: where each verified site exists."""

    spec: ModelSpec
    forward: Forward
    site_hooks: SiteHooks
    static_sites: StaticSites
    withheld: Mapping[Site, str]
    layers: Mapping[Site, tuple[int, ...]]
    errors: Mapping[Site, float]


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
    from torch.distributed.tensor import DTensor

    if any(isinstance(parameter, DTensor) for parameter in hf.parameters()) or (hf.tp_size or 1) > 1:
        raise InvalidArgument(
            f"{type(hf).__name__} is tensor-parallel: its heads are spread. Load it with device_map='auto'."
        )
    if hf.config.is_encoder_decoder:
        raise InvalidArgument(
            f"{type(hf).__name__} is an encoder with a decoder, not a causal language model. Pass a decoder alone."
        )
    with lock_of(hf), evaluating(hf):
        return _Attaching(hf, name, digest).attached()


@final
class _Attaching:
    """The forward passes for attaching a model."""

    def __init__(self, hf: "PreTrainedModel", name: str, digest: str | None) -> None:
        self.hf, self.forward = hf, Forward(hf)
        self.spec = spec_of(hf, name, digest)
        self.tokens = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device).tokens
        self.logits = self._first_logits()
        (n, n_pos), shape = self.tokens.shape, tuple(self.logits.shape)
        n_ids = min(self.spec.d_vocab, self.hf.config.get_text_config(decoder=True).vocab_size)
        if len(shape) != 3 or shape[:2] != (n, n_pos) or shape[2] < n_ids:
            raise InvalidArgument(
                f"{type(self.hf).__name__} is not a causal language model: for {n} sequences of {n_pos} tokens and "
                f"{n_ids} ids it returns logits of shape {shape}. Load it with AutoModelForCausalLM."
            )
        self._check_finite(self.logits)

    def attached(self) -> Attached:
        anatomy, seen = self._anatomy()
        attached = self._proved(anatomy, seen)
        lost = [site for site in (RESID_PRE, RESID_POST) if site in attached.withheld]
        if lost and any(parts.writers is not None for parts in anatomy.parts):
            # A block's input and output stay where what its parts write is not the whole update.
            parts = (replace(parts, writers=None, mid_reader=None) for parts in anatomy.parts)
            again = self._proved(replace(anatomy, parts=tuple(parts)), seen)
            reasons = dict.fromkeys((ATTN_OUT, RESID_MID, MLP_OUT), attached.withheld[lost[0]])
            return replace(again, withheld={**again.withheld, **reasons})
        return attached

    def _proved(self, anatomy: Anatomy, seen: "_Seen") -> Attached:
        """The sites of these parts, those whose equations fail withheld."""
        calls = [
            calls_of_layer
            for calls_of_layer, parts in zip(seen.handed, anatomy.parts, strict=True)
            if parts.output is not None
        ]
        is_known = bool(calls) and all(len(layer) == 1 for layer in calls)
        if is_known:
            self.spec = replace(self.spec, score_scale=calls[0][0].scale)
        heads = anatomy.sizes
        self.spec = replace(self.spec, n_kv_heads=heads.n_kv_heads, d_head=heads.d_head, d_value=heads.d_value)
        d_mlp, n_experts = _mlp_sizes(anatomy, self.spec.d_mlp)
        self.spec = replace(self.spec, d_mlp=d_mlp, n_experts=n_experts)
        site_hooks = SiteHooks(self.hf, anatomy, seen.route if is_known else "modules")
        passages, functions, equations = self._perturbed(site_hooks)
        arrived = (passages[STATE, layer].arrived for layer in site_hooks.layers.get(STATE, ()))
        self.spec = replace(self.spec, d_state=next((states[0].shape[-1] for states in arrived if states), 0))
        static_sites, layers = StaticSites(self.hf, anatomy, self.spec.d_model, 1.0), site_hooks.layers
        if layers.get(K, ()) == layers.get(TOKEN_INPUTS):
            functions = replace(functions, projected=static_sites.projected)
        withheld, errors = examined(passages, functions, self.spec, self.tokens.shape[1], equations=equations)
        scale = self._embedding_scale(passages[RESID_PRE, 0].arrived[0])
        if scale is None:
            reason = f"{RESID_PRE.name} of layer 0 is no embedding"
            withheld |= dict.fromkeys((TOKEN_EMBEDDINGS, TOKEN_INPUTS, TOKEN_KEYS), reason)
        if (layer := static_sites.misnormed(layers.get(NORM_WEIGHT, ()))) is not None:
            withheld[NORM_WEIGHT] = f"W_K of layer {layer} reads no norm"
        patched = [layer for layer, parts in enumerate(anatomy.parts) if parts.is_patched]
        if patched:
            withheld[W_O] = f"the attention of layer {patched[0]} changes what its output matrix returns"
        self._check_causal(site_hooks, withheld)
        self._check_gated(site_hooks, withheld)
        self._check_effects(site_hooks, withheld)
        return Attached(
            spec=self.spec,
            forward=self.forward,
            site_hooks=site_hooks,
            static_sites=StaticSites(self.hf, anatomy, self.spec.d_model, scale or 1.0),
            withheld=site_hooks.absent | withheld,
            layers={site: site_layers for site, site_layers in layers.items() if site not in withheld},
            errors=errors,
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
                block.get_submodule(name): Route(taps=seen.no_taps, layer=layer, handed=handed[layer])
                for layer, block in enumerate(blocks)
                if (name := attention_of(block)) is not None
            }
            for handed in (seen.by_interface, seen.by_functions)
        )
        eager: list[Tensor] = []

        def watched() -> None:
            with (
                routed(self.hf, routes, is_eager=True, is_forced=is_forced),
                watched_functions(inside, stated.n_kv_heads),
            ):
                eager.append(self.forward.logits(self.tokens))

        anatomy = anatomy_of(blocks, watched, lambda: seen.sizes(stated), seen.of)
        if seen.route != "interface":  # z is read where it enters W_O, gated or not
            anatomy = replace(anatomy, parts=tuple(replace(parts, is_gated=False) for parts in anatomy.parts))
        if any(seen.handed) and not all(seen.handed):  # attention in some layers only: the others have no heads
            headless = (replace(parts, output=None, projections={}, is_gated=False) for parts in anatomy.parts)
            known = zip(seen.handed, anatomy.parts, headless, strict=True)
            anatomy = replace(anatomy, parts=tuple(whole if calls else rest for calls, whole, rest in known))
        self._check_finite(eager[0])  # fused attention can hide NaN
        error = float((eager[0].double() - self.logits.double()).abs().max() / self.logits.double().abs().max())
        if not error <= tolerance_of(self.spec.dtype):
            if is_forced:  # Falcon with ALiBi: its two implementations differ
                return self._anatomy(is_forced=False)
            raise InvalidArgument(
                f"{self.spec.name} returns logits that differ by {error:.1e} with eager attention, which gives the "
                f"patterns. Load it with attn_implementation='eager'."
            )
        return anatomy, seen

    def _perturbed(self, site_hooks: SiteHooks) -> tuple[Passages, Functions, Equations]:
        """Inputs and outputs of the taps in one pass with noise, and functions and equations of the model there."""
        anatomy = site_hooks.anatomy
        ran: dict[tuple[int, str], Ran] = {}
        entered: dict[tuple[int, str | None], list[Tensor]] = {}

        def enter(layer: int, path: str, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (given := first_input(args, kwargs)) is not None:
                entered.setdefault((layer, path), []).append(given.clone())

        def keep(place: tuple[int, str], _module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            out = first_output(output)
            ran[place] = args, kwargs, out.clone() if isinstance(out, Tensor) else out

        def forward() -> None:
            hooks = list[Hook]()
            for layer, parts in enumerate(anatomy.parts):
                read = {parts.mid_reader, *(path for path, _ in parts.late_norms.values())}
                for path in (path for path in read if path is not None):
                    call_ = partial(enter, layer, path)
                    hooks.append(Hook(part=anatomy.part(layer, path), call=call_, kind="pre", with_kwargs=True))
                for path in filter(None, (parts.experts, parts.router, parts.attention)):
                    run = partial(keep, (layer, path))
                    hooks.append(Hook(part=anatomy.part(layer, path), call=run, with_kwargs=True))
            with hooked(self.hf, hooks, by=self.spec.name, times=None), site_hooks.open(is_witnessed=True):
                self.forward.logits(self.tokens)

        def mid_given(layer: int) -> Tensor | None:
            return next(reversed(entered.get((layer, anatomy.parts[layer].mid_reader), [])), None)

        hooked_sites = ((site, layers) for site, layers in site_hooks.layers.items() if not site.is_static)
        places = [(site, layer) for site, layers in hooked_sites for layer in layers]
        passages = perturbed_pass(self.hf, forward, site_hooks.taps.at, places)
        functions = Functions(
            written=partial(_written, anatomy),
            normed=partial(_normed, anatomy),
            pattern=partial(self._pattern, site_hooks, ran),
            mid_given=mid_given,
            turned=partial(_turned, anatomy, entered),
        )
        return passages, functions, partial(_inner_claims, site_hooks, ran)

    def _pattern(
        self,
        site_hooks: SiteHooks,
        ran: Mapping[tuple[int, str], "Ran"],
        q: Float[Tensor, "batch pos head d_head"],
        k: Float[Tensor, "batch pos kv_head d_head"],
        layer: int,
    ) -> Float[Tensor, "batch head query_pos key_pos"]:
        """The pattern of rotated queries and keys, with the spec's scale and the mask of the pass."""
        q, k, scale = q.float(), k.float(), self.spec.score_scale
        if site_hooks.handed[layer]:
            of = site_hooks.handed[layer][0]
            mask = None if of.added is None else of.added[..., : k.shape[1]]
            return pattern_of(q, k, scale, mask, of.soft_cap, of.sinks)
        _, given, _ = ran.get((layer, str(site_hooks.anatomy.parts[layer].attention)), ((), {}, None))
        later, bias = causal(q.shape[1], q), given.get("alibi")
        return pattern_of(q, k, scale, later if bias is None else later + bias.reshape(len(q), q.shape[2], 1, -1))

    def _embedding_scale(self, resid: Float[Tensor, "batch pos d_model"]) -> float | None:
        """The factor c with resid = c · embedding + a function of the position; None if there is none."""
        embedding = embedded(self.hf, self.tokens).to(resid.device).double()
        if embedding.shape != resid.shape:
            return None
        between, inside = resid[0].double() - resid[1].double(), embedding[0] - embedding[1]
        scale = factor_between(between, inside)
        # Compared in the model's dtype: a bfloat16 stream is rounded after the position is added.
        if is_close(inside.to(resid.dtype), between.to(resid.dtype)) and torch.finfo(resid.dtype).eps > _COARSE:
            return 1.0
        return scale if is_close((scale * inside).to(resid.dtype), between.to(resid.dtype)) else None

    def _check_causal(self, site_hooks: SiteHooks, withheld: dict[Site, str]) -> None:
        """Check causality and the last resid_post: change the last token and negate resid_post of position 0."""
        last = self.spec.n_layers - 1
        tokens = self.tokens.clone()
        tokens[:, -1] = (tokens[:, -1] + 1) % self.spec.d_vocab

        def turn(output: Tensor) -> Tensor:
            return torch.cat([-output[:, :1], output[:, 1:]], dim=1)

        hook = site_hook((RESID_POST, last), site_hooks.taps.at(RESID_POST, last), turn)
        with hooked(self.hf, [hook], by=self.spec.name), site_hooks.open():
            logits = self.forward.logits(tokens)
        if tokens.shape[1] > 2 and not is_close(logits[:, 1:-1], self.logits[:, 1:-1]):
            raise InvalidArgument(
                f"{self.spec.name} is not causal: changing the last token changes earlier predictions. Pass a decoder."
            )
        apart = (self.forward.logits(self.tokens[:1]) - self.logits[:1]).abs().max() / self.logits.abs().max()
        if apart > _MIXED:
            raise InvalidArgument(
                f"{self.spec.name} mixes the sequences of a batch: without the others, the first has other logits."
            )
        if is_close(logits[:, 0], self.logits[:, 0]):
            withheld.setdefault(RESID_POST, f"edits without effect in layer {last}")

    def _check_effects(self, site_hooks: SiteHooks, withheld: dict[Site, str]) -> None:
        """Check, in the last layer that has them, that states, and logits and weights of experts, have an effect."""
        for site in (ROUTER_LOGITS, EXPERT_WEIGHTS, STATE):
            if site in withheld or site not in site_hooks.layers:
                continue
            last = site_hooks.layers[site][-1]
            # Strong, since an untrained network may read little of its states.
            hook = site_hook((site, last), site_hooks.taps.at(site, last), lambda x: _STRONG * x)
            with hooked(self.hf, [hook], by=self.spec.name), site_hooks.open():
                logits = self.forward.logits(self.tokens)
            if is_close(logits, self.logits):
                withheld[site] = f"edits without effect in layer {last}"

    def _check_gated(self, site_hooks: SiteHooks, withheld: dict[Site, str]) -> None:
        """Check, where a gate or a norm follows z, that the input of W_O is zero for heads whose z is zero."""
        anatomy = site_hooks.anatomy
        gated = {layer: p.output for layer, p in enumerate(anatomy.parts) if p.is_gated and p.output is not None}
        if Z in withheld or not gated:
            return
        factors = dict[int, float]()

        def watch(layer: int, _module: nn.Module, args: tuple[Any, ...]) -> None:
            factors[layer] = float(args[0].abs().max())

        reads = [Hook(part=anatomy.part(i, path), call=partial(watch, i), kind="pre") for i, path in gated.items()]
        zeros = [site_hook((Z, layer), site_hooks.taps.at(Z, layer), torch.zeros_like) for layer in gated]
        with hooked(self.hf, [*reads, *zeros], by=self.spec.name, times=None), site_hooks.open():
            self.forward.logits(self.tokens)
        if (wrong := next((layer for layer, most in factors.items() if most > 0), None)) is not None:
            withheld[Z] = f"W_O of layer {wrong} reads beyond z"


Ran = tuple[tuple[Any, ...], dict[str, Any], Any]  # arguments of a part and what it returned first


def _inner_claims(
    site_hooks: SiteHooks, ran: Mapping[tuple[int, str], Ran], arrived: Side, left: Side, layer: int
) -> Iterator[Claim]:
    """The equations of states, and those inside an MLP or a mixture of experts."""
    anatomy, parts = site_hooks.anatomy, site_hooks.anatomy.parts[layer]
    if STATE in arrived:
        read, output = site_hooks.read_states[layer]
        yield Claim("what is read of state = output of the recurrence", (STATE,), read, output, _OF_STATES)
    if {MLP_POST, MLP_OUT} <= arrived.keys():
        assert parts.down is not None and parts.writers is not None, "the sites exist"
        out = call(anatomy.part(layer, parts.down), left[MLP_POST])
        out = call(anatomy.part(layer, parts.writers[1]), out) if parts.is_down_normed else out
        yield Claim("W_out mlp_post + b = mlp_out", (MLP_POST,), arrived[MLP_OUT], parts.write_scale * out)
    if ROUTER_LOGITS in arrived and (layer, str(parts.router)) in ran:
        logits = ran[layer, str(parts.router)][2].reshape(left[ROUTER_LOGITS].shape)
        yield Claim("the router returns router_logits", (ROUTER_LOGITS,), logits, left[ROUTER_LOGITS])
    if EXPERT_WEIGHTS in arrived and (layer, str(parts.experts)) in ran:
        args, kwargs, out = ran[layer, str(parts.experts)]
        weights, experts = left[EXPERT_WEIGHTS].flatten(0, 1), anatomy.part(layer, str(parts.experts))
        found_routing = routing_of(args, kwargs)
        assert found_routing is not None, "it was seen in this pass"
        total = torch.zeros_like(out, dtype=torch.float64)
        for expert, weight in enumerate(weights.T):  # each one alone, with the weight 1
            one = found_routing[1].new_full((len(weights), 1), expert)
            own_args, own_kwargs = found_routing[0](one, torch.ones_like(one, dtype=weights.dtype))
            alone = first_output(experts(*own_args, **own_kwargs)).double()
            total += weight.double()[:, None] * alone.reshape(len(weights), -1).reshape(out.shape)
        yield Claim("Σ weight · expert = output of the experts", (EXPERT_WEIGHTS,), out, total)


def _mlp_sizes(anatomy: Anatomy, stated: int) -> tuple[int, int]:
    """The hidden units of a plain MLP, as its output matrix reads them, and the experts of a layer."""
    widths = {parts.d_mlp for parts in anatomy.parts if parts.d_mlp}
    d_mlp = widths.pop() if len(widths) == 1 else stated
    return d_mlp, max((parts.n_experts for parts in anatomy.parts), default=0)


def _turned(
    anatomy: Anatomy,
    entered: Mapping[tuple[int, str | None], Sequence[Tensor]],
    site: Site,
    x: Float[Tensor, "batch pos head d"],
    layer: int,
) -> Float[Tensor, "batch pos head d"] | None:
    """The rotated queries or keys that entered their norm; None if the norm, if any, acts before the rotation."""
    if site not in anatomy.parts[layer].late_norms:
        return None
    path, at = anatomy.parts[layer].late_norms[site]
    rotated = turned_of(entered[layer, path][at], x)
    return entered[layer, path][at].reshape(x.shape) if rotated is None else rotated


@final
class _Seen:
    """What the attention functions of a model were given in one pass, by layer."""

    def __init__(self, n_layers: int) -> None:
        self.by_interface: list[list[AttentionCall]] = [[] for _ in range(n_layers)]
        self.by_functions: list[list[AttentionCall]] = [[] for _ in range(n_layers)]
        self.no_taps = Taps((), n_layers)

    @property
    def route(self) -> By:
        """Where attention was reached: in the interface, if it was called."""
        return "interface" if any(self.by_interface) else "functions"

    @property
    def handed(self) -> list[list[AttentionCall]]:
        """The calls that count: those of the interface, if there are any."""
        return self.by_interface if self.route == "interface" else self.by_functions

    def of(self, layer: int) -> AttentionCall | None:
        """Return the call of a layer; None unless it is the only one."""
        calls = self.handed[layer]
        return calls[0] if len(calls) == 1 else None

    def sizes(self, stated: HeadSizes) -> HeadSizes:
        """Return the sizes that the calls show, where they agree; else those that the config states."""
        sizes = {call.sizes for calls in self.handed for call in calls}
        return replace(sizes.pop(), n_heads=stated.n_heads) if len(sizes) == 1 and stated.n_heads else stated


def _written(anatomy: Anatomy, z: Float[Tensor, "batch pos head d_head"], layer: int) -> Float[Tensor, "..."] | None:
    """The attention output for these head outputs: W_O, then the norm after it if there is one; None if z is gated."""
    parts = anatomy.parts[layer]
    assert parts.output is not None and parts.writers is not None, "z and attn_out exist"
    if parts.is_gated or parts.is_patched:
        return None
    out = call(anatomy.part(layer, parts.output), z.flatten(-2))
    return parts.write_scale * (out if parts.is_plain_write else call(anatomy.part(layer, parts.writers[0]), out))


def _normed(anatomy: Anatomy, site: Site, x: Float[Tensor, "batch pos head d"], layer: int) -> Float[Tensor, "..."]:
    """Queries or keys after their norm, which acts per head or on all heads of a position together."""
    parts = anatomy.parts[layer]
    path = parts.late_norms[site][0] if site in parts.late_norms else parts.norms.get(site)
    if path is None:
        return x
    norm = anatomy.part(layer, path)
    together = any(p.shape[-1:] == (x.shape[-1] * x.shape[-2],) for p in norm.parameters())
    if together:
        return call(norm, x.flatten(-2)).reshape(x.shape)
    is_of_positions = any(p.ndim > 1 for p in norm.parameters())  # a weight with an axis of heads, the last but one
    return call(norm, x) if is_of_positions else call(norm, x.transpose(1, 2)).transpose(1, 2)


@final
class HFModel(Reattachable):
    """The `Model` of a Hugging Face causal language model. Text tasks need `tokenizer`.

    Raises:
        InvalidArgument: The model is not causal, has no recognizable blocks, or has sharded heads.
    """

    def __init__(
        self,
        hf: "PreTrainedModel",
        *,
        name: str | None = None,
        tokenizer: Tokenizer | None = None,
        task: WindTunnel | None = None,
        digest: str | None = None,
        rebuild: "Callable[[int], PreTrainedModel] | None" = None,
    ) -> None:
        self.module, self.task, self.tokenizer, self.structure = hf, task, tokenizer, structure_of(hf)
        self._hf, self._rebuild, self._is_plain_hash = hf, rebuild, digest is not None
        self._replayer: Replayer | None = None
        self._attached: Attached = attach(hf, name or type(hf).__name__, digest)
        self.spec: ModelSpec = self._attached.spec
        self.withheld = Withheld(self._attached.withheld)
        if self.spec.n_heads:
            self.attention_kernel = lambda: str(hf.config._attn_implementation or "eager")  # noqa: SLF001
        self.rotation = self._attached.forward.rotation
        self._prefixes = self._prefixes_of(self._attached.forward)
        every = tuple(range(self.spec.n_layers))
        self.partial_sites = {site: layers for site, layers in self._attached.layers.items() if layers != every}

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset(self._attached.layers).difference(self.partial_sites)

    def _head_output(self, layer: int) -> HeadOutput | None:
        anatomy, none = self._attached.site_hooks.anatomy, torch.zeros(0, dtype=torch.int64, device=self.spec.device)
        parts = anatomy.parts[layer]
        if parts.output is None or parts.writers is None or parts.is_gated or parts.is_patched:
            return None
        matrix, norm = self.static(W_O, none, layer), None
        if not parts.is_plain_write:
            norm, matrix = anatomy.part(layer, parts.writers[0]), matrix / parts.write_scale
        return HeadOutput(matrix=matrix, norm=norm, factor=parts.write_scale if norm is not None else 1.0)

    def digest(self) -> str:
        """Return the hash of the weights as they are now, made as that of the spec."""
        return weights_hash(self._hf.state_dict()) if self._is_plain_hash else weights_identity(self._hf)

    def attached_again(self, digest: str) -> "HFModel":
        """Return a new adapter of the model as it is now; `digest` is the hash of its weights."""
        given = digest if self._is_plain_hash else None
        return HFModel(self._hf, name=self.spec.name, task=self.task, digest=given, rebuild=self._rebuild)

    def proof_errors(self) -> Mapping[Site, float]:
        """Return the largest equation error of each site, relative to the largest entry."""
        return self._attached.errors

    def point(self, site: Site, layer: int) -> nn.Module:
        return self._attached.site_hooks.taps.at(site, layer)

    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        return self._attached.static_sites.of(site, tokens, layer)

    @holding_lock()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        with evaluating(self._hf), self._attached.site_hooks.open():
            prefixes = None if self._is_watched() else self._prefixes
            logits = None if prefixes is None else prefixes.logits(trials)
            return self._attached.forward.at_scored(trials) if logits is None else logits

    def _runs_beginnings_once(self) -> bool:
        return self._prefixes is not None and bool(self._prefixes.is_exact)

    def _prefixes_of(self, forward: Forward) -> Prefixes | None:
        """How sequences with common beginnings run; None if there is no cache, or a length decides on the rotation."""
        if not forward.takes("past_key_values") or forward.rotation is not None:
            return None
        spec = self.spec
        of_token = (
            spec.n_layers * spec.n_kv_heads * (spec.d_head + (spec.d_value or spec.d_head)) * self._hf.dtype.itemsize
        )
        tolerance = tolerance_of(spec.dtype) / 10
        return Prefixes(forward.continued, forward.at_scored, tolerance=tolerance, token_bytes=max(1, of_token))

    def _is_watched(self) -> bool:
        """Whether a hook or a gradient reads the pass, so that it must be whole."""
        taps = self._attached.site_hooks.taps
        is_tapped = any(taps.is_watched(layer, *taps.sites()) for layer in range(taps.n_layers))
        return is_tapped or torch.is_grad_enabled() or bool(self.foreign_hooks())

    def untrained_copy(self, seed: int) -> "HFModel":
        places: dict[str, Any] = vars(self._hf).get(
            "hf_device_map", {}
        )  # from accelerate; empty if there is one device
        if "disk" in places.values():
            raise NoCopy(
                f"part of {self.spec.name} is on disk, and an untrained network would have to fit in memory: untrained "
                f"baselines are omitted. Load the model with a device_map that needs no disk, or a smaller dtype."
            )
        with PROCESS_STATE, torch.random.fork_rng(), default_dtype(self._hf.dtype):
            torch.manual_seed(torch_seed(seed))  # transformers initializes from the global generator
            # Of a copy of the config, because transformers sets the attention implementation in it.
            rebuild = self._rebuild or (lambda _seed: type(self._hf)(deepcopy(self._hf.config)))
            copy = rebuild(seed)
        module: nn.Module = copy.eval()
        if len({str(place) for place in places.values()}) > 1:
            import accelerate

            accelerate.dispatch_model(module, device_map=places)
        else:
            module.to(self.spec.device)
        return HFModel(
            copy,
            name=f"{self.spec.name} at initialization {seed}",
            tokenizer=self.tokenizer,
            task=self.task,
            digest=untrained_hash(seed),
            rebuild=self._rebuild,
        )

    @holding_lock()
    def replayer(self) -> Replayer:
        if self._replayer is None:
            self._replayer = prefix_replayer(self, self._attached.site_hooks.anatomy.blocks)
        return self._replayer
