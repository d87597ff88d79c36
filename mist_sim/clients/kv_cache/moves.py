"""KV entries that move: to host memory and back, from tiers, to other clients.

Moves of KV entries into the memory of a lane, or out of it.

Swapping out and in, loading from a tier, and hand-over from another client are one mechanism.
Memory at the destination is reserved before a move starts; a sequence without room waits in the
queue, in its order. The blocks at the source stay taken until the move has ended. The kinds differ
in what waits for the end, in the link, and in what is kept at the source:

| kind | from | to | what waits | link | kept at the source |
|---|---|---|---|---|---|
| `swap_out` | the lane | host memory | the engine's next step ¹ | the GPUs' host links | nothing |
| `swap_in` | host memory | the lane | the engine's next step ² | the GPUs' host links | nothing |
| `load` | a tier | the lane | the sequence | the tier's, one after the other | a copy |
| `hand_over` | another client | the lane | the sequence | the network | its prefix cache's copy |
| `fetch` | any store | the lane | the sequence, a prompt | the store's | what the store keeps |

With `preemption: async_swap` ¹ nothing waits, and ² the sequence does.

Sequences whose entries have arrived continue before others are admitted: swapped ones first, then
those handed over, then those loaded or fetched, each in the order in which their moves ended. Two
rules prevent deadlock over memory: admissions leave free the blocks for the first step of sequences
handed over, and for the rest of fetched prompts; and if no sequence runs, those handed over do not
wait for those swapped out. Fetched ones never wait for them.

Every move begins and ends in `clients/stores.py`, with the store at its other end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.errors import InvariantError, ScenarioError

Kind = Literal["swap_out", "swap_in", "load", "hand_over", "fetch"]

GPU: Final = "gpu"
HOST: Final = "host"


class KvMove(NamedTuple):
    """Entries of one sequence on their way.

    source, destination: `GPU`, the memory of the lane; `HOST`, its swap space; the name of a tier
        or of another client.
    num_blocks: blocks that are copied. num_tokens: tokens that have entries in them.
    """

    kind: Kind
    sequence: SequenceState
    source: str
    destination: str
    num_blocks: int
    num_tokens: int

    @property
    def is_swap(self) -> bool:
        """Whether it is between the lane and its swap space."""
        return self.kind in ("swap_out", "swap_in")

    def back(self) -> KvMove:
        """Return the swap in that reverses a swap out."""
        return self._replace(kind="swap_in", source=HOST, destination=GPU)


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
