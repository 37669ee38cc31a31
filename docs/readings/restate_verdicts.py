"""Restate verdicts of committed intervention reports by the present rule, where it follows from the stored numbers.

Run from the root of the repository:

    python docs/readings/restate_verdicts.py

- A quantity whose R² before removal is less than 0.1 above that of shuffled values is no longer called "not used": the
  verdict is "undecided", and the reason says that it is hardly decodable.
- A whole complement is one variance-matched control, and the report says so. A layer that is called "used" with this
  control alone becomes "undecided".
- A swap that is called "used" must also move the answer without the direct path from the site to the output, beyond
  every control without its own. Earlier this was asked of quantities only, and not of frames and of J-space.

No number changes. Verdicts on LEACE subspaces are computed again from the stored numbers; the script names each one
that differs from the stored verdict for another reason. Running it again changes nothing.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import numpy as np

from bayesgeom.core.files import atomic_directory
from bayesgeom.interventions.design import LEAST_CONTROLS, MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST
from bayesgeom.interventions.report import (
    AFTER,
    BEFORE,
    KL,
    OUTSIDE,
    REMOVAL,
    SHIFT,
    SHUFFLED,
    InterventionReport,
)
from bayesgeom.interventions.summary import reason_text
from bayesgeom.interventions.verdicts import (
    NOT_IDENTIFIED,
    NOT_USED,
    UNDECIDED,
    USED,
    Effect,
    Evidence,
    Reach,
    against_later_use,
    verdict_of,
)
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.estimators import UNTRAINED
from bayesgeom.results.storage import JSON, read, write
from bayesgeom.subspaces.readout import Erasure

FOLDER = ROOT / "docs" / "readings" / "interventions"
KIND = InterventionReport.name
DRAWN = re.compile(r"^(?P<reason>.*) \(variance-matched controls: (?P<drawn>.*)\)$", re.DOTALL)
WHOLE = re.compile(r"^whole complement, rank (\d+)$")
SINGLE = re.compile(r"^1 \(the whole complement, rank \d+\)$")
COUNT = re.compile(r"(\d+ variance-matched subspaces)(?! \()")


def restated(report: InterventionReport, where: str) -> InterventionReport:
    """Return the report with verdicts and reasons by the present rule; problems are printed."""
    verdicts, reasons, single = list(report.verdict_by_layer), list(report.reason_by_layer), list[int]()
    for at in report.layers:
        found = DRAWN.match(reasons[at])
        assert found is not None, f"{where}, layer {at}: {reasons[at]}"
        reason, drawn = found["reason"], WHOLE.sub(r"1 (the whole complement, rank \1)", found["drawn"])
        is_single = bool(SINGLE.match(drawn))
        single += [at] * is_single
        if report.subspace.startswith("LEACE") and report.is_swap and verdicts[at] != NOT_IDENTIFIED:
            verdict, new = verdict_of(evidence(report, at, n_matched=1 if is_single else LEAST_CONTROLS))
            is_hardly = (verdicts[at], verdict) == (NOT_USED, UNDECIDED) and "hardly decodable" in new
            is_alone = (verdicts[at], verdict) == (USED, UNDECIDED) and "1 distinct variance-matched control" in new
            if is_hardly or is_alone:
                print(f"{where}, layer {at}: {verdicts[at]} → undecided, {new}")
                verdicts[at], reason = verdict, new
            elif verdict != verdicts[at]:
                print(f"differs: {where}, layer {at}: stored {verdicts[at]}, computed {verdict}, {new}")
        indirect = report.indirect_movement
        if verdicts[at] == USED and np.isfinite(indirect.value[at, 0]):
            is_matched = "no control subspace has the same share" not in report.reason_by_layer[at]
            against = against_later_use(*beyond(indirect, at, RANDOM_MOST, MATCHED_MOST), is_matched=is_matched)
            if against:
                verdicts[at], reason = verdict_of(evidence(report, at, n_matched=LEAST_CONTROLS))
                assert verdicts[at] == UNDECIDED and against[0] in reason, f"{where}, layer {at}: {reason}"
                print(f"{where}, layer {at}: used → undecided, {reason}")
        assert not is_single or verdicts[at] != USED, f"measure {where} again: layer {at} has one control"
        reasons[at] = reason_text(reason, drawn)
    note = f" (1, the whole complement, in layer{'s' * (len(single) > 1)} {', '.join(map(str, single))})"
    stated = COUNT.sub(rf"\1{note}", report.where) if single else report.where
    return replace(report, where=stated, verdict_by_layer=tuple(verdicts), reason_by_layer=tuple(reasons))


def effect(own: Estimate, at: int) -> Effect:
    """Return the effect in one layer, over all positions."""
    return Effect(*(float(part[at, 0]) for part in (own.value, *own.ends)))


def beyond(own: Estimate, at: int, random: str = RANDOM, matched: str = MATCHED) -> tuple[Effect, float, float]:
    """Return the effect in one layer, and the largest of random and of matched subspaces."""
    most = {each.name: float(each.bar("higher")[at, 0]) for each in own.baselines}
    return effect(own, at), most.get(random, np.nan), most.get(matched, np.nan)


def evidence(report: InterventionReport, at: int, *, n_matched: int) -> Evidence:
    """Return the evidence of one layer from the stored numbers; for LEACE, removal is the erasure."""

    movement, ceiling = report.movement, report.movement.ceiling[at, 0]
    untrained = {each.name: each.value[at, 0] for each in movement.baselines}.get(UNTRAINED, np.nan)
    effects = {"movement": beyond(movement, at)}
    is_later = "later" in report.where
    if report.quantity != "entropy" and not is_later:
        effects["answer shift"] = beyond(report.change_bits[SHIFT], at)
    shuffled = report.r2.baseline(SHUFFLED).value[AFTER, at]
    removal = effect(report.change_bits[REMOVAL], at)
    has_indirect = bool(np.isfinite(report.indirect_movement.value[at, 0]))
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = (movement.value[at, 0], movement.ends[0][at, 0], untrained)
        shares = [float(np.divide(part, ceiling)) for part in parts]
    return Evidence(
        kind=report.kind,
        effects=effects,
        is_matched="no control subspace has the same share" not in report.reason_by_layer[at],
        n=report.n,
        n_random=LEAST_CONTROLS,
        n_matched=n_matched,
        erasure=Erasure(
            before=float(report.r2.value[BEFORE, at]), after=float(report.r2.value[AFTER, at]), permuted=float(shuffled)
        ),
        removal=removal,
        erasing=removal,
        indirect=beyond(report.indirect_movement, at, RANDOM_MOST, MATCHED_MOST) if has_indirect else None,
        removal_ceiling=float(report.change_bits.ceiling[REMOVAL, at, 0]),
        own_kl=float(report.unedited_bits[KL, 0]),
        is_identified=True,
        is_readout=False,
        reach=Reach(
            outside_share=float(report.share.value[OUTSIDE, at]),
            share_of_ceiling=shares[0],
            untrained_share=shares[2],
        ),
        least_share_of_ceiling=shares[1],
    )


def main() -> None:
    """Restate every report below `docs/readings/interventions` that holds an intervention."""
    for path in sorted(FOLDER.glob(f"*/*/{JSON}")):
        folder = path.parent
        diagnosis = Diagnosis.load(folder)
        if KIND not in diagnosis:
            continue
        old = diagnosis[InterventionReport]
        new = restated(old, str(folder.relative_to(FOLDER)))
        texts = {name: vars(new)[name] for name in ("where", "verdict_by_layer", "reason_by_layer")}
        if all(vars(old)[name] == text for name, text in texts.items()):
            continue
        parts, extra = read(folder)
        scalars, arrays = parts[KIND]
        told = {name: list(text) if isinstance(text, tuple) else text for name, text in texts.items()}
        with atomic_directory(folder) as aside:
            write(aside, {**parts, KIND: ({**scalars, **told}, arrays)}, extra)


if __name__ == "__main__":
    main()
