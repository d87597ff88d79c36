"""The time that an engine's host needs for a step, beside the GPU's."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.core.batch import StepBatch


@dataclass(frozen=True)
class Host:
    """Seconds of a step: of every one, of each request in it, and of the GPU's wait for prompts."""

    step: float = 0.0
    sequence: float = 0.0
    prefill_step: float = 0.0

    def around(self, gpu: float, batch: StepBatch, *, overlaps: bool) -> float:
        """Return the seconds of a step that takes the GPU so long.

        overlaps: whether it was planned while the step before it ran.
        """
        if batch.chunks:
            gpu += self.prefill_step
        host = self.step + self.sequence * (len(batch.chunks) + batch.num_decodes)
        return max(gpu, host) if overlaps else gpu + host
