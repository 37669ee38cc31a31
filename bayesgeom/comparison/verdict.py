"""Primitives, the rule that turns a share into a verdict, and what the papers say, so that it can be contradicted."""

from collections.abc import Mapping, Sequence
from typing import Literal

Verdict = Literal["realised", "limited", "not realised"]
REALISED, LIMITED = 0.95, 0.5
RULE = (
    f"realised: at least {REALISED:.0%} of the gap between the best context-free predictor and the exact posterior is "
    f"closed; limited: at least {LIMITED:.0%}; at the stated budget, for not learned in so many steps is not cannot"
)

# What each task asks for. The bijection needs accumulation alone; where keys return, a value is fetched by its key.
PRIMITIVE_OF: Mapping[str, str] = {
    "bijection": "accumulation",
    "repeats": "accumulation and binding",
    "hmm": "transport",
    "slow-hmm": "transport",
    "recall": "binding",
}

# Paper I, version 3 and later: three of three for transformers, two and a "limited" for Mamba, accumulation alone for
# LSTMs, none for MLPs, of which it is not said whether they see the prefix: it is held against both kinds. Nothing was
# published for the bijection with returning keys as a task of its own, nor for Mamba 2 and RWKV.
_MLPS: Mapping[str, Verdict] = {"mlp": "not realised", "mlp-prefix": "not realised"}
PUBLISHED: Mapping[str, Mapping[str, Verdict]] = {
    "bijection": {"transformer": "realised", "mamba": "realised", "lstm": "realised", **_MLPS},
    "hmm": {"transformer": "realised", "mamba": "realised", "lstm": "not realised", **_MLPS},
    "recall": {"transformer": "realised", "mamba": "limited", "lstm": "not realised", **_MLPS},
}


def verdict(share_closed: float) -> Verdict:
    """The rule, applied to the share of the gap that a model closes."""
    if share_closed >= REALISED:
        return "realised"
    return "limited" if share_closed >= LIMITED else "not realised"


def standing(published: Verdict | None, found: Sequence[Verdict], checks: Sequence[Verdict]) -> str:
    """How what was found stands to what was published.

    `found` are the verdicts at the stated budget; `checks` those of another seed at twice the budget, without which
    nothing is called a contradiction.
    """
    if published is None:
        return "nothing published"
    if all(own == published for own in found):
        return "as published"
    if not checks:
        return "differs, not yet checked"
    if all(own != published for own in (*found, *checks)):
        return "contradicts, with a second seed and twice the budget"
    return "undecided: seeds or budgets disagree"
