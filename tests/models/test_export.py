"""Export to Hugging Face: the same logits there."""

import itertools
from pathlib import Path

import pytest
import torch

from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.export import export_huggingface
from bayesgeom.models.native.transformer import NORMS, POSITIONS, Transformer, TransformerConfig
from bayesgeom.models.resolve import load
from bayesgeom.tasks.bijection import Bijection
from tests.weights import perturbed

TASK = Bijection(n_values=11, n_pairs=7)
HELD = {
    ("rmsnorm", "rotary"): "llama",
    ("layernorm", "learned"): "gpt2",
    ("layernorm", "sinusoidal"): "gpt2",
    ("layernorm", "none"): "gpt2",
}


def lively(norm: str, positions: str, tied: bool = True) -> Transformer:
    config = TransformerConfig(
        d_vocab=22, n_ctx=13, n_layers=3, n_heads=3, d_model=30, d_mlp=17, norm=norm, positions=positions, tied=tied
    )  # type: ignore[arg-type]
    return perturbed(Transformer(config, seed=1), 0.3, seed=2)


@pytest.mark.parametrize(("kind", "tied"), list(itertools.product(HELD, (True, False))))
def test_logits_are_equal(kind: tuple[str, str], tied: bool, tmp_path: Path) -> None:
    import transformers

    module, trials = lively(*kind, tied=tied), TASK.sample(5, seed=0)
    assert export_huggingface(module, tmp_path / "out", task=TASK) == HELD[kind]
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert hf.config.model_type == HELD[kind] and hf.config.tie_word_embeddings == tied
    with torch.no_grad():
        torch.testing.assert_close(hf(trials.tokens).logits, module(trials.tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", HELD)
def test_the_export_has_the_same_anatomy(kind: tuple[str, str], tmp_path: Path) -> None:
    module, trials = lively(*kind), TASK.sample(5, seed=0)
    export_huggingface(module, tmp_path / "out", task=TASK)
    ours, theirs = HookedModel(module), load(tmp_path / "out")
    assert theirs.task == TASK
    both = ours.sites & theirs.sites
    assert both <= theirs.sites, theirs.withheld
    one, two = (model.run([trials], record=both, n_recorded=5) for model in (ours, theirs))
    for site in both:
        torch.testing.assert_close(
            one.at(site), two.at(site), atol=1e-5, rtol=1e-5, msg=lambda m, n=site.name: f"{n} {m}"
        )
    assert s.PATTERN in both


@pytest.mark.parametrize("kind", sorted(set(itertools.product(NORMS, POSITIONS)) - HELD.keys()))
def test_what_no_architecture_holds_is_refused(kind: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=rf"{kind[1]} positions with {kind[0]} cannot be exported"):
        export_huggingface(lively(*kind), tmp_path / "out")
    assert not (tmp_path / "out").exists()
