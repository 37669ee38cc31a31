"""The weights hash: of every weight, wherever it is kept, and of what the config does with it."""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch

import bayesgeom
from bayesgeom.ablations.batteries import every_head
from bayesgeom.ablations.run import BatteryRun
from bayesgeom.core.errors import OutputFault
from bayesgeom.core.verdict import Reason
from bayesgeom.models.base import Model
from bayesgeom.models.huggingface import weights as identity
from bayesgeom.models.resolve import as_model, load
from bayesgeom.report.storage import PROGRESS
from bayesgeom.tasks.bijection import Bijection
from tests.families import lively

TASK = Bijection(n_values=11, n_pairs=5)


def built(folder: Path, seed: int = 0) -> Any:
    """The family's model; another seed, other weights under the same config."""
    import transformers

    hf = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return hf if not seed else lively(hf, seed=seed)


def offloaded(hf: Any, where: str, path: Path) -> Any:
    """Every parameter on the meta device, as accelerate leaves it between passes."""
    if where == "cpu":
        accelerate.cpu_offload(hf)
    else:
        accelerate.disk_offload(hf, str(path))
    assert all(parameter.device.type == "meta" for parameter in hf.parameters())
    return hf


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_an_offloaded_model_has_the_hash_of_its_weights(
    where: str, folder: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = [as_model(built(folder("llama"), seed)).spec.weights_hash for seed in (0, 3)]
    away = [
        as_model(offloaded(built(folder("llama"), seed), where, tmp_path / str(seed))).spec.weights_hash
        for seed in (0, 3)
    ]
    assert away == whole and len(set(whole)) == 2


def test_the_config_counts_but_not_where_it_lies(folder: Callable[[str], Path], tmp_path: Path) -> None:
    hf = built(folder("llama"))
    before = identity.weights_identity(hf)
    hf.save_pretrained(tmp_path / "elsewhere")
    assert load(tmp_path / "elsewhere").spec.weights_hash == before == load(folder("llama")).spec.weights_hash
    hf.config.rms_norm_eps = 0.5
    assert identity.weights_identity(hf) != before, "the same weights, another function"


def test_the_hash_is_that_of_a_slow_twin(folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "PIECE", 101)
    hf = built(folder("llama"))
    twin = hashlib.sha256(json.dumps(identity.config_of(hf), sort_keys=True).encode())
    for name, tensor in sorted(hf.state_dict().items()):
        raw = bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())
        pieces = [hashlib.sha256(raw[i : i + 101]).digest() for i in range(0, len(raw), 101)]
        twin.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode() + b"".join(pieces))
    assert identity.weights_identity(hf) == twin.hexdigest()[:16]


def test_untrained_networks_are_not_hashed(folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(folder("llama"))

    def refused(_hf: object) -> str:
        raise AssertionError("nobody asks for the hash of an untrained network")

    monkeypatch.setattr(identity, "weights_identity", refused)
    monkeypatch.setattr("bayesgeom.models.huggingface.model.weights_identity", refused)
    assert model.untrained_copy(7).spec.weights_hash == "untrained, seed 7"
    assert not model.untrained_copy(7).spec.is_identified and model.spec.is_identified


def job(model: Model) -> BatteryRun:
    return BatteryRun.of(model, TASK, every_head(model)[:2], mode="zero", n=5, seed=0)


def test_a_battery_of_one_offloaded_model_is_not_resumed_by_another(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Both had the hash of no weights at all, and the second was given the numbers of the first."""
    one, other = (as_model(offloaded(built(folder("llama"), seed), "cpu", tmp_path)) for seed in (0, 3))
    job(one).exact(tmp_path / "out")
    with pytest.raises(OutputFault, match=r"progress of (?:another|a different) battery \(weights"):
        job(other).exact(tmp_path / "out")


def test_progress_of_weights_that_are_not_known_is_never_resumed(folder: Callable[[str], Path], tmp_path: Path) -> None:
    one, other = (
        as_model(built(folder("llama"), seed)).untrained_copy(0) for seed in (0, 3)
    )  # untrained: no hash, and the same description
    (tmp_path / "out").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = job(one).exact(tmp_path / "out")
    assert not (tmp_path / "out" / PROGRESS).exists(), "what cannot be resumed is not kept"
    with torch.no_grad():
        for parameter in other.module.parameters():
            parameter.mul_(1.5)
    second = job(other).exact(tmp_path / "out")
    assert (first.kl_increase_bits.value != second.kl_increase_bits.value).all()


def test_the_kernel_of_attention_is_in_the_provenance(folder: Callable[[str], Path], tmp_path: Path) -> None:
    task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
    model = bayesgeom.load(folder("llama"), dtype="bfloat16")
    own, few = "sdpa", {"n": 16, "n_untrained": 0}
    plain = bayesgeom.diagnose(model, task, probes=["calibration"], **few)
    eager = bayesgeom.diagnose(model, task, probes=["calibration", "attention_entropy"], **few)
    many = bayesgeom.diagnose(model, task, probes=["attention_entropy"], n=200, n_untrained=0)
    assert [each.provenance["attention_kernels"] for each in (plain, eager, many)] == [[own], ["eager"], ["eager", own]]
    assert bayesgeom.ablate(model, task, "heads", n=4).provenance["attention_kernels"] == [own]
    captured = bayesgeom.diagnose(bayesgeom.capture(model, task, out=tmp_path, n=8, sites=["pattern"]), n_untrained=0)
    assert captured.provenance["attention_kernels"] == ["eager"]
    codes = [bayesgeom.compare(pair).kernel_code(0) for pair in ([plain, plain], [plain, eager])]
    assert codes == [Reason.NONE, Reason.OTHER_KERNEL]
    other = bayesgeom.load(folder("llama"), dtype="bfloat16", attn_implementation="eager")
    report = bayesgeom.compare([model, other], task, n=8)
    assert report.kernel_code(0) is Reason.OTHER_KERNEL and report.attention_kernels == (own, "eager")
    assert "paired, other kernel" in report.table()
    assert "attention_kernels" not in bayesgeom.diagnose("bijection-v20", n=3, probes=["calibration"]).provenance
