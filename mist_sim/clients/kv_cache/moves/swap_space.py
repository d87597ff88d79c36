"""Host memory that the blocks of preempted sequences are copied to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mist_sim.errors import ScenarioError


@dataclass(frozen=True, slots=True)
class SwapSpace:
    """The swap space of an engine, or of a lane of it.

    num_blocks: KV blocks that it holds. seconds_per_block: of a copy out or in, over the host
    links of all GPUs of the engine side by side.
    """

    num_blocks: int
    seconds_per_block: float

    def divided_by(self, num_lanes: int) -> SwapSpace:
        """Return the part of a lane, of so many that share it equally (vLLM v0 divides so).

        Raises ScenarioError when there is not a block for each.
        """
        if self.num_blocks < num_lanes:
            raise ScenarioError(
                f"swap_space has {self.num_blocks} blocks, less than one for each of {num_lanes} "
                "lanes (pipeline_parallel_size); raise it"
            )
        return replace(self, num_blocks=self.num_blocks // num_lanes)
