"""The cadence of prefills: prompts wait while decodes run alone for some steps.

It is `prefill_schedule_interval` of vLLM. A step is held if it carries no prompt although it could.
No step is held while there are no decodes, or while more prompts wait than one step can admit.

Source: `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py` and
`DPEngineCoreProc._should_throttle_prefills` in `vllm/v1/engine/core.py` of vLLM 0.33.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepCount:
    """Steps of engines in lockstep since they last had no work.

    vLLM's engines go on with empty batches until the next multiple of 16 steps (of 32 in 0.24), and
    count these as well; here the count restarts at once.
    """

    num_steps: int = 0


class Cadence:
    """When the steps of a lane may carry prompts beside decodes.

    interval: one of so many steps, at least 2. count: of engines in lockstep, which are free in
        every step that is a multiple of the interval; None: counted from the last step that carried
        a prompt.
    is_bound: whether some were left waiting by the last plan that could admit and did not preempt;
        then no step is held (vLLM's `prefill_capacity_bound`).
    """

    __slots__ = ("_carries", "_interval", "_num_since", "count", "is_bound")

    def __init__(self, interval: int, count: StepCount | None = None) -> None:
        self.count = count
        self.is_bound = False
        self._interval = interval
        self._num_since = interval  # steps since the last that carried a prompt
        self._carries = False

    @property
    def num_held(self) -> int:
        """Number of next steps that carry no prompts while any sequence decodes."""
        if self.is_bound:
            return 0
        if self.count is not None:
            return -self.count.num_steps % self._interval
        return max(0, self._interval - 1 - self._num_since)

    def begin(self) -> None:
        """Begin a plan, which carries no prompt yet."""
        self._carries = False

    def carry(self) -> None:
        """Note that the plan carries a prompt, even one preempted in the same step."""
        self._carries = True
        self._num_since = 0

    def advance(self, num_steps: int) -> None:
        """Account for executed steps of the plan."""
        if not self._carries:
            self._num_since += num_steps


def cadence_of(scheduler: object, count: StepCount | None = None) -> Cadence | None:
    """Return the cadence of a scheduler's lane; None where every step may carry prompts."""
    interval = interval_of(scheduler)
    return None if interval == 1 else Cadence(interval, count)


def interval_of(scheduler: object) -> int:
    """Return the interval of steps with prompts; 1 for a scheduler without such an option."""
    return int(getattr(scheduler, "prefill_schedule_interval", 1))
