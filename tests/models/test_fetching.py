"""Checkpoints that an installation lacks: fetched once from a local server, and what the failures of that leave behind.

`python -m tests.models.test_fetching` writes the registry; run it after a change in checkpoints/.
"""

import base64
import contextlib
import hashlib
import json
import multiprocessing
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.core.errors import BayesGeomError, CheckpointFault, InvalidArgument, OutputFault, UnknownName
from bayesgeom.models import checkpoint_files, fetching
from bayesgeom.models.checkpoint_files import CONFIG, OURS, WEIGHTS, checkpoints
from bayesgeom.models.fetching import REGISTRY, fetched, missing_bytes, registered
from bayesgeom.training.formation import pack
from bayesgeom.training.packed import FORMATION, formations, read_formation
from tests.models.test_checkpoint import saved
from tests.shape_checks import ARE_ON
from tests.structure.source import ROOT

SENTENCE = r"[^\n]+\.$"


def described(folder: Path) -> dict[str, Any]:
    """What the registry says of a folder of checkpoints."""
    listed = {}
    for path in sorted(own for own in folder.iterdir() if own.is_dir()):
        source = path / CONFIG if (path / CONFIG).exists() else path / FORMATION
        whole = json.loads(source.read_text(encoding="utf-8"))
        files = {
            file.name: {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            for file in sorted(path.iterdir())
        }
        listed[path.name] = {"recipe": whole.get(OURS, whole)["recipe"]["name"], "files": files}
    return listed


def test_the_registry_lists_the_files_of_the_repository() -> None:
    stored = {name: entry for name, entry in registered().items() if not missing_bytes(ROOT / "checkpoints" / name)}
    assert stored and stored == {name: own for name, own in described(ROOT / "checkpoints").items() if name in stored}
    # A clone may lack weights; it has what describes each.
    assert {path.name for path in (ROOT / "checkpoints").iterdir()} == set(registered())


@dataclass
class Served:
    """A server of the checkpoints of a release: its address, what it was asked for, and how it fails.

    `waits` is set once a reply waits, until `goes_on`.
    """

    url: str = ""
    asked: list[str] = field(default_factory=list)
    logins: list[str | None] = field(default_factory=list)
    fault: str = ""
    waits: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of a folder."""

    def __init__(self, *args: Any, served: Served, **kwargs: Any) -> None:
        self.served = served
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        self.served.asked.append(self.path)
        self.served.logins.append(self.headers["Authorization"])
        if not self.path.endswith(f"tiny/{WEIGHTS}") or not self.served.fault:
            super().do_GET()
            return
        with contextlib.suppress(OSError):  # the other side leaves
            self.fail(Path(self.translate_path(self.path)).read_bytes())

    def fail(self, content: bytes) -> None:
        fault, size = self.served.fault, str(len(content))
        if fault == "wait":
            self.served.waits.set()
            self.served.goes_on.wait(20)
        length = {"odd length": "zz", "two lengths": f"{size}\r\nContent-Length: 3"}
        self.send_response(200)
        self.send_header("Content-Length", length.get(fault, size))
        self.end_headers()
        match fault:
            case "cut":
                self.wfile.write(content[: len(content) // 2])
            case "changed":
                self.wfile.write(content[:-1] + bytes([content[-1] ^ 1]))
            case _:
                self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints and a packed training, with a registry."""
    root = tmp_path_factory.mktemp("release")
    for seed, name in enumerate(("tiny", "small")):
        saved(root / "checkpoints" / name, seed=seed)
    for step in (1, 2):
        saved(root / "run" / "snapshots" / f"step-{step}", seed=step)
    pack(root / "run", root / "checkpoints" / "packed", keep=2)
    (root / "registry.json").write_text(json.dumps(described(root / "checkpoints")))
    return root


@pytest.fixture
def served(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """An installation with the descriptions of these, and a server with the weights."""
    if ARE_ON:
        pytest.skip("checks of annotations look an entry up, which fetches it")
    files, installed = tmp_path / "checkpoints", tmp_path / "site" / "bayesgeom" / "_checkpoints"
    shutil.copytree(release / "checkpoints", files)
    shutil.copytree(files, installed, ignore=shutil.ignore_patterns("*.safetensors"))
    registry = shutil.copyfile(release / "registry.json", tmp_path / "registry.json")
    state = Served()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(files), served=state))
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.delenv(checkpoint_files.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(checkpoint_files, "_PACKAGE", installed.parent)
    monkeypatch.setattr(fetching, "REGISTRY", registry)
    monkeypatch.setenv(fetching.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(fetching.BASE_VARIABLE, state.url)
    registered.cache_clear()
    yield state
    state.goes_on.set()
    registered.cache_clear()
    server.shutdown()
    server.server_close()


def left(folder: Path) -> list[str]:
    """Names of the files in the cache, apart from the lock."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def test_a_checkpoint_is_fetched_once_and_listed_before(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(checkpoints()) == ["small", "tiny"] and "tiny" in checkpoints() and list(formations()) == ["packed"]
    assert main(["checkpoints"]) == 0
    assert capsys.readouterr().out.count("\n  fetch   on first use, ") == 3
    assert served.asked == []
    model = bayesgeom.load("tiny")
    assert model.spec.name == "tiny" and len(served.asked) == 3
    assert bayesgeom.load("tiny").spec == model.spec and bayesgeom.load(checkpoints()["tiny"]).spec == model.spec
    assert len(served.asked) == 3
    assert len(read_formation(formations()["packed"])["snapshots"]) == 2


def test_an_argument_names_another_address(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fetching.BASE_VARIABLE, f"{served.url}/nowhere")
    with pytest.raises(CheckpointFault, match=rf"nowhere/tiny/.* \(status 404.*train it: bayesgeom train {SENTENCE}"):
        bayesgeom.load("tiny")
    assert bayesgeom.load("tiny", base_url=f"{served.url}/").spec.name == "tiny"
    with pytest.raises(InvalidArgument, match="base_url is for shipped checkpoints; a/b is none"):
        bayesgeom.load("a/b", base_url=served.url)


def test_a_fetched_checkpoint_is_that_of_the_registry(served: Served, tmp_path: Path) -> None:
    """Another version of bayesgeom, with other weights under the same name, fetches its own."""
    first = bayesgeom.load("tiny").spec.weights_hash
    saved(tmp_path / "checkpoints" / "tiny", seed=5)
    fetching.REGISTRY.write_text(json.dumps(described(tmp_path / "checkpoints")))
    registered.cache_clear()
    assert bayesgeom.load("tiny").spec.weights_hash != first


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", r"cannot be fetched \(.*without sending complete message.*\).*bayesgeom train "),
        ("changed", r"cannot be fetched \(it has another hash.*bayesgeom train "),
        ("odd length", r"cannot be fetched \(.*[Cc]ontent-[Ll]ength.*\).*bayesgeom train "),
        ("two lengths", r"cannot be fetched \(.*[Cc]ontent-[Ll]ength.*\).*bayesgeom train "),
        ("wait", r"cannot be fetched \(timed out\).*bayesgeom train "),
    ],
)
def test_what_arrives_damaged_or_late_is_not_kept(
    fault: str, message: str, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_IDLE_S", 1.0)
    served.fault, begun = fault, time.monotonic()
    with pytest.raises(CheckpointFault, match=message + SENTENCE):
        bayesgeom.load("tiny")
    assert left(tmp_path / "cache") == [] and time.monotonic() - begun < 15
    served.fault = ""
    assert bayesgeom.load("tiny").spec.name == "tiny"


def test_an_interrupt_ends_a_download_at_once_and_leaves_nothing(served: Served, tmp_path: Path) -> None:
    def interrupt() -> None:
        if served.waits.wait(20):
            signal.pthread_kill(here, signal.SIGINT)

    served.fault, here = "wait", threading.get_ident()
    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            bayesgeom.load("tiny")
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert left(tmp_path / "cache") == [] and time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "login", ["ada:secret", "ada:se:cret", "ada:se/cret", "ada:123/cret", "ada:s@ secret", "secret"]
)
@pytest.mark.parametrize("scheme", ["http://", "ftp://", ""])
def test_no_message_contains_a_password(scheme: str, login: str, served: Served) -> None:
    """Whether the address is valid or not, and whether or not the server is there."""
    for host in (served.url.removeprefix("http://"), "127.0.0.1:9"):
        with pytest.raises(CheckpointFault, match="nowhere/tiny/card") as caught:
            bayesgeom.load("tiny", base_url=f"{scheme}{login}@{host}/nowhere")
        chain = [caught.value, caught.value.__cause__, caught.value.__context__]
        assert not [error for error in chain if "cret" in str(error)]


def test_a_login_is_sent_and_an_address_without_one_is_shown_whole(served: Served) -> None:
    address = served.url.replace("http://", "http://ada:se%3Acret@")
    assert bayesgeom.load("tiny", base_url=address).spec.name == "tiny"
    assert set(served.logins) == {f"Basic {base64.b64encode(b'ada:se:cret').decode()}"}
    mirror = "https://cdn.example.org/ada/checkpoints@v1/tiny"
    assert fetching.without_login(mirror) == mirror


def test_without_a_network_one_sentence_says_how_to_train_it(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(fetching.BASE_VARIABLE, "http://127.0.0.1:9")
    assert main(["diagnose", "tiny"]) == 2
    recipe = registered()["tiny"]["recipe"]
    message = capsys.readouterr().err
    assert "lacks the weights of tiny" in message and f"bayesgeom train {recipe}." in " ".join(message.split())
    assert left(tmp_path / "cache") == []


@pytest.mark.parametrize("base", ["nonsense", "ftp://127.0.0.1", "file:///nowhere"])
def test_addresses_of_another_kind_are_refused(base: str, served: Served) -> None:
    with pytest.raises(CheckpointFault, match=SENTENCE):
        bayesgeom.load("tiny", base_url=base)


def test_a_cache_that_cannot_be_written_is_one_sentence(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(OutputFault, match=rf"cache.*Set \$BAYESGEOM_CACHE to {SENTENCE}"):
        bayesgeom.load("tiny")
    assert served.asked == []


def test_a_cache_that_can_be_read_alone_is_used(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bayesgeom.load("tiny").spec

    def refused(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)  # tests may run as root, whom no permission stops
    assert bayesgeom.load("tiny").spec == expected
    with pytest.raises(OutputFault, match=rf"Permission denied\. Set {SENTENCE}"):
        bayesgeom.load("small")


def test_unknown_names_are_not_asked_for(served: Served) -> None:
    with pytest.raises(UnknownName, match=r"no checkpoint named 'tinny'.*Perhaps you meant 'tiny'"):
        bayesgeom.load("tinny")
    assert served.asked == []


@pytest.mark.parametrize("module", ["httpx", "platformdirs"])
def test_without_the_extra_one_sentence_says_what_to_install(
    module: str, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidArgument, match=rf"tiny.* needs {module}: pip install '\.\[fetch\]' in the clone\.$"):
        bayesgeom.load("tiny")


def test_a_folder_that_the_user_names_is_taken_as_it_is(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(checkpoint_files.FOLDER_VARIABLE, str(tmp_path / "site" / "bayesgeom" / "_checkpoints"))
    with pytest.raises(CheckpointFault, match=r"holds no model\.safetensors"):
        bayesgeom.load("tiny")
    assert served.asked == []


def _fetch(name: str, start: Any, results: Any) -> None:
    start.wait()
    try:
        results.put(str(fetched(name)))
    except BayesGeomError as error:  # a failure would otherwise look like a process that hangs
        results.put(str(error))


@pytest.mark.exhaustive
def test_processes_at_once_fetch_it_once(served: Served) -> None:
    processes = multiprocessing.get_context("fork")
    start, results = processes.Event(), processes.Queue()
    own = [processes.Process(target=_fetch, args=("tiny", start, results)) for _ in range(3)]
    for process in own:
        process.start()
    start.set()
    paths = {results.get(timeout=60) for _ in own}
    for process in own:
        process.join()
    assert len(paths) == 1 and len(served.asked) == 3
    assert not missing_bytes(Path(paths.pop()))


if __name__ == "__main__":
    REGISTRY.write_text(json.dumps(described(ROOT / "checkpoints"), indent=1) + "\n", encoding="utf-8")
