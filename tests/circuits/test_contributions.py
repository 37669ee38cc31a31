"""Direct contributions: they sum to the logits of every family, and tell what writes the answer from what is read."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayesgeom
from bayesgeom import tasks
from bayesgeom.circuits.direct import ContributionsReport
from bayesgeom.core.errors import InvalidArgument, MissingSite, TaskMismatch
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import as_model
from bayesgeom.tasks.base import Branch, derived_seed
from tests.circuits.planted import induction
from tests.families import each
from tests.models.huggingface.test_unembedding import attached
from tests.models.test_unembedding import encoder, read, transformer
from tests.supported import FAMILIES, tiny

TASK = tasks.Bijection(n_values=7, n_pairs=3)


def own_logits(model: Model, report: ContributionsReport, task: tasks.Bijection = TASK) -> np.ndarray:
    """The centered logits of the report's example in bits, from a plain pass."""
    first = next(task.stream(report.n, seed=derived_seed(0, Branch.TRIALS))).rows(slice(0, 1))
    with torch.no_grad():
        logits = model.logits(first)[0, report.example_position - 1, first.answers].double().numpy()
    return np.asarray((logits - logits.mean()) / np.log(2))


def assert_sums_to_the_logits(model: Model, tolerance: float = 1e-5) -> ContributionsReport:
    report = bayesgeom.contributions(model, TASK, n=9)
    cap = unembedding.soft_cap if (unembedding := model.unembedding()) is not None else None
    logits = own_logits(model, report)
    scale = np.abs(logits).max()
    np.testing.assert_allclose(report.example.sum(axis=0), report.example_logits, atol=1e-9 * scale)
    if cap is None:
        np.testing.assert_allclose(report.example_logits, logits, atol=tolerance * scale)
    return report


@pytest.mark.parametrize("kinds", [{}, {"tied": False, "positions": "rotary"}, {"norm": "layernorm"}])
def test_terms_of_native_transformers(kinds: dict[str, Any]) -> None:
    report = assert_sums_to_the_logits(as_model(transformer(**kinds)))
    assert ("positions" in report.components) == ("positions" not in kinds)
    # KL without a term, by hand: the model's logits minus the term plus its mean.
    assert float(report.kl_increase_bits.value[-1]) == pytest.approx(0, abs=1e-6)  # biases do not vary


@pytest.mark.parametrize("name", each(FAMILIES))
def test_terms_of_every_family(name: str) -> None:
    assert_sums_to_the_logits(attached(tiny(name)))
