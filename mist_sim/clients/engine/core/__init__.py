"""The engine core: every step in its turn, between two events that others see.

Its modules are compiled where there is a C compiler (see `mist_sim.compiled`).
"""

from mist_sim import compiled

__path__ = compiled.places(__name__, __path__)
