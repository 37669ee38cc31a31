"""The study's kinds of reports. Saved reports of these kinds can be loaded once this module is imported."""

from examples.replication.comparison.replication import ReplicationReport
from examples.replication.comparison.report import ComparisonReport
from examples.replication.elimination import EliminationReport
from examples.replication.em.report import EMReport
from examples.replication.settling import SettlingReport
from examples.replication.thresholds import PassThresholdsReport
from examples.replication.values import ValueReadingsReport
from examples.replication.writes import WriteReport

__all__ = [
    "ComparisonReport",
    "EMReport",
    "EliminationReport",
    "PassThresholdsReport",
    "ReplicationReport",
    "SettlingReport",
    "ValueReadingsReport",
    "WriteReport",
]
