"""The codes of results: what was decided (`Verdict`), and why an entry has no usual interval (`Reason`).

Results hold these codes and no sentences. Each code has a short label, which tables print, and one sentence. The table
of all codes in the documentation, `docs/codes.md`, is made of them.
"""

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Any, Self

import numpy as np
from jaxtyping import Int, Shaped


class Verdict(StrEnum):
    """Whether the 95 % interval of a number lies beyond all of its baselines.

    Example:
        >>> Verdict.YES, str(Verdict.UNDECIDED)
        (<Verdict.YES: 'yes'>, 'undecided')
    """

    sentence: str

    def __new__(cls, label: str, sentence: str) -> Self:
        """Return the member of a label, with its sentence."""
        own = str.__new__(cls, label)
        own._value_, own.sentence = label, sentence
        return own

    YES = "yes", "The whole 95 % interval lies beyond every baseline, in the better direction."
    NO = "no", "The whole 95 % interval lies on the wrong side of at least one baseline."
    UNDECIDED = "undecided", "The interval includes a baseline, or is missing, or there is no baseline to compare with."


class Reason(IntEnum):
    """Why an entry has no 95 % interval, or which kind of interval it has; arrays and files hold the numbers.

    Example:
        >>> Reason.HEAVY_TAIL, str(Reason.HEAVY_TAIL), Reason.of(4).label
        (<Reason.HEAVY_TAIL: 4>, 'heavy tail', 'heavy tail')
    """

    label: str
    sentence: str

    def __new__(cls, number: int, label: str, sentence: str) -> Self:
        """Return the member of a number, with its label and its sentence."""
        own = int.__new__(cls, number)
        own._value_, own.label, own.sentence = number, label, sentence
        return own

    def __str__(self) -> str:
        return self.label

    NONE = 0, "", "The entry has an interval that covers about 95 %, or its value is missing."
    CONSERVATIVE = (
        1,
        "conservative",
        "It covers more than 95 %: it ends at a bound, allows for the worst case, or is of a number with few values.",
    )
    FEW = 2, "too few", "There are too few sequences (8 or fewer), or too few trainings."
    FEW_DIFFER = 3, "too few differ", "Fewer than 8 sequences differ from the rest, so that their spread is unknown."
    HEAVY_TAIL = (
        4,
        "heavy tail",
        "A few sequences carry the mean, and the tail is heavier than any with known coverage.",
    )
    BIASED = 5, "biased", "The estimated bias is larger than the uncertainty, so its correction is not reliable."
    CONSTANT = 6, "constant", "All sequences have the same value at the edge: how rare an exception is, is unknown."
    MISSING = 7, "missing", "A value is missing or infinite in at least one sequence."
    NOT_COMPUTED = 8, "not computed", "No interval was computed for this entry."
    NOT_STORED = 9, "not stored", "The file was written by another version, which did not store this."
    HIDDEN = 10, "hidden", "An entry that this one was compared with, when it was chosen, has no interval."
    MANY = 11, "too many", "It was chosen from too many entries for so small a sample."
    FLAT = 12, "flat", "The first principal component cannot be distinguished from the next one."
    NOISE = 13, "noise", "Sampling noise is more than a tenth of the squared length of the mean vectors."
    ONE_TRAINING = 14, "one training", "A single training has no interval over trainings."
    SAME_TRAININGS = 15, "same trainings", "The trainings that chose the entry are those that measure it."
    NO_FALL = 16, "no fall", "The curve does not fall, or was not measured."
    NOT_RESAMPLED = 17, "not resampled", "The numbers behind it are means whose sequences are not resampled here."

    @classmethod
    def of(cls, number: int) -> "Reason":
        """Return the code of a number."""
        return list(cls)[int(number)]

    @classmethod
    def labels(cls, codes: Int[np.ndarray, "*axes"]) -> Shaped[np.ndarray, "*axes"]:
        """Return the label of every code of an array."""
        labels: list[Any] = [cls.of(code).label for code in codes.ravel()]
        return np.array(labels, dtype=object).reshape(codes.shape)


def table(codes: Iterable[Verdict | Reason]) -> str:
    """Return label and sentence of codes as a Markdown table, with the numbers of reasons.

    Example:
        >>> print(table([Reason.FEW]))
        | code | number | meaning |
        | --- | --- | --- |
        | too few | 2 | There are too few sequences (8 or fewer), or too few trainings. |
    """
    rows = [(str(own), str(int(own)) if isinstance(own, Reason) else "", own.sentence) for own in codes]
    lines = [("code", "number", "meaning"), ("---",) * 3, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
