"""Options of load, passes that run out of memory, and untrained networks that do not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch

import bayesgeom
from bayesgeom.cli import Source, _text_task
from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.report.estimate import UNTRAINED
from tests.families import _sizes
from tests.models.test_recording import save
from tests.models.test_run import TASK, blocks, lively


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import transformers

    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**_sizes())).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_options_reach_the_model(folder: Path) -> None:
    options = {"attn_implementation": "eager", "local_files_only": True, "token": "hf_secret", "revision": "main"}
    model = bayesgeom.load(folder, dtype="bfloat16", batch_size=3, memory_gib=0.5, **options)
    assert model.module.config._attn_implementation == "eager" and model.spec.dtype == "bfloat16"
    assert (model.batch_size, model.memory_gib) == (3, 0.5) and "hf_secret" not in repr(vars(model))
    placed = bayesgeom.load(folder, device_map="cpu", max_memory={"cpu": "1GiB"})
    assert placed.spec.device == "cpu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revison": "main"}, r"load has no option 'revison'\. It has: device, dtype, tokenizer, memory_gib, revision"),
        ({"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"batch_size": True}, "batch_size must be a positive integer, got True"),
    ],
)
def test_wrong_options_are_named(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        bayesgeom.load(folder, **options)


def test_options_of_other_models_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "tiny")
    with pytest.raises(InvalidArgument, match=r"attn_implementation is for Hugging Face models; tiny is"):
        bayesgeom.load(tmp_path / "tiny", attn_implementation="eager")
    assert bayesgeom.load(tmp_path / "tiny", batch_size=2, token="secret").batch_size == 2


def test_options_on_the_command_line(folder: Path) -> None:
    source = Source(str(folder), attn_implementation="eager", batch_size=5, max_memory={0: "1GiB", "cpu": "2GiB"})
    model = source.load()
    assert model.batch_size == 5 and model.module.config._attn_implementation == "eager"
    with pytest.raises(InvalidArgument, match=r"--quantization-config must be a JSON object, got 'int8'"):
        Source(str(folder), quantization_config="int8").load()
    tasks = [_text_task(own, None, None, chat=True) for own in ("prompts:last=2", "evidence", "hmm-in-context")]
    assert tasks == ["prompts:last=2,chat=True", "evidence:style=chat", "hmm-in-context:style=chat"]
    assert _text_task(None, "code", None, chat=True) == "prompts:domain=code,chat=True"
    with pytest.raises(InvalidArgument, match="--chat needs a task in text"):
        _text_task(None, None, None, chat=True)


def test_passes_have_at_most_the_given_number_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, own = list[int](), HookedModel.logits

    def counted(self: HookedModel, trials: Trials) -> torch.Tensor:
        sizes.append(len(trials))
        return own(self, trials)

    monkeypatch.setattr(HookedModel, "logits", counted)
    model = lively()
    model.batch_size = 3
    model.run(blocks(7, 5), record=[s.Z], n_recorded=12)
    assert sum(sizes) == 12 and max(sizes) == 3


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("CUDA"), RuntimeError("CPU: can't allocate memory")])
def test_a_pass_that_runs_out_of_memory_is_halved(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    plain = lively().run(blocks(11, 6), record=[s.Z, s.K], n_recorded=13)
    own = HookedModel.logits

    def small(self: HookedModel, trials: Trials) -> torch.Tensor:
        found = own(self, trials)  # hooks have stored activations by then
        if len(trials) > 6:
            raise fault
        return found

    monkeypatch.setattr(HookedModel, "logits", small)
    with pytest.warns(UserWarning, match=r"out of memory with 11 sequences in a pass and continues with 6\. Set"):
        found = lively().run(blocks(11, 6), record=[s.Z, s.K], n_recorded=13)
    for site in (s.Z, s.K):
        torch.testing.assert_close(found.at(site), plain.at(site), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.log_answers, plain.log_answers, rtol=1e-4, atol=1e-4)


def test_other_errors_are_not_taken_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: HookedModel, _trials: Trials) -> torch.Tensor:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(HookedModel, "logits", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        lively().run(blocks(5), record=[s.Z], n_recorded=5)


def test_untrained_networks_that_do_not_fit_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, own = list[int](), HookedModel.untrained_copy

    def second_fails(self: HookedModel, seed: int) -> Any:
        seeds.append(seed)
        if len(seeds) == 2:
            raise torch.OutOfMemoryError("no")
        return own(self, seed)

    monkeypatch.setattr(HookedModel, "untrained_copy", second_fails)
    found = bayesgeom.diagnose(lively(), TASK, n=7, n_untrained=3, probes="calibration")
    assert found.skipped["initialization"] == "untrained network 1 was left out, because it does not fit into memory."
    assert UNTRAINED in [level.name for level in found["calibration"].kl_bits.baselines]


def test_prompts_as_chats() -> None:
    class Template:
        chat_template = "yes"

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            del add_special_tokens
            return [ord(letter) for letter in text]

        def decode(self, token_ids: list[int]) -> str:
            return "".join(map(chr, token_ids))

        def apply_chat_template(
            self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
        ) -> str:
            assert not tokenize and add_generation_prompt
            return f"<{conversation[0]['content']}>"

    task = bayesgeom.tasks.Prompts(texts=["ab", "cde"], chat=True).bind(Template(), d_vocab=200)
    assert [Template().decode(list(own)) for own in task.prompts] == ["<ab>", "<cde>"]
