"""Memory below the GPUs that entries move to: swap space, its room, and the way there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mist_sim.errors import InvariantError, ScenarioError


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


class Room:
    """Blocks of a store, some taken by stored entries or by entries on their way.

    num_blocks: all blocks. num_used: taken blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_used = 0

    def has(self, num_blocks: int) -> bool:
        """Tell whether so many blocks can be reserved."""
        return self.num_used + num_blocks <= self.num_blocks

    def reserve(self, num_blocks: int) -> None:
        """Take blocks, for which there is room."""
        self.num_used += num_blocks

    def release(self, num_blocks: int) -> None:
        """Give blocks back. Raises InvariantError when more come back than were taken."""
        self.num_used -= num_blocks
        if self.num_used < 0:
            raise InvariantError(f"{-self.num_used} blocks more came back than were reserved")


class SerialLink:
    """The way between the GPUs of an engine and memory below them, in one direction."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def send(self, seconds: float, now: float) -> float:
        """Queue a copy behind those under way; return the time of its end (seconds)."""
        self._free_at = max(now, self._free_at) + seconds
        return self._free_at
