"""The sentence that a report opens with: what it says of each verdict, and the numbers in it."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import bayesgeom
from bayesgeom.core.run import RESID_PRE
from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions.design import Design
from bayesgeom.report.answer import rounded
from bayesgeom.report.sentences import opening_of
from bayesgeom.subspaces.base import InterventionSite
from tests.interventions.worlds import TASK, lively

FEW = Design("swap", n_random=2, n_matched=2, n_control=3, n_untrained=0, n_fit=51)


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
    ("verdict", "first"),
    [
        (Verdict.INVARIANT, "No: renaming"),
        (Verdict.INVARIANT_ON_AVERAGE, "On average not: renaming"),
        (Verdict.NOT_INVARIANT, "Yes: renaming"),
        (Verdict.UNDECIDED, "Undecided: renaming"),
    ],
)
def test_relabeling(verdict: Verdict, first: str) -> None:
    says, details = opening_of(replace(relabeled(), verdict=str(verdict)))
    assert says.startswith(first) and rounded(float(relabeled().kl_difference_bits)) in says
    assert details.startswith("KL after renaming")


@pytest.mark.parametrize(
    ("verdict", "first"),
    [
        (Verdict.TRANSPORTS, "Yes: "),
        (Verdict.IN_PART, "In part: "),
        (Verdict.NOT_SHOWN, "Not shown that "),
        (Verdict.NOT_IDENTIFIED, "Not identified: "),
        (Verdict.UNDECIDED, "Undecided: "),
    ],
)
def test_evidence_response(verdict: Verdict, first: str) -> None:
    own = replace(answered(), verdicts=(str(verdict),) * len(answered().ages))
    assert opening_of(own)[0].startswith(first)


def test_ablation_counts_what_matters_and_names_the_largest() -> None:
    own, effect, unknown = ablated(), ablated().kl_increase_bits, np.full(len(ablated().ablations), np.nan)
    name, bits = own.ablations[own.ranked()[0]], rounded(float(effect.value.max()))
    for apart, says in ((-1e-9, f"{len(unknown)} of {len(unknown)} heads matter."), (-9.0, "None of")):
        low = np.where(effect.value > 0, effect.value, 1.0) + apart
        changed = replace(own, kl_increase_bits=replace(effect, low=low, high=low + 9), n=24)
        found = opening_of(changed, is_gated=True)[0]
        assert found.startswith(says) and name in found and f"{bits} bits" in found
        few = opening_of(replace(changed, n=23), is_gated=True)[0]
        assert says == "None of" or "matter, each by its own interval." in few
    preview = replace(own, entropy_mae_increase_bits=replace(own.entropy_mae_increase_bits, value=unknown))
    assert opening_of(preview, is_gated=True)[0].startswith(f"A first-order preview: {name}")


@pytest.mark.parametrize(
    ("verdict", "first"),
    [
        (Verdict.CAUSAL, "Causal in layer"),
        (Verdict.INERT, "Inert in layer"),
        (Verdict.BY_CONSTRUCTION, "Shows nothing in layer"),
        (Verdict.NOT_IDENTIFIED, "Shows nothing in layer"),
        (Verdict.UNDECIDED, "Undecided: swapping random (2) in layer"),
    ],
)
def test_intervention(verdict: Verdict, first: str) -> None:
    own = swapped()
    found = replace(own, verdict_by_layer=tuple(str(verdict) if own else "" for own in own.verdict_by_layer))
    says, details = opening_of(found)
    assert says.startswith(first) and says.endswith(".") and details.endswith(".")
    assert ("Against causal: " in details) == (verdict == Verdict.UNDECIDED)
    if verdict == Verdict.CAUSAL:
        assert "to the donor's" in says and "random subspaces: at most" in says
