"""Client of an OpenAI-compatible completions endpoint: most probable next tokens with their log-probabilities.

vLLM, SGLang and the server of llama.cpp offer it. One request asks for one token after one prompt, with the
log-probabilities of the k most probable tokens. Only these are read; what the server samples is ignored.
"""

import http.client
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from bayesgeom.core.errors import InvalidArgument, ServerFault

_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_WAIT_S, _LONGEST = 0.5, 200  # first wait between attempts, doubled each time; characters of a quoted reply
_SUM = 1e-3  # rounding of the log-probabilities in a reply


@final
@dataclass(frozen=True)
class Listed:
    """One of the most probable next tokens: its text, its id if the server states it, and its log-probability."""

    text: str
    id: int | None
    log_prob: float


@final
@dataclass(frozen=True, kw_only=True)
class Client:
    """A server's completions endpoint.

    Attributes:
        url: Base address, such as http://localhost:8000/v1.
        model: Name under which the server knows the model.
        key: Bearer token, which no message contains; None without one.
        top: Number of most probable tokens to request.
        timeout_s: Seconds to wait for a reply.
        attempts: Number of attempts of a request that failed for a reason that may pass.
    """

    url: str
    model: str = ""
    key: str | None = field(default=None, repr=False)
    top: int = 20
    timeout_s: float = 60.0
    attempts: int = 4

    def models(self) -> list[str]:
        """Return the names of the models that the server offers.

        Raises:
            ServerFault: It cannot be reached, or gives another kind of reply.
        """
        reply = self._reply("/models", None)
        entries = reply.get("data") if isinstance(reply, dict) else None
        names = [own.get("id") for own in entries if isinstance(own, dict)] if isinstance(entries, list) else [None]
        found = [name for name in names if isinstance(name, str)]
        if len(found) < len(names):
            raise ServerFault(f"{self.url}/models lists no models: {_short(reply)}. Is it an OpenAI-compatible server?")
        return found

    def next_tokens(self, prompt: str | Sequence[int]) -> list[Listed]:
        """Return the most probable tokens after a prompt, given as text or as token ids.

        Raises:
            ServerFault: The server cannot be reached, refuses, or replies without log-probabilities.
        """
        asked = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": 1,
            "temperature": 1.0,
            "logprobs": self.top,
        }
        return self._read(self._reply("/completions", asked))

    def _read(self, reply: Any) -> list[Listed]:
        """The tokens of a reply, in either form of the interface: a mapping by text, or a list of entries."""
        choice = _first(reply.get("choices")) if isinstance(reply, dict) else None
        held = choice.get("logprobs") if isinstance(choice, dict) else None
        if not isinstance(choice, dict):
            raise ServerFault(f"{self.url}/completions replied without choices: {_short(reply)}.")
        top: Any = None
        if isinstance(held, dict) and (entry := _first(held.get("content"))) is not None:
            top = entry.get("top_logprobs") if isinstance(entry, dict) else None
        elif isinstance(held, dict):
            top = _first(held.get("top_logprobs"))
        if not top:
            raise ServerFault(
                f"{self.url} replied without log-probabilities of the next token, which are all that is measured. "
                f"Start the server so that it gives them (vLLM: --max-logprobs {self.top}; llama-cpp-python: "
                f"--logits_all 1)."
            )
        found = [_listed(item) for item in (top.items() if isinstance(top, dict) else top)]
        kept = [own for own in found if own is not None]
        total = sum(math.exp(own.log_prob) for own in kept)
        if len(kept) < len(found) or total > 1 + _SUM:
            raise ServerFault(
                f"{self.url} replied with invalid log-probabilities of the next token (their probabilities sum to "
                f"{total:.6g}): {_short(top)}."
            )
        return kept

    def _reply(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """The parsed reply; attempts that time out or meet a busy server are repeated."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        headers |= {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        reason = ""
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(_WAIT_S * 2 ** (attempt - 1))
            request = urllib.request.Request(self.url + path, data=data, headers=headers)  # noqa: S310  (checked: http)
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_s) as response:  # noqa: S310
                    text = response.read().decode("utf-8", "replace")
            except urllib.error.HTTPError as error:
                reason = f"status {error.code} ({self._without_key(_short(_text_of(error)))})"
                if error.code not in _RETRIED:
                    raise ServerFault(f"{self.url}{path} refused the request with {reason}.") from None
                continue
            except (OSError, http.client.HTTPException) as error:
                cause = error.reason if isinstance(error, urllib.error.URLError) else error
                reason = self._without_key(str(cause) or type(error).__name__)
                continue
            try:
                return json.loads(text)
            except ValueError:
                raise ServerFault(
                    f"{self.url}{path} replied with no JSON: {self._without_key(_short(text))}."
                ) from None
        raise ServerFault(
            f"{self.url}{path} gave no reply in {self.attempts} attempts of {self.timeout_s:g} s: {reason}. Check the "
            f"address, and that the server runs."
        )

    def _without_key(self, text: str) -> str:
        return text if not self.key else text.replace(self.key, "(key)")


def client_of(address: str, *, key: str | None = None, top: int = 20, timeout_s: float = 60.0) -> Client:
    """Return the client of an address `http(s)://HOST[:PORT][/v1][#MODEL]`.

    Args:
        address: The address; MODEL is needed if the server offers several.
        key: Bearer token.
        top: Number of most probable tokens to request.
        timeout_s: Seconds to wait for a reply.

    Raises:
        InvalidArgument: The address is not of this form, or the server offers several models and none is named.
        ServerFault: The server cannot be reached.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidArgument(f"a server's address has the form http://HOST:PORT/v1, got {address!r}.")
    if parts.username or parts.password:
        raise InvalidArgument("leave user and password out of the address, which reports contain; pass token=….")
    path = parts.path.rstrip("/")
    url = f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}"
    client = Client(url=url, key=key, top=top, timeout_s=timeout_s)
    there = client.models()
    if not parts.fragment and len(there) != 1:
        raise InvalidArgument(f"{url} offers {len(there)} models: name one as {url}#MODEL, of {', '.join(there[:8])}.")
    if parts.fragment and parts.fragment not in there:
        raise InvalidArgument(f"{url} offers no model {parts.fragment!r}, but {', '.join(there[:8]) or 'none'}.")
    return Client(url=url, model=parts.fragment or there[0], key=key, top=top, timeout_s=timeout_s)


def is_address(name: object) -> bool:
    """Return whether a model is named by a server's address."""
    return isinstance(name, str) and name.startswith(("http://", "https://"))


def _listed(item: Any) -> Listed | None:
    """One entry of a reply; None if it is none."""
    match item:
        case (str(text), (int() | float()) as value):
            pass
        case {"token": str(text), "logprob": (int() | float()) as value}:
            pass
        case _:
            return None
    if math.isnan(value) or value > _SUM:
        return None
    own = item.get("id") if isinstance(item, dict) else None
    if text.startswith("token_id:") and text[9:].isdigit():
        own = int(text[9:])
    return Listed(text, own if type(own) is int else None, float(value))


def _first(items: Any) -> Any:
    return items[0] if isinstance(items, list) and items else None


def _text_of(error: urllib.error.HTTPError) -> str:
    try:
        return error.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return str(error.reason)


def _short(reply: object) -> str:
    text = " ".join((reply if isinstance(reply, str) else json.dumps(reply, default=str)).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
