"""The claims are read from TOML, and an entry that is wrong is refused by name."""

import re
import shlex
import tomllib

import pytest

from bayesgeom.cli import parsed as command_of
from bayesgeom.core.errors import InvalidArgument, UnknownName
from examples.replication.__main__ import COMMANDS
from examples.replication.claims.claim import Verdict, verdict
from examples.replication.claims.loading import FOLDER, find, load, parsed
from examples.replication.claims.pages import summary

CLAIM = """
[[claim]]
id = "Z1"
claim = "A sentence."
source = "a paper"
published = "1 bit"
criterion = "A rule."
does_not_show = "Much."
"""
RUN = """
[[claim.run]]
name = "main"
command = "bayesgeom diagnose bijection-v20 --n 7"
[claim.run.numbers]
kl = { label = "KL", unit = "bits", probe = "calibration", metric = "kl_bits" }
"""
RUNS = [run for claim in load().values() for run in claim.runs]
BELOW = '{ number = "kl", is = "below", than = 1 }'


def test_every_claim_of_the_contract_is_there() -> None:
    ids = [
        *(f"B{i}" for i in range(1, 6)),
        *(f"H{i}" for i in range(1, 9)),
        *(f"G{i}" for i in range(1, 9)),
        *(f"A{i}" for i in range(1, 6)),
        *(f"P{i}" for i in range(1, 5)),
        *(f"D{i}" for i in range(1, 4)),
        *(f"L{i}" for i in range(1, 9)),
        *(f"J{i}" for i in range(1, 6)),
        *(f"C{i}" for i in range(1, 8)),
        "T1",
        "Y1",
        "Y2",
    ]
    assert len(ids) == 56
    assert not set(ids) - load().keys()


@pytest.mark.parametrize("claim_id", load())
def test_a_claim_can_be_decided(claim_id: str) -> None:
    claim = find(claim_id)
    assert re.fullmatch(r"[A-Z]\d+", claim.id)
    assert re.search(r"[Ss]upported|[Cc]ontradicted|[Uu]sed", claim.criterion) or claim.criterion.startswith("As ")
    assert len(claim.criterion.split()) > 3
    assert claim.runs or (claim.hold is not None and ": missing " in claim.hold.reason), "a way, or what is missing"
    assert claim.supported_if or claim.hold is not None, "without conditions there must be a reason"
    assert claim.measured is None or (claim.shown and claim.against and claim.does_not_show)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("published =", "publisht ="), r"claim 'Z1' has no 'published'"),
        (('claim = "A', 'clam = 1\nclaim = "A'), r"claim 'Z1' has no field 'clam'.*Fields: .*published"),
        (('"1 bit"', "1"), r"claim 'Z1': 'published' must be of type str, got 1"),
        (("[[claim.run]]", 'seeds = "two"\n[[claim.run]]'), r"'seeds' must be of type int, got 'two'"),
        (("[[claim.run]]", "seeds = true\n[[claim.run]]"), r"'seeds' must be of type int, got True"),
        (('"bayesgeom diag', '"diag'), r"run 'main' of claim 'Z1': the command must start with 'bayesgeom ' or "),
        (('probe = "calibration", ', ""), r"number 'kl' of run 'main' of claim 'Z1' has no 'probe'"),
        (('metric = "kl_bits"', 'metric = "kl_bits", reduce = "sum"'), r"reduce must be one of only, min, max"),
        (
            ('metric = "kl_bits"', 'metric = "kl_bits", baseline = "x", end = "top"'),
            r"end must be one of value, low, high",
        ),
        (('metric = "kl_bits"', 'metric = "kl_bits", end = "high"'), r"needs 'baseline'; got 'high'"),
        (
            ("[[claim.run]]", 'supported_if = [{ number = "kl", is = "near", than = 1 }]\n[[claim.run]]'),
            r"'is' must be below or above, got 'near'",
        ),
        (
            (
                "[[claim.run]]",
                f"supported_if = [{BELOW}]\ncontradicted_if = [{BELOW.replace('kl', 'lk')}]\n[[claim.run]]",
            ),
            r"claim 'Z1' refers to number 'lk'. Its runs define: kl",
        ),
        (
            ("[[claim.run]]", f"contradicted_if = [{BELOW}]\n[[claim.run]]"),
            r"claim 'Z1' has contradicted_if without supported_if: state both",
        ),
        (
            ("[[claim.run]]", f"supported_if = [{BELOW}]\ncontradicted_if = [[]]\n[[claim.run]]"),
            r"claim 'Z1': a group in contradicted_if is empty: name its conditions, or delete it",
        ),
        (
            ("[[claim.run]]", 'why_open = "It is."\n[[claim.run]]'),
            r"claim 'Z1': why_open .* needs supported_if and no hold",
        ),
        (
            ("[[claim.run]]", f"{RUN}[[claim.run]]".replace('"main"', '"other"')),
            r"claim 'Z1': number 'kl' is defined by two runs. Rename one",
        ),
        (
            (
                "[[claim.run]]",
                'supported_if = [{ number = "kl", is = "below", than = 1, disjoint = true }]\n[[claim.run]]',
            ),
            r"a condition of claim 'Z1': disjoint compares two intervals, so than must name a number; got 1",
        ),
        (
            ("[[claim.run]]", 'supported_if = [{ number = "lk", is = "below", than = 1 }]\n[[claim.run]]'),
            r"claim 'Z1' refers to number 'lk'. Its runs define: kl",
        ),
        (
            ("[[claim.run]]", 'hold = { verdict = "not decided", reason = "it is {lk}" }\n[[claim.run]]'),
            r"claim 'Z1' refers to number 'lk'. Its runs define: kl",
        ),
        (
            ("[[claim.run]]", 'hold = { verdict = "supported", reason = "trust us" }\n[[claim.run]]'),
            r"the hold of claim 'Z1': verdict must be one of not decided, .* got 'supported'",
        ),
    ],
)
def test_a_wrong_entry_is_refused_by_name(change: tuple[str, str], message: str) -> None:
    text = CLAIM + RUN
    assert parsed([text], {})["Z1"].numbers["kl"].metric == "kl_bits"
    assert text.count(change[0]) >= 1
    with pytest.raises(InvalidArgument, match=message):
        parsed([text.replace(*change, 1)], {})


def test_without_contradicted_if_the_other_side_of_each_condition_contradicts() -> None:
    def groups(text: str) -> list[list[str]]:
        claim = parsed([CLAIM + f"supported_if = [{BELOW}, {BELOW}]\n{text}" + RUN], {})["Z1"]
        return [[own.side for own in group] for group in claim.contradicted_if]

    assert groups("") == [["above"], ["above"]] and groups("contradicted_if = []\n") == []
    assert groups(f"contradicted_if = [{BELOW}, [{BELOW}, {BELOW}]]\n") == [["below"], ["below", "below"]]


def test_two_claims_of_one_id_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"claim 'Z1' is stated twice: .* Rename one"):
        parsed([CLAIM, CLAIM], {})


def test_a_measurement_of_no_claim_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown claims: Z2\. Correct the ids, or delete"):
        parsed([CLAIM], {"Z2": {}})


def test_a_recorded_number_of_no_run_is_refused() -> None:
    text = '[Z1]\ndate = "2026-01-01"\nmachine = "m"\n[Z1.numbers]\n{}\n[Z1.origins]\n'
    value = "{ value = 1.0, lo = 0.5, hi = 1.5, baseline = nan }"
    assert parsed([CLAIM + RUN], tomllib.loads(text.format(f"kl = {value}")))["Z1"].unrecorded == []
    with pytest.raises(InvalidArgument, match=r"records lk, which no run defines; the runs define kl. Delete these"):
        parsed([CLAIM + RUN], tomllib.loads(text.format(f"lk = {value}")))


def test_a_number_that_is_not_recorded_yet_decides_nothing() -> None:
    text = tomllib.loads('[Z1]\ndate = "2026-01-01"\nmachine = "m"\n[Z1.numbers]\n[Z1.origins]\n')
    condition = (
        'supported_if = [{ number = "kl", is = "below", than = 1 }]\nshown = ["kl"]\nagainst = "kl"\n[[claim.run]]'
    )
    claim = parsed([CLAIM + RUN.replace("[[claim.run]]", condition)], text)["Z1"]
    assert claim.unrecorded == ["kl"] and verdict(claim) == Verdict.NOT_DECIDED
    assert "| KL – | – | 1 |" in summary([claim])


def test_an_unknown_claim_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UnknownName, match=r"no claim named 'B99'. There are: A1, .*Y2"):
        find("B99")


def test_an_unreadable_measurement_is_no_verdict() -> None:
    assert {str(v) for v in Verdict} == {
        "supported",
        "contradicted",
        "not decided",
        "not testable on this task",
        "not tested",
    }


def test_criteria_hold_no_machine_path() -> None:
    assert len(list(FOLDER.glob("*.toml"))) >= 8
    for path in FOLDER.glob("*.toml"):
        assert not re.search(r"/(home|tmp|work|root)/", path.read_text(encoding="utf-8")), path.name


def test_commands_are_understood() -> None:
    """One of every kind: of the package, and of the study."""
    lines = [shlex.split(run.command) for run in RUNS]
    of_package = {words[1]: words[1:] for words in lines if words[0] == "bayesgeom"}
    assert {"diagnose", "ablate", "intervene", "dynamics", "length"} < of_package.keys()
    for words in of_package.values():
        command_of(words)
    of_study = {words[3] for words in lines if words[0] == "python"}
    assert of_study <= COMMANDS.keys()
