"""Adapter for models of transformer-lens: a `TransformerBridge`, or a `HookedTransformer` of version 3.

Activations are read at transformer-lens's own hook points, so a user's hooks there affect the measurements. A listed
hook point need not work: for some families hooks of rotated keys never fire, or edits of patterns have no effect. Sites
that cannot be verified are withheld. The Hugging Face model itself, passed before it is booted, provides more sites.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any, cast, final

import torch
from einops import einsum
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core import (
    ATTN_OUT,
    MLP_OUT,
    MLP_POST,
    PATTERN,
    RESID_MID,
    RESID_PRE,
    MissingSite,
    ModelSpec,
    NoCopy,
    Site,
    Trials,
)
from bayesgeom.core.torch_state import PROCESS_STATE, Hook, holding_lock, hooked, structure_of
from bayesgeom.models.adapters.attention import causal, pattern_of
from bayesgeom.models.adapters.hooked import POINTS
from bayesgeom.models.adapters.proof import (
    Claim,
    Functions,
    Passage,
    PerHead,
    Side,
    Taps,
    examined,
    first_input,
    perturbed_pass,
    sentinel_trials,
)
from bayesgeom.models.base import HeadOutput, Reattachable, Replayer, Withheld
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.tasks.base import torch_seed

_NATIVE = "TransformerLensNative"  # of bridges that `boot_native` makes


@final
class LensModel(Reattachable):
    """The `Model` of a transformer-lens model."""

    def __init__(self, module: nn.Module, *, name: str | None = None) -> None:
        self.module, self.task, self.structure = module, None, structure_of(module)
        lens: Any = module
        self._lens = lens
        self.tokenizer = lens.tokenizer
        self.spec = _spec(self._lens, name or type(module).__name__)
        self._names = dict(self._found())
        self._taps = Taps(self._names, self.spec.n_layers)
        self.withheld = Withheld(self._disproved())

    def digest(self) -> str:
        return weights_hash(self._lens.state_dict())

    def attached_again(self, digest: str) -> "LensModel":
        return LensModel(self.module, name=self.spec.name)

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset(self._names).difference(self.withheld)

    def point(self, site: Site, layer: int) -> nn.Module:
        return self._taps.at(site, layer)

    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        raise MissingSite(f"{self.spec.name} provides no site that is read from weights, such as {site.name!r}.")

    @holding_lock()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        with self._open():
            return trials.at_scored(self._lens(trials.tokens))

    def untrained_copy(self, seed: int) -> "LensModel":
        is_bridge, config = type(self._lens).__name__ != "HookedTransformer", deepcopy(self._lens.cfg)
        if is_bridge and config.architecture != _NATIVE:
            raise NoCopy(
                f"{self.spec.name} is a bridge, which cannot be instantiated again: for untrained baselines, pass the "
                f"Hugging Face model itself."
            )
        config.seed = torch_seed(seed)  # with which transformer-lens initializes
        with PROCESS_STATE, torch.random.fork_rng():
            torch.manual_seed(config.seed)
            built: Any = type(self._lens).boot_native(config) if is_bridge else type(self._lens)(config)
        like = next(self._lens.parameters())
        return LensModel(
            built.to(device=like.device, dtype=like.dtype), name=f"{self.spec.name} at initialization {seed}"
        )

    def replayer(self) -> Replayer:
        return PlainLoop(self)

    def _head_output(self, layer: int) -> HeadOutput:
        norm = next(iter(self._parts(layer, ("ln1_post",))), None)
        return HeadOutput(matrix=self._lens.blocks[layer].attn.W_O.detach(), norm=norm)

    def _found(self) -> Iterator[tuple[Site, str]]:
        """Yield the hook points that every block has; without rotation the scores use q and k themselves."""
        is_rotary = self._lens.cfg.positional_embedding_type == "rotary"
        for site, (name, *unturned) in POINTS.items():
            name = name if is_rotary or not unturned else unturned[0]
            if all(f"blocks.{layer}.{name}" in self._lens.hook_dict for layer in range(self.spec.n_layers)):
                yield site, name

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Route activations at watched hook points through their taps; afterwards remove only the hooks set here."""
        ours = []
        try:
            for layer in range(self.spec.n_layers):
                for site, change in self._changes(layer):
                    point = self._lens.hook_dict[f"blocks.{layer}.{self._names[site]}"]
                    point.add_hook(change)
                    ours.append((point, point.fwd_hooks[-1]))
            yield
        finally:
            for point, handle in ours:
                handle.hook.remove()
                point.fwd_hooks.remove(handle)

    def _changes(self, layer: int) -> Iterator[tuple[Site, Callable[..., Tensor]]]:
        """Yield the hook points of this layer and the functions to set there.

        A bridge's `hook_resid_mid` is the input of the MLP's norm, so an edit there would not change the stream.
        Therefore resid_mid is edited at the attention output, by the update that leads to the edited value.
        """
        entered: list[Tensor] = []
        has_middle = self._taps.is_watched(layer, RESID_MID)

        def enter(value: Tensor, hook: object) -> Tensor:  # noqa: ARG001  (transformer-lens passes it by name)
            entered.append(self._taps.through(RESID_PRE, layer, value))
            return entered[-1]

        def write(value: Tensor, hook: object) -> Tensor:  # noqa: ARG001  (as above)
            out = self._taps.through(ATTN_OUT, layer, value)
            if not has_middle:
                return out
            mid = entered[-1] + out
            passed = self._taps.through(RESID_MID, layer, mid)
            return out if passed is mid and not mid.requires_grad else passed - entered[-1]

        for site in self._names:
            if site in (RESID_PRE, ATTN_OUT) and (has_middle or self._taps.is_watched(layer, site)):
                yield site, enter if site == RESID_PRE else write
            elif site != RESID_MID and self._taps.is_watched(layer, site):
                yield site, partial(lambda own, value, hook: self._taps.through(own, layer, value), site)  # noqa: ARG005  (as above)

    @holding_lock()
    @torch.no_grad()
    def _disproved(self) -> dict[Site, str]:
        tokens = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device).tokens
        given: dict[int, Tensor] = {}

        def keep(layer: int, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (value := first_input(args, kwargs)) is not None:
                given[layer] = value

        def forward() -> None:
            hooks = [
                Hook(part=reader, call=partial(keep, layer), kind="pre", with_kwargs=True)
                for layer in range(self.spec.n_layers)
                for reader in self._parts(layer, ("ln2", "mlp"))[:1]
            ]
            with hooked(self.module, hooks, by=self.spec.name, times=None), self._open():
                self._lens(tokens)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bridge warns of edits without effect, which are detected here
            places = product(self._names, range(self.spec.n_layers))
            passages = perturbed_pass(self.module, forward, self._taps.at, places)
        functions = Functions(
            written=self._written,
            normed=self._normed,
            pattern=partial(self._pattern, passages),
            mid_given=given.get,
        )
        return examined(passages, functions, self.spec, tokens.shape[1], equations=self._equations)[0]

    def _equations(self, arrived: Side, left: Side, layer: int) -> Iterator[Claim]:
        if {MLP_POST, MLP_OUT} <= arrived.keys():
            for matrix in self._parts(layer, ("out",), within="mlp"):
                out = matrix(left[MLP_POST])
                for norm in self._parts(layer, ("ln2_post",)):
                    out = norm(out)
                yield Claim("W_out mlp_post + b = mlp_out", (MLP_POST,), arrived[MLP_OUT], out)

    def _parts(self, layer: int, names: Sequence[str], within: str = "") -> list[Any]:
        """The parts of a block with these names, if they exist."""
        block = self._lens.blocks[layer]
        home = block.get_submodule(within) if within else block
        children = dict(home.named_children())
        return [children[name] for name in names if name in children]

    def _written(self, z: Float[Tensor, "batch pos head d_head"], layer: int) -> Float[Tensor, "batch pos d_model"]:
        attention = self._lens.blocks[layer].attn
        out = einsum(z, attention.W_O, "b p h d, h d m -> b p m")
        out = out if attention.b_O is None else out + attention.b_O
        for norm in self._parts(layer, ("ln1_post",)):
            out = norm(out)
        return cast(Tensor, out)

    def _normed(self, site: Site, x: Float[Tensor, "b p h d"], layer: int) -> Float[Tensor, "b p h d"]:
        for norm in self._parts(layer, (f"{site.name}_norm",), within="attn"):
            wide = any(p.shape[-1] == x.shape[-1] * x.shape[-2] for p in norm.parameters())
            x = norm(x.flatten(-2)).reshape(x.shape) if wide else norm(x)
        return x

    def _pattern(
        self,
        passages: Mapping[tuple[Site, int], Passage],
        q: Float[Tensor, "batch pos head d_head"],
        k: Float[Tensor, "batch pos kv_head d_head"],
        layer: int,
    ) -> PerHead:
        """The pattern of rotated queries and keys with the spec's scale, over the visible keys."""
        cap = self._lens.cfg.attn_scores_soft_cap
        hidden = passages[PATTERN, layer].arrived[0] <= 0  # a sliding window may hide some
        added = causal(q.shape[1], q).expand(hidden.shape).masked_fill(hidden, -torch.inf)
        return pattern_of(q, k, self.spec.score_scale, added, cap if cap > 0 else None)


def _spec(lens: Any, name: str) -> ModelSpec:
    cfg, parameters = lens.cfg, dict(lens.named_parameters())
    first = next(iter(parameters.values()))
    return ModelSpec(
        name=name,
        architecture=type(lens).__name__,
        n_layers=cfg.n_layers,
        n_heads=cfg.n_heads,
        n_kv_heads=cfg.n_key_value_heads or cfg.n_heads,
        d_model=cfg.d_model,
        d_head=cfg.d_head,
        d_mlp=cfg.d_mlp or 4 * cfg.d_model,
        d_vocab=cfg.d_vocab,
        n_ctx=cfg.n_ctx,
        score_scale=_scale(lens),
        n_parameters=sum(parameter.numel() for parameter in parameters.values()),
        dtype=str(first.dtype).removeprefix("torch."),
        device=str(first.device),
        weights_hash=weights_hash(lens.state_dict()),
    )


def _scale(lens: Any) -> float:
    """The factor of q·k: from the wrapped attention, else from the config, else 1 / √d_head."""
    attentions: Sequence[nn.Module] = [part for name, part in lens.blocks[0].named_children() if name == "attn"]
    for part in (inner for attention in attentions for inner in attention.modules()):
        if isinstance(scaling := vars(part).get("scaling"), float):
            return scaling
    divisor = float(lens.cfg.attn_scale)
    return 1 / divisor if divisor > 0 else float(lens.cfg.d_head) ** -0.5
