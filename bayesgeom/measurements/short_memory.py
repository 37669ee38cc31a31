"""Short memory: how few of the last symbols an exact observer needs to do as well as a model, and the use of others.

If half of the symbols or fewer are enough, accuracy does not show that the model uses older ones. The evidence response
at that age does, on up to 1,024 sequences until it is decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from bayesgeom.core import Ask, Run, Verdict
from bayesgeom.measurements.base import Subject
from bayesgeom.measurements.calibration import CalibrationReport, compared, gap_closed, references_of, sequence_kl_bits
from bayesgeom.measurements.evidence_response import EvidenceResponseReport, response_until_decided
from bayesgeom.models.base import LARGE
from bayesgeom.report.answer import answer_of, is_reached, reached_by
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.report import Report
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.tasks.base import SymbolTask, WindTunnel


def completed(
    reports: Mapping[str, Report], copies: Sequence[Float64[np.ndarray, " sequence"]], subject: Subject
) -> dict[str, Report]:
    """Return the reports of a diagnosis, of which calibration knows untrained networks and the last symbols.

    Args:
        reports: The reports by name. Older symbols are tested if the evidence response is among them.
        copies: KL of untrained networks on the same sequences.
        subject: The model with its task and the first run, which has the scores of all sequences.
    """
    run, task, model = subject.run, subject.known_task(), subject.edited()
    report, response = reports.get(CalibrationReport.name), reports.get(EvidenceResponseReport.name)
    if not isinstance(report, CalibrationReport):
        return {**reports}
    reports = {**reports, report.name: (report := compared(report, run, copies))}
    answer = answer_of(reports)
    if answer is None or not answer.explains or not (window := matching_window(report, task, run)):
        return reports
    report = replace(report, matching_window=Estimate.of(float(window)))
    if isinstance(response, EvidenceResponseReport):
        is_small = Ask.RERUN in model.asks and model.spec.n_parameters < LARGE  # predictions of a server may cost money
        is_other = response.is_single or str(window) not in response.ages
        if is_other or (is_small and response.verdict_at(window) == Verdict.UNDECIDED):
            response = response_until_decided(model, task, window, seed=subject.seed)
        verdict = str(response.verdict_at(window))
        report = replace(report, older_slope=response.slope[response.ages.index(str(window))], older_verdict=verdict)
    return {**reports, report.name: report}


def matching_window(report: CalibrationReport, task: WindTunnel, run: Run) -> int:
    """Return the smallest number of last symbols whose exact observer does as well as the model on these sequences.

    It is 0 if more than half of the scored positions are needed, if the model is no better than its baseline, and for
    tasks whose evidence is not a sequence of symbols.

    Args:
        report: The calibration of the run.
        task: Its task.
        run: The run.
    """
    verdict, reference = reached_by(report), next(iter(references_of(run).values()))
    most = run.trials.n_scored // 2
    if run.windows is None and not isinstance(task, SymbolTask):
        return 0

    def is_enough(width: int) -> bool:
        kl = _observer_kl_bits(width, task, run)
        n = min(len(kl), len(reference))
        model = gap_closed(sequence_kl_bits(run.behavior)[:n], reference[:n], seed=run.seed)
        return is_reached(verdict, gap_closed(kl[:n], reference[:n], seed=run.seed), float(model))

    if most < 1 or not is_enough(most):
        return 0
    least = 0
    while most - least > 1:  # KL falls with the width
        middle = (least + most) // 2
        least, most = (least, middle) if is_enough(middle) else (middle, most)
    return most


def _observer_kl_bits(width: int, task: WindTunnel, run: Run) -> Float64[np.ndarray, " sequence"]:
    """Return the KL of each sequence of the exact observer of the last symbols, with the better prior of two."""
    if run.windows is not None:
        by_start = run.windows.kl_bits[:, width]
        return np.asarray(by_start[by_start.mean(axis=1).argmin()])
    assert isinstance(task, SymbolTask), "the other tasks have no window"
    return sequence_kl_bits(predicted_behavior(run.trials, task.windowed(run.trials.tokens, width)))
