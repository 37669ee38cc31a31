"""Captures: the same numbers from disk, resumed to the same bytes, and refused by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bayesgeom
from bayesgeom.core import run as s
from bayesgeom.core.errors import (
    CheckpointFault,
    InvalidArgument,
    MissingSite,
    NoCopy,
    NonFinite,
    OutputFault,
    TaskMismatch,
)
from bayesgeom.diagnosis.recording import Selection
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.measurements.inside import InsideReport
from bayesgeom.models import resolve
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.captured import model as writing
from bayesgeom.models.captured.model import MANIFEST, CapturedModel
from bayesgeom.models.checkpoint_files import config_hash
from bayesgeom.tasks.bijection import Bijection
from tests.diagnosis.test_streamed import assert_alike
from tests.models.test_run import TASK, lively
from tests.shape_checks import ARE_ON

N = 23


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few sequences of all sites in a shard."""
    monkeypatch.setattr(writing, "SHARD_BYTES", 100_000)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.node.get_closest_marker("usefixtures"):
        request.getfixturevalue("small_shards")
    return bayesgeom.capture(lively("rotary"), out=tmp_path / "capture", n=N, seed=3, n_untrained=1)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_heads(report: InsideReport) -> InsideReport:
    """What the viewer shows of a model that runs no ablations."""
    probs, kl = report.edited_probs[:, :0, :0], report.edited_kl_bits[:, :0, :0]
    return replace(report, edited_probs=probs, edited_kl_bits=kl)


def test_a_diagnosis_from_disk_is_that_of_the_model(folder: Path) -> None:
    direct = bayesgeom.diagnose(lively("rotary"), n=N, seed=3, n_untrained=1)
    found = bayesgeom.diagnose(folder, n_untrained=1)
    assert set(found) == set(direct) - {"relabeling", "evidence_response"}
    assert "is a capture, which holds its own sequences only: pass the model" in found.skipped["relabeling"]
    for name, report in found.items():
        same = direct[name] if name != "inside" else without_heads(direct[InsideReport])
        if isinstance(same, CalibrationReport):  # the capture holds one copy
            same = replace(same, gap_closed_by_copies=same.gap_closed_by_copies[:1])
        assert_alike(same, report)
        assert report.n == direct[name].n
    assert found.provenance["model"] == direct.provenance["model"] and found.provenance["n_recorded"] == N


@pytest.mark.usefixtures("small_shards")
def test_a_diagnosis_from_disk_streams_when_memory_is_small(folder: Path) -> None:
    assert len(list(folder.glob("shard-*"))) > 2
    model = bayesgeom.load(folder, memory_gib=40_000 / 2**30)
    found = bayesgeom.diagnose(model, n_untrained=1, probes=["attention_entropy"])
    direct = bayesgeom.diagnose(lively("rotary"), n=N, seed=3, n_untrained=1, probes=list(found))
    assert found.provenance["streamed"] == {"attention_entropy": N}
    for name in found:
        assert_alike(direct[name], found[name], within=1e-3)  # passes of other sizes round differently


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.usefixtures("small_shards")
def test_a_killed_capture_continues_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls, own = files_of(folder), list[int](), writing.captured

    def dying(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return own(*args)

    monkeypatch.setattr(writing, "captured", dying)
    with pytest.raises(Killed):
        bayesgeom.capture(lively("rotary"), out=tmp_path / "again", n=N, seed=3, n_untrained=1)
    assert len(list((tmp_path / "again").glob("shard-*"))) == 2
    with pytest.raises(CheckpointFault, match=r"shard-00002\.safetensors is missing: 2 of \d shards are finished"):
        bayesgeom.diagnose(tmp_path / "again", probes="calibration", n_untrained=0)
    done = len(calls)
    bayesgeom.capture(lively("rotary"), out=tmp_path / "again", n=N, seed=3, n_untrained=1)
    assert files_of(tmp_path / "again") == whole
    n_shards = len([name for name in whole if "shard-" in name])
    assert len(calls) - done == n_shards - 2, "finished shards are not computed again"


def test_sites_layers_and_types_are_chosen(tmp_path: Path) -> None:
    model, selection = lively(), Selection(sites=["k", "pattern"], layers=[1], dtype="bfloat16")
    out = bayesgeom.capture(model, out=tmp_path / "c", n=7, sites=selection)
    (shard,) = out.glob("shard-*")
    data = load_file(shard)
    assert set(data) == {"k", "pattern", "tokens", "log_answers", "off_answer_prob"}
    blocks = list(TASK.stream(7, seed=bayesgeom.tasks.base.derived_seed(0, 0)))
    run = model.run(blocks, record=[s.K, s.PATTERN], n_recorded=7)
    for site in (s.K, s.PATTERN):
        assert data[site.name].dtype == torch.bfloat16 and len(data[site.name]) == 1
        torch.testing.assert_close(data[site.name][0], run.at(site)[1].bfloat16())
    assert torch.equal(data["tokens"], blocks[0].tokens)
    np.testing.assert_allclose(data["off_answer_prob"], run.behavior.off_answer_prob, rtol=1e-5)
    loaded = bayesgeom.load(out)
    assert loaded.partial_sites == {s.K: (1,), s.PATTERN: (1,)} and not loaded.sites
    found = bayesgeom.diagnose(out, n_untrained=0)
    assert set(found) == {"calibration", "attention_entropy", "key_overlap", "inside"}
    assert np.isfinite(found["attention_entropy"].entropy_bits.value).all(axis=1).tolist() == [False, True]
    assert "not captured" in found.skipped["belief_readout"]


def test_the_lens_of_one_layer_is_read_from_a_capture(tmp_path: Path) -> None:
    out = bayesgeom.capture(lively(), out=tmp_path / "c", n=7, sites=Selection(sites=["logit_lens"], layers=[1]))
    loaded = bayesgeom.load(out)
    blocks = list(TASK.stream(7, seed=bayesgeom.tasks.base.derived_seed(0, 0)))
    runs = [model.run(blocks, record=[s.LOGIT_LENS], n_recorded=7) for model in (lively(), loaded)]
    assert loaded.partial_sites == {s.LOGIT_LENS: (1,)}
    torch.testing.assert_close(runs[1].at(s.LOGIT_LENS)[0], runs[0].at(s.LOGIT_LENS)[1])


@pytest.mark.skipif(ARE_ON, reason="checks of annotations would refuse first")
def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskMismatch, match=r"was captured on .* on another task \(n_pairs: 7 there, 5"):
        bayesgeom.diagnose(folder, Bijection(n_values=11, n_pairs=5))
    with pytest.raises(InvalidArgument, match="was captured with seed 3, got 4"):
        bayesgeom.diagnose(folder, seed=4)
    with pytest.raises(InvalidArgument, match=r"is a capture of tiny"):
        bayesgeom.ablate(folder)
    with pytest.raises(OutputFault, match=r"holds another capture \(n: 23 there, 29 requested"):
        bayesgeom.capture(lively("rotary"), out=folder, n=29, seed=3, n_untrained=1)
    with pytest.raises(MissingSite, match=r"this capture requires site 'state', which tiny does not provide"):
        bayesgeom.capture(lively(), out=tmp_path / "c", sites=["state"])
    with pytest.raises(bayesgeom.BayesGeomError, match=r"there is no site named 'keys'\. There are: W_K"):
        bayesgeom.capture(lively(), out=tmp_path / "c", sites="keys")
    with pytest.raises(InvalidArgument, match=r"layers must be from 0 to 1, got 2"):
        bayesgeom.capture(lively(), out=tmp_path / "c", sites=Selection(layers=[2]))
    with pytest.raises(InvalidArgument, match=r"dtype must be 'float32' or 'float16' or 'bfloat16', got 'int8'"):
        Selection(dtype="int8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(OutputFault, match="holds other files than a capture"):
        bayesgeom.capture(lively(), out=tmp_path / "other")


def change(folder: Path, **fields: Any) -> None:
    for path in folder.rglob(MANIFEST):
        data = json.loads(path.read_text())
        del data["hash"]
        data |= fields | {"spec": data["spec"] | fields.get("spec", {})}
        path.write_text(json.dumps({**data, "hash": config_hash(data)}))


def test_a_capture_from_an_accelerator_is_read_on_a_cpu(folder: Path) -> None:
    change(folder, spec={"device": "cuda:5"}, foreign_hooks=["blocks.0"])
    loaded = bayesgeom.load(folder)
    assert loaded.spec.device == "cpu"
    found = bayesgeom.diagnose(loaded, n_untrained=1, probes=["calibration", "key_overlap"])
    assert set(found) == {"calibration", "key_overlap"} and found.answer is not None and found.answer.n_copies == 1
    assert "holds 1 untrained networks. Capture again" in found.skipped["initialization"], "the answer needs 8"
    assert found.provenance["model"]["device"] == "cuda:5" and found.provenance["foreign_hooks"] == ["blocks.0"]


def test_a_device_has_no_effect_on_a_capture_and_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "check_device", lambda _device: None)  # there may be no such device here
    with pytest.raises(
        InvalidArgument, match=r"device 'cuda' has no effect: .* is a capture, which is read on the CPU"
    ):
        bayesgeom.load(folder, device="cuda")
    with pytest.raises(
        InvalidArgument, match=r"device 'cuda:1' has no effect: http://.* computes where its server runs"
    ):
        bayesgeom.load("http://127.0.0.1:9/v1", device=torch.device("cuda:1"))
    assert bayesgeom.load(folder, device=torch.device("cpu")).spec.device == "cpu"


def without_copies(_model: Any, _seed: int) -> Any:
    raise NoCopy("it has no configuration.")


def test_untrained_networks_are_tried_first_and_may_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "c"
    with monkeypatch.context() as patched:
        patched.setattr(HookedModel, "untrained_copy", without_copies)
        with pytest.raises(InvalidArgument, match="it has no configuration"):
            bayesgeom.capture(lively(), out=out, n=5, sites="k", n_untrained=1)
        assert not out.exists()
        bayesgeom.capture(lively(), out=out, n=5, sites="k")
    before = files_of(out)
    for n_untrained in (1, 2):
        bayesgeom.capture(lively(), out=out, n=5, sites="k", n_untrained=n_untrained)
    after = files_of(out)
    assert {name for name, data in before.items() if after[name] != data} == {MANIFEST}
    found = bayesgeom.diagnose(out, n_untrained=2, probes="key_overlap")
    assert found["key_overlap"].mean_overlap.baselines and not found.skipped


def test_numbers_above_the_largest_of_the_type_are_an_error(tmp_path: Path) -> None:
    model = lively()
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "W_V" in name or "value" in name or name.endswith("v.weight"):
                parameter.mul_(1e6)
    for dtype in ("bfloat16", "float32"):
        bayesgeom.capture(model, out=tmp_path / dtype, n=5, sites=Selection(sites="v", dtype=dtype))
    with pytest.raises(NonFinite, match=r"site 'v' reach .*above the largest float16 number, 6\.55e\+04.*bfloat16"):
        bayesgeom.capture(model, out=tmp_path / "half", n=5, sites=Selection(sites="v", dtype="float16"))


@pytest.mark.usefixtures("small_shards")
def test_damage_is_noticed(folder: Path) -> None:
    shard = sorted(folder.glob("shard-*"))[1]
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(CheckpointFault, match=r"shard-00001\.safetensors is damaged: its hash is not that in"):
        bayesgeom.diagnose(folder, probes="calibration", n_untrained=0)
    with pytest.raises(CheckpointFault, match="is damaged"):
        bayesgeom.capture(lively("rotary"), out=folder, n=N, seed=3, n_untrained=1)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "schema": 99}))
    with pytest.raises(CheckpointFault, match=r"has schema 99; this bayesgeom reads schema 4"):
        CapturedModel(folder)
    (folder / MANIFEST).write_text(json.dumps({**manifest, "schema": 2}))
    with pytest.raises(CheckpointFault, match=r"has schema 2; this bayesgeom reads schema 4"):
        CapturedModel(folder)


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "layers exchanged": lambda data: data["layers"].update(k=[1, 0]),
    "another model's name": lambda data: data["spec"].update(name="another"),
    "other baselines": lambda data: data.update(untrained=[5]),
}


@pytest.fixture
def small_capture(tmp_path: Path) -> Path:
    return bayesgeom.capture(
        lively("rotary"), out=tmp_path / "c", n=7, seed=3, n_untrained=2, sites=["k", "resid_post"]
    )


def test_an_edited_manifest_is_refused(small_capture: Path) -> None:
    file = small_capture / MANIFEST
    whole = file.read_text()
    for edit in EDITS.values():
        data = json.loads(whole)
        edit(data)
        file.write_text(json.dumps(data))
        with pytest.raises(CheckpointFault, match=r"capture\.json was changed after it was written"):
            CapturedModel(small_capture)


def test_exchanged_untrained_networks_are_refused(small_capture: Path) -> None:
    first, second = (small_capture / f"untrained-{i}" for i in range(2))
    first.rename(small_capture / "t")
    second.rename(first)
    (small_capture / "t").rename(second)
    with pytest.raises(CheckpointFault, match=r"untrained-0 holds .*not the untrained network of seed"):
        bayesgeom.diagnose(small_capture, probes="calibration", n_untrained=1)
