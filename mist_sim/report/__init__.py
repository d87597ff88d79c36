"""Results for people to read."""

from mist_sim.report.tables import results_table

__all__ = ["results_table"]
