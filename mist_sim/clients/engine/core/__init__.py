"""The engine core: every step in its turn, between two events that others see.

`core.py` lets lanes step in the order of time, `lane.py` plans, begins and ends a step,
`pipeline.py` does so with several in flight, `drafting.py` where decodes verify drafts,
`lockstep.py` for lanes that step together, `virtual.py` for those that take turns at the ranks of
a pipeline. The others are parts of a lane: blocks, also in groups (`paged.py`) and above tiers
(`tiered.py`), seconds of steps (`times.py`), records and what routers see (`rows.py`), and which
answers go on at another client (`flow.py`, TaiChi's). `quiet.py` takes many steps at once in which
nothing can happen, with the same result. SimPy is known to `clients/engine/stepped.py` alone.

The modules are compiled where there is a C compiler (see `mist_sim.compiled`). Annotations are for
readers; the types are those of the `.pxd` files. Divisors and dividends are never negative.
"""

from mist_sim import compiled

__path__ = compiled.places(__name__, __path__)
