"""What the viewer shows: a few sequences, with the exact posterior next to the model's predictions and its insides.

Types are as small as they can honestly be: float32 for probabilities of the model and exact ones, float16 for those of
the lens and of the model without a head, bytes for attention. `payload` packs them for the page.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt8
from safetensors.numpy import save
from torch import Tensor

from bayesgeom.ablations import Ablation, Component, every_head
from bayesgeom.ablations.engine import edited_logits, position_means, references
from bayesgeom.core import LOGIT_LENS, NO_LABEL, PATTERN, Ask, InvalidArgument, Mode, Run, Site, Tokenizer, Trials, Z
from bayesgeom.core.errors import optional_package
from bayesgeom.core.tokenizer import decoded_text
from bayesgeom.measurements.base import Control, Further, Measurement, Needs, Subject
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.models.resolve import ModelLike, as_model
from bayesgeom.report.estimate import Coordinate, Unit
from bayesgeom.report.report import Report
from bayesgeom.report.tables import FirstView
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import entropy_bits, kl_bits
from bayesgeom.tasks.base import FiniteTask, WindTunnel, at_most, derived_seed, task_from_config

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from bayesgeom.report.panels import Panel
    from bayesgeom.report.tables import Headline

N_SHOWN = 8  # sequences
N_MEANS = 64  # sequences whose mean replaces a head's output
MOST_BYTES = 3_000_000  # of attention: fewer sequences, then fewer positions, where there are many heads and tokens
_MEANS = 5  # branch of the seed
Without = Callable[[int, Sequence[tuple[int, int]]], tuple[np.ndarray, np.ndarray]]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class InsideReport(Report):
    """A few sequences as the viewer shows them: tokens, predictions, attention, the lens, and the effect of each head.

    It holds no estimate, so it has no rows in tables and no figures: pages and `Diagnosis.view` show it.

    Fields: `texts` are the tokens of every sequence, "" after its end; `scored` the indices of the scored positions.
    `exact_probs` and `model_probs` are over the answers, renormalized. `attention` are the weights of every head at the
    scored positions, 255 is 1. `lens_probs` and `lens_kl_bits` are what the logit lens reads of the stream
    before each layer.
    `edited_probs` and `edited_kl_bits` are those of the model without one head, whose output is replaced by its mean
    over 64 other sequences at the same position, or by 0 if the ablations of the same page do so. Where the model does
    not give the numbers, an axis has length 0.
    Of a training, the same sequences are repeated for every snapshot, whose step is in `training_steps`.
    """

    name: ClassVar[str] = "inside"
    title: ClassVar[str] = "Look inside"

    texts: Annotated[tuple[str, ...], "sequence token"]
    ids: Annotated[Int[np.ndarray, "sequence token"], Unit("id of a token")]
    scored: Annotated[Int[np.ndarray, "sequence place"], Unit("index of a token")]
    answers: tuple[str, ...]
    answer_ids: Annotated[Int[np.ndarray, " answer"], Unit("id of a token"), Coordinate()]
    exact_probs: Annotated[Float[np.ndarray, "sequence place answer"], Unit("1")]
    model_probs: Annotated[Float[np.ndarray, "sequence place answer"], Unit("1")]
    exact_entropy_bits: Annotated[Float[np.ndarray, "sequence place"], Unit("bits")]
    model_entropy_bits: Annotated[Float[np.ndarray, "sequence place"], Unit("bits")]
    kl_bits: Annotated[Float[np.ndarray, "sequence place"], Unit("bits")]
    attention: Annotated[UInt8[np.ndarray, "sequence attended_layer attended_head place token"], Unit("1/255")]
    lens_probs: Annotated[Float[np.ndarray, "sequence lens_stage place answer"], Unit("1")]
    lens_kl_bits: Annotated[Float[np.ndarray, "sequence lens_stage place"], Unit("bits")]
    edited_probs: Annotated[Float[np.ndarray, "sequence edited_layer edited_head place answer"], Unit("1")]
    edited_kl_bits: Annotated[Float[np.ndarray, "sequence edited_layer edited_head place"], Unit("bits")]
    training_steps: Annotated[Int[np.ndarray, " sequence"], Unit("steps")]

    def headlines(self) -> "Sequence[Headline]":
        return ()

    def panels(self) -> "Sequence[Panel]":
        return ()

    def payload(self) -> bytes:
        """Return the data of the viewer: a safetensors file compressed by gzip; its metadata holds the texts."""
        fields = vars(self).items()
        arrays = {name: np.ascontiguousarray(each) for name, each in fields if isinstance(each, np.ndarray)}
        n_tokens = arrays.pop("ids").shape[1]
        del arrays["answer_ids"]
        rows = [self.texts[start : start + n_tokens] for start in range(0, len(self.texts), n_tokens)]
        about = {"answers": self.answers, "tokens": [_without_padding(row) for row in rows]}
        return gzip.compress(save(arrays, {"about": json.dumps(about)}), compresslevel=9, mtime=0)

    def first_view(self) -> FirstView:
        """Return what the viewer shows first: where a head matters most in the first sequence, or its last position.

        Answers are the eight most probable ones, of those with a probability of 0.0005 or more.
        """
        row = int(np.argmax(self.training_steps == self.training_steps[-1]))
        lost = self.edited_kl_bits[row] - self.kl_bits[row]
        place = int(np.argmax(lost)) % lost.shape[-1] if lost.size else self.scored.shape[1] - 1
        shares = np.stack([self.exact_probs[row, place], self.model_probs[row, place]], axis=1)
        shown = [at for at in np.argsort(-shares.max(axis=1), kind="stable")[:8] if shares[at].max() >= 0.0005]
        start = row * self.ids.shape[1]
        return FirstView(
            tokens=self.texts[start : start + int(self.scored[row, place]) + 1],
            answers={self.answers[at]: (float(shares[at, 0]), float(shares[at, 1])) for at in sorted(shown)},
        )

    def view(self, model: ModelLike | None = None) -> "AnyWidget":
        """Return the viewer as a widget for notebooks.

        Args:
            model: The diagnosed model, which then runs without any heads that are switched off. Default: single heads
                as they are stored.

        Raises:
            InvalidArgument: The package anywidget is not installed, or the model is another one or has no heads.
        """
        with optional_package("notebook", "view()"):
            from anywidget import AnyWidget
            from traitlets import Bool, Bytes

        @final
        class Widget(AnyWidget):
            """The viewer; made here, because anywidget is an extra."""

            _esm = files("bayesgeom.report").joinpath("assets", "viewer.js").read_text(encoding="utf-8")
            data = Bytes().tag(sync=True)
            runs = Bool().tag(sync=True)

        without = None if model is None else self._without(as_model(model))
        widget = Widget(data=self.payload(), runs=without is not None)
        if without is not None:

            def reply(_: object, message: Mapping[str, Any], __: object) -> None:
                heads = [(int(layer), int(head)) for layer, head in message["heads"]]
                replies = without(int(message["sequence"]), heads)
                shapes = [list(reply.shape) for reply in replies]
                widget.send({"id": message["id"], "shapes": shapes}, [reply.tobytes() for reply in replies])

            widget.on_msg(reply)
        return widget

    def _without(self, model: Model) -> Without:
        """Return a function of a sequence and heads: probabilities and KL, in float32, without these heads."""
        stored = self.provenance.get("model", {})
        if model.spec.weights_hash != stored.get("weights_hash"):
            raise InvalidArgument(
                f"view() runs the diagnosed model, {stored.get('name')}; got {model.spec.name} with other weights."
            )
        model.require((Z,), by="switching heads off in view()", layers=model.layers_of(Z))
        task = task_from_config(self.provenance["task"])
        arguments = self.provenance["arguments"]
        ablation = HeadAblation(model, task, seed=arguments["seed"], mode=arguments.get("mode", "mean"))
        trials = self._trials(model.spec.device)

        def without(
            sequence: int, heads: Sequence[tuple[int, int]]
        ) -> tuple[Float[np.ndarray, "place answer"], Float[np.ndarray, " place"]]:
            sequences = trials.rows(slice(sequence, sequence + 1))
            off = Ablation(tuple(Component(layer, "head", head) for layer, head in heads))
            log_answers = ablation.log_answers(sequences, [off])[0]
            kl = kl_bits(sequences.at_scored(sequences.predictive), log_answers)
            return _array(log_answers[0].exp(), np.float32), _array(kl[0], np.float32)

        return without

    def _trials(self, device: str) -> Trials:
        """Return the sequences, as they were scored."""
        ids, at = (torch.from_numpy(indices.astype(np.int64)).to(device) for indices in (self.ids, self.scored))
        exact = torch.from_numpy(self.exact_probs.astype(np.float64)).to(device)
        where = at[..., None].expand_as(exact)
        predictive = exact.new_zeros(*ids.shape, exact.shape[-1]).scatter(1, where, exact)
        return Trials(
            tokens=ids,
            scored=torch.zeros_like(ids, dtype=torch.bool).scatter(1, at, value=True),
            answers=torch.from_numpy(self.answer_ids.astype(np.int64)).to(device),
            predictive=predictive,
            belief=predictive,
            labels=torch.full_like(ids, NO_LABEL),
        )


def _without_padding(texts: Sequence[str]) -> Sequence[str]:
    return texts[: max(at for at, text in enumerate(texts, start=1) if text)]


@final
@dataclass(frozen=True, kw_only=True)
class Inside(Measurement[InsideReport]):
    """The first sequences of a run, with patterns, the logit lens and the effect of each head, as far as there are any.

    Args:
        with_heads: Whether to ablate every head of any model; otherwise only of the package's transformers, where this
            takes a second.
        mode: "zero" replaces a head's output by 0; any other mode replaces it by its mean.
    """

    name: ClassVar[str] = InsideReport.name
    needs: ClassVar[Needs] = Needs(posterior=True)
    with_heads: bool = False
    mode: Mode = "mean"
    sites: tuple[Site, ...] = field(default=(), repr=False)  # that the model has and can record again
    n_patterns: int = field(default=0, repr=False)  # layers with patterns

    def prepared(self, model: Model, task: WindTunnel, *, n: int, seed: int) -> Self:
        has_heads = (self.with_heads or isinstance(model, HookedModel)) and bool(model.layers_of(Z))
        is_spelled = bool(task.sample(1, seed=0).spellings)  # neither a lens nor an edit has answers of several tokens
        possible = (PATTERN,) if is_spelled else (PATTERN, LOGIT_LENS)
        sites = (site for site in possible if Ask.RERUN in model.asks and model.layers_of(site))
        has_heads = has_heads and Ask.EDIT in model.asks and not is_spelled
        return replace(self, with_heads=has_heads, sites=tuple(sites), n_patterns=len(model.layers_of(PATTERN)))

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterator[Further]:
        """Yield the shown sequences, if the run did not record their sites, or not at their last positions alone."""
        if self.sites and (trials := self._unrecorded(run)) is not None:
            yield Further(trials=trials, record=self.sites, label="data of the viewer")

    def of(self, subject: Subject, untrained: Sequence[InsideReport] = ()) -> InsideReport:
        shown = subject.further[0] if subject.further else self._first_of(subject.run)
        numbers = numbers_of(shown)
        if PATTERN in shown.recorded:
            # The patterns in bytes; 0 in layers without attention.
            trials, spec = shown.trials, shown.spec
            shape = (len(trials), spec.n_layers, spec.n_heads, trials.n_scored, trials.tokens.shape[1])
            weights = np.zeros(shape, np.uint8)
            layers = list(shown.layers.get(PATTERN, range(spec.n_layers)))
            weights[:, layers] = _array((255 * shown.at(PATTERN)).round().transpose(0, 1), np.uint8)
            numbers["attention"] = weights
        if self.with_heads:
            ablation = HeadAblation(subject.edited(), subject.known_task(), seed=subject.seed, mode=self.mode)
            numbers |= _edited(subject.edited(), shown.trials, ablation, numbers)
        return inside_report(numbers, subject.known_task(), None if subject.model is None else subject.model.tokenizer)

    def controls(self) -> Iterator[Control[InsideReport]]:
        return iter(())  # it shows what a run holds

    def _unrecorded(self, run: Run) -> Trials | None:
        """Return the sequences to show, scored where they are shown; None if the run has all of it."""
        n, n_places = self._room(run)
        if n_places == run.trials.n_scored and all(site in run.recorded for site in self.sites):
            return None
        trials = run.trials.rows(slice(0, n))
        is_last = trials.scored.flip(1).cumsum(1).flip(1) <= n_places
        return replace(trials, scored=trials.scored & is_last)

    def _room(self, run: Run) -> tuple[int, int]:
        """Return how many sequences are shown, and at how many of their last scored positions."""
        of_place = max(1, self.n_patterns * run.spec.n_heads * run.trials.tokens.shape[1])
        n = max(1, min(N_SHOWN, len(run.trials), MOST_BYTES // (of_place * run.trials.n_scored)))
        return n, max(1, min(run.trials.n_scored, MOST_BYTES // of_place))

    def _first_of(self, run: Run) -> Run:
        """Return the run of the sequences to show, with what was recorded at every shown position."""
        n, n_places = self._room(run)
        sites = [site for site in (PATTERN, LOGIT_LENS) if site in run.recorded and n_places == run.trials.n_scored]
        recorded = {site: run.recorded[site][:, :n] for site in sites}
        return replace(run, trials=run.trials.rows(slice(0, n)), log_answers=run.log_answers[:n], recorded=recorded)


def numbers_of(shown: Run) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the sequences of a run, exact and predicted probabilities, and those of the lens where it was recorded."""
    trials = shown.trials
    exact, model_probs = trials.at_scored(trials.predictive), shown.log_answers.exp()
    is_read = LOGIT_LENS in shown.recorded and LOGIT_LENS not in shown.layers  # from every layer
    log_lens = shown.at(LOGIT_LENS).double() if is_read else exact.new_zeros(0, *exact.shape)
    return {
        "ids": _array(trials.tokens, np.int32),
        "scored": _array(trials.scored_positions(), np.int32),
        "answer_ids": _array(trials.answers, np.int32),
        "exact_probs": _array(exact, np.float32),
        "model_probs": _array(model_probs, np.float32),
        "exact_entropy_bits": _array(entropy_bits(exact), np.float32),
        "model_entropy_bits": _array(entropy_bits(model_probs), np.float32),
        "kl_bits": _array(kl_bits(exact, shown.log_answers), np.float32),
        "lens_probs": _array(log_lens.exp().transpose(0, 1), np.float16),
        "lens_kl_bits": _array(kl_bits(exact.expand_as(log_lens), log_lens).transpose(0, 1), np.float32),
    }


def inside_report(
    numbers: Mapping[str, Shaped[np.ndarray, "..."]], task: WindTunnel, tokenizer: Tokenizer | None = None
) -> InsideReport:
    """Return the report of these fields, with names for tokens and answers.

    Args:
        numbers: The fields of `numbers_of`, and others; without `training_steps` the model is not one of a training.
        task: The task, which names the ids.
        tokenizer: Names the ids that the task has no name for.
    """
    labels, ids = task.token_labels(), numbers["ids"]
    n, n_places, n_answers = numbers["exact_probs"].shape

    def name(token: int) -> str:
        is_unnamed = labels[token] == f"#{token}"
        return decoded_text(tokenizer, [token]) or labels[token] if tokenizer and is_unnamed else labels[token]

    is_read = np.arange(ids.shape[1]) <= numbers["scored"].max(axis=1, keepdims=True)
    others = {
        "attention": np.zeros((n, 0, 0, n_places, ids.shape[1]), np.uint8),
        "edited_probs": np.zeros((n, 0, 0, n_places, n_answers), np.float16),
        "edited_kl_bits": np.zeros((n, 0, 0, n_places), np.float32),
        "training_steps": np.zeros(n, np.int32),
    }
    fields: dict[str, Any] = others | dict(numbers)
    return InsideReport(
        n=n // len(np.unique(fields["training_steps"])),
        texts=tuple(
            name(token) if read else "" for token, read in zip(ids.ravel().tolist(), is_read.flat, strict=True)
        ),
        answers=tuple(map(name, numbers["answer_ids"].tolist())),
        **fields,
    )


def _array(values: Shaped[Tensor, "..."], dtype: type[np.generic]) -> Shaped[np.ndarray, "..."]:
    return np.ascontiguousarray(values.cpu().numpy().astype(dtype))


def _edited(
    model: Model, trials: Trials, ablation: "HeadAblation", numbers: Mapping[str, Shaped[np.ndarray, "..."]]
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return probabilities and KL without each head; those of the model itself in layers without heads."""
    log_answers = ablation.log_answers(trials, every_head(model)).unflatten(0, (-1, model.spec.n_heads))
    kl = kl_bits(trials.at_scored(trials.predictive).expand_as(log_answers), log_answers)
    layers, shape = list(model.layers_of(Z)), (model.spec.n_layers, model.spec.n_heads)

    def in_layers(edited: Tensor, unedited: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        whole = np.broadcast_to(unedited[:, None, None], (len(unedited), *shape, *unedited.shape[1:])).copy()
        whole[:, layers] = edited.movedim(2, 0).cpu().numpy()
        return whole

    probs = in_layers(log_answers.exp(), numbers["model_probs"]).astype(np.float16)
    return {"edited_probs": probs, "edited_kl_bits": in_layers(kl, numbers["kl_bits"])}


@final
class HeadAblation:
    """Runs a few sequences without some heads, whose output is replaced by its mean over the task's sequences or 0."""

    @torch.no_grad()
    def __init__(self, model: Model, task: WindTunnel, *, seed: int, mode: Mode = "mean") -> None:
        is_mixed = isinstance(task, FiniteTask) and len({*map(len, task.prompts)}) > 1
        # The replay of the package's transformers needs the same scored positions in every sequence.
        self._replayer = PlainLoop(model) if is_mixed and isinstance(model, HookedModel) else model.replayer()
        self._mode: Mode = "zero" if mode == "zero" else "mean"
        n = at_most(task, N_MEANS)
        blocks = task.stream(n, seed=derived_seed(seed, _MEANS), device=model.spec.device)
        places = {(Z, layer) for layer in model.layers_of(Z)}
        self._means = position_means(self._replayer, blocks, model.spec, places, n)

    @torch.no_grad()
    def log_answers(
        self, trials: Trials, variants: Sequence[Ablation]
    ) -> Float[Tensor, "variant batch query_pos answer"]:
        """Return the natural log of the answers' probabilities without the heads of each variant."""
        edits = [ablation.edits(self._mode) for ablation in variants]
        reference, by_variant = references(self._replayer, trials, trials, edits, self._means), dict[int, Tensor]()
        for chosen, logits in edited_logits(self._replayer, reference.baseline, edits, reference):
            for index, edited in zip(chosen, logits, strict=True):
                by_variant[index] = answer_log_probabilities(edited, trials)[0]
        return torch.stack([by_variant[index] for index in range(len(variants))])
