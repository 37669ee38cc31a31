"""The monitor in a plain loop and in transformers' Trainer: what it logs, writes, stops and puts back."""

import copy
import logging
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import TestCase

import numpy as np
import pytest
import torch
from torch import nn

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, OutputFault, TaskMismatch
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.models.native.wrapped import LlamaConfig
from bayesgeom.monitor.report import ATTENTION, DIRECTIONS, OTHERS, UNIFORM, UNTRAINED, MonitorReport, measured
from bayesgeom.monitor.rules import Thresholds
from bayesgeom.monitor.watch import Monitor, Response, Settings, trainer_callback
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.sentences import opening_of
from bayesgeom.tasks.bijection import Bijection
from tests.ablations.plain import n_hooks

TASK = Bijection(n_values=5, n_pairs=3)
QUICK = Settings(n=6, untrained=False)


def tiny(seed: int = 0) -> Transformer:
    return Transformer(TransformerConfig(d_vocab=10, n_ctx=5, n_layers=2, n_heads=3, d_model=21, d_mlp=11), seed=seed)


def loop(module: nn.Module, steps: int, watch: Monitor | None = None, *, noise_from: int | None = None) -> list[float]:
    """A plain loop, dropout-like noise included; from `noise_from` on every step destroys a bit of the weights."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    torch.manual_seed(3)
    losses = []
    for step in range(steps):
        trials = TASK.sample(4, seed=step)
        logits = module(trials.tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), trials.labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=1e-4)
                if noise_from is not None and step >= noise_from:
                    parameter.add_(torch.randn(parameter.shape), alpha=0.5)
        losses.append(float(loss.detach()))
        if watch is not None:
            watch(step)
            if watch.should_stop:
                break
    return losses


def test_a_watched_training_is_the_training() -> None:
    """Losses, weights, modes, hooks and random draws as without."""
    alone, watched = tiny(), tiny()
    watched.train()
    hooks = n_hooks(watched)
    watch = Monitor(watched, TASK, every=2, settings=QUICK)
    assert loop(alone, 7) == loop(watched, 7, watch)
    for name, value in alone.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name])
    assert watched.training and n_hooks(watched) == hooks
    assert watch.report().steps == ("0", "2", "4", "6")


def test_it_measures_the_weights_as_they_are_then() -> None:
    module = tiny()
    watch = Monitor(module, TASK, every=1, settings=QUICK)
    watch(0)
    with torch.no_grad():
        module.embed.weight.mul_(30)
    watch(1)
    measured_then = weights_hash(module.state_dict())
    with torch.no_grad():
        module.embed.weight.mul_(2)  # after the measurement
    report = watch.report()
    assert report.provenance["model"]["weights_hash"] == measured_then
    with torch.no_grad():
        module.embed.weight.div_(2)
    trials = watch._trials
    now = measured(bayesgeom.as_model(module), trials, seed=0)  # type: ignore[attr-defined]
    assert report.kl_bits.value[1] == pytest.approx(now.kl_bits.mean())
    assert report.kl_bits.value[0] != report.kl_bits.value[1]
    np.testing.assert_allclose(report.key_orthogonality_by_head[1], now.key_orthogonality)


def test_each_number_has_its_chance_level_and_that_of_an_untrained_network() -> None:
    watch = Monitor(tiny(), TASK, every=1, settings=Settings(n=6))
    watch(0)
    report = watch.report()
    entropies = watch._trials.at_scored(watch._trials.predictive)
    uniform = np.log2(5) + torch.xlogy(entropies, entropies).sum(-1).mean().item() / np.log(2)
    assert report.kl_bits.baseline(UNIFORM).value[0] == pytest.approx(uniform)
    assert 0 < report.key_orthogonality.baseline(DIRECTIONS).value[0] < 1
    assert 0 < report.coverage.baseline(DIRECTIONS).value[0] <= 1
    assert math.isfinite(report.separation.baseline(OTHERS).value[0])
    assert report.attention_entropy_bits.baseline(ATTENTION).value[0] > 0
    for own in (
        report.kl_bits,
        report.key_orthogonality,
        report.coverage,
        report.separation,
        report.attention_entropy_bits,
    ):
        assert math.isfinite(own.baseline(UNTRAINED).value[0])
    first = report.headline()
    assert first is not None and first.metric == "kl_bits" and not any(own.verdict for own in report.headlines())
    assert opening_of(report)[0].startswith("At step 0 KL is ")
    alone = Monitor(tiny(), TASK, every=1, settings=QUICK)
    alone(0)
    assert [own.name for own in alone.report().coverage.baselines] == [DIRECTIONS]
    assert dict(zip(report.rules, report.threshold.tolist(), strict=True)) == asdict(Thresholds())


def test_degeneration_is_logged_and_may_stop() -> None:
    module = tiny()
    watch = Monitor(module, TASK, every=1, settings=QUICK, response=Response(action="stop"))
    with TestCase().assertLogs("bayesgeom.monitor", logging.WARNING) as logged:
        losses = loop(module, 60, watch, noise_from=20)
    assert watch.should_stop and 22 <= len(losses) <= 32
    kinds = [event.kind for event in watch.events]
    assert kinds.count("degenerated") >= 1 and kinds[-1] == "stopped"
    assert any("kl_bits degenerated" in message for message in logged.output)
    assert watch.report().event_step[-1] == len(losses) - 1


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_it_goes_back_to_the_last_good_state_and_stops_when_that_does_not_help(on_disk: bool, tmp_path: Path) -> None:
    module = tiny()
    response = Response(action="roll_back", most=2, folder=tmp_path if on_disk else None)
    watch = Monitor(module, TASK, every=1, settings=QUICK, response=response)
    kept: dict[int, dict[str, torch.Tensor]] = {}
    put_back = watch._good.put_back

    def witnessed() -> int:
        back = put_back()
        kept[back] = copy.deepcopy(module.state_dict())
        return back

    watch._good.put_back = witnessed  # type: ignore[method-assign]
    loop(module, 80, watch, noise_from=20)
    done = [event for event in watch.events if event.kind in ("rolled back", "stopped")]
    assert [event.kind for event in done] == ["rolled back", "rolled back", "stopped"]
    assert 15 <= done[0].value <= 22 and "rolled back to step" in str(done[0])
    for back, state in kept.items():
        module.load_state_dict(state)
        level = measured(watch.model, watch._trials, seed=0).kl_bits.mean()
        at = watch.report().steps.index(str(back))
        assert level == pytest.approx(watch.report().kl_bits.value[at])


def test_keys_that_collapse_again_and_again_go_back_to_the_state_before() -> None:
    module = tiny()
    response, floor = Response(action="roll_back", on="key_orthogonality"), 0.2
    thresholds = Thresholds(degenerate_orthogonality=floor)
    watch = Monitor(module, TASK, every=1, settings=QUICK, thresholds=thresholds, response=response)
    good = copy.deepcopy(module.state_dict())
    for step in range(12):
        if step in (4, 8):
            good = copy.deepcopy(module.state_dict())
            with torch.no_grad():
                module.embed.weight.copy_(module.embed.weight.mean(0, keepdim=True))
        events = watch(step)
        if step in (5, 9):  # a fall needs two measurements
            assert [event.kind for event in events] == ["degenerated", "rolled back"]
            assert events[1].value == step - 2
            assert all(torch.equal(good[name], value) for name, value in module.state_dict().items())
    assert not watch.should_stop and watch._measures[-1].summary()["key_orthogonality"] > floor


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("action", ["warn", "stop", "roll_back"])
def test_weights_that_are_not_finite_are_noticed_at_once(action: Any, value: float) -> None:
    module = tiny()
    response = Response(action=action, on="key_orthogonality")
    watch = Monitor(module, TASK, every=1, settings=QUICK, response=response)
    loop(module, 2, watch)
    good = copy.deepcopy(module.state_dict())
    with torch.no_grad():
        next(iter(module.parameters()))[0, :3] = value
    events = watch(2)
    assert (events[0].kind, events[0].metric, events[0].value) == ("not finite", "weights", 3)
    assert "3 entries of weights are NaN or infinite" in str(events[0])
    assert [event.kind for event in events[1:]] == {"warn": [], "stop": ["stopped"], "roll_back": ["rolled back"]}[
        action
    ]
    assert watch.should_stop == (action == "stop")
    if action == "roll_back":
        assert events[1].value == 1
        assert all(torch.equal(good[name], tensor) for name, tensor in module.state_dict().items())
    if action == "warn":
        assert watch(3) == ()  # said once


def test_a_state_that_is_not_finite_is_never_saved() -> None:
    module = tiny()
    watch = Monitor(module, TASK, every=1, settings=QUICK, response=Response(action="roll_back"))
    with torch.no_grad():
        next(iter(module.parameters()))[0, 0] = math.nan
    events = [event for step in range(4) for event in watch(step)]
    assert [event.kind for event in events[:2]] == ["not finite", "stopped"]
    assert watch._good.step is None and watch.should_stop


def hf_model() -> Any:
    return (
        LlamaConfig(d_vocab=10, n_ctx=8, n_layers=2, n_heads=2, n_kv_heads=1, d_model=20, d_mlp=11).build(seed=0).whole
    )


def trainer(model: Any, folder: Path, callback: Any, steps: int) -> Any:
    import transformers

    trials = TASK.sample(64, seed=0)
    # transformers shifts labels itself: the answer to a position stands one place later.
    labels = torch.full_like(trials.tokens, -100)
    labels[:, 1:] = trials.labels[:, :-1]
    rows = [{"input_ids": x, "labels": y} for x, y in zip(trials.tokens, labels, strict=True)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, callbacks=[] if callback is None else [callback]
    )


def test_the_trainer_is_watched_and_its_training_unchanged(tmp_path: Path) -> None:
    out = tmp_path / "watched"
    callback = trainer_callback(TASK, every=2, settings=Settings(n=6, out=out))
    watched, alone = hf_model(), hf_model()
    trainer(watched, tmp_path / "a", callback, 5).train()
    trainer(alone, tmp_path / "b", None, 5).train()
    assert callback.monitor is not None and callback.monitor.report().steps == ("2", "4")
    for name, value in alone.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name])
    report = Diagnosis.load(out)["monitor"]
    assert isinstance(report, MonitorReport) and np.isfinite(report.kl_bits.value).all()
    assert np.isfinite(report.key_orthogonality.value).all() and np.isfinite(report.separation.value).all()


def test_the_trainer_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = trainer_callback(TASK, every=1, settings=QUICK, response=Response(action="stop"))

    def stop(self: Monitor, step: int) -> tuple[()]:
        self.should_stop = step >= 3
        return ()

    monkeypatch.setattr(Monitor, "measure", stop)
    run = trainer(hf_model(), tmp_path, callback, 9)
    run.train()
    assert run.state.global_step == 3


def test_a_trainers_optimizer_is_saved_with_the_weights(tmp_path: Path) -> None:
    callback = trainer_callback(TASK, every=1, settings=QUICK, response=Response(action="roll_back"))
    run = trainer(hf_model(), tmp_path, callback, 2)
    run.train()
    assert callback.monitor is not None
    stored = callback.monitor._good._stored
    assert any(name.startswith("optimizer.") for name in stored) and any(name.startswith("weights.") for name in stored)
    assert callback.monitor._good.put_back() in (1, 2)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="at least 1"):
        Monitor(tiny(), TASK, every=0)
    with pytest.raises(InvalidArgument, match="n, the number of sequences to draw, must be a positive integer"):
        Settings(n=0)
    with pytest.raises(InvalidArgument, match="pass task"):
        Monitor(tiny(), settings=QUICK)
    with pytest.raises(TaskMismatch):
        Monitor(tiny(), Bijection(n_values=20, n_pairs=3), settings=QUICK)
    with pytest.raises(InvalidArgument, match="Linear failed on token ids"):
        Monitor(nn.Linear(3, 3), TASK)
    for on in ("coverage", ["kl_bits", "coverage"]):
        with pytest.raises(InvalidArgument, match="`on` must be one or more of key_orthogonality, kl_bits"):
            Response(on=on)
    with pytest.raises(InvalidArgument, match="nothing has been measured"):
        Monitor(tiny(), TASK, settings=QUICK).report()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFault):
        Monitor(tiny(), TASK, settings=Settings(out=tmp_path / "file"))
