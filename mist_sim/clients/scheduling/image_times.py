"""Images in a lane: the step in which a prompt reaches an image encodes it first.

Source: vLLM v1, `Scheduler._try_schedule_encoder_inputs` in `vllm/v1/core/sched/scheduler.py`, and
`_execute_mm_encoder` in `vllm/v1/worker/gpu_model_runner.py`. Its budget of encoder tokens, which
is that of a step's tokens, is not simulated.
"""

from __future__ import annotations

from collections.abc import Iterable

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Image
from mist_sim.hardware.predictors.tower_times import TowerTimes


class ImageTimes:
    """Adds the tower's time to steps. times: of the tower."""

    def __init__(self, times: TowerTimes) -> None:
        self._times = times

    def seconds(self, pieces: Iterable[tuple[SequenceState, int, int]]) -> float:
        """Return how long the tower takes for the images that some reach in a step.

        pieces: tokens of each, and those computed before.
        """
        reached: list[Image] = []
        for sequence, num_new, start in pieces:
            images = sequence.visit.request.images
            if images is not None:
                reached += [images.each] * images.reached(start, start + num_new)
        return self._times.seconds(reached)
