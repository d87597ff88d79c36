"""Plans: GPUs to buy, their number, and the design that keeps the limits.

- `question`: the input: load, limits, GPUs, budget.
- `candidates`: engines to buy, and every way to set them.
- `bounds`: least needs of requests, and the candidates that cannot meet them.
- `hunt`: simulates until the cheapest is known, and finds further figures of it.
- `day`: rates by hour, and how many engines each needs.
- `plan`, `plan_result`: the answer; `deployment`: the commands that deploy it.
"""

from mist_sim.search.planning.plan import plan
from mist_sim.search.planning.plan_result import Plan
from mist_sim.search.planning.question import PlanOptions

__all__ = ["Plan", "PlanOptions", "plan"]
