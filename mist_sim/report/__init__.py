"""Results for people to read."""

from mist_sim.report.headline import headline
from mist_sim.report.tables import results_table

__all__ = ["headline", "results_table"]
