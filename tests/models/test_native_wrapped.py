"""Our Llama, Mamba-2 and RWKV-4: trained like any recipe, and read as they lie by transformers and by bayesgeom."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.native.wrapped import Wrapped
from bayesgeom.models.resolve import as_model, load
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.publish import score_and_save
from bayesgeom.training.recipes import Recipe

TASK = Bijection(n_values=5, n_pairs=4)
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama", "n_layers": 3, "n_heads": 6, "n_kv_heads": 2, "d_model": 60, "d_mlp": 29},
    "mamba2": {"architecture": "mamba2", "n_layers": 3, "d_model": 22, "d_head": 11, "d_state": 7, "chunk_size": 3},
    "rwkv": {"architecture": "rwkv", "n_layers": 3, "d_model": 22, "d_mlp": 29},
}
N_MATRICES = {"llama": 7, "mamba2": 2, "rwkv": 7}  # of a block
STREAM = {s.RESID_PRE, s.RESID_POST, s.TOKEN_EMBEDDINGS}
Trained = tuple[str, Path, Wrapped]


def recipe(kind: str) -> Recipe:
    return Recipe(
        name=f"tiny-{kind}", task=TASK, sizes=SIZES[kind], lr=3e-3, steps=16, batch_size=16, warmup=3, snapshots=0
    )


@pytest.fixture(scope="module", params=SIZES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home, plan = tmp_path_factory.mktemp(request.param), recipe(request.param)
    module = train(plan, home / "run", pace=Pace(quiet=True, log_every=4))
    assert isinstance(module, Wrapped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesgeom.training.publish.N_SCORED", 64)
        score_and_save(plan, module, home / "checkpoint")
    return request.param, home, module


@pytest.mark.exhaustive
def test_a_checkpoint_is_read_by_transformers_as_it_lies(trained: Trained) -> None:
    import transformers

    _, home, module = trained
    hf, found = transformers.AutoModelForCausalLM.from_pretrained(home / "checkpoint", output_loading_info=True)
    assert type(hf) is type(module.whole) and not any(found.values())
    assert all(torch.equal(a, b) for a, b in zip(hf.state_dict().values(), module.state_dict().values(), strict=True))
    tokens = TASK.sample(3, seed=0).tokens
    with torch.no_grad():
        torch.testing.assert_close(hf.eval()(tokens).logits, module(tokens), atol=1e-5, rtol=1e-5)


def test_a_checkpoint_is_loaded_with_its_task(trained: Trained) -> None:
    kind, home, module = trained
    model, checkpoint = load(home / "checkpoint"), load_checkpoint(home / "checkpoint")
    assert isinstance(model, HFModel) and model.task == TASK == checkpoint.task
    assert (model.spec.architecture, model.spec.weights_hash) == (kind, checkpoint.weights_hash)
    assert model.sites >= STREAM and (s.K in model.sites, s.STATE in model.sites) == (kind == "llama", kind == "mamba2")
    run = model.run([TASK.sample(3, seed=1)], record=model.sites & {s.RESID_POST, s.K_ROT, s.Z}, n_recorded=3)
    assert run.at(s.RESID_POST).shape == (3, 3, 4, SIZES[kind]["d_model"])
    if kind == "llama":
        assert run.at(s.K_ROT).shape == (3, 3, 7, 2, 10) and run.at(s.Z).shape == (3, 3, 4, 6, 10)
    assert as_model(module).spec.name == kind


def test_an_untrained_copy_is_what_training_starts_from(trained: Trained) -> None:
    kind, _, module = trained
    fresh = as_model(module).untrained_copy(0).module.state_dict()
    built = config_from_dict({"d_vocab": TASK.d_vocab, "n_ctx": TASK.n_pos, **SIZES[kind]}).build(seed=0)
    assert all(torch.equal(fresh[name], weight) for name, weight in built.state_dict().items())


@pytest.mark.parametrize("kind", SIZES)
def test_matrices_of_the_blocks_are_muons(kind: str) -> None:
    module = config_from_dict({"d_vocab": 11, "n_ctx": 7, **SIZES[kind]}).build(seed=1)
    rest, matrices = (part.param_groups[0]["params"] for part in Optimizers(recipe(kind), module).parts)
    assert len(matrices) == 3 * N_MATRICES[kind] and {p.ndim for p in matrices} == {2}
    assert {p.shape for p in rest if p.ndim == 2} == {(11, SIZES[kind]["d_model"])}


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("llama", {"n_layers": 0}, r"every size of a Llama must be at least 1"),
        ("llama", {"d_model": 61}, r"d_model = 61 must be a multiple of n_heads = 6"),
        ("llama", {"n_kv_heads": 4}, r"and n_heads of n_kv_heads = 4"),
        ("llama", {"d_model": 54}, r"d_head = 9 must be even"),
        ("mamba2", {"d_head": 13}, r"expand · d_model = 44 must be a multiple of d_head = 13"),
        ("mamba2", {"d_state": 0}, "every size of a Mamba-2 must be at least 1"),
        ("rwkv", {"n_layers": 1}, "at least 2 of each"),
        ("rwkv", {"d_mlp": 0}, "every size of an RWKV must be at least 1"),
    ],
)
def test_impossible_sizes_are_refused(kind: str, changed: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        config_from_dict({"d_vocab": 11, "n_ctx": 7, **SIZES[kind], **changed})
