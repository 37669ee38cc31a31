"""The generated page of committed intervention reports: `docs/readings/interventions/README.md`."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import interval_text, number_text
from bayesgeom.core.trials import Trials
from bayesgeom.interventions.onwards_report import OnwardsReport
from bayesgeom.interventions.report import (
    AFTER,
    REMOVAL,
    SHUFFLED,
    STAGES,
    VARIANCE,
    InterventionReport,
    largest_control,
)
from bayesgeom.interventions.verdicts import NOT_IDENTIFIED, UNDECIDED, USED, VERDICTS, listed
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.storage import JSON
from bayesgeom.results.tables import markdown
from bayesgeom.subspaces.quantity import Quantity, confounds
from bayesgeom.tasks.base import WindTunnel, task_from_config

FOLDER = Path("docs/readings/interventions")
MEASURED = "measured.toml"  # names the reports that were measured under the present rules
SINGLE = "variance-matched controls: 1 (the whole complement"
_HEAD = """# Intervention readings

This page is generated from the reports in this folder (`bayesgeom reproduce --write-docs`).
[Interventions](../../interventions.md) explains the method, and [the readings page](../../readings.md#subspaces) what
the numbers mean.

Each number is the value in layers 0, 1, 2, …, with one layer edited at a time.

- **movement**: how far a swap moves the model's own value to the donor's; 1 is all of the way. The value is the model's
  entropy for entropy, and its answer otherwise. **Bold**: the verdict in that layer is "used".
- **95 % interval**: of the number in the row above, for one layer after the other. R², permutation levels and shares of
  variance have none: R² is that of one map on held-out sequences.
- **indirect**: the movement without the direct path from the edited site to the output; **indirect controls**: the
  largest of the same controls, also without theirs.
- **controls**: the largest movement among 20 random subspaces of the same rank and 20 with the same share of variance.
  *1 variance-matched control (the whole complement)*: in these layers only all other directions together were
  compared with the subspace. This is one control, so the verdict is at most undecided.
- **KL increase**: cost of removing the subspace, in bits. The model's own KL is in the first column.
- **R² before**, **R² after**: held-out R² of the quantity before and after removal. **R² shuffled**: the permutation
  level, the 97.5 % quantile of R² of shuffled values after removal. Erasure is complete where R² after it is at most
  0.01 above that level, or above 0 if the level is negative. "Not used" also needs R² before removal to be at least 0.1
  above.
- **R² excess**: the largest amount, over the erased layers, by which R² exceeds both the permutation level and 0.
- **survives given position and answer**: the verdict of the same swap, in the layers that are "used", after position
  and answer log-odds were erased from the activation and regressed out of the quantity. *Yes*: still used. *Undecided*:
  this use is not shown to be more than use of what correlates with it
  ([details](../../interventions.md#correlated-quantities)). *R² left*: held-out R² of the whole quantity after this
  edit is removed, layer by layer. Where it is high, the edit changed little of the quantity, so *undecided* says
  little. *Given position alone*: answer log-odds were not held fixed.
  *Given … known*: it was also held fixed whether the posterior leaves a single answer. With returning keys this bit is
  nearly the entropy, and on recall it is all of it, so a *yes* without it may be use of that bit. *No such fit*: the
  fit of this subspace has no `given`.
"""
_RULES = """## Rules of the stored readings

Verdicts follow the [present criteria](../../interventions.md#verdicts) in every row.

- **Intervals.** {intervals}
- **Controls.** Where the complement lacks variance, controls come from the whole site
  ([how](../../interventions.md#controls-with-the-same-share-of-variance)). In {alone} layers of {n_alone} reports no 20
  distinct ones were found, and the whole complement alone was compared. None of these layers can be called used.
"""
_PRESENT = "All {total} reports have the present intervals and controls (measured on or after 22 November 2026)."
_EARLIER = """{old} of {total} reports have intervals and controls from before 22 November 2026, afternoon: {names}. At
  n = 64 an end on the side of a heavy tail was then nearer, by up to a factor of two
  ([coverage](../../../benchmarks/README.md#coverage))."""
_MATRIX = """## What was measured

*stream*: the residual stream, scored at all positions; *later*: the same, one position edited and later ones scored;
*onwards*: erased in a layer and all later ones; *carried*: the state (h, c) that an LSTM carries, scored at later
positions. Not measured, because it cannot be edited or fitted:

- heads of an LSTM, which has none;
- trained swaps of a carried state, because they train through hook points;
- the state of a Mamba: {states} numbers in a layer are too many for the 1,024 sequences of a fit. A Mamba
  therefore has no *carried*.

What else the table lacks was not run, although it mostly can be: for example *later* in most recurrent networks.
`slow-hmm-lstm` did not learn its task, so its verdicts show little about LSTMs. Second seeds are left out. On
bijections without returning keys the entropy is a function of the position, so erasing it *onwards* identifies nothing.
"""
_FITS = """## Fits of entropy and belief in transformers

Verdicts of swaps in the residual stream, over all scored positions, for the three ways to
[fit a quantity](../../interventions.md#where-a-quantity-lies): LEACE, covariance directions, and a trained swap, which
bounds from above what any subspace of its rank can do. The strongest verdict is given, with its layers.
"""
_USES = """## Uses, and whether they survive

Every swap of entropy or belief that is called used in a layer, and the verdict of the same swap once position and
answer log-odds are held fixed. Where the last column says *undecided*, use of the quantity itself is not shown.

**Belief.** The answer cannot be told from the belief. On bijections, recall and HMMs the answer *is* the belief; on
`mess3-small` and `sticky-small` it determines the belief. With the answer held fixed, only the curve between
probability and log-odds is left (table below). No belief is shown to be used apart from the answer. Where both were
held fixed, the cell begins with that verdict. On `mess3-small` nothing is left to edit. *Given position alone* tests
less, because position explains little of the belief.

**Entropy of `mess3-small`: answer alone.** Erasing position and answer together leaves nothing to edit.

**Trained swaps** are fitted by gradient descent, without anything held fixed.
"""
_SHARES = (
    "Shares of the variance of the exact belief, by linear regression on {n} sequences of each task (seed {seed}):\n"
)
_SEQUENCES, _SEED = 256, 0  # of each task, for `_SHARES`
_SURVIVES, _INTERVAL, NOT_MEASURED = "survives given position and answer", "95 % interval", "not measured"
NO_FIT = "no such fit"
KINDS, FITTED = ("LEACE", "covariance", "trained swap"), ("entropy", "belief")
CAN_HOLD = ("LEACE", "covariance")
_BOTH, _GIVEN = "position and answer", re.compile(r", given (.*)\)$")
_QUANTITIES = {"entropy": "(entropy", "belief": "(belief", "key frame": "frame", "J-space": "Jacobian"}


Models = dict[str, list[InterventionReport | OnwardsReport]]


def page(folder: Path) -> str:
    """Return the page for every report below `folder`.

    Raises:
        OutputFault: A folder holds a damaged report.
        InvalidArgument: `measured.toml` names a report that does not exist.
    """
    models: Models = {}
    paths = sorted(folder.glob(f"*/*/{JSON}"))
    for path in paths:
        for report in Diagnosis.load(path.parent).values():
            if isinstance(report, InterventionReport | OnwardsReport):
                models.setdefault(path.parent.parent.name, []).append(report)
    head = ("subspace, scored positions", "", "layers 0, 1, 2, …", "verdict", _SURVIVES)
    parts = [f"## {name}\n\n{markdown(head, [*_rows(reports)])}\n" for name, reports in models.items()]
    listed = folder / MEASURED
    present = tomllib.loads(listed.read_text(encoding="utf-8"))["present"] if listed.exists() else []
    matrix = markdown(("checkpoint", *_QUANTITIES), [(name, *_cells(reports)) for name, reports in models.items()])
    if missing := [name for name in present if not (folder / name / JSON).exists()]:
        raise InvalidArgument(f"{listed} names reports that do not exist: {', '.join(missing)}. Remove these names.")
    earlier = [name for path in paths if (name := str(path.parent.relative_to(folder))) not in present]
    rules = _rules([report for reports in models.values() for report in reports], earlier)
    measured = f"{_MATRIX.format(states=_states(models))}\n{matrix}\n"
    return "\n".join([_HEAD, rules, measured, _fits(models), _survival(models), *parts])


def _states(models: Models) -> str:
    """Return the range of the sizes of the Mambas' states."""
    own = [report.provenance["model"] for reports in models.values() for report in reports]
    sizes = sorted({model["d_state"] for model in own if model["architecture"] == "mamba"})
    return " to ".join(f"{size:,}" for size in dict.fromkeys((*sizes[:1], *sizes[-1:]))) or "many"


def _rules(reports: list[InterventionReport | OnwardsReport], earlier: list[str]) -> str:
    """State the rules under which numbers were measured; `earlier` lists the reports of earlier rules."""
    alone = [count for report in reports if (count := len(_alone(report)))]
    names, total = ", ".join(f"`{name}`" for name in earlier), len(reports)
    intervals = _EARLIER.format(old=len(earlier), total=total, names=names) if earlier else _PRESENT.format(total=total)
    return _RULES.format(intervals=intervals, alone=sum(alone), n_alone=len(alone))


def _cells(reports: list[InterventionReport | OnwardsReport]) -> Iterator[str]:
    """How each quantity was measured on a checkpoint; a dash where it was not."""
    for label in _QUANTITIES.values():
        yield ", ".join(dict.fromkeys(_how(report) for report in reports if label in report.subspace)) or "–"


def _how(report: InterventionReport | OnwardsReport) -> str:
    if isinstance(report, OnwardsReport):
        return "onwards"
    if "carried" in report.where:
        return "carried"
    return "later" if "later" in report.where else "stream"


def _fits(models: Models) -> str:
    """Return the section on the fits of entropy and belief in transformers, and those that were not measured."""
    rows, missing = list[tuple[str, ...]](), dict[str, list[str]]()
    for name, reports in models.items():
        if not any(report.provenance["model"]["n_heads"] for report in reports):
            continue
        cells = {f"{kind} ({quantity}": _fit(reports, kind, quantity) for quantity in FITTED for kind in KINDS}
        rows.append((f"`{name}`", *cells.values()))
        for label, cell in cells.items():
            if cell == NOT_MEASURED:
                missing.setdefault(label.replace(" (", " of "), []).append(f"`{name}`")
    head = ("checkpoint", *(f"{quantity}: {kind}" for quantity in FITTED for kind in KINDS))
    lists = [f"- {label}: {', '.join(names)}" for label, names in missing.items()]
    absent = "\n".join(["Not measured:", "", *lists, ""]) if lists else "Every fit was measured.\n"
    return f"{_FITS}\n{markdown(head, rows)}\n\n{absent}"


def _fit(reports: Sequence[InterventionReport | OnwardsReport], kind: str, quantity: str) -> str:
    """Return the verdict of a swap along one fit in the residual stream, over all scored positions."""
    swaps = [own for own in reports if isinstance(own, InterventionReport) and own.is_swap and _how(own) == "stream"]
    for own in swaps:
        if own.subspace.startswith((f"{kind} ({quantity})", f"{kind} ({quantity}, rank")):
            strongest = min(filter(None, own.verdict_by_layer), key=VERDICTS.index)
            layers = [at for at, verdict in enumerate(own.verdict_by_layer) if verdict == strongest]
            return strongest if strongest in (UNDECIDED, NOT_IDENTIFIED) else f"{strongest} in {listed(layers)}"
    is_identified = not any(own.quantity == quantity and NOT_IDENTIFIED in own.verdict_by_layer for own in swaps)
    return NOT_MEASURED if is_identified else NOT_IDENTIFIED


def _survival(models: Models) -> str:
    """Return the section on the uses of entropy and belief, and whether they survive."""
    rows = [
        (f"`{name}`", report.subspace, *_place(report).split(", ", 1), listed(_used(report)), cell)
        for name, reports in models.items()
        for report in reports
        if isinstance(report, InterventionReport) and report.subspace.startswith(KINDS)
        if (cell := _survives(report, reports))
    ]
    table = markdown(("checkpoint", "subspace", "site", "positions", "used in", _SURVIVES), rows)
    return f"{_USES}\n{table}\n\n{_SHARES.format(n=_SEQUENCES, seed=_SEED)}\n{_shares(models)}\n"


def _shares(models: Models) -> str:
    """Return the table of the shares of the belief's variance, with one row for each task."""
    tasks, names = dict[str, WindTunnel](), dict[str, list[str]]()
    for name, reports in models.items():
        if own := [report for report in reports if _QUANTITIES["belief"] in report.subspace]:
            task = task_from_config(own[0].provenance["task"])
            tasks[str(task)] = task
            names.setdefault(str(task), []).append(f"`{name}`")
    head = ("task of", "left with the answer log-odds held fixed", "explained by position")
    rows = []
    for label, task in tasks.items():
        trials = task.sample(_SEQUENCES, seed=_SEED)
        left, position = _left(trials, "answer"), 1 - _left(trials, "position")
        rows.append((", ".join(names[label]), *(f"{100 * share:.2g} %" for share in (left, position))))
    return markdown(head, rows)


def _left(trials: Trials, fixed: str) -> float:
    """Return the share of the belief's variance that a linear map of the fixed quantity leaves."""
    values = Quantity.of("belief").exact(trials).flatten(0, 1).numpy()
    known = confounds(trials, (fixed,)).flatten(0, 1).numpy()
    values, known = values - values.mean(axis=0), known - known.mean(axis=0)
    weights = np.linalg.lstsq(known, values, rcond=1e-9)[0]
    return float(np.square(values - known @ weights).sum() / np.square(values).sum())


def _survives(report: InterventionReport, reports: Sequence[InterventionReport | OnwardsReport]) -> str:
    """Return whether use survives with position and answer held fixed; "" for reports without use, or with `given`.

    Only LEACE and covariance fits can hold quantities fixed.
    """
    if not (used := _used(report)) or _GIVEN.search(report.subspace):
        return ""
    if not report.subspace.startswith(CAN_HOLD):
        return NO_FIT
    swaps = [own for own in reports if isinstance(own, InterventionReport) and _place(own) == _place(report)]
    given = [(found[1], own) for own in swaps if (found := _GIVEN.search(own.subspace))]
    held = {names: _verdicts(own, used) for names, own in given if _GIVEN.sub(")", own.subspace) == report.subspace}
    both, alone = held.pop(_BOTH, ""), [_held(names, text) for names, text in held.items()]
    return "; ".join([both, *alone] if both else alone) or NOT_MEASURED


def _held(names: str, text: str) -> str:
    return f"given {names}{'' if ' and ' in names else ' alone'}: {text}"


def _used(report: InterventionReport) -> list[int]:
    return [at for at, verdict in enumerate(report.verdict_by_layer) if verdict == USED]


def _place(report: InterventionReport) -> str:
    """Return site and positions."""
    return report.where.partition("; ")[0]


def _verdicts(report: InterventionReport, layers: Sequence[int]) -> str:
    """Return the verdicts in some layers; "yes" stands for "used". An undecided layer has the R² that is left."""
    found: dict[str, list[int]] = {}
    for at in layers:
        verdict = report.verdict_by_layer[at] or NOT_MEASURED
        found.setdefault("yes" if verdict == USED else verdict, []).append(at)
    texts = {verdict: f"{verdict} in {listed(at)}" for verdict, at in found.items()}
    if UNDECIDED in found:
        texts[UNDECIDED] += f" (R² left {_numbers(report.r2.value[AFTER, found[UNDECIDED]])})"
    return "; ".join(texts.values())


def _rows(reports: Sequence[InterventionReport | OnwardsReport]) -> Iterator[tuple[str, ...]]:
    for report in reports:
        survives, rows = "", _of_erasure(report) if isinstance(report, OnwardsReport) else _of_intervention(report)
        if isinstance(report, InterventionReport):
            survives = _survives(report, reports)
        for number, row in enumerate(rows):
            yield *row, survives if number == 0 else ""


def _of_intervention(report: InterventionReport) -> Iterator[tuple[str, ...]]:
    what = f"{report.kind} {report.subspace}, {report.where}; n = {report.n}"
    own = f"own KL {report.unedited_kl_bits:.2g} bits"
    removal = _numbers(report.change_bits.value[REMOVAL, :, 0])
    interval = _intervals(report.change_bits[REMOVAL, :, 0])
    if not report.is_swap:
        yield what, "KL increase (bits)", removal, report.verdict
        yield own, _INTERVAL, interval, _single(report)
        yield "", "controls", _numbers(largest_control(report.kl_increase_bits)[:, 0]), ""
        yield from _holdings(report)
        return
    is_used = [verdict == USED for verdict in report.verdict_by_layer]
    yield what, "movement", _numbers(report.movement.value[:, 0], is_used), report.verdict
    yield own, _INTERVAL, _intervals(report.movement[:, 0]), _single(report)
    yield "", "controls", _numbers(largest_control(report.movement)[:, 0]), ""
    if np.isfinite(report.indirect_movement.value[:, 0]).any():
        yield "", "indirect", _numbers(report.indirect_movement.value[:, 0]), ""
        yield "", _INTERVAL, _intervals(report.indirect_movement[:, 0]), ""
        yield "", "indirect controls", _numbers(largest_control(report.indirect_movement)[:, 0]), ""
    yield "", "KL increase (bits)", removal, ""
    yield "", _INTERVAL, interval, ""
    yield from _holdings(report)


def _alone(report: InterventionReport | OnwardsReport) -> list[str]:
    """The layers whose only control with as much variance is the whole complement."""
    if isinstance(report, OnwardsReport):
        return []
    return [str(at) for at, reason in enumerate(report.reason_by_layer) if SINGLE in reason]


def _single(report: InterventionReport) -> str:
    layers = _alone(report)
    which = f"layer{'s' * (len(layers) > 1)} {', '.join(layers)}"
    return f"1 variance-matched control (the whole complement) in {which}" if layers else ""


def _holdings(report: InterventionReport) -> Iterator[tuple[str, ...]]:
    """How much of the quantity and of the site's variance the subspace holds."""
    for stage, r2 in zip(STAGES, report.r2.value, strict=False):
        yield "", f"R² {stage}", _numbers(r2), ""
    levels = [own.value[AFTER] for own in report.r2.baselines if own.name == SHUFFLED]
    yield from (("", "R² shuffled", _numbers(level), "") for level in levels)
    yield "", "share of variance", _numbers(report.share.value[VARIANCE]), ""


def _of_erasure(report: OnwardsReport) -> Iterator[tuple[str, ...]]:
    what = f"erase {report.subspace} in this and all later layers, all positions; n = {report.n}"
    yield what, "KL increase (bits)", _numbers(report.kl_increase_bits.value), report.verdict
    yield f"own KL {float(report.unedited_kl_bits):.2g} bits", _INTERVAL, _intervals(report.kl_increase_bits), ""
    yield "", "controls", _numbers(largest_control(report.kl_increase_bits)), ""
    for stage, r2 in zip(report.stages, report.r2.value, strict=True):
        yield "", f"R² {stage}", _numbers(r2), ""
    yield "", "R² excess", _numbers(report.r2_excess), ""


def _numbers(values: Float[np.ndarray, " layer"], is_bold: list[bool] | None = None) -> str:
    """The values of all layers; a dash where a layer was not edited or has no value."""
    cells = ["–" if np.isnan(value) else number_text(value) for value in values]
    return " ".join(f"**{cell}**" if is_bold and is_bold[at] else cell for at, cell in enumerate(cells))


def _intervals(effect: Estimate) -> str:
    """The 95 % intervals of all layers, in square brackets; a dash where there is none."""
    cells = [interval_text(low, high) for low, high in zip(*effect.ends, strict=True)]
    return " ".join(cell if cell == "–" else f"[{cell}]" for cell in cells)
