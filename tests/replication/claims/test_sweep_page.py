"""The page of the sweeps, from planted rows with known answers."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bayesgeom.core.errors import InvalidArgument
from examples.replication import sweeps
from examples.replication.claims import sweep_page
from examples.replication.claims.claim import Number, Run, Verdict, by_network
from examples.replication.claims.loading import find
from examples.replication.claims.reading import origin_of, values_of
from examples.replication.sweeps import Row

SVG = "{http://www.w3.org/2000/svg}"


def pool_rows() -> Iterator[Row]:
    """Two seeds, whose difference of both KLs is log2 K − 5 and log2 K − 7: it is 0 at K = 32 and 128."""
    for seed, zero in ((0, 5), (1, 7)):
        for pool in (16, 64, 256):
            for step in (0, 10, 20 + seed):
                own = Row(
                    sweep="pools", architecture="transformer", setting=f"pool {pool}", seed=seed, lr=1e-3, step=step
                )
                for at in ("pool", "fresh"):
                    values = {"memorizing": 10 + math.log2(pool) - zero, "generalizing": 10.0 - 5 * (step == 10)}
                    for name, value in values.items():
                        yield Row(**{**vars(own), "at": at, "quantity": f"kl_to_{name}", "value": value})


def share_rows() -> Iterator[Row]:
    for lr, right in ((1e-3, 0.5), (2e-3, 0.98)):
        own = Row(sweep="capacity", architecture="lstm", setting="32 keys, muon", seed=0, lr=lr, step=7, seconds=90.0)
        yield Row(**{**vars(own), "step": 0, "quantity": "parameters", "value": 1234.0})
        for at in ("2 pairs, trained to 2", "2 pairs", "4 pairs"):
            share = {"quantity": "share_named", "value": right, "lower": right - 0.25, "upper": right + 0.25}
            yield Row(**{**vars(own), "at": at, **share})


def depth_rows() -> Iterator[Row]:
    """KL 1 / depth in one seed and 3 / depth in the other; a mixture that costs 0.5 bits on the second process."""
    for seed in (0, 1):
        own = Row(sweep="depth", architecture="transformer", setting="", seed=seed, lr=1e-3, quantity="kl_bits")
        for setting in ("depth 1 length 8", "depth 2 length 8", "depth 1 length 64", "depth 2 length 64"):
            yield replace(own, setting=setting, at=setting, value=(1 + 2 * seed) / int(setting.split()[1]))
        for setting, at, value in (("both", "first", 1.0), ("both", "second", 2.0), ("second", "second", 1.5)):
            yield replace(own, sweep="mixed", setting=setting, at=at, value=value)
        yield replace(own, sweep="mixed", setting="first", at="first", value=1.0)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The planted table, which the page reads."""
    path = tmp_path / "sweeps.csv"
    sweeps.append(path, [*pool_rows(), *share_rows(), *depth_rows()])
    planted = sweeps.read(path)
    monkeypatch.setattr(sweep_page, "rows", lambda sweep: [row for row in planted if row.sweep == sweep])
    return path


def test_the_crossing_is_interpolated_between_pools(table: Path) -> None:
    own = sweep_page.rows("pools")
    sizes = [sweep_page.crossing([row for row in own if row.seed == seed]) for seed in (0, 1)]
    assert sizes == pytest.approx([32, 128])
    assert sweep_page.crossing([row for row in own if row.setting == "pool 16"]) is None
    interval = "95 % interval 0.009577 to 427,700 over seeds"  # 2 to the 6 ± 12.7: Student's t of two seeds
    assert sweep_page.threshold().endswith(f"64 chains (32, 128 by seed), {interval}; 2 of 2 seeds.")
    *_, least, step = sweep_page.pools().splitlines()[2].split("|")[:-1]
    assert (least.strip(), step.strip()) == ("5 (5 to 5)", "10")


def test_cells_that_were_not_trained_are_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = [row for row in depth_rows() if row.setting not in ("depth 2 length 64", "second")]
    monkeypatch.setattr(sweep_page, "rows", lambda sweep: [row for row in planted if row.sweep == sweep])
    assert sweep_page.depth().splitlines()[-1] == "| 2 | 1 (0.5 to 1.5) | – |"
    assert len(ET.fromstring(sweep_page.depth_plot()).findall(f"{SVG}rect")) == 1 + 3
    assert sweep_page.mixed().splitlines()[-1].endswith("| 2 (2 to 2) | – |")


def test_the_plots_show_every_cell(table: Path) -> None:
    cells = ET.fromstring(sweep_page.pools_plot()).findall(f"{SVG}rect")
    assert len(cells) == 1 + 2 * 3 * 3  # a background; panels, pools, and steps: 0, 10 and the end
    chart = ET.fromstring(sweep_page.capacity_plot())
    assert len(chart.findall(f"{SVG}circle")) == 4  # the network at its best rate, and the chance level, at two sizes


def test_depths_and_mixtures_are_means_over_seeds(table: Path) -> None:
    one, two = sweep_page.depth().splitlines()[2:]
    assert one == "| 1 | 2 (1 to 3) | 2 (1 to 3) |" and two == "| 2 | 1 (0.5 to 1.5) | 1 (0.5 to 1.5) |"
    cells = ET.fromstring(sweep_page.depth_plot()).findall(f"{SVG}rect")
    assert [cell.get("fill") for cell in cells[1:]] == ["#c16028", "#c16028", "#ffffff", "#ffffff"]
    assert [row.split("|")[-3:-1] for row in sweep_page.mixed().splitlines()[2:]] == [
        [" 1 (1 to 1) ", " 1 (1 to 1) "],
        [" 2 (2 to 2) ", " 1.5 (1.5 to 1.5) "],
    ]


def test_the_table_states_what_each_rate_learned(table: Path) -> None:
    first, second = (row.split("|")[1:-1] for row in sweep_page.capacity().splitlines()[2:])
    assert [cell.strip() for cell in first] == ["lstm", "1,234", "muon", "0.001", "none", "0.5", "0.5"]
    assert second[4].strip() == "4 pairs"


def test_a_claim_reads_the_best_rate(table: Path) -> None:
    only = Number(name="n", label="", probe="capacity", metric="share_named", variant="lstm, 32 keys, muon, 4 pairs")
    with pytest.raises(InvalidArgument, match="has 2 rows of capacity / share_named / lstm, 32 keys, muon, 4 pairs"):
        values_of(Run(name="run", numbers={"n": only}), table)
    number = replace(only, variant="lstm, 4 pairs", reduce="max")
    (value,) = values_of(Run(name="run", numbers={"n": number}), table).values()
    assert (value.value, value.lo, value.hi) == (0.98, 0.73, 1.23)
    assert origin_of(table).n == sweeps.N_HELD_OUT
    other = Number(name="n", label="", probe="capacity", metric="share_named", variant="lstm, 5 pairs")
    with pytest.raises(InvalidArgument, match="has 0 rows of capacity / share_named / lstm, 5 pairs"):
        values_of(Run(name="run", numbers={"n": other}), table)


def test_a_claim_reads_one_block() -> None:
    own = Number(name="n", label="", probe="rescue", metric="share_own", variant="transformer, whole, matched")
    numbers = {str(block): replace(own, layer=block) for block in (1, 2, 3)}
    values = [found.value for found in values_of(Run(name="run", numbers=numbers), sweeps.TABLE).values()]
    assert values == sorted(values) and values[0] < values[-1]
    with pytest.raises(
        InvalidArgument, match="has 0 rows of rescue / share_own / transformer, whole, matched / block 4"
    ):
        values_of(Run(name="run", numbers={"n": replace(own, layer=4)}), sweeps.TABLE)


def test_matched_donors_rescue_and_crossed_ones_do_not() -> None:
    claim = find("C5")
    assert {reading: own for (reading, _), own in by_network(claim).items()} == {
        "matched donors": Verdict.HOLDS,
        "crossed donors": Verdict.FAILS,
    }
    assert claim.measured is not None and f"{claim.measured.numbers['without'].value:.2f} is right here" in claim.remark
