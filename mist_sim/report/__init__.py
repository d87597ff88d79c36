"""Results for people to read."""

from mist_sim.report.replications import replications_table
from mist_sim.report.run.tables import results_table
from mist_sim.report.run.verdicts import shortcomings

__all__ = ["replications_table", "results_table", "shortcomings"]
