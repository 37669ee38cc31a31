"""What one report opens with: its answer in a sentence on its page, in its terminal table and in its section.

A report without an answer opens with its first number that has a verdict.
"""

import math
from collections.abc import Mapping

from bayesgeom.core import Verdict
from bayesgeom.core.text import labeled_text
from bayesgeom.report.answer import gate_text
from bayesgeom.report.findings import Opening, capital, sentence
from bayesgeom.report.render import verdict_text
from bayesgeom.report.storage import is_joined
from bayesgeom.report.tables import Reported, Viewed

_COMPARED = (Verdict.YES, Verdict.BARELY, Verdict.NO, Verdict.UNDECIDED)  # then the number is the answer


def opening_of_all(reports: Mapping[str, Reported]) -> list[str]:
    """Return the opening of reports without an answer to all: that of a single report, or of one with its own answer.

    Args:
        reports: The reports by name, in the order in which they are shown.
    """
    shown = [report for report in reports.values() if not isinstance(report, Viewed)]
    return opening_of(shown[0]) if shown and (len(shown) == 1 or _answer_of(shown[0]) is not None) else []


def opening_of(report: Reported, *, is_gated: bool = False) -> list[str]:
    """Return the answer of a report in one sentence, and the number behind it; nothing for a report without numbers.

    Args:
        report: The report. If its own KL shows that the predictions are no better than context-free ones, this comes
            first.
        is_gated: Whether this is already said.
    """
    line, gate, answer = report.headline(), "" if is_gated else gate_text(None, report), _answer_of(report)
    if line is None:
        return []
    number, verdict = labeled_text(line.label, line.value_text), verdict_text(line.verdict)
    says, *support = map(str.strip, sentence(answer).split("\n")) if answer else [""]
    if gate:
        return [gate, " ".join(filter(None, (says, *support))) or f"{capital(number)}."]
    if says:
        interval = f", 95 % interval {line.interval}" if line.interval and not math.isnan(line.value) else ""
        return [says, "".join(support) or f"{capital(number)}{interval}{f' ({line.why})' if line.why else ''}."]
    verdict = f"{verdict} ({line.why})" if verdict and line.why else line.why or verdict
    level = f"; the strongest is {line.baselines[0]}" if line.levels else ""
    if math.isnan(line.value) or (line.verdict and line.verdict not in _COMPARED):
        return [f"{capital(text)}." for text in (verdict, number) if text]
    if line.verdict in _COMPARED[:3]:
        return [f"{capital(number)} {verdict}{level}."]
    return [f"{capital(number)}{f' ({verdict})' if verdict else ''}."]


def _answer_of(report: Reported) -> Opening | None:
    """Return the answer of a report; None of one that is joined along an axis, whose numbers are not one answer."""
    return None if is_joined(report) else report.answer()
