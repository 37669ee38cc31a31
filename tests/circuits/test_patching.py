"""Patching by position: against transformer-lens, against full passes with hooks, and what it refuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.circuits.patching import PatchReport
from bayesgeom.core import InvalidArgument, MissingSite, TaskMismatch, UnknownName
from bayesgeom.core.run import ALL_SITES, Site, Z
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import as_model, load
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import NATS_PER_BIT, kl_bits
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.bijection import Bijection
from tests.families import ATTENTION, each, saved
from tests.models.huggingface.test_sites import edited_logits, text
from tests.models.test_lens import bridge
from tests.shape_checks import ARE_ON
from tests.tasks.tokenizers import word_tokenizer

TASK = Bijection(n_values=7, n_pairs=3)
N_LAYERS, N_HEADS = 3, 2


@pytest.fixture(scope="module")
def model() -> Model:
    config = bayesgeom.TransformerConfig(
        d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=N_LAYERS, n_heads=N_HEADS, d_model=22, d_mlp=13
    )
    module = config.build(seed=0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3)  # so that every part matters
    return as_model(module)


def by_full_passes(model: Model, site: Site, head: int | None) -> np.ndarray:
    """The metric of every patched run, one full pass with a plain hook each, by layer and position."""
    clean, corrupted = TASK.sample_pair(5, seed=1)
    module, rows = model.module, torch.arange(5)
    found = np.zeros((N_LAYERS, TASK.n_pos))
    for layer in range(N_LAYERS):
        point, stored = model.point(site, layer), list[torch.Tensor]()
        with torch.no_grad():
            handle = point.register_forward_hook(lambda _module, _inputs, output: stored.append(output))  # noqa: B023
            module(clean.tokens)
            handle.remove()
            for position in range(TASK.n_pos):

                def put(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
                    edited = output.clone()
                    where = (rows, position) if head is None else (rows, position, head)  # noqa: B023
                    edited[where] = stored[0][where]  # noqa: B023
                    return edited

                handle = point.register_forward_hook(put)
                logits = module(corrupted.tokens)
                handle.remove()
                log_answers, _ = answer_log_probabilities(clean.at_scored(logits), clean)
                kl = kl_bits(clean.at_scored(clean.predictive), log_answers)[:, -1]
                found[layer, position] = kl.mean()
    return found


@pytest.mark.parametrize("name", ["resid_pre", "z", "attn_out", "resid_mid", "mlp_out", "resid_post", "q", "v"])
def test_numbers_are_those_of_full_passes_with_hooks(name: str, model: Model) -> None:
    (site,) = (own for own in ALL_SITES if own.name == name)
    report = bayesgeom.patch(model, *TASK.sample_pair(5, seed=1), site)
    np.testing.assert_allclose(report.patched_bits.value, by_full_passes(model, site, None), atol=1e-5)
    ends = float(report.clean_bits), float(report.corrupted_bits)
    assert report.recovered.value == pytest.approx((report.patched_bits.value - ends[1]) / (ends[0] - ends[1]))
    n_heads = N_HEADS if site.axes[-1] == "d_head" else 0
    assert report.recovered_by_head.value.shape == (N_LAYERS, n_heads, TASK.n_pos)
    if n_heads:
        expected = (by_full_passes(model, site, 1) - ends[1]) / (ends[0] - ends[1])
        np.testing.assert_allclose(report.recovered_by_head.value[:, 1], expected, atol=1e-5)


SITES = {
    "resid_pre": "get_act_patch_resid_pre",
    "attn_out": "get_act_patch_attn_out",
    "mlp_out": "get_act_patch_mlp_out",
    "z": "get_act_patch_attn_head_out_by_pos",
}


@pytest.mark.parametrize("name", each(ATTENTION))
def test_every_family_is_patched(name: str, tmp_path: Path) -> None:
    own, layer, position = load(saved(name, tmp_path / name)), 1, 6
    clean, corrupted = text(3, seed=1), text(3, seed=2)
    stored = own.run([clean], record=(Z,), n_recorded=3).at(Z)[layer]

    def put(z: torch.Tensor) -> torch.Tensor:
        return torch.cat([z[:, :position], stored[:, position : position + 1].to(z), z[:, position + 1 :]], dim=1)

    logits = edited_logits(own, corrupted, Z, layer, put)[:, -1].double()
    expected = (logits[:, 5] - logits[:, 8]).mean() / NATS_PER_BIT
    report = bayesgeom.patch(own, clean.tokens, corrupted.tokens, Z, answers=(5, 8))
    assert report.patched_bits.value[layer, position] == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_numbers_are_those_of_transformer_lens(family: str, tmp_path: Path) -> None:
    from transformer_lens import patching

    own, lens = load(saved(family, tmp_path / family)), bridge(tmp_path / family)
    clean, corrupted = torch.randint(0, 97, (2, 1, 11), generator=torch.Generator().manual_seed(0))
    _, cache = lens.run_with_cache(clean)
    for site, function in SITES.items():
        theirs = vars(patching)[function](lens, corrupted, cache, lambda logits: logits[0, -1, 5] - logits[0, -1, 8])
        report = bayesgeom.patch(own, clean, corrupted, site, answers=(5, 8))
        share = report.recovered_by_head if site == "z" else report.recovered
        apart = float(report.clean_bits) - float(report.corrupted_bits)
        found = (share.value * apart + float(report.corrupted_bits)) * NATS_PER_BIT
        expected = theirs.numpy() if site != "z" else theirs.permute(0, 2, 1).numpy()
        assert np.abs(found).max() > 0.1
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


def test_the_only_different_token_recovers_everything_at_the_embedding(model: Model, tmp_path: Path) -> None:
    clean, corrupted = [9, 1, 8, 2, 9], [9, 3, 8, 2, 9]
    report = bayesgeom.patch(model, clean, corrupted, answers=(1, 3))
    assert report.recovered.value[0] == pytest.approx([0, 1, 0, 0, 0], abs=1e-5)
    assert report.tokens[1] == "#1 | #3" and report.metric == "log_odds" and report.n == 1
    assert report.recovered.value[:, 0] == pytest.approx(0, abs=0)  # causal: nothing differs before
    report.save(tmp_path / "run")
    assert PatchReport.load(tmp_path / "run") == report
    (panel,) = report.panels()
    assert "L0, #1 | #3" in report.headlines()[0].label and panel.figure.data[0].x[1] == "2 #1 |<br>#3", "from 1"


def test_a_small_share_has_its_digits(model: Model) -> None:
    report = bayesgeom.patch(model, [9, 1, 8, 2, 9], [9, 3, 8, 2, 9], answers=(1, 3))
    small = replace(report, recovered=report.recovered.mapped(lambda own: np.where(own > 0.5, 0.0034, own / 1e4)))
    assert "recovers 0.3 % of" in str(small) and "at most 0.3 %" in small.panels()[0].title


def test_texts_need_no_task() -> None:
    config = bayesgeom.TransformerConfig(d_vocab=400, n_ctx=16, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
    tokenizer = word_tokenizer()
    model = as_model(config.build(seed=0), tokenizer)
    words = [tokenizer.decode([i]).strip() for i in range(40, 44)]
    texts = [f"{words[0]} {words[1]}", f"{words[0]} {words[2]}"], [f"{words[3]} {words[1]}", f"{words[1]} {words[2]}"]
    report = bayesgeom.patch(model, *texts, answers=[(words[0], words[3]), (words[0], words[1])])
    assert report.n == 2 and f"{words[0]} | {words[3]}" in report.tokens
    with pytest.raises(InvalidArgument, match=r"pair 0: clean has \d+ tokens.*corrupted \d+"):
        bayesgeom.patch(model, texts[0][0], f"{words[0]} {words[1]} {words[2]}", answers=(words[0], words[1]))
    with pytest.raises(InvalidArgument, match=r"answer '.*' is \d+ tokens"):
        bayesgeom.patch(model, *texts, answers=(f"{words[0]} {words[1]}", words[0]))


CLEAN, CORRUPTED = [9, 1, 8, 2, 9], [9, 3, 8, 2, 9]
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "no such site": (CLEAN, CORRUPTED, {"site": "resid_per"}, UnknownName, "resid_pre"),
    "a site without positions": (CLEAN, CORRUPTED, {"site": "pattern"}, InvalidArgument, "no activation at each"),
    "a site that the model lacks": (CLEAN, CORRUPTED, {"site": "state"}, MissingSite, "patching requires site 'state'"),
    "no answers": (CLEAN, CORRUPTED, {"answers": None}, InvalidArgument, "need answers="),
    "answers of more pairs": (CLEAN, CORRUPTED, {"answers": [(1, 3)] * 2}, InvalidArgument, "list of 1 of these"),
    "one answer": (CLEAN, CORRUPTED, {"answers": 3}, InvalidArgument, "must be .right, wrong."),
    "the same answer twice": (CLEAN, CORRUPTED, {"answers": (3, 3)}, InvalidArgument, "same token"),
    "an answer that is no id": (CLEAN, CORRUPTED, {"answers": (1, 99)}, InvalidArgument, "99 is no token.*0 … 13"),
    "answers as text": (CLEAN, CORRUPTED, {"answers": ("a", "b")}, InvalidArgument, "no tokenizer"),
    "texts": ("one", "two", {}, InvalidArgument, "no tokenizer for texts"),
    "other lengths": (CLEAN, CORRUPTED[:-1], {}, InvalidArgument, "clean has 5 tokens.*corrupted 4"),
    "pairs of several lengths": ([CLEAN, CLEAN[:3]], [CORRUPTED, CORRUPTED[:3]], {}, InvalidArgument, "pair 1 has 3"),
    "numbers of sequences": ([CLEAN, CLEAN], [CORRUPTED], {}, InvalidArgument, "clean has 2 sequences and corrupted 1"),
    "equal sequences": (CLEAN, CLEAN, {}, InvalidArgument, "same tokens"),
    "ids that the model lacks": ([77], [78], {}, TaskMismatch, "has 14 ids"),
    "too long": ([1] * 99, [2] * 99, {}, TaskMismatch, "99 tokens"),
    "no token": ([[]], CORRUPTED, {}, InvalidArgument, "clean must be a text"),
    "an empty list": ([], [], {}, InvalidArgument, "clean must be a text"),
    "two forms": (TASK.sample(1, seed=0), CORRUPTED, {}, InvalidArgument, "of one form"),
    "two tasks": (
        TASK.sample(2, seed=0),
        AssociativeRecall(n_keys=4, n_values=5, n_pairs=2).sample(2, seed=0),
        {"answers": None},
        InvalidArgument,
        "clean has 5 tokens|different answers",
    ),
}


@pytest.mark.skipif(ARE_ON, reason="checks of annotations would refuse first")
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_named(case: str, model: Model) -> None:
    clean, corrupted, given, kind, match = REFUSED[case]
    with pytest.raises(kind, match=match):
        bayesgeom.patch(model, clean, corrupted, **{"answers": (1, 3), **given})


TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "meta": lambda ids: ids.to("meta"),
    "sparse": torch.Tensor.to_sparse,
    "jagged": lambda ids: torch.nested.nested_tensor([*ids], layout=torch.jagged),
    "bool": torch.Tensor.bool,
    "float": torch.Tensor.float,
    "wide": lambda ids: [2**70, *ids[0, 1:].tolist()],
}


@pytest.mark.parametrize("kind", TENSORS)
def test_what_holds_no_ids_is_refused_and_names_which_argument(kind: str, model: Model) -> None:
    ids = TASK.sample(2, seed=0).tokens
    with pytest.raises(InvalidArgument, match=r"^corrupted must be"):
        bayesgeom.patch(model, ids, TENSORS[kind](ids), answers=(0, 1))
