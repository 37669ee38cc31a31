"""A model behind a completions endpoint: predictions at the scored positions, and nothing inside the network."""

import math
from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core import (
    ALL_SITES,
    LOGIT_LENS,
    Ask,
    InvalidArgument,
    ModelSpec,
    NoCopy,
    ServerFault,
    Site,
    Tokenizer,
    Trials,
)
from bayesgeom.core.tokenizer import decoded_text, encoded_text
from bayesgeom.core.torch_state import holding_lock
from bayesgeom.models.base import Model, Replayer
from bayesgeom.models.served.client import TOP, Client, Listed, client_of, parts_of
from bayesgeom.report.answer import SERVED

SERVER = ("server_key", "top")  # options of `load`
AT_ONCE = 4  # requests at the same time
_NO_IDS = (400, 422)  # statuses of servers that accept text only
_COMPLETE = 0.99  # listed probability at which a token that is not listed is not the model's answer
_NOTHING = -1e4  # log-probability of ids that are in no reply; finite, because infinite logits mean a broken model


@final
class ServedModel(Model):
    """The `Model` of a server. `unlisted()` says how much of the predictions the replies left open.

    Args:
        client: The server's endpoint.
        tokenizer: The tokenizer of the served model.
        n_ids: Number of the tokenizer's ids.
    """

    def __init__(self, client: Client, tokenizer: Tokenizer, *, n_ids: int) -> None:
        self.client, self.module, self.task = client, nn.Module(), None
        self.tokenizer: Tokenizer | None = tokenizer
        self.spec = ModelSpec(
            name=client.quoted(client.model),  # reports contain it, and a server may name a model like the key
            architecture="served",
            n_layers=0,
            d_model=0,
            d_mlp=0,
            d_vocab=n_ids,
            n_ctx=None,
            score_scale=0.0,
            n_parameters=0,
            dtype="unknown",
            device="cpu",
            weights_hash=f"not known, served at {client.url}",
        )
        self.asks = frozenset({Ask.PREDICT})
        self.withheld = dict.fromkeys((*ALL_SITES, LOGIT_LENS), "a server gives predictions only")
        self._texts = _Texts(tokenizer)
        self._replies: dict[str | tuple[int, ...], list[Listed]] = {}  # kept, so that a later call can continue
        self._as_ids: bool | None = None  # prompts are sent as token ids if the server accepts them
        self.begin()

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset()

    def point(self, site: Site, layer: int) -> nn.Module:
        self._refuse()

    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        self._refuse()

    def replayer(self) -> Replayer:
        self._refuse()

    def untrained_copy(self, seed: int) -> "ServedModel":
        raise NoCopy(f"{self.spec.name} is served at {self.client.url}: no untrained network can be built from it.")

    def unlisted(self) -> Mapping[str, float]:
        """Return what the replies left open: the share of predictions with an unlisted answer, and its bound.

        `predictions` is the number of predictions since `begin`, which `diagnose` calls first. `share` is that of
        predictions with at least one answer that is not among the listed tokens, `largest_mass` the largest
        probability that such answers can have together, and `exact_mass` the mean of their exact probabilities.
        """
        share, exact = (count / self._n if self._n else 0.0 for count in (self._n_open, self._exact_open))
        return {"predictions": self._n, "share": share, "largest_mass": self._most_open, "exact_mass": exact}

    def notes(self) -> dict[str, Any]:
        return {SERVED: {"top": self.client.top, **self.unlisted()}}

    def _limits(self) -> str:
        return f"{self.spec.name} is served at {self.client.url}, which gives predictions only: load the model itself."

    def begin(self) -> None:
        """Start the counts of `unlisted` again."""
        self._n = self._n_open = self._n_matched = 0
        self._most_open = self._exact_open = 0.0

    @holding_lock()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        if not trials.has_posterior:
            raise InvalidArgument(
                f"{self.client.url} lists {self.client.top} tokens, which do not give the entropy over the vocabulary: "
                f"measure a task with an exact posterior."
            )
        places = trials.scored_positions()
        prompts = [
            row[: int(at) + 1].tolist()
            for row, row_places in zip(trials.tokens, places, strict=True)
            for at in row_places
        ]
        if trials.spellings:
            raise InvalidArgument(
                f"{self.client.url} lists single tokens, and these answers have several: choose symbols that are one "
                f"token each, or load the model itself."
            )
        answers = trials.answers.tolist()
        self._texts.check(answers)
        if self._as_ids is None:
            self._as_ids = self._takes_ids(prompts[0])
        sent = [tuple(prompt) if self._as_ids else self._texts.text(prompt) for prompt in prompts]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                replies = list(pool.map(self._reply, sent))
            except ServerFault as fault:
                raise ServerFault(
                    f"{fault} This model keeps {len(self._replies):,} replies: measure it again to continue.",
                    status=fault.status,
                ) from fault
        rows = torch.full((len(prompts), self.spec.d_vocab), _NOTHING, dtype=torch.float64)
        rest = next((i for i in range(self.spec.d_vocab) if i not in answers), None)
        exact = trials.at_scored(trials.predictive).flatten(0, 1).tolist()
        for row, listed, of_answers in zip(rows, replies, exact, strict=True):
            self._fill(row, listed, dict(zip(answers, of_answers, strict=True)), rest)
        if not self._n_matched and min(map(_mass, replies)) > _COMPLETE:
            raise InvalidArgument(self._texts.mismatch(replies, answers))
        return rows.reshape(*places.shape, -1)

    def _reply(self, prompt: str | tuple[int, ...]) -> list[Listed]:
        """The most probable tokens after a prompt, requested once."""
        if prompt not in self._replies:
            self._replies[prompt] = self.client.next_tokens(prompt)
        return self._replies[prompt]

    def _fill(
        self, row: Float[Tensor, " d_vocab"], listed: Sequence[Listed], answers: Mapping[int, float], rest: int | None
    ) -> None:
        """Enter the listed answers, the bound for the others, and what remains in another id.

        Args:
            row: The logits of a prediction, which are written.
            listed: The reply.
            answers: The exact probability of each answer.
            rest: An id that is no answer, if there is one.
        """
        of_answer, total = self._texts.answers(listed, [*answers]), _mass(listed)
        missing = [i for i in answers if i not in of_answer]
        # An unlisted token is at most as probable as the last listed one, and all of them share what is left.
        bound = min(self._least(listed), max(0.0, 1 - total) / len(missing)) if missing else 0.0
        for i in answers:
            log_prob = of_answer.get(i, math.log(bound) if bound > 0 else _NOTHING)
            row[i] = max(log_prob, _NOTHING)
        left = 1 - math.fsum(math.exp(float(row[i])) for i in answers)
        if rest is not None:
            row[rest] = math.log(left) if left > 0 else _NOTHING
        self._n += 1
        self._n_open += bool(missing)
        self._n_matched += len(of_answer)
        self._exact_open += math.fsum(answers[i] for i in missing)
        self._most_open = max(self._most_open, bound * len(missing))

    def _least(self, listed: Sequence[Listed]) -> float:
        """A probability that no unlisted token exceeds, from a list in descending order.

        A server that lists fewer tokens than requested may have added the sampled one, which can be less probable than
        unlisted ones: the last token is no bound then, but the one before it is.
        """
        n = len(listed) - (len(listed) < self.client.top)
        return math.exp(listed[n - 1].log_prob) if n else 1.0

    def _takes_ids(self, ids: Sequence[int]) -> bool:
        """Whether the server accepts a prompt of ids. Raises `ServerFault` if it accepts no text either."""
        try:
            self.client.next_tokens(ids)
        except ServerFault as fault:
            if fault.status in _NO_IDS:
                self.client.next_tokens(self._texts.text(ids))
                return False
            raise
        return True

    def _refuse(self) -> NoReturn:
        raise InvalidArgument(
            f"{self.spec.name} is served at {self.client.url}: load the model itself to record or edit activations."
        )


def _mass(listed: Sequence[Listed]) -> float:
    return math.fsum(math.exp(entry.log_prob) for entry in listed)


def supported(address: str, tokenizer: Tokenizer | None, options: Mapping[str, Any]) -> ServedModel:
    """Return the model at an address.

    Args:
        address: `http(s)://HOST[:PORT][/v1][#MODEL]`.
        tokenizer: The tokenizer of the served model.
        options: `server_key`, if the server needs one, and `top`. `token`, which is for the hub, is not sent.

    Raises:
        InvalidArgument: There is no tokenizer, or an option that does not apply.
        ServerFault: The server cannot be reached.
    """
    url, _ = parts_of(address)
    if wrong := sorted(options.keys() - {*SERVER, "token"}):
        raise InvalidArgument(f"{', '.join(wrong)} is for models that are loaded here; {url} is a server.")
    if tokenizer is None:
        raise InvalidArgument(f"a server gives no tokenizer: pass that of its model, load({url!r}, tokenizer=…).")
    if not isinstance(tokenizer, Sized):
        raise InvalidArgument(f"the tokenizer must state its number of ids as len(tokenizer), got {type(tokenizer)}.")
    client = client_of(address, key=options.get("server_key"), top=options.get("top", TOP))
    return ServedModel(client, tokenizer, n_ids=len(tokenizer))


@final
class _Texts:
    """The texts of token ids, as servers write them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def of(self, own: int) -> str:
        """Return the text of a token in the middle of a text. Tokenizers leave out a space at the start of a text."""
        if own not in self._known:
            alone, twice = decoded_text(self._tokenizer, [own]), decoded_text(self._tokenizer, [own, own])
            self._known[own] = twice[len(alone) :] if twice.startswith(alone) else alone
        return self._known[own]

    def check(self, answers: Sequence[int]) -> None:
        """Raise `InvalidArgument` if two answers have the same text, so that a reply by text is ambiguous."""
        by_text: dict[str, int] = {}
        for answer in answers:
            if self.of(answer) in by_text:
                raise InvalidArgument(
                    f"the answers {by_text[self.of(answer)]} and {answer} have the same text {self.of(answer)!r}: "
                    f"choose others."
                )
            by_text[self.of(answer)] = answer

    def answers(self, listed: Sequence[Listed], answers: Sequence[int]) -> dict[int, float]:
        """Return the log-probabilities of the answers that are listed, by id or else by text."""
        by_text = {self.of(answer): answer for answer in answers}
        by_id: dict[int, float] = {}
        for entry in listed:
            token_id = entry.id if entry.id is not None else by_text.get(entry.text)
            if token_id in answers and token_id is not None:
                by_id[token_id] = max(entry.log_prob, by_id.get(token_id, -math.inf))
        return by_id

    def mismatch(self, replies: Sequence[Sequence[Listed]], answers: Sequence[int]) -> str:
        """Return what is wrong where replies list nearly all probability, and no answer."""
        first = [self.of(entry.id) if entry.id is not None else entry.text for entry in replies[0]]
        return (
            f"no answer is among the tokens that the server lists, which have at least {_COMPLETE:.0%} of the "
            f"probability: the answers are {', '.join(map(repr, map(self.of, answers[:4])))}, …, and the most probable "
            f"token is {first[0]!r}. Use answers that are such tokens, and the tokenizer of the served model."
        )

    def text(self, ids: Sequence[int]) -> str:
        """Return a text that the tokenizer turns into these ids.

        Raises:
            InvalidArgument: It turns their text into other ids, or adds special tokens.
        """
        text = decoded_text(self._tokenizer, ids)
        for is_special in (False, True):
            if encoded_text(self._tokenizer, text, add_special_tokens=is_special) != list(ids):
                reason = "adds special tokens to" if is_special else "returns other ids for"
                raise InvalidArgument(
                    f"this server accepts text only, and its tokenizer {reason} {text[:60]!r}. Use a server that "
                    f"accepts token ids (vLLM, SGLang, llama-server)."
                )
        return text
