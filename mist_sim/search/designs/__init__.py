"""Designs for a scenario's GPUs: together, apart, hybrid, attention and FFN apart.

- `fleet`: the engines that change sides, and the unchanged parts.
- `pure`, `hybrids`, `bundles`, `of_hybrid`: the designs, a file each.
- `chunks`, `fabric`: values to try, and assumptions for values the scenario lacks.
- `proposal`, `offered`: a design that may prove impossible; all designs together.
"""

from mist_sim.search.designs.offered import Designs, designs_of

__all__ = ["Designs", "designs_of"]
