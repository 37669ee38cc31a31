"""Every probe that applies runs on every architecture; those that do not are skipped with the reason."""

import numpy as np
import pytest

from bayesgeom.core.plugins import discover
from bayesgeom.core.verdict import Reason
from bayesgeom.diagnosis.plan import all_probes
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.models.config import ModelConfig, config_from_dict
from bayesgeom.models.resolve import of_module
from bayesgeom.report.estimate import codes_of
from bayesgeom.tasks.bijection import Bijection

TASK = Bijection(n_values=5, n_pairs=4)
SIZES = {
    "llama": {"n_heads": 6, "n_kv_heads": 3, "d_model": 24, "d_mlp": 17},
    "lstm": {"d_model": 13},
    "mamba": {"d_model": 13, "d_state": 3},
    "mamba2": {"d_model": 22, "d_head": 11, "d_state": 7, "chunk_size": 3},
    "mlp": {"d_model": 13, "d_mlp": 17},
    "rwkv": {"d_model": 13, "d_mlp": 17},
    "transformer": {"n_heads": 3, "d_model": 15, "d_mlp": 17},
}
ARCHITECTURES = sorted(discover("bayesgeom.models.native", ModelConfig))  # type: ignore[type-abstract]
WITH_HEADS = {"transformer", "llama"}
OF_HEADS = {"attention_entropy", "key_overlap", "qk_alignment"}
OF_ANY_STREAM = {"calibration", "belief_readout", "value_manifold"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_probe_runs_or_says_why_not(architecture: str) -> None:
    sizes = {"architecture": architecture, "d_vocab": TASK.d_vocab, "n_ctx": TASK.n_pos, "n_layers": 2}
    module = config_from_dict(sizes | SIZES[architecture]).build(seed=0)
    diagnosis = diagnose(of_module(module, task=TASK), n=24, n_untrained=1)
    probes, skipped = all_probes().keys(), diagnosis.skipped
    served = probes & diagnosis.reports.keys()
    assert served | skipped.keys() | diagnosis.inapplicable.keys() == probes and not served & skipped.keys()
    assert served >= OF_ANY_STREAM | (OF_HEADS if architecture in WITH_HEADS else set())
    for name in OF_HEADS - served:
        assert any(f"({reason} attention heads" in skipped[name] for reason in ("it has no", "no known"))
    for report in (own for own in diagnosis.reports.values() if own.name != "inside"):
        assert str(report.headlines()[0])
    r2 = diagnosis.reports["belief_readout"].estimate("r2")
    assert r2.value.shape[-1] == 2
    assert (np.isfinite(r2.value) | (codes_of(r2) == Reason.OUT_OF_RANGE)).all(), "an R² below −1 is not shown"
