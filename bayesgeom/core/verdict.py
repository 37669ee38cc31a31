"""The codes of results: what was decided (`Verdict`), and why an entry has no usual interval (`Reason`).

Results hold these codes and no sentences. Tables print their labels. The text below each code says what it means; the
page of the documentation that lists them, `docs/codes.md`, is made of these texts.
"""

from enum import IntEnum, StrEnum
from typing import Literal, Self, SupportsInt

Tone = Literal["good", "amber", "bad", "open"]


class Verdict(StrEnum):
    """What a report decides on a number, or on its question; `tone` is the color of the verdict on pages.

    Only the answer of a diagnosis and verdicts on cause have a color. A descriptive number is neither good nor bad.

    Example:
        >>> Verdict.YES, str(Verdict.UNDECIDED), Verdict.CAUSAL.tone
        (<Verdict.YES: 'yes'>, 'undecided', 'good')
    """

    tone: Tone

    def __new__(cls, label: str, tone: Tone = "open") -> Self:
        """Return the member of a label, with its tone."""
        member = str.__new__(cls, label)
        member._value_, member.tone = label, tone
        return member

    MATCHES = "matches", "good"
    """The answer: the interval of the closed share of the gap from context-free predictions lies above 0.99."""
    CLOSE = "close", "good"
    """The answer: the interval of the closed share of that gap lies above 0.9."""
    PARTLY = "partly"
    """The answer: the interval of the closed share of that gap lies above 0, and above that of untrained networks."""
    CLOSES = "closes"
    """The answer: the interval of the closed share of that gap lies above 0, which of untrained networks is unknown."""
    NO_BETTER = "no better", "bad"
    """The answer: the interval of the closed share of that gap includes 0, or reaches that of untrained networks."""
    WORSE = "worse", "bad"
    """The answer: the interval of the closed share of that gap lies below 0."""
    NO_GAP = "no gap to close"
    """The answer: the strongest context-free predictor is less than 1e-4 bits from exact, so that nothing is told."""
    YES = "yes"
    """The whole 95 % interval lies beyond every baseline, in the better direction."""
    BARELY = "barely"
    """As `yes`, by less than a tenth of the distance from the strongest baseline to the best possible value."""
    NO = "no"
    """The whole 95 % interval lies on the wrong side of at least one baseline; of untrained networks, of their mean."""
    UNDECIDED = "undecided"
    """An interval is missing or includes the level that it is compared with, or a condition of the rule is not met."""
    NOT_MEASURED = "not measured"
    """The model, the task or the sample does not allow this measurement."""
    NOT_IDENTIFIED = "not identified"
    """It is a function of position or of the exact answer, or the exact answers hardly change: nothing can be told."""
    NOT_APPLICABLE = "not applicable"
    """The question does not arise here: the model, or the predictor, is the exact posterior."""
    UNDEFINED = "undefined"
    """The number is the same for any model on this task, so it says nothing."""
    BY_CONSTRUCTION = "by construction"
    """The edit is an identity, whatever the model has learned."""
    NO_EFFECT = "no effect"
    """Every logit is bit-identical with and without the edit."""
    CAUSAL = "causal", "good"
    """Swapping a linear function of the site that goes with the quantity moves the model's value to the donor's."""
    MOVES = "moves the answer"
    """All that `causal` needs but the comparison with untrained networks, of which there were fewer than two."""
    SETS = "sets a state", "good"
    """The swap moves later answers toward the filter continued from the donor's belief, more than any control does."""
    WRITES = "writes the answer"
    """The swap moves the current answer toward the donor's, and later ones by less than a tenth of the way."""
    INERT = "inert"
    """No linear map reads the quantity from this site after the erasure, which costs no more than chance."""
    COSTS_MORE = "costs more than chance", "good"
    """The edit costs more than that of every random direction."""
    COSTS_NO_MORE = "costs no more than chance", "bad"
    """The cost of the edit lies within the range of random directions."""
    INVARIANT = "invariant"
    """Renaming the hypotheses leaves the KL of every sequence unchanged within the bound."""
    INVARIANT_ON_AVERAGE = "invariant on average only"
    """Renaming leaves the mean KL unchanged within the bound, but not that of single sequences."""
    NOT_INVARIANT = "not invariant"
    """Renaming changes the mean KL by more than the bound."""
    DISCONTINUITY = "discontinuity"
    """The KL steps up at the training length, by more than it does within."""
    NO_DISCONTINUITY = "no discontinuity"
    """The step at the training length is smaller than the largest one within."""
    TRANSPORTS = "transports"
    """The answers follow evidence older than the stated age: the interval of their slope lies above the level and
    between one half and 2, and their changes have the direction of the exact ones (cosine above one half)."""
    HAS = "has"
    """A scorecard: the trained network has what its world needs, by the rule of that world."""
    IN_PART = "in part"
    """The answers follow evidence older than the stated age more than the level, and by less than one half."""
    NOT_AS_BAYES = "moves, but not as Bayes"
    """Evidence older than the stated age moves the answers more than the level, but in another direction (cosine below
    one half), or with a slope above 2."""
    NOT_REPLACEABLE = "evidence not replaceable"
    """The task has no method that draws its evidence again (`bayesgeom.tasks.base.EvidenceTask`)."""
    SAME = "the same"
    """The whole interval of the difference of two models lies within 0.1 % of the gap between uniform and exact."""
    NOT_REACHED = "not reached"
    """No layer stays below a tenth of the KL of the stronger context-free predictor."""
    NOT_SHOWN = "not shown"
    """The slope of the answers in evidence older than the stated age lies below one half, and may be the level."""
    ABOVE = "above"
    """The layer farthest from the baseline lies above it, and above the bound of the strongest untrained layer."""
    BELOW = "below"
    """The layer farthest from the baseline lies below it, and below the bound of the strongest untrained layer."""
    AT_BASELINE = "at baseline"
    """The interval of the layer farthest from the baseline includes it."""
    VALUES_LATER = "values later"
    """Values come to rest later than attention patterns."""
    ROUTING_LATER = "routing later"
    """Attention patterns come to rest later than values."""
    PREVIEW = "preview"
    """First-order estimates from one backward pass, and no ablation."""


class Reason(IntEnum):
    """Why an entry has no 95 % interval, or which kind of interval it has; arrays and files hold the numbers.

    Example:
        >>> Reason.HEAVY_TAIL, str(Reason.HEAVY_TAIL), Reason.of(4).label
        (<Reason.HEAVY_TAIL: 4>, 'heavy tail', 'heavy tail')
    """

    label: str

    def __new__(cls, number: int, label: str) -> Self:
        """Return the member of a number, with its label."""
        member = int.__new__(cls, number)
        member._value_, member.label = number, label
        return member

    def __str__(self) -> str:
        return self.label

    NONE = 0, ""
    """The entry has an interval that covers about 95 %, or its value is missing."""
    CONSERVATIVE = 1, "conservative"
    """It covers more than 95 %: it ends at a bound, allows for the worst case, or is of a number with few values."""
    FEW = 2, "too few"
    """There are too few sequences (8 or fewer), or too few trainings."""
    FEW_DIFFER = 3, "too few differ"
    """Fewer than 8 sequences differ from the rest, so that their spread is unknown."""
    HEAVY_TAIL = 4, "heavy tail"
    """A few sequences carry the mean, and the tail is heavier than any with known coverage."""
    BIASED = 5, "biased"
    """The estimated bias is larger than the uncertainty, so its correction is not reliable."""
    CONSTANT = 6, "constant"
    """All sequences have the same value at the edge: how rare an exception is, is unknown."""
    MISSING = 7, "missing"
    """A value is missing or infinite in at least one sequence."""
    NOT_COMPUTED = 8, "not computed"
    """No interval was computed for this entry."""
    NOT_STORED = 9, "not stored"
    """The file was written by another version, which did not store this."""
    HIDDEN = 10, "hidden"
    """An entry that this one was compared with, when it was chosen, has no interval."""
    MANY = 11, "too many"
    """It was chosen from too many entries for so small a sample."""
    FLAT = 12, "flat"
    """Nothing tells the value from others: another principal component has as much variance, or no fit is better."""
    NOISE = 13, "noise"
    """Sampling noise is more than a tenth of the squared length of the mean vectors."""
    ONE_TRAINING = 14, "one training"
    """A single training has no interval over trainings."""
    SAME_TRAININGS = 15, "same trainings"
    """The trainings that chose the entry are those that measure it."""
    NO_FALL = 16, "no fall"
    """The curve does not fall, or was not measured."""
    NOT_RESAMPLED = 17, "not resampled"
    """The numbers behind it are means whose sequences are not resampled here."""
    OUT_OF_RANGE = 18, "out of range"
    """The value lies outside the range of its quantity, such as an R² below −1 of a fit that does not carry over."""
    OTHER_KERNEL = 19, "other kernel"
    """The two sides attended with different kernels, whose rounding differs: a small difference may come from it."""
    CHOICE_IGNORED = 20, "interval ignores the choice"
    """It was chosen from too many entries for so small a sample: the interval is of the entry alone."""
    NOT_EXCHANGEABLE = 21, "order matters"
    """The task does not declare that the order of its evidence is free, or its answers are no pieces of evidence."""
    NOT_REPLACEABLE = 22, "evidence not replaceable"
    """The task has no method that draws its evidence again (`bayesgeom.tasks.base.EvidenceTask`)."""
    RECORDED = 23, "recorded"
    """The predictions were recorded, so the model cannot be run on other sequences."""
    NOT_BINARY = 24, "not binary"
    """The number is defined for two answers only."""
    ALIKE = 25, "alike"
    """The predictor is within 0.01 bits of one named before it, whose weight includes its own."""
    ONE_UNTRAINED = 26, "fewer than 2 untrained networks"
    """One untrained network decides nothing on activations: 2 are needed, and `diagnose` measures 3 by default."""

    @classmethod
    def of(cls, number: SupportsInt) -> "Reason":
        """Return the code of a number."""
        return list(cls)[int(number)]
