"""Labeled evidence: words with nonsense labels, which a noisy source of known rate produces.

    apple: dax, river: dax, table: wug, stone:

There are two labels, and the latent y is uniform over them. A line shows y with probability r and the other label with
probability 1 − r. After k labels, of which m are the first label,

    π = P(y = first | k labels) = r^m (1 − r)^(k − m) / (r^m (1 − r)^(k − m) + (1 − r)^m r^(k − m)),
    P(next label = first | k labels) = π r + (1 − π)(1 − r).

The papers compare the model's label probabilities with π, as if the last line showed y itself. The correct prediction
of the next label is the second formula, which never exceeds r: compared with π, an exact observer would look
underconfident. Therefore `query="next"` is the default, and `query="latent"` is the papers' comparison.

References:
    Agarwal, Dalal & Misra 2025, Paper III of their trilogy, section 4.3 ("SULA"; no numbers for its controls).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Tokenizer, Trials
from bayesgeom.core.tokenizer import (
    chat_prompts,
    check_ids,
    check_spellings,
    first_symbols,
    prefix_ids,
    punctuation_id,
    single_tokens,
    token_names,
)
from bayesgeom.tasks.base import (
    ExchangeableTask,
    TextTask,
    candidates,
    check_parameters,
    discounted_sums,
    random_order,
    trials_at,
    without_prefixes,
)
from bayesgeom.tasks.in_context import BoundInContext, Style, spelled_ids, symbol_ids, turn_parts

Evidence = Literal["none", "filler", "shuffled", "masked", "remap"]
Query = Literal["latent", "next"]
FLAT = ("filler", "shuffled", "masked")  # controls whose labels carry no information about y
MESSAGES = {
    "chat": "Continue the list.",
    "instruct": (
        "A hidden source prefers one of two labels, each with probability one half. After every word it shows a label: "
        "the one that it prefers with probability {reliability:.0%}, the other one with probability {rest:.0%}. "
        "Continue the list: write the most probable label after every word."
    ),
}
LINE = 4  # tokens: word, colon, label, separator


@final
@dataclass(frozen=True, kw_only=True)
class LabeledEvidence(TextTask):
    """A prompt of `k_max` lines and a last word. Every colon is a query, after k = 0, 1, … labels; `ks` selects some.

    `control` removes the evidence at the same length, or changes what should not matter:

    - `filler`: another word in place of each label; `masked`: the same mark in place of each label. The posterior is
      flat.
    - `shuffled`: labels are fair coin flips, independent of y. The exact entropy is 1 bit at every k.
    - `remap`: other words and other labels. The same seed draws the same evidence, so the posterior is unchanged.

    Words and labels are the first single-token ones among `words` and `labels`, or among the project's candidates;
    `remap` takes the next ones. With `bos`, a prompt begins with the tokenizer's beginning-of-sequence token, if it has
    one.

    `style` changes the beginning for instruct models. In `chat` the lines are the assistant's answer, in the
    tokenizer's chat template, to a user who asks to continue the list. In `instruct` the user also explains how labels
    are generated. With `turns`, each word is a turn of the user and each label one of the assistant, without colon and
    separator. Words, labels and posterior are the same in all styles.

    Two `labels` (`remap`: four) may have several tokens each.

    Args:
        k_max: Lines with a label.
        ks: Numbers of labels k whose query is scored; empty: all.
        reliability: Probability that a label equals the latent y, in (½, 1).
        query: What the prompt requests: the "latent" y or the "next" label.
        control: How the evidence is removed or renamed, as above.
        n_words: Words from which lines draw theirs.
        words: These words, each one token; empty: the project's.
        labels: Two labels; empty: the project's.
        colon: Text between word and label.
        separator: Text between lines.
        bos: Whether a prompt begins with the tokenizer's beginning-of-sequence token.
        style: How a prompt begins, as above.
        turns: Whether words and labels are turns of a chat.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> tasks.LabeledEvidence(k_max=4, reliability=0.8).reliability
        0.8
    """

    name: ClassVar[str] = "evidence"
    k_max: int = 8
    ks: tuple[int, ...] = ()
    reliability: float = 0.9
    query: Query = "next"
    control: Evidence = "none"
    n_words: int = 30
    words: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    colon: str = ":"
    separator: str = ","
    bos: bool = True
    style: Style = "plain"
    turns: bool = False

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.turns and self.style == "plain":
            raise InvalidArgument("turns=True needs style='chat' or 'instruct'.")
        if not 0.5 < self.reliability < 1:
            raise InvalidArgument(f"reliability must lie between 0.5 and 1, both excluded, got {self.reliability}.")
        if self.k_max < 0 or any(not 0 <= k <= self.k_max for k in self.ks) or len({*self.ks}) < len(self.ks):
            raise InvalidArgument(
                f"ks must be distinct numbers of labels, each 0 … k_max = {self.k_max}; got {list(self.ks)}."
            )
        if self.n_words < self._least_words:
            raise InvalidArgument(
                f"{self.k_max} lines of control {self.control!r} need n_words of at least {self._least_words}, got "
                f"{self.n_words}."
            )

    @property
    def _least_words(self) -> int:
        return 2 * self.k_max + 1 if self.control == "filler" else self.k_max + 1

    def bind(self, tokenizer: Tokenizer, *, d_vocab: int) -> "BoundEvidence | BoundInContext":
        words = self._chosen(tokenizer, self.words or candidates("words"), self.n_words, "words")
        is_exact = len(self.labels) == len({*self.labels}) == (4 if self.control == "remap" else 2)
        is_spelled = self.turns or (is_exact and len(single_tokens(tokenizer, self.labels)) < len(self.labels))
        labels = (
            dict.fromkeys(self.labels[-2:], -1)
            if is_exact and is_spelled
            else self._chosen(tokenizer, without_prefixes(self.labels or candidates("labels")), 2, "labels")
        )
        some_word, masks = next(iter(words)), dict[str, int]()
        if self.control == "masked":
            free = [text for text in candidates("masks") if text not in (self.colon, self.separator)]
            masks = first_symbols(tokenizer, free, 1, kind="masks", remedy="Use control='filler', which needs no mask.")
        prefix, message = prefix_ids(tokenizer, some_word) if self.bos and self.style == "plain" else (), ""
        if self.style != "plain":
            message = MESSAGES[self.style].format(reliability=self.reliability, rest=1 - self.reliability)
            (prefix,) = chat_prompts(tokenizer, [message])
        bound = BoundEvidence(
            n_ids=d_vocab,
            prefix=prefix,
            words=tuple(words),
            word_ids=tuple(words.values()),
            labels=tuple(labels),
            label_ids=tuple(labels.values()),
            colon_id=punctuation_id(tokenizer, self.colon, after=some_word),
            separator_id=punctuation_id(tokenizer, self.separator, after=next(iter(labels))),
            mask_ids=tuple(masks.values()),
            ks=tuple(sorted(self.ks or range(self.k_max + 1))),
            reliability=self.reliability,
            query=self.query,
            control=self.control,
            style=self.style,
        )
        if is_spelled:
            return self._spelled(tokenizer, bound, [*words, *labels, *masks], message)
        check_ids(bound.ids, d_vocab)
        body = bound.ids[len(bound.prefix) :]
        if len({*body}) < len(body) or {*bound.prefix} & {*bound.label_ids, *bound.mask_ids}:
            raise InvalidArgument(f"words and labels must be distinct: {', '.join((*words, *labels))}.")
        return bound

    def _spelled(
        self, tokenizer: Tokenizer, bound: "BoundEvidence", texts: Sequence[str], message: str
    ) -> BoundInContext:
        """Return the task with labels of several tokens, or in turns, between which parts of the template stand."""
        before, prefix = "", bound.prefix
        marks: tuple[tuple[int, ...], ...] = ((bound.colon_id,), (bound.separator_id,))
        if self.turns:
            before, prefix, (asking, closing, *_) = turn_parts(tokenizer, message, bound.labels[0])
            marks = (asking, closing)
        symbols, n_words = (*texts, "colon", "separator"), len(bound.words)
        written = (*(spelled_ids(tokenizer, text, before) for text in texts), *marks)
        check_spellings([*zip(symbols, written, strict=True)])
        check_ids((i for ids in (prefix, *written) for i in ids), bound.n_ids)
        n, shown = len(symbols), written[:-2] if self.control == "filler" else written[n_words:-2]
        return BoundInContext(
            task=replace(
                bound,
                n_ids=n,
                prefix=(),
                word_ids=tuple(range(n_words)),
                label_ids=(n_words, n_words + 1),
                mask_ids=tuple(range(n_words + 2, n - 2)),
                colon_id=n - 2,
                separator_id=n - 1,
                style="plain",
            ),
            n_ids=bound.n_ids,
            prefix=prefix,
            separator_ids=(),
            symbols=symbols,
            symbol_ids=symbol_ids([[ids] for ids in written], bound.n_ids),
            style=self.style,
            spellings=tuple((ids,) for ids in written),
            widths=tuple(max(map(len, each)) for each in (written[:n_words], marks[:1], shown, marks[1:])),
        )

    def _chosen(self, tokenizer: Tokenizer, tried: Sequence[str], n: int, kind: str) -> dict[str, int]:
        """Return the first n single-token candidates, or for `remap` the next n."""
        sets = 2 if self.control == "remap" else 1
        fewer = f", or n_words below {n}" if kind == "words" else ""
        remedy = f"Pass {kind}=(…) with at least {n * sets} single-token ones{fewer}."
        ids = first_symbols(tokenizer, tried, n * sets, kind=kind, remedy=remedy)
        return dict([*ids.items()][-n:])


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BoundEvidence(ExchangeableTask):
    """`LabeledEvidence` in one tokenizer's ids. The answers are the two labels; the belief is over y, in that order."""

    name: ClassVar[str] = "evidence"
    question: ClassVar[str] = "Does {model} update on labeled evidence?"
    sentence: ClassVar[str] = (
        "A hidden source prefers one of two labels. After each word it shows that label with probability "
        "{task.reliability}, else the other one; the model predicts the {task.query} label."
    )
    limits: ClassVar[str] = (
        "It does not show how the model treats evidence in another format. A model that does not update here may have "
        "read the list as something else: style=instruct explains it."
    )
    n_ids: int
    prefix: tuple[int, ...]
    words: tuple[str, ...]
    word_ids: tuple[int, ...]
    labels: tuple[str, ...]
    label_ids: tuple[int, ...]
    colon_id: int
    separator_id: int
    mask_ids: tuple[int, ...]  # one id for the control `masked`, else empty
    ks: tuple[int, ...]
    reliability: float
    query: Query
    control: Evidence
    style: Style = "plain"

    def __repr__(self) -> str:
        ks, style = ", ".join(map(str, self.ks)), "" if self.style == "plain" else f", style={self.style!r}"
        query = f"query={self.query!r}, reliability={self.reliability}"
        return f"evidence(control={self.control!r}, {query}, ks={ks}{style})"

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids in use."""
        listed = (*self.prefix, *self.word_ids, *self.label_ids, *self.mask_ids)
        return (*listed, self.colon_id, self.separator_id)

    @property
    def d_vocab(self) -> int:
        return self.n_ids

    @property
    def n_pos(self) -> int:
        return len(self.prefix) + LINE * max(self.ks) + 2

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        y = torch.randint(2, (n,), generator=generator, device=generator.device)
        return self.trials(random_order(n, len(self.word_ids), generator), y, self._labels(y, generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs with the same words and opposite y, each with its own labels."""
        y = torch.randint(2, (n,), generator=generator, device=generator.device)
        words = random_order(n, len(self.word_ids), generator)
        original, donor = (self.trials(words, latent, self._labels(latent, generator)) for latent in (y, 1 - y))
        return original, donor

    def trials(
        self, words: Int64[Tensor, "batch word"], y: Int64[Tensor, " batch"], labels: Int64[Tensor, "batch line"]
    ) -> Trials:
        """Build sequences from words, latents and labels, each counted from 0; the last label is not shown.

        The control `filler` shows, in place of labels, the words that follow those of the lines.
        """
        n, lines, device = len(y), max(self.ks) + 1, y.device
        label_ids = torch.tensor(self.label_ids, device=device)
        tokens = self._tokens(words, label_ids[labels], lines)
        queried = torch.tensor(self.ks, device=device)
        at = len(self.prefix) + 1 + LINE * queried
        targets = label_ids[y[:, None].expand(-1, len(at)) if self.query == "latent" else labels[:, queried]]
        shown = torch.nn.functional.one_hot(labels, 2).double().cumsum(1)
        counts = torch.nn.functional.pad(shown, (0, 0, 1, -1))[:, queried]
        belief = self._belief(torch.zeros_like(counts) if self.control in FLAT else counts)
        return trials_at(
            at,
            tokens,
            answers=label_ids,
            predictive=self._answer(belief),
            belief=belief,
            labels=targets,
            token_sets={"hypotheses": label_ids, "inputs": torch.tensor(self.word_ids, device=device)},
            relations=self._relations(n, at),
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `uniform`, and predictors that do not read all labels if labels carry information.

        - `first_label_at_median_entropy` has the median exact entropy at each k, and always prefers the first label. It
          does not read which label leads; `uniform` has the smallest KL of such predictors.
        - `last_label` uses only the latest label.
        - `as_evidence`, with shuffled labels, treats them as evidence.
        """
        exact = trials.at_scored(trials.predictive)
        baselines = {"uniform": torch.full_like(exact, 0.5)}
        if self.control in ("filler", "masked"):
            return baselines
        labels = (trials.tokens[..., None] == trials.answers).double()
        before = trials.at_scored(torch.nn.functional.pad(labels.cumsum(1), (0, 0, 1, -1)))
        if self.control == "shuffled":
            return baselines | {"as_evidence": self._answer(self._belief(before))}
        latest = trials.at_scored(torch.nn.functional.pad(labels, (0, 0, 3, 0))[:, : self.n_pos])
        first = torch.tensor([self._typical(k) for k in self.ks], dtype=torch.float64, device=exact.device)
        baselines["first_label_at_median_entropy"] = torch.stack([first, 1 - first], dim=-1).expand_as(exact)
        return baselines | {"last_label": self._answer(self._belief(latest))}

    @property
    def n_evidence(self) -> int:
        return max(self.ks)

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw some labels again, given the kept ones; words stay. In the controls, labels do not depend on y."""
        words, labels = self._read(trials)
        counts = torch.nn.functional.one_hot(labels[:, keep], 2).sum(dim=1).double()
        belief = self._belief(torch.zeros_like(counts) if self.control in FLAT else counts)
        y = torch.multinomial(belief, 1, generator=generator)[:, 0]
        drawn = self._labels(y, generator)
        drawn[:, :-1] = torch.where(keep, labels, drawn[:, :-1])
        return self.trials(words, y, drawn)

    @property
    def is_exchangeable(self) -> bool:
        return self.control not in ("filler", "masked")  # which show no labels

    def reordered(self, trials: Trials, order: Int64[Tensor, "batch evidence"]) -> Trials:
        """Reorder the lines with a label; the last word stays."""
        words, labels = self._read(trials)
        words = torch.cat([words.gather(1, order), words[:, -1:]], dim=1)
        last = (trials.at_scored(trials.labels)[:, -1] == self.label_ids[1]).long()  # y itself, or a label not shown
        return self.trials(words, last, torch.cat([labels.gather(1, order), last[:, None]], dim=1))

    @property
    def n_continued(self) -> int:
        return max(self.ks) if self.query == "next" else 0  # an answer of the other query is no piece of evidence

    def continued(self, trials: Trials, step: int) -> tuple[Trials, Int64[Tensor, "batch row"]]:
        """Continue with either label of the line at `step`, and query the word after it."""
        (words, labels), n = self._read(trials), len(trials)
        labels = torch.nn.functional.pad(labels, (0, 1))  # that of the last word, which is not shown
        words, labels = (column[:, None, : step + 2].repeat(1, 4, 1) for column in (words, labels))
        words[:, 1, step:] = words[:, 1, step:].flip(1)
        labels[:, 2:, step] = torch.arange(2, device=labels.device)
        read = torch.tensor([0, 0, 1, 1], device=words.device).expand(n, -1)
        cut = replace(self, ks=(step, step + 1))
        y = torch.zeros(4 * n, dtype=torch.int64, device=words.device)
        return cut.trials(words.flatten(0, 1), y, labels.flatten(0, 1)), read

    def discounted(self, trials: Trials, discount: float) -> Float64[Tensor, "batch query_pos answer"]:
        shown = torch.nn.functional.one_hot(self._read(trials)[1], 2).double()
        counts = torch.nn.functional.pad(discounted_sums(shown, discount), (0, 0, 1, 0))[:, list(self.ks)]
        return self._answer(self._belief(torch.zeros_like(counts) if self.control in FLAT else counts))

    def token_labels(self) -> Sequence[str]:
        names = zip((*self.word_ids, *self.label_ids), (*self.words, *self.labels), strict=True)
        return token_names(dict(names) | {self.colon_id: ":", self.separator_id: ","}, self.n_ids)

    def _read(self, trials: Trials) -> tuple[Int64[Tensor, "batch word"], Int64[Tensor, "batch line"]]:
        """Return words and shown labels of sequences, each counted from 0; `trials` is the inverse."""
        body, device = trials.tokens[:, len(self.prefix) :], trials.tokens.device
        index = torch.zeros(self.n_ids, dtype=torch.int64, device=device)
        index[list(self.word_ids)] = torch.arange(len(self.word_ids), device=device)
        words, labels = index[body[:, 0::LINE]], (body[:, 2::LINE] == self.label_ids[1]).long()
        return (torch.cat([words, index[body[:, 2::LINE]]], dim=1) if self.control == "filler" else words), labels

    def _labels(self, y: Int64[Tensor, " batch"], generator: torch.Generator) -> Int64[Tensor, "batch line"]:
        size = (len(y), max(self.ks) + 1)
        drawn = torch.rand(size, generator=generator, dtype=torch.float64, device=generator.device)
        if self.control == "shuffled":
            return (drawn < 0.5).long()
        return torch.where(drawn < self.reliability, y[:, None], 1 - y[:, None])

    def _tokens(
        self, words: Int64[Tensor, "batch word"], labels: Int64[Tensor, "batch line"], lines: int
    ) -> Int64[Tensor, "batch pos"]:
        word_ids = torch.tensor(self.word_ids, device=words.device)[words]
        if self.control == "filler":
            labels = torch.cat([word_ids[:, lines : 2 * lines - 1], labels[:, -1:]], dim=1)
        elif self.control == "masked":
            labels = torch.full_like(labels, self.mask_ids[0])
        colon, separator = (torch.full_like(labels, i) for i in (self.colon_id, self.separator_id))
        body = torch.stack([word_ids[:, :lines], colon, labels, separator], dim=2).flatten(1)[:, :-2]
        prefix = torch.tensor(self.prefix, dtype=torch.int64, device=words.device).expand(len(words), -1)
        return torch.cat([prefix, body], dim=1)

    def _belief(self, counts: Float64[Tensor, "*shape label"]) -> Float64[Tensor, "*shape label"]:
        """Return P(y | counts of both labels)."""
        return (counts * math.log(self.reliability / (1 - self.reliability))).softmax(-1)

    def _answer(self, belief: Float64[Tensor, "*shape label"]) -> Float64[Tensor, "*shape label"]:
        """Return the predictive of the query under a belief: of y itself, or of the next label."""
        if self.query == "latent":
            return belief
        return belief * self.reliability + (1 - belief) * (1 - self.reliability)

    def _typical(self, k: int) -> float:
        """Return the larger exact probability in the prompt of median certainty, over all draws of k labels."""
        first = torch.arange(k + 1, dtype=torch.float64)
        rates = torch.tensor([[self.reliability], [1 - self.reliability]], dtype=torch.float64)
        weights = torch.distributions.Binomial(k, rates).log_prob(first).exp().mean(dim=0)
        belief = self._belief(torch.stack([first, k - first], dim=1))
        certainty, order = self._answer(belief).amax(dim=1).sort()
        return float(certainty[weights[order].cumsum(0) >= 0.5 - 1e-12][0])

    def _relations(self, n: int, at: Int64[Tensor, " query_pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark earlier labels (or their replacements), the latest of these, and the words before the query's."""
        offset = torch.arange(self.n_pos, device=at.device) - len(self.prefix)
        earlier = (offset >= 0) & (offset + len(self.prefix) < at[:, None] - 1)
        place = {"label": earlier & (offset % LINE == 2), "word": earlier & (offset % LINE == 0)}
        place["latest_label"] = earlier & (offset + len(self.prefix) == at[:, None] - 3)
        return {name: related.expand(n, -1, -1).clone() for name, related in place.items()}
