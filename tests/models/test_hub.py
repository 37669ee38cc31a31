"""Publication on the hub, to a stand-in for its interface: what is uploaded, and what is refused."""

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

import bayesgeom
from bayesgeom.core.errors import CheckpointFault, InvalidArgument, OutputFault
from bayesgeom.models.checkpoint import load_checkpoint
from tests.models.test_checkpoint import saved


class Api:
    """The two calls of `HfApi`; the upload lands in a folder, and a repository without permission refuses it."""

    home: Path
    calls: list[tuple[str, Any]]

    def __init__(self, token: str | None) -> None:
        self.token = token

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        self.calls.append((repo_id, (private, exist_ok, self.token)))

    def upload_folder(self, *, repo_id: str, folder_path: str) -> str:
        if repo_id.startswith("others/"):
            reply: Any = SimpleNamespace(headers={}, request=None)
            raise huggingface_hub.errors.HfHubHTTPError("\n\n403 Forbidden: no rights.\nCheck them.", response=reply)
        for file in Path(folder_path).iterdir():
            shutil.copyfile(file, self.home / file.name)
        return f"https://hub/{repo_id}"


@pytest.fixture(autouse=True)
def no_registry_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks a hub once a day which agents there are and keeps any reply, odd ones too, in the user's cache.

    With `[]` kept there, every later call fails, in other programs too.
    """
    monkeypatch.setattr("huggingface_hub.utils._detect_agent._registry", {})


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Api]:
    (home := tmp_path / "uploaded").mkdir()
    monkeypatch.setattr(Api, "home", home, raising=False)
    monkeypatch.setattr(Api, "calls", [], raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return Api


def test_a_checkpoint_is_uploaded_with_a_card_and_loads_from_there(api: type[Api], tmp_path: Path) -> None:
    own = saved(tmp_path / "tiny")
    (tmp_path / "tiny" / "notes.txt").write_text("private")
    assert bayesgeom.publish(tmp_path / "tiny", repo="me/tiny", private=True, token="t") == "https://hub/me/tiny"
    assert api.calls == [("me/tiny", (True, True, "t"))]
    assert {path.name for path in api.home.iterdir()} == {"README.md", "card.md", "config.json", "model.safetensors"}
    assert load_checkpoint(api.home).weights_hash == own
    fields, _, text = (api.home / "README.md").read_text().removeprefix("---\n").partition("---\n")
    assert "library_name: bayesgeom" in fields and text.startswith((tmp_path / "tiny" / "card.md").read_text())
    assert 'snapshot_download("me/tiny", local_dir="tiny")' in text


def test_a_repository_without_permission_is_one_sentence(api: type[Api], tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    with pytest.raises(
        OutputFault, match=r"tiny cannot be published as others/x: 403 Forbidden: no rights\. Log in by [^\n]*$"
    ):
        bayesgeom.publish(tmp_path / "tiny", repo="others/x")
    assert list(api.home.iterdir()) == []


@pytest.mark.parametrize("repo", ["tiny", "a/b/c", "", "https://hub/a/b"])
def test_other_names_of_a_repository_are_refused(repo: str, api: type[Api], tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    with pytest.raises(InvalidArgument, match="repo must have the form owner/name, got"):
        bayesgeom.publish(tmp_path / "tiny", repo=repo)


def test_what_cannot_be_loaded_is_not_published(api: type[Api], tmp_path: Path) -> None:
    with pytest.raises(CheckpointFault, match=r"holds no config\.json"):
        bayesgeom.publish(tmp_path / "nowhere", repo="me/tiny")
    saved(tmp_path / "tiny")
    (tmp_path / "tiny" / "card.md").unlink()
    with pytest.raises(CheckpointFault, match=r"holds no card\.md"):
        bayesgeom.publish(tmp_path / "tiny", repo="me/tiny")
    assert api.calls == []


class Replies(BaseHTTPRequestHandler):
    """A hub that replies to everything with `content`."""

    status, content, length = 200, b"", ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(self.status)
        self.send_header("Content-Length", self.length or str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content * (self.command != "HEAD"))

    def do_GET(self) -> None:
        self.do_POST()

    def do_HEAD(self) -> None:
        self.do_POST()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Replies]]:
    """A hub on this machine, whose address holds a password."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind := type("Kind", (Replies,), {}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://ada:se:cret@127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield kind
    server.shutdown()
    server.server_close()


ODD = [b"", b"[]", b"3", b"{}", b'"text"', b'{"url": null}', b"<html>", b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("content", ODD, ids=lambda content: repr(content[:9]))
@pytest.mark.parametrize("status", [200, 403])
def test_odd_replies_of_a_hub_are_one_sentence(content: bytes, status: int, hub: type[Replies], tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    hub.content, hub.status = content, status
    with pytest.raises(OutputFault, match=r"tiny cannot be published as me/tiny: [^\n]*\. Log in by [^\n]*$") as caught:
        bayesgeom.publish(tmp_path / "tiny", repo="me/tiny", token="t")
    assert "cret" not in str(caught.value)
    hub.length = "zz"
    with pytest.raises(OutputFault, match=r"cannot be published as me/tiny: bad Content-Length\."):
        bayesgeom.publish(tmp_path / "tiny", repo="me/tiny", token="t")


def test_the_password_of_a_hub_is_in_no_message(hub: type[Replies], tmp_path: Path) -> None:
    hub.content = json.dumps({"error": f"no rights at {huggingface_hub.constants.ENDPOINT}/me"}).encode()
    hub.status = 403
    saved(tmp_path / "tiny")
    with pytest.raises(OutputFault, match=r"cannot be published") as published:
        bayesgeom.publish(tmp_path / "tiny", repo="me/tiny", token="t")
    with pytest.raises(CheckpointFault, match=r"could not be loaded from the Hugging Face hub: ") as loaded:
        bayesgeom.load("me/tiny")
    assert "cret" not in f"{published.value} {loaded.value}"


def test_without_a_network_one_sentence_says_so(tmp_path: Path) -> None:
    saved(tmp_path / "tiny")
    with pytest.raises(OutputFault, match=r"cannot be published as me/tiny: .*offline[^\n]*$"):
        bayesgeom.publish(tmp_path / "tiny", repo="me/tiny")  # tests run offline
    assert not (tmp_path / "tiny" / "README.md").exists()
