"""Rescue beyond the loss horizon."""

from pathlib import Path

import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.tasks import ModularRecurrence
from examples.replication.rescue import LATER, rescue, sequences
from examples.replication.sweeps import read
from examples.replication.training.construction import constructed

TASK = ModularRecurrence(modulus=7)


def test_donors_follow_the_rules_of_their_recipients() -> None:
    recipients, matched, crossed = sequences(TASK, 4, 300, seed=0)
    assert len(recipients) == len(matched) == len(crossed) == 300
    assert torch.equal(matched[:, 4:6], recipients[:, 4 + LATER : 6 + LATER])
    assert bool((crossed[:, 4] != matched[:, 4]).all())
    for row in range(300):  # a slow twin: the rules that give both
        rules = [
            (a, b)
            for a in range(7)
            for b in range(7)
            if all(
                (a * x + b) % 7 == y
                for own in (recipients, matched, crossed)
                for x, y in zip(own[row, :-1].tolist(), own[row, 1:].tolist(), strict=True)
            )
        ]
        assert len(rules) == 1 and rules[0][0] > 1


def test_the_state_after_the_last_block_is_the_donors_answer(tmp_path: Path) -> None:
    recipe = constructed()["recurrence-first5"]
    config = TransformerConfig(d_vocab=7, n_ctx=16, n_layers=2, n_heads=2, d_model=16, d_mlp=8, positions="rotary")
    save_checkpoint(tmp_path / "model", config.build(seed=3), config, recipe=recipe.to_dict(), step=0, card="")
    rescue(str(tmp_path / "model"), n=200, table=tmp_path / "table.csv")
    found = {(row.at, row.setting, row.quantity): row.value for row in read(tmp_path / "table.csv")}
    assert len(found) == 1 + 3 * 2 * 2, "kinds of donors, blocks and answers"
    assert not any(at == "update, matched" for at, _, _ in found), "it is the whole state"
    last = found["whole, matched", "block 2", "share_own"]
    assert last == found["whole, matched", "block 2", "share_of_donor"]
    donors, module = sequences(TASK, 4, 200, seed=0)[2], config.build(seed=3)
    direct = float((module(donors[:, :5])[:, -1].argmax(1) == donors[:, 5]).double().mean())
    assert found["whole, crossed", "block 2", "share_of_donor"] == direct
    assert all(0 <= share <= 1 for share in found.values())


def test_other_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="sticky-small is no transformer of this package on a recurrence"):
        rescue("sticky-small", table=tmp_path / "table.csv")
