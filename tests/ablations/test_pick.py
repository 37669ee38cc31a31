"""The text in which a report stores the heads that key overlap would choose."""

import pytest

from bayesgeom.ablations.pick import Pick, joined, picks_of
from bayesgeom.ablations.report import AblationReport
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.diagnosis import Diagnosis
from tests.pages import READINGS

STORED = ("bijection-v20", "bijection-v20-repeats", "bijection-v20-llama", "hmm-s5")


@pytest.mark.parametrize("name", STORED)
def test_a_stored_text_is_read_and_written_again(name: str) -> None:
    text = Diagnosis.load(READINGS / name / "ablation")[AblationReport].key_overlap_pick
    picks = picks_of(text)
    assert len(picks) > 2 and joined(picks) == text
    assert all(pick.head.startswith("L0") and 0 < pick.mean_cosine < 1 for pick in picks)


def test_a_reading_can_have_commas_and_parentheses() -> None:
    pick = Pick("L0H1", "inputs (first, second) / activation rotated", 0.5)
    assert picks_of(joined([pick, pick])) == (pick, pick) and picks_of("") == ()


def test_a_text_of_another_form_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"given as 'L0H2 \(columns, mean .*got 'L0H1'"):
        picks_of("L0H2 (columns, mean |cos| 0.198); L0H1")
