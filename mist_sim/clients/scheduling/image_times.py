"""Images in a lane: the step in which a prompt reaches an image encodes it first.

Source: vLLM v1, `Scheduler._try_schedule_encoder_inputs` in `vllm/v1/core/sched/scheduler.py`, and
`_execute_mm_encoder` in `vllm/v1/worker/gpu_model_runner.py`. Its budget of encoder tokens, which
is that of a step's tokens, is not simulated.
"""

from __future__ import annotations

from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.core.images import Image
from mist_sim.hardware.predictors.tower_times import TowerTimes


class ImageTimes:
    """Adds the tower's time to steps. times: of the tower."""

    def __init__(self, times: TowerTimes) -> None:
        self._times = times

    def begin(self, plan: StepPlan) -> None:
        """Let a plan's first step wait for the images that its prompts reach.

        A plan whose later steps would reach further ones has one step.
        """
        reached: list[Image] = []
        for sequence, num_new in plan.prefills:
            images = sequence.visit.request.images
            if images is None:
                continue
            start = sequence.num_computed_tokens
            number = images.reached(start, start + num_new)
            reached += [images.each] * number
            if plan.num_steps > 1 and start + num_new < images.num_tokens:
                plan.num_steps = 1
        plan.wait_time += self._times.seconds(reached)
