"""Interventions and ablations on texts with labels: a planted direction, and texts of unequal length."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom import InterventionSite, ablations, subspaces
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import RESID_POST, RESID_PRE, Trials
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import reference_of
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.models.native.wrapped import LlamaConfig
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.models.resolve import as_model
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import LabeledTask, TextTask, candidates
from bayesgeom.tasks.labels import labeled_texts
from tests.families import lively
from tests.tasks.tokenizers import word_tokenizer

WORDS = candidates("words")[:40]
D_VOCAB, WIDTH = len(word_tokenizer()), 13
FEW = Design(n_control=8, n_untrained=0)


def task_of(texts: Sequence[str]) -> TextTask:
    """The label is that of the last word: which half of the list it is from."""
    labels = ["A" if text.split()[-1] in WORDS[::2] else "B" for text in texts]
    return labeled_texts(texts, labels)


@pytest.fixture(scope="module")
def task() -> TextTask:
    rng = np.random.default_rng(0)
    return task_of([f"{a} {b}" for b in WORDS for a in rng.choice(WORDS, size=4, replace=False)])


@pytest.fixture(scope="module")
def planted() -> Model:
    """Coordinate 0 of an embedding holds the label, and the output reads it; nothing reads its copy in coordinate 1."""
    config = TransformerConfig(
        d_vocab=D_VOCAB, n_ctx=9, n_layers=2, n_heads=1, d_model=WIDTH, d_mlp=7, positions="none", tied=False
    )
    module, tokenizer = Transformer(config, seed=0), word_tokenizer()
    with torch.no_grad():
        for parameter in module.blocks.parameters():
            parameter.zero_()
        module.embed.weight.normal_(generator=torch.Generator().manual_seed(0))
        for at, word in enumerate(WORDS):
            module.embed.weight[tokenizer.convert_tokens_to_ids(word), :2] = 2.0 - 4 * (at % 2)
        module.unembed.weight.zero_()
        for sign, answer in ((1, "A"), (-1, "B")):
            module.unembed.weight[tokenizer.convert_tokens_to_ids(answer), 0] = sign
    return as_model(module, tokenizer)


def column(*indices: int) -> Any:
    return subspaces.basis(torch.eye(WIDTH)[:, list(indices)])


def test_the_planted_direction_moves_the_logit_difference_and_its_unread_copy_does_not(
    planted: Model, task: TextTask
) -> None:
    place = InterventionSite(layers=(1,), positions="scored")
    for fit, share in ((column(0), 1.0), (column(1), 0.0), (subspaces.units(2, "log_odds:0"), 1.0)):
        report = bayesgeom.intervene(planted, task, fit, kind=FEW, sites=place, n=64)
        assert report.movement.ceiling[1, 0] == pytest.approx(1.0, abs=1e-4)
        assert report.movement.value[1, 0] == pytest.approx(share, abs=0.1)
    chosen = bayesgeom.fit_subspace(planted, task, "units:2,belief")[1]
    assert chosen.basis.nonzero()[:, 0].tolist() == [0, 1]


def test_leace_erases_the_label_of_texts_that_did_not_fit(planted: Model, task: TextTask) -> None:
    diagnosis = bayesgeom.diagnose(planted, task, probes=["belief_readout"], n_untrained=0)
    assert diagnosis["belief_readout"].estimate("r2").value.min() > 0.99
    erased = bayesgeom.intervene(planted, task, "leace:belief", kind=replace(FEW, kind="remove"), n=64)
    assert erased.kl_increase_bits.value[:, 0] == pytest.approx(0.94, abs=0.05)  # from nearly certain to a coin
    with pytest.raises(InvalidArgument, match="a task that draws new sequences"):
        bayesgeom.erase_onwards(planted, task, "belief", n=8)


@pytest.fixture(scope="module")
def llama() -> Model:
    sizes = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_model": 24, "d_mlp": 29}
    hf = lively(LlamaConfig(d_vocab=D_VOCAB, n_ctx=16, **sizes).build(seed=0).whole)
    return as_model(hf.eval(), word_tokenizer())


@pytest.fixture(scope="module")
def ragged() -> TextTask:
    return task_of(
        [" ".join([*[a] * (1 + at % 3), b]) for at, b in enumerate(WORDS) for a in WORDS[at % 7 : at % 7 + 2]]
    )


def bound(task: TextTask) -> LabeledTask:
    own = task.bind(word_tokenizer(), d_vocab=D_VOCAB)
    assert isinstance(own, LabeledTask)
    return own


def score(trials: Trials, logits: torch.Tensor) -> torch.Tensor:
    return kl_bits(trials.at_scored(trials.predictive), answer_log_probabilities(logits, trials)[0])[:, 0]


def test_donors_of_texts_of_unequal_length_are_aligned_at_the_ends(llama: Model, ragged: TextTask) -> None:
    own, donors = bound(ragged).sample_pair(9, seed=3)
    assert len(own.ends().unique()) > 1 and not torch.equal(own.ends(), donors.ends())
    loop = PlainLoop(llama)
    aligned = reference_of(loop, own, donors, {}).donor(RESID_PRE, 1)
    stored = loop.baseline(donors).stored[RESID_PRE, 1]
    for row, (end, other) in enumerate(zip(own.ends(), donors.ends(), strict=True)):
        assert torch.equal(aligned[row, end - 1], stored[row, other - 1])


def test_a_swap_in_the_last_layer_gives_the_donors_answer(llama: Model, ragged: TextTask) -> None:
    site = InterventionSite(RESID_POST, layers=(1,))
    report = bayesgeom.intervene(llama, ragged, "covariance:belief", kind=FEW, sites=site, n=24)
    assert report.movement.ceiling[1, 0] == pytest.approx(1.0, abs=1e-4)
    assert report.n == 24


def test_ablations_are_scored_by_the_label(llama: Model, ragged: TextTask) -> None:
    report = bayesgeom.ablate(llama, ragged, "mlps")
    trials = bound(ragged).in_order()
    assert report.n == len(trials) == 80
    with torch.no_grad():
        expected = score(trials, llama.logits(trials)).mean()
    assert float(report.unablated_kl_bits) == pytest.approx(float(expected), abs=1e-4)


def test_neurons_are_chosen_on_half_of_the_texts_and_scored_on_the_others(llama: Model, ragged: TextTask) -> None:
    _, others = bound(ragged).halves()
    report = bayesgeom.ablate(llama, ragged, "neurons")
    assert report.n == len(others.in_order()) == 40 and set(report.kinds) == {"neuron"}
    with torch.no_grad():
        expected = score(others.in_order(), llama.logits(others.in_order())).mean()
    assert float(report.unablated_kl_bits) == pytest.approx(float(expected), abs=1e-4)
    preview = ablations.attribution_preview(llama, ragged, "neurons", exact=report)
    assert preview.n == report.n and preview.ablations == report.ablations


def test_too_few_texts_to_hold_some_out(llama: Model) -> None:
    few = [f"{a} {b}" for b in WORDS[:4] for a in WORDS[:1]]
    with pytest.raises(InvalidArgument, match="pass at least 6, got 4 texts"):
        bayesgeom.intervene(llama, task_of(few), "covariance:belief", kind=FEW)
    more = [f"{a} {b}" for b in WORDS[:6] for a in WORDS[:1]]
    assert bayesgeom.intervene(llama, task_of(more), "covariance:belief", kind=FEW).n == 3


@pytest.mark.parametrize(
    "given",
    [
        {"subspace": "random:2"},
        {"subspace": "trained_swap:1,belief"},
        {"kind": "remove", "subspace": "leace:belief", "sites": [InterventionSite(layers=(0, 1))]},
    ],
    ids=str,
)
def test_what_needs_one_length_says_so(given: dict[str, Any], llama: Model, ragged: TextTask) -> None:
    with pytest.raises(InvalidArgument, match=r"sequences of one length; 80 texts .* have 3 … 5 tokens"):
        bayesgeom.intervene(llama, ragged, n=8, **given)
