"""What the page on the comparison says of MLPs over the whole prefix, and of checks, is what committed reports hold."""

import numpy as np
import pytest

from bayesgeom.comparison.report import CONTEXT_FREE, ComparisonReport
from bayesgeom.probes.calibration import CalibrationReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Estimate
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.training.baselines import context_aware
from bayesgeom.training.compared import compared
from bayesgeom.training.recipes import recipe
from tests.pages import READINGS, named_rows, numbers, section


def test_an_mlp_over_the_prefix_accumulates_transports_in_part_and_does_not_bind() -> None:
    found = Diagnosis.load(READINGS / "mlp-prefix")["comparison"]
    assert isinstance(found, ComparisonReport)
    kl, free = found.kl_bits.value, found.kl_bits.baseline(CONTEXT_FREE).value
    text = " ".join(section("comparison.md", "Results").split())
    at = {checkpoint: index for index, checkpoint in enumerate(found.checkpoints)}
    for name, digits in (("bijection", 2), ("hmm", 1)):
        own, check = at[f"{name}-mlp-prefix"], at[f"{name}-mlp-prefix-seed1-x2"]
        assert f"`{name}-mlp-prefix` is {kl[own]:.4f} bits from the exact" in text
        assert f"({100 * found.share_closed.value[own]:.{digits}f} %" in text
        assert f"twice the budget it is {kl[check]:.4f}" in text
        expected = "not decided: one seed" if name == "bijection" else "not testable on this task"
        assert found.standings[own] == expected
    for name, observer in (("recall", "a bag of values"), ("repeats", "key membership")):
        own = at[f"{name}-mlp-prefix"]
        assert f"`{name}-mlp-prefix` is at {kl[own]:.2f} of {free[own]:.2f} bits" in text
        accuracy = found.accuracy_where_known[own]
        level = known_accuracy(name, "bag" if name == "recall" else "key_membership")
        assert f"names {100 * float(accuracy):.1f} %" in text and f"{observer} names {100 * level:.1f} %" in text
        assert found.verdicts[own] == "not realized"


def test_an_mlp_over_the_prefix_of_an_hmm_does_not_beat_one_symbol() -> None:
    found = Diagnosis.load(READINGS / "mlp-prefix")["comparison"]
    assert isinstance(found, ComparisonReport)
    own = found.kl_bits[found.checkpoints.index("hmm-mlp-prefix")]
    one = float(own.baseline("window_1_stationary").value)
    assert float(own.ends[0]) > one and np.isnan(found.memory_symbols.value).all()
    assert f"does not beat the observer of one symbol ({one:.4f})" in " ".join(
        section("comparison.md", "Results").split()
    )


def known_accuracy(row: str, observer: str) -> float:
    """The accuracy of a baseline where the answer is known, on the sequences of the report."""
    task, n_known, n_right = compared()[f"{row}-lstm"].task, 0, 0
    for block in task.stream(2_000, seed=derived_seed(0, Branch.TRIALS)):
        exact = block.at_scored(block.predictive)
        known = exact.amax(-1) > 1 - 1e-9
        text = context_aware(task, block)[observer].argmax(-1)
        n_known, n_right = n_known + int(known.sum()), n_right + int((known & (text == exact.argmax(-1))).sum())
    return n_right / n_known


def with_ends(own: Estimate) -> list[float]:
    return [value for value in (float(own), *map(float, own.ends)) if not np.isnan(value)]


def test_the_rows_of_checks_are_their_reports() -> None:
    found = Diagnosis.load(READINGS / "checks" / "comparison")["comparison"]
    assert isinstance(found, ComparisonReport)
    text = named_rows(section("comparison.md", "Checks at twice the budget"))
    assert len(text) == sum(found.is_check) == 3
    for name, (kl, at_budget, known, memory) in text.items():
        own = found.checkpoints.index(name)
        usual = float(found.kl_bits.value[found.checkpoints.index(name.removesuffix("-seed1-x2"))])
        stored = [with_ends(of[own]) for of in (found.kl_bits, found.accuracy_where_known, found.memory_symbols)]
        for cell, values in zip((kl, known, memory, at_budget), (*stored, [usual]), strict=True):
            np.testing.assert_allclose(numbers(cell), values, rtol=6e-4)
        diagnosis = Diagnosis.load(READINGS / "checks" / name)
        assert float(diagnosis[CalibrationReport].kl_bits) == pytest.approx(float(found.kl_bits.value[own]), rel=1e-6)
        assert diagnosis.provenance["model"]["weights_hash"] == found.weights_hashes[own]
        assert recipe(name).name == name
