"""Client of an OpenAI-compatible completions endpoint: most probable next tokens with their log-probabilities.

vLLM, SGLang and the server of llama.cpp offer it. One request asks for one token after one prompt, with the
log-probabilities of the k most probable tokens. Only these are read. vLLM adds the sampled token if it is not among
them; it is dropped, because it differs from call to call and is no bound for the tokens that are not listed. Requests
go to no other host.
"""

import contextlib
import json
import math
import re
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, final

from bayesgeom.core import InvalidArgument, ServerFault
from bayesgeom.core.errors import is_whole_number, optional_package

TOP = 20  # the most that vLLM lists unless it is started with --max-logprobs
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_WAIT_S, _LONGEST = 0.5, 200  # first wait between attempts, doubled each time; characters of a quoted reply
_PATIENCE_S = 600.0  # longest wait in all that a busy server may ask of one request in `Retry-After`
_SUM = 1e-3  # rounding of the log-probabilities in a reply
_VISIBLE = re.compile(r"[!-~]*")  # printable ASCII without the space


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
        key: Bearer token, which no message contains; None without one. It goes to this address only: a
            request that is redirected is an error.
        top: Number of most probable tokens to request.
        timeout_s: Seconds without a byte of a reply.
        attempts: Number of attempts of a request that failed for a reason that may pass.

    Raises:
        InvalidArgument: The key contains a character that no header can carry.
    """

    url: str
    model: str = ""
    key: str | None = field(default=None, repr=False)
    top: int = TOP
    timeout_s: float = 60.0
    attempts: int = 4

    def __post_init__(self) -> None:
        if self.key is not None and not _VISIBLE.fullmatch(self.key):
            raise InvalidArgument(
                "the server's key must be printable ASCII without spaces; remove spaces and line breaks around it."
            )

    def models(self) -> list[str]:
        """Return the names of the models that the server offers.

        Raises:
            ServerFault: It cannot be reached, or gives another kind of reply.
        """
        reply = self._reply("/models", None)
        try:
            names = [entry["id"] for entry in reply["data"]]
        except (TypeError, KeyError):
            names = [None]
        usable = [name for name in names if isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST]
        if len(usable) < len(names):
            raise ServerFault(
                f"{self.url}/models lists no models: {self.quoted(reply)}. Check that the server is OpenAI-compatible."
            )
        return usable

    def next_tokens(self, prompt: str | Sequence[int]) -> list[Listed]:
        """Return the `top` most probable tokens after a prompt, given as text or as token ids; the most probable first.

        There are fewer if the server lists fewer.

        Raises:
            ServerFault: The server cannot be reached, refuses, or replies without log-probabilities.
        """
        request = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": 1,
            # At temperature 0 some versions of llama.cpp state probability 0 for all tokens but one.
            "temperature": 1.0,
            "logprobs": self.top,
        }
        # llama.cpp lists nothing if it samples a part of a character: the request is repeated.
        for _ in range(self.attempts):
            reply = self._reply("/completions", request)
            if not _is_cut(choice := _first(reply.get("choices")) if isinstance(reply, dict) else None):
                answer = self._read(reply, choice)
                return sorted(answer, key=lambda own: own.log_prob, reverse=True)[: self.top]
        raise ServerFault(
            f"{self.url} sampled a part of a character in each of {self.attempts} attempts, and lists no "
            f"log-probabilities then. Use prompts after which such tokens are improbable, or another server."
        )

    def quoted(self, reply: object) -> str:
        """Return what a server wrote, for a message: on one line, without the key, then shortened."""
        text = " ".join((reply if isinstance(reply, str) else json.dumps(reply, default=str)).split())
        if self.key:
            # The longest form first, because the key may be a part of it.
            forms = {self.key, json.dumps(self.key)[1:-1], json.dumps(json.dumps(self.key)[1:-1])[1:-1]}
            forms |= {repr(self.key)[1:-1], urllib.parse.quote(self.key), urllib.parse.quote(self.key, safe="")}
            for form in sorted(forms, key=len, reverse=True):
                text = text.replace(form, "(key)")
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

    def _read(self, reply: Any, choice: Any) -> list[Listed]:
        """The tokens of a reply, in either form of the interface: a mapping by text, or a list of entries."""
        if not isinstance(choice, dict):
            raise ServerFault(
                f"{self.url}/completions replied without choices: {self.quoted(reply)}. Check the kind of server."
            )
        top, listing = None, choice.get("logprobs")
        if isinstance(listing, dict):
            entry = _first(listing.get("content"))
            top = entry.get("top_logprobs") if isinstance(entry, dict) else _first(listing.get("top_logprobs"))
        if not top:
            raise ServerFault(
                f"{self.url} replied without log-probabilities of the next token. Start the server so that it gives "
                f"them (vLLM: --max-logprobs {self.top}; llama-cpp-python: --logits_all 1)."
            )
        entries = list(top.items()) if isinstance(top, dict) else top if isinstance(top, list) else [top]
        listed = [_listed(item) for item in entries]
        valid = [entry for entry in listed if entry is not None]
        total = sum(math.exp(entry.log_prob) for entry in valid)
        ids = [entry.id for entry in valid if entry.id is not None]
        if len(valid) < len(listed) or total > 1 + _SUM or len(set(ids)) < len(ids):
            raise ServerFault(
                f"{self.url} replied with invalid log-probabilities of the next token (their probabilities sum to "
                f"{total:.6g}): {self.quoted(top)}. Use another server."
            )
        return valid

    def _reply(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """The parsed reply; attempts that time out or meet a busy server are repeated, when it says if it does."""
        with optional_package("serve", f"the server {self.url}"):
            import httpx
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        content = None if body is None else json.dumps(body).encode()
        request = httpx.Request("GET" if body is None else "POST", self.url + path, headers=headers, content=content)
        reason, status, attempt, patience = "", None, 0, _PATIENCE_S
        while attempt < self.attempts:
            attempt += 1
            try:
                with httpx.Client(timeout=self.timeout_s) as client:  # redirects are not followed
                    response = client.send(request)
                status, headed, reply = response.status_code, response.headers, response.content
            except (OSError, httpx.HTTPError) as error:
                reason, status = self.quoted(str(error) or type(error).__name__), None
                time.sleep(_WAIT_S * 2 ** (attempt - 1) * (attempt < self.attempts))
                continue
            if status < 300:
                return self._parsed(path, reply)
            if status < 400:
                other = self.quoted(headed.get("Location", "?"))
                raise ServerFault(
                    f"{self.url}{path} is redirected to {other}, where the key is not sent. Pass the server's own "
                    f"address.",
                    status=status,
                )
            reason = f"status {status} ({self.quoted(reply.decode('utf-8', 'replace'))})"
            if status not in _RETRIED:
                raise ServerFault(f"{self.url}{path} refused the request with {reason}.", status=status)
            seconds = _seconds(headed.get("Retry-After", ""))
            if seconds is None:
                time.sleep(_WAIT_S * 2 ** (attempt - 1) * (attempt < self.attempts))
                continue
            patience -= max(seconds, 1.0)
            if patience < 0:
                reason += f", and asks to wait for {seconds:,.0f} s"
                break
            time.sleep(seconds)
            attempt -= 1  # it was no failure: the server said when
        raise ServerFault(
            f"{self.url}{path} gave no reply in {attempt} attempts of {self.timeout_s:g} s: {reason}. Check the "
            f"address, and that the server runs.",
            status=status,
        )

    def _parsed(self, path: str, content: bytes) -> Any:
        text = content.decode("utf-8", "replace")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            quoted = self.quoted(text)
            raise ServerFault(f"{self.url}{path} replied with no JSON: {quoted}. Check the address.") from None


def client_of(address: str, *, key: str | None = None, top: int = TOP) -> Client:
    """Return the client of an address `http(s)://HOST[:PORT][/v1][#MODEL]`.

    Args:
        address: The address; MODEL is needed if the server offers several.
        key: Bearer token.
        top: Number of most probable tokens to request.

    Raises:
        InvalidArgument: The address is not of this form, the key contains spaces or control characters, or the server
            offers several models and none is named.
        ServerFault: The server cannot be reached.
    """
    url, model = parts_of(address)
    client = Client(url=url, key=key, top=top)
    there = client.models()
    listed = client.quoted(", ".join(there[:8])) or "none"
    if not model and len(there) != 1:
        raise InvalidArgument(f"{url} lists {len(there)} models: name one as {url}#MODEL, of {listed}.")
    if model and model not in there:
        raise InvalidArgument(f"{url} lists no model {client.quoted(model)!r}: name one as {url}#MODEL, of {listed}.")
    return replace(client, model=model or there[0])


def parts_of(address: str) -> tuple[str, str]:
    """Return the base address of a server, which ends in /v1, and the name of the model or "".

    Raises:
        InvalidArgument: It has another form. The message does not contain it, because it may contain a password.
    """
    is_valid = False
    with contextlib.suppress(ValueError):
        parts = urllib.parse.urlsplit(address)
        host, _ = parts.hostname, parts.port  # both are checked when they are read
        is_plain = not parts.query and _VISIBLE.fullmatch(address.partition("#")[0])
        is_valid = bool(parts.scheme in ("http", "https") and host and is_plain)
    if not is_valid:
        raise InvalidArgument(
            "a server's address has the form http://HOST:PORT/v1, with #MODEL if it offers several; the one passed has "
            "another."
        )
    if parts.username or parts.password:
        raise InvalidArgument("leave user and password out of the address, which reports contain; pass server_key=….")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}", parts.fragment


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
    try:
        log_prob = float(value)
    except OverflowError:
        return None
    if math.isnan(log_prob) or log_prob > _SUM:
        return None
    token_id = item.get("id") if isinstance(item, dict) else None
    if text.startswith("token_id:") and is_whole_number(text[9:]):
        token_id = int(text[9:])
    return Listed(text, token_id if type(token_id) is int else None, log_prob)


def _is_cut(choice: Any) -> bool:
    """Whether a choice has no log-probabilities and a text that ends within a character."""
    if not isinstance(choice, dict) or choice.get("logprobs") is not None:
        return False
    return str(choice.get("text")).endswith("\ufffd")


def _first(items: Any) -> Any:
    return items[0] if isinstance(items, list) and items else None


def _seconds(told: str) -> float | None:
    """The seconds that a `Retry-After` states, as a number or as the time when they are over; None if it is neither."""
    try:
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", told.strip(), re.ASCII):
            return float(told)
        return max(0.0, parsedate_to_datetime(told).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None
