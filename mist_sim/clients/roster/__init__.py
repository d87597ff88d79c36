"""The clients present in a run, and the queries that routers make."""

from mist_sim.clients.roster.roster import Roster

__all__ = ["Roster"]
