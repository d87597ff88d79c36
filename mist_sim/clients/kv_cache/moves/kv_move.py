"""Moves of KV entries into the memory of a lane, or out of it.

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

Every move begins and ends in `clients/stores/mover.py`, with the store at its other end.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from mist_sim.clients.sequence_state import SequenceState

Kind = Literal["swap_out", "swap_in", "load", "hand_over", "fetch"]

GPU: Final = "gpu"
HOST: Final = "host"


class KvMove(NamedTuple):
    """Entries of one sequence on their way.

    source, destination: `GPU`, the memory of the lane; `HOST`, its swap space; the name of a tier
        or of another client.
    num_blocks: blocks that are copied. num_tokens: tokens that have entries in them.
    in_prefill: whether more of the tokens that the sequence knows have to be computed.
    """

    kind: Kind
    sequence: SequenceState
    source: str
    destination: str
    num_blocks: int
    num_tokens: int
    in_prefill: bool = False

    @property
    def is_swap(self) -> bool:
        """Whether it is between the lane and its swap space."""
        return self.kind in ("swap_out", "swap_in")

    def back(self) -> KvMove:
        """Return the swap in that reverses a swap out."""
        return self._replace(kind="swap_in", source=HOST, destination=GPU)
