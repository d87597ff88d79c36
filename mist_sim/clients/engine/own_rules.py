"""The rules of a scheduler of one's own, as the engine core asks for them."""

from __future__ import annotations

import numpy as np

from mist_sim.clients.scheduling import ChunkedScheduler, WaitingQueue
from mist_sim.clients.scheduling.lane_view import LaneView
from mist_sim.clients.scheduling.order import is_ours
from mist_sim.errors import ScenarioError, brief
from mist_sim.registry import require_method
from mist_sim.units import is_whole

_FORMS = {
    "plan": "plan(lane)",
    "begin": "begin(lane)",
    "budget": "budget(lane)",
    "piece": "piece(lane, prompt, num_tokens, most)",
    "admits": "admits(lane, prompt, num_new)",
    "victim": "victim(lane, running)",
}


class OwnRules:
    """Asks a scheduler, see `Lane.obey`.

    asks_always: whether each plan asks, also one of decodes alone. names_victims: whether the
        scheduler says which request gives way. plans: whether it makes the whole plan.
    """

    def __init__(self, scheduler: ChunkedScheduler, view: LaneView, *, own_queue: bool) -> None:
        own = scheduler.own_methods
        self.plans = "plan" in own
        self.asks_always = own_queue or self.plans or "begin" in own
        self.names_victims, self._begins = "victim" in own, "begin" in own
        self._admits, self._cuts = "admits" in own, "piece" in own
        self.scheduler, self._view = scheduler, view

    def plan(self) -> None:
        """Let the scheduler make a whole plan."""
        with self._view.deciding(f"{type(self.scheduler).__name__}.plan"):
            self.scheduler.plan(self._view)

    def begin(self) -> int:
        """Let the scheduler begin a plan; return the token budget of the step."""
        if self._begins:
            with self._view.beginning():
                self.scheduler.begin(self._view)
        budget = self._whole("budget", self.scheduler.budget(self._view))
        return min(budget, self.scheduler.max_num_batched_tokens)

    def piece(self, slot: int, num_tokens: int, most: int) -> int:
        """Return how many of a prompt's tokens the step computes."""
        if not self._cuts:
            return most
        prompt = self._view.inside(slot)
        piece = self._whole("piece", self.scheduler.piece(self._view, prompt, num_tokens, most))
        return max(0, min(piece, most))

    def admits(self, slot: int, num_new: int) -> bool:
        """Tell whether a prompt may come in now that has a seat, tokens and blocks."""
        if not self._admits:
            return True
        found: object = self.scheduler.admits(self._view, self._view.inside(slot), num_new)
        if not isinstance(found, bool | np.bool_):
            raise ScenarioError(
                f"{type(self.scheduler).__name__}.admits must return True or False, got "
                f"{brief(found)}"
            )
        return bool(found)

    def victim(self, running: list[int]) -> int:
        """Return the slot that gives way."""
        several = [self._view.inside(slot) for slot in running]
        found = self.scheduler.victim(self._view, several)
        if found not in several:
            raise ScenarioError(
                f"{type(self.scheduler).__name__}.victim must return one of `running`, got "
                f"{brief(found)}"
            )
        return found.slot

    def _whole(self, method: str, found: int) -> int:
        """Return a number of tokens; raises ScenarioError for what is no whole number."""
        if not is_whole(found):
            raise ScenarioError(
                f"{type(self.scheduler).__name__}.{method} must return a whole number of tokens, "
                f"got {brief(found)}"
            )
        return int(found)


def own_rules(scheduler: ChunkedScheduler, view: LaneView, queue: WaitingQueue) -> OwnRules | None:
    """Return the rules of a scheduler with methods, or a kind of queue, of its own; else None."""
    if not isinstance(queue, WaitingQueue):
        raise ScenarioError(
            f"{type(scheduler).__name__}.new_queue must return a WaitingQueue, such as "
            f"Ranked(key), got {brief(queue)}"
        )
    for name, form in _FORMS.items():
        if name in scheduler.own_methods:
            require_method("scheduler", scheduler, form)
    own_queue = not is_ours(type(queue))
    if not (scheduler.own_methods or own_queue):
        return None
    return OwnRules(scheduler, view, own_queue=own_queue)
