"""Designs that a scenario's GPUs allow: together, apart, in between, attention and FFN apart.

- `fleet`: the engines that change sides, and everything that stays.
- `pure`, `hybrids`, `bundles`, `of_hybrid`: the designs, a file each.
- `chunks`, `fabric`: what is tried and assumed where the scenario does not say it.
- `proposal`, `offered`: a design that may turn out to be none; all of them together.
"""

from mist_sim.search.designs.offered import Designs, designs_of

__all__ = ["Designs", "designs_of"]
