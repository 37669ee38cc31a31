"""What the page on the comparison says of MLPs over the whole prefix is what the committed report holds."""

from bayesgeom.comparison.report import ComparisonReport
from bayesgeom.diagnosis import Diagnosis
from tests.pages import READINGS, section


def test_an_mlp_over_the_prefix_accumulates_and_does_not_bind() -> None:
    found = Diagnosis.load(READINGS / "mlp-prefix")["comparison"]
    assert isinstance(found, ComparisonReport)
    said = section("comparison.md", "What came out")
    sums, binds = (found.checkpoints.index(f"{task}-mlp-prefix") for task in ("bijection", "repeats"))
    assert f"is {found.kl_bits[sums]:.4f} bits" in said and f"({found.share_closed[sums]:.4f} of the gap" in said
    assert f"at {found.kl_bits[binds]:.2f} of {found.kl_bits_null[binds]:.2f} bits" in said
    known, chance = (100 * values[binds] for values in (found.accuracy_where_known, found.accuracy_where_known_null))
    assert f"{known:.1f} % of the values" in said and f"{chance:.1f} % being" in said
