"""The claims are read from TOML, and an entry that is wrong is refused by name."""

import re
import shlex
import tomllib

import pytest

from bayesgeom.cli import parsed as command_of
from bayesgeom.core.errors import InvalidArgument, UnknownName
from examples.replication.__main__ import COMMANDS
from examples.replication.claims.claim import verdict
from examples.replication.claims.loading import FOLDER, find, load, parsed
from examples.replication.claims.pages import table

CLAIM = """
[[claim]]
id = "Z1"
claim = "A sentence."
source = "a paper"
published = "1 bit"
quantifier = "some network"
[[claim.case]]
network = "net"
tests = [{ number = "kl", below = 1.0 }]
"""
RUN = """
[[claim.run]]
name = "main"
command = "bayesgeom diagnose bijection-v20 --n 7"
[claim.run.numbers]
kl = { label = "KL", unit = "bits", probe = "calibration", metric = "kl_bits" }
"""
RUNS = [run for claim in load().values() for run in claim.runs]


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("published =", "publisht ="), r"claim 'Z1' has no 'published'"),
        (('claim = "A', 'clam = 1\nclaim = "A'), r"claim 'Z1' has no field 'clam'.*Fields: .*published"),
        (('"1 bit"', "1"), r"claim 'Z1': 'published' must be of type str, got 1"),
        (('"some network"', '"any network"'), r"quantifier must start with 'every ' or 'some ', got 'any network'"),
        (('"some network"', '"some network"\nparts = "most"'), r"'parts' must be one of every, some, got 'most'"),
        (("network =", "netwrk ="), r"case '\(without a network\)' of claim 'Z1' has no 'network'"),
        (("tests = [{ number", "tests = []\nnone = [{ number"), r"case 'net' of claim 'Z1' has no tests"),
        (("below = 1.0", "near = 1.0"), r"a test of case 'net' of claim 'Z1' needs one of above and below, got near"),
        (("below = 1.0", "below = 1.0, above = 0.5"), r"needs one of above and below, got above, below, number"),
        (("below = 1.0", 'below = 1.0, times = "two"'), r"'times' must be of type float, got 'two'"),
        (("below = 1.0", "below = true"), r"'than' must be of type float or str, got True"),
        (('number = "kl", below', 'number = "lk", below'), r"claim 'Z1' refers to number 'lk'. Its runs define: kl"),
        (("below = 1.0", 'below = "lk"'), r"claim 'Z1' refers to number 'lk'. Its runs define: kl"),
        (('"bayesgeom diag', '"diag'), r"run 'main' of claim 'Z1': the command must start with 'bayesgeom ' or "),
        (('probe = "calibration", ', ""), r"number 'kl' of run 'main' of claim 'Z1' has no 'probe'"),
        (('metric = "kl_bits"', 'metric = "kl_bits", reduce = "sum"'), r"'reduce' must be one of only, min, max"),
        (('metric = "kl_bits"', 'metric = "kl_bits", layer = 0.5'), r"'layer' must be of type int, got 0.5"),
        (
            ('metric = "kl_bits"', 'metric = "kl_bits", baseline = "x", end = "top"'),
            r"'end' must be one of value, low, high",
        ),
        (('metric = "kl_bits"', 'metric = "kl_bits", end = "high"'), r"needs 'baseline'; got 'high'"),
        (
            ("[[claim.run]]", f"{RUN}[[claim.run]]".replace('"main"', '"other"')),
            r"claim 'Z1': number 'kl' is defined by two runs. Rename one",
        ),
        (
            ("[[claim.run]]", f"{RUN}[[claim.run]]".replace('"main"', '"other"').replace("kl =", "lk =")),
            r"claim 'Z1': no test reads lk. Add a test, or delete the number",
        ),
    ],
)
def test_a_wrong_entry_is_refused_by_name(change: tuple[str, str], message: str) -> None:
    text = CLAIM + RUN
    assert parsed([text], {})["Z1"].numbers["kl"].metric == "kl_bits"
    assert text.count(change[0]) >= 1
    with pytest.raises(InvalidArgument, match=message):
        parsed([text.replace(*change, 1)], {})


def test_a_claim_without_a_case_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"claim 'Z1' has no case: name a network and its tests"):
        parsed([CLAIM.partition("[[claim.case]]")[0] + RUN], {})


def test_two_claims_of_one_id_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"claim 'Z1' is stated twice: .* Rename one"):
        parsed([CLAIM + RUN, CLAIM + RUN], {})


def test_a_measurement_of_no_claim_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown claims: Z2\. Correct the ids, or delete"):
        parsed([CLAIM + RUN], {"Z2": {}})


def test_a_recorded_number_of_no_run_is_refused() -> None:
    text = '[Z1]\ndate = "2026-01-01"\nmachine = "m"\n[Z1.numbers]\n{}\n[Z1.origins]\n'
    value = "{ value = 1.0, lo = 0.5, hi = 1.5, baseline = nan }"
    assert parsed([CLAIM + RUN], tomllib.loads(text.format(f"kl = {value}")))["Z1"].unrecorded == []
    with pytest.raises(InvalidArgument, match=r"records lk, which no run defines; the runs define kl. Delete these"):
        parsed([CLAIM + RUN], tomllib.loads(text.format(f"lk = {value}")))


def test_a_number_that_is_not_recorded_yet_decides_nothing() -> None:
    text = tomllib.loads('[Z1]\ndate = "2026-01-01"\nmachine = "m"\n[Z1.numbers]\n[Z1.origins]\n')
    claim = parsed([CLAIM + RUN], text)["Z1"]
    assert claim.unrecorded == ["kl"] and str(verdict(claim)) == "no data"
    assert "|net|–|< 1|no data|" in table(claim)


def test_an_unknown_claim_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UnknownName, match=r"no claim named 'B99'. There are: A1, .*Y2"):
        find("B99")


def test_claims_hold_no_machine_path() -> None:
    assert len(list(FOLDER.glob("*.toml"))) >= 8
    for path in FOLDER.glob("*.toml"):
        assert not re.search(r"/(home|tmp|work|root)/", path.read_text(encoding="utf-8")), path.name


def test_commands_are_understood() -> None:
    """One of every kind: of the package, and of the study."""
    lines = [shlex.split(run.command) for run in RUNS if run.command]
    of_package = {words[1]: words[1:] for words in lines if words[0] == "bayesgeom"}
    assert {"diagnose", "ablate", "intervene", "dynamics", "length"} < of_package.keys()
    for words in of_package.values():
        command_of(words)
    of_study = {words[3] for words in lines if words[0] == "python"}
    assert of_study <= COMMANDS.keys()
