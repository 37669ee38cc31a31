"""What a user writes, with types: `mypy --strict` accepts it without any setting of ours; see test_user_code.py."""

from typing import assert_type

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import bayesgeom
from bayesgeom import BayesGeomError, Diagnosis, InterventionSite, ablations, subspaces, tasks
from bayesgeom.ablations.report import AblationReport
from bayesgeom.circuits.patching import PatchReport
from bayesgeom.core.run import RESID_PRE
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.report import InterventionReport, JointInterventionReport
from bayesgeom.measurements.audit import AuditReport
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.measurements.posterior_lens import PosteriorLensReport
from bayesgeom.models.base import Model
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.report import Report


def measure(model: Model) -> float:
    """A lookup by class gives the class; one by name gives a report."""
    diagnosis = bayesgeom.diagnose(model, n=16, n_untrained=0, probes=["calibration", "posterior_lens"])
    assert_type(diagnosis, Diagnosis)
    assert_type(diagnosis["calibration"], Report)
    assert_type(diagnosis[CalibrationReport].kl_bits, Estimate)
    lens = diagnosis[PosteriorLensReport]
    stages: dict[str, float] = {stage: float(bits) for stage, bits in zip(lens.stages, lens.kl_bits.value, strict=True)}
    return stages["embedding"] - float(diagnosis[CalibrationReport].kl_bits)


def edit(model: Model) -> list[str]:
    """The kind of report follows from `sites`."""
    quick = Design(n_control=4, n_fit=64, n_untrained=0)
    site = InterventionSite(RESID_PRE, (1,))
    alone = bayesgeom.intervene(model, subspace=subspaces.leace("belief"), kind=quick, sites=site, n=16)
    together = bayesgeom.intervene(model, subspace="entropy_axis:pc1", sites=[site], kind="remove", n=16)
    assert_type(alone, InterventionReport)
    assert_type(together, JointInterventionReport)
    heads = bayesgeom.ablate(model, battery=ablations.every_head(model), mode="mean", n=16)
    assert_type(heads, AblationReport)
    clean, corrupted = tasks.Bijection(n_values=20, n_pairs=19).sample_pair(2, seed=0)
    moved = bayesgeom.patch(model, clean, corrupted, "resid_pre")
    assert_type(moved, PatchReport)
    return [line.metric for report in (alone, together, heads, moved) for line in report.headlines()]


class Block(nn.Module):
    """Add a map of the running mean."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.mix = nn.Linear(d, d)

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        mean = x.cumsum(dim=1) / torch.arange(1, x.shape[1] + 1)[:, None]
        update: Tensor = self.mix(mean)
        return x + update


class Counter(nn.Module):
    """A module of the user's own."""

    def __init__(self, d_vocab: int, d: int = 6) -> None:
        super().__init__()
        self.embed, self.unembed = nn.Embedding(d_vocab, d), nn.Linear(d, d_vocab)
        self.blocks = nn.ModuleList([Block(d), Block(d)])

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos id"]:
        x: Tensor = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.unembed(x)
        return logits


def own_module() -> AuditReport | None:
    """Wrapped, and audited; errors have one base."""
    task = tasks.Dice(n_faces=2, length=5)
    try:
        model = bayesgeom.wrap(Counter(task.d_vocab), blocks="blocks")
    except BayesGeomError:
        return None
    report = bayesgeom.audit(model, task, n=16, parts=[])
    assert_type(report, AuditReport)
    return report
