"""The answer of a diagnosis: do the predictions agree with the exact posterior? A verdict and its numbers.

The share of the gap closed is 1 − KL / KL of the strongest context-free predictor, one that sees no evidence of the
sequence. The lower end of its 95 % interval decides; it must lie above the share that untrained networks close.
Where the predictions are no better than these, numbers on activations explain no inference: `gate_text` says so of a
report.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from scipy.stats import t

from bayesgeom.core import Reason, Verdict
from bayesgeom.core.verdict import Tone
from bayesgeom.report.estimate import UNTRAINED, Estimate
from bayesgeom.report.findings import Finding, Opening, sentence
from bayesgeom.report.storage import is_joined, value_of
from bayesgeom.report.tables import Reported

MATCHED, NEAR = 0.99, 0.9  # least share of the gap closed that is called a match, and close
NAMED_SHARE = 0.05  # of the gap that one temperature must close for the answer to name the confidence
LEAST = 0.01  # share of the gap that a KL without an interval must close to be called better
FOLLOWS = 0.5  # slope above which answers follow the evidence, and below which they do so in part or not at all
OPEN = 0.1  # share of the gap closed above which more sequences may show that the predictions are better
N_COPIES = 8  # least number of untrained networks with which an answer is compared
RARELY = 0.001  # share of untrained networks that close more of the gap than the level
OFF_ANSWER, MOSTLY_OFF = 0.05, 0.5  # off-answer probability that the answer names, and above which it is partly right
SERVED = "served"  # key of the provenance: what the replies of a server left open
MOSTLY_UNLISTED = 0.5  # exact probability of unlisted answers above which nothing is measured
LEAST_GAP_BITS = 1e-4  # KL of the baseline below which there is nothing to tell
ROUNDING = 1e-6  # share of the gap below which the KL of a predictor is that of the exact one
_CALIBRATION, _RESPONSE = "calibration", "evidence_response"  # names of the reports that are read


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """Whether the predictions agree with the exact posterior predictive.

    Args:
        verdict: `MATCHES`, `CLOSE`, `PARTLY`, `NO_BETTER` or `WORSE`; `CLOSES` if it was not compared with untrained
            networks, `UNDECIDED` without an interval, and `NO_GAP` if the baseline is within 1e-4 bits of exact;
            `NOT_MEASURED` if a server did not list answers with more than half of the exact probability. At most
            `PARTLY` with more than half of the probability off the answers.
        gap_closed: 1 − KL / KL of the baseline, at most 1, with its interval over sequences.
        kl_bits: KL(exact ‖ model).
        baseline: Name of the strongest context-free predictor.
        baseline_kl_bits: Its KL.
        uniform_kl_bits: KL of the uniform distribution over the answers.
        untrained_level: Share of the gap that one untrained network in 1,000 exceeds (`untrained_level`); NaN with
            fewer than 8 of them. A model is `NO_BETTER` if the interval of its share reaches this level.
        n_copies: Number of the untrained networks.
        unlisted: Exact probability of the answers that a server did not list, and the number of tokens that it lists.
        confidence: 1/τ: above 1 overconfident, below 1 underconfident (`bayesgeom.stats.behavior`).
        is_confidence_named: Whether the interval excludes 1, and one temperature closes at least 5 % of the gap and
            leaves predictions that are better than the baseline by as much: else sharper or flatter is not what is
            wrong with them.
        off_answer_prob: Mean probability of ids that are no answers.
        whole_kl_bits: KL over the whole vocabulary.
        failure_rate: Share of sequences whose KL is that of the baseline or more.
        shortcut: The strongest predictor that reads evidence in part and reaches the verdict; "" without any.
        window: Least number of last symbols whose exact observer reaches the verdict, if at most half of all; else 0.
        older_slope: Slope of the answers in symbols older than that.
        older_verdict: Its verdict; `NOT_MEASURED` if it has none.
        response: Slope of the model's change in the exact one when evidence older than each age is drawn again; None
            if it was not measured.
        ages: These ages, as far as they are decided: the slope lies above its level, or below the exact 1. 0 is all
            evidence.

    Example:
        >>> import bayesgeom
        >>> print(bayesgeom.diagnose("mess3-small", n=64, probes=["calibration", "evidence_response"]).answer)
        Matches the exact posterior: closes 99.994 % [99.993, 99.995] of the gap between uniform and exact.
    """

    verdict: Verdict
    gap_closed: Estimate
    kl_bits: Estimate
    baseline: str
    baseline_kl_bits: float
    uniform_kl_bits: float
    confidence: Estimate
    is_confidence_named: bool
    off_answer_prob: float
    whole_kl_bits: float = math.nan
    failure_rate: Estimate | None = None
    shortcut: str = ""
    window: int = 0
    older_slope: Estimate | None = None
    older_verdict: str = Verdict.NOT_MEASURED
    response: Estimate | None = None
    ages: tuple[int, ...] = ()
    untrained_level: float = math.nan
    n_copies: int = 0
    unlisted: tuple[float, int] = (0.0, 0)

    def __str__(self) -> str:
        return answer_text(self)

    @property
    def explains(self) -> bool:
        """Whether numbers on activations can explain inference: the predictions are better than context-free ones."""
        return self.verdict not in (Verdict.NO_BETTER, Verdict.WORSE, Verdict.NO_GAP, Verdict.NOT_MEASURED)

    @property
    def tone(self) -> Tone:
        """The color of the answer: "good" only if nothing that was measured speaks against it."""
        if self.verdict in (Verdict.UNDECIDED, Verdict.NO_GAP, Verdict.NOT_MEASURED):
            return "open"
        if not self.explains:
            return "open" if self.opening().finding == Finding.NOT_SHOWN_BETTER else "bad"
        is_rivaled = bool(self.shortcut or self._of_window()) or self.off_answer_prob > OFF_ANSWER
        return "good" if self.verdict in (Verdict.MATCHES, Verdict.CLOSE) and not is_rivaled else "amber"

    @property
    def level(self) -> tuple[str, float]:
        """Name and KL of the predictor that decides: the baseline, or untrained networks where that is beaten."""
        if self.verdict == Verdict.NO_BETTER and self.gap_closed.ends[0] > 0:
            return UNTRAINED, (1 - self.untrained_level) * self.baseline_kl_bits
        return self.baseline, self.baseline_kl_bits

    @property
    def levels(self) -> dict[str, float]:
        """KL of the predictors that the sentences and the gauge name, the strongest context-free one first."""
        return {self.baseline: self.baseline_kl_bits, "uniform": self.uniform_kl_bits} | dict([self.level])

    def opening(self) -> Opening:
        """Return the code of the answer, with the numbers in its sentence."""
        (name, level), kl, confidence = self.level, float(self.kl_bits), float(self.confidence)
        # Others have the name of their verdict.
        finding = Finding.UNLISTED if self.verdict == Verdict.NOT_MEASURED else Finding[self.verdict.name]
        if self.verdict == Verdict.NO_BETTER and (name == UNTRAINED or 1 - kl / level > OPEN):
            finding = Finding.NOT_SHOWN_BETTER
        word = {"over" if confidence > 1 else "under": confidence} if self.is_confidence_named else {}
        reason = self.gap_closed.reason_at().label
        names: dict[str, Any] = {"baseline": self.baseline, "level": name, "reason": reason}
        names |= {"unlisted": self.unlisted[0], "top": self.unlisted[1]}
        return finding.of(share=self.gap_closed, kl_bits=(kl, level), **names, **word, **self._rivals())

    def _rivals(self) -> dict[str, Any]:
        """Return the numbers of what speaks against the verdict: dumber explanations, and what is off the answers."""
        rivals: dict[str, Any] = {"gap": self.baseline_kl_bits, "kl": float(self.kl_bits)}
        rivals |= {"off": self.off_answer_prob} if self.off_answer_prob > OFF_ANSWER else {}
        rivals |= {"whole": self.whole_kl_bits} if self.off_answer_prob > MOSTLY_OFF else {}
        return rivals | self._of_window() | ({"shortcut": self.shortcut} if self.shortcut else {})

    def _of_window(self) -> dict[str, Any]:
        """Return the numbers on an observer of the last symbols that does as well; none if older ones are used."""
        if not self.window or self.older_verdict == Verdict.TRANSPORTS:
            return {}
        found: dict[str, Any] = {"window": self.window}
        slope = self.older_slope
        if slope is not None and slope.baselines and slope.ends[0] > slope.baselines[0].value:
            return found | {"older": str(self.window), "slope": slope}
        if self.older_verdict in (Verdict.NOT_SHOWN, Verdict.NOT_IDENTIFIED):
            return found
        is_measured = self.older_verdict != Verdict.NOT_MEASURED
        return found | {"unknown": "not decided" if is_measured else "not measured"}


def answer_of(diagnosis: Mapping[str, Any]) -> Answer | None:
    """Return the answer of reports by name; None if the agreement with an exact posterior was not measured.

    Args:
        diagnosis: A diagnosis, or its reports by name.
    """
    if (report := diagnosis.get(_CALIBRATION)) is None or is_joined(report):
        return None
    references = value_of(report, "references")
    if "uniform" not in references:  # as in files of other versions
        return None
    levels = dict(zip(references, map(float, report.reference_kl_bits), strict=True))
    baseline, closed, verdict = references[0], report.gap_closed[0], reached_by(report)
    copies = report.gap_closed_by_copies
    untrained = untrained_level(copies)
    response, ages = _response(diagnosis.get(_RESPONSE))
    gain, least = float(report.tempering_gain_bits), NAMED_SHARE * levels[baseline]
    replies = report.provenance.get(SERVED, {})
    unlisted = replies.get("exact_mass", 0.0), replies.get("top", 0)
    return Answer(
        verdict=Verdict.NOT_MEASURED
        if unlisted[0] > MOSTLY_UNLISTED
        else _against_untrained(verdict, closed, untrained),
        unlisted=unlisted,
        gap_closed=closed,
        kl_bits=report.kl_bits,
        baseline=baseline,
        baseline_kl_bits=levels[baseline],
        uniform_kl_bits=levels["uniform"],
        confidence=report.confidence,
        is_confidence_named=float(report.confidence) > 0  # else certain predictions are closest
        and gain >= least
        and float(report.kl_bits) - gain <= levels[baseline] - least
        and not report.confidence.ends[0] <= 1 <= report.confidence.ends[1],
        off_answer_prob=float(report.off_answer_prob),
        **_rivals_of(report, verdict),
        response=response,
        ages=ages,
        untrained_level=untrained,
        n_copies=len(copies),
    )


def verdict_of(closed: Estimate) -> Verdict:
    """Return the verdict on a share of the gap closed: the lower end of its interval decides.

    Args:
        closed: The share, a scalar. It decides itself if it is the same in all sequences, if no sequence of at least 30
            differs from exact, or if an answer with probability 0 makes it infinite.
    """
    low, high = _deciding_ends(closed)
    if math.isnan(low):
        return Verdict.UNDECIDED
    for least, verdict in ((MATCHED, Verdict.MATCHES), (NEAR, Verdict.CLOSE)):
        if low >= least:
            return verdict
    if low > ROUNDING:
        return Verdict.PARTLY
    return Verdict.WORSE if high < -ROUNDING else Verdict.NO_BETTER


def _deciding_ends(closed: Estimate) -> tuple[float, float]:
    low, high = map(float, closed.ends)
    is_exact = float(closed) >= 1 - ROUNDING and low >= NEAR
    if closed.reason_at() == Reason.CONSTANT or np.isneginf(closed.value) or is_exact:
        return float(closed), float(closed)
    return low, high


def untrained_level(closed: Float[np.ndarray, " untrained"]) -> float:
    """Return the share of the gap that one untrained network in 1,000 exceeds; NaN where that is not known.

    Logarithms of the KL, in units of that of the baseline, are taken as normal: the level is the end of the prediction
    interval of a further network.

    Args:
        closed: The share that each untrained network closes. The level is not known of fewer than 8, of networks that
            are all the same, as a `rebuild` with a fixed seed returns them, and where one is missing or infinite.

    Example:
        >>> round(untrained_level(np.array([0.1, 0.12, 0.08, 0.1, 0.11, 0.09, 0.1, 0.12])), 3)
        0.17
        >>> untrained_level(np.array([0.1, 0.12]))
        nan
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, k = np.log(1 - closed), len(closed)
    if k < N_COPIES or not np.isfinite(logs).all() or (np.ptp(logs) == 0 and logs[0] < -1e-9):
        return math.nan
    margin = t.ppf(1 - RARELY, k - 1) * logs.std(ddof=1) * math.sqrt(1 + 1 / k)
    return max(0.0, 1 - math.exp(logs.mean() - margin))


def _against_untrained(verdict: Verdict, closed: Estimate, level: float) -> Verdict:
    """Return the verdict on a share of the gap that is compared with the level of untrained networks."""
    if verdict not in (Verdict.MATCHES, Verdict.CLOSE, Verdict.PARTLY):
        return verdict
    is_above = _deciding_ends(closed)[0] > level
    return Verdict.CLOSES if math.isnan(level) else verdict if is_above else Verdict.NO_BETTER


def reached_by(report: Any) -> Verdict:
    """Return the verdict that predictions reach, before they are compared with untrained networks.

    Args:
        report: The report of calibration.
    """
    if float(report.reference_kl_bits[0]) < LEAST_GAP_BITS:
        return Verdict.NO_GAP
    verdict = verdict_of(report.gap_closed[0])
    is_off = float(report.off_answer_prob) > MOSTLY_OFF
    return Verdict.PARTLY if is_off and verdict in (Verdict.MATCHES, Verdict.CLOSE) else verdict


def is_reached(verdict: Verdict, closed: Estimate, least: float) -> bool:
    """Return whether another predictor does as well: it reaches the verdict, or the KL where that is `PARTLY`.

    Args:
        verdict: The verdict of the model.
        closed: The share of the gap that the other one closes. It decides itself without an interval, and for the
            exact predictor.
        least: The share that the model closes.
    """
    if verdict == Verdict.PARTLY:
        return float(closed) >= least - ROUNDING
    low, _ = _deciding_ends(closed)
    low = float(closed) if math.isnan(low) or float(closed) >= 1 - ROUNDING else low
    return low >= {Verdict.MATCHES: MATCHED, Verdict.CLOSE: NEAR}.get(verdict, np.inf)


def _rivals_of(report: Any, verdict: Verdict) -> dict[str, Any]:
    """Return the fields of an answer on failures, and on dumber predictors that do as well."""
    least, window = float(report.gap_closed.value[0]), float(report.matching_window)
    shares = map(report.shortcut_gap_closed.__getitem__, range(len(report.shortcuts)))
    known = zip(report.shortcuts, shares, strict=True)
    return {
        "whole_kl_bits": float(report.whole_kl_bits),
        "failure_rate": report.failure_rate,
        "shortcut": next((name for name, closed in known if is_reached(verdict, closed, least)), ""),
        "window": 0 if math.isnan(window) else int(window),
        "older_slope": report.older_slope,
        "older_verdict": report.older_verdict,
    }


def _response(report: Any) -> tuple[Estimate | None, tuple[int, ...]]:
    """Return the slopes of the ages at which they are decided.

    Where the exact answer hardly depends on evidence that old, an interval reaches from no use of it to exact use.
    """
    if report is None or report.is_single:
        return None, ()
    (low, high), level = report.slope.ends, report.slope.compared[0].value
    others = (Verdict.NOT_IDENTIFIED, Verdict.NOT_AS_BAYES)
    is_identified = np.array([verdict not in others for verdict in report.verdicts])
    known = is_identified & ((low > level) | (high < 1))
    ages = tuple(int(age) for age, is_known in zip(report.ages, known, strict=True) if is_known)
    return (report.slope[known], ages) if ages else (None, ())


def answer_text(answer: Answer) -> str:
    """Return the answer of a diagnosis in one sentence."""
    return sentence(answer.opening())


def answer_details(answer: Answer) -> str:
    """Return what stands behind the answer: distance, confidence, sequences that fail, age of the used evidence."""
    return f"{'; '.join(map(sentence, _details(answer)))}."


def _details(answer: Answer) -> Iterator[Opening]:
    if answer.verdict == Verdict.NOT_MEASURED:
        yield Finding.OF_BOUNDS.of()
        return
    yield Finding.DISTANCE.of(kl_bits=answer.kl_bits, levels=answer.levels)
    # 0: certain predictions are closest; NaN: no temperature changes them.
    if float(answer.confidence) > 0 and (answer.explains or answer.is_confidence_named):
        low, high = map(float, answer.confidence.ends)
        is_cheap = not answer.is_confidence_named and (low > 1 or high < 1)
        finding = Finding.CONFIDENCE_CHEAP if is_cheap else Finding.CONFIDENCE
        yield finding.of(confidence=answer.confidence)
    if answer.failure_rate is not None and float(answer.failure_rate) >= 0 and answer.explains:
        rate, most = float(answer.failure_rate), float(answer.failure_rate.ends[1])
        finding = Finding.FAILURES if rate > 0 else Finding.NO_FAILURES
        if most < 1:
            yield finding.of(rate=rate, most=most, n=answer.failure_rate.n, baseline=answer.baseline)
    if answer.response is not None and answer.explains:
        yield _evidence_used(answer.response, answer.ages)


def _evidence_used(response: Estimate, ages: Sequence[int]) -> Opening:
    """Return how old the evidence is that the predictions use."""
    low, level, slope = response.ends[0], response.compared[0].value, response.value
    if not (low > level).any():
        return Finding.EVIDENCE_NOT_USED.of()
    used = np.flatnonzero((low > level) & (low > FOLLOWS))
    if not len(used):
        return Finding.EVIDENCE_USED_IN_PART.of(weight=float(slope[0]))
    age, weight = ages[used[-1]], float(slope[used[-1]])
    return Finding.EVIDENCE_USED.of(age=age or math.nan, weight=weight)


def gate_text(answer: Answer | None, report: Reported) -> str:
    """Return the line above numbers on activations that explain no inference, because there is none; "" elsewhere.

    Args:
        answer: The answer of the diagnosis; None where the report itself may hold the model's own KL.
        report: The report that holds the numbers.
    """
    if report.is_behavioral:
        return ""
    level = _not_beaten(report.unchanged_kl_bits) if answer is None else "" if answer.explains else answer.level[0]
    return sentence(Finding.NO_INFERENCE.of(level=level))


def _not_beaten(kl_bits: Estimate | None) -> str:
    """Return the predictor that the model is not clearly better than, next to which its KL is stored; "" if none."""
    if kl_bits is None:
        return ""
    for baseline in kl_bits.compared:
        if float(kl_bits) > (1 - LEAST) * float(baseline.value):
            return baseline.name.removesuffix(" prediction")
    return ""
