"""Fast forward: many steps at once in which nothing can happen but the next token of each decode.

Only here does the core look ahead; without it the results are the same to the bit, and slower.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from mist_sim.clients.engine.core.rows import MOST_ENDS

if TYPE_CHECKING:
    from mist_sim.clients.engine.core.lane import Lane

_MOST_ENDS = MOST_ENDS
_SURELY = 1 - 1e-6  # of a step's seconds, which are a difference of times
_LEAST_ASKED, _MOST_ASKED = 16, 512  # steps whose seconds a predictor is asked for at once


class FastForward:
    """Takes quiet steps of any lane."""

    def skip(self, lane: Lane, until: float) -> bool:
        """Take quiet steps that end before a time, up to `num_quiet`; return whether any was."""
        if lane.is_pipeline:
            return lane.skip(until)
        if lane.num_quiet < 0:
            lane.num_quiet = self.find_quiet(lane)
        if not lane.num_quiet or lane.time >= until:
            return False
        if lane.flow is not None:
            until = min(until, lane.flow.quiet_until(lane))
            if lane.time >= until:
                return False
        if lane.times.has_line(lane.num_decodes) and not lane.times.needs_longest:
            self.skip_on_line(lane, until)
        else:
            self.skip_as_told(lane, until)
        return True

    def earliest(self, lane: Lane) -> float:
        """Return a time before which a lane with a step in flight ends quiet steps alone.

        Each takes at least as long as the step in flight, as contexts only grow.
        """
        if lane.is_pipeline:
            return lane.time
        if lane.num_quiet < 0:
            lane.num_quiet = self.find_quiet(lane)
        if not lane.num_quiet or lane.times.needs_longest:
            return lane.time
        if not lane.times.has_line(lane.num_decodes):
            return lane.time
        time = lane.time + lane.num_quiet * (lane.time - lane.start) * _SURELY
        if lane.flow is not None:
            time = max(lane.time, min(time, lane.flow.quiet_until(lane)))
        return time

    def find_quiet(self, lane: Lane) -> int:
        """Return how many steps end with the same members and memory, the one in flight first."""
        if lane.asks_always or lane.prefilling or lane.given_up or lane.num_writers:
            return 0
        if lane.is_alone:
            return 0
        waits = lane.queue or lane.swapped or lane.moved or lane.loaded
        if waits and not lane.is_blocked:
            return 0
        if lane.joined or lane.num_late or lane.came or lane.copied or lane.forgotten:
            return 0
        number, size = lane.seen_at - lane.num_steps - 1, lane.blocks.size
        if lane.flow is not None:
            number = lane.flow.num_quiet(lane, number)
        most = (number // size + 1) * lane.num_decodes * lane.per_block
        if most <= lane.blocks.num_free:
            return number
        return self.find_room(lane, number)

    def find_room(self, lane: Lane, number: int) -> int:
        """Return how many of so many steps leave blocks for the step after them."""
        size, num_left = lane.blocks.size, lane.blocks.num_free - lane.decode_need
        for step in range(number):
            num_left -= lane.takers[(lane.num_steps + 1 + step) % size]
            if num_left < 0:
                return step
        return number

    def skip_on_line(self, lane: Lane, until: float) -> None:
        """Take steps whose seconds lie on a line."""
        lines, at, num_decodes = lane.times.lines, 5 * lane.num_decodes, lane.num_decodes
        per_key, fixed, least = lines[at], lines[at + 1], lines[at + 2]
        beyond, more = lines[at + 3], lines[at + 4]
        rows, latest, num_latest = lane.rows, lane.rows.latest, lane.rows.num_latest
        time, start, num_left = lane.time, lane.start, lane.num_quiet
        num_keys = lane.context_sum + num_decodes - lane.num_read_again
        while num_left and time < until:
            if num_latest == _MOST_ENDS:
                rows.num_latest = num_latest
                rows.hand_over_ends()
                num_latest = 0
            latest[num_latest] = start = time
            num_latest += 1
            num_keys += num_decodes
            seconds = num_keys * per_key + fixed + more  # as `Times.of_decodes`
            if seconds < least:  # max() would be a call  # noqa: PLR1730
                seconds = least
            time += seconds + beyond
            num_left -= 1
        rows.num_latest = num_latest
        self.note(lane, lane.num_quiet - num_left, start, time)

    def skip_as_told(self, lane: Lane, until: float) -> None:
        """Take steps whose seconds the predictor tells, for many at a time."""
        num_decodes, num_left, num_taken = lane.num_decodes, lane.num_quiet, 0
        time, start, number = lane.time, lane.start, _LEAST_ASKED
        while num_left and time < until:
            if not lane.num_ahead:
                lane.num_ahead = min(num_left, number)
                lane.next_ahead = 0
                longest = num_in_windows = -1
                num_growing = 0
                if lane.times.needs_longest:
                    longest = lane.longest_context() + num_taken + 1
                if lane.is_paged:
                    num_in_windows, num_growing, least = lane.in_windows(num_taken + 1)
                    lane.num_ahead = min(lane.num_ahead, least)
                lane.ahead = array(
                    "d",
                    lane.times.ask_run(
                        num_decodes,
                        lane.context_sum + (num_taken + 1) * num_decodes,
                        lane.num_read_again,
                        longest,
                        lane.num_ahead,
                        num_in_windows,
                        num_growing,
                    ).tobytes(),
                )
                number = min(_MOST_ASKED, 2 * number)
            lane.rows.add_end(time)
            start = time
            time += lane.ahead[lane.next_ahead]
            lane.next_ahead += 1
            lane.num_ahead -= 1
            num_left -= 1
            num_taken += 1
        self.note(lane, num_taken, start, time)

    def note(self, lane: Lane, number: int, start: float, time: float) -> None:
        """Note that so many steps have ended; the next began at `start` and ends at `time`."""
        if lane.cadence is not None:
            lane.cadence.advance(number)
        lane.num_quiet -= number
        lane.lag += number
        lane.num_steps += number
        lane.num_given += number * lane.num_decodes
        lane.rows.num_steps += number
        lane.context_sum += number * lane.num_decodes
        lane.start = lane.ended = start
        lane.time = time
        if lane.plans_ahead:
            lane.known_until, lane.was_ahead = start, True
