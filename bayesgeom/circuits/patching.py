"""Patching by position: activations of a clean sequence in the run on a corrupted one, by layer and position.

Only layers after the patched one are computed again, for several positions at once. Positions before the first token in
which the sequences differ have equal activations, so patching changes nothing there, and nothing is run.

References:
    Meng et al. 2022, arXiv:2202.05262; Heimersheim & Nanda 2024, arXiv:2404.15255.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.ablations.engine import BatchReference, batches, edited_logits
from bayesgeom.core import (
    ALL_SITES,
    NO_LABEL,
    AtPositions,
    InvalidArgument,
    NonFinite,
    Replace,
    Site,
    Tokenizer,
    Trials,
    Z,
    checked,
    phase,
)
from bayesgeom.core.errors import quoted
from bayesgeom.core.run import site_of
from bayesgeom.core.tokenizer import decoded_text, encoded_text, prompt_ids
from bayesgeom.models.base import STAGES, Model, Replayer, Variant, provenance
from bayesgeom.models.replay.hooked import PlainLoop, PrefixReplay
from bayesgeom.models.resolve import ModelLike, as_model
from bayesgeom.report.estimate import Coordinate, Estimate, Quantity, mean_estimate, with_interval
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.tables import Headline, headline_of, headline_of_largest
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.bootstrap import ratio_interval
from bayesgeom.stats.information import NATS_PER_BIT, kl_bits
from bayesgeom.tasks.base import Branch, derived_seed

KL, LOG_ODDS = "kl", "log_odds"
Sequences = Trials | str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Tensor | np.ndarray
Named = tuple[str | int, str | int]
_LETTER = 7  # pixels of a letter of a column's name, which is turned
Values = Float[np.ndarray, "pair layer part position"]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class PatchReport(Report):
    """Activations of a clean sequence were put into the run on a corrupted one, at one layer and one position each.

    The share recovered is 1 where the patched run answers like the clean one, and 0 where it answers like the corrupted
    one. What is restored at one place may also be restored elsewhere: shares do not add up to 1. Between sequences that
    differ in a single token, the input of the first layer at that token recovers everything.

    Fields: `patched_bits` is the metric of the patched run, `clean_bits` and `corrupted_bits` that of both unpatched
    ones. The `metric` is "kl", KL(exact posterior of the clean sequence ‖ run), or "log_odds", the logit difference of
    the two answers, divided by ln 2; always at the last scored position.
    `recovered` is (patched − corrupted) / (clean − corrupted), a ratio of sums over pairs. `recovered_by_head` patches
    one head alone, at sites with heads; it has no entries at others. A layer without the site has NaN.
    `tokens` are those of the first pair; "a | b" is a in the clean and b in the corrupted sequence.
    """

    name: ClassVar[str] = "patch"
    counts: ClassVar[str] = "pair"
    title: ClassVar[str] = "Patching by position: which activations carry the difference?"

    recovered: Annotated[Estimate, Quantity("layer position", label="share recovered")]
    recovered_by_head: Annotated[Estimate, Quantity("layer head position", label="share recovered by one head")]
    patched_bits: Annotated[Estimate, Quantity("layer position", unit="bits", label="metric, patched")]
    clean_bits: Annotated[Estimate, Quantity(unit="bits", label="metric, clean")]
    corrupted_bits: Annotated[Estimate, Quantity(unit="bits", label="metric, corrupted")]
    tokens: Annotated[tuple[str, ...], "position", Coordinate()]
    site: str
    metric: str
    n: int

    def headlines(self) -> Sequence[Headline]:
        ends = [headline_of(self, name) for name in ("clean_bits", "corrupted_bits")]
        if np.isnan(self.recovered.value).all():
            return ends
        at, largest = self.recovered.extreme("largest")
        label = f"largest share recovered: L{at[0]}, {self.tokens[at[1]]}"
        return [headline_of_largest(self, "recovered", at, label, largest, verdict=""), *ends]

    def answer(self) -> Opening | None:
        if not np.isfinite(self.recovered.value).any():
            return None
        (layer, position), share = self.recovered.extreme("largest")
        return Finding.CARRIES_MOST.of(token=self.tokens[position], layer=layer, site=self.site, share=share)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.core.text import percent_text

        columns = [f"{position} {token}" for position, token in enumerate(self.tokens, start=1)]
        rows, unit = range(len(self.recovered.value)), "share recovered"
        title = f"Share recovered by patching {self.site}"
        if np.isfinite(self.recovered.value).any():
            (layer, position), largest = self.recovered.extreme("largest")
            title = f"{title}: at most {percent_text(float(largest), None)}, at L{layer}, {self.tokens[position]}"
        panels = [Panel.blank(title, is_wide=True)]
        axes = ("position and token", "layer")
        heat = panels[0].figure
        add_heat(heat, self.recovered.value, unit=unit, baseline=0.0, names=(rows, columns), axes=axes)
        heat.layout.yaxis.range = [-0.5, len(rows) - 0.5]  # layers upward
        heat.layout.height += _LETTER * max(map(len, columns))
        if self.recovered_by_head.value.size:
            panels.append(Panel.blank("The same by head, at the position where it recovers most"))
            most = np.fmax.reduce(self.recovered_by_head.value, axis=2)
            add_heat(panels[1].figure, most, unit=unit, baseline=0.0)
        return panels


@checked("model", "clean", "corrupted", "answers")
@torch.no_grad()
def patch(
    model: ModelLike,
    clean: Sequences,
    corrupted: Sequences,
    site: Site | str = "resid_pre",
    *,
    answers: Named | Sequence[Named] | None = None,
    seed: int = 0,
) -> PatchReport:
    """Put activations of a clean sequence into the run on a corrupted one, one layer and position at a time.

    Args:
        model: A model, its name or its directory.
        clean: The sequence whose activations are used: a text, token ids, or a list of them; or sequences of a task,
            such as the first of `task.sample_pair(n, seed=0)`. Each pair has as many tokens in both.
        corrupted: The sequence that is run, in the same form.
        site: Any site with positions: resid_pre, attn_out, mlp_out, z, v, …. At sites with heads, each head is also
            patched alone.
        answers: For texts and ids: the two tokens whose logit difference is measured after the last token, as text or
            id, the right one for `clean` first; one pair for all, or a list with one for each. A word is taken as one
            token after a space where there is one. Sequences of a task need none: the metric is KL to the exact
            posterior of the clean sequence.
        seed: Seed of the intervals over pairs.

    Returns:
        The share of the difference that each place recovers, by layer and position.

    Raises:
        InvalidArgument: Numbers of tokens differ, the sequences are equal, or an answer is missing or is no single
            token.
        MissingSite: The model lacks the site.
        TaskMismatch: The sequences do not fit the model.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=2, n_heads=2, d_model=8, d_mlp=8)
        >>> clean, corrupted = task.sample_pair(8, seed=0)
        >>> bayesgeom.patch(config.build(seed=0), clean, corrupted, "z").recovered.value.shape
        (2, 5)
    """
    where = site_of(site)
    if where not in ALL_SITES or where.axes[:2] not in (("batch", "pos"), ("batch", "key_pos")):
        raise InvalidArgument(f"site {where.name!r} has no activation at each position: patch resid_pre, z, mlp_out, …")
    subject = as_model(model)
    if not (layers := subject.layers_of(where)):
        subject.require((where,), by="patching")
    subject.check_surroundings()
    pairs = _Pairs.of(subject, clean, corrupted, answers)
    values, ends = _measured(subject, pairs, where, layers)
    report = _report(values, ends, pairs, where, seed=derived_seed(seed, Branch.RESAMPLING))
    arguments = {"site": where.name, "metric": report.metric, "n": report.n, "seed": seed}
    ids = {"clean": pairs.clean.tokens.tolist(), "corrupted": pairs.corrupted.tokens.tolist()}
    given = {**provenance(subject, "given pairs", arguments), "task": {"name": "given pairs", **ids}}
    return with_provenance(report, given)


@final
@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Checked pairs, scored at their last position. `answers` are ids by pair; None: the metric is KL."""

    clean: Trials
    corrupted: Trials
    answers: Int64[Tensor, "pair 2"] | None
    tokens: tuple[str, ...]

    @classmethod
    def of(
        cls, model: Model, clean: Sequences, corrupted: Sequences, answers: Named | Sequence[Named] | None
    ) -> "_Pairs":
        """Check both sequences and the answers.

        Raises:
            InvalidArgument: They do not belong together. TaskMismatch: They do not fit the model.
        """
        are_drawn = [isinstance(sequences, Trials) for sequences in (clean, corrupted)]
        if any(are_drawn) and not all(are_drawn):
            raise InvalidArgument("clean and corrupted must be of one form: both sequences of a task, or both texts.")
        given = [_ids(model, sequences, name) for sequences, name in ((clean, "clean"), (corrupted, "corrupted"))]
        _check_lengths(model, *given)
        device, exact = model.spec.device, None
        if isinstance(clean, Trials) and isinstance(corrupted, Trials):
            _check_drawn(clean, corrupted, is_named=answers is not None)
            exact = clean if clean.has_posterior and answers is None else None
        elif answers is None:
            raise InvalidArgument("texts and ids need answers=(right, wrong), two tokens whose logits are compared.")
        tokens = [torch.tensor(ids, device=device) for ids in given]
        clean_trials, corrupted_trials = (_scored_last(ids, exact) for ids in tokens)
        if torch.equal(*tokens):
            raise InvalidArgument("clean and corrupted are the same tokens: patching would change nothing.")
        for trials in (clean_trials, corrupted_trials):
            model.check_fits(trials)
        return cls(
            clean=clean_trials,
            corrupted=corrupted_trials,
            answers=None if exact is not None else torch.tensor(_answer_ids(model, answers, len(given[0]))).to(device),
            tokens=_labels(model, given[0][0], given[1][0]),
        )

    def parts(self, model: Model) -> Iterator["_Pairs"]:
        """Yield batches of pairs that fit the memory."""
        start = 0
        for part in batches(self.clean, model.spec):
            rows = slice(start, start + len(part))
            answers = None if self.answers is None else self.answers[rows]
            yield _Pairs(clean=part, corrupted=self.corrupted.rows(rows), answers=answers, tokens=self.tokens)
            start += len(part)

    def bits(self, logits: Float[Tensor, "pair 1 d_vocab"]) -> Float[np.ndarray, " pair"]:
        """Return the metric of each pair.

        Raises:
            NonFinite: A logit is NaN or infinite.
        """
        if not bool(logits.isfinite().all()):
            raise NonFinite("the logits are NaN or infinite in a patched run. Check the weights of the model.")
        if self.answers is None:
            log_answers, _ = answer_log_probabilities(logits, self.clean)
            bits = kl_bits(self.clean.at_scored(self.clean.predictive), log_answers)[:, 0]
        else:
            right, wrong = logits[:, 0].double().gather(1, self.answers).T
            bits = (right - wrong) / NATS_PER_BIT
        return np.asarray(bits.cpu().numpy())


def _ids(model: Model, given: Any, name: str) -> list[list[int]]:
    """Return token ids by sequence of texts, ids or sequences of a task."""
    if isinstance(given, Trials):
        ends = given.ends()
        if not bool((ends == ends[0]).all()):
            raise InvalidArgument(f"{name} has sequences of different lengths: pass those of one length.")
        cut: list[list[int]] = given.tokens[:, : int(ends[0])].tolist()
        return cut
    if isinstance(given, Tensor | np.ndarray):
        try:
            given = given.tolist()
        except RuntimeError as error:
            kind = f"{given.dtype}, {given.layout}, on {given.device}"
            raise InvalidArgument(f"{name} must be a dense tensor of token ids, got one of {kind}.") from error
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if listed and all(isinstance(item, int) for item in listed):
        listed = [listed]
    texts = [item for item in listed if isinstance(item, str)]
    rows = [list(item) for item in listed if isinstance(item, list | tuple)]
    if texts == listed != [] and all(texts):
        if model.tokenizer is None:
            raise InvalidArgument(
                f"{model.spec.name} has no tokenizer for texts: pass as_model(model, tokenizer=…), or token ids."
            )
        return [list(ids) for ids in prompt_ids(model.tokenizer, texts)]
    are_ids = all(row and all(type(i) is int and i.bit_length() < 64 for i in row) for row in rows)  # no truth values
    if len(rows) < len(listed) or not rows or not are_ids:
        raise InvalidArgument(f"{name} must be a text, token ids, a list of either, or Trials; got {quoted(given)}.")
    return rows


def _check_lengths(model: Model, clean: list[list[int]], corrupted: list[list[int]]) -> None:
    """Check that there are as many sequences of both kinds, and as many tokens in all."""
    if len(clean) != len(corrupted):
        raise InvalidArgument(f"clean has {len(clean)} sequences and corrupted {len(corrupted)}: pass pairs.")
    for at, (row, other) in enumerate(zip(clean, corrupted, strict=True)):
        if len(row) != len(other):
            texts = [" ".join(_label(model, i) for i in ids) for ids in (row, other)]
            raise InvalidArgument(
                f"pair {at}: clean has {len(row)} tokens ({quoted(texts[0])}), corrupted {len(other)} "
                f"({quoted(texts[1])}). Change words for others with as many tokens."
            )
        if len(row) != len(clean[0]):
            raise InvalidArgument(
                f"pair {at} has {len(row)} tokens, pair 0 has {len(clean[0])}: positions of pairs of one call must "
                f"agree. Call patch for each length."
            )


def _check_drawn(clean: Trials, corrupted: Trials, *, is_named: bool) -> None:
    """Check that sequences of a task have the same answers, and some way to be scored."""
    if not torch.equal(clean.answers, corrupted.answers):
        raise InvalidArgument("clean and corrupted have different answers: draw both from one task (sample_pair).")
    if not (clean.has_posterior or is_named):
        raise InvalidArgument("these sequences have no exact posterior: pass answers=(right, wrong).")


def _answer_ids(model: Model, answers: Any, n: int) -> list[tuple[int, int]]:
    """Return the ids of both answers of each pair."""
    is_one = isinstance(answers, tuple) and len(answers) == 2 and all(isinstance(item, str | int) for item in answers)
    listed = [answers] * n if is_one else answers
    listed = listed if isinstance(listed, list | tuple) else []
    if len(listed) != n or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in listed):
        raise InvalidArgument(
            f"answers must be (right, wrong), or a list of {n} of these, one for each pair; got {quoted(answers)}."
        )
    ids = [(_answer_id(model, right), _answer_id(model, wrong)) for right, wrong in listed]
    if same := [listed[at] for at, (right, wrong) in enumerate(ids) if right == wrong]:
        raise InvalidArgument(f"answers {quoted(same[0])} are the same token: name two different ones.")
    return ids


def _answer_id(model: Model, answer: object) -> int:
    """Return the id of an answer."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        if not 0 <= answer < model.spec.d_vocab:
            raise InvalidArgument(
                f"answer {answer} is no token of {model.spec.name}: ids are 0 … {model.spec.d_vocab - 1}."
            )
        return answer
    if not isinstance(answer, str) or model.tokenizer is None:
        raise InvalidArgument(f"{model.spec.name} has no tokenizer: name answers by their ids, not {quoted(answer)}.")
    spellings = [encoded_text(model.tokenizer, text) for text in (f" {answer.lstrip()}", answer)]
    whole = [ids[0] for ids in spellings if len(ids) == 1]
    if not whole:
        parts = ", ".join(repr(decoded_text(model.tokenizer, [i])) for i in spellings[0])
        raise InvalidArgument(
            f"answer {answer!r} is {len(spellings[0])} tokens of {model.spec.name} ({parts}): name a word that is one."
        )
    return whole[0]


def _scored_last(tokens: Int64[Tensor, "pair pos"], exact: Trials | None) -> Trials:
    """Return the sequences, scored at their last position against the exact posterior of a task, if there is one."""
    scored = torch.zeros_like(tokens, dtype=torch.bool)
    scored[:, -1] = True
    nothing = torch.zeros(*tokens.shape, 0, dtype=torch.float64, device=tokens.device)
    predictive = nothing if exact is None else exact.predictive[:, : tokens.shape[1]].to(tokens.device)
    answers = torch.zeros(0, dtype=torch.int64) if exact is None else exact.answers
    return Trials(
        tokens=tokens,
        scored=scored,
        answers=answers.to(tokens.device),
        predictive=predictive,
        belief=nothing,
        labels=torch.full_like(tokens, NO_LABEL),
    )


def _labels(model: Model, clean: Sequence[int], corrupted: Sequence[int]) -> tuple[str, ...]:
    """Return the token at each position, or those of both sequences where they differ."""
    pairs = [[_label(model, i) for i in both] for both in zip(clean, corrupted, strict=True)]
    return tuple(token if token == other else f"{token} | {other}" for token, other in pairs)


def _label(model: Model, token: int) -> str:
    if isinstance(model.tokenizer, Tokenizer):
        text = decoded_text(model.tokenizer, [token])
        return text.strip() or repr(text)
    if model.task is not None and 0 <= token < model.task.d_vocab:
        return model.task.token_labels()[token]
    return f"#{token}"


def _replayer(model: Model, site: Site) -> Replayer:
    """Return an engine that keeps and edits this site."""
    engine = model.replayer()
    if site in STAGES:
        return engine
    if isinstance(engine, PrefixReplay):
        return PrefixReplay(model, engine.blocks, also=(site,))
    return PlainLoop(model, also=(site,))


def _heads(model: Model, site: Site) -> int:
    """Return the number of heads of a site; 0 if it has none."""
    is_headed = site.axes[-1] == Z.axes[-1]
    return model.spec.sizes_at(site)[site.axes[-2]] if is_headed else 0


def _measured(
    model: Model, pairs: _Pairs, site: Site, layers: Sequence[int]
) -> tuple[Values, Float[np.ndarray, "end pair"]]:
    """Return the metric of every patched run, all heads together first, and of the clean and the corrupted run."""
    differs = (pairs.clean.tokens != pairs.corrupted.tokens).any(dim=0)
    n_pos, first = len(differs), int(differs.nonzero()[0, 0])
    parts, replayer = (None, *range(_heads(model, site))), _replayer(model, site)
    places = [
        (layer, part, position) for layer in layers for part in range(len(parts)) for position in range(first, n_pos)
    ]
    measured, ends = list[Values](), list[Float[np.ndarray, "end pair"]]()
    with phase(f"patching {site.name}", len(places) * len(pairs.clean), "run") as progress:
        for batch in pairs.parts(model):
            baseline, donor = (replayer.baseline(trials) for trials in (batch.corrupted, batch.clean))
            both = np.stack([batch.bits(each.logits) for each in (donor, baseline)])
            values = np.full((len(batch.clean), model.spec.n_layers, len(parts), n_pos), np.nan)
            values[:, list(layers)] = both[1][:, None, None, None]  # equal tokens so far: the run is unchanged
            variants = [_variant(site, layer, parts[part], position, n_pos) for layer, part, position in places]
            reference = BatchReference(means={}, baseline=baseline, before=donor)
            for chosen, logits in edited_logits(replayer, baseline, variants, reference):
                for index, patched in zip(chosen, logits, strict=True):
                    values[(slice(None), *places[index])] = batch.bits(patched)
                progress.update(len(chosen) * len(batch.clean))
            measured.append(values)
            ends.append(both)
    return np.concatenate(measured), np.concatenate(ends, axis=1)


def _variant(site: Site, layer: int, head: int | None, position: int, n_pos: int) -> Variant:
    """Return the edit of one position."""
    mask = torch.zeros(n_pos, dtype=torch.bool)
    mask[position] = True
    heads = None if head is None else (head,)
    return (AtPositions.of(Replace(site=site, layer=layer, mode="resample", heads=heads), mask),)


def _report(
    values: Values, ends: Float[np.ndarray, "end pair"], pairs: _Pairs, site: Site, *, seed: int
) -> PatchReport:
    clean, corrupted = ends
    above, below = values - corrupted[:, None, None, None], (clean - corrupted)[:, None, None, None]
    total = float(below.sum())
    share = above.sum(axis=0) / total if total else np.full(above.shape[1:], math.nan)
    estimate = partial(with_interval, n=len(values))

    def recovered(part: slice | int) -> Estimate:
        wide = below[:, :, 0] if isinstance(part, int) else below
        return estimate(share[:, part], ratio_interval(above[:, :, part], wide, seed=seed))

    return PatchReport(
        recovered=recovered(0),
        recovered_by_head=recovered(slice(1, None)),
        patched_bits=mean_estimate(values[:, :, 0], seed=seed),
        clean_bits=mean_estimate(clean, seed=seed),
        corrupted_bits=mean_estimate(corrupted, seed=seed),
        tokens=pairs.tokens,
        site=site.name,
        metric=KL if pairs.answers is None else LOG_ODDS,
        n=len(values),
    )
