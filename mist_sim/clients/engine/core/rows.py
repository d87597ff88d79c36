"""Records of lanes: a row for steps of the same members, the end of each step, and their counts."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mist_sim.core.recorder import StepRow

    Chunks = tuple[tuple[int, int], ...]

MOST_ENDS = _MOST_ENDS = 256  # that are kept before they are handed over


class Rows:
    """Writes one track of steps.

    add: takes a row, as `StepRow` has it. ends: gets the end of every step, seconds.
    """

    def __init__(self, add: Callable[[StepRow], None], ends: array[float]) -> None:
        self.add, self.ends = add, ends
        self.num_steps = 0  # of the present row
        self.start = self.end = 0.0
        self.chunks: Chunks = ()
        self.num_decodes = self.context_sum = self.num_waiting = self.num_used = 0
        self.num_gaps = 0
        self.busy = -1.0  # seconds of work, -1: all of them
        self.tokens = array("q")  # of each step with decodes that verify drafts, not written yet
        self.latest, self.num_latest = array("d", bytes(8 * _MOST_ENDS)), 0

    def begin(
        self, start: float, chunks: Chunks, num_decodes: int, context_sum: int, num_gaps: int
    ) -> None:
        """Begin a row with the step that starts now, and write the one before.

        num_gaps: of its decodes, those that had a token when it starts.
        """
        self.flush()
        self.num_gaps = num_gaps
        self.start, self.chunks = start, chunks
        self.num_decodes, self.context_sum = num_decodes, context_sum

    def go_on(self, chunks: Chunks) -> bool:
        """Tell whether a step of the same members is one more of the present row.

        Its prompts go on with as many tokens.
        """
        if len(chunks) != len(self.chunks):
            return False
        for position in range(len(chunks)):
            if chunks[position][0] != self.chunks[position][0]:
                return False
        return True

    def note_end(self, end: float, num_waiting: int, num_used: int) -> None:
        """Note that a step has ended, with so many requests waiting and blocks in use."""
        if self.num_latest == _MOST_ENDS:
            self.hand_over_ends()
        self.latest[self.num_latest] = end
        self.num_latest += 1
        self.num_steps += 1
        self.end, self.num_waiting, self.num_used = end, num_waiting, num_used

    def add_end(self, end: float) -> None:
        """Note when a step ended."""
        if self.num_latest == _MOST_ENDS:
            self.hand_over_ends()
        self.latest[self.num_latest] = end
        self.num_latest += 1

    def hand_over_ends(self) -> None:
        """Write the latest ends."""
        self.ends.frombytes(memoryview(self.latest).cast("B")[: 8 * self.num_latest])
        self.num_latest = 0

    def flush(self) -> None:
        """Write the present row, if it has a step."""
        num_steps = self.num_steps
        if not num_steps:
            return
        num_chunks = num_new = num_before = num_pairs = 0
        for new, before in self.chunks:  # of all its steps together, as `attended`
            num_chunks += 1
            num_new += new
            num_before += before
            num_all = new * num_steps
            num_pairs += num_all * before + num_all * (num_all + 1) // 2
        self.num_steps = 0
        self.add(
            (
                self.start,
                num_steps,
                num_chunks,
                num_new,
                self.num_decodes,
                self.context_sum,
                num_before,
                num_pairs,
                self.end - self.start if self.busy < 0 else self.busy,
                self.num_waiting,
                self.num_used,
                self.num_gaps,
                0,
            )
        )


class Counts:
    """Requests of all lanes of a client.

    num_waiting, num_running: requests. num_waiting_tokens: to be computed before the next token of
    those that wait. num_changes: how often lanes have changed these.
    """

    def __init__(self) -> None:
        self.num_waiting = self.num_running = self.num_waiting_tokens = self.num_changes = 0

    def begin(self, num_tokens: int) -> None:
        """Note that a request runs that waited with so many tokens to compute."""
        self.num_waiting -= 1
        self.num_waiting_tokens -= num_tokens
        self.num_running += 1
        self.num_changes += 1

    def go_back(self, num_tokens: int) -> None:
        """Note that a request waits again."""
        self.num_waiting += 1
        self.num_waiting_tokens += num_tokens
        self.num_running -= 1
        self.num_changes += 1
