"""What a type checker knows of results: `make lint` runs mypy over this file, and the tests run it too."""

from typing import assert_type

import bayesgeom
from bayesgeom.interventions.report import InterventionReport, JointInterventionReport
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.probes.calibration import CalibrationReport
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.report import Report
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.tasks.bijection import Bijection

SIZES = TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=3, d_model=15, d_mlp=7)


def test_a_report_looked_up_by_its_class_has_that_type() -> None:
    model = HookedModel(Transformer(SIZES, seed=0), name="tiny", task=Bijection(n_values=5, n_pairs=3))
    diagnosis = bayesgeom.diagnose(model, n=5, n_untrained=0, probes=["calibration"])
    report = diagnosis[CalibrationReport]
    assert_type(report, CalibrationReport)
    assert_type(report.kl_bits, Estimate)
    assert_type(diagnosis["calibration"], Report)
    assert report is diagnosis["calibration"] and report.n == 5


def only_typed(model: HookedModel, site: InterventionSite) -> None:
    """Never called: the kind of report follows from `sites`."""
    assert_type(bayesgeom.intervene(model), InterventionReport)
    assert_type(bayesgeom.intervene(model, sites=site), InterventionReport)
    assert_type(bayesgeom.intervene(model, sites=[site], kind="remove"), JointInterventionReport)
