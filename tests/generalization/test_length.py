"""Length, end to end on small models: what each position is scored, where a planted break is found, what is refused."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.cli import main
from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.core.run import Run
from bayesgeom.core.verdict import Verdict
from bayesgeom.generalization.curves import LARGEST_WITHIN, Errors, errors_across
from bayesgeom.generalization.length import length_generalization, with_room
from bayesgeom.generalization.length_report import EARLIER, LengthReport
from bayesgeom.generalization.longer_tasks import (
    checked_lengths,
    length_field_of,
    with_untrained_positions,
)
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import run_on
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.native.lstm import LSTMConfig
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.models.resolve import of_module
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.base import WindTunnel, derived_seed
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from tests.dynamics.trainings import SIZES as SIZES_OF_RECIPE
from tests.dynamics.trainings import a_recipe

TASK = HMM(n_states=2, n_symbols=3, length=7)
SIZES = TransformerConfig(d_vocab=TASK.d_vocab, n_ctx=61, n_layers=2, n_heads=3, d_model=30, d_mlp=13)


def small(positions: str = "rotary", *, task: WindTunnel = TASK, seed: int = 0, n_ctx: int = 61) -> HookedModel:
    config = replace(SIZES, positions=positions, d_vocab=task.d_vocab, n_ctx=n_ctx)
    return HookedModel(Transformer(config, seed=seed), name=f"{positions} {seed}", task=task)


@pytest.fixture(scope="module")
def two_models() -> LengthReport:
    return length_generalization([small("learned"), small("rotary")], lengths=[11, 19], n=23)


def test_curves_are_the_errors_at_each_position(two_models: LengthReport) -> None:
    model = small("rotary")
    blocks = replace(TASK, length=19).stream(23, seed=derived_seed(0, 0))
    seen = model.run(blocks).behavior
    np.testing.assert_allclose(two_models.kl_bits.value[1], seen.kl_bits.mean(axis=0), rtol=1e-5)
    error = np.abs(seen.model_entropy_bits - seen.exact_entropy_bits).mean(axis=0)
    np.testing.assert_allclose(two_models.entropy_mae_bits.value[1], error, rtol=1e-5)
    np.testing.assert_allclose(
        two_models.whole_error_bits.value[0, 1], [seen.kl_bits[:, :k].mean() for k in (7, 11, 19)], rtol=1e-5
    )
    assert two_models.at.tolist() == list(range(1, 20)) and two_models.lengths == ("7", "11", "19")
    for own in (two_models.kl_bits, two_models.entropy_mae_bits, two_models.whole_error_bits[0]):
        low, high = own.ends
        assert (low <= own.value).all() and (own.value <= high).all() and own.n == 23


def test_one_long_run_says_all_of_the_short_ones() -> None:
    """A causal model's errors at the first positions do not depend on how long the sequence is."""
    model, stretch = small(), length_field_of(TASK)
    whole = run_on(model, stretch.to(TASK, 19), n=5, seed=0).behavior
    for n_steps in (7, 11):
        short = model.run(stretch.to(TASK, n_steps).stream(5, seed=derived_seed(0, 0))).behavior
        np.testing.assert_allclose(short.kl_bits, whole.kl_bits[:, :n_steps], atol=1e-5)


def test_a_planted_break_is_found_where_it_is_and_in_the_first_layer() -> None:
    """Beyond the trained tokens the table shouts one answer, which every layer's read-out hears."""
    model = small("learned")
    with torch.no_grad():
        table, embed = (model.module.get_submodule(name).weight for name in ("pos_embed", "embed"))
        answers = TASK.sample(1, seed=0).answers
        embed[answers[0]] *= 100
        silent, _ = torch.linalg.qr(torch.cat([embed[answers].T, torch.ones(30, 1)], dim=1))
        table[: TASK.n_pos] = 20 * silent[:, 2]  # says nothing of either answer
        table[TASK.n_pos :] = 20 * silent[:, 0] * (silent[:, 0] @ embed[answers[0]]).sign()
    found = length_generalization(model, lengths=[19], n=23, threshold_bits=2.0)
    assert (
        found.discontinuity_bits.ends[0][0, 0] > 1 > 0.5 > found.discontinuity_bits.baseline(LARGEST_WITHIN).value[0, 0]
    )
    assert found.critical_length.value[0] == 8 and found.entry_layer[0] == 0
    assert found.extrapolation_ratio.ends[0][0] > 3
    assert (found.layer_shift.value[0] > 3 * found.layer_shift.baseline(EARLIER).value[0]).all()
    assert found.unreached_rows.tolist() == [[TASK.n_pos + 1, 61]]
    assert f"{TASK.n_pos + 1}–61" in found.table() and found.headline().verdict == Verdict.DISCONTINUITY


def test_without_a_break_nothing_is_called_one() -> None:
    found = length_generalization(small("none"), lengths=[19], n=61)
    assert (
        found.discontinuity_bits.ends[0][0, 0] < 0.05
        and found.unreached_rows.tolist() == [[-1, -1]]
        and found.entry_layer[0] == -1
    )


def test_distance_is_run_length_by_length() -> None:
    task = AssociativeRecall(n_pairs=2, n_keys=3, n_values=5, n_queries=2, n_filler=3)
    model = small("alibi", task=task)
    found = length_generalization(model, lengths=[0, 1, 7, 11], n=13)
    assert found.at.tolist() == [0, 1, 2, 3, 4, 7, 11] and found.unit.startswith("filler") and found.trained == 3
    for place, filler in enumerate(found.at):
        trials = replace(task, n_filler=int(filler)).stream(13, seed=derived_seed(0, 0))
        assert found.kl_bits.value[0, place] == pytest.approx(model.run(trials).behavior.kl_bits.mean(), rel=1e-5)
    assert found.lengths == ("0", "1", "3", "7", "11")
    np.testing.assert_allclose(found.whole_error_bits.value[0], found.kl_bits.value[:, [0, 1, 3, 5, 6]])
    assert np.isfinite(found.layer_excess_bits.value).all() and "filler" in found.plot().layout.xaxis.title.text


@pytest.mark.parametrize("lengths", [None, [6, 40]])
def test_the_break_at_a_distance_is_that_of_the_first_distance_beyond(
    lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors planted by distance: a line within, and far off from one filler token beyond the trained twelve."""
    task = AssociativeRecall(n_pairs=2, n_keys=3, n_values=5, n_queries=1, n_filler=12)
    asked = list[int]()

    def planted(runs: Mapping[int, Run]) -> Errors:
        asked.extend(runs)
        found = errors_across(runs)
        line = 0.001 * found.at + 0.5 * (found.at > 12)
        return replace(found, kl_bits=np.tile(line, (len(found.kl_bits), 1)))

    monkeypatch.setattr(sys.modules["bayesgeom.generalization.length"], "errors_across", planted)
    found = length_generalization(small("alibi", task=task, n_ctx=512), lengths=lengths, n=3)
    assert {*range(3, 14)} <= {*asked} and len(asked) <= 20, "five for the trend at each of five places, one beyond"
    jump = found.discontinuity_bits[0, 0]
    assert float(jump) == pytest.approx(0.5)
    assert jump.baseline(LARGEST_WITHIN).value == pytest.approx(0, abs=1e-9)
    assert found.critical_length.value[0] == 11, "where the line passes 0.01"
    assert found.headlines()[0].label.startswith("KL discontinuity at 13, 5-point trend")
    assert found.headlines()[0].verdict == Verdict.DISCONTINUITY


def test_a_row_that_only_the_last_placeholder_reaches_was_never_trained() -> None:
    task = AssociativeRecall(n_pairs=2, n_keys=3, n_values=5, n_queries=2, n_filler=3)
    found = length_generalization(small("learned", task=task), lengths=[5], n=3)
    assert found.unreached_rows.tolist() == [[task.n_pos, 61]]


def test_other_architectures_have_curves_and_no_layers() -> None:
    lstm = LSTMConfig(d_vocab=TASK.d_vocab, n_ctx=61, n_layers=3, d_model=11).build(seed=0)
    model = of_module(lstm, name="lstm", task=TASK)
    found = length_generalization([small(), model], lengths=[11], n=7)
    assert found.position_kinds == ("rotary", "lstm") and found.layer_excess_bits.value.shape == (2, 3)
    assert np.isnan(found.layer_excess_bits.value[1]).all() and np.isfinite(found.layer_excess_bits.value[0, :2]).all()


def test_models_of_one_name_are_numbered(two_models: LengthReport) -> None:
    assert two_models.models == ("learned 0", "rotary 0")
    assert length_generalization([small(), small()], lengths=[11], n=5).models == ("rotary 0", "rotary 0 (2)")


def test_the_equivalent_window_of_every_arm_is_stated(two_models: LengthReport) -> None:
    assert two_models.equivalent_window_symbols.value.shape == (2,) and set(two_models.predictors) >= {
        "window_4_stationary",
        "window_1_uniform",
        "stationary",
    }
    widest = two_models.predictors[0]
    kind, width, _ = widest.split("_")
    assert kind == "window" and int(width) > 4, "the strongest predictor that carries nothing"
    assert {own.name for own in two_models.extrapolation_ratio.baselines} == {"window_4_stationary"}
    assert (two_models.equivalent_window_symbols.value <= two_models.equivalent_window_symbols.ends[1]).all()


def test_window_observers_of_up_to_ten_symbols_are_baselines_at_every_position() -> None:
    """Wider than four symbols: the better start of each, equal to its predictive, here on a slow chain."""
    task = HMM(n_states=3, n_symbols=2, length=7, floor=0.01, stay=0.95)
    found = length_generalization(small(task=task), lengths=[17], n=23)
    longer = replace(task, length=17)
    (trials,) = longer.stream(23, seed=derived_seed(0, 0))
    wide = {name for name in found.predictors if name.startswith("window") and int(name.split("_")[1]) > 4}
    assert {int(name.split("_")[1]) for name in wide} == set(range(5, 11)) and len(wide) == 6
    for name in wide:
        _, width, start = name.split("_")
        known = {
            own: predicted_behavior(trials, longer.window_predictives(trials, int(width), own))
            for own in ("uniform", "stationary")
        }
        assert start == min(known, key=lambda own: known[own].kl_bits.mean())
        kl, error = (own.baseline(name).value[0] for own in (found.kl_bits, found.entropy_mae_bits))
        seen = known[start]
        np.testing.assert_allclose(kl, seen.kl_bits.mean(axis=0), rtol=1e-3, atol=1e-6)
        gap = np.abs(seen.model_entropy_bits - seen.exact_entropy_bits).mean(axis=0)
        np.testing.assert_allclose(error, gap, rtol=1e-3, atol=1e-6)
        assert kl[-1] > 1e-3


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([7], r"beyond the training length \(length=7\)"),
        ([], "got none"),
    ],
)
def test_lengths_that_say_nothing(lengths: Any, message: str) -> None:
    check = inspect.unwrap(checked_lengths)  # as without shape checks, which would refuse first
    with pytest.raises(InvalidArgument, match=message):
        check(length_field_of(TASK), 7, lengths)


def test_a_table_that_ends_is_refused_with_the_kinds_that_do_not() -> None:
    with pytest.raises(
        TaskMismatch,
        match=r"length=35 takes 83 tokens; learned 0 has positions for 61.*sinusoidal, rotary, alibi, prior.*"
        r"--untrained-rows \(Python: from bayesgeom\.generalization\.length import with_room\)",
    ):
        length_generalization(small("learned"), lengths=[35], n=5)


@pytest.mark.parametrize("lengths", [None, [11]])
def test_a_task_that_cannot_be_longer_is_named_with_its_model(lengths: list[int] | None) -> None:
    task = Bijection(n_values=7, n_pairs=5)
    sizes = TransformerConfig(d_vocab=task.d_vocab, n_ctx=31, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
    model = HookedModel(sizes.build(seed=0), name="own", task=task)
    text = r"own cannot be measured at n_pairs=\d+, because its task Bijection\(n_values=7, n_pairs=5.*distinct keys"
    with pytest.raises(InvalidArgument, match=text):
        length_generalization(model, lengths=lengths, n=5)
    with pytest.raises(InvalidArgument, match=text):
        with_room(model, lengths=lengths)


def test_a_table_is_continued_by_rows_that_no_gradient_reached() -> None:
    model = small("learned", n_ctx=TASK.n_pos)
    longer = with_room(model, lengths=[19], seed=3)
    assert longer.spec.n_ctx == replace(TASK, length=19).n_pos and longer.spec.name == "learned 0 + untrained rows"
    trials = TASK.sample(5, seed=2)
    with torch.no_grad():
        torch.testing.assert_close(longer.logits(trials), model.logits(trials), atol=0, rtol=0)
    rows = longer.module.get_submodule("pos_embed").weight[TASK.n_pos :]
    assert float(rows.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert length_generalization(longer, lengths=[19], n=5).unreached_rows.tolist() == [
        [TASK.n_pos + 1, len(rows) + TASK.n_pos]
    ]
    roomy = small("learned")
    assert with_room(roomy, lengths=[19]) is roomy, "it had room"
    with pytest.raises(InvalidArgument, match="no table of learned positions to extend \\(rotary\\)"):
        with_untrained_positions(small(), 99)


def test_other_refusals() -> None:
    other = replace(TASK, length=9)
    with pytest.raises(InvalidArgument, match=r"the same task at the same length.*length=7.*length=9"):
        length_generalization([small(), small(task=other)], lengths=[19], n=5)
    with pytest.raises(InvalidArgument, match=r"the same task at the same length.*Bijection.*HMM"):
        length_generalization([small(), small(task=Bijection(n_values=5, n_pairs=5))], lengths=[19], n=5)
    with pytest.raises(InvalidArgument, match="n must be at least 2"):
        length_generalization(small(), lengths=[19], n=1)
    with pytest.raises(InvalidArgument, match=r"use n_pairs ≤ n_values"):
        length_generalization(small(task=Bijection(n_values=5, n_pairs=5)), n=5)


@pytest.mark.exhaustive
def test_long_sequences_are_scored_without_their_relations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four relations of each query to each position: of 128 sequences of 3,000 steps they would be 9 GB."""

    def read(*_: object) -> dict[str, Tensor]:
        raise AssertionError("relations were drawn, and nothing reads them")

    monkeypatch.setattr(HMM, "_relations", read)
    task = HMM(n_states=2, n_symbols=2, length=3)
    lstm = LSTMConfig(d_vocab=task.d_vocab, n_ctx=9_999, n_layers=1, d_model=3).build(seed=0)
    found = length_generalization(of_module(lstm, name="lstm", task=task), lengths=[50], n=131)
    assert found.kl_bits.value.shape == (1, 50)
    blocks = [len(block) for block in replace(task, length=2**12).stream(131, seed=0)]
    assert sum(blocks) == 131 and max(blocks) == 127, "a block of so long ones is smaller"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for positions in ("rotary", "none"):
        made = a_recipe(name=positions, task=TASK, sizes={**SIZES_OF_RECIPE, "d_model": 30, "positions": positions})
        config = made.model_config()
        save_checkpoint(tmp_path / positions, config.build(seed=0), config, recipe=made.to_dict(), step=0, card="tiny")
    named = [str(tmp_path / "rotary"), str(tmp_path / "none")]
    assert main(["length", *named, "--to", "11,19", "--n", "5", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "rotary" in printed and (tmp_path / "out" / "report.html").exists()
    assert main(["length", named[0], "--to", "x"]) == 2
    assert "whole numbers" in capsys.readouterr().err
