"""Plans: GPUs to buy, their number, and the design that keeps the limits.

- `question`: the input: load, limits, GPUs, budget.
- `engines`, `space`: engines to buy, and every way to set them.
- `demand`, `upper_bounds`, `estimates`: least needs of requests, impossible candidates, order of
    the tries.
- `hunt`: simulates until the cheapest is known; `refining`: further figures of it.
- `plan_result`, `deployment`: the answer, and the commands that deploy it.
"""

from mist_sim.search.planning.plan import plan
from mist_sim.search.planning.plan_result import Plan
from mist_sim.search.planning.question import PlanOptions

__all__ = ["Plan", "PlanOptions", "plan"]
