"""Our Llama: trained like any recipe, and read as it lies by transformers and by bayesgeom."""

from pathlib import Path

import pytest
import torch

from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.native.wrapped import LlamaConfig, Wrapped
from bayesgeom.models.resolve import load
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.publish import publish
from bayesgeom.training.recipes import Recipe

TASK = Bijection(n_values=7, n_pairs=5)
SIZES = {"architecture": "llama", "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "d_model": 60, "d_mlp": 29}
TINY = Recipe(name="tiny-llama", task=TASK, sizes=SIZES, steps=5, batch_size=3, warmup=2, snapshots=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Wrapped]:
    home = tmp_path_factory.mktemp("llama")
    module = train(TINY, home / "run", pace=Pace(quiet=True))
    assert isinstance(module, Wrapped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesgeom.training.publish.N_SCORED", 64)
        publish(TINY, module, home / "tiny-llama")
    return home / "tiny-llama", module


def test_a_checkpoint_is_read_by_transformers_as_it_lies(trained: tuple[Path, Wrapped]) -> None:
    import transformers

    path, module = trained
    hf, found = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert type(hf) is transformers.LlamaForCausalLM and not any(found.values())
    tokens = TASK.sample(3, seed=0).tokens
    torch.testing.assert_close(hf(tokens).logits, module(tokens), atol=1e-5, rtol=1e-5)
    assert hf.config.num_key_value_heads == 2 and hf.config.max_position_embeddings == TASK.n_pos


def test_a_checkpoint_is_loaded_with_its_task(trained: tuple[Path, Wrapped]) -> None:
    path, module = trained
    model, checkpoint = load(path), load_checkpoint(path)
    assert isinstance(model, HFModel) and model.task == TASK == checkpoint.task
    assert model.spec.weights_hash == checkpoint.weights_hash
    assert (model.spec.name, model.spec.architecture, model.spec.n_kv_heads) == ("tiny-llama", "llama", 2)
    run = model.run([TASK.sample(5, seed=3)], record=(s.K_ROT, s.Z), n_recorded=5)
    assert run.at(s.K_ROT).shape == (2, 5, 9, 2, 10) and run.at(s.Z).shape == (2, 5, 5, 6, 10)
    fresh = model.untrained_copy(TINY.seed)
    assert torch.equal(
        fresh.module.state_dict()["lm_head.weight"], module.config.build(seed=0).state_dict()["lm_head.weight"]
    )


def test_a_resumed_run_ends_at_the_same_weights(trained: tuple[Path, Wrapped], tmp_path: Path) -> None:
    path, module = trained
    again = train(TINY, path.parent / "run", resume=True, pace=Pace(quiet=True))
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), module.parameters(), strict=True))


def test_matrices_of_the_blocks_are_muons() -> None:
    module = LlamaConfig(d_vocab=11, n_ctx=7, n_layers=2, n_heads=2, n_kv_heads=1, d_model=12, d_mlp=5).build(seed=1)
    rest, matrices = (part.param_groups[0]["params"] for part in Optimizers(TINY, module).parts)
    assert len(matrices) == 2 * 7 and {p.ndim for p in matrices} == {2}
    assert {p.shape for p in rest} == {(11, 12), (12,)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_layers": 0}, r"at least 1"),
        ({"d_model": 61}, r"d_model = 61 must be a multiple of n_heads = 6"),
        ({"n_kv_heads": 4}, r"and n_heads of n_kv_heads = 4"),
        ({"d_model": 54}, r"d_head = 9 must be even"),
    ],
)
def test_impossible_sizes_are_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        config_from_dict({"d_vocab": 11, "n_ctx": 7, **SIZES, **changed})
