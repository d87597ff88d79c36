"""The time that an engine's host needs for a step, beside the GPU's."""

from dataclasses import dataclass

from mist_sim.core.batch import StepBatch


@dataclass(frozen=True)
class Host:
    """Seconds of a step: of every one, of each request in it, and of the GPU's wait for prompts.

    exposed: what async scheduling does not hide of them; 0 without it.
    """

    step: float = 0.0
    sequence: float = 0.0
    prefill_step: float = 0.0
    exposed_step: float = 0.0
    exposed_sequence: float = 0.0

    def around(self, gpu: float, batch: StepBatch, *, overlaps: bool) -> float:
        """Return the seconds of a step that takes the GPU so long.

        overlaps: whether it was planned while the step before it ran.
        """
        if batch.chunks:
            gpu += self.prefill_step
        num_sequences = len(batch.chunks) + batch.num_decodes
        host = self.step + self.sequence * num_sequences
        exposed = self.exposed_step + self.exposed_sequence * num_sequences
        return max(gpu + exposed, host) if overlaps else gpu + max(host, exposed)
