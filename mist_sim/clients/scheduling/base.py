"""A batching policy: its options. Its rules are in the engine core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from mist_sim.checks import Positive, check_fields
from mist_sim.clients.scheduling.memory_needs import MemoryNeeds
from mist_sim.clients.scheduling.order import Order, WaitingQueue, is_ours, waiting_queue
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.registry import Registry

SCHEDULERS = Registry("schedulers")

Preemption = Literal["recompute", "swap", "async_swap"]
PREEMPTIONS: tuple[str, ...] = get_args(Preemption)

_WITHDRAWN = ("schedule", "would_admit", "by_piece")  # of the loop that asked schedulers


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """Base of the batching policies, which are stateless: all state is in the lane.

    One of your own derives from `ChunkedScheduler`, and has a `plan`, or a part of one.

    A request is admitted if the blocks for all its known tokens, less cached ones held by others,
    are free in addition to the needs of running sequences in the next step and the reserve. If
    these run short, a running sequence gives up its blocks and returns to the queue; its tokens are
    computed again (vLLM's recompute), except those whose blocks are still cached. With `preemption:
    swap` its blocks are copied to host memory instead, if there is room, and back before it
    continues; until all swapped sequences are back, in the order in which they left, no other is
    admitted (vLLM v0).

    max_num_seqs: sequences that may run at once. Default in scenarios: that of vLLM's server, 1,024
        on GPUs of 70 GiB and more except A100s, else 256; never more than the scenario's
        max_num_batched_tokens, nor, with the chunked scheduler, than its tokens can verify drafts
        of (vLLM's name).
    order: which waiting request is admitted next, and which running one gives way.
    preemption: what happens to the blocks of a preempted request: "recompute" drops them; "swap"
        copies them to host memory and back, while the engine waits (vLLM v0's `preemption_mode`; v1
        only recomputes); "async_swap" copies them while steps go on: blocks are free once copied,
        and until then decodes without a block pause.
    """

    takes_over: ClassVar[bool] = True  # whether decodes of other clients may join at any step
    by_piece: ClassVar[bool] = False  # whether prompts take blocks piece by piece

    max_num_seqs: Positive[int] = 256
    order: Order = "fcfs"
    preemption: Preemption = "recompute"

    def __post_init__(self) -> None:
        if reason := _withdrawn(type(self)):
            raise ValueError(reason)
        check_fields(self)

    @property
    def swaps(self) -> bool:
        """Whether the blocks of a preempted request are copied to host memory."""
        return self.preemption != "recompute"

    @property
    def swaps_overlap(self) -> bool:
        """Whether steps go on while they are."""
        return self.preemption == "async_swap"

    def refusal(self, needs: MemoryNeeds, sequence: SequenceState) -> str | None:
        """Return why a sequence that arrives can never be served, or None.

        needs: of a lane, see `MemoryNeeds.outgrown`.
        """
        return needs.outgrown(sequence)

    def cannot_verify(self, num_drafts: int) -> str | None:
        """Return the option needed for a step to verify so many drafts of every sequence.

        None: the present options suffice.
        """
        return None

    def new_queue(self) -> WaitingQueue:
        """Return an empty queue for a lane, in the `order` of the options."""
        return waiting_queue(self.order)


def _withdrawn(kind: type[Scheduler]) -> str:
    """Return why a kind of scheduler can plan nothing, and what to write instead; empty: it can."""
    instead = (
        "derive from ChunkedScheduler and write `plan(lane)`, which says who takes part in a step "
        "(lane.run, lane.admit, lane.preempt), or a part of one (begin, budget, piece, admits, "
        "victim); docs/guides/own_scheduler_or_predictor.md has examples"
    )
    for name in _WITHDRAWN:
        if any(name in vars(owner) and not is_ours(owner) for owner in kind.__mro__):
            return f"{kind.__name__} must not have `{name}`, which engines no longer ask: {instead}"
    if not hasattr(kind, "own_methods"):
        for name in ("plan", "begin", "budget", "piece", "admits", "victim"):
            if hasattr(kind, name):
                return f"{kind.__name__} is never asked for its `{name}`: {instead}"
    if not (hasattr(kind, "own_methods") or hasattr(kind, "prompts_come")):
        return f"{kind.__name__} has no rules by which steps are planned: {instead}"
    return ""
