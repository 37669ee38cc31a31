"""A claim's command is run again, through the command line's own classes, and compared with what is recorded."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, final

import numpy as np
import pytest

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, OutputFault
from bayesgeom.core.files import RUNS
from bayesgeom.models.checkpoint_files import FINISHED
from bayesgeom.report.estimate import Baseline, Estimate, Quantity
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline
from bayesgeom.tasks.base import task_from_text
from examples.replication.__main__ import main
from examples.replication.claims.claim import (
    Claim,
    Measurement,
    Number,
    Value,
    verdict,
)
from examples.replication.claims.loading import load
from examples.replication.claims.reading import differing, value_of, values_of
from examples.replication.claims.reproduction import (
    Reproduction,
    arguments_of,
    check_needs,
    compared,
    machine,
    reproduce,
)
from examples.replication.training.recipes import recipe
from tests.executors.stand_ins import AtOnce
from tests.pages import READINGS
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures


@pytest.fixture(scope="module")
def small() -> Claim:
    """B1 on few sequences, without a recorded measurement."""
    claim = load()["B1"]
    command = "bayesgeom diagnose bijection-v20 --probes calibration --n 31 --n-untrained 0"
    error = Number(name="error", label="entropy error", unit="bits", probe="calibration", metric="entropy_mae_bits")
    run = replace(claim.runs[0], command=command, numbers={**claim.runs[0].numbers, "error": error})
    return replace(claim, runs=(run,), measured=None)


def recorded(claim: Claim, numbers: Mapping[str, Value]) -> Claim:
    """The claim with these numbers as its record."""
    return replace(claim, measured=Measurement(date="2026-01-01", machine=machine(), numbers=numbers, origins={}))


@pytest.fixture
def first(small: Claim, tiny_checkpoints: Path) -> Reproduction:
    return reproduce(small)


def test_what_is_recorded_is_reproduced(small: Claim, first: Reproduction, tmp_path: Path) -> None:
    assert first.differs == {} and first.recorded == {} and str(verdict(small)) == "no data"
    assert str(first.verdict) == "does not hold", "an untrained network does not match the posterior"
    again = reproduce(recorded(small, first.found), out=tmp_path)
    assert values_of(small.runs[0], tmp_path / "calibration") == again.found
    assert again.differs == {"kl": (), "error": ()} and again.is_reproduced
    assert again.table().count(" yes") == 2 and "recorded does not hold, reproduced does not hold" in again.table()
    again.save(tmp_path)
    saved = json.loads((tmp_path / "reproduction.json").read_text(encoding="utf-8"))
    assert saved["found"]["kl"]["value"] == again.found["kl"].value and saved["differs"] == {"kl": [], "error": []}


def test_commands_run_on_an_executor(small: Claim, first: Reproduction, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="name `out`"):
        reproduce(small, executor=AtOnce())
    sent = reproduce(small, executor=(taker := AtOnce()), out=tmp_path)
    assert (sent.found, sent.verdict, taker.n) == (first.found, first.verdict, 1)


def test_a_command_that_fails_is_named(small: Claim, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("bayesgeom diagnose no-such-model", "python -m examples.replication nothing"):
        failing = replace(small, runs=(replace(small.runs[0], command=command),))
        with pytest.raises(InvalidArgument, match=f"`{command}` failed with status 2"):
            reproduce(failing)
    assert "no-such-model" in capsys.readouterr().err


def test_another_number_is_noticed(small: Claim, first: Reproduction) -> None:
    moved = {name: replace(x, value=1.1 * x.value) for name, x in first.found.items()}
    again = compared(recorded(small, moved), first.found)
    assert again.differs == {"kl": ("value",), "error": ("value",)} and not again.is_reproduced
    assert again.table().count(" no\n") == 2


def test_another_end_of_an_interval_is_noticed(small: Claim, first: Reproduction) -> None:
    kl = first.found["kl"]
    again = compared(recorded(small, dict(first.found, kl=replace(kl, hi=(kl.value + kl.hi) / 2))), first.found)
    assert again.differs == {"kl": ("high end",), "error": ()}
    assert not again.is_reproduced and again.verdict == verdict(again.claim)
    (line,) = (line for line in again.table().splitlines() if line.startswith("differs: "))
    assert re.fullmatch(r"differs: KL: high end [\d.]+, recorded [\d.]+ bits \(\+[\d.]+% of the width\)", line)


def test_a_withheld_interval_and_another_baseline_are_noticed(small: Claim, first: Reproduction) -> None:
    found = first.found
    without = replace(found["kl"], lo=math.nan, hi=math.nan, why_not="too few")
    moved = {"kl": without, "error": replace(found["error"], baseline=2 * found["error"].baseline)}
    for now, known, words in ((moved, found, "interval: too few, recorded "), (found, moved, "(-50.0%)")):
        again = compared(recorded(small, known), now)
        assert again.differs == {"kl": ("interval",), "error": ("baseline",)}
        assert words in again.table()


def test_another_machine_may_move_a_number_within_its_interval() -> None:
    recorded = Value(value=1.0, lo=0.9, hi=1.1, baseline=math.nan)
    near, far = (replace(recorded, value=x) for x in (1.05, 1.2))
    assert differing(near, recorded, 1e-3, is_same_machine=False) == ()
    assert differing(near, recorded, 1e-3, is_same_machine=True) == ("value",)
    assert differing(far, recorded, 1e-3, is_same_machine=False) == ("value",)
    exact = replace(recorded, lo=math.nan, hi=math.nan)
    assert differing(exact, exact, 0.0, is_same_machine=True) == ()
    assert differing(replace(exact, value=1.05), exact, 1e-3, is_same_machine=False) == ("value",)


def test_an_end_may_move_by_a_part_of_the_width() -> None:
    recorded = Value(value=1.0, lo=-0.5, hi=2.0, baseline=0.3)
    for same, most in ((True, 0.01 * 2.5 + 1e-6), (False, 0.5 * 2.5 + 1e-6)):
        for end, name, known in (("lo", "low end", -0.5), ("hi", "high end", 2.0)):
            for share, parts in ((0.999, ()), (-0.999, ()), (1.001, (name,)), (-1.001, (name,))):
                own = replace(recorded, **{end: known + share * most})
                assert differing(own, recorded, 1e-3, is_same_machine=same) == parts
    near = Value(value=0.9982, lo=0.9978, hi=0.9985, baseline=math.nan)
    shorter = replace(near, lo=0.9976)  # by less than 0.1 % of the end, and by 29 % of the width
    assert differing(shorter, near, 1e-3, is_same_machine=True) == ("low end",)
    moved = replace(near, value=0.9984, lo=0.9980, hi=0.9987)  # within the tolerance of the value, as a whole
    assert differing(moved, near, 1e-3, is_same_machine=True) == ()
    endless = replace(recorded, hi=math.inf)
    assert differing(endless, endless, 1e-3, is_same_machine=True) == ()
    assert differing(recorded, endless, 1e-3, is_same_machine=True) == ("high end",)
    assert differing(endless, recorded, 1e-3, is_same_machine=False) == ("high end",)


def test_a_number_without_a_command_is_not_run(small: Claim, tiny_checkpoints: Path) -> None:
    number = replace(small.runs[0].numbers["kl"], name="later")
    waiting = replace(small.runs[0], name="later", command="", needs=(), numbers={"later": number})
    again = reproduce(replace(small, runs=(waiting, *small.runs)))
    assert set(again.found) == {"kl", "error"} and again.not_run == ("later (no command measures this yet)",)
    with pytest.raises(InvalidArgument, match="B1 cannot be run: no command measures KL yet"):
        reproduce(replace(small, runs=(waiting,)))


def test_a_run_that_was_never_recorded_waits_for_its_checkpoints(small: Claim, tiny_checkpoints: Path) -> None:
    """H4 could not be reproduced at all until a second training exists."""
    number = replace(small.runs[0].numbers["kl"], name="second")
    later = replace(small.runs[0], name="later", report=None, needs=("absent",), numbers={"second": number})
    again = reproduce(replace(small, runs=(*small.runs, later)))
    assert set(again.found) == {"kl", "error"} and again.not_run == (f"{later.command} (No recipe makes 'absent' yet)",)
    stored = replace(later, report="examples/replication/results/claims/later")
    for runs in ((later,), (*small.runs, stored)):
        with pytest.raises(CheckpointFault, match="claim B1 needs 'absent'"):
            reproduce(replace(small, runs=runs))


def test_a_training_in_another_folder_is_still_absent_here(
    small: Claim, tiny_checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report said "not trained yet" without the way to train it, because it looked in the default folder."""
    monkeypatch.chdir(tmp_path)
    number = replace(small.runs[0].numbers["kl"], name="second")
    later = replace(small.runs[0], name="later", report=None, needs=("mess3-small-seed3",), numbers={"second": number})
    (RUNS / "mess3-small-seed3" / FINISHED).mkdir(parents=True)
    (left_out,) = reproduce(replace(small, runs=(*small.runs, later)), runs=tmp_path / "others").not_run
    assert "(Make 'mess3-small-seed3' with `bayesgeom train mess3-small --seed 3`)" in left_out


def test_a_claim_on_the_installed_model_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    claim = load()["L1"]
    assert [run.name for run in claim.runs] == ["smollm2"]
    with pytest.raises(CheckpointFault, match=r"claim L1 needs 'models/smollm2'.*`make real-model`"):
        reproduce(claim)
    (tmp_path / "models/smollm2").mkdir(parents=True)
    check_needs(claim)


def test_an_absent_checkpoint_is_refused_with_the_way_to_make_it(tmp_path: Path) -> None:
    claim = load()["H7"]
    with pytest.raises(
        CheckpointFault,
        match=r"claim H7 needs 'hmm-var.*`python -m examples.replication train hmm-variant-learned`.*--seed 4`",
    ):
        reproduce(claim, runs=tmp_path)
    unknown = replace(claim, runs=(replace(claim.runs[0], needs=("recurrence-integer",)),))
    with pytest.raises(CheckpointFault, match="No recipe makes 'recurrence-integer' yet"):
        reproduce(unknown, runs=tmp_path)


def test_a_claim_without_a_command_says_what_is_missing() -> None:
    assert not any(run.command for run in load()["C5"].runs)
    with pytest.raises(InvalidArgument, match=r"C5 cannot be run: no command measures .+ yet"):
        reproduce("C5")


@pytest.mark.parametrize(
    ("claim_id", "names"),
    {
        "C1": ("recurrence", "recurrence-opaque"),
        "C2": ("recurrence-first5",),
        "C3": ("recurrence-held-out",),
        "C4": ("recurrence",),
        "C7": ("recurrence-first5", "recurrence-first5-labels5"),
    }.items(),
)
def test_claims_on_the_recurrence_name_the_recipe_of_each_network(
    claim_id: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    claim = load()[claim_id]
    needed = [name for run in claim.runs for name in run.needs]
    assert set(needed) == set(names)
    message = "".join(rf".*`python -m examples.replication train {name}`" for name in names)
    with pytest.raises(CheckpointFault, match=f"claim {claim_id} needs 'recurrence.*{message}"):
        reproduce(claim, runs=tmp_path)
    for run in claim.runs:
        model = run.command.split()[2]
        task = next((word for word in run.command.split() if word.startswith("modular-recurrence:")), None)
        assert (model,) == tuple(run.needs)
        if task is not None:
            task_from_text(task, trained=recipe(model).task)


@pytest.mark.parametrize(
    ("trained", "held_out", "expected"),
    [
        (0.001, 0.2, "holds"),
        (0.03, 3.0, "does not hold"),
        (0.001, 0.005, "does not hold"),
        (0.001, 0.01, "at the threshold"),
    ],
)
def test_only_a_model_near_the_posterior_shows_a_failure_on_held_out_prefixes(
    trained: float, held_out: float, expected: str
) -> None:
    claim = load()["C3"]
    levels = {name: held_out if name.startswith("held_out") else trained for name in claim.numbers}
    numbers = {name: Value(value=own, lo=own, hi=own, baseline=math.nan) for name, own in levels.items()}
    assert str(verdict(claim, numbers)) == expected


def test_a_training_in_the_folder_of_runs_is_taken(small: Claim, tmp_path: Path) -> None:
    run = replace(small.runs[0], needs=("mine",), command="bayesgeom diagnose mine --n 7")
    with pytest.raises(CheckpointFault, match="claim B1 needs 'mine'"):
        check_needs(replace(small, runs=(run,)), tmp_path)
    (tmp_path / "mine/checkpoint").mkdir(parents=True)
    check_needs(replace(small, runs=(run,)), tmp_path)
    assert arguments_of(run, tmp_path) == ["bayesgeom", "diagnose", str(tmp_path / "mine/checkpoint"), "--n", "7"]
    assert arguments_of(small.runs[0], tmp_path)[2] == "bijection-v20"
    (lstms,) = (run for run in load()["P3"].runs if run.name == "comparison")
    assert arguments_of(lstms, tmp_path)[-2:] == ["--runs", str(tmp_path)], "compare takes names of architectures"
    assert "--runs" not in arguments_of(lstms)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Shifts(Report):
    """One estimate by layer and component, beside a number without baselines."""

    name: ClassVar[str] = "p"
    title: ClassVar[str] = "Shifts"
    components: tuple[str, ...]
    shift: Annotated[Estimate, Quantity("layer component", better="higher")]
    k: float
    n: int

    def headlines(self) -> list[Headline]:
        return []

    def panels(self) -> list[Panel]:
        return []


def shifts() -> Shifts:
    values = np.array([[3.0, np.nan, 2.0], [5.0, 11.0, 7.0]])
    random = Baseline.of("chance", "random subspaces", values / 10, high=values / 2)
    shift = Estimate.of(values, (values - 1, values + 1), baselines=[random])
    return Shifts(components=("block", "mlp", "attn"), shift=shift, k=7.0, n=13)


NUMBER = Number(name="x", label="x", unit="", probe="p", metric="shift")


def test_a_number_is_one_row_or_the_extreme_of_several() -> None:
    found, number = [shifts()], NUMBER
    assert value_of(replace(number, metric="k"), found).value == 7
    own = value_of(replace(number, variant="mlp", layer=1), found)
    assert own == Value(value=11.0, lo=10.0, hi=12.0, baseline=5.5), "the greatest of the random subspaces"
    assert value_of(replace(number, variant="block", layer=0), found).value == 3
    assert value_of(replace(number, variant_has="l", reduce="max"), found).value == 11, "block and mlp"
    assert value_of(replace(number, variant_has="l", reduce="min"), found).value == 3
    assert value_of(replace(number, layer=0, reduce="max"), found).value == 3, "a row without a value is left out"
    for ambiguous in (number, replace(number, layer=1), replace(number, metric="other"), replace(number, probe="q")):
        with pytest.raises(InvalidArgument, match=r"number 'x' \([pq]\.\w+\) matches [036] rows"):
            value_of(ambiguous, found)


def test_a_number_may_leave_out_the_first_layers() -> None:
    assert value_of(replace(NUMBER, variant="attn", from_layer=1), [shifts()]).value == 7
    assert value_of(replace(NUMBER, from_layer=1, reduce="min"), [shifts()]).value == 5


def test_a_number_may_be_the_level_of_a_baseline() -> None:
    number = replace(NUMBER, layer=1, variant="attn", baseline="random subspaces")
    assert value_of(number, [shifts()]).value == pytest.approx(0.7)
    most = value_of(replace(number, end="high"), [shifts()])
    assert most.value == pytest.approx(3.5) and math.isnan(most.lo) and math.isnan(most.baseline)
    assert value_of(replace(number, variant=None, end="high", reduce="max"), [shifts()]).value == pytest.approx(5.5)
    with pytest.raises(InvalidArgument, match=r"baseline 'random subspaces' has no 'low' end\. Use end = 'value'"):
        value_of(replace(number, end="low"), [shifts()])
    with pytest.raises(InvalidArgument, match="no baseline is named 'untrained'; there are: random subspaces"):
        value_of(replace(number, baseline="untrained"), [shifts()])
    with pytest.raises(InvalidArgument, match=r"no estimate 'k'\. Its estimates: "):
        value_of(replace(number, metric="k", layer=None, variant=None), [shifts()])


def test_a_missing_report_names_the_command(small: Claim, tmp_path: Path) -> None:
    with pytest.raises(OutputFault, match=r"no report in .*Run: bayesgeom diagnose bijection-v20 .* --out"):
        values_of(small.runs[0], tmp_path)


def test_the_command_line_lists_claims_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(load())
    assert main(["table"]) == 0
    assert "B1  holds" in capsys.readouterr().out
    assert main(["reproduce", "B99"]) == 2
    assert "there is no claim named 'B99'. There are: A1" in capsys.readouterr().err
    assert main(["reproduce"]) == main(["nothing"]) == 2
    assert "name a claim, such as B1, or pass --every" in capsys.readouterr().err
    assert main(["reproduce", "B1", "--unknown"]) == 2


def test_a_difference_is_an_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    claim = load()["B1"]
    assert claim.measured is not None
    known = dict(claim.measured.numbers)
    moved = {name: replace(x, value=2 * x.value, hi=2 * x.hi) for name, x in known.items()}
    for found, status, answer in ((known, 0, "yes"), (moved, 1, "no")):
        again = compared(claim, found)
        monkeypatch.setattr("examples.replication.claims.commands.reproduce", lambda *_, result=again, **__: result)
        assert main(["reproduce", "B1"]) == status
        assert capsys.readouterr().out.count(f" {answer}\n") == 1


def test_a_claim_is_applied_to_a_report_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name, network, verdict_text in (
        ("bijection-v20", "bijection-v20", "holds"),
        ("hmm-s5", "", "does not hold"),  # another report than the claim's own for its first network
    ):
        assert main(["judge", "A1", str(READINGS / name / "ablation"), "--network", network]) == 0
        head, row = capsys.readouterr().out.splitlines()
        assert head.split("  ")[1] == verdict_text and "smallest increase of the entropy error" in row
    assert main(["judge", "A1", str(READINGS / "hmm-s5" / "ablation"), "--network", "mine"]) == 2
    assert "no network named 'mine'" in capsys.readouterr().err
