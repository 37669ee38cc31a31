"""What results say: the codes of findings, each with the template of its sentence, and the sentence of an opening.

In a template, {name} is a value of the opening, printed as its type and what follows the colon say. The part in
brackets is written where its values are known: of several, divided by |, the first whose values are.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from string import Formatter
from typing import Any, SupportsFloat, final

import numpy as np
from jaxtyping import Bool

from bayesgeom.core import number_text
from bayesgeom.core.text import count_text, interval_text, percent_text
from bayesgeom.report.estimate import Estimate
from bayesgeom.stats.bounds import familywise_low

Value = SupportsFloat | str | Sequence[object] | Mapping[str, object]
_CLOSES = "closes {share:closed} of the gap between {baseline} and exact"
_OFF = "[; {off:share} of the probability is not on the answers][ (KL over the whole vocabulary {whole} bits)"
_OFF += "; in a text task, the prompt may be at fault]."
_OBSERVER = "an observer of the last {window:latest}"
_RIVALS = f"[; uses evidence older than {{older}} (slope {{slope:interval}}), but is no more accurate than {_OBSERVER}"
_RIVALS += f"|; so does {_OBSERVER}, use of older evidence {{unknown}}|; so does {_OBSERVER}][; so does “{{shortcut}}”]"
_BUT = "[, but is overconfident ({over:2})|, but is underconfident ({under:2})]" + _RIVALS + _OFF
_LEVELS = "({kl_bits:against} bits)[ and overconfident ({over:2})| and underconfident ({under:2})]" + _OFF
_RENAMING = "renaming the hypotheses changes KL by {bits} bits; the bound is {bound}."
_WHICH = "[evidence of age {age}|evidence older than {older}|all evidence]"
_FOLLOW = "the answers follow " + _WHICH
_SLOPE = " with slope {slope:interval}, where 1 is exact."
_EDIT = "{edit:word} {subspace} in layer {layer} "
_RANDOM = " of the way to the donor's {quantity}"
_RANDOM += "[ (random subspaces: at most {random_most:%})| (random subspaces: {random:%})]"
_UNTRAINED = "[ (untrained networks: up to {untrained:%})]"
_MOVES = _EDIT + "moves the answer {effect:closed}" + _RANDOM + "[, and {later:closed} without the direct path]"
_MAY_MOVE = _EDIT + "moves the answer {effect:shares}" + _RANDOM + "[, and {later:shares} without the direct path]"
_RAISES = (
    _EDIT + "raises KL by {effect:ends} bits[ (random subspaces: at most {random_most})| (random subspaces: {random})]."
)
_AGAINST = "\n[Against causal: {causal}.][ Against inert: {inert}.]"
_RISES = "without it KL rises by {bits} bits (from {before})."
_GIVEN = "[; the exact answers give the belief (R² {r2})]."
_MOST = "Without {name} KL rises most, by {bits} bits (from {before}[; uniform {uniform}|; uniform –])."


class Finding(Enum):
    """What a result says, with the template of its sentence.

    Example:
        >>> Finding.ARRIVED.value
        'The posterior is there after {arrival:,} of {layers:layer}.'
    """

    MATCHES = "Matches the exact posterior: " + _CLOSES + _BUT
    CLOSE = "Close to the exact posterior: " + _CLOSES + _BUT
    PARTLY = "Partly: " + _CLOSES + _BUT
    CLOSES = (
        "Closes {share:closed} of the gap between {baseline} and exact; not compared with untrained networks" + _BUT
    )
    NO_BETTER = "No: no better than {level} " + _LEVELS
    NOT_SHOWN_BETTER = "No: not shown to be better than {level} " + _LEVELS
    WORSE = "No: worse than {level} " + _LEVELS
    UNDECIDED = "Undecided: " + _CLOSES + ", without an interval[ ({reason})]" + _OFF
    NO_GAP = "No gap to close: without any evidence KL is {gap} bits; that of this model is {kl} bits" + _OFF
    UNLISTED = (
        "Not measured: answers with {unlisted:%} of the exact probability are not among the {top} tokens that the "
        "server lists; raise top."
    )
    OF_BOUNDS = "what follows is of bounds: unlisted answers get the largest probability that the replies allow"
    DISTANCE = "KL {kl_bits:whole} bits ({levels:levels})"
    CONFIDENCE = "confidence {confidence:interval}, where 1 is exact"
    CONFIDENCE_CHEAP = "confidence {confidence:interval}, where 1 is exact, at little cost"
    FAILURES = "{rate:rate} of {n:sequence} are as bad as {baseline} or worse[ (at most {most:rate})]"
    NO_FAILURES = "none of {n:sequence} is as bad as {baseline} (at most {most:rate} of all are)"
    EVIDENCE_NOT_USED = "no use of the evidence is shown"
    EVIDENCE_USED_IN_PART = "uses the evidence in part ({weight:2} of the exact weight)"
    EVIDENCE_USED = "uses [evidence more than {age:step} old|the evidence] ({weight:2} of the exact weight)"
    NO_INFERENCE = "The predictions are not shown to be better than {level}: what follows explains no inference."
    ABLATION_PREVIEW = "A first-order preview: {name} matters most, with a KL increase of about {bits} bits."
    NONE_MATTER = "None of {count} {parts:word} is shown to matter: without {name}, KL changes by {bits} bits."
    SOME_MATTER = "{mattering} of {count} {parts:word} matter. " + _MOST
    CAUSAL = "Causal in {layers:layer}: " + _MOVES + _UNTRAINED + "."
    MOVES = "Moves the answer in {layers:layer}, not compared with untrained networks: " + _MOVES + "."
    INERT = "Inert in {layers:layer}: no linear map reads the {quantity} after removal, which costs {cost} bits."
    SHOWS_NOTHING = "Shows nothing in {layers:layer}: {causal} ({verdict})."
    MOVEMENT_UNDECIDED = "Undecided: " + _MAY_MOVE + _UNTRAINED + "." + _AGAINST
    EFFECT_UNDECIDED = "Undecided: " + _RAISES + _AGAINST
    JOINT_EDIT = (
        "{verdict:first}: {edit:word} {subspace} in {layers:together} raises KL by {bits} bits"
        "[; random subspaces by at most {random_most}]."
    )
    INERT_ONWARDS = (
        "Inert from layer {layer} on: erasing the {quantity} from layer {layer} on changes KL by {bits} bits."
    )
    ERASED_ONWARDS = "{verdict:first}: erasing the {quantity} from layer {layer} on changes KL by {bits} bits."
    REGRET = (
        "Regret is {regret} bits a sequence[, against {level} of {baseline}]."
        "[ The nearest predictor is “{predictor}” (weight {weight:%}).]"
        "[ {off:share} of the probability is not on the answers.]"
    )
    LARGEST_TERM = "The largest direct term is that of {name}: " + _RISES
    STRONGEST_EDGE = "The strongest of {count:edge} is {name}: " + _RISES
    NOT_ARRIVED = "The posterior is there after none of {layers:layer}."
    ARRIVED = "The posterior is there after {arrival:,} of {layers:layer}."
    CARRIES_MOST = (
        "“{token}” in layer {layer} carries most: patching {site} there recovers {share:some} of the difference."
    )
    CLOSEST = "{model} is closest to exact: {row:word} {value}[ {unit}], against {others:of}."
    HARDLY_CLOSEST = "{model} is closest to exact, hardly: {row:word} {value}[ {unit}], against {others:of}."
    THE_SAME = "The same within 0.1 % of the gap: {row:word}[ ({unit})] {alike:of}[, against {others:of}]."
    CLOSEST_UNDECIDED = "Undecided which is closest to exact: {row:word}[ ({unit})] differs by {differences:ranges}."
    TRANSPORTS = "Yes: " + _FOLLOW + _SLOPE
    TRANSPORTS_IN_PART = "In part: " + _FOLLOW + _SLOPE
    MOVES_OTHERWISE = (
        "Moves, but not as Bayes: " + _WHICH + " changes the answers with slope {slope:interval} and cosine "
        "{cosine:interval}, where 1 is exact."
    )
    TRANSPORT_NOT_SHOWN = "Not shown that " + _FOLLOW + ": slope {slope:interval}, where 1 is exact."
    TRANSPORT_NOT_IDENTIFIED = "Not identified: the exact answer hardly depends on " + _WHICH + "."
    TRANSPORT_UNDECIDED = "Undecided whether " + _FOLLOW + ": slope {slope:interval}, where 1 is exact."
    LENGTH_OF_ONE = (
        "{verdict:first}: KL [rises by {rise}|falls by {fall}|changes by {change:range}] bits where the training "
        "length ends; [beyond, it is {ratio} times that within|it is {within} bits within and {beyond} bits beyond]."
    )
    LENGTH_OF_SEVERAL = "{model} errs least beyond the training length, {bits} bits. {verdicts:verdicts}."
    NAMES_DO_NOT_MATTER = "No: " + _RENAMING
    NAMES_MATTER_IN_SINGLE_SEQUENCES = "On average not: " + _RENAMING + " Single sequences change by {size} bits."
    NAMES_MATTER = "Yes: " + _RENAMING
    NAMES_UNDECIDED = "Undecided: " + _RENAMING
    TASK_TELLS = "Can tell: no shortcut is within {least} bits; the nearest is {shortcut} ({bits} of {gap})" + _GIVEN
    TASK_TELLS_IN_PART = "Can tell in part: {shortcut} cannot be told from the belief ({bits} bits of {gap})" + _GIVEN
    TASK_CANNOT_TELL = "Cannot tell: {shortcut} predicts as well as the belief ({bits} bits of {gap})" + _GIVEN
    TASK_HAS_NO_GAP = "Cannot tell: without evidence ({shortcut}) the predictions are {bits} bits from exact" + _GIVEN
    CONVERGENCE = "Observations until the exact posterior has converged: {tokens:at}."
    BEATS_SHORTCUT = (
        "The model beats the strongest shortcut at {better} of {values:value}; KL is largest at {worst}, {bits} bits."
    )
    GRADIENT_LAWS = (
        "The laws differ from autograd by at most {error} (relative). Attention goes with advantage at rank "
        "correlation {correlation}[ ({level} with another sequence's)]."
    )
    MOVEMENT = (
        "{verdict:first}: patterns are stable [from step {routing:,}|not before the last snapshot], "
        "values [from step {values:,}|not before the last snapshot]."
    )
    TRAINED = (
        "KL goes from {first} to {last} bits by step {step:,}[; it stays below a tenth of its start from step {rest:,}]"
        "[; attention patterns stay near their last state from step {patterns:,}].\n[The {baseline} has {level} bits.]"
    )
    LEARNED = "[{learned:verdicts}.][ {pools:verdicts} (on new chains).]"
    ONE_SNAPSHOT = "At step {step:,} KL is {last} bits.\n[The {baseline} has {level} bits.]"
    MONITORED = (
        "At step {step:,} KL is[ {bits} bits (uniform {uniform})| {bits} bits| not known]. "
        "[Events: {events}.|No rule was broken.]"
    )

    def of(self, against: Mapping[str, str] = {}, /, **values: Value) -> "Opening":
        """Return the opening with the values that the sentence names; NaN and empty ones are missing.

        Args:
            against: The code of what speaks against a verdict, by that verdict.
            **values: Numbers and names, and any others.

        Example:
            >>> sentence(Finding.ARRIVED.of(arrival=3, layers=4))
            'The posterior is there after 3 of 4 layers.'
        """
        names = _names(self.value)
        return Opening(finding=self, values={name: values[name] for name in values if name in names}, against=against)


@final
@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a result opens with: the code, the numbers and names in its sentence, and what speaks against a verdict."""

    finding: Finding
    values: Mapping[str, Value]
    against: Mapping[str, str]


def sentence(opening: Opening) -> str:
    """Return the sentence of an opening, and what supports it on a second line; "" where a value is missing."""
    known = {name: value for name, value in {**opening.values, **opening.against}.items() if _is_known(value)}
    text = ""
    for at, part in enumerate(re.split(r"\[([^]]*)\]", opening.finding.value)):
        filled = (_PRINTED.vformat(choice, (), known) for choice in part.split("|") if _names(choice) <= known.keys())
        written = next(filled, "" if at % 2 else None)  # every second part is optional
        if written is None:
            return ""
        text += written
    return text


def is_stated(ratio: Estimate) -> bool:
    """Return whether a sentence may state a ratio: the ends of its interval agree within a factor of 4.

    Example:
        >>> [is_stated(Estimate.of(2.0, ends)) for ends in ((1.0, 4.0), (0.007, 2394.0), (math.nan, math.nan))]
        [True, False, False]
    """
    low, high = map(float, ratio.ends)
    return low > 0 and high <= 4 * low


def mattering(increase: Estimate, before: Estimate) -> Bool[np.ndarray, "*axes"]:
    """Return which components matter, with 95 % confidence for all of them at once.

    The lower end of the KL increase without one lies above min(1 % of the gap, max(0.1 % of the gap, own KL)). The gap
    is the KL of the strongest predictor next to which the own KL is stored; without one, it is 0.

    Args:
        increase: KL increase without each component.
        before: KL with all of them.

    Example:
        >>> from bayesgeom.report.estimate import Baseline
        >>> before = Estimate.of(0.001, baselines=[Baseline.of("baseline", "uniform", 0.5)])
        >>> mattering(Estimate.of([0.3, 0.0005], ([0.2, 0.0004], [0.4, 0.0006])), before).tolist()
        [True, False]
    """
    gap = min((float(level.value) for level in before.compared if np.isfinite(level.value)), default=0.0)
    least = min(0.01 * gap, max(0.001 * gap, float(before)))
    return np.asarray(familywise_low(increase.value, *increase.ends, increase.value.size) > least)


def _names(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def _is_known(value: Value) -> bool:
    return len(value) > 0 if isinstance(value, Sequence | Mapping) else not math.isnan(value)


@final
class _Printed(Formatter):
    """Values as sentences print them: by a name of `_FORMATS`, or a noun to count or digits after the colon."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value in words."""
        if format_spec in _FORMATS:
            return _FORMATS[format_spec](value)
        match value:
            case str():
                return value
            case Sequence():
                return _listed(value, format_spec) if format_spec else ", ".join(value)
            case int() | np.integer():
                return count_text(int(value), format_spec) if format_spec else str(value)
            case _:
                return rounded(float(value), int(format_spec or 3))


def rounded(value: float, digits: int = 3) -> str:
    """Return a number as sentences print it."""
    return number_text(float(f"{value:.{digits}g}"))


def capital(text: str) -> str:
    """Return a sentence with a capital; a symbol such as "n = 3" and a name keep their letters."""
    return text if "=" in text.split(maxsplit=1)[0] else text[:1].upper() + text[1:]


def _estimate_text(estimate: Estimate, text: Callable[[Any], str] = rounded) -> str:
    """Return a scalar with its interval, both with three digits by default."""
    value, *ends = (text(float(end)) for end in (estimate.value, *estimate.ends))
    return value if "–" in ends else f"{value} [{' … '.join(ends)}]"


def _listed(items: Sequence[object], noun: str) -> str:
    """Return items after their noun: "layers 1, 2 and 4"."""
    *first, last = map(str, items)
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


def _apart(value: float, level: float) -> str:
    """Return two numbers with as many digits, at least three, as tell them apart."""
    texts = ((rounded(value, digits), rounded(level, digits)) for digits in (3, 4))
    exact = number_text(value), number_text(level)
    return " against ".join(next((pair for pair in texts if pair[0] != pair[1]), exact))


def _share_text(share: float) -> str:
    """Return a share of a gap in percent, with as many digits as what is missing to 100 % needs.

    Example:
        >>> _share_text(0.43), _share_text(0.9871), _share_text(0.99992), _share_text(1.0)
        ('43 %', '98.7 %', '99.992 %', '100 %')
    """
    missing = 1 - share
    digits = 0 if not share >= 0.9 or missing < 1e-9 else max(1, -math.floor(math.log10(missing)) - 2)
    return percent_text(share if abs(share) >= 0.005 else 0.0, digits)  # no minus before a zero


def _closed_text(closed: Estimate) -> str:
    """Return a share of a gap with its interval: "60 % [55, 64]"."""
    low, high = (_share_text(float(end)).removesuffix(" %") for end in closed.ends)
    return f"{_share_text(float(closed))}{'' if np.isnan(closed.ends[0]) else f' [{low}, {high}]'}"


def _ends_text(estimate: Estimate, text: Callable[[Any], str] = rounded) -> str:
    """Return the interval of what is undecided; the value where there is none."""
    ends = " to ".join(text(float(end)) for end in estimate.ends)
    return text(float(estimate)) if np.isnan(estimate.ends[0]) else ends


def _range_text(estimate: Estimate) -> str:
    """Return the interval; the value where there is none."""
    return rounded(float(estimate)) if np.isnan(estimate.ends[0]) else interval_text(*estimate.ends)


_PRINTED = _Printed()
_WORDS = {"swap": "swapping", "remove": "removing", "keep": "keeping only", "rotate": "rotating", "add": "adding to"}
_WORDS |= {"head": "heads", "mlp": "MLPs", "block": "blocks", "neuron": "neurons", "expert": "experts", "set": "sets"}
_WORDS |= {"component": "components", "term": "direct terms", "edge": "edges", "KL(exact ‖ model)": "KL"}
_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "%": percent_text,
    ",": lambda number: f"{float(number):,.0f}",
    "some": lambda share: _estimate_text(share, lambda own: percent_text(own, None)),  # as many digits as it needs
    "first": capital,
    "word": lambda name: _WORDS.get(name, name),
    "closed": _closed_text,
    "share": _share_text,
    "latest": lambda n: "symbol" if n == 1 else f"{n} symbols",
    "rate": lambda share: percent_text(share, 1),
    "ends": _ends_text,
    "shares": lambda estimate: _ends_text(estimate, percent_text),
    "whole": Estimate.text,
    "interval": _estimate_text,
    "against": lambda pair: _apart(*pair),
    "together": lambda layers: _listed(layers, "layer") + " together" * (len(layers) > 1),
    "levels": lambda levels: ", ".join(f"{name} {number_text(level)}" for name, level in levels.items()),
    "range": _range_text,
    "ranges": lambda those: ", ".join(f"{_range_text(own)} ({name})" for name, own in those.items()),
    "of": lambda numbers: ", ".join(f"{rounded(number)} of {name}" for name, number in numbers.items()),
    "at": lambda numbers: ", ".join(f"{rounded(number)} at {place}" for place, number in numbers.items()),
    "verdicts": lambda those: capital("; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in those.items())),
}
