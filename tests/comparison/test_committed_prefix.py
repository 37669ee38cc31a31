"""What the page on the comparison says of MLPs over the whole prefix is what the committed report holds."""

from bayesgeom.comparison.report import ComparisonReport
from bayesgeom.results.diagnosis import Diagnosis
from tests.pages import READINGS, section


def test_an_mlp_over_the_prefix_accumulates_transports_in_part_and_does_not_bind() -> None:
    found = Diagnosis.load(READINGS / "mlp-prefix")["comparison"]
    assert isinstance(found, ComparisonReport)
    said = " ".join(section("comparison.md", "What came out").split())
    at = {checkpoint: index for index, checkpoint in enumerate(found.checkpoints)}
    for name, digits in (("bijection", 2), ("hmm", 1)):
        own, check = at[f"{name}-mlp-prefix"], at[f"{name}-mlp-prefix-seed1-x2"]
        assert f"`{name}-mlp-prefix` is {found.kl_bits[own]:.4f} bits from the exact" in said
        assert f"({100 * found.share_closed[own]:.{digits}f} %" in said
        assert f"twice the budget{' it is' if name == 'bijection' else ''} {found.kl_bits[check]:.4f}" in said
        expected = "not decided: one seed" if name == "bijection" else "not testable on this task"
        assert found.standings[own] == expected
    for name in ("recall", "repeats"):
        own = at[f"{name}-mlp-prefix"]
        assert f"`{name}-mlp-prefix` is at {found.kl_bits[own]:.2f} of {found.kl_bits_null[own]:.2f} bits" in said
        known, chance = (100 * v[own] for v in (found.accuracy_where_known, found.accuracy_where_known_null))
        assert f"names {known:.1f} %" in said and f"{chance:.1f} % being chance" in said
        assert found.verdicts[own] == "not realised"
