"""TaiChi's Algorithm 1 in the core: which answers of a lane leave as a step ends.

Source: TaiChi (arXiv:2508.01989) §3.3; the rules are those of `core.flowing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mist_sim.clients.engine.core.lane import Lane

inf = float("inf")
_ROUNDING = 1e-9  # of sums of times; steps this close to a limit are looked at exactly


class Flow:
    """A rule for the answers of one lane.

    most_seconds: of a token, on average; slower answers leave, unless they have `most_times`; inf:
        none is too slow. watermark: the part of the blocks that may be in use, and of the seats if
        `counts_seats`, before the longest answers leave; inf: they never do.
    """

    def __init__(
        self, most_seconds: float, most_times: float, watermark: float, counts_seats: bool
    ) -> None:
        self.most_seconds, self.most_times = most_seconds, most_times
        self.watermark, self.counts_seats = watermark, counts_seats

    def leaving(self, lane: Lane) -> list[int]:
        """Return the slots that leave now, in this order."""
        if self.most_seconds < inf:
            return self.slowest(lane)
        return self.longest(lane)

    def slowest(self, lane: Lane) -> list[int]:
        """Return the answers that take too long for a token, in the order in which they joined."""
        found = [
            (lane.ticket[slot], slot)
            for slot in lane.running
            if lane.is_decoding(slot) and self.is_slow(lane, slot)
        ]
        found.sort()
        return [slot for _, slot in found]

    def is_slow(self, lane: Lane, slot: int) -> bool:
        """Tell whether an answer takes too long for a token, and may leave."""
        if lane.num_backflows[slot] >= self.most_times:
            return False
        start = self.start(lane, slot)
        number = lane.tokens(slot) - lane.num_prompt[slot] - lane.paced_from[slot]
        return lane.ended - start > self.most_seconds * number

    def start(self, lane: Lane, slot: int) -> float:
        """Return when the token was given from which on the time per token counts, NaN: none."""
        start = lane.paced_at[slot]
        return lane.first_token_at[slot] if start != start else start

    def longest(self, lane: Lane) -> list[int]:
        """Return the longest answers, until blocks and seats in use are below the watermark."""
        num_above = -self.blocks_below(lane)
        seats_above = -self.seats_below(lane)
        if num_above <= 0 and seats_above <= 0:
            return []
        stay = []
        for place, slot in enumerate(lane.running):
            number = lane.tokens(slot) - lane.num_prompt[slot]
            if lane.is_decoding(slot) and number:
                stay.append((lane.paced_from[slot] - number, place, slot))
        stay.sort()
        found: list[int] = []
        for _, _, slot in stay:
            if num_above <= 0 and seats_above <= 0:
                break
            found.append(slot)
            num_above -= lane.blocks.count(lane.tokens(slot) - 1)
            seats_above -= 1
        return found

    def blocks_below(self, lane: Lane) -> float:
        """Return how many blocks may be taken up to the watermark; those of who left are free."""
        blocks = lane.blocks
        num_used = blocks.num_blocks - blocks.num_free - lane.num_done_blocks
        return self.watermark * blocks.num_blocks - num_used

    def seats_below(self, lane: Lane) -> float:
        """Return how many may come in up to the watermark."""
        if not self.counts_seats:
            return inf
        num_taken = lane.num_decodes + len(lane.prefilling) + lane.num_coming + len(lane.moved)
        return self.watermark * lane.max_num_seqs - num_taken

    # --- quiet steps ----------------------------------------------------------------------------

    def num_quiet(self, lane: Lane, number: int) -> int:
        """Return how many of so many quiet steps end with no answer too long, the first in flight.

        No answer is too slow in those that end before `quiet_until`.
        """
        if lane.due_slots or self.seats_below(lane) < 0:
            return 0
        if self.most_seconds < inf:
            return number
        below, size = self.blocks_below(lane), lane.blocks.size
        if (number // size + 1) * lane.num_decodes <= below:
            return number
        for step in range(number):
            if below < 0:
                return step
            below -= lane.takers[(lane.num_steps + 1 + step) % size]
        return number

    def quiet_until(self, lane: Lane) -> float:
        """Return a time before which no step ends that makes an answer too slow, in seconds."""
        if self.most_seconds == inf:
            return inf
        until, limit = inf, self.most_seconds
        for slot in lane.running:
            if lane.is_decoding(slot) and lane.num_backflows[slot] < self.most_times:
                start = self.start(lane, slot)
                number = lane.tokens(slot) + 1 - lane.num_prompt[slot] - lane.paced_from[slot]
                until = min(until, start + limit * number)
        return until - _ROUNDING * max(1.0, until) if until < inf else inf
