"""Differences of two models and of two diagnoses, against a slow twin and against what must be refused."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.comparison.difference_report import CONSERVATIVE, PAIRED, DifferenceReport
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.models.resolve import of_module
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.tasks.bijection import Bijection
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


def test_pairing_narrows_the_interval() -> None:
    """Two nearly equal models: what sequences share cancels, which intervals of separate diagnoses cannot know."""
    a, b = model(0, noise=0.3), model(0, noise=0.301)
    paired = bayesgeom.diff(a, b, n=41)
    apart = bayesgeom.diff(*(bayesgeom.diagnose(own, n=41, n_untrained=0, probes=["calibration"]) for own in (a, b)))
    assert apart.pairing == CONSERVATIVE
    row = apart.rows.index("calibration: KL(exact ‖ model)")
    widths = [float((high - low)[at]) for own, at in ((paired, 0), (apart, row)) for low, high in [own.difference.ends]]
    assert widths[0] < widths[1] / 3
    assert apart.difference.value[row] == pytest.approx(paired.difference.value[0], rel=1e-4)


def test_the_other_way_round_is_the_negative() -> None:
    a, b = model(0), model(1, noise=0.1)
    one, other = bayesgeom.diff(a, b, n=23), bayesgeom.diff(b, a, n=23)
    np.testing.assert_allclose(one.difference.value, -other.difference.value, atol=1e-12)
    swap = {"A better": "B better", "B better": "A better", "undecided": "undecided"}
    assert [swap[text] for text in one.verdicts()] == other.verdicts() and one.verdicts()[0] != "undecided"
    assert [line.ruling for line in one.headlines()] == one.verdicts()[: one.n_leading]
    assert one.conclusion().startswith(f"{one.verdicts()[0]}: by KL(exact ‖ model). A is ")


def test_lower_and_higher_are_better_where_they_are() -> None:
    report = bayesgeom.diff(model(0), model(1, noise=0.4), n=31)
    low, high = report.difference.ends
    for text, way, least, most in zip(report.verdicts(), report.better, low, high, strict=True):
        b_is_better = least > 0 if way == "higher" else most < 0
        a_is_better = most < 0 if way == "higher" else least > 0
        assert text == ("B better" if b_is_better else "A better" if a_is_better else "undecided")


def test_a_diagnosis_against_itself_decides_nothing(tmp_path: Path) -> None:
    diagnosis = bayesgeom.diagnose(model(0), n=19, n_untrained=1)
    report = bayesgeom.diff(diagnosis, diagnosis)
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
    diagnosis = bayesgeom.diagnose(model(0), n=19, n_untrained=0)
    report = bayesgeom.diff(diagnosis, diagnosis)
    rest = len(report.rows) - len(report.headlines())
    assert rest > 0 and f"{rest} of {len(report.rows)} rows are in table() and to_pandas() only." in report.conclusion()
    assert f"{rest} of {len(report.rows)} rows are in table()" in " ".join(str(report).split())


def test_compare_names_diff_for_models_and_diagnoses(tmp_path: Path) -> None:
    save(tmp_path / "one")
    compare: Any = inspect.unwrap(bayesgeom.compare)  # as without shape checks, which would refuse first
    made = Diagnosis.of(bayesgeom.diff(model(0), model(1), n=5))
    folder = tmp_path / "one"
    for given in (model(0), model(0).module, made, "bijection-mamba", ["lstm", "hmm-s5"], folder, str(folder)):
        with pytest.raises(InvalidArgument, match=r"must be names.*bayesgeom\.diff\(a, b\)"):
            compare(given, model(1))
    with pytest.raises(InvalidArgument, match=r"^tasks of compare must be names"):
        compare("lstm", model(1))
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
    assert out.startswith("A better: by KL(exact ‖ model). A is one, B is two. Of 6 quantities:")
    assert "KL(exact ‖ model) (bits)" in out
    assert isinstance(Diagnosis.load("run")["difference"], DifferenceReport)
    for name in ("one", "two"):
        assert main(["diagnose", f"./{name}", "--n", "11", "--n-untrained", "0", "--out", f"runs/{name}"]) == 0
    capsys.readouterr()
    assert main(["diff", "runs/one", "runs/two"]) == 0
    assert "calibration: KL(exact" in capsys.readouterr().out
