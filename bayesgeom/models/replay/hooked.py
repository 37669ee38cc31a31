"""Replay with hooks on a whole model: a full pass for every variant, or the reuse of what is before the first edit.

`PlainLoop` runs the full model for every variant. It is slow and simple. Faster replays are tested against it, and
architectures that cannot be replayed use it.

`PrefixReplay` recomputes variants from the edited block on, stacked along the batch. A baseline keeps the input of each
block. To replay from block k, the forward of earlier blocks is replaced by the identity, and the stored residual stream
becomes the input of block k. The rest is the model's own code. This is not exact if blocks share more than the residual
stream, such as keys. It is checked when a replayer is created, and such a model runs full passes.
"""

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesgeom.core import (
    ATTN_OUT,
    K_ROT,
    MLP_OUT,
    Q_ROT,
    RESID_MID,
    RESID_PRE,
    BayesGeomError,
    Edit,
    K,
    Q,
    Reference,
    Site,
    Trials,
    V,
    Z,
)
from bayesgeom.core.torch_state import Change, Hook, SiteLayer, holding_lock, hooked, site_hook, store_activation
from bayesgeom.models.adapters.proof import first_input, input_hook, sentinel_trials
from bayesgeom.models.base import STAGES, BaselinePass, Model, Variant, entry, hooked_sites

_INPUTS = ((Q, Q_ROT), (K, K_ROT), (V, V))  # of a head; rotated where a model does not provide the others


class _Receiving(ABC):
    """What a change of one input makes a layer write, by passes with hooks."""

    model: Model

    @abstractmethod
    def _within(self, baseline: BaselinePass, layer: int, hooks: Mapping[SiteLayer, Change]) -> object:
        """Run a layer of the baseline with these hooks."""

    @final
    @torch.no_grad()
    def heads_received(
        self, baseline: BaselinePass, layer: int, changes: Iterable[Float[Tensor, "batch pos d_model"]]
    ) -> Iterator[Float[Tensor, "input batch pos head d_head"]]:
        """Yield, for each change of a layer's input, the head outputs if it reaches q, k or v alone."""
        has = self.model.layers_of
        inputs = [(site if layer in has(site) else rotated, layer) for site, rotated in _INPUTS]
        for change in changes:
            changed = dict[SiteLayer, Tensor]()
            hooks: dict[SiteLayer, Change] = {place: store_activation(changed, place) for place in inputs}
            self._within(baseline, layer, {(RESID_PRE, layer): _adding(change), **hooks})
            each = list[Tensor]()
            for place in inputs:
                kept = dict[SiteLayer, Tensor]()
                values = changed[place]
                self._within(baseline, layer, {place: _giving(values), (Z, layer): store_activation(kept, (Z, layer))})
                each.append(kept[Z, layer])
            yield torch.stack(each)

    @final
    @torch.no_grad()
    def mlp_received(
        self, baseline: BaselinePass, layer: int, changes: Iterable[Float[Tensor, "batch pos d_model"]]
    ) -> Iterator[Float[Tensor, "batch pos d_model"]]:
        """Yield, for each change of the input of a layer's MLP, what the MLP writes."""
        reads = (mlp_reads(self.model, layer), layer)
        for change in changes:
            kept = dict[SiteLayer, Tensor]()
            hooks = {reads: _adding(change), (MLP_OUT, layer): _copying(kept, (MLP_OUT, layer))}
            self._within(baseline, layer, hooks)
            yield kept[MLP_OUT, layer]


@final
class PlainLoop(_Receiving):
    """A `Replayer` that runs the full model for every variant; it can also keep and edit other sites, such as `v`."""

    def __init__(self, model: Model, also: Sequence[Site] = ()) -> None:
        self.model, self._sites = model, (*STAGES, *also)

    @holding_lock("model.module")
    @torch.no_grad()
    def baseline(self, trials: Trials, also: Sequence[Site] = ()) -> BaselinePass:
        """Run one pass and keep every replayable site, and those in `also`, at all positions."""
        stored: dict[SiteLayer, Tensor] = {}
        places = [(site, layer) for site in (*self._sites, *also) for layer in self.model.layers_of(site)]
        with hooked_sites(self.model, {place: _copying(stored, place) for place in places}):
            logits = self.model.logits(trials)
        return BaselinePass(trials=trials, stored=stored, logits=logits)

    @holding_lock("model.module")
    @torch.no_grad()
    def logits(
        self, baseline: BaselinePass, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """Run one full pass per variant.

        Raises:
            HookFault: The hook of an edit did not fire exactly once.
        """
        return torch.stack([edited_pass(self.model, baseline.trials, variant, reference) for variant in variants])

    def _within(self, baseline: BaselinePass, layer: int, hooks: Mapping[SiteLayer, Change]) -> None:
        """Run one pass with these hooks."""
        with hooked_sites(self.model, hooks):
            self.model.logits(baseline.trials)


@holding_lock()
@torch.no_grad()
def mlp_reads(model: Model, layer: int) -> Site:
    """Return the site at which a change reaches the input of a layer's MLP: resid_pre if it is parallel to attention.

    Only what the MLP writes is read after such a change, so that it does not matter what else changes.
    """
    if layer in model.layers_of(RESID_MID) or layer not in model.layers_of(ATTN_OUT):
        return RESID_MID if layer in model.layers_of(RESID_MID) else RESID_PRE
    place, trials = (MLP_OUT, layer), sentinel_trials(model.spec.d_vocab, model.spec.n_ctx, model.spec.device)
    plain, other = dict[SiteLayer, Tensor](), dict[SiteLayer, Tensor]()
    with hooked_sites(model, {place: store_activation(plain, place)}):
        model.logits(trials)
    with hooked_sites(model, {place: store_activation(other, place), (ATTN_OUT, layer): torch.zeros_like}):
        model.logits(trials)
    return RESID_PRE if torch.equal(plain[place], other[place]) else ATTN_OUT


def _adding(change: Float[Tensor, "batch pos d_model"]) -> Change:
    return lambda output: output + change.to(output)


def _giving(values: Float[Tensor, "batch pos head d_head"]) -> Change:
    return lambda _output: values


def edited_pass(
    model: Model, trials: Trials, variant: Variant, reference: Reference
) -> Float[Tensor, "batch query_pos d_vocab"]:
    """Run one full pass with edits set as hooks; of two edits of one activation the first comes first.

    Raises:
        HookFault: The hook of an edit did not fire exactly once.
    """

    def editing(edit: Edit) -> Change:
        return lambda output: edit.applied(output, reference)

    hooks = [site_hook((edit.site, edit.layer), model.point(edit.site, edit.layer), editing(edit)) for edit in variant]
    with hooked(model.module, hooks, by=model.spec.name):
        return model.logits(trials)


def _copying(stored: dict[SiteLayer, Tensor], place: SiteLayer) -> Change:
    """Return a function that stores the activation, or a copy of an update: Falcon adds one update to the other."""

    def keep(output: Tensor) -> None:
        stored[place] = output.clone() if place[0] in (ATTN_OUT, MLP_OUT) else output

    return keep


Form = tuple[type[Any], int] | None  # tuple or list and its length; None is a bare tensor
_CLOSE = 1e-5  # tolerance of a replay without edits, relative to each number and to the mean magnitude


class _Reached(BayesGeomError):
    """Raised to stop a pass at a block; of this package, so that no adapter takes it for a fault of a model."""


@final
class PrefixReplay(_Receiving):
    """A `Replayer` that skips the blocks before the first edit; it can also keep and edit other sites, such as `v`."""

    def __init__(self, model: Model, blocks: tuple[nn.Module, ...], also: Sequence[Site] = ()) -> None:
        self.model, self.blocks = model, blocks
        self._loop = PlainLoop(model, also)
        self._forms: list[Form] | None = None

    @holding_lock("model.module")
    @torch.no_grad()
    def baseline(self, trials: Trials, also: Sequence[Site] = ()) -> BaselinePass:
        """Run one pass and keep every replayable site, and those in `also`, at all positions."""
        return self._loop.baseline(trials, also)

    @holding_lock("model.module")
    @torch.no_grad()
    def logits(
        self, baseline: BaselinePass, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """Return the logits at the scored rows under each variant. All variants must have the same `entry`.

        Raises:
            HookFault: The hook of an edit did not fire exactly once.
        """
        first, stage = entry(variants[0])
        assert all(entry(variant) == (first, stage) for variant in variants), "variants of one batch share their entry"
        return self._replayed(baseline, first, variants, reference)

    @holding_lock("model.module")
    @torch.no_grad()
    def inexact_from(self) -> int | None:
        """Return the first block whose output changes when the blocks before it are skipped; None if there is none.

        If the output of a block is unchanged, it depends on earlier blocks only through the residual stream. The last
        block is checked by the logits.
        """
        spec = self.model.spec
        trials = sentinel_trials(spec.d_vocab, spec.n_ctx, spec.device)
        baseline = self.baseline(trials)
        for layer in range(1, spec.n_layers):
            if layer + 1 < spec.n_layers:
                replayed, exact = self._within(baseline, layer), baseline.stored[RESID_PRE, layer + 1]
                assert replayed is not None, "the next block was reached"
            else:
                replayed, exact = self._replayed(baseline, layer, [()], None)[0], baseline.logits
            wide = exact.double()
            # Relative to the largest entry, massive activations of language models would hide errors.
            allowed = _CLOSE * (wide.abs() + wide.abs().mean())
            if not bool(((replayed.double() - wide).abs() <= allowed).all()):
                return layer
        return None

    def _within(
        self, baseline: BaselinePass, layer: int, hooks: Mapping[SiteLayer, Change] = MappingProxyType({})
    ) -> Float[Tensor, "batch pos d_model"] | None:
        """Run one block alone, with hooks; return the input of the next one, or None after the last."""
        inputs: list[Tensor] = []
        self._forms_given()

        def stop(_module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            given = first_input(args, kwargs)
            assert given is not None, "the block ran, and was seen to, when the model was attached"
            inputs.append(given)
            raise _Reached

        following = self.blocks[layer + 1 : layer + 2]
        stops = [Hook(part=block, call=stop, kind="pre", with_kwargs=True, is_first=True) for block in following]
        skipping = self._from(layer, baseline.stored[RESID_PRE, layer], 1)
        stopping = hooked(self.model.module, stops, by=self.model.spec.name)
        with contextlib.suppress(_Reached), hooked_sites(self.model, hooks), stopping, skipping:
            self.model.logits(baseline.trials)
        return inputs[0] if inputs else None

    def _replayed(
        self, baseline: BaselinePass, first: int, variants: Sequence[Variant], reference: Reference | None
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        trials, n = baseline.trials, len(variants)
        self._forms_given()  # runs a pass, so call it before edits are set
        rows = torch.arange(len(trials), device=trials.tokens.device).repeat(n)
        hooks: dict[SiteLayer, Change] = {}
        for place in dict.fromkeys((edit.site, edit.layer) for variant in variants for edit in variant):
            own = [[edit for edit in variant if (edit.site, edit.layer) == place] for variant in variants]
            hooks[place] = _editing(own, reference)
        with hooked_sites(self.model, hooks), self._from(first, baseline.stored[RESID_PRE, first], n):
            logits = self.model.logits(trials.rows(rows))
        return cast(Tensor, logits.unflatten(0, (n, len(trials))))

    @contextlib.contextmanager
    def _from(self, first: int, entered: Float[Tensor, "batch pos d_model"], n: int) -> Iterator[None]:
        """Skip the blocks before `first` and use this residual stream as its input, repeated per variant."""
        skipped = self.blocks[:first]
        formers = [vars(block).get("forward") for block in skipped]

        def swap(given: Tensor) -> Tensor:
            return entered.to(given).repeat(n, *([1] * (entered.ndim - 1)))

        forms = self._forms_given()  # runs an unmodified pass
        hook = input_hook(self.blocks[first], swap, label=f"block {first}", is_first=True)
        with hooked(self.model.module, [hook], by=self.model.spec.name):
            try:
                for block, form in zip(skipped, forms, strict=False):
                    vars(block)["forward"] = _passing_on(form)
                yield
            finally:
                for block, former in zip(skipped, formers, strict=True):
                    vars(block).pop("forward", None)
                    if former is not None:
                        vars(block)["forward"] = former

    def _forms_given(self) -> list[Form]:
        """The type and length of each block's output."""
        if self._forms is None:
            spec, forms = self.model.spec, list[Form]([None] * len(self.blocks))

            def keeping(layer: int) -> Callable[[nn.Module, object, object], None]:
                def keep(_module: nn.Module, _inputs: object, output: object) -> None:
                    forms[layer] = (type(output), len(output)) if isinstance(output, tuple | list) else None

                return keep

            hooks = [Hook(part=block, call=keeping(layer)) for layer, block in enumerate(self.blocks)]
            with hooked(self.model.module, hooks, by=spec.name, times=None):
                self.model.logits(sentinel_trials(spec.d_vocab, spec.n_ctx, spec.device))
            self._forms = forms
        return self._forms


def prefix_replayer(model: Model, blocks: tuple[nn.Module, ...]) -> "PrefixReplay | PlainLoop":
    """Return a replay that reuses prefixes if that is exact; otherwise, with a warning, one of full passes."""
    replay = PrefixReplay(model, blocks)
    if (layer := replay.inexact_from()) is None:
        return replay
    warnings.warn(
        f"{model.spec.name} cannot be replayed with the same logits, because block {layer} reads more than the "
        f"residual stream: every ablation runs a full forward pass.",
        stacklevel=2,
    )
    return PlainLoop(model)


def _passing_on(form: Form) -> Callable[..., Any]:
    """An identity forward that returns the same type as the block."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = first_input(args, kwargs)
        if form is None:
            return given
        kind, length = form
        return kind([given, *[None] * (length - 1)])

    return forward


def _editing(edits: Sequence[Sequence[Edit]], reference: Reference | None) -> Change:
    """A hook that applies each variant's edits to its part of the stacked batch."""

    def edit_parts(output: Tensor) -> Tensor:
        assert reference is not None, "edits come with a reference"
        parts = list(output.chunk(len(edits)))
        for index, of_variant in enumerate(edits):
            for edit in of_variant:
                parts[index] = edit.applied(parts[index], reference)
        return torch.cat(parts)

    return edit_parts
