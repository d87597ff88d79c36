"""Plans: GPUs to buy, their number, and the design that keeps the limits.

- `question`: what is asked: the load, the limits, the GPUs, the budget.
- `engines`, `space`: what can be bought, and every way to set it.
- `demand`, `bounds`, `estimates`: what requests need at least, which cannot do, which to try first.
- `hunt`: simulates until the cheapest is known; `refining`: what else is worth knowing of it.
- `plan_result`, `deployment`: the answer, and the commands that deploy it.
"""

from mist_sim.search.planning.plan import plan
from mist_sim.search.planning.plan_result import Plan
from mist_sim.search.planning.question import PlanOptions

__all__ = ["Plan", "PlanOptions", "plan"]
