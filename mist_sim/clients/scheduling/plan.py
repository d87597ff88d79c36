"""What a scheduler decides: who computes what in the next steps, who comes and who goes."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients.sequence_state import SequenceState


class Swap(NamedTuple):
    """What is copied of a sequence before a step, to host memory or back.

    num_tokens: computed tokens in `num_blocks` blocks. in_prefill: whether more of its known
    tokens have to be computed.
    """

    sequence: SequenceState
    num_blocks: int
    num_tokens: int
    in_prefill: bool
    is_out: bool


class StepPlan:
    """What an engine does next: `num_steps` steps of the same members.

    prefills: sequences in prefill with the prompt tokens that each gets in every step.
    decodes: whether the running decodes take part.
    admitted, preempted: sequences that came from and went back to the waiting queue.
    loads: sequences that got memory and wait for blocks in it, with their number by tier.
    dropped: sequences that can never run again, because they outgrew the whole cache.
    swaps: sequences whose blocks are copied to or from host memory before the first step. Those
        that come back are not among the admitted.
    swap_time: seconds that the copies before the first step take.
    """

    __slots__ = (
        "admitted",
        "decodes",
        "dropped",
        "loads",
        "num_steps",
        "preempted",
        "prefills",
        "swap_time",
        "swaps",
    )

    def __init__(self) -> None:
        self.num_steps = 1
        self.prefills: list[tuple[SequenceState, int]] = []
        self.decodes = False
        self.admitted: list[SequenceState] = []
        self.preempted: list[SequenceState] = []
        self.loads: list[tuple[SequenceState, list[int]]] = []
        self.dropped: list[SequenceState] = []
        self.swaps: list[Swap] | None = None
        self.swap_time = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing and computes nothing."""
        return not (self.prefills or self.decodes or self.loads or self.preempted or self.dropped)
