"""What the page on the comparison says of MLPs over the whole prefix is what the committed report holds."""

from bayesgeom.comparison.report import CONTEXT_FREE, ComparisonReport
from bayesgeom.results.diagnosis import Diagnosis
from tests.pages import READINGS, section


def test_an_mlp_over_the_prefix_accumulates_transports_in_part_and_does_not_bind() -> None:
    found = Diagnosis.load(READINGS / "mlp-prefix")["comparison"]
    assert isinstance(found, ComparisonReport)
    kl, free = found.kl_bits.value, found.kl_bits.baseline(CONTEXT_FREE).value
    said = " ".join(section("comparison.md", "Results").split())
    at = {checkpoint: index for index, checkpoint in enumerate(found.checkpoints)}
    for name, digits in (("bijection", 2), ("hmm", 1)):
        own, check = at[f"{name}-mlp-prefix"], at[f"{name}-mlp-prefix-seed1-x2"]
        assert f"`{name}-mlp-prefix` is {kl[own]:.4f} bits from the exact" in said
        assert f"({100 * found.share_closed.value[own]:.{digits}f} %" in said
        assert f"twice the budget it is {kl[check]:.4f}" in said
        expected = "not decided: one seed" if name == "bijection" else "not testable on this task"
        assert found.standings[own] == expected
    for name in ("recall", "repeats"):
        own = at[f"{name}-mlp-prefix"]
        assert f"`{name}-mlp-prefix` is at {kl[own]:.2f} of {free[own]:.2f} bits" in said
        accuracy = found.accuracy_where_known[own]
        known, chance = 100 * float(accuracy), 100 * float(accuracy.baseline(CONTEXT_FREE).value)
        assert f"names {known:.1f} %" in said and f"{chance:.1f} % being chance" in said
        assert found.verdicts[own] == "not realized"
