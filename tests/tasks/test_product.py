"""Products against their factors, each on its own; by hand, what is predicted of one factor alone."""

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import BayesGeomError
from bayesgeom.tasks.base import task_from_config, task_from_text
from bayesgeom.tasks.markov import MarkovProcess
from bayesgeom.tasks.process import Mess3, Process
from bayesgeom.tasks.product import Product
from tests.tasks.test_process import random_tensors

A, B = Mess3(x=0.05, a=0.85, length=7), Process(random_tensors(2, 5), initial=(0.5, 0.5, 0.0, 0.0, 0.0), length=7)


def outer(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first[..., :, None] * second[..., None, :]).flatten(-2)


@pytest.mark.parametrize("factors", [(A, B), (Product(A, "z1r", length=7), B)], ids=["two", "three"])
def test_belief_and_predictive_are_outer_products_of_the_factors(factors: tuple[MarkovProcess, MarkovProcess]) -> None:
    task = Product(*factors, length=7)
    trials = task.sample(11, seed=0)
    symbols = torch.cat([trials.tokens, trials.labels[:, -1:]], dim=1)
    a, b = (
        factor.trials(own) for factor, own in zip(factors, (symbols // B.d_vocab, symbols % B.d_vocab), strict=True)
    )
    torch.testing.assert_close(trials.belief, outer(a.belief, b.belief), atol=1e-13, rtol=0)
    torch.testing.assert_close(trials.predictive, outer(a.predictive, b.predictive), atol=1e-13, rtol=0)
    unread = [own.baseline_predictives(part)["prior"] for own, part in zip(factors, (a, b), strict=True)]
    baselines = task.baseline_predictives(trials)
    torch.testing.assert_close(baselines["only_a"], outer(a.predictive, unread[1]), atol=1e-13, rtol=0)
    torch.testing.assert_close(baselines["only_b"], outer(unread[0], b.predictive), atol=1e-13, rtol=0)


def test_a_factor_goes_by_its_name_or_its_task() -> None:
    made = Product(Mess3(x=0.05), Process("rrxor", length=3), length=5)
    assert made == Product("mess3:x=0.05", "rrxor", length=5)
    assert made == task_from_text("product:a=mess3:x=0.05,b=rrxor,length=5")
    assert task_from_config(made.config()) == made and [own.length for own in made.factors] == [5, 5]
    assert made.token_labels() == ["x0x0", "x0x1", "x1x0", "x1x1", "x2x0", "x2x1"]
    assert Mess3().factors == () and made.mixing_time == max(own.mixing_time for own in made.factors) == np.inf


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("product:a=dice", r"a of a product must be a process, .*, got dice\."),
        ("product:b=evidence", r"b of a product must be a process, .*, got evidence\."),
        ("product:a=5", r"a must be MarkovProcess .* str, got 5"),
        ("product:a=rrxr", r"no task named 'rrxr'.*Perhaps you meant 'rrxor'"),
        ("product:length=0", "at least 1, got 0"),
    ],
)
def test_refusals(text: str, told: str) -> None:
    with pytest.raises(BayesGeomError, match=told):
        task_from_text(text)
