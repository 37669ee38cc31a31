"""Differences of two models and of two diagnoses, against a slow twin and against what must be refused."""

import inspect
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.comparison.difference import _paired
from bayesgeom.comparison.difference_report import CONSERVATIVE, NOT_SCORED, PAIRED, DifferenceReport, is_of_head
from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.models.resolve import of_module
from bayesgeom.probes.calibration import CalibrationReport
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.findings import findings, tone
from bayesgeom.results.page import section_of
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.tasks.bijection import Bijection
from tests.pages import READINGS
from tests.shape_checks import ARE_ON
from tests.test_cli import save

TASK = Bijection(n_values=7, n_pairs=5)
SIZES = TransformerConfig(d_vocab=14, n_ctx=9, n_layers=2, n_heads=3, d_model=15, d_mlp=11)


def model(seed: int, noise: float = 0.0) -> Model:
    module = SIZES.build(seed=seed)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=noise)
    return of_module(module, name=f"seed{seed}", task=TASK)


def test_differences_are_those_of_each_sequence() -> None:
    a, b = model(0), model(1, noise=0.1)
    report = bayesgeom.diff(a, b, n=37, seed=3)
    trials = list(TASK.stream(37, seed=derived_seed(3, Branch.TRIALS)))
    runs = [own.run(iter(trials)).behavior.kl_bits.astype(np.float64) for own in (a, b)]
    per_sequence = np.array([(runs[1][i] - runs[0][i]).mean() for i in range(37)])
    assert report.rows[0] == "KL(exact ‖ model)" and report.pairing == PAIRED
    assert report.difference.value[0] == pytest.approx(per_sequence.mean(), rel=1e-12)
    np.testing.assert_allclose(report.difference.value, report.second - report.first, atol=1e-12)
    low, high = report.difference.ends
    reach = 1.96 * per_sequence.std(ddof=1) / 37**0.5
    assert (high - low)[0] == pytest.approx(2 * reach, rel=0.35)


def test_equal_accuracies_differ_by_0_and_not_by_rounding(rng: np.random.Generator) -> None:
    """Two models with as many hits had an accuracy difference of −4.337e−19."""
    seen = rng.integers(1, 19, size=(128, 6)) / 19
    others = seen[rng.permutation(128)]
    assert (others - seen).mean(axis=0).any(), "rounding is there"
    rows = _paired(seen, others, seed=0)
    assert [row.difference for row in rows] == [0.0] * 6 and all(row.ends[0] < 0 < row.ends[1] for row in rows)
    near = _paired(seen, others + 1e-12, seed=0)
    assert [row.difference for row in near] == pytest.approx([1e-12] * 6, rel=1e-3), "small is not rounding"


def diagnosed(own: Model, n: int = 41, **arguments: Any) -> Diagnosis:
    return bayesgeom.diagnose(own, n=n, **({"n_untrained": 0, "probes": ["calibration"]} | arguments))


@cache
def whole(seed: int) -> Diagnosis:
    """Every probe on one model, measured once."""
    return bayesgeom.diagnose(model(seed), n=19, n_untrained=0)


def changed(diagnosis: Diagnosis, **fields: Any) -> Diagnosis:
    """The diagnosis with other fields of calibration."""
    report = replace(diagnosis[CalibrationReport], **fields)
    return replace(diagnosis, reports={**diagnosis.reports, "calibration": report})


def without_scores(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis as most committed readings hold it."""
    return changed(diagnosis, sequence_scores=diagnosis[CalibrationReport].sequence_scores[:0])


def test_two_diagnoses_are_paired_as_two_models_are(tmp_path: Path) -> None:
    a, b, folders = model(0), model(1, noise=0.1), [tmp_path / "a", tmp_path / "b"]
    for own, folder in zip((a, b), folders, strict=True):
        diagnosed(own, n=300, seed=3).save(folder)
    models, loaded = bayesgeom.diff(a, b, n=300, seed=3), bayesgeom.diff(*folders)
    assert [f"calibration: {row}" for row in models.rows] == list(loaded.rows[:6])
    assert (loaded.units[:6], loaded.better[:6]) == (models.units, models.better)
    assert models.is_paired.all() and loaded.is_paired[:6].all() and models.pairing == PAIRED
    # Scores of at most 4 bits in float32 have errors of 2^-24 of their value; the ends move by a few times as much.
    rounding = 4 * 4 * 2**-24
    for own, other in (
        (models.first, loaded.first),
        (models.second, loaded.second),
        (models.difference.value, loaded.difference.value),
        *zip(models.difference.ends, loaded.difference.ends, strict=True),
    ):
        np.testing.assert_allclose(other[:6], own, rtol=0, atol=rounding)
    assert loaded.verdicts()[:6] == models.verdicts()


def test_pairing_narrows_the_interval() -> None:
    """Two nearly equal models: what sequences share cancels, which the ends of two intervals cannot show."""
    made = [diagnosed(model(0, noise=noise)) for noise in (0.3, 0.301)]
    paired, apart = bayesgeom.diff(*made), bayesgeom.diff(*map(without_scores, made))
    assert apart.pairing == f"{CONSERVATIVE}, because calibration holds no scores per sequence in A and B"
    assert not apart.is_paired.any() and apart.pairing in " ".join(str(apart).split())
    rows = [own.rows.index("calibration: KL(exact ‖ model)") for own in (paired, apart)]
    ends = [[float(end[row]) for end in own.difference.ends] for own, row in zip((paired, apart), rows, strict=True)]
    assert ends[0][1] - ends[0][0] < (ends[1][1] - ends[1][0]) / 3
    assert apart.difference.value[rows[1]] == pytest.approx(paired.difference.value[rows[0]], rel=1e-4)


def test_each_row_states_how_its_interval_was_computed() -> None:
    report = bayesgeom.diff(whole(0), whole(1))
    n_paired = int(report.is_paired.sum())
    assert n_paired == 6 and report.is_paired[:6].all() and len(report.rows) > 6
    assert f"Intervals: paired over sequences in 6 of {len(report.rows)} rows, conservative" in report.conclusion()
    lines = report.table().splitlines()
    at = [lines.index(f"{kind}:") for kind in ("paired over sequences", "conservative")]
    assert at[0] == 1 and sum(line.startswith("calibration: ") for line in lines[at[0] : at[1]]) == 6
    assert [own.label.endswith(", B − A, paired") for own in report.headlines()[:7]] == [True] * 6 + [False]
    assert len({*report.rows}) == len(report.rows), "no quantity has two rows"
    table = report.to_pandas()
    stated = table[table["metric"] == "is_paired"].set_index("row")["value"]
    assert stated["calibration: entropy error"] == 1 and stated.sum() == 6


def test_a_committed_reading_without_single_sequences_states_the_true_reason() -> None:
    folder = READINGS / "seeds-bijection" / "bijection-mamba2"
    found = bayesgeom.diff(folder, folder)
    assert found.pairing == f"{CONSERVATIVE}, because calibration holds no scores per sequence in A and B"
    assert "earlier" not in str(found)


def test_unpaired_diagnoses_state_why() -> None:
    a, b = (diagnosed(own) for own in (model(0), model(1)))
    assert bayesgeom.diff(a, b).is_paired.any()
    assert "because calibration holds no scores per sequence in B" in bayesgeom.diff(a, without_scores(b)).pairing
    entropies = a[CalibrationReport].entropy_bits_by_position + 1e-4
    assert "their sequences differ" in bayesgeom.diff(a, changed(b, entropy_bits_by_position=entropies)).pairing
    keys = [diagnosed(model(seed), probes=["key_overlap"]) for seed in (0, 1)]
    found = bayesgeom.diff(*keys)
    assert "calibration, which alone stores single sequences, is missing in A and B" in found.pairing
    assert not any(found.better) and found.conclusion().startswith(f"A is seed0, B is seed1. {NOT_SCORED}")


def test_a_row_without_a_paired_interval_stays_conservative() -> None:
    a = diagnosed(model(0))
    report = bayesgeom.diff(a, a)
    ends = {row: ends for row, *ends in zip(report.rows, *report.difference.ends, strict=True)}
    low, high = ends["calibration: KL(exact ‖ model)"]
    assert low < 0 < high and not report.is_paired[report.rows.index("calibration: KL(exact ‖ model)")]
    assert np.isnan(ends["calibration: cross-entropy on the labels"]).all(), "no other report holds it"
    assert report.n_leading == len(report.headlines()) >= 6, "the conservative row stays a headline"


def test_infinite_scores_have_no_interval() -> None:
    a, b = (diagnosed(model(seed)) for seed in (0, 1))
    scores = [own[CalibrationReport].sequence_scores.copy() for own in (a, b)]
    for own in scores:
        own[3, 4] = np.inf
    report = bayesgeom.diff(*(changed(own, sequence_scores=of) for own, of in zip((a, b), scores, strict=True)))
    assert np.isnan(report.difference.ends[0][report.rows.index("calibration: cross-entropy on the labels")])


def test_the_other_way_round_is_the_negative() -> None:
    a, b = model(0), model(1, noise=0.1)
    one, other = bayesgeom.diff(a, b, n=23), bayesgeom.diff(b, a, n=23)
    np.testing.assert_allclose(one.difference.value, -other.difference.value, atol=1e-12)
    swap = {"A better": "B better", "B better": "A better", "undecided": "undecided"}
    assert [swap[text] for text in one.verdicts()] == other.verdicts() and one.verdicts()[0] != "undecided"
    assert [line.ruling for line in one.headlines()] == one.verdicts()[: one.n_leading]
    better, worse = (f"{name} ({side})" for name, side in zip(one.names, "AB", strict=True))
    if one.verdicts()[0][0] == "B":
        better, worse = worse, better
    closer = f"{better} is closer to the exact posterior than {worse}, by KL(exact ‖ model)."
    assert one.conclusion().startswith(f"{one.verdicts()[0]}: {closer}")


def test_a_page_opens_with_what_is_decided() -> None:
    """Findings followed the rows, so a page with an undecided KL opened with "undecided by KL"."""
    own = bayesgeom.diff(model(0), model(1, noise=0.4), n=31)
    low, high = (np.array([first, *end[1:]]) for first, end in zip((-0.5, 0.5), own.difference.ends, strict=True))
    report = replace(own, difference=replace(own.difference, low=low, high=high))
    assert report.verdicts()[0] == "undecided" and "A better" in report.verdicts()
    found = findings([section_of("difference", report)])
    is_open = [finding.verdict == "undecided" for finding in found]
    assert is_open == sorted(is_open) and not is_open[0], "decided findings come first"
    lead = report.verdicts().index(found[0].verdict)
    assert f"by {report.rows[lead]}. " in found[0].sentence and found[0].line.label.startswith(report.rows[lead])
    n_open = report.verdicts().count("undecided")
    verb = "is" if n_open == 1 else "are"
    assert f"; {n_open} {verb} not decided (KL(exact ‖ model)" in report.conclusion()
    assert [line.label.split(", B")[0] for line in report.headlines()] == list(report.rows), "the table keeps its order"
    none = bayesgeom.diff(model(0), model(0), n=7).conclusion()
    assert none.startswith("undecided: no calibration score decides between ")


def test_colors_of_verdicts_tell_which_model_is_better() -> None:
    """Every verdict was gray, decided or not; a higher number that is neither better nor worse stays gray."""
    own = bayesgeom.diff(model(0), model(1), n=7)
    decided = np.array([0.5 if row == 0 else -0.5 for row in range(len(own.rows))])
    known = replace(own, difference=replace(own.difference, low=decided, high=decided))
    ways = ("lower", "lower", "higher", "", *own.better[4:])
    lines = replace(known, better=ways).headlines()
    words = ["A better", "B better", "A better", "A higher"]
    assert [(line.ruling, tone(line)) for line in lines[:4]] == list(
        zip(words, ("bad", "good", "bad", "open"), strict=True)
    )
    assert {tone(line) for line in bayesgeom.diff(model(0), model(0), n=7).headlines()} == {"open"}


def test_a_finding_states_both_values() -> None:
    report = bayesgeom.diff(model(0), model(1, noise=0.4), n=31)
    rows = [(line, row) for row, line in enumerate(report.headlines()) if line.finding]
    assert len(rows) > 2
    for line, row in rows:
        a, b = float(report.first[row]), float(report.second[row])
        side, word = ("A" if (a > b) == (report.better[row] == "higher") else "B"), report.better[row]
        assert (
            line.finding.startswith(f"{side} has the {word} {report.rows[row]}: ") and line.ruling == f"{side} better"
        )


def test_lower_and_higher_are_better_where_they_are() -> None:
    report = bayesgeom.diff(model(0), model(1, noise=0.4), n=31)
    low, high = report.difference.ends
    for text, way, least, most in zip(report.verdicts(), report.better, low, high, strict=True):
        b_is_better = least > 0 if way == "higher" else most < 0
        a_is_better = most < 0 if way == "higher" else least > 0
        assert text == ("B better" if b_is_better else "A better" if a_is_better else "undecided")


def test_a_diagnosis_against_itself_decides_nothing(tmp_path: Path) -> None:
    report = bayesgeom.diff(whole(0), whole(0))
    assert set(report.verdicts()) == {"undecided"} and not report.difference.value.any()
    assert any(row.startswith("key_overlap: ") for row in report.rows)
    report.save(tmp_path / "run")
    again = bayesgeom.load_report(tmp_path / "run")
    assert isinstance(again, DifferenceReport) and str(again) == str(report) and again.rows == report.rows
    lines = str(report).splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 100 and report.plot().data


def test_rows_of_the_table_state_which_model_is_better() -> None:
    report = bayesgeom.diff(model(0), model(1, noise=0.4), n=31)
    head, _, *rows = str(report).split("\n\n")[-1].splitlines()
    assert head.endswith("verdict") and "beats" not in str(report)
    ends = [row.rsplit("  ", 1)[-1].strip() for row in rows if "no difference" in row]
    assert ends == report.verdicts() and {"A better", "undecided"} <= set(ends)
    assert "rows are in table()" not in report.conclusion()


def test_omitted_rows_are_counted() -> None:
    report = bayesgeom.diff(whole(0), whole(0))
    rest = len(report.rows) - len(report.headlines())
    drawn = sum(len(trace.y) for trace in report.plot().data if trace.name == "estimate, 95 % interval")
    stated = f"{report.n_leading} of {len(report.rows)} rows are listed, {drawn} drawn"
    assert rest > 0 and f"{stated}." in report.conclusion()
    assert stated in " ".join(str(report).split())


def test_only_calibration_is_better_and_heads_are_neither_counted_nor_drawn() -> None:
    """115 of 122 rows once counted as better, most of them overlaps of keys in heads that do not correspond."""
    report = bayesgeom.diff(whole(0), whole(1))
    directed = [row for row, way in zip(report.rows, report.better, strict=True) if way]
    assert len(directed) >= 6 and all(row.startswith("calibration: ") for row in directed)
    assert f"Of {len(directed)} calibration scores, A is better in " in report.conclusion()
    heads = [row for row in report.rows if is_of_head(row)]
    assert heads and report.rows[-len(heads) :] == tuple(heads), "they follow all others"
    assert f"Not drawn: {len(heads)} rows of single heads. Heads with the same index" in report.conclusion()
    assert report.table().endswith("need not correspond in separately trained networks.")
    figure = report.plot()
    assert not any(is_of_head(label.removesuffix(", paired")) for trace in figure.data for label in trace.y)
    inside = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    for axis in figure.select_yaxes():
        row_px = (axis.domain[1] - axis.domain[0]) * inside / (axis.range[0] - axis.range[1])
        assert all(row_px > 17 * (text.count("<br>") + 1) for text in axis.ticktext), "labels do not overlap"


def test_compare_names_diff_for_models_and_diagnoses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "one")
    (tmp_path / "lstm").mkdir()
    monkeypatch.chdir(tmp_path)
    compare: Any = inspect.unwrap(bayesgeom.compare)  # as without shape checks, which would refuse first
    made = Diagnosis.of(bayesgeom.diff(model(0), model(1), n=5))
    folder = tmp_path / "one"
    for given in (model(0), model(0).module, made, "bijection-mamba", ["lstm", "hmm-s5"], folder, str(folder), "one"):
        with pytest.raises(InvalidArgument, match=r"must be names.*bayesgeom\.diff\(a, b\)"):
            compare(given, model(1))
        if not ARE_ON:  # with shape checks, these refuse first
            with pytest.raises(InvalidArgument, match=r"bayesgeom\.diff"):
                bayesgeom.compare(given, given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"^tasks of compare must be names"):
        compare("lstm", model(1))  # also where a directory has the name of an architecture
    for wrong in ([""], "x" * 5_000):
        with pytest.raises(UnknownName):
            compare(wrong)
    with pytest.raises(InvalidArgument, match=r"architectures must be text or a sequence of texts, got 3"):
        compare(3)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"n": 23}, r"differ in n: A has 19, B has 23"), ({"seed": 1}, r"differ in seed: A has 0, B has 1")],
)
def test_diagnoses_of_other_sequences_are_refused(change: dict[str, int], text: str) -> None:
    own, other = (
        bayesgeom.diagnose(model(0), n_untrained=0, probes=["calibration"], **({"n": 19, "seed": 0} | more))  # type: ignore[arg-type]
        for more in ({}, change)
    )
    with pytest.raises(InvalidArgument, match=text):
        bayesgeom.diff(own, other)


def test_other_tasks_and_mixtures_are_refused() -> None:
    a, shorter = model(0), Bijection(n_values=7, n_pairs=4)
    with pytest.raises(InvalidArgument, match=r"differ in task: A has Bijection\(n_values=7, n_pairs=5"):
        bayesgeom.diff(a, of_module(SIZES.build(seed=1), task=shorter), n=5)
    one, other = (bayesgeom.diagnose(a, task, n=5, n_untrained=0, probes=["calibration"]) for task in (TASK, shorter))
    with pytest.raises(InvalidArgument, match=r"differ in task"):
        bayesgeom.diff(one, other)
    padded = {**one.provenance, "task": {**one.provenance["task"], "n_pairs": 6}}
    with pytest.raises(InvalidArgument, match=r"differ in n_pairs of the task: A has 5, B has 6"):
        bayesgeom.diff(one, replace(one, provenance=padded))
    with pytest.raises(InvalidArgument, match=r"A and B state no n, so their sequences are unknown"):
        bayesgeom.diff(*[replace(one, provenance={**one.provenance, "arguments": {}})] * 2)
    with pytest.raises(InvalidArgument, match=r"one argument is a diagnosis and the other a model"):
        bayesgeom.diff(one, a)
    with pytest.raises(InvalidArgument, match=r"n, seed cannot be passed with diagnoses"):
        bayesgeom.diff(one, one, n=3, seed=2)
    with pytest.raises(InvalidArgument, match=r"at least 2 for an interval; got 1"):
        bayesgeom.diff(a, a, n=1)


@pytest.mark.slow
def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "one")
    save(tmp_path / "two", lambda module: module.embed.weight.mul_(3.0))
    assert main(["diff", "./one", "./two", "--n", "13", "--out", "run"]) == 0
    out = capsys.readouterr().out
    first = " ".join(out.split("\n\n")[0].split())
    assert first.startswith("A better: one (A) is closer to the exact posterior than two (B), by KL(exact ‖ model).")
    assert " Of 6 calibration scores, A is better in " in first
    assert "KL(exact ‖ model) (bits)" in out
    assert isinstance(Diagnosis.load("run")["difference"], DifferenceReport)
    for name in ("one", "two"):
        assert main(["diagnose", f"./{name}", "--n", "11", "--n-untrained", "0", "--out", f"runs/{name}"]) == 0
    capsys.readouterr()
    assert main(["diff", "runs/one", "runs/two"]) == 0
    out = capsys.readouterr().out
    assert "\npaired over sequences:\ncalibration: KL(exact" in out and "\nconservative:\n" in out
