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
from bayesgeom.report.findings import Finding, rounded, sentence
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
    name, bits = report.ablations[report.ranked()[0]], float(effect.value.max())
    for margin, n_raising in ((-1e-9, len(unknown)), (-9.0, 0)):
        low = np.where(effect.value > 0, effect.value, 1.0) + margin
        for n, each in ((24, Finding.SOME_MATTER), (23, Finding.SOME_MATTER_ALONE)):
            changed = replace(report, kl_increase_bits=replace(effect, low=low, high=low + 9), n=n)
            answer = changed.answer()
            assert answer.finding is (each if n_raising else Finding.NONE_MATTER)
            assert answer.values["name"] == name and float(answer.values["bits"]) == bits
            assert answer.values["count"] == len(unknown) and answer.values.get("raising", 0) == n_raising
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
