"""Which answers leave a client at the end of a step, so that another one goes on (TaiChi, §3.3).

Rules, for clients of two roles, p_heavy and d_heavy, which both serve prompts and answers:

- A prompt that a p_heavy client computed is decoded by a d_heavy one, as after any hand-over. One
  that a d_heavy client computed is decoded there, in the same visit.
- At the end of a step, when those have left who finished or gave up, some decodes leave. Their
  visits end as moved; their blocks stay held as after a prompt, and another client of the other
  role goes on with the answer. Of those with this role it is the one with the smallest part of its
  blocks in use, the first of equals.
- A p_heavy client lets all go that take too long for a token, in the order in which they joined,
  but those that have left a p_heavy client so often that they may not again.
- A d_heavy client lets the longest go, one after the other, of equals the first admitted, while
  more blocks are in use than a part of them. What is held does not count, nor what they have.
  Where seats count, they also leave while more than that part of the seats is taken; who comes has
  one.
- Time per token and length of an answer count from its first token on, or from its latest one
  when it last went from a p_heavy client to a d_heavy one.
- Who comes with entries at another client, and who was preempted, is queued before prompts. Moves
  begin also where prompts have all tokens of the step, but not in a step that preempted anybody.
- Who was preempted is admitted when all its known tokens fit, also where others need a first piece.
- Clients may wait for each other's memory. Then nothing goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.reference.stepwise import Live, StepwiseEngine

ROLES = ("p_heavy", "d_heavy")


class Flow(Protocol):
    def leaving(self, lane: StepwiseEngine) -> list[Live]:
        """Return who leaves now, in this order."""


@dataclass(frozen=True)
class Backflow:
    """Those leave that take more seconds for a token, each so often at most; None: always."""

    most_seconds: float
    most_times: int | None = None

    def leaving(self, lane: StepwiseEngine) -> list[Live]:
        return [live for live in lane.decodes if self.is_slow(live, lane.now) and self.may(live)]

    def may(self, live: Live) -> bool:
        return self.most_times is None or live.num_backflows < self.most_times

    def is_slow(self, live: Live, now: float) -> bool:
        time, num_tokens = live.counts_from
        return now - time > self.most_seconds * (live.num_emitted - num_tokens)


@dataclass(frozen=True)
class Degradation:
    """The longest leave while more than this part of the blocks is in use, or of the seats."""

    watermark: float
    counts_seats: bool = False

    def leaving(self, lane: StepwiseEngine) -> list[Live]:
        done = lane.held + [live for live in lane.late if live not in lane.held]
        num_held = sum(len(live.blocks) for live in done)
        num_used = lane.num_blocks - lane.num_free - num_held
        stay = [live for live in lane.running if live.decoding and live.num_emitted]
        found: list[Live] = []
        num_seats = len(lane.active) + len(lane.moved)
        unknown = [live for _, live in lane.given_up]  # the lane does not know that they gave up
        num_seats += sum(not live.has_given_up or live in unknown for live in lane.coming)
        while stay and (
            num_used > self.watermark * lane.num_blocks
            or (self.counts_seats and num_seats > self.watermark * lane.max_num_seqs)
        ):
            longest = max(stay, key=lambda live: live.num_emitted - live.counts_from[1])
            stay.remove(longest)
            found.append(longest)
            num_used -= len(longest.blocks)
            num_seats -= 1
        return found
