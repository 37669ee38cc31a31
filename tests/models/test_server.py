"""Models behind a completions endpoint: the numbers of the model itself, and faults that are named."""

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core import Verdict
from bayesgeom.core.errors import InvalidArgument, MissingSite, ServerFault
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.served import client as clients
from bayesgeom.models.served.client import Client, client_of
from bayesgeom.models.served.model import ServedModel
from bayesgeom.tasks.bijection import Bijection
from tests.families import N_CTX, _sizes, lively

TASK = Bijection(n_values=5, n_pairs=3)
KEY = "sk-very-secret"


class Letters:
    """A tokenizer whose ids are letters, after a space."""

    n_ids = 97

    def __len__(self) -> int:
        return self.n_ids

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        del add_special_tokens
        return [ord(letter) - 0x4E00 for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(chr(0x4E00 + own) for own in token_ids)


@dataclass
class Behavior:
    """What the server does: `form` of its replies, and faults."""

    form: str = "legacy"
    takes_ids: bool = True
    fails: list[int] = field(default_factory=list)
    body: Any = None
    names: tuple[str, ...] = ("tiny",)
    top: int = 97
    drawn: int | None = None  # rank of a sampled token, which vLLM adds to the list
    seen: list[Any] = field(default_factory=list)
    gets: list[str | None] = field(default_factory=list)
    fault: Any = None  # body of a failed reply
    wait: str = ""  # `Retry-After` of every reply
    cut: int = 0  # so many replies are those of llama.cpp after it sampled a part of a character


@pytest.fixture(scope="module")
def hf() -> Any:
    import transformers

    torch.manual_seed(0)
    sizes = _sizes(vocab_size=Letters.n_ids, max_position_embeddings=N_CTX)
    return lively(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))).eval()


@pytest.fixture
def acts() -> Behavior:
    return Behavior()


@pytest.fixture
def address(hf: Any, acts: Behavior, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server over a tiny model."""
    monkeypatch.setattr(clients, "_WAIT_S", 0.001)
    letters, lock = Letters(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: Any) -> None:
            pass

        def do_GET(self) -> None:
            acts.gets.append(self.headers.get("Authorization"))
            self._send(200, {"data": [{"id": name} for name in acts.names]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            acts.seen.append((asked, self.headers.get("Authorization")))
            if acts.fails:
                named = {"error": f"no, {self.headers.get('Authorization')}"}
                return self._send(acts.fails.pop(0), named if acts.fault is None else acts.fault)
            if acts.body is not None:
                return self._send(200, acts.body)
            if acts.cut:
                acts.cut -= 1
                return self._send(200, {"choices": [{"text": "\ufffd", "logprobs": None, "finish_reason": "length"}]})
            prompt = asked["prompt"]
            if not isinstance(prompt, str) and not acts.takes_ids:
                return self._send(422, {"error": "prompt must be a string"})
            ids = letters.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
            with lock, torch.no_grad():
                found = hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double().log_softmax(-1)
            ranked, k = found.sort(descending=True), min(acts.top, asked["logprobs"])
            ranks = [*range(k)] + ([acts.drawn] if acts.drawn is not None and acts.drawn >= k else [])
            pairs = [
                (letters.decode([int(ranked.indices[r])]), int(ranked.indices[r]), round(float(ranked.values[r]), 6))
                for r in ranks
            ]
            if acts.form == "legacy":
                logprobs: Any = {"top_logprobs": [{text: value for text, _, value in pairs}]}
            else:
                listed = [{"token": text, "id": own, "logprob": value} for text, own, value in pairs]
                logprobs = {"content": [{"token": "x", "logprob": 0.0, "top_logprobs": listed}]}
            return self._send(200, {"choices": [{"text": "x", "logprobs": logprobs}]})

        def _send(self, code: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Retry-After", acts.wait)
            self.end_headers()
            self.wfile.write(data)

    with serving(Handler) as own:
        yield own


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server with this handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def served(address: str, **options: Any) -> ServedModel:
    client = client_of(address, top=options.pop("top", 97), **options)
    return ServedModel(client, Letters(), n_ids=Letters.n_ids)


@pytest.mark.parametrize(("form", "takes_ids"), [("legacy", True), ("entries", True), ("legacy", False)])
@pytest.mark.slow
def test_the_numbers_are_those_of_the_model(hf: Any, address: str, acts: Behavior, form: str, takes_ids: bool) -> None:
    acts.form, acts.takes_ids = form, takes_ids
    model = served(address)
    direct = bayesgeom.diagnose(HFModel(hf), TASK, n=7, n_untrained=0, probes="calibration")["calibration"]
    found = bayesgeom.diagnose(model, TASK, n=7, n_untrained=0)
    assert set(found) == {"calibration", "relabeling", "evidence_response", "inside"}  # these read predictions only
    assert "a server gives predictions only" in found.skipped["key_overlap"]
    audited = bayesgeom.audit(model, TASK, n=5)
    assert np.isfinite(audited.martingale_gap.value) and np.isfinite(audited.order_spread.value)
    for name in ("kl_bits", "entropy_mae_bits", "off_answer_prob", "total_variation"):
        one, other = found["calibration"].estimate(name), direct.estimate(name)
        np.testing.assert_allclose(one.value, other.value, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(one.ends, other.ends, atol=2e-4, err_msg=name)
    assert isinstance(acts.seen[-1][0]["prompt"], list if takes_ids else str)
    assert (
        model.unlisted()["predictions"] >= 7 * 3 and model.unlisted()["share"] == model.unlisted()["largest_mass"] == 0
    )
    assert "initialization" in bayesgeom.diagnose(model, TASK, n=2, n_untrained=1).skipped


def test_answers_of_several_tokens_are_refused_before_anything_is_sent(address: str, acts: Behavior) -> None:
    trials = TASK.sample(2, seed=0)
    several = replace(trials, spellings=tuple(((i, i),) for i in trials.answers.tolist()))
    with pytest.raises(InvalidArgument, match=f"^{address}/v1 lists single tokens, and these answers have several"):
        served(address).logits(several)
    assert not acts.seen


@pytest.mark.exhaustive
@pytest.mark.parametrize("drawn", [None, 96])
def test_unlisted_answers_get_the_largest_probability_that_the_reply_allows(
    hf: Any, address: str, acts: Behavior, drawn: int | None
) -> None:
    acts.drawn = drawn
    model = served(address, top=3)
    trials = TASK.sample(5, seed=0)
    found = model.logits(trials).softmax(-1)
    exact = HFModel(hf).logits(trials).double().softmax(-1)
    answers = trials.answers
    top, least = exact.topk(3).indices, exact.topk(3).values[..., -1:]
    is_listed = (top[..., None] == answers).any(dim=-2)
    own, true = found[..., answers], exact[..., answers]
    torch.testing.assert_close(own[is_listed], true[is_listed], atol=2e-5, rtol=0)
    assert (own[~is_listed] >= true[~is_listed] - 1e-5).all(), "an upper bound"
    assert (own <= torch.maximum(least, true) + 1e-5).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(5, 3, dtype=torch.float64))
    open_ = model.unlisted()
    assert open_["share"] == float((~is_listed).any(dim=-1).double().mean()) > 0
    bound = float((own * ~is_listed).sum(dim=-1).max())
    assert open_["largest_mass"] == pytest.approx(bound)
    report = bayesgeom.diagnose(model, TASK, n=5, n_untrained=0)
    assert report.provenance["served"]["top"] == 3 and report.provenance["served"]["share"] > 0
    again = bayesgeom.diagnose(model, TASK, n=5, n_untrained=0).provenance["served"]
    assert again == report.provenance["served"], "counted for each report"
    assert again["predictions"] == model.unlisted()["predictions"] < 3 * 5 * 3


def test_answers_that_are_mostly_unlisted_are_not_measured(address: str, tmp_path: Path) -> None:
    few, all_ = (bayesgeom.diagnose(served(address, top=top), TASK, n=5, n_untrained=0) for top in (2, 97))
    assert few.answer is not None and all_.answer is not None
    assert all_.answer.verdict != Verdict.NOT_MEASURED and all_.answer.unlisted == (0.0, 97)
    (exact, top), stored = few.answer.unlisted, few.provenance["served"]
    assert (exact, top) == (stored["exact_mass"], 2) and 0.5 < exact <= stored["share"] <= 1
    assert (few.answer.verdict, few.answer.tone, few.answer.explains) == (Verdict.NOT_MEASURED, "open", False)
    assert str(few.answer).startswith("Not measured: answers with ") and str(few.answer).endswith("raise top.")
    few.save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert str(few.answer) in page and 'class="gauge"' not in page
    assert bayesgeom.load_report(tmp_path).answer.verdict == Verdict.NOT_MEASURED


def test_the_exact_mass_of_unlisted_answers_is_that_of_a_loop(hf: Any, address: str) -> None:
    model, trials = served(address, top=3), TASK.sample(5, seed=0)
    model.logits(trials)
    top, masses = HFModel(hf).logits(trials).topk(3).indices, list[float]()
    for listed, exact in zip(top.flatten(0, 1), trials.at_scored(trials.predictive).flatten(0, 1), strict=True):
        pairs = zip(trials.answers, exact, strict=True)
        masses.append(sum(float(mass) for answer, mass in pairs if answer not in listed))
    assert model.unlisted()["exact_mass"] == pytest.approx(np.mean(masses)) and 0 < np.mean(masses) < 1


@pytest.mark.parametrize("has_ids", [False, True])
def test_other_tokens_than_the_answers_are_named_where_they_have_nearly_all_probability(
    address: str, acts: Behavior, *, has_ids: bool
) -> None:
    trials, letters = TASK.sample(2, seed=0), Letters()
    answer, other = int(trials.answers[1]), 1  # a key, no answer
    near = letters.decode([other]) if has_ids else f" {letters.decode([answer])}"
    tokens = [("zebra", 90, 0.6), (near, other, 0.395)]
    listed = [{"token": text, "logprob": math.log(p)} | ({"id": id_} if has_ids else {}) for text, id_, p in tokens]
    acts.body = {"choices": [{"text": "x", "logprobs": {"content": [{"top_logprobs": listed}]}}]}
    most_probable = letters.decode([90]) if has_ids else "zebra"
    says = rf"at least 99% .* the most probable token is '{most_probable}'\. Use answers that"
    with pytest.raises(InvalidArgument, match=says):
        served(address).logits(trials)
    listed[0]["logprob"] = math.log(0.5)  # now some probability may be that of the answers
    assert served(address).logits(trials).isfinite().all()


def test_a_server_that_lists_fewer_tokens_than_requested_may_have_added_the_sampled_one(
    hf: Any, address: str, acts: Behavior
) -> None:
    acts.top, acts.drawn = 3, 96
    trials = TASK.sample(5, seed=0)
    found = served(address, top=20).logits(trials).softmax(-1)[..., trials.answers]
    exact = HFModel(hf).logits(trials).double().softmax(-1)
    assert (found >= exact[..., trials.answers] - 1e-5).all(), "an upper bound"
    assert (found <= torch.maximum(exact.topk(3).values[..., -1:], exact[..., trials.answers]) + 1e-5).all()


def test_requests_are_repeated_only_for_busy_servers(address: str, acts: Behavior) -> None:
    client = client_of(address, key=KEY)
    acts.fails = [503, 429, 500]
    assert client.next_tokens([1, 2, 3]) and len(acts.seen) == 4
    assert acts.seen[-1][1] == f"Bearer {KEY}"
    acts.fails = [503] * 9
    with pytest.raises(ServerFault, match=r"gave no reply in 4 attempts of 60 s: status 503"):
        client.next_tokens([1])
    acts.fails, n = [401], len(acts.seen)
    with pytest.raises(ServerFault, match=r"completions refused the request with status 401 \(.*\(key\)") as caught:
        client.next_tokens([1])
    assert len(acts.seen) == n + 1 and KEY not in str(caught.value) and KEY not in repr(client)
    assert caught.value.__cause__ is None


def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that clients wait, without waiting."""
    waits = list[float]()
    monkeypatch.setattr(clients.time, "sleep", waits.append)
    return waits


def test_a_busy_server_says_when_to_ask_again(address: str, acts: Behavior, monkeypatch: pytest.MonkeyPatch) -> None:
    client, waits = client_of(address), slept(monkeypatch)
    acts.wait, acts.fails = "7", [429] * 9  # more often than there are attempts
    assert client.next_tokens([1, 2]) and waits == [7.0] * 9
    acts.wait, acts.fails = formatdate(time.time() + 31, usegmt=True), [503]
    assert client.next_tokens([1, 2]) and 28 < waits[-1] <= 31
    acts.wait, acts.fails = formatdate(time.time() - 31, usegmt=True), [503]
    assert client.next_tokens([1, 2]) and waits[-1] == 0
    acts.wait, acts.fails = "soon", [503]
    assert client.next_tokens([1, 2]) and waits[-1] == clients._WAIT_S


@pytest.mark.parametrize(("wait", "n"), [("86400", 1), ("0", 21), ("9", 3)])
def test_no_client_waits_for_ever(
    wait: str, n: int, address: str, acts: Behavior, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, waits = client_of(address), slept(monkeypatch)
    monkeypatch.setattr(clients, "_PATIENCE_S", 20.0)
    acts.wait, acts.fails = wait, [429] * 90
    with pytest.raises(ServerFault, match=rf"and asks to wait for {int(wait):,} s") as caught:
        client.next_tokens([1, 2])
    assert caught.value.status == 429 and len(acts.seen) == n and sum(waits) <= clients._PATIENCE_S


def test_replies_outlive_a_fault(address: str, hf: Any, acts: Behavior) -> None:
    model, trials = served(address), TASK.sample(7, seed=0)
    model.logits(trials.rows(slice(0, 3)))
    before, acts.fails = len(acts.seen), [401] * 99
    with pytest.raises(ServerFault, match=r"This model keeps \d+ replies: measure it again to continue") as caught:
        model.logits(trials)
    assert caught.value.status == 401
    acts.fails = []
    found, asked = model.logits(trials), [tuple(own["prompt"]) for own, _ in acts.seen[:before]]
    again = [tuple(own["prompt"]) for own, _ in acts.seen[before:]]
    assert not set(asked) & set(again)
    exact = HFModel(hf).logits(trials).double().softmax(-1)[..., trials.answers]
    torch.testing.assert_close(found[..., trials.answers].exp(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "replied with no JSON: <html>"),
        ({"choices": []}, "replied without choices"),
        ({"choices": [{"text": "x", "logprobs": None}]}, "replied without log-probabilities of the next token"),
        ({"choices": [{"logprobs": {"top_logprobs": [{"a": -0.1, "b": -0.1}]}}]}, r"probabilities sum to 1\.8"),
        ({"choices": [{"logprobs": {"top_logprobs": [{"a": -(10**400)}]}}]}, "invalid log-probabilities"),
    ],
)
def test_wrong_replies_are_named(address: str, acts: Behavior, body: Any, message: str) -> None:
    client = client_of(address)
    acts.body = body
    with pytest.raises(ServerFault, match=message):
        client.next_tokens([1, 2])


def test_replies_that_split_a_character_are_requested_again(address: str, acts: Behavior) -> None:
    client = client_of(address)
    acts.cut = 3
    assert len(client.next_tokens([1, 2, 3])) == 20 and len(acts.seen) == 4
    acts.cut = 9
    with pytest.raises(ServerFault, match=r"sampled a part of a character in each of 4 attempts"):
        client.next_tokens([1, 2, 3])


def test_addresses(address: str, acts: Behavior) -> None:
    assert client_of(f"{address}/v1/").model == "tiny"
    acts.names = ("a", "b")
    assert client_of(f"{address}/v1#b").model == "b"
    with pytest.raises(InvalidArgument, match=r"lists 2 models: name one as .*#MODEL, of a, b"):
        client_of(address)
    with pytest.raises(InvalidArgument, match=r"lists no model 'c': name one as .*#MODEL, of a, b"):
        client_of(f"{address}#c")
    with pytest.raises(InvalidArgument, match="leave user and password out"):
        bayesgeom.load("http://me:secret@localhost/v1")
    for wrong in ("http://h/v1?api_key=secret", "http://me:secret@[::1/v1", "http://secret:x/v1", "http://h/secret ü"):
        with pytest.raises(InvalidArgument, match=r"has the form http://HOST:PORT/v1") as caught:
            client_of(wrong)
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="a server gives no tokenizer: pass that of its model"):
        bayesgeom.load(address)
    with pytest.raises(InvalidArgument, match="revision is for models that are loaded here"):
        bayesgeom.load(address, tokenizer=Letters(), revision="main")
    with pytest.raises(ServerFault, match=r"gave no reply in 4 attempts .* Connection refused"):
        client_of("http://127.0.0.1:9/v1")


def test_a_loaded_server_runs_nothing_else(address: str) -> None:
    model = bayesgeom.load(address, tokenizer=Letters(), server_key=KEY)
    more = bayesgeom.load(address, tokenizer=Letters(), top=29)
    assert isinstance(more, ServedModel) and more.client.top == 29
    with pytest.raises(InvalidArgument, match="top must be a positive integer, got 0"):
        bayesgeom.load(address, tokenizer=Letters(), top=0)
    with pytest.raises(InvalidArgument, match="top is for the address of an inference server; mess3-small is none"):
        bayesgeom.load("mess3-small", top=29)
    assert isinstance(model, ServedModel) and model.client.top == 20 and not model.spec.is_identified
    assert KEY not in repr(model) and KEY not in json.dumps(model.spec.to_dict())
    with pytest.raises(MissingSite, match="a server gives predictions only"):
        bayesgeom.diagnose(model, TASK, n=2, n_untrained=0, probes="key_overlap")
    with pytest.raises(InvalidArgument, match="load the model itself"):
        model.replayer()


@pytest.mark.parametrize("code", [302, 307])
def test_the_key_follows_no_redirect(address: str, acts: Behavior, code: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: Any) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(code)
            self.send_header("Location", f"{address}/v1/completions?key={KEY}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Location", f"{address}/v1/models")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(Handler) as first:
        client = Client(url=first, key=KEY)
        with pytest.raises(ServerFault, match=r"/completions is redirected to .*\?key=\(key\), where") as caught:
            client.next_tokens([1])
        with pytest.raises(ServerFault, match=r"/models is redirected to "):
            client.models()
    assert caught.value.status == code and KEY not in str(caught.value) and not acts.gets and not acts.seen


@pytest.mark.parametrize("key", [f"{KEY}\r\nX: y", f"{KEY}é"])
def test_keys_that_no_header_can_carry_are_refused_without_quoting_them(address: str, key: str) -> None:
    with pytest.raises(InvalidArgument, match="key must be printable ASCII") as caught:
        client_of(address, key=key)
    assert KEY not in str(caught.value)
    with pytest.raises(InvalidArgument, match="key must be printable ASCII"):
        Client(url=address, key=key)


@pytest.mark.parametrize(
    "body",
    [
        [KEY],
        {"choices": [{"logprobs": {"top_logprobs": [{KEY: "high"}]}}]},
        ("x" * 195 + KEY).encode(),
    ],
)
@pytest.mark.parametrize("code", [200, 401, 503])
def test_no_message_contains_a_part_of_the_key(address: str, acts: Behavior, body: Any, code: int) -> None:
    client = client_of(address, key=KEY)
    acts.body = body
    acts.fails, acts.fault = [] if code == 200 else [code] * 4, body
    with pytest.raises(ServerFault) as caught:
        client.next_tokens([1])
    assert KEY[:5] not in str(caught.value)


def test_a_key_with_quotes_is_scrubbed_in_json_too(address: str, acts: Behavior) -> None:
    client = client_of(address, key='sk-"a\\b')
    acts.body = ['Bearer sk-"a\\b']
    with pytest.raises(ServerFault, match=r'without choices: \["Bearer \(key\)"\]'):
        client.next_tokens([1])


def test_only_a_refusal_of_ids_switches_to_text(address: str, acts: Behavior) -> None:
    trials = TASK.sample(2, seed=0)
    for code in (503, 429, 500, 401):
        model, acts.fails = served(address), [code] * (1 if code == 401 else 4)
        with pytest.raises(ServerFault) as caught:
            model.logits(trials)
        assert caught.value.status == code
        acts.fails = []
        model.logits(trials)
        assert isinstance(acts.seen[-1][0]["prompt"], list)


def test_the_tokenizer_is_fetched_with_the_options_and_the_server_never_gets_the_token(
    address: str, acts: Behavior, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    seen = list[Any]()

    def fetched(source: Any, **options: Any) -> Letters:
        seen.append((source, options))
        return Letters()

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fetched)
    options: dict[str, Any] = {"token": "hf_x", "revision": "v2", "local_files_only": True}
    model = bayesgeom.load(address, tokenizer="some/tokenizer", server_key=KEY, **options)
    assert seen == [("some/tokenizer", {"trust_remote_code": False, **options})]
    bayesgeom.load(address, tokenizer="some/tokenizer", token="hf_x")
    model.logits(TASK.sample(2, seed=0))
    assert acts.gets == [f"Bearer {KEY}", None] and {key for _, key in acts.seen} == {f"Bearer {KEY}"}
    own = bayesgeom.load("mess3-small", tokenizer="some/tokenizer", token="hf_x")
    assert own.tokenizer is not None and seen[-1][1] == {"trust_remote_code": False, "token": "hf_x"}
    with pytest.raises(InvalidArgument, match="server_key is for the address of an inference server") as caught:
        bayesgeom.load("mess3-small", server_key=KEY)
    assert KEY not in str(caught.value)


def test_the_command_line_has_a_variable_for_each_secret(
    address: str, acts: Behavior, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bayesgeom.cli import Source

    monkeypatch.setattr("bayesgeom.models.resolve.load_tokenizer", lambda *_args, **_options: Letters())
    monkeypatch.setenv("BAYESGEOM_TOKEN", "hf_x")
    Source(address, tokenizer="some/tokenizer").load()
    monkeypatch.setenv("BAYESGEOM_SERVER_KEY", KEY)
    Source(address, tokenizer="some/tokenizer").load()
    assert acts.gets == [None, f"Bearer {KEY}"]
    assert Source("mess3-small").load().spec.n_layers == 3
