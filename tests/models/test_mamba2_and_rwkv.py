"""Our Mamba-2 and RWKV-4: trained like any recipe, and read as they lie by transformers and by bayesgeom."""

from pathlib import Path

import pytest
import torch

from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.native.wrapped import Mamba2Config, RWKVConfig, Wrapped
from bayesgeom.models.resolve import as_model, load
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.optimizers import Optimizers
from bayesgeom.training.publish import publish
from bayesgeom.training.recipes import Recipe

TASK = Bijection(n_values=5, n_pairs=4)
SIZES = {
    "mamba2": {"architecture": "mamba2", "n_layers": 3, "d_model": 22, "d_head": 11, "d_state": 7, "chunk_size": 3},
    "rwkv": {"architecture": "rwkv", "n_layers": 3, "d_model": 22, "d_mlp": 29},
}
Trained = tuple[str, Path, Wrapped]


def recipe(kind: str, steps: int) -> Recipe:
    return Recipe(
        name=f"tiny-{kind}", task=TASK, sizes=SIZES[kind], lr=3e-3, steps=steps, batch_size=16, warmup=3, snapshots=0
    )


@pytest.fixture(scope="module", params=SIZES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home, plan = tmp_path_factory.mktemp(request.param), recipe(request.param, steps=16)
    module = train(plan, home / "run", pace=Pace(quiet=True, log_every=4))
    assert isinstance(module, Wrapped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesgeom.training.publish.N_SCORED", 64)
        publish(plan, module, home / "checkpoint")
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
        torch.testing.assert_close(hf.eval()(tokens).logits, module(tokens), atol=1e-6, rtol=1e-6)


def test_a_checkpoint_is_loaded_with_its_task(trained: Trained) -> None:
    kind, home, module = trained
    model = load(home / "checkpoint")
    assert isinstance(model, HFModel) and model.task == TASK and model.spec.architecture == kind
    assert model.sites == {s.RESID_PRE, s.RESID_POST, s.TOKEN_EMBEDDINGS}
    run = model.run([TASK.sample(3, seed=1)], record=(s.RESID_POST,), n_recorded=3)
    assert run.at(s.RESID_POST).shape == (3, 3, 4, 22)
    assert as_model(module).spec.name == kind


def test_an_untrained_copy_is_what_training_starts_from(trained: Trained) -> None:
    kind, _, module = trained
    fresh = as_model(module).untrained_copy(0).module.state_dict()
    built = config_from_dict({"d_vocab": TASK.d_vocab, "n_ctx": TASK.n_pos, **SIZES[kind]}).build(seed=0)
    assert all(torch.equal(fresh[name], weight) for name, weight in built.state_dict().items())


@pytest.mark.parametrize("kind", SIZES)
def test_building_draws_nothing_from_the_global_generator(kind: str) -> None:
    config, state = config_from_dict({"d_vocab": 11, "n_ctx": 7, **SIZES[kind]}), torch.get_rng_state()
    one, same, other = (config.build(seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", SIZES)
def test_matrices_of_the_blocks_are_muons(kind: str) -> None:
    module = config_from_dict({"d_vocab": 11, "n_ctx": 7, **SIZES[kind]}).build(seed=1)
    rest, matrices = (part.param_groups[0]["params"] for part in Optimizers(recipe(kind, 1), module).parts)
    assert len(matrices) == 3 * {"mamba2": 2, "rwkv": 7}[kind] and {p.ndim for p in matrices} == {2}
    assert {p.shape for p in rest if p.ndim == 2} == {(11, 22)}


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"expand · d_model = 44 must be a multiple of d_head = 13"):
        Mamba2Config(d_vocab=11, n_ctx=7, d_model=22, d_head=13)
    with pytest.raises(InvalidArgument, match="every size of a Mamba-2 must be at least 1"):
        Mamba2Config(d_vocab=11, n_ctx=7, d_state=0)
    with pytest.raises(InvalidArgument, match="at least 2 of each"):
        RWKVConfig(d_vocab=11, n_ctx=7, n_layers=1)
    with pytest.raises(InvalidArgument, match="every size of an RWKV must be at least 1"):
        RWKVConfig(d_vocab=11, n_ctx=7, d_mlp=0)
