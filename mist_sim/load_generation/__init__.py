"""When the requests of a workload are sent, and how often, until each has ended for good."""

from mist_sim.load_generation.base import LoadGenerator, Watch
from mist_sim.load_generation.closed_loops import SessionUsers, Users
from mist_sim.load_generation.open_loops import CappedOpenLoop, OpenLoop

__all__ = ["CappedOpenLoop", "LoadGenerator", "OpenLoop", "SessionUsers", "Users", "Watch"]
