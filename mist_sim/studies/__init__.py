"""Studies: points, rates and seeds become rows, in parallel, journalled, and with their errors."""

from mist_sim.studies.driver import How
from mist_sim.studies.findings import Study
from mist_sim.studies.study import replicate, study
from mist_sim.studies.task import Executor

__all__ = ["Executor", "How", "Study", "replicate", "study"]
