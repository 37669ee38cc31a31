"""A `tokenizer.json` that is valid JSON and no tokenizer, or that fails: one sentence names it."""

import json
from pathlib import Path
from typing import Any

import pytest

import bayesgeom
from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.tokenizer import decoded_text, encoded_text
from bayesgeom.models.resolve import as_model
from tests.models.huggingface.test_hostile_directories import llama
from tests.tasks.tokenizers import word_tokenizer

ODD: dict[str, dict[str, Any]] = {
    "no model": {"model": None},
    "a table that panics": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    llama().save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("fault", ODD)
def test_an_odd_tokenizer_is_named(fault: str, copied: Path, whole: Path) -> None:
    file = copied / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | ODD[fault]))
    for load in (lambda: bayesgeom.load(copied), lambda: bayesgeom.load(whole, tokenizer=copied)):
        with pytest.raises(CheckpointFault, match=r"the tokenizer of .* cannot be used: .*\. Restore its") as caught:
            load()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n", [0, 3000])
def test_a_truncated_tokenizer_is_not_left_out(n: int, copied: Path) -> None:
    file = copied / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:n])
    with pytest.raises(CheckpointFault, match=r"the tokenizer of .* cannot be used"):
        bayesgeom.load(copied)


def test_a_tokenizer_without_its_file_is_left_out_with_a_warning(copied: Path) -> None:
    (copied / "tokenizer.json").unlink()
    with pytest.warns(UserWarning, match="is loaded without its tokenizer"):
        assert bayesgeom.load(copied).tokenizer is None


class Failing:
    """A tokenizer that fails later, as those of Rust do: with an exception that is no `Exception`."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise BaseException("panicked")  # noqa: TRY002  (pyo3's is one of its own)

    def decode(self, token_ids: list[int]) -> str:
        raise Exception("no")  # noqa: TRY002


def test_a_tokenizer_that_fails_later_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"cannot encode 'a b' \(BaseException: panicked\)"):
        encoded_text(Failing(), "a b")
    with pytest.raises(InvalidArgument, match=r"cannot decode \[7\] \(Exception: no\)"):
        decoded_text(Failing(), [7])
    with pytest.raises(InvalidArgument, match="cannot encode"):
        bayesgeom.diagnose(as_model(llama(), Failing()), ["a b", "c d"], n_untrained=0)
