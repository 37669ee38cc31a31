"""One rule per claim: what `bayesgeom ablate` applies to one checkpoint is what the claims file states."""

import re

import pytest

from bayesgeom.ablations.report import AblationReport
from bayesgeom.report.diagnosis import Diagnosis
from examples.replication import criteria
from examples.replication.claims.claim import Condition, is_met
from examples.replication.claims.loading import load
from examples.replication.claims.reading import values_of
from tests.structure.source import ROOT

WORDS = {"half": 0.5, "one half": 0.5, "1 %": 0.01}
CHECKPOINTS = {"v20": "bijection-v20", "repeats": "bijection-v20-repeats", "hmm": "hmm-s5"}


@pytest.mark.parametrize(
    ("claim_id", "sentence", "constant"),
    [
        ("A1", r"lies above (\d+) times the unablated error", criteria.BLOCK_TIMES),
        ("A2", r"at least (\d+) times the second largest of the whole network", criteria.UNIQUE_RATIO),
        ("A2", r"lies above (\d+) times the unablated KL", criteria.CATASTROPHIC_TIMES),
        ("A2", r"above (half) of the elimination of all of layer 0's attention", criteria.LAYER_SHARE),
        ("A3", r"below (1 %) of the uniform predictor's KL", criteria.UNIFORM_SHARE),
        ("A5", r"it lies below (one half)", criteria.OVERLAP_SHARE),
        *((claim_id, r"(\d+) sequences", criteria.LEAST_SEQUENCES) for claim_id in ("A1", "A2", "A3", "A4", "A5")),
    ],
)
def test_the_claims_state_the_thresholds_that_the_command_applies(
    claim_id: str, sentence: str, constant: float
) -> None:
    found = re.findall(sentence, load()[claim_id].criterion)
    assert [WORDS.get(x) or float(x) for x in found] == [constant]
    assert f"{criteria.MODE} ablation" in load()[claim_id].criterion


def test_the_conditions_hold_the_same_thresholds() -> None:
    def times(claim_id: str, than: str) -> set[float | None]:
        return {c.times for c in load()[claim_id].conditions if isinstance(c.than, str) and c.than.endswith(than)}

    assert times("A1", "_error") == {criteria.BLOCK_TIMES}
    assert times("A2", "_kl") == {criteria.CATASTROPHIC_TIMES}
    assert times("A2", "_layer") == {criteria.LAYER_SHARE}
    ratios = [c for c in load()["A2"].conditions if c.number.endswith("_ratio")]
    assert ratios and {(c.than, c.side) for c in ratios} == {(criteria.UNIQUE_RATIO, "above")}, "they never contradict"
    choice = load()["A5"]
    assert choice.supported_if == (Condition(number="first", side="above", than="top"),)
    below = Condition(number="first", side="below", than="top", times=criteria.OVERLAP_SHARE)
    assert choice.contradicted_if == ((below,),)
    for condition in load()["A3"].conditions:
        uniform = committed(CHECKPOINTS[condition.number]).uniform_kl_bits
        assert condition.than == pytest.approx(criteria.UNIFORM_SHARE * uniform, rel=0.01)


def committed(name: str) -> AblationReport:
    report = Diagnosis.load(ROOT / "examples/replication/results" / name / "ablation")["ablation"]
    assert isinstance(report, AblationReport)
    return report


@pytest.mark.parametrize("claim_id", ["A1", "A2", "A3", "A4", "A5"])
def test_both_say_the_same_of_each_checkpoint(claim_id: str) -> None:
    claim, seen = load()[claim_id], 0
    for run in claim.runs:
        numbers = values_of(run, ROOT / str(run.report))
        met = {
            condition: is_met(condition, numbers, is_point=claim.numbers[condition.number].is_point)
            for condition in claim.conditions
            if condition.number in run.numbers
        }
        is_supported = all(met[condition] for condition in claim.supported_if if condition in met)
        is_contradicted = any(met.get(condition, False) for (condition,) in claim.contradicted_if)
        by_file = "contradicted" if is_contradicted else "supported" if is_supported else "not decided"
        (by_report,) = (c for c in criteria.criteria_of(committed(CHECKPOINTS[run.name])) if c.id == claim_id)
        assert by_report.verdict == by_file, (run.name, by_report.reason)
        seen += 1
    assert seen >= (1 if claim_id == "A5" else 2)
