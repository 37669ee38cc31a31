"""The page of interventions is made of the table of their numbers."""

import numpy as np

from bayesgeom.interventions.report import InterventionReport
from bayesgeom.interventions.verdicts import Obstacle
from bayesgeom.report.diagnosis import Diagnosis
from examples.replication.claims.intervention_page import CAUSAL, causes, fits, interventions, measured
from tests.pages import READINGS


def test_the_table_holds_every_intervention() -> None:
    table = interventions()
    assert table.command.nunique() == 229 and table.checkpoint.nunique() == 21
    assert not table.duplicated(["command", "layer"]).any()
    assert set(table.kind) == {"swap", "remove", "erase onwards"}


def test_no_layer_is_causal_on_the_strength_of_one_control() -> None:
    single = interventions().query("is_single_control == 1")
    assert len(single) > 20 and (single.verdict != CAUSAL).all()


def test_an_interval_holds_its_number() -> None:
    table = interventions()
    for name, stem in (("kl_increase_bits", "kl_increase"), ("movement", "movement")):
        known = table[table[f"{stem}_low"].notna()]
        assert len(known) > 300
        assert ((known[f"{stem}_low"] <= known[name]) & (known[name] <= known[f"{stem}_high"])).all()


def test_the_table_is_that_of_a_stored_report() -> None:
    report = Diagnosis.load(READINGS / "interventions/hmm-s5/leace-belief")[InterventionReport]
    table = interventions()
    command = "bayesgeom intervene hmm-s5 --subspace leace:belief --kind swap"
    is_it = table.command.str.startswith(command) & (table.positions == "scored positions")
    rows = table[is_it].set_index("layer")
    at = rows.index.to_numpy()
    np.testing.assert_array_equal(rows.movement, report.movement.value[at, 0])
    np.testing.assert_array_equal(rows.movement_high, report.movement.ends[1][at, 0])
    np.testing.assert_array_equal(rows.r2_after, report.r2_after.value[at])


def test_the_parts_have_a_row_for_every_checkpoint_fit_and_use() -> None:
    assert (
        measured().count("\n") == 22
        and "| hmm-s5 | stream, onwards | stream, later, onwards | stream | stream |" in measured()
    )
    assert "| `repeats-transformer` | undecided | undecided | causal in layer 2 |" in fits()
    assert "given position alone: yes in layers 1, 2" in causes()


def test_a_report_of_an_earlier_version_loads_without_the_new_fields() -> None:
    report = Diagnosis.load(READINGS / "interventions/hmm-s5/leace-belief")[InterventionReport]
    assert report.verdict_by_layer[1] == CAUSAL and report.against_causal[6] == Obstacle.DIRECT_PATH
    assert report.given == () and set(report.survival_by_layer) == {""} and np.isnan(report.given_movement.value).all()
    assert "against causal" in report.table() and report.plot().data and report.headline() is not None
