"""The study's kinds of reports. Saved reports of these kinds can be loaded once this module is imported."""

from examples.replication.em.report import EMReport as EMReport
from examples.replication.shares import ShareControlsReport as ShareControlsReport
from examples.replication.shares import SwapSharesReport as SwapSharesReport
from examples.replication.thresholds import PassThresholdsReport as PassThresholdsReport
from examples.replication.writes import WriteReport as WriteReport
