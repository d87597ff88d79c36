"""The clients that there are now, and what routers may ask of them."""

from mist_sim.clients.roster.roster import Roster

__all__ = ["Roster"]
