"""Write strength beside a loop over heads: of a native model, and of a language model with grouped keys."""

import numpy as np
import pytest
import torch

from bayesgeom.ablations.batteries import every_mlp
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.core.run import ATTN_OUT, Z
from bayesgeom.interventions.run import fit_subspace
from bayesgeom.measurements.ablation import ablate
from bayesgeom.models.resolve import as_model
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.tasks.base import derived_seed
from examples.replication.writes import write_strength
from tests.interventions.test_huggingface import D_HEAD, N_HEADS, N_LAYERS, N, attached, kept, llama
from tests.interventions.worlds import TASK, lively


def test_it_is_a_loop_over_heads() -> None:
    model = lively()
    report = write_strength(model, subspace=fits.frame(), n=11)
    assert report.strength.value.shape == report.kl_increase_bits.value.shape == (2, 3) and report.n == 11
    trials = next(TASK.stream(11, seed=derived_seed(0, 6)))
    for layer, subspace in fit_subspace(model, None, fits.frame(), sites=InterventionSite(ATTN_OUT)).items():
        z = model.run([trials], record=(Z,), n_recorded=11).at(Z)[layer]
        output, basis = model.module.blocks[layer].attn.W_O.weight.detach(), subspace.basis.float()
        for head in range(3):
            written = [basis.T @ (output[:, 10 * head : 10 * head + 10] @ row) for row in z[:, :, head].flatten(0, 1)]
            expected = float(torch.stack([vector.norm() for vector in written]).mean())
            assert report.strength.value[layer, head] == pytest.approx(expected, rel=1e-4)
    assert -1 <= float(report.rank_correlation) <= 1 and "L0H0" in report.table()
    assert [own.type for own in report.plot().data].count("heatmap") == 2
    random = report.strength.baseline("random subspaces")
    assert random.high is not None and (random.high > random.value).all(), "the greatest of them has to be exceeded"
    by_draw = report.rank_correlation.baseline("strength in random subspaces")
    assert -1 <= float(by_draw.low) < float(by_draw.value) < float(by_draw.high) <= 1  # type: ignore[arg-type]
    ordered = sorted(report.strength.value.ravel(), reverse=True)
    assert float(report.largest_gap) == max(ordered[0] / ordered[1], ordered[1] / ordered[2]), "two of six heads"
    (low, high), known = report.strength.ends, ~report.strength.is_withheld
    assert known.sum() >= 4, "11 sequences are just enough for an interval"
    assert (low < report.strength.value)[known].all() and (report.strength.value < high)[known].all()
    assert report.headlines()[0].verdict == "undecided", "no interval, so no claim to beat a baseline"
    with pytest.raises(InvalidArgument, match="ablate with the battery 'heads'"):
        write_strength(model, n=11, ablation=ablate(model, None, every_mlp(model), n=11))


def test_it_is_a_loop_over_heads_of_a_language_model() -> None:
    hf = llama()
    model, battery = as_model(hf), ablate(hf, TASK, "heads", n=N)
    report = write_strength(model, TASK, n=N, ablation=battery)
    np.testing.assert_array_equal(report.kl_increase_bits.value, battery.kl_increase_bits_by_head)
    assert report.strength.value.shape == report.kl_increase_bits.value.shape == (N_LAYERS, N_HEADS) and report.n == N
    trials = next(TASK.stream(N, seed=derived_seed(0, 6)))
    for layer, subspace in fit_subspace(model, TASK, fits.frame(), sites=InterventionSite(ATTN_OUT)).items():
        z = trials.at_scored(kept(hf, trials, Z, layer)).flatten(0, 1)
        output, basis = hf.model.layers[layer].self_attn.o_proj.weight.detach(), subspace.basis.float()
        for head in range(N_HEADS):
            own = slice(D_HEAD * head, D_HEAD * (head + 1))
            written = [basis.T @ (output[:, own] @ row[own]) for row in z]
            expected = float(torch.stack([vector.norm() for vector in written]).mean())
            assert report.strength.value[layer, head] == pytest.approx(expected, rel=1e-4)


def test_it_needs_a_plain_write() -> None:
    with pytest.raises(
        MissingSite,
        match=r"write strength requires site 'W_O', which Olmo2ForCausalLM does not provide \(norm after W_O",
    ):
        write_strength(attached("olmo2"), TASK, fits.random(2), n=5)
