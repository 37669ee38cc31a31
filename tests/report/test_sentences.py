"""What a report opens with: the code and the numbers of each verdict, and the sentence that the renderer makes."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import bayesgeom
from bayesgeom.core.run import RESID_PRE
from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions.design import Design
from bayesgeom.report.estimate import UNTRAINED, Estimate
from bayesgeom.report.findings import Finding, is_stated, rounded, sentence
from bayesgeom.report.sentences import opening_of
from bayesgeom.subspaces.base import InterventionSite
from tests.interventions.worlds import TASK, lively

FEW = Design("swap", n_random=2, n_matched=2, n_control=3, n_untrained=2, n_fit=51)


@cache
def relabeled() -> Any:
    return bayesgeom.relabeling_invariance(lively(), TASK, n=5)


@cache
def answered() -> Any:
    return bayesgeom.evidence_response(lively(), TASK, n=5)


@cache
def ablated() -> Any:
    return bayesgeom.ablate(lively(), TASK, "heads", n=19)


@cache
def swapped() -> Any:
    return bayesgeom.intervene(lively(), TASK, "random:2", kind=FEW, sites=InterventionSite(RESID_PRE, (1,)), n=17)


@pytest.mark.parametrize(
    ("verdict", "finding"),
    [
        (Verdict.INVARIANT, Finding.NAMES_DO_NOT_MATTER),
        (Verdict.INVARIANT_ON_AVERAGE, Finding.NAMES_MATTER_IN_SINGLE_SEQUENCES),
        (Verdict.NOT_INVARIANT, Finding.NAMES_MATTER),
        (Verdict.UNDECIDED, Finding.NAMES_UNDECIDED),
    ],
)
def test_relabeling(verdict: Verdict, finding: Finding) -> None:
    answer = replace(relabeled(), verdict=str(verdict)).answer()
    assert answer.finding is finding and float(answer.values["bits"]) == float(relabeled().kl_difference_bits)
    assert answer.values["bound"] == relabeled().bound_bits
    assert ("size" in answer.values) == (verdict == Verdict.INVARIANT_ON_AVERAGE)


@pytest.mark.parametrize(
    ("verdict", "finding"),
    [
        (Verdict.TRANSPORTS, Finding.TRANSPORTS),
        (Verdict.IN_PART, Finding.TRANSPORTS_IN_PART),
        (Verdict.NOT_SHOWN, Finding.TRANSPORT_NOT_SHOWN),
        (Verdict.NOT_IDENTIFIED, Finding.TRANSPORT_NOT_IDENTIFIED),
        (Verdict.UNDECIDED, Finding.TRANSPORT_UNDECIDED),
    ],
)
def test_evidence_response(verdict: Verdict, finding: Finding) -> None:
    report = replace(answered(), verdicts=(str(verdict),) * len(answered().ages))
    answer, is_known = report.answer(), verdict != Verdict.NOT_IDENTIFIED
    at = max(i for i, age in enumerate(report.ages) if int(age) <= 10) if is_known else 0
    assert answer.finding is finding
    assert ("slope" in answer.values) == is_known
    assert answer.values["older"] == pytest.approx(int(report.ages[at]) or np.nan, nan_ok=True)
    single = replace(report, is_single=True).answer()
    assert "older" not in single.values and ("all evidence" in sentence(single)) == (at == 0)


def test_ablation_counts_what_matters_and_names_the_largest() -> None:
    report, effect, unknown = ablated(), ablated().kl_increase_bits, np.full(len(ablated().ablations), np.nan)
    name, least = report.ablations[report.ranked()[0]], 0.001 * report.uniform_kl_bits  # a thousandth of the gap
    before = replace(report.unablated_kl_bits, value=np.array(least / 2))
    for level, n_mattering in ((1.01 * least, len(unknown)), (0.99 * least, 0)):
        known = level + 1e-9 * effect.value
        raised = replace(effect, value=known, low=known, high=known)
        answer = replace(report, kl_increase_bits=raised, unablated_kl_bits=before).answer()
        assert answer.finding is (Finding.SOME_MATTER if n_mattering else Finding.NONE_MATTER)
        assert answer.values["name"] == name and float(answer.values["bits"]) == known.max()
        assert answer.values["count"] == len(unknown) and answer.values.get("mattering", 0) == n_mattering
    preview = replace(report, entropy_mae_increase_bits=replace(report.entropy_mae_increase_bits, value=unknown))
    assert preview.answer().finding is Finding.ABLATION_PREVIEW


@pytest.mark.parametrize(
    ("verdict", "finding"),
    [
        (Verdict.CAUSAL, Finding.CAUSAL),
        (Verdict.MOVES, Finding.MOVES),
        (Verdict.INERT, Finding.INERT),
        (Verdict.BY_CONSTRUCTION, Finding.SHOWS_NOTHING),
        (Verdict.NOT_IDENTIFIED, Finding.SHOWS_NOTHING),
        (Verdict.UNDECIDED, Finding.MOVEMENT_UNDECIDED),
    ],
)
def test_intervention(verdict: Verdict, finding: Finding) -> None:
    report = swapped()
    changed = replace(report, verdict_by_layer=tuple(verdict * bool(known) for known in report.verdict_by_layer))
    answer = changed.answer()
    assert answer.finding is finding and answer.values.get("layers", [1]) == [1]
    against = {"causal": report.against_causal[1], "inert": report.against_inert[1]}
    expected = {Verdict.UNDECIDED: against, Verdict.CAUSAL: {}, Verdict.MOVES: {}, Verdict.INERT: {}}
    assert answer.against == expected.get(verdict, {"causal": report.against_causal[1]})
    if verdict == Verdict.CAUSAL:
        effect, later = answer.values["effect"], answer.values["later"]
        assert isinstance(effect, Estimate) and float(effect) == report.movement.value[1, 0]
        assert isinstance(later, Estimate) and float(later) == report.indirect_movement.value[1, 0]
        assert answer.values["untrained"] == max(0.0, report.indirect_movement.baseline(UNTRAINED).high[1, 0])
        assert "random_most" in answer.values
    says, details = opening_of(changed)
    assert says.endswith(".") and details.endswith(".")
    assert ("Against causal: " in details) == (verdict == Verdict.UNDECIDED)


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ((0.5, 1.9), "beyond, it is 1.2 times that within."),
        ((0.007, 2394.0), "it is 0.0011 bits within and 0.94 bits beyond."),
        ((np.nan, np.nan), "it is 0.0011 bits within and 0.94 bits beyond."),
    ],
)
def test_a_ratio_is_stated_where_the_ends_of_its_interval_agree(ends: tuple[float, float], says: str) -> None:
    ratio, change = Estimate.of(1.2, ends), Estimate.of(0.2, (-0.1, 0.9))
    known: dict[str, Any] = {"ratio": ratio} if is_stated(ratio) else {"within": 0.0011, "beyond": 0.94}
    text = sentence(Finding.LENGTH_OF_ONE.of(verdict="undecided", change=change, **known))
    assert text == f"Undecided: KL changes by −0.1 … 0.9 bits where the training length ends; {says}"


def test_an_undecided_comparison_has_intervals_and_no_point() -> None:
    differences = {"b − a": Estimate.of(0.2, (-0.1, 0.5)), "c − a": Estimate.of(3.0, (2.0, 4.0))}
    text = sentence(Finding.CLOSEST_UNDECIDED.of(row="KL(exact ‖ model)", unit="bits", differences=differences))
    says = "Undecided which is closest to exact: KL (bits) differs by −0.1 … 0.5 (b − a), 2 … 4 (c − a)."
    assert text == says


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (Estimate.of(0.0034, (0.0012, 0.62)), "0.3 % [0.1 % … 62 %]"),
        (Estimate.of(0.0, (0.0, 0.0)), "0 % [0 % … 0 %]"),
        (Estimate.of(0.00002), "0.002 %"),
    ],
)
def test_a_share_of_a_patch_is_0_only_where_it_is(share: Estimate, says: str) -> None:
    text = sentence(Finding.CARRIES_MOST.of(token="a", layer=2, site="z", share=share))
    assert text == f"“a” in layer 2 carries most: patching z there recovers {says} of the difference."


def test_a_monitor_without_an_exact_posterior_says_so() -> None:
    text = sentence(Finding.MONITORED.of(step=100, bits=np.nan, uniform=np.nan, events=["repaired"]))
    assert text == "At step 100 KL is not known. Events: repaired."


def test_the_sentence_of_a_movement_has_its_intervals_and_the_level_that_it_is_compared_with() -> None:
    values: dict[str, Any] = {"layer": 1, "edit": "swap", "subspace": "LEACE (belief)", "quantity": "belief"}
    values |= {"effect": Estimate.of(0.6, (0.5, 0.7)), "random_most": 0.04}
    values |= {"later": Estimate.of(0.3, (0.25, 0.35)), "untrained": 0.05, "layers": [1, 2]}
    moves = "swapping LEACE (belief) in layer 1 moves the answer"
    rest = "of the way to the donor's belief (random subspaces: at most 4 %), and 30 % [25, 35] without the direct path"
    untrained = "(untrained networks: up to 5 %)."
    causal = f"Causal in layers 1 and 2: {moves} 60 % [50, 70] {rest} {untrained}"
    assert sentence(Finding.CAUSAL.of(**values)) == causal
    undecided = Finding.MOVEMENT_UNDECIDED.of({"causal": "a", "inert": "b"}, **values)
    ranges = rest.replace("30 % [25, 35]", "25 % to 35 %")
    assert sentence(undecided).split("\n")[0] == f"Undecided: {moves} 50 % to 70 % {ranges} {untrained}"
    unknown = values | {"untrained": np.nan}
    text = f"Moves the answer in layers 1 and 2, not compared with untrained networks: {moves} 60 % [50, 70] {rest}."
    assert sentence(Finding.MOVES.of(**unknown)) == text
    at_z = Finding.CAUSAL.of(**values | {"later": Estimate.of(np.nan)})
    assert sentence(at_z) == causal.replace(", and 30 % [25, 35] without the direct path", "")


def test_the_sentence_has_the_numbers_and_what_is_missing_is_left_out() -> None:
    values: dict[str, Any] = {"model": "a", "row": "KL(exact ‖ model)", "value": 0.25, "others": {"b": 1 / 3, "c": 2.0}}
    says = "a is closest to exact: KL 0.25 bits, against 0.333 of b, 2 of c."
    assert sentence(Finding.CLOSEST.of(**values, unit="bits")) == says
    assert sentence(Finding.CLOSEST.of(**values, unit="")) == says.replace(" bits", "")
    steps = sentence(Finding.MOVEMENT.of(verdict="values later", routing=1200.0, values=np.nan))
    assert steps == "Values later: patterns are stable from step 1,200, values not before the last snapshot."
    assert sentence(Finding.CLOSEST.of(**{**values, "value": np.nan}, unit="bits")) == ""
    renamed, details = opening_of(replace(relabeled(), verdict=str(Verdict.NOT_INVARIANT)))
    assert renamed.startswith("Yes: renaming") and rounded(float(relabeled().kl_difference_bits)) in renamed
    assert details.startswith("KL after renaming")
