"""The generated page of committed intervention reports: `docs/readings/interventions/README.md`."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.numbers import number_text
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
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.storage import JSON
from bayesgeom.results.tables import markdown

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
positions. Not measured, because it cannot be edited or fitted: heads of an LSTM (it has none), trained
swaps of a carried state (they train through hook points), and the state inside a Mamba's scan (6,144 numbers or more
in a layer: too many for the 1,024 sequences that a fit uses). So a Mamba has no *carried*. `slow-hmm-lstm` did
not learn its task: no use in it says little about LSTMs. Second seeds are left out. On bijections without returning
keys the entropy is a function of the position, so that erasing it *onwards* identifies nothing.
"""
_QUANTITIES = {"entropy": "(entropy", "belief": "(belief", "key frame": "frame", "J-space": "Jacobian"}


def page(folder: Path) -> str:
    """Return the page for every report below `folder`.

    Raises:
        OutputFault: A folder holds a damaged report.
        InvalidArgument: `measured.toml` names a report that does not exist.
    """
    models: dict[str, list[InterventionReport | OnwardsReport]] = {}
    paths = sorted(folder.glob(f"*/*/{JSON}"))
    for path in paths:
        for report in Diagnosis.load(path.parent).values():
            if isinstance(report, InterventionReport | OnwardsReport):
                models.setdefault(path.parent.parent.name, []).append(report)
    head = ("subspace, scored positions", "", "layers 0, 1, 2, …", "verdict")
    parts = [f"## {name}\n\n{markdown(head, [*_rows(reports)])}\n" for name, reports in models.items()]
    listed = folder / MEASURED
    present = tomllib.loads(listed.read_text(encoding="utf-8"))["present"] if listed.exists() else []
    matrix = markdown(("checkpoint", *_QUANTITIES), [(name, *_cells(reports)) for name, reports in models.items()])
    if missing := [name for name in present if not (folder / name / JSON).exists()]:
        raise InvalidArgument(f"{listed} names reports that do not exist: {', '.join(missing)}. Remove these names.")
    earlier = [name for path in paths if (name := str(path.parent.relative_to(folder))) not in present]
    rules = _rules([report for reports in models.values() for report in reports], earlier)
    return "\n".join([_HEAD, rules, f"{_MATRIX}\n{matrix}\n", *parts])


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


def _rows(reports: list[InterventionReport | OnwardsReport]) -> Iterator[tuple[str, ...]]:
    for report in reports:
        yield from _of_intervention(report) if isinstance(report, InterventionReport) else _of_erasure(report)


def _of_intervention(report: InterventionReport) -> Iterator[tuple[str, ...]]:
    what = f"{report.kind} {report.subspace}, {report.where}; n = {report.n}"
    own = f"own KL {report.unedited_kl_bits:.2g} bits"
    removal = _numbers(report.change_bits.value[REMOVAL, :, 0])
    if not report.is_swap:
        yield what, "KL increase (bits)", removal, report.verdict
        yield own, "controls", _numbers(largest_control(report.kl_increase_bits)[:, 0]), _single(report)
        yield from _holdings(report)
        return
    is_used = [verdict == "used" for verdict in report.verdict_by_layer]
    yield what, "movement", _numbers(report.movement.value[:, 0], is_used), report.verdict
    yield own, "controls", _numbers(largest_control(report.movement)[:, 0]), _single(report)
    yield "", "indirect", _numbers(report.indirect_movement.value[:, 0]), ""
    yield "", "indirect controls", _numbers(largest_control(report.indirect_movement)[:, 0]), ""
    yield "", "KL increase (bits)", removal, ""
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
    controls = _numbers(largest_control(report.kl_increase_bits))
    yield f"own KL {float(report.unedited_kl_bits):.2g} bits", "controls", controls, ""
    for stage, r2 in zip(report.stages, report.r2.value, strict=True):
        yield "", f"R² {stage}", _numbers(r2), ""
    yield "", "R² excess", _numbers(report.r2_excess), ""


def _numbers(values: Float[np.ndarray, " layer"], is_bold: list[bool] | None = None) -> str:
    """The values of all layers; a dash where a layer was not edited or has no value."""
    cells = ["–" if np.isnan(value) else number_text(value) for value in values]
    return " ".join(f"**{cell}**" if is_bold and is_bold[at] else cell for at, cell in enumerate(cells))
