"""The answer of one report in a sentence: what its page, its terminal table and its section open with.

Reports hold numbers and codes. The words for those of the package are here, by the name of the report; any other report
opens with its first number that has a verdict.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bayesgeom.core import Verdict, counted, labeled_text, percent_text
from bayesgeom.report.answer import gate_text, rounded
from bayesgeom.report.render import verdict_text
from bayesgeom.report.storage import is_joined
from bayesgeom.report.tables import Reported, Viewed

_COMPARED = (Verdict.YES, Verdict.BARELY, Verdict.NO, Verdict.UNDECIDED)  # then the number is the answer
_WITHOUT_NUMBER = frozenset(
    {Verdict.NOT_IDENTIFIED, Verdict.BY_CONSTRUCTION, Verdict.VALUES_LATER, Verdict.ROUTING_LATER, Verdict.NOT_REACHED}
)
_SMALL = 0.1  # share of the first value below which a curve over training has come to rest
_DONE = {"remove": "removing", "keep": "keeping only", "rotate": "rotating", "add": "adding to", "swap": "swapping"}
_KINDS = {"head": "heads", "mlp": "MLPs", "block": "blocks", "neuron": "neurons", "expert": "experts", "set": "sets"}


def opening_of_all(reports: Mapping[str, Reported]) -> list[str]:
    """Return the opening of reports without an answer to all: that of a single report, or of one with its own words.

    Args:
        reports: The reports by name, in the order in which they are shown.
    """
    shown = [report for report in reports.values() if not isinstance(report, Viewed)]
    return opening_of(shown[0]) if shown and (len(shown) == 1 or shown[0].name in _SENTENCES) else []


def opening_of(report: Reported, *, is_gated: bool = False) -> list[str]:
    """Return the answer of a report in one sentence, and the number behind it; nothing for a report without numbers.

    Args:
        report: The report. If its own KL shows that the predictions are no better than context-free ones, this comes
            first.
        is_gated: Whether this is already said.
    """
    line, gate = report.headline(), "" if is_gated else gate_text(None, report)
    if line is None:
        return []
    number, verdict = labeled_text(line.label, line.value_text), verdict_text(line.verdict)
    is_known = not math.isnan(line.value) or line.verdict in _WITHOUT_NUMBER
    has_sentence = report.name in _SENTENCES and is_known and not is_joined(report)
    says = _SENTENCES[report.name](report) if has_sentence else ""
    if gate:
        return [gate, says.replace("\n", " ") or f"{_capital(number)}."]
    if says:
        says, _, why = says.partition("\n")
        interval = f", 95 % interval {line.interval}" if line.interval and not math.isnan(line.value) else ""
        return [says, why or f"{_capital(number)}{interval}{f' ({line.why})' if line.why else ''}."]
    verdict = f"{verdict} ({line.why})" if verdict and line.why else line.why or verdict
    level = f"; the strongest is {line.baselines[0]}" if line.levels else ""
    if math.isnan(line.value) or (line.verdict and line.verdict not in _COMPARED):
        return [f"{_capital(own)}." for own in (verdict, number) if own]
    if line.verdict in _COMPARED[:3]:
        return [f"{_capital(number)} {verdict}{level}."]
    return [f"{_capital(number)}{f' ({verdict})' if verdict else ''}."]


def _ablation(report: Any) -> str:
    top, own = report.ranked()[0], report.headline()
    name, bits = report.ablations[top], rounded(own.value)
    what = _KINDS.get(report.kinds[0], "components") if len(set(report.kinds)) == 1 else "components"
    if report.is_preview:
        return f"A first-order preview: {name} matters most, with a KL increase of about {bits} bits."
    if not report.n_raising:
        return f"None of {len(report.ablations)} {what} is shown to matter: without {name}, KL changes by {bits} bits."
    before, uniform = rounded(float(report.unablated_kl_bits)), rounded(report.uniform_kl_bits)
    count = f"{report.n_raising} of {len(report.ablations)} {what} matter"
    count += "" if report.is_familywise else ", each by its own interval"
    return f"{count}. Without {name} KL rises most, by {bits} bits (from {before}; uniform {uniform})."


def _intervention(report: Any) -> str:
    at, found = report.strongest(), [report.among_layers(layer) for layer in range(len(report.verdict_by_layer))]
    verdicts = [own.verdict for own in found]
    own, where = report.headline(), f"{_DONE[report.kind]} {report.subspace} in layer {at}"
    same = [layer for layer, verdict in enumerate(verdicts) if verdict == verdicts[at]]
    places = f"in {_listed(same, 'layer')}"
    if verdicts[at] in (Verdict.BY_CONSTRUCTION, Verdict.NOT_IDENTIFIED):
        return f"Shows nothing {places}: {report.against_causal[at]} ({verdicts[at]})."
    if verdicts[at] == Verdict.INERT:
        cost = (report.removal_kl_increase_bits if report.is_swap else report.kl_increase_bits).value[at, 0]
        read = f"no linear map reads the {report.quantity} after removal"
        return f"Inert {places}: {read}, which costs {rounded(cost)} bits."
    amount: Callable[[float], str] = percent_text if report.is_swap else rounded
    by = (
        f"{amount(own.value)} of the way to the donor's {report.quantity}"
        if report.is_swap
        else f"{amount(own.value)} bits"
    )
    did = f"{where} {'moves the answer' if report.is_swap else 'raises KL by'} {by}"
    random = [f"{'at most ' * bool(of.bound)}{amount(of.value)}" for of in own.levels if of.name.startswith("random")]
    did += f" (random subspaces: {random[0]})" if random else ""
    if verdicts[at] == Verdict.CAUSAL:
        return f"Causal {places}: {did}."
    against = {"causal": found[at].against_causal, "inert": found[at].against_inert}
    why = " ".join(f"Against {verdict}: {code}." for verdict, code in against.items() if code)
    return f"Undecided: {did}.\n{why}"


def _joint(report: Any) -> str:
    own, layers = report.headline(), _listed(report.sets[0].split("+"), "layer")
    where = f"{layers}{' together' * ('+' in report.sets[0])}"
    did = f"{_DONE[report.kind]} {report.subspace} in {where} raises KL by {rounded(own.value)} bits"
    level = next((f"; random subspaces by at most {rounded(of.value)}" for of in own.levels if of.bound), "")
    return f"{_capital(own.verdict)}: {did}{level}."


def _onwards(report: Any) -> str:
    own, verdict = report.headline(), report.headline().verdict
    first = own.label.rpartition("from layer ")[2]
    did = f"erasing the {report.quantity} from layer {first} changes KL by {rounded(own.value)} bits"
    return f"Inert from layer {first}: {did}." if verdict == Verdict.INERT else f"{_capital(verdict)}: {did}."


def _audit(report: Any) -> str:
    own = report.headlines()[0]
    level = f", against {rounded(own.baseline)} of {own.baseline_name}" if own.levels else ""
    says, weights = f"Regret is {rounded(own.value)} bits a sequence{level}", np.nan_to_num(report.weights.value)
    if not weights.any():
        return f"{says}."
    top = int(weights.argmax())
    return f"{says}. The nearest predictor is “{report.predictors[top]}” (weight {percent_text(weights[top])})."


def _contributions(report: Any) -> str:
    if np.nanmax(report.kl_increase_bits.value) <= 0:
        return f"Without any one of {counted(len(report.components), 'direct term')}, KL does not rise."
    return f"The largest direct term is that of {report.components[_largest(report)]}: without it {_rise(report)}."


def _paths(report: Any) -> str:
    if np.nanmax(report.kl_increase_bits.value) <= 0:
        return f"Without any one of {counted(len(report.edges), 'edge')}, KL does not rise."
    edge = report.edges[_largest(report)]
    return f"The strongest of {counted(len(report.edges), 'edge')} is {edge}: without it {_rise(report)}."


def _largest(report: Any) -> int:
    return int(np.nanargmax(report.kl_increase_bits.value))


def _rise(report: Any) -> str:
    """Return what the KL does without the strongest part."""
    bits, before = np.nanmax(report.kl_increase_bits.value), rounded(float(report.model_kl_bits))
    return f"KL rises by {rounded(float(bits))} bits (from {before})"


def _lens(report: Any) -> str:
    of = len(report.stages) - 1
    if math.isnan(report.arrival.value):
        return f"The posterior is there after none of {counted(of, 'layer')}."
    return f"The posterior is there after {float(report.arrival):.0f} of {counted(of, 'layer')}."


def _patch(report: Any) -> str:
    if not np.isfinite(report.recovered.value).any():
        return ""
    (layer, position), _ = report.recovered.extreme("largest")
    share = percent_text(report.recovered.value[layer, position])
    at = f"“{report.tokens[position]}” in layer {layer}"
    return f"{at} carries most: patching {report.site} there recovers {share} of the difference."


def _compare(report: Any) -> str:
    values, row = report.value.value[0], report.rows[0]
    if report.better[0] not in ("lower", "higher") or not np.isfinite(values).all():
        return ""
    best = int(values.argmin() if report.better[0] == "lower" else values.argmax())
    pairs = [pair for pair, sides in enumerate(report.pair_of) if best in sides]
    name, unit = report.models[best], f" {report.units[0]}".rstrip()
    row = row.replace("KL(exact ‖ model)", "KL")
    others = ", ".join(f"{rounded(values[at])} of {other}" for at, other in enumerate(report.models) if at != best)
    if all(report.verdict(0, pair) == name for pair in pairs):
        return f"{name} is closest to exact: {row} {rounded(values[best])}{unit}, against {others}."
    return f"Undecided: {name} has the best {row}, {rounded(values[best])}{unit} (against {others}), but not clearly."


def _response(report: Any) -> str:
    own = report.headline()
    what, slope = own.label.removeprefix("slope, "), f"slope {rounded(own.value)}, where 1 is exact"
    match own.verdict:
        case Verdict.TRANSPORTS:
            return f"Yes: the answers follow {what} with {slope}."
        case Verdict.IN_PART:
            return f"In part: the answers follow {what} with {slope}."
        case Verdict.NOT_SHOWN:
            return f"Not shown that the answers follow {what}: {slope}."
        case Verdict.NOT_IDENTIFIED:
            return f"Not identified: the exact answer hardly depends on {what}."
        case _:
            return f"Undecided: the answers follow {what} with {slope}."


def _length(report: Any) -> str:
    lines = [line for line in report.headlines() if line.metric == "discontinuity_bits"]
    if len(lines) > 1:
        by_verdict: dict[str, list[str]] = {}
        for line in lines:
            by_verdict.setdefault(line.verdict or "not measured", []).append(line.label.partition(": ")[0])
        found = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in by_verdict.items())
        beyond = report.kl_bits.value[:, report.at > report.trained].mean(axis=1)
        best = lines[int(beyond.argmin())].label.partition(": ")[0]
        return f"{best} errs least beyond the training length, {rounded(beyond.min())} bits. {_capital(found)}."
    line, ratio = lines[0], float(report.extrapolation_ratio.value[0])
    step = (
        f"KL {'rises' if line.value > 0 else 'falls'} by {rounded(abs(line.value))} bits where the training length ends"
    )
    return f"{_capital(line.verdict)}: {step}; beyond, it is {rounded(ratio)} times that within."


def _relabeling(report: Any) -> str:
    bits, bound = rounded(float(report.kl_difference_bits)), f"the bound is {rounded(report.bound_bits)}"
    changes = f"renaming the hypotheses changes KL by {bits} bits; {bound}"
    match report.verdict:
        case Verdict.INVARIANT:
            return f"No: {changes}."
        case Verdict.INVARIANT_ON_AVERAGE:
            size = rounded(float(report.kl_difference_size_bits))
            return f"On average not: {changes}. Single sequences change by {size} bits."
        case Verdict.NOT_INVARIANT:
            return f"Yes: {changes}."
        case _:
            return f"Undecided: {changes}."


def _sweep(report: Any) -> str:
    kl, names = report.kl_bits.value, report.values
    if not np.isfinite(kl).any():
        tokens = ", ".join(
            f"{rounded(own)} at {report.vary}={name}"
            for name, own in zip(names, report.exact_tokens.value, strict=True)
        )
        return f"Observations until the exact posterior has converged: {tokens}."
    worst, known = int(np.nanargmax(kl)), [line for line in report.headlines() if line.metric == "kl_bits"]
    better = sum(line.verdict in (Verdict.YES, Verdict.BARELY) for line in known)
    where = f"KL is largest at {report.vary}={names[worst]}, {rounded(kl[worst])} bits"
    return f"The model beats the strongest shortcut at {better} of {counted(len(known), 'value')}; {where}."


def _gradients(report: Any) -> str:
    own, (other,) = report.mean_correlation, report.mean_correlation.compared[:1] or (None,)
    level = f" ({rounded(float(other.value))} with another sequence's)" if other is not None else ""
    error = rounded(float(np.nanmax(report.identity_error.value)))
    return (
        f"The laws differ from autograd by at most {error} (relative). Attention goes with advantage at rank "
        f"correlation {rounded(float(own))}{level}."
    )


def _movement(report: Any) -> str:
    parts = []
    for name, own in (("patterns are stable", report.routing_stable_step), ("values", report.values_stable_step)):
        step = float(own.value)
        parts.append(f"{name} {'not before the last snapshot' if math.isnan(step) else f'from step {step:,.0f}'}")
    return f"{_capital(report.headline().verdict)}: {', '.join(parts)}."


def _dynamics(report: Any) -> str:
    kl, distance = (own.value.mean(axis=0) for own in (report.kl_bits, report.pattern_distance_bits))
    steps = [int(step) for step in report.steps]
    fall = f"KL goes from {rounded(kl[0])} to {rounded(kl[-1])} bits by step {steps[-1]:,}"
    rest = (
        (kl, "it stays below a tenth of its start"),
        (distance[:-1], "attention patterns stay near their last state"),
    )
    since = [f"{what} from step {steps[first]:,}" for own, what in rest if (first := _settled(own)) is not None]
    levels = [f"the {own.name} has {rounded(float(own.value.mean()))} bits" for own in report.kl_bits.compared[:1]]
    return f"{'; '.join([fall, *since])}.\n{_capital(levels[0])}." if levels else f"{'; '.join([fall, *since])}."


def _settled(values: np.ndarray) -> int | None:
    """Return the first index from which on a curve stays below a tenth of its first value; None if it does not."""
    high = np.flatnonzero(~(values <= _SMALL * values[0]))
    return int(high[-1]) + 1 if len(high) and high[-1] + 1 < len(values) else None


def _monitor(report: Any) -> str:
    step, warned = f"{int(report.steps[-1]):,}", sorted(set(report.events) - {"reached"})
    level = next(
        (f" (uniform {rounded(own.value[-1])})" for own in report.kl_bits.baselines if "uniform" in own.name), ""
    )
    events = f"Events: {', '.join(warned)}." if warned else "No rule was broken."
    return f"At step {step} KL is {rounded(report.kl_bits.value[-1])} bits{level}. {events}"


_SENTENCES: Mapping[str, Callable[[Any], str]] = {
    "ablation": _ablation,
    "audit": _audit,
    "compare": _compare,
    "contributions": _contributions,
    "dynamics": _dynamics,
    "erasure_onwards": _onwards,
    "evidence_response": _response,
    "gradient_movement": _movement,
    "gradients": _gradients,
    "intervention": _intervention,
    "joint_intervention": _joint,
    "length": _length,
    "monitor": _monitor,
    "patch": _patch,
    "paths": _paths,
    "posterior_lens": _lens,
    "relabeling": _relabeling,
    "sweep": _sweep,
}


def _listed(items: Sequence[Any], noun: str) -> str:
    """Return items after their noun: "layers 1, 2 and 4"."""
    *first, last = map(str, items)
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


def _capital(text: str) -> str:
    """Return a sentence with a capital; a symbol such as "n = 3" and a name keep their letters."""
    return text if "=" in text.split(maxsplit=1)[0] else text[:1].upper() + text[1:]
