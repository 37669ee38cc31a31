"""The criteria of the published ablation claims, on planted effects with known answers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bayesgeom.ablations.criteria import (
    Effects,
    blocks_matter,
    key_overlap_finds_it,
    late_heads_are_negligible,
    one_head_is_unique,
)
from bayesgeom.ablations.report import AblationReport
from bayesgeom.results.diagnosis import Diagnosis
from tests.pages import READINGS

OWN_KL = 1e-3


def heads(by_layer: Sequence[Sequence[float]], *, spread: float = 0.1, without_head: float | None = None) -> Effects:
    """Single heads with these KL increases, and intervals of ± `spread` times the increase."""
    flat = np.array([value for layer in by_layer for value in layer])
    labels = [f"L{i}H{j}" for i, layer in enumerate(by_layer) for j in range(len(layer))]
    lo, hi = flat - spread * np.abs(flat), flat + spread * np.abs(flat)
    ratio = 1 + flat / OWN_KL if without_head is None else np.full_like(flat, without_head)
    return Effects(
        labels=labels, layer=np.repeat(np.arange(len(by_layer)), [len(layer) for layer in by_layer]),
        kl_increase_bits=flat, lo=lo, hi=hi, kl_ratio_lo=ratio, kl_ratio_hi=ratio,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("effects", "verdict"),
    [
        (heads([[0.3, 0.05, 0.01], [0.09, 0.0, 0.0]]), "supported"),
        (heads([[0.11, 0.10, 0.10], [0.05, 0.0, 0.0]]), "contradicted"),  # six heads share the load: ratio 1.1
        (heads([[0.05, 0.01, 0.0], [0.3, 0.0, 0.0]]), "contradicted"),  # unique, in another layer
        (heads([[0.3, 0.05, 0.01], [0.09, 0.0, 0.0]], spread=0.6), "not decided"),
        (heads([[0.3, 0.14, 0.01], [0.09, 0.0, 0.0]]), "not decided"),  # 2.14 times, and its interval holds 2
        (heads([[0.3, 0.05, 0.01], [0.09, 0.0, 0.0]], without_head=3.0), "contradicted"),  # unique, not catastrophic
        (heads([[0.3], []]), "not tested"),
    ],
)
def test_a_unique_head_stands_out_in_layer_0(effects: Effects, verdict: str) -> None:
    found = one_head_is_unique(effects)
    assert (found.id, found.verdict) == ("A2", verdict), found.reason
    if verdict == "supported":
        assert "L0H0 0.3000 bits [0.2700 … 0.3300], 3.33 times the second, L1H0" in found.reason


def test_a_negative_or_zero_second_head_does_not_break_the_ratio() -> None:
    assert one_head_is_unique(heads([[0.3, 0.0, -0.01], [0.0, 0.0, 0.0]])).verdict == "supported"


@pytest.mark.parametrize(
    ("ratio", "spread", "verdict"),
    [((12.0, 300.0, 15.0), 0.1, "supported"), ((12.0, 300.0, 8.0), 0.1, "contradicted"),
     ((12.0, 300.0, 10.5), 0.1, "not decided"), ((), 0.1, "not tested"), ((12.0, 15.0), np.nan, "not decided")],
)  # fmt: skip
def test_every_block_must_cost_a_factor_of_ten(ratio: tuple[float, ...], spread: float, verdict: str) -> None:
    found = np.array(ratio)
    labels = [f"L{i} block" for i in range(len(ratio))]
    assert blocks_matter(labels, found, found * (1 - spread), found * (1 + spread)).verdict == verdict


def test_a_missing_interval_supports_nothing_and_hides_no_contradiction() -> None:
    ratio, lo, hi = np.array([300.0, 12.0, 8.0]), np.array([np.nan, 11.0, 7.0]), np.array([np.nan, 13.0, 9.0])
    labels = ["L0 block", "L1 block", "L2 block"]
    assert blocks_matter(labels, ratio, lo, hi).verdict == "contradicted"
    found = blocks_matter(labels[:2], ratio[:2], lo[:2], hi[:2])
    assert found.verdict == "not decided" and found.reason == "no interval for 1 of 2, the first L0 block"
    one = heads([[0.3, 0.05, 0.01], [0.09, 0.0, 0.0]])
    holed = replace(one, lo=np.where(one.layer == 0, np.nan, one.lo))
    for open_one in (
        one_head_is_unique(holed),
        key_overlap_finds_it(holed, ("L0H0 (a)",), own_kl_bits=OWN_KL),
        late_heads_are_negligible(
            replace(one, hi=np.full(6, np.nan), lo=np.full(6, np.nan)), n_layers=2, own_kl_bits=1
        ),
    ):
        assert open_one.verdict == "not decided" and open_one.reason.startswith("no interval for 3 of")


def test_an_ablation_that_changes_no_logit_has_exactly_no_effect() -> None:
    report = Diagnosis.load(READINGS / "bijection-v20" / "ablation")["ablation"]
    assert isinstance(report, AblationReport)
    late = [i for i, kind in enumerate(report.kinds) if kind == "head" and report.layer[i] >= 3]
    inert = np.isin(np.arange(len(report.kinds)), late)
    without = {
        f"{name}_{end}": np.where(inert, np.nan, vars(report)[f"{name}_{end}"])
        for name in ("damage_bits", "kl_ratio")
        for end in ("lo", "hi")
    }
    unknown, exact = replace(report, **without), replace(report, **without, inert=inert)
    assert unknown.criteria()[2].verdict == "not decided", unknown.criteria()[2].reason
    assert exact.criteria()[2].verdict == "supported", exact.criteria()[2].reason


@pytest.mark.parametrize(
    ("late", "verdict"),
    [((0.0004, 0.0, -0.0001), "supported"), ((0.0004, 0.02, 0.0), "contradicted"), ((0.0005, 0.0, 0.0), "not decided")],
)
def test_late_heads_are_measured_by_the_models_own_kl(late: tuple[float, ...], verdict: str) -> None:
    effects = heads([[0.3, 0.05, 0.01], [0.09, 0.0, 0.0], late])
    found = late_heads_are_negligible(effects, n_layers=3, own_kl_bits=OWN_KL)
    assert found.verdict == verdict, found.reason
    assert "last 1 of 3 layers" in found.rule


@pytest.mark.parametrize(
    ("picks", "verdict"),
    [(("L0H0 (a)", "L0H0 (b)"), "supported"), (("L0H2 (a)", "L0H1 (b)"), "contradicted"),
     (("L0H0 (a)", "L0H1 (b)"), "not decided"), (("",), "not tested"),
     (("L0K0 (a key head that several heads share)",), "not tested")],
)  # fmt: skip
def test_key_overlap_must_choose_the_head_that_ablation_chooses(picks: tuple[str, ...], verdict: str) -> None:
    found = key_overlap_finds_it(heads([[0.3, 0.05, 0.01], [0.9, 0.0, 0.0]]), picks, own_kl_bits=OWN_KL)
    assert found.verdict == verdict, found.reason
    for without_one in ([[0.3, 0.29, 0.01]], [[4e-4, 1e-5, 0.0]]):
        none = key_overlap_finds_it(heads(without_one), ("L0H0 (a)",), own_kl_bits=OWN_KL)
        assert none.verdict == "not decided", "ablation singles out no head of layer 0, or none that matters"


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("bijection-v20", ("supported", "contradicted", "contradicted", "not decided")),
        ("bijection-v20-repeats", ("supported", "supported", "contradicted", "not decided")),
        ("bijection-v20-llama", ("contradicted", "contradicted", "contradicted", "not tested")),
        ("hmm-s5", ("contradicted", "contradicted", "contradicted", "contradicted")),
    ],
)
def test_the_committed_reports_are_decided(name: str, verdicts: tuple[str, ...]) -> None:
    report = Diagnosis.load(READINGS / name / "ablation")["ablation"]
    assert isinstance(report, AblationReport)
    found = report.criteria()
    assert [c.id for c in found] == ["A1", "A2", "A3", "A5"]
    assert tuple(c.verdict for c in found) == verdicts, [str(c) for c in found]
